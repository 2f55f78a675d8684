"""Whole machines, good and bad, as their own tools print them: what the host stage says of each."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from mirror.verify import host
from mirror.verify.host.machine import Machine
from mirror.verify.report import Check
from tests.captured import MACHINES, Captured, file_name
from tests.unit.test_verify_host import subject


def look(here: Machine, folder: Path, *, gpus: int | None = None) -> dict[str, Check]:
    """What the host stage says of this machine, by check."""
    found = host.visible_gpus(here)
    return {c.name: c for c in host.check(subject(folder, gpus=gpus), found, here)}


def findings(checks: Mapping[str, Check]) -> dict[str, str]:
    """The checks that do not pass."""
    return {name: check.verdict for name, check in checks.items() if check.verdict != "pass"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hgx-h200-8", {}),
        ("rtx5090-4", {}),
        ("rtx4090-2", {"gpu memory": "warn", "pcie link": "warn"}),
        ("a100-mig-2", {"gpu modes": "fail"}),
        (
            "a100-pcie-4",
            {
                "system": "warn",
                "limits": "warn",
                "gpu health": "fail",
                "acs": "warn",
                "iommu": "warn",
            },
        ),
        (
            "docker-h100-2",
            {"cpu and memory": "warn", "shared memory": "warn", "gpu memory": "warn"},
        ),
        ("no-driver", {"gpus": "warn", "driver": "fail"}),
        ("driver-mismatch", {"gpus": "warn", "driver": "fail"}),
        ("cpu-only", {"gpus": "warn"}),
    ],
)
def test_each_machine_is_found_as_it_is(
    name: str, expected: dict[str, str], tmp_path: Path
) -> None:
    checks = look(Captured(name), tmp_path)
    assert findings(checks) == expected
    for check in checks.values():
        assert check.evidence, check
        assert bool(check.advice) == (check.verdict in ("warn", "fail")), check


def test_every_captured_machine_is_looked_at_here() -> None:
    marks = test_each_machine_is_found_as_it_is.pytestmark  # type: ignore[attr-defined]
    named = {case[0] for case in marks[0].args[1]}
    assert {folder.name for folder in MACHINES.iterdir() if folder.is_dir()} == named


def test_a_machine_without_gpus_gets_one_line_on_gpus_and_no_skips(tmp_path: Path) -> None:
    checks = look(Captured("cpu-only"), tmp_path)
    assert list(checks)[-1] == "gpus"
    assert checks["gpus"].evidence == "none; there is no nvidia-smi"
    assert not any(check.verdict == "skip" for check in checks.values())


def test_gpus_that_a_broken_driver_hides_are_no_pass_when_asked_for(tmp_path: Path) -> None:
    checks = look(Captured("driver-mismatch"), tmp_path, gpus=1)
    assert checks["gpus"].verdict == "fail"
    assert checks["gpus"].evidence.startswith("1 asked for; none; nvidia-smi shows none")
    checks = look(Captured("cpu-only"), tmp_path, gpus=1)
    assert checks["gpus"].verdict == "warn", "CUDA may do without nvidia-smi: torch decides"


@pytest.mark.parametrize("name", ["hgx-h200-8", "rtx4090-2", "docker-h100-2"])
@pytest.mark.parametrize(
    "garbage",
    ["", "\0\xff\n\n", "GPU0\n" * 9, "<nvidia_smi_log><gpu></nvidia_smi_log>", "ERR!\t" * 99],
)
def test_garbage_from_a_tool_is_a_check_less_and_no_crash(
    name: str, garbage: str, tmp_path: Path
) -> None:
    for command in host.COMMANDS:
        for answer in (garbage, None):
            checks = look(Captured(name).says(*command, out=answer), tmp_path)
            assert checks["loopback"].verdict == "pass"
    here = Captured(name)
    for path in here.files:
        here.files[path] = garbage
    for command in host.COMMANDS:
        here.says(*command, out=garbage, code=1)
    assert look(here, tmp_path)["loopback"].verdict == "pass"
    here.files.clear()
    here.paths.clear()
    assert look(here, tmp_path)["loopback"].verdict == "pass"


@pytest.mark.parametrize("name", sorted(f.name for f in MACHINES.iterdir() if f.is_dir()))
def test_the_readme_says_how_every_captured_file_is_made(name: str) -> None:
    text = (MACHINES / "README.md").read_text(encoding="utf-8")
    lines = [line.strip() for line in text.splitlines()]
    commands = {file_name(tuple(line.split()[1:])) for line in lines if line.startswith("cap ")}
    assert {file_name(command) for command in host.COMMANDS} <= commands
    made = {f.name.removesuffix(".rc") for f in (MACHINES / name).iterdir()}
    made = {n for n in made if not n.startswith("getent_ahosts_")}
    assert made <= commands | {"env", "files", "paths"}


def test_a_machine_captured_as_the_readme_says_is_the_machine(tmp_path: Path) -> None:
    text = (MACHINES / "README.md").read_text(encoding="utf-8")
    block = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    folder = tmp_path / "captured"
    folder.mkdir()
    subprocess.run(["bash", "-c", block], cwd=folder, check=False, timeout=300)
    captured, real = look(Captured(folder), tmp_path), look(host.look(), tmp_path)
    assert {n: c.verdict for n, c in captured.items()} == {n: c.verdict for n, c in real.items()}
    for name in ("cpu and memory", "hostname", "limits", "nccl settings"):
        assert captured[name].evidence == real[name].evidence


# -- this machine, really ------------------------------------------------------------------------


def test_this_machine_is_read(tmp_path: Path) -> None:
    here = host.look()
    begin = time.monotonic()
    checks = look(here, tmp_path)
    assert time.monotonic() - begin < 30
    assert checks["loopback"].verdict == "pass"
    assert checks["system"].evidence
    assert "core" in checks["cpu and memory"].evidence
    assert "free at" in checks["disk"].evidence


def test_what_is_not_there_is_nothing_and_no_error(tmp_path: Path) -> None:
    here = Machine()
    assert here.read(str(tmp_path / "none")) is None
    assert here.read(str(tmp_path)) is None
    assert here.names(str(tmp_path / "none")) == []
    assert here.room(str(tmp_path / "none")) is None
    assert not here.exists(str(tmp_path / "none"))
    assert here.tool("mirror-has-no-such-program") is None
    (tmp_path / "bytes").write_bytes(b"\xff\xfe ok")
    assert (here.read(str(tmp_path / "bytes")) or "").endswith(" ok")
    assert here.names(str(tmp_path)) == ["bytes"]


def program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of this name, first on PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_programs_run_at_once_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = [command for command in host.COMMANDS if command[0] == "nvidia-smi"]
    # Each waits until all have started: one after the other they would never end.
    script = f"""
    echo x >> {tmp_path}/started
    while [ "$(wc -l < {tmp_path}/started)" -lt {len(smi)} ]; do sleep 0.05; done
    echo "$LC_ALL $*"
    """
    program(tmp_path, "nvidia-smi", script, monkeypatch)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    here = host.look()
    for command in smi:
        answer = here.tool(*command)
        assert answer is not None
        assert answer.out.split() == ["C", *command[1:]], "tools speak English here"
    host.visible_gpus(here)
    assert (tmp_path / "started").read_text().count("x") == len(smi)


def test_a_program_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "nvidia-smi", "exec sleep 600", monkeypatch)
    answer = Machine().tool("nvidia-smi", limit=0.5)
    assert answer is not None
    assert answer.code is None
