"""The state of each visible GPU: errors, modes, memory in use, its PCIe link, its device file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from mirror.core.paths import shown
from mirror.verify.host.cards import DETAILS, Card, parse
from mirror.verify.host.finding import Problem, grouped, judged, of
from mirror.verify.host.gpus import Gpu
from mirror.verify.host.machine import Machine, container, words
from mirror.verify.report import Check, Verdict

#: The visible GPUs, and what the driver tells of each.
Cards: TypeAlias = Sequence[tuple[Gpu, Card]]
#: MiB in use on a GPU: below it is a display or a monitor.
_MEMORY = 1024
#: MiB that must be free: CUDA's context, torch's kernels and NCCL's buffers come to a good 1 GiB
#: (seen on an H200: with 0.6 GiB free not even the context could be made).
_LEAST = 1536
#: It makes missing device files for every user: it runs as root.
_MODPROBE = "/usr/bin/nvidia-modprobe"
_RESET = "Reset it while nothing uses it (nvidia-smi --gpu-reset -i N, as root), or reboot."

#: Those that are no "Default": how bad, and what they mean.
_COMPUTE_MODES: tuple[tuple[str, Verdict, str], ...] = (
    ("Prohibited", "fail", "no program may compute on it"),
    ("Exclusive_Process", "warn", "one process at a time: any other one on it fails"),
    ("Exclusive_Thread", "warn", "one thread at a time: any other one on it fails"),
)


def cards_of(here: Machine, gpus: Sequence[Gpu]) -> list[tuple[Gpu, Card]]:
    """Those of these GPUs that the driver tells more of."""
    said = here.tool(*DETAILS)
    known = {card.uuid: card for card in (parse(said.out) if said else None) or ()}
    return [(gpu, known[gpu.uuid]) for gpu in gpus if gpu.uuid in known]


def check(here: Machine, gpus: Sequence[Gpu], cards: Cards, asked: int | None) -> Iterator[Check]:
    """All that is here; where the driver tells nothing, one line says so."""
    if not cards:
        said = here.tool(*DETAILS)
        why = "nothing of these GPUs in it" if said and said.code == 0 else words(said, DETAILS[0])
        yield Check("gpu health", "skip", f"{' '.join(DETAILS)}: {shown(why)}")
    else:
        yield judged("gpu health", *_health(cards))
        yield judged("gpu modes", *_modes(cards, len(gpus) if asked is None else asked))
    yield judged("gpu memory", *_memory(gpus, cards, len(gpus) if asked is None else asked))
    if any(card.width for _, card in cards):
        yield judged("pcie link", *_links(cards))
    if cards and not here.exists("/dev/dxg"):  # WSL's one device for all GPUs
        yield judged("device files", *_files(here, cards))


_Found: TypeAlias = tuple[list[str], list[Problem]]


def _health(cards: Cards) -> _Found:
    facts, problems = [], []
    for gpu, card in cards:
        found = list(_ailments(of([gpu.number]), card))
        problems += found
        if not found:
            errors = "no uncorrected memory errors" if card.counts_errors else "memory without ECC"
            facts.append((gpu.number, f"{errors}, not slowed down"))
    return grouped(facts), problems


def _ailments(name: str, card: Card) -> Iterator[Problem]:
    if "failure" in card.rows:
        advice = "This GPU must be replaced; hide it with CUDA_VISIBLE_DEVICES until then."
        yield Problem("fail", f"{name}: memory failed, and no spare rows are left", advice)
    if card.recovery:
        yield Problem("fail", f"{name}: the driver asks for: {shown(card.recovery)}", _RESET)
    if "pending" in card.rows:
        yield Problem("warn", f"{name}: spare memory is to replace bad one at a reset", _RESET)
    if card.uncorrectable:
        errors = ", ".join(f"{shown(k)} {n:,}" for k, n in card.uncorrectable.items())
        what = f"{name}: memory errors that could not be corrected: {errors}"
        yield Problem("warn", what, f"{_RESET}\nHave it replaced if they come back.")
    if card.threshold:
        what = f"{name}: too many uncorrectable errors in SRAM over its life"
        yield Problem("warn", what, "Have this GPU tested (dcgmi diag -r 3).")
    if card.slowdowns:
        advice = "Look at fans, air flow and power supply; nvidia-smi -q -d PERFORMANCE says more."
        yield Problem("warn", f"{name}: slowed down: {', '.join(card.slowdowns)}", advice)


def _modes(cards: Cards, wanted: int) -> _Found:
    """MIG and compute mode. NVIDIA's MIG guide: CUDA gives a process one instance, without peers;
    so MIG and several GPUs exclude each other."""
    facts = [(gpu.number, _mode(card)) for gpu, card in cards]
    problems = []
    if divided := [gpu.number for gpu, card in cards if card.mig == "Enabled"]:
        what = f"{of(divided)}: MIG is on: a process sees one instance, and NCCL cannot join them"
        advice = "Turn it off (nvidia-smi -i N -mig 0, as root), or hide it: CUDA_VISIBLE_DEVICES."
        problems.append(Problem("fail" if wanted > 1 else "warn", what, advice))
    if waiting := [g.number for g, card in cards if card.mig_pending not in ("", card.mig)]:
        what = f"{of(waiting)}: MIG is to be turned on or off at a reset"
        problems.append(Problem("warn", what, _RESET))
    for mode, verdict, meaning in _COMPUTE_MODES:
        if found := [gpu.number for gpu, card in cards if card.compute_mode == mode]:
            what = f"{of(found)}: compute mode {mode}: {meaning}"
            advice = "Allow it: nvidia-smi -i N -c DEFAULT, as root."
            problems.append(Problem(verdict, what, advice))
    return grouped(facts), problems


def _mode(card: Card) -> str:
    mig = shown(card.mig).lower() or "not there"
    kept = shown(card.persistence).lower() or "not known"
    mode = shown(card.compute_mode) or "not known"
    return f"MIG {mig}, compute mode {mode}, persistence mode {kept}"


def _memory(gpus: Sequence[Gpu], cards: Cards, wanted: int) -> _Found:
    """wanted: how many are trained on, the first ones."""
    facts, problems = [], []
    holders = {gpu.uuid: card.processes for gpu, card in cards}
    for number, gpu in enumerate(gpus):
        used = int(gpu.used) if gpu.used.isdecimal() else 0
        processes = holders.get(gpu.uuid, ())
        computing = [p for p in processes if p.computes]
        if used < _MEMORY and not computing:
            facts.append((gpu.number, f"less than {_MEMORY:,} MiB in use, nothing computes"))
            continue
        listed = ", ".join(
            f"{shown(p.pid)} {shown(p.name)[:120] or 'unnamed'} ({shown(p.memory) or '?'})"
            for p in computing or processes
        )
        by = f"by {listed}" if listed else "by processes that cannot be seen from here"
        what = f"GPU {gpu.index}: {used:,} of {gpu.memory} MiB in use {by}"
        advice = "End what is not needed, or choose other GPUs with CUDA_VISIBLE_DEVICES."
        left = int(gpu.memory) - used if gpu.memory.isdecimal() else _LEAST
        full = left < _LEAST and number < wanted
        what += f"; the {left:,} MiB left are too few to begin with" if full else ""
        problems.append(Problem("fail" if full else "warn", what, advice))
    return grouped(facts), problems


def _links(cards: Cards) -> _Found:
    """An idle GPU lowers its generation; its width it keeps."""
    facts, problems = [], []
    for gpu, card in cards:
        if card.width is None or card.full_width is None:
            continue
        speed = f"up to generation {card.generation}" if card.generation else ""
        text = f"x{card.width} of x{card.full_width}" + (f", {speed}" if speed else "")
        if card.width < card.full_width:
            advice = "Seat the card again; look at risers, cables and the slot's setting (BIOS)."
            problems.append(Problem("warn", f"{of([gpu.number])}: {text}", advice))
        else:
            facts.append((gpu.number, text))
    return grouped(facts), problems


def _files(here: Machine, cards: Cards) -> _Found:
    wanted = [f"nvidia{card.minor}" for _, card in cards if card.minor.isdecimal()]
    wanted += ["nvidiactl", "nvidia-uvm"]
    missing = [f"/dev/{name}" for name in wanted if not here.exists(f"/dev/{name}")]
    if not missing:
        return [", ".join(f"/dev/{name}" for name in wanted)], []
    what = f"not there: {', '.join(missing)}"
    if here.exists(_MODPROBE) and not container(here):
        return [f"{what}; {_MODPROBE} makes them when CUDA starts"], []
    if container(here):
        advice = "Start the container with --gpus all, or give it these devices."
    else:
        advice = "As root: modprobe nvidia-uvm; nvidia-modprobe -c 0 -u"
    return [], [Problem("warn", what, advice)]
