"""The other resolver: pip-tools, for those whose rules ask for pip's own answer.

It resolves for the machine it runs on and no other, until some of pip is replaced; so it runs in a
process of its own, pip_tools_child.py. docs/adr/0004 says what is replaced.
"""

from __future__ import annotations

import json
import netrc
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from packaging.utils import canonicalize_name

from mirror.core.compat import version
from mirror.core.paths import masked
from mirror.core.secrets import is_secret
from mirror.core.target import Target
from mirror.ecosystems.wheels import tags
from mirror.ecosystems.wheels.indexes import Index, Indexes
from mirror.ecosystems.wheels.uv import Pin
from mirror.errors import MachineError, MirrorError, ResolutionError

#: What pip is to know of its environment: how to reach an index, not which one or what for.
_HARMLESS = {
    *("PIP_CACHE_DIR", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_PROXY"),
    *("PIP_KEYRING_PROVIDER", "PIP_RETRIES", "PIP_TIMEOUT", "PIP_TRUSTED_HOST"),
}
_POSIX = {"os_name": "posix"}
_LINUX = {**_POSIX, "sys_platform": "linux", "platform_system": "Linux"}
#: What markers (PEP 508) see on each platform; the kernel's version is nobody's to know.
_MARKERS: Mapping[str, Mapping[str, str]] = {
    "linux-x86_64": {**_LINUX, "platform_machine": "x86_64"},
    "linux-aarch64": {**_LINUX, "platform_machine": "aarch64"},
    "win-amd64": {
        "os_name": "nt",
        "sys_platform": "win32",
        "platform_system": "Windows",
        "platform_machine": "AMD64",
    },
    "macos-arm64": {
        **_POSIX,
        "sys_platform": "darwin",
        "platform_system": "Darwin",
        "platform_machine": "arm64",
    },
}


def resolve(
    requirements: Sequence[str],
    target: Target,
    folder: Path,
    *,
    constraints: Sequence[str] = (),
    find_links: Sequence[Path] = (),
    indexes: Indexes | None = None,
    kept: Sequence[tuple[str, str]] = (),
    exclude_newer: str | None = None,
    prereleases: bool = False,
    wheels_only: Collection[str] | None = None,
) -> list[Pin]:
    """The wheels that satisfy the requirements on the target, one a package, sorted by name.

    The arguments are those of `uv.resolve`; an sdist that may be chosen is asked for its metadata,
    which runs its code. A size is known where the index answers in JSON.
    Raises ResolutionError with pip's reasons, DownloadError when an index cannot be read,
    MachineError when pip-tools is not installed or pip is another than the supported one.
    """
    only = [":all:"] if wheels_only is None else sorted(wheels_only)
    options = [part for name in only for part in ("--only-binary", name)]
    options += ["--pre"] if prereleases else []
    options += ["--uploaded-prior-to", exclude_newer] if exclude_newer else []
    for place in find_links:
        options += ["--find-links", str(place)]
    sources, own = _sources(indexes)
    request = {
        "requirements": list(requirements),
        "constraints": list(constraints),
        "kept": {canonicalize_name(name): version for name, version in kept},
        "options": [*options, *sources],
        "own": own,
        "logins": _logins(indexes),
        "sdists": wheels_only is not None,
        "folder": str(folder),
        "markers": markers(target),
        "platforms": tags.platforms(target),
        "python": version(target.python),
    }
    answer = _ask(request, folder, _environment(indexes, folder))
    if "failure" in answer:
        raise _explained(answer["failure"], answer["problems"], target, indexes)
    return sorted((Pin(**pin) for pin in answer["pins"]), key=lambda pin: pin.name)


def _sources(indexes: Indexes | None) -> tuple[list[str], dict[str, object]]:
    """pip's options, and the packages that have an index of their own.

    No credentials: pip gives its options to the pips that it starts, on their command lines, which
    every user of the machine can read.
    """
    if indexes is None:
        return ["--no-index", "--no-cache-dir"], {}
    options = ["--index-url", indexes.default.plain]
    own: dict[str, object] = {}
    for index in (indexes.default, *indexes.named):
        own |= {name: {"url": index.plain, "flat": index.flat} for name in index.only}
        if index.url.startswith("http:"):  # whoever names it there has decided
            options += ["--trusted-host", urlsplit(index.plain).netloc]
    return options, own


def _logins(indexes: Indexes | None) -> list[str]:
    """The addresses of all indexes, with their credentials: for the child's own requests alone."""
    return [_address(index) for index in (indexes.default, *indexes.named)] if indexes else []


def _address(index: Index) -> str:
    if index.credentials is None:
        return index.url
    parts = urlsplit(index.plain)
    login = ":".join(quote(part, safe="") for part in index.credentials)
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc}"))


def markers(target: Target) -> dict[str, str]:
    """The environment that markers are evaluated in: CPython's first release of the version."""
    return {
        **_MARKERS[target.platform],
        "implementation_name": "cpython",
        "implementation_version": f"{target.python}.0",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_version": "",
        "python_full_version": f"{target.python}.0",
        "python_version": target.python,
    }


def _ask(
    request: Mapping[str, object], folder: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """The child's answer."""
    # Not in a variable or an argument: an index's address may hold a password.
    done = subprocess.run(
        [sys.executable, Path(__file__).resolve().with_name("pip_tools_child.py")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        check=False,
        cwd=folder,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        words = done.stderr.strip().splitlines()[-1:]
        ending = f"it ended with code {done.returncode}"
        return {"failure": "other", "problems": [ending, *words]}
    return answer


def _environment(indexes: Indexes | None, folder: Path) -> dict[str, str]:
    """This process's, without secrets and what would change the answer behind our back.

    With the default index's login in a netrc file: what is needed to build comes from that index,
    and is fetched by pips that pip starts.
    """
    found = {
        **{k: v for k, v in os.environ.items() if k in _HARMLESS or not _is_foreign(k)},
        "PIP_CONFIG_FILE": os.devnull,
    }
    if indexes and indexes.default.credentials:
        found["NETRC"] = str(_write_netrc(indexes.default, folder))
    return found


def _is_foreign(name: str) -> bool:
    return name.startswith("PIP_") or is_secret(name)


def _write_netrc(index: Index, folder: Path) -> Path:
    """A netrc file of the user's own lines and an index's login."""
    host, (user, password) = urlsplit(index.plain).hostname, index.credentials or ("", "")
    entry = f"machine {host} login {_token(user)} password {_token(password)}\n"
    path = folder / "netrc"
    path.touch(mode=0o600)
    # Python takes the last of two entries for one host.
    path.write_bytes(_users_netrc() + b"\n" + entry.encode())
    return path


def _users_netrc() -> bytes:
    """The lines that pip would read; none where it would not, since they are malformed."""
    named = os.environ.get("NETRC")
    places = [
        Path(place).expanduser() for place in ([named] if named else ["~/.netrc", "~/_netrc"])
    ]
    for place in places:
        if place.exists():
            try:
                netrc.netrc(str(place))
                return place.read_bytes()
            except (netrc.NetrcParseError, ValueError, OSError):
                break
    return b""


def _token(text: str) -> str:
    """A word as the netrc module of this Python reads it; 3.10 knows no quotes."""
    if sys.version_info < (3, 11):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _explained(
    failure: str, problems: Sequence[str], target: Target, indexes: Indexes | None
) -> MirrorError:
    lines = [masked(problem) for problem in problems]
    if failure == "resolution":
        # Where the stub lies that stands for what the target provides, says nothing to anybody.
        lines = [line for line in lines if "(constraint)" not in line or "(from file:" not in line]
        said = " ".join(lines)
        lines += [f"The target provides {item}." for item in target.provided if _named(item, said)]
        return ResolutionError(
            "no set of wheels satisfies the requirements",
            problems=lines,
            hint="Change a requirement that these lines name, or the target.",
        )
    if failure == "download" and indexes:
        return indexes.unreadable(lines)
    if failure == "versions":
        return MachineError(
            "the resolver pip-tools is not installed as mirror needs it",
            problems=lines,
            hint="Run: python -m pip install 'airgap-mirror[pip-tools]'",
        )
    return ResolutionError("the resolver failed", problems=lines)


def _named(item: str, text: str) -> bool:
    """Whether a text speaks of a provided package, NAME==VERSION."""
    name = canonicalize_name(item.partition("==")[0])
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None
