"""What the driver says of each GPU: `nvidia-smi -q -x`, read with tolerance.

The elements differ between drivers (450 to 610 were looked at) and kinds of GPU: what is missing,
"N/A" or "Requested functionality has been deprecated" is simply not known. Read from XML, not
through NVML: a program that hangs in the driver can be given a limit, a library cannot; and what
it printed on a machine can be sent, kept, and read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

DETAILS = ("nvidia-smi", "-q", "-x")
_UNKNOWN = {"", "N/A", "[N/A]", "Not Supported", "Requested functionality has been deprecated"}
#: What slows a GPU down for a reason that somebody should look at. Others are its normal life:
#: idle, a power limit under load, clocks that were set.
_SLOWDOWNS = {
    "hw_thermal_slowdown": "too hot (hardware)",
    "sw_thermal_slowdown": "too hot (driver)",
    "hw_power_brake_slowdown": "power brake",
}


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds memory of a GPU; `memory` as the driver writes it ("1448 MiB")."""

    pid: str
    name: str
    memory: str
    computes: bool


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU's state; an empty text, or None, is what the driver does not tell.

    bus: PCI address as sysfs writes it ("0000:1b:00.0"). counts_errors: whether its memory has ECC.
    uncorrectable: kind of memory -> errors since the driver was loaded. threshold: too many errors
    in SRAM over its life. rows: what is wrong with spare rows of memory ("pending", "failure").
    recovery: what the driver asks for ("Reset"). generation, width, full_width: of PCIe, the
    highest generation that card and slot share. fabric: state, status, and health that is not
    good. slowdowns: in words.
    """

    uuid: str
    minor: str
    bus: str
    persistence: str
    mig: str
    mig_pending: str
    compute_mode: str
    counts_errors: bool
    uncorrectable: Mapping[str, int]
    threshold: bool
    rows: tuple[str, ...]
    recovery: str
    generation: int | None
    width: int | None
    full_width: int | None
    fabric_state: str
    fabric_status: str
    fabric_health: tuple[str, ...]
    slowdowns: tuple[str, ...]
    processes: tuple[Process, ...]


def parse(text: str) -> tuple[Card, ...] | None:
    """The GPUs in the XML, in nvidia-smi's order; None when that is no such XML."""
    begin, end = text.find("<nvidia_smi_log"), text.rfind("</nvidia_smi_log>")
    if begin < 0 or end < 0:
        return None
    # Without what stands before it there is no DTD, so no entity that could grow or name a file.
    root = _root(text[begin : end + len("</nvidia_smi_log>")])
    return None if root is None else tuple(map(_card, root.findall("gpu")))


def _root(text: str) -> ElementTree.Element | None:
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "?", text)
    # A process's name may hold anything, and not every driver escapes it.
    for attempt in (text, re.sub(r"(?s)<processes>.*?</processes>", "", text)):
        try:
            return ElementTree.fromstring(attempt)  # noqa: S314 -- see above
        except ElementTree.ParseError:
            continue
    return None


def _card(gpu: ElementTree.Element) -> Card:
    link = "pci/pci_gpu_link_info"
    pending = [
        name
        for name, path in (
            ("pending", "remapped_rows/remapped_row_pending"),
            ("failure", "remapped_rows/remapped_row_failure"),
            ("pending", "retired_pages/pending_retirement"),
        )
        if _text(gpu, path) == "Yes"
    ]
    recovery = _text(gpu, "gpu_recovery_action")
    if not recovery and _text(gpu, "gpu_reset_status/reset_required") == "Yes":
        recovery = "Reset"
    return Card(
        uuid=_text(gpu, "uuid"),
        minor=_text(gpu, "minor_number"),
        bus=address(_text(gpu, "pci/pci_bus_id") or gpu.get("id", "")),
        persistence=_text(gpu, "persistence_mode"),
        mig=_text(gpu, "mig_mode/current_mig"),
        mig_pending=_text(gpu, "mig_mode/pending_mig"),
        compute_mode=_text(gpu, "compute_mode"),
        counts_errors=_text(gpu, "ecc_mode/current_ecc") == "Enabled",
        uncorrectable=dict(_uncorrectable(gpu)),
        threshold=_text(gpu, "ecc_errors/aggregate/sram_threshold_exceeded") == "Yes",
        rows=tuple(dict.fromkeys(pending)),
        recovery="" if recovery == "None" else recovery,
        generation=_number(_text(gpu, f"{link}/pcie_gen/max_link_gen")),
        width=_number(_text(gpu, f"{link}/link_widths/current_link_width")),
        full_width=_number(_text(gpu, f"{link}/link_widths/max_link_width")),
        fabric_state=_text(gpu, "fabric/state"),
        fabric_status=_text(gpu, "fabric/status"),
        fabric_health=tuple(_ill(gpu)),
        slowdowns=tuple(_slowdowns(gpu)),
        processes=tuple(map(_process, gpu.findall("processes/process_info"))),
    )


def address(text: str) -> str:
    """A PCI address as the kernel writes it: four digits of domain, small letters."""
    found = re.fullmatch(r"([0-9A-Fa-f]+):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", text)
    return f"{int(found[1], 16):04x}:{found[2].lower()}" if found else ""


def _uncorrectable(gpu: ElementTree.Element) -> Iterator[tuple[str, int]]:
    """Turing and newer count by kind of memory; older ones give one total of double-bit errors."""
    for element in gpu.findall("ecc_errors/volatile/*"):
        if "uncorrectable" in element.tag and (count := _number(_clean(element.text))):
            yield element.tag.replace("_", " "), count
    count = _number(_text(gpu, "ecc_errors/volatile/double_bit/total"))
    if count:
        yield "double bit", count


def _ill(gpu: ElementTree.Element) -> Iterator[str]:
    for element in gpu.findall("fabric/health/*"):
        value = _clean(element.text)
        if value in ("Degraded", "True", "Unhealthy", "Limited Capacity"):
            yield f"{element.tag.replace('_', ' ')} {value}"


def _slowdowns(gpu: ElementTree.Element) -> Iterator[str]:
    for group in ("clocks_event_reasons", "clocks_throttle_reasons"):
        for element in gpu.findall(f"{group}/*"):
            name = re.sub(r"^clocks_(event|throttle)_reasons?_", "", element.tag)
            if name in _SLOWDOWNS and _clean(element.text) == "Active":
                yield _SLOWDOWNS[name]


def _process(element: ElementTree.Element) -> Process:
    memory = _text(element, "used_memory")
    kind = _text(element, "type")
    return Process(_text(element, "pid"), _text(element, "process_name"), memory, "C" in kind)


def _text(element: ElementTree.Element, path: str) -> str:
    return _clean(element.findtext(path))


def _clean(text: str | None) -> str:
    text = (text or "").strip()
    return "" if text in _UNKNOWN else text


def _number(text: str) -> int | None:
    """ "16x" -> 16"""
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None
