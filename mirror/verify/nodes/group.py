"""Which nodes verify together, as a person or a scheduler says."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from mirror.core.paths import shown
from mirror.errors import UsageError

#: Where node 0 listens when nothing else is said: near torch's own 29500, and free of it.
PORT = 29512


@dataclass(frozen=True, slots=True)
class Group:
    """node: this one's number, of `nodes`, from 0.

    master, port: an IPv4 address of node 0's, and where its mirror listens. interface: for the
    traffic between the nodes, "" for the one that leads to node 0. job: a scheduler's name for it.
    """

    nodes: int
    node: int
    master: str
    port: int = PORT
    interface: str = ""
    job: str = ""


def asked(
    nodes: int | None,
    node_rank: int | None,
    master: str | None,
    port: int | None,
    interface: str | None,
) -> Group | None:
    """The group that the command line describes; None without --nodes, or for one node.

    Raises UsageError for what does not fit together.
    """
    if nodes is None or nodes == 1:
        more = {"--node-rank": node_rank, "--master": master, "--port": port}
        more["--interface"] = interface
        given = [name for name, value in more.items() if value not in (None, 0)]
        if given and nodes is None:
            raise UsageError(
                f"{given[0]} is for several machines: give --nodes N, or --slurm, as well"
            )
        return None
    if node_rank is None or master is None:
        lacks = "--node-rank" if node_rank is None else "--master"
        raise UsageError(
            f"--nodes {nodes} needs {lacks}",
            hint=f"On every machine: mirror verify --nodes {nodes} --node-rank R --master IP, with"
            f" R from 0 to {nodes - 1} and the address of the machine that has R = 0.",
        )
    if not 0 <= node_rank < nodes:
        raise UsageError(f"--node-rank {node_rank}: with --nodes {nodes} it is 0 to {nodes - 1}")
    return Group(nodes, node_rank, address(master), port or PORT, interface or "")


def address(text: str) -> str:
    """An IPv4 address, checked. Raises UsageError for anything else."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise UsageError(
            f"--master {shown(text)} is no IPv4 address",
            hint="Names are not resolved: on many machines a host's own name is the loopback.",
        ) from None
