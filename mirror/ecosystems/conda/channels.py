"""The channels of a manifest: folders, URLs, or names that rattler knows how to find."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

from mirror.errors import UsageError

_PATH = re.compile(r"\.{0,2}[/\\]|\.{1,2}$|~|[A-Za-z]:[/\\]|.*[/\\]$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9._-]+)*")
_HOST = re.compile(r"[A-Za-z0-9._-]+(?::[0-9]+)?|\[[0-9a-fA-F:.]+\](?::[0-9]+)?")
_TOKEN = re.compile(r"/t/[^/]+/")


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel.

    name: what the lock and the bundle call it; holds no host and no secret.
    location: what rattler calls it: an absolute path, a URL without credentials, or a name.
    folder: where it is, when it is a folder.
    headers: the credentials that its URL held, for its server alone.
    """

    name: str
    location: str
    folder: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


def parse(texts: Sequence[str], beside: Path) -> list[Channel]:
    """The channels that a manifest in the folder `beside` lists, in the order of their priority.

    A folder is written as a path (./channel, channel/, /srv/channel, file:///srv/channel), so that
    no folder which is missing turns into a name that is looked up elsewhere, and no name changes
    its meaning with the folders around it. Raises UsageError that names all that are wrong.
    """
    channels: dict[str, Channel] = {}
    problems = []
    for text in texts:
        try:
            channel = _parse(text, beside)
        except ValueError as error:
            problems.append(str(error))
            continue
        if channel.name in channels:
            problems.append(f"two channels are both called {channel.name}")
        channels[channel.name] = channel
    if problems:
        raise UsageError("conda.channels cannot be used", problems=problems)
    return list(channels.values())


def _parse(text: str, beside: Path) -> Channel:
    scheme, separator, _ = text.partition("://")
    if not separator:
        if _PATH.match(text):
            return _folder(text, (beside / Path(text).expanduser()).resolve())
        if (beside / text / "noarch").is_dir():
            raise ValueError(
                f"{text} is also a folder here: write ./{text} for it, or the URL for the channel"
            )
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
    if _TOKEN.match(url.path):
        raise ValueError(f"{scheme}://{host}/t/...: a token in a channel's path is not supported")
    headers = {}
    if url.username is not None:
        secret = f"{unquote(url.username)}:{unquote(url.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode("ascii")
    location = urlunsplit((scheme, host, url.path, "", ""))
    return Channel(_short(url.path), location, headers=headers)


def _folder(text: str, path: Path) -> Channel:
    if not path.is_dir():
        raise ValueError(f"{text}: there is no folder {path}")
    if not (path / "noarch" / "repodata.json").is_file():
        raise ValueError(f"{text}: {path} is no channel: it has no noarch/repodata.json")
    return Channel(name=path.name or "channel", location=str(path), folder=path)


def _short(path: str) -> str:
    """ "/mirrors/conda-forge/" is conda-forge, "/nvidia/label/cuda-12" is nvidia/label/cuda-12."""
    parts = [part for part in path.split("/") if part] or ["channel"]
    first = parts.index("label") - 1 if "label" in parts[1:] else len(parts) - 1
    return "/".join(parts[first:])
