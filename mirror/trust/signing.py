"""Signing, with a key in a file or with one that never leaves its agent or its token.

    private.py  keys in files, used in this process by the library `cryptography`
    program.py  keys of agents and of hardware tokens, used by `ssh-keygen -Y sign`

A file's key is used through ssh-keygen too where the library is not there, as on a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mirror.core.paths import shown
from mirror.errors import UsageError
from mirror.trust import private, program, store
from mirror.trust.keys import PublicKey
from mirror.trust.private import Person
from mirror.trust.sshsig import Signature

AGENT = "agent:"


class SigningKey(Protocol):
    """A key that signs. public: its public half, known before anything is asked."""

    public: PublicKey

    def unlock(self) -> None:
        """Ask now for what signing takes, so that nothing is asked after long work."""

    def sign(self, data: bytes) -> Signature:
        """The signature over these bytes, found right. Raises UsageError, MachineError."""


def open_key(name: str, person: Person) -> SigningKey:
    """The key of that name: a file with a private or a public key, or `agent:COMMENT`.

    A public key stands for its private half in an agent or on a token; `agent:SHA256:...` names one
    by its fingerprint. Raises UsageError for what is no key, MachineError where no agent answers.
    """
    if name.startswith(AGENT):
        return program.of_agent(name.removeprefix(AGENT), person)
    place = shown(name)
    data = private.read(name, person)
    if not private.is_private(data):
        return program.ProgramKey(store.read_key(name), Path(name), person)
    public = private.public_half(data, Path(name))
    if public is not None and (public.in_hardware or not private.usable()):
        return program.ProgramKey(public, Path(name), person)
    if not private.usable():
        raise UsageError(
            f"{place} needs its public half beside it, in {place}.pub",
            hint="Without the library cryptography, mirror signs through ssh-keygen.",
        )
    return private.FileKey(data, place, public, person)
