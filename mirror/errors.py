"""Every error that a user can meet.

    MirrorError              1  a bug in mirror (never raised on purpose)
    ├── UsageError           2  the command line or the manifest is wrong
    ├── ResolutionError      3  nothing satisfies the requirements
    ├── DownloadError        4  something could not be fetched
    ├── BundleError          5  a bundle, store or generation is damaged or malformed
    ├── TrustError           6  a bundle is not signed by anybody trusted
    ├── TargetError          7  the bundle does not fit this machine
    ├── MachineError         8  the machine refuses: space, permission, busy
    ├── VerifyError          9  verification failed
    ├── JobError             N  a script that `mirror run` launched failed: its own exit code
    └── Interrupted        130  Ctrl-C, SIGTERM or a closed terminal

The number is the process's exit code. An error says what is wrong and where (`message`), names
every problem of its kind (`problems`, a line each) and what to do next (`hint`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class MirrorError(Exception):
    """The root. `exit_code` is what the process ends with."""

    exit_code = 1

    def __init__(
        self, message: str, *, problems: Iterable[str] = (), hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.problems = tuple(problems)
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message, *(f"  {problem}" for problem in self.problems)]
        if self.hint:
            lines.append(self.hint)
        return "\n".join(lines)


class UsageError(MirrorError):
    """The command line or the manifest is wrong."""

    exit_code = 2


class ResolutionError(MirrorError):
    """No set of artifacts satisfies what the manifest asks for."""

    exit_code = 3


class DownloadError(MirrorError):
    """Bytes could not be had, or were not the ones the lock names."""

    exit_code = 4


class BundleError(MirrorError):
    """A bundle, a store or a generation is damaged or malformed."""

    exit_code = 5


class TrustError(MirrorError):
    """A bundle's signature is missing or wrong where one is required."""

    exit_code = 6


class TargetError(MirrorError):
    """The bundle was made for another kind of machine than this one."""

    exit_code = 7


class MachineError(MirrorError):
    """This machine refuses: no space, no permission, busy, not installed."""

    exit_code = 8


class VerifyError(MirrorError):
    """Verification ran and found that this server cannot train."""

    exit_code = 9


class Interrupted(MirrorError):  # noqa: N818 -- nothing is wrong
    """A person or the system ended the program."""

    exit_code = 130


#: Which of several errors leads: what has to be mended before the others can be judged.
_LEADING = (UsageError, DownloadError, TargetError)


def together(errors: Sequence[MirrorError]) -> MirrorError:
    """Several errors of one run as one: nobody meets them one a run, nor one of them twice.

    It is of the kind that leads: a wrong manifest, then an index that cannot be read, then a target
    that does not fit, then the first of the others. A line of advice that several give comes last,
    once.
    """
    first, *others = sorted({str(error): error for error in errors}.values(), key=_rank)
    if not others:
        return first
    advice = Counter(line for error in (first, *others) for line in _advice(error))
    problems = list(first.problems)
    for error in others:
        own = [line for line in _advice(error) if advice[line] == 1]
        problems += [error.message, *(f"  {line}" for line in (*error.problems, *own))]
    hint = [line for line in _advice(first) if advice[line] == 1]
    hint += [line for line, count in advice.items() if count > 1]
    return type(first)(first.message, problems=problems, hint="\n".join(hint) or None)


def _advice(error: MirrorError) -> list[str]:
    return (error.hint or "").splitlines()


def _rank(error: MirrorError) -> int:
    kinds = (rank for rank, kind in enumerate(_LEADING) if isinstance(error, kind))
    return next(kinds, len(_LEADING))
