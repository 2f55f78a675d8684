"""Artifacts' bytes on their way into a store.

Promise: a blob gets its name only after its bytes are on the disk, so that a power cut leaves no
wrong bytes under a right name. Bytes go to staging files, which are synced while more arrive and
renamed once they are whole. A blob that the store has already is hashed, and written again when its
bytes have changed: installing again mends a store.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections import deque
from collections.abc import Iterable
from functools import partial

from mirror.bundle import flow
from mirror.core.artifact import Artifact
from mirror.store import atomic
from mirror.store.blobs import Blobs, hash_file

#: What a file's last bytes take on the disk, at most.
_BLOCK = 4096
#: Whole files that are synced and renamed together, at most: about SYNC_EVERY of small ones.
_BATCH = 20_000
#: So many files and more are made durable by one sync of the file system: each one's own would
#: cost a thousand times as much.
_MANY = 16


class Intake:
    """Writes artifacts, one after the other, into a store; what is not finished is removed."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._disk = flow.Background()
        self._folder = -1  # of the staging files, open: to sync its file system
        self._batches: list[str] = []  # folders in it; new files go into the last
        self._full = True  # whether they go into a new one
        self._path = ""  # the staging file being written
        self._file = -1
        self._unsynced = 0
        self._whole: list[tuple[str, str]] = []
        self._synced: deque[tuple[str, str]] = deque()
        self._held: set[str] = set()
        self._named: set[str] = set()

    def __enter__(self) -> Intake:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close()
        self._close()
        for folder in self._batches:
            try:
                os.rmdir(folder)
            except OSError:  # something went wrong, and it is not empty
                shutil.rmtree(folder)
        if self._folder >= 0:
            os.close(self._folder)

    def expect(self, artifacts: Iterable[Artifact]) -> None:
        """Say what will be written. Raises MachineError unless what the store lacks would fit."""
        sizes = {artifact.sha256: artifact.size for artifact in artifacts}
        self._held = {sha256 for sha256, size in sizes.items() if self._blobs.has(sha256, size)}
        lacking = sum(
            size + -size % _BLOCK for sha256, size in sizes.items() if sha256 not in self._held
        )
        with flow.writing(self._blobs.folder):
            self._blobs.temporary.mkdir(parents=True, exist_ok=True)
            self._folder = os.open(self._blobs.temporary, os.O_RDONLY)
            flow.require_space(self._blobs.folder, lacking)

    def write(self, artifact: Artifact, at: int, data: memoryview, last: bool) -> None:
        """The bytes of an expected artifact from `at` on; its hash has been checked when `last`."""
        try:
            if at == 0 and not self._holds(artifact):
                self._open()
            if not self._path:
                return
            if (done := os.write(self._file, data)) < len(data):
                flow.write_from(self._file, [data[done:]])
            self._unsynced += len(data)
            if last:
                self._whole.append((self._path, artifact.sha256))
                self._close()
            if self._unsynced >= flow.SYNC_EVERY or len(self._whole) >= _BATCH:
                self._send_off()
        except OSError as error:
            raise flow.unwritable(self._blobs.folder, error) from None

    def finish(self) -> None:
        """Returns when every artifact is in the store under its name, durably."""
        with flow.writing(self._blobs.folder):
            self._send_off()
            self._disk.finish()
            self._rename()
            self._blobs.sync(self._named)

    def _holds(self, artifact: Artifact) -> bool:
        if artifact.sha256 not in self._held:
            return False
        try:
            return hash_file(self._blobs.name(artifact.sha256)) == artifact.sha256
        except OSError:
            return False  # what cannot be read is written again

    def _open(self) -> None:
        if self._full:
            # A folder of its own for each batch: the last one's files are renamed meanwhile, and
            # the system lets only one at a time change a folder.
            folder = os.path.join(self._blobs.temporary, f".{secrets.token_hex(6)}.tmp")
            os.mkdir(folder)
            self._batches.append(folder)
            self._full = False
        path = f"{self._batches[-1]}/{len(self._whole)}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        self._path = path

    def _close(self) -> None:
        if self._path:
            os.close(self._file)
        self._path = ""

    def _send_off(self) -> None:
        if self._path:
            self._disk.submit(partial(atomic.sync_file, self._path))
        self._disk.submit(partial(self._sync, self._whole))
        self._rename()
        self._whole = []
        self._unsynced = 0
        self._full = True

    def _sync(self, whole: list[tuple[str, str]]) -> None:
        if len(whole) >= _MANY:
            atomic.sync_all(self._folder)
        else:
            for path, _ in whole:
                atomic.sync_file(path)
        self._synced.extend(whole)

    def _rename(self) -> None:
        while self._synced:
            path, sha256 = self._synced.popleft()
            self._blobs.rename(path, sha256)
            self._named.add(sha256)
