"""A real Slurm of two nodes on one machine: a slurmd on each of two hosts, slurmctld on the first.

Needs root and Debian's slurm-wlm and munge; nothing of the machine's own Slurm is used or changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests import hosts as machines
from tests.hosts import Host

NAMES = ("node0", "node1")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
#: Seconds for a daemon to be there.
_PATIENCE = 60.0


def reason() -> str:
    """Why there can be no Slurm here; empty when there can."""
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=_PATH)]
    if missing:
        return f"{', '.join(missing)} of Debian's slurm-wlm and munge are not installed"
    return machines.reason()


@dataclass(frozen=True)
class Slurm:
    """A cluster that is up. folder: for its files, and for what its jobs leave."""

    folder: Path
    hosts: Sequence[Host]

    def command(self, number: int, *words: str) -> list[str]:
        """The command line that runs one of Slurm's programs on a host, under the host's name."""
        files = self.folder / "hosts"
        script = f'hostname {NAMES[number]}; mount --bind {files} /etc/hosts; exec "$@"'
        # Not `ip netns exec`, which mounts a /sys without control groups: slurmd wants them.
        network = f"--net=/run/netns/{self.hosts[number].namespace}"
        inside = ["unshare", "--mount", "--uts", "sh", "-c", script, "sh", *words]
        return ["nsenter", network, "--", *inside]

    @property
    def environ(self) -> dict[str, str]:
        """For the programs: where the configuration is."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _PATH}

    def srun(self, *words: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run srun on the first host to its end."""
        return subprocess.run(
            self.command(0, "srun", *words),
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@contextmanager
def cluster(folder: Path, hosts: Sequence[Host]) -> Iterator[Slurm]:
    """Start munged, slurmctld and the two slurmd; end them, and what they started, afterwards."""
    slurm = Slurm(folder, hosts)
    _configure(slurm)
    with ExitStack() as stack:

        def start(name: str, *line: str) -> None:
            log = stack.enter_context(open(folder / f"{name}.log", "wb"))
            process = subprocess.Popen(
                line, env=slurm.environ, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)

        munge = [f"--{name}={folder / f'munge.{name}'}" for name in _MUNGE]
        start("munged", "munged", "--foreground", "--force", *munge)
        _wait(lambda: (folder / "munge.socket").exists(), folder / "munged.log")
        start("slurmctld", *slurm.command(0, "slurmctld", "-D", "-c"))
        for number, name in enumerate(NAMES):
            start(name, *slurm.command(number, "slurmd", "-D", "-N", name))
        _wait(lambda: _idle(slurm) == 2, folder / "slurmctld.log")
        yield slurm


_MUNGE = ("socket", "key-file", "pid-file", "log-file", "seed-file")


def _configure(slurm: Slurm) -> None:
    folder = slurm.folder
    for name in ("state", *NAMES):
        (folder / name).mkdir()
    key = folder / "munge.key-file"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    lines = [f"{host.address} {name}" for host, name in zip(slurm.hosts, NAMES, strict=True)]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(lines) + "\n")
    settings = {
        "ClusterName": "test",
        "SlurmctldHost": f"{NAMES[0]}({slurm.hosts[0].address})",
        "SlurmUser": "root",
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder / 'munge.socket'}",
        "StateSaveLocation": folder / "state",
        "SlurmdSpoolDir": folder / "%n",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmdPidFile": folder / "slurmd-%n.pid",
        "ProctrackType": "proctrack/pgid",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "ReturnToService": 2,
        "SchedulerType": "sched/builtin",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "KillWait": 10,
    }
    nodes = [
        f"NodeName={name} NodeAddr={host.address} CPUs=2 State=UNKNOWN"
        for host, name in zip(slurm.hosts, NAMES, strict=True)
    ]
    text = [f"{name}={value}" for name, value in settings.items()]
    text += [*nodes, "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP"]
    (folder / "slurm.conf").write_text("\n".join(text) + "\n")


def _idle(slurm: Slurm) -> int:
    line = slurm.command(0, "sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
    done = subprocess.run(line, env=slurm.environ, capture_output=True, text=True, check=False)
    return len(done.stdout.split())


def _wait(until: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not until():
        if time.monotonic() > deadline:
            raise AssertionError(f"{log.stem} is not there: {log.read_text(errors='replace')}")
        time.sleep(0.2)
