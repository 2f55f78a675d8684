"""Link scripts: what a package wants to have run before and after it is linked.

They run where the manifest names the package, and nowhere else. As conda has it: with bash, in the
environment as its packages activate it, told of the package and the prefix by variables.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.core.secrets import without
from mirror.ecosystems.conda.archives import link_script
from mirror.errors import MachineError

#: Seconds that a script may take.
_TIMEOUT = 1800.0
_MESSAGES = ".messages.txt"
_FOREIGN = ("PYTHON", "CONDA_", "VIRTUAL_ENV")
# Sourced, not started: a script may end with `return`.
_SHELL = """
for mirror_script in "$PREFIX"/etc/conda/activate.d/*.sh; do
    if [ -r "$mirror_script" ]; then . "$mirror_script"; fi
done
unset mirror_script
. "$0"
"""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs the link scripts of packages that may have theirs run.

    log: the file that everything they say is added to.
    """

    prefix: Path
    log: Path
    progress: Progress

    def run(self, kind: str, record: Mapping[str, Json], folder: Path) -> None:
        """Run one script of a package; does nothing when it has none of this kind.

        kind: of archives.LINK_SCRIPTS. folder: what holds the package's files.
        Raises MachineError that holds its last words when it fails.
        """
        name = str(record.get("name"))
        script = folder / link_script(name, kind)
        if not script.is_file():
            return
        self.progress.step(f"{name}: running its {kind} script, as the manifest allows")
        variables = self._variables(record) | {"SOURCE_DIR": str(folder)}
        shell = shutil.which("bash") or "sh"
        self.log.parent.mkdir(exist_ok=True)
        with open(self.log, "ab") as log:
            log.write(f"== {script}\n".encode())
            log.flush()
            start = log.tell()
            try:
                code = subprocess.run(
                    [shell, "-c", _SHELL, script],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    cwd=script.parent,
                    timeout=_TIMEOUT,
                    check=False,
                ).returncode
                how = _ending(code)
            except subprocess.TimeoutExpired:
                how = f"had not ended after {_TIMEOUT:.0f} s"
        for line in self._messages():
            self.progress.step(f"{name} says: {line}")
        if how:
            said = self.log.read_bytes()[start:].decode("utf-8", "replace").splitlines()
            raise MachineError(
                f"{name}: its {kind} script {how}",
                problems=[f"{script.name}: {shown(line)}" for line in said[-10:]],
                hint=f"All that it said is in {self.log}. To install {name} without it, take"
                " it out of conda.link-scripts in the manifest.",
            )

    def _variables(self, record: Mapping[str, Json]) -> dict[str, str]:
        kept = without(os.environ, _FOREIGN)
        path = [str(self.prefix / "bin"), kept.get("PATH", os.defpath)]
        return {
            **kept,
            "PATH": os.pathsep.join(path),
            "PREFIX": str(self.prefix),
            "CONDA_PREFIX": str(self.prefix),
            "PKG_NAME": str(record.get("name")),
            "PKG_VERSION": str(record.get("version")),
            "PKG_BUILDNUM": str(record.get("build_number")),
        }

    def _messages(self) -> Iterator[str]:
        """What a script has to say to people: conda shows that file's lines, and removes it."""
        file = self.prefix / _MESSAGES
        if file.is_file() and not file.is_symlink():
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                yield shown(line)
            file.unlink()


def in_order(records: Iterable[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
    """The same records, each after those that it depends on; where they form a ring, by name."""
    known = {str(record.get("name")): record for record in records}
    done: dict[str, None] = {}
    begun: set[str] = set()
    waiting = [(name, False) for name in sorted(known, reverse=True)]
    while waiting:
        name, ready = waiting.pop()
        if ready:
            done[name] = None
        elif name not in begun:
            begun.add(name)
            depends = known[name].get("depends")
            needed = {str(spec).split()[0] for spec in depends} if isinstance(depends, list) else {}
            waiting.append((name, True))
            waiting += [(other, False) for other in sorted(needed, reverse=True) if other in known]
    return [known[name] for name in done]


def _ending(code: int) -> str:
    """How a script failed; empty when it did not."""
    if code >= 0:
        return f"failed: it ended with exit code {code}" if code else ""
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
