"""Generations put right: what their seals list and is not there, or is other than that."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from mirror.bundle.reader import Reader
from mirror.core.artifact import Artifact
from mirror.core.progress import Progress
from mirror.core.text import counted
from mirror.ecosystems.environment import adopted
from mirror.repair import anew
from mirror.store import atomic, blobs, environment, seal
from mirror.store.damage import BLOB_MODE, Damage, Found, Holding, look
from mirror.store.generation import SIGNATURES, Generation
from mirror.store.generations import Root
from mirror.store.seal import Entry, Seal
from mirror.store.strays import generations


@dataclass(slots=True)
class Aside:
    """Where what was in the way is kept: ROOT/tmp/removed-TIME, made when there is something.

    worthless: files that are not kept, by device and inode: blobs that were damaged.
    """

    root: Root
    used: Path | None = None
    worthless: set[tuple[int, int]] = field(default_factory=set)

    def take(self, path: Path, name: Path, *, keep: bool = False) -> None:
        """Move a file, link or folder there, under this name; keep: a file stays where it is too.

        With `keep`, nothing is kept where the file system has no hard links.
        """
        status = os.lstat(path)
        if keep and (status.st_dev, status.st_ino) in self.worthless:
            return
        target = self._folder() / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            target = atomic.unused_name(target)
        if keep:
            with suppress(OSError):
                os.link(path, target, follow_symlinks=False)
            return
        os.rename(path, target)

    def _folder(self) -> Path:
        if self.used is None:
            day = f"removed-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
            for name in itertools.chain([day], (f"{day}-{n}" for n in itertools.count(2))):
                with suppress(FileExistsError):
                    (self.root.path / "tmp" / name).mkdir()
                    self.used = self.root.path / "tmp" / name
                    break
        assert self.used is not None  # noqa: S101 -- there is always another number
        return self.used


def heal(
    holding: Holding,
    found: Found,
    readers: Sequence[Reader],
    root: Root,
    aside: Aside,
    progress: Progress,
) -> None:
    """Put one generation right, as far as its blobs are. Raises MachineError, TargetError."""
    if not holding.damage:
        return
    bad = {item.sha256 for item in found.damaged if item.what != "mode"}
    work = _Healing(holding, found, readers, root, aside, progress, bad)
    if not work.records():
        return
    work.extra()
    work.entries()
    if count := len(holding.damage):
        progress.step(
            f"generation {holding.generation.number}: {counted(count, 'thing')} looked to"
        )


@dataclass(slots=True)
class _Healing:
    """One generation on its way. bad: the hashes of the blobs that are still not right."""

    holding: Holding
    found: Found
    readers: Sequence[Reader]
    root: Root
    aside: Aside
    progress: Progress
    bad: set[str]
    resealed: list[Entry] = field(default_factory=list)

    @property
    def generation(self) -> Generation:
        return self.holding.generation

    # -- its own two records -------------------------------------------------------------------

    def records(self) -> bool:
        """The index, from a bundle of the digest that was sealed. Whether all else can go on."""
        holding, file = self.holding, self.generation.index_file
        if holding.index is None and holding.seal:
            digest = holding.seal.bundle
            for reader in self.readers:
                if reader.index.digest == digest:
                    self._out_of_the_way(file, "index.json", replaced=True)
                    atomic.write(file, reader.index_bytes, BLOB_MODE)
                    holding.index = reader.index
        if holding.index and holding.seal is None:
            self._seal_anew()
        return holding.index is not None and holding.seal is not None

    def _seal_anew(self) -> None:
        """A seal of what the bundle comes to when it is laid out once more."""
        generation, index = self.generation, self.holding.index
        assert index is not None  # noqa: S101 -- the caller has looked
        if adopted(generation) or not self._can_deploy(index.artifacts):
            return
        wanted = [kind for kind in anew.ALL if index.of_kind(kind)]
        made = anew.deploy(generation, index, None, wanted, self.root, self.progress)
        try:
            known = partial(self.root.inodes, index)
            now = seal.take(made.folder.path, self.progress, known)
            entries = {entry.path: entry for entry in made.entries(now)}
            Seal(index.digest, made.made, entries).write(generation.path)
        finally:
            self.root.discard(made.folder)
        # What differs from it is found by looking again.
        [again] = look(self.root, [generation], self.progress, read=self.found.read).holdings
        self.holding.seal, self.holding.damage = again.seal, again.damage

    # -- what is there and should not be -------------------------------------------------------

    def extra(self) -> None:
        """Put aside what nobody installed, whole folders as such; bytecode goes."""
        # What lies in a folder that is in a file's place goes with it.
        moved = [item.path for item in self._of("changed") if Path(item.place).is_dir()]
        for item in sorted(self._of("extra"), key=lambda item: item.path):
            if not any(item.path.startswith(f"{path}/") for path in moved):
                self._out_of_the_way(Path(item.place), item.path)
                moved.append(item.path)
        for item in sorted(self._of("bytecode"), key=lambda item: item.path, reverse=True):
            path = Path(item.place)
            with suppress(OSError):  # it went with its folder, or its folder is not empty
                path.rmdir() if path.is_dir() else path.unlink()
        if any(item.path == self.generation.launch_file.name for item in self._of("changed")):
            self._out_of_the_way(self.generation.launch_file, "launch.json")

    # -- what should be there ------------------------------------------------------------------

    def entries(self) -> None:
        """Everything that the seal lists: folders, links, what blobs hold, and the rest anew."""
        later: list[Entry] = []
        for item in sorted(self.holding.damage, key=lambda item: item.path):
            entry, place = item.entry, Path(item.place)
            if entry is None:
                continue
            if item.what == "mode":
                with suppress(FileNotFoundError):
                    place.chmod(entry.mode)
            elif entry.path == SIGNATURES:
                self._signatures(entry)
            elif entry.path == seal.ACTIVATE:
                self._activate(entry)
            elif entry.kind == "d":
                self._out_of_the_way(place, entry.path)
                place.mkdir(parents=True)
                place.chmod(entry.mode)
            elif entry.kind == "l":
                self._out_of_the_way(place, entry.path)
                place.parent.mkdir(parents=True, exist_ok=True)
                atomic.link(place, entry.text)
            elif entry.kind == "f" and entry.text in self.found.artifacts:
                self._from_blob(entry)
            elif entry.kind == "f":
                later.append(entry)
        if later:
            self._make_anew(later)
        os.sync()
        if self.resealed:
            self._reseal()

    def _from_blob(self, entry: Entry) -> None:
        if entry.text in self.bad:
            return
        place = self.generation.path / entry.path
        staged = atomic.unused_name(place)
        blob = self.root.blobs.path(entry.text)
        blobs.place(blob, staged, executable=entry.mode != BLOB_MODE)
        if entry.mode != BLOB_MODE:
            staged.chmod(entry.mode)
        self._replace(staged, entry)
        sealed = self.holding.seal
        if sealed and sealed.entries.get(entry.path) != entry:
            self.resealed.append(entry)

    def _make_anew(self, entries: Sequence[Entry]) -> None:
        index = self.holding.index
        assert index is not None  # noqa: S101 -- without one nothing is put right
        wanted = dict.fromkeys(kind for entry in entries for kind in anew.kinds(entry.path))
        if not wanted or not self._can_deploy(a for kind in wanted for a in index.of_kind(kind)):
            return
        made = anew.deploy(
            self.generation, index, self.holding.seal, list(wanted), self.root, self.progress
        )
        try:
            for entry in entries:
                place = self.generation.path / entry.path
                got = made.get(entry.path, entry.mode, lambda: atomic.unused_name(place))  # noqa: B023
                if got:
                    self._replace(got[0], entry)
                    if got[1] != entry:
                        self.resealed.append(got[1])
        finally:
            self.root.discard(made.folder)

    def _signatures(self, entry: Entry) -> None:
        """Those that the bundle came with, where it is given with the very same."""
        place = self.generation.path / entry.path
        for reader in self.readers:
            if hashlib.sha256(reader.signatures).hexdigest() == entry.text:
                self._out_of_the_way(place, entry.path, replaced=place.is_file())
                atomic.write(place, reader.signatures, entry.mode)

    def _activate(self, entry: Entry) -> None:
        place = self.generation.path / entry.path
        self._out_of_the_way(place, entry.path, replaced=place.is_file())
        root = anew.named(self.holding.seal, self.root)
        environment.write_activate(
            Generation(root.path / "generations" / self.generation.path.name), root.path
        )
        if (now := seal.activate_entry(self.generation.path)) != entry:
            self.resealed.append(now)

    def _reseal(self) -> None:
        """Of what came out other than it was: what it is now."""
        before = self.holding.seal
        assert before is not None  # noqa: S101 -- without one nothing is put right
        entries = {**before.entries, **{entry.path: entry for entry in self.resealed}}
        Seal(before.bundle, before.made, entries).write(self.generation.path)
        count = counted(len(self.resealed), "file")
        self.progress.step(f"{count} made anew, not the same in every byte, and sealed again")

    # -- tools ---------------------------------------------------------------------------------

    def _replace(self, staged: Path, entry: Entry) -> None:
        place = self.generation.path / entry.path
        if os.path.lexists(place):
            file = place.is_file() and not place.is_symlink()
            self._out_of_the_way(place, entry.path, replaced=file)
        os.replace(staged, place)

    def _out_of_the_way(self, place: Path, path: str, *, replaced: bool = False) -> None:
        if os.path.lexists(place):
            name = Path(self.generation.path.name) / path
            self.aside.take(place, name, keep=replaced)

    def _of(self, what: str) -> list[Damage]:
        return [item for item in self.holding.damage if item.what == what]

    def _can_deploy(self, artifacts: Iterable[Artifact]) -> bool:
        """Whether all of them are here, and no generation in use would be taken for a leftover."""
        whole = all(g.index_file.is_file() for g in generations(self.root))
        return whole and not any(artifact.sha256 in self.bad for artifact in artifacts)
