"""What the ranks write: into files of their own, and from there to our own output as it comes."""

from __future__ import annotations

import itertools
import os
import re
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

#: Bytes that are passed on in one go, and how many goes a file has before others have theirs.
_CHUNK, _TURN = 2**16, 16
#: Seconds that a line may wait for its end.
_PATIENCE = 1.0


def file_of(folder: Path, rank: int, name: str) -> Path | None:
    """Where a rank's "stdout" or "stderr" is; None before it is there.

    Torch chooses a place within the folder; the short name in the folder is a link to that.
    """
    short = folder / f"rank-{rank}.{name}.log"
    if short.is_file():
        return short
    found = next(folder.glob(f"log/*/attempt_0/{rank}/{name}.log"), None)
    if found:
        with suppress(OSError):  # a file system without links, or somebody else's file
            short.symlink_to(found.relative_to(folder))
    return found


class Output:
    """Passes on what the ranks write, to the stream of ours that has the same name.

    Of several ranks whole lines, each marked as torch marks the lines of a traceback: "[rank1]: ".
    To be used with `with`: at the end of the block everything is passed on that is left.
    """

    def __init__(self, folder: Path, processes: int) -> None:
        ours = {"stdout": 1, "stderr": 2}
        self._tails = [
            _Tail(folder, rank, name, descriptor, marked=processes > 1)
            for rank in range(processes)
            for name, descriptor in ours.items()
        ]

    def pass_on(self) -> None:
        """Whatever has come since the last call."""
        for tail in self._tails:
            tail.pass_on(last=False)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: object) -> None:
        for tail in self._tails:
            tail.pass_on(last=True)


class _Tail:
    """One file, and how far it was passed on."""

    def __init__(
        self, folder: Path, rank: int, name: str, descriptor: int, *, marked: bool
    ) -> None:
        self._where = folder, rank, name
        self._mark = f"[rank{rank}]: ".encode() if marked else b""
        self._descriptor: int | None = descriptor
        self._file: BinaryIO | None = None
        self._pending, self._since = b"", 0.0

    def pass_on(self, *, last: bool) -> None:
        """What is new; with `last` all of it, and a line without an end, too."""
        if self._file is None:
            found = file_of(*self._where)
            if found is None:
                return
            self._file = open(found, "rb")  # noqa: SIM115 -- as long as the job runs
        for _ in itertools.count() if last else range(_TURN):
            data = self._file.read(_CHUNK)
            if not data:
                break
            self._write(self._lines(data) if self._mark else data)
        if self._pending and (last or time.monotonic() - self._since > _PATIENCE):
            self._write(self._marked(self._pending) + b"\n")
            self._pending = b""
        if last:
            self._file.close()

    def _lines(self, data: bytes) -> bytes:
        """The whole lines, marked; a progress bar's redrawn ones are lines, too."""
        *lines, self._pending = re.split(rb"\r\n|\n|\r(?!\Z)", self._pending + data)
        self._since = time.monotonic()
        return b"".join(self._marked(line) + b"\n" for line in lines)

    def _marked(self, line: bytes) -> bytes:
        return line if line.startswith(self._mark) else self._mark + line

    def _write(self, data: bytes) -> None:
        """Write all of it; nothing any more once the reader or the terminal has gone."""
        while data and self._descriptor is not None:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # as ssh may have made it
                select.select([], [self._descriptor], [])
            except OSError:
                self._descriptor = None
