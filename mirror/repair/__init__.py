"""mirror repair: put back what is damaged in a root, and nothing else.

Promise: what is right is not touched. Each file, link and folder is replaced by one rename, under
the path that it had, so programs that run from a generation go on, and whoever is killed leaves
each thing as it was or as it should be; running it again goes on. What was in the way is kept aside
in ROOT/tmp/removed-TIME, but for damaged blobs and Python's bytecode.

Blobs come from the bundles; what is linked to blobs, links and folders from the store and the seal;
what no blob holds (the environment, the tool) is made anew beside it (anew.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mirror.bundle.opening import opened
from mirror.bundle.reader import Reader
from mirror.core.artifact import Json
from mirror.core.progress import Progress
from mirror.core.text import counted
from mirror.errors import BundleError
from mirror.repair import blobs as sources
from mirror.repair.trees import Aside, heal
from mirror.store import atomic, audit, damage
from mirror.store.damage import Damage, Found
from mirror.store.generations import Root
from mirror.store.strays import generations
from mirror.trust.judging import judge_here

#: Lines of an error: an environment has tens of thousands of files.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was, or would be, done: a line for each thing. aside: where what was in the way is.

    left: what is, or would be, still damaged.
    """

    done: tuple[str, ...]
    left: tuple[str, ...]
    aside: Path | None

    def lines(self, *, rehearsed: bool) -> list[str]:
        """For people."""
        if not self.done and not self.left:
            return ["nothing is damaged"]
        verb = "would be put right" if rehearsed else "put right"
        rows = [f"{counted(len(self.done), 'thing')} {verb}", *(f"  {line}" for line in self.done)]
        if self.aside:
            rows.append(f"what was in the way is in {self.aside}; remove it when nobody misses it")
        return rows

    def to_json(self) -> dict[str, Json]:
        """For --json."""
        return {
            "repaired": list(self.done),
            "damaged": list(self.left),
            "aside": str(self.aside) if self.aside else None,
        }


def repair(
    bundles: Sequence[str],
    root: Root,
    progress: Progress,
    *,
    trust: Path | None = None,
    rehearse: bool = False,
) -> Repaired:
    """Put back what is damaged in a root, of all its generations and its store.

    bundles: their names, as `opening.opened` takes them, in any order; they are trusted as those
    are that are installed. None are needed where no blob is damaged. rehearse: only say what would
    be done. Raises BundleError when something stays damaged, which it names together with the
    bundle that has it; TrustError and MachineError as an install does.
    """
    judge = judge_here(trust, demand=True)
    with opened(bundles, progress, judge) as readers:
        for reader in readers:
            for line in reader.standing.lines() if reader.standing else ():
                progress.step(f"{reader.name}: {line}")
        if not generations(root):
            root.current()  # raises
        if rehearse:
            return _rehearsed(_look(root, progress), readers)
        root.prepare()
        with root.locked():
            before = _look(root, progress)
            if not before.all:
                return Repaired((), (), None)
            aside = Aside(root)
            with audit.opened(root) as log, log.event("repair", _event(readers, before)) as event:
                _put_back_blobs(before, readers, root, aside, progress)
                after = _look(root, progress, before)
                for holding in after.holdings:
                    heal(holding, after, readers, root, aside, progress)
                after = _look(root, progress, after)
                event["left"] = len(after.all)
    left = _lines(after)
    done = tuple(line for line in _lines(before) if line not in left)
    repaired = Repaired(done, left, aside.used)
    if left:
        raise _unrepaired(repaired, after, readers)
    return repaired


def _event(readers: Sequence[Reader], found: Found) -> dict[str, Json]:
    """What the audit log says of a repair."""
    bundles: list[Json] = [
        {
            **audit.of_bundle(reader.index),
            "signatures": reader.standing.record() if reader.standing else "unsigned",
        }
        for reader in readers
    ]
    return {"damaged": len(found.all), "bundles": bundles}


def _look(root: Root, progress: Progress, before: Found | None = None) -> Found:
    read = before.read if before else None
    return damage.look(root, generations(root), progress, idle=True, read=read)


def _wanted(found: Found) -> set[str]:
    """The hashes of the blobs that generations list and that are not right."""
    wrong = {item.sha256 for item in found.damaged if item.what != "mode"}
    return wrong & found.artifacts.keys()


def _right(found: Found, root: Root) -> set[str]:
    return set(root.blobs) - {item.sha256 for item in found.damaged if item.what != "mode"}


def _put_back_blobs(
    found: Found, readers: Sequence[Reader], root: Root, aside: Aside, progress: Progress
) -> None:
    wanted, indexes = _wanted(found), [h.index for h in found.holdings if h.index]
    for item in found.damaged:
        path = Path(item.place)
        with suppress(OSError):
            status = path.lstat()
            aside.worthless.add((status.st_dev, status.st_ino))
        if item.what == "mode":
            path.chmod(damage.BLOB_MODE)
        elif item.what != "missing" and (item.sha256 not in wanted or path.is_dir()):
            # Of no generation: a wrong blob would only be taken for a right one later.
            aside.take(path, Path("store") / path.name)
    here = sources.in_generations(found, wanted)
    sources.from_generations(here, root.blobs, progress)
    if wanted := wanted - here.keys():
        sources.put_back(
            readers, indexes, root.blobs, wanted, _right(found, root) | here.keys(), progress
        )
    root.blobs.sync({item.sha256 for item in found.damaged})
    atomic.sync_folder(root.blobs.folder)


def _rehearsed(found: Found, readers: Sequence[Reader]) -> Repaired:
    wanted = _wanted(found)
    indexes = [h.index for h in found.holdings if h.index]
    wrong = {item.sha256 for item in found.damaged}
    right = {sha256 for sha256 in found.artifacts if sha256 not in wrong}
    here = sources.in_generations(found, wanted)
    having = {sha256: str(place) for sha256, place in here.items()}
    having |= sources.sources(readers, indexes, wanted - here.keys(), right | here.keys())
    done, left = [], []
    for item in found.all:
        if item.sha256 in wanted and item.sha256 not in having:
            left.append(f"{item}: none of the bundles has it")
        elif item.sha256 in wanted:
            done.append(f"{item}: put back from {having[item.sha256]}")
        elif item.entry and item.entry.text in wanted - having.keys():
            left.append(f"{item}: its blob is damaged")
        else:
            done.append(f"{item}: {_way(item, found)}")
    return Repaired(tuple(done), tuple(left), None)


def _way(item: Damage, found: Found) -> str:
    """How a thing that needs no bundle is put right."""
    if item.what == "mode":
        return "get its mode back"
    if item.what == "bytecode":
        return "remove"
    if item.entry is None:
        return "put aside"
    if item.entry.kind in "ld":
        return "make again"
    return "link again" if item.entry.text in found.artifacts else "make anew"


def _lines(found: Found) -> tuple[str, ...]:
    return tuple(map(str, found.all))


def _unrepaired(repaired: Repaired, found: Found, readers: Sequence[Reader]) -> BundleError:
    having = damage.owners(found, _wanted(found))
    hint = "Name these bundles too: mirror repair BUNDLE..." if having else None
    if not having:
        hint = "Install the bundle again: mirror install BUNDLE."
    done = f", {len(repaired.done):,} put right" if repaired.done else ""
    shown, more = repaired.left[:_SHOWN], len(repaired.left) - _SHOWN
    rest = [f"and {more:,} more: mirror verify --store --json names all"] if more > 0 else []
    return BundleError(
        f"{counted(len(repaired.left), 'thing')} still damaged{done}",
        problems=[*shown, *rest, *having],
        hint=hint,
    )
