"""On either side: what a bundle holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mirror.cli import options, showing
from mirror.errors import BundleError, UsageError

if TYPE_CHECKING:
    from mirror.bundle.reader import Reader
    from mirror.console import Console
    from mirror.trust.judging import Judge


@click.argument("bundle", nargs=-1, required=True)
@click.option("--files", is_flag=True, help="List every file.")
@click.option("--deep", is_flag=True, help="Read and check every byte.")
@options.sbom
@options.licences
@click.option(
    "--volumes", is_flag=True, help="BUNDLE is a folder, or several: check the volumes in them."
)
@click.option(
    "--repair",
    metavar="DIR",
    type=options.PATH,
    help="With --volumes: rebuild lost volumes from recovery data, into DIR.",
)
@options.trust
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
            showing.bill(console, use.bill(reader), reader.name)
            return 0
        if licences:
            showing.licences(console, reader.index)
            return 0
        seen = use.inspect(reader, deep=deep, progress=console)
    console.result(use.lines(seen, files=files), use.document(seen))
    return 0


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
