"""What all commands have: options, messages, exit codes."""

from __future__ import annotations

import errno
import functools
import sys
from collections.abc import Callable
from typing import Any

import click

from mirror.errors import MachineError, MirrorError

_MEMORY_HINT = "A bundle's index takes up to 4 GiB; that of most takes a few MiB."


def add(group: click.Group, *functions: Callable[..., int | None]) -> None:
    """Make functions commands of a group, each named as the function is.

    All get the options that all commands have; their errors become messages and exit codes.
    """
    for function in functions:
        _add(group, function)


def _add(group: click.Group, function: Callable[..., int | None]) -> None:

    @functools.wraps(function)
    def run(*, as_json: bool, quiet: bool, verbose: bool, **arguments: Any) -> None:
        from mirror.console import Console

        console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
        try:
            code = function(console, **arguments) or 0
        except MirrorError as error:
            console.error(error)
            code = error.exit_code
        except OSError as error:
            console.error(refused(error))
            code = MachineError.exit_code
        except MemoryError:
            console.error(MachineError("there is not enough memory", hint=_MEMORY_HINT))
            code = MachineError.exit_code
        sys.exit(code)

    made = group.command(name=function.__name__.rstrip("_"))(run)
    made.params += [
        click.Option(["--json", "as_json"], is_flag=True, help="One JSON document on stdout."),
        click.Option(["-q", "--quiet"], is_flag=True, help="No progress: results and errors only."),
        click.Option(["-v", "--verbose"], is_flag=True, help="Say more."),
    ]


def refused(error: OSError) -> MachineError:
    """What the machine did not let us do."""
    what = f"{error.filename}: " if error.filename else ""
    hint = None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Make room, or choose another place: --root DIR on a server, MIRROR_CACHE here."
    elif error.errno in (errno.EACCES, errno.EROFS):
        hint = "Choose another place: --root DIR on a server, MIRROR_CACHE for what is kept here."
    return MachineError(f"{what}{error.strerror or error}", hint=hint)
