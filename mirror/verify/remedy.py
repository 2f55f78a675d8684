"""Many processes, under the settings that this machine needs: the plain run, else the ladder.

The plain run comes first, and is all where it is right and as fast as the links promise. Otherwise
the ladder finds the fastest settings under which collectives are right, and the training run is
made again under them: only what has trained is proposed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from mirror.verify import ladder
from mirror.verify.ladder import Measured, Rung
from mirror.verify.report import Check, Training, worst
from mirror.verify.units import rate

#: Trains with all processes under these variables; its checks, and what the ranks reported.
Train: TypeAlias = Callable[[Mapping[str, str]], tuple[list[Check], Training | None]]
#: Runs the collectives under a rung's settings.
Measure: TypeAlias = Callable[[Rung], Measured]


@dataclass(frozen=True, slots=True)
class Settled:
    """What came of it. env: what has to be set; rungs: all that were measured."""

    checks: tuple[Check, ...]
    training: Training | None
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    rungs: tuple[Measured, ...] = ()


def settle(
    train: Train,
    measure: Measure,
    rungs: Callable[[], Sequence[Rung]],
    *,
    promised: Mapping[tuple[int, int], float],
    always: bool = False,
) -> Settled:
    """Train, and find settings where the plain run fails or is slow.

    rungs: what to try, plain first; asked for after the plain run, whose symptoms decide it.
    promised: bytes/s one way between ranks, as far as it is known. always: measure every rung
    whatever the plain run comes to.
    """
    checks, training = train({})
    failed = worst(check.verdict for check in checks) == "fail"
    below = ladder.slow(training.bandwidth, promised) if training else []
    if below:
        checks = [*checks, Check("bandwidth", "warn", "\n".join(below), _SLOW)]
    if not (failed or below or always):
        return Settled(tuple(checks), training)
    plain, *others = rungs()
    found = [measure(plain)]
    alone = found[0].result == "right" and not ladder.slow(found[0].bandwidth, promised)
    if alone and not always:
        return Settled((*checks, _not_to_blame(found[0])), training, rungs=tuple(found))
    found += ladder.climb(others, measure)
    chosen = ladder.best(found)
    if chosen is None or chosen is found[0]:
        return Settled((*checks, ladder.check(found)), training, rungs=tuple(found))
    again, trained = train(chosen.rung.env)
    if trained is None or worst(check.verdict for check in again) == "fail":
        told = replace(
            ladder.check(found),
            advice=f"Collectives are right under {chosen.rung}, and training fails there, too:"
            " nothing was set.",
        )
        return Settled(
            (*checks, told, *_named(again, str(chosen.rung))), training, rungs=tuple(found)
        )
    return Settled(
        (*_overcome(checks), ladder.check(found), *again), trained, chosen.rung.env, tuple(found)
    )


_SLOW = "Look at the stage host (peer access, IOMMU, ACS, link widths)."


def _not_to_blame(plain: Measured) -> Check:
    evidence = f"collectives alone come out right ({rate(plain.speed)} all_reduce)"
    return Check("ladder", "pass", f"{evidence}: no setting of NCCL's is to blame")


def _overcome(checks: Sequence[Check]) -> list[Check]:
    """What was wrong without the settings: told, and no failure any more."""
    bad = [check for check in checks if check.verdict in ("fail", "warn")]
    return [replace(check, name=f"plain: {check.name}", verdict="warn") for check in bad]


def _named(checks: Sequence[Check], rung: str) -> list[Check]:
    return [
        replace(check, name=f"{rung}: {check.name}") for check in checks if check.verdict == "fail"
    ]
