"""What the nodes say to each other: a JSON table a line over TCP, bounded in size and patience."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Mapping

from mirror.core.artifact import Json

#: Bytes of a line at most, from somebody known and from somebody who has not said who it is.
LARGEST, LARGEST_UNKNOWN = 64 * 2**20, 4096
#: Seconds in which a living node says something: it beats every second.
SILENCE = 20.0
#: Seconds for somebody who connected to say who it is.
HELLO = 10.0
#: Seconds between two beats.
BEAT = 1.0


class Wire:
    """One connection. Lines are sent from any thread, and received by one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._rest = b""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(HELLO)

    @property
    def peer(self) -> str:
        """The other side's address; "?" when it is gone."""
        try:
            return str(self._connection.getpeername()[0])
        except OSError:
            return "?"

    def known(self) -> None:
        """The other side has said who it is: from now on it beats, and nothing else is asked."""
        self._connection.settimeout(SILENCE)

    def send(self, message: Mapping[str, Json]) -> None:
        """Raises OSError when the other side is gone, or takes nothing."""
        with self._sending:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, largest: int = LARGEST) -> dict[str, Json] | None:
        """The next table; None when the other side has closed.

        Raises TimeoutError when nothing comes, OSError when the connection breaks, ValueError when
        what comes is no table or longer than `largest` bytes.
        """
        pieces, size = [self._rest], len(self._rest)
        while b"\n" not in pieces[-1]:
            if size > largest:
                raise ValueError(f"a line of more than {largest} bytes")
            piece = self._connection.recv(2**16)
            if not piece:
                return None
            pieces.append(piece)
            size += len(piece)
        line, _, self._rest = b"".join(pieces).partition(b"\n")
        try:
            table = json.loads(line)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(table, dict):
            raise ValueError("it is no table")
        return table

    def close(self) -> None:
        """From any thread; whoever receives hears of it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()
