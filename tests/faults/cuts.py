"""Scenes through power cuts: the disk as it may be, and the command once more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults import tracing
from tests.faults.calls import SYNCS, Call
from tests.faults.disk import Disk, Kept, Left
from tests.faults.scenes import RefusedError, Scene
from tests.faults.walks import SEED, Tally, sample

#: How a disk may come back, and how often chance decides.
_WAYS: tuple[Kept, ...] = ("none", "all", "names", "some", "some")


@dataclass(frozen=True, slots=True)
class Cut:
    """What is left when the power goes after so many calls."""

    after: int
    last: Call | None
    kept: Kept
    left: tuple[Left, ...]


def cuts(scene: Scene, wanted: int | None) -> Tally:
    """A power cut between any two calls, in each way; those that leave the same are one."""
    found = list(_distinct(scene))
    tally = Tally(of=len(found))
    for number in sample(len(found), wanted):
        cut = found[number]
        scene.clear()
        for place, left in zip(scene.places, cut.left, strict=True):
            left.make(place)
        what = f"{scene.name}: power cut after {cut.after} calls, {cut.last}, {cut.kept} kept"
        tally.add(what, [*scene.problems(), *scene.finish()])
    return tally


def replayed(scene: Scene) -> Iterator[tuple[int, Call | None, Disk]]:
    """The disk after each call of a recording; the first time before any."""
    scene.restart()
    disk = Disk(scene.places)
    ended = tracing.record(scene.command)
    if ended.code:
        raise RefusedError(f"{scene.name}: {ended.code}\n{ended.said}")
    syncs: dict[int, list[tuple[int, Call]]] = {}
    for number, call in enumerate(ended.calls):
        if call.name in SYNCS:
            syncs.setdefault(call.since, []).append((number, call))
    yield 0, None, disk
    for number, call in enumerate(ended.calls):
        for key, sync in syncs.get(number, ()):
            disk.begin(sync, key)
        if call.name in SYNCS:
            disk.end(number)
        else:
            disk.apply(call)
        yield number + 1, call, disk


def _distinct(scene: Scene) -> Iterator[Cut]:
    seen = set()
    chance = random.Random(SEED)
    for after, last, disk in replayed(scene):
        for kept in _WAYS:
            left = tuple(disk.left(place, kept, chance) for place in scene.places)
            key = tuple(one.key() for one in left)
            if key not in seen:
                seen.add(key)
                yield Cut(after, last, kept, left)
