"""One run of the trainer over several nodes: begun together, watched together, judged on all of it.

Every node comes to the same outcome, with every rank's result in it, so that all of them go on to
the same next run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mirror.core.artifact import Json
from mirror.verify.accelerate import Rendezvous
from mirror.verify.nodes.interfaces import Interface
from mirror.verify.nodes.member import Gathered, Member
from mirror.verify.ranks import Phase
from mirror.verify.watch import Halt

#: Seconds in which the others come to the beginning of a run: their checks may take longer.
BEGIN = 3600.0
#: Seconds in which they come to its end, once this node has.
END = 120.0
#: What a rank says that died of another one's death.
_CONSEQUENCE = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Connection refused|ncclRemoteError"
    r"|remote process exited|no result, last phase \w+( \d+)?\n"
)


class Run:
    """This node's part in one launch, of as many processes as on every other node."""

    def __init__(
        self,
        name: str,
        member: Member,
        interface: Interface,
        processes: int,
        port: int,
        master: str,
    ) -> None:
        self._name, self._member = name, member
        self._interface, self._processes = interface, processes
        self.rendezvous = Rendezvous(member.nodes, member.node, master, port)
        self.world = processes * member.nodes
        self.first = processes * member.node

    def environ(self, table: Mapping[str, str]) -> dict[str, str]:
        """`table`, and which interface gloo and NCCL use, unless it says so itself."""
        name = self._interface.name
        # "=": exactly this one, not every one whose name begins so.
        return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}", **table}

    def exchange(self, own: Mapping[int, Phase | None]) -> Mapping[int, Phase | None]:
        """Tell where this node's ranks are; returns where those of the others are."""
        self._member.tell(own)
        theirs = self._member.elsewhere()
        return {rank: theirs.get(rank) for rank in range(self.world) if rank not in own}

    def stopped(self) -> str:
        """Why the run is over, as another node says."""
        return self._member.stopped(self._name)

    def label(self, rank: int) -> str:
        """ "rank 3 of node 1 (gpu-b, 10.0.0.2)" """
        return f"rank {rank} of {self._member.name(rank // self._processes)}"

    def end(
        self, results: Sequence[Mapping[str, Json]], problems: Sequence[str], halt: Halt | None
    ) -> tuple[list[Mapping[str, Json]], list[str]]:
        """Every rank's result, or the problems, of all nodes; gives them this node's."""
        hang = bool(halt and halt.headline)
        if hang or (problems and not halt):
            self._member.stop(self._name, hang=hang)
        table: dict[str, Json] = {
            "results": [dict(result) for result in results],
            "problems": list(problems),
            "halt": None,
        }
        if halt:
            table["halt"] = {
                "headline": halt.headline,
                "culprits": list(halt.culprits),
                "behind": list(halt.behind),
                "stacks": list(halt.stacks),
            }
        found = self._member.gather(f"{self._name} ended", table, END)
        return _merged(found, self._member, self._processes)


def begin(
    member: Member,
    interface: Interface,
    *,
    number: str,
    name: str,
    master: str,
    port: int,
    processes: int,
    facts: Mapping[str, str],
) -> tuple[Run | None, list[str]]:
    """Wait until every node is there to begin the run; None and why it cannot be.

    number, name: "run 2", the same on every node, and what this node takes it to be, "fsdp".
    port: free on node 0, for the ranks' rendezvous. facts: what must be the same on every node.
    """
    same = {"the run": name, **facts}
    own: dict[str, Json] = {"port": port, "processes": processes, "facts": dict(same)}
    found = member.gather(number, own, BEGIN)
    problems = [f"{member.name(n)} is not there: {why}" for n, why in found.missing.items()]
    if not problems:
        problems = _differences(found, member)
    if problems:
        return None, problems
    port = int(found.tables[0]["port"])
    return Run(number, member, interface, processes, port, master), []


def _differences(found: Gathered, member: Member) -> list[str]:
    """Whatever is not the same on every node as on node 0."""
    problems: list[str] = []
    first = found.tables[0]
    for node, table in sorted(found.tables.items()):
        if table.get("processes") != first.get("processes"):
            problems.append(
                f"{member.name(node)} has {_processes(table)}, {member.name(0)}"
                f" {_processes(first)}: it must be as many everywhere; --gpus N says how many"
            )
        have, wanted = _facts(table), _facts(first)
        problems += [
            f"{member.name(node)} has {name} {have.get(name)}, {member.name(0)} {wanted.get(name)}"
            for name in sorted({*have, *wanted})
            if have.get(name) != wanted.get(name)
        ]
    return problems


def _processes(table: Mapping[str, Any]) -> str:
    count = table.get("processes")
    return f"{count} process" + ("" if count == 1 else "es")


def _facts(table: Mapping[str, Any]) -> dict[str, str]:
    facts = table.get("facts")
    return {str(k): str(v) for k, v in facts.items()} if isinstance(facts, dict) else {}


def _merged(
    found: Gathered, member: Member, processes: int
) -> tuple[list[Mapping[str, Json]], list[str]]:
    """All results in the order of their ranks, or all problems, the cause before what it caused."""
    results: list[Mapping[str, Json]] = []
    problems: list[str] = []
    halts: list[Halt] = []
    for _, table in sorted(found.tables.items()):
        results += [r for r in _list(table, "results") if isinstance(r, dict)]
        problems += [p for p in _list(table, "problems") if isinstance(p, str)]
        with contextlib.suppress(KeyError, TypeError):
            said = table["halt"]
            lists = (tuple(map(str, said[key])) for key in ("culprits", "behind", "stacks"))
            halts.append(Halt(str(said["headline"]), *lists))
    missing = [
        f"{member.name(node)} is gone, and its {_ranks(node, processes)} left nothing: {why}"
        for node, why in sorted(found.missing.items())
    ]
    if headline := next((h.headline for h in halts if h.headline), ""):
        whole = Halt(
            headline,
            tuple(line for h in halts for line in h.culprits),
            next((h.behind for h in halts if h.headline), ()),
            tuple(line for h in halts for line in h.stacks),
        )
        return [], [whole.lines[0], *missing, *whole.lines[1:], *problems]
    if missing or problems:
        return [], [*missing, *sorted(problems, key=_order)]
    if len(results) != processes * member.nodes or halts:
        return [], [f"{len(results)} of {processes * member.nodes} ranks have a result"]
    return results, []


def _order(problem: str) -> int:
    """Killed ranks first, then those that failed by themselves, then those that followed."""
    if "; it was killed by signal" in problem.partition("\n")[0]:
        return 0
    return 2 if _CONSEQUENCE.search(problem) else 1


def _list(table: Mapping[str, Any], key: str) -> list[Any]:
    found = table.get(key)
    return found if isinstance(found, list) else []


def _ranks(node: int, processes: int) -> str:
    first = node * processes
    return f"rank {first}" if processes == 1 else f"ranks {first} to {first + processes - 1}"
