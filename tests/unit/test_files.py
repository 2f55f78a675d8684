"""Plain files: from the manifest to the bundle's paths, and to their place on the server."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.manifest import FileItem, LocalFile, RemoteFile
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.files import deploy, source
from mirror.ecosystems.source import Context
from mirror.errors import BundleError, DownloadError, UsageError
from mirror.fetch.http import Fetcher, Patience, Request
from mirror.store.blobs import Blobs
from mirror.store.generation import Generation
from tests import bundles
from tests.hub import Server, faults


class Warned(Quiet):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def context(tmp_path: Path) -> Context:
    blobs, progress = Blobs(tmp_path / "store"), Warned()
    folder = tmp_path / "project"
    folder.mkdir()
    return Context(
        folder=folder,
        target=Target(python="3.11", platform="linux-x86_64"),
        blobs=blobs,
        fetcher=Fetcher(blobs, progress, patience=Patience(attempts=1)),
        progress=progress,
    )


def write(context: Context, files: Mapping[str, bytes | str]) -> None:
    """Files beside the manifest."""
    for name, data in files.items():
        path = context.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())


def later(context: Context) -> Context:
    """Of another run, which looks again."""
    return replace(context, seen={})


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fetched(section: list[FileItem], context: Context) -> dict[str, bytes]:
    """Lock, fetch and prove as a build does: path -> bytes."""
    artifacts = source.resolve(section, context)
    requests = source.requests(artifacts, section, context)
    context.fetcher.fetch([r for r in requests if isinstance(r, Request)])
    source.prove(artifacts, section, context)
    found = {}
    for artifact, request in zip(artifacts, requests, strict=True):
        place = request if isinstance(request, Path) else context.blobs.path(artifact.sha256)
        data = found[artifact.path] = place.read_bytes()
        assert artifact == Artifact("files", artifact.path, len(data), sha256(data))
    return found


@pytest.mark.parametrize(
    ("path", "to", "expected"),
    [
        ("a", "b", ["files/b"]),
        ("a", "b/", ["files/b/a"]),
        ("a", "./", ["files/a"]),
        ("a", "x/y/z", ["files/x/y/z"]),
        ("d", "d", ["files/d/one", "files/d/sub/two"]),
        ("d/", "e/", ["files/e/one", "files/e/sub/two"]),
        ("d", ".", ["files/one", "files/sub/two"]),
        ("d/sub", "x/../y", ["files/y/two"]),
    ],
)
def test_where_local_files_go(context: Context, path: str, to: str, expected: list[str]) -> None:
    write(context, {"a": "a", "d/one": "1", "d/sub/two": "2"})
    assert list(fetched([LocalFile(path=path, to=to)], context)) == expected


def test_junk_is_not_carried(context: Context) -> None:
    write(context, {"d/.git/config": "", "d/sub/__pycache__/x.pyc": "", "d/.DS_Store": ""})
    write(context, {"d/.env": "kept", "d/a": "kept"})
    assert list(fetched([LocalFile(path="d", to="d")], context)) == ["files/d/.env", "files/d/a"]


def test_links(context: Context, tmp_path: Path) -> None:
    write(context, {"a": "bytes", "d/b": "b"})
    (context.folder / "d" / "link").symlink_to("../a")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").touch()
    (context.folder / "d" / "folder").symlink_to(tmp_path / "elsewhere")
    section: list[FileItem] = [LocalFile(path="d", to="d")]
    assert fetched(section, context) == {"files/d/b": b"b", "files/d/link": b"bytes"}
    (context.folder / "d" / "broken").symlink_to("nothing")
    (context.folder / "d" / "sub").mkdir()
    (context.folder / "d" / "sub" / "loop").symlink_to("loop")
    os.mkfifo(context.folder / "d" / "pipe")
    with pytest.raises(UsageError) as caught:
        source.resolve(section, later(context))
    for name, what in (
        ("broken", "is a link to nothing"),
        ("pipe", "is no regular file"),
        ("sub/loop", "is a link to nothing"),
    ):
        assert f"{context.folder / 'd' / name} {what}" in str(caught.value.problems)


def test_all_that_is_missing_is_named(context: Context) -> None:
    (context.folder / "empty").mkdir()
    write(context, {"a": "a"})
    section: list[FileItem] = [
        LocalFile(path="one", to="one"),
        LocalFile(path="two", to="two"),
        LocalFile(path="empty", to="three"),
        LocalFile(path="a", to="/etc/passwd"),
        LocalFile(path="a", to="../up"),
        LocalFile(path="a", to="."),
        LocalFile(path="a", to="same"),
        LocalFile(path="a", to="x/../same"),
        RemoteFile(url="https://files.example.invalid/", sha256="0" * 64, to="d/"),
    ]
    for call in (source.inputs, source.resolve):
        with pytest.raises(UsageError) as caught:
            call(section, context)
        words = ["one is missing", "two is missing", "holds no files", "'/etc/passwd'", "'../up'"]
        words += ["'.' names no place", "two files would be files/same", "ends without a name"]
        assert len(caught.value.problems) == len(words)
        for word, problem in zip(words, caught.value.problems, strict=True):
            assert word in problem


def test_a_change_changes_the_inputs(context: Context) -> None:
    write(context, {"a": "1", "d/b": "2"})
    section: list[FileItem] = [LocalFile(path="a", to="a"), LocalFile(path="d", to="d")]
    seen = [source.inputs(section, context)]
    assert source.inputs(section, context) == seen[0]
    write(context, {"a": "3!"})
    seen.append(source.inputs(section, later(context)))
    (context.folder / "a").chmod(0o755)
    seen.append(source.inputs(section, later(context)))
    write(context, {"d/c": "new"})
    seen.append(source.inputs(section, later(context)))
    assert all(one != other for n, one in enumerate(seen) for other in seen[:n])


def test_one_run_sees_the_files_as_they_were(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(context, {"d/sub/a": "1", "d/b": "2", "other": "3"})
    section: list[FileItem] = [LocalFile(path="d", to="d")]
    looked: list[str] = []
    scandir = os.scandir

    def counted(path: str) -> Any:
        looked.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    before = source.inputs(section, context)
    write(context, {"d/c": "new"})
    assert list(fetched(section, context)) == ["files/d/b", "files/d/sub/a"]
    assert source.inputs(section, replace(context, kept=())) == before
    assert looked == [str(context.folder / "d"), str(context.folder / "d" / "sub")]
    assert list(fetched([LocalFile(path="other", to="d/")], context)) == ["files/d/other"]
    assert len(source.inputs(section, later(context))) == 3


def test_hashing_is_counted_in_bytes(context: Context) -> None:
    write(context, {"a": bytes(3 * 2**20), "d/b": b"2", "d/c": b"3"})
    bars = bundles.Bars()
    counted = replace(context, progress=bars)
    section: list[FileItem] = [LocalFile(path="a", to="a"), LocalFile(path="d", to="d")]
    source.inputs(section, counted)
    write(context, {"d/c": b"changed"})
    source.resolve(section, later(counted))
    label, size = "hashing local files", 3 * 2**20 + 2
    assert bars.seen == [(label, size, size), (label, 7, 7)], "what is known is not read again"


def test_a_remote_file(server: Server, context: Context) -> None:
    data = b"remote bytes"
    server.files["/some/x%20y.tar"] = server.files["/some/x y.tar"] = data
    url = server.url + "/some/x%20y.tar?token=secret"
    section: list[FileItem] = [
        RemoteFile(url=url, sha256=sha256(data), to="data/"),
        RemoteFile(url=url, sha256=sha256(data), to="data/x.tar"),
    ]
    artifacts = source.resolve(section, context)
    assert [s.method for s in server.seen] == ["HEAD", "HEAD"]  # locking downloads nothing
    assert [a.path for a in artifacts] == ["files/data/x y.tar", "files/data/x.tar"]
    assert fetched(section, context) == {"files/data/x y.tar": data, "files/data/x.tar": data}
    server.seen.clear()
    assert source.resolve(section, context) == artifacts
    assert server.seen == []  # the store knows the size
    assert source.inputs(section, context) == {}


def test_a_remote_file_of_the_previous_lock_is_not_asked_for(
    server: Server, context: Context
) -> None:
    section: list[FileItem] = [RemoteFile(url=server.url + "/x", sha256="1" * 64, to="x")]
    kept = Artifact("files", "files/x", 77, "1" * 64)
    assert source.resolve(section, replace(context, kept=(kept,))) == [kept]
    assert server.seen == []


def test_a_server_that_tells_no_size(server: Server, context: Context) -> None:
    server.files["/x"] = b"bytes"
    server.inject(faults.status(405), methods=("HEAD",))
    section: list[FileItem] = [RemoteFile(url=server.url + "/x", sha256=sha256(b"bytes"), to="x")]
    assert fetched(section, context) == {"files/x": b"bytes"}


def test_a_remote_file_that_is_missing_or_other(server: Server, context: Context) -> None:
    server.files["/other"] = b"other bytes"
    section: list[FileItem] = [
        RemoteFile(url=server.url + "/missing", sha256="2" * 64, to="a"),
        RemoteFile(url=server.url + "/other", sha256="3" * 64, to="b"),
    ]
    with pytest.raises(DownloadError, match="files/a: HTTP 404"):
        source.resolve(section, context)
    with pytest.raises(DownloadError, match="files/b: the bytes that came are not the right ones"):
        fetched(section[1:], context)


def test_scripts_with_windows_line_ends_are_named(context: Context) -> None:
    write(context, {"bad.sh": "#!/bin/bash\r\nls\r\n", "good.sh": "#!/bin/bash\nls\n"})
    write(context, {"text.txt": "a\r\nb\r\n", "binary": b"#!" + bytes(10_000)})
    fetched([LocalFile(path=".", to=".")], context)
    assert isinstance(context.progress, Warned)
    (warning,) = context.progress.warnings
    assert warning.startswith("files/bad.sh is a script")


def test_deployed(context: Context, tmp_path: Path) -> None:
    write(context, {"d/run": "#!/bin/sh\n", "d/data": "data"})
    (context.folder / "d" / "run").chmod(0o755)
    section: list[FileItem] = [LocalFile(path="d", to="deep/d")]
    artifacts = source.resolve(section, context)
    for artifact in artifacts:
        context.blobs.put((context.folder / "d" / Path(artifact.path).name).read_bytes())
    site = a_site(artifacts, context.blobs, tmp_path / "root" / "000001")
    deploy.deploy(artifacts, site)
    run, data = (site.generation.files / "deep" / "d" / name for name in ("run", "data"))
    assert run.read_bytes() == b"#!/bin/sh\n"
    assert (run.stat().st_mode & 0o777, data.stat().st_mode & 0o777) == (0o555, 0o444)
    assert data.samefile(context.blobs.path(sha256(b"data")))


def test_no_file_is_put_where_another_ecosystem_rules(context: Context, tmp_path: Path) -> None:
    artifact = Artifact("files", "env/bin/python", 1, context.blobs.put(b"x"))
    site = a_site([artifact], context.blobs, tmp_path / "000001")
    with pytest.raises(BundleError, match="env/bin/python"):
        deploy.deploy([artifact], site)


def a_site(artifacts: list[Artifact], blobs: Blobs, folder: Path) -> Site:
    entries = tuple(map(Entry, artifacts))
    index = Index("x", "1", "1", "0" * 64, None, entries)
    folder.mkdir(parents=True)
    return Site(index, blobs, Generation(folder), Path("python"), Quiet())
