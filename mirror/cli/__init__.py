"""The command line: parse, call one use case, render, exit code. Nothing else."""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

import click

import mirror
from mirror.cli import builder, bundles, keys, proving, roots
from mirror.cli.command import add, refused
from mirror.errors import Interrupted, MachineError, MirrorError, UsageError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _InOrder(click.Group):
    """Lists its commands in the order of the work, which is that in which they are added."""

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


# In the order of the work.
add(cli, builder.lock, builder.build, bundles.inspect)
add(cli, roots.install, roots.list_, roots.rollback, roots.pin, roots.gc)
add(cli, proving.probe, proving.verify, roots.repair)
# Its own options stand before the command that it runs, and it shows nothing as JSON.
cli.command(context_settings={"allow_interspersed_args": False})(proving.run)
add(cli, keys.keygen, keys.sign)


@cli.group(name="trust", cls=_InOrder)
def trust_group() -> None:
    """Say whose signatures this machine trusts.

    \b
    Once a key is trusted, only bundles that its owner signed are installed:
        mirror trust add alice.pub --name alice
    """


add(trust_group, keys.add, keys.list_, keys.remove, keys.threshold)


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM and SIGHUP end as Ctrl-C does: what was begun is cleaned up."""
    raise KeyboardInterrupt


def _once_more(lost: UnraisableHookArgs) -> None:
    """Ctrl-C that came while an object was being finalized, where Python drops every exception."""
    if lost.exc_type is KeyboardInterrupt:
        threading.Timer(0.01, _interrupt).start()
    else:
        sys.__unraisablehook__(lost)


def _interrupt() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        # It wakes whatever waits; and is never ignored here, as SIGINT is behind a shell's "&".
        signal.pthread_kill(main, signal.SIGTERM)
    else:
        _thread.interrupt_main()


def _say(error: MirrorError) -> None:
    """An error that no command could say: in JSON when the command line asks for that."""
    from mirror.console import Console

    Console(as_json="--json" in sys.argv[1:]).error(error)


def main() -> None:
    """Run the command line and exit."""
    sys.unraisablehook = _once_more
    # Of a hundred thousand files there are many objects and no cycles: looked for at Python's own
    # pace, they take an eighth of the time.
    gc.set_threshold(50_000, 20, 100)
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
        _say(refused(error))
        sys.exit(MachineError.exit_code)
    except Exception as error:  # noqa: BLE001 -- whatever is left is a bug, and is called one
        import traceback

        click.echo(traceback.format_exc(), err=True)
        hint = "Please report it with the lines above."
        _say(MirrorError(f"a bug in mirror: {type(error).__name__}: {error}", hint=hint))
        sys.exit(1)
