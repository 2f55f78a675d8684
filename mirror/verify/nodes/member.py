"""One node among several: what it tells the others, and what it hears of them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.core.text import human_time
from mirror.errors import MachineError
from mirror.verify.nodes import wire
from mirror.verify.nodes.room import PROTOCOL, proof
from mirror.verify.nodes.wire import Wire
from mirror.verify.ranks import Phase

#: Seconds between two attempts to reach node 0.
_AGAIN = 1.0
#: Seconds for one attempt.
_ATTEMPT = 5.0
#: Seconds of waiting for others after which a person is told for whom.
_TOLD = 3.0
#: Letters of a reason that is passed on.
_LETTERS = 20_000


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the nodes gave: node -> its table; and of the others, why they gave nothing."""

    tables: Mapping[int, Mapping[str, Any]]
    missing: Mapping[int, str] = field(default_factory=dict)


class Member:
    """This node's connection to the room on node 0. All waiting can be interrupted.

    node, nodes: its number of how many. say: hears for whom it waits.
    """

    def __init__(
        self, connection: Wire, node: int, nodes: int, say: Callable[[str], object]
    ) -> None:
        self.node, self.nodes = node, nodes
        self._wire, self._say = connection, say
        self._changed = threading.Condition()
        self._beat: dict[str, Json] = {"stage": "start"}
        self._beats: dict[int, Mapping[str, Any]] = {}
        self._names: dict[int, str] = {}
        self._all: dict[str, Gathered] = {}
        self._stops: dict[str, Mapping[str, Any]] = {}
        self._away: dict[int, str] = {}
        self._lost = ""
        self._over = threading.Event()
        for work in (self._listen, self._send_beats):
            threading.Thread(target=work, daemon=True).start()

    def name(self, node: int) -> str:
        """ "node 1 (gpu-b, 10.0.0.2)" """
        known = self._names.get(node)
        return f"node {node} ({known})" if known else f"node {node}"

    def at(self, stage: str) -> None:
        """What this node is doing now, for the others to see."""
        self._beat = {"stage": stage}

    def tell(self, phases: Mapping[int, Phase | None]) -> None:
        """Where its ranks are now."""
        rows: dict[str, Json] = {
            str(rank): [phase.name, phase.step, phase.detail]
            for rank, phase in phases.items()
            if phase
        }
        self._beat = {"stage": self._beat["stage"], "ranks": rows}

    def elsewhere(self) -> dict[int, Phase]:
        """Where the ranks of the other nodes are, as far as they have said; their pid is 0."""
        found: dict[int, Phase] = {}
        for node, beat in dict(self._beats).items():
            rows = beat.get("ranks") if node != self.node else None
            for rank, row in rows.items() if isinstance(rows, dict) else ():
                with contextlib.suppress(TypeError, ValueError, KeyError):
                    name, step, detail = row
                    step = step if type(step) is int else None
                    found[int(rank)] = Phase(str(name), step, 0, str(detail))
        return found

    def gather(self, name: str, table: Mapping[str, Json], patience: float) -> Gathered:
        """Give a table under this name and wait for those of the others.

        Every node gathers the same names in the same order. Whoever gives nothing within `patience`
        seconds, or is away, is among the missing, with the reason.
        """
        self._send({"give": name, "table": dict(table)})
        begin, told = time.monotonic(), ""
        while True:
            with self._changed:
                found = self._all.pop(name, None)
                if found:
                    return found
                if self._lost:
                    others = [n for n in range(self.nodes) if n != self.node]
                    gone = {n: self._away.get(n, self._lost) for n in others}
                    return Gathered({self.node: table}, gone)
                self._changed.wait(0.2)
            waited = time.monotonic() - begin
            late = self._waited_for(name)
            if waited > patience:
                why = f"it did not come within {human_time(patience)}"
                return Gathered({self.node: table}, {n: f"{why}{late[n]}" for n in late})
            who = "; ".join(f"{self.name(n)}{late[n]}" for n in late)
            if late and waited > _TOLD and who != told:
                told = who
                self._say(f"waiting for {who}")

    def _waited_for(self, name: str) -> dict[int, str]:
        """Who has not got as far, and what it is doing."""
        found: dict[int, str] = {}
        for node in range(self.nodes):
            if node != self.node and node not in self._away:
                stage = self._beats.get(node, {}).get("stage")
                if stage != name:
                    found[node] = f", in stage {shown(str(stage))}" if stage else ", not here yet"
        return found

    def stop(self, run: str, *, hang: bool) -> None:
        """Say that a run is to end everywhere, because no rank moves on, or something failed."""
        self._send({"stop": run, "hang": hang})

    def stopped(self, run: str) -> str:
        """Why this node's part of a run has to end; empty while it has not. "hang" for a hang."""
        with self._changed:
            if stop := self._stops.get(run):
                node = stop.get("node")
                why = f"{self.name(node)} failed" if type(node) is int else "another node failed"
                return "hang" if stop.get("hang") else why
            if self._away:
                node, reason = next(iter(self._away.items()))
                return f"{self.name(node)}: {reason}"
            return self._lost

    def withdraw(self, reason: str) -> None:
        """This node will take part in nothing but the gathering of reports."""
        self._send({"withdraw": reason[:_LETTERS]})

    def leave(self, reason: str = "") -> None:
        """Say goodbye; the others are told why, when it is before the end."""
        self._over.set()
        self._send({"bye": reason or "it has finished"})
        self._wire.close()

    def _send(self, message: Mapping[str, Json]) -> None:
        with contextlib.suppress(OSError):  # whoever receives hears of that
            self._wire.send(message)

    def _send_beats(self) -> None:
        while not self._over.wait(wire.BEAT):
            self._send({"beat": self._beat})

    def _listen(self) -> None:
        why = "its connection was closed: mirror ended there without a word"
        try:
            while message := self._wire.receive():
                with self._changed, contextlib.suppress(TypeError, ValueError, AttributeError):
                    self._hear(message)
                    self._changed.notify_all()
        except TimeoutError:
            why = f"nothing was heard of it for {wire.SILENCE:.0f} s: the machine or the network"
            why += " between is down, or mirror is stopped there"
        except OSError as error:
            why = f"the connection broke: {error.strerror or error}"
        except ValueError as error:
            why = f"what it sent is no message: {error}"
        with self._changed:
            self._lost = self._away.get(0) or f"{self.name(0)}: {why}"
            self._changed.notify_all()

    def _hear(self, message: Mapping[str, Any]) -> None:
        if "names" in message:
            self._names = {int(n): str(name) for n, name in message["names"].items()}
        if "beats" in message:
            self._beats = {int(n): beat for n, beat in message["beats"].items()}
        elif "all" in message:
            tables = {int(n): table for n, table in message["tables"].items()}
            missing = {int(n): str(why) for n, why in message["missing"].items()}
            self._all[message["all"]] = Gathered(tables, missing)
        elif "stop" in message:
            self._stops.setdefault(message["stop"], message)
        elif "gone" in message:
            said = {**message["gone"], **message["withdrawn"]}
            self._away = {int(n): str(why) for n, why in said.items() if int(n) != self.node}


def connect(
    master: str,
    port: int,
    *,
    node: int,
    nodes: int,
    digest: str,
    bundle: str,
    job: str,
    source: str,
    patience: float,
    say: Callable[[str], object],
) -> Member:
    """Reach node 0 and be let in.

    digest, bundle: of what is installed here, and its name. job: of a scheduler, else "".
    source: this node's own address to go out from. patience: seconds for node 0 to be there.
    Raises MachineError when it cannot be reached, or says no.
    """
    deadline = time.monotonic() + patience
    told = False
    while True:
        try:
            connection, greeting = _greeted((master, port), source)
            break
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise _unreached(master, port, patience, error) from None
            if not told:
                say(f"waiting for node 0 at {master}, port {port}: {_why(error)}")
                told = True
            time.sleep(_AGAIN)
    if greeting.get("mirror") != PROTOCOL:
        connection.close()
        raise MachineError(
            f"what listens on {master}, port {port} is no mirror verify of this version",
            hint="Is it the same --port on every node, and the same version of mirror?",
        )
    try:
        connection.send(
            {
                "mirror": PROTOCOL,
                "node": node,
                "nodes": nodes,
                "job": job,
                "host": socket.gethostname(),
                "bundle": bundle,
                "digest": digest[:12],
                "proof": proof(digest, str(greeting.get("nonce")), node),
            }
        )
        answer = connection.receive(wire.LARGEST_UNKNOWN) or {}
    except (OSError, ValueError) as error:
        answer = {"refused": _why(error)}
    if answer.get("welcome") != node:
        connection.close()
        reason = shown(str(answer.get("refused") or "it closed the connection"))
        raise MachineError(f"node 0 at {master} does not let this node in: {reason}")
    connection.known()
    return Member(connection, node, nodes, say)


def _greeted(place: tuple[str, int], source: str) -> tuple[Wire, dict[str, Json]]:
    """A connection, and what the other side said first. Raises OSError and ValueError."""
    connection = Wire(socket.create_connection(place, _ATTEMPT, (source, 0)))
    try:
        greeting = connection.receive(wire.LARGEST_UNKNOWN)
        if greeting is None:
            raise ConnectionError("it closed the connection")
        return connection, greeting
    except (OSError, ValueError):
        connection.close()
        raise


def _unreached(master: str, port: int, patience: float, error: Exception) -> MachineError:
    hints = {
        ConnectionRefusedError: "Nothing listens there: is mirror verify running on node 0, with"
        " --node-rank 0 and the same --master and --port? A firewall that rejects looks the same.",
        TimeoutError: "No answer came: a wrong address, or a firewall that drops packets. The"
        " nodes need TCP between them on all ports: NCCL and gloo choose theirs freely.",
    }
    hint = next((text for kind, text in hints.items() if isinstance(error, kind)), "")
    return MachineError(
        f"node 0 at {master}, port {port} was not reached within {human_time(patience)}:"
        f" {_why(error)}",
        hint=hint or "Is --master the address of node 0, and is the network between them up?",
    )


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
