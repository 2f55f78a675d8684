"""A Python script that is launched: its ranks, their logs, the signals for them, their end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.errors import MachineError
from mirror.run.devices import Crew
from mirror.run.failure import Ending, explain
from mirror.run.output import Output
from mirror.verify import accelerate, processes

#: Seconds between two looks at the ranks and at what they wrote.
_PULSE = 0.05
#: Seconds in which the same signal again is the same one: a terminal and a wrapper may both send.
_AT_ONCE = 0.5
#: What ends a job when it comes to mirror. The first goes to the ranks, which may finish in their
#: own way; the second ends them.
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT")
#: What schedulers announce an end with; it goes to the ranks.
_NOTICES = ("SIGUSR1", "SIGUSR2")


@dataclass(frozen=True, slots=True)
class Script:
    """A script or module by its words ("train.py", "--lr", "1e-3"), and who runs it.

    variables: the ranks', to which a launcher adds its own.
    """

    python: Path
    words: tuple[str, ...]
    crew: Crew
    variables: Mapping[str, str] = field(hash=False)

    @property
    def name(self) -> str:
        """The script or module, to be shown."""
        return shown(self.words[1] if self.words[0] == "-m" else self.words[0])

    def run(self, folder: Path, progress: Progress) -> int:
        """Run it to its end, and leave no process of it behind; returns 0, or 128+N for signal N.

        folder: empty but for what `mirror.detached` writes; for accelerate.json, launch.log (what
        the launcher says) and rank-N.stdout.log and rank-N.stderr.log. A signal that ended it came
        to this process; whatever else ends it raises JobError.
        """
        progress.step(f"{self.name}: {self.crew}; logs in {folder}")
        signals = _Signals()
        code: int | None = None
        with Output(folder, self.crew.processes) as output:
            try:
                with processes.nothing_left_behind(), ExitStack() as stack:
                    launcher = self._start(folder, stack)
                    with signals.for_the_ranks(launcher, alone=self.crew.processes == 1):
                        while launcher.poll() is None:
                            output.pass_on()
                            signals.tell(progress)
                            time.sleep(_PULSE)
                        code = launcher.returncode
            except KeyboardInterrupt:
                if not signals.first:
                    raise
        own = self.crew.processes == 1 and code is not None and code >= 0
        if signals.first and code != 0 and not own:
            return 128 + signals.first
        if code:
            raise explain(Ending(self.name, folder, self.crew.processes, code))
        return 0

    def _start(self, folder: Path, files: ExitStack) -> subprocess.Popen[bytes]:
        """One process: the interpreter itself. Several: accelerate."""
        count, gpus = self.crew.processes, self.crew.gpus
        table = {
            "PYTHONFAULTHANDLER": "1",  # a crash in native code shows the line of Python
            **self.variables,
            "PYTHONUNBUFFERED": "1",  # into a file, and yet at once
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
        }
        try:
            if count == 1:
                line = [str(self.python)]
                table = accelerate.alone(table) | (accelerate.ON_CPU if gpus == () else {})
                names = ("rank-0.stdout.log", "rank-0.stderr.log")
            else:
                # What the script itself says of precision comes first in accelerate.
                precision = table.get("ACCELERATE_MIXED_PRECISION", "no")
                line = accelerate.line(self.python, count, precision=precision, folder=folder)
                table = accelerate.environ(table, count, gpu=bool(gpus))
                names = ("launch.log", "launch.log")
            out, err = (files.enter_context((folder / name).open("ab")) for name in names)
            return subprocess.Popen(
                [*line, *self.words],
                stdout=out,
                stderr=err,
                env=table,
                start_new_session=True,  # a terminal's Ctrl-C comes to mirror alone
                preexec_fn=processes.ended_with_us,
            )
        except OSError as error:
            what = error.filename or self.python
            raise MachineError(f"{self.name} cannot be run: {what}: {error.strerror}") from None


class _Signals:
    """Signals that came to mirror, and are meant for the ranks."""

    def __init__(self) -> None:
        self.first = 0
        self._since = 0.0
        self._told = False

    @contextmanager
    def for_the_ranks(self, launcher: subprocess.Popen[bytes], *, alone: bool) -> Iterator[None]:
        """Pass them on inside; the second one that ends the job raises KeyboardInterrupt."""

        def notice(number: int, frame: FrameType | None) -> None:
            for pid in [launcher.pid] if alone else _ranks(launcher.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

        def end(number: int, frame: FrameType | None) -> None:
            now = time.monotonic()
            if not self.first:
                self.first, self._since = number, now
                # SIGHUP and SIGQUIT are none of the launcher's.
                launcher.send_signal(number if number == signal.SIGINT else signal.SIGTERM)
            elif number != self.first or now - self._since > _AT_ONCE:
                raise KeyboardInterrupt

        handlers = {getattr(signal, name): end for name in _ENDING}
        handlers |= {getattr(signal, name): notice for name in _NOTICES}
        old = {
            number: signal.signal(number, handler)
            for number, handler in handlers.items()
            if signal.getsignal(number) != signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, before in old.items():
                signal.signal(number, before)

    def tell(self, progress: Progress) -> None:
        """Say once what the first one did."""
        if self.first and not self._told:
            self._told = True
            name = signal.Signals(self.first).name
            with contextlib.suppress(OSError):  # the terminal may be what has gone
                progress.warn(f"{name}: the ranks were asked to end; once more ends them at once")


def _ranks(launcher: int) -> list[int]:
    """The launcher's children that are ranks: torch makes each the head of a session."""
    found = []
    for pid in processes.children(launcher):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == pid:
                found.append(pid)
    return found
