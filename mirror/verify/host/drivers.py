"""Whether there is a working NVIDIA driver, and why not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.hardware import Answer
from mirror.verify.host import gpus as listing
from mirror.verify.host.finding import Problem, judged
from mirror.verify.host.gpus import LIST, Gpu
from mirror.verify.host.machine import Machine, container, words
from mirror.verify.report import Check

DEVICES = ("lspci", "-D", "-nn", "-d", "10de:")
_VERSION_FILE = "/proc/driver/nvidia/version"
#: PCI classes of GPUs: VGA controller, 3D controller.
_GPU = re.compile(r"(?m)^[0-9a-f:.]+ [^\n]*\[030[02]\]: [^\n]*")
_RELOAD = (
    "Reboot; or, when nothing uses a GPU, as root: rmmod nvidia_uvm nvidia_drm nvidia_modeset "
    "nvidia; modprobe nvidia"
)
_IN_CONTAINER = "In a container: restart it, it holds libraries of an older driver."

_DMESG = "dmesg | grep -i -e nvrm -e xid, as root, says what the driver met."
_NOT_LOADED = (
    "As root: modprobe nvidia; dmesg | grep -i -e nvrm -e nvidia says why it does not load "
    "(built for an older kernel, not signed for Secure Boot, nouveau in its place)."
)
_LOST_IN_CONTAINER = (
    "A container that has lost its GPUs: restart it. It happens again at every systemctl "
    "daemon-reload until the runtime gives devices by name (CDI) or uses cgroupfs."
)

#: What nvidia-smi says instead of an answer, what that means, what to do. Its exit codes say less:
#: 9 no driver, 12 no library, 15 a GPU is off the bus, 18 two versions, 255 anything else.
_MESSAGES = (
    (
        r"Driver/library version mismatch",
        "the driver's kernel module and its libraries are of two versions",
        f"{_RELOAD}\n{_IN_CONTAINER}",
    ),
    (
        r"couldn'?t communicate with the NVIDIA driver",
        "the driver's kernel module is not loaded",
        _NOT_LOADED,
    ),
    (
        r"couldn'?t find libnvidia-ml",
        "the driver's libraries are not here",
        "Start the container with --gpus all; outside of one install the driver again.",
    ),
    (
        r"Failed to initialize NVML: Unknown Error",
        "the GPUs' devices cannot be opened",
        _LOST_IN_CONTAINER,
    ),
    (
        r"Insufficient Permissions",
        "this user may not open the GPUs' devices",
        "Look at the owner and mode of /dev/nvidia*, and which groups this user is in.",
    ),
    (
        listing.LOST.pattern,
        "a GPU does not answer the driver any more",
        "Reboot; if it is lost again, have card, cables and power supply looked at.",
    ),
)


def check(here: Machine, gpus: Sequence[Gpu] | None) -> Check | None:
    """The driver, when there is one or something that needs one; None on a machine without GPUs."""
    module = kernel_module(here)
    hardware = devices(here)
    if gpus or listing.attached(here):
        return _working(here, listing.driver(gpus or listing.attached(here)), module, hardware)
    said = here.tool(*LIST)
    if said is None:
        return _without_programs(here, module, hardware)
    text = f"{said.out}\n{said.err}"
    if "No devices were found" in text:
        what = "the driver runs, and finds no GPU that it can use"
        return judged("driver", [], [_where(Problem("warn", what, _DMESG), hardware)])
    problem = _failed(said, text, module)
    listed = here.tool(*DEVICES)
    if not module and not hardware and listed and listed.code == 0:
        # An image for GPU machines that runs on one without: nothing is broken.
        problem = Problem("warn", problem.what, problem.advice)
    return judged("driver", [], [_where(problem, hardware)])


def kernel_module(here: Machine) -> str:
    """The version of the kernel module that is loaded ("580.159.04"); empty when none is."""
    text = here.read(_VERSION_FILE) or ""
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", text)
    return found[1] if found else ""


def devices(here: Machine) -> list[str]:
    """NVIDIA's GPUs on the PCI bus, whether a driver knows them or not; needs lspci."""
    said = here.tool(*DEVICES)
    return _GPU.findall(said.out) if said else []


def _working(here: Machine, version: str, module: str, hardware: Sequence[str]) -> Check:
    problems = []
    if module and module != version:
        what = f"the kernel module is {module}, the driver says {version}"
        problems.append(Problem("fail", what, f"{_RELOAD}\n{_IN_CONTAINER}"))
    seen = len(listing.attached(here) or ())
    # Containers and virtual machines are given some of the GPUs, but may see all of the bus.
    if seen < len(hardware) and not container(here):
        what = f"{counted(len(hardware), 'NVIDIA GPU')} on the PCI bus, the driver shows {seen}"
        problems.append(Problem("warn", what, _DMESG))
    fact = f"version {version}" + (f", kernel module {module}" if module else "")
    return judged("driver", [fact], problems)


def _failed(said: Answer, text: str, module: str) -> Problem:
    quoted = shown(words(said, "nvidia-smi"))
    if said.code is None:
        what = f"{quoted}: it hangs in the driver"
        return Problem("fail", what, f"{_DMESG} Only a reboot helps.")
    known = (
        (meaning, advice) for pattern, meaning, advice in _MESSAGES if re.search(pattern, text)
    )
    meaning, advice = next(known, ("nvidia-smi fails", _DMESG))
    library = re.search(r"NVML library version: *([\d.]+)", text)
    if library and module:
        meaning += f" ({module} and {library[1]})"
    return Problem("fail", f"{meaning}: {quoted}", advice)


def _where(problem: Problem, hardware: Sequence[str]) -> Problem:
    lines = [problem.what, *(f"on the PCI bus: {shown(line)}" for line in hardware[:16])]
    return Problem(problem.verdict, "\n".join(lines), problem.advice)


def _without_programs(here: Machine, module: str, hardware: Sequence[str]) -> Check | None:
    if not module and not hardware:
        return None
    have = f"kernel module {module} is loaded" if module else "no driver is loaded"
    if container(here):
        advice = (
            "Start the container with --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility."
        )
    else:
        advice = "Install the NVIDIA driver with its programs."
    # No failure yet: CUDA can do without this program, and nobody may want these GPUs.
    problem = Problem("warn", f"{have}, and there is no nvidia-smi", advice)
    return judged("driver", [], [_where(problem, hardware)])
