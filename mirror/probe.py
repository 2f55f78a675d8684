"""mirror probe: what this machine is and what it holds, for a manifest's target and `--since`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from mirror import hardware, machine
from mirror.core.inventory import Inventory
from mirror.errors import MachineError
from mirror.store.generations import Root


def probe(env: Path | None, root: Root | None = None) -> Inventory:
    """The inventory of this machine, of an environment and of a root.

    env: None for the one that runs mirror. root: nothing is said of one that is not there (yet).
    Raises MachineError when the environment has no interpreter that runs, BundleError when the
    record of a generation is damaged.
    """
    platform = machine.this_platform()
    if not platform:
        raise MachineError("this machine is no platform that a bundle can be for")
    found = machine.ask(machine.interpreter_of(env or Path(sys.prefix)), everything=True)
    model, level = hardware.cpu()
    driver, cuda, gpus = hardware.gpus()
    here = Inventory(
        python=found.version,
        platform=platform,
        glibc=machine.this_glibc(),
        packages=tuple(sorted(f"{name}=={version}" for name, version in found.packages.items())),
        conda=machine.conda_packages(found.prefix),
        cpu=model,
        level=level,
        memory=hardware.memory(),
        driver=driver,
        cuda=cuda,
        gpus=gpus,
        free=machine.free_bytes(root.path) if root else None,
    )
    return _with_root(here, root) if root and root.path.is_dir() else here


def _with_root(here: Inventory, root: Root) -> Inventory:
    indexes = {generation.number: generation.index() for generation in root.generations()}
    current = root.current_number()
    # Blobs that no generation lists may be gone before the next bundle arrives.
    listed = {a.sha256: a.size for index in indexes.values() for a in index.artifacts}
    return replace(
        here,
        bundle=None if current is None else indexes[current].digest,
        bundles=tuple(dict.fromkeys(index.digest for index in reversed(indexes.values()))),
        held=tuple(sorted(name for name, size in listed.items() if root.blobs.has(name, size))),
    )
