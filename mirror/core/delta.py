"""A file made of an older one: what an increment ships of a large file that changed in part.

Docs: docs/format.md. The index says which bytes of the older file (the base) to take, and the bytes
that are new are an artifact of kind `delta`. So nothing in a bundle but its index is parsed, and
what comes out is checked by its hash like every other artifact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirror.core.artifact import Artifact, Json
from mirror.core.index import Index
from mirror.core.paths import shown
from mirror.errors import BundleError

KIND = "delta"
#: No delta has more: each takes some 20 bytes of the index.
MAX_PIECES = 100_000


@dataclass(frozen=True, slots=True)
class Piece:
    """`size` bytes: the base's from `at` on, or the delta's own next ones where `at` is None."""

    size: int
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """How to make `result`. artifact: the bytes that are new. base: sha256 of the older file."""

    artifact: Artifact
    result: Artifact
    base: str
    pieces: Sequence[Piece]


def artifact(
    result: str, base: str, pieces: Iterable[Piece], *, size: int, sha256: str
) -> Artifact:
    """The artifact of the new bytes, `size` of them; result and base: sha256 of the two files."""
    spelled: list[Json] = [
        piece.size if piece.at is None else [piece.at, piece.size] for piece in pieces
    ]
    origin: dict[str, Json] = {"result": result, "base": base, "pieces": spelled}
    return Artifact(KIND, f"{KIND}/{result}", size, sha256, origin=origin)


def deltas(index: Index) -> list[Delta]:
    """The deltas that a bundle ships. Raises BundleError for one that makes no sense."""
    held = {entry.artifact.sha256: entry.artifact for entry in index.entries if not entry.shipped}
    found = []
    for entry in index.entries:
        if entry.artifact.kind == KIND and entry.shipped:
            try:
                found.append(_delta(entry.artifact, held))
            except (KeyError, TypeError, ValueError) as error:
                raise BundleError(
                    f"{shown(entry.artifact.path)} is no delta: {shown(str(error))}",
                    hint="Build the bundle again.",
                ) from None
    return found


def _delta(artifact: Artifact, held: dict[str, Artifact]) -> Delta:
    result, base, spelled = (artifact.origin[key] for key in ("result", "base", "pieces"))
    if not isinstance(result, str) or not isinstance(base, str) or len(base) != 64:
        raise ValueError("result and base are no hashes")
    if not set(base) <= set("0123456789abcdef"):
        raise ValueError("its base is no hash")
    if not isinstance(spelled, list) or len(spelled) > MAX_PIECES:
        raise ValueError("its pieces are no list, or too many")
    pieces = tuple(map(_piece, spelled))
    made = Delta(artifact, held[result], base, pieces)
    if sum(piece.size for piece in pieces if piece.at is None) != artifact.size:
        raise ValueError("its pieces do not take all of it")
    if sum(piece.size for piece in pieces) != made.result.size:
        raise ValueError("its pieces do not make up the file")
    return made


def _piece(item: Json) -> Piece:
    at, size = item if isinstance(item, list) else (None, item)
    if type(size) is not int or size <= 0 or not (at is None or (type(at) is int and at >= 0)):
        raise ValueError("a piece is neither a size nor a place and a size")
    return Piece(size, at)
