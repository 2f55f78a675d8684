"""What NCCL's log says it uses, on logs of the versions 2.18 to 2.29 (tests/nccl)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from mirror.verify import transports
from mirror.verify.transports import Communicator, Link, Transports

LOGS = Path(__file__).resolve().parents[1] / "nccl"


def log(name: str) -> Transports:
    return transports.parse((LOGS / f"{name}.log").read_text(encoding="utf-8"))


def world(name: str) -> Communicator:
    found = log(name).world
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "version", "names", "words"),
    [
        ("2.18.5-2-a6000-nvlink-bridge", "2.18.5", ("P2P/IPC",), "P2P/IPC on 4 channels"),
        (
            "2.27.5-4-rtx5090-no-peers-rank0",
            "2.27.5",
            ("SHM/direct/direct",),
            "SHM/direct/direct on 2 channels",
        ),
        ("2.28.9-2-h200-nvlink", "2.28.9", ("P2P/CUMEM",), "P2P/CUMEM on 16 channels"),
        ("2.29.2-2-gpus-sockets", "2.29.2", ("NET/Socket",), "NET/Socket on 2 channels"),
        (
            "2.22.3-2-hosts-infiniband-nvls",
            "2.22.3",
            ("NET/IB", "NVLS", "P2P/CUMEM"),
            "NET/IB on 2 channels, NVLS on 16 channels, P2P/CUMEM on 2 channels",
        ),
    ],
)
def test_the_transports_of_every_version_are_named(
    name: str, version: str, names: tuple[str, ...], words: str
) -> None:
    assert log(name).version == version
    assert world(name).names == names
    assert str(world(name)) == words


def test_ranks_of_one_communicator_are_put_together_from_their_own_logs() -> None:
    found = log("2.28.9-2-h200-nvlink")
    assert len(found.communicators) == 1
    comm = found.communicators[0]
    assert (comm.ranks, comm.hosts, comm.peers) == (2, 1, True)
    assert [(link.source, link.target, link.channels) for link in comm.links] == [
        (0, 1, 16),
        (1, 0, 16),
    ]
    assert comm.rings == ((0, 1),)
    assert comm.tree == ((1, 0),)
    assert comm.channels == {"coll": 16, "collnet": 0, "nvls": 0, "p2p": 32}
    assert found.settings["NCCL_NVLS_ENABLE"] == "0"
    assert found.cuda == "13.0"


def test_a_pair_is_told_from_the_world_and_its_gpus_are_those_of_the_driver() -> None:
    pair, everybody = log("2.27.5-4-rtx5090-no-peers-rank0").communicators
    assert (pair.ranks, everybody.ranks) == (2, 4)
    assert [(link.source_gpu, link.target_gpu) for link in pair.links] == [("0", "3")]
    assert everybody.rings == ((0, 1, 2, 3),)
    assert everybody.peers is False


def test_sends_are_told_from_collectives_and_a_network_link_is_counted_once() -> None:
    found = log("2.29.2-2-gpus-sockets")
    assert found.network == "Socket"
    assert found.settings == {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert found.world is not None
    assert found.world.links == (
        Link(0, 1, "0", "1", "NET", "Socket", direct=False, sends=False, channels=2),
        Link(0, 1, "0", "1", "NET", "Socket", direct=False, sends=True, channels=2),
        Link(1, 0, "1", "0", "NET", "Socket", direct=False, sends=False, channels=2),
        Link(1, 0, "1", "0", "NET", "Socket", direct=False, sends=True, channels=2),
    )


def test_hosts_gpudirect_and_rings_through_two_machines_are_read() -> None:
    comm = world("2.22.3-2-hosts-infiniband-nvls")
    assert (comm.ranks, comm.hosts) == (16, 2)
    assert all(link.direct for link in comm.links if link.transport == "NET")
    assert len(comm.rings) == 2
    assert sorted(comm.rings[1]) == list(range(16))
    assert comm.tree == ((8, 0),)


def test_warnings_are_kept_without_their_prefix() -> None:
    found = log("2.26.2-shm-too-small")
    assert len(found.warnings) == 2
    assert found.warnings[0].startswith("Error: failed to extend /dev/shm/nccl-")
    assert found.world is not None
    assert (found.world.ranks, str(found.world)) == (2, "no transport named")


def test_lines_in_a_users_own_output_are_found_and_old_wordings_understood() -> None:
    found = transports.parse(
        "epoch 3, loss 0.5\n"
        "[rank1]: NCCL INFO Channel 00 : 1[89000] -> 0[3d000] via direct shared memory\n"
        "[1,0]<stdout>:h:7:9 [0] NCCL INFO Ring 01 : 0[3d000] -> 1[89000] via P2P/IPC/read\n"
        "[1,0]<stdout>:h:7:9 [0] NCCL INFO comm 0x7f rank 0 nranks 2 cudaDev 0 - Init COMPLETE\n"
    )
    assert {link.name for comm in found.communicators for link in comm.links} == {
        "SHM/direct/direct",
        "P2P/IPC",
    }
    assert found.world is not None
    assert found.world.ranks == 2


def test_the_last_of_equal_communicators_is_the_world() -> None:
    line = "h:1:2 [0] NCCL INFO f comm 0x1 rank 0 nranks 2 cudaDev 0 commId 0x{} - Init START\n"
    link = "h:1:2 [0] NCCL INFO Channel 00{} : 0[0] -> 1[1] via {}\n"
    text = line.format(1) + link.format("/0", "P2P/CUMEM") + line.format(2)
    found = transports.parse(text + link.format("", "SHM/direct/direct"))
    assert found.world is not None
    assert found.world.names == ("SHM/direct/direct",)


def test_nothing_is_made_of_nothing_and_a_hostile_log_costs_no_time() -> None:
    assert transports.parse("").communicators == ()
    assert transports.parse("NCCL INFO \n\x00\x1b[2J NCCL WARN").world is None
    begin = time.monotonic()
    transports.parse("a" * 3_000_000 + "\n" + ":1" * 1_000_000)
    transports.parse("NCCL INFO Trees " + "[0] 1" * 500_000)
    assert time.monotonic() - begin < 20


def test_the_file_of_each_process_is_found_by_its_number(tmp_path: Path) -> None:
    assert transports.read(tmp_path, [5]) is None
    text = (LOGS / "2.29.2-2-gpus-sockets.log").read_text(encoding="utf-8").splitlines(True)
    for pid in (700, 701):
        own = "".join(line for line in text if f":{pid}:" in line)
        (tmp_path / f"nccl-node-{pid}.log").write_text(own, encoding="utf-8")
    (tmp_path / "nccl-node-1700.log").write_text("NCCL version 9.9\n", encoding="utf-8")
    found = transports.read(tmp_path, [700, 701])
    assert found == log("2.29.2-2-gpus-sockets")


def test_nccl_is_told_to_write_a_file_for_each_process_wherever_the_folder_lies() -> None:
    told = transports.variables(Path("/a%b"))
    assert told["NCCL_DEBUG_FILE"] == "/a%%b/nccl-%h-%p.log"
    assert told["NCCL_DEBUG"] == "INFO"
