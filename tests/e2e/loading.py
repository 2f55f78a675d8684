"""A server with every kind of repository, and how its users load them.

Three versions of the Hub's client want environments of their own: MIRROR_HUB_PYTHON names their
Pythons with `{}` for the version, else .venv-hub-{} has them.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.conftest import CHECKOUT, mirror, mirror_json
from tests.hub import Hub
from tests.hub.hub import Repo

HUBS = ("0.36", "1.33", "2.4")
HUB_PYTHON = os.environ.get("MIRROR_HUB_PYTHON") or f"{CHECKOUT}/.venv-hub-{{}}/bin/python"
TINY = CHECKOUT / "manifests" / "tiny-llama"
#: Another user than the one who installs. Only root can become one; others stay who they are.
STRANGER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
#: May read everything (and write nothing more), for a Python that lies in a closed home.
READER = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]

_MANIFEST = """
name: loading
version: "1"
models:
  - {repo: org/tiny, default: true}
  - {repo: org/tiny, revision: v1}
  - {repo: org/tiny, revision: refs/pr/1}
  - {repo: org/tiny, revision: @COMMIT@}
  - {repo: org/code, revision: v1, trust_remote_code: true}
  - {repo: org/uses, trust_remote_code: true}
  - org/adapter
@FURTHER@
datasets:
  - {repo: org/corpus, revision: v1}
  - {path: corpus, name: our/corpus}
spaces: [org/space]
"""


def tensors(**values: float) -> bytes:
    """A safetensors file of numbers."""
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]}
        for n, name in enumerate(values)
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(values)}f", *values.values())


CODE = {
    "configuration_own.py": b"""
from transformers import PretrainedConfig

class OwnConfig(PretrainedConfig):
    model_type = "own"
""",
    "modeling_own.py": b"""
import torch
from transformers import PreTrainedModel
from .configuration_own import OwnConfig

class OwnModel(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.factor = torch.nn.Parameter(torch.zeros(1))
        self.post_init()

    def forward(self, numbers):
        return numbers * self.factor
""",
}
CORPUS = {"train/a.jsonl": b'{"text": "one"}\n{"text": "two"}\n', "README.md": b"# texts\n"}


def own_config(home: str = "") -> bytes:
    """A configuration whose classes are in the repository itself, or in another."""
    classes = {"AutoConfig": "configuration_own.OwnConfig", "AutoModel": "modeling_own.OwnModel"}
    table = {name: f"{home}{place}" for name, place in classes.items()}
    return json.dumps({"model_type": "own", "auto_map": table}).encode()


def fill(hub: Hub) -> str:
    """The repositories that the manifest names; returns a commit which nothing else names."""
    files = {path.name: path.read_bytes() for path in TINY.iterdir()}
    config = json.loads(files["config.json"])

    def marked(mark: str) -> dict[str, bytes]:
        return {**files, "config.json": json.dumps({**config, "mark": mark}).encode()}

    tiny = hub.add_model("org/tiny", marked("main"))
    tiny.commit(marked("v1"), "v1")
    tiny.commit(marked("pull"), "refs/pr/1")
    code = hub.add_model("org/code", {"README.md": b"# moved on\n"})
    weights = {"config.json": own_config(), "model.safetensors": tensors(factor=3.0)}
    code.commit({**CODE, **weights}, "v1")
    hub.add_model(
        "org/uses",
        {"config.json": own_config("org/code--"), "model.safetensors": tensors(factor=5.0)},
    )
    adapter = {"base_model_name_or_path": "org/tiny", "peft_type": "LORA"}
    hub.add_model(
        "org/adapter",
        {
            "adapter_config.json": json.dumps(adapter).encode(),
            "adapter_model.safetensors": tensors(change=1.0),
        },
    )
    corpus = hub.add(Repo("org/corpus", kind="datasets"), {"README.md": b"# moved on\n"})
    corpus.commit(CORPUS, "v1")
    hub.add(Repo("org/space", kind="spaces"), {"app.js": b"1\n", "README.md": b"# a space\n"})
    return tiny.commit(marked("commit"))


@dataclass(frozen=True, slots=True)
class Loading:
    """A bundle, the root where it is installed, and what is in it as `list --models` has it."""

    bundle: Path
    root: Path
    rows: list[dict[str, Any]]

    @property
    def generation(self) -> Path:
        return (self.root / "current").resolve()

    def row(self, repo: str, revision: str = "main") -> dict[str, Any]:
        return next(row for row in self.rows if (row["id"], row["revision"]) == (repo, revision))


@contextmanager
def installed(further: str = "") -> Iterator[Loading]:
    """Where every user may look and nobody may write. further: more items of the manifest."""
    with tempfile.TemporaryDirectory() as name, Hub() as hub:
        folder = Path(name)
        folder.chmod(0o755)
        manifest = _MANIFEST.replace("@COMMIT@", fill(hub)).replace("@FURTHER@", further)
        (folder / "m.yaml").write_text(f"{manifest}endpoint: {hub.url}\n", encoding="utf-8")
        for file, data in CORPUS.items():
            (folder / "corpus" / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / "corpus" / file).write_bytes(data)
        bundle, root = folder / "b.tar.gz", folder / "root"
        mirror("build", "m.yaml", "-o", bundle, cwd=folder)
        mirror("install", bundle, "--root", root)
        own = [root, *(path for path in root.rglob("*") if not path.is_symlink())]
        for path in own:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o555)
        try:
            yield Loading(bundle, root, mirror_json("list", "--models", "--root", root))
        finally:
            for path in own:
                path.chmod(0o755)


REFUSED = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        import os
        os.write(2, f"{event}{arguments}".encode())
        os._exit(77)

sys.addaudithook(refuse)
"""


def stranger(python: str) -> list[str]:
    """What runs this Python as another user, when this one can."""
    if os.geteuid() != 0:
        return []
    command = [*STRANGER, "sh", "-c", 'exec "$0" -c ""', python]
    plain = subprocess.run(command, capture_output=True, check=False)
    return STRANGER if plain.returncode == 0 else STRANGER + READER


def as_stranger(python: str, script: str, *arguments: str, setting: str) -> str:
    """Run a script as another user, in a shell that has done `setting` before; its output.

    It may reach no network, and has a home of its own to write to.
    """
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "PYTHON"))}
    who = stranger(python)
    with tempfile.TemporaryDirectory() as home:
        if who:
            os.chown(home, 65534, 65534)
        shell = ["sh", "-ec", f'{setting}\nexec "$0" "$@"']
        done = subprocess.run(
            [*who, *shell, python, "-c", REFUSED + script, *arguments],
            env={**keep, "HOME": home, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=home,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode == 0, f"{who}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def hub_python(version: str) -> str:
    """A Python with this version of the Hub's client."""
    python = HUB_PYTHON.format(version)
    assert Path(python).is_file(), (
        f"{python} is missing: `make` sets it up, or let MIRROR_HUB_PYTHON name it"
    )
    return python


BY_HUB = """
import hashlib, json, os
from pathlib import Path
from huggingface_hub import hf_hub_download, snapshot_download
import huggingface_hub

for kind, repo, names, plain, files in json.loads(sys.argv[1]):
    kind = kind[:-1]
    for name in names:
        options = {"repo_type": kind, "revision": name}
        snapshot = snapshot_download(repo, **options)
        for file, digest in files.items():
            place = hf_hub_download(repo, file, **options)
            assert Path(place).samefile(Path(snapshot, file)), place
            assert plain is None or Path(place).samefile(Path(plain, file)), place
            assert hashlib.sha256(Path(place).read_bytes()).hexdigest() == digest, place
        there = {p.relative_to(snapshot).as_posix() for p in Path(snapshot).rglob("*")}
        assert {p for p in there if Path(snapshot, p).is_file()} == set(files), there
print(huggingface_hub.__version__)
"""


def wanted(rows: Sequence[Mapping[str, Any]], *, plain: bool = True) -> str:
    """What BY_HUB is told: each revision by all of its names."""
    found = []
    for row in rows:
        folder = Path(row["path"])
        files = {
            path.relative_to(folder.resolve()).as_posix(): path.read_bytes()
            for path in folder.resolve().rglob("*")
            if path.is_file()
        }
        assert len(files) == row["files"]
        names = [row["revision"], row["commit"], *([None] if row["default"] else [])]
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        found.append((row["kind"], row["id"], names, str(folder) if plain else None, digests))
    return json.dumps(found)
