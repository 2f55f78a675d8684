"""Where the bytes of conda packages are, and what they are: from a record to an artifact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mirror.core.artifact import Artifact, Json
from mirror.ecosystems.conda.records import KIND
from mirror.ecosystems.conda.solving.asked import Asked, PackageFile
from mirror.ecosystems.conda.solving.channels import Channel
from mirror.ecosystems.conda.solving.subdirs import Subdir
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError
from mirror.fetch.http import Fetched, Request
from mirror.store.blobs import CHUNK

if TYPE_CHECKING:
    import rattler

#: Where the record came from, and what its file is called: the channel's business, not the lock's.
_PLACE = ("url", "channel", "fn")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A record that was chosen, and where it was found."""

    record: rattler.RepoDataRecord
    origin: Channel | PackageFile

    @property
    def path(self) -> str:
        """Of its file, below the channel."""
        return f"{self.record.subdir}/{self.record.file_name}"


class Given:
    """The package files as folders of a channel of their own, which comes before all others."""

    def __init__(self, asked: Asked, context: Context) -> None:
        # No such folder is needed: rattler only wants channels to have different addresses.
        self.channel = Channel("package files", str(context.folder / "package files"))
        self._files = {file.record.name.normalized: file for file in asked.files}

    @property
    def subdirs(self) -> Iterator[Subdir]:
        """Opened, as those of a channel are."""
        for name in sorted({str(file.record.subdir) for file in self._files.values()}):
            yield Subdir(self.channel, name, _Lookup(self._files, name))

    def origin(
        self, record: rattler.RepoDataRecord, channels: Sequence[Channel]
    ) -> Channel | PackageFile:
        """The channel, or the file, that a record was found in."""
        if record.channel == self.channel.base:
            return self._files[record.name.normalized]
        return next(channel for channel in channels if channel.base == record.channel)


@dataclass(frozen=True, slots=True)
class _Lookup:
    files: Mapping[str, PackageFile]
    subdir: str

    def named(self, names: Sequence[str]) -> Iterator[rattler.RepoDataRecord]:
        for name in names:
            file = self.files.get(name)
            if file and file.record.subdir == self.subdir:
                yield file.record

    def close(self) -> None: ...


def artifacts(chosen: Sequence[Chosen], context: Context) -> list[Artifact]:
    """The packages as artifacts, sorted by path.

    Their hashes are those of the records, else those of the bytes. What is on this machine is read
    in any case: rattler does not compare it with its record.
    Raises DownloadError that names all that are missing or are not what their record says.
    """
    measured = _measured(chosen, context)
    found = [_artifact(item, size) for item, size in zip(chosen, measured, strict=True)]
    return sorted(found, key=lambda artifact: artifact.path)


def requests(artifacts: Sequence[Artifact], asked: Asked) -> list[Request | Path]:
    """Where each package is: a file of this machine, or under its channel's URL.

    Raises DownloadError that names the packages whose channel the manifest no longer lists.
    """
    channels = {channel.name: channel for channel in asked.channels}
    files = {_place(file): file for file in asked.files}
    strange = [
        f"{a.text('file')} of {a.text('channel') or a.text('place')}"
        for a in artifacts
        if a.text("channel") not in channels and a.text("place") not in files
    ]
    if strange:
        raise DownloadError(
            "the lock has conda packages of channels that the manifest does not list",
            problems=strange,
        )
    return [
        files[place].path
        if (place := a.text("place"))
        else _request(a, channels[a.text("channel")])
        for a in artifacts
    ]


def _request(artifact: Artifact, channel: Channel) -> Request | Path:
    path = f"{artifact.text('subdir')}/{artifact.text('file')}"
    if channel.folder:
        return channel.folder / path
    return Request(
        url=channel.url(path),
        label=artifact.text("file"),
        digest=f"sha256:{artifact.sha256}",
        size=artifact.size,
        headers=channel.headers,
    )


def _place(file: PackageFile) -> str:
    """What the lock calls it."""
    return f"file {file.text}"


def _local(chosen: Chosen) -> Path | None:
    if isinstance(chosen.origin, PackageFile):
        return chosen.origin.path
    return chosen.origin.folder / chosen.path if chosen.origin.folder else None


def _measured(chosen: Sequence[Chosen], context: Context) -> list[Fetched]:
    """Size and sha256 of each."""
    problems = [problem for item in chosen if (problem := _elsewhere(item))]
    measured: dict[str, Fetched] = {}
    unknown: list[tuple[Chosen, Request]] = []
    for item in chosen if not problems else ():
        known, path = item.record, _local(item)
        sha256 = known.sha256.hex() if known.sha256 else None
        if path is not None:
            try:
                measured[item.path] = _of_file(path, item, context)
            except ValueError as error:
                problems.append(str(error))
        elif sha256 and known.size:
            measured[item.path] = Fetched(sha256, known.size)
        else:
            unknown.append((item, _unmeasured(item, sha256)))
    if not problems and unknown:
        found = context.fetcher.fetch([request for _, request in unknown])
        for (item, _), blob in zip(unknown, found, strict=True):
            measured[item.path] = blob
            if not _has_md5(context.blobs.path(blob.sha256), item.record.md5):
                problems.append(f"{item.record.file_name} has not the md5 that its record says")
    if problems:
        raise DownloadError("conda packages cannot be had", problems=problems)
    return [measured[item.path] for item in chosen]


def _elsewhere(chosen: Chosen) -> str | None:
    """Why a channel's package cannot be asked for beside the channel's other files."""
    origin, known = chosen.origin, chosen.record
    if isinstance(origin, PackageFile) or unquote(known.url) == unquote(origin.base) + chosen.path:
        return None
    return f"{known.file_name}: {origin.name} keeps it at another place than its repodata"


def _of_file(path: Path, chosen: Chosen, context: Context) -> Fetched:
    known = chosen.record
    try:
        size, actual = context.hashes.of(path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    stated = known.sha256.hex() if known.sha256 else actual
    same = (stated, known.size or size) == (actual, size)
    if not same or (not known.sha256 and not _has_md5(path, known.md5)):
        raise ValueError(f"{path} is not the file that its channel's repodata describes")
    return Fetched(actual, size)


def _unmeasured(chosen: Chosen, sha256: str | None) -> Request:
    """A request for bytes whose record does not say all of them."""
    assert isinstance(chosen.origin, Channel)  # noqa: S101 -- files are measured where they lie
    return Request(
        url=chosen.origin.url(chosen.path),
        label=chosen.record.file_name,
        digest=f"sha256:{sha256}" if sha256 else None,
        size=chosen.record.size,
        headers=chosen.origin.headers,
    )


def _has_md5(path: Path, stated: bytes | None) -> bool:
    """Old records have no other hash: it finds damage, not intent."""
    if stated is None:
        return True
    found = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.digest() == stated


def _artifact(chosen: Chosen, measured: Fetched) -> Artifact:
    known, origin = chosen.record, chosen.origin
    table: dict[str, Json] = {
        key: value
        for key, value in json.loads(known.to_json()).items()
        if key not in _PLACE and value is not None
    }
    place = (
        {"place": _place(origin)} if isinstance(origin, PackageFile) else {"channel": origin.name}
    )
    return Artifact(
        kind=KIND,
        path=f"conda/{chosen.path}",
        size=measured.size,
        sha256=measured.sha256,
        origin={
            **place,
            "name": known.name.normalized,
            "version": str(known.version),
            "subdir": known.subdir,
            "file": known.file_name,
            "record": {**table, "size": measured.size, "sha256": measured.sha256},
        },
    )
