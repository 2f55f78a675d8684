"""Packages are unpacked by rattler in processes of their own: what hostile ones can reach there."""

from __future__ import annotations

import contextlib
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror.core.progress import Advance
from mirror.ecosystems.conda.linking import workers
from mirror.errors import BundleError
from tests.conda_packages import Package, Recorder, installed_files, put, run, special

BOTH = pytest.mark.parametrize("modern", [True, False], ids=["conda", "tar.bz2"])


def test_a_package_that_changes_while_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was unpacked is compared, not only what was there before."""
    there = put(tmp_path, Package("p", files={"p": b"1"}))
    original = workers.unpack

    def late(jobs: list[workers.Job], *rest: object) -> object:
        jobs[0].archive.unlink()
        jobs[0].archive.write_bytes(Package("p", files={"evil": b"1"}).to_bytes())
        return original(jobs, *rest)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(workers, "unpack", late)
    with pytest.raises(BundleError, match="in the store have changed"):
        run(there)
    assert not there.generation.env.exists()


@BOTH
def test_a_package_that_unpacks_to_far_too_much_is_stopped(
    tmp_path: Path, modern: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ALLOWANCE", 2**20)
    bomb = Package("bomb", files={"zeros": bytes(64 * 2**20)}, modern=modern)
    there = put(tmp_path, bomb, Package("fine", files={"fine": b"1"}))
    with pytest.raises(BundleError) as caught:
        run(there)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{bomb.file}: its ")
    assert problem.endswith("nothing needs that")
    assert not there.generation.env.exists()


def test_a_package_of_very_many_empty_files_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ALLOWANCE", 2**20)
    monkeypatch.setattr(workers, "RATIO", 2)
    there = put(tmp_path, Package("many", files={f"{n}": b"" for n in range(500)}))
    with pytest.raises(BundleError, match="unpack to more than"):
        run(there)


def test_a_process_that_dies_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_CHILD", "import os, sys\nsys.stdin.readline()\nos.abort()")
    there = put(tmp_path, Package("p"), Package("q"))
    with pytest.raises(BundleError) as caught:
        run(there)
    assert caught.value.problems == (
        "p-1.0-0.tar.bz2: rattler ended (SIGABRT)",
        "q-1.0-0.tar.bz2: rattler ended (SIGABRT)",
    )


@BOTH
@pytest.mark.parametrize("target", ["{outside}", "../../../../../../outside"])
def test_what_would_be_unpacked_through_a_link_is_named(
    tmp_path: Path, modern: bool, target: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = special("d", tarfile.SYMTYPE, target.format(outside=outside))
    members = [link, special("d/x", tarfile.REGTYPE)]
    there = put(tmp_path, Package("p", members=members, modern=modern))
    with pytest.raises(BundleError, match="`d/x`: trying to unpack outside of destination"):
        run(there)
    assert not list(outside.iterdir())


@BOTH
@pytest.mark.parametrize(
    "members",
    [
        [("../../../../../../outside/x", tarfile.REGTYPE, "")],
        [("{outside}/x", tarfile.REGTYPE, "")],
        [("f", tarfile.LNKTYPE, "{outside}/secret")],
        [("f", tarfile.LNKTYPE, "../../../../../../outside/secret")],
        [("d", tarfile.SYMTYPE, "{outside}"), ("f", tarfile.LNKTYPE, "d/secret")],
        [("f", tarfile.SYMTYPE, "{outside}/secret"), ("f", tarfile.REGTYPE, "")],
        [("d", tarfile.SYMTYPE, "{outside}"), ("d", tarfile.DIRTYPE, "")],
        [("d", tarfile.DIRTYPE, ""), ("d", tarfile.SYMTYPE, "{outside}"), ("d/x", b"0", "")],
        [("f", tarfile.FIFOTYPE, ""), ("c", tarfile.CHRTYPE, "")],
    ],
)
def test_unpacking_never_reaches_outside(
    tmp_path: Path, modern: bool, members: list[tuple[str, bytes, str]]
) -> None:
    """Whether it is refused or left out: what is not listed is not installed either way."""
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "secret").write_bytes(b"secret")
    (outside / "secret").chmod(0o600)
    made = [
        special(path.format(outside=outside), kind, target.format(outside=outside))
        for path, kind, target in members
    ]
    there = put(tmp_path, Package("p", files={"own": b""}, members=made, modern=modern))
    with contextlib.suppress(BundleError):
        run(there)
        assert installed_files(there.generation.env) == ["own"]
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"
    assert (outside / "secret").stat().st_mode & 0o777 == 0o600
    assert (outside / "secret").stat().st_nlink == 1
    assert outside.stat().st_mode & 0o777 == 0o750


class Interrupted(Recorder):
    """A person who presses Ctrl-C while packages are unpacked, or linked."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label

    @contextlib.contextmanager
    def bar(self, label: str, total: int, unit: str = "B", **about: object) -> Iterator[Advance]:
        def advance(amount: int) -> None:
            if label.startswith(self.label):
                raise KeyboardInterrupt

        yield advance


@pytest.mark.parametrize("label", ["unpacking", "linking"])
def test_nothing_goes_on_after_an_interruption(
    tmp_path: Path, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []
    original = subprocess.Popen

    def noticed(*arguments: Any, **more: Any) -> subprocess.Popen[str]:
        started.append(original(*arguments, **more))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", noticed)
    there = put(tmp_path, *(Package(f"p{n}", files={f"f{n}": b""}) for n in range(5)))
    with pytest.raises(KeyboardInterrupt):
        run(replace(there, progress=Interrupted(label)))
    assert started
    assert all(process.poll() is not None for process in started)
    assert not list(there.generation.path.glob(".conda-*"))
