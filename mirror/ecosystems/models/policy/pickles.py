"""Pickles: what loading one would run, found without loading it, and which ones are refused.

picklescan says of each name whether it is harmless, dangerous or neither. That is a list of known
tricks and no proof, so that what is neither is told and recorded.
"""

from __future__ import annotations

import io
import logging
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mirror.core.artifact import Artifact
from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.ecosystems.models.policy import formats
from mirror.ecosystems.models.policy.pickle_files import Scan, is_pickle, scan
from mirror.ecosystems.models.policy.pickle_opcodes import UNKNOWN, Global
from mirror.ecosystems.models.repository import Carried, label
from mirror.ecosystems.source import Context
from mirror.errors import ResolutionError, UsageError

#: So many names of one pickle are told and recorded, each so long.
_TOLD = 10
_LENGTH = 80


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of a pickle. refused: unless it is allowed by name."""

    text: str
    refused: bool = False


def judged(carried: Sequence[Carried], context: Context) -> list[Artifact]:
    """The artifacts of all; the origin of each pickle says in `pickle` what a scan found.

    Raises ResolutionError that names every pickle which is dangerous, or cannot be scanned, and is
    not allowed; UsageError when one cannot be read.
    """
    found: list[Artifact] = []
    refused: list[str] = []
    for one in carried:
        verdicts = {
            file: verdict
            for file, artifact in one.files.items()
            if is_pickle(file) and (verdict := _verdict(one, artifact))
        }
        bad = {file for file, verdict in verdicts.items() if verdict.refused}
        allowed = {file for file in bad if formats.matches(file, one.item.pickles)}
        name = label(one.item)
        refused += [f"{name}: {shown(f)}: {verdicts[f].text}" for f in sorted(bad - allowed)]
        for line in _to_tell(one, verdicts, bad):
            context.progress.warn(f"{name}: {line}")
        for file, artifact in one.files.items():
            fact = {"pickle": verdicts[file].text} if file in verdicts else {}
            found.append(replace(artifact, origin={**artifact.origin, **fact}))
    if refused:
        raise ResolutionError(
            f"{counted(len(refused), 'pickle')} would run code when loaded, or may",
            problems=refused,
            hint="Prefer safetensors: `exclude` these, or choose a revision that has them. What you"
            " trust all the same is carried when `pickles` of its repository names it.",
        )
    return found


def verdict(scanned: Scan) -> Verdict | None:
    """What a scan amounts to; None for a file that is no pickle."""
    levels = _levels(scanned.names | scanned.guesses)
    dangerous = [name for name, level in levels.items() if level == "dangerous"]
    if dangerous:
        return Verdict(f"dangerous: {_told(dangerous)}", refused=True)
    if scanned.failure:
        return Verdict(f"could not be scanned: {scanned.failure}", refused=True)
    if not scanned.pickle:
        return None
    suspicious = [name for name in scanned.names if levels[name] != "innocuous"]
    return Verdict(f"suspicious: {_told(suspicious)}" if suspicious else "clean")


def _verdict(carried: Carried, artifact: Artifact) -> Verdict | None:
    place = carried.places[artifact.path]
    try:
        return verdict(scan(place))
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error.strerror}") from None


def _to_tell(carried: Carried, verdicts: dict[str, Verdict], bad: Collection[str]) -> Iterator[str]:
    """What does not stop the work."""
    for file in sorted(verdicts.keys() - bad):
        if verdicts[file].text != "clean":
            yield f"{shown(file)} is a pickle, {verdicts[file].text}"
    for pattern in carried.item.pickles:
        if not any(formats.matches(file, [pattern]) for file in bad):
            yield f"`pickles`: {pattern} allows nothing: no dangerous pickle has such a name"


def _levels(names: Collection[Global]) -> dict[Global, str]:
    """What picklescan says of each: "innocuous", "suspicious" or "dangerous"."""
    from picklescan.scanner import scan_pickle_bytes  # type: ignore[import-untyped]

    logging.getLogger("picklescan").setLevel(logging.CRITICAL + 1)  # it would tell stderr
    asked = {name: set(_meanings(name)) for name in names}
    # Its public function takes a pickle: so it gets one that imports these names.
    pickled = b"\x80\x04%b." % b"".join(map(_import, set().union(*asked.values())))
    result: Any = scan_pickle_bytes(io.BytesIO(pickled), "")
    said = {(found.module, found.name): str(found.safety.value) for found in result.globals}
    order = ("innocuous", "suspicious", "dangerous")
    return {
        name: max((said.get(meaning, "dangerous") for meaning in meanings), key=order.index)
        for name, meanings in asked.items()
    }


def _meanings(name: Global) -> Iterator[Global]:
    """The name, and what else it reaches.

    Old protocols rename modules of Python 2 (cPickle to pickle); a dotted name walks from a module
    to others that it has imported (linecache, os.system).
    """
    for module, attribute in (
        name,
        NAME_MAPPING.get(name, name),
        (IMPORT_MAPPING.get(name[0], name[0]), name[1]),
    ):
        yield module, attribute
        *path, last = attribute.split(".")
        for start in range(len(path)):
            yield ".".join(path[start:]), last


def _import(name: Global) -> bytes:
    """The opcodes that import a name."""
    texts = [part.encode("utf-8", "surrogatepass") for part in name]
    return b"".join(b"X%b%b" % (len(t).to_bytes(4, "little"), t) for t in texts) + b"\x93"


def _told(names: Iterable[Global]) -> str:
    """The names as a person may read them, not too many."""
    texts = sorted({"a name made while it loads" if UNKNOWN in n else ".".join(n) for n in names})
    few = [shown(text[:_LENGTH]) for text in texts[:_TOLD]]
    return ", ".join(few + ([f"{len(texts) - _TOLD:,} more"] if len(texts) > _TOLD else []))
