"""No network from this process: whatever asks for a connection is refused, and noted."""

from __future__ import annotations

import socket
from typing import Any


def refuse_sockets() -> list[str]:
    """From now on every connection and look-up in Python raises OSError.

    Returns the list to which each attempt is appended: a library may swallow the error.
    """
    attempts: list[str] = []

    def refused(what: str) -> Any:
        def refuse(*arguments: Any, **_: Any) -> Any:
            shown = [repr(argument) for argument in arguments if isinstance(argument, (str, tuple))]
            attempts.append(f"{what} {' '.join(shown)}".strip())
            raise OSError(f"the network is refused while models are checked ({attempts[-1]})")

        return refuse

    for name in ("connect", "connect_ex", "sendto"):
        setattr(socket.socket, name, refused(name))
    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        setattr(socket, name, refused(name))
    return attempts
