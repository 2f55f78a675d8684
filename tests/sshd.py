"""An sshd of our own on this machine, for tests of what happens behind `ssh SERVER`."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextmanager
def serving(folder: Path) -> Iterator[list[str]]:
    """The start of an ssh command line to it; `folder` takes its keys. Skips without an sshd."""
    if SSHD is None:
        pytest.skip("sshd is not installed (Debian: openssh-server)")
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
