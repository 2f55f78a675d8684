"""On the server: what is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mirror.cli import options, showing
from mirror.errors import BundleError, UsageError

if TYPE_CHECKING:
    from mirror.console import Console
    from mirror.store.generations import Root


@click.argument("bundle", nargs=-1, required=True)
@options.root
@click.option("--python", type=options.PATH, help="The Python to make the environment from.")
@click.option(
    "--over",
    type=options.PATH,
    help="An environment to layer over without touching it. Left out: for what the bundle expects"
    " on the server, the active environment or the one that mirror runs in.",
)
@click.option(
    "--into",
    type=options.PATH,
    help="An environment to install into; shows what changes there and asks first.",
)
@click.option("--yes", is_flag=True, help="Agree to what --into changes.")
@click.option(
    "--into-cache",
    metavar="DIR",
    type=options.PATH,
    help="A cache of the Hub to put models, datasets and spaces into besides; what is there stays.",
)
@options.trust
@click.option("--allow-older", is_flag=True, help="Replace what is in use by an older version.")
@click.option("--dry-run", is_flag=True, help="Check everything that can be, write nothing.")
def install(
    console: Console,
    bundle: tuple[str, ...],
    root: Path | None,
    python: Path | None,
    over: Path | None,
    into: Path | None,
    yes: bool,
    into_cache: Path | None,
    trust: Path | None,
    allow_older: bool,
    dry_run: bool,
) -> None:
    """Install a bundle as a new generation, and put it in use.

    BUNDLE is a file, the first of its volumes or several of them, or - for standard input. Of
    several bundles the last is put in use; those before it are what it builds on.
    """
    from mirror import install as use
    from mirror.core.text import human_size
    from mirror.planning import Plan, Wish

    if into and (over or python):
        raise UsageError("--into names the environment itself; --over and --python have no place")
    if into and "-" in bundle and not (yes or dry_run):
        raise UsageError(
            "--into asks whether you agree, and standard input brings the bundle",
            hint="Agree with --yes; --dry-run shows to what.",
        )
    place, wish = options.open_root(root), Wish(python, over, into, into_cache)
    if dry_run:
        plan = use.rehearse(bundle, place, wish, console, trust=trust, allow_older=allow_older)
        console.result(
            [
                f"would install {plan.index.name} {plan.index.version} into {place.path}",
                f"  python: {plan.python or 'none'}",
                f"  over: {plan.over.prefix if plan.over else 'nothing'}",
                *([f"  into: {plan.into}", *plan.changes.lines()] if plan.changes else []),
                f"  space: at most {human_size(plan.space)}",
                *([f"  cache: {plan.cache}"] if plan.cache else []),
                *(f"  cache: {remark}" for remark in (plan.cache.remarks if plan.cache else ())),
            ],
            {
                "name": plan.index.name,
                "version": plan.index.version,
                "root": str(place.path),
                "python": str(plan.python) if plan.python else None,
                "over": str(plan.over.prefix) if plan.over else None,
                "into": str(plan.into) if plan.into else None,
                "added": list(plan.changes.added) if plan.changes else [],
                "changed": list(plan.changes.changed) if plan.changes else [],
                "bytes": plan.space,
                "cache": plan.cache.to_json() if plan.cache else None,
            },
        )
        return

    def agree(plan: Plan) -> bool:
        if yes or plan.changes is None:
            return True
        if not sys.stdin.isatty():
            return False
        click.echo("\n".join([f"in {plan.into}:", *plan.changes.lines()]), err=True)
        return click.confirm("Change it so?", err=True)

    done = use.install(bundle, place, wish, console, agree, trust=trust, allow_older=allow_older)
    generation = done.generation
    state = "in use" if done.changed else "in use already, unchanged"
    console.result(
        [
            f"generation {generation.number} is {state}: {done.index.name} {done.index.version}",
            f"  use it:    . {place.path / 'current' / 'activate'}",
            f"  verify it: {place.path / 'current' / 'tool' / 'bin' / 'mirror'} verify",
            *([f"  cache: {done.cache}"] if done.cache else []),
        ],
        {
            "generation": generation.number,
            "path": str(generation.path),
            "name": done.index.name,
            "version": done.index.version,
            "digest": done.index.digest,
            "changed": done.changed,
            "trust": done.standing.to_json() if done.standing else None,
            "cache": done.cache.to_json() if done.cache else None,
        },
    )


@options.root
@click.option("--models", is_flag=True, help="The models, datasets and spaces in use instead.")
@click.option("--history", is_flag=True, help="Who changed what here and when, signed by whom.")
@options.sbom
@options.licences
def list_(
    console: Console, root: Path | None, models: bool, history: bool, sbom: bool, licences: bool
) -> None:
    """List the generations of a root; a star marks the one in use.

    What only one of them needs is its own: it is freed when that one is removed.
    """
    from mirror import gc as use

    place = options.open_root(root)
    if models + history + sbom + licences > 1:
        raise UsageError("--models, --history, --sbom and --licences each stand alone")
    if models:
        _list_models(console, place)
        return
    if licences:
        showing.licences(console, place.current().index())
        return
    if sbom or history:
        _list_record(console, place, history=history)
        return
    rows = use.survey(place)
    if not rows:
        place.current()
    console.result([line for row in rows for line in row.lines()], [row.to_json() for row in rows])


def _list_record(console: Console, root: Root, *, history: bool) -> None:
    from mirror import history as use

    if not history:
        showing.bill(console, use.bill(root), f"what is in use in {root.path}")
        return
    found = use.changes(root)
    lines = [line for change in found for line in change.lines()]
    console.result(
        lines or [f"{root.logs} tells of no change"], [change.to_json() for change in found]
    )


def _list_models(console: Console, root: Root) -> None:
    """Each revision, and its path through `current`, which the next generation may have as well."""
    from mirror.core.index import total_size
    from mirror.ecosystems.models.bundled import revisions

    rows = [
        (revision, str(root.path / "current" / revision.path))
        for revision in revisions(root.current().index().artifacts)
    ]
    kinds = {"models": "", "datasets": " (dataset)", "spaces": " (space)"}
    console.result(
        [
            line
            for revision, path in rows
            for line in (f"{revision.repo} at {revision.name}{kinds[revision.kind]}", f"  {path}")
        ]
        or ["no models, datasets or spaces are in use"],
        [
            {
                "kind": revision.kind,
                "id": revision.repo,
                "revision": revision.name,
                "commit": revision.commit,
                "default": revision.default,
                "path": path,
                "files": len(revision.artifacts),
                "bytes": total_size(revision.artifacts),
            }
            for revision, path in rows
        ],
    )


@click.argument("number", required=False, type=click.IntRange(1))
@options.root
def rollback(console: Console, number: int | None, root: Path | None) -> None:
    """Put generation NUMBER in use again, or the one before."""
    from mirror import install as use

    generation = use.rollback(options.open_root(root), number)
    index = generation.index()
    console.result(
        [f"generation {generation.number} is in use: {index.name} {index.version}"],
        {"generation": generation.number, "name": index.name, "version": index.version},
    )


@click.argument("number", type=click.IntRange(1))
@options.root
@click.option("--unpin", is_flag=True, help="Let gc remove it again.")
def pin(console: Console, number: int, root: Path | None, unpin: bool) -> None:
    """Have gc keep generation NUMBER for good."""
    from mirror import gc as use

    generation = use.pin(options.open_root(root), number, wanted=not unpin)
    state = "no longer pinned" if unpin else "pinned: gc keeps it"
    console.result(
        [f"generation {generation.number} is {state}"],
        {"generation": generation.number, "pinned": not unpin},
    )


@options.root
@click.option(
    "--keep",
    metavar="N",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="How many generations to keep on each side of the one in use.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def gc(console: Console, root: Path | None, keep: int, dry_run: bool) -> None:
    """Remove old generations, and files that only they need.

    Kept besides: the one in use, what is pinned, and what a kept environment is layered over.
    """
    from mirror import gc as use

    done = use.collect(options.open_root(root), keep, console, rehearse=dry_run)
    console.result(done.lines(rehearsed=dry_run), done.to_json() | {"dry_run": dry_run})


@click.argument("bundle", nargs=-1)
@options.root
@options.trust
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def repair(
    console: Console,
    bundle: tuple[str, ...],
    root: Path | None,
    trust: Path | None,
    dry_run: bool,
) -> int:
    """Put back what `mirror verify --store` finds damaged.

    In all generations. BUNDLE is named as for install, and may be several: those that have the
    damaged files. Where only the environment is damaged, none is needed. What is right is not
    touched, and what was in the way is kept in the root's tmp/.
    """
    from mirror import repair as use

    done = use.repair(bundle, options.open_root(root), console, trust=trust, rehearse=dry_run)
    if done.left:
        console.warn(f"{len(done.left):,} would stay damaged:")
        for line in done.left:
            console.warn(line)
    console.result(done.lines(rehearsed=dry_run), done.to_json() | {"dry_run": dry_run})
    return BundleError.exit_code if done.left else 0
