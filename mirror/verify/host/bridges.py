"""What may stand between GPUs that are peers over PCIe: ACS on bridges, and the IOMMU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.verify.host.finding import Problem, grouped, judged
from mirror.verify.host.health import Cards
from mirror.verify.host.machine import Machine, words
from mirror.verify.report import Check

#: Bridges alone: to show all devices takes seconds on a large machine.
BRIDGES = ("lspci", "-D", "-vvv", "-d", "::0604")
#: What of ACS sends one GPU's requests up to the host instead of across to the other.
_REDIRECTS = re.compile(r"(SrcValid|ReqRedir|CmpltRedir|UpstreamFwd)\+")
_IOMMU = re.compile(r"(?:intel_iommu|amd_iommu|iommu|iommu\.passthrough|iommu\.strict)=\S+")


@dataclass(frozen=True, slots=True)
class Bridge:
    """A PCI bridge: the buses below it, and what ACS does there (None: only root may read it)."""

    address: str
    first: int
    last: int
    acs: tuple[str, ...] | None


def bridges(text: str) -> Iterator[Bridge]:
    """Those in the answer of `lspci -D -vvv`."""
    for block in re.split(r"\n(?=\S)", text):
        head = re.match(r"\s*([0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ", block)
        buses = re.search(r"secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", block)
        if not head or not buses:
            continue
        control = re.search(r"ACSCtl:([^\n]*)", block)
        acs: tuple[str, ...] | None = tuple(_REDIRECTS.findall(control[1])) if control else ()
        if "access denied" in block:
            acs = None
        yield Bridge(head[1], int(buses[1], 16), int(buses[2], 16), acs)


def check_acs(here: Machine, cards: Cards) -> Check:
    """ACS on the bridges above these GPUs.

    NCCL's guide (troubleshooting): with it, peers get slow, hang, or read wrong values.
    """
    said = here.tool(*BRIDGES)
    if said is None or said.code != 0:
        why = shown(words(said, BRIDGES[0]))
        return Check("acs", "skip", f"{' '.join(BRIDGES)}: {why}")
    found = list(bridges(said.out))
    above = [b for b in found if any(_leads_to(b, card.bus) for _, card in cards)]
    if not above:  # a virtual machine has its GPUs on its root bus, or one it does not show
        return judged("acs", ["no bridge is to be seen above the GPUs"], [])
    if all(b.acs is None for b in above):
        return Check("acs", "skip", "only root can read it (lspci -vvv shows ACSCtl)")
    redirecting = [b for b in above if b.acs]
    if not redirecting:
        return judged("acs", [f"off on {counted(len(above), 'bridge')} above the GPUs"], [])
    listed = ", ".join(b.address for b in redirecting[:8])
    what = f"ACS is on for bridges above the GPUs: {listed}"
    advice = (
        "It can make peer access slow, or wrong. Turn it off in the BIOS, or as root after each "
        "boot: setpci -s BRIDGE ECAP_ACS+0x6.w=0000. Virtual machines need it: leave it there."
    )
    return judged("acs", [], [Problem("warn", what, advice)])


def _leads_to(bridge: Bridge, bus: str) -> bool:
    domain, _, rest = bus.partition(":")
    same = bridge.address.partition(":")[0] == domain
    return same and bridge.first <= int(rest[:2], 16) <= bridge.last


def check_iommu(here: Machine, cards: Cards) -> Check:
    """Whether the IOMMU translates what the GPUs send to each other.

    The kernel says so for each device's group: DMA and DMA-FQ translate, identity does not.
    """
    line = " ".join(_IOMMU.findall(here.read("/proc/cmdline") or ""))
    booted = f"the kernel was started with {shown(line)}" if line else "no word of it at boot"
    types = [
        (gpu.number, (here.read(f"/sys/bus/pci/devices/{card.bus}/iommu_group/type") or "").strip())
        for gpu, card in cards
    ]
    facts = [booted, *grouped((n, f"IOMMU {shown(t)}" if t else "no IOMMU") for n, t in types)]
    known = any(kind for _, kind in types)
    asked = re.search(r"(intel_iommu|amd_iommu)=on", line) and not re.search(r"=pt\b", line)
    if any(kind.startswith("DMA") for _, kind in types) or (asked and not known):
        what = "the IOMMU translates addresses of the GPUs"
        advice = (
            "It can make peer access slow (2 GB/s were seen where host memory gives 13 to 22), or "
            "wrong. Add iommu=pt to the kernel's command line, or turn it off in the BIOS."
        )
        return judged("iommu", facts, [Problem("warn", what, advice)])
    return judged("iommu", facts, [])
