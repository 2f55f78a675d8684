"""What torch and accelerate say of themselves and of the GPUs they can use."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

from trainer.results import write_json


def main(arguments: list[str]) -> int:
    """Leave {"torch", "accelerate", "cuda", "devices", "reason"} in a file.

    devices: name, uuid and memory (bytes) of every GPU that torch can use. reason: why a torch that
    was built for CUDA can use none, in its own words.
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
        "devices": _devices(cuda) if usable else [],
        "reason": " ".join(" ".join(reasons).split()),
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
                "memory": properties.total_memory,
            }
        )
    return found
