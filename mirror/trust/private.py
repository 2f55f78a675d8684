"""Private keys in files: making them, and signing with them in this process.

A passphrase comes from a terminal and stays in memory; neither it nor a key is ever in an argument,
a variable of the environment, a message or another file.
"""

from __future__ import annotations

import base64
import binascii
import getpass
import os
import platform
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.core.paths import shown
from mirror.errors import MachineError, TrustError, UsageError
from mirror.trust import sshsig
from mirror.trust.keys import PublicKey, UnknownAlgorithm, WrongSignature
from mirror.trust.sshsig import NAMESPACE, Signature
from mirror.trust.wire import Fields, mpint, string

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

_MAX_KEY_BYTES = 2**20
_OPENSSH = re.compile(
    rb"-----BEGIN OPENSSH PRIVATE KEY-----\s+([A-Za-z0-9+/=\s]+)-----END OPENSSH PRIVATE KEY-----"
)
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Person:
    """Who sits at the terminal.

    ask: a passphrase for what the text names; raises UsageError where nobody can be asked.
    tell: something to be done now, such as to touch a token.
    """

    ask: Callable[[str], str]
    tell: Callable[[str], None]


def usable() -> bool:
    """Whether the library is here that signs with keys in files."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        return False
    return True


def read(name: str, person: Person) -> bytes:
    """What a key's file holds; the person is told where others can read a private key."""
    place = shown(name)
    try:
        with open(name, "rb") as file:
            data, mode = file.read(_MAX_KEY_BYTES), os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise UsageError(
            f"the key {place} cannot be read: {error.strerror}", hint="mirror keygen makes one."
        ) from None
    if os.name == "posix" and is_private(data) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        person.tell(f"{place} can be read by others; make it private: chmod 600 {place}")
    return data


def is_private(data: bytes) -> bool:
    """Whether a file holds a private key."""
    return b"PRIVATE KEY-----" in data


def make_key(path: Path, passphrase: str | None, comment: str) -> PublicKey:
    """Make a key pair of Ed25519, `path` (mode 0600) and `path`.pub, durable.

    passphrase: what the private half is encrypted with; None for not at all. Returns the public
    half. Raises UsageError where a file is there, MachineError where none can be written.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    require_possible(path)
    half = _half(path)
    private = Ed25519PrivateKey.generate()
    public = _of_library(private, comment)
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase.encode())
    data = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, encryption
    )
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(half, f"{public.line}\n".encode(), 0o644)
        try:
            _create(path, data, 0o600)
        except OSError:
            half.unlink()
            raise
    except OSError as error:
        raise MachineError(f"{shown(str(path))} cannot be written: {error.strerror}") from None
    return public


def require_possible(path: Path) -> None:
    """Raises UsageError where a new key would be written over something.

    Raises MachineError where the library is not there that makes keys.
    """
    if not usable():
        raise MachineError(
            "keys are made by the library cryptography, which is not installed here",
            hint=f"ssh-keygen makes one that does as well: ssh-keygen -t ed25519 -f {path}",
        )
    for file in (path, _half(path)):
        if os.path.lexists(file):
            raise UsageError(
                f"{shown(str(file))} is there; keys are never written over",
                hint="Name another file with --out, or remove that one if nothing needs it.",
            )


def usual_comment() -> str:
    """USER@HOST, as ssh-keygen has it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "mirror"
    return f"{user}@{platform.node() or 'localhost'}"


def _half(path: Path) -> Path:
    return path.with_name(f"{path.name}.pub")


def _create(path: Path, data: bytes, mode: int) -> None:
    """A file that was not there, with this mode from its first moment on; durable."""
    descriptor = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode
    )
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class FileKey:
    """A private key in a file: it signs in this process."""

    def __init__(self, data: bytes, place: str, public: PublicKey | None, person: Person) -> None:
        self._data = data
        self._place = place
        self._person = person
        self._private: PrivateKeyTypes | None = None
        if public is None:
            self.unlock()
            assert self._private is not None  # noqa: S101 -- unlocked
            public = _of_library(self._private, "")
        self.public = public

    def unlock(self) -> None:
        """As SigningKey has it."""
        if self._private is None:
            self._private = self._loaded()

    def sign(self, data: bytes) -> Signature:
        """As SigningKey has it."""
        self.unlock()
        assert self._private is not None  # noqa: S101 -- unlocked
        value = _signed(self._private, self.public, sshsig.signed_bytes(data))
        return checked(Signature(self.public, NAMESPACE, "sha512", value), self.public, data)

    def _loaded(self) -> PrivateKeyTypes:
        for attempt in range(_ATTEMPTS + 1):
            passphrase = self._person.ask(f"Passphrase of {self._place}") if attempt else None
            try:
                return self._load(passphrase.encode() if passphrase is not None else None)
            except TypeError:  # a passphrase is needed, which none was given for
                continue
            except ValueError:
                if passphrase is None:
                    break
        else:
            raise UsageError(f"that is not the passphrase of {self._place}")
        raise UsageError(f"{self._place} is no private key that mirror can read")

    def _load(self, passphrase: bytes | None) -> PrivateKeyTypes:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization

        load = serialization.load_pem_private_key
        if _OPENSSH.search(self._data):
            load = serialization.load_ssh_private_key
        try:
            return load(self._data, passphrase)
        except UnsupportedAlgorithm as error:
            raise UsageError(f"{self._place} cannot be used: {shown(str(error))}") from None


def _signed(private: PrivateKeyTypes, public: PublicKey, message: bytes) -> bytes:
    """The message's signature in SSH's binary form."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

    if isinstance(private, ed25519.Ed25519PrivateKey):
        return string(public.kind.encode()) + string(private.sign(message))
    if isinstance(private, rsa.RSAPrivateKey):
        value = private.sign(message, padding.PKCS1v15(), hashes.SHA512())
        return string(b"rsa-sha2-512") + string(value)
    assert isinstance(private, ec.EllipticCurvePrivateKey)  # noqa: S101 -- PublicKey knows the kinds
    sizes = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}
    value = private.sign(message, ec.ECDSA(sizes[private.curve.key_size]))
    r, s = utils.decode_dss_signature(value)
    return string(public.kind.encode()) + string(mpint(r) + mpint(s))


def _of_library(private: PrivateKeyTypes, comment: str) -> PublicKey:
    """The public half of a key that the library has read."""
    from cryptography.hazmat.primitives import serialization

    try:
        line = private.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        return PublicKey.from_line(f"{line.decode()} {comment}")
    except (UnknownAlgorithm, ValueError, AttributeError) as error:
        raise UsageError(f"mirror signs with no such key: {shown(str(error))}") from None


def public_half(data: bytes, path: Path) -> PublicKey | None:
    """The public half of a private key: in OpenSSH's form it stands in front, never encrypted."""
    found = _OPENSSH.search(data)
    if found:
        try:
            fields = Fields(base64.b64decode(found[1]))
            if fields.take(15) == b"openssh-key-v1\0":
                for _ in range(3):  # cipher, key derivation and its parameters
                    fields.string()
                if fields.uint32() == 1:
                    return PublicKey.from_blob(fields.string())
        except UnknownAlgorithm as error:
            raise UsageError(f"mirror signs with no such key: {error}") from None
        except (binascii.Error, ValueError):
            return None
    try:
        return PublicKey.from_line(_half(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def checked(signature: Signature, public: PublicKey, data: bytes) -> Signature:
    """The signature, after it was checked as a server will."""
    try:
        signature.require(data)
    except (WrongSignature, UnknownAlgorithm) as error:
        raise _wrong(public, str(error)) from None
    if signature.key != public:
        raise _wrong(public, f"it is by {signature.key.label}")
    return signature


def _wrong(public: PublicKey, why: str) -> TrustError:
    return TrustError(
        f"the signature that was made with {public.label} is not right: {why}",
        hint="Does the file's public half belong to its private half?",
    )
