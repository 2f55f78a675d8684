"""Where trusted keys are kept, and changing them.

    ~/.config/mirror/allowed_signers   of one person ($XDG_CONFIG_HOME/mirror)
    /etc/mirror/allowed_signers        of the machine
    --trust FILE, or $MIRROR_TRUST     in place of both

Beside each may be `revoked_keys`. Those of the person and of the machine count in any case: to name
another file of trusted keys brings no revoked key back.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mirror.core.paths import shown
from mirror.errors import MachineError, TrustError, UsageError
from mirror.store import atomic
from mirror.trust import signers
from mirror.trust.keys import PublicKey
from mirror.trust.signers import Mistakes, Signer, SignersFile

SYSTEM = Path("/etc/mirror")
#: Names the file of trusted keys, as --trust does.
VARIABLE = "MIRROR_TRUST"
_SIGNERS, _REVOKED = "allowed_signers", "revoked_keys"
#: No list of keys is longer.
_MAX_BYTES = 4 * 2**20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trust:
    """Whom this machine trusts.

    signers: the keys, in the order in which they are looked up. revoked: fingerprint -> FILE:LINE.
    threshold: how many people have to sign a bundle. files: that the keys come from.
    """

    signers: tuple[Signer, ...] = ()
    revoked: Mapping[str, str] = field(default_factory=dict)
    threshold: int = 1
    files: tuple[Path, ...] = ()

    @property
    def configured(self) -> bool:
        """Whether bundles have to be signed here."""
        return bool(self.signers)


def person() -> Path:
    """The folder of the person's own settings."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "mirror"


def signers_file(chosen: Path | None = None, *, system: bool = False) -> Path:
    """The file of trusted keys to change. chosen: what --trust names. system: the machine's."""
    return _chosen(chosen) or (SYSTEM if system else person()) / _SIGNERS


def load(chosen: Path | None = None) -> Trust:
    """Whom this machine trusts now; chosen: the one file to look in, which --trust names.

    Raises TrustError for a file that cannot be relied on; nothing is trusted on the strength of the
    rest of it. Raises UsageError where the chosen file is not there, or has no key for bundles.
    """
    only = _chosen(chosen)
    usual = [folder / _SIGNERS for folder in (person(), SYSTEM)]
    mistakes: list[str] = []
    found: dict[Path, SignersFile] = {}
    for place in [only] if only else usual:
        if (file := _parsed(place, signers.parse, mistakes)) is not None:
            found[place] = file
    revoked: dict[str, str] = {}
    lists = [place.with_name(_REVOKED) for place in (*([only] if only else []), *usual)]
    for place in dict.fromkeys(lists):
        revoked = (_parsed(place, signers.parse_revoked, mistakes) or {}) | revoked
    if mistakes:
        raise TrustError(
            "whom to trust cannot be told",
            problems=mistakes,
            hint="Mend that first: until then nothing is trusted here.",
        )
    if only and not (only in found and found[only].signers):
        raise UsageError(
            f"the file of trusted keys {shown(str(only))} "
            + ("has no key for bundles" if only in found else "is not there"),
            hint=f"mirror trust add KEY.pub --trust {shown(str(only))}",
        )
    return Trust(
        signers=tuple(signer for file in found.values() for signer in file.signers),
        revoked=revoked,
        threshold=max((file.threshold or 1 for file in found.values()), default=1),
        files=tuple(found),
    )


def read_key(text: str) -> PublicKey:
    """The public key in a file, or the key itself as a .pub file has it.

    Raises UsageError for what is neither, and for a private key.
    """
    if text.startswith(("ssh-", "ecdsa-", "sk-")) and " " in text:
        return _key(text, "the key")
    place = shown(text)
    try:
        with open(text, "rb") as file:
            data = file.read(_MAX_BYTES)
    except OSError as error:
        raise UsageError(
            f"there is no public key in {place}: {error.strerror}",
            hint="Name a .pub file, or give its one line in quotes.",
        ) from None
    if b"PRIVATE KEY-----" in data:
        raise UsageError(f"{place} is a private key", hint=f"Its public half is in {place}.pub.")
    lines = data.decode("utf-8", "replace").strip().splitlines()
    if len(lines) != 1:
        raise UsageError(f"{place} holds {len(lines)} lines, not one public key")
    return _key(lines[0], place)


def add(
    place: Path, key: PublicKey, name: str, after: str | None = None, before: str | None = None
) -> Signer:
    """Trust a key, under a name; after, before: when, as `signers.parsed_time` takes them.

    Raises UsageError where the file has the key, or cannot hold what is asked for; TrustError for a
    file that is wrong already.
    """
    try:
        line = signers.written_line(name, key, after, before)
    except ValueError as error:
        raise UsageError(str(error)) from None
    old = _text(place)
    for signer in _lines_of(place, old).signers:
        if signer.key == key:
            raise UsageError(
                f"the key {key.fingerprint} is trusted already, as {shown(signer.name)}",
                problems=[signer.place],
                hint="To change its name or its time, remove it first.",
            )
    gap = "" if not old or old.endswith("\n") else "\n"
    _write(place, f"{old}{gap}{line}\n")
    return _lines_of(place, _text(place)).signers[-1]


def remove(place: Path, which: str, *, revoke: bool = False) -> list[Signer]:
    """Trust a key no longer, or none of a name's; which: a name, a fingerprint or a .pub file.

    revoke: also list the keys in `revoked_keys` beside the file. Raises UsageError for nobody's.
    """
    old = _text(place)
    known = _lines_of(place, old).signers
    keys = {signer.key.fingerprint: signer.key for signer in known}
    if which not in {*keys, *(signer.name for signer in known)} and Path(which).is_file():
        which = read_key(which).fingerprint
    gone = [signer for signer in known if which in (signer.name, signer.key.fingerprint)]
    if not gone:
        raise UsageError(
            f"{shown(which)} is not trusted in {shown(str(place))}",
            problems=[f"{shown(s.name)}  {s.key.label}" for s in known],
        )
    if revoke:  # first: a key that neither file speaks of would be trusted by another file
        _revoke(place.with_name(_REVOKED), gone)
    numbers = {int(signer.place.rpartition(":")[2]) for signer in gone}
    kept = (line for number, line in enumerate(old.split("\n"), 1) if number not in numbers)
    _write(place, "\n".join(kept))
    return gone


def any_in(place: Path) -> bool:
    """Whether the file has a key for bundles."""
    return bool(_lines_of(place, _text(place)).signers)


def require(place: Path, threshold: int) -> None:
    """Have so many people sign each bundle. Raises as `add` does."""
    old = _text(place)
    _lines_of(place, old)
    kept = [line for line in old.split("\n") if not signers.is_threshold(line)]
    _write(place, "\n".join([f"# mirror: threshold {threshold}", *kept]).rstrip("\n") + "\n")


def _revoke(place: Path, gone: Sequence[Signer]) -> None:
    old = _text(place)
    mistakes: list[str] = []
    known = _parsed(place, signers.parse_revoked, mistakes) or {}
    if mistakes:
        raise TrustError("the list of revoked keys is wrong", problems=mistakes)
    new = [signer.key.line for signer in gone if signer.key.fingerprint not in known]
    gap = "" if not old or old.endswith("\n") else "\n"
    _write(place, old + gap + "".join(f"{line}\n" for line in dict.fromkeys(new)))


def _chosen(path: Path | None) -> Path | None:
    if path is None and (named := os.environ.get(VARIABLE)):
        return Path(named)
    return path


def _key(line: str, place: str) -> PublicKey:
    try:
        return PublicKey.from_line(line)
    except ValueError as error:
        raise UsageError(f"{place}: {error}") from None


def _parsed(place: Path, parse: Callable[[bytes, str], T], mistakes: list[str]) -> T | None:
    """What a file says; None when it is not there, or is wrong: then the mistakes say how."""
    try:
        return parse(_bytes(place), shown(str(place)))
    except FileNotFoundError:
        return None
    except OSError as error:
        mistakes.append(f"{shown(str(place))} cannot be read: {error.strerror}")
    except Mistakes as error:
        mistakes += error.lines
    return None


def _bytes(place: Path) -> bytes:
    """Raises OSError, and Mistakes for a file that anybody may have changed."""
    with open(place, "rb") as file:
        if os.name == "posix" and os.fstat(file.fileno()).st_mode & stat.S_IWOTH:
            raise Mistakes([f"{shown(str(place))} can be written by everybody (chmod o-w)"])
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise Mistakes([f"{shown(str(place))} is longer than {_MAX_BYTES:,} bytes"])
    return data


def _text(place: Path) -> str:
    """What the file holds now; empty when it is not there."""
    try:
        return _bytes(place).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise MachineError(f"{shown(str(place))} cannot be read: {error.strerror}") from None
    except Mistakes as error:
        raise TrustError("the file of keys is wrong", problems=error.lines) from None


def _lines_of(place: Path, text: str) -> SignersFile:
    try:
        return signers.parse(text.encode("utf-8", "surrogateescape"), shown(str(place)))
    except Mistakes as error:
        raise TrustError("the file of trusted keys is wrong", problems=error.lines) from None


def _write(place: Path, text: str) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(place, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise MachineError(
            f"{shown(str(place))} cannot be written: {error.strerror}",
            hint="The machine's own keys (--system) are changed by root; the others are in"
            f" {shown(str(person()))}.",
        ) from None
