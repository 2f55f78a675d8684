"""The tool on the server: install.sh as a shell runs it, and the launcher that is left there."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.tool import deploy as tool
from mirror.ecosystems.tool import source
from mirror.store.environment import write_activate
from mirror.store.generation import Generation
from mirror.store.generations import Root
from tests.bundles import sources

#: What root needs to be refused what others are refused.
_POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
#: In a shell's words: an end of single quotes, of double ones, of ${...}, an expansion, a command.
ODD = "q'u$o\"te} `x` \\"


@pytest.fixture(scope="module")
def wheels() -> dict[str, bytes]:
    """This mirror as a wheel, and what it imports on a server."""
    found = {"airgap_mirror-0-py3-none-any.whl": source.own_wheel()}
    for name in ("click", "tqdm", "packaging", "segno"):
        package = Path(str(importlib.import_module(name).__file__)).parent
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for path in package.rglob("*.py"):
                archive.write(path, path.relative_to(package.parent))
        found[f"{name}-0-py3-none-any.whl"] = buffer.getvalue()
    return found


@dataclass(frozen=True)
class Unpacked:
    """What `tar -xzf BUNDLE install.sh tool` leaves, a bundle, and a root to install it in."""

    folder: Path

    @property
    def tool(self) -> Path:
        return self.folder / "tool"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    def line(self, bundle: Path, *, before: Sequence[str] = ()) -> list[str]:
        script = str(self.folder / "install.sh")
        return [*before, "/bin/sh", script, str(bundle), "--root", str(self.root)]

    @property
    def bare(self) -> Mapping[str, str]:
        """Nothing but the interpreter, and not this one, which has mirror already."""
        return {"PYTHON": getattr(sys, "_base_executable", sys.executable)}

    @property
    def environment(self) -> Mapping[str, str]:
        """With a folder for what is temporary."""
        return {**self.bare, "TMPDIR": str(self.temporary)}

    def run(
        self, *, before: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.line(self.folder / "b.tar.gz", before=before),
            env=environment or self.environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )

    def is_clean(self) -> bool:
        """Whether no temporary folder is left."""
        left = [path for path in self.tool.iterdir() if path.suffix != ".whl"]
        return not left and not list(self.temporary.iterdir())


@pytest.fixture
def unpacked(tmp_path: Path, wheels: Mapping[str, bytes]) -> Unpacked:
    found = Unpacked(tmp_path / "it's unpacked")
    found.tool.mkdir(parents=True)
    found.temporary.mkdir()
    shutil.copy(Path(source.__file__).with_name("install.sh"), found.folder)
    for name, data in wheels.items():
        (found.tool / name).write_bytes(data)
    sources(tmp_path / "sources", {"files/a.txt": b"a" * 5000}).pack(found.folder / "b.tar.gz")
    return found


@pytest.mark.parametrize("before", [(), ("unshare", "-r", "-n")])
def test_install_sh_needs_no_environment_and_no_network(
    unpacked: Unpacked, before: tuple[str, ...]
) -> None:
    done = unpacked.run(before=before, environment=unpacked.bare)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("generation 1 is in use: demo 1\n")
    assert (unpacked.root / "current" / "files" / "a.txt").read_bytes() == b"a" * 5000
    assert unpacked.is_clean()


def test_install_sh_has_mirrors_exit_code(unpacked: Unpacked) -> None:
    (unpacked.folder / "b.tar.gz").write_bytes(b"no bundle")
    assert unpacked.run().returncode == 5
    assert unpacked.is_clean()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_install_sh_ends_the_install(
    unpacked: Unpacked, number: signal.Signals
) -> None:
    """It comes when half of the bundle is read; the other half must not be installed, too."""
    data = (unpacked.folder / "b.tar.gz").read_bytes()
    pipe = unpacked.folder / "pipe"
    os.mkfifo(pipe)
    line = unpacked.line(pipe)
    with subprocess.Popen(
        line,
        env=unpacked.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as running:
        assert running.stderr is not None
        with open(pipe, "wb", buffering=0) as sink:  # until mirror opens it, too
            sink.write(data[:-2500])
            while "not signed" not in running.stderr.readline():
                assert running.poll() is None
            running.send_signal(number)
            try:
                assert running.wait(10) == 130
            finally:
                running.kill()
        assert "error: interrupted\n" in running.stderr.read()
    assert not (unpacked.root / "current").exists()
    assert unpacked.is_clean()


def test_install_sh_beside_a_folder_that_it_may_not_write(unpacked: Unpacked) -> None:
    unpacked.tool.chmod(0o555)
    done = unpacked.run(before=_POWERLESS)
    unpacked.tool.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert unpacked.is_clean()


@pytest.mark.parametrize("mode", [0o555, 0o755])
def test_install_sh_says_in_a_line_that_it_has_no_temporary_folder(
    unpacked: Unpacked, mode: int
) -> None:
    """A limit of no bytes a file stands for disks that are full or read-only, wherever they are."""
    unpacked.tool.chmod(mode)
    done = unpacked.run(
        before=[*_POWERLESS, "/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh"],
        environment=unpacked.bare,
    )
    unpacked.tool.chmod(0o755)
    assert done.returncode == 8, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("install.sh: mirror cannot be unpacked (")
    assert "TMPDIR" in line
    assert unpacked.is_clean()


@pytest.mark.parametrize("damage", ["cut", "not whole"])
def test_install_sh_says_in_a_line_that_the_tool_is_damaged(
    unpacked: Unpacked, damage: str
) -> None:
    wheel = unpacked.tool / "airgap_mirror-0-py3-none-any.whl"
    if damage == "cut":
        wheel.write_bytes(wheel.read_bytes()[:-100])
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("mirror/__init__.py", "")
    done = unpacked.run()
    assert done.returncode == 5, done.stderr
    [line] = done.stderr.splitlines()
    assert "is damaged" in line
    assert unpacked.is_clean()


# -- the launcher and `activate` -----------------------------------------------------------------


def deployed(folder: Path, wheels: Mapping[str, bytes]) -> tuple[Root, Generation]:
    """A root that holds nothing but the tool."""
    root = Root(folder)
    root.prepare()
    artifacts = [
        Artifact("tool", f"tool/{name}", len(data), root.blobs.put(data))
        for name, data in wheels.items()
    ]
    index = Index("demo", "1", "0.1.0", "0" * 64, None, tuple(map(Entry, artifacts)))
    generation = root.begin()
    tool.deploy(artifacts, Site(index, root.blobs, generation, Path(), Quiet()))
    write_activate(generation, root.path)
    root.finish(generation, index)
    root.commit(generation)
    return root, generation


def shell(script: str, *arguments: object, shell: str = "sh") -> str:
    """What a script says in an environment of nothing; the arguments are its $1, $2, ..."""
    line = [shell, "-euc", script, "sh", *map(str, arguments)]
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(line, env=bare, capture_output=True, check=True).stdout.decode()


def test_the_launcher_knows_its_root_whatever_that_is_called(
    tmp_path: Path, wheels: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / ODD / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho ours\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "_base_executable", str(python))
    root, generation = deployed(tmp_path / ODD / "root", wheels)
    launcher = root.path / "current" / "tool" / "bin" / "mirror"
    ours, listed, *_ = shell('"$1" list', launcher).splitlines()
    assert (ours, listed.split()[:4]) == ("ours", ["*", "1", "demo", "1"])
    other = tmp_path / "other"
    shutil.copytree(root.path, other, symlinks=True)
    listed = shell('MIRROR_ROOT="$2" "$1" list --json', launcher, other)
    assert f'"path": "{other}/generations/{generation.path.name}"' in listed


@pytest.mark.parametrize("program", ["dash", "bash"])
def test_activate_survives_a_root_whatever_that_is_called(
    tmp_path: Path, wheels: Mapping[str, bytes], program: str
) -> None:
    if not shutil.which(program):
        pytest.skip(f"no {program} here")
    root, generation = deployed(tmp_path / ODD, wheels)
    said = shell(
        '. "$1/current/activate"; printf "%s\\n" "$MIRROR_ROOT" "$MIRROR_MODELS"; command -v mirror'
        "; mirror list",
        root.path,
        shell=program,
    ).splitlines()
    assert said[:2] == [str(root.path), str(generation.models)]
    assert said[2] == str(generation.tool / "bin" / "mirror")
    assert said[3].split()[:4] == ["*", "1", "demo", "1"]
