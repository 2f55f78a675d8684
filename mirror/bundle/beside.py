"""Signatures in a file of their own: BUNDLE.sig over the index, LIST.sig over a list of volumes.

So a bundle of any size is signed without being written again, also where it cannot be. Docs:
docs/format.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from mirror.core.index import MAX_SIGNATURE_BYTES
from mirror.core.paths import shown
from mirror.errors import MachineError, TrustError

SUFFIX = ".sig"
#: Where signatures are, fit to be shown, and what is there.
Found: TypeAlias = "list[tuple[str, bytes]]"


def path(signed: Path) -> Path:
    """Where the signatures over a bundle or a list are, when they are beside it."""
    return signed.with_name(signed.name + SUFFIX)


def read(files: Iterable[Path]) -> Found:
    """What is in those of the files that are there. Raises TrustError for one of no use."""
    found: Found = []
    for file in files:
        place = shown(str(file))
        try:
            with open(file, "rb") as stream:
                data = stream.read(MAX_SIGNATURE_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise MachineError(f"{place} cannot be read: {error.strerror}") from None
        if len(data) > MAX_SIGNATURE_BYTES:
            raise TrustError(
                f"{place} is no signature: it is longer than {MAX_SIGNATURE_BYTES:,} bytes",
                hint="Remove it, or put the right one there.",
            )
        found.append((place, data))
    return found


def drop_stale(signed: Path, data: bytes) -> bool:
    """Remove the signatures beside what is now written anew, unless they are over these bytes.

    They would be wrong, and what is signed wrongly is refused. Returns whether there were any. What
    is no signature stays: it is somebody else's.
    """
    file = path(signed)
    if not file.exists():
        return False
    from mirror.trust import sshsig  # which most builds have no use for

    try:
        [(_, text)] = read([file])
        known = sshsig.read(text)
    except (ValueError, TrustError):  # none, or something else
        return False
    for signature in known:
        with suppress(ValueError):
            if isinstance(signature, sshsig.Signature):
                signature.require(data)
                return False
    if known:
        file.unlink()
    return bool(known)
