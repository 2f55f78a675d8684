"""Two hosts on one machine: network namespaces of their own, joined by a cable (a veth pair)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ADDRESSES = ("10.99.0.1", "10.99.0.2")
#: The name that the cable's end has on each host.
CABLE = "wire0"


def reason() -> str:
    """Why there can be no hosts here; empty when there can."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip"):
        return "network namespaces need Linux, root and iproute2"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else ""


@dataclass(frozen=True)
class Host:
    """A host: its namespace's name, and its address."""

    namespace: str
    address: str

    def line(self, *command: str) -> list[str]:
        """The command line that runs `command` on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def run(self, *command: str) -> str:
        """Run a command on this host to its end; its output."""
        done = subprocess.run(self.line(*command), capture_output=True, text=True, check=True)
        return done.stdout

    def start(self, *command: str, **more: Any) -> subprocess.Popen[str]:
        """Start a command on this host; it is the process itself, nothing is between."""
        return subprocess.Popen(self.line(*command), text=True, **more)

    def processes(self) -> list[str]:
        """The command lines of all that runs on this host."""
        pids = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=True
        ).stdout.split()
        found = []
        for pid in pids:
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line:  # else it is dead, and not yet reaped
                    found.append(f"{pid} {line}")
        return found

    def pull_the_cable(self) -> None:
        """No packet goes or comes any more, and nobody is told."""
        self.run("ip", "link", "set", CABLE, "down")


@contextmanager
def two_hosts() -> Iterator[Sequence[Host]]:
    """Two hosts that reach each other; gone afterwards, with all that runs on them."""
    hosts = [Host(f"mirror-{os.getpid()}-{n}", address) for n, address in enumerate(ADDRESSES)]
    try:
        for host in hosts:
            _ip("netns", "add", host.namespace)
        first, second = hosts
        _ip(
            *("link", "add", CABLE, "netns", first.namespace, "type", "veth"),
            *("peer", "name", CABLE, "netns", second.namespace),
        )
        for host in hosts:
            host.run("ip", "address", "add", f"{host.address}/24", "dev", CABLE)
            host.run("ip", "link", "set", CABLE, "up")
            host.run("ip", "link", "set", "lo", "up")
        yield hosts
    finally:
        for host in hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                for line in host.processes():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(line.split()[0]), 9)
                _ip("netns", "delete", host.namespace)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
