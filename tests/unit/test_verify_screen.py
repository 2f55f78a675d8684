"""The report on a terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirror.verify import report as values
from mirror.verify.report import Check, Stage, Training
from mirror.verify.screen import lines
from tests import reports
from tests.reports import group


def text(found: values.Report) -> str:
    return "\n".join(lines(found))


def with_check(check: Check) -> values.Report:
    return replace(reports.cpu_only(), stages=(Stage("models", (check,), 1.0),))


def test_eight_gpus_with_everything_fit_on_one_screen() -> None:
    rows = lines(reports.eight_h200())
    # One line for the command and one for the prompt.
    assert len(rows) <= 38
    assert max(map(len, rows)) <= 80


@pytest.mark.parametrize("name", reports.EVERY)
def test_lines_are_folded_at_eighty_columns(name: str) -> None:
    for row in lines(reports.EVERY[name]()):
        # What has no space stays whole: a path, or variables to be copied.
        assert len(row) <= 80 or len(row.split()) <= 3, row


def test_few_ranks_have_a_line_each_and_many_that_are_alike_have_one() -> None:
    few = text(reports.two_h200())
    assert "    rank 0 of 2  nccl  cuda:0 NVIDIA H200 9f5b3a00  1.29 GB" in few
    assert "    rank 1 of 2  nccl  cuda:1 NVIDIA H200 9f5b3a01  1.30 GB" in few
    many = text(reports.eight_h200())
    assert "    8 ranks of 8  nccl  NVIDIA H200  1.29 GB to 1.36 GB" in many
    assert "rank 3" not in many


def test_a_rank_that_differs_keeps_its_line() -> None:
    found = reports.eight_h200()
    assert found.multi
    ranks = list(found.multi.ranks)
    ranks[5] = replace(ranks[5], gpu="NVIDIA A100")
    rows = text(replace(found, multi=Training(tuple(ranks), 1.0)))
    assert "    7 ranks of 8  nccl  NVIDIA H200" in rows
    assert "    rank 5 of 8  nccl  cuda:5 NVIDIA A100" in rows


def test_bandwidth_is_that_of_the_largest_all_reduce_and_of_the_slowest_pair() -> None:
    rows = text(reports.two_h200())
    assert "    all_reduce 286 GB/s at 256 MiB, slowest pair 0 -> 1 244 GB/s" in rows
    assert "all_reduce" not in text(replace(reports.cpu_only(), multi=group(2, collectives=())))


def test_the_rungs_have_prices_and_the_best_has_a_star() -> None:
    rows = [row for row in lines(reports.four_5090()) if "NCCL_" in row or "plain" in row]
    # The check's evidence has the same rows: it is left out.
    assert rows[-5:] == [
        "    failed                            plain",
        "    hung                              NCCL_CUMEM_HOST_ENABLE=0",
        "  * 18.1 GB/s           11.2 GB/s     NCCL_SHM_DISABLE=1",
        "    2.10 GB/s    -88 %  1.29 GB/s     NCCL_CUMEM_HOST_ENABLE=0",
        "                                      NCCL_SHM_DISABLE=1",
    ]
    assert sum("18.1 GB/s" in row for row in rows) == 1


def test_further_runs_have_a_line_each() -> None:
    rows = lines(reports.eight_h200())
    where = next(n for n, row in enumerate(rows) if row.startswith("  fsdp: 40 steps, loss 5.96"))
    assert rows[where].endswith("up to 1.36 GB a rank")
    assert rows[where + 1].startswith("  resumed: 40 steps")


def test_what_did_not_pass_is_explained() -> None:
    rows = lines(with_check(Check("one", "warn", "read\nand more", "do this\nor that")))
    where = rows.index("          warn  one: read")
    assert rows[where + 1 : where + 4] == [
        "                and more",
        "                -> do this",
        "                -> or that",
    ]
    assert rows[-1].startswith("report: /data/mirror/log/")


def test_of_long_evidence_the_first_lines_are_shown_and_the_rest_is_counted() -> None:
    evidence = "\n".join(f"line {n}" for n in range(100))
    rows = text(with_check(Check("run", "fail", evidence, "do this")))
    assert "line 39" in rows
    assert "line 40" not in rows
    assert "... 60 more lines in the report" in rows
    assert "-> do this" in rows


def test_one_line_too_many_is_counted_too() -> None:
    evidence = "\n".join(f"line {n}" for n in range(41))
    assert "... 1 more line in the report" in text(with_check(Check("run", "fail", evidence)))
    evidence = "\n".join(f"line {n}" for n in range(40))
    assert "more line" not in text(with_check(Check("run", "fail", evidence)))


def test_nothing_from_outside_moves_the_cursor_or_hides() -> None:
    hostile = "\x1b[31m\x07\u202egnp.exe\r\x9b2J"
    found = with_check(Check(hostile, "fail", hostile, hostile))
    ranks = tuple(
        replace(r, gpu=hostile, gpu_uuid=hostile, device=hostile, backend=hostile)
        for r in group(2).ranks
    )
    found = replace(
        found,
        multi=Training(ranks, 1.0),
        further=((hostile, Training(ranks, 1.0)),),
        folder=Path(f"/r/{hostile}"),
        facts={hostile: hostile},
    )
    for row in lines(found):
        assert row.isprintable(), row


def test_what_a_log_has_of_tabs_stays_readable() -> None:
    assert "\\t" not in text(reports.failing())
    assert "</torch_1234_0>:" in text(
        with_check(Check("run", "fail", "</torch_1234_0>:\tNo space"))
    )
