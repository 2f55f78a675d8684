"""The machine's CPU, memory and GPUs, as far as they can be asked for without root."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mirror.core.inventory import Gpu
from mirror.core.secrets import without

#: What each level of x86-64 adds, by the kernel's names: the psABI's table. glibc and the makers of
#: wheels name CPUs by it.
_LEVELS = (
    ("x86-64-v2", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"),
    ("x86-64-v3", "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"),
)
_CPUINFO = Path("/proc/cpuinfo")
_QUERY = ("name", "memory.total", "uuid", "driver_version")


def cpu() -> tuple[str, str]:
    """The CPU's model and its level ("x86-64-v3"); each is empty where Linux does not tell it."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return "", ""
    return parse_cpu(text)


def parse_cpu(text: str) -> tuple[str, str]:
    """Model and level by one CPU's paragraph in /proc/cpuinfo."""
    pairs = (line.partition(":") for line in text.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in pairs}
    flags, level = set(facts.get("flags", "").split()), ""
    if "lm" in flags:
        level = "x86-64-v1"
        for name, added in _LEVELS:
            if not flags.issuperset(added.split()):
                break
            level = name
    return facts.get("model name", ""), level


def memory() -> int | None:
    """Bytes of memory of the machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def gpus() -> tuple[str, str, tuple[Gpu, ...] | None]:
    """The driver's version, the newest CUDA that it runs, and all its GPUs.

    Empty and None where there is no nvidia-smi, or where it fails. No variable hides a GPU here:
    the inventory is of the machine, not of a job on it.
    """
    plain = f"--query-gpu={','.join(_QUERY)}"
    listed = nvidia_smi(f"{plain},compute_cap", "--format=csv,noheader")
    if listed is None:  # drivers before 2022 do not know of compute_cap
        listed = nvidia_smi(plain, "--format=csv,noheader")
    if listed is None:
        return "", "", None
    driver, found = parse_gpus(listed)
    # Newer drivers name two of them: the one of the driver's user-mode part is what counts.
    cuda = re.search(r"CUDA (?:UMD )?Version *: *(\d+\.\d+)", nvidia_smi() or "")
    return driver, cuda[1] if cuda else "", found


def parse_gpus(text: str) -> tuple[str, tuple[Gpu, ...]]:
    """Driver and GPUs in nvidia-smi's CSV; lines of another shape ("No devices ...") are none."""
    driver, found = "", []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) not in (len(_QUERY), len(_QUERY) + 1):
            continue
        name, size, uuid, driver = row[: len(_QUERY)]
        amount = re.fullmatch(r"(\d+) MiB", size)
        capability = re.fullmatch(r"\d+\.\d+", row[-1]) if len(row) > len(_QUERY) else None
        found.append(
            Gpu(name, int(amount[1]) if amount else None, capability[0] if capability else "", uuid)
        )
    return driver, tuple(found)


def nvidia_smi(*arguments: str) -> str | None:
    """What the program of this name says; None when it is not here or fails."""
    said = answer("nvidia-smi", *arguments)
    return said.out if said and said.code == 0 else None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program printed, and its exit code: None when it had not ended in time."""

    code: int | None
    out: str
    err: str = ""


def answer(program: str, *arguments: str, limit: float = 60) -> Answer | None:
    """Run a program of this machine for at most `limit` seconds; None when it does not start.

    It speaks English, whatever the user's language is.
    """
    # Users other than root often lack the last two, and programs that serve them, too, are there.
    folders = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    path = shutil.which(program, path=os.pathsep.join(folders))
    if path is None:
        return None
    try:
        process = subprocess.Popen(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**without(os.environ), "LC_ALL": "C"},
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, ValueError):  # ValueError: an argument with a zero byte
        return None
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        # One that hangs inside a driver cannot even be killed: nobody waits for it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=1)
        return Answer(None, "")
    return Answer(process.returncode, out, err)
