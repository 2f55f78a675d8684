"""Bundles that are no file on this machine: through a pipe, through sshd, in volumes, at a URL."""

from __future__ import annotations

import functools
import getpass
import http.server
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from mirror.bundle import layout, writer
from mirror.core.artifact import Artifact
from mirror.core.progress import Quiet
from tests import bundles, memory
from tests.e2e.conftest import CHECKOUT, mirror, mirror_json

MIRROR = [sys.executable, "-m", "mirror"]
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
MANIFEST = 'name: sent\nversion: "1"\nfiles: [{path: data/, to: data/}]\n'


@dataclass(frozen=True)
class Project:
    """A manifest, the bundle that it gives, and a root beside it."""

    folder: Path
    bundle: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"


@pytest.fixture
def project(tmp_path: Path, demo_cache: Path) -> Project:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights").write_bytes(os.urandom(3_000_000))
    (tmp_path / "mirror.yaml").write_text(MANIFEST, encoding="utf-8")
    built = mirror_json("build", cwd=tmp_path)
    return Project(tmp_path, tmp_path / built["bundle"])


def start(
    command: Sequence[object], cwd: Path, *, source: int | IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stdin=source,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def build_into(project: Project, receiver: Sequence[object]) -> Any:
    """`mirror build -o - | RECEIVER`; the receiver's one JSON document."""
    builder = start([*MIRROR, "build", "-o", "-"], project.folder)
    taker = start(receiver, project.folder, source=builder.stdout)
    assert builder.stdout is not None
    builder.stdout.close()
    out, err = taker.communicate(timeout=300)
    assert taker.returncode == 0, err.decode()
    assert builder.stderr is not None
    with builder.stderr as log:
        assert builder.wait(300) == 0, log.read().decode()
    return json.loads(out)


def nothing_half_made(root: Path) -> None:
    assert not (root / "current").is_symlink()
    assert list((root / "generations").iterdir()) == []
    assert [p for p in (root / "store").rglob("*") if p.is_file() and len(p.name) != 64] == []


# -- a pipe -------------------------------------------------------------------------------------


def test_from_a_build_through_a_pipe(project: Project) -> None:
    installed = build_into(project, [*MIRROR, "install", "-", "--root", project.root, "--json"])
    assert installed["digest"] == mirror_json("inspect", project.bundle)["digest"]
    there = project.root / "current" / "files" / "data" / "weights"
    assert there.read_bytes() == (project.folder / "data" / "weights").read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_stream_that_is_cut(project: Project, share: float) -> None:
    data = project.bundle.read_bytes()
    count = int(len(data) * share)
    taker = start(
        [*MIRROR, "install", "-", "--root", project.root], project.folder, source=subprocess.PIPE
    )
    _, err = taker.communicate(data[:count], timeout=300)
    assert taker.returncode == 5
    said = err.decode()
    assert (f"ends after {count:,} bytes of {len(data):,}" if count else "it is empty") in said
    if count:
        nothing_half_made(project.root)


def test_memory_is_constant(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", {"files/small": b"s"})
    size = 500_000_000
    large = tmp_path / "in" / "large"
    with open(large, "wb") as file:
        file.truncate(size)
    digest = subprocess.run(["sha256sum", large], capture_output=True, check=True).stdout[:64]
    artifact = Artifact("files", "files/large", size, digest.decode())
    large.rename(made.locate(artifact))
    index = bundles.index_of(*made.index.artifacts, artifact)
    writer.pack_file(index, b"", made.locate, tmp_path / "b", Quiet())
    root = tmp_path / "root"
    cat = subprocess.Popen(["cat", tmp_path / "b"], stdout=subprocess.PIPE)
    assert cat.stdout is not None
    with cat.stdout, open(tmp_path / "log", "wb") as log, tempfile.TemporaryFile() as most:
        taker = subprocess.Popen(
            memory.command(most, "install", "-", "--root", root),
            cwd=CHECKOUT,
            stdin=cat.stdout,
            stderr=log,
            pass_fds=[most.fileno()],
        )
        assert (taker.wait(300), cat.wait(60)) == (0, 0)
        assert memory.peak(most) < 150_000_000
    assert (root / "current" / "files" / "large").stat().st_size == size


def test_agreement_cannot_be_asked_for_beside_a_bundle(project: Project) -> None:
    taker = start([*MIRROR, "install", "-", "--into", "."], project.folder, source=subprocess.PIPE)
    _, err = taker.communicate(project.bundle.read_bytes(), timeout=300)
    assert taker.returncode == 2
    assert "--yes" in err.decode()


# -- sshd ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The start of an ssh command line to an sshd of our own on this machine."""
    if SSHD is None:
        pytest.skip("sshd is not installed (Debian: openssh-server)")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(key, check=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # what the service's unit makes
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
    }
    config = folder / "sshd_config"
    config.write_text("".join(f"{k} {v}\n" for k, v in settings.items()), encoding="utf-8")
    host = (folder / "host.pub").read_text(encoding="utf-8")
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host}", encoding="utf-8")
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=log)
    options = [f"UserKnownHostsFile={folder / 'known'}", "BatchMode=yes", "IdentitiesOnly=yes"]
    options += ["ConnectionAttempts=20"]  # a second apart, until it listens
    try:
        yield [
            *("ssh", "-F", "none", "-i", str(folder / "user"), "-p", str(port)),
            *(word for option in options for word in ("-o", option)),
            f"{getpass.getuser()}@127.0.0.1",
        ]
    finally:
        server.terminate()
        server.wait(60)


def remote(*command: object) -> str:
    """What a person would type behind `ssh SERVER`."""
    words = ["env", f"PYTHONPATH={CHECKOUT}", *MIRROR, *command]
    return shlex.join(map(str, words))


def test_from_a_build_through_sshd(project: Project, ssh: list[str]) -> None:
    command = remote("install", "-", "--root", project.root, "--json")
    installed = build_into(project, [*ssh, command])
    assert installed["changed"]
    there = project.root / "current" / "files" / "data" / "weights"
    assert there.read_bytes() == (project.folder / "data" / "weights").read_bytes()


def test_a_connection_that_is_cut(project: Project, ssh: list[str]) -> None:
    data = project.bundle.read_bytes()
    sender = start(
        [*ssh, remote("install", "-", "--root", project.root)],
        project.folder,
        source=subprocess.PIPE,
    )
    _, err = sender.communicate(data[: len(data) // 2], timeout=300)
    assert sender.returncode == 5
    assert f"ends after {len(data) // 2:,} bytes of {len(data):,}" in err.decode()
    nothing_half_made(project.root)


# -- volumes ------------------------------------------------------------------------------------


def test_volumes_on_two_mount_points(project: Project) -> None:
    built = mirror_json("build", "--volume-size", "500k", cwd=project.folder)
    place = project.folder / built["bundle"]
    first, second = place.parent, project.folder / "second"
    volumes = sorted(first.glob("*.tar.gz.0*"))
    assert len(volumes) == built["volumes"] > 6
    assert b"".join(v.read_bytes() for v in volumes) == project.bundle.read_bytes()
    again = mirror_json("build", "--volume-size", "500k", cwd=project.folder)
    assert not again["changed"]
    second.mkdir()
    for volume in volumes[::2]:
        shutil.move(volume, second)

    (found,) = mirror_json("inspect", "--volumes", first, code=5)
    assert [v["state"] for v in found["volumes"]][:2] == ["missing", "whole"]
    assert "send again: sent-1.tar.gz.001 " in mirror("inspect", "--volumes", first, code=5).stdout
    (found,) = mirror_json("inspect", "--volumes", first, second)
    assert found["whole"]

    # As on a server that has nothing yet.
    unpack = 'cat "$@" | tar -xzf - install.sh tool'
    places = [(second if n % 2 == 0 else first) / v.name for n, v in enumerate(volumes)]
    subprocess.run(["sh", "-c", unpack, "sh", *places], cwd=project.folder, check=True)
    script = ["sh", "install.sh", places[1], places[0], "--root", project.root]
    subprocess.run(script, cwd=project.folder, check=True, env={"PATH": os.environ["PATH"]})
    there = project.root / "current" / "files" / "data" / "weights"
    assert there.read_bytes() == (project.folder / "data" / "weights").read_bytes()
    assert {p.name for p in (*first.iterdir(), *second.iterdir())} == {
        project.bundle.name,
        place.name,
        *(v.name for v in volumes),
    }


# -- a URL --------------------------------------------------------------------------------------


class _Counting(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and counts the bytes of files that it could send."""

    sent = 0

    def copyfile(self, source: Any, outputfile: Any) -> None:
        while data := source.read(2**16):
            outputfile.write(data)
            type(self).sent += len(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    _Counting.sent = 0
    handler = functools.partial(_Counting, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_only_the_head_comes_from_a_url(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", {"files/large": bytes(100_000_000)})
    made.pack(tmp_path / "b.tar.gz")
    with serving(tmp_path) as url:
        seen = mirror_json("inspect", f"{url}/b.tar.gz")
        assert _Counting.sent < 10_000_000  # what the machine's buffers took
    assert seen["digest"] == made.index.digest
    assert seen["bytes"] == layout.bundle_size(made.index)
    assert mirror_json("inspect", (tmp_path / "b.tar.gz").as_uri()) == seen


def test_all_of_it_is_checked_when_asked_for(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", {"files/a": bytes(3_000_000)})
    data = bytearray(made.pack(tmp_path / "b.tar.gz"))
    data[1_000_000] ^= 1
    (tmp_path / "wrong.tar.gz").write_bytes(data)
    (tmp_path / "cut.tar.gz").write_bytes(data[:-1])
    with serving(tmp_path) as url:
        assert mirror_json("inspect", "--deep", f"{url}/b.tar.gz")["checked"]
        said = mirror("inspect", "--deep", f"{url}/wrong.tar.gz", code=5).stderr
        assert f"{url}/wrong.tar.gz is damaged: files/a" in said
        assert "1 bytes short" in mirror("inspect", f"{url}/cut.tar.gz", code=5).stderr
        assert "404" in mirror("inspect", f"{url}/none.tar.gz", code=4).stderr
    said = mirror("inspect", "ftp://127.0.0.1/b.tar.gz", code=2).stderr
    assert "ftp" in said


def test_install_does_not_dial(project: Project) -> None:
    said = mirror("install", "http://127.0.0.1:9/b.tar.gz", "--root", project.root, code=2).stderr
    assert "mirror inspect" in said
