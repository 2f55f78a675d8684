"""One artifact's bytes inside a bundle's file, at any place: where they are is arithmetic.

Nothing of it is checked here: whoever reads an artifact hashes it.
"""

from __future__ import annotations

import io
from pathlib import Path

from mirror.bundle import layout


class Member(io.RawIOBase):
    """A file of `size` bytes, from the tar byte `start` of a bundle's file on."""

    def __init__(self, bundle: Path, start: int, size: int) -> None:
        super().__init__()
        self._file = open(bundle, "rb", buffering=0)  # noqa: SIM115 -- closed below
        self._start, self._size, self._at = start, size, 0

    def close(self) -> None:
        """As of any file."""
        self._file.close()
        super().close()

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As of any file."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(origin + offset, 0)
        return self._at

    def tell(self) -> int:
        """As of any file."""
        return self._at

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        """As of any file: up to the end of a stored block."""
        at = self._start + self._at
        size = min(len(buffer), self._size - self._at, layout.STORED - at % layout.STORED)
        if size <= 0:
            return 0
        self._file.seek(layout.file_offset(at))
        count = self._file.readinto(memoryview(buffer)[:size]) or 0
        self._at += count
        return count
