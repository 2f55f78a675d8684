"""The hash of a file that is still growing."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from mirror.store.blobs import CHUNK


class Prefix:
    """sha256 of a file's first bytes, as far as they are here without a gap.

    It is thrown away with them, so whoever still follows an old one does no harm.
    """

    def __init__(self) -> None:
        self.position = 0
        self._digest = hashlib.sha256()
        self._lock = threading.Lock()

    def follow(self, file: Path, end: int, *, wait: bool) -> None:
        """Take in what is new up to this offset; not while another thread does, unless `wait`."""
        if not self._lock.acquire(blocking=wait):
            return
        try:
            if self.position < end:
                self._read(file, end)
        finally:
            self._lock.release()

    def hexdigest(self) -> str:
        """Of the bytes before `position`."""
        return self._digest.hexdigest()

    def _read(self, file: Path, end: int) -> None:
        buffer = memoryview(bytearray(CHUNK))
        with open(file, "rb", buffering=0) as stream:
            stream.seek(self.position)
            while self.position < end:
                count = stream.readinto(buffer[: end - self.position])
                if not count:
                    return
                self._digest.update(buffer[:count])
                self.position += count
