"""The command line: parse, call one use case, render, exit code. Nothing else."""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

import mirror
from mirror import cli_trust
from mirror.cli_options import PATH as _PATH
from mirror.cli_options import trust as _trust
from mirror.errors import BundleError, Interrupted, MachineError, MirrorError, UsageError

if TYPE_CHECKING:
    from mirror.bundle.reader import Reader
    from mirror.bundle.splitting import Volumes
    from mirror.console import Console
    from mirror.core.index import Index
    from mirror.core.inventory import Inventory
    from mirror.store.generations import Root
    from mirror.trust.judging import Judge

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_MEMORY_HINT = "A bundle's index takes up to 4 GiB; that of most takes a few MiB."
_ROOT_HELP = "The directory that mirror owns here; else $MIRROR_ROOT, else /opt/mirror for root."


class _InOrder(click.Group):
    """Lists its commands in the order of the work, which is the order below."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, context_settings=_CONTEXT)
@click.version_option(mirror.__version__, prog_name="mirror")
def cli() -> None:
    """Carry models, wheels and conda packages to GPU servers without a network.

    \b
    On a connected machine:   mirror build
    On the server:            mirror install BUNDLE
                              mirror verify --gpus 4

    \b
    Exit codes: 0 done, 1 a bug in mirror, 2 usage or manifest,
    3 nothing satisfies the requirements, 4 download, 5 bundle damaged,
    6 not trusted, 7 does not fit this target, 8 the machine refuses,
    9 verification failed, 130 interrupted.
    """


def _command(
    function: Callable[..., int | None], group: click.Group | None = None
) -> click.Command:
    """A command with the options that all have; its errors become messages and exit codes."""

    @functools.wraps(function)
    def run(*, as_json: bool, quiet: bool, verbose: bool, **arguments: Any) -> None:
        from mirror.console import Console

        console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
        try:
            code = function(console, **arguments) or 0
        except MirrorError as error:
            console.error(error)
            code = error.exit_code
        except OSError as error:
            console.error(_refused(error))
            code = MachineError.exit_code
        except MemoryError:
            console.error(MachineError("there is not enough memory", hint=_MEMORY_HINT))
            code = MachineError.exit_code
        sys.exit(code)

    command = (group or cli).command(name=function.__name__.rstrip("_"))(run)
    command.params += [
        click.Option(["--json", "as_json"], is_flag=True, help="One JSON document on stdout."),
        click.Option(["-q", "--quiet"], is_flag=True, help="No progress: results and errors only."),
        click.Option(["-v", "--verbose"], is_flag=True, help="Say more."),
    ]
    return command


def _refused(error: OSError) -> MachineError:
    """What the machine did not let us do."""
    what = f"{error.filename}: " if error.filename else ""
    hint = None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Make room, or choose another place: --root DIR on a server, MIRROR_CACHE here."
    elif error.errno in (errno.EACCES, errno.EROFS):
        hint = "Choose another place: --root DIR on a server, MIRROR_CACHE for what is kept here."
    return MachineError(f"{what}{error.strerror or error}", hint=hint)


_manifest = click.argument("manifest", required=False, type=_PATH)
_root = click.option("--root", type=_PATH, help=_ROOT_HELP)
_sbom = click.option("--sbom", is_flag=True, help="Print its bill of materials (CycloneDX).")
_licences = click.option("--licences", is_flag=True, help="List which licence covers what.")
_detach = click.option("--detach", is_flag=True, help="Go on without this terminal.")
_attach = click.option(
    "--attach",
    metavar="[RUN]",
    is_flag=False,
    flag_value="",
    help="Follow what was detached: RUN by name or folder, else what is running.",
)


@_command
@_manifest
@click.option("--check", is_flag=True, help="Only fail if the lock is missing or stale.")
@click.option("--upgrade", is_flag=True, help="Let every package move to what is newest now.")
@click.option("-P", "--upgrade-package", multiple=True, metavar="NAME", help="Let this one move.")
def lock(
    console: Console,
    manifest: Path | None,
    check: bool,
    upgrade: bool,
    upgrade_package: tuple[str, ...],
) -> None:
    """Resolve a manifest to exact files, and write its lock beside it."""
    from mirror import build as use
    from mirror import project as projects

    project = projects.open_project(manifest or projects.find_manifest(Path()), console)
    if check + upgrade + bool(upgrade_package) > 1:
        raise UsageError("--check, --upgrade and --upgrade-package each stand alone")
    moving = () if upgrade else upgrade_package or None
    locked, changed = use.lock(project, check=check, upgrade=moving)
    state = "written" if changed else "fresh"
    console.result(
        [f"{project.lock_path} is {state}: {use.summary(locked.artifacts)} for {locked.target}"],
        {
            "lock": str(project.lock_path),
            "digest": locked.digest,
            "changed": changed,
            "artifacts": len(locked.artifacts),
            "bytes": sum(a.size for a in locked.artifacts),
            "target": locked.target.to_json(),
        },
    )


@_command
@_manifest
@click.option(
    "-o",
    "--output",
    type=_PATH,
    help="The bundle to write; - for stdout, where nothing else is printed then.",
)
@click.option(
    "--since",
    metavar="OLD",
    type=_PATH,
    help="What the server has, which is not shipped again: a bundle, a lock, or the inventory that"
    " `mirror probe` wrote there.",
)
@click.option(
    "--volume-size",
    metavar="SIZE",
    help="Write volumes of this size instead of one file: 4G, 700M; 4GiB is what FAT32 holds.",
)
@click.option(
    "--recovery",
    metavar="PERCENT",
    help="With --volume-size: data from which volumes up to that share can be rebuilt, as 5%.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show sizes, what is cached, what would be downloaded, and the room for it. Writes no lock"
    " and no bundle.",
)
@cli_trust.key_option
def build(
    console: Console,
    manifest: Path | None,
    output: Path | None,
    since: Path | None,
    volume_size: str | None,
    recovery: str | None,
    dry_run: bool,
    keys: tuple[str, ...],
) -> int | None:
    """Lock if needed, fetch, prove, pack: one bundle."""
    from mirror import build as use
    from mirror import project as projects
    from mirror.core.text import counted, human_size

    if output is not None and str(output) == ".":
        raise UsageError("--output names the file to write")
    split = _split(volume_size, recovery)
    if split and str(output) == "-":
        raise UsageError("a pipe takes the bundle whole: leave out --volume-size")
    target: Path | int | None = output
    if str(output) == "-":
        target = sys.stdout.fileno() if dry_run else _claim_stdout()
    project = projects.open_project(manifest or projects.find_manifest(Path()), console)
    if dry_run:
        from mirror.build import forecast

        seen = forecast.forecast(project, target, since, split)
        console.result(forecast.lines(seen), forecast.document(seen))
        return 0 if seen.fits else MachineError.exit_code
    signers = cli_trust.open_keys(keys)
    built = use.build(project, target, since, split, signers)
    digest, count = built.index.digest, len(built.index.shipped)
    where, state = built.path or "the pipe", "" if built.changed else ", unchanged"
    if split:
        state = f" in {counted(built.volumes, 'volume')}{state}"
    console.result(
        [
            f"{where}: {counted(count, 'file')}, {human_size(built.size)}{state}",
            f"digest {digest}",
            *(f"signed with {key.public.label}" for key in signers),
        ],
        {
            "bundle": str(built.path) if built.path else None,
            "signed_with": [key.public.fingerprint for key in signers],
            "digest": digest,
            "base": built.index.base,
            "bytes": built.size,
            "volumes": built.volumes,
            "files": count,
            "changed": built.changed,
        },
    )
    return None


def _split(size: str | None, recovery: str | None) -> Volumes | None:
    """Raises UsageError for what is no size and no share."""
    from mirror.bundle.splitting import Volumes
    from mirror.core.text import parsed_size

    if size is None:
        if recovery is not None:
            raise UsageError("--recovery goes with --volume-size")
        return None
    try:
        percent = float((recovery or "0").rstrip(" %"))
    except ValueError:
        percent = -1
    if not 0 <= percent <= 100:
        raise UsageError(f"--recovery {recovery!r} is no share from 0 to 100, such as 5%")
    try:
        length = parsed_size(size)
    except ValueError as error:
        raise UsageError(f"--volume-size {error}") from None
    # FAT32 holds one byte less than 4 GiB, and nobody who says 4GiB means the one that is too many.
    return Volumes(length - (length == 2**32), percent)


def _claim_stdout() -> int:
    """A descriptor of stdout for a bundle alone: what else is printed goes to stderr from now on.

    Raises UsageError when stdout is a terminal.
    """
    if sys.stdout.isatty():
        raise UsageError(
            "a bundle is not written to a terminal",
            hint="Send it on: mirror build -o - | ssh SERVER mirror install -",
        )
    sys.stdout.flush()
    claimed = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(claimed, os.O_BINARY)
    return claimed


@_command
@click.argument("bundle", nargs=-1, required=True)
@click.option("--files", is_flag=True, help="List every file.")
@click.option("--deep", is_flag=True, help="Read and check every byte.")
@_sbom
@_licences
@click.option(
    "--volumes", is_flag=True, help="BUNDLE is a folder, or several: check the volumes in them."
)
@click.option(
    "--repair",
    metavar="DIR",
    type=_PATH,
    help="With --volumes: rebuild lost volumes from recovery data, into DIR.",
)
@_trust
def inspect(
    console: Console,
    bundle: tuple[str, ...],
    files: bool,
    deep: bool,
    sbom: bool,
    licences: bool,
    volumes: bool,
    repair: Path | None,
    trust: Path | None,
) -> int:
    """Show what a bundle holds, for which target, signed by whom.

    BUNDLE is a file, the first of its volumes or several of them, - for standard input, or an http,
    https or file URL.
    """
    from mirror import inspect as use
    from mirror.trust.judging import judge_here

    judge = judge_here(trust, demand=False)
    if repair and not volumes:
        raise UsageError("--repair goes with --volumes")
    if sbom + licences + volumes + (files or deep) > 1:
        raise UsageError("--sbom, --licences, --volumes, and --files with --deep: each alone")
    if volumes:
        # A file stands for its folder: people name all that is in it.
        places = [path.parent if path.is_file() else path for path in map(Path, bundle)]
        return _inspect_volumes(console, list(dict.fromkeys(places)), repair, judge)
    with _open_bundle(console, bundle, judge) as reader:
        if sbom:
            _show_bill(console, use.bill(reader), reader.name)
            return 0
        if licences:
            _show_licences(console, reader.index)
            return 0
        seen = use.inspect(reader, deep=deep, progress=console)
    console.result(use.lines(seen, files=files), use.document(seen))
    return 0


def _show_bill(console: Console, data: bytes, name: str) -> None:
    from mirror.core import bill

    text, document = bill.parsed(data, name)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(newline="\n")  # its very bytes, also on Windows
    console.result(text.removesuffix("\n").split("\n"), document)


def _show_licences(console: Console, index: Index) -> None:
    from mirror.core import bill

    rows = bill.rows(index.artifacts)
    console.result(bill.lines(rows), bill.to_json(rows))


@contextmanager
def _open_bundle(console: Console, names: tuple[str, ...], judge: Judge) -> Iterator[Reader]:
    """One bundle, in files or at an address."""
    from mirror.bundle import opening
    from mirror.bundle.reader import Reader

    if "://" in names[0]:
        from mirror.fetch import remote

        if path := remote.local(names[0]):
            names = (str(path), *names[1:])
        else:
            with remote.opened(names[0]) as body, Reader.open(body, judge) as reader:
                yield reader
            return
    with opening.opened(names, console, judge) as readers:
        if len(readers) > 1:
            raise UsageError("inspect looks at one bundle", problems=[r.name for r in readers])
        yield readers[0]


def _inspect_volumes(
    console: Console, folders: list[Path], repair: Path | None, judge: Judge
) -> int:
    from mirror import inspect as use

    found = use.arrived(folders, console, judge)
    if repair:
        found = [use.repaired(arrival, folders, repair, console) for arrival in found]
    console.result(
        [line for arrival in found for line in use.arrival_lines(arrival)],
        [use.arrival_document(arrival) for arrival in found],
    )
    return BundleError.exit_code if any(arrival.lost for arrival in found) else 0


@_command
@click.argument("bundle", nargs=-1, required=True)
@_root
@click.option("--python", type=_PATH, help="The Python to make the environment from.")
@click.option(
    "--over",
    type=_PATH,
    help="An environment to layer over without touching it. Left out: for what the bundle expects"
    " on the server, the active environment or the one that mirror runs in.",
)
@click.option(
    "--into",
    type=_PATH,
    help="An environment to install into; shows what changes there and asks first.",
)
@click.option("--yes", is_flag=True, help="Agree to what --into changes.")
@click.option(
    "--into-cache",
    metavar="DIR",
    type=_PATH,
    help="A cache of the Hub to put models, datasets and spaces into besides; what is there stays.",
)
@_trust
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
    place, wish = _open_root(root), Wish(python, over, into, into_cache)
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


@_command
@_root
@click.option("--models", is_flag=True, help="The models, datasets and spaces in use instead.")
@click.option("--history", is_flag=True, help="Who changed what here and when, signed by whom.")
@_sbom
@_licences
def list_(
    console: Console, root: Path | None, models: bool, history: bool, sbom: bool, licences: bool
) -> None:
    """List the generations of a root; a star marks the one in use.

    What only one of them needs is its own: it is freed when that one is removed.
    """
    from mirror import gc as use

    place = _open_root(root)
    if models + history + sbom + licences > 1:
        raise UsageError("--models, --history, --sbom and --licences each stand alone")
    if models:
        _list_models(console, place)
        return
    if licences:
        _show_licences(console, place.current().index())
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
        _show_bill(console, use.bill(root), f"what is in use in {root.path}")
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


@_command
@click.argument("number", required=False, type=click.IntRange(1))
@_root
def rollback(console: Console, number: int | None, root: Path | None) -> None:
    """Put generation NUMBER in use again, or the one before."""
    from mirror import install as use

    generation = use.rollback(_open_root(root), number)
    index = generation.index()
    console.result(
        [f"generation {generation.number} is in use: {index.name} {index.version}"],
        {"generation": generation.number, "name": index.name, "version": index.version},
    )


@_command
@click.argument("number", type=click.IntRange(1))
@_root
@click.option("--unpin", is_flag=True, help="Let gc remove it again.")
def pin(console: Console, number: int, root: Path | None, unpin: bool) -> None:
    """Have gc keep generation NUMBER for good."""
    from mirror import gc as use

    generation = use.pin(_open_root(root), number, wanted=not unpin)
    state = "no longer pinned" if unpin else "pinned: gc keeps it"
    console.result(
        [f"generation {generation.number} is {state}"],
        {"generation": generation.number, "pinned": not unpin},
    )


@_command
@_root
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

    done = use.collect(_open_root(root), keep, console, rehearse=dry_run)
    console.result(done.lines(rehearsed=dry_run), done.to_json() | {"dry_run": dry_run})


@_command
@click.option("--env", type=_PATH, help="The environment; else the one mirror runs in.")
@_root
@click.option("-o", "--output", type=_PATH, help="The file; else stdout.")
@click.option(
    "--summary",
    is_flag=True,
    help="As letters and digits, under 2 kB, to be carried as a photo of the screen.",
)
@click.option("--qr", is_flag=True, help="The summary as QR codes on this screen.")
def probe(
    console: Console,
    env: Path | None,
    root: Path | None,
    output: Path | None,
    summary: bool,
    qr: bool,
) -> None:
    """Write down what this machine has, for a target and for --since.

    Of a summary, all that was read from photos goes into one file, in any order.
    """
    import json

    from mirror import probe as use
    from mirror.core import inventory as inventories

    if qr and output:
        raise UsageError("--qr is for a screen; --summary writes to a file")
    if root and not root.is_dir():
        console.warn(f"{root} is not there: nothing is said of what it holds")
    found = use.probe(env, _open_root(root))
    document = found.to_json()
    text = json.dumps(document, indent=2)
    if summary or qr:
        text = "\n".join(inventories.summary(found))
        document = {"summary": text.splitlines()}
    if output:
        console.result([_written(output, text, found)], document)
    elif qr and not console.as_json:
        _show_codes(console, text.splitlines())
    else:
        console.result(text.splitlines(), document)


def _written(output: Path, text: str, found: Inventory) -> str:
    """Write an inventory, also to a device or a pipe with a name; returns what to say of it."""
    from mirror.core.text import counted
    from mirror.store import atomic

    data = f"{text}\n".encode()
    try:
        if output.exists() and not output.is_file():
            output.write_bytes(data)
        else:
            atomic.write(output, data)
    except OSError as error:
        raise MachineError(f"{output} cannot be written: {error.strerror}") from None
    held = "no root" if found.held is None else counted(len(found.held), "held artifact")
    return f"{output}: {counted(len(found.packages), 'package')}, {held}"


def _show_codes(console: Console, words: list[str]) -> None:
    """One code after the other; on a terminal, the next when a key was pressed."""
    import shutil

    from mirror import qrcodes

    screen, terminal = shutil.get_terminal_size(), sys.stdout.isatty()
    codes = qrcodes.codes(words, screen.columns, screen.lines, colour=terminal)
    for number, code in enumerate(codes, 1):
        console.result([*code, f"code {number} of {len(codes)}"], None)
        if terminal and sys.stdin.isatty() and number < len(codes):
            click.pause("Photograph it, then press a key for the next one.", err=True)


@_command
@_root
@click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(1),
    help="How many to prove; else all that are visible.",
)
@click.option("--report", type=_PATH, help="The folder for the report; else in the root.")
@click.option(
    "--check",
    "checks",
    multiple=True,
    type=click.Choice(["ray", "vllm"]),
    help="Also make this check: ray runs a task a GPU, vllm generates.",
)
@click.option("--nodes", metavar="N", type=click.IntRange(1), help="N machines train together.")
@click.option(
    "--node-rank", metavar="R", type=click.IntRange(0), help="This machine's number, from 0."
)
@click.option("--master", metavar="IP", help="The address of the machine with number 0.")
@click.option("--port", metavar="P", type=click.IntRange(1, 65535), help="Where it listens.")
@click.option("--interface", metavar="NAME", help="The network between the machines.")
@click.option("--slurm", is_flag=True, help="Take all that from the Slurm job step.")
@click.option("--ladder", is_flag=True, help="Measure every NCCL setting, even if none is needed.")
@click.option("--save-baseline", is_flag=True, help="Keep the figures, to hold later runs to.")
@click.option(
    "--store", "store_only", is_flag=True, help="Only look whether every byte is as installed."
)
@click.option(
    "--generation",
    metavar="N",
    type=click.IntRange(1),
    help="With --store: of this generation, not the one in use.",
)
@click.option(
    "--all", "everything", is_flag=True, help="With --store: of all generations, and all blobs."
)
@_detach
@_attach
def verify(
    console: Console,
    root: Path | None,
    gpus: int | None,
    report: Path | None,
    checks: tuple[str, ...],
    nodes: int | None,
    node_rank: int | None,
    master: str | None,
    port: int | None,
    interface: str | None,
    slurm: bool,
    ladder: bool,
    save_baseline: bool,
    store_only: bool,
    generation: int | None,
    everything: bool,
    detach: bool,
    attach: str | None,
) -> int:
    """Prove that this server trains, or say why it does not.

    With --store, nothing is run: what was changed, has gone or has come since it was installed is
    named, and `mirror repair` puts it back.
    """
    from mirror import detached, logs
    from mirror import verify as use
    from mirror.verify import report as reports
    from mirror.verify import screen

    place = _open_root(root)
    if attach is not None:
        return _follow(console, place, "verify", attach)
    if detach and not detached.here():
        kind = f"verify-{place.current().path.name}"
        if report:
            report.mkdir(parents=True, exist_ok=True)
        return _go_on_alone(console, report or logs.fresh([place.logs], kind))
    from mirror.verify import nodes as places

    if store_only:
        if generation and everything:
            raise UsageError("--generation names one, --all takes every one")
        found = use.verify_store(
            place,
            number=generation,
            everything=everything,
            report_folder=detached.here() or report,
            progress=console,
        )
        console.result(screen.lines(found), reports.document(found))
        return 9 if found.verdict == "fail" else 0
    if generation or everything:
        raise UsageError("--generation and --all go with --store")
    if slurm and (nodes is not None or node_rank is not None):
        raise UsageError("--slurm says itself how many nodes there are, and which this is")
    if slurm:
        group = places.under_slurm(os.environ, master=master, port=port, interface=interface)
    else:
        group = places.asked(nodes, node_rank, master, port, interface)
    folder = detached.here() or report
    found = use.verify(
        place,
        gpus=gpus,
        report_folder=folder,
        progress=console,
        climb=ladder,
        checks=checks,
        group=group,
        save_baseline=save_baseline,
    )
    console.result(screen.lines(found), reports.document(found))
    return 9 if found.verdict == "fail" else 0


@_command
@click.argument("bundle", nargs=-1)
@_root
@_trust
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def repair(
    console: Console,
    bundle: tuple[str, ...],
    root: Path | None,
    trust: Path | None,
    dry_run: bool,
) -> int:
    """Put back what `mirror verify --store` finds damaged, in all generations.

    BUNDLE is named as for install, and may be several: those that have the damaged files. Where
    only the environment is damaged, none is needed. What is right is not touched, and what was in
    the way is kept in the root's tmp/.
    """
    from mirror import repair as use

    done = use.repair(bundle, _open_root(root), console, trust=trust, rehearse=dry_run)
    if done.left:
        console.warn(f"{len(done.left):,} would stay damaged:")
        for line in done.left:
            console.warn(line)
    console.result(done.lines(rehearsed=dry_run), done.to_json() | {"dry_run": dry_run})
    return BundleError.exit_code if done.left else 0


@cli.command(context_settings={"allow_interspersed_args": False})
@_root
@click.option("--gpus", metavar="N", type=click.IntRange(1), help="A process on each of N GPUs.")
@click.option("--processes", metavar="N", type=click.IntRange(1), help="N processes on the CPU.")
@click.option("--log", metavar="DIR", type=_PATH, help="A new folder for logs; else in the root.")
@_detach
@_attach
@click.argument("command", nargs=-1, metavar="-- COMMAND...", type=click.UNPROCESSED)
def run(
    root: Path | None,
    gpus: int | None,
    processes: int | None,
    log: Path | None,
    detach: bool,
    attach: str | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND, and what follows it, in the environment in use.

    With the launch settings that verify found. Its exit code is passed on.

    \b
    mirror run -- train.py --lr 1e-3    a script, once on each GPU that verify
    mirror run -- -m package.train      proved; without GPUs once
    mirror run -- bash                  anything else, as it stands

    A script's output is kept by rank, and when it fails, the rank that failed is named, with what
    is known of its last words. --gpus N shows anything else the first N GPUs.
    """
    from mirror import detached, logs
    from mirror import run as use
    from mirror.console import Console

    console = Console()
    try:
        place = _open_root(root)
        if attach is not None and command:
            raise UsageError("--attach follows what is running, and takes no command")
        if attach is not None:
            sys.exit(_follow(console, place, "run", attach))
        if detach and not detached.here():
            # What can be said now is not left to a log.
            use.prepare(place, gpus=gpus, processes=processes, command=command)
            folder = logs.given(log) if log else logs.fresh(logs.places(place), "run")
            sys.exit(_go_on_alone(console, folder))
        code = use.run(
            place, gpus=gpus, processes=processes, command=command, log=log, progress=console
        )
    except MirrorError as error:
        console.error(error)
        code = error.exit_code
    sys.exit(code)


def _go_on_alone(console: Console, folder: Path) -> int:
    """This same command, detached: in a process that keeps what it says in `folder`."""
    from mirror import detached

    started = detached.detach(folder.absolute(), sys.argv[1:], main)
    console.result(started.lines(), started.to_json())
    return 0


def _follow(console: Console, root: Root, kind: str, name: str) -> int:
    """Show what a detached run says until it ends; returns its exit code."""
    from mirror import detached, logs

    followed = detached.choose(logs.places(root), kind, name)
    if not name and followed.state != "running":
        console.step(f"nothing is running; the last was {followed}")
    stream = sys.stderr if console.as_json else sys.stdout

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(stream.fileno(), data) :]

    try:
        code = detached.attach(followed, write, console.step)
    except (KeyboardInterrupt, BrokenPipeError):
        console.step(f"{followed.name} goes on; mirror {kind} --attach follows it again")
        return Interrupted.exit_code
    if console.as_json:
        console.result([], followed.to_json())
    return code


_command(cli_trust.keygen)
_command(cli_trust.sign)


@cli.group(name="trust", cls=_InOrder)
def trust_group() -> None:
    """Say whose signatures this machine trusts.

    \b
    Once a key is trusted, only bundles that its owner signed are installed:
        mirror trust add alice.pub --name alice
    """


for _function in (cli_trust.add, cli_trust.list_, cli_trust.remove, cli_trust.threshold):
    _command(_function, trust_group)


def _open_root(path: Path | None) -> Root:
    from mirror.install import default_root
    from mirror.store.generations import Root

    return Root(path or default_root())


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM and SIGHUP end as Ctrl-C does: what was begun is cleaned up."""
    raise KeyboardInterrupt


def _say(error: MirrorError) -> None:
    """An error that no command could say: in JSON when the command line asks for that."""
    from mirror.console import Console

    Console(as_json="--json" in sys.argv[1:]).error(error)


def main() -> None:
    """Run the command line and exit."""
    signal.signal(signal.SIGTERM, _end)
    # Under nohup it is ignored, and stays so.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _end)
    try:
        cli.main(prog_name="mirror", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        if "--json" in sys.argv[1:]:
            _say(UsageError(error.format_message()))
        else:
            error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        hint = "Nothing half-made is in use; the same command goes on with what is there."
        _say(Interrupted("interrupted", hint=hint))
        sys.exit(130)
    except OSError as error:  # only of --help and --version: commands tell theirs themselves
        _say(_refused(error))
        sys.exit(MachineError.exit_code)
    except Exception as error:  # noqa: BLE001 -- whatever is left is a bug, and is called one
        import traceback

        click.echo(traceback.format_exc(), err=True)
        hint = "Please report it with the lines above."
        _say(MirrorError(f"a bug in mirror: {type(error).__name__}: {error}", hint=hint))
        sys.exit(1)
