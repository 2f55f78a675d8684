"""How fast mirror is, side by side with the programs that people would use instead.

    python -m tests.bench.run [--size 1000] [--rounds 5] [--folder DIR] [--offline] [--only GROUP]

Every row does one piece of work in an empty folder; each group of rows says which are set against
each other, and the aim of each. The rows take turns, round after round, so that whatever else the
machine does falls on all of them. A row's figure is the median of its rounds; the ratio of the
fastest rounds is printed too, which a busy machine disturbs less.
About six times `--size` must be free in the folder, and 1 GB besides; all of it is removed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mirror.store.generations import remove_tree
from tests.bench.bundles import MEGABYTE, Bundles, Pictures, SmallFiles
from tests.bench.conda_install import CondaInstall
from tests.bench.conda_repodata import Repodata
from tests.bench.downloads import Downloads
from tests.bench.increments import Increments
from tests.bench.launching import Launching
from tests.bench.packages import Again, Environment, Resolve
from tests.bench.rows import Added, Compared, Group, Limited, Row
from tests.bench.start import Start

GROUPS: tuple[type[Group], ...] = (
    Bundles,
    Pictures,
    SmallFiles,
    Increments,
    Downloads,
    Start,
    Resolve,
    Environment,
    CondaInstall,
    Repodata,
    Again,
    Launching,
)


def prepare(
    groups: Iterable[type[Group]], folder: Path, size: int, *, offline: bool
) -> list[Group]:
    """The groups that can be measured here; why another is left out goes to stderr."""
    ready = []
    for group in groups:
        if group.index and offline:
            say(f"{group.name}: left out, since it needs a package index (--offline)")
            continue
        place = folder / group.name
        place.mkdir()
        try:
            ready.append(group(place, folder / "scratch", size))
        except subprocess.CalledProcessError as error:
            say(f"{group.name}: left out ({failure(error)})")
    return ready


def measure(rows: Sequence[Row], scratch: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of every round of every row that this machine has the programs for."""
    seconds: dict[str, list[float]] = {}
    for number in range(rounds):
        # There and back, so that no row always comes after the same one.
        for row in rows if number % 2 == 0 else reversed(rows):
            if number and not row.often:
                continue
            remove_tree(scratch)
            scratch.mkdir()
            try:
                row.ready()
                os.sync()
                begun = time.perf_counter()
                row.work()
            except subprocess.CalledProcessError as error:
                say(f"{row.name}: not measured ({failure(error)})")
                continue
            took = (time.perf_counter() - begun) * row.scale
            seconds.setdefault(row.name, []).append(took)
        say(f"round {number + 1} of {rounds} is done")
    return seconds


def figures(rows: Iterable[Row], seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """What each row took, as lines."""
    lines = [f"{'work':<26}{'median s':>10}{'fastest':>9}{'slowest':>9}{'MB/s':>8}"]
    for row in rows:
        if took := seconds.get(row.name):
            median = statistics.median(took)
            rate = f"{row.size / median / 1e6:,.0f}" if row.size else ""
            note = f"  (a quarter, times {row.scale})" if row.scale > 1 else ""
            lines.append(
                f"{row.name:<26}{median:>10.2f}{min(took):>9.2f}{max(took):>9.2f}{rate:>8}{note}"
            )
    return lines


def verdicts(
    aims: Iterable[Compared | Limited | Added], seconds: Mapping[str, Sequence[float]]
) -> list[str]:
    """How each aim is met, as lines."""
    lines = [f"{'work':<23}{'against':<26}{'ratio':>7}{'fastest':>9}{'aim':>6}"]
    for aim in aims:
        ours = seconds.get(aim.ours)
        theirs = [1.0] if isinstance(aim, Limited) else seconds.get(aim.theirs)
        if not ours or not theirs:
            continue
        if isinstance(aim, Added):
            against = f"{aim.theirs} + seconds"
            found = statistics.median(ours) - statistics.median(theirs)
            fastest = min(ours) - min(theirs)
        else:
            against = "(seconds)" if isinstance(aim, Limited) else aim.theirs
            found = statistics.median(ours) / statistics.median(theirs)
            fastest = min(ours) / min(theirs)
        stated = f"{aim.aim:>6.2f}" if aim.aim else f"{'-':>6}"
        verdict = "" if not aim.aim else "  met" if found <= aim.aim else "  missed"
        lines.append(f"{aim.ours:<23}{against:<26}{found:>7.2f}{fastest:>9.2f}{stated}{verdict}")
    return lines


def failure(error: subprocess.CalledProcessError) -> str:
    """A failed command in a few words, with the last of what it said."""
    said = (error.stderr or "").strip().splitlines()
    return f"{Path(str(error.cmd[0])).name} ended with {error.returncode}: {' '.join(said[-3:])}"


def say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=1000, help="megabytes of artifacts (1000)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each row runs (5)")
    parser.add_argument("--folder", type=Path, help="where to work (a temporary folder)")
    parser.add_argument("--offline", action="store_true", help="leave out what needs an index")
    names = [group.name for group in GROUPS]
    parser.add_argument("--only", choices=names, action="append", help="this group alone")
    options = parser.parse_args()
    chosen = [group for group in GROUPS if group.name in (options.only or names)]
    with tempfile.TemporaryDirectory(prefix="mirror-bench-", dir=options.folder) as name:
        folder = Path(name).resolve()
        groups = prepare(chosen, folder, options.size * MEGABYTE, offline=options.offline)
        rows = [row for group in groups for row in group.rows()]
        seconds = measure(rows, folder / "scratch", options.rounds)
        notes = [note for group in groups for note in group.notes()]
    print("\n".join(figures(rows, seconds)), end="\n\n")
    print("\n".join(verdicts((aim for group in groups for aim in group.aims), seconds)))
    if any(group.name == Bundles.name for group in groups):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(f"\npeak memory of pack and install: {peak / 1e6:.0f} MB resident (aim: under 200)")
    print("\n".join(["", *notes]))


if __name__ == "__main__":
    main()
