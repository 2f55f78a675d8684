"""What origins may bring: looked over before it is packed, and again before it is linked.

These reach no bundle's reader, so they are given to the rules that judge them.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mirror.ecosystems.models.policy import pickles
from mirror.ecosystems.models.policy.pickle_files import scan
from mirror.ecosystems.wheels import inspection
from mirror.errors import BundleError
from tests.conda_packages import Package, put, run
from tests.unit import test_models_pickles as models
from tests.unit import test_wheel_inspection as wheels


@dataclass(frozen=True)
class Refusal:
    """One input. attempt: why it is refused, empty when it is not. says: what stands in that."""

    name: str
    says: str
    attempt: Callable[[Path], str]


def complaints(row: Refusal, folder: Path) -> list[str]:
    """What was not as promised, a line each."""
    said = row.attempt(folder)
    found = [] if row.says in said and said else [f"it says {said!r:.300}, not {row.says}"]
    if not all(line.isprintable() for line in said.splitlines()):
        found.append(f"{said!r:.300} is not fit to be printed")
    return found


def _wheel(make: Callable[[Path], Path]) -> Callable[[Path], str]:
    return lambda folder: "\n".join(inspection.check(make(folder), wheels.NAME).problems)


def _repeated(folder: Path) -> Path:
    def again(archive: zipfile.ZipFile) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr("demo/__init__.py", b"import os")

    return wheels.wheel(folder, write=again)


def _member(name: str, data: bytes = b"") -> Callable[[Path], Path]:
    return lambda folder: wheels.wheel(folder, wheels.members() | {name: data})


def _mismatched(folder: Path) -> Path:
    return wheels.patched(wheels.wheel(folder), b"demo/__init__.py", b"demo/__init__.pz")


def _changed(folder: Path) -> Path:
    files = wheels.members()
    record = "".join(wheels.row(name, data + b"x") for name, data in files.items())
    return wheels.wheel(folder, files, record=record + f"{wheels.INFO}/RECORD,,\n")


def _link(folder: Path) -> Path:
    def link(archive: zipfile.ZipFile) -> None:
        entry = zipfile.ZipInfo("demo/link")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")

    return wheels.wheel(folder, write=link)


def _pickle(data: bytes) -> Callable[[Path], str]:
    def attempt(folder: Path) -> str:
        (folder / "pytorch_model.bin").write_bytes(data)
        verdict = pickles.verdict(scan(folder / "pytorch_model.bin"))
        return verdict.text if verdict and verdict.refused else ""

    return attempt


def _conda(*packages: Package) -> Callable[[Path], str]:
    def attempt(folder: Path) -> str:
        there = put(folder, *packages)
        try:
            run(there)
        except BundleError as error:
            assert not there.generation.env.exists()
            return str(error)
        return ""

    return attempt


_FAR = {"_path": "../../x", "path_type": "hardlink"}
_PROGRAMS = f"{wheels.INFO}/entry_points.txt"
ORIGINS = [
    Refusal("wheel-repeated-entry", "more than once", _wheel(_repeated)),
    Refusal("wheel-two-names", "two headers that differ", _wheel(_mismatched)),
    Refusal("wheel-other-record", "RECORD", _wheel(_changed)),
    Refusal("wheel-symlink", "symbolic link", _wheel(_link)),
    Refusal("wheel-climbs", "climbs out", _wheel(_member("../../x"))),
    Refusal("wheel-absolute", "is absolute", _wheel(_member("/etc/x"))),
    Refusal("wheel-ansi", "control character", _wheel(_member("demo/\x1b[2J"))),
    Refusal(
        "wheel-entry-point",
        "its program",
        _wheel(_member(_PROGRAMS, b"[console_scripts]\n../../x = demo:main\n")),
    ),
    Refusal("wheel-that-is-none", "no zip archive", lambda folder: _none(folder)),
    Refusal("pickle-that-runs-a-program", "os.system", _pickle(models.EVIL)),
    Refusal("pickle-cut", "os.system", _pickle(models.EVIL[:-3])),
    Refusal("conda-outside", "outside the environment", _conda(Package("far", paths=[_FAR]))),
    Refusal(
        "conda-link-out",
        "leads out",
        _conda(Package("a", files={"x": b""}, links={"etc": "/etc"})),
    ),
    Refusal(
        "conda-links-together",
        "leads out",
        _conda(Package("a", links={"deep": "."}), Package("b", links={"deep/er": "../outside"})),
    ),
    Refusal(
        "conda-own-records",
        "own records",
        _conda(Package("a", files={"conda-meta/b-1-0.json": b"{}"})),
    ),
    Refusal(
        "conda-file-that-is-not-there",
        "does not hold",
        _conda(Package("a", paths=[{"_path": "ghost", "path_type": "hardlink"}])),
    ),
]


def _none(folder: Path) -> str:
    (folder / "blob").write_bytes(b"\x1b[2J" * 100)
    return "\n".join(inspection.check(folder / "blob", wheels.NAME).problems)
