"""What conda packages of the same lock bring: resolved against, and never replaced.

Conda's names are others than the index's (pytorch is torch), and one package can bring several
distributions or none. So the conda packages' own metadata counts; it stands in their origins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from mirror.core.artifact import Artifact
from mirror.core.requirements.values import Place, Requirements
from mirror.core.target import Target
from mirror.ecosystems.wheels.pip_tools import markers
from mirror.errors import ResolutionError


@dataclass(frozen=True, slots=True)
class Brought:
    """A distribution.

    name: in normal form. requires: what it needs, as PEP 508 writes it. package: conda's name and
    version of what brings it.
    """

    name: str
    version: str
    requires: tuple[str, ...] = ()
    package: str = ""

    def __str__(self) -> str:
        return f"the conda package {self.package} brings {self.name} {self.version}"


def of(artifacts: Iterable[Artifact]) -> dict[str, Brought]:
    """By name, what the conda packages among these artifacts bring."""
    found: dict[str, Brought] = {}
    for artifact in artifacts:
        distributions = artifact.origin.get("distributions")
        for item in distributions if isinstance(distributions, (list, tuple)) else ():
            if not isinstance(item, Mapping):
                continue
            requires = item.get("requires")
            name = canonicalize_name(str(item.get("name")))
            found[name] = Brought(
                name=name,
                version=str(item.get("version")),
                requires=tuple(map(str, requires)) if isinstance(requires, (list, tuple)) else (),
                package=f"{artifact.text('name')} {artifact.text('version')}",
            )
    return found


def refuse(asked: Requirements, brought: Mapping[str, Brought], target: Target) -> None:
    """Raises ResolutionError that names every requirement which these do not satisfy, and both."""
    environment = {**markers(target), "extra": ""}
    problems = []
    for specifier in asked.specifiers:
        known, wanted = brought.get(specifier.name), Requirement(specifier.text)
        applies = wanted.marker is None or wanted.marker.evaluate(environment)
        if known and applies and not wanted.specifier.contains(known.version, prereleases=True):
            problems.append(f"{specifier.where}: {specifier.text} is asked for, and {known}")
    places: Sequence[Place] = (
        *asked.wheel_urls,
        *asked.git_urls,
        *asked.local_wheels,
        *asked.local_projects,
    )
    for place in places:
        if place.name and place.name in brought:
            known = brought[place.name]
            problems.append(f"{place.where}: a place of {known.name} is named, and {known}")
    if problems:
        raise ResolutionError(
            "wheels and conda packages do not agree",
            problems=problems,
            hint="What is asked for in both comes from conda. Change one of the two.",
        )


def agreeing(
    brought: Mapping[str, Brought], target: Target
) -> tuple[dict[str, Brought], list[str]]:
    """The same with the needs that a resolver is to meet, and what a person has to be told.

    A need that another conda package does not meet is left out: conda says that they go together,
    and no wheel could change it.
    """
    found: dict[str, Brought] = {}
    notes = []
    environment = {**markers(target), "extra": ""}
    for name, item in brought.items():
        requires = []
        for text in item.requires:
            wanted = _requirement(text)
            if wanted is None:
                notes.append(f"{item}, which needs {text}: that is no requirement")
                continue
            other = brought.get(canonicalize_name(wanted.name))
            if other is None or wanted.specifier.contains(other.version, prereleases=True):
                requires.append(text)
            elif wanted.marker is None or wanted.marker.evaluate(environment):
                notes.append(f"{item}, which needs {wanted}; but {other}")
        found[name] = replace(item, requires=tuple(requires))
    return found, notes


def explained(error: ResolutionError, brought: Mapping[str, Brought]) -> ResolutionError:
    """A resolver's error, with a line for each of these that it speaks of."""
    said = " ".join(error.problems)
    lines = [
        f"T{str(item)[1:]}."
        for item in brought.values()
        if re.search(rf"(?<![\w-]){re.escape(item.name)}(?![\w-])", said)
    ]
    return ResolutionError(error.message, problems=[*error.problems, *lines], hint=error.hint)


def _requirement(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None
