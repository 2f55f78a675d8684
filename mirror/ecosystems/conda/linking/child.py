"""What rattler does in a process of its own: unpacking packages, and linking them.

It holds Python's lock while it unpacks, ends the process where it meets what it did not expect, and
may crash one that ends while its threads still run. Each line of standard input is a job, a JSON
object; answers are lines on what standard output was.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirror.ecosystems.conda import bridge


def main() -> None:
    """Do the jobs, each to its end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # whatever else is printed here is no answer

        def say(**answer: object) -> None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

        for line in sys.stdin:
            job = json.loads(line)
            try:
                _JOBS[job.pop("do")](say, **job)
            except bridge.RattlerError as error:
                say(refused=error.lines)
            except OSError as error:
                say(refused=[str(error)])
    os._exit(0)  # not by way of the interpreter's end, which rattler's threads may not survive


def _unpack(say: Callable[..., None], archive: str, folder: str) -> None:
    """Answers with the sha256 of the bytes that were unpacked."""
    from rattler.package_streaming import extract

    with bridge.translated():
        sha256, _ = extract(Path(archive), Path(folder))
    say(sha256=sha256.hex())


def _link(
    say: Callable[..., None], channel: str, subdirs: list[str], prefix: str, cache: str, subdir: str
) -> None:
    """Link all packages of a channel, which the cache holds; answers for each, and at the end."""
    import rattler

    class Reporter(rattler.InstallerReporter):
        def on_link_complete(self, index: int) -> None:
            say(linked=1)

    both = rattler.PackageFormatSelection.BOTH
    opened = rattler.Channel(channel)
    records = [
        record
        for folder in subdirs
        for record in rattler.SparseRepoData(
            opened, folder, Path(channel, folder, "repodata.json")
        ).load_all_records(both)
    ]
    bridge.run(
        rattler.install(
            records,
            prefix,
            cache_dir=Path(cache),
            installed_packages=[],
            platform=rattler.Subdir(subdir),
            execute_link_scripts=False,
            client=rattler.Client(),
            reporter=Reporter(),  # type: ignore[abstract]  # all its methods have bodies
        )
    )
    say(done=True)


_JOBS: dict[str, Callable[..., Any]] = {"unpack": _unpack, "link": _link}
