"""Whether every node reaches every other one, on a port that nobody planned and with large packets.

NCCL and gloo connect all to all, on ports that the kernel chooses. Behind a firewall that opens the
announced port alone they hang; where a switch takes smaller packets than the interfaces send, small
messages come through and the first gradients do not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

#: Bytes that are sent each way: many packets of any size.
_LOAD = 2**18
#: Seconds for one exchange, the connection included.
_PATIENCE = 10.0
_AT_ONCE = 32


class Echo:
    """Listens on a free port of `address` while the block lasts, and sends back what comes.

    Raises OSError when it cannot listen.
    """

    def __init__(self, address: str) -> None:
        self._listener = socket.create_server((address, 0), backlog=128)
        self._listener.settimeout(0.5)
        self._open = True
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Echo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        self._listener.close()

    def _serve(self) -> None:
        while self._open:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                threading.Thread(target=_send_back, args=(connection,), daemon=True).start()


def _send_back(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.settimeout(_PATIENCE)
        connection.sendall(_read(connection, _LOAD))


def _read(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or as many as come before the other side closes."""
    pieces = []
    while size and (piece := connection.recv(min(size, 2**16))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def failures(source: str, others: Mapping[int, tuple[str, int]]) -> dict[int, str]:
    """Node -> why it is not reached from `source`, of `others`: node -> address and port."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        tried = {n: pool.submit(_failure, source, place) for n, place in others.items()}
        return {n: why for n, one in tried.items() if (why := one.result())}


def _failure(source: str, place: tuple[str, int]) -> str:
    address, port = place
    load = os.urandom(_LOAD)
    try:
        connection = socket.create_connection(place, _PATIENCE, (source, 0))
    except TimeoutError:
        return f"{address}, port {port} gives no answer: a firewall that drops packets?"
    except OSError as error:
        return f"{address}, port {port}: {error.strerror or error}: a firewall, or no way there?"
    with connection:
        try:
            connection.sendall(load)
            if _read(connection, _LOAD) == load:
                return ""
            return f"{address}, port {port} is reached, and closes before all data is through"
        except OSError:
            return (
                f"{address} is reached, and {_LOAD // 1024} KiB do not get through: are packets"
                " larger (ip link: mtu) than the switches between take?"
            )
