"""The other resolver, pip-tools: for another machine than this one, and honest when it cannot."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import platform
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import MappingProxyType

import pytest
from packaging.tags import Tag, sys_tags

from mirror.core.target import Target
from mirror.ecosystems.wheels import pip_tools, pip_tools_child, tags
from mirror.ecosystems.wheels.indexes import Index, Indexes
from mirror.ecosystems.wheels.uv import Pin
from mirror.errors import DownloadError, MachineError, ResolutionError
from tests.index import make_wheel, serve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LINUX = Target(python="3.10", platform="linux-x86_64", glibc="2.28")
#: No builder has a Python as old as this one.
OLD = replace(LINUX, python="3.9")
WINDOWS = Target(python="3.11", platform="win-amd64")

NOTHING: Mapping[str, str] = MappingProxyType({})
Resolve = Callable[..., list[Pin]]


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    return folder


@pytest.fixture
def resolve(tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolve]:
    """`pip_tools.resolve` from the wheels on the shelf, for Linux unless told otherwise."""
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_RETRIES", "0")
    work = tmp_path / "work"
    work.mkdir()

    with serve(shelf) as url:

        def call(*requirements: str, target: Target = LINUX, **others: object) -> list[Pin]:
            options: dict[str, object] = {"indexes": default(url), **others}
            return pip_tools.resolve(requirements, target, work, **options)  # type: ignore[arg-type]

        yield call


def default(url: str) -> Indexes:
    return Indexes(Index("default", url))


def names(pins: list[Pin]) -> list[str]:
    return [f"{pin.name}=={pin.version}" for pin in pins]


def test_markers_tags_and_python_are_the_targets(shelf: Path, resolve: Resolve) -> None:
    needs = ["winonly; sys_platform == 'win32'", "old; python_version < '3.10'", "setuptools"]
    make_wheel(shelf, "app", "1", requires=["lib", "native", *needs])
    for name in ("winonly", "old", "setuptools", "lib"):
        make_wheel(shelf, name, "1")
    make_wheel(shelf, "lib", "2", python=">=3.10")
    native = [
        make_wheel(shelf, "native", version, tag=tag)
        for version, tag in (
            ("1", "cp311-cp311-win_amd64"),
            ("1", "cp39-cp39-manylinux1_x86_64"),
            ("2", "cp39-cp39-manylinux2014_x86_64"),
            ("2", "cp39-cp39-manylinux_2_17_aarch64"),
            ("3", "cp39-cp39-manylinux_2_34_x86_64"),
        )
    ]
    linux = resolve("App[extra]", target=OLD)
    assert names(linux) == ["app==1", "lib==1", "native==2", "old==1", "setuptools==1"]
    wheel = native[2]
    assert linux[2].file == wheel.name
    assert linux[2].url.endswith(f"/files/{wheel.name}")
    assert linux[2].sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    windows = resolve("app", target=WINDOWS)
    assert names(windows) == ["app==1", "lib==2", "native==1", "setuptools==1", "winonly==1"]


def test_what_the_server_has_is_resolved_against_and_left_out(
    tmp_path: Path, shelf: Path, resolve: Resolve
) -> None:
    make_wheel(shelf, "vision", "1", requires=["torch==2.5.0"])
    make_wheel(shelf, "vision", "2", requires=["torch==2.8.0"])
    # The index's own wheel of the version that the server has, with what that one needs.
    make_wheel(shelf, "torch", "2.8.0", requires=["nvidia-nccl"])
    make_wheel(shelf, "torch", "2.9.0")
    make_wheel(shelf, "nvidia-nccl", "1")
    stub = make_wheel(tmp_path, "torch", "2.8.0")
    provided = {
        "target": replace(LINUX, provided=("torch==2.8.0",)),
        "constraints": [f"torch @ {stub.as_uri()}"],
    }
    assert names(resolve("torch", "vision", **provided)) == ["vision==2"]
    with pytest.raises(ResolutionError) as caught:
        resolve("vision==1", kept=[("torch", "2.9.0")], **provided)
    assert "vision 1 depends on torch==2.5.0" in caught.value.problems
    assert "The target provides torch==2.8.0." in caught.value.problems
    assert str(tmp_path) not in str(caught.value)


def test_two_that_conflict_are_named(shelf: Path, resolve: Resolve) -> None:
    make_wheel(shelf, "a", "1", requires=["c<2"])
    make_wheel(shelf, "b", "1", requires=["c>=2"])
    make_wheel(shelf, "c", "1")
    make_wheel(shelf, "c", "2")
    with pytest.raises(ResolutionError) as caught:
        resolve("a", "b")
    assert {"a 1 depends on c<2", "b 1 depends on c>=2"} <= set(caught.value.problems)
    # Nor does it say what is not so.
    assert "no matching distributions" not in str(caught.value)


def test_a_lock_is_kept_where_it_still_fits(shelf: Path, resolve: Resolve) -> None:
    for name, version in (("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")):
        make_wheel(shelf, name, version)
    kept = [("A", "1"), ("b", "1"), ("gone", "3")]
    assert names(resolve("a", "b", kept=kept)) == ["a==1", "b==1"]
    assert names(resolve("a>1", "b", kept=kept)) == ["a==2", "b==1"]
    assert names(resolve("a", kept=[("a", "1.5")])) == ["a==2"]
    make_wheel(shelf, "b", "3", python=">=3.10")
    assert names(resolve("a", "b", target=OLD, kept=[("a", "1"), ("b", "3")])) == ["a==2", "b==2"]


def test_files_that_are_there_but_do_not_fit_are_named(shelf: Path, resolve: Resolve) -> None:
    make_wheel(shelf, "app", "1", requires=["native==1"])
    make_wheel(shelf, "native", "1", tag="cp310-cp310-win_amd64")
    make_wheel(shelf, "native", "2")
    with pytest.raises(ResolutionError) as caught:
        resolve("app")
    assert "native==1 (from app)" in str(caught.value)
    assert (
        "Of native==1 there is no wheel for the target, only native-1-cp310-cp310-win_amd64.whl"
        in caught.value.problems
    )


def make_sdist(shelf: Path, name: str, sign: Path, *, built_with: str = "", code: str = "") -> Path:
    """An sdist of version 1 that leaves a sign when its code is run, which needs `lib`."""
    members = {
        "pyproject.toml": f"[build-system]\nrequires = [{built_with}]\n"
        'build-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": f"""
import os
def prepare_metadata_for_build_wheel(directory, settings=None):
    open({str(sign)!r}, "w").close()
    os.mkdir(f"{{directory}}/{name}-1.dist-info")
    with open(f"{{directory}}/{name}-1.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: 1\\nRequires-Dist: lib\\n")
    return "{name}-1.dist-info"
{code}""",
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
    }
    path = shelf / f"{name}-1.tar.gz"
    with tarfile.open(path, "w:gz") as sdist:
        for member, text in members.items():
            entry = tarfile.TarInfo(f"{name}-1/{member}")
            entry.size = len(text.encode())
            sdist.addfile(entry, io.BytesIO(text.encode()))
    return path


def test_nothing_is_built(tmp_path: Path, shelf: Path, resolve: Resolve) -> None:
    sdist = make_sdist(shelf, "source", tmp_path / "ran")
    make_wheel(shelf, "app", "1", requires=[f"source @ {sdist.as_uri()}"])
    with pytest.raises(ResolutionError, match=r"source @ .* is no wheel"):
        resolve("app")
    assert not (tmp_path / "ran").exists()


def test_an_sdist_is_chosen_where_it_may_be(tmp_path: Path, shelf: Path, resolve: Resolve) -> None:
    sdist = make_sdist(shelf, "source", tmp_path / "ran")
    lib = make_wheel(shelf, "lib", "1")
    with json_index(shelf) as url:
        with pytest.raises(ResolutionError, match=r"no wheel for the target, only source-1\.tar"):
            resolve("source", indexes=default(url), wheels_only=["source"])
        assert not (tmp_path / "ran").exists()
        pins = resolve("source", indexes=default(url), wheels_only=["lib"])
    assert [pin.file for pin in pins] == [lib.name, sdist.name]


#: A backend's code that gives a wheel, and writes down by which command lines it was started.
WITNESS = """
def build_wheel(directory, settings=None, metadata=None):
    import shutil
    lines, pid = [], os.getppid()
    while pid > 1:
        with open(f"/proc/{{pid}}/cmdline") as file:
            lines.append(file.read().replace("\\0", " "))
        with open(f"/proc/{{pid}}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    with open({seen!r}, "w") as file:
        file.write("\\n".join(lines))
    return os.path.basename(shutil.copy({wheel!r}, directory))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["variables", "address"])
def test_no_command_line_holds_a_password(
    tmp_path: Path, shelf: Path, resolve: Resolve, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What an sdist is built with is fetched by a pip that pip starts."""
    seen = tmp_path / "seen"
    wheel = make_wheel(tmp_path, "tool", "1", requires=["lib"])
    code = WITNESS.format(seen=str(seen), wheel=str(wheel))
    make_sdist(shelf, "tool", tmp_path / "tool", code=code)
    make_sdist(shelf, "source", tmp_path / "ran", built_with="'tool'")
    make_wheel(shelf, "lib", "1")
    (tmp_path / "home").write_text("machine 127.0.0.1 login other password old")
    monkeypatch.setenv("NETRC", str(tmp_path / "home"))
    with json_index(shelf, credentials="bob@here:h/u\\sh") as url:
        index = url
        if how == "variables":
            monkeypatch.setenv("UV_INDEX_DEFAULT_USERNAME", "bob@here")
            monkeypatch.setenv("UV_INDEX_DEFAULT_PASSWORD", "h/u\\sh")
        else:
            index = url.replace("://", "://bob%40here:h%2Fu%5Csh@")
        pins = resolve("source", indexes=default(index), wheels_only=[])
    assert names(pins) == ["lib==1", "source==1"]
    commands = seen.read_text(encoding="utf-8")
    assert f"{url} " in commands  # it is pip's own command line that was seen
    assert "bob" not in commands
    netrc = tmp_path / "work" / "netrc"
    assert netrc.stat().st_mode & 0o777 == 0o600
    assert b"machine 127.0.0.1 login other" in netrc.read_bytes()


def test_two_indexes_of_one_host_get_their_own_passwords(
    tmp_path: Path, shelf: Path, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    make_wheel(shelf, "app", "1", requires=["ours"])
    make_wheel(own, "ours", "1")
    monkeypatch.setenv("UV_INDEX_OWN_USERNAME", "TOKEN")
    with serve(shelf, credentials="a:b c") as url, serve(own, credentials="TOKEN:") as private:
        first = default(url.replace("://", "://a:b%20c@"))
        named = (Index("own", private, frozenset(["ours"])),)
        assert names(resolve("app", indexes=replace(first, named=named))) == ["app==1", "ours==1"]


def test_what_pip_finds_in_the_environment_changes_nothing(
    tmp_path: Path, shelf: Path, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(shelf, "a", "1")
    other = tmp_path / "other"
    other.mkdir()
    make_wheel(other, "a", "2")
    settings = tmp_path / "pip.conf"
    settings.write_text(f"[global]\nfind-links = {other}\n", encoding="utf-8")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_FIND_LINKS", str(other))
    monkeypatch.setenv("PIP_NO_DEPS", "1")
    assert names(resolve("a")) == ["a==1"]
    assert names(resolve("a", indexes=None, find_links=[other])) == ["a==2"]


def test_an_index_out_of_reach_is_a_download_error(resolve: Resolve) -> None:
    with pytest.raises(DownloadError) as caught:
        resolve("a", indexes=default("http://user:secret@127.0.0.1:9/simple"))
    assert "127.0.0.1:9/simple/a/" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_package_comes_from_its_own_index_and_no_other(
    tmp_path: Path, shelf: Path, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    make_wheel(shelf, "app", "1", requires=["Cuda.Thing", "helper"])
    make_wheel(shelf, "cuda-thing", "9")
    make_wheel(shelf, "helper", "1")
    make_wheel(own, "cuda-thing", "1")
    make_wheel(own, "helper", "9")
    monkeypatch.setenv("UV_INDEX_OWN_USERNAME", "me@here")
    monkeypatch.setenv("UV_INDEX_OWN_PASSWORD", "a/secret")
    only = frozenset(["cuda-thing"])
    with serve(shelf) as url, serve(own, credentials="me@here:a/secret") as private:
        for index in (
            Index("own", private, only),
            Index("own", private.removesuffix("simple") + "flat", only, flat=True),
        ):
            pins = resolve("app", indexes=replace(default(url), named=(index,)))
            assert names(pins) == ["app==1", "cuda-thing==1", "helper==1"]
            assert "secret" not in str(pins)
        monkeypatch.setenv("UV_INDEX_OWN_PASSWORD", "wrong")
        with pytest.raises(DownloadError, match="401") as caught:
            resolve("app", indexes=replace(default(url), named=(Index("own", private, only),)))
        assert "wrong" not in str(caught.value)
        assert "the index own" in caught.value.message
        assert "netrc, or from UV_INDEX_OWN_USERNAME and UV_INDEX_OWN_PASSWORD" in str(caught.value)


@contextmanager
def json_index(
    shelf: Path,
    *,
    broken: str = "",
    credentials: str = "",
    uploaded: Mapping[str, str] = NOTHING,
    yanked: Mapping[str, str] = NOTHING,
) -> Iterator[str]:
    """A PEP 691 index with sizes and metadata (PEP 658), sdists, and not the wheels themselves.

    broken: a project whose page cannot be read. credentials: "user:password" to be asked for.
    uploaded, yanked: by file, when and why; the others
    are from New Year 2026, and good.
    """

    wanted = "Basic " + base64.b64encode(credentials.encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, name = self.path.strip("/").split("/")
            if credentials and self.headers.get("Authorization") != wanted:
                self.send_error(401)
            elif name.endswith(".whl.metadata"):
                with zipfile.ZipFile(shelf / name.removesuffix(".metadata")) as wheel:
                    (member,) = (m for m in wheel.namelist() if m.endswith("/METADATA"))
                    self._answer("application/octet-stream", wheel.read(member))
            elif name.endswith(".tar.gz") or (credentials and name.endswith(".whl")):
                self._answer("application/octet-stream", (shelf / name).read_bytes())
            elif kind == "files" or name == broken:
                self.send_error(500)
            else:
                files = [
                    {
                        "filename": file.name,
                        "url": f"../../files/{file.name}",
                        "hashes": {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
                        "size": file.stat().st_size,
                        "core-metadata": file.suffix == ".whl",
                        "upload-time": uploaded.get(file.name, "2026-01-01T12:00:00Z"),
                        "yanked": yanked.get(file.name, False),
                    }
                    for file in shelf.glob(f"{name}-*")
                ]
                page = json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files})
                self._answer("application/vnd.pypi.simple.v1+json", page.encode())

        def _answer(self, kind: str, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_metadata_alone_is_fetched_and_sizes_are_known(shelf: Path, resolve: Resolve) -> None:
    wheels = [make_wheel(shelf, "app", "1", requires=["lib"]), make_wheel(shelf, "lib", "1")]
    with json_index(shelf) as url:
        pins = resolve("app", indexes=default(url))
    assert names(pins) == ["app==1", "lib==1"]
    assert [pin.size for pin in pins] == [wheel.stat().st_size for wheel in wheels]


def test_what_was_uploaded_later_and_prereleases_count_when_told_so(
    shelf: Path, resolve: Resolve
) -> None:
    for version in ("1", "2rc1", "3rc1"):
        make_wheel(shelf, "a", version)
    times = {
        "a-2rc1-py3-none-any.whl": "2026-06-30T23:59:59Z",
        "a-3rc1-py3-none-any.whl": "2026-07-01T00:00:00Z",
    }
    with json_index(shelf, uploaded=times) as url:
        told = {"indexes": default(url), "exclude_newer": "2026-07-01T00:00:00Z"}
        assert names(resolve("a", **told)) == ["a==1"]
        assert names(resolve("a", prereleases=True, **told)) == ["a==2rc1"]


def test_a_yanked_version_is_taken_only_when_pinned_and_says_so(
    shelf: Path, resolve: Resolve
) -> None:
    make_wheel(shelf, "a", "1")
    bad = make_wheel(shelf, "a", "2")
    with json_index(shelf, yanked={bad.name: "it is broken"}) as url:
        assert [(p.version, p.yanked) for p in resolve("a", indexes=default(url))] == [("1", None)]
        (pin,) = resolve("a==2", indexes=default(url))
    assert pin.yanked == "it is broken"


def test_a_page_that_cannot_be_read_is_no_empty_page(shelf: Path, resolve: Resolve) -> None:
    make_wheel(shelf, "app", "1")
    make_wheel(shelf, "app", "2", requires=["lib"])
    make_wheel(shelf, "lib", "1")
    # pip would take app 1, and say nothing.
    with json_index(shelf, broken="lib") as url, pytest.raises(DownloadError, match="/simple/lib/"):
        resolve("app", indexes=default(url))


def test_without_pip_tools_it_says_what_to_install(
    tmp_path: Path, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    place = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / place))
    with pytest.raises(MachineError) as caught:
        resolve("a")
    assert len(caught.value.problems) == len(pip_tools_child.VERSIONS) == 2
    assert "airgap-mirror[pip-tools]" in str(caught.value)


def test_a_process_that_fails_is_no_traceback(
    resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    with pytest.raises(ResolutionError, match="the resolver failed") as caught:
        resolve("a")
    assert "it ended with code 1" in caught.value.problems


def test_the_extra_pins_what_the_code_knows() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pins = {f"{name}=={version}" for name, version in pip_tools_child.VERSIONS.items()}
    assert set(extras["pip-tools"]) == pins


def test_tags_begin_at_the_targets_glibc() -> None:
    found = tags.platforms(replace(LINUX, glibc="2.13"))
    assert found == [
        "manylinux_2_13_x86_64",
        "manylinux_2_12_x86_64",
        "manylinux2010_x86_64",
        *(f"manylinux_2_{minor}_x86_64" for minor in range(11, 4, -1)),
        "manylinux1_x86_64",
        "linux_x86_64",
    ]
    aarch64 = Target(python="3.12", platform="linux-aarch64", glibc="2.18")
    assert tags.platforms(aarch64) == [
        "manylinux_2_18_aarch64",
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
        "linux_aarch64",
    ]
    assert tags.platforms(replace(aarch64, glibc="2")) == ["linux_aarch64"]
    assert tags.platforms(WINDOWS) == ["win_amd64"]


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or platform.machine() not in ("x86_64", "aarch64"),
    reason="compares with a machine that a target can describe",
)
def test_tags_are_those_of_such_a_machine() -> None:
    here = Target(
        python="{}.{}".format(*sys.version_info),
        platform=f"linux-{platform.machine()}",
        glibc=platform.libc_ver()[1],
    )
    real = list(sys_tags())
    assert set(tags.supported(here)) == set(real)

    # How old a glibc "linux" goes back to, nobody knows: here, as for uv, it comes last.
    def known(found: Iterable[Tag]) -> list[Tag]:
        return [tag for tag in found if not tag.platform.startswith("linux_")]

    assert known(tags.supported(here)) == known(real)


def test_the_best_of_several_wheels_is_the_targets_first() -> None:
    stem = "regex-1-cp310-cp310-manylinux_2_17_x86_64"
    files = [f"{stem}.whl", f"{stem}.manylinux_2_28_x86_64.whl", "regex-1-py3-none-any.whl"]
    assert tags.best(files, LINUX) == files[1]
    assert tags.best(files, replace(LINUX, glibc="2.27")) == files[0]
    assert tags.best(files, WINDOWS) == files[2]
    builds = ["a-1-2-py3-none-any.whl", "a-1-10-py3-none-any.whl"]
    assert tags.best(builds, WINDOWS) == builds[1]
    assert tags.best(files[:2], WINDOWS) is None
