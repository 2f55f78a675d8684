"""This machine's network interfaces, and which of them leads to another node. Linux, IPv4."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from mirror.core.paths import shown
from mirror.errors import MachineError, UsageError

#: linux/sockios.h, linux/if.h: list the addresses, ask for the flags; is up, is the loopback.
_SIOCGIFCONF, _SIOCGIFFLAGS = 0x8912, 0x8913
_UP, _LOOPBACK = 0x1, 0x8
#: struct ifreq: a name of 16 bytes, then a union; its size differs between machines of 64 and 32
#: bits. Of a sockaddr_in the address lies 4 bytes in.
_NAME, _ADDRESS = 16, 20
_ROW = 40 if struct.calcsize("P") == 8 else 32


@dataclass(frozen=True, slots=True)
class Interface:
    """By its name, "eth0", and the address on it that the other nodes reach."""

    name: str
    address: str


def addresses() -> dict[str, list[str]]:
    """Name -> IPv4 addresses, of the interfaces that have any."""
    buffer = ctypes.create_string_buffer(_ROW * 1024)
    asked = struct.pack("iP", len(buffer), ctypes.addressof(buffer))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as through:
        size = struct.unpack("iP", fcntl.ioctl(through, _SIOCGIFCONF, asked))[0]
    found: dict[str, list[str]] = {}
    for start in range(0, size, _ROW):
        row = buffer.raw[start : start + _ROW]
        # A second address of an interface may come under a label: eth0:1.
        name = row[:_NAME].partition(b"\0")[0].decode(errors="replace").partition(":")[0]
        found.setdefault(name, []).append(socket.inet_ntoa(row[_ADDRESS : _ADDRESS + 4]))
    return found


def own_address(master: str) -> str:
    """The address of this machine's from which it reaches `master`; no packet is sent.

    Raises MachineError without a route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((master, 9))
        except OSError as error:
            raise MachineError(
                f"there is no route from this machine to {master}: {error.strerror}",
                problems=_listed(addresses()),
                hint="Is --master the right address, and is the interface to it up?",
            ) from None
        return str(asked.getsockname()[0])


def choose(master: str, *, is_master: bool, given: str = "") -> Interface:
    """The interface for the traffic between the nodes: `given`, else the one that leads to master.

    master: an IPv4 address; of this machine itself where `is_master`.
    Raises UsageError and MachineError, which name the interfaces that there are.
    """
    have = addresses()
    owner = {address: name for name, own in have.items() for address in own}
    if is_master and master not in owner:
        raise UsageError(
            f"--master {master} is no address of this machine, which is node 0",
            problems=_listed(have),
            hint="Give every node the address of node 0 that the others reach.",
        )
    if not is_master and master in owner:
        raise UsageError(
            f"--master {master} is this machine's own address, and this is not node 0",
            hint="Give every node the address of node 0, and each its own --node-rank.",
        )
    if ipaddress.ip_address(master).is_loopback:
        raise UsageError(f"--master {master} is the loopback: no other machine reaches it")
    if not given:
        address = own_address(master)
        return Interface(owner.get(address) or _lost(address, have), address)
    if given not in have:
        names = {name for _, name in socket.if_nameindex()}
        why = "has no IPv4 address" if given in names else "is no interface of this machine"
        raise UsageError(f"--interface {shown(given)} {why}", problems=_listed(have))
    flags = _flags(given)
    if flags & _LOOPBACK:
        raise UsageError(f"--interface {given} is the loopback: no other machine is on it")
    if not flags & _UP:
        raise MachineError(f"--interface {given} is down", hint=f"ip link set {given} up")
    address = master if master in have[given] else have[given][0]
    return Interface(given, address)


def _flags(name: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
        row = struct.pack(f"16s{_ROW - _NAME}x", name.encode())
        said = fcntl.ioctl(asked, _SIOCGIFFLAGS, row)
        return int(struct.unpack_from("H", said, _NAME)[0])
    return 0


def _lost(address: str, have: Mapping[str, list[str]]) -> str:
    raise MachineError(
        f"no interface of this machine has its address {address}",
        problems=_listed(have),
        hint="Name the interface to the other nodes: --interface NAME",
    )


def _listed(have: Mapping[str, list[str]]) -> list[str]:
    return [f"{shown(name)}: {', '.join(own)}" for name, own in sorted(have.items())] or [
        "this machine has no IPv4 address"
    ]
