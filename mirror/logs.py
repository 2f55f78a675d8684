"""Where what was run leaves its logs: a fresh folder for each run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from mirror.errors import MachineError, UsageError
from mirror.store.generations import Root


def places(root: Root) -> tuple[Path, ...]:
    """The folders that runs' folders are made in: the root's, and where that is not ours, our own.

    The second is $XDG_STATE_HOME/mirror/log, else ~/.local/state/mirror/log.
    """
    chosen = os.environ.get("XDG_STATE_HOME")
    state = Path(chosen) if chosen else Path("~/.local/state").expanduser()
    return root.logs, (state / "mirror" / "log").resolve()


def fresh(places: Iterable[Path], kind: str) -> Path:
    """A new folder KIND-TIME in the first of the places that can be written; UTC.

    Raises MachineError when none can.
    """
    problems = []
    for place in places:
        name = f"{kind}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
        try:
            if place.is_symlink():
                problems.append(f"{place} is a symbolic link")
                continue
            place.mkdir(parents=True, exist_ok=True)
            for unused in itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2))):
                try:
                    (place / unused).mkdir()
                    return place / unused
                except FileExistsError:
                    continue
        except OSError as error:
            problems.append(f"{place}: {error.strerror}")
    option = "--report" if kind.startswith("verify") else "--log"
    raise MachineError(
        "there is no folder for the logs", problems=problems, hint=f"Name one with {option} DIR."
    )


def given(folder: Path) -> Path:
    """The folder that a person names for one run's logs: made, or empty.

    Raises UsageError when there is something in it, MachineError when it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(
                f"{folder} is not empty",
                hint="Logs of two runs in one folder would be taken for one: name a new one.",
            )
    except OSError as error:
        raise MachineError(
            f"the logs cannot be written to {folder}: {error.strerror}",
            hint="Name a folder of your own with --log DIR.",
        ) from None
    return folder.absolute()
