"""What is learnt: walks along one fixed, seeded cycle of symbols, with a jump here and there.

A symbol follows from the one before it but for the jumps, so a working trainer's loss falls from
log(vocabulary) far below half of it within a few dozen steps. The jumps make every sample another
one: a process that does not average its gradients with the others, or is fed the wrong samples, has
another loss. Sample i depends on the seed and on i alone, so any number of processes sees the same
corpus.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor
from torch.utils.data import Dataset

SYMBOLS = 32
LENGTH = 32
#: How likely the next symbol is any symbol instead of the cycle's next.
JUMP = 0.125
#: The mean loss of the last steps must be at most this share of the first step's.
LOSS_FACTOR = 0.5
#: How many last steps are averaged for it.
LAST = 5


class Walks(Dataset[Tensor]):
    """`size` walks of LENGTH + 1 tokens each, int64."""

    def __init__(self, vocabulary: int, size: int, seed: int = 0) -> None:
        self.size = size
        self.seed = seed
        # Python's own generator gives the same numbers in every version, on every platform.
        chance = random.Random(seed)  # noqa: S311 -- no secret: a corpus
        self.cycle = chance.sample(range(vocabulary), min(SYMBOLS, vocabulary))

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
