"""What torch and accelerate say of themselves and of the GPUs they can use."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from trainer.results import write_json


def main(arguments: list[str]) -> int:
    """Leave {"torch", "accelerate", "cuda", "architectures", "devices", "reason", ...} in a file.

    architectures: those that torch holds code for, "sm_90" each; "compute_90" is code that the
    driver compiles. devices: name, uuid, capability ("9.0") and memory (bytes) of every GPU that
    torch can use. reason: why a torch that was built for CUDA can use none, in its own words.
    nccl: the version of the library that is loaded, as it says itself. libraries: the files of NCCL
    in this process, and whether each is of this environment.
    """
    parser = argparse.ArgumentParser(prog="trainer torch")
    parser.add_argument("--out", type=Path, required=True, help="file for the answer")
    options = parser.parse_args(arguments)
    import accelerate  # type: ignore[import-untyped]
    import torch

    cuda: Any = torch.cuda
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = cuda.is_available()
    reasons = [str(warning.message) for warning in said]
    if torch.version.cuda and not usable:
        try:
            cuda.init()
        except (RuntimeError, AssertionError) as error:
            reasons.append(str(error))
    answer = {
        "torch": torch.__version__,
        "accelerate": accelerate.__version__,
        "cuda": torch.version.cuda or "",
        "architectures": _architectures() if torch.version.cuda else [],
        "devices": _devices(cuda) if usable else [],
        "reason": " ".join(" ".join(reasons).split()),
        "nccl": _nccl(cuda) if torch.version.cuda else "",
        "libraries": _libraries("libnccl"),
    }
    write_json(options.out, answer)
    return 0


def _devices(cuda: Any) -> list[dict[str, Any]]:
    found = []
    for number in range(cuda.device_count()):
        properties = cuda.get_device_properties(number)
        found.append(
            {
                "name": properties.name,
                "uuid": str(getattr(properties, "uuid", "")),
                "capability": f"{properties.major}.{properties.minor}",
                "memory": properties.total_memory,
            }
        )
    return found


def _nccl(cuda: Any) -> str:
    """Its version; empty where torch was built without it."""
    try:
        return ".".join(str(part) for part in cuda.nccl.version())
    except (AttributeError, RuntimeError):
        return ""


def _libraries(name: str) -> list[dict[str, Any]]:
    """This process's files of that name; own: below a folder that Python imports from.

    So a library of the system, or of LD_LIBRARY_PATH, that stands in for it is found.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    found = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if f"/{name}" in line}
    ours = [os.path.realpath(entry) + os.sep for entry in [sys.prefix, *sys.path] if entry]
    return [
        {"file": file, "own": os.path.realpath(file).startswith(tuple(ours))}
        for file in sorted(found)
    ]


def _architectures() -> list[str]:
    """What torch was compiled for; unlike torch.cuda.get_arch_list, without a GPU, too."""
    import torch

    return (torch._C._cuda_getArchFlags() or "").split()
