"""Stops of a process and all that it starts, at chosen system calls. Linux on x86-64 or aarch64."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

_TRACEME, _POKEUSER, _CONT, _SYSCALL = 0, 6, 7, 24
_SETOPTIONS, _GETREGSET, _SETREGSET, _GET_SYSCALL_INFO = 0x4200, 0x4204, 0x4205, 0x420E
_EVENT_SECCOMP = 7
_EVENTS_NEW = (1, 2, 3)  # fork, vfork, clone
_GETEVENTMSG = 0x4201
# SYSGOOD, FORK, VFORK, CLONE, EXEC, SECCOMP; and nobody outlives the tracer.
_OPTIONS = 0x01 | 0x02 | 0x04 | 0x08 | 0x10 | 0x80 | 0x100000
_WALL = 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_FILTER = 38, 22, 2
_NT_PRSTATUS, _NT_ARM_SYSTEM_CALL = 1, 0x404
_ORIG_RAX, _RAX = 15 * 8, 10 * 8

MACHINE = platform.machine()
#: Why nothing can be traced here, empty when it can.
LACKING = (
    ""
    if sys.platform == "linux" and MACHINE in ("x86_64", "aarch64")
    else f"system calls are traced on Linux on x86-64 and aarch64 only, not on {MACHINE}"
)


@dataclass(frozen=True, slots=True)
class Stop:
    """A thread before a system call (`result` is None), or behind it."""

    thread: int
    number: int
    arguments: tuple[int, ...]
    result: int | None = None


class Tracer:
    """Runs `work` in a child and stops it, and whatever it starts, before each chosen call.

    Iterate over `stops`; between two of them nothing goes on in the thread that stopped. Answer a
    stop with `go_on`, `refuse` or `kill` before the next one; `go_on(until_done=True)` stops once
    more when the call has returned.
    """

    def __init__(self, numbers: Iterable[int], work: Callable[[], int]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [
            ctypes.c_long,
            ctypes.c_long,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._libc.ptrace.restype = ctypes.c_long
        self._calls: dict[int, Stop] = {}
        self._known: set[int] = set()
        self._begun: set[int] = set()  # announced, and not seen yet
        self._gone: set[int] = set()
        self.status: int | None = None
        program = _filter(numbers)
        self.child = os.fork()
        if not self.child:
            code = 120
            try:
                self._ask(_TRACEME, 0)
                os.kill(os.getpid(), signal.SIGSTOP)
                self._limit(program)
                code = work()
            finally:
                os._exit(code)
        os.waitpid(self.child, _WALL)
        self._ask(_SETOPTIONS, self.child, 0, _OPTIONS)
        self._known.add(self.child)
        self._ask(_CONT, self.child)

    def stops(self) -> Iterator[Stop]:
        """Each stop, until the last process has ended; then `status` is the child's."""
        while self._known or self._begun:
            thread, status = os.waitpid(-1, _WALL)
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                self._known.discard(thread)
                self._begun.discard(thread)
                self._gone.add(thread)
                if thread == self.child:
                    self.status = os.waitstatus_to_exitcode(status)
                continue
            found = os.WSTOPSIG(status)
            if status >> 16 in _EVENTS_NEW:
                self._expect(thread)
            if status >> 8 == (signal.SIGTRAP | (_EVENT_SECCOMP << 8)):
                stop = self._stopped(thread)
                if stop:
                    yield stop
            elif found == signal.SIGTRAP | 0x80:
                yield self._returned(thread)
            elif thread not in self._known:  # a new one, which begins stopped
                self._known.add(thread)
                self._begun.discard(thread)
                self._ask(_CONT, thread)
            else:
                own = 0 if found in (signal.SIGTRAP, signal.SIGSTOP) else found
                self._ask(_CONT, thread, 0, own)

    def go_on(self, stop: Stop, *, until_done: bool = False) -> None:
        """Let the call be."""
        if until_done:
            self._calls[stop.thread] = stop
        self._ask(_SYSCALL if until_done else _CONT, stop.thread)

    def refuse(self, stop: Stop, number: int) -> None:
        """Have the call do nothing and fail with this error."""
        if MACHINE == "x86_64":
            self._ask(_POKEUSER, stop.thread, _ORIG_RAX, -1)
            self._ask(_POKEUSER, stop.thread, _RAX, -number)
        else:
            call = ctypes.c_int(-1)
            self._set(_SETREGSET, stop.thread, _NT_ARM_SYSTEM_CALL, call)
            registers = (ctypes.c_ulonglong * 34)()
            self._set(_GETREGSET, stop.thread, _NT_PRSTATUS, registers)
            registers[0] = -number & 0xFFFFFFFFFFFFFFFF
            self._set(_SETREGSET, stop.thread, _NT_PRSTATUS, registers)
        self._ask(_CONT, stop.thread)

    def kill(self) -> None:
        """kill -9, for the child and whatever it has started."""
        for thread in self._known | self._begun:
            with suppress(ProcessLookupError):
                os.kill(thread, signal.SIGKILL)

    def _expect(self, thread: int) -> None:
        """Count what this thread has started, which may have ended already."""
        new = ctypes.c_ulong()
        self._ask(_GETEVENTMSG, thread, 0, ctypes.addressof(new))
        if new.value not in self._gone | self._known:
            self._begun.add(new.value)

    def _stopped(self, thread: int) -> Stop | None:
        data = ctypes.create_string_buffer(88)
        if self._ask(_GET_SYSCALL_INFO, thread, len(data), ctypes.addressof(data)) <= 0:
            return None  # it was killed just now
        number, *arguments = struct.unpack_from("<7Q", data.raw, 24)
        return Stop(thread, number, tuple(arguments))

    def _returned(self, thread: int) -> Stop:
        data = ctypes.create_string_buffer(88)
        self._ask(_GET_SYSCALL_INFO, thread, len(data), ctypes.addressof(data))
        (result,) = struct.unpack_from("<q", data.raw, 24)
        stop = self._calls.pop(thread)
        return Stop(thread, stop.number, stop.arguments, result)

    def _set(self, request: int, thread: int, kind: int, value: ctypes._CData) -> None:
        size = ctypes.sizeof(value)
        vector = (ctypes.c_size_t * 2)(ctypes.addressof(value), size)
        self._ask(request, thread, kind, ctypes.addressof(vector))

    def _ask(self, request: int, thread: int, address: int = 0, data: int = 0) -> int:
        ctypes.set_errno(0)
        result = int(self._libc.ptrace(request, thread, address, data))
        number = ctypes.get_errno()
        if result == -1 and number and number != 3:  # ESRCH: it was killed just now
            raise OSError(number, f"ptrace {request:#x}: {os.strerror(number)}")
        return result

    def _limit(self, program: bytes) -> None:
        """Have the system stop this process at the chosen calls only."""
        lines = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(lines))
        prog = ctypes.create_string_buffer(header, len(header))
        if self._libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or self._libc.prctl(
            _PR_SET_SECCOMP, _SECCOMP_FILTER, ctypes.c_void_p(ctypes.addressof(prog)), 0, 0
        ):
            raise OSError(ctypes.get_errno(), "no seccomp filter can be set")


def _filter(numbers: Iterable[int]) -> bytes:
    """A program for the kernel: the tracer is told of these calls, the others just happen."""
    load, equal, give = 0x20, 0x15, 0x06
    trace, allow = 0x7FF00000, 0x7FFF0000
    lines = [struct.pack("HBBI", load, 0, 0, 0)]
    for number in sorted(set(numbers)):
        lines.append(struct.pack("HBBI", equal, 0, 1, number))
        lines.append(struct.pack("HBBI", give, 0, 0, trace))
    return b"".join([*lines, struct.pack("HBBI", give, 0, 0, allow)])
