"""Wheels unpacked into a new environment: what pip and uv would have made of them."""

from __future__ import annotations

import csv
import os
import stat
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from mirror.ecosystems.wheels import unpacking
from mirror.errors import MachineError
from tests.index import make_wheel


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacking") / "env"
    venv.create(folder, with_pip=False)
    return folder


def python(environment: Path) -> Path:
    return environment / "bin" / "python"


def unpack(environment: Path, *wheels: Path) -> None:
    unpacking.unpack(wheels, python(environment), {"PATH": os.environ["PATH"]})


def site(environment: Path) -> Path:
    [found] = environment.glob("lib/python3*/site-packages")
    return found


def said(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_modules_programs_scripts_data_and_headers_come_where_they_belong(
    environment: Path, tmp_path: Path
) -> None:
    data = "whole-1.0.data"
    wheel = make_wheel(
        tmp_path,
        "whole",
        "1.0",
        code="def main():\n    import sys\n    print('ran in', sys.prefix)\n",
        files={
            "whole-1.0.dist-info/entry_points.txt": b"[console_scripts]\nwhole-run = whole:main\n",
            f"{data}/scripts/whole-old": b"#!python\nimport sys; print('old in', sys.prefix)\n",
            f"{data}/data/share/whole/notes.txt": b"notes",
            f"{data}/headers/whole.h": b"// whole",
            f"{data}/purelib/whole_more.py": b"MORE = 1\n",
        },
    )
    unpack(environment, wheel)
    run = python(environment)
    assert said(environment / "bin" / "whole-run") == f"ran in {environment}"
    assert said(environment / "bin" / "whole-old") == f"old in {environment}"
    assert said(run, "-c", "import whole_more; print(whole_more.MORE)") == "1"
    assert (environment / "share/whole/notes.txt").read_bytes() == b"notes"
    assert [p.name for p in environment.glob("include/site/python3*/whole/*")] == ["whole.h"]
    info = site(environment) / "whole-1.0.dist-info"
    assert (info / "INSTALLER").read_text() == "airgap-mirror\n"
    with open(info / "RECORD", newline="") as file:
        recorded = {row[0] for row in csv.reader(file)}
    assert all((site(environment) / name).exists() for name in recorded)
    assert {"../../../bin/whole-run", "whole.py", "whole-1.0.dist-info/RECORD"} <= recorded


def test_modes_are_constants_whatever_the_umask(environment: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "modes", "1.0", files={"modes_tool.sh": b"#!/bin/sh\n"})
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.getinfo("modes_tool.sh").external_attr = (stat.S_IFREG | 0o4755) << 16
        archive.comment = b"written again"
    before = os.umask(0o077)
    try:
        unpack(environment, wheel)
    finally:
        os.umask(before)
    found = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (site(environment) / "modes.py", site(environment) / "modes_tool.sh")
    }
    assert found == {"modes.py": 0o644, "modes_tool.sh": 0o755}


def test_data_are_found_where_the_file_is_spelled_otherwise(
    environment: Path, tmp_path: Path
) -> None:
    made = make_wheel(
        tmp_path, "Spelled.Name", "1.0", files={"Spelled.Name-1.0.data/data/here.txt": b"x"}
    )
    wheel = made.rename(tmp_path / "spelled_name-1.0-py3-none-any.whl")
    unpack(environment, wheel)
    assert (environment / "here.txt").read_bytes() == b"x"


def test_all_wheels_that_are_none_are_named_and_the_others_are_not_to_blame(
    environment: Path, tmp_path: Path
) -> None:
    good = make_wheel(tmp_path, "good", "1.0")
    torn = make_wheel(tmp_path, "torn", "1.0")
    torn.write_bytes(torn.read_bytes()[:-30])
    escapes = make_wheel(tmp_path, "escapes", "1.0", files={"../../../../escaped.py": b""})
    with pytest.raises(MachineError) as caught:
        unpack(environment, good, torn, escapes)
    named = sorted(line.partition(":")[0] for line in caught.value.problems)
    assert named == [escapes.name, torn.name]
    assert not list(environment.parent.glob("**/escaped.py"))


def test_two_wheels_may_bring_one_file(environment: Path, tmp_path: Path) -> None:
    shared = {"shared_space/__init__.py": b""}
    wheels = [make_wheel(tmp_path, name, "1.0", files=shared) for name in ("left", "right")]
    unpack(environment, *wheels)
    said(python(environment), "-c", "import shared_space, left, right")


def test_the_work_is_shared_by_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(unpacking, "_WORTH", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    wheels = []
    for number, size in enumerate((50, 30, 20, 40, 5)):
        wheels.append(tmp_path / str(number))
        wheels[-1].write_bytes(bytes(size))
    parts = unpacking._parts(wheels)
    assert sorted(sorted(p.stat().st_size for p in part) for part in parts) == [
        [5, 40],
        [20, 30],
        [50],
    ]


def test_an_interpreter_that_does_not_run_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such thing >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(MachineError, match="does not run") as caught:
        unpacking.unpack([make_wheel(tmp_path, "any", "1.0")], broken, dict(os.environ))
    assert caught.value.problems == ("no such thing",)
