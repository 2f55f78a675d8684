"""The command line of `trainer train`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

#: Largest difference of a step's loss, in nats, between N processes and one, by precision.
TOLERANCES = {"no": 1e-3, "bf16": 2e-2, "fp16": 2e-2}


@dataclass(frozen=True)
class Leg:
    """One training of the model, from its first step, or a checkpoint, to the last.

    folder: for its checkpoint, in checkpoint/.
    parallel: "ddp" keeps the whole model on every rank, "fsdp" a part of it.
    resume: the checkpoint that it goes on from. kill_after: steps, after which this process kills
    itself. end: steps done when it ends, one way or the other. digests: numbers of steps, after
    which the parameters' sha256 is noted.
    """

    folder: Path
    parallel: str
    resume: Path | None
    kill_after: int | None
    end: int
    digests: frozenset[int]


@dataclass(frozen=True)
class Options:
    """What a run of `trainer train` is asked for.

    out: a folder for results.
    model: a bundled model's folder. trust_remote_code: whether Python code in it may run.
    largest: a bundled model of more parameters is not trained.
    steps: of the optimizer. batch: samples a step, of all processes together.
    accumulation: passes, forward and backward, that a step's samples are split into.
    workers: processes a rank that make its samples, 0 for none.
    parallel: as a leg has it; then_fsdp: whether a second leg follows, sharded, which saves another
    launch. fsdp_version: None for the newest there is.
    collectives: whether they are checked first.
    save_after, digest_after: numbers of steps, as all legs have them; kill_after: as the last has.
    resume: another run's `out`, from whose checkpoints to go on.
    """

    out: Path
    model: Path | None
    trust_remote_code: bool
    largest: int
    steps: int
    batch: int
    accumulation: int
    workers: int
    precision: str
    parallel: str
    then_fsdp: bool
    fsdp_version: int | None
    collectives: bool
    save_after: int | None
    kill_after: int | None
    digest_after: tuple[int, ...]
    resume: Path | None

    @property
    def legs(self) -> list[Leg]:
        """What is trained, in its order."""
        legs = [self._leg(self.parallel, Path(), None if self.then_fsdp else self.kill_after)]
        if self.then_fsdp:
            legs.append(self._leg("fsdp", Path("fsdp"), self.kill_after))
        return legs

    def _leg(self, parallel: str, inside: Path, kill_after: int | None) -> Leg:
        end = kill_after or self.steps
        return Leg(
            folder=self.out / inside,
            parallel=parallel,
            resume=self.resume / inside / "checkpoint" if self.resume else None,
            kill_after=kill_after,
            end=end,
            digests=frozenset({*self.digest_after, self.save_after or 0, end} - {0}),
        )


def parse(arguments: list[str]) -> Options:
    """Ends the process with exit code 2 and a usage line on what it does not understand."""
    parser = argparse.ArgumentParser(prog="trainer train")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--model", type=Path, help="folder of a bundled model")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the model's own code")
    parser.add_argument("--largest", type=int, default=50_000_000, help="parameters at most")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=24, help="samples a step, all processes")
    parser.add_argument("--accumulation", type=int, default=1, help="passes a step")
    parser.add_argument("--workers", type=int, default=0, help="loader processes a rank")
    parser.add_argument("--precision", choices=sorted(TOLERANCES), default="no")
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--then-fsdp", action="store_true", help="and again, sharded")
    parser.add_argument("--fsdp-version", type=int, choices=(1, 2))
    parser.add_argument("--no-collectives", dest="collectives", action="store_false")
    parser.add_argument("--save-after", type=int, metavar="STEPS", help="save a checkpoint then")
    parser.add_argument("--kill-after", type=int, metavar="STEPS", help="die by SIGKILL then")
    parser.add_argument("--digest-after", type=int, metavar="STEPS", action="append", default=[])
    parser.add_argument("--resume", type=Path, metavar="OUT", help="go on from its checkpoints")
    found = vars(parser.parse_args(arguments))
    options = Options(**{**found, "digest_after": tuple(found["digest_after"])})
    if options.batch % options.accumulation:
        parser.error("--batch must be a multiple of --accumulation")
    return options
