"""The one border to py-rattler, which is asynchronous and written in Rust."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mirror.core import paths

T = TypeVar("T")
#: Modules that name the exceptions which rattler's Rust side raises: its own, and a panic.
_RUST = ("exceptions", "pyo3_runtime", "pyo3_async_runtimes")


class RattlerError(Exception):
    """What rattler refused: `kind` is its exception's name, `lines` its message."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        # It may hold raw bytes of whatever could not be read.
        lines = (paths.shown(line.replace("\0", "")).rstrip() for line in text.splitlines())
        self.lines = [_short(line) for line in lines if line]


def _short(line: str) -> str:
    return line if len(line) < 300 else f"{line[:150]} ... {line[-100:]}"


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it to its end. Raises RattlerError as `translated` does."""
    import asyncio

    with translated():
        return asyncio.run(coroutine)


@contextmanager
def translated() -> Iterator[None]:
    """Raise RattlerError for whatever rattler raises within.

    That is exceptions of its own, a Rust panic (which is no Exception), and an OSError without a
    number for a file that it could not make sense of.
    """
    try:
        yield
    except BaseException as error:
        numberless = isinstance(error, OSError) and error.errno is None
        if type(error).__module__ not in _RUST and not numberless:
            raise
        raise RattlerError(type(error).__name__, str(error)) from None
