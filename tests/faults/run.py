"""Every fault, in figures.

    python -m tests.faults.run [--all] [--only SCENE] [--part kills|errors|rivals|cuts|order]

Without --all some points of each scene are tried, the same ones each time. What is not as promised
is printed in full, and the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.faults import cuts, order, ptrace, sockets, stage, walks
from tests.faults.scenes import Scene, workshop
from tests.faults.walks import Tally
from tests.fuzz import run as fuzzing
from tests.hostile import catalogue

#: Seconds that the whole fuzzing takes.
FUZZING = 60.0

PARTS: dict[str, tuple[Callable[[Scene, int | None], Tally], str]] = {
    "kills": (walks.kills, "kill points walked: {tried}, invariant held: {held}"),
    "errors": (walks.errors, "errors injected: {tried}, ended as promised: {held}"),
    "rivals": (walks.rivals, "second commands at once: {tried}, ended as promised: {held}"),
    "cuts": (cuts.cuts, "power cuts replayed: {tried}, invariant held: {held}"),
    "order": (order.order, "calls held against the order of syncs: {tried}, in order: {held}"),
}


def main() -> int:
    """Walk, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--all", action="store_true", help="every point, not some of each scene")
    parser.add_argument("--points", type=int, default=12, help="how many of each scene (12)")
    parser.add_argument("--only", action="append", help="this scene alone")
    parser.add_argument("--part", action="append", choices=PARTS, help="this part alone")
    options = parser.parse_args()
    if ptrace.LACKING:
        print(ptrace.LACKING, file=sys.stderr)
        return 2
    tallies = {part: Tally() for part in options.part or PARTS}
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=fast if fast.is_dir() else None) as name:
        folder = Path(name).resolve()
        with workshop(folder / "workshop") as shop:
            for scene in stage.scenes(shop, folder, options.only):
                scene.prepare(folder / "kept")
                for part, tally in tallies.items():
                    if part not in scene.parts:
                        continue
                    wanted = scene.points if options.all else options.points
                    found = PARTS[part][0](scene, wanted)
                    print(f"{scene.name}: {part}: {found.tried} of {found.of}", file=sys.stderr)
                    print("".join(f"{line}\n" for line in found.lines), file=sys.stderr, end="")
                    tally += found
                scene.clear()
    for part, tally in tallies.items():
        print(PARTS[part][1].format(tried=tally.tried, held=tally.tried - tally.wrong))
    wrong = sum(tally.wrong for tally in tallies.values())
    if not options.only and not options.part:
        wrong += _others(FUZZING if options.all else FUZZING / 10)
    return 1 if wrong else 0


def _others(seconds: float) -> int:
    """What else is promised, of wrong input and of the network; returns how much is wrong."""
    tried, refused = catalogue.tally()
    print(f"hostile inputs tried: {tried}, refused rightly: {refused}")
    executions, findings = fuzzing.main(seconds)
    print(f"fuzzing: {executions:,} executions, findings: {findings}")
    opened = sockets.tally()
    print(f"sockets opened by install, verify, list and inspect: {opened}")
    return tried - refused + findings + opened


if __name__ == "__main__":
    sys.exit(main())
