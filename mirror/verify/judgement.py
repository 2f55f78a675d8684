"""What the ranks of a training run report, judged: alone, together, and against another run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from mirror.core.artifact import Json
from mirror.core.text import human_size, human_time
from mirror.verify.report import Check, Training, Verdict

if TYPE_CHECKING:
    from mirror.verify.runs import Plan

#: Bytes of a GPU's memory that may go to others, or to the driver, while this process trains.
_ELSEWHERE = 2 * 2**30
#: How much more than its equal share of the parameters a rank may hold: shards are whole rows.
_UNEVEN = 1.25


def judge(
    training: Training, world: int, plan: Plan, steps: int, *, against: Training | None = None
) -> list[Check]:
    """Every check on a run of `world` processes; a run of many is held `against` that of one."""
    checks = list(_own(training, world, plan, steps))
    if against:
        checks += [*_together(training, plan), equals(training, against)]
    return checks


def _own(training: Training, world: int, plan: Plan, steps: int) -> Iterator[Check]:
    """What one run must show, alone or in a group."""
    first = training.ranks[0]
    seen = {rank.rank: rank.world_size for rank in training.ranks}
    yield _check(
        "world size",
        len(training.ranks) == world and seen == dict.fromkeys(range(world), world),
        f"ranks {_all(seen)} report a world of {_all(seen.values())}; {world} wanted",
        "The processes did not form the group that was asked for: what they report proves nothing.",
    )
    places = [(rank.host, rank.device) for rank in training.ranks]
    uuids = [rank.gpu_uuid for rank in training.ranks if rank.gpu_uuid]
    right = all(rank.on_gpu == plan.gpu for rank in training.ranks)
    alone = not plan.gpu or (len(set(places)) == world and len(set(uuids)) == len(uuids))
    yield _check(
        "devices",
        right and alone,
        ", ".join(f"{r.device} {r.gpu} {r.gpu_uuid}".strip() for r in training.ranks),
        "Each rank must have a GPU of its own." if plan.gpu else "",
    )
    yield _model(training)
    share, allowed = first.loss_share, first.loss_share_allowed
    yield _check(
        "loss",
        len(training.losses) == steps and share <= allowed,  # false for NaN, too
        f"{training.losses[0]:.4f} -> {training.losses[-1]:.4f} nats in {len(training.losses)}"
        f" steps; the last are {share:.2f} of the first, at most {allowed:.2f} is right",
        "The model did not learn a task that it must learn.",
    )
    yield _speed(training, "GPU" if plan.gpu else "process")
    if any(rank.memory for rank in training.ranks):
        yield _memory(training)


def _model(training: Training) -> Check:
    model = training.ranks[0].model
    text = f"{model['name']}, {model['parameters']:,} parameters"
    if model.get("class"):
        text += f", {model['class']} by {model.get('through', '')}"
    if model.get("fresh"):
        text += f" ({model['fresh']:,} of them are a new head's, which the bundle does not hold)"
    if model["reason"]:
        text += f" ({model['reason']})"
    if not model.get("refused"):
        return Check("model", "pass", text)
    advice = "The bundled model was not trained. Try it in a script of your own, and see the models"
    return Check("model", "warn", text, f"{advice} stage.")


def _speed(training: Training, unit: str) -> Check:
    first, count = training.ranks[0], len(training.ranks)
    peak = human_size(max(rank.peak_memory for rank in training.ranks))
    reserved = max(rank.memory.get("peak_reserved", 0) for rank in training.ranks)
    held = f" ({human_size(reserved)} with torch's reserve)" if reserved else ""
    return Check(
        "speed",
        "pass",
        f"{first.tokens_per_second:,.0f} tokens/s; {first.tokens_per_second / count:,.0f} tokens"
        f" and {first.samples_per_second / count:,.0f} samples a second and {unit};"
        f" at most {peak}{held} a rank; {human_time(training.seconds)} for the whole launch",
    )


def _memory(training: Training) -> Check:
    """Whether others took of the GPUs' memory while this process trained."""
    said, taken = [], []
    for rank in training.ranks:
        table = rank.memory
        before, after = table.get("free_before", 0), table.get("free_after", 0)
        total = human_size(table.get("total", 0))
        said.append(
            f"{rank.device}: {human_size(before)} of {total} free, {human_size(after)} after"
        )
        elsewhere = before - after - table.get("reserved", 0)
        if elsewhere > _ELSEWHERE:
            taken.append(f"{human_size(elsewhere)} of {rank.device} went elsewhere meanwhile")
    advice = "Another process uses these GPUs, too: large models will run out of memory on them."
    return Check(
        "memory", "warn" if taken else "pass", "; ".join(said + taken), advice if taken else ""
    )


def _together(training: Training, plan: Plan) -> Iterator[Check]:
    """What the ranks of a group must agree on."""
    wanted = "nccl" if plan.gpu else "gloo"
    backends = {rank.backend for rank in training.ranks}
    yield _check("backend", backends == {wanted}, f"{_all(backends)}, where {wanted} is wanted")
    yield _collectives(training)
    sums = {checksum for rank in training.ranks for checksum in rank.checksums}
    reported = {len(rank.checksums) for rank in training.ranks}
    yield _check(
        "parameters",
        len(sums) == 1 and reported == {len(training.ranks)},
        f"sha256 {_all(s[:16] for s in sums)} on {len(training.ranks)} ranks",
        "The ranks' models have come apart: gradients were not averaged rightly.",
    )


def _collectives(training: Training) -> Check:
    results = [(rank.rank, found) for rank in training.ranks for found in rank.collectives]
    wrong = [f"rank {n}: {_exchange(found)}" for n, found in results if found["right"] is False]
    among_all = {
        sum(1 for found in rank.collectives if not found.get("pair")) for rank in training.ranks
    }
    names = list(dict.fromkeys(str(found["name"]) for _, found in results))
    return _check(
        "collectives",
        not wrong and 0 not in among_all and len(among_all) == 1,
        "wrong values: " + "; ".join(wrong)
        if wrong
        else f"{len(results)} results of {', '.join(names)}, every value checked",
        "Data is damaged on its way between the processes.",
    )


def _exchange(found: Mapping[str, Json]) -> str:
    pair = found.get("pair")
    between = f" {pair[0]}-{pair[1]}" if isinstance(pair, (list, tuple)) and len(pair) == 2 else ""
    return f"{found['name']}{between} of {found['bytes']} B"


def equals(many: Training, single: Training, name: str = "equals single") -> Check:
    """Whether many processes computed what one did, step by step."""
    difference, tolerance = many.largest_difference(single), single.tolerance
    return _check(
        name,
        difference <= tolerance,
        f"losses differ by at most {difference:.1e} nats; rounding may make {tolerance:.0e}",
        "Many processes do not compute what one does: gradients or batches are wrong.",
    )


def fed(training: Training, plan: Plan, steps: int) -> Check:
    """Whether the loader gave every sample of an epoch to one rank, once, in an order of its own.

    And whether worker processes made them, and ended.
    """
    ranks = training.ranks
    size, batch = ranks[0].epoch, ranks[0].batch
    epochs = -(-steps * batch // size) if size else 0
    problems = []
    orders = set()
    for epoch in range(epochs):
        parts = [rank.samples[epoch] if epoch < len(rank.samples) else () for rank in ranks]
        numbers = sorted(number for part in parts for number in part)
        count = min(size, steps * batch - epoch * size)
        if len(set(numbers)) != len(numbers):
            problems.append(f"epoch {epoch}: some samples came twice")
        if len(numbers) != count or not set(numbers) <= set(range(size)):
            problems.append(f"epoch {epoch}: {len(numbers)} of {count} samples came")
        if len({len(part) for part in parts}) > 1:
            problems.append(f"epoch {epoch}: the ranks got different numbers of samples")
        orders.add(tuple(tuple(part[: batch // len(ranks)]) for part in parts))  # of a step
    if not epochs or len(orders) < epochs:
        problems.append("two epochs have one order: set_epoch had no effect")
    workers = tuple(range(plan.workers)) or (-1,)
    for rank in ranks:
        if rank.workers != workers:
            problems.append(f"rank {rank.rank}: samples were made by workers {_all(rank.workers)}")
        if rank.workers_left:
            problems.append(f"rank {rank.rank}: {rank.workers_left} worker processes did not end")
    pinned = ", through pinned memory" if plan.gpu else ""
    return _check(
        "loader",
        not problems,
        "; ".join(problems)
        or f"{epochs} epochs of {size} samples, each once among {len(ranks)} ranks, in an order of"
        f" its own; made by {plan.workers} worker processes a rank{pinned}",
        "The ranks are not fed as a training needs it: what they learn is not what the data says.",
    )


def resumed(before: Training, after: Training) -> Check:
    """Whether new processes, from a checkpoint of `before`, came to the same bits at its end."""
    saved = after.ranks[0].resumed_after
    problems = _other_processes(before, after)
    if _digests(before, saved) != _digests(after, saved):
        problems.append(f"what was loaded is not what was saved after step {saved}")
    end = len(before.losses)
    same = _digests(before, end) == _digests(after, end) and before.losses == after.losses
    table = before.ranks[0].checkpoint
    size, seconds = human_size(int(table.get("bytes", 0))), table.get("seconds", 0.0)
    text = f"saved after step {saved} ({size} in {seconds:.1f} s), read by new processes"
    if same and not problems:
        sha256 = next(iter(_digests(after, end)))[:16]
        text += f"; after step {end} sha256 {sha256} as without a break, bit for bit"
        return Check("resume", "pass", text)
    if not same:
        difference = after.largest_difference(before)
        problems.append(f"after step {end} it is another model; losses differ by {difference:.1e}")
        loose = {
            name for run in (before, after) for rank in run.ranks for name in rank.unrepeatable
        }
        if loose and len(problems) == 1 and difference <= before.tolerance:
            said = f"torch computes {_all(loose)} in no fixed order here, so bits may differ"
            return Check("resume", "warn", f"{text}; {problems[0]}; {said}")
    advice = "A run that is interrupted here cannot be relied on to go on as it was."
    return Check("resume", "fail", f"{text}; {'; '.join(problems)}", advice)


def sharded(training: Training) -> Check:
    """Whether every rank holds its part of the parameters, and no more."""
    total = int(str(training.ranks[0].model["parameters"]))
    held = [rank.held_parameters for rank in training.ranks]
    parts = ", ".join(f"{count:,}" for count in held)
    kinds = {rank.parallel for rank in training.ranks}
    # FSDP 1 pads its flat tensors, by less than a number a rank and tensor.
    sound = total <= sum(held) <= total * 1.05 and max(held) <= _UNEVEN * total / len(held)
    return _check(
        "fsdp sharding",
        sound and len(kinds) == 1 and kinds <= {"fsdp1", "fsdp2"},
        f"{_all(kinds)}: {parts} of {total:,} parameters a rank",
        "FSDP does not shard: a model that must be spread over these GPUs will not fit.",
    )


def survived(killed: Training, after: Training) -> Check:
    """Whether a run that was killed went on, in other processes, to the bits that it had had."""
    saved, last = after.ranks[0].resumed_after, killed.ranks[0].killed_after or 0
    text = f"saved after step {saved}, killed by SIGKILL after step {last}, read by new processes"
    problems = _other_processes(killed, after)
    if _digests(killed, saved) != _digests(after, saved):
        problems.append("what was loaded is not what was saved")
    elif (
        _digests(killed, last) != _digests(after, last)
        or killed.losses[:last] != after.losses[:last]
    ):
        problems.append(
            f"the parameters are right, but step {last} gives others than before the kill:"
            " the optimizer's state is lost"
        )
    if not problems:
        done = f"steps to {last} done again, bit for bit, and on to {len(after.losses)}"
        return Check(KILLED, "pass", f"{text}; {done}")
    return lost(killed, f"{text}; {'; '.join(problems)}")


#: The check of a kill, under FSDP.
KILLED = "fsdp kill and resume"


def lost(training: Training, evidence: str) -> Check:
    """A checkpoint of FSDP that is no good: a failure, unless accelerate is known for it."""
    first = training.ranks[0]
    verdict: Verdict = "fail"
    advice = "A sharded run that is interrupted here cannot be relied on to go on as it was."
    if first.parallel == "fsdp2" and _numbers(first.accelerate) < (1, 13):
        verdict = "warn"
        advice = (
            f"accelerate {first.accelerate} does not load AdamW's state from FSDP checkpoints;"
            " 1.13 does. Training itself is not touched by it."
        )
    return Check(KILLED, verdict, evidence, advice)


def offers_fsdp2(torch: str, accelerate: str) -> bool:
    """Whether these versions have fully_shard (torch 2.6) and a plugin for it (accelerate 1.6)."""
    return _numbers(torch) >= (2, 6) and _numbers(accelerate) >= (1, 6)


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version: (2, 11) of 2.11.0+cu130."""
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)


def _other_processes(before: Training, after: Training) -> list[str]:
    old = {(rank.host, rank.pid) for rank in before.ranks}
    steps = {rank.resumed_after for rank in after.ranks}
    problems = []
    if any((rank.host, rank.pid) in old for rank in after.ranks):
        problems.append("it was not other processes that went on")
    if len(steps) != 1 or None in steps:
        problems.append("not every rank went on from the checkpoint")
    return problems


def _digests(training: Training, step: int | None) -> set[str]:
    """What the ranks say the parameters' sha256 was after a step: one, in a sound run."""
    return {rank.digests.get(str(step), f"unknown to rank {rank.rank}") for rank in training.ranks}


def _check(name: str, right: bool, evidence: str, advice: str = "") -> Check:
    return Check(name, "pass", evidence) if right else Check(name, "fail", evidence, advice)


def _all(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values}))
