"""The channels of a manifest: folders, URLs, or names that rattler knows how to find."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

from mirror.core.requirements.values import Line, Mistake
from mirror.ecosystems.conda.records import REPODATA
from mirror.ecosystems.conda.solving import credentials
from mirror.fetch.request import basic

_PATH = re.compile(r"\.{0,2}[/\\]|\.{1,2}$|~|[A-Za-z]:[/\\]|.*[/\\]$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9._-]+)*")
_HOST = re.compile(r"[A-Za-z0-9._-]+(?::[0-9]+)?|\[[0-9a-fA-F:.]+\](?::[0-9]+)?")
_TOKEN = re.compile(r"/t/([^/]+)(?=/)")
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel.

    name: what the lock and the bundle call it; holds no host and no secret.
    location: what rattler calls it: an absolute path, a URL without credentials, or a name.
    folder: where it is, when it is a folder.
    headers: credentials, for its server alone.
    address: where it is asked, when a token has to stand in its path; else empty.
    """

    name: str
    location: str
    folder: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    address: str = field(default="", repr=False)

    @property
    def base(self) -> str:
        """The URL that its SUBDIR/FILE is under, without credentials; ends with a slash."""
        import rattler

        return rattler.Channel(self.location).base_url

    def url(self, path: str) -> str:
        """Where a file of it is asked for. May hold a token: for requests, never for people."""
        return f"{self.address or self.base}{path}"

    def masked(self, text: str) -> str:
        """A text of others about this channel, without its token."""
        found = _TOKEN.search(self.address)
        return text.replace(found[1], "****") if found else text


def parse(lines: Sequence[Line], beside: Path) -> tuple[list[Channel], list[Mistake]]:
    """The channels that are listed, in the order of their priority, and what is wrong.

    A folder is written as a path (./channel, channel/, /srv/channel, file:///srv/channel), so that
    no folder which is missing turns into a name that is looked up elsewhere, and no name changes
    its meaning with the folders around it. `beside` is where paths start. ${NAME} is filled in from
    the environment. A name that is also the name of a listed address means that address.
    """
    found: dict[str, Channel] = {}
    first: dict[str, Line] = {}
    mistakes = []
    for line in lines:
        if line.text == "nodefaults":  # there are none here
            continue
        try:
            channel = _parse(_filled(line.text), beside)
        except ValueError as error:
            mistakes.append(Mistake(str(error), line.where))
            continue
        first.setdefault(channel.name, line)
        known = found.setdefault(channel.name, channel)
        if _is_name(known):
            found[channel.name] = channel
        elif not _is_name(channel) and _address(channel) != _address(known):
            mistakes.append(
                Mistake(f"a second channel is called {channel.name}: keep one", line.where)
            )
    for channel in filter(_is_name, found.values()):
        if reason := _no_name(channel.name, beside):
            mistakes.append(Mistake(reason, first[channel.name].where))
    return [_with_credentials(channel) for channel in found.values()], mistakes


def _no_name(name: str, beside: Path) -> str | None:
    """Why a channel cannot be called by its name alone."""
    if name == "defaults":
        return (
            "defaults stands for what conda's own configuration says, as a rule for channels that "
            "firms pay for: take it out, write main (and r) for them, or list a channel of that "
            "name under conda.channels: https://HOST/defaults, ./defaults"
        )
    if any((beside / name).glob(f"*/{REPODATA}")):
        return f"{name} is also a folder here: write ./{name} for it, or the URL for the channel"
    return None


def _is_name(channel: Channel) -> bool:
    return channel.location == channel.name


def _address(channel: Channel) -> str:
    return channel.location.rstrip("/")


def _filled(text: str) -> str:
    """The text with variables of the environment. Raises ValueError for one that is not set."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in os.environ:
            raise ValueError(f"the variable {name} is not set here")
        return os.environ[name]

    return _VARIABLE.sub(value, text)


def _parse(text: str, beside: Path) -> Channel:
    scheme, separator, _ = text.partition("://")
    if not separator:
        if _PATH.match(text):
            return _folder(text, (beside / Path(text).expanduser()).resolve())
        if not _NAME.fullmatch(text):
            raise ValueError(f"{text}: channels are folders (./channel), http(s) URLs or names")
        return Channel(name=text, location=text)
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError as error:
        raise ValueError(f"{scheme}://...: {error}") from None
    if scheme == "file":
        return _folder(text, Path(url2pathname(url.path)))
    host = url.netloc.rpartition("@")[2]
    if scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise ValueError(f"{scheme}://{host}: channels are folders, http(s) URLs or names")
    headers = {}
    if url.username is not None:
        headers = basic(unquote(url.username), unquote(url.password or ""))
    path = _TOKEN.sub("", url.path, count=1)
    location = urlunsplit((scheme, host, path, "", ""))
    address = urlunsplit((scheme, host, url.path.rstrip("/") + "/", "", ""))
    return Channel(
        _short(path), location, headers=headers, address=address if path != url.path else ""
    )


def _with_credentials(channel: Channel) -> Channel:
    """With those that are kept for its server, when it came without."""
    if channel.folder or channel.headers or channel.address:
        return channel
    stored = credentials.of(channel.base)
    if stored is None:
        return channel
    if isinstance(stored, credentials.Token):
        url = urlsplit(channel.base)
        return replace(channel, address=urlunsplit(url._replace(path=f"/t/{stored}{url.path}")))
    return replace(channel, headers=stored)


def _folder(text: str, path: Path) -> Channel:
    if not path.is_dir():
        raise ValueError(f"{text}: there is no folder {path}")
    if not any(path.glob(f"*/{REPODATA}")):
        raise ValueError(f"{text}: {path} is no channel: it has no SUBDIR/{REPODATA}")
    return Channel(name=path.name or "channel", location=str(path), folder=path)


def _short(path: str) -> str:
    """ "/mirrors/conda-forge/" is conda-forge, "/nvidia/label/cuda-12" is nvidia/label/cuda-12."""
    parts = [part for part in path.split("/") if part] or ["channel"]
    first = parts.index("label") - 1 if "label" in parts[1:] else len(parts) - 1
    return "/".join(parts[first:])
