"""How much memory a command takes."""

from __future__ import annotations

import sys
from typing import IO

#: The command line, which writes the most memory that it had (in kB, resident) to a file that is
#: open already. The kernel's ru_maxrss would be that of the test's own process, which the child
#: begins as.
_MEASURED = r"""
import atexit, os, re, sys
file = int(sys.argv.pop(1))
def tell():
    with open("/proc/self/status", "rb") as status:
        os.write(file, re.search(rb"VmHWM:\s+(\d+)", status.read())[1])
atexit.register(tell)
from mirror.cli import main
main()
"""


def command(file: IO[bytes], *arguments: object) -> list[str]:
    """A command line that runs mirror, and leaves in `file` what `peak` reads when it has ended.

    Whoever starts it passes that file's descriptor on (pass_fds).
    """
    return [sys.executable, "-c", _MEASURED, str(file.fileno()), *map(str, arguments)]


def peak(file: IO[bytes]) -> int:
    """Bytes resident at most."""
    file.seek(0)
    return 1024 * int(file.read())
