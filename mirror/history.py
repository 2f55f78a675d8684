"""mirror list --history, --sbom, --licences: what the record of a root says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mirror.core import bill as bills
from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.errors import BundleError
from mirror.store import audit
from mirror.store.audit import BEGUN, DONE
from mirror.store.blobs import hash_file
from mirror.store.generations import Root


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a root, of the one or two lines that tell of it.

    line: of the last of them in the log, from 1. event: that line; None when it is damaged.
    """

    line: int
    event: Mapping[str, Json] | None

    def lines(self) -> list[str]:
        """For people."""
        event = self.event
        if event is None:
            return [f"line {self.line} of the log is damaged: somebody or something has changed it"]
        about = [_text(event, "action")]
        if "generation" in event:
            about.append(f"generation {_text(event, 'generation')}")
        if "name" in event:
            about.append(f"{_text(event, 'name')} {_text(event, 'version')}")
        if "blobs" in event:
            about.append(f"{_text(event, 'blobs')} blobs")
        state = _text(event, "state")
        about += [] if state == DONE else [_STATES.get(state, state)]
        who = _text(event, "user") or f"uid {_text(event, 'uid')}"
        if sudo := _text(event, "sudo_user"):
            who += f" (sudo: {sudo})"
        return [
            f"{_text(event, 'time')}  {' '.join(about[:1]):8}  {', '.join(about[1:])}, by {who}",
            *(f"    {line}" for line in _details(event)),
        ]

    def to_json(self) -> Json:
        """For programs: the line as it stands, and its number."""
        if self.event is None:
            return {"line": self.line, "damaged": True}
        return {**self.event, "line": self.line}


_STATES = {BEGUN: "NOT FINISHED YET", "undone": "NOT DONE", "interrupted": "INTERRUPTED"}


def changes(root: Root) -> list[Change]:
    """What the log tells, oldest first. Raises MachineError where it cannot be read."""
    found: list[Change] = []
    for line in audit.history(root):
        if found and _belongs(found[-1].event, line.event):
            found.pop()
        found.append(Change(line.number, line.event))
    return found


def bill(root: Root) -> bytes:
    """The bill of materials of what is in use; its hash is right.

    Raises UsageError where it has none, BundleError where it is damaged or gone.
    """
    index = root.current().index()
    wanted = bills.find(index, f"{index.name} {index.version}")
    path = root.blobs.path(wanted.sha256)
    if not root.blobs.has(wanted.sha256, wanted.size) or hash_file(path) != wanted.sha256:
        raise BundleError(f"the bill of materials, {path}, is not what was installed")
    return path.read_bytes()


def _belongs(before: Mapping[str, Json] | None, event: Mapping[str, Json] | None) -> bool:
    """Whether a line says what became of the change that the line before it has begun."""
    if not before or not event or before["state"] != BEGUN or event["state"] == BEGUN:
        return False
    same = ("action", "generation", "digest", "uid")
    return all(before.get(key) == event.get(key) for key in same)


def _details(event: Mapping[str, Json]) -> Iterator[str]:
    if digest := _text(event, "digest"):
        yield f"digest {digest}"
    for key in ("over", "into"):
        if place := _text(event, key):
            yield f"{key} {place}"
    if "signatures" in event:
        yield from _signatures(event["signatures"])


def _signatures(found: Json) -> Iterator[str]:
    for item in found if isinstance(found, Sequence) and not isinstance(found, str) else ():
        if isinstance(item, Mapping):
            who = _text(item, "signer") or "nobody who is trusted"
            yield f"signed by {who}, {_text(item, 'key') or 'no key'}: {_text(item, 'verdict')}"
    if isinstance(found, str):
        yield shown(found)


def _text(table: Mapping[str, Json], key: str) -> str:
    """Fit to be shown; empty where there is none."""
    value = table.get(key)
    return "" if value is None else shown(str(value))
