"""The model that is trained, and the loss that it is trained by."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainer import model, pretrained, task
from trainer.model import UnsupportedError

#: Of models of up to a million parameters; larger ones take less, by the root of their size.
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Learner:
    """A model, and what it needs to learn the task.

    vocabulary: how many tokens it knows. reserved: those with a meaning of their own to it.
    gap: the token that stands for a hidden symbol, for a model that fills gaps; None for one that
    continues a text. through: what computes it ("the trainer" or transformers and its version).
    reason: why it is not the bundled model as transformers has it; refused: whether that is since
    transformers was there and failed. fresh: how many parameters the bundle's files did not hold.
    """

    module: nn.Module
    name: str
    vocabulary: int
    through: str
    reason: str = ""
    refused: bool = False
    fresh: int = 0
    reserved: frozenset[int] = frozenset()
    gap: int | None = None

    @property
    def parameters(self) -> int:
        """How many numbers it learns; a tensor that is used twice counts once."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def learning_rate(self) -> float:
        """AdamW's."""
        return LEARNING_RATE * min(1.0, math.sqrt(1e6 / max(1, self.parameters)))

    def described(self) -> dict[str, Any]:
        """For the rank's result. To be asked before the model is sharded."""
        return {
            "name": self.name,
            "class": type(self.module).__name__,
            "through": self.through,
            "reason": self.reason,
            "refused": self.refused,
            "fresh": self.fresh,
            "parameters": self.parameters,
        }

    def loss(self, wrapped: Any, batch: dict[str, Tensor]) -> Tensor:
        """The mean loss of a batch in nats, a scalar; wrapped: the module as accelerate has it."""
        tokens = batch["tokens"]
        if self.gap is None:
            given, wanted = tokens[:, :-1], tokens[:, 1:].flatten()
            logits = self._logits(wrapped, given).flatten(0, 1)
        else:
            whole, hidden = tokens[:, : task.LENGTH], batch["hidden"]
            given, wanted = whole.masked_fill(hidden, self.gap), whole[hidden]
            logits = self._logits(wrapped, given)[hidden]
        return F.cross_entropy(logits.float(), wanted)

    def _logits(self, wrapped: Any, tokens: Tensor) -> Tensor:
        """(batch, length) -> (batch, length, vocabulary)."""
        if isinstance(self.module, model.TinyLM):
            own: Tensor = wrapped(tokens)
            return own
        found: Tensor = wrapped(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
        return found


def choose(folder: Path | None, largest: int, trusted: bool, seed: int) -> Learner:
    """The bundled model: through transformers, else as this trainer holds it, else the built-in.

    Raises ValueError when a bundled Llama's weights are not those that its config calls for.
    """
    if folder is None:
        return _built_in(seed, "no model was named")
    refused = False
    try:
        if importlib.util.find_spec("transformers") is None:
            raise UnsupportedError("transformers is not in this environment")
        found = pretrained.load(folder, largest, trusted, seed)
        return Learner(name=str(folder), **found)
    except UnsupportedError as error:
        reason, refused = str(error), isinstance(error, pretrained.RefusedError)
    try:
        lm = model.bundled(folder, largest)
    except UnsupportedError as error:
        reasons = [reason, *([] if str(error) in reason else [str(error)])]
        return _built_in(seed, f"{folder}: {'; '.join(reasons)}", refused)
    return Learner(lm, str(folder), lm.config.vocab_size, "the trainer", reason, refused)


def _built_in(seed: int, reason: str, refused: bool = False) -> Learner:
    lm = model.built_in(seed)
    return Learner(lm, "built-in", lm.config.vocab_size, "the trainer", reason, refused)
