"""The stages in their order, and what each leaves to the later ones."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.verify import (
    child,
    diagnosis,
    environment,
    extras,
    host,
    ladder,
    models,
    remedy,
    stack,
    store,
    training,
)
from mirror.verify.ladder import Measured, Rung
from mirror.verify.launch import Job, Limits
from mirror.verify.nodes import Nodes
from mirror.verify.report import Check, Stage, Training
from mirror.verify.subject import CHECKS, Subject


class Skip(Exception):  # noqa: N818 -- no error: the reason why a stage is not run
    """Raised in a stage that cannot be run."""


class Course:
    """The stages in their order, and what each leaves to the later ones."""

    def __init__(
        self,
        subject: Subject,
        limits: Limits,
        *,
        climb: bool = False,
        checks: Sequence[str] = (),
        nodes: Nodes | None = None,
    ) -> None:
        """climb: measure every rung of the ladder, whatever the plain run comes to.

        checks: stages that are made only when they are asked for, beside the manifest's.
        nodes: the machines that train together; None for this one alone.
        """
        self.subject = subject
        self.limits = limits
        self.climb = climb
        self.checks = {*subject.checks, *checks}
        self.nodes = nodes
        self.stages: list[Stage] = []
        self.gpus: list[host.Gpu] = []
        self.stack: stack.Stack | None = None
        self.plan: training.Plan | None = None
        self.single: Training | None = None
        self.topology: host.Topology | None = None
        self.settled: remedy.Settled | None = None
        self.further: tuple[tuple[str, Training], ...] = ()

    @property
    def multi(self) -> Training | None:
        """What the ranks of many processes reported, under the settings that were found."""
        return self.settled.training if self.settled else None

    def run(self) -> None:
        """All stages."""
        self._stage("store", self._store)
        self._stage("host", self._host)
        self._stage("environment", self._environment)
        self._stage("models", self._models)
        self._stage("single", self._train_single)
        self._stage("multi", self._train_multi)
        for name in CHECKS:
            if name in self.checks:
                self._stage(name, functools.partial(self._extra, name))

    def verdict(self, stage: str, check: str | None = None) -> str:
        """Of a stage that has been, or of one check in it; "skip" for a check that was not made."""
        found = next(s for s in self.stages if s.name == stage)
        if check is None:
            return found.verdict
        return next((c.verdict for c in found.checks if c.name == check), "skip")

    def _store(self) -> Iterable[Check]:
        return store.check(self.subject)

    def _host(self) -> Iterable[Check]:
        here = host.look()
        found = host.visible_gpus(here)
        self.gpus = found or []
        self.topology = host.topology(here, self.gpus) if len(self.gpus) > 1 else None
        return host.check(self.subject, found, here)

    def _environment(self) -> Iterable[Check]:
        self._need("store")
        checks = environment.conda(self.subject)
        if self.subject.python is None:
            if not checks:
                raise Skip("the bundle brought no environment")
            return checks
        found, self.stack = environment.check(self.subject, self.subject.python)
        checks += found
        if self.stack:
            checks.append(stack.gpus(self.stack, self.subject.gpus, len(self.gpus)))
        return checks

    def _models(self) -> Iterable[Check]:
        self._need("store")
        if not self.subject.revisions and not self.subject.named_model:
            raise Skip("the bundle brought no models")
        return models.check(self.subject, self.subject.python)

    def _train_single(self) -> Iterable[Check]:
        self._need("store")
        self._need("host", "gpus")
        self._need("host", "gpu memory")
        self._need("models", models.NAMED)
        if self.subject.python is None or self.stack is None:
            reason = "there is no environment with a working torch and accelerate"
            if self.subject.gpus is None:
                raise Skip(reason)
            asked = counted(self.subject.gpus, "GPU")
            return [Check("run", "fail", f"{asked} asked for, but {reason}")]
        self._need("environment", "torch's gpus")
        sizes = [int(gpu.memory) * 2**20 for gpu in self.gpus if gpu.memory.isdigit()]
        smallest = min(sizes, default=None)
        self.plan = training.plan(
            self.subject, len(self.stack.gpus), memory=smallest, nodes=self.nodes
        )
        checks, self.single = training.single(
            self.subject, self.subject.python, self.plan, self.limits
        )
        return checks

    def _train_multi(self) -> Iterable[Check]:
        self._need("single")
        self._need("host", "loopback")
        if self.subject.python is None or self.plan is None or self.single is None:
            raise Skip("one process did not train")
        if self.plan.world == 1:
            raise Skip("on one GPU there is nothing to run together")
        if self.nodes and self.stack:
            self.nodes.facts = {"torch": self.stack.torch, "accelerate": self.stack.accelerate}
        self.settled = self._settle(self.subject.python, self.plan, self.single)
        return self.settled.checks

    def _settle(self, python: Path, plan: training.Plan, single: Training) -> remedy.Settled:
        """Train with many processes; on GPUs, find the settings that this takes."""
        folder = self.subject.work / "multi"

        def train(env: Mapping[str, str]) -> tuple[list[Check], Training | None]:
            many = training.Many(self.subject, python, plan, single, self.limits, env)
            checks = many.run()
            self.further = tuple(many.further)
            return checks, many.ddp_run

        if not plan.gpu or plan.nodes:  # a ladder takes all nodes at once
            checks, trained = train({})
            return remedy.Settled(tuple(checks), trained)
        environ = child.variables(self.subject.generation)
        job = Job(python, folder, plan.processes, gpu=True, arguments=(), environ=environ)

        def rungs() -> list[Rung]:
            known = diagnosis.known(folder, plan.processes, [])
            pointed = [name for symptom in known for name in symptom.rungs]
            peers = self.topology.peers if self.topology else False
            return ladder.rungs(peers=peers, pointed=pointed, environ=environ)

        def measure(rung: Rung) -> Measured:
            number = len(list(self.subject.work.glob("rung-*")))
            self.subject.progress.step(f"ladder: {rung}")
            return ladder.measure(job, rung, self.subject.work / f"rung-{number}")

        return remedy.settle(
            train, measure, rungs, promised=self._promised(plan.processes), always=self.climb
        )

    def _extra(self, name: str) -> Iterable[Check]:
        self._need("store")
        self._need("host", "gpus")
        self._need("host", "gpu memory")
        if self.subject.python is None:
            return [Check("installed", "fail", "asked for, and the bundle brought no environment")]
        seen = len(self.stack.gpus) if self.stack else len(self.gpus)
        gpus = min(self.subject.gpus or seen, seen)
        env = self.settled.env if self.settled else {}
        return extras.check(name, self.subject, self.subject.python, gpus=gpus, env=env)

    def _promised(self, ranks: int) -> dict[tuple[int, int], float]:
        """Bytes/s one way between each two ranks, which have the first so many visible GPUs.

        Only between peers: what goes through host memory owes nothing to the link.
        """
        found: dict[tuple[int, int], float] = {}
        numbers = [gpu.number for gpu in self.gpus[:ranks]]
        for a, b in itertools.permutations(range(len(numbers)), 2):
            pair = numbers[a], numbers[b]
            if self.topology and self.topology.states.get(pair) == "OK":
                found[a, b] = self.topology.promised(pair) or 0.0
        return {pair: rate for pair, rate in found.items() if rate}

    def _need(self, stage: str, check: str | None = None) -> None:
        if self.verdict(stage, check) == "fail":
            raise Skip(f"{stage}{f' ({check})' if check else ''} failed")

    def _stage(self, name: str, look: Callable[[], Iterable[Check]]) -> None:
        begin = time.monotonic()
        if self.nodes:
            self.nodes.at(name)
        try:
            checks = tuple(look())
        except Skip as reason:
            checks = (Check("stage", "skip", str(reason)),)
            if self.nodes and name in ("single", "multi"):
                self.nodes.withdraw(str(reason))
        stage = Stage(name, checks, time.monotonic() - begin)
        self.stages.append(stage)
        for check in checks:
            self.subject.progress.detail(shown(f"{check.verdict}  {check.name}: {check.evidence}"))
        self.subject.progress.step(f"{name}: {stage.verdict}, {stage.summary}")
