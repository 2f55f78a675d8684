"""Where the nodes meet: node 0 listens, and every node connects, node 0 itself as well.

The room knows nothing of training. It lets in who has the same bundle, passes the heartbeats round,
hands out what all have given once all have given it, and says who is gone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.errors import MachineError
from mirror.verify.nodes import wire
from mirror.verify.nodes.wire import Wire

PROTOCOL = 1
#: Connections that have not said who they are, at most; further ones are closed.
_STRANGERS = 32
#: Letters of a name that a node gives.
_NAME = 100


def proof(digest: str, nonce: str, node: int) -> str:
    """That a node has the bundle of this digest: nobody else can answer the nonce."""
    return hmac.new(digest.encode(), f"{nonce} {node}".encode(), hashlib.sha256).hexdigest()


class Room:
    """Open from its making until `close`.

    Raises MachineError when the port is taken.
    """

    def __init__(self, address: str, port: int, *, nodes: int, digest: str, job: str) -> None:
        self._nodes, self._digest, self._job = nodes, digest, job
        self._changed = threading.Condition()
        self._wires: dict[int, Wire] = {}
        self._names: dict[int, str] = {}
        self._strangers: set[Wire] = set()
        self._beats: dict[int, Json] = {}
        self._given: dict[str, dict[int, Json]] = {}
        self._gone: dict[int, str] = {}  # node -> why; it gives nothing any more
        self._withdrawn: dict[int, str] = {}  # node -> why; it gives its report and nothing else
        self._open = True
        self._listener = _listen(address, port)
        for work in (self._let_in, self._beat):
            threading.Thread(target=work, daemon=True).start()

    def close(self, patience: float = 5.0) -> None:
        """Once every node has said goodbye, or after `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._wires, patience)
            self._open = False
            wires = [*self._wires.values(), *self._strangers]
        self._listener.close()
        for each in wires:
            each.close()

    def _let_in(self) -> None:
        while self._open:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if not self._open:
                    return
                time.sleep(0.1)  # such as: too many open files
                continue
            with contextlib.suppress(OSError):
                stranger = Wire(connection)
                with self._changed:
                    full = len(self._strangers) >= _STRANGERS
                    if not full:
                        self._strangers.add(stranger)
                if full:
                    stranger.close()
                    continue
                threading.Thread(target=self._serve, args=(stranger,), daemon=True).start()

    def _serve(self, peer: Wire) -> None:
        """One connection, from hello to goodbye."""
        node: int | None = None
        why = "its connection was closed: mirror ended there without a word"
        try:
            nonce = secrets.token_hex(16)
            peer.send({"mirror": PROTOCOL, "nonce": nonce})
            hello = peer.receive(wire.LARGEST_UNKNOWN)
            with self._changed:
                refusal = self._judge(hello or {}, nonce)
                if not refusal and hello:
                    number = int(str(hello["node"]))
                    # Before anybody else can send it something: it takes the first line for this.
                    peer.send({"welcome": number})
                    self._names[number] = shown(f"{hello.get('host')}, {peer.peer}"[:_NAME])
                    self._wires[number] = peer
                    node = number
                self._strangers.discard(peer)
            if node is None:
                peer.send({"refused": refusal})
                return
            peer.known()
            while message := peer.receive():
                if "bye" in message:
                    why = str(message["bye"])
                    break
                self._hear(node, message)
        except TimeoutError:
            why = f"nothing was heard of it for {wire.SILENCE:.0f} s: the machine or the network"
            why += " between is down, or mirror is stopped there"
        except OSError as error:
            why = f"its connection broke: {error.strerror or error}"
        except ValueError as error:
            why = f"what it sent is no message: {error}"
        finally:
            peer.close()
            with self._changed:
                self._strangers.discard(peer)
                if node is not None:
                    del self._wires[node]
                    self._beats.pop(node, None)
                    self._changed.notify_all()
            if node is not None:
                self._left(node, why)

    def _judge(self, hello: Mapping[str, Any], nonce: str) -> str:
        """Why somebody is not let in; empty when it is."""
        node, nodes = hello.get("node"), hello.get("nodes")
        if hello.get("mirror") != PROTOCOL or type(node) is not int or type(nodes) is not int:
            return "this is mirror verify's meeting of nodes, of another version"
        if hello.get("job") != self._job:
            return "the nodes of another job meet here: give each job its own --port"
        if nodes != self._nodes or not 0 <= node < nodes:
            return f"node 0 was started with --nodes {self._nodes}; this is node {node} of {nodes}"
        if node in self._wires:
            return (
                f"node {node} is here already ({self._names[node]}): each has its own --node-rank"
            )
        if node in self._gone:
            return f"node {node} has left: {self._gone[node]}"
        if hmac.compare_digest(str(hello.get("proof")), proof(self._digest, nonce, node)):
            return ""
        other = shown(str(hello.get("digest"))[:12])
        if other == self._digest[:12]:
            return "the proof of having the bundle is wrong"
        host = shown(str(hello.get("host"))[:_NAME])
        why = f"it has bundle {shown(str(hello.get('bundle'))[:_NAME])}, digest {other}...;"
        why += f" node 0 has digest {self._digest[:12]}..."
        self._names[node] = host
        threading.Thread(target=self._left, args=(node, why), daemon=True).start()
        return f"the bundles differ: node {node} ({host}): {why}"

    def _hear(self, node: int, message: Mapping[str, Json]) -> None:
        if "beat" in message:
            with self._changed:
                self._beats[node] = message["beat"]
        elif "give" in message:
            name = str(message["give"])
            with self._changed:
                self._given.setdefault(name, {})[node] = message.get("table")
                if name == REPORT:
                    self._withdrawn.setdefault(node, "it has come to its end")
            self._hand_out()
        elif "stop" in message:
            self._tell_all(dict(message) | {"node": node})
        elif "withdraw" in message:
            with self._changed:
                self._withdrawn[node] = str(message["withdraw"])
            self._say_who_is_missing()

    def _left(self, node: int, why: str) -> None:
        with self._changed:
            self._gone.setdefault(node, why)
        self._say_who_is_missing()

    def _say_who_is_missing(self) -> None:
        with self._changed:
            gone: dict[str, Json] = {str(n): why for n, why in self._gone.items()}
            withdrawn: dict[str, Json] = {str(n): why for n, why in self._withdrawn.items()}
        self._tell_all({"gone": gone, "withdrawn": withdrawn})
        self._hand_out()

    def _hand_out(self) -> None:
        """What all have given that still can, to everybody."""
        with self._changed:
            ready = []
            for name, tables in list(self._given.items()):
                missing = dict(self._gone)
                if name != REPORT:
                    missing |= self._withdrawn
                if len(tables.keys() | missing.keys()) == self._nodes:
                    del self._given[name]
                    ready.append(
                        (name, tables, {n: w for n, w in missing.items() if n not in tables})
                    )
        for name, tables, missing in ready:
            said: dict[str, Json] = {str(n): why for n, why in missing.items()}
            given = {str(n): table for n, table in tables.items()}
            self._tell_all({"all": name, "tables": given, "missing": said})

    def _beat(self) -> None:
        while self._open:
            with self._changed:
                beats = {str(n): beat for n, beat in self._beats.items()}
            self._tell_all({"beats": beats})
            time.sleep(wire.BEAT)

    def _tell_all(self, message: Mapping[str, Json]) -> None:
        with self._changed:
            wires = list(self._wires.values())
            names: dict[str, Json] = {str(n): name for n, name in self._names.items()}
        for each in wires:
            try:
                each.send({**message, "names": names})
            except OSError:
                each.close()  # whoever receives from it hears of that


#: The gathering of reports: those take part, too, that have withdrawn from the training.
REPORT = "report"


def _listen(address: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((address, port), backlog=_STRANGERS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise MachineError(
                f"port {port} of {address} is taken: something listens there already",
                hint="Give every node another one, such as --port "
                f"{port + 1}; see who has it: ss -ltnp 'sport = :{port}'",
            ) from None
        why = os.strerror(error.errno) if error.errno else error
        raise MachineError(f"mirror cannot listen on {address}, port {port}: {why}") from None
    listener.settimeout(0.5)
    return listener
