"""What a machine once reached, kept in its root, and whether it still does.

ROOT/baseline.json, format 1:
    format, saved (UTC, ISO 8601)
    machine   {host, gpus: [name], world_size, backend, precision, model}: comparable when equal
    figures   {name: {value, unit}}: unit is "tokens/s" or "bytes/s"; more is better
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirror.core.artifact import Json
from mirror.core.text import counted
from mirror.errors import MachineError
from mirror.store import atomic
from mirror.verify.report import Check, Training
from mirror.verify.units import binary, rate

FORMAT = 1
#: A figure may be this much lower than it was: what runs differ by anyway.
ALLOWED = 0.1


@dataclass(frozen=True, slots=True)
class Baseline:
    """Figures of one run, and what they are of."""

    saved: str
    machine: Mapping[str, Json] = field(hash=False)
    figures: Mapping[str, tuple[float, str]] = field(hash=False)


def of(single: Training, multi: Training | None, saved: str) -> Baseline:
    """The figures of a run that passed."""
    last = multi or single
    first = last.ranks[0]
    figures = {"one process": (single.ranks[0].tokens_per_second, "tokens/s")}
    if multi:
        figures["all processes"] = (first.tokens_per_second, "tokens/s")
        bandwidth = multi.bandwidth
        for name, (size, speed) in bandwidth.at_largest().items():
            figures[f"{name} of {binary(size)}"] = (speed, "bytes/s")
        for (a, b), speed in bandwidth.pairs.items():
            figures[f"rank {a} to {b}"] = (speed, "bytes/s")
    machine: dict[str, Json] = {
        "host": first.host,
        "gpus": sorted(rank.gpu for rank in last.ranks),
        "world_size": first.world_size,
        "backend": first.backend,
        "precision": first.precision,
        "model": first.model["parameters"],
    }
    return Baseline(saved, machine, figures)


def save(baseline: Baseline, file: Path) -> None:
    """Write it, whole or not at all. Raises MachineError where that cannot be."""
    table = {
        "format": FORMAT,
        "saved": baseline.saved,
        "machine": baseline.machine,
        "figures": {
            name: {"value": value, "unit": unit} for name, (value, unit) in baseline.figures.items()
        },
    }
    try:
        atomic.write(file, (json.dumps(table, indent=2) + "\n").encode())
    except OSError as error:
        raise MachineError(
            f"the baseline cannot be written to {file}: {error.strerror}",
            hint="Run it once as the user whom the root belongs to.",
        ) from None


def load(file: Path) -> Baseline | None:
    """The baseline; None where none was saved. Raises ValueError for what `save` did not write."""
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(str(error.strerror)) from None
    table: Any = json.loads(text)
    try:
        if table["format"] != FORMAT:
            raise ValueError(f"it has format {table['format']!r}")
        figures = {
            str(name): (float(row["value"]), str(row["unit"]))
            for name, row in table["figures"].items()
        }
        return Baseline(str(table["saved"]), dict(table["machine"]), figures)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks {error}") from None


def compare(old: Baseline, new: Baseline) -> Check:
    """Whether no figure has fallen by more than a tenth; that of another machine says nothing."""
    if differing := [k for k, v in new.machine.items() if old.machine.get(k) != v]:
        was = ", ".join(f"{key} {_plain(old.machine.get(key))}" for key in differing)
        now = ", ".join(_plain(new.machine[key]) for key in differing)
        return Check("baseline", "skip", f"that of {old.saved} is of {was}; this run of {now}")
    both = [name for name in new.figures if name in old.figures]
    fallen = [
        f"{name}: {_figure(old.figures[name])} -> {_figure(new.figures[name])}"
        for name in both
        if not new.figures[name][0] >= (1 - ALLOWED) * old.figures[name][0]  # NaN has fallen, too
    ]
    if fallen:
        advice = (
            "Look for what else runs on these GPUs, for throttling (nvidia-smi -q -d PERFORMANCE)"
            " and for changed settings; --save-baseline takes the new figures."
        )
        head = f"since {old.saved}, {counted(len(fallen), 'figure')} fell by more than a tenth"
        return Check("baseline", "warn", "\n".join([head, *fallen]), advice)
    return Check(
        "baseline", "pass", f"{counted(len(both), 'figure')} at least nine tenths of {old.saved}'s"
    )


def _plain(value: Json) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _figure(figure: tuple[float, str]) -> str:
    value, unit = figure
    return f"{value:,.0f} tokens/s" if unit == "tokens/s" else rate(value)
