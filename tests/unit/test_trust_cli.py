"""The commands about keys and signatures, as people type them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mirror.bundle.splitting import Volumes, pack_volumes
from mirror.core.progress import Quiet
from tests import bundles
from tests import signing as made

CHECKOUT = Path(__file__).resolve().parents[2]


class Machine:
    """A person's settings, a folder to work in, and a bundle."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = bundles.sources(folder / "in", {"files/a": b"hello\n"})
        source.pack(folder / "b.tar.gz")
        self.trusted = folder / "config" / "mirror" / "allowed_signers"

    def run(self, *arguments: str, code: int = 0) -> str:
        """What it says: on stdout, or on stderr where it fails."""
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", "mirror", *arguments],
            cwd=self.folder,
            env=made.clean_environment(self.folder) | {"PYTHONPATH": str(CHECKOUT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        self.out, self.err = done.stdout, done.stderr
        return done.stderr if code else done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_from_a_new_key_to_a_trusted_install(machine: Machine) -> None:
    """keygen, sign, trust, install, as a person goes through them."""
    new = machine.json("keygen", "--no-passphrase", "--comment", "alice")
    private = machine.folder / "config" / "mirror" / "signing_key"
    assert new["private"] == str(private)
    assert private.stat().st_mode & 0o777 == 0o600
    signed = machine.json("sign", "b.tar.gz", "--key", str(private))
    assert signed["keys"] == [new["fingerprint"]]
    assert "bundles need no signature" in machine.run("trust", "list")
    added = machine.run("trust", "add", f"{private}.pub", "--valid-before", "2099-01-01")
    assert added.startswith("alice is trusted, until 2099-01-01 00:00 UTC: ED25519 SHA256:")
    assert machine.json("trust", "list")["signers"][0]["signer"] == "alice"
    shown = machine.run("inspect", "b.tar.gz")
    assert f"  signed   by alice, ED25519 {new['fingerprint']} ({machine.trusted}:1, valid" in shown
    done = machine.json("install", "b.tar.gz", "--root", "root")
    assert done["trust"]["signers"] == ["alice"]
    assert done["trust"]["signatures"][0]["trusted_by"] == f"{machine.trusted}:1"
    machine.run("install", "b.tar.gz", "--root", "other")
    assert f"signed by alice, ED25519 {new['fingerprint']} ({machine.trusted}:1" in machine.err


def test_a_new_key_says_how_to_use_it(machine: Machine) -> None:
    said = machine.run("keygen", "--no-passphrase", "--out", "key")
    public = (machine.folder / "key.pub").read_text(encoding="utf-8").strip()
    assert public in said
    assert "mirror build --key key" in said
    assert "mirror trust add key.pub" in said
    secret = (machine.folder / "key").read_text(encoding="utf-8").splitlines()[2]
    assert secret not in said + machine.err
    assert "never written over" in machine.run("keygen", "--no-passphrase", "--out", "key", code=2)


def test_nobody_is_taken_for_trusted_any_more_after_removal(machine: Machine) -> None:
    for name in ("alice", "bob"):
        made.make(machine.folder / name)
        machine.run("trust", "add", f"{name}.pub", "--name", name)
    machine.run("sign", "b.tar.gz", "--key", "alice")
    machine.run("trust", "threshold", "2")
    assert "2 people must sign, 1 did" in machine.run(
        "install", "b.tar.gz", "--root", "root", code=6
    )
    machine.run("sign", "b.tar.gz", "--key", "bob", "--detached")
    machine.run("install", "b.tar.gz", "--root", "root")
    assert "bob is revoked" in machine.run("trust", "remove", "bob", "--revoke")
    assert "its key is revoked" in machine.run("install", "b.tar.gz", "--root", "root", code=6)
    assert "revoked  SHA256:" in machine.run("trust", "list")
    machine.run("trust", "remove", "alice.pub")
    assert "has no keys left: it asks for no signature any more" in machine.err


def test_a_file_of_trusted_keys_stands_in_for_the_settings(machine: Machine) -> None:
    made.make(machine.folder / "alice")
    machine.run("sign", "b.tar.gz", "--key", "alice")
    key = (machine.folder / "alice.pub").read_text(encoding="utf-8")
    machine.run("trust", "add", key, "--name", "alice", "--trust", "signers")
    assert not machine.trusted.exists()
    done = machine.json("install", "b.tar.gz", "--root", "root", "--trust", "signers", "--dry-run")
    assert done["name"] == "demo"
    assert "the file of trusted keys none is not there" in machine.run(
        "install", "b.tar.gz", "--root", "root", "--trust", "none", code=2
    )
    assert not (machine.folder / "root").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("sign", "b.tar.gz"), "name the key to sign with: --key KEY"),
        (("sign", "none", "--key", "alice"), "there is no bundle"),
        (("sign", "b.tar.gz", "--key", "none"), "the key none cannot be read"),
        (("trust", "add", "none.pub"), "there is no public key in none.pub"),
        (("trust", "add", "alice"), "alice is a private key"),
        (("trust", "add", "alice.pub", "--name", "a,b"), "cannot name a signer"),
        (("trust", "add", "alice.pub", "--valid-before", "soon"), "'soon' is no time"),
        (("trust", "remove", "nobody"), "nobody is not trusted in"),
        (("trust", "threshold", "0"), "0"),
        (("install", "b.tar.gz", "--trust", ""), "the path is empty"),
    ],
)
def test_mistakes_are_named_and_end_with_2(
    machine: Machine, arguments: tuple[str, ...], says: str
) -> None:
    made.make(machine.folder / "alice")
    assert says in machine.run(*arguments, code=2)


def test_volumes_are_told_to_be_signed_as_they_arrive(machine: Machine) -> None:
    source = bundles.sources(machine.folder / "in", {"files/b": bytes(9000)})
    out = machine.folder / "out"
    out.mkdir()
    pack_volumes(source.index, b"", source.locate, out / "v.tar.gz", Volumes(4000), Quiet())
    made.make(machine.folder / "alice")
    machine.run("trust", "add", "alice.pub")
    machine.run("sign", "out/v.tar.gz.001", "--key", "alice")
    (out / "v.tar.gz.001").unlink()
    machine.run("inspect", "--volumes", "out", "--json", code=5)
    done = json.loads(machine.out)
    assert done[0]["trust"]["signers"] == ["alice"]
    assert [v["state"] for v in done[0]["volumes"]][:2] == ["missing", "whole"]
