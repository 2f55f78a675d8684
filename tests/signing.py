"""Keys and signatures made by OpenSSH itself, and those of hardware tokens that are not here."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils

from mirror.errors import UsageError
from mirror.trust.keys import PublicKey
from mirror.trust.private import Person
from mirror.trust.sshsig import NAMESPACE, Signature
from mirror.trust.wire import mpint, string, uint32

INDEX = b'{"an":"index"}\n'


class Signing(Protocol):
    """A key that signs."""

    public: PublicKey

    def sign(self, data: bytes, namespace: str = NAMESPACE, hash_name: str = "sha512") -> bytes:
        """The signature in its armour."""


@dataclass(frozen=True)
class Key:
    """A pair of files that ssh-keygen made."""

    path: Path
    public: PublicKey

    @property
    def half(self) -> Path:
        """The public one."""
        return self.path.with_name(f"{self.path.name}.pub")

    def sign(self, data: bytes, namespace: str = NAMESPACE, hash_name: str = "sha512") -> bytes:
        """As ssh-keygen signs."""
        command = ["ssh-keygen", "-Y", "sign", "-n", namespace, "-f", str(self.path)]
        return run([*command, "-O", f"hashalg={hash_name}"], data).stdout


def ssh_keygen() -> str:
    """The program; without it the test says so."""
    found = shutil.which("ssh-keygen")
    if found is None:
        pytest.skip("ssh-keygen is not installed (Debian: openssh-client)")
    return found


def run(
    command: Sequence[str], data: bytes = b"", code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """Run a program of OpenSSH and check its exit code."""
    ssh_keygen()
    done = subprocess.run(command, input=data, capture_output=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done


def make(path: Path, kind: str = "ed25519", passphrase: str = "", *more: str) -> Key:
    """A key pair made by ssh-keygen, with the file's name as its comment."""
    run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path), *more])
    return Key(path, PublicKey.from_line(Path(f"{path}.pub").read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Token:
    """A key as a hardware token has it, and what the token would sign: PROTOCOL.u2f."""

    private: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
    public: PublicKey
    flags: int = 1

    def sign(self, data: bytes, namespace: str = NAMESPACE, hash_name: str = "sha512") -> bytes:
        """What ssh-keygen would write, had the token signed."""
        digest = hashlib.new(hash_name, data).digest()
        parts = (namespace.encode(), b"", hash_name.encode(), digest)
        message = b"SSHSIG" + b"".join(map(string, parts))
        after = bytes([self.flags]) + uint32(7)
        signed = hashlib.sha256(b"ssh:").digest() + after + hashlib.sha256(message).digest()
        if isinstance(self.private, ed25519.Ed25519PrivateKey):
            value = self.private.sign(signed)
        else:
            r, s = utils.decode_dss_signature(self.private.sign(signed, ec.ECDSA(hashes.SHA256())))
            value = mpint(r) + mpint(s)
        whole = string(self.public.kind.encode()) + string(value) + after
        return Signature(self.public, namespace, hash_name, whole).armoured


def token_ed25519(flags: int = 1) -> Token:
    """A token's key of the kind sk-ssh-ed25519@openssh.com."""
    private = ed25519.Ed25519PrivateKey.generate()
    raw = private.public_key().public_bytes(
        serialization.Encoding.Raw, serialization.PublicFormat.Raw
    )
    kind = b"sk-ssh-ed25519@openssh.com"
    blob = b"".join(map(string, (kind, raw, b"ssh:")))
    return Token(private, PublicKey.from_blob(blob, "token"), flags)


def token_ecdsa(flags: int = 1) -> Token:
    """A token's key of the kind sk-ecdsa-sha2-nistp256@openssh.com."""
    private = ec.generate_private_key(ec.SECP256R1())
    point = private.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    kind = b"sk-ecdsa-sha2-nistp256@openssh.com"
    blob = b"".join(map(string, (kind, b"nistp256", point, b"ssh:")))
    return Token(private, PublicKey.from_blob(blob, "token"), flags)


def armoured_kind(kind: str) -> bytes:
    """A signature with a key of a kind that is not known yet."""
    key = string(string(kind.encode()) + string(bytes(99)))
    rest = b"".join(map(string, (NAMESPACE.encode(), b"", b"sha512", bytes(99))))
    text = base64.encodebytes(b"SSHSIG" + uint32(1) + key + rest)
    return b"-----BEGIN SSH SIGNATURE-----\n" + text + b"-----END SSH SIGNATURE-----\n"


def openssh_agrees(folder: Path, key: PublicKey, data: bytes, signature: bytes) -> bool:
    """Whether `ssh-keygen -Y verify` takes the signature, as that of the one key that it trusts."""
    ssh_keygen()
    (folder / "signers").write_text(
        f'alice namespaces="{NAMESPACE}" {key.line}\n', encoding="utf-8"
    )
    (folder / "signature").write_bytes(signature)
    command = ["ssh-keygen", "-Y", "verify", "-n", NAMESPACE, "-I", "alice"]
    command += ["-f", str(folder / "signers"), "-s", str(folder / "signature")]
    done = subprocess.run(command, input=data, capture_output=True, timeout=120, check=False)
    assert done.returncode in (0, 255), done.stderr
    return done.returncode == 0


def nobody() -> Person:
    """A person who is not there."""

    def ask(what: str) -> str:
        raise UsageError(f"nobody can be asked: {what}")

    return Person(ask, lambda text: None)


def knows(*passphrases: str) -> Person:
    """A person who gives these answers, one after the other."""
    answers = iter(passphrases)
    return Person(lambda what: next(answers), lambda text: None)


def clean_environment(folder: Path) -> dict[str, str]:
    """The environment of a person without settings, agent or terminal prompts of her own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SSH_", "MIRROR_", "XDG_"))}
    return kept | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
