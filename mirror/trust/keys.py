"""SSH public keys: read from text or binary, named by fingerprint, asked about a signature.

The kinds are those with which `ssh-keygen -Y sign` makes signatures, keys on hardware tokens (sk-*)
among them. Their binary forms: RFC 4253 (RSA), RFC 5656 (ECDSA), RFC 8709 (Ed25519) and OpenSSH's
PROTOCOL.u2f (sk-*). A key has exactly one spelling here, so equal bytes are equal keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mirror.core.paths import named
from mirror.trust import curves
from mirror.trust.wire import Fields

#: RSA: fewer bits are too weak, more only cost time; no key in use has a larger exponent.
_RSA_BITS = range(2048, 16384 + 1)
_RSA_MAX_EXPONENT = 2**33
#: RFC 8017, section 9.2: what stands in front of a hash in a signature of RSA.
_DIGEST_INFO = {
    "sha256": bytes.fromhex("3031300d060960864801650304020105000420"),
    "sha512": bytes.fromhex("3051300d060960864801650304020305000440"),
}
_RSA_HASHES = {"rsa-sha2-256": "sha256", "rsa-sha2-512": "sha512"}
#: PROTOCOL.u2f: the token saw somebody touch it.
_USER_PRESENT = 0x01


class WrongSignature(ValueError):  # noqa: N818 -- said of the signature, as ValueError is of a value
    """The signature is not this key's over this message, or of no form that this key makes."""


class UnknownAlgorithm(ValueError):  # noqa: N818
    """A kind of key or signature that is not checked here; the message names it."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key. kind: as SSH names it. blob: its binary form. comment: what its file says."""

    kind: str
    blob: bytes
    comment: str = field(default="", compare=False)

    @classmethod
    def from_blob(cls, blob: bytes, comment: str = "") -> PublicKey:
        """The key in its binary form.

        Raises UnknownAlgorithm for a kind that is not checked here, ValueError for what is no key.
        """
        fields = Fields(blob)
        kind = fields.text()
        if kind not in _KINDS:
            raise UnknownAlgorithm(_unknown(kind))
        _KINDS[kind].read(fields)
        fields.end()
        return cls(kind, blob, comment)

    @classmethod
    def from_line(cls, line: str) -> PublicKey:
        """The key as a .pub file has it: kind, base64, comment. Raises as `from_blob` does."""
        words = line.strip().split(None, 2)
        if len(words) < 2:
            raise ValueError("it is no public key: KIND BASE64 COMMENT is the form")
        kind, text, comment = (*words, "")[:3]
        if kind not in _KINDS and re.fullmatch(r"[a-z0-9.@-]*(ssh|ecdsa|sk)-[a-z0-9.@-]+", kind):
            raise UnknownAlgorithm(_unknown(kind))
        try:
            blob = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("it is no public key: its second word is not base64") from None
        key = cls.from_blob(blob, comment)
        if key.kind != kind:
            raise ValueError(f"it says {named(kind)} and holds a key of the kind {key.kind}")
        return key

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -l` prints it: SHA256:..."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode()
        return f"SHA256:{digest.rstrip('=')}"

    @property
    def line(self) -> str:
        """As a .pub file has it, without the line feed."""
        text = base64.b64encode(self.blob).decode()
        return f"{self.kind} {text} {self.comment}".rstrip()

    @property
    def label(self) -> str:
        """Kind for people, and fingerprint."""
        return f"{_KINDS[self.kind].label} {self.fingerprint}"

    @property
    def in_hardware(self) -> bool:
        """Whether the private half never leaves a token."""
        return self.kind.startswith("sk-")

    def require(self, message: bytes, signature: bytes) -> None:
        """Raises WrongSignature unless the signature (binary) is this key's over the message.

        Raises UnknownAlgorithm for a way of signing that is not checked here.
        """
        try:
            fields = Fields(signature)
            algorithm = fields.text()
            kind = _KINDS[self.kind]
            if algorithm not in kind.algorithms:
                what = f"{named(algorithm)}, by a key of the kind {self.kind}"
                raise UnknownAlgorithm(f"the algorithm {what}, is not one that mirror checks")
            key = Fields(self.blob)
            key.text()
            right = kind.check(kind.read(key), algorithm, message, fields)
        except UnknownAlgorithm:
            raise
        except WrongSignature:
            raise
        except ValueError as error:
            raise WrongSignature(f"the signature is malformed: {error}") from None
        if not right:
            raise WrongSignature("the signature is not over these bytes")


# -- the kinds ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Values:
    """What a public key consists of: of which each kind has its own."""

    raw: bytes = b""
    curve: str = ""
    point: tuple[int, int] = (0, 0)
    modulus: int = 0
    exponent: int = 0
    application: bytes = b""


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a kind of key is read, and how its signatures are checked, once their algorithm is read.

    check: takes the key, the algorithm, the message and the signature's fields.
    """

    label: str
    algorithms: tuple[str, ...]
    read: Callable[[Fields], _Values]
    check: Callable[[_Values, str, bytes, Fields], bool]


def _read_ed25519(fields: Fields) -> _Values:
    raw = fields.string()
    if not curves.is_ed25519(raw):
        raise ValueError("it is no key of Ed25519")
    return _Values(raw=raw)


def _check_ed25519(key: _Values, algorithm: str, message: bytes, fields: Fields) -> bool:
    signature = fields.string()
    fields.end()
    return curves.ed25519(key.raw, message, signature)


def _read_ecdsa(fields: Fields) -> _Values:
    name, point = fields.text(), fields.string()
    curve = curves.CURVES.get(name)
    if curve is None or len(point) != 1 + 2 * curve.size or point[0] != 4:
        raise ValueError("it is no key of ECDSA")
    x, y = (int.from_bytes(half, "big") for half in (point[1:][: curve.size], point[-curve.size :]))
    if not curves.on_curve(curve, (x, y)):
        raise ValueError("its point is not on the curve")
    return _Values(curve=name, point=(x, y))


def _check_ecdsa(key: _Values, algorithm: str, message: bytes, fields: Fields) -> bool:
    pair = Fields(fields.string())
    r, s = pair.mpint(), pair.mpint()
    pair.end()
    fields.end()
    return curves.ecdsa(curves.CURVES[key.curve], key.point, message, r, s)


def _read_rsa(fields: Fields) -> _Values:
    exponent, modulus = fields.mpint(), fields.mpint()
    if modulus.bit_length() not in _RSA_BITS:
        bits = f"{_RSA_BITS[0]:,} to {_RSA_BITS[-1]:,}"
        raise ValueError(f"it is a key of RSA of {modulus.bit_length():,} bits, not of {bits}")
    if not (3 <= exponent < _RSA_MAX_EXPONENT and exponent & 1 and modulus & 1):
        raise ValueError("it is no key of RSA")
    return _Values(exponent=exponent, modulus=modulus)


def _check_rsa(key: _Values, algorithm: str, message: bytes, fields: Fields) -> bool:
    """RFC 8017, section 8.2.2: what was padded is computed and compared, not parsed."""
    data = fields.string()
    fields.end()
    signature = int.from_bytes(data, "big")
    size = (key.modulus.bit_length() + 7) // 8
    name = _RSA_HASHES[algorithm]
    tail = b"\0" + _DIGEST_INFO[name] + hashlib.new(name, message).digest()
    padded = b"\0\1" + b"\xff" * (size - 2 - len(tail)) + tail
    found = pow(signature, key.exponent, key.modulus)
    return len(data) <= size and signature < key.modulus and found.to_bytes(size, "big") == padded


def _read_token(read: Callable[[Fields], _Values]) -> Callable[[Fields], _Values]:
    def with_application(fields: Fields) -> _Values:
        key = read(fields)
        return _Values(key.raw, key.curve, key.point, application=fields.string())

    return with_application


def _token_message(key: _Values, message: bytes, fields: Fields) -> bytes:
    """What a token has signed in place of the message: with its flags and its counter."""
    flags, counter = fields.take(1), fields.take(4)
    fields.end()
    if not flags[0] & _USER_PRESENT:
        raise WrongSignature("nobody touched the hardware token that signed")
    application, digest = (hashlib.sha256(data).digest() for data in (key.application, message))
    return application + flags + counter + digest


def _check_token_ed25519(key: _Values, algorithm: str, message: bytes, fields: Fields) -> bool:
    signature = fields.string()
    return curves.ed25519(key.raw, _token_message(key, message, fields), signature)


def _check_token_ecdsa(key: _Values, algorithm: str, message: bytes, fields: Fields) -> bool:
    pair = Fields(fields.string())
    r, s = pair.mpint(), pair.mpint()
    pair.end()
    curve = curves.CURVES[key.curve]
    return curves.ecdsa(curve, key.point, _token_message(key, message, fields), r, s)


def _kinds() -> Mapping[str, _Kind]:
    ed25519, token25519 = "ssh-ed25519", "sk-ssh-ed25519@openssh.com"
    token256 = "sk-ecdsa-sha2-nistp256@openssh.com"
    found = {
        ed25519: _Kind("ED25519", (ed25519,), _read_ed25519, _check_ed25519),
        token25519: _Kind(
            "ED25519-SK", (token25519,), _read_token(_read_ed25519), _check_token_ed25519
        ),
        token256: _Kind(
            "ECDSA-SK", (token256,), _read_token(_read_curve("nistp256")), _check_token_ecdsa
        ),
        "ssh-rsa": _Kind("RSA", tuple(_RSA_HASHES), _read_rsa, _check_rsa),
    }
    for curve in curves.CURVES:
        name = f"ecdsa-sha2-{curve}"
        found[name] = _Kind("ECDSA", (name,), _read_curve(curve), _check_ecdsa)
    return found


def _read_curve(name: str) -> Callable[[Fields], _Values]:
    """Of a kind that names the curve; the key names it again."""

    def read(fields: Fields) -> _Values:
        key = _read_ecdsa(fields)
        if key.curve != name:
            raise ValueError("its curve is not that of its kind")
        return key

    return read


def _unknown(kind: str) -> str:
    if "-cert-" in kind:
        return f"{named(kind)} is a certificate, and mirror trusts keys only"
    return f"keys of the kind {named(kind)} are none that mirror checks"


_KINDS = _kinds()
