"""Ctrl-C ends a command, wherever in Python it comes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_COMMAND = """
import signal, sys, time
import click
from mirror.cli import cli, main

class Resource:
    def __del__(self):
        signal.raise_signal(int(sys.argv[2]))

@cli.command()
@click.argument("number")
def waits(number):
    Resource()  # finalized at once: there Python drops what a handler raises
    time.sleep(50)

main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_comes_in_a_finalizer_is_not_lost(number: int) -> None:
    line = [sys.executable, "-c", _COMMAND, "waits", str(int(number))]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30)
    assert done.returncode == 130, done.stderr
    assert done.stderr.startswith("\nerror: interrupted\n")
    assert "ignored" not in done.stderr  # as Python puts what it drops


def test_other_errors_there_are_shown_as_ever() -> None:
    text = _COMMAND.replace("signal.raise_signal(int(sys.argv[2]))", "raise ValueError('lost')")
    line = [sys.executable, "-c", text.replace("sleep(50)", "sleep(0)"), "waits", "0"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert "ValueError: lost" in done.stderr
