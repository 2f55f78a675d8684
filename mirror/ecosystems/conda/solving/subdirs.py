"""The folders of channels, each with its repodata.json, opened to look packages up by name.

Nothing is parsed but the records that are looked up: the file is mapped into memory, not read. What
a channel by URL has is downloaded by rattler, compressed where the channel offers that, and kept
for the next time.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mirror.core.progress import Progress
from mirror.ecosystems.conda import bridge
from mirror.ecosystems.conda.records import REPODATA
from mirror.ecosystems.conda.solving.channels import Channel
from mirror.errors import DownloadError

if TYPE_CHECKING:
    import rattler

_STATUS = re.compile(r"\((\d{3}) ?([^)]*)\)")
_RETRIES = 3
_UNREACHABLE = "the server cannot be reached"
#: An empty repodata has no more bytes.
_SMALL = 2**16


class Lookup(Protocol):
    """Finds records by the names of their packages."""

    def named(self, names: Sequence[str]) -> Iterable[rattler.RepoDataRecord]:
        """All records of packages of these names. Raises RattlerError for malformed ones."""

    def close(self) -> None:
        """Let go of the file."""


@dataclass(frozen=True, slots=True)
class Subdir:
    """One folder of a channel, opened. name: "linux-64", "noarch" and the like."""

    channel: Channel
    name: str
    lookup: Lookup

    def named(self, names: Sequence[str]) -> Iterator[rattler.RepoDataRecord]:
        """All its records of packages of these names. Raises DownloadError for malformed ones."""
        try:
            yield from self.lookup.named(names)
        except bridge.RattlerError as error:
            raise unreadable([_problem(self.channel, self.name, error)]) from None


@contextmanager
def opened(
    channels: Sequence[Channel], names: Sequence[str], cache: Path, progress: Progress
) -> Iterator[list[Subdir]]:
    """Those folders of the channels that there are; a channel may have only one of them.

    names: which. cache: for what is downloaded.
    Raises DownloadError that names each channel which cannot be read, or has none of them.
    """
    found: list[Subdir] = []
    problems: list[str] = []
    with progress.bar("reading channels", len(channels), "channels") as advance:
        for channel in channels:
            there = len(found) + len(problems)
            for name in names:
                try:
                    lookup = _open(channel, name, cache)
                except bridge.RattlerError as error:
                    problems.append(_problem(channel, name, error))
                    if _UNREACHABLE in problems[-1]:
                        break
                else:
                    found += [Subdir(channel, name, lookup)] if lookup else []
            if len(found) + len(problems) == there:
                problems.append(f"{_place(channel)} has neither {' nor '.join(names)}")
            advance(1)
    try:
        if problems:
            raise unreadable(problems)
        yield found
    finally:
        for subdir in found:
            subdir.lookup.close()


def unreadable(problems: Iterable[str]) -> DownloadError:
    """The error for channels that cannot be read."""
    return DownloadError(
        "conda channels cannot be read",
        problems=problems,
        hint="Credentials come from a channel's URL, from $RATTLER_AUTH_FILE or from netrc."
        if any("401" in problem or "403" in problem for problem in problems)
        else None,
    )


class Sparse:
    """A repodata.json on disk."""

    def __init__(self, found: rattler.SparseRepoData) -> None:
        self._found = found

    @classmethod
    def of(cls, channel: rattler.Channel, subdir: str, file: Path) -> Sparse:
        """The one in this file. Raises RattlerError when it is malformed."""
        from rattler import SparseRepoData

        with bridge.translated():
            return cls(SparseRepoData(channel, subdir, file))

    def named(self, names: Sequence[str]) -> Iterator[rattler.RepoDataRecord]:
        """As a Lookup does."""
        from rattler import PackageFormatSelection

        for name in names:
            # Of a package in both formats the newer one is taken, as all solvers do.
            with bridge.translated():
                records = self._found.load_records(name, PackageFormatSelection.PREFER_CONDA)
            yield from records

    def close(self) -> None:
        """As a Lookup does."""
        self._found.close()


class Sharded:
    """A channel's folder that has no repodata.json, only an index of shards, one a package."""

    def __init__(
        self, gateway: rattler.Gateway, channel: rattler.Channel, subdir: rattler.Subdir
    ) -> None:
        self._gateway, self._channel, self._subdir = gateway, channel, subdir

    def named(self, names: Sequence[str]) -> list[rattler.RepoDataRecord]:
        """As a Lookup does."""
        query = self._gateway.query(
            [self._channel], [self._subdir], names, recursive=False, channel_relations="disabled"
        )
        return [record for records in bridge.run(query) for record in records]

    def close(self) -> None:
        """As a Lookup does."""


def _open(channel: Channel, name: str, cache: Path) -> Lookup | None:
    """None when the channel has no such folder."""
    import rattler

    known = rattler.Channel(channel.location)
    if channel.folder:
        file = channel.folder / name / REPODATA
        if not file.is_file():
            return None
        _refuse_other_json(file)
        return Sparse.of(known, name, file)
    # The name of the folder is no address: those may hold what is nobody's business.
    place = cache / hashlib.sha256(f"{channel.base}{name}".encode()).hexdigest()[:16]
    client = _client(channel)
    try:
        (found,) = bridge.run(_download(known, name, place, client))
    except bridge.RattlerError as error:
        if "not found" not in error.lines[0]:
            raise
        return _sharded(rattler.Gateway(cache_dir=place, client=client), known, name)
    for file in place.glob("*[0-9a-f].json"):
        _refuse_other_json(file)
    return Sparse(found)


def _sharded(gateway: rattler.Gateway, channel: rattler.Channel, name: str) -> Sharded | None:
    import rattler

    subdir = rattler.Subdir(name)
    try:
        names = bridge.run(gateway.names([channel], [subdir], channel_relations="disabled"))
    except bridge.RattlerError as error:
        if "could not find subdir" not in error.lines[0]:
            raise
        return None
    return Sharded(gateway, channel, subdir) if names else None


async def _download(
    channel: rattler.Channel, name: str, cache: Path, client: rattler.Client
) -> list[rattler.SparseRepoData]:
    import rattler

    return await rattler.fetch_repo_data(
        channels=[channel],
        platforms=[rattler.Subdir(name)],
        cache_path=cache,
        callback=None,
        client=client,
    )


def _client(channel: Channel) -> rattler.Client:
    """A client for this channel alone, with its credentials."""
    import rattler
    from rattler.networking.middleware import (
        AddHeadersMiddleware,
        MirrorMiddleware,
        RetryMiddleware,
    )

    return rattler.Client(
        [
            RetryMiddleware(_RETRIES),
            *([MirrorMiddleware({channel.base: [channel.address]})] if channel.address else []),
            AddHeadersMiddleware(lambda host, path: dict(channel.headers)),
        ]
    )


def _refuse_other_json(file: Path) -> None:
    """rattler takes any object for a repodata without packages: {"error": "..."} too."""
    if file.stat().st_size <= _SMALL:
        try:
            document = json.loads(file.read_bytes())
        except ValueError:
            return  # rattler says why
        if isinstance(document, dict) and not {"info", "packages", "packages.conda"} & {*document}:
            raise bridge.RattlerError("ValueError", "it is no repodata: it has no `packages`")


def _problem(channel: Channel, name: str, error: bridge.RattlerError) -> str:
    said = channel.masked(" ".join(error.lines))
    if status := _STATUS.search(said):
        said = f"HTTP {status[1]} {status[2]}".rstrip()
    elif "error sending request" in said:
        said = f"{_UNREACHABLE} ({said.rpartition('Caused by: ')[2]})"
    elif "zst" in said or "expected value" in said:
        said = f"it is no repodata ({said})"
    return f"{_place(channel)}/{name}/{REPODATA}: {said}"


def _place(channel: Channel) -> str:
    return str(channel.folder or channel.base).rstrip("/")
