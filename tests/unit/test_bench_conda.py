"""The bench of conda packages measures what it says."""

from __future__ import annotations

from pathlib import Path

from mirror.store.generations import remove_tree
from tests.bench.conda_install import CondaInstall


def test_both_sides_install_the_same(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    group = CondaInstall(tmp_path, scratch, 2_000_000)
    found = {}
    for row in group.rows():
        remove_tree(scratch)
        scratch.mkdir()
        row.ready()
        row.work()
        [prefix] = [path.parent for path in scratch.rglob("conda-meta")]
        assert {path.name for path in scratch.iterdir()} <= {"generations", "env", "cache"}
        files = {p.relative_to(prefix) for p in prefix.rglob("*") if "package" in p.name}
        found[row.name] = {path for path in files if path.parts[0] != "conda-meta"}
    assert found["mirror, .conda"] == found["rattler, .conda"]
    assert found["mirror, .tar.bz2"] == found["rattler, .tar.bz2"]
    assert len(found["mirror, .conda"]) >= 300
    named = {row.name for row in group.rows()}
    assert {name for aim in group.aims for name in (aim.ours, aim.theirs)} == named
