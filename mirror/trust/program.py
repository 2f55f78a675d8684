"""Signing through ssh-keygen, which finds a private key in an agent, on a token or in a file.

It asks for PIN, touch or passphrase itself, on the terminal or through SSH_ASKPASS.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mirror.core.paths import shown
from mirror.errors import MachineError, UsageError
from mirror.trust import sshsig
from mirror.trust.keys import PublicKey
from mirror.trust.private import Person, checked
from mirror.trust.sshsig import NAMESPACE, Signature

_MAX_SIGNATURE_BYTES = 2**16


class ProgramKey:
    """A key whose private half ssh-keygen finds; path: what to name to it, None for an agent's."""

    def __init__(self, public: PublicKey, path: Path | None, person: Person) -> None:
        self.public = public
        self._path = path
        self._person = person

    def unlock(self) -> None:
        """Nothing: what ssh-keygen asks for, it asks when it signs."""

    def sign(self, data: bytes) -> Signature:
        """As SigningKey has it."""
        if self._path is not None:
            return self._sign(data, self._path)
        with tempfile.TemporaryDirectory(prefix="mirror-") as folder:
            path = Path(folder) / "key.pub"
            path.write_text(f"{self.public.line}\n", encoding="utf-8")
            return self._sign(data, path)

    def _sign(self, data: bytes, path: Path) -> Signature:
        said: list[str] = []
        with tempfile.TemporaryFile() as message:
            message.write(data)
            message.seek(0)
            command = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(path)]
            with _started(command, message.fileno()) as process:
                assert process.stderr is not None and process.stdout is not None  # noqa: S101, PT018
                for raw in process.stderr:
                    line = shown(raw.decode("utf-8", "replace").strip())
                    if line and not line.startswith("Signing data"):
                        said.append(line)
                        if self.public.in_hardware:  # "Confirm user presence ..."
                            self._person.tell(line)
                made = process.stdout.read(_MAX_SIGNATURE_BYTES)
        if process.returncode:
            raise UsageError(
                f"ssh-keygen did not sign with {self.public.label}",
                problems=said,
                hint="The private half has to be in the agent (ssh-add), on a token that is plugged"
                " in, or in the file.",
            )
        try:
            [found] = sshsig.read(made)
        except ValueError as error:
            raise MachineError(f"what ssh-keygen made is no signature: {error}") from None
        if isinstance(found, sshsig.Unreadable):
            raise UsageError(found.why)
        return checked(found, self.public, data)


def of_agent(which: str, person: Person) -> ProgramKey:
    """The agent's key of that comment or fingerprint. Raises UsageError where it is not one."""
    with _started(["ssh-add", "-L"], subprocess.DEVNULL) as process:
        out, err = process.communicate()
    if process.returncode and not out.startswith(b"The agent has no identities"):
        raise MachineError(
            "no agent answers",
            problems=[shown(line) for line in err.decode("utf-8", "replace").splitlines()],
            hint='Start one and give it the key: eval "$(ssh-agent)" && ssh-add KEY',
        )
    known: list[PublicKey] = []
    for line in out.decode("utf-8", "replace").splitlines():
        try:
            known.append(PublicKey.from_line(line))
        except ValueError:
            continue  # of a kind that makes no signatures here
    found = [key for key in known if which in (key.comment, key.fingerprint)]
    if len(found) != 1:
        many = "more than one key" if found else "no key"
        raise UsageError(
            f"the agent has {many} that is called {shown(which)}",
            problems=[f"{key.label}  {shown(key.comment)}" for key in known],
            hint="Name one by its fingerprint: --key agent:SHA256:...",
        )
    return ProgramKey(found[0], None, person)


def _started(command: Sequence[str], source: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except FileNotFoundError:
        raise MachineError(
            f"{command[0]} is not on PATH",
            hint="Keys of agents and tokens are used through it: install OpenSSH's client.",
        ) from None
    except OSError as error:
        raise MachineError(f"{command[0]} does not run: {error.strerror}") from None
