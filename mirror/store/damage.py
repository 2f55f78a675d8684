"""What in a root is not as it was installed: each file, folder and link that differs.

Blobs are held against their names, generations against their seals (seal.py). Every file is read
once, however many names it has. Nothing here writes.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from mirror.core.artifact import Artifact
from mirror.core.index import Index
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.core.text import counted
from mirror.errors import BundleError, MachineError
from mirror.store import environment, seal
from mirror.store.blobs import Blobs
from mirror.store.generation import Generation
from mirror.store.generations import Root
from mirror.store.hashing import failed, hash_all
from mirror.store.seal import Entry, Seal

BLOB_MODE = 0o444
#: changed: other bytes, another target or another type. mode: only the permissions. bytecode: an
#: extra file that Python writes for itself.
What: TypeAlias = Literal["changed", "missing", "mode", "extra", "bytecode"]

_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_BYTECODE = re.compile(r"(.*/)?__pycache__(/[^/]+\.pyc)?", re.S)


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that differs.

    place: where. says: how it differs. sha256: of a blob, its name. generation: whose it is; None
    for a blob. path: in the generation; of a blob, in the bundle. entry: what its seal says; None
    for what is extra and what no seal lists.
    """

    place: str
    what: What
    says: str
    sha256: str = ""
    generation: Generation | None = None
    path: str = ""
    entry: Entry | None = None

    def __str__(self) -> str:
        if self.generation:
            where = f"generation {self.generation.number}: {self.path}"
        else:
            where = f"store/sha256/{self.sha256[:2]}/{self.sha256}"
            where += f" ({self.path})" if self.path else ""
        return shown(f"{where} {self.says}")


@dataclass(slots=True)
class Holding:
    """A generation that was looked at. index, seal: None where they are damaged.

    size: bytes of all its files. linked: how many of them are blobs.
    """

    generation: Generation
    index: Index | None = None
    seal: Seal | None = None
    files: int = 0
    size: int = 0
    linked: int = 0
    damage: list[Damage] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """All that was found. blobs: how many were read, and size: their bytes.

    damaged: of them, those that differ. artifacts: by hash, what the generations list. idle: how
    many of the blobs no generation lists. read: the sha256 of what is right, by device, inode,
    size and time of change, for another look.
    """

    holdings: list[Holding] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    blobs: int = 0
    size: int = 0
    idle: int = 0
    damaged: list[Damage] = field(default_factory=list)
    read: dict[tuple[int, ...], str] = field(default_factory=dict)

    @property
    def all(self) -> list[Damage]:
        """Every damage, of blobs first."""
        return [*self.damaged, *(d for holding in self.holdings for d in holding.damage)]


def look(
    root: Root,
    chosen: Sequence[Generation],
    progress: Progress,
    *,
    idle: bool = False,
    read: dict[tuple[int, ...], str] | None = None,
) -> Found:
    """Look at these generations and the blobs that they list; idle: at all other blobs too.

    read: what an earlier look has read. Raises OSError for a folder that may not be read.
    """
    found = Found(read=dict(read or {}))
    work = _Work(found)
    for generation in chosen:
        holding = _records(generation)
        found.holdings.append(holding)
        if holding.index:
            found.artifacts |= {a.sha256: a for a in holding.index.artifacts}
    for sha256, artifact in found.artifacts.items():
        work.blob(root.blobs, sha256, artifact)
    if idle:
        for sha256 in root.blobs:
            if sha256 not in found.artifacts:
                found.idle += 1
                work.blob(root.blobs, sha256, None)
    for holding in found.holdings:
        if holding.seal:
            work.tree(holding, holding.seal)
    work.finish(progress)
    return found


def _records(generation: Generation) -> Holding:
    """The index and the seal of a generation, and whether they belong together."""
    holding = Holding(generation)

    def damaged(path: str, says: str) -> None:
        place = str(generation.path / path)
        holding.damage.append(Damage(place, "changed", says, generation=generation, path=path))

    try:
        holding.seal = seal.read(generation.path)
    except BundleError as error:
        says = error.message.partition(f"{generation.path / seal.NAME} ")[2]
        damaged(seal.NAME, f"{says}, so what it lists cannot be checked")
    try:
        holding.index = generation.index()
    except BundleError:
        damaged("index.json", "has changed" if generation.index_file.exists() else "is missing")
    if holding.index and holding.seal and holding.seal.bundle != holding.index.digest:
        damaged("index.json", f"is of the bundle {holding.index.digest}, not of the one sealed")
        holding.index = None
    if holding.index and holding.seal:
        for entry in _laid_out(holding.index):
            if holding.seal.entries.get(entry.path, entry).text != entry.text:
                says = "is sealed with bytes that are not the bundle's"
                place = str(generation.path / entry.path)
                wrong = Damage(place, "changed", says, "", generation, entry.path, entry)
                holding.damage.append(wrong)
    for file in (generation.index_file, generation.seal_file):
        with suppress(OSError):
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode != BLOB_MODE:
                says = f"has mode {mode:o}, not {BLOB_MODE:o}"
                entry = Entry(file.name, "f", BLOB_MODE, 0, "")
                holding.damage.append(
                    Damage(str(file), "mode", says, "", generation, file.name, entry)
                )
    return holding


def _laid_out(index: Index) -> Iterator[Entry]:
    """The artifacts that lie in a generation under their own path, as a seal has them."""
    for artifact in index.artifacts:
        if artifact.kind in ("conda", "files") or artifact.path.endswith(".whl"):
            mode = 0o555 if artifact.executable else BLOB_MODE
            yield Entry(artifact.path, "f", mode, artifact.size, artifact.sha256)


class _Work:
    """Collects what has to be read, each file once, and whom its hash tells something."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._files: dict[tuple[int, ...], tuple[str, int]] = {}
        self._asked: list[tuple[tuple[int, ...], str, list[Damage], Damage]] = []
        self._blobs: set[tuple[int, int]] = set()

    def blob(self, blobs: Blobs, sha256: str, artifact: Artifact | None) -> None:
        """A blob; artifact: what it is, where a generation lists it."""
        place = blobs.name(sha256)
        path = artifact.path if artifact else ""
        self._found.blobs += 1

        def damage(what: What, says: str) -> Damage:
            return Damage(place, what, says, sha256, path=path)

        try:
            status = os.lstat(place)
        except OSError as error:
            gone = isinstance(error, FileNotFoundError | NotADirectoryError)
            says = "is missing" if gone else f"cannot be read: {error.strerror}"
            self._found.damaged.append(damage("missing" if gone else "changed", says))
            return
        if not stat.S_ISREG(status.st_mode):
            self._found.damaged.append(damage("changed", "is no file"))
            return
        self._blobs.add((status.st_dev, status.st_ino))
        self._found.size += status.st_size
        if artifact and artifact.size != status.st_size:
            says = f"has {status.st_size:,} bytes, not {artifact.size:,}"
            self._found.damaged.append(damage("changed", says))
            return
        if stat.S_IMODE(status.st_mode) != BLOB_MODE:
            says = f"has mode {stat.S_IMODE(status.st_mode):o}, not {BLOB_MODE:o}"
            self._found.damaged.append(damage("mode", says))
        changed = damage("changed", _BYTES)
        self._read(place, status, sha256, self._found.damaged, changed)

    def tree(self, holding: Holding, sealed: Seal) -> None:
        """All of a generation, against its seal."""
        generation, missing = holding.generation, dict(sealed.entries)
        for entry, status in seal.walk(generation.path):
            expected = missing.pop(entry.path, None)
            if entry.kind == "f":
                holding.files += 1
                holding.size += entry.size
                holding.linked += (status.st_dev, status.st_ino) in self._blobs
            self._compare(holding, entry, status, expected)
        for entry in missing.values():
            self._tell(holding, entry.path, "missing", "is missing", entry)
        says = _launch(generation)
        if says:
            path = generation.launch_file.name
            self._tell(holding, path, "changed", says, None)

    def finish(self, progress: Progress) -> None:
        """Read it all, and tell."""
        answers: dict[tuple[int, ...], str] = dict(self._found.read)
        todo = {key: file for key, file in self._files.items() if key not in answers}
        label = "checking every byte"
        answers |= zip(todo, hash_all(list(todo.values()), label, progress), strict=True)
        for key, sha256, into, changed in self._asked:
            answer = answers[key]
            if answer == sha256:
                self._found.read[key] = answer
            elif failed(answer):
                into.append(_saying(changed, answer))
            else:
                into.append(changed)
        for told in (self._found.damaged, *(h.damage for h in self._found.holdings)):
            # Whatever is put back gets its mode with its bytes.
            replaced = {item.place for item in told if item.what == "changed"}
            told[:] = [i for i in told if i.what != "mode" or i.place not in replaced]

    def _compare(
        self, holding: Holding, entry: Entry, status: os.stat_result, expected: Entry | None
    ) -> None:
        if expected is None:
            what: What = "bytecode" if _is_bytecode(entry) else "extra"
            self._tell(holding, entry.path, what, f"is {_KINDS[entry.kind]} nobody installed", None)
            return
        if entry.kind != expected.kind:
            says = f"is {_KINDS[entry.kind]}, not {_KINDS[expected.kind]}"
            self._tell(holding, entry.path, "changed", says, expected)
            return
        # That nobody may write is no damage: people mount roots so, and chmod them so.
        if entry.mode not in (expected.mode, expected.mode & ~_WRITE):
            says = f"has mode {entry.mode:o}, not {expected.mode:o}"
            self._tell(holding, entry.path, "mode", says, expected)
        if entry.path == seal.ACTIVATE:
            self._activate(holding, expected)
        elif entry.kind == "l" and entry.text != expected.text:
            says = f"is a link to {entry.text}, not to {expected.text}"
            self._tell(holding, entry.path, "changed", says, expected)
        elif entry.size != expected.size:
            says = f"has {entry.size:,} bytes, not {expected.size:,}"
            self._tell(holding, entry.path, "changed", says, expected)
        elif entry.kind == "f":
            place = _place(holding, entry.path)
            changed = Damage(place, "changed", _BYTES, "", holding.generation, entry.path, expected)
            self._read(place, status, expected.text, holding.damage, changed)

    def _activate(self, holding: Holding, expected: Entry) -> None:
        """What verify has added is right when it is what launch.json says."""
        data = Path(_place(holding, expected.path)).read_bytes()
        base, launch = seal.split_activate(data)
        says = ""
        if hashlib.sha256(base).hexdigest() != expected.text:
            says = _BYTES
        else:
            with suppress(MachineError):  # of launch.json, which is told for itself
                if launch != environment.launch_part(holding.generation):
                    says = "does not set what launch.json holds"
        if says:
            self._tell(holding, expected.path, "changed", says, expected)

    def _read(
        self, place: str, status: os.stat_result, sha256: str, into: list[Damage], changed: Damage
    ) -> None:
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        self._files.setdefault(key, (place, status.st_size))
        self._asked.append((key, sha256, into, changed))

    def _tell(
        self, holding: Holding, path: str, what: What, says: str, entry: Entry | None
    ) -> None:
        place = _place(holding, path)
        holding.damage.append(Damage(place, what, says, "", holding.generation, path, entry))


_KINDS = {"f": "a file", "d": "a folder", "l": "a link", "o": "a device, pipe or socket"}
_BYTES = "has bytes that are not those installed"


def _place(holding: Holding, path: str) -> str:
    return f"{holding.generation.path}/{path}"


def _saying(damage: Damage, says: str) -> Damage:
    return replace(damage, says=says)


def _is_bytecode(entry: Entry) -> bool:
    found = _BYTECODE.fullmatch(entry.path)
    return found is not None and entry.kind == ("f" if found[2] else "d")


def _launch(generation: Generation) -> str:
    """What is wrong with launch.json; empty when nothing is."""
    try:
        environment.launch_settings(generation)
    except (MachineError, OSError):
        return "is not what mirror verify writes"
    return ""


def owners(found: Found, damaged: Iterable[str]) -> list[str]:
    """Which bundles have blobs of these hashes, a line each, as far as the generations tell."""
    wanted, lines = set(damaged), []
    for holding in found.holdings:
        index = holding.index
        if index is None:
            continue
        entries = [entry for entry in index.entries if entry.artifact.sha256 in wanted]
        shipped = {entry.artifact.sha256 for entry in entries if entry.shipped}
        if shipped:
            count = counted(len(shipped), "blob")
            lines.append(f"{count}: in {index.name} {index.version}, digest {index.digest}")
        if held := {entry.artifact.sha256 for entry in entries} - shipped:
            base = f"the bundle {index.base}" if index.base else "a bundle that it does not name"
            count = counted(len(held), "blob")
            lines.append(f"{count}: in what {index.name} {index.version} builds on, {base}")
    return list(dict.fromkeys(lines))
