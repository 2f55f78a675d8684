"""Which sockets the commands of mirror open, with all that they start: strace tells.

python -m tests.faults.sockets    prints `sockets opened: N`, of the commands that open none
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
MIRROR = (sys.executable, "-m", "mirror")
LACKING = "" if shutil.which("strace") else "strace is not installed"
_CALLS = ("socket", "connect", "bind", "sendto", "sendmsg", "sendmmsg")
_CALL = re.compile(rf"(\d+) +({'|'.join(_CALLS)})\((.*)")
_ADDRESS = re.compile(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"|sun_path=(@?"[^"]*")')
_MANIFEST = """\
name: quiet
version: "{version}"
wheels: {{requirements: [six], installer: {installer}}}
models: [{{path: {manifests}/tiny-llama, name: our/tiny}}]
files: [{{path: {manifests}/demo.yaml, to: demo.yaml}}]
"""
_CONDA = "conda: {{channels: [{manifests}/channel], packages: [demo-notes]}}\n"


@dataclass(frozen=True, slots=True)
class Call:
    """A call that makes a socket, or names an address to one. text: as strace shows it."""

    name: str
    process: int
    text: str

    @property
    def family(self) -> str:
        """AF_INET, AF_UNIX, ...; empty where the call names none."""
        found = re.search(r"\b[AP]F_\w+", self.text)
        return found[0] if found else ""

    @property
    def address(self) -> str:
        """What it names: an IP address or the path of a local socket; empty for none."""
        found = _ADDRESS.search(self.text)
        return next(filter(None, found.groups()), "") if found else ""

    @property
    def is_local(self) -> bool:
        """Whether it names no address, a local socket, or the loopback interface."""
        if not self.address or self.family not in ("AF_INET", "AF_INET6"):
            return True
        found = ipaddress.ip_address(self.address)
        inner = getattr(found, "ipv4_mapped", None)
        return (inner or found).is_loopback

    def __str__(self) -> str:
        return f"{self.process} {self.name}({self.text}"


@dataclass(frozen=True, slots=True)
class Watched:
    """A command that ended, the calls that it and its children made, and their command lines."""

    command: tuple[str, ...]
    code: int
    said: str
    calls: tuple[Call, ...]
    programs: Mapping[int, str]

    @property
    def opened(self) -> list[str]:
        """The sockets, a line each."""
        return [f"{' '.join(self.command)}: {call}" for call in self.calls if call.name == "socket"]


def watch(
    *arguments: object,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
) -> Watched:
    """Run a command of mirror in a folder to its end. wrapper: stands in front of it."""
    command = tuple(map(str, arguments))
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "trace"
        line = ["strace", "-f", "-qq", "-s", "256", "-e", "signal=none", "-o", str(trace)]
        line += ["-e", f"trace={','.join(_CALLS)},execve"]
        done = subprocess.run(
            [*wrapper, *line, *MIRROR, *command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    calls = [Call(m[2], int(m[1]), m[3]) for line in lines if (m := _CALL.match(line))]
    programs = {int(m[1]): m[2] for line in lines if (m := re.match(r"(\d+) +execve\((.*)", line))}
    said = done.stdout.decode(errors="replace")
    return Watched(command, done.returncode, said, tuple(calls), programs)


def build(folder: Path) -> None:
    """Build all.tar.gz in a folder, for this machine, and by-uv.tar.gz and by-pip.tar.gz.

    The latter have no conda packages: for uv and pip, which install them into the environments
    that are made there, env-uv and env-pip.
    """
    for version, name in enumerate(("all", "by-uv", "by-pip"), 1):
        text = _MANIFEST.format(
            version=version,
            installer="pip" if name == "by-pip" else "uv",
            manifests=CHECKOUT / "manifests",
        )
        text += _CONDA.format(manifests=CHECKOUT / "manifests") if name == "all" else ""
        (folder / "mirror.yaml").write_text(text, encoding="utf-8")
        subprocess.run(
            [*MIRROR, "build", "-q", "-o", f"{name}.tar.gz"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
    for env in ENVIRONMENTS:
        venv.create(folder / env, with_pip=False)


def _into(installer: str) -> tuple[str, ...]:
    root = ("--root", f"root-{installer}", "--into", f"env-{installer}", "--yes")
    return ("install", f"by-{installer}.tar.gz", *root)


BUNDLES = ("all.tar.gz", "by-uv.tar.gz", "by-pip.tar.gz")
ENVIRONMENTS = ("env-uv", "env-pip")
#: What opens no socket, in an order that makes sense, in the folder of the bundles.
SILENT: tuple[tuple[str, ...], ...] = (
    ("install", "all.tar.gz", "--dry-run"),
    ("install", "all.tar.gz"),
    ("install", "by-uv.tar.gz"),
    _into("uv"),
    _into("pip"),
    ("list",),
    ("list", "--models"),
    ("list", "--history"),
    ("inspect", "all.tar.gz", "--deep"),
    ("inspect", "all.tar.gz", "--files"),
    ("probe",),
    ("probe", "--summary"),
    ("verify", "--store"),
    ("run", "--", "env/bin/python", "-c", "import six"),
    ("rollback",),
    ("pin", "1"),
    ("pin", "1", "--unpin"),
    ("repair",),
    ("gc", "--keep", "0"),
    ("trust", "list"),
)


def walk(folder: Path, environment: Mapping[str, str] | None = None) -> list[Watched]:
    """Run all of these, for `root` in a folder that `build` has filled."""
    root = {"MIRROR_ROOT": str(folder / "root"), **(environment or {})}
    found = []
    for command in SILENT:
        if command[0] == "run":
            python = folder / "root" / "current" / command[2]
            command = (*command[:2], str(python), *command[3:])
        found.append(watch(*command, folder=folder, environment=root))
    return found


def tally() -> int:
    """How many sockets were opened by the commands that open none, and by what they started.

    Raises AssertionError when one of them fails, RuntimeError without strace.
    """
    if LACKING:
        raise RuntimeError(LACKING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        build(folder)
        found = walk(folder)
    for one in found:
        assert one.code == 0, f"mirror {' '.join(one.command)}: {one.code}\n{one.said}"
        for line in one.opened:
            print(line, file=sys.stderr)
    return sum(len(one.opened) for one in found)


if __name__ == "__main__":
    print(f"sockets opened: {tally()}")
