"""The GPUs that a program sees here, and whether they are as many as were asked for."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.verify.host.finding import Problem, judged
from mirror.verify.host.machine import Machine
from mirror.verify.report import Check

# Fields that every driver knows: one that a driver does not know ends the whole query.
_FIELDS = ("index", "name", "uuid", "driver_version", "memory.total", "memory.used")
LIST = ("nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
_INSTANCES = ("nvidia-smi", "-L")
#: What nvidia-smi says of a GPU that does not answer the driver any more.
LOST = re.compile(r"GPU is lost|fallen off the bus|Unable to determine the device handle[^\n]*")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as nvidia-smi names it; memory in MiB."""

    index: str
    name: str
    uuid: str
    driver: str
    memory: str
    used: str

    @property
    def number(self) -> int:
        """Its index, to count and compare by."""
        return int(self.index)


def visible_gpus(here: Machine | None = None) -> list[Gpu] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; None when nvidia-smi is not here or fails."""
    here = here or Machine()
    found = attached(here)
    visible = here.environ.get("CUDA_VISIBLE_DEVICES")
    if found is None or visible is None:
        return found
    if "MIG-" in visible:
        said = here.tool(*_INSTANCES)
        parents = instances(said.out if said else "")
        entries = [entry.strip() for entry in visible.split(",")]
        visible = ",".join(parents.get(entry, entry) for entry in entries)
    return chosen(found, visible)


def attached(here: Machine) -> list[Gpu] | None:
    """All GPUs that the driver shows; None when nvidia-smi is not here or fails."""
    said = here.tool(*LIST)
    if said is None:
        return None
    # Its exit code may complain of one GPU while it lists all the others.
    found = parse(said.out)
    return found if found or said.code == 0 or "No devices were found" in said.out else None


def parse(text: str) -> list[Gpu]:
    """The GPUs in nvidia-smi's CSV; lines of another shape ("No devices were found") are none."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [Gpu(*row) for row in rows if len(row) == len(_FIELDS) and row[0].isdecimal()]


def instances(text: str) -> dict[str, str]:
    """A MIG instance's UUID -> its GPU's, in the answer of `nvidia-smi -L`."""
    found, gpu = {}, ""
    for line in text.splitlines():
        uuid = re.search(r"\(UUID: *([A-Za-z]+-[\w/-]+)\)", line)
        if uuid and line.startswith("GPU"):
            gpu = uuid[1]
        elif uuid:
            found[uuid[1]] = gpu
    return found


def chosen(gpus: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, as CUDA reads it: up to the first unknown entry."""
    if visible is None:
        return list(gpus)
    found: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        match = [g for g in gpus if entry and (g.index == entry or g.uuid.startswith(entry))]
        if len(match) != 1:
            break
        found += match
    return found


def driver(gpus: Sequence[Gpu] | None) -> str:
    """The NVIDIA driver's version, empty without one."""
    return gpus[0].driver if gpus else ""


_UNHIDE = "Unset CUDA_VISIBLE_DEVICES, or name GPUs that are there: nvidia-smi -L lists them."
_LOOK = "Ask for fewer with --gpus, or look at CUDA_VISIBLE_DEVICES and nvidia-smi -L."


def check(here: Machine, gpus: Sequence[Gpu] | None, asked: int | None) -> Check:
    """Whether as many GPUs are visible as were asked for, and which they are."""
    if not gpus:
        return _none(here, asked)
    listed = [f"{g.index}: {g.name}, {g.memory} MiB ({g.used} used), {g.uuid}" for g in gpus]
    first = f"driver {driver(gpus)}, {counted(len(gpus), 'GPU')}"
    problems = [*_lost(here), *_variable(here, gpus)]
    if asked is None or len(gpus) >= asked:
        return judged("gpus", [first, *listed], problems)
    few = Problem("fail", f"{asked} asked for; {first}", _LOOK)
    return judged("gpus", [*listed, *_hidden(here, gpus)], [few, *problems])


def _none(here: Machine, asked: int | None) -> Check:
    visible = here.environ.get("CUDA_VISIBLE_DEVICES")
    evidence = "none" if asked is None else f"{asked} asked for; none"
    evidence += f"; CUDA_VISIBLE_DEVICES={shown(visible)}" if visible is not None else ""
    advice = "Without a GPU only CPU training is proved."
    if here.tool(*LIST) is None:  # CUDA can do without it: torch has the last word
        return Check("gpus", "warn", f"{evidence}; there is no nvidia-smi", advice)
    if hidden := _hidden(here, ()):
        lines, look = [evidence, *hidden], _UNHIDE
    else:
        lines, look = [f"{evidence}; nvidia-smi shows none that can be used"], _LOOK
    if asked is None:
        return Check("gpus", "warn", "\n".join(lines), advice)
    return Check("gpus", "fail", "\n".join(lines), look)


def _hidden(here: Machine, gpus: Sequence[Gpu]) -> list[str]:
    """How many more the driver shows, and what hides them."""
    more = len(attached(here) or gpus) - len(gpus)
    if more < 1:
        return []
    visible = shown(here.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return [f"CUDA_VISIBLE_DEVICES={visible} hides {counted(more, 'GPU')}"]


def _lost(here: Machine) -> Iterator[Problem]:
    said = here.tool(*LIST)
    if said and (lost := LOST.search(said.out + said.err)):
        what = f"one GPU does not answer: {shown(lost[0])}"
        yield Problem("warn", what, "Reboot; if it is lost again, have it serviced.")


def _variable(here: Machine, gpus: Sequence[Gpu]) -> Iterator[Problem]:
    """What CUDA_VISIBLE_DEVICES does that its writer may not have meant."""
    visible = here.environ.get("CUDA_VISIBLE_DEVICES", "")
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    text = f"CUDA_VISIBLE_DEVICES={shown(visible)}"
    if len(gpus) < len(entries) and entries[len(gpus)] != "-1":
        what = f"{text} names {shown(entries[len(gpus)])!r}, and there is no such GPU"
        advice = "CUDA hides that one and all that are named after it: correct the variable."
        yield Problem("warn", what, advice)
    names = {gpu.name for gpu in attached(here) or ()}
    by_bus = here.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if len(names) > 1 and not by_bus and any(entry.isdecimal() for entry in entries):
        what = f"{text} counts the fastest GPU first, nvidia-smi by PCI address: not the same ones"
        advice = "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID (nvidia-smi -L)."
        yield Problem("warn", what, advice)
