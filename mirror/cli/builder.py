"""On the connected machine: lock and build."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mirror.cli import options
from mirror.cli.keys import key_option, open_keys
from mirror.errors import MachineError, UsageError

if TYPE_CHECKING:
    from mirror.bundle.splitting import Volumes
    from mirror.console import Console


@options.manifest
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


@options.manifest
@click.option(
    "-o",
    "--output",
    type=options.PATH,
    help="The bundle to write; - for stdout, where nothing else is printed then.",
)
@click.option(
    "--since",
    metavar="OLD",
    type=options.PATH,
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
@key_option
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
    signers = open_keys(keys)
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
