"""The record, as a security officer meets it: bill, licences, provenance, log."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import signing
from tests.e2e.conftest import CHECKOUT, Demo, mirror, mirror_json

PAGE = (CHECKOUT / "docs" / "record.md").read_text(encoding="utf-8")
MANIFEST = """
name: notes
version: "%s"
files: [{path: data/, to: ./}]
"""


def member(bundle: Path, name: str) -> bytes:
    """As plain tar unpacks it."""
    command = ["tar", "-xzOf", str(bundle), name]
    return subprocess.run(command, capture_output=True, check=True).stdout


def by_hand(which: str, folder: Path, **variables: object) -> str:
    """What a block of the page prints, run as it stands there."""
    [block] = re.findall(rf"<!-- by hand: {which} -->\n```sh\n(.*?)```", PAGE, re.S)
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    command = ["sh", "-eu", "-c", block]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_bill_of_the_demo(demo_bundle: Demo) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    said = mirror("inspect", "--sbom", demo_bundle.bundle).stdout
    assert said.encode() == member(demo_bundle.bundle, "sbom.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(said) is None
    document = json.loads(said)
    assert mirror_json("inspect", "--sbom", demo_bundle.bundle) == document
    found = {item["name"]: item for item in document["components"]}
    notes, model, numpy = (found[name] for name in ("demo-notes", "tiny-llama", "numpy"))
    assert notes["purl"].startswith("pkg:conda/demo-notes@1.0?build=0&channel=channel")
    assert notes["licenses"][0]["license"]["id"] == "Apache-2.0"
    assert (model["type"], model["group"]) == ("machine-learning-model", "mirror")
    assert "purl" not in model, "it comes from a folder"
    assert numpy["purl"].startswith("pkg:pypi/numpy@")
    assert numpy["licenses"]
    # Every byte that somebody else made is in it.
    paths = {
        item["bom-ref"]
        for component in document["components"]
        for item in component.get("components", [component])
    }
    carried = {
        line.split("  ", 1)[1]
        for line in member(demo_bundle.bundle, "SHA256SUMS").decode().splitlines()
    }
    derived = {path for path in carried - paths if not path.startswith(("models/", "files/"))}
    assert derived == {
        "install.sh",
        "requirements.txt",
        "sbom.cdx.json",
        *(path for path in carried if path.endswith("repodata.json")),
    }
    assert paths <= carried


def test_the_table_of_the_demo(demo_bundle: Demo) -> None:
    said = mirror("inspect", "--licences", demo_bundle.bundle).stdout.splitlines()
    assert all(len(line) <= 80 for line in said)
    assert said[-1].endswith(", 1 of them without a known licence"), "the manifest, a plain file"
    assert "UNKNOWN" in said[-3]
    rows = mirror_json("inspect", "--licences", demo_bundle.bundle)
    assert rows[-1]["license"] is None
    assert [part["name"] for part in rows[-1]["parts"]] == ["configs/demo.yaml"]
    names = {part["name"]: row["license"] for row in rows for part in row["parts"]}
    assert names["mirror/tiny-llama"] == names["airgap-mirror"] == "Apache-2.0"
    mirror("inspect", "--licences", "--sbom", demo_bundle.bundle, code=2)


@dataclass(frozen=True)
class Notes:
    """A small project, its bundle in one piece and in volumes, and who signed."""

    folder: Path
    bundle: Path
    root: Path
    signers: Path

    def build(self, version: str, *options: object, **environment: str) -> Any:
        (self.folder / "mirror.yaml").write_text(MANIFEST % version, encoding="utf-8")
        done = mirror("build", *options, "--json", cwd=self.folder, environment=environment)
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory, demo_cache: Path) -> Notes:
    assert demo_cache.is_dir()
    folder = tmp_path_factory.mktemp("notes")
    (folder / "data").mkdir()
    (folder / "data" / "a").write_text("1", encoding="utf-8")
    (folder / "data" / "large").write_bytes(os.urandom(3_000_000))
    alice = signing.make(folder / "alice")
    signers = folder / "signers"
    line = alice.half.read_text(encoding="utf-8")
    signers.write_text(f"alice {line}", encoding="utf-8")
    made = Notes(folder, folder / "bundles" / "notes-1.tar.gz", folder / "root", signers)
    made.build("1", "--key", alice.path, SOURCE_DATE_EPOCH="1700000000")
    return made


def test_a_bill_comes_out_of_a_pipe_and_out_of_volumes(notes: Notes) -> None:
    wanted = member(notes.bundle, "sbom.cdx.json").decode()
    with open(notes.bundle, "rb") as file:
        front = file.read(2_000_000)  # a sender that stops
    cut = notes.folder / "cut"
    cut.write_bytes(front)
    command = f'cat "{cut}" | "{sys.executable}" -m mirror inspect --sbom -'
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == wanted
    dated = {"SOURCE_DATE_EPOCH": "1700000000"}
    notes.build("1", "--volume-size", "1M", "-o", notes.folder / "v.tar.gz", **dated)
    (notes.folder / "v.tar.gz.003").unlink()  # one that need not be there
    mirror("inspect", "--sbom", notes.folder / "v.tar.gz.001", code=5)
    notes.build("1", "--volume-size", "1M", "-o", notes.folder / "w.tar.gz", **dated)
    assert mirror("inspect", "--sbom", notes.folder / "w.tar.gz.001").stdout == wanted
    assert mirror("inspect", "--sbom", notes.bundle.as_uri()).stdout == wanted


def test_provenance_is_told(notes: Notes) -> None:
    seen = mirror_json("inspect", notes.bundle)
    digest = hashlib.sha256((MANIFEST % "1").encode()).hexdigest()
    assert seen["provenance"] == {"manifest": digest, "time": 1_700_000_000}
    lock = (notes.folder / "mirror.lock.toml").read_bytes()
    assert seen["lock"] == hashlib.sha256(lock).hexdigest()
    said = mirror("inspect", notes.bundle).stdout
    assert "dated 2023-11-14 22:13:20 UTC" in said
    assert digest in said
    found = mirror("build", cwd=notes.folder, environment={"SOURCE_DATE_EPOCH": "soon"}, code=2)
    assert "SOURCE_DATE_EPOCH is no number of seconds since 1970" in found.stderr


def test_the_log_and_what_can_be_checked_without_mirror(notes: Notes, tmp_path: Path) -> None:
    root = ("--root", notes.root)
    mirror("install", notes.bundle, *root, "--trust", notes.signers)
    environment = {"SUDO_USER": "carol"}
    mirror("pin", "1", *root, environment=environment)
    said = mirror("list", "--history", *root).stdout.splitlines()
    assert re.fullmatch(r"\S+Z  install   generation 1, notes 1, by \S+", said[0])
    assert said[2].startswith("    signed by alice, SHA256:")
    assert said[2].endswith(": counts")
    assert said[3].endswith("(sudo: carol)")
    [install, pin] = mirror_json("list", "--history", *root)
    assert (install["action"], install["state"], install["line"]) == ("install", "done", 2)
    assert (pin["action"], pin["sudo_user"]) == ("pin", "carol")
    assert (
        mirror("list", "--sbom", *root).stdout == mirror("inspect", "--sbom", notes.bundle).stdout
    )
    assert mirror_json("list", "--licences", *root) == mirror_json(
        "inspect", "--licences", notes.bundle
    )
    text = by_hand("bundle", tmp_path, BUNDLE=notes.bundle)
    assert text.splitlines() == [
        f"{install['digest']}  mirror-bundle.json",
        "SHA256SUMS: OK",
        "sbom.cdx.json: OK",
    ]
    text = by_hand("server", tmp_path, ROOT=notes.root, SIGNERS=notes.signers, NAME="alice")
    assert text.startswith(install["digest"])
    assert '"action":"install"' in text
    assert 'Good "mirror-bundle" signature for alice' in text
    mirror("list", "--history", "--models", *root, code=2)


def test_a_log_that_cannot_be_written_stops_an_installation(notes: Notes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    mirror("install", notes.bundle, "--root", root)
    log = root / "log" / "audit.jsonl"
    kept = log.read_bytes()
    log.unlink()
    log.mkdir()
    notes.build("2", "-o", tmp_path / "2.tar.gz")
    failed = mirror("install", tmp_path / "2.tar.gz", "--root", root, code=8)
    assert "audit.jsonl cannot be written: Is a directory; nothing was changed" in failed.stderr
    assert os.readlink(root / "current") == "generations/000001"
    log.rmdir()
    log.write_bytes(kept + b"garbage\n")
    mirror("install", tmp_path / "2.tar.gz", "--root", root)
    said = mirror("list", "--history", "--root", root).stdout
    assert "line 3 of the log is damaged" in said
    assert "generation 2, notes 2" in said
