"""What the files of a carried repository say of it, each read once; in words, what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.ecosystems.models.repository import Carried, label
from mirror.errors import UsageError

#: Bytes of a JSON or Python file: those of the largest models are a tenth of it.
_LONGEST = 32 << 20
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class Documents:
    """The files of one repository, and what is wrong with those that were read.

    label: what the repository is called in messages.
    """

    def __init__(self, carried: Carried) -> None:
        self._places = carried.places
        self.item = carried.item
        self.files = carried.files
        self.commit = next((a.text("commit") for a in carried.artifacts), "")
        self.problems: list[str] = []
        self.label = label(self.item)
        self._read: dict[str, Json] = {}

    def json(self, file: str) -> Json:
        """What a JSON file holds; None where it is not carried, or is none (a problem then)."""
        if file not in self._read:
            self._read[file] = self._json(file) if file in self.files else None
        return self._read[file]

    def mapping(self, file: str) -> Mapping[str, Json]:
        """The object that a JSON file holds; empty where it is not carried, or holds another.

        At the root that is a problem: further down, a file of this name may be anything.
        """
        first = file not in self._read
        found = self.json(file)
        if isinstance(found, Mapping):
            return found
        if first and found is not None and "/" not in file:
            self.problems.append(f"{self.label}: {shown(file)} holds no JSON object")
        return {}

    def bytes(self, file: str) -> bytes:
        """The bytes of a file that is carried; empty where they are absurdly many."""
        if self.files[file].size > _LONGEST:
            return b""
        try:
            return self._places[self.files[file].path].read_bytes()
        except OSError as error:
            raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None

    def _json(self, file: str) -> Json:
        try:
            found: Json = json.loads(self.bytes(file))
        except RecursionError:
            reason = "it is nested too deeply"
        except ValueError as error:
            reason = str(error) if self.files[file].size <= _LONGEST else "it is too large"
        else:
            return found
        self.problems.append(f"{self.label}: {shown(file)} is no JSON: {shown(reason)}")
        return None


def is_id(text: str) -> bool:
    """Whether this can be the id of a repository, and not only a path."""
    return bool(_ID.fullmatch(text))
