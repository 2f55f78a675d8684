"""Several machines verify together: real ranks on two hosts, and what goes wrong between them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mirror.verify import ranks
from tests import hosts as machines
from tests.hosts import ADDRESSES, CABLE, Host

pytestmark = pytest.mark.skipif(bool(machines.reason()), reason=machines.reason() or "-")

REPOSITORY = Path(__file__).resolve().parents[2]
#: Seconds for anything to end; this machine may be busy with other tests.
LONG = 400.0
#: Steps that no test waits for.
ENDLESS = 1_000_000


@pytest.fixture(scope="module")
def two() -> Iterator[Sequence[Host]]:
    with machines.two_hosts() as found:
        yield found


@pytest.fixture
def hosts(two: Sequence[Host]) -> Iterator[Sequence[Host]]:
    """Two hosts; nothing may be left on either."""
    yield two
    for host in two:
        host.run("ip", "link", "set", CABLE, "up")
        if shutil.which("nft"):
            host.run("nft", "flush", "ruleset")
    assert wait(lambda: not [p for host in two for p in host.processes()], 15), [
        host.processes() for host in two
    ]


@dataclass
class Pair:
    """The two nodes' processes, and what they leave in their folders."""

    folder: Path
    hosts: Sequence[Host]
    running: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, node: int, *, group: dict[str, Any] | None = None, **asked: Any) -> None:
        said = {"nodes": 2, "node": node, "master": ADDRESSES[0], **(group or {})}
        table = {"folder": str(self.folder / f"node{node}"), "group": said, **asked}
        with open(self.folder / f"node{node}.log", "w") as log:
            self.running[node] = self.hosts[node].start(
                *(sys.executable, "-m", "tests.node", json.dumps(table)),
                cwd=REPOSITORY,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def both(self, **asked: Any) -> None:
        for node in (0, 1):
            self.start(node, **asked)

    def outcome(self, node: int) -> dict[str, Any]:
        self.running[node].wait(LONG)
        file = self.folder / f"node{node}" / "outcome.json"
        assert file.exists(), self.said(node)
        return dict(json.loads(file.read_text()))

    def said(self, node: int) -> list[str]:
        """What a node has printed, and what came of it."""
        files = [self.folder / f"node{node}.log", self.folder / f"node{node}" / "outcome.json"]
        return [file.read_text() for file in files if file.exists()]

    def pid(self, rank: int, node: int, step: int = 3) -> int:
        """Of a rank, once it has done so many steps."""
        folder = self.folder / f"node{node}" / "multi"

        def there() -> bool:
            phase = ranks.read_phase(folder, rank)
            return phase is not None and phase.name == "step" and (phase.step or 0) > step

        wait(lambda: there() or self.running[node].poll() is not None, LONG)
        assert there(), self.said(node)
        phase = ranks.read_phase(folder, rank)
        assert phase
        return phase.pid


@pytest.fixture
def pair(tmp_path: Path, hosts: Sequence[Host]) -> Iterator[Pair]:
    found = Pair(tmp_path, hosts)
    yield found
    for process in found.running.values():
        process.kill()
        process.wait()


def wait(until: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (done := until()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(done)


def test_two_nodes_of_two_ranks_train_as_one_group_and_each_has_the_whole_report(
    pair: Pair,
) -> None:
    pair.both(processes=2, runs=["multi", "again"])
    first, second = pair.outcome(0), pair.outcome(1)
    assert first["problems"] == []
    assert [row[:2] for row in first["ranks"]] == [[n, 4] for n in range(4)] * 2
    assert len({row[3] for row in first["ranks"]}) == 1  # the same loss on every rank
    assert first["ranks"] == second["ranks"]
    assert first["checks"] == [
        [f"node 1 ({socket.gethostname()}, 10.99.0.2)", "pass", "multi pass"]
    ]


def test_a_killed_rank_ends_the_run_everywhere_and_is_named_first(pair: Pair) -> None:
    pair.both(processes=2, steps=ENDLESS)
    os.kill(pair.pid(3, node=1), signal.SIGKILL)
    for node in (0, 1):
        found = pair.outcome(node)
        first = found["problems"][0].splitlines()[0]
        assert first.startswith(f"rank 3 of node 1 ({socket.gethostname()}, 10.99.0.2) left no")
        assert "killed by signal 9" in first
        assert found["ranks"] == []


def test_a_stopped_rank_is_named_by_the_watchdogs_of_both_nodes(pair: Pair) -> None:
    pair.both(steps=ENDLESS, stall=15)
    pid = pair.pid(1, node=1)
    os.kill(pid, signal.SIGSTOP)
    for node in (0, 1):
        headline, culprit, *stacks = pair.outcome(node)["problems"]
        assert headline == "no rank has moved on for 15 s"
        assert culprit == (
            f"rank 1 of node 1 ({socket.gethostname()}, 10.99.0.2) hangs:"
            f" its process {pid} is stopped"
        )
        assert any(line.startswith("rank 0 of node 0") and ".py" in line for line in stacks)


def test_a_pulled_cable_ends_both_nodes_and_each_names_the_other(pair: Pair) -> None:
    pair.both(steps=ENDLESS)
    pair.pid(1, node=1)
    pair.hosts[1].pull_the_cable()
    mine, theirs = pair.outcome(0), pair.outcome(1)
    assert mine["problems"][0].startswith("node 1 (")
    assert "is gone, and its rank 1 left nothing" in mine["problems"][0]
    assert "nothing was heard of it for 20 s" in mine["problems"][0]
    assert theirs["problems"][0].startswith("node 0 (")
    assert "nothing was heard of it for 20 s" in theirs["problems"][0]
    assert mine["checks"][0][1] == "fail"  # node 1 left no report


def test_when_mirror_is_killed_on_one_node_the_other_ends_and_says_so(pair: Pair) -> None:
    pair.both(steps=ENDLESS)
    pid = pair.pid(1, node=1)
    pair.running[1].kill()
    os.kill(pid, signal.SIGKILL)
    assert "mirror ended there without a word" in pair.outcome(0)["problems"][0]
    for line in pair.hosts[1].processes():  # nobody is left there to end its launcher
        os.kill(int(line.split()[0]), signal.SIGKILL)


def test_ctrl_c_on_one_node_ends_the_other_with_the_reason(pair: Pair) -> None:
    pair.both(steps=ENDLESS)
    pair.pid(0, node=0)
    pair.running[0].send_signal(signal.SIGINT)
    assert pair.outcome(0) == {"error": "interrupted"}
    assert "it was interrupted" in pair.outcome(1)["problems"][0]


def test_a_node_that_does_not_come_is_named(pair: Pair) -> None:
    pair.start(0, patience=4)
    said = pair.outcome(0)["error"]
    assert "node 1: it did not come within 4.00 s, not here yet" in said
    assert "--node-rank" in said


def test_without_node_0_the_others_say_where_they_looked_and_how_it_failed(pair: Pair) -> None:
    pair.start(1, patience=3)
    said = pair.outcome(1)["error"]
    assert "node 0 at 10.99.0.1, port 29512 was not reached within 3.00 s" in said
    assert "Connection refused" in said
    assert "running on node 0" in said


def test_a_wrong_master_is_named_on_every_node(pair: Pair) -> None:
    pair.start(0, group={"master": "10.99.0.9"}, patience=3)
    pair.start(1, group={"master": "10.99.0.9"}, patience=3)
    assert "--master 10.99.0.9 is no address of this machine" in pair.outcome(0)["error"]
    assert f"{CABLE}: 10.99.0.1" in pair.outcome(0)["error"]
    assert "10.99.0.9, port 29512 was not reached" in pair.outcome(1)["error"]


def test_the_address_of_a_node_that_is_not_node_0_is_no_master(pair: Pair) -> None:
    pair.start(1, group={"master": ADDRESSES[1]}, patience=3)
    assert "is this machine's own address, and this is not node 0" in pair.outcome(1)["error"]


def test_a_taken_port_is_named(pair: Pair) -> None:
    listen = "import socket, time; s = socket.create_server(('', 29512)); time.sleep(600)"
    other = pair.hosts[0].start(sys.executable, "-c", listen)
    try:
        taken = "ss", "-ltn", "sport = :29512"
        assert wait(lambda: "29512" in pair.hosts[0].run(*taken), 30)
        pair.start(0, patience=3)
        assert "port 29512 of 10.99.0.1 is taken" in pair.outcome(0)["error"]
        pair.start(1, patience=3)  # it is let in by nobody: what listens there says nothing
        assert "was not reached" in pair.outcome(1)["error"]
    finally:
        other.kill()
        other.wait()


def test_nodes_with_different_bundles_are_told_apart_at_once(pair: Pair) -> None:
    pair.start(0, digest="a" * 64)
    pair.start(1, digest="b" * 64)
    for node in (0, 1):
        said = pair.outcome(node)["error"]
        assert "it has bundle small 1, digest bbbbbbbbbbbb..." in said
        assert "node 0 has digest aaaaaaaaaaaa..." in said


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"processes": 2}, "has 2 processes, node 0 ({host}, 10.99.0.1) 1 process: it must be"),
        ({"facts": {"torch": "2.9"}}, "has torch 2.9, node 0 ({host}, 10.99.0.1) None"),
        ({"withdraw": "stage environment failed"}, "is not there: stage environment failed"),
        ({"runs": []}, "is not there: it has come to its end"),
        ({"runs": ["fsdp"]}, "has the run fsdp, node 0 ({host}, 10.99.0.1) multi"),
    ],
)
def test_what_keeps_one_node_from_a_run_keeps_all_and_is_named(
    pair: Pair, asked: dict[str, Any], expected: str
) -> None:
    pair.start(0)
    pair.start(1, **asked)
    problem = pair.outcome(0)["problems"][0]
    assert expected.format(host=socket.gethostname()) in problem
    assert problem.startswith(f"node 1 ({socket.gethostname()}, 10.99.0.2)")
    assert pair.outcome(1).get("ranks", []) == []


@pytest.mark.skipif(not shutil.which("nft"), reason="nftables is not installed")
def test_a_firewall_that_opens_mirrors_port_alone_is_found_before_anything_hangs(
    pair: Pair,
) -> None:
    rules = "tcp dport 1024-65535 tcp dport != 29512 ct state new drop"
    pair.hosts[0].run("nft", "add table inet wall")
    hook = "{ type filter hook input priority 0; }"
    pair.hosts[0].run("nft", f"add chain inet wall input {hook}")
    pair.hosts[0].run("nft", f"add rule inet wall input iifname {CABLE} {rules}")
    pair.both()
    for node in (0, 1):
        said = pair.outcome(node)["error"]
        assert "10.99.0.2) does not reach node 0" in said
        assert "gives no answer: a firewall that drops packets?" in said


@pytest.mark.skipif(not shutil.which("nft"), reason="nftables is not installed")
def test_large_packets_that_are_lost_on_the_way_are_found(pair: Pair) -> None:
    """As with jumbo frames on the hosts, and a switch between that does not take them."""
    pair.hosts[0].run("nft", "add table inet switch")
    hook = "{ type filter hook input priority 0; }"
    pair.hosts[0].run("nft", f"add chain inet switch input {hook}")
    lost = f"iifname {CABLE} meta length > 1200 drop"
    pair.hosts[0].run("nft", f"add rule inet switch input {lost}")
    pair.both()
    said = pair.outcome(0)["error"]
    assert "10.99.0.2) does not reach node 0" in said
    assert "256 KiB do not get through: are packets larger (ip link: mtu)" in said


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("eth9", "--interface eth9 is no interface of this machine"),
        ("lo", "--interface lo is the loopback: no other machine is on it"),
    ],
)
def test_an_interface_that_cannot_be_is_named(pair: Pair, given: str, expected: str) -> None:
    pair.start(1, group={"interface": given}, patience=3)
    said = pair.outcome(1)["error"]
    assert expected in said
    if given == "eth9":
        assert f"{CABLE}: 10.99.0.2" in said


def test_strangers_at_the_port_are_not_heard_and_keep_nobody_out(pair: Pair) -> None:
    """Port scanners, and whoever speaks the language without having the bundle."""
    pair.start(0, patience=60)
    address = repr((ADDRESSES[0], 29512))
    pretend = f"""
import json, socket, time
def call(data):
    s = socket.create_connection({address}); f = s.makefile("rb"); f.readline()
    s.sendall(data); return f.readline()
while True:
    try: call(b"x"); break
    except ConnectionRefusedError: time.sleep(0.2)
    except OSError: break
hello = {{"mirror": 1, "node": 1, "nodes": 2, "job": "", "digest": "d" * 12, "proof": "0" * 64}}
print(call(json.dumps(hello).encode() + bytes([10])).decode())
for data in (b"GET / HTTP/1.1" + bytes([13, 10]), b"[]" + bytes([10]), b"[" * 4000 + bytes([10])):
    try: call(data)
    except OSError: pass
try: call(b"9" * 100000)
except OSError: pass
"""
    stranger = pair.hosts[1].start(
        sys.executable, "-c", pretend.strip(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = stranger.communicate(timeout=LONG)
    assert "the proof of having the bundle is wrong" in said
    pair.start(1, withdraw="nothing more is wanted here")
    assert pair.outcome(1)["checks"]
    assert "nothing more is wanted here" in pair.outcome(0)["problems"][0]
