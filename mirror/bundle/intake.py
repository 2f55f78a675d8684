"""Artifacts' bytes on their way into a store.

Promise: a blob gets its name only after its bytes are on the disk, so that a power cut leaves no
wrong bytes under a right name. Bytes go to staging files, which are synced while more arrive and
renamed once they are whole. A blob that the store has already is hashed, and written again when its
bytes have changed: installing again mends a store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from mirror.bundle import flow
from mirror.core.artifact import Artifact
from mirror.store.blobs import Blobs, hash_file

#: Whole files that are synced and renamed together, at most.
_BATCH = 1000
#: From so many files on, one sync of everything comes first: then each one's own costs little.
_MANY = 16


class Intake:
    """Writes artifacts, one after the other, into a store; what is not finished is removed."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._disk = flow.Background()
        self._path: Path | None = None  # the staging file being written
        self._file = -1
        self._unsynced = 0
        self._whole: list[tuple[Path, str]] = []
        self._staged: set[Path] = set()
        self._held: set[str] = set()
        self._named: set[str] = set()

    def __enter__(self) -> Intake:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close()
        self._close()
        for path in self._staged:
            path.unlink(missing_ok=True)

    def expect(self, artifacts: Iterable[Artifact]) -> None:
        """Say what will be written. Raises MachineError unless what the store lacks would fit."""
        sizes = {artifact.sha256: artifact.size for artifact in artifacts}
        self._held = {sha256 for sha256, size in sizes.items() if self._blobs.has(sha256, size)}
        lacking = sum(size for sha256, size in sizes.items() if sha256 not in self._held)
        with flow.writing(self._blobs.folder):
            self._blobs.folder.mkdir(parents=True, exist_ok=True)
            flow.require_space(self._blobs.folder, lacking)

    def write(self, artifact: Artifact, at: int, data: memoryview, last: bool) -> None:
        """The bytes of an expected artifact from `at` on; its hash has been checked when `last`."""
        with flow.writing(self._blobs.folder):
            if at == 0 and not self._holds(artifact):
                path = self._blobs.staging()
                self._staged.add(path)
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                self._path = path
            if self._path is None:
                return
            flow.write_from(self._file, [data])
            self._unsynced += len(data)
            if last:
                self._whole.append((self._path, artifact.sha256))
                self._close()
            if self._unsynced >= flow.SYNC_EVERY or len(self._whole) >= _BATCH:
                self._send_off()

    def finish(self) -> None:
        """Returns when every artifact is in the store under its name, durably."""
        with flow.writing(self._blobs.folder):
            self._send_off()
            self._disk.finish()
            self._blobs.sync(self._named)

    def _holds(self, artifact: Artifact) -> bool:
        if artifact.sha256 not in self._held:
            return False
        try:
            return hash_file(self._blobs.path(artifact.sha256)) == artifact.sha256
        except OSError:
            return False  # what cannot be read is written again

    def _close(self) -> None:
        if self._path is not None:
            os.close(self._file)
        self._path = None

    def _send_off(self) -> None:
        if self._path is not None:
            self._disk.submit(partial(_sync, self._path))
        self._disk.submit(partial(self._admit, self._whole))
        self._whole = []
        self._unsynced = 0

    def _admit(self, whole: list[tuple[Path, str]]) -> None:
        if len(whole) >= _MANY:
            os.sync()
        for path, sha256 in whole:
            _sync(path)
            self._blobs.admit(path, sha256)
            self._staged.discard(path)
            self._named.add(sha256)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
