"""mirror sign: the signature of one more person, in a bundle or beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from mirror.bundle import beside
from mirror.bundle.arrival import find_list, list_standing
from mirror.bundle.opening import STDIN, opened
from mirror.bundle.rewriting import write_signed
from mirror.bundle.volumes import bundle_name
from mirror.core.artifact import Json
from mirror.core.index import MAX_SIGNATURE_BYTES, Index
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.errors import UsageError
from mirror.store import atomic
from mirror.trust import sshsig
from mirror.trust.judging import Judge
from mirror.trust.keys import PublicKey
from mirror.trust.signing import SigningKey
from mirror.trust.sshsig import Signature
from mirror.trust.store import Trust


@dataclass(frozen=True, slots=True)
class Signed:
    """What became of a bundle. files: that were written; none when every key had signed before.

    keys: all that have signed it now.
    """

    index: Index
    files: tuple[Path, ...]
    keys: tuple[PublicKey, ...]

    def lines(self) -> list[str]:
        """For people."""
        where = " and ".join(shown(str(file)) for file in self.files)
        return [
            f"{self.index.name} {self.index.version} is signed"
            + (f": {where}" if self.files else " already"),
            f"digest {self.index.digest}",
            *(f"  {key.label}  {shown(key.comment)}".rstrip() for key in self.keys),
        ]

    def to_json(self) -> Json:
        """For programs."""
        return {
            "name": self.index.name,
            "version": self.index.version,
            "digest": self.index.digest,
            "files": [str(file) for file in self.files],
            "keys": [key.fingerprint for key in self.keys],
            "changed": bool(self.files),
        }


def sign(
    bundle: str, keys: Sequence[SigningKey], progress: Progress, *, detached: bool = False
) -> Signed:
    """Sign a bundle with each of these keys, besides those that have signed it.

    detached: into BUNDLE.sig, which is what volumes get in any case, and their list one as well;
    else the bundle is written again, every byte of it checked. Signatures that are there have to be
    right. Raises as `opened` does, TrustError for a wrong signature, and UsageError for what cannot
    be signed.
    """
    if bundle == STDIN or "://" in bundle:
        raise UsageError("only a bundle in files can be signed")
    nobody = Judge(Trust(), datetime.now(timezone.utc), demand=False)
    path = Path(bundle).resolve()
    whole = bundle_name(path.name)
    with opened([str(path)], progress, nobody) as [reader]:
        there = beside.read([beside.path(path.with_name(whole or path.name))])
        old = [*_read(reader.signature), *(s for _, text in there for s in _read(text))]
        progress.step(f"{reader.index.name} {reader.index.version}, digest {reader.index.digest}")
        new = _made(reader.index_bytes, keys, old)
        files: list[Path] = []
        if new and not (whole or detached):
            write_signed(reader, joined(reader.signature, new), path, progress)
            files.append(path)
        elif new:
            files.append(_add(path.with_name(whole or path.name), new))
        if whole:
            place = find_list(whole, [path.parent])
            list_standing(place, nobody)
            known = [s for _, text in beside.read([beside.path(place)]) for s in _read(text)]
            if of_list := _made(place.read_bytes(), keys, known):
                files.append(_add(place, of_list))
        return Signed(reader.index, tuple(files), _keys([*old, *new], keys))


def joined(old: bytes, new: Sequence[Signature]) -> bytes:
    """Several signatures in one file: behind what it holds, as it stands.

    Raises UsageError where they are too many.
    """
    gap = b"" if not old or old.endswith(b"\n") else b"\n"
    data = old + gap + b"".join(signature.armoured for signature in new)
    count = len(sshsig.read(old)) + len(new)
    if count > sshsig.MAX_SIGNATURES or len(data) > MAX_SIGNATURE_BYTES:
        raise UsageError(
            f"a bundle has at most {sshsig.MAX_SIGNATURES} signatures, of"
            f" {MAX_SIGNATURE_BYTES:,} bytes together"
        )
    return data


def _made(data: bytes, keys: Sequence[SigningKey], old: Sequence[Signature]) -> list[Signature]:
    """The signatures of those keys that have not signed."""
    done = {signature.key.blob for signature in old}
    made: list[Signature] = []
    for key in keys:
        if key.public.blob not in done:
            done.add(key.public.blob)
            made.append(key.sign(data))
    return made


def _read(text: bytes) -> list[Signature]:
    """The signatures in a file that the judge has found right."""
    return [found for found in sshsig.read(text) if isinstance(found, Signature)]


def _add(signed: Path, new: Sequence[Signature]) -> Path:
    place = beside.path(signed)
    old = b"".join(text for _, text in beside.read([place]))
    atomic.write(place, joined(old, new))
    return place


def _keys(signatures: Sequence[Signature], keys: Sequence[SigningKey]) -> tuple[PublicKey, ...]:
    """Each key that has signed, once; with its comment where it is one of those at hand."""
    named = {key.public.blob: key.public for key in keys}
    return tuple({s.key.blob: named.get(s.key.blob, s.key) for s in signatures}.values())
