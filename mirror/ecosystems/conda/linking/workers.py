"""rattler at work in other processes, and what becomes of it when one of them dies."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.core.progress import Advance
from mirror.core.secrets import without
from mirror.core.text import human_size
from mirror.ecosystems.conda.linking import unpacked

_CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from mirror.ecosystems.conda.linking.child import main
main()
"""
_MOST, _EACH_CPU = 16, 2  # a process waits for the disk about as long as it works
#: Bytes of packages that are worth a process more.
_SHARE = 4 * 2**20
#: A package may unpack to this many times its size, and to so many bytes in any case. Real ones
#: unpack to 2 to 20 times their size.
RATIO, ALLOWANCE = 200, 64 * 2**20
#: Seconds between two looks at how much has been unpacked.
_PATIENCE = 0.25


class Refused(Exception):  # noqa: N818 -- rattler's, or its process's, answer
    """What was asked for was not done: `lines` say why."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(lines)


@dataclass(frozen=True, slots=True)
class Job:
    """A package to unpack: its archive, which has `size` bytes, and a folder that is not there."""

    archive: Path
    folder: Path
    size: int


def unpack(jobs: Sequence[Job], scratch: Path, advance: Advance) -> list[str | Refused]:
    """Unpack packages, several at once; returns for each the sha256 of its bytes, or why not.

    scratch: a folder for what the processes say. advance: told of the bytes of archives done.
    A package that unpacks to much more than it can be expected to is stopped.
    """
    found: dict[Job, str | Refused] = {}
    waiting = sorted(jobs, key=lambda job: job.size)  # taken from the end: the largest first
    share = 1 + sum(job.size for job in jobs) // _SHARE
    count = min(len(jobs), _EACH_CPU * (os.cpu_count() or 1), _MOST, share)
    with selectors.DefaultSelector() as selector, _Crew(scratch) as crew:
        busy: dict[_Worker, Job] = {}

        def give(worker: _Worker) -> None:
            if waiting:
                busy[worker] = job = waiting.pop()
                worker.send(do="unpack", archive=str(job.archive), folder=str(job.folder))

        def take(worker: _Worker, answer: str | Refused) -> None:
            job = busy.pop(worker)
            found[job] = answer
            advance(job.size)
            if worker.alive:
                give(worker)
            else:
                selector.unregister(worker)
                start()

        def start() -> None:
            if waiting:
                worker = crew.hire()
                selector.register(worker, selectors.EVENT_READ)
                give(worker)

        for _ in range(count):
            start()
        while busy:
            ready = selector.select(_PATIENCE)
            for key, _ in ready:
                assert isinstance(key.fileobj, _Worker)  # noqa: S101 -- nothing else is registered
                take(key.fileobj, _answer(key.fileobj, busy[key.fileobj]))
            for worker, job in [] if ready else list(busy.items()):
                if refusal := _too_much(job):
                    worker.kill()
                    take(worker, refusal)
    return [found[job] for job in jobs]


def link(scratch: Path, advance: Callable[[int], None], **job: Json) -> None:
    """Link packages: see child._link. Raises Refused."""
    with _Crew(scratch) as crew:
        worker = crew.hire()
        worker.send(do="link", **job)
        while "done" not in worker.answer():
            advance(1)


def _answer(worker: _Worker, job: Job) -> str | Refused:
    try:
        answer = worker.answer()
    except Refused as refusal:
        return refusal
    return _too_much(job) or str(answer["sha256"])


def _too_much(job: Job) -> Refused | None:
    limit = ALLOWANCE + RATIO * job.size
    if unpacked.size_of(job.folder) <= limit:
        return None
    return Refused(
        [f"its {human_size(job.size)} unpack to more than {human_size(limit)}: nothing needs that"]
    )


class _Crew:
    """The processes of one task; none outlives it."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.workers: list[_Worker] = []

    def __enter__(self) -> _Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.end() if error is None else worker.kill()

    def hire(self) -> _Worker:
        worker = _Worker(self.scratch / f"rattler-{len(self.workers)}.log")
        self.workers.append(worker)
        return worker


class _Worker:
    """One process that runs `child`."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-B", "-c", _CHILD, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=without(os.environ),
                text=True,
                encoding="utf-8",
            )
        assert self.process.stdin is not None  # noqa: S101 -- a pipe
        assert self.process.stdout is not None  # noqa: S101 -- a pipe
        self.jobs, self.answers = self.process.stdin, self.process.stdout

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def fileno(self) -> int:
        return self.answers.fileno()

    def send(self, **job: Json) -> None:
        # That it has died is seen where its answer is waited for.
        with contextlib.suppress(BrokenPipeError):
            self.jobs.write(json.dumps(job) + "\n")
            self.jobs.flush()

    def answer(self) -> dict[str, Json]:
        """The next one. Raises Refused for a refusal, and when the process has died."""
        line = self.answers.readline()
        if not line:
            raise Refused(self._last_words(self.process.wait()))
        found: dict[str, Json] = json.loads(line)
        refused = found.get("refused")
        if isinstance(refused, list):
            raise Refused([str(reason) for reason in refused])
        return found

    def end(self) -> None:
        """Let it go: it has done what it had to do."""
        if not self.jobs.closed:
            self.jobs.close()
        self.process.wait()
        self.answers.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.jobs, self.answers):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _last_words(self, code: int) -> list[str]:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        said = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        words = [shown(line.strip()) for line in said if line.strip()]
        panics = [line for line in words if "panicked" in line or "Error" in line] or words
        return [f"rattler ended ({how})", *panics[-3:]]
