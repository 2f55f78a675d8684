"""What is verified, and where the work on it goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirror.core.index import Index
from mirror.core.progress import Progress
from mirror.ecosystems.models.bundled import Revision, revisions
from mirror.store.generation import Generation
from mirror.store.generations import Root

#: What the manifest's `verify` section says when it says nothing.
STEPS = 40
PRECISIONS = ("no", "fp16", "bf16")
#: The checks that are made only when they are asked for; stages of these names.
CHECKS = ("ray", "vllm")


@dataclass(frozen=True, slots=True)
class Subject:
    """A generation to verify.

    gpus: how many GPUs must be proved; None for all that are visible.
    work: a fresh folder for logs and results.
    """

    root: Root
    generation: Generation
    index: Index
    gpus: int | None
    work: Path
    progress: Progress

    @property
    def python(self) -> Path | None:
        """The environment's interpreter, None when the bundle brought no environment."""
        python = self.generation.python
        return python if python.exists() else None

    # The index comes from outside: whatever is not of the right type counts as not said.

    @property
    def imports(self) -> list[str]:
        """Modules that must import; "?" at the end makes one optional."""
        names = self.index.verify.get("imports")
        return [n for n in names if isinstance(n, str)] if isinstance(names, list) else []

    @property
    def steps(self) -> int:
        """Optimizer steps of the training run."""
        steps = self.index.verify.get("steps")
        return steps if type(steps) is int and steps > 0 else STEPS

    @property
    def precision(self) -> str:
        """Of the training run: "no" (float32), "bf16" or "fp16"."""
        precision = self.index.verify.get("precision")
        return str(precision) if precision in PRECISIONS else "no"

    @property
    def checks(self) -> list[str]:
        """The checks that the manifest asks for beside the usual ones, in the stages' order."""
        asked = self.index.verify.get("checks")
        return [name for name in CHECKS if name in asked] if isinstance(asked, list) else []

    @property
    def revisions(self) -> list[Revision]:
        """The bundled models, datasets and spaces, each revision of each.

        Raises BundleError when the index describes none that mirror writes.
        """
        return revisions(self.index.artifacts)

    @property
    def models(self) -> list[str]:
        """The ids of the bundled models: what loads without a revision being named."""
        return [r.repo for r in self.revisions if r.kind == "models" and r.default]

    @property
    def named_model(self) -> str | None:
        """The id of the model to train, as the manifest says it; the bundle may lack it."""
        named = self.index.verify.get("model")
        return named if isinstance(named, str) and named else None

    @property
    def model(self) -> Path | None:
        """The folder of the model to train: the one that the manifest names, else the first.

        None when the bundle does not carry it, or carries none.
        """
        name = self.named_model or next(iter(self.models), None)
        return self.generation.models / name if name in self.models else None
