"""The samples as a training script loads them: worker processes, pinned memory, epochs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from trainer import task

BATCHES_PER_EPOCH = 8


class Feed:
    """The batches of one rank, and a record of what they held.

    samples: the numbers of this rank's samples, a list an epoch, in the order they came.
    made_by: the loader's worker processes that made some of them; -1 is this process itself.
    """

    def __init__(self, walks: task.Walks, batch: int, workers: int, pinned: bool) -> None:
        self._loader: Any = DataLoader(
            task.Samples(walks),
            batch_size=batch,
            shuffle=True,
            num_workers=workers,
            pin_memory=pinned,
            # Workers that are forked need no import of torch; newer Pythons would start them anew.
            multiprocessing_context="fork" if workers else None,
        )
        self.samples: list[list[int]] = []
        self.made_by: set[int] = set()

    def prepare(self, accelerator: Any) -> None:
        """Let accelerate split every batch between the ranks, and order the samples by epoch."""
        self._accelerator = accelerator
        self._loader = accelerator.prepare(self._loader)

    def epoch(self, number: int, skipped: int) -> Iterator[dict[str, Any]]:
        """The batches of an epoch, without the first `skipped`, on the device."""
        self._loader.set_epoch(number)
        loader = self._loader
        if skipped:
            loader = self._accelerator.skip_first_batches(loader, skipped)
        seen: list[int] = []
        self.samples.append(seen)
        for batch in loader:
            seen += batch["number"].tolist()
            self.made_by.update(batch["worker"].tolist())
            yield batch


def running_workers() -> int:
    """How many of this process's worker processes still run."""
    return len(multiprocessing.active_children())
