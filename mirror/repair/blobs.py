"""Blobs put back: from bundles, and from older files and what an increment shipped of new ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from mirror.bundle.intake import Intake
from mirror.bundle.reader import Reader
from mirror.core.artifact import Artifact
from mirror.core.delta import Delta, deltas
from mirror.core.index import Index
from mirror.core.progress import Progress
from mirror.core.text import counted
from mirror.store import atomic, patching
from mirror.store.blobs import Blobs, place
from mirror.store.damage import BLOB_MODE, Found


def sources(
    readers: Sequence[Reader], indexes: Iterable[Index], wanted: set[str], right: set[str]
) -> dict[str, str]:
    """Where each of these hashes can be had: the name of a bundle, or what it is put together of.

    right: the hashes of the blobs that are here and whole. What has to be read for what is put
    together is among the keys too.
    """
    shipped = {a.sha256: reader.name for reader in reversed(readers) for a in reader.index.shipped}
    found = {sha256: shipped[sha256] for sha256 in wanted if sha256 in shipped}
    for delta in _deltas(readers, indexes):
        if delta.result.sha256 in wanted - found.keys():
            needs = {delta.artifact.sha256, delta.base} - right - found.keys()
            if all(sha256 in shipped for sha256 in needs):
                found |= {sha256: shipped[sha256] for sha256 in needs}
                found[delta.result.sha256] = f"an older version of {delta.result.path}"
    return found


def in_generations(found: Found, wanted: set[str]) -> dict[str, Path]:
    """Of these hashes, the files of generations that have the very bytes still."""
    having: dict[str, Path] = {}
    for holding in found.holdings:
        wrong = {item.path for item in holding.damage}
        for entry in holding.seal.entries.values() if holding.seal else ():
            if entry.kind == "f" and entry.text in wanted and entry.path not in wrong:
                having[entry.text] = holding.generation.path / entry.path
    return having


def from_generations(having: dict[str, Path], blobs: Blobs, progress: Progress) -> None:
    """Give each of these files the name of its blob too; copied where it cannot be linked."""
    for sha256, file in having.items():
        staged = blobs.staging()
        executable = file.stat().st_mode & 0o111 != 0
        if executable:  # modes belong to the bytes
            shutil.copyfile(file, staged)
        else:
            place(file, staged)
        os.chmod(staged, BLOB_MODE)  # first, so that it is as durable as the bytes
        atomic.sync_file(staged)
        blobs.rename(staged, sha256)
    if having:
        progress.step(f"{counted(len(having), 'blob')} put back from generations that have it")


def put_back(
    readers: Sequence[Reader],
    indexes: Sequence[Index],
    blobs: Blobs,
    wanted: set[str],
    right: set[str],
    progress: Progress,
) -> set[str]:
    """Put blobs back under their names, durably; returns those that are right now.

    Raises BundleError for a bundle that is damaged, MachineError where the store cannot be written.
    """
    having = sources(readers, indexes, wanted, right)
    done: set[str] = set()
    for reader in readers:
        take = {a.sha256: a for a in reader.index.shipped if a.sha256 in having.keys() - done}
        if take:
            _read(reader, take, blobs, progress)
            done |= take.keys()
            progress.step(f"{counted(len(take), 'blob')} put back from {reader.name}")
    for delta in _deltas(readers, indexes):
        result = delta.result.sha256
        if result in having.keys() - done and {delta.artifact.sha256, delta.base} <= right | done:
            patching.make_all([delta], blobs, progress)
            done.add(result)
    return done


def _deltas(readers: Sequence[Reader], indexes: Iterable[Index]) -> list[Delta]:
    every = [*(reader.index for reader in readers), *indexes]
    return list({d.artifact.path: d for index in every for d in deltas(index)}.values())


def _read(reader: Reader, take: dict[str, Artifact], blobs: Blobs, progress: Progress) -> None:
    for sha256 in take:
        if (path := blobs.path(sha256)).is_symlink():
            path.unlink()  # through it, another file would be taken for the blob
    pending = dict(take)
    with Intake(blobs) as intake:
        intake.expect(take.values())

        def sink(artifact: Artifact, at: int, data: memoryview, last: bool) -> None:
            # The same bytes may come at several places; the first is taken.
            if pending.get(artifact.sha256) == artifact:
                intake.write(artifact, at, data, last)
                if last:
                    del pending[artifact.sha256]

        reader.copy(sink, progress)
        intake.finish()
