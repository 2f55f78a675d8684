"""The bench measures what it says: every row that needs no index runs, and aims are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.store.generations import remove_tree
from tests.bench import run
from tests.bench.bundles import Bundles, Pictures, SmallFiles
from tests.bench.packages import Again, Environment, Resolve
from tests.bench.rows import Added, Compared, Group, Limited, Row
from tests.bench.rows import run as program
from tests.bench.start import Start


def test_offline_leaves_out_what_needs_an_index_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = run.prepare([Start, Resolve, Environment, Again], tmp_path, 0, offline=True)
    assert [group.name for group in groups] == ["start"]
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["resolve", "environment", "again"]


@pytest.mark.parametrize("kind", [Bundles, Pictures, SmallFiles])
def test_every_row_of_bundles_runs(kind: type[Group], tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    group = kind(tmp_path, scratch, 250_000)
    for row in group.rows():
        remove_tree(scratch)
        scratch.mkdir()
        row.ready()
        row.work()
    named = {row.name for row in group.rows()}
    compared = [aim for aim in group.aims if isinstance(aim, Compared)]
    assert {name for aim in compared for name in (aim.ours, aim.theirs)} <= named


def test_no_two_groups_have_rows_of_one_name() -> None:
    """Their seconds would be taken for one row's."""
    seen: set[str] = set()
    for group in run.GROUPS:
        names = {aim.ours for aim in group.aims}
        names |= {aim.theirs for aim in group.aims if not isinstance(aim, Limited)}
        assert not names & seen
        seen |= names


def test_aims_are_judged_by_medians() -> None:
    seconds = {"a": [1.0, 9.0, 2.0], "b": [1.0, 1.0, 1.0]}
    aims = [Compared("a", "b", 2.0), Compared("a", "b", 1.9), Compared("b", "a", None)]
    _, met, missed, unjudged, alone, *rest = run.verdicts(
        [*aims, Limited("a", 1.5), Compared("a", "not measured", 1.0)], seconds
    )
    assert met.split() == ["a", "b", "2.00", "1.00", "2.00", "met"]
    assert missed.endswith("missed")
    assert unjudged.split()[-1] == "-"
    assert alone.split() == ["a", "(seconds)", "2.00", "1.00", "1.50", "missed"]
    assert rest == []


def test_what_is_added_is_judged_in_seconds() -> None:
    seconds = {"ours": [5.0, 7.0, 6.0], "theirs": [4.5, 4.0, 9.0]}
    aims = [Added("ours", "theirs", 1.5), Added("ours", "theirs", 1.4)]
    _, met, missed = run.verdicts(aims, seconds)
    assert met.split() == ["ours", "theirs", "+", "seconds", "1.50", "1.00", "1.50", "met"]
    assert missed.endswith("missed")


def test_a_row_that_fails_is_said_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    rows = [
        Row("first", lambda: order.append("first")),
        Row("fails", lambda: program("false", folder=tmp_path)),
        Row("last", lambda: order.append("last"), scale=3, often=False),
    ]
    seconds = run.measure(rows, tmp_path / "scratch", 2)
    assert order == ["first", "last", "first"]
    assert {name: len(took) for name, took in seconds.items()} == {"first": 2, "last": 1}
    assert "fails: not measured (false ended with 1" in capsys.readouterr().err
