"""On the server: what it is, whether it trains, and training."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mirror.cli import detaching, options
from mirror.errors import MachineError, MirrorError, UsageError

if TYPE_CHECKING:
    from mirror.console import Console
    from mirror.core.inventory import Inventory


@click.option("--env", type=options.PATH, help="The environment; else the one mirror runs in.")
@options.root
@click.option("-o", "--output", type=options.PATH, help="The file; else stdout.")
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
    found = use.probe(env, options.open_root(root))
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


@options.root
@click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(1),
    help="How many to prove; else all that are visible.",
)
@click.option("--report", type=options.PATH, help="The folder for the report; else in the root.")
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
@options.detach
@options.attach
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

    place = options.open_root(root)
    if attach is not None:
        return detaching.follow(console, place, "verify", attach)
    if detach and not detached.here():
        kind = f"verify-{place.current().path.name}"
        if report:
            report.mkdir(parents=True, exist_ok=True)
        return detaching.go_on_alone(console, report or logs.fresh([place.logs], kind))
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


@options.root
@click.option("--gpus", metavar="N", type=click.IntRange(1), help="A process on each of N GPUs.")
@click.option("--processes", metavar="N", type=click.IntRange(1), help="N processes on the CPU.")
@click.option(
    "--log", metavar="DIR", type=options.PATH, help="A new folder for logs; else in the root."
)
@options.detach
@options.attach
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
        place = options.open_root(root)
        if attach is not None and command:
            raise UsageError("--attach follows what is running, and takes no command")
        if attach is not None:
            sys.exit(detaching.follow(console, place, "run", attach))
        if detach and not detached.here():
            # What can be said now is not left to a log.
            use.prepare(place, gpus=gpus, processes=processes, command=command)
            folder = logs.given(log) if log else logs.fresh(logs.places(place), "run")
            sys.exit(detaching.go_on_alone(console, folder))
        code = use.run(
            place, gpus=gpus, processes=processes, command=command, log=log, progress=console
        )
    except MirrorError as error:
        console.error(error)
        code = error.exit_code
    sys.exit(code)
