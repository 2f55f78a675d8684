"""The report's values and its JSON, and the judgement of what ranks say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mirror.verify import page, training
from mirror.verify.ranks import Phase, Rank
from mirror.verify.report import Check, Report, Stage, Training, Verdict, document, worst
from mirror.verify.screen import lines
from tests import reports
from tests.reports import LOSSES, group, rank

SCHEMA_FILE = "mirror/verify/report.schema.json"


def with_rank(number: int, *, gpu: bool = False, **changed: Any) -> Training:
    """A group of two of which one differs."""
    ranks = list(group(gpu=gpu).ranks)
    ranks[number] = replace(ranks[number], **changed)
    return Training(tuple(ranks), 4.0)


def judged(found: Training, *, gpu: bool = False) -> dict[str, Verdict]:
    """The verdict of every check on a group of two."""
    plan = training.Plan(2, gpu=gpu, precision="no")
    checks = training.judge(found, 2, plan, len(LOSSES), against=group(1, gpu=gpu))
    return {check.name: check.verdict for check in checks}


@pytest.mark.parametrize("gpu", [False, True])
def test_a_sound_group_passes_every_check(gpu: bool) -> None:
    assert set(judged(group(gpu=gpu), gpu=gpu).values()) == {"pass"}
    plan = training.Plan(2, gpu=gpu, precision="no")
    assert {c.verdict for c in training.judge(group(1, gpu=gpu), 1, plan, 4)} == {"pass"}


NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("world size", group(world_size=1)),
        ("world size", Training((rank(0), rank(0)), 1.0)),
        ("world size", Training((rank(0),), 1.0)),
        ("devices", with_rank(1, device="cuda:0")),
        ("loss", group(loss_share=0.51)),
        ("loss", group(loss_share=NAN)),
        ("loss", group(losses=LOSSES[:3])),
        ("backend", group(backend="nccl")),
        ("backend", with_rank(1, backend="mpi")),
        (
            "collectives",
            with_rank(1, collectives=({"name": "broadcast", "bytes": 4, "right": False},)),
        ),
        ("collectives", group(collectives=())),
        ("collectives", with_rank(0, collectives=())),
        ("parameters", group(checksums=("ab" * 32, "cd" * 32))),
        ("parameters", group(checksums=("ab" * 32,))),
        ("equals single", group(losses=(6.0, 4.0, 2.002, 1.0))),
        ("equals single", group(losses=(6.0, 4.0, NAN, 1.0))),
        ("equals single", group(losses=LOSSES[:3])),
    ],
)
def test_whatever_is_wrong_with_a_group_fails_its_check(name: str, found: Training) -> None:
    assert judged(found)[name] == "fail"


@pytest.mark.parametrize(
    "found",
    [
        with_rank(1, gpu=True, device="cuda:0"),
        with_rank(1, gpu=True, gpu_uuid="uuid-0"),
        with_rank(1, gpu=True, device="cpu"),
    ],
)
def test_ranks_that_share_a_gpu_or_have_none_fail(found: Training) -> None:
    assert judged(found, gpu=True)["devices"] == "fail"


def test_the_batch_is_even_for_any_number_of_processes() -> None:
    for count in range(1, 40):
        batch = training.Plan(count, gpu=True, precision="no").batch
        assert batch % count == 0
        assert batch >= 24


def report(
    *verdicts: tuple[str, Verdict], single: Training | None = None, multi: Training | None = None
) -> Report:
    stages = tuple(Stage(n, (Check("one", v, "evidence", "advice"),), 1.0) for n, v in verdicts)
    return Report(stages, single, multi, None, {"host": "server"}, "2026-01-01", 9.0, Path("/r"))


def test_the_worst_verdict_wins() -> None:
    assert worst(["skip", "pass"]) == "pass"
    assert worst(["pass", "warn", "skip"]) == "warn"
    assert worst(["fail", "warn"]) == "fail"
    assert worst([]) == "skip"


def test_the_headline_says_what_was_proved_and_what_not() -> None:
    passed: Sequence[tuple[str, Verdict]] = (("single", "pass"), ("multi", "pass"))
    both = report(*passed, single=group(1, gpu=True), multi=group(gpu=True))
    assert both.headline == "Proved: 2 processes trained on 2 GPUs (NVIDIA H200, nccl)."
    assert both.gpus == 2
    one = report(("single", "pass"), ("multi", "skip"), single=group(1, gpu=True))
    assert one.headline == "Proved: one process trained on 1 GPU (NVIDIA H200)."
    assert one.gpus == 1
    cpu = report(*passed, single=group(1), multi=group())
    assert cpu.headline == "No GPU was proved: 2 CPU processes trained together (gloo)."
    assert cpu.gpus == 0
    bare = report(("single", "skip"))
    assert bare.headline == "Training was not proved: evidence."
    bad = report(("host", "fail"), ("multi", "fail"), single=group(1, gpu=True))
    assert bad.headline == "Verification failed: host, multi."


def test_gpus_of_a_failed_run_are_not_proved() -> None:
    bad = report(
        ("single", "pass"), ("multi", "fail"), single=group(1, gpu=True), multi=group(gpu=True)
    )
    assert bad.gpus == 1


def test_the_document_is_json_also_with_a_loss_that_is_none() -> None:
    spoilt = group(losses=(6.0, NAN, float("inf"), 1.0), tokens_per_second=float("inf"))
    found = report(("multi", "fail"), single=group(1), multi=spoilt)
    text = json.dumps(document(found), allow_nan=False)
    multi = json.loads(text)["multi"]
    assert multi["losses"] == [6.0, None, None, 1.0]
    assert multi["largest_difference"] is None
    assert multi["tokens_per_second"] is None
    assert "<path" in page.html(found)
    assert lines(found)[0] == "Verification failed: multi."


def test_the_document_is_utf8_also_with_a_file_name_that_is_not() -> None:
    found = report(("store", "fail"))
    check = Check("files", "fail", "lib/\udcff.so differs")
    found = replace(found, stages=(Stage("store", (check,)),))
    text = json.dumps(document(found), ensure_ascii=False).encode()
    assert json.loads(text)["stages"][0]["checks"][0]["evidence"] == "lib/\\udcff.so differs"


# -- the published schema --------------------------------------------------------------------------

SCHEMA = json.loads((Path(reports.__file__).parents[1] / SCHEMA_FILE).read_text(encoding="utf-8"))


def strict(schema: Any) -> Any:
    """The same, but no object may have a key that it does not name."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(part) for key, part in schema.items()}
    if "properties" in found and found.get("type") == "object":
        found["additionalProperties"] = False
    return found


def as_read(found: Report) -> Any:
    return json.loads(json.dumps(document(found), allow_nan=False))


@pytest.mark.parametrize("name", reports.EVERY)
def test_every_report_has_the_published_shape_and_nothing_beyond_it(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(strict(SCHEMA)).validate(as_read(reports.EVERY[name]()))


def test_a_report_with_no_number_where_one_belongs_has_the_published_shape() -> None:
    row = {"name": "all_reduce", "bytes": 4, "right": False, "seconds": NAN, "bus_bandwidth": NAN}
    spoilt = group(losses=(NAN,) * 4, tolerance=NAN, tokens_per_second=NAN, collectives=(row,))
    found = report(("multi", "fail"), single=spoilt, multi=spoilt)
    jsonschema.Draft202012Validator(strict(SCHEMA)).validate(as_read(found))


def test_the_schema_refuses_what_is_no_report() -> None:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    good = as_read(reports.eight_h200())
    assert validator.is_valid(good | {"of next year": 1})
    for key in good:
        assert not validator.is_valid({k: v for k, v in good.items() if k != key}), key
    assert not validator.is_valid(good | {"verdict": "good"})
    assert not validator.is_valid(good | {"rungs": [good["rungs"][0] | {"result": "fine"}]})


def test_the_document_has_bandwidth_rungs_links_and_further_runs() -> None:
    found = as_read(reports.eight_h200())
    bandwidth = found["multi"]["bandwidth"]
    assert set(bandwidth["collectives"]) == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
    }
    assert bandwidth["collectives"]["all_reduce"][str(2**28)] > 3e11
    assert len(bandwidth["pairs"]) == 56
    assert [rung["name"] for rung in found["rungs"]][:2] == ["plain", "NCCL_P2P_LEVEL=NVL"]
    assert found["topology"]["gpus"] == list(range(8))
    assert len(found["topology"]["links"]) == 28
    first = found["topology"]["links"][0]
    assert (first["pair"], first["link"], first["state"]) == ([0, 1], "NV18", "OK")
    assert first["promised"] == pytest.approx(18 * 26.562e9)
    assert list(found["further"]) == ["fsdp", "resumed"]
    assert found["further"]["fsdp"]["largest_difference"] < 1e-6


def test_a_report_with_nothing_new_says_so() -> None:
    found = as_read(report(("store", "pass")))
    assert (found["rungs"], found["topology"], found["further"]) == ([], None, {})


def test_a_rank_is_read_from_its_own_json_and_from_nothing_else() -> None:
    table = {f: getattr(rank(0), f) for f in Rank.__dataclass_fields__}
    again = Rank.from_json(json.loads(json.dumps(table)))
    assert again == rank(0)
    assert again.to_json()["parameters_sha256"] == "ab" * 32
    broken: Any
    for broken in ({}, [], None, table | {"losses": []}, table | {"losses": ["x"]}):
        with pytest.raises(ValueError, match="it"):
            Rank.from_json(broken)


def test_phases_have_an_order() -> None:
    told = [Phase("start", None, 1), Phase("init", None, 1), Phase("step", 1, 1)]
    told += [Phase("step", 12, 1), Phase("done", None, 1)]
    backwards = list(reversed(told))
    assert sorted(backwards, key=lambda phase: phase.order) == told
    assert str(told[3]) == "step 12"
