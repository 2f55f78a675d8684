"""The program par2, run with its progress shown, and ended whenever mirror is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mirror.core.paths import shown
from mirror.core.progress import Advance, Progress, uncounted
from mirror.errors import MachineError

#: Exit codes that say that there are too few blocks to repair (par2cmdline's eRepairNotPossible,
#: eInsufficientCriticalData).
TOO_LITTLE = (2, 4)
_MEMORY_MB = 256
_PERCENT = re.compile(rb"([A-Z][a-z]+): (\d+\.\d)%\r")
#: Of what it said, so much is kept.
_LAST = 16_384


@dataclass(frozen=True, slots=True)
class Done:
    """How a run of par2 has ended. said: its last lines, fit to be shown."""

    program: Path
    code: int
    said: Sequence[str]

    @property
    def lacking(self) -> int | None:
        """Bytes of blocks that a repair would have needed besides; None where it did not say."""
        text = "\n".join(self.said)
        count = re.search(r"You need (\d+) more recovery blocks", text)
        size = re.search(r"block size used was (\d+) bytes", text)
        return int(count[1]) * int(size[1]) if count and size else None

    def failure(self) -> MachineError:
        """What to tell a person."""
        return MachineError(f"{self.program} failed ({self.code})", problems=self.said[-5:])


def run(
    program: Path,
    verb: str,
    options: Sequence[str],
    files: Sequence[Path],
    phases: Mapping[str, tuple[str, int]],
    progress: Progress,
) -> Done:
    """Run par2 to its end.

    phases: what par2 calls a phase of its work -> a bar's label and its total in bytes.
    """
    process = subprocess.Popen(
        [str(program), verb, f"-m{_MEMORY_MB}", *options, "--", *map(str, files)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,  # so that a launcher and what it launched are ended together
    )
    assert process.stdout  # noqa: S101 -- it was asked for
    try:
        said = _watched(process.stdout, phases, progress)
        code = process.wait()
    except BaseException:
        with suppress(OSError):
            _kill(process)
        process.wait()
        raise
    finally:
        process.stdout.close()
    text = re.sub(r"\x1b\[[0-9;]*m", "", said.decode(errors="replace"))
    return Done(program, code, [shown(line) for line in text.splitlines() if line.strip()])


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _watched(stream: IO[bytes], phases: Mapping[str, tuple[str, int]], progress: Progress) -> bytes:
    """Show how far it is until it has said all; returns the last of that without the figures."""
    said, rest = b"", b""
    with ExitStack() as bars:
        phase, done = "", 0
        advance: Advance = uncounted
        while data := stream.read(65_536):
            rest += data
            cut = max(rest.rfind(b"\r"), rest.rfind(b"\n")) + 1
            whole, rest = rest[:cut], rest[cut:]
            for found in _PERCENT.finditer(whole):
                name = found[1].decode()
                if name in phases and name != phase:
                    bars.close()
                    phase, done = name, 0
                    advance = bars.enter_context(progress.bar(*phases[name]))
                if name == phase:
                    at = int(phases[name][1] * float(found[2]) / 100)
                    advance(max(at - done, 0))  # its threads do not always count in order
                    done = max(at, done)
            said = (said + _PERCENT.sub(b"", whole))[-_LAST:]
    return said + rest
