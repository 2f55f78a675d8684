"""Of the stage `environment`: do torch, its CUDA and NCCL fit this machine's driver and GPUs?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror import hardware, machine
from mirror.core import cuda
from mirror.core.compat import version
from mirror.core.target import PLATFORMS, Target
from mirror.core.text import counted
from mirror.verify import child
from mirror.verify.report import Check

_NCCL = re.compile(r"nvidia-nccl-cu\d\d")
_TIMEOUT = 300.0
_REBUILD = "Build for this machine: name what `mirror probe` writes here under target.inventory."


@dataclass(frozen=True, slots=True)
class Stack:
    """What torch and accelerate in the environment say.

    cuda: the version that torch was built for, empty for a CPU build. gpus: names of those it can
    use; capabilities: theirs, "9.0" each. reason: why a torch built for CUDA can use none.
    architectures: those that torch holds code for ("sm_90"; "compute_90" is compiled later).
    nccl: the version that is loaded. libraries: NCCL's files, and whether each is its own.
    """

    torch: str
    accelerate: str
    cuda: str
    gpus: tuple[str, ...]
    reason: str
    capabilities: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    nccl: str = ""
    libraries: tuple[tuple[str, bool], ...] = ()

    @classmethod
    def from_json(cls, answer: Mapping[str, Any]) -> Stack:
        """The trainer's answer to `torch`."""
        return cls(
            torch=answer["torch"],
            accelerate=answer["accelerate"],
            cuda=answer["cuda"],
            gpus=tuple(device["name"] for device in answer["devices"]),
            reason=answer["reason"],
            capabilities=tuple(device["capability"] for device in answer["devices"]),
            architectures=tuple(answer["architectures"]),
            nccl=answer["nccl"],
            libraries=tuple((library["file"], library["own"]) for library in answer["libraries"]),
        )


def ask(python: Path, environ: Mapping[str, str], folder: Path) -> tuple[Stack | None, str]:
    """What the environment's torch says; None, and why, when it cannot be asked."""
    answer, reason = child.ask(
        python, "torch", (), environ=environ, folder=folder, timeout=_TIMEOUT
    )
    return (Stack.from_json(answer), "") if answer else (None, reason)


def check(stack: Stack, packages: Mapping[str, str], python: str) -> Iterator[Check]:
    """Versions; and where torch is built for CUDA: driver, architectures and NCCL.

    packages: what is installed, by normalized name. python: the environment's version.
    """
    built = f"CUDA {stack.cuda}" if stack.cuda else "CPU only"
    yield Check("torch", "pass", f"torch {stack.torch} ({built}), accelerate {stack.accelerate}")
    if not stack.cuda:
        return
    driver, _, found = hardware.gpus()
    if found:
        there = tuple(dict.fromkeys(gpu.architecture for gpu in found if gpu.capability))
        yield fits(stack, packages, _this_machine(python, driver, there))
    if stack.architectures and stack.capabilities:
        yield architectures(stack)
    yield nccl(stack, packages, stack_limit())


def fits(stack: Stack, packages: Mapping[str, str], target: Target) -> Check:
    """The tables that decided when the bundle was built, held against what is really here."""
    # torch's own word for its version names its CUDA, which its metadata may leave out.
    wheels = [(n, stack.torch if n == "torch" else v, "") for n, v in packages.items()]
    findings = cuda.check(target, wheels)
    lines = "\n".join([*findings.problems, *findings.warnings])
    if findings.problems:
        return Check("cuda", "fail", lines, _REBUILD)
    if lines:
        return Check("cuda", "warn", lines, _REBUILD)
    return Check("cuda", "pass", f"driver {target.driver} runs what is built for CUDA {stack.cuda}")


def architectures(stack: Stack) -> Check:
    """Whether torch holds code for each GPU, by its own list; see `cuda.runs`."""
    built = [int(re.sub(r"\D", "", a)) for a in stack.architectures if a.startswith("sm_")]
    compiled = [int(re.sub(r"\D", "", a)) for a in stack.architectures if not a.startswith("sm_")]
    lacking: list[str] = []
    later: list[str] = []
    for name, capability in dict(zip(stack.gpus, stack.capabilities, strict=True)).items():
        number = int(capability.replace(".", ""))
        if cuda.runs(f"sm_{number}", built):
            continue
        (later if any(c <= number for c in compiled) else lacking).append(f"{name} (sm_{number})")
    has = f"torch {stack.torch} holds code for {' '.join(stack.architectures)}"
    if lacking:
        return Check("architectures", "fail", f"{has}; none for {', '.join(lacking)}", _REBUILD)
    if later:
        evidence = f"{has}; for {', '.join(later)} the driver compiles it at the first start"
        return Check("architectures", "warn", evidence, _REBUILD)
    return Check("architectures", "pass", f"{has}; all GPUs are among them")


def nccl(stack: Stack, packages: Mapping[str, str], stack_size: int | None) -> Check:
    """Exactly one NCCL, the environment's own.

    stack_size: bytes that a thread's stack may take, None for no limit.
    Source: nccl 2186 (an unlimited stack crashes versions before 2.28).
    """
    installed = [f"{n} {v}" for n, v in sorted(packages.items()) if _NCCL.fullmatch(n)]
    foreign = [file for file, own in stack.libraries if not own]
    loaded = ", ".join(file for file, _ in stack.libraries) or "built into torch"
    evidence = f"NCCL {stack.nccl or 'of unknown version'}: {loaded}"
    if len(installed) > 1:
        return Check(
            "nccl",
            "fail",
            f"{' and '.join(installed)} both bring libnccl.so.2; the one installed last has won",
            "Keep to packages that are built for one CUDA; build again.",
        )
    if len(stack.libraries) > 1:
        count = counted(len(stack.libraries), "NCCL")
        return Check("nccl", "fail", f"{count} in one process: {loaded}", _UNSET)
    if foreign:
        return Check("nccl", "warn", f"{evidence}, which is not the environment's", _UNSET)
    own = next((v for n, v in packages.items() if _NCCL.fullmatch(n)), "")
    if own and stack.nccl and version(own)[:3] != version(stack.nccl)[:3]:
        evidence += f"; the package that is installed says {own}"
        return Check("nccl", "warn", evidence, _UNSET)
    if stack_size is None and stack.nccl and version(stack.nccl) < (2, 28):
        evidence += "; the stack is unlimited here, which crashes NCCL before 2.28"
        return Check("nccl", "warn", evidence, "Set a limit before you train: ulimit -s 8192")
    return Check("nccl", "pass", evidence)


_UNSET = "Unset LD_LIBRARY_PATH and LD_PRELOAD, or take the other NCCL off them."


def stack_limit() -> int | None:
    """Bytes that the stack may take here; None for no limit."""
    import resource  # not on Windows, where nothing is verified

    size = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return None if size == resource.RLIM_INFINITY else size


def gpus(stack: Stack, asked: int | None, seen: int) -> Check:
    """Whether torch can use the GPUs: those asked for, else those that nvidia-smi sees."""
    count = len(stack.gpus)
    evidence = f"torch can use {counted(count, 'GPU')}"
    evidence += f": {', '.join(stack.gpus)}" if count else ""
    evidence += f" ({stack.reason})" if stack.reason and not count else ""
    if stack.cuda:
        advice = "Compare the driver (nvidia-smi) with the CUDA version that torch was built for."
    else:
        advice = "This torch is built without CUDA: bundle one that is built with it."
    if asked is not None and count < asked:
        if count == seen:
            advice = "No more can be seen here: the stage host says why, and what to do."
        return Check("torch's gpus", "fail", f"{asked} asked for; {evidence}", advice)
    if not count and seen:
        evidence += f"; nvidia-smi sees {seen}"
        return Check("torch's gpus", "fail" if stack.cuda else "warn", evidence, advice)
    return Check("torch's gpus", "pass" if count else "skip", evidence)


def _this_machine(python: str, driver: str, gpus: Sequence[str]) -> Target:
    platform = machine.this_platform()
    return Target(
        python=".".join(python.split(".")[:2]),
        platform=platform if platform in PLATFORMS else "linux-x86_64",
        driver=driver,
        gpus=tuple(gpus),
    )
