"""Plain files, on the builder: from beside the manifest, or from a URL with a known sha256.

Every artifact is `files/TO`. A `to` that ends with / is a folder, which a file goes into under its
own name; a folder's files go below `to` either way.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from mirror.core.artifact import Artifact
from mirror.core.manifest import FileItem, RemoteFile
from mirror.ecosystems.folders import files_in
from mirror.ecosystems.source import Context
from mirror.errors import UsageError
from mirror.fetch.http import Request

KIND = "files"
#: Where the bytes of one artifact come from.
Place: TypeAlias = "Path | RemoteFile"
_EXECUTABLE = 0o100
_LINE = 4096


def inputs(section: Sequence[FileItem], context: Context) -> dict[str, str]:
    """The sha256 of every file that is on this machine."""
    local = _find(section, context).local
    return {path: f"{artifact.sha256} {artifact.executable}" for path, artifact in local.items()}


def resolve(section: Sequence[FileItem], context: Context) -> list[Artifact]:
    """Every file, with its size and sha256.

    A remote file's size is what its server says; it is fetched at once where the server says
    nothing. Raises UsageError that names all that is missing, DownloadError.
    """
    found = _find(section, context)
    places = found.places.items()
    remote = {path: place for path, place in places if isinstance(place, RemoteFile)}
    sizes = _sizes(remote, context)
    return [
        Artifact(KIND, path, sizes[path], place.sha256)
        if isinstance(place, RemoteFile)
        else found.local[path]
        for path, place in places
    ]


def requests(
    artifacts: Sequence[Artifact], section: Sequence[FileItem], context: Context
) -> list[Request | Path]:
    """A local file is where it is; a remote one is asked for by its sha256."""
    places = _find(section, context).places

    def request(artifact: Artifact) -> Request | Path:
        place = places[artifact.path]
        return place if isinstance(place, Path) else _request(artifact.path, place, artifact.size)

    return [request(artifact) for artifact in artifacts]


def derived(artifacts: Sequence[Artifact], context: Context) -> dict[str, bytes]:
    """Nothing: the files are all there is."""
    return {}


def prove(artifacts: Sequence[Artifact], section: Sequence[FileItem], context: Context) -> None:
    """Warn of scripts that no Linux would start, because their lines end as on Windows."""
    places = _find(section, context).places
    for artifact in artifacts:
        place = places[artifact.path]
        with open(
            place if isinstance(place, Path) else context.blobs.path(artifact.sha256), "rb"
        ) as file:
            first = file.readline(_LINE)
        if first.startswith(b"#!") and first.endswith(b"\r\n"):
            context.progress.warn(
                f"{artifact.path} is a script whose lines end with CR LF: Linux will say `bad"
                " interpreter`. Let its lines end with LF alone."
            )


@dataclass(frozen=True, slots=True)
class _Found:
    """What the section names, by path in the bundle.

    places: where the bytes are, of each. local: those that are on this machine.
    """

    places: Mapping[str, Place]
    local: Mapping[str, Artifact]


def _find(section: Sequence[FileItem], context: Context) -> _Found:
    """Look once in a run: there may be a hundred thousand. Raises UsageError as `_places` does."""
    key = (KIND, *section)
    if key not in context.seen:
        places = _places(section, context)
        context.seen[key] = _Found(places, _locals(places, context))
    found: _Found = context.seen[key]
    return found


def _places(section: Sequence[FileItem], context: Context) -> dict[str, Place]:
    """Path in the bundle -> where the bytes are. Raises UsageError that names all mistakes."""
    found: dict[str, Place] = {}
    problems: list[str] = []
    for item in section:
        try:
            for path, place in _placed(item, context):
                if path in found:
                    problems.append(f"two files would be {path}")
                found[path] = place
        except UsageError as error:
            problems += [error.message, *error.problems]
    if problems:
        raise UsageError(
            "files of the manifest cannot be carried",
            problems=problems,
            hint="Paths are relative to the manifest; `to` is relative to the installed files/.",
        )
    return found


def _placed(item: FileItem, context: Context) -> Iterator[tuple[str, Place]]:
    if isinstance(item, RemoteFile):
        name = unquote(posixpath.basename(urlsplit(item.url).path))
        if item.to.endswith("/") and not name:
            raise UsageError(f"the URL for {item.to} ends without a name: let `to` name the file")
        yield _path(item.to, name if item.to.endswith("/") else ""), item
        return
    source = context.folder / item.path
    if source.is_dir():
        inside = files_in(source)
        if not inside:
            raise UsageError(f"the folder {source} holds no files")
        yield from ((_path(item.to, name), file) for name, file in inside.items())
    elif source.is_file():
        yield _path(item.to, source.name if item.to.endswith("/") else ""), source
    else:
        raise UsageError(f"the file {source} is missing")


def _path(to: str, below: str) -> str:
    path = posixpath.normpath(posixpath.join("files", to, below))
    if not path.startswith("files/"):
        raise UsageError(f"{to!r} names no place for a file below files/")
    return path


def _locals(places: Mapping[str, Place], context: Context) -> dict[str, Artifact]:
    """Those that are on this machine."""
    local = {path: place for path, place in places.items() if isinstance(place, Path)}
    with context.hashes.counting(local.values(), context.progress):
        return {path: _local(path, place, context) for path, place in local.items()}


def _local(path: str, file: Path, context: Context) -> Artifact:
    try:
        size, sha256 = context.hashes.of(file)
        executable = bool(file.stat().st_mode & _EXECUTABLE)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    return Artifact(KIND, path, size, sha256, executable)


def _sizes(remote: Mapping[str, RemoteFile], context: Context) -> dict[str, int]:
    kept = {(a.kind, a.path, a.sha256): a.size for a in context.kept}
    sizes: dict[str, int] = {}
    silent: dict[str, Request] = {}
    for path, item in remote.items():
        request = _request(path, item, kept.get((KIND, path, item.sha256)))
        held = context.fetcher.held(request)
        size = held.size if held else request.size or context.fetcher.size(request)
        if size is None:
            silent[path] = request
        else:
            sizes[path] = size
    fetched = context.fetcher.fetch(list(silent.values()))
    return sizes | {path: blob.size for path, blob in zip(silent, fetched, strict=True)}


def _request(path: str, item: RemoteFile, size: int | None) -> Request:
    return Request(item.url, path, f"sha256:{item.sha256}", size)
