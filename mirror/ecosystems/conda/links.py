"""Whether packages fit into one environment: where their links lead, and what they are folders to.

They are judged together: one may bring a link, and another a file below it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TypeAlias

from mirror.core.paths import shown
from mirror.ecosystems.conda.archives import Contents, above_in

#: What is looked at for one path, and how long it may grow by the links that lie on it, before they
#: are taken for an attack.
_STEPS, _PARTS = 2000, 500

_Links: TypeAlias = Mapping[str, set[str]]
_Path: TypeAlias = tuple[str, ...]


def problems(packages: Mapping[str, Contents], site_packages: str) -> list[str]:
    """Why these packages, by name, cannot be in one environment together; a line each."""
    return [*escapes(packages, site_packages), *conflicts(packages, site_packages)]


def escapes(packages: Mapping[str, Contents], site_packages: str) -> Iterator[str]:
    """What would be outside the environment if all the packages were in it, a line each.

    packages: by name. site_packages: where in the environment Python packages go.
    """
    links: dict[str, set[str]] = defaultdict(set)
    for found in packages.values():
        for path, target in found.links.items():
            links[found.installed(path, site_packages)].add(target)
    for name, found in packages.items():
        for path, target in found.links.items():
            folder = PurePosixPath(found.installed(path, site_packages)).parent
            if _leaves(f"{folder}/{target}", links):
                yield f"{name}: the symbolic link {shown(path)} leads out: {shown(target)}"
        for path in (*found.files, *found.folders):
            place = found.installed(path, site_packages)
            if any(above_in(place, links)) and _leaves(place, links):
                yield f"{name}: a symbolic link leads out the way to {shown(path)}"


def conflicts(packages: Mapping[str, Contents], site_packages: str) -> Iterator[str]:
    """What is a file (or a link) of one package and a folder of another, a line each.

    Which of the two conda keeps depends on the order of their linking; rattler 0.28 may keep none.
    """
    files: dict[str, list[str]] = defaultdict(list)
    folders: dict[str, set[str]] = defaultdict(set)
    for name, found in packages.items():
        for path in found.files:
            place = found.installed(path, site_packages)
            files[place].append(name)
            above = place.rpartition("/")[0]
            while above and name not in folders[above]:
                folders[above].add(name)
                above = above.rpartition("/")[0]
        for path in found.folders:
            folders[found.installed(path, site_packages)].add(name)
    for path in sorted(files.keys() & folders.keys()):
        owners = " and ".join(sorted(files[path])), " and ".join(sorted(folders[path]))
        yield f"{shown(path)} is a file of {owners[0]}, and a folder of {owners[1]}"


def _leaves(path: str, links: _Links) -> bool:
    """Whether any way along `path`, with any of the links that lie on it, leads above the top."""
    seen: set[tuple[_Path, _Path]] = set()
    waiting: list[tuple[_Path, _Path]] = [((), tuple(path.split("/")))]
    while waiting:
        step = waiting.pop()
        if step in seen:
            continue
        seen.add(step)
        where, rest = step
        if len(seen) > _STEPS or len(rest) > _PARTS:
            return True
        if not rest:
            continue
        part, rest = rest[0], rest[1:]
        if part in ("", "."):
            waiting.append((where, rest))
        elif part == "..":
            if not where:
                return True
            waiting.append((where[:-1], rest))
        else:
            there = (*where, part)
            waiting.append((there, rest))
            targets = links.get("/".join(there), ())
            waiting += [(where, (*target.split("/"), *rest)) for target in targets]
    return False
