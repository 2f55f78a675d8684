"""mirror install: bundle -> trust -> store -> generation -> current."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror import chain
from mirror.bundle.flow import Background
from mirror.bundle.opening import opened
from mirror.bundle.reader import Reader
from mirror.core.artifact import Json
from mirror.core.delta import deltas
from mirror.core.index import Index, total_size
from mirror.core.progress import Progress
from mirror.core.text import counted, human_size
from mirror.core.versions import is_older
from mirror.ecosystems import environment
from mirror.ecosystems.conda import deploy as conda
from mirror.ecosystems.deploy import Deploy, Site
from mirror.ecosystems.files import deploy as files
from mirror.ecosystems.models import deploy as models
from mirror.ecosystems.models.into_cache import Additions
from mirror.ecosystems.tool import deploy as tool
from mirror.ecosystems.wheels import deploy as wheels
from mirror.ecosystems.wheels import installed
from mirror.errors import MachineError, TrustError, UsageError
from mirror.planning import Plan, Wish, make_plan
from mirror.store import atomic, audit, patching
from mirror.store.environment import write_activate
from mirror.store.generation import Generation
from mirror.store.generations import Root
from mirror.trust.judging import Standing, judge_here

#: Every ecosystem, in the order of deployment. The environment is made before the wheels.
DEPLOYS: Mapping[str, Deploy] = {
    "tool": tool,
    "conda": conda,
    "wheels": wheels,
    **dict.fromkeys(("models", "datasets", "spaces"), models),
    "files": files,
}


@dataclass(frozen=True, slots=True)
class Installed:
    """The generation in use now; `changed` is False when it was in use before.

    cache: what was added to a cache of the Hub. standing: who signed the bundle.
    """

    generation: Generation
    index: Index
    changed: bool
    cache: Additions | None
    standing: Standing | None


def install(
    bundles: Sequence[str],
    root: Root,
    wish: Wish,
    progress: Progress,
    agree: Callable[[Plan], bool] = lambda plan: True,
    *,
    trust: Path | None = None,
    allow_older: bool = False,
) -> Installed:
    """Install a bundle as a new generation of `root` and put it in use.

    bundles: their names, as `opening.opened` takes them. The last is the one that is installed; the
        others are what it builds on, and are checked and stored before it.
    agree: asked before an existing environment is changed; False ends it there (UsageError).
    trust: the file of trusted keys to go by, in place of this machine's.
    allow_older: whether the bundle in use may be replaced by an older one of the same name.
    Raises BundleError, TrustError, TargetError or MachineError; then `current` is what it was, and
    nothing of the attempt stays in the root but whole blobs. Into an environment that was there
    before, an attempt that fails may have installed some of it; in a cache of the Hub it may have
    added some of what it was to add.
    """
    os.umask(0o022)  # what is installed is for every user of the machine
    with opened(bundles, progress, judge_here(trust, demand=True)) as readers:
        plan = _consider(readers, root, wish, progress, allow_older)
        index = plan.index
        if plan.changes and not agree(plan):
            raise UsageError(
                f"{plan.into} was not changed: nobody agreed to it",
                problems=[line.strip() for line in plan.changes.lines()],
                hint="Agree with --yes, or leave that environment alone with --over.",
            )
        root.prepare()
        with root.locked(), audit.opened(root) as log:
            root.tidy()
            current = _current(root)
            if current and current.index() == index and _same_layer(current, plan):
                _fill_cache(plan, root, progress)
                return Installed(current, index, False, plan.cache, readers[-1].standing)
            chain.require_held(readers, root)  # none has gone while nobody held the root
            for reader in readers:
                reader.admit(root.blobs, progress)
                patching.make_all(deltas(reader.index), root.blobs, progress)
            progress.step(f"every byte checked and stored in {root.path}")
            # Before anything that would have to be undone when it fails.
            _fill_cache(plan, root, progress)
            generation = root.begin()
            try:
                with log.event("install", _event(plan, generation, readers)) as event:
                    lay_out(plan, root, generation, progress)
                    generation.keep_signatures(readers[-1].signatures)
                    stated = installed.stated(generation)
                    event["seal"] = root.finish(
                        generation, index, progress, made=made(plan, root), stated=stated
                    )
                    root.commit(generation)
            except MachineError as error:
                root.discard(generation)
                raise _with_record(error, plan, root, generation) from None
            except BaseException:
                root.discard(generation)
                raise
    return Installed(generation, index, True, plan.cache, readers[-1].standing)


def rehearse(
    bundles: Sequence[str],
    root: Root,
    wish: Wish,
    progress: Progress,
    *,
    trust: Path | None = None,
    allow_older: bool = False,
) -> Plan:
    """What `install` would do; every check that it makes before it writes. Writes nothing."""
    with opened(bundles, progress, judge_here(trust, demand=True)) as readers:
        return _consider(readers, root, wish, progress, allow_older)


def _consider(
    readers: Sequence[Reader], root: Root, wish: Wish, progress: Progress, allow_older: bool
) -> Plan:
    chain.require_chain(readers)
    for reader in readers:
        index = reader.index
        progress.step(
            f"{index.name} {index.version}: {counted(len(index.shipped), 'file')},"
            f" {human_size(total_size(index.shipped))}, for {index.target or 'any machine'}"
        )
        for line in reader.standing.lines() if reader.standing else ():
            progress.step(line)
    chain.require_held(readers, root)
    if not allow_older and (current := _current(root)):
        require_not_older(readers[-1].index, current, progress)
    return make_plan(readers[-1].index, chain.arriving(readers), root, wish, progress)


def require_not_older(index: Index, current: Generation, progress: Progress) -> None:
    """Raises TrustError for an older bundle than the one in use, by the versions of both.

    An old bundle may be signed rightly and hold what was mended since. Bundles of different names
    have no order, nor have some versions; then the progress says so.
    """
    installed = current.index()
    if installed.name != index.name or installed.version == index.version:
        return
    older = is_older(index.version, installed.version)
    if older is None:
        progress.step(f"whether {index.version} is older than {installed.version} cannot be told")
    elif older:
        raise TrustError(
            f"{index.name} {index.version} is older than {installed.version}, which is in use",
            hint="If that is meant: --allow-older; or mirror rollback, when it is still here.",
        )


def rollback(root: Root, number: int | None) -> Generation:
    """Put an older generation in use: number `number`, else the one before the current.

    Raises MachineError when there is none.
    """
    current = root.current()
    with root.locked(), audit.opened(root) as log:
        root.tidy()
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
        about = audit.of_generation(known[number]) | {"from": current.number}
        with log.event("rollback", about):
            root.commit(known[number])
        return known[number]


def lay_out(
    plan: Plan,
    root: Root,
    generation: Generation,
    progress: Progress,
    kinds: Collection[str] = tuple(DEPLOYS),
) -> None:
    """Fill the folder of a generation from the store; kinds: only with what these bring.

    Raises as the ecosystems' `deploy` does.
    """
    with Background() as background:
        site = Site(
            index=plan.index,
            blobs=root.blobs,
            generation=generation,
            python=plan.python or Path(),
            progress=progress,
            background=background,
        )
        _deploy(plan, root, site, kinds)
        background.finish()


def _deploy(plan: Plan, root: Root, site: Site, kinds: Collection[str]) -> None:
    generation, progress = site.generation, site.progress
    for kind, deploy in DEPLOYS.items():
        if kind not in kinds:
            continue
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


def made(plan: Plan, root: Root) -> dict[str, str]:
    """What it takes to lay it out once more, the same in every byte: for the seal."""
    how = {"root": str(root.path)}
    if plan.python:
        how["python"] = str(plan.python)
    if plan.over:
        how["over"] = str(plan.over.prefix)
    return how


def _event(plan: Plan, generation: Generation, readers: Sequence[Reader]) -> dict[str, Json]:
    """What the audit log says of an installation."""
    *others, last = map(_said, readers)
    about: dict[str, Json] = {**last, "generation": generation.number}
    if plan.over:
        about["over"] = str(plan.over.prefix)
    if plan.into:
        about["into"] = str(plan.into)
    return about | ({"through": others} if others else {})


def _said(reader: Reader) -> dict[str, Json]:
    signatures = reader.standing.record() if reader.standing else "unsigned"
    return {**audit.of_bundle(reader.index), "signatures": signatures}


def _fill_cache(plan: Plan, root: Root, progress: Progress) -> None:
    if plan.cache:
        plan.cache.lay(root.blobs, progress)
        progress.step(str(plan.cache))
        for remark in plan.cache.remarks:
            progress.warn(remark)


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
