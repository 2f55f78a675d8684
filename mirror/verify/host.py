"""Stage `host`: what this machine is, without torch."""

from __future__ import annotations

import csv
import os
import platform
import shutil
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror import hardware, machine
from mirror.core.text import counted, human_size
from mirror.verify.report import Check
from mirror.verify.subject import Subject

#: NCCL wants a gigabyte for several GPUs; containers start with 64 MiB.
_SHM_WANTED = 2**30
_DISK_WANTED = 10**9
_QUERY = ("index", "name", "uuid", "driver_version", "memory.total", "memory.used")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as nvidia-smi names it; memory in MiB."""

    index: str
    name: str
    uuid: str
    driver: str
    memory: str
    used: str


def check(subject: Subject, gpus: Sequence[Gpu] | None) -> list[Check]:
    """The machine's facts; `gpus` is what `visible_gpus` found."""
    return [
        _system(),
        _memory(),
        _shared_memory(subject),
        _loopback(),
        _disk(subject.root.path),
        _gpus(gpus, subject.gpus),
    ]


def visible_gpus() -> list[Gpu] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves; None when nvidia-smi is not here or fails."""
    said = hardware.nvidia_smi(f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits")
    if said is None:
        return None
    return chosen(parse(said), os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse(text: str) -> list[Gpu]:
    """The GPUs in nvidia-smi's CSV; lines of another shape ("No devices were found") are none."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [Gpu(*row) for row in rows if len(row) == len(_QUERY)]


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


def _system() -> Check:
    name = platform.freedesktop_os_release()["PRETTY_NAME"] if _has_os_release() else ""
    parts = [name or platform.system(), f"kernel {platform.release()}", platform.machine()]
    glibc = machine.this_glibc()
    parts += [f"glibc {glibc}"] if glibc else []
    return Check("system", "pass", ", ".join(parts))


def _has_os_release() -> bool:
    try:
        return bool(platform.freedesktop_os_release())
    except OSError:
        return False


def _memory() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Check("cpu and memory", "pass", f"{counted(cores or 1, 'core')}, {human_size(size)}")


def _shared_memory(subject: Subject) -> Check:
    folder = Path("/dev/shm")  # noqa: S108 -- not for our files: what ranks will share
    if not folder.is_dir():
        return Check("shared memory", "skip", "this system has no /dev/shm")
    size = shutil.disk_usage(folder).total
    evidence = f"{folder}: {human_size(size)}"
    if size >= _SHM_WANTED:
        return Check("shared memory", "pass", evidence)
    advice = "Start the container with --ipc=host or --shm-size=8g: NCCL and DataLoader workers"
    return Check("shared memory", "warn", evidence, f"{advice} share data through it.")


def _loopback() -> Check:
    """Whether processes of this machine can reach each other: every launch needs it."""
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            with socket.create_connection(listener.getsockname(), timeout=5):
                return Check("loopback", "pass", "127.0.0.1 can be reached")
    except OSError as error:
        return Check(
            "loopback",
            "fail",
            f"127.0.0.1 cannot be reached: {error.strerror or error}",
            "Bring the loopback interface up: ip link set lo up.",
        )


def _disk(root: Path) -> Check:
    free = machine.free_bytes(root)
    evidence = f"{human_size(free)} free at {root}"
    if free >= _DISK_WANTED:
        return Check("disk", "pass", evidence)
    return Check("disk", "warn", evidence, "Make room: checkpoints and logs need it.")


def _gpus(gpus: Sequence[Gpu] | None, asked: int | None) -> Check:
    if not gpus:
        evidence = "nvidia-smi finds no GPU" if gpus is not None else "there is no nvidia-smi"
        version = Path("/proc/driver/nvidia/version")
        if version.is_file():
            evidence += f"; {version}: {version.read_text(encoding='utf-8').splitlines()[0]}"
        if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
            evidence += f"; CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}"
        return Check("gpus", "warn", evidence, "Without a GPU only CPU training is proved.")
    listed = [f"{g.index}: {g.name}, {g.memory} MiB ({g.used} used), {g.uuid}" for g in gpus]
    evidence = "\n".join([f"driver {driver(gpus)}, {counted(len(gpus), 'GPU')}", *listed])
    if asked is not None and len(gpus) < asked:
        advice = "Ask for fewer with --gpus, or look at CUDA_VISIBLE_DEVICES and nvidia-smi -L."
        return Check("gpus", "fail", f"{asked} asked for; {evidence}", advice)
    return Check("gpus", "pass", evidence)
