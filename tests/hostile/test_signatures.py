"""Bundles that nobody trusted has signed: each is refused before anything in it is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror.bundle import layout
from mirror.bundle.reader import Reader
from mirror.core import index as indexes
from mirror.errors import BundleError, TrustError
from mirror.trust.judging import judge_here
from tests import bundles
from tests import signing as made
from tests.hostile.signatures import (
    FILES,
    ROWS,
    Case,
    Row,
    certificate,
    expired,
    garbage,
    index_byte,
    index_not_first,
    other_namespace,
    revoked,
    tar_of,
    unknown_kind,
    unsigned,
    wrong_beside,
    wrong_key,
)

CHECKOUT = Path(__file__).resolve().parents[2]


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
