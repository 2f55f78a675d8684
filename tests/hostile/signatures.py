"""A machine that trusts somebody, and bundles that nobody trusted has signed: a row for each."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from mirror import install
from mirror.bundle import beside, layout
from mirror.core.progress import Quiet
from mirror.errors import MirrorError, TrustError
from mirror.planning import Wish
from mirror.store.generations import Root
from mirror.trust import sshsig, store
from tests import bundles
from tests import signing as made
from tests.signing import Key

FILES = {
    "files/a": b"hello\n",
    "files/b": random.Random(1).randbytes(70_000),
    # A key that comes with the bundle, at every place where somebody might look for one.
    "files/allowed_signers": b"",
    "files/revoked_keys": b"",
    "allowed_signers": b"",
}


def tar_of(bundle: Path) -> bytes:
    """The tar inside the framing."""
    return gzip.decompress(bundle.read_bytes())


class Case:
    """A machine that trusts alice, and whatever is sent to it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        patch.delenv("MIRROR_TRUST", raising=False)
        patch.setattr(store, "SYSTEM", folder / "etc")
        self.alice, self.mallory = (made.make(folder / name) for name in ("alice", "mallory"))
        theirs = f"alice {self.mallory.public.line}\n".encode()
        files = {path: data or theirs for path, data in FILES.items()}
        self.made = bundles.sources(folder / "in", files)
        self.index = self.made.index.to_bytes()
        self.bundle = folder / "b.tar.gz"
        self.root = Root(folder / "root")
        self.trust(self.alice, "alice")

    def trust(self, key: Key, name: str, **time: str) -> None:
        store.add(store.signers_file(), key.public, name, **time)

    def untrust(self, *, revoke: bool = False) -> None:
        store.remove(store.signers_file(), "alice", revoke=revoke)

    def send(self, signature: bytes, index: bytes | None = None) -> None:
        """A bundle with that signature; index: in place of its own."""
        head = layout.head(index or self.index, signature)
        right = layout.head(self.index, b"")
        replace(self.made, signature=b"").pack(self.bundle)
        tail = tar_of(self.bundle)[len(right) :]
        self.bundle.write_bytes(bundles.framed(head + tail))

    def install(self) -> None:
        install.install([str(self.bundle)], self.root, Wish(), Quiet())

    def refused(self, kind: type[MirrorError] = TrustError) -> str:
        """Assert that it is not installed, nor is anything written; returns what is said."""
        with pytest.raises(kind) as caught:
            self.install()
        assert type(caught.value) is kind
        assert not self.root.path.exists()
        assert all(line.isprintable() for line in str(caught.value).splitlines())
        return str(caught.value)


# -- each row of what has to be refused ----------------------------------------------------------

Row: TypeAlias = Callable[[Case], None]


def unsigned(case: Case) -> None:
    case.send(b"")


def wrong_key(case: Case) -> None:
    case.send(case.mallory.sign(case.index))


def other_namespace(case: Case) -> None:
    case.send(case.alice.sign(case.index, namespace="file"))


def index_byte(case: Case) -> None:
    changed = case.index.replace(b'"version":"1"', b'"version":"2"')
    assert len(changed) == len(case.index)
    case.send(case.alice.sign(case.index), changed)


def index_not_first(case: Case) -> None:
    case.send(case.alice.sign(case.index))
    extra = layout.member_header("files/extra", 0, 0o644)
    case.bundle.write_bytes(bundles.framed(extra + tar_of(case.bundle)))


def signature_first(case: Case) -> None:
    signature = case.alice.sign(case.index)
    case.send(signature)
    tar = tar_of(case.bundle)
    cut = 512 + len(case.index) + layout.padding(len(case.index))
    end = len(layout.head(case.index, signature))
    case.bundle.write_bytes(bundles.framed(tar[cut:end] + tar[:cut] + tar[end:]))


def key_inside(case: Case) -> None:
    """The bundle names its own signer as trusted; nobody asks it."""
    case.send(case.mallory.sign(case.index))


def expired(case: Case) -> None:
    case.untrust()
    case.trust(case.alice, "alice", before="20200101")
    case.send(case.alice.sign(case.index))


def not_yet(case: Case) -> None:
    case.untrust()
    case.trust(case.alice, "alice", after="20991231")
    case.send(case.alice.sign(case.index))


def revoked(case: Case) -> None:
    revoked = store.signers_file().with_name("revoked_keys")
    revoked.write_text(f"{case.alice.public.line}\n", encoding="utf-8")
    case.send(case.alice.sign(case.index))


def another_index(case: Case) -> None:
    case.send(case.alice.sign(case.index.replace(b'"version":"1"', b'"version":"0"')))


def garbage(case: Case) -> None:
    case.send(b"-----BEGIN SSH SIGNATURE-----\n!!!!\n-----END SSH SIGNATURE-----\n")


def binary(case: Case) -> None:
    case.send(random.Random(2).randbytes(60_000))


def text_after(case: Case) -> None:
    case.send(case.alice.sign(case.index) + b"and more\n")


def too_many(case: Case) -> None:
    case.send(case.alice.sign(case.index) * 17)


def twice_one_key(case: Case) -> None:
    store.require(store.signers_file(), 2)
    case.trust(case.mallory, "bob")
    case.send(case.alice.sign(case.index) * 2)


def unknown_kind(case: Case) -> None:
    case.send(made.armoured_kind("ssh-mldsa87"))


def unknown_hash(case: Case) -> None:
    text = case.alice.sign(case.index)
    [found] = sshsig.read(text)
    assert isinstance(found, sshsig.Signature)
    case.send(replace(found, hash="sha999").armoured)


def untouched_token(case: Case) -> None:
    token = made.token_ed25519(flags=0)
    store.add(store.signers_file(), token.public, "token")
    case.send(token.sign(case.index))


def certificate(case: Case) -> None:
    with open(store.signers_file(), "a", encoding="utf-8") as file:
        file.write(f"* cert-authority {case.mallory.public.line}\n")
    case.send(case.mallory.sign(case.index))


def long_beside(case: Case) -> None:
    case.send(case.alice.sign(case.index))
    beside.path(case.bundle).write_bytes(case.alice.sign(case.index) * 40_000)
    assert beside.path(case.bundle).stat().st_size > 10**7


def wrong_beside(case: Case) -> None:
    case.send(case.alice.sign(case.index))
    beside.path(case.bundle).write_bytes(case.alice.sign(b"another"))


def hostile_names(case: Case) -> None:
    case.send(case.alice.sign(case.index, namespace="\x1b[2J\u202efile"))


def endless_names(case: Case) -> None:
    """What the signature says of itself is printed, and only the front of it."""
    case.send(case.alice.sign(case.index, namespace="n" * 40_000))


ROWS: dict[Row, str] = {
    unsigned: "is not signed, and keys are trusted here",
    wrong_key: "nobody here trusts its key",
    other_namespace: "made for the namespace file, not for mirror-bundle",
    index_byte: "the signature is not over these bytes",
    index_not_first: "does not begin with an index",
    signature_first: "does not begin with an index",
    key_inside: "nobody here trusts its key",
    expired: "its key was valid until 20",
    not_yet: "its key is not valid before 20",
    revoked: "its key is revoked",
    another_index: "the signature is not over these bytes",
    garbage: "it is no SSH signature",
    binary: "it is no SSH signature",
    text_after: "it is no SSH signature from byte",
    too_many: "more than 16 signatures",
    twice_one_key: "2 people must sign, 1 did",
    unknown_kind: "keys of the kind ssh-mldsa87 are none that mirror checks",
    unknown_hash: "the hash sha999 is not one that mirror checks",
    untouched_token: "nobody touched the hardware token",
    certificate: "is a certificate authority; mirror trusts keys",
    long_beside: "is no signature: it is longer than 65,536 bytes",
    wrong_beside: "the signature is not over these bytes",
    endless_names: f"made for the namespace {'n' * 300}..., not for",
    hostile_names: "made for the namespace \\x1b[2J\\u202efile",
}
