"""Several machines verify together: each runs `mirror verify`, and they train as one group.

No shared file system is needed. Node 0's mirror listens on one port (room.py), and every node's
connects to it (member.py). They begin each run together, pass on where their ranks are, end
together when one fails, and all of them get every rank's result (run.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.errors import MachineError
from mirror.verify import accelerate
from mirror.verify.nodes import interfaces, reach, run
from mirror.verify.nodes.group import PORT, Group, asked
from mirror.verify.nodes.interfaces import Interface
from mirror.verify.nodes.member import Member, connect
from mirror.verify.nodes.room import REPORT, Room
from mirror.verify.nodes.run import Run
from mirror.verify.nodes.slurm import group as under_slurm
from mirror.verify.report import Check, Stage, worst

__all__ = ["PORT", "Group", "Nodes", "asked", "together", "under_slurm"]

#: Seconds for all nodes to come: people start them by hand, one after the other.
MEET = 600.0
_HINT = (
    "Every node runs mirror verify with the same --nodes, --master and --port, and a --node-rank of"
    " its own. Between them TCP must be open on all ports; --interface NAME chooses the network."
)
#: Seconds for the others' reports, once this node's is there.
_REPORTS = 600.0
#: Checks of a node that are passed on to the others, and letters of each.
_CHECKS, _LETTERS = 50, 2000


class Nodes:
    """The nodes that verify together, as this one sees them.

    facts: name -> value of what must be the same on all of them, such as torch's version; set
    before the first run.
    """

    def __init__(self, group: Group, interface: Interface, member: Member) -> None:
        self.group = group
        self.interface = interface
        self.facts: dict[str, str] = {}
        self._member = member
        self._runs = 0
        self._withdrawn = False

    @property
    def count(self) -> int:
        """How many nodes."""
        return self.group.nodes

    def at(self, stage: str) -> None:
        """What this node is doing now."""
        self._member.at(stage)

    def begin(self, name: str, processes: int) -> tuple[Run | None, list[str]]:
        """The next run, once every node has come to it; None and the problems when it cannot be.

        processes: on this node.
        """
        self._runs += 1
        try:
            port = accelerate.free_port(self.group.master) if self.group.node == 0 else 0
        except OSError as error:
            return None, [f"no free port on {self.group.master}: {error.strerror}"]
        number = f"run {self._runs}"
        self.at(number)
        return run.begin(
            self._member,
            self.interface,
            number=number,
            name=name,
            master=self.group.master,
            port=port,
            processes=processes,
            facts=self.facts,
        )

    def withdraw(self, reason: str) -> None:
        """This node cannot train: the others hear why, and do not wait for it."""
        if not self._withdrawn:
            self._withdrawn = True
            self._member.withdraw(reason)

    def compare(self, stages: Sequence[Stage], folder: str) -> list[Check]:
        """Give this node's verdicts to the others: a check for each of them with what it found.

        folder: where this node's own report is.
        """
        self.at(REPORT)
        found = self._member.gather(REPORT, _summary(stages, folder), _REPORTS)
        checks = []
        for node in range(self.count):
            if node in found.missing:
                why = f"it left no report: {found.missing[node]}"
                checks.append(Check(self._member.name(node), "fail", why))
            elif node != self.group.node:
                checks.append(_check(self._member.name(node), found.tables[node]))
        return checks


@contextmanager
def together(
    group: Group,
    *,
    digest: str,
    bundle: str,
    say: Callable[[str], object],
    patience: float = MEET,
) -> Iterator[Nodes]:
    """Meet the other nodes; on the way out, however it is taken, they hear that this one has left.

    digest, bundle: of the bundle installed here, which must be the others' too, and its name.
    say: hears what is waited for. patience: seconds for all to come.
    Raises UsageError and MachineError when the nodes do not come together.
    """
    is_master = group.node == 0
    interface = interfaces.choose(group.master, is_master=is_master, given=group.interface)
    room = None
    if is_master:
        room = Room(group.master, group.port, nodes=group.nodes, digest=digest, job=group.job)
    try:
        member = connect(
            group.master,
            group.port,
            node=group.node,
            nodes=group.nodes,
            digest=digest,
            bundle=bundle,
            job=group.job,
            source=interface.address,
            patience=patience,
            say=say,
        )
        reason = "it ended before its time"
        try:
            if is_master:
                say(f"node 0 of {group.nodes} waits on {group.master}, port {group.port}")
            problems = _meet(member, interface, patience)
            if problems:
                reason = "; ".join(problems)
                raise MachineError(
                    f"{group.nodes} nodes did not come together",
                    problems=problems,
                    hint=_HINT,
                )
            say(f"{group.nodes} nodes; {interface.name}, {interface.address}, leads to the others")
            yield Nodes(group, interface, member)
            reason = ""
        except KeyboardInterrupt:
            reason = "it was interrupted"
            raise
        finally:
            member.leave(reason)
    finally:
        if room:
            room.close()


def _meet(member: Member, interface: Interface, patience: float) -> list[str]:
    """Wait for all nodes, then let each try to reach every other; what is wrong, on all of them."""
    with reach.Echo(interface.address) as echo:
        own: dict[str, Json] = {"address": interface.address, "port": echo.port}
        found = member.gather("start", own, patience)
        if found.missing:
            return [f"{member.name(n)}: {why}" for n, why in sorted(found.missing.items())]
        places = {
            n: (str(table["address"]), int(table["port"])) for n, table in found.tables.items()
        }
        del places[member.node]
        failed = reach.failures(interface.address, places)
        tried: dict[str, Json] = {str(n): why for n, why in failed.items()}
        found = member.gather("reach", {"failed": tried}, patience)
    return [f"{member.name(n)}: {why}" for n, why in sorted(found.missing.items())] + [
        f"{member.name(n)} does not reach {member.name(int(to))}: {shown(str(why))}"
        for n, table in sorted(found.tables.items())
        for to, why in table["failed"].items()
    ]


def _summary(stages: Sequence[Stage], folder: str) -> dict[str, Json]:
    bad = [
        [stage.name, check.name, check.verdict, check.evidence[:_LETTERS]]
        for stage in stages
        for check in stage.checks
        if check.verdict in ("warn", "fail") and stage.name != "multi"
    ]
    rows: list[Json] = [[s.name, s.verdict, round(s.seconds, 3)] for s in stages]
    kept: list[Json] = [list(row) for row in bad[:_CHECKS]]
    return {"stages": rows, "checks": kept, "folder": folder}


def _check(name: str, table: Mapping[str, object]) -> Check:
    """What another node found, of which nothing is believed to be of the right form."""
    stages = [row for row in _rows(table.get("stages")) if len(row) == 3]
    verdicts = [v for v in ("skip", "pass", "warn", "fail") if any(r[1] == v for r in stages)]
    if not verdicts:
        return Check(name, "fail", "what it gave is no report")
    lines = [", ".join(f"{row[0]} {row[1]}" for row in stages)]
    for row in _rows(table.get("checks")):
        if len(row) == 4:
            first = str(row[3]).partition("\n")[0]
            lines.append(f"{row[2]}  {row[0]}, {row[1]}: {first}")
    worst_of = worst(v for v in verdicts)  # type: ignore[misc]
    return Check(
        shown(name),
        worst_of,
        "\n".join(shown(line) for line in lines),
        f"Its own report lies there, in {shown(str(table.get('folder')))}.",
    )


def _rows(value: object) -> list[list[object]]:
    return [row for row in value if isinstance(row, list)] if isinstance(value, list) else []
