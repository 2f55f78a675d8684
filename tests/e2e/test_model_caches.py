"""`mirror install --into-cache`: into caches that real clients of the Hub have written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import mirror, mirror_json
from tests.e2e.loading import (
    BY_HUB,
    HUBS,
    REFUSED,
    TINY,
    Loading,
    fill,
    hub_python,
    installed,
    wanted,
)
from tests.hub import Hub
from tests.repositories import tree


@pytest.fixture(scope="module")
def loading(demo_cache: Path) -> Iterator[Loading]:
    assert demo_cache.is_dir()
    with installed() as found:
        yield found


_FETCH = """
import os, sys
from huggingface_hub import hf_hub_download, snapshot_download
snapshot_download("org/other")
snapshot_download("org/tiny")
hf_hub_download("org/tiny", "config.json", revision="v1")
snapshot_download("org/corpus", repo_type="dataset", revision="v1", allow_patterns="train/*")
try:
    from huggingface_hub.utils import _shared_blobs
except ImportError:
    sys.exit()
# As the client does with what came through Xet, which no loopback Hub has.
place = os.path.realpath(hf_hub_download("org/other", "model.safetensors"))
size = os.path.getsize(place)
assert _shared_blobs.publish_blob_to_shared_store(
    blob_path=place, xet_hash="ab" * 32, cache_dir=os.environ["HF_HUB_CACHE"],
    expected_size=size, replace_existing=False,
)
assert os.path.islink(place)
"""


_WHOLE = """
from huggingface_hub import scan_cache_dir
assert Path(snapshot_download("org/tiny")).name == sys.argv[2]
assert Path(hf_hub_download("org/tiny", "old.txt")).read_bytes() == b"old"
assert not scan_cache_dir().warnings, scan_cache_dir().warnings
"""


@pytest.fixture(scope="module", params=[HUBS[0], HUBS[-1]])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A cache as a real client has written it: other things, and some of what the bundle brings."""
    cache = tmp_path_factory.mktemp("cache") / "hub"
    with Hub() as hub:
        fill(hub)
        files = {path.name: path.read_bytes() for path in TINY.iterdir()}
        hub.add_model("org/other", files)
        hub.repos["org/tiny"].commit({"config.json": b"{}", "old.txt": b"old"}, "main")
        keep = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        subprocess.run(
            [hub_python(request.param), "-c", _FETCH],
            env={**keep, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)},
            check=True,
            capture_output=True,
        )
    return request.param, cache


def test_into_a_cache_that_a_client_has_written(
    loading: Loading, filled: tuple[str, Path], tmp_path: Path
) -> None:
    version, cache = filled
    before = tree(cache)
    root = tmp_path / "root"
    planned = mirror_json(
        "install", loading.bundle, "--root", root, "--into-cache", cache, "--dry-run"
    )
    assert tree(cache) == before
    assert not root.exists()
    done = mirror("install", loading.bundle, "--root", root, "--into-cache", cache)
    commit = loading.row("org/tiny")["commit"]
    old = (cache / "models--org--tiny" / "refs" / "main").read_text()
    assert f"warning: org/tiny: main stays {old!r}" in done.stderr
    assert f"loads with revision={commit!r}" in done.stderr
    assert f", into {cache}" in done.stdout
    after = tree(cache)
    assert {path: after[path] for path in before} == before
    assert planned["cache"]["files"] == len(
        [path for path in after.keys() - before.keys() if "/snapshots/" in path]
    )

    again = mirror_json("install", loading.bundle, "--root", root, "--into-cache", cache)
    assert (again["changed"], again["cache"]["files"]) == (False, 0)
    assert tree(cache) == after

    # main of org/tiny is what it was; all else is found by every name.
    told = json.loads(wanted(loading.rows, plain=False))
    for one in told:
        if one[1] == "org/tiny":
            one[2] = [name for name in one[2] if name not in ("main", None)]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in TINY.iterdir()}
    told.append(("models", "org/other", ["main"], None, digests))
    keep = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    for reader in {version, HUBS[-1]}:
        subprocess.run(
            [hub_python(reader), "-c", REFUSED + BY_HUB + _WHOLE, json.dumps(told), old],
            env={**keep, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
            check=True,
        )


def test_what_is_installed_already_is_put_into_a_further_cache(
    loading: Loading, tmp_path: Path
) -> None:
    root, cache = tmp_path / "root", tmp_path / "hub"
    mirror("install", loading.bundle, "--root", root)
    done = mirror_json("install", loading.bundle, "--root", root, "--into-cache", cache)
    assert done["changed"] is False
    assert done["cache"]["files"] == sum(row["files"] for row in loading.rows)
    assert {path: data for path, data in tree(cache).items() if not path.startswith(".locks/")} == (
        tree(root / "current" / "hub")
    )


def test_a_damaged_cache_stops_it_before_anything_is_written(
    loading: Loading, tmp_path: Path
) -> None:
    root, cache = tmp_path / "root", tmp_path / "hub"
    blobs = loading.generation / "hub" / "models--org--tiny" / "blobs"
    shutil.copytree(blobs, cache / "models--org--tiny" / "blobs")
    damaged = sorted((cache / "models--org--tiny" / "blobs").iterdir())[:2]
    for path in damaged:
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[::-1])
    before = tree(cache)
    error = mirror_json("install", loading.bundle, "--root", root, "--into-cache", cache, code=8)[
        "error"
    ]
    assert error["problems"] == [f"{path} has other bytes" for path in damaged]
    assert tree(cache) == before
    assert not root.exists()
