"""Stage `environment`: does the environment hold what was declared, and does that import?"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from mirror.core.compat import canonical_name, same_version
from mirror.core.text import counted
from mirror.ecosystems.conda.linking import check as linked
from mirror.ecosystems.conda.records import is_package
from mirror.verify import child
from mirror.verify import stack as stacks
from mirror.verify.report import Check
from mirror.verify.stack import Stack
from mirror.verify.subject import Subject

_TIMEOUT = 300.0
#: How many imports run at once: each may load a gigabyte of libraries.
_AT_ONCE = 2
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_IMPORT = "import importlib, sys; importlib.import_module(sys.argv[1])"


def check(subject: Subject, python: Path) -> tuple[list[Check], Stack | None]:
    """The interpreter, versions, imports; and the training stack, None when it is not usable."""
    environ = child.variables(subject.generation)
    work = subject.work / "environment"
    answer, reason = child.ask(
        python, "packages", (), environ=environ, folder=work / "packages", timeout=_TIMEOUT
    )
    if answer is None:
        advice = "Install the bundle again, or name another interpreter with install --python."
        return [Check("python", "fail", f"{python}: {reason}", advice)], None
    packages: dict[str, str] = answer["packages"]
    known = f"{python}: Python {answer['python']}, {counted(len(packages), 'package')}"
    checks = [Check("python", "pass", known), versions(subject, packages)]
    checks += [_dependencies(subject, python, environ, work)] if "pip" in packages else []
    checks += _imports(subject, python, environ, work)
    missing = [name for name in ("torch", "accelerate") if name not in packages]
    if missing:
        evidence = f"{' and '.join(missing)} not in this environment"
        return [*checks, Check("torch", "skip", evidence, "Training cannot be tried.")], None
    stack, reason = stacks.ask(python, environ, work / "torch")
    if stack is None:
        return [*checks, Check("torch", "fail", reason, "torch or accelerate is broken.")], None
    return [*checks, *stacks.check(stack, packages, answer["python"])], stack


def conda(subject: Subject) -> list[Check]:
    """Whether the conda packages are as they were linked; nothing where the bundle has none."""
    artifacts = subject.index.of_kind("conda")
    if not artifacts:
        return []
    if problems := linked.problems(subject.generation.env, artifacts):
        return [Check("conda", "fail", "\n".join(problems[:20]), "Install the bundle again.")]
    count = counted(sum(map(is_package, artifacts)), "package")
    return [Check("conda", "pass", f"{count} linked as locked, every file unchanged")]


def versions(subject: Subject, packages: Mapping[str, str]) -> Check:
    """Every carried wheel installed in its version, and what the server provides still there."""
    wheels = [a for a in subject.index.of_kind("wheels") if a.path.endswith(".whl")]
    declared = [tuple(Path(a.path).name.split("-")[:2]) for a in wheels]
    provided = subject.index.target.provided if subject.index.target else ()
    declared += [(name, version) for name, _, version in (p.partition("==") for p in provided)]
    problems = [
        f"{name} {version}: {f'{found} is installed' if found else 'not installed'}"
        for name, version in declared
        if not same_version(found := packages.get(canonical_name(name), ""), version)
    ]
    if problems:
        advice = "Install the bundle again; name the environment it is layered over with --over."
        return Check("versions", "fail", "\n".join(problems[:20]), advice)
    if not declared:
        return Check("versions", "skip", "the bundle declares no Python packages")
    evidence = f"{counted(len(wheels), 'wheel')} installed as locked"
    evidence += f"; provided here: {', '.join(provided)}" if provided else ""
    return Check("versions", "pass", evidence)


def _dependencies(subject: Subject, python: Path, environ: Mapping[str, str], work: Path) -> Check:
    """`pip check`: what the carried packages need is there, in versions that they take.

    What it finds of packages that are not ours (of an environment below) is told, and no failure.
    """
    log = work / "pip-check.log"
    line = [str(python), "-m", "pip", "check", "--disable-pip-version-check"]
    reason = child.run(line, environ=environ, log=log, timeout=_TIMEOUT)
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    ours = {canonical_name(a.text("name")) for a in subject.index.of_kind("wheels")}
    broken = [text for text in said if canonical_name(text.partition(" ")[0]) in ours]
    if broken:
        advice = "Install the bundle again; name the environment it is layered over with --over."
        return Check("dependencies", "fail", "\n".join(broken[:20]), advice)
    if reason:
        others = [text for text in said if " requires " in text or " has requirement " in text]
        return Check("dependencies", "pass", "\n".join(["only others' are broken:", *others[:5]]))
    return Check("dependencies", "pass", "pip check finds nothing broken")


def _imports(
    subject: Subject, python: Path, environ: Mapping[str, str], work: Path
) -> Iterator[Check]:
    """Each declared module in a process of its own: a crash in one is a result, not an end."""
    wanted = list(dict.fromkeys(subject.imports))
    with subject.progress.bar("importing", len(wanted), "modules") as advance:
        for begin in range(0, len(wanted), _AT_ONCE):
            batch = wanted[begin : begin + _AT_ONCE]
            started = [_Import(python, item, environ, work) for item in batch]
            for one in started:
                yield one.verdict()
                advance(1)


class _Import:
    """One import, running."""

    def __init__(self, python: Path, item: str, environ: Mapping[str, str], folder: Path) -> None:
        self.module, self.optional = item.rstrip("?"), item.endswith("?")
        self.log = folder / f"import-{canonical_name(self.module)}.log"
        self.process: subprocess.Popen[bytes] | None = None
        if _MODULE.fullmatch(self.module):
            with open(self.log, "wb") as output:
                self.process = subprocess.Popen(
                    [str(python), "-c", _IMPORT, self.module],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environ,
                    cwd=folder,
                    start_new_session=True,
                )

    def verdict(self) -> Check:
        """Wait for its end, and say how it went."""
        name = f"import {self.module}"
        if self.process is None:
            return Check(name, "fail", "this is no module's name", "Correct the manifest.")
        try:
            code = self.process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return self._bad(name, f"it had not ended after {_TIMEOUT:.0f} s")
        if code == 0:
            return Check(name, "pass", "imports")
        words = child.last_words(self.log, 1)
        top = self.module.partition(".")[0]
        if self.optional and words == f"ModuleNotFoundError: No module named {top!r}":
            return Check(name, "skip", "not installed, and optional")
        return self._bad(name, f"{child.ending(code)}: {words}")

    def _bad(self, name: str, evidence: str) -> Check:
        if self.optional:
            return Check(name, "warn", f"optional, but broken: {evidence}")
        return Check(name, "fail", evidence, f"The whole output is in {self.log}.")
