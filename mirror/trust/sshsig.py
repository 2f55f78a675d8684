"""Signatures as `ssh-keygen -Y sign` makes them: OpenSSH's PROTOCOL.sshsig.

Several may stand one after the other in a file; `ssh-keygen -Y verify` looks at the first one. What
is signed is not the message but its hash together with a namespace, so that a signature made for
one purpose is none for another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass

from mirror.core.paths import named
from mirror.core.text import counted
from mirror.trust.keys import PublicKey, UnknownAlgorithm, WrongSignature
from mirror.trust.wire import Fields, string, uint32

#: What a bundle's signatures are made for.
NAMESPACE = "mirror-bundle"
#: No file has more; and each is checked, whoever made it.
MAX_SIGNATURES = 16
_MAGIC = b"SSHSIG"
_VERSION = 1
#: PROTOCOL.sshsig has these two and no other.
_HASHES = ("sha256", "sha512")
_BLOCK = re.compile(
    rb"-----BEGIN SSH SIGNATURE-----\r?\n([A-Za-z0-9+/=\r\n]*?)\r?\n-----END SSH SIGNATURE-----"
    rb"[\r\n]*"
)
_LINE = 70  # as ssh-keygen breaks them


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature. key: whose it says to be. value: in the binary form of the key's algorithm."""

    key: PublicKey
    namespace: str
    hash: str
    value: bytes

    def require(self, message: bytes) -> None:
        """Raises WrongSignature unless it is the key's over this message, for bundles.

        Raises UnknownAlgorithm where that cannot be checked here.
        """
        if self.namespace != NAMESPACE:
            raise WrongSignature(
                f"it was made for the namespace {named(self.namespace)}, not for {NAMESPACE}"
            )
        if self.hash not in _HASHES:
            raise UnknownAlgorithm(f"the hash {named(self.hash)} is not one that mirror checks")
        self.key.require(signed_bytes(message, self.hash), self.value)

    @property
    def blob(self) -> bytes:
        """Its binary form."""
        parts = (self.key.blob, self.namespace.encode(), b"", self.hash.encode(), self.value)
        return _MAGIC + uint32(_VERSION) + b"".join(map(string, parts))

    @property
    def armoured(self) -> bytes:
        """As text between two lines, exactly as ssh-keygen writes it."""
        text = base64.b64encode(self.blob)
        lines = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
        return b"\n".join(
            [b"-----BEGIN SSH SIGNATURE-----", *lines, b"-----END SSH SIGNATURE-----", b""]
        )


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A signature of a form that is not known here; why says which."""

    why: str


def signed_bytes(message: bytes, hash_name: str = "sha512") -> bytes:
    """What a key signs in place of the message."""
    digest = hashlib.new(hash_name, message).digest()
    parts = (NAMESPACE.encode(), b"", hash_name.encode(), digest)
    return _MAGIC + b"".join(map(string, parts))


def read(data: bytes) -> list[Signature | Unreadable]:
    """The signatures in a file, in its order; none in an empty one.

    Raises WrongSignature for anything else than whole signatures, one after the other.
    """
    found: list[Signature | Unreadable] = []
    at = 0
    while at < len(data):
        if len(found) == MAX_SIGNATURES:
            raise WrongSignature(f"it holds more than {counted(MAX_SIGNATURES, 'signature')}")
        block = _BLOCK.match(data, at)
        if block is None:
            where = f" from byte {at:,} on" if at else ""
            raise WrongSignature(f"it is no SSH signature{where}")
        at = block.end()
        try:
            blob = base64.b64decode(re.sub(rb"[\r\n]", b"", block[1]), validate=True)
            found.append(_parsed(blob))
        except UnknownAlgorithm as error:
            found.append(Unreadable(str(error)))
        except (binascii.Error, ValueError) as error:
            raise WrongSignature(f"it is no SSH signature: {error}") from None
    return found


def _parsed(blob: bytes) -> Signature:
    fields = Fields(blob)
    if fields.take(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin as one")
    if (version := fields.uint32()) != _VERSION:
        raise UnknownAlgorithm(f"version {version} of SSH signatures is not one that mirror checks")
    key = PublicKey.from_blob(fields.string())
    namespace = fields.string().decode("utf-8", "backslashreplace")
    fields.string()  # reserved: to be ignored
    hash_name, value = fields.text(), fields.string()
    fields.end()
    return Signature(key, namespace, hash_name, value)
