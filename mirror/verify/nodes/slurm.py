"""What Slurm says in its variables: how many nodes, which is this one, and where the first is.

Source: the section "OUTPUT ENVIRONMENT VARIABLES" of srun(1). scontrol is not asked: it needs not
be there on a compute node.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping

from mirror.core.paths import shown
from mirror.errors import MachineError, UsageError
from mirror.verify.nodes import interfaces
from mirror.verify.nodes.group import Group, address

#: Host names of one list at most: longer ones are no list of a cluster's.
_MOST = 100_000
#: The port is this and the job's number, in the thousands: two jobs may share a node. Below 32768,
#: where the kernel takes ports for outgoing connections.
_PORTS, _SPAN = 20_000, 10_000
_HINT = "As in: srun --nodes=2 --ntasks-per-node=1 mirror verify --slurm"


def group(
    environ: Mapping[str, str],
    *,
    master: str | None = None,
    port: int | None = None,
    interface: str | None = None,
) -> Group | None:
    """The nodes of the Slurm job step that this process is a task of; None when it is only one.

    master, port, interface: as given by the user, else found.
    Raises UsageError outside a step, or where a node has more than one task; MachineError when the
    first node's address cannot be found.
    """
    if "SLURM_STEP_ID" not in environ or "SLURM_JOB_ID" not in environ:
        inside = "this is a job's script or shell, not" if "SLURM_JOB_ID" in environ else "not in"
        raise UsageError(f"--slurm: {inside} a Slurm job step", hint=_HINT)
    job, step = environ["SLURM_JOB_ID"], environ["SLURM_STEP_ID"]
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE", "1")
    if not re.fullmatch(r"1(\(x\d+\))?", tasks):
        raise UsageError(
            f"--slurm: one task a node is needed, and Slurm says {shown(tasks)}", hint=_HINT
        )
    names = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    try:
        hosts = expand(names)
        nodes = int(environ.get("SLURM_STEP_NUM_NODES") or environ["SLURM_NNODES"])
        node = int(environ["SLURM_NODEID"])
        number = int(job)
    except (KeyError, ValueError) as error:
        raise MachineError(f"--slurm: Slurm's variables cannot be read: {error}") from None
    if len(hosts) != nodes or not 0 <= node < nodes:
        raise MachineError(
            f"--slurm: node {node} of {nodes}, but Slurm's list of nodes is {shown(names)}"
        )
    if nodes == 1:
        return None
    first = address(master) if master else _own(hosts) if node == 0 else _address(hosts[0])
    if first.startswith("127."):
        raise MachineError(
            f"--slurm: {hosts[0]} is {first} on this node, the loopback",
            hint="Give every node the address of the first one: --master IP",
        )
    port = port or _PORTS + number % _SPAN
    return Group(nodes, node, first, port, interface or "", f"slurm {job}.{step}")


def expand(text: str) -> list[str]:
    """The host names of a list as Slurm writes it: "gpu[01-03,07],login1" are five.

    Raises ValueError when it is none.
    """
    found: list[str] = []
    for part in _split(text):
        for name in _names(part):
            found.append(name)
            if len(found) > _MOST:
                raise ValueError(f"{shown(text[:80])} has too many names")
    return found


def _split(text: str) -> Iterator[str]:
    """At the commas outside brackets."""
    if not re.fullmatch(r"(?:[^\[\],\s]|\[[0-9,-]+\]|,(?!,|$))+", text) or text.startswith(","):
        raise ValueError(f"{shown(text[:80])!r} is no list of host names")
    yield from re.findall(r"(?:[^\[\],]|\[[^\]]*\])+", text)


def _names(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield head
        return
    inside, _, tail = rest.partition("]")
    for piece in inside.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", piece)
        if not found:
            raise ValueError(f"{shown(piece)!r} is no range of numbers")
        first, last = found[1], found[2] or found[1]
        if int(last) - int(first) > _MOST:
            raise ValueError(f"{shown(piece)} has too many numbers")
        for number in range(int(first), int(last) + 1):
            for end in _names(tail):
                yield f"{head}{number:0{len(first)}d}{end}"


def _own(hosts: list[str]) -> str:
    """This first node's address, as the others reach it.

    Its own name may lead to the loopback (Debian writes 127.0.1.1 into /etc/hosts); the way to
    another node shows.
    """
    with_others = [name for name in hosts[1:] if name != hosts[0]]
    own = _address(hosts[0])
    if not own.startswith("127.") or not with_others:
        return own
    return interfaces.own_address(_address(with_others[0]))


def _address(host: str) -> str:
    try:
        rows = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        why = error.strerror or error
        raise MachineError(
            f"--slurm: the address of node {shown(host)} cannot be found: {why}",
            hint="Give every node the address of the first one: --master IP",
        ) from None
    return str(rows[0][4][0])
