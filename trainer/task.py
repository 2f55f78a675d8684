"""What is learnt: walks along one fixed, seeded cycle of symbols, with a jump here and there.

A symbol follows from the one before it but for the jumps, so a working trainer's loss falls from
log(vocabulary) far below half of it within a few dozen steps. The jumps make every sample another
one: a process that does not average its gradients with the others, or is fed the wrong samples, has
another loss. Sample i depends on the seed and on i alone, so any number of processes, each with any
number of loader workers, sees the same corpus.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

SYMBOLS = 32
LENGTH = 32
#: How likely the next symbol is any symbol instead of the cycle's next.
JUMP = 0.125
#: How many of LENGTH symbols are hidden from a model that fills gaps: as many in every sample, so
#: that the mean over a batch is the mean over its samples' means.
HIDDEN = 8
#: The mean loss of the last steps must be at most this share of the first step's.
LOSS_FACTOR = 0.5
#: How many last steps are averaged for it.
LAST = 5


class Walks(Dataset[Tensor]):
    """`size` walks of LENGTH + 1 tokens each, int64; none of `reserved` is in them."""

    def __init__(
        self, vocabulary: int, size: int, seed: int = 0, reserved: frozenset[int] = frozenset()
    ) -> None:
        self.size = size
        self.seed = seed
        # Python's own generator gives the same numbers in every version, on every platform.
        chance = random.Random(seed)  # noqa: S311 -- no secret: a corpus
        tokens = [token for token in range(vocabulary) if token not in reserved]
        self.cycle = chance.sample(tokens, min(SYMBOLS, len(tokens)))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> Tensor:
        if not 0 <= number < self.size:
            raise IndexError(number)
        chance = random.Random(f"{self.seed}/{number}")  # noqa: S311
        count = len(self.cycle)
        place = chance.randrange(count)
        walk = [place]
        for _ in range(LENGTH):
            jumps = chance.random() < JUMP
            place = chance.randrange(count) if jumps else (place + 1) % count
            walk.append(place)
        return torch.tensor([self.cycle[place] for place in walk])

    def hidden(self, number: int) -> Tensor:
        """Which of the first LENGTH symbols a model that fills gaps must guess: bool, (LENGTH,)."""
        chance = random.Random(f"{self.seed}/{number}/hidden")  # noqa: S311
        where = torch.zeros(LENGTH, dtype=torch.bool)
        where[chance.sample(range(LENGTH), HIDDEN)] = True
        return where


class Samples(Dataset["dict[str, Tensor]"]):
    """The walks as a loader hands them out.

    tokens, hidden: as Walks has them. number: of the sample. worker: which of the loader's worker
    processes made it, -1 for the training process itself.
    """

    def __init__(self, walks: Walks) -> None:
        self.walks = walks

    def __len__(self) -> int:
        return len(self.walks)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        inside = get_worker_info()
        return {
            "tokens": self.walks[number],
            "hidden": self.walks.hidden(number),
            "number": torch.tensor(number),
            "worker": torch.tensor(inside.id if inside else -1),
        }
