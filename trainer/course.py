"""The optimizer's steps: through epochs and passes, with a checkpoint on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from trainer import checkpoint, sharding, task
from trainer.checkpoint import Progress
from trainer.learner import Learner
from trainer.loader import BATCHES_PER_EPOCH, Feed, running_workers
from trainer.options import Leg, Options

WARM_UP = 4
#: Steps of this process left out of the throughput: first kernels, first allocations.
UNTIMED = 5


class Course:
    """One rank's part of a leg: made ready, then run once."""

    def __init__(
        self,
        learner: Learner,
        accelerator: Any,
        options: Options,
        leg: Leg,
        heartbeat: Callable[..., None],
        seed: int,
    ) -> None:
        self._learner, self._accelerator = learner, accelerator
        self._options, self._leg, self._heartbeat = options, leg, heartbeat
        self._parameters = learner.parameters  # a sharded model no longer says
        walks = task.Walks(
            learner.vocabulary, options.batch * BATCHES_PER_EPOCH, seed, learner.reserved
        )
        on_gpu = accelerator.device.type == "cuda"
        share = options.batch // options.accumulation
        self._feed = Feed(walks, share, options.workers, pinned=on_gpu)
        optimizer = torch.optim.AdamW(
            learner.module.parameters(),
            lr=learner.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.0,
        )
        self._model, self._optimizer = accelerator.prepare(learner.module, optimizer)
        self._feed.prepare(accelerator)
        self._past = Progress(0, [], "", accelerator.num_processes)
        self._losses: list[float] = []  # this rank's, of the steps that this process did
        self._digests: dict[int, str] = {}
        self._saved: dict[str, Any] = {}
        self._clock = 0.0
        self._batches: Iterator[dict[str, Any]] | None = None

    def resume(self) -> None:
        """Go on from the checkpoint that is asked for. Raises CheckpointError."""
        folder = self._leg.resume
        if folder is None:
            return
        self._past = checkpoint.read_progress(folder)
        checkpoint.load(self._accelerator, folder)
        self._note(self._past.steps)

    def run(self) -> dict[str, Any]:
        """Train to the end; what the rank's result says of it. Raises CheckpointError."""
        self._model.train()
        while self._done < self._leg.end:
            epoch, begun = divmod(self._done, BATCHES_PER_EPOCH)
            # Kept, so that a process which kills itself does so with its workers at work.
            self._batches = self._feed.epoch(epoch, begun * self._options.accumulation)
            self._epoch(self._batches)
        options, leg = self._options, self._leg
        elapsed = time.perf_counter() - self._clock
        timed = len(self._losses) - self._untimed
        killed = leg.kill_after is not None
        if not killed:
            self._batches = None  # and with it, the worker processes
        losses = self._all_losses()
        per_second = timed * options.batch / elapsed if timed else 0.0
        return {
            "losses": losses,
            "loss_share": _share(losses, task.LAST),
            "loss_share_allowed": 1 - (1 - task.LOSS_FACTOR) * min(1.0, len(losses) / 40),
            "tokens_per_second": per_second * task.LENGTH,
            "samples_per_second": per_second,
            "digests": {str(step): found for step, found in self._digests.items()},
            "epoch": options.batch * BATCHES_PER_EPOCH,
            "samples": self._feed.samples,
            "workers": sorted(self._feed.made_by),
            "workers_left": 0 if killed else running_workers(),
            "held_parameters": sharding.held(self._model),
            "resumed_after": self._past.steps if leg.resume else None,
            "killed_after": leg.kill_after,
            "checkpoint": self._saved,
        }

    @property
    def _done(self) -> int:
        return self._past.steps + len(self._losses)

    @property
    def _untimed(self) -> int:
        return min(UNTIMED, self._leg.end - self._past.steps - 1)

    def _epoch(self, batches: Iterator[dict[str, Any]]) -> None:
        """Steps until the epoch, or the run, is over."""
        parts: list[float] = []
        for batch in batches:
            if not parts:
                self._begin_step()
            with self._accelerator.accumulate(self._model):
                loss = self._learner.loss(self._model, batch)
                self._accelerator.backward(loss)
                if self._accelerator.sync_gradients:
                    self._accelerator.clip_grad_norm_(self._model.parameters(), 1.0)
                self._optimizer.step()
                self._optimizer.zero_grad()
            parts.append(loss.item())  # waits for the device: the next heartbeat tells the truth
            if len(parts) == self._options.accumulation:
                self._losses.append(sum(parts) / len(parts))
                parts = []
                self._after_step()
                if self._done == self._leg.end:
                    return

    def _begin_step(self) -> None:
        if len(self._losses) == self._untimed:
            self._clock = time.perf_counter()
        self._heartbeat("step", self._done)
        rate = self._learner.learning_rate * min(1.0, (self._done + 1) / WARM_UP)
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def _after_step(self) -> None:
        done = self._done
        if done in self._leg.digests:
            begin = time.perf_counter()
            self._note(done)
            if done == self._options.save_after:
                self._heartbeat("step", done, "saving the checkpoint")
                progress = Progress(
                    done, self._all_losses(), self._digests[done], self._accelerator.num_processes
                )
                folder = self._leg.folder / "checkpoint"
                self._saved = checkpoint.save(self._accelerator, folder, progress, self._parameters)
            self._clock += time.perf_counter() - begin

    def close(self) -> None:
        """Give the memory back, for another leg."""
        self._accelerator.free_memory()
        del self._model, self._optimizer, self._feed, self._learner

    def _note(self, step: int) -> None:
        self._digests[step] = checkpoint.digest(self._learner.module, self._model)

    def _all_losses(self) -> list[float]:
        """Of the global batch, a step each, with those before the checkpoint.

        Every rank's part of a batch has the same size, so the mean of means is the batch's loss.
        """
        device = self._accelerator.device
        own: torch.Tensor = torch.tensor(self._losses, dtype=torch.float64, device=device)
        mean = self._accelerator.gather(own.unsqueeze(0)).mean(dim=0)
        return [*self._past.losses, *mean.tolist()]


def _share(losses: list[float], last: int) -> float:
    """The last steps' mean loss over the first step's."""
    end = losses[-last:]
    return sum(end) / len(end) / losses[0]
