"""The bench of downloads measures what it says, as far as that can be told without the others."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror.store.blobs import Blobs
from mirror.store.generations import remove_tree
from tests.bench import downloads, origin, run
from tests.bench.downloads import HUB, PLAIN, URLS, Downloads


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Downloads]:
    monkeypatch.setattr(downloads, "SMALL", (3, 400, 4000))
    made = Downloads(tmp_path, tmp_path / "scratch", 2_000_000)
    yield made
    made.close()


def test_mirror_fetches_all_files(group: Downloads, tmp_path: Path) -> None:
    wanted = origin.listed(tmp_path / "files")
    for row in group.rows()[:2]:
        (tmp_path / "scratch").mkdir()
        row.work()
        blobs = Blobs(tmp_path / "scratch" / "store")
        assert all(blobs.has(file.sha256, file.size) for file in wanted.values())
        remove_tree(tmp_path / "scratch")
    assert [row.name for row in group.rows()[:2]] == [URLS, HUB]
    named = {row.name for row in group.rows()}
    assert {name for aim in group.aims for name in (aim.ours, aim.theirs)} <= named
    assert 20e6 < group.peak < 200e6


def test_who_is_not_here_is_named(
    group: Downloads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "")
    row = next(row for row in group.rows() if row.name == PLAIN)
    assert run.measure([row], tmp_path / "scratch", 1) == {}
    assert (
        f"{PLAIN}: not measured (aria2c ended with 127: it is not installed)"
        in capsys.readouterr().err
    )


def test_the_server_is_as_far_away_as_it_says(group: Downloads) -> None:
    before = time.monotonic()
    with urllib.request.urlopen(origin.address(group.port, "model.safetensors")) as answer:
        assert len(answer.read()) == 2_000_000
    took = time.monotonic() - before
    assert took + 0.01 >= 0.06 + 2_000_000 / 40e6
