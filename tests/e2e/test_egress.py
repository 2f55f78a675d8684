"""Nothing dials out: no socket where none is promised, and loopback alone where processes meet.

By the real commands under strace, and in network namespaces that reach nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.e2e.conftest import mirror
from tests.e2e.test_verify import install as with_environment
from tests.faults import sockets
from tests.faults.sockets import Watched, watch

needs_strace = pytest.mark.skipif(bool(sockets.LACKING), reason=sockets.LACKING)
_UP = """
import fcntl, os, socket, struct, sys
with socket.socket() as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""
#: A namespace without a network; then the same with its loopback interface up.
CUT_OFF = ("unshare", "-n") if os.geteuid() == 0 else ("unshare", "-Urn")
LOOPBACK = (*CUT_OFF, sys.executable, "-c", _UP)
#: How torch asks for the name of 127.0.0.1.
_REVERSE = r"\0011\0010\0010\003127\7in-addr\4arpa"


def cuts_off() -> bool:
    return bool(shutil.which("unshare")) and not subprocess.call([*LOOPBACK, "true"], stderr=-3)


needs_namespaces = pytest.mark.skipif(
    not cuts_off(), reason="this machine lets no network namespace be made (unshare -n, -Urn)"
)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, demo_cache: Path) -> Path:
    """A folder with what `sockets.build` makes."""
    assert demo_cache.is_dir()
    folder = tmp_path_factory.mktemp("bundles").resolve()
    sockets.build(folder)
    return folder


@pytest.fixture
def folder(bundles: Path, tmp_path: Path) -> Path:
    for name in sockets.BUNDLES:
        os.link(bundles / name, tmp_path / name)
    for name in sockets.ENVIRONMENTS:
        venv.create(tmp_path / name, with_pip=False)
    return tmp_path.resolve()


def silent(folder: Path) -> Iterator[tuple[str, ...]]:
    """The commands that open no socket, for `folder/root`."""
    python = folder / "root" / "current" / "env" / "bin" / "python"
    for command in sockets.SILENT:
        yield tuple(str(python) if part == "env/bin/python" else part for part in command)


def all_work(folder: Path, before: Sequence[str], environment: Mapping[str, str]) -> None:
    """Assert that every command that opens no socket does its work."""
    root = {"MIRROR_ROOT": str(folder / "root"), **environment}
    for command in silent(folder):
        mirror(*command, cwd=folder, before=before, environment=root)


@needs_strace
def test_no_socket_is_opened(folder: Path) -> None:
    found = sockets.walk(folder)
    assert {one.command[0]: one.said for one in found if one.code} == {}
    assert [line for one in found for line in one.opened] == []
    assert [str(call) for one in found for call in one.calls if call.family] == []
    programs = " ".join(text for one in found for text in one.programs.values())
    assert "/tool/bin/uv" in programs  # the children were watched
    assert "import runpy, socket" in programs  # pip


@needs_strace
def test_a_socket_would_be_seen(tmp_path: Path) -> None:
    code = (
        "import socket, subprocess, sys\n"
        "sys.argv[1:] or subprocess.run([sys.executable, __file__, 'child'])\n"
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 53))\n"
    )
    (tmp_path / "dial.py").write_text(code, encoding="utf-8")
    with_environment(tmp_path / "root", model=False)
    command = ("run", "--root", tmp_path / "root", "--", sys.executable, tmp_path / "dial.py")
    found = watch(*command, folder=tmp_path)
    assert len({call.process for call in found.calls if call.name == "socket"}) == 2
    away = [call for call in found.calls if not call.is_local]
    assert [(c.name, c.family, c.address) for c in away] == [
        ("connect", "AF_INET", "192.0.2.1")
    ] * 2


@needs_namespaces
def test_all_works_without_a_network(folder: Path) -> None:
    all_work(folder, CUT_OFF, {})


def test_all_works_beside_proxies_and_indexes_that_are_gone(folder: Path) -> None:
    home = folder / "home"
    (home / ".config" / "pip").mkdir(parents=True)
    (home / ".config" / "uv").mkdir()
    gone = "http://127.0.0.1:9"
    pip = f"[global]\nindex-url = {gone}/simple\nextra-index-url = {gone}/more\nproxy = {gone}\n"
    (home / ".config" / "pip" / "pip.conf").write_text(pip, encoding="utf-8")
    uv = f'[[index]]\nurl = "{gone}/simple"\ndefault = true\n[pip]\nindex-url = "{gone}/s"\n'
    (home / ".config" / "uv" / "uv.toml").write_text(uv, encoding="utf-8")
    (home / ".netrc").write_text("machine 127.0.0.1 login a password b\n", encoding="utf-8")
    (home / ".netrc").chmod(0o600)
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
    urls = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL")
    more = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "HF_ENDPOINT")
    environment = {
        **dict.fromkeys(proxies, gone),
        **dict.fromkeys((*urls, *more), f"{gone}/simple"),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "PIP_REQUIRE_VIRTUALENV": "1",
        "PIP_CONFIG_FILE": str(home / ".config" / "pip" / "pip.conf"),
        "UV_CONFIG_FILE": str(home / ".config" / "uv" / "uv.toml"),
        "PYTHONPATH": os.pathsep.join([str(sockets.CHECKOUT), str(folder / "planted")]),
    }
    # What lies in the working directory, or where Python is told to look, is not imported.
    for place in (folder, folder / "planted"):
        place.mkdir(exist_ok=True)
        for name in ("pip", "venv"):
            (place / f"{name}.py").write_text("raise SystemExit('planted')\n", encoding="utf-8")
    all_work(folder, (), environment)


@needs_namespaces
def test_verify_without_loopback_says_so(tmp_path: Path) -> None:
    with_environment(tmp_path / "root", model=False, verify={"steps": 12})
    done = mirror("verify", "--root", tmp_path / "root", code=9, before=CUT_OFF)
    said = " ".join(done.stdout.split())
    assert "127.0.0.1 cannot be reached: Network is unreachable" in said
    assert "ip link set lo up" in said
    assert "single pass" in said  # what needs no network was proved all the same
    assert "multi skip host (loopback) failed" in said


def strays(found: Watched) -> list[str]:
    """What went elsewhere than to this machine, but for two habits of torch (docs/verify.md).

    Its launcher listens on all interfaces, and it asks for the name of 127.0.0.1.
    """
    asking = {c.process for c in found.calls if c.name.startswith("send") and _REVERSE in c.text}
    kept = []
    for call in found.calls:
        anywhere = call.name == "bind" and call.address == "::"
        if anywhere and "accelerate.commands.launch" in found.programs.get(call.process, ""):
            continue
        asks = call.process in asking or "ENETUNREACH" in call.text
        if call.name == "connect" and "htons(53)" in call.text and asks:
            continue
        question = (
            call.name.startswith("send") and "arpa" in call.text and _REVERSE not in call.text
        )
        if not call.is_local or question:
            kept.append(str(call))
    return kept


@needs_strace
@needs_namespaces
def test_verify_stays_on_loopback_and_needs_nothing_else(tmp_path: Path) -> None:
    with_environment(tmp_path / "root", model=False, verify={"steps": 12})
    command = ("verify", "--root", tmp_path / "root")
    found = watch(*command, folder=tmp_path, wrapper=LOOPBACK)
    assert found.code == 0, found.said
    assert "2 CPU processes trained together (gloo)" in found.said
    assert strays(found) == []
    assert any(call.name == "connect" and call.family == "AF_INET" for call in found.calls)


@needs_strace
def test_a_script_on_two_processes_stays_on_loopback(tmp_path: Path) -> None:
    with_environment(tmp_path / "root", model=False)
    script = (
        "import accelerate, torch\n"
        "a = accelerate.Accelerator()\n"
        "print('sum', a.reduce(torch.ones(1)).item())\n"
        "a.end_training()\n"
    )
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    command = ("run", "--root", tmp_path / "root", "--processes", "2", "--", "train.py")
    found = watch(*command, folder=tmp_path)
    assert found.code == 0, found.said
    assert "sum 2.0" in found.said
    assert strays(found) == []
