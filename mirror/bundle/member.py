"""One artifact's bytes inside a bundle's file, at any place: where they are is arithmetic.

Nothing of it is checked here: whoever reads an artifact hashes it.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from mirror.bundle import layout


class Member(io.RawIOBase):
    """A file of `size` bytes, from the tar byte `start` of a bundle on.

    bundle: its file, or its volumes in order. Raises OSError when one of them is not there.
    """

    def __init__(self, bundle: Sequence[Path], start: int, size: int) -> None:
        super().__init__()
        self._files = bundle
        # Where each of them begins, and where the last one ends.
        self._begins = [0, *accumulate(path.stat().st_size for path in bundle)]
        self._open = -1
        self._file: io.FileIO | None = None
        self._start, self._size, self._at = start, size, 0

    def close(self) -> None:
        """As of any file."""
        if self._file:
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
        """As of any file: up to the end of a stored block or of a volume."""
        at = self._start + self._at
        size = min(len(buffer), self._size - self._at, layout.STORED - at % layout.STORED)
        if size <= 0:
            return 0
        count = self._read(layout.file_offset(at), memoryview(buffer)[:size])
        self._at += count
        return count

    def _read(self, offset: int, view: memoryview) -> int:
        number = bisect_right(self._begins, offset) - 1
        if number >= len(self._files):
            return 0
        if self._file is None or number != self._open:
            if self._file:
                self._file.close()
            self._file, self._open = io.FileIO(self._files[number]), number
        self._file.seek(offset - self._begins[number])
        return self._file.readinto(view) or 0
