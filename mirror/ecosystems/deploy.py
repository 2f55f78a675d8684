"""The server's side of an ecosystem: what every `deploy` module offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mirror.bundle.flow import Background
from mirror.core.artifact import Artifact
from mirror.core.index import Index
from mirror.core.progress import Progress
from mirror.store.blobs import Blobs
from mirror.store.generation import Generation


@dataclass(frozen=True, slots=True)
class Site:
    """Where a bundle is being deployed, and how the person asked for it.

    index: of the bundle.
    blobs: the root's store; holds every artifact.
    generation: the folder being filled.
    python: the interpreter that environments are made from.
    background: for what nobody has to wait for before all is deployed.
    """

    index: Index
    blobs: Blobs
    generation: Generation
    python: Path
    progress: Progress
    background: Background | None = None

    def beside(self, job: Callable[[], None]) -> None:
        """Have a job done beside what follows, where that can be; it is done before the seal."""
        if self.background:
            self.background.submit(job)
        else:
            job()


class Deploy(Protocol):
    """The module `mirror.ecosystems.KIND.deploy`."""

    def deploy(self, artifacts: Sequence[Artifact], site: Site) -> None:
        """Put these artifacts (all of KIND, never empty) into the generation.

        Raises MachineError or TargetError when this machine does not let them be used.
        """
