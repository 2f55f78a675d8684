"""Conda packages on the builder: solved for the target, carried as an offline channel."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.core.artifact import Artifact, Json
from mirror.core.manifest import CondaSection
from mirror.ecosystems.conda import archives
from mirror.ecosystems.conda.channels import Channel, parse
from mirror.ecosystems.conda.records import KIND, REPODATA, brings_python, record, repodata
from mirror.ecosystems.conda.solver import Solver, base_url, parse_specs, without_channel
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError, ResolutionError
from mirror.fetch.http import Fetched, Request

if TYPE_CHECKING:
    import rattler

#: Where the record came from, and what its file is called: the channel's business, not the lock's.
_PLACE = ("url", "channel", "fn")


def inputs(section: CondaSection, context: Context) -> Mapping[str, str]:
    """Digests of the repodata of every channel that is a folder."""
    return {
        f"conda/{channel.name}/{subdir}": context.hashes.of(path)[1] if path.is_file() else "none"
        for channel in parse(section.channels, context.folder)
        if channel.folder
        for subdir in (context.target.subdir, "noarch")
        for path in [channel.folder / subdir / REPODATA]
    }


def resolve(section: CondaSection, context: Context) -> list[Artifact]:
    """The records that satisfy the section on the target.

    Opens no connection when every channel is a folder. Raises UsageError for channels and specs
    that are none, ResolutionError for what cannot be satisfied, DownloadError for channels that
    cannot be read and for packages that are missing or are not what their record says.
    """
    channels, specs = parse(section.channels, context.folder), parse_specs(section.packages)
    solver = Solver(channels, context.target, context.blobs.folder / "repodata")
    kept = [artifact for artifact in context.kept if artifact.kind == KIND]
    records = solver.solve(specs, kept)
    found = [(solver.channel_of(known), known) for known in records]
    measured = _measure(found, context)
    return [
        _artifact(channel, known, measured[known.url])
        for channel, known in sorted(found, key=lambda pair: (pair[1].subdir, pair[1].file_name))
    ]


def requests(
    artifacts: Sequence[Artifact], section: CondaSection, context: Context
) -> list[Request | Path]:
    """Where each package is: in a channel's folder, or under its URL.

    Raises DownloadError that names the packages whose channel the manifest no longer lists.
    """
    channels = {channel.name: channel for channel in parse(section.channels, context.folder)}
    strange = [a for a in artifacts if a.text("channel") not in channels]
    if strange:
        raise DownloadError(
            "the lock has conda packages of channels that the manifest does not list",
            problems=[f"{a.text('file')} of {a.text('channel')}" for a in strange],
        )
    return [_request(artifact, channels[artifact.text("channel")]) for artifact in artifacts]


def derived(artifacts: Sequence[Artifact], context: Context) -> dict[str, bytes]:
    """The repodata that makes a channel of the packages."""
    return repodata(artifacts, context.target.subdir)


def prove(artifacts: Sequence[Artifact], section: CondaSection, context: Context) -> None:
    """Show that the bundle's channel alone, offline, solves to exactly these packages.

    And that each can be unpacked where it belongs. Raises ResolutionError or DownloadError.
    """
    with tempfile.TemporaryDirectory() as folder:
        for path, data in derived(artifacts, context).items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True)
            file.write_bytes(data)
        channel = Channel(KIND, str(Path(folder, KIND).resolve()), Path(folder, KIND).resolve())
        specs = [without_channel(spec) for spec in parse_specs(section.packages)]
        records = Solver([channel], context.target, Path(folder)).solve(specs)
    solved = {f"conda/{known.subdir}/{known.file_name}" for known in records}
    locked = {artifact.path for artifact in artifacts}
    if solved != locked:
        raise ResolutionError(
            "the locked conda packages are not what their own channel solves to",
            problems=sorted(f"{path} is not needed" for path in locked - solved),
            hint="Remove the lock and run `mirror lock` again.",
        )
    _prove_archives(artifacts, section, context)


def _prove_archives(artifacts: Sequence[Artifact], section: CondaSection, context: Context) -> None:
    problems = []
    for artifact, place in zip(artifacts, requests(artifacts, section, context), strict=True):
        path = place if isinstance(place, Path) else context.blobs.path(artifact.sha256)
        try:
            archives.read(path)
        except ValueError as error:
            problems.append(f"{artifact.text('file')}: {error}")
    if problems:
        raise DownloadError("conda packages are damaged at their channel", problems=problems)
    needy = [a.text("file") for a in artifacts if record(a).get("noarch") == "python"]
    if needy and not brings_python(artifacts):
        raise ResolutionError(
            "conda packages are written in Python, and none of the set brings one",
            problems=needy,
            hint="Add python to conda.packages.",
        )


def _measure(
    found: Sequence[tuple[Channel, rattler.RepoDataRecord]], context: Context
) -> dict[str, Fetched]:
    """Size and sha256 of each package, by its URL: from the record, else from the bytes.

    A folder's packages are read in any case: rattler does not compare them with their records.
    """
    measured: dict[str, Fetched] = {}
    unknown: list[Request] = []
    problems: list[str] = []
    for channel, known in found:
        sha256 = known.sha256.hex() if known.sha256 else None
        if channel.folder:
            path = channel.folder / known.subdir / known.file_name
            try:
                size, actual = context.hashes.of(path)
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
                continue
            if (sha256 or actual, known.size or size) != (actual, size):
                problems.append(f"{path} is not the file that its channel's repodata describes")
            measured[known.url] = Fetched(actual, size)
        elif not known.url.startswith(base_url(channel)):
            problems.append(f"{known.file_name}: {channel.name} keeps it on another server")
        elif sha256 and known.size:
            measured[known.url] = Fetched(sha256, known.size)
        else:
            digest = f"sha256:{sha256}" if sha256 else None
            unknown.append(Request(known.url, known.file_name, digest, known.size, channel.headers))
    if problems:
        raise DownloadError("conda packages cannot be had", problems=problems)
    fetched = context.fetcher.fetch(unknown) if unknown else []
    measured |= {request.url: found for request, found in zip(unknown, fetched, strict=True)}
    return measured


def _artifact(channel: Channel, known: rattler.RepoDataRecord, measured: Fetched) -> Artifact:
    table: dict[str, Json] = {
        key: value
        for key, value in json.loads(known.to_json()).items()
        if key not in _PLACE and value is not None
    }
    return Artifact(
        kind=KIND,
        path=f"conda/{known.subdir}/{known.file_name}",
        size=measured.size,
        sha256=measured.sha256,
        origin={
            "channel": channel.name,
            "subdir": known.subdir,
            "file": known.file_name,
            "record": {**table, "size": measured.size, "sha256": measured.sha256},
        },
    )


def _request(artifact: Artifact, channel: Channel) -> Request | Path:
    subdir, file = artifact.text("subdir"), artifact.text("file")
    if channel.folder:
        return channel.folder / subdir / file
    return Request(
        url=f"{base_url(channel)}{subdir}/{file}",
        label=file,
        digest=f"sha256:{artifact.sha256}",
        size=artifact.size,
        headers=channel.headers,
    )
