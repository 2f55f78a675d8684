"""Keys that sign: in files of every form, in an agent, on a token; and no secret gets out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from mirror.errors import MachineError, MirrorError, TrustError, UsageError
from mirror.trust import private, signing, sshsig
from mirror.trust.private import FileKey, Person
from mirror.trust.program import ProgramKey
from tests import signing as made
from tests.signing import INDEX, knows, nobody
from tests.terminal import typed

SECRET = "correct horse battery staple"
KINDS = {
    "ed25519": ("ed25519",),
    "ecdsa": ("ecdsa", "-b", "384"),
    "rsa": ("rsa", "-b", "2048"),
}
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name, (kind, *more) in KINDS.items():
        made.make(folder / name, kind, "", *more)
        made.make(folder / f"{name}-locked", kind, SECRET, *more)
    return folder


@pytest.fixture
def agent(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent that holds the key `ed25519-locked`."""
    socket = tmp_path / "agent"
    made.ssh_keygen()
    with subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL
    ) as process:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        for _ in range(600):
            if socket.exists():
                break
            time.sleep(0.05)
        made.make(tmp_path / "carried")
        made.run(["ssh-add", "-q", str(tmp_path / "carried")])
        yield
        process.terminate()


def opened(path: Path, person: Person | None = None) -> signing.SigningKey:
    return signing.open_key(str(path), person or nobody())


def sign(path: Path, person: Person | None = None) -> sshsig.Signature:
    found = opened(path, person).sign(INDEX)
    found.require(INDEX)
    return found


def pem(source: Path, target: Path, form: serialization.PrivateFormat, secret: str = "") -> Path:
    """The same key in another form, written by the library."""
    key = serialization.load_ssh_private_key(source.read_bytes(), None)
    lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if secret:
        lock = serialization.BestAvailableEncryption(secret.encode())
    target.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, lock))
    target.chmod(0o600)
    return target


# -- in files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_ssh_keygen_locked_and_not(folder: Path, kind: str) -> None:
    assert sign(folder / kind).key == made.Key(folder / kind, opened(folder / kind).public).public
    assert sign(folder / f"{kind}-locked", knows(SECRET)).key != sign(folder / kind).key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("secret", ["", SECRET])
def test_keys_in_pkcs8(folder: Path, kind: str, secret: str, tmp_path: Path) -> None:
    path = pem(folder / kind, tmp_path / "key", serialization.PrivateFormat.PKCS8, secret)
    found = sign(path, knows(SECRET) if secret else nobody())
    assert found.key == opened(folder / kind).public


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_keys_in_openssls_old_form(folder: Path, kind: str, tmp_path: Path) -> None:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path = pem(folder / kind, tmp_path / "key", form)
    assert sign(path).key == opened(folder / kind).public


def test_nothing_is_asked_before_the_key_is_used(folder: Path) -> None:
    key = opened(folder / "ed25519-locked")
    said = made.run(["ssh-keygen", "-l", "-f", str(folder / "ed25519-locked.pub")]).stdout
    assert key.public.fingerprint in said.decode()
    with pytest.raises(UsageError, match="nobody can be asked"):
        key.unlock()


def test_a_passphrase_is_asked_for_once(folder: Path) -> None:
    key = opened(folder / "ed25519-locked", knows(SECRET))
    key.unlock()
    key.sign(INDEX)
    key.sign(b"more")


def test_a_passphrase_may_be_mistyped_twice(folder: Path) -> None:
    sign(folder / "ed25519-locked", knows("x", "y", SECRET))
    with pytest.raises(UsageError, match="that is not the passphrase of") as caught:
        sign(folder / "ed25519-locked", knows("wrong one", "wrong two", "wrong three", SECRET))
    assert "wrong" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_key_that_others_can_read_is_used_and_said_to_be_so(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes((folder / "ed25519").read_bytes())
    path.chmod(0o644)
    told: list[str] = []
    opened(path, Person(lambda what: "", told.append)).sign(INDEX)
    assert told == [f"{path} can be read by others; make it private: chmod 600 {path}"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not one public key"),
        (b"hello\n", "it is no public key"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "no private key that"),
        (
            b"-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
            "no private key that",
        ),
        (b"ssh-dss AAAAB3NzaC1kc3M= x\n", "of the kind ssh-dss"),
    ],
)
def test_what_is_no_key(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(UsageError, match=says):
        sign(tmp_path / "key")
    with pytest.raises(UsageError, match="cannot be read"):
        sign(tmp_path / "none")


def test_a_key_that_is_too_short_does_not_sign(tmp_path: Path) -> None:
    weak = ["-q", "-t", "rsa", "-b", "1024", "-N", "", "-f", str(tmp_path / "weak")]
    made.run(["ssh-keygen", *weak])
    with pytest.raises(UsageError, match="1,024 bits"):
        sign(tmp_path / "weak")


def test_a_cut_key_is_no_key(folder: Path, tmp_path: Path) -> None:
    data = (folder / "ed25519").read_bytes().splitlines(keepends=True)
    (tmp_path / "key").write_bytes(b"".join([*data[:-3], data[-1]]))
    with pytest.raises(MirrorError) as caught:
        sign(tmp_path / "key")
    assert caught.value.exit_code in (2, 6)


# -- in an agent, on a token --------------------------------------------------------------------


@pytest.mark.usefixtures("agent")
def test_a_key_of_an_agent_by_comment_by_fingerprint_and_by_file(tmp_path: Path) -> None:
    half = tmp_path / "carried.pub"
    (tmp_path / "carried").unlink()  # only the agent has it now
    public = opened(half).public
    for name in (str(half), "agent:carried", f"agent:{public.fingerprint}"):
        key = signing.open_key(name, nobody())
        assert isinstance(key, ProgramKey)
        key.unlock()
        found = key.sign(INDEX)
        assert found.key == public
        found.require(INDEX)
        assert found.armoured == key.sign(INDEX).armoured


@pytest.mark.usefixtures("agent")
def test_an_agent_without_that_key_names_those_that_it_has() -> None:
    with pytest.raises(UsageError, match="no key that is called mallory") as caught:
        signing.open_key("agent:mallory", nobody())
    assert "carried" in caught.value.problems[0]


@pytest.mark.usefixtures("agent")
def test_a_public_key_whose_private_half_is_nowhere(tmp_path: Path) -> None:
    key = made.make(tmp_path / "lost")
    key.path.unlink()
    with pytest.raises(UsageError, match="ssh-keygen did not sign with ED25519") as caught:
        opened(key.half).sign(INDEX)
    assert caught.value.problems


def test_where_no_agent_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    made.ssh_keygen()
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(MachineError, match="no agent answers"):
        signing.open_key("agent:x", nobody())


def test_where_openssh_is_not_installed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sign(folder / "ed25519")  # needs nothing
    with pytest.raises(MachineError, match="ssh-keygen is not on PATH"):
        opened(folder / "ed25519.pub").sign(INDEX)
    with pytest.raises(MachineError, match="ssh-add is not on PATH"):
        signing.open_key("agent:x", nobody())


def test_a_token_is_used_through_ssh_keygen_which_tells_when_to_touch_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program stands in for OpenSSH with a token: there is none here."""
    token = made.token_ed25519()
    (tmp_path / "right").write_bytes(token.sign(INDEX))
    (tmp_path / "token.pub").write_text(f"{token.public.line}\n", encoding="utf-8")
    program = tmp_path / "ssh-keygen"
    program.write_text(
        f"#!/bin/sh\n[ \"$*\" = '-Y sign -n mirror-bundle -f {tmp_path}/token.pub' ] || exit 9\n"
        "echo 'Signing data on standard input' >&2\n"
        "echo 'Confirm user presence for key ED25519-SK SHA256:x' >&2\n"
        f"cmp -s - {tmp_path}/index || exit 8\ncat {tmp_path}/right\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    (tmp_path / "index").write_bytes(INDEX)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told: list[str] = []
    key = signing.open_key(str(tmp_path / "token.pub"), Person(lambda what: "", told.append))
    key.sign(INDEX).require(INDEX)
    assert told == ["Confirm user presence for key ED25519-SK SHA256:x"]
    (tmp_path / "right").write_bytes(made.token_ed25519(0).sign(INDEX))
    with pytest.raises(TrustError, match="is not right: nobody touched"):
        key.sign(INDEX)
    (tmp_path / "right").write_bytes(made.token_ed25519().sign(INDEX))
    with pytest.raises(TrustError, match="is not right: it is by ED25519-SK"):
        key.sign(INDEX)
    (tmp_path / "right").write_bytes(b"nothing")
    with pytest.raises(MachineError, match="is no signature"):
        key.sign(INDEX)


def test_without_the_library_a_files_key_is_used_through_ssh_keygen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    key = opened(folder / "ed25519")
    assert isinstance(key, ProgramKey)
    key.sign(INDEX).require(INDEX)
    with pytest.raises(MachineError, match="the library cryptography, which is not installed"):
        private.make_key(folder / "new", None, "me")


def test_with_the_library_ssh_keygen_is_not_needed(folder: Path) -> None:
    assert isinstance(opened(folder / "ed25519"), FileKey)


# -- made ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_new_key_is_one_to_ssh_keygen(tmp_path: Path, secret: str | None) -> None:
    path = tmp_path / "deep" / "key"
    public = private.make_key(path, secret, "me@here")
    assert path.stat().st_mode & 0o777 == 0o600
    half = path.with_name("key.pub").read_text(encoding="utf-8")
    assert half == f"{public.line}\n"
    assert half.endswith(" me@here\n")
    shown = made.run(["ssh-keygen", "-y", "-P", secret or "", "-f", str(path)]).stdout.decode()
    assert shown.split()[:2] == half.split()[:2]
    if secret:
        made.run(["ssh-keygen", "-y", "-P", "wrong", "-f", str(path)], code=255)
    text = sign(path, knows(SECRET)).armoured
    assert made.openssh_agrees(tmp_path, public, INDEX, text)


@pytest.mark.parametrize("there", ["key", "key.pub"])
def test_a_key_is_never_written_over(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_bytes(b"mine")
    with pytest.raises(UsageError, match="never written over"):
        private.make_key(tmp_path / "key", None, "me")
    assert [p.name for p in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_bytes() == b"mine"


def test_a_key_that_cannot_be_written_leaves_no_half(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MachineError, match="cannot be written"):
        private.make_key(tmp_path / "file" / "key", None, "me")


def test_a_disk_that_is_full_in_the_middle_leaves_no_half_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def full(path: Path, flags: int, mode: int = 0o777) -> int:
        if path == tmp_path / "key":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, flags, mode)

    monkeypatch.setattr(private.os, "open", full)  # type: ignore[attr-defined]
    with pytest.raises(MachineError, match="No space left"):
        private.make_key(tmp_path / "key", None, "me")
    assert not list(tmp_path.iterdir())


# -- at a terminal ------------------------------------------------------------------------------


def test_passphrases_are_typed_at_a_terminal_and_stay_there(tmp_path: Path) -> None:
    """Made, mistyped and used: nowhere but in what was typed does the secret occur."""
    environment = made.clean_environment(tmp_path) | {"PYTHONPATH": str(CHECKOUT)}
    mirror = [sys.executable, "-m", "mirror"]
    path = tmp_path / "signing"
    new = typed(
        [*mirror, "keygen", "--out", str(path), "-v"],
        [("Passphrase of the new key", SECRET), ("Repeat for confirmation", SECRET)],
        environment,
    )
    assert new.code == 0, new.screen
    assert str(path) in new.out
    made.run(["ssh-keygen", "-y", "-P", "", "-f", str(path)], code=255)
    bundle = make_bundle(tmp_path)
    used = typed(
        [*mirror, "sign", str(bundle), "--key", str(path), "-v"],
        [(f"Passphrase of {path}", "wrong"), (f"Passphrase of {path}", SECRET)],
        environment,
    )
    assert used.code == 0, used.screen
    for text in (new.screen, new.out, used.screen, used.out):
        assert SECRET not in text
        assert "PRIVATE" not in text
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes()


def make_bundle(folder: Path) -> Path:
    from tests import bundles

    made = bundles.sources(folder / "in", {"files/a": b"hello\n"})
    made.pack(folder / "b.tar.gz")
    return folder / "b.tar.gz"


def test_where_nobody_can_be_asked_that_is_said(folder: Path, tmp_path: Path) -> None:
    environment = made.clean_environment(tmp_path) | {"PYTHONPATH": str(CHECKOUT)}
    for command, says in (
        (["sign", str(make_bundle(tmp_path)), "--key", str(folder / "ed25519-locked")], "agent"),
        (["keygen", "--out", str(tmp_path / "new")], "--no-passphrase"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "mirror", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "nobody is here to ask for a passphrase" in done.stderr
        assert says in done.stderr
    assert not (tmp_path / "new").exists()
