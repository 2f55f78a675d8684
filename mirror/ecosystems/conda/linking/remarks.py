"""What was not done as packages wanted it, told to people."""

from __future__ import annotations

import filecmp
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.ecosystems.conda.archives import CLOBBERED, Contents

#: How many files of one kind are named.
_NAMED = 5


def remarks(
    contents: Mapping[str, Contents], allowed: Collection[str], prefix: Path
) -> Iterator[str]:
    """A line for each: scripts that were not run, files that several packages bring.

    contents: by package. allowed: the packages whose scripts were run.
    """
    for name, found in sorted(contents.items()):
        scripts = [] if name in allowed else found.link_scripts(name)
        if scripts:
            what = " and ".join(scripts)
            plural = "s were" if scripts[1:] else " was"
            yield (
                f"{name}: its {what} script{plural} not run;"
                " conda.link-scripts in the manifest names the packages whose scripts are"
            )
    yield from _clobbered(prefix)


def _clobbered(prefix: Path) -> Iterator[str]:
    """Files that are not as some package brought them, since another one's is in their place."""
    losers: dict[str, list[str]] = defaultdict(list)
    for folder in sorted((prefix / CLOBBERED).glob("*")):
        for path in folder.rglob("*"):
            file = path.relative_to(folder).as_posix()
            if (path.is_symlink() or path.is_file()) and not _same(path, prefix / file):
                losers[file].append(folder.name)
    if not losers:
        return
    winners = _owners(prefix, losers)
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file, names in losers.items():
        groups[winners.get(file, ""), " and ".join(sorted(names))].append(file)
    for (winner, others), files in sorted(groups.items(), key=lambda group: min(group[1])):
        shorter = ", ".join(map(shown, sorted(files)[:_NAMED]))
        if len(files) > _NAMED:
            shorter += f" and {counted(len(files) - _NAMED, 'other')}"
        verb, that = ("are", "those") if files[1:] else ("is", "that")
        used = f"{that} of {winner} {verb} used, " if winner else ""
        yield f"{shorter} {verb} in several conda packages: {used}not {that} of {others}"


def _same(one: Path, other: Path) -> bool:
    """Whether it does not matter which of two is used."""
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and one.readlink() == other.readlink()
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


def _owners(prefix: Path, files: Collection[str]) -> dict[str, str]:
    """Which package's each of these files is, by the records of the environment."""
    found: dict[str, str] = {}
    for file in (prefix / "conda-meta").glob("*.json"):
        record = json.loads(file.read_bytes())
        found |= {path: record["name"] for path in record["files"] if path in files}
    return found
