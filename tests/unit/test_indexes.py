"""Which index a package comes from: the one that was meant, with credentials that are not shown."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact
from mirror.core.manifest import IndexSection, WheelsSection
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import source
from mirror.errors import DownloadError, ResolutionError
from mirror.fetch.http import Fetcher, Request
from mirror.store.blobs import Blobs
from tests.index import make_wheel, serve

DATA = Path(
    os.environ.get("MIRROR_TEST_DATA", Path(__file__).resolve().parents[2].parent / "shared/data")
)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    blobs = Blobs(tmp_path / "cache")
    target = Target(python="3.11", platform="linux-x86_64", glibc="2.28")
    return Context(tmp_path, target, blobs, Fetcher(blobs, Quiet()), Quiet())


def section(*requirements: str, **indexes: IndexSection) -> WheelsSection:
    named = {name.replace("_", "-"): index for name, index in indexes.items()}
    return WheelsSection(requirements=list(requirements), indexes=named)


def lock(wanted: WheelsSection, context: Context) -> list[Artifact]:
    """Resolve, find, fetch and prove."""
    locked = source.resolve(wanted, context)
    found = source.requests(locked, wanted, context)
    context.fetcher.fetch([request for request in found if isinstance(request, Request)])
    source.prove(locked, wanted, context)
    return locked


def names(artifacts: list[Artifact]) -> dict[str, tuple[str, str]]:
    return {a.text("name"): (a.text("version"), a.text("index")) for a in artifacts}


def shelf(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def test_a_package_comes_from_its_index_and_no_other_package_does(
    tmp_path: Path, context: Context
) -> None:
    public, cuda = shelf(tmp_path, "public"), shelf(tmp_path, "cuda")
    make_wheel(public, "app", "1", requires=["torch", "helper"])
    make_wheel(public, "helper", "1")
    make_wheel(public, "torch", "9")
    make_wheel(cuda, "helper", "7")
    make_wheel(cuda, "torch", "2+cu128")
    make_wheel(cuda, "torchvision", "2+cu128", requires=["torch"])
    with serve(public) as default, serve(cuda) as other:
        wanted = section(
            "app",
            default=IndexSection(url=default),
            pytorch_cu128=IndexSection(url=other, only=["torch", "TorchVision"]),
        )
        locked = lock(wanted, context)
        only_app = section(
            "helper",
            default=IndexSection(url=default),
            pytorch_cu128=IndexSection(url=other, only=["torch", "torchvision"]),
        )
        assert names(lock(only_app, context)) == {"helper": ("1", "default")}
    assert names(locked) == {
        "app": ("1", "default"),
        "helper": ("1", "default"),
        "torch": ("2+cu128", "pytorch-cu128"),
    }


def test_a_private_name_is_never_looked_up_elsewhere(tmp_path: Path, context: Context) -> None:
    public, private = shelf(tmp_path, "public"), shelf(tmp_path, "private")
    make_wheel(public, "secret-tool", "99")
    make_wheel(public, "x", "1")
    make_wheel(private, "other", "1")
    with serve(public) as default, serve(private) as url:
        wanted = section(
            "x",
            "secret-tool",
            default=IndexSection(url=default),
            ours=IndexSection(url=url, only=["secret-tool"]),
        )
        with pytest.raises(ResolutionError, match="secret-tool"):
            source.resolve(wanted, context)


def test_a_flat_page_of_links(tmp_path: Path, context: Context) -> None:
    public, flat = shelf(tmp_path, "public"), shelf(tmp_path, "flat")
    make_wheel(public, "app", "1", requires=["kernels"])
    make_wheel(public, "kernels", "3")
    make_wheel(flat, "kernels", "2")
    with serve(public) as default, serve(flat) as url:
        wanted = section(
            "app",
            default=IndexSection(url=default),
            releases=IndexSection(url=url.replace("/simple", "/flat"), only=["kernels"], flat=True),
        )
        assert names(lock(wanted, context))["kernels"] == ("2", "releases")


@pytest.mark.parametrize("how", ["environment", "netrc"])
def test_credentials_are_used_and_not_shown(
    tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    public, private = shelf(tmp_path, "public"), shelf(tmp_path, "private")
    make_wheel(public, "x", "1")
    make_wheel(private, "ours", "1")
    if how == "environment":
        monkeypatch.setenv("UV_INDEX_PRIVATE_USERNAME", "me")
        monkeypatch.setenv("UV_INDEX_PRIVATE_PASSWORD", "hush")
    else:
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hush\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with serve(public) as default, serve(private, credentials="me:hush") as url:
        wanted = section(
            *("x", "ours"),
            default=IndexSection(url=default),
            private=IndexSection(url=url, only=["ours"]),
        )
        locked = lock(wanted, context)
        assert names(locked)["ours"] == ("1", "private")
        assert "hush" not in repr(locked) + repr(source.requests(locked, wanted, context))
        monkeypatch.setenv("UV_INDEX_PRIVATE_PASSWORD", "wrong-secret")
        monkeypatch.setenv("NETRC", os.devnull)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv2"))
        for call in (
            lambda: source.resolve(wanted, context),
            lambda: source.requests(locked, wanted, context),
        ):
            with pytest.raises(DownloadError, match=r"the index private .*\n.* 401") as refused:
                call()
            assert "wrong-secret" not in str(refused.value)
            hint = "netrc, or from UV_INDEX_PRIVATE_USERNAME and UV_INDEX_PRIVATE_PASSWORD"
            assert hint in str(refused.value)


@pytest.mark.parametrize("login", ["", "me:wrong-secret@"])
def test_a_default_index_that_asks_for_a_password(
    tmp_path: Path, context: Context, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    folder = shelf(tmp_path, "s")
    make_wheel(folder, "x", "1")
    with serve(folder, credentials="me:h@sh") as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url.replace("://", f"://{login}"))
        with pytest.raises(DownloadError, match=r"the index default .*password") as refused:
            source.resolve(section("x"), context)
        said = str(refused.value)
        assert "401 Unauthorized" in said
        assert "UV_INDEX_DEFAULT_PASSWORD" in said
        assert "wrong-secret" not in said
        assert "requirement" not in said
        monkeypatch.setenv("UV_DEFAULT_INDEX", url.replace("://", "://me:h%40sh@"))
        assert names(lock(section("x"), context)) == {"x": ("1", "default")}


def test_what_asks_for_a_package_of_an_index_is_called_the_manifest(
    tmp_path: Path, context: Context
) -> None:
    folder = shelf(tmp_path, "s")
    make_wheel(folder, "x", "1")
    with serve(folder) as url:
        wanted = section(
            "x>2", default=IndexSection(url=url), ours=IndexSection(url=url, only=["x"])
        )
        with pytest.raises(ResolutionError, match="the manifest depends on x>2") as caught:
            source.resolve(wanted, context)
    assert "mirror-indexes" not in str(caught.value)


def test_an_index_that_the_manifest_lost_is_named(tmp_path: Path, context: Context) -> None:
    folder = shelf(tmp_path, "s")
    make_wheel(folder, "x", "1")
    with serve(folder) as url:
        wanted = section("x", default=IndexSection(url=url), ours=IndexSection(url=url, only=["x"]))
        locked = lock(wanted, context)
        with pytest.raises(DownloadError, match="the index ours"):
            source.requests(locked, section("x", default=IndexSection(url=url)), context)


@contextmanager
def static(folder: Path) -> Iterator[str]:
    """A folder as a plain web server shows it."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    handler = functools.partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.skipif(not DATA.is_dir(), reason=f"the real indexes are not at {DATA}")
@pytest.mark.parametrize("meant", ["b", "c"])
@pytest.mark.parametrize("kind", ["index", "flat"])
def test_three_real_indexes_with_one_package(context: Context, meant: str, kind: str) -> None:
    """foo 1.0.0, 2.0.0 and 3.0.0 on one index each: the pinned one wins, not the newest."""
    version = {"b": "2.0.0", "c": "3.0.0"}[meant]
    with static(DATA / "wheels") as url:
        wanted = section(
            "foo",
            default=IndexSection(url=f"{url}/multiple-indexes-a/index/"),
            meant=IndexSection(
                url=f"{url}/multiple-indexes-{meant}/{kind}/", only=["foo"], flat=kind == "flat"
            ),
        )
        assert names(lock(wanted, context)) == {"foo": (version, "meant")}
        alone = section("foo", default=IndexSection(url=f"{url}/multiple-indexes-a/index/"))
        assert names(lock(alone, context)) == {"foo": ("1.0.0", "default")}
