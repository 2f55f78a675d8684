"""Several nodes: the meeting room on the loopback, Slurm's variables, the order of problems."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mirror.errors import MachineError, UsageError
from mirror.verify import accelerate
from mirror.verify.accelerate import Rendezvous
from mirror.verify.nodes import Group, asked, interfaces, run, slurm, under_slurm, wire
from mirror.verify.nodes.interfaces import Interface
from mirror.verify.nodes.member import Gathered, Member, connect
from mirror.verify.nodes.room import REPORT, Room
from mirror.verify.ranks import Phase

DIGEST = "d" * 64


class Meeting:
    """A room on the loopback, and who is in it."""

    def __init__(self, stack: ExitStack, nodes: int) -> None:
        self.nodes, self.port = nodes, accelerate.free_port()
        self._stack = stack
        room = Room("127.0.0.1", self.port, nodes=nodes, digest=DIGEST, job="")
        stack.callback(room.close, 1.0)

    def join(self, node: int, **other: Any) -> Member:
        asked = {"nodes": self.nodes, "digest": DIGEST, "job": "", **other}
        member = connect(
            *("127.0.0.1", self.port),
            node=node,
            bundle="small 1",
            source="127.0.0.1",
            patience=5.0,
            say=lambda text: None,
            **asked,
        )
        self._stack.callback(member.leave)
        return member


@pytest.fixture
def meet() -> Iterator[Callable[[int], Meeting]]:
    with ExitStack() as stack:
        yield lambda nodes: Meeting(stack, nodes)


def at_once(*work: Callable[[], Gathered]) -> list[Gathered]:
    """What each gives, all at the same time."""
    found: dict[int, Gathered] = {}

    def keep(number: int, one: Callable[[], Gathered]) -> None:
        found[number] = one()

    threads = [Thread(target=keep, args=item) for item in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[number] for number in range(len(work))]


def test_the_first_that_a_node_hears_is_that_it_is_welcome(
    meet: Callable[[int], Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is told to all while node 0's machine is busy with something else."""
    send = wire.Wire.send

    def later(self: wire.Wire, message: Mapping[str, Any]) -> None:
        if "welcome" in message:
            time.sleep(0.1)
        send(self, message)

    monkeypatch.setattr(wire.Wire, "send", later)
    monkeypatch.setattr(wire, "BEAT", 0.01)
    meeting = meet(2)
    assert [meeting.join(node).node for node in (0, 1)] == [0, 1]


def wait(until: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_everybody_gets_what_everybody_gave(meet: Callable[[int], Meeting]) -> None:
    room = meet(3)
    members = [room.join(node) for node in range(3)]
    gather = [lambda m=m: m.gather("x", {"from": m.node}, 30) for m in members]
    for found in at_once(*gather):
        assert found.tables == {node: {"from": node} for node in range(3)}
        assert not found.missing
    assert members[0].name(2) == f"node 2 ({socket.gethostname()}, 127.0.0.1)"


def test_who_leaves_is_missing_with_its_reason_and_stops_the_others(
    meet: Callable[[int], Meeting],
) -> None:
    room = meet(2)
    first, second = room.join(0), room.join(1)
    assert first.stopped("run 1") == ""
    second.leave("it was interrupted")
    found = first.gather("x", {}, 30)
    assert found.missing == {1: "it was interrupted"}
    assert first.stopped("run 1").endswith("it was interrupted")


def test_who_withdraws_from_training_still_gives_its_report(
    meet: Callable[[int], Meeting],
) -> None:
    room = meet(2)
    first, second = room.join(0), room.join(1)
    second.withdraw("no torch")
    assert first.gather("run 1", {}, 30).missing == {1: "no torch"}
    ours, theirs = at_once(
        lambda: first.gather(REPORT, {"of": 0}, 30), lambda: second.gather(REPORT, {"of": 1}, 30)
    )
    assert ours.tables == theirs.tables == {0: {"of": 0}, 1: {"of": 1}}


def test_who_says_nothing_for_too_long_is_gone(
    meet: Callable[[int], Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "SILENCE", 3.0)
    room = meet(2)
    first = room.join(0)
    monkeypatch.setattr(Member, "_send_beats", lambda member: None)
    room.join(1)
    missing = first.gather("x", {}, 30).missing
    assert "nothing was heard of it for 3 s" in missing[1]


def test_where_the_ranks_of_other_nodes_are_is_known(meet: Callable[[int], Meeting]) -> None:
    room = meet(2)
    first, second = room.join(0), room.join(1)
    second.tell({1: Phase("step", 7, 4711, "sending"), 2: None})
    wait(first.elsewhere)
    assert first.elsewhere() == {1: Phase("step", 7, 0, "sending")}


def test_a_stop_reaches_all_and_says_who_failed(meet: Callable[[int], Meeting]) -> None:
    room = meet(2)
    first, second = room.join(0), room.join(1)
    second.stop("run 1", hang=False)
    wait(lambda: first.stopped("run 1"))
    assert first.stopped("run 1").startswith("node 1")
    second.stop("run 2", hang=True)
    wait(lambda: first.stopped("run 2"))
    assert first.stopped("run 2") == "hang"
    assert first.stopped("run 3") == ""


@pytest.mark.parametrize(
    ("node", "other", "expected"),
    [
        (0, {}, "node 0 is here already"),
        (1, {"nodes": 3}, "started with --nodes 2; this is node 1 of 3"),
        (2, {}, "started with --nodes 2; this is node 2 of 2"),
        (1, {"job": "slurm 7.0"}, "the nodes of another job meet here"),
        (1, {"digest": "e" * 64}, "digest eeeeeeeeeeee...; node 0 has digest dddddddddddd..."),
        (1, {"digest": "d" * 63 + "e"}, "the proof of having the bundle is wrong"),
    ],
)
def test_who_does_not_belong_is_told_why(
    meet: Callable[[int], Meeting], node: int, other: dict[str, Any], expected: str
) -> None:
    room = meet(2)
    room.join(0)
    with pytest.raises(MachineError, match="does not let this node in") as caught:
        room.join(node, **other)
    assert expected in str(caught.value)


def test_a_line_without_end_and_tables_that_are_none_are_refused() -> None:
    for data in (b"x" * 5000, b"[1]\n", b"no json\n", b"[" * 4000 + b"\n"):
        ours, theirs = socket.create_server(("127.0.0.1", 0)), socket.socket()
        with ours, theirs:
            theirs.connect(ours.getsockname())
            line = wire.Wire(ours.accept()[0])
            theirs.sendall(data)
            with pytest.raises(ValueError, match=r"."):
                line.receive(wire.LARGEST_UNKNOWN)
            line.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[01-02,07],login1", ["gpu01", "gpu02", "gpu07", "login1"]),
        ("a[1-2]b[08-09].x", ["a1b08.x", "a1b09.x", "a2b08.x", "a2b09.x"]),
        ("gpu[098-101]", ["gpu098", "gpu099", "gpu100", "gpu101"]),
        ("a-1,b-2", ["a-1", "b-2"]),
    ],
)
def test_slurms_lists_of_hosts_are_expanded(text: str, expected: list[str]) -> None:
    assert slurm.expand(text) == expected


@pytest.mark.parametrize("text", ["", "a,,b", ",a", "a[", "a[1", "a[x]", "a[1-999999999]", "a b"])
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        slurm.expand(text)


STEP = {
    "SLURM_JOB_ID": "12345",
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "10.0.0.[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}


def test_slurms_variables_say_who_is_who_and_each_job_has_a_port_of_its_own() -> None:
    expected = Group(2, 1, "10.0.0.1", 22345, "", "slurm 12345.0")
    assert under_slurm(STEP) == expected
    given = under_slurm(STEP, master="10.1.1.1", port=5000, interface="ib0")
    assert given == Group(2, 1, "10.1.1.1", 5000, "ib0", "slurm 12345.0")
    alone = {"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_STEP_NODELIST": "a"}
    assert under_slurm({**STEP, **alone, "SLURM_STEP_TASKS_PER_NODE": "1"}) is None


@pytest.mark.parametrize(
    ("change", "error", "expected"),
    [
        ({"SLURM_STEP_ID": None}, UsageError, "this is a job's script or shell, not a Slurm job"),
        ({"SLURM_STEP_TASKS_PER_NODE": "4,1"}, UsageError, "one task a node is needed"),
        ({"SLURM_STEP_NODELIST": "a[1-3]"}, MachineError, "node 1 of 2, but Slurm's list"),
        ({"SLURM_NODEID": "x"}, MachineError, "Slurm's variables cannot be read"),
        ({"SLURM_STEP_NODELIST": "127.0.0.[1-2]"}, MachineError, "127.0.0.1 on this node, the lo"),
    ],
)
def test_what_slurm_does_not_say_is_named(
    change: dict[str, str | None], error: type[Exception], expected: str
) -> None:
    environ = {key: value for key, value in {**STEP, **change}.items() if value is not None}
    with pytest.raises(error) as caught:
        under_slurm(environ)
    assert expected in str(caught.value)


def test_options_for_several_machines_belong_together() -> None:
    assert asked(None, None, None, None, None) is None
    assert asked(1, 0, "10.0.0.1", None, None) is None
    assert asked(2, 1, "10.0.0.1", None, "ib0") == Group(2, 1, "10.0.0.1", 29512, "ib0")
    for rank, master in ((2, "10.0.0.1"), (None, "10.0.0.1"), (0, None), (0, "gpu-a")):
        with pytest.raises(UsageError):
            asked(2, rank, master, None, None)
    with pytest.raises(UsageError, match="--interface is for several machines"):
        asked(None, None, None, None, "ib0")


def test_the_launcher_meets_the_others_at_an_address_with_all_processes_counted(
    tmp_path: Path,
) -> None:
    there = Rendezvous(nodes=3, node=2, address="10.0.0.1", port=4711)
    line = accelerate.line(
        Path("/env/bin/python"), 1, precision="no", folder=tmp_path, rendezvous=there
    )
    said = dict(itertools.pairwise(line))
    assert said["--num_processes"] == said["--num_machines"] == "3"
    assert said["--machine_rank"] == "2"
    assert said["--main_process_ip"] == "10.0.0.1"
    assert said["--main_process_port"] == "4711"
    assert said["--rdzv_backend"] == "static"
    assert "--same_network" in line
    config = json.loads((tmp_path / "accelerate.json").read_text())
    assert (config["num_processes"], config["num_machines"]) == (3, 3)


def test_exit_codes_are_those_of_the_ranks_of_this_node(tmp_path: Path) -> None:
    """As torch writes it for rank 3, the second one of node 1."""
    log = tmp_path / "launch.log"
    log.write_text(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-12-01_06:00:00\n"
        "  host      : b\n  rank      : 3 (local_rank: 1)\n  exitcode  : -9 (pid: 1)\n"
    )
    assert accelerate.exit_codes(log) == {1: -9}


def test_the_interfaces_of_this_machine_are_known_with_their_addresses() -> None:
    assert "127.0.0.1" in interfaces.addresses()["lo"]
    with pytest.raises(UsageError, match="is no interface of this machine"):
        interfaces.choose("192.0.2.1", is_master=False, given="no-such")
    with pytest.raises(UsageError, match="is no address of this machine"):
        interfaces.choose("192.0.2.1", is_master=True)


def test_a_users_own_choice_of_interface_stays(meet: Callable[[int], Meeting]) -> None:
    member = meet(2).join(0)
    part = run.Run("run 1", member, Interface("eth0", "10.0.0.1"), 2, 4711, "10.0.0.1")
    assert part.environ({}) == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert part.environ({"NCCL_SOCKET_IFNAME": "ib0"})["NCCL_SOCKET_IFNAME"] == "ib0"
    assert (part.world, part.first) == (4, 0)


def test_the_rank_that_was_killed_comes_before_those_that_died_of_it(
    meet: Callable[[int], Meeting],
) -> None:
    room = meet(2)
    members = [room.join(0), room.join(1)]
    parts = [run.Run("run 1", m, Interface("eth0", "10.0.0.1"), 1, 1, "10.0.0.1") for m in members]
    followed = "rank 0 left no result; it ended with exit code 1\n  Connection closed by peer"
    killed = "rank 1 left no result; it was killed by signal 9 (SIGKILL)\n  "
    found: dict[int, list[str]] = {}

    def end(node: int, problem: str) -> Gathered:
        found[node] = parts[node].end([], [problem], None)[1]
        return Gathered({})

    at_once(lambda: end(0, followed), lambda: end(1, killed))
    assert found[0] == found[1] == [killed, followed]
