"""The bench of increments measures what it says, and says what peers are not here."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.bundle.reader import Reader
from mirror.store.generations import Root, remove_tree
from tests.bench import run
from tests.bench.increments import (
    FULL,
    INSTALL_PART,
    MODEL,
    PART,
    RSYNC,
    TENSOR,
    XDELTA,
    ZSTD,
    Increments,
)
from tests.bench.rows import Compared

SIZE = 6_000_000


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Increments:
    folder = tmp_path_factory.mktemp("increments")
    return Increments(folder, folder / "scratch", SIZE)


def test_every_row_of_mirror_runs_and_makes_what_it_is_to_make(group: Increments) -> None:
    shipped: dict[str, list[str]] = {}
    for row in group.rows():
        if row.name in (XDELTA, RSYNC, ZSTD):
            continue
        remove_tree(group.scratch)
        group.scratch.mkdir()
        row.ready()
        row.work()
        if (made := group.scratch / "bundle.tar.gz").exists():
            with Reader.open(made) as reader:
                shipped[row.name] = [a.kind for a in reader.index.shipped if a.kind != "bundle"]
        if row.name == INSTALL_PART:
            assert [g.number for g in Root(group.scratch / "root").generations()] == [1, 2]
    assert shipped[FULL].count("files") == 100
    assert shipped[PART] == ["files"]
    assert shipped[MODEL].count("files") == 1
    assert shipped[TENSOR] == ["delta"]
    part, tensor, idle = group.notes()
    assert part.startswith(PART)
    assert group.made[PART] < 0.02 * group.made[FULL]
    assert tensor.endswith(f"of {MODEL}")
    assert "no change" in idle
    named = {row.name for row in group.rows()}
    compared = [aim for aim in group.aims if isinstance(aim, Compared)]
    assert {name for aim in compared for name in (aim.ours, aim.theirs)} <= named


@pytest.mark.parametrize("name", [XDELTA, RSYNC, ZSTD])
def test_a_peer_that_is_not_here_is_named(
    group: Increments,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    [row] = [row for row in group.rows() if row.name == name]
    monkeypatch.setenv("PATH", "")
    assert run.measure([row], group.scratch, 1) == {}
    program = name.split()[0]
    assert f"{name}: not measured ({program} ended with 127: it is not installed)" in (
        capsys.readouterr().err
    )


def test_patches_of_peers_that_are_here(group: Increments, tmp_path: Path) -> None:
    seconds = run.measure(
        [row for row in group.rows() if row.name in (XDELTA, RSYNC, ZSTD)], group.scratch, 1
    )
    for name in seconds:
        assert 0 < group.made[name] < 0.2 * SIZE / 4, name
