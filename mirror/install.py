"""mirror install: bundle -> trust -> store -> generation -> current."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mirror import machine
from mirror.bundle.reader import Reader
from mirror.core import compat
from mirror.core.index import Index, total_size
from mirror.core.progress import Progress
from mirror.core.text import counted, human_size
from mirror.ecosystems import environment
from mirror.ecosystems.conda import deploy as conda
from mirror.ecosystems.deploy import Deploy, Site
from mirror.ecosystems.files import deploy as files
from mirror.ecosystems.models import deploy as models
from mirror.ecosystems.tool import deploy as tool
from mirror.ecosystems.wheels import deploy as wheels
from mirror.errors import MachineError, TargetError, TrustError, UsageError
from mirror.store import atomic
from mirror.store.environment import write_activate
from mirror.store.generations import Generation, Root

#: Every ecosystem, in the order of deployment. The environment is made before the wheels.
DEPLOYS: Mapping[str, Deploy] = {
    "tool": tool,
    "conda": conda,
    "wheels": wheels,
    "models": models,
    "files": files,
}
#: Wheels and conda packages unpack to about this many times their size (measured: 2.5 to 4).
_UNPACKED = 4
_SPARE_BYTES = 64 * 10**6


@dataclass(frozen=True, slots=True)
class Wish:
    """How the person wants it installed. Each may be left out.

    python: to make the environment from. over: an environment to layer over, untouched.
    into: an environment to install into, in place of one of its own.
    """

    python: Path | None = None
    over: Path | None = None
    into: Path | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What an install will do, decided before anything is written.

    python: the interpreter that the environment is made from; None when conda brings it, or when
        the bundle has no use for an environment.
    over: the environment that it is layered over.
    into: the environment that it is installed into, and changes: what that does there.
    space: bytes that will be written, at most.
    """

    index: Index
    python: Path | None
    over: machine.Interpreter | None
    into: Path | None
    changes: environment.Changes | None
    space: int


@dataclass(frozen=True, slots=True)
class Installed:
    """The generation in use now; `changed` is False when it was in use before."""

    generation: Generation
    index: Index
    changed: bool


def install(
    bundle: Path,
    root: Root,
    wish: Wish,
    progress: Progress,
    agree: Callable[[Plan], bool] = lambda plan: True,
) -> Installed:
    """Install a bundle as a new generation of `root` and put it in use.

    agree: asked before an existing environment is changed; False ends it there (UsageError).
    Raises BundleError, TrustError, TargetError or MachineError; then `current` is what it was, and
    nothing of the attempt stays in the root but whole blobs. Into an environment that was there
    before, an attempt that fails may have installed some of it.
    """
    os.umask(0o022)  # what is installed is for every user of the machine
    with Reader.open(bundle) as reader:
        plan = _consider(reader, root, wish, progress)
        index = plan.index
        if plan.changes and not agree(plan):
            raise UsageError(
                f"{plan.into} was not changed: nobody agreed to it",
                problems=[line.strip() for line in plan.changes.lines()],
                hint="Agree with --yes, or leave that environment alone with --over.",
            )
        root.prepare()
        with root.locked():
            current = _current(root)
            if current and current.index() == index and _same_layer(current, plan):
                return Installed(current, index, changed=False)
            reader.admit(root.blobs, progress)
            progress.step(f"every byte checked and stored in {root.path}")
            generation = root.begin()
            try:
                _deploy(plan, root, generation, progress)
                root.finish(generation, index)
            except MachineError as error:
                root.discard(generation)
                raise _with_record(error, plan, root, generation) from None
            except BaseException:
                root.discard(generation)
                raise
            root.commit(generation)
    return Installed(generation, index, changed=True)


def rehearse(bundle: Path, root: Root, wish: Wish, progress: Progress) -> Plan:
    """What `install` would do; every check that it makes before it writes. Writes nothing."""
    with Reader.open(bundle) as reader:
        return _consider(reader, root, wish, progress)


def _consider(reader: Reader, root: Root, wish: Wish, progress: Progress) -> Plan:
    index = reader.index
    progress.step(
        f"{index.name} {index.version}: {counted(len(index.shipped), 'file')},"
        f" {human_size(total_size(index.shipped))}, for {index.target or 'any machine'}"
    )
    trust(reader, progress)
    return make_plan(index, root, wish)


def trust(reader: Reader, progress: Progress) -> None:
    """Say who signed the bundle. Raises TrustError when a signature cannot be relied on."""
    if reader.signature:
        raise TrustError(
            "the bundle is signed, and this version of mirror cannot check signatures",
            hint="Install with the mirror that it carries: tar -xzf BUNDLE install.sh tool"
            " && sh install.sh BUNDLE",
        )
    progress.step("not signed (no trusted keys are configured here)")


def make_plan(index: Index, root: Root, wish: Wish) -> Plan:
    """Decide how the bundle will be installed here. Raises TargetError when it does not fit.

    Writes nothing. Raises MachineError when there is not enough space.
    """
    facts = compat.Facts(machine.this_platform(), machine.this_glibc())
    found = list(compat.problems(index, facts))
    if found:
        raise TargetError(
            f"the bundle does not fit this machine ({platform.node()})",
            problems=found,
            hint="Build it again with this machine as its target.",
        )
    target = index.target
    interpreter, chosen, changes = None, None, None
    if not target and wish != Wish():
        raise UsageError(
            "the bundle has no use for an environment: it holds neither wheels nor conda packages",
            hint="Leave out --python, --over and --into.",
        )
    if target and wish.into:
        changes = _into(index, wish.into)
    elif target:
        chosen = environment.choose_over(target.provided, wish.over)
        if not conda.brings_python(index.of_kind("conda")):
            interpreter = _interpreter(target.python, wish.python, chosen)
    _require_writable(root)
    held = Root(root.path).blobs
    new = [a for a in index.shipped if not held.has(a.sha256, a.size)]
    packages = total_size(index.of_kind("wheels") + index.of_kind("conda") + index.of_kind("tool"))
    space = total_size(new) + _UNPACKED * packages + _SPARE_BYTES
    free = machine.free_bytes(root.path)
    if free < space:
        raise MachineError(
            f"{root.path} has {human_size(free)} free; this needs {human_size(space)}",
            hint="Make room, or choose another file system with --root DIR.",
        )
    into = wish.into.absolute() if changes and wish.into else None
    return Plan(index, interpreter, chosen, into, changes, space)


def _require_writable(root: Root) -> None:
    """Say so before anything about space, which a place that cannot be written lacks too."""
    folder = root.path
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise MachineError(
            f"the root {root.path} cannot be written",
            hint="Choose another with --root DIR, or set MIRROR_ROOT.",
        )


def _into(index: Index, into: Path) -> environment.Changes:
    """What an existing environment would become. Raises TargetError when it does not fit."""
    target = index.target
    assert target is not None  # noqa: S101 -- only such a bundle has use for an environment
    found = machine.ask(machine.interpreter_of(into), everything=True)
    if found.version != target.python:
        raise TargetError(
            f"the bundle is for Python {target.python}; {into} has Python {found.version}"
        )
    over = f"Layer over it instead: --over {into}"
    if index.of_kind("conda"):
        raise TargetError(
            "conda packages are linked only into an environment that mirror makes", hint=over
        )
    if found.managed:
        raise MachineError(
            f"{into} belongs to the system's package manager (EXTERNALLY-MANAGED)", hint=over
        )
    closed = [p for p in found.site_folders[:1] if not os.access(p, os.W_OK)]
    if closed:
        raise MachineError(f"{closed[0]} cannot be written", hint=over)
    environment.choose_over(target.provided, into)
    changes = environment.changes(found, index.of_kind("wheels"))
    if changes.broken:
        raise TargetError(
            f"installing into {into} would break what is there", problems=changes.broken, hint=over
        )
    return changes


def rollback(root: Root, number: int | None) -> Generation:
    """Put an older generation in use: number `number`, else the one before the current.

    Raises MachineError when there is none.
    """
    current = root.current()
    with root.locked():
        known = {g.number: g for g in root.generations()}
        if number is None:
            number = max((n for n in known if n < current.number), default=None)
            if number is None:
                raise MachineError(
                    f"generation {current.number} is in use, and none is older",
                    hint="`mirror list` shows them all.",
                )
        if number not in known:
            raise MachineError(
                f"{root.path} has no generation {number}",
                problems=[f"it has {', '.join(map(str, known))}"],
            )
        for generation in (current, known[number]):
            if into := environment.adopted(generation):
                raise MachineError(
                    f"generation {generation.number} was installed into {into}, which has only"
                    " its present state",
                    hint=f"What it held before is in {root.logs}/before-*.txt; install the bundle"
                    " of the state that you want again.",
                )
        root.commit(known[number])
        return known[number]


def _interpreter(wanted: str, asked: Path | None, over: machine.Interpreter | None) -> Path:
    """The interpreter to make the environment from: exactly the target's Python."""
    if asked or over:
        found = machine.ask(machine.interpreter_of(asked)) if asked else over
        assert found is not None  # noqa: S101 -- one of the two is given
        if found.version != wanted:
            raise TargetError(
                f"the bundle is for Python {wanted}; {found.path} is Python {found.version}",
                hint=f"Name a Python {wanted} with --python, or build for {found.version}.",
            )
        return found.path
    python = machine.find_python(wanted)
    if python is None:
        raise TargetError(
            f"the bundle is for Python {wanted}, and none is on PATH here",
            hint=f"Name one with --python PATH, or add python={wanted} under `conda:` in the"
            " manifest to carry one.",
        )
    return python


def _deploy(plan: Plan, root: Root, generation: Generation, progress: Progress) -> None:
    site = Site(
        index=plan.index,
        blobs=root.blobs,
        generation=generation,
        python=plan.python or Path(),
        progress=progress,
    )
    for kind, deploy in DEPLOYS.items():
        if kind == "wheels" and plan.index.target:
            if plan.into and plan.changes:
                _keep_record(plan.changes, root, generation, progress)
                environment.adopt(generation, plan.into)
            else:
                environment.create(site)
        artifacts = plan.index.of_kind(kind)
        if artifacts:
            deploy.deploy(artifacts, site)
            progress.step(f"{kind}: {counted(len(artifacts), 'file')} in place")
    if plan.over:
        # Last, so that the packages over there were not taken for the ones to be installed.
        environment.layer(site, plan.over)
        progress.step(f"layered over {plan.over.prefix}, which stays as it is")
    write_activate(generation, root.path)


def _keep_record(
    changes: environment.Changes, root: Root, generation: Generation, progress: Progress
) -> None:
    """Write down what the environment held, to be able to go back by hand."""
    record = _record(root, generation)
    atomic.write(record, "".join(f"{line}\n" for line in changes.before).encode())
    progress.step(f"what the environment held is in {record}")


def _record(root: Root, generation: Generation) -> Path:
    return root.logs / f"before-{generation.path.name}.txt"


def _current(root: Root) -> Generation | None:
    return root.current() if root.current_number() is not None else None


def _with_record(
    error: MachineError, plan: Plan, root: Root, generation: Generation
) -> MachineError:
    """The error, and where to read what a half-changed environment held."""
    if plan.into is None:
        return error
    return MachineError(
        error.message,
        problems=error.problems,
        hint=f"{plan.into} may be changed in part; what it held is in {_record(root, generation)}.",
    )


def _same_layer(generation: Generation, plan: Plan) -> bool:
    """Whether the generation's environment is related to others as the plan would have it."""
    if plan.changes and (plan.changes.added or plan.changes.changed):
        return False
    over = plan.over.prefix if plan.over else None
    related = environment.layered_over(generation), environment.adopted(generation)
    return related == (over, plan.into)


def default_root() -> Path:
    """$MIRROR_ROOT; else /opt/mirror for root, the user's data folder for everybody else."""
    if chosen := os.environ.get("MIRROR_ROOT"):
        return Path(chosen)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return Path("/opt/mirror")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "mirror"
