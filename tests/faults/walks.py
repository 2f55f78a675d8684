"""Scenes through kills, refused calls and rivals, one call after the other."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.faults import tracing
from tests.faults.calls import OPENS, READS, SYNCS, WRITES, Call
from tests.faults.scenes import Scene
from tests.faults.tracing import Ended

#: What a call may be refused with; sync tells nobody.
_ERRORS = {
    **dict.fromkeys(OPENS, (errno.EIO, errno.ENOSPC, errno.EMFILE)),
    **dict.fromkeys(WRITES, (errno.EIO, errno.ENOSPC)),
    **dict.fromkeys(("mkdir", "mkdirat", "symlink", "symlinkat"), (errno.EIO, errno.ENOSPC)),
    **dict.fromkeys(("link", "linkat"), (errno.EIO, errno.ENOSPC)),
    **dict.fromkeys(("rename", "renameat", "renameat2"), (errno.EIO, errno.ENOSPC)),
    "sync": (),
}
#: Calls that take away: when one is refused, what it should have taken may stay until the rerun.
_TAKES = frozenset({"unlink", "unlinkat", "rmdir"})
SEED = 20261201


@dataclass
class Tally:
    """What was tried, and what was not as promised, a line each."""

    tried: int = 0
    of: int = 0
    wrong: int = 0
    lines: list[str] = field(default_factory=list)

    def add(self, what: str, problems: Sequence[str]) -> None:
        """Count one try, and what was found."""
        self.tried += 1
        if problems:
            self.wrong += 1
            self.lines += [what, *(f"    {line}" for line in problems[:8])]

    def __iadd__(self, other: Tally) -> Tally:
        self.tried += other.tried
        self.of += other.of
        self.wrong += other.wrong
        self.lines += other.lines
        return self


def sample(total: int, wanted: int | None) -> list[int]:
    """So many of the numbers below `total`, spread evenly and the same each time; all for None."""
    if wanted is None or wanted >= total:
        return list(range(total))
    step = total / wanted
    shift = random.Random(SEED).random()
    return [int((number + shift) * step) for number in range(wanted)]


def kills(scene: Scene, wanted: int | None) -> Tally:
    """kill -9 before each call that changes something, and after the last one."""
    scene.restart()
    total = len(tracing.killed(scene.command, -1).calls)
    tally = Tally(of=total)
    for at in sample(total, wanted):
        scene.restart()
        ended = tracing.killed(scene.command, at)
        found = scene.problems()
        found += scene.finish()
        tally.add(_named(scene, "killed", at, ended), found)
    return tally


def errors(scene: Scene, wanted: int | None) -> Tally:
    """Each call refused with each error that it may meet; reads too."""
    scene.restart()
    calls = tracing.listed(scene.command).calls
    todo = [(at, number) for at, call in enumerate(calls) for number in _errors(call)]
    tally = Tally(of=len(todo))
    for place in sample(len(todo), wanted):
        at, number = todo[place]
        scene.restart()
        ended = tracing.refused(scene.command, at, number, reads=True)
        found = list(_as_promised(scene, ended, at))
        found += scene.problems()
        found += scene.finish()
        tally.add(_named(scene, errno.errorcode[number], at, ended), found)
    return tally


def _errors(call: Call) -> Sequence[int]:
    if call.name in READS:
        return (errno.EIO,)
    if call.name in OPENS and not call.changes:
        return (errno.EIO, errno.EMFILE)
    return _ERRORS.get(call.name, (errno.EIO,))


def _as_promised(scene: Scene, ended: Ended, at: int) -> Iterator[str]:
    """A named error, exit code 8 and nothing half-made; or the work was done all the same."""
    hit = ended.hit
    if hit is None:
        return
    # What cannot be read may be a person's own file, or what a program that mirror starts needs.
    codes = (0, 8) if hit.changes else (0, 2, 3, 4, 5, 8)
    if "Traceback" in ended.said or ended.code not in codes:
        yield f"it ended with {ended.code}: {ended.said[-2000:]}"
    if ended.code and "error: " not in ended.said:
        yield f"it did not say why: {ended.said[-500:]}"
    if ended.code == 0:
        if hit.name in SYNCS:
            yield "it took no notice"
        yield from scene.differences()
    elif hit.name not in _TAKES:
        yield from (f"left behind: {name}" for name in scene.leftovers())
    if hit.name in SYNCS:
        again = [call for call in ended.calls[at + 1 :] if call.name in SYNCS]
        yield from (f"synced again: {call}" for call in again if call.paths == hit.paths)


def rivals(scene: Scene, wanted: int | None) -> Tally:
    """A second command at each call: it is done, or it says that another mirror is at work."""
    assert scene.rival is not None, "the scene has one"
    rival = scene.rival
    scene.restart()
    total = len(tracing.killed(scene.command, -1).calls)
    tally = Tally(of=total)
    for at in sample(total, wanted):
        scene.restart()
        ended, other = tracing.held_up(scene.command, at, rival)
        found = [f"the first ended with {ended.code}: {ended.said[-500:]}"] if ended.code else []
        busy = other and other.code == 8 and "another mirror is at work" in other.said
        if other and other.code and not busy:
            found.append(f"the second ended with {other.code}: {other.said[-500:]}")
        found += scene.problems()
        found += scene.finish()
        tally.add(_named(scene, "a rival", at, ended), found)
    return tally


def _named(scene: Scene, what: str, at: int, ended: Ended) -> str:
    return f"{scene.name}: {what} at {at}, {ended.hit or 'never reached'}, exit {ended.code}"
