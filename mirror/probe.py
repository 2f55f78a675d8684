"""mirror probe: what this machine is and what an environment on it holds, for a manifest."""

from __future__ import annotations

import sys
from pathlib import Path

from mirror import machine
from mirror.core.inventory import Inventory
from mirror.errors import MachineError


def probe(env: Path | None) -> Inventory:
    """The inventory of this machine and of the environment `env` (None: the one that runs mirror).

    Raises MachineError when the environment has no interpreter that runs.
    """
    platform = machine.this_platform()
    if not platform:
        raise MachineError("this machine is no platform that a bundle can be for")
    found = machine.ask(machine.interpreter_of(env or Path(sys.prefix)), everything=True)
    packages = tuple(f"{name}=={version}" for name, version in sorted(found.packages.items()))
    conda = machine.conda_packages(found.prefix)
    return Inventory(found.version, platform, machine.this_glibc(), packages, conda)
