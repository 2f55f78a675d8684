"""How many processes of a script are run, and on which GPUs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from mirror.core.text import counted
from mirror.errors import MachineError
from mirror.store.generation import Generation
from mirror.verify import host

# What counts is what torch can use: accelerate starts N processes that know nothing of each other,
# and each trains alone, where it can use none.
_QUESTION = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
#: Seconds that torch may take to be imported.
_PATIENCE = 300


@dataclass(frozen=True, slots=True)
class Crew:
    """How many processes there are, and on what.

    gpus: names of GPUs as CUDA_VISIBLE_DEVICES takes them, one for each process. Empty: none is
    shown to them. None: one process, which may use what it finds.
    """

    processes: int
    gpus: tuple[str, ...] | None

    def __str__(self) -> str:
        if self.gpus is None:
            return "one process, no GPU is visible"
        if not self.gpus:
            return f"{self.processes} process{'es' * (self.processes > 1)} on the CPU"
        if self.processes == 1:
            return f"one process on GPU {self.gpus[0]}"
        return f"{self.processes} processes, one on each of the GPUs {', '.join(self.gpus)}"


def crew(
    generation: Generation,
    table: Mapping[str, str],
    *,
    gpus: int | None,
    processes: int | None,
) -> Crew:
    """So many `processes` on the CPU; else one on each of so many `gpus`; else as was proved.

    That is: on as many GPUs as verify last trained on, if so many are visible; else on all that
    are; else one process. Raises MachineError when there are fewer GPUs than asked for, or torch
    cannot use them.
    """
    if processes is not None:
        return Crew(processes, ())
    proved = _proved(generation)
    if gpus is not None:
        chosen = first(gpus, table)
    else:
        found = host.visible_gpus()
        names = _names(table, found) if found else []
        chosen = names[:proved] if 0 < proved <= len(names) else names
    if not chosen:
        return Crew(1, None)
    if len(chosen) > 1 and proved < len(chosen):
        _ask_torch(generation, table, chosen)
    return Crew(len(chosen), tuple(chosen))


def first(gpus: int, table: Mapping[str, str]) -> list[str]:
    """The first GPUs of those that are visible now. Raises MachineError when they are fewer."""
    found = host.visible_gpus()
    names = _names(table, found)
    if len(names) < gpus:
        visible = table.get("CUDA_VISIBLE_DEVICES")
        seen = "nvidia-smi is not here" if found is None else f"nvidia-smi sees {len(found)}"
        raise MachineError(
            f"{gpus} GPUs were asked for, and {len(names)} are visible ({seen};"
            f" CUDA_VISIBLE_DEVICES is {visible if visible is not None else 'not set'})",
            hint="Ask for fewer with --gpus.",
        )
    return names[:gpus]


def _names(table: Mapping[str, str], found: list[host.Gpu] | None) -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls the visible GPUs; what it says is believed when nobody can.

    found: what nvidia-smi sees of them, None without it.
    """
    visible = table.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [gpu.index for gpu in found or ()]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return names if found is None else names[: len(found)]


def _proved(generation: Generation) -> int:
    """On how many GPUs verify last trained; 0 for none. The file's form was checked before."""
    try:
        settings = json.loads(generation.launch_file.read_bytes())
    except FileNotFoundError:
        return 0
    count = settings.get("world_size") if settings.get("backend") == "nccl" else 0
    return count if isinstance(count, int) else 0


def _ask_torch(generation: Generation, table: Mapping[str, str], chosen: list[str]) -> None:
    """Raise MachineError unless torch can use all of the chosen GPUs."""
    shown = {**table, "CUDA_VISIBLE_DEVICES": ",".join(chosen)}
    try:
        done = subprocess.run(
            [generation.python, "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=shown,
            timeout=_PATIENCE,
            check=False,
        )
        lines = done.stdout.decode(errors="replace").split() or ["0"]
        usable = int(lines[-1]) if lines[-1].isdecimal() else 0
        said = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
    except subprocess.TimeoutExpired:
        usable, said = 0, [f"it did not answer in {_PATIENCE} s"]
    if usable < len(chosen):
        raise MachineError(
            f"{counted(len(chosen), 'GPU')} are visible, and torch in {generation.env} can use"
            f" {usable}: each process would train alone",
            problems=said,
            hint="`mirror verify` says why. On the CPU: mirror run --processes N -- ...",
        )
