"""What NCCL says it uses between GPUs, read from its own log (NCCL_DEBUG=INFO).

The lines' wording is NCCL's: init.cc, transport/p2p.cc, shm.cc, net.cc, coll_net.cc and nvls.cc of
2.18 to 2.29, which print these in the subsystems INIT and ENV. A log is output of a program under
test: nothing in it is trusted, what is not understood is passed over, and whoever shows a text
from it escapes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirror.core.text import counted

#: Bytes of one process's log that are read: the beginning, where communicators are set up.
_MOST = 8 * 2**20
#: Warnings that are kept.
_WARNINGS = 20

#: Characters of a line that is looked at: NCCL's own are shorter.
_LONGEST = 4096

_SAID = re.compile(
    r"(?:(?P<process>[^\s:]+:\d+):\d+ \[-?\d+\] (?:\S+:\d+ (?:\([^)]*\) )?)?)?"
    r"NCCL (?P<level>INFO|WARN) (?P<text>.*)"
)
_VERSION = re.compile(r"NCCL version (\d+(?:\.\d+)+)(?:\S*\+cuda(\d+\.\d+)\S*)?")
_INIT = re.compile(r"\bcomm (?P<comm>\S+) rank (?P<rank>\d+) nranks (?P<ranks>\d+) .*- ?Init START")
_COMPLETE = re.compile(r"\bcomm \S+ rank \d+ nranks (\d+) .*- Init COMPLETE")
_ID = re.compile(r"\bcommId (\S+)")
_LINK = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d+)(?:/(?P<connection>\d+))? : "
    r"(?P<source>\d+)\[(?P<source_gpu>\w+)\] -> (?P<target>\d+)\[(?P<target_gpu>\w+)\]"
    r"(?: \[(?:send|receive)\])? via "
    r"(?:(?P<transport>P2P|SHM|NET)/(?P<how>.+)|direct shared memory)"
)
_RING = re.compile(r"Channel \d+/\d+ :(?P<ranks>(?: +\d+)+) *$")
_TREE = re.compile(r"\[(?P<tree>\d+)\] [-\d/]+->(?P<rank>\d+)->(?P<parent>-?\d+)")
_CHANNELS = re.compile(r"(\d+) (coll|collnet|nvls|p2p) channels\b(?! per)")
_HOSTS = re.compile(r"\bnRanks \d+ nNodes (\d+) ")
_PEERS = re.compile(r"Check P2P Type (?:isAllDirectP2p|intraNodeP2pSupport) (\d)")
_NETWORK = re.compile(r"Using network (\S+)")
_SETTING = re.compile(r"(NCCL_\w+) set (?:by environment )?to (.*?)\.?$")


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """How one rank sends to another.

    source, target: ranks of the communicator. source_gpu, target_gpu: as NCCL numbers GPUs (the
    driver's index; a bus id in older versions). transport: P2P, SHM or NET. how: CUMEM, IPC, MNNVL,
    "direct pointer", "direct/direct", Socket, IB or a plugin's name. direct: by GPUDirect RDMA.
    sends: set up for send and receive, and not for collectives. channels: how many.
    """

    source: int
    target: int
    source_gpu: str
    target_gpu: str
    transport: str
    how: str
    direct: bool
    sends: bool
    channels: int = 0

    @property
    def name(self) -> str:
        """As NCCL writes it: P2P/CUMEM, SHM/direct/direct, NET/Socket."""
        return f"{self.transport}/{self.how}"


@dataclass(frozen=True, slots=True)
class Communicator:
    """A group of ranks that NCCL connected.

    ranks, hosts: how many; 0 when the log does not say. rings: the ranks in each ring's order.
    tree: the first tree's edges, (rank, its parent). channels: coll, collnet, nvls, p2p: how many
    of each. peers: whether every GPU reaches every other's memory; None when the log does not say.
    """

    ranks: int
    hosts: int
    links: tuple[Link, ...]
    rings: tuple[tuple[int, ...], ...]
    tree: tuple[tuple[int, int], ...]
    channels: Mapping[str, int] = field(hash=False)
    peers: bool | None

    @property
    def names(self) -> tuple[str, ...]:
        """The transports, sorted; NVLS (multicast in the NVSwitch) among them where it is used."""
        nvls = {"NVLS"} if self.channels.get("nvls") else set()
        collnet = {"COLLNET"} if self.channels.get("collnet") else set()
        return tuple(sorted({link.name for link in self.links} | nvls | collnet))

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for link in self.links:
            counts[link.name] = max(link.channels, counts.get(link.name, 0))
        counts |= {kind.upper(): self.channels.get(kind, 0) for kind in ("nvls", "collnet")}
        used = [f"{name} on {counted(n, 'channel')}" for name, n in sorted(counts.items()) if n]
        return ", ".join(used) or "no transport named"


@dataclass(frozen=True, slots=True)
class Transports:
    """What the logs of a run say.

    version: NCCL's; cuda: that it was built with. network: what it would use between hosts.
    settings: the NCCL_* variables that it says it took. communicators: in the order of their
    making. warnings: the first few.
    """

    version: str
    cuda: str
    network: str
    settings: Mapping[str, str] = field(hash=False)
    communicators: tuple[Communicator, ...]
    warnings: tuple[str, ...]

    @property
    def world(self) -> Communicator | None:
        """The largest communicator; of equals the last."""
        return max(reversed(self.communicators), key=lambda comm: comm.ranks, default=None)


def variables(folder: Path) -> dict[str, str]:
    """What makes NCCL write a log for `read`, a file for each process, into `folder`."""
    file = str(folder.absolute()).replace("%", "%%")
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV",
        "NCCL_DEBUG_FILE": f"{file}/nccl-%h-%p.log",
    }


def read(folder: Path, pids: Iterable[int]) -> Transports | None:
    """What these processes' logs in `folder` say; None when there are none, as without NCCL."""
    found = []
    for pid in pids:
        for path in sorted(folder.glob(f"nccl-*-{pid}.log")):
            with open(path, "rb") as file:
                found.append(file.read(_MOST).decode("utf-8", "replace"))
    return parse("\n".join(found)) if found else None


def parse(text: str) -> Transports:
    """Read one process's log, or several after or through each other."""
    version = cuda = network = ""
    settings: dict[str, str] = {}
    warnings: list[str] = []
    groups: dict[str, _Group] = {}
    current: dict[str, _Group] = {}
    for process, level, said in _lines(text):
        if level == "WARN":
            warnings.append(said)
        elif match := _VERSION.match(said):
            version, cuda = match[1], match[2] or cuda
        elif match := _SETTING.match(said):
            settings[match[1]] = match[2]
        elif match := _NETWORK.match(said):
            network = match[1]
        elif match := _INIT.search(said):
            identity = _ID.search(said)
            # Before 2.19 no id: then every process's n-th communicator of a size is one.
            key = identity[1] if identity else f"{match['ranks']} {_nth(groups, process)}"
            group = groups.setdefault(key, _Group())
            group.ranks = int(match["ranks"])
            group.processes.add(process)
            current[process] = group
        else:
            if process not in current:
                current[process] = groups.setdefault("", _Group())
            current[process].hear(said)
    return Transports(
        version,
        cuda,
        network,
        settings,
        tuple(group.made() for group in groups.values() if group.ranks or group.links),
        tuple(warnings[:_WARNINGS]),
    )


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Each line's process (host:pid), level and text; 2.18 states its version without the rest."""
    for line in text.splitlines():
        line = line[:_LONGEST]
        if match := _SAID.search(line):
            yield match["process"] or "", match["level"], match["text"].rstrip()
        elif match := _VERSION.search(line):
            yield "", "INFO", match[0]


def _nth(groups: Mapping[str, _Group], process: str) -> int:
    return sum(process in group.processes for group in groups.values())


class _Group:
    """A communicator, as it is being read."""

    def __init__(self) -> None:
        self.ranks = self._hosts = 0
        self.processes: set[str] = set()
        self.links: dict[Link, set[str]] = {}
        self._rings: dict[tuple[int, ...], None] = {}
        self._tree: dict[int, int] = {}
        self._channels: dict[str, int] = {}
        self._peers: bool | None = None

    def hear(self, said: str) -> None:
        """Take in one line."""
        if match := _LINK.match(said):
            # A link over a network is stated by both its ends.
            self.links.setdefault(_link(match), set()).add(match["channel"])
        elif match := _RING.match(said):
            self._rings[tuple(int(rank) for rank in match["ranks"].split())] = None
        elif said.startswith("Trees "):
            for tree in _TREE.finditer(said):
                if tree["tree"] == "0":
                    self._tree[int(tree["rank"])] = int(tree["parent"])
        elif match := _HOSTS.search(said):
            self._hosts = int(match[1])
        elif match := _PEERS.match(said):
            self._peers = match[1] == "1"
        elif match := _COMPLETE.search(said):
            self.ranks = int(match[1])
        elif found := _CHANNELS.findall(said):
            self._channels = {kind: int(count) for count, kind in found}

    def made(self) -> Communicator:
        """What was heard."""
        return Communicator(
            self.ranks,
            self._hosts,
            tuple(replace(link, channels=len(self.links[link])) for link in sorted(self.links)),
            tuple(self._rings),
            tuple((rank, parent) for rank, parent in sorted(self._tree.items()) if parent >= 0),
            self._channels,
            self._peers,
        )


def _link(match: re.Match[str]) -> Link:
    """The link that a line tells of."""
    transport, how = match["transport"] or "SHM", match["how"] or "direct/direct"
    return Link(
        int(match["source"]),
        int(match["target"]),
        match["source_gpu"],
        match["target_gpu"],
        transport,
        how if transport == "SHM" else how.partition("/")[0],
        "/GDRDMA" in how,
        match["connection"] == "1",
    )
