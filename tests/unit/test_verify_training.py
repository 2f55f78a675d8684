"""The plan of the training runs, and the judgement of what belongs to more than one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror.core.index import Index
from mirror.core.progress import Quiet
from mirror.store.generations import Root
from mirror.verify import judgement, runs, training
from mirror.verify.judgement import fed, lost, resumed, sharded, survived
from mirror.verify.launch import Outcome
from mirror.verify.ranks import Rank
from mirror.verify.report import Check, Training
from mirror.verify.runs import Plan
from mirror.verify.subject import Subject
from tests import reports

#: Samples of an epoch, and a step, of runs that are made up here: two epochs of two steps.
EPOCH, BATCH, STEPS = 8, 4, 4
PLAN = Plan(2, gpu=False, precision="no")


def rank(number: int, **changed: Any) -> Rank:
    """A rank of two that did everything right, in a run under DDP that saved after step 2."""
    orders = [[0, 3, 4, 7, 1, 2, 5, 6], [6, 1, 5, 0, 7, 4, 2, 3]]
    good: dict[str, Any] = {
        "batch": BATCH,
        "epoch": EPOCH,
        "samples": tuple(tuple(order[number::2]) for order in orders),
        "workers": (0, 1),
        "digests": {"2": "aa" * 32, "4": "bb" * 32},
        "checkpoint": {"bytes": 1000, "seconds": 0.5},
        "parallel": "ddp",
        "model": {"name": "built-in", "reason": "", "parameters": 100},
        "held_parameters": 100,
    }
    return reports.rank(number, **(good | changed))


def both(**changed: Any) -> Training:
    return Training((rank(0, **changed), rank(1, **changed)), 4.0)


def one_of(run: Training, **changed: Any) -> Training:
    """The run, with its last rank changed."""
    return Training((run.ranks[0], replace(run.ranks[1], **changed)), 4.0)


def said(check: Check) -> tuple[str, str]:
    return check.verdict, check.evidence


# -- the loader ------------------------------------------------------------------------------------


def test_ranks_that_are_fed_rightly_pass() -> None:
    verdict, evidence = said(fed(both(), PLAN, STEPS))
    assert verdict == "pass"
    assert evidence == (
        "2 epochs of 8 samples, each once among 2 ranks, in an order of its own;"
        " made by 2 worker processes a rank"
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        # Both ranks have the same part, as where a sampler is not split.
        ({"samples": rank(0).samples}, "some samples came twice"),
        ({"samples": (rank(1).samples[0], (1, 0, 4, 9))}, "epoch 1: 8 of 8 samples came"),
        ({"samples": (rank(1).samples[0], (1, 0, 4))}, "epoch 1: 7 of 8 samples came"),
        ({"samples": (rank(1).samples[0],)}, "the ranks got different numbers of samples"),
        ({"workers": (0,)}, "rank 1: samples were made by workers 0"),
        ({"workers": (-1,)}, "rank 1: samples were made by workers -1"),
        ({"workers_left": 2}, "rank 1: 2 worker processes did not end"),
    ],
)
def test_a_rank_that_is_fed_wrongly_is_told(changed: dict[str, Any], reason: str) -> None:
    verdict, evidence = said(fed(one_of(both(), **changed), PLAN, STEPS))
    assert verdict == "fail"
    assert reason in evidence


def test_an_epoch_in_the_order_of_the_one_before_is_told() -> None:
    """What comes of a set_epoch that has no effect."""
    again = Training(
        tuple(replace(r, samples=(r.samples[0], r.samples[0])) for r in both().ranks), 4.0
    )
    assert said(fed(again, PLAN, STEPS)) == (
        "fail",
        "two epochs have one order: set_epoch had no effect",
    )


def test_a_run_that_ends_within_an_epoch_is_fed_rightly() -> None:
    cut = Training(
        tuple(replace(r, samples=(r.samples[0], r.samples[1][:2])) for r in both().ranks), 4.0
    )
    assert fed(cut, PLAN, 3).verdict == "pass"
    assert fed(cut, PLAN, STEPS).verdict == "fail"


# -- a checkpoint, in other processes --------------------------------------------------------------


def later(run: Training, **changed: Any) -> Training:
    """The same run as other processes go on with it after step 2."""
    ranks = (replace(r, **({"pid": r.pid + 50, "resumed_after": 2} | changed)) for r in run.ranks)
    return Training(tuple(ranks), 4.0)


def test_a_run_that_went_on_to_the_same_bits_passes() -> None:
    verdict, evidence = said(resumed(both(), later(both())))
    assert verdict == "pass"
    assert evidence == (
        "saved after step 2 (1.00 kB in 0.5 s), read by new processes; after step 4 sha256"
        " bbbbbbbbbbbbbbbb as without a break, bit for bit"
    )


OTHER = "cc" * 32


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (later(both(), digests={"2": OTHER, "4": "bb" * 32}), "what was loaded is not what was"),
        (later(both(), digests={"2": "aa" * 32, "4": OTHER}), "after step 4 it is another model"),
        (later(both(), losses=(6.0, 4.0, 2.0, 1.0 + 1e-9)), "losses differ by 1.0e-09"),
        (later(both(), digests={}), "what was loaded is not what was saved"),
        (one_of(later(both()), digests={"2": OTHER, "4": "bb" * 32}), "what was loaded is not"),
        (one_of(later(both()), resumed_after=None), "not every rank went on from the checkpoint"),
        (later(both(), pid=101), "it was not other processes that went on"),
    ],
)
def test_a_run_that_went_on_otherwise_fails(after: Training, reason: str) -> None:
    verdict, evidence = said(resumed(both(), after))
    assert verdict == "fail"
    assert reason in evidence


def test_bits_that_no_machine_could_repeat_are_a_warning() -> None:
    loose = later(both(), digests={"2": "aa" * 32, "4": OTHER}, unrepeatable=("scatter_cuda",))
    verdict, evidence = said(resumed(both(), loose))
    assert verdict == "warn"
    assert "torch computes scatter_cuda in no fixed order here" in evidence
    far = later(both(), losses=(6.0, 4.0, 2.0, 1.1), digests=loose.ranks[0].digests)
    far = Training(tuple(replace(r, unrepeatable=("scatter_cuda",)) for r in far.ranks), 1.0)
    assert resumed(both(), far).verdict == "fail"


# -- sharded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "kinds", "verdict"),
    [
        ((50, 50), ("fsdp2", "fsdp2"), "pass"),
        ((51, 50), ("fsdp1", "fsdp1"), "pass"),  # padded
        ((60, 40), ("fsdp2", "fsdp2"), "pass"),  # whole rows
        ((100, 100), ("fsdp2", "fsdp2"), "fail"),
        ((100, 0), ("fsdp2", "fsdp2"), "fail"),
        ((50, 49), ("fsdp2", "fsdp2"), "fail"),
        ((50, 50), ("ddp", "ddp"), "fail"),
        ((50, 50), ("fsdp2", "fsdp1"), "fail"),
    ],
)
def test_each_rank_holds_its_part(
    held: tuple[int, int], kinds: tuple[str, str], verdict: str
) -> None:
    ranks = [
        rank(n, held_parameters=count, parallel=kind)
        for n, (count, kind) in enumerate(zip(held, kinds, strict=True))
    ]
    assert sharded(Training(tuple(ranks), 1.0)).verdict == verdict


def killed(**changed: Any) -> Training:
    run = both(parallel="fsdp2", killed_after=3, digests={"2": "aa" * 32, "3": "ab" * 32})
    return Training(tuple(replace(r, losses=r.losses[:3], **changed) for r in run.ranks), 1.0)


def went_on(digests: Mapping[str, str] | None = None, **changed: Any) -> Training:
    found = {"2": "aa" * 32, "3": "ab" * 32, "4": "bb" * 32} | dict(digests or {})
    return later(both(parallel="fsdp2", digests=found), **changed)


def test_what_was_killed_and_went_on_to_the_same_bits_passes() -> None:
    verdict, evidence = said(survived(killed(), went_on()))
    assert verdict == "pass"
    assert "killed by SIGKILL after step 3" in evidence
    assert "steps to 3 done again, bit for bit, and on to 4" in evidence


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (went_on({"2": OTHER}), "what was loaded is not what was saved"),
        (went_on({"3": OTHER}), "the optimizer's state is lost"),
        (went_on(losses=(6.0, 4.0, 2.1, 1.0)), "the optimizer's state is lost"),
        (went_on(pid=101), "it was not other processes"),
    ],
)
def test_what_was_killed_and_went_on_otherwise_fails(after: Training, reason: str) -> None:
    verdict, evidence = said(survived(killed(), after))
    assert verdict == "fail"
    assert reason in evidence


@pytest.mark.parametrize(
    ("accelerate", "parallel", "verdict"),
    [
        ("1.12.0", "fsdp2", "warn"),
        ("1.13.0", "fsdp2", "fail"),
        ("1.12.0", "fsdp1", "fail"),
        ("2.0.0.dev0", "fsdp2", "fail"),
    ],
)
def test_what_accelerate_is_known_to_lose_is_a_warning(
    accelerate: str, parallel: str, verdict: str
) -> None:
    check = lost(killed(accelerate=accelerate, parallel=parallel), "it is lost")
    assert (check.verdict, check.evidence) == (verdict, "it is lost")
    assert ("1.13 does" in check.advice) == (verdict == "warn")


@pytest.mark.parametrize(
    ("torch", "accelerate", "offered"),
    [
        ("2.11.0+cu130", "1.15.0", True),
        ("2.6.0", "1.6.0", True),
        ("2.5.1+cu121", "1.15.0", False),
        ("2.13.0", "1.5.2", False),
        ("2.13.0a0+git123", "1.10.1", True),
    ],
)
def test_versions_that_have_fsdp_2(torch: str, accelerate: str, offered: bool) -> None:
    assert judgement.offers_fsdp2(torch, accelerate) == offered


# -- models and memory -----------------------------------------------------------------------------


def check_of(run: Training, name: str, *, gpu: bool = False) -> Check:
    plan = Plan(2, gpu=gpu, precision="no")
    return next(c for c in training.judge(run, 2, plan, STEPS) if c.name == name)


def test_a_bundled_model_that_transformers_refused_is_a_warning() -> None:
    table = {"name": "built-in", "parameters": 1, "reason": "transformers fails on it"}
    assert check_of(both(model=table), "model").verdict == "pass"
    check = check_of(both(model=table | {"refused": True}), "model")
    assert (check.verdict, "transformers fails on it" in check.evidence) == ("warn", True)


def test_a_head_that_the_bundle_does_not_hold_is_told() -> None:
    table = {"name": "m", "parameters": 1000, "reason": "", "class": "BertForMaskedLM", "fresh": 40}
    check = check_of(both(model=table | {"through": "transformers 5"}), "model")
    assert check.evidence == (
        "m, 1,000 parameters, BertForMaskedLM by transformers 5 (40 of them are a new head's, which"
        " the bundle does not hold)"
    )


MEMORY = {
    "total": 80 * 2**30,
    "free_before": 79 * 2**30,
    "free_after": 70 * 2**30,
    "reserved": 8 * 2**30,
    "peak_reserved": 8 * 2**30,
}


def test_memory_that_others_took_meanwhile_is_a_warning() -> None:
    check = check_of(both(memory=MEMORY), "memory")
    assert check.verdict == "pass"
    assert check.evidence.startswith("cpu: 84.8 GB of 85.9 GB free, 75.2 GB after")
    check = check_of(
        one_of(both(memory=MEMORY), memory=MEMORY | {"free_after": 60 * 2**30}), "memory"
    )
    assert check.verdict == "warn"
    assert "11.8 GB of cpu went elsewhere" in check.evidence


# -- plan ------------------------------------------------------------------------------------------


def subject(folder: Path, verify: dict[str, Any] | None = None, gpus: int | None = None) -> Subject:
    root = Root(folder / "root")
    root.prepare()
    generation = root.begin()
    index = Index("n", "1", "0.1.0", "0" * 64, None, (), verify=verify or {})
    root.finish(generation, index)
    root.commit(generation)
    (folder / "work").mkdir()
    return Subject(root, root.current(), index, gpus, folder / "work", Quiet())


def test_the_batch_is_even_for_processes_and_passes() -> None:
    for count in range(1, 40):
        plan = Plan(count, gpu=True, precision="no")
        assert plan.batch % (count * plan.accumulation) == 0
        assert 24 <= plan.batch < 24 + count * plan.accumulation


def test_what_is_trained_fits_the_smallest_gpu(tmp_path: Path) -> None:
    found = subject(tmp_path, {"precision": "fp16"})
    on_gpus = training.plan(found, 4, memory=8 * 2**30)
    assert (on_gpus.processes, on_gpus.precision) == (4, "fp16")
    assert on_gpus.largest == 8 * 2**30 // 40
    assert training.plan(found, 4, memory=2**40).largest == 350_000_000
    on_cpu = training.plan(found, 0)
    assert (on_cpu.processes, on_cpu.gpu, on_cpu.precision) == (2, False, "no")
    assert on_cpu.largest == 4_000_000


def many(folder: Path, steps: int, **changed: Any) -> training.Many:
    found = subject(folder, {"steps": steps})
    plan = Plan(2, gpu=changed.pop("gpu", False), precision="no")
    return training.Many(found, Path("python"), plan, reports.group(1, **changed))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The arguments of every job that is launched; none of them runs."""
    seen: list[tuple[str, ...]] = []

    def note(job: Any, *_: Any) -> Outcome:
        seen.append((job.folder.name, *job.arguments))
        return Outcome((), ("it did not run",), 0.0)

    monkeypatch.setattr(runs, "run", note)
    return seen


def test_old_versions_shard_as_they_can_and_are_not_killed(
    tmp_path: Path, launched: list[tuple[str, ...]]
) -> None:
    old = many(tmp_path, 40, gpu=True, torch="2.5.1", accelerate="1.5.0")
    old.train()
    ((_, *arguments),) = launched
    assert "--then-fsdp" in arguments
    assert "--kill-after" not in arguments
    found = {check.name: check for check in old._judge_fsdp(both(parallel="fsdp1"))}
    assert found["fsdp kill and resume"].verdict == "skip"
    assert "FSDP 1" in found["fsdp kill and resume"].evidence


def test_on_the_cpu_old_versions_do_not_shard(
    tmp_path: Path, launched: list[tuple[str, ...]]
) -> None:
    old = many(tmp_path, 40, torch="2.5.1", accelerate="1.5.0")
    old.train()
    assert "--then-fsdp" not in launched[0]
    (check,) = old._judge_fsdp(None)
    assert (check.name, check.verdict) == ("fsdp", "skip")
    assert "torch 2.5.1, accelerate 1.5.0" in check.evidence


def test_new_versions_are_killed_in_the_sharded_leg(
    tmp_path: Path, launched: list[tuple[str, ...]]
) -> None:
    many(tmp_path, 40).train()
    text = " ".join(launched[0])
    assert text.startswith("multi train --steps 40 --batch 24 ")
    assert "--accumulation 2 --workers 2 --save-after 20 --then-fsdp --kill-after 22" in text


def test_too_few_steps_for_a_checkpoint_are_told(
    tmp_path: Path, launched: list[tuple[str, ...]]
) -> None:
    short = many(tmp_path, 2)
    short.train()
    assert not {"--save-after", "--kill-after"} & set(launched[0])
    short.ddp_run = reports.group()
    check = short.go_on()[0]
    assert (check.name, check.verdict) == ("resume", "skip")
    assert "2 steps are too few" in check.evidence
    assert len(launched) == 1


def test_a_plain_run_that_failed_is_the_last_one(
    tmp_path: Path, launched: list[tuple[str, ...]]
) -> None:
    check = many(tmp_path, 40).run()[0]
    assert (check.name, check.verdict, check.evidence) == ("run", "fail", "it did not run")
    assert [name for name, *_ in launched] == ["multi"]


def test_a_second_set_of_runs_has_folders_of_its_own(
    tmp_path: Path, launched: list[tuple[str, ...]]
) -> None:
    many(tmp_path, 40).train()
    (tmp_path / "work" / "multi").mkdir()
    (tmp_path / "again").mkdir()
    again = replace(subject(tmp_path / "again", {"steps": 40}), work=tmp_path / "work")
    plan = Plan(2, gpu=False, precision="no")
    training.Many(again, Path("python"), plan, reports.group(1), env={"NCCL_X": "1"}).train()
    assert [name for name, *_ in launched] == ["multi", "multi-2"]


def test_results_of_a_launch_that_failed_later_are_read(tmp_path: Path) -> None:
    """What a rank reported before the others, or it, came to grief in a second leg."""
    failed = Outcome((), ("the launcher failed",), 1.0)
    (tmp_path / "rank-0.json").write_text('{"rank": 0, "world_size": 2}', encoding="utf-8")
    (tmp_path / "rank-1.json").write_text('{"rank": 1, "wor', encoding="utf-8")
    assert runs.tables(failed, tmp_path, 3) == [{"rank": 0, "world_size": 2}]
    assert runs.tables(Outcome(({"rank": 7},), (), 1.0), tmp_path, 3) == [{"rank": 7}]


def test_ranks_that_did_not_die_of_a_kill_are_told(tmp_path: Path) -> None:
    log = tmp_path / "launch.log"
    log.write_text("failed (exitcode: -9) local_rank: 0 (pid: 7)", encoding="utf-8")
    assert training._was_killed(Outcome((), ("the launcher failed",), 1.0), tmp_path)
    assert not training._was_killed(Outcome((), (), 1.0), tmp_path)
    log.write_text("failed (exitcode: 1) local_rank: 0 (pid: 7)", encoding="utf-8")
    assert not training._was_killed(Outcome((), ("the launcher failed",), 1.0), tmp_path)
