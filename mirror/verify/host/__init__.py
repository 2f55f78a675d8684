"""Stage `host`: what this machine is, and what on it stops training on several GPUs. No torch.

Everything is read through one value, `Machine`; its programs are run all at once. A line is only
there where it says something: without a GPU nothing is said of links, modes or drivers.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirror.verify.host import (
    bridges,
    cards,
    drivers,
    fabric,
    health,
    links,
    network,
    settings,
    system,
)
from mirror.verify.host import gpus as listing
from mirror.verify.host.gpus import Gpu, chosen, driver, parse, visible_gpus
from mirror.verify.host.links import Topology, topology
from mirror.verify.host.machine import Machine
from mirror.verify.report import Check
from mirror.verify.subject import Subject

__all__ = [
    "COMMANDS",
    "Gpu",
    "Machine",
    "Topology",
    "check",
    "chosen",
    "driver",
    "look",
    "parse",
    "topology",
    "visible_gpus",
]

#: Programs whose answers are wanted on every machine that has them.
COMMANDS = (
    listing.LIST,
    cards.DETAILS,
    links.LINKS,
    links.PEERS,
    links.NVLINKS,
    drivers.DEVICES,
    bridges.BRIDGES,
)


def look() -> Machine:
    """This machine, its programs asked all at once: a driver takes its time for each."""
    here = Machine()
    here.ask(COMMANDS)
    return here


def check(subject: Subject, gpus: Sequence[Gpu] | None, here: Machine | None = None) -> list[Check]:
    """The machine's facts; `gpus` is what `visible_gpus` found, `here` what `look` gave."""
    here = here or look()
    seen = list(gpus or ())
    ranks = subject.gpus or len(seen) or 2  # without GPUs two CPU processes are tried
    checks = [
        system.check_system(here),
        system.check_memory(here, ranks),
        system.check_shared_memory(here),
        system.check_limits(here),
        network.check_loopback(here),
        network.check_hostname(here),
        system.check_disk(here, str(subject.root.path), programs=subject.python is not None),
        settings.check_nccl(here),
        settings.check_libraries(here),
        listing.check(here, gpus, subject.gpus),
    ]
    working = drivers.check(here, gpus)
    checks += [working] if working else []
    return [*checks, *_gpus(here, seen, subject.gpus)] if seen else checks


def _gpus(here: Machine, gpus: Sequence[Gpu], asked: int | None) -> list[Check]:
    known = health.cards_of(here, gpus)
    checks = list(health.check(here, gpus, known, asked))
    found = fabric.check(here, known)
    checks += [found] if found else []
    if len(gpus) < 2:
        return checks
    nvlinks = links.check_nvlinks(here, gpus)
    between = topology(here, gpus)
    checks += [nvlinks] if nvlinks else []
    checks.append(links.check(here, gpus, between))
    if known and (between is None or between.over_pcie):
        checks += [bridges.check_acs(here, known), bridges.check_iommu(here, known)]
    return checks
