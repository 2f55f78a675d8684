"""Where the bytes are that a build reads: in the store, elsewhere on this machine, or to fetch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mirror import machine
from mirror.core.artifact import Artifact
from mirror.core.paths import shown
from mirror.core.text import counted, human_size
from mirror.ecosystems.source import locate
from mirror.errors import MachineError
from mirror.fetch import beside
from mirror.fetch.http import Request
from mirror.project import Project


@dataclass(frozen=True, slots=True)
class Supply:
    """What is outside the store.

    places: sha256 -> the file that has these bytes. downloads: what to fetch into the store.
    """

    places: dict[str, Path] = field(default_factory=dict)
    downloads: list[Request] = field(default_factory=list)


def find(project: Project, artifacts: Collection[Artifact]) -> Supply:
    """Where those of these are that the store lacks. What can only be built again, is."""
    context, supply = project.context, Supply()
    for kind, source, section in project.sections():
        ask = partial(source.requests, section=section, context=context)
        own = [a for a in artifacts if a.kind == kind]
        places, downloads = locate(own, context.blobs, ask)
        supply.places.update(places)
        supply.downloads.extend(downloads)
    return supply


def fetch(project: Project, supply: Supply) -> None:
    """Have everything on this machine."""
    if supply.downloads:
        project.context.fetcher.fetch(supply.downloads)
        project.context.progress.step(f"downloaded {counted(len(supply.downloads), 'file')}")


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a build writes to one file system. what: "downloads", "the bundle"."""

    folder: Path
    size: int
    free: int
    what: str

    @property
    def lacking(self) -> int:
        """How many of them have no room."""
        return max(self.size - self.free, 0)

    def __str__(self) -> str:
        room = f"{human_size(self.free)} are free"
        return f"{shown(str(self.folder))}: {human_size(self.size)} for {self.what}; {room}"


def needs(project: Project, downloads: int, output: Path | None, size: int) -> list[Need]:
    """What is written where, one item a file system.

    downloads: bytes to be fetched into the store, of which some may be there from a run that was
    ended. output: the folder of the bundle, None where it is not written to a disk.
    """
    store = project.context.blobs.folder
    left = max(downloads - _arrived(project), 0)
    wanted = [(store, left, "downloads")] if left else []
    wanted += [(output, size, "the bundle")] if output else []
    if len({_device(folder) for folder, _, _ in wanted}) < len(wanted):
        wanted = [(store, left + size, "downloads and the bundle")]
    return [Need(folder, size, machine.free_bytes(folder), what) for folder, size, what in wanted]


def require_space(found: Sequence[Need]) -> None:
    """Raises MachineError that names every file system with too little room."""
    if problems := [str(need) for need in found if need.lacking]:
        raise MachineError(
            "there is not enough room for this build",
            problems=problems,
            hint="Make room there, or name other places: MIRROR_CACHE for downloads, -o for the"
            " bundle (-o - writes it to a pipe).",
        )


def _arrived(project: Project) -> int:
    """Bytes of files that are there in part."""
    folder = beside.partial(project.context.blobs)
    if not folder.is_dir():
        return 0
    return sum(getattr(path.stat(), "st_blocks", 0) * 512 for path in folder.iterdir())


def _device(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev
