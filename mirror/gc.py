"""mirror gc, pin and list: which generations a root keeps, and what each of them takes.

Promise: whatever is killed, whenever, no complete generation ever lacks a blob. A generation loses
its record first, durably; so it is complete no more, and whoever comes next removes the rest of it.
Blobs go last, and only those that no record of what stays lists, be they shipped or held.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from mirror.core.artifact import Json
from mirror.core.index import Index, total_size
from mirror.core.progress import Progress
from mirror.core.text import counted, human_size
from mirror.ecosystems import environment
from mirror.errors import MachineError
from mirror.store import audit
from mirror.store.generation import Generation
from mirror.store.generations import Root


@dataclass(frozen=True, slots=True)
class Kept:
    """A generation of a root, and what it takes there, in bytes.

    own: what only it needs: its environment, and blobs that no other generation lists.
    shared: blobs that others list too.
    """

    generation: Generation
    index: Index
    current: bool
    pinned: bool
    own: int
    shared: int

    def lines(self) -> list[str]:
        """For people."""
        mark, pinned = "*" if self.current else " ", ", pinned" if self.pinned else ""
        target = self.index.target or "any machine"
        return [
            f"{mark} {self.generation.number:>4}  {self.index.name} {self.index.version}{pinned}",
            f"        {human_size(self.own)} own, {human_size(self.shared)} shared; for {target}",
        ]

    def to_json(self) -> dict[str, Json]:
        """For --json."""
        return {
            "generation": self.generation.number,
            "current": self.current,
            "pinned": self.pinned,
            "name": self.index.name,
            "version": self.index.version,
            "digest": self.index.digest,
            "bytes": total_size(self.index.artifacts),
            "own": self.own,
            "shared": self.shared,
            "path": str(self.generation.path),
        }


@dataclass(frozen=True, slots=True)
class Collected:
    """What gc removes. freed: bytes on the disk, as far as no link elsewhere keeps them."""

    generations: tuple[Generation, ...]
    blobs: int
    freed: int

    def lines(self, *, rehearsed: bool) -> list[str]:
        """For people."""
        if not self.generations and not self.blobs:
            return ["nothing to remove"]
        numbers = ", ".join(str(generation.number) for generation in self.generations)
        noun = "generation" if len(self.generations) == 1 else "generations"
        what = f"{noun} {numbers}" if self.generations else "no generation"
        verb = "would be removed" if rehearsed else "removed"
        blobs = counted(self.blobs, "blob")
        return [f"{what} {verb}, and {blobs}: {human_size(self.freed)} freed"]

    def to_json(self) -> dict[str, Json]:
        """For --json."""
        return {
            "generations": [generation.number for generation in self.generations],
            "blobs": self.blobs,
            "bytes": self.freed,
        }


def survey(root: Root) -> list[Kept]:
    """Every generation, oldest first. Raises BundleError when the record of one is damaged."""
    indexes = {generation: generation.index() for generation in root.generations()}
    current = root.current_number()
    sizes = {g: {a.sha256: a.size for a in index.artifacts} for g, index in indexes.items()}
    users = Counter(sha256 for blobs in sizes.values() for sha256 in blobs)
    rows = []
    for generation, index in indexes.items():
        blobs = sizes[generation]
        own = sum(size for sha256, size in blobs.items() if users[sha256] == 1)
        rows.append(
            Kept(
                generation=generation,
                index=index,
                current=generation.number == current,
                pinned=generation.pinned,
                own=own + _unlinked(generation.path),
                shared=sum(blobs.values()) - own,
            )
        )
    return rows


def pin(root: Root, number: int, *, wanted: bool) -> Generation:
    """Have gc keep a generation for good, or no longer. Raises MachineError when there is none."""
    with root.locked(), audit.opened(root) as log:
        root.tidy()
        found = {generation.number: generation for generation in root.generations()}
        if number not in found:
            known = ", ".join(map(str, found)) or "none"
            raise MachineError(f"{root.path} has no generation {number}; it has {known}")
        about = audit.of_generation(found[number])
        with log.event("pin" if wanted else "unpin", about):
            found[number].pin(wanted=wanted)
        return found[number]


def collect(root: Root, keep: int, progress: Progress, *, rehearse: bool = False) -> Collected:
    """Remove the generations that nobody keeps, and every blob that no other one lists.

    keep: how many stay on each side of the one in use, next to it. That one stays in any case; so
    do those that are pinned, and those that one which stays is built on. rehearse: only say what
    would go. Raises MachineError when another mirror is at work in the root or nothing is installed
    there, BundleError when `current` or the record of a generation that stays is damaged: then
    nothing is removed.
    """
    if not root.blobs.folder.is_dir():
        root.current()  # raises
    with root.locked(), nullcontext() if rehearse else audit.opened(root, frees=True) as log:
        current = root.current_number()
        if not rehearse:
            root.tidy()
        generations = root.generations()
        stay = set(_staying(generations, current, keep))
        go = [generation for generation in generations if generation not in stay]
        needed = {a.sha256 for generation in stay for a in generation.index().artifacts}
        idle = [sha256 for sha256 in root.blobs if sha256 not in needed]
        if log is None:
            return Collected(tuple(go), len(idle), _would_free(root, go, idle))
        freed = _remove(root, go, idle, log, progress)
    return Collected(tuple(go), len(idle), freed)


def _remove(
    root: Root, go: Sequence[Generation], idle: Sequence[str], log: audit.Log, progress: Progress
) -> int:
    """Remove these generations and blobs; returns the bytes that this frees."""
    freed = 0
    for generation in go:
        freed += _unlinked(generation.path)
        with log.event("remove", audit.of_generation(generation), frees=True):
            root.remove(generation)
        progress.step(f"generation {generation.number} removed")
    if idle:
        with (
            log.event("gc", {"blobs": len(idle)}, frees=True) as told,
            progress.bar("removing", len(idle), "blobs") as advance,
        ):
            for sha256 in idle:
                freed += root.blobs.remove(sha256)
                advance(1)
            told["bytes"] = freed
        progress.step(f"{counted(len(idle), 'blob')} removed")
    return freed


def _staying(
    generations: Sequence[Generation], current: int | None, keep: int
) -> Iterator[Generation]:
    # A kill before the very first commit leaves a generation, and none in use.
    at = next((i for i, g in enumerate(generations) if g.number == current), len(generations) - 1)
    near = [g for i, g in enumerate(generations) if abs(i - at) <= keep]
    todo = [*near, *(g for g in generations if g.pinned)]
    found: set[Generation] = set()
    while todo:
        generation = todo.pop()
        if generation in found:
            continue
        found.add(generation)
        yield generation
        todo += [other for other in generations if _stands_on(generation, other)]


def _stands_on(generation: Generation, other: Generation) -> bool:
    """Whether an environment was layered over the one of another generation, or made by it."""
    if generation == other:
        return False
    folder = other.path.resolve()
    return any(folder in path.resolve().parents for path in _foundations(generation))


def _foundations(generation: Generation) -> Iterator[Path]:
    """What the generation's environment does not work without, besides itself."""
    if over := environment.layered_over(generation):
        yield over
    with suppress(OSError):
        lines = (generation.env / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
        for line in lines:
            key, _, value = line.partition("=")
            if key.strip() == "home":
                yield Path(value.strip())


def _would_free(root: Root, go: Iterable[Generation], idle: Sequence[str]) -> int:
    """As `collect` counts: a blob's other names may all be in generations that go."""
    names: Counter[int] = Counter()
    trees = 0
    for generation in go:
        trees += _unlinked(generation.path)
        names.update(status.st_ino for status in _files(generation.path) if status.st_nlink > 1)
    blobs = (os.lstat(root.blobs.name(sha256)) for sha256 in idle)
    return trees + sum(s.st_size for s in blobs if s.st_nlink <= 1 + names[s.st_ino])


def _unlinked(folder: Path) -> int:
    """Bytes of the files below a folder that have no other name."""
    return sum(status.st_size for status in _files(folder) if status.st_nlink == 1)


def _files(folder: Path) -> Iterator[os.stat_result]:
    todo = [str(folder)]
    while todo:
        with os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                elif not entry.is_symlink():
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield status
