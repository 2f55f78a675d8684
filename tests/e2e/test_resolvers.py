"""Both resolvers, on the real package index, for machines that are not this one: one answer.

pip-tools resolves for another machine only because parts of pip are replaced (docs/adr/0004). When
one of those parts is no longer used, nothing fails: the answer is silently the builder's. These
tests are what notices.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.core.target import Target
from mirror.ecosystems.wheels import pip_tools, uv
from mirror.ecosystems.wheels.indexes import DEFAULT, Index, Indexes, default_url
from mirror.ecosystems.wheels.uv import Pin

CASES = {
    "linux": (["accelerate", "transformers"], Target("3.10", "linux-x86_64", glibc="2.28")),
    "linux-cuda": (["torch==2.6.0"], Target("3.10", "linux-x86_64", glibc="2.28")),
    "windows": (["torch==2.6.0"], Target("3.11", "win-amd64")),
    "macos": (["torch==2.6.0"], Target("3.12", "macos-arm64")),
    "grace": (["transformers"], Target("3.12", "linux-aarch64", glibc="2.28")),
}
INDEXES = Indexes(Index(DEFAULT, default_url()))
#: Bytes. What pip keeps of the pages and metadata that a case needs; torch alone is 0.7 GB.
MOST = 150_000_000


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[list[str], Target]:
    return CASES[request.param]


def by_pip_tools(requirements: list[str], target: Target, folder: Path) -> list[Pin]:
    return pip_tools.resolve(requirements, target, folder, indexes=INDEXES)


def test_both_resolvers_choose_the_same_files(
    case: tuple[list[str], Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("PIP_CACHE_DIR", str(cache))
    mine = by_pip_tools(*case, tmp_path)
    theirs = uv.resolve(*case, tmp_path, indexes=INDEXES)
    assert [(p.name, p.version, p.file, p.sha256) for p in mine] == [
        (p.name, p.version, p.file, p.sha256) for p in theirs
    ]
    # Sizes are the index's, so no wheel was fetched for its own sake either.
    assert [p.size for p in mine] == [p.size for p in theirs]
    assert sum(f.stat().st_size for f in cache.rglob("*") if f.is_file()) < MOST


def test_canary_torch_for_windows_carries_no_nvidia_package(tmp_path: Path) -> None:
    found = {pin.name for pin in by_pip_tools(*CASES["windows"], tmp_path)}
    assert "torch" in found
    assert not [name for name in found if name.startswith(("nvidia-", "triton"))]
