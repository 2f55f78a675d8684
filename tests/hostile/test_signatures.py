"""Bundles that nobody trusted has signed: each is refused before anything in it is looked at."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from mirror import install
from mirror.bundle import beside, layout
from mirror.bundle.reader import Reader
from mirror.core import index as indexes
from mirror.core.progress import Quiet
from mirror.errors import BundleError, MirrorError, TrustError
from mirror.planning import Wish
from mirror.store.generations import Root
from mirror.trust import sshsig, store
from mirror.trust.judging import judge_here
from tests import bundles
from tests import signing as made
from tests.signing import Key

CHECKOUT = Path(__file__).resolve().parents[2]
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


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    return Case(tmp_path, monkeypatch)


def test_the_case_is_right_but_for_what_each_test_spoils(case: Case) -> None:
    case.made = bundles.sources(case.folder / "in", {"files/a": b"hello\n"})
    case.index = case.made.index.to_bytes()
    case.send(case.alice.sign(case.index))
    case.install()
    assert case.root.current().number == 1


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
    hostile_names: "made for the namespace \\x1b[2J\\u202efile",
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_it_is_not_trusted(case: Case, row: Row) -> None:
    row(case)
    assert ROWS[row] in case.refused()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_the_command_ends_with_exit_code_6(case: Case, row: Row) -> None:
    row(case)
    done = mirror(case, "install", str(case.bundle), "--root", str(case.root.path))
    assert done.returncode == 6, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == 6
    assert error["hint"] or row is certificate
    assert ROWS[row] in "\n".join([error["message"], *error["problems"]])
    assert "Traceback" not in done.stderr
    assert not case.root.path.exists()


def mirror(case: Case, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = made.clean_environment(case.folder)
    return subprocess.run(
        [sys.executable, "-m", "mirror", *arguments, "--json"],
        env=environment | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# -- through a pipe, and looked at ---------------------------------------------------------------


@pytest.mark.parametrize("row", [unsigned, wrong_key, index_byte, index_not_first])
def test_a_stream_is_no_other(case: Case, row: Row) -> None:
    row(case)
    judge = judge_here(demand=True)
    with bundles.stream(case.bundle.read_bytes()) as file, pytest.raises(TrustError):
        Reader.open(file, judge)


@pytest.mark.parametrize("row", [unsigned, wrong_key, expired, revoked, unknown_kind])
def test_inspect_shows_what_it_is_and_that_it_is_not_trusted(case: Case, row: Row) -> None:
    row(case)
    done = mirror(case, "inspect", str(case.bundle))
    assert done.returncode == 0, done.stderr
    trust: Any = json.loads(done.stdout)["trust"]
    assert (trust["configured"], trust["trusted"], trust["signers"]) == (True, False, [])


@pytest.mark.parametrize("row", [other_namespace, index_byte, garbage, wrong_beside])
def test_inspect_refuses_what_is_signed_wrongly(case: Case, row: Row) -> None:
    row(case)
    assert mirror(case, "inspect", str(case.bundle)).returncode == 6


# -- before the index is looked at ---------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [b"[" * 200_000, b"{}\n", b'{"format":2}\n', b"\xff", b'{"a":NaN}', b'{"a":1,"a":1}', b""],
)
@pytest.mark.parametrize("signed", [False, True])
def test_nothing_of_an_index_is_parsed_that_nobody_trusted_has_signed(
    case: Case, index: bytes, signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = case.mallory.sign(index) if signed else b""
    case.bundle.write_bytes(bundles.framed(layout.head(index, signature) + layout.END))

    def parse(data: bytes) -> indexes.Index:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(indexes, "parse", parse)
    case.refused()


def test_an_index_that_is_wrong_and_rightly_signed_is_damage(case: Case) -> None:
    index = b'{"format":1}\n'
    head = layout.head(index, case.alice.sign(index))
    case.bundle.write_bytes(bundles.framed(head + layout.END))
    case.refused(BundleError)


def test_a_signature_member_of_10_mb_is_not_read(case: Case) -> None:
    signature = case.alice.sign(case.index) * 40_000
    case.send(signature)
    said = case.refused(BundleError)
    assert f"is {len(signature):,} bytes long; at most 65,536 are read" in said


# -- what is no fault ----------------------------------------------------------------------------


def test_the_hash_sha256_is_as_good_as_ssh_keygen_has_it(case: Case, tmp_path: Path) -> None:
    text = case.alice.sign(case.index, hash_name="sha256")
    assert made.openssh_agrees(tmp_path, case.alice.public, case.index, text)
    case.send(text)
    with Reader.open(case.bundle, judge_here(demand=True)) as reader:
        assert reader.standing
        assert reader.standing.trusted


def test_where_nobody_is_trusted_a_signature_of_anybody_is_said_and_no_more(case: Case) -> None:
    case.untrust()
    case.send(case.mallory.sign(case.index))
    with Reader.open(case.bundle, judge_here(demand=True)) as reader:
        assert reader.standing
        assert not reader.standing.trusted
    case.send(case.mallory.sign(b"another index"))
    assert "has a signature that is not right" in case.refused()


def test_the_payload_of_another_signed_bundle_is_damage(case: Case) -> None:
    """Both rightly signed by somebody trusted: the head of one, the files of the other."""
    other = bundles.sources(case.folder / "other", {p: d[::-1] or b"x" for p, d in FILES.items()})
    replace(other, signature=b"").pack(case.folder / "other.tar.gz")
    cut = len(layout.head(other.index.to_bytes(), b""))
    tail = tar_of(case.folder / "other.tar.gz")[cut:]
    head = layout.head(case.index, case.alice.sign(case.index))
    case.bundle.write_bytes(bundles.framed(head + tail))
    with pytest.raises(BundleError):
        case.install()
    assert not (case.root.path / "current").exists()
