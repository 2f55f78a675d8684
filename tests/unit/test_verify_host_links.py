"""What lies between the GPUs: links, peers, NVSwitch, ACS, the IOMMU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirror.verify import host
from mirror.verify.host import bridges, links
from mirror.verify.host.bridges import BRIDGES
from mirror.verify.host.cards import DETAILS
from mirror.verify.host.drivers import DEVICES
from mirror.verify.host.links import LINKS, NVLINKS, PEERS
from tests.captured import Captured
from tests.unit.test_verify_host_machines import look

SERVICE = ("systemctl", "is-active", "nvidia-fabricmanager")


def topology(here: Captured) -> host.Topology:
    found = host.topology(here, host.visible_gpus(here) or ())
    assert found is not None
    return found


# -- links ---------------------------------------------------------------------------------------


def test_eight_gpus_on_nvswitch() -> None:
    found = topology(Captured("hgx-h200-8"))
    assert found.gpus == tuple(range(8))
    assert len(found.pairs) == 28
    assert set(found.links.values()) == {"NV18"}
    assert found.peers
    assert not found.over_pcie
    assert found.promised((0, 7)) == pytest.approx(18 * 26.562e9)


def test_four_cards_on_pcie_that_are_no_peers() -> None:
    found = topology(Captured("rtx5090-4"))
    assert set(found.links.values()) == {"NODE"}
    assert set(found.states.values()) == {"GNS"}
    assert not found.peers
    assert not found.over_pcie
    assert found.promised((1, 2)) == pytest.approx(16 * 3.938e9)


def test_the_slower_card_sets_what_a_bus_promises() -> None:
    found = topology(Captured("rtx4090-2"))
    assert found.promised((0, 1)) == found.promised((1, 0)) == pytest.approx(4 * 1.969e9)


def test_peers_over_pcie_switches() -> None:
    found = topology(Captured("a100-pcie-4"))
    assert found.links[(0, 1)] == found.links[(3, 2)] == "PIX"
    assert found.links[(0, 2)] == "SYS"
    assert found.peers
    assert found.over_pcie


def test_only_visible_gpus_are_in_it_by_nvidia_smis_index() -> None:
    here = Captured("a100-pcie-4")
    here.variables["CUDA_VISIBLE_DEVICES"] = "3,1"
    found = topology(here)
    assert found.gpus == (3, 1)
    assert found.links == {(3, 1): "SYS", (1, 3): "SYS"}


def test_a_table_is_read_in_any_dress() -> None:
    table = Captured("hgx-h200-8").said(*LINKS)
    cell = re.compile("NV18|X")
    wanted = links.matrix(table, cell)
    assert wanted[(6, 2)] == "NV18"
    spaces = re.sub(r"\x1b\[\d*m", "", table).expandtabs(8)
    assert links.matrix(spaces, cell) == wanted
    merged = table.replace("NODE\tNODE", "NODENODE").replace("NIC8\tNIC9", "NIC8NIC9")
    assert links.matrix(merged, cell) == wanted
    odd = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tERR!\tSYS\nGPU1\tNV4\t X \tPHB\n"
    found = links.matrix(odd, re.compile("NV4|SYS|PHB|X"))
    assert (0, 1) not in found
    assert (found[(0, 2)], found[(1, 0)], found[(1, 2)]) == ("SYS", "NV4", "PHB")


def test_one_gpu_has_no_links_to_tell_of(tmp_path: Path) -> None:
    here = Captured("hgx-h200-8")
    here.variables["CUDA_VISIBLE_DEVICES"] = "0"
    assert host.topology(here, host.visible_gpus(here) or ()) is None
    assert not {"peer access", "nvlink", "acs", "iommu"} & look(here, tmp_path).keys()


# -- peers ---------------------------------------------------------------------------------------


def test_geforce_without_peers_is_as_it_should_be(tmp_path: Path) -> None:
    check = look(Captured("rtx5090-4"), tmp_path)["peer access"]
    assert check.verdict == "pass"
    assert "GNS: the GPUs do not support it" in check.evidence
    assert "NODE/GNS" in check.evidence
    assert "promise 63 GB/s" in check.evidence


@pytest.mark.parametrize(
    ("state", "advice"), [("CNS", "BIOS"), ("TNS", "BIOS"), ("NS", "BIOS"), ("DR", "NVreg_")]
)
def test_other_gpus_without_peers_are_told_to_look(state: str, advice: str, tmp_path: Path) -> None:
    here = Captured("a100-pcie-4")
    head, _, legend = here.said(*PEERS).partition("Legend")
    here.says(*PEERS, out=head.replace("OK", state) + "Legend" + legend)
    check = look(here, tmp_path)["peer access"]
    assert check.verdict == "warn"
    assert check.evidence.startswith(f"no two GPUs can read each other's memory ({state}: ")
    assert advice in check.advice
    assert "acs" not in look(here, tmp_path), "what no peer does, ACS cannot hinder"


def test_a_pair_that_is_no_peer_among_others_is_named(tmp_path: Path) -> None:
    here = Captured("rtx5090-4")
    table = re.sub(r"\bGNS\b(?!  )", "OK", here.said(*PEERS))
    table = table.replace(" GPU1\tOK\tX\tOK\tOK", " GPU1\tOK\tX\tOK\tCNS")
    check = look(here.says(*PEERS, out=table), tmp_path)["peer access"]
    assert check.verdict == "warn"
    assert check.evidence.startswith("not all pairs: neither GPU 1 and 3 can read")


def test_nvlink_without_peers_points_at_the_fabric(tmp_path: Path) -> None:
    here = Captured("hgx-h200-8")
    head, _, legend = here.said(*PEERS).partition("Legend")
    here.says(*PEERS, out=head.replace("OK", "NS") + "Legend" + legend)
    assert "Fabric Manager" in look(here, tmp_path)["peer access"].advice


def test_peers_that_nvidia_smi_does_not_tell_of_are_skipped_not_passed(tmp_path: Path) -> None:
    here = Captured("a100-pcie-4").says(*PEERS, out="Invalid combination\n", code=2)
    check = look(here, tmp_path)["peer access"]
    assert check.verdict == "skip"
    assert "exit code 2: Invalid combination" in check.evidence
    here.says(*LINKS, out="", code=1)
    check = look(here, tmp_path)["peer access"]
    assert check.verdict == "skip"
    assert "topo -m: nvidia-smi ended with exit code 1" in check.evidence
    here.says(*LINKS, out="nothing of the kind\n")
    assert look(here, tmp_path)["peer access"].evidence.endswith("topo -m: no links in it")


# -- NVLink and NVSwitch -------------------------------------------------------------------------


def test_a_gpu_with_fewer_nvlinks_than_its_equals_is_found(tmp_path: Path) -> None:
    here = Captured("hgx-h200-8")
    assert look(here, tmp_path)["nvlink"].evidence == "GPUs 0-7: 18 links of 26.562 GB/s"
    first, second, rest = here.said(*NVLINKS).partition("GPU 1:")
    rest = rest.replace("Link 3: 26.562 GB/s", "Link 3: <inactive>", 1)
    check = look(here.says(*NVLINKS, out=first + second + rest), tmp_path)["nvlink"]
    assert check.verdict == "warn"
    assert check.evidence.startswith("fewer NVLinks up than on the others (18): GPU 1: 17")


def test_cards_without_nvlink_are_not_told_of_it(tmp_path: Path) -> None:
    assert "nvlink" not in look(Captured("a100-pcie-4"), tmp_path)
    assert "nvlink" not in look(Captured("rtx5090-4"), tmp_path)
    found = links.nvlinks(Captured("a100-pcie-4").said(*NVLINKS))
    assert found == {0: [], 1: [], 2: [], 3: []}


@pytest.mark.parametrize("state", ["In Progress", "Not Started"])
def test_a_fabric_that_is_not_set_up_fails_with_cudas_error(state: str, tmp_path: Path) -> None:
    here = Captured("hgx-h200-8").edit(DETAILS, "<state>Completed", f"<state>{state}")
    here.edit(DETAILS, "<status>Success", "<status>N/A")
    check = look(here.says(*SERVICE, out="failed\n", code=3), tmp_path)["nvswitch"]
    assert check.verdict == "fail"
    assert f"GPUs 0-7: {state}" in check.evidence.splitlines()[0]
    assert "error 802" in check.evidence
    assert "nvidia-fabricmanager is failed" in check.evidence
    assert "systemctl enable --now nvidia-fabricmanager" in check.advice


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("<status>Success", "<status>Insufficient Resources", "status is Insufficient Resources"),
        ("<bandwidth>Full", "<bandwidth>Degraded", "bandwidth Degraded"),
        ("<route_unhealthy>False", "<route_unhealthy>True", "route unhealthy True"),
    ],
)
def test_a_fabric_that_is_ill_is_a_warning(old: str, new: str, words: str, tmp_path: Path) -> None:
    check = look(Captured("hgx-h200-8").edit(DETAILS, old, new, 1), tmp_path)["nvswitch"]
    assert check.verdict == "warn"
    assert words in check.evidence


def test_where_gpus_tell_nothing_of_the_fabric_the_service_decides(tmp_path: Path) -> None:
    def a100(service: str | None, code: int = 0) -> Captured:
        here = Captured("hgx-h200-8").edit(DETAILS, "<state>Completed", "<state>N/A")
        here.edit(DEVICES, "GH100 [H100 NVSwitch] [10de:22a3]", "Device [10de:1af1]")
        return here.says(*SERVICE, out=service, code=code)

    assert look(a100("active\n"), tmp_path)["nvswitch"].verdict == "pass"
    check = look(a100("inactive\n", 3), tmp_path)["nvswitch"]
    assert check.verdict == "fail"
    assert check.evidence.startswith("nvidia-fabricmanager is inactive: without it")
    for unknown in (None, "offline\n"):
        check = look(a100(unknown), tmp_path)["nvswitch"]
        assert check.verdict == "skip"
        assert check.evidence.startswith("4 NVSwitches; whether")


def test_a_fabric_that_nobody_looks_after_is_a_warning(tmp_path: Path) -> None:
    here = Captured("hgx-h200-8").says(*SERVICE, out="inactive\n", code=3)
    assert look(here, tmp_path)["nvswitch"].verdict == "warn"


def test_without_nvswitch_nobody_speaks_of_it(tmp_path: Path) -> None:
    for name in ("rtx5090-4", "a100-pcie-4"):
        assert "nvswitch" not in look(Captured(name), tmp_path)


# -- what may stand between peers ----------------------------------------------------------------


def test_acs_is_told_only_of_bridges_above_the_gpus(tmp_path: Path) -> None:
    here = Captured("a100-pcie-4")
    check = look(here, tmp_path)["acs"]
    assert check.verdict == "warn"
    assert check.evidence.endswith(": 0000:14:02.0, 0000:16:08.0, 0000:16:10.0")
    assert "ECAP_ACS+0x6.w=0000" in check.advice
    here.variables["CUDA_VISIBLE_DEVICES"] = "2,3"
    check = look(here, tmp_path)["acs"]
    assert (check.verdict, check.evidence) == ("pass", "off on 2 bridges above the GPUs")


def test_one_bit_of_acs_is_enough() -> None:
    text = (
        Captured("a100-pcie-4")
        .said(*BRIDGES)
        .replace("SrcValid+ TransBlk- ReqRedir+", "SrcValid- TransBlk- ReqRedir+")
    )
    found = {bridge.address: bridge.acs for bridge in bridges.bridges(text)}
    assert found["0000:14:02.0"] == ("ReqRedir", "CmpltRedir", "UpstreamFwd")
    assert found["0000:b0:08.0"] == ()


def test_acs_that_only_root_can_read_is_skipped_with_the_reason(tmp_path: Path) -> None:
    here = Captured("a100-pcie-4")
    text = re.sub(r"\tCapabilities: \[[^\n]*\n(\t\t[^\n]*\n)*", "", here.said(*BRIDGES))
    text = text.replace("\tKernel driver", "\tCapabilities: <access denied>\n\tKernel driver")
    check = look(here.says(*BRIDGES, out=text), tmp_path)["acs"]
    assert (check.verdict, "only root" in check.evidence) == ("skip", True)
    check = look(here.says(*BRIDGES, out=None), tmp_path)["acs"]
    assert (check.verdict, "there is no lspci" in check.evidence) == ("skip", True)


def test_a_virtual_machine_shows_no_bridges(tmp_path: Path) -> None:
    check = look(Captured("a100-pcie-4").says(*BRIDGES, out=""), tmp_path)["acs"]
    assert (check.verdict, check.evidence) == ("pass", "no bridge is to be seen above the GPUs")


@pytest.mark.parametrize(
    ("kind", "line", "verdict"),
    [
        ("DMA", "intel_iommu=on", "warn"),
        ("DMA-FQ", "quiet", "warn"),
        ("identity", "intel_iommu=on iommu=pt", "pass"),
        (None, "quiet", "pass"),
        (None, "amd_iommu=on", "warn"),
        (None, "intel_iommu=on iommu=pt", "pass"),
    ],
)
def test_an_iommu_that_translates_is_found(
    kind: str | None, line: str, verdict: str, tmp_path: Path
) -> None:
    here = Captured("a100-pcie-4")
    here.files["/proc/cmdline"] = f"BOOT_IMAGE=/vmlinuz ro {line}\n"
    for path in [path for path in here.files if "iommu_group" in path]:
        if kind is None:
            del here.files[path]
        else:
            here.files[path] = f"{kind}\n"
    check = look(here, tmp_path)["iommu"]
    assert check.verdict == verdict
    assert ("iommu=pt" in check.advice) == (verdict == "warn")


def test_neither_matters_where_nvlink_joins_all(tmp_path: Path) -> None:
    here = Captured("hgx-h200-8")
    assert not {"acs", "iommu"} & look(here, tmp_path).keys()
