"""Packages without a wheel: built here when they fit any machine, refused by name otherwise."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mirror import machine
from mirror.core.artifact import Artifact
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import inspection, isolated, sdists, uv
from mirror.ecosystems.wheels.indexes import Index, Indexes, default_url
from mirror.ecosystems.wheels.wanted import Wanted
from mirror.errors import DownloadError, ResolutionError
from mirror.fetch.http import Fetcher
from mirror.store.blobs import Blobs
from tests.index import make_wheel

# A backend inside the sdist: builds need nothing of any index. What it does is in the sdist's
# `behaviour.py`; the tag, and what the module says, are read from there.
BACKEND = """
import base64, hashlib, os, subprocess, time, zipfile
import behaviour

def build_wheel(folder, config_settings=None, metadata_directory=None):
    behaviour.before()
    stem = f"{behaviour.NAME}-{behaviour.VERSION}"
    info = f"{stem}.dist-info"
    with open("PKG-INFO") as file:
        metadata = file.read()
    files = {
        f"{behaviour.NAME}.py": behaviour.code(),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\\nTag: {behaviour.TAG}\\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{name},sha256={digest.decode()},{len(text)}\\n"
    with zipfile.ZipFile(os.path.join(folder, f"{stem}-{behaviour.TAG}.whl"), "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            # The time of the build, as careless backends write it.
            wheel.writestr(zipfile.ZipInfo(name, time.localtime()[:6]), text)
    return f"{stem}-{behaviour.TAG}.whl"
"""
PYPROJECT = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"


def make_sdist(
    folder: Path,
    name: str,
    version: str,
    *,
    tag: str = "py3-none-any",
    before: str = "pass",
    code: str = "'X = 1'",
    requires: tuple[str, ...] = (),
    setup: dict[str, str] | None = None,
    metadata: str = "2.2",
) -> Path:
    """A real sdist; `before` and `code` are a statement and an expression of its build.

    setup: other files in place of the backend's.
    """
    stem = f"{name}-{version}"
    lines = [f"Metadata-Version: {metadata}", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {item}" for item in requires]
    files = setup or {
        "pyproject.toml": PYPROJECT,
        "backend.py": BACKEND,
        "behaviour.py": (
            "import os, subprocess, sys, time\n"
            f"NAME, VERSION, TAG = {name!r}, {version!r}, {tag!r}\n"
            f"def before():\n    {before}\ndef code():\n    return {code}\n"
        ),
    }
    path = folder / f"{stem}.tar.gz"
    with tarfile.open(path, "w:gz") as out:
        for member, text in {**files, "PKG-INFO": "\n".join(lines) + "\n"}.items():
            info = tarfile.TarInfo(f"{stem}/{member}")
            info.size = len(text.encode())
            out.addfile(info, BytesIO(text.encode()))
    return path


class Notes(Quiet):
    """Remembers steps and warnings."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.warnings: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@dataclass
class Shop:
    """An index of our own, a store, and a resolver over both."""

    shelf: Path
    folder: Path
    url: str
    target: Target = field(
        default_factory=lambda: Target(
            python=machine.this_python(), platform="linux-aarch64", glibc="2.28"
        )
    )
    notes: Notes = field(default_factory=Notes)

    def context(self, store: str = "cache") -> Context:
        blobs = Blobs(self.folder / store)
        fetcher = Fetcher(blobs, Quiet())
        return Context(self.folder, self.target, blobs, fetcher, self.notes)

    def wanted(self, *lines: str, pure: bool = True, build: Collection[str] = ()) -> Wanted:
        indexes = Indexes(Index("default", self.publish()))
        return Wanted(lines, self.target, indexes, sdists=pure, build=frozenset(build))

    def publish(self) -> str:
        """Write the index's pages for what is on the shelf now."""
        pages: dict[str, str] = {}
        for file in sorted(self.shelf.glob("*-*")):
            name = file.name.split("-")[0].replace("_", "-")
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            link = f'<a href="/{file.name}#sha256={digest}">{file.name}</a>\n'
            pages[name] = pages.get(name, "<!DOCTYPE html>") + link
        for name, page in pages.items():
            (self.shelf / "simple" / name).mkdir(parents=True, exist_ok=True)
            (self.shelf / "simple" / name / "index.html").write_text(page, encoding="utf-8")
        return f"{self.url}/simple/"

    def resolve(
        self, wanted: Wanted, *, store: str = "cache", kept: Collection[Artifact] = ()
    ) -> tuple[list[str], dict[str, sdists.Built]]:
        pins, built = sdists.resolve(
            ask_uv(wanted, self.folder), wanted, self.context(store), list(kept)
        )
        assert all(pin.file.endswith(".whl") for pin in pins)
        return [pin.file for pin in pins], built


def ask_uv(wanted: Wanted, folder: Path) -> sdists.Ask:
    def ask(wheels_only: Collection[str] | None) -> list[uv.Pin]:
        with TemporaryDirectory(dir=folder) as inner:
            return uv.resolve(
                wanted.lines,
                wanted.target,
                Path(inner),
                indexes=wanted.indexes,
                wheels_only=wheels_only,
            )

    return ask


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    shelf = tmp_path / "shelf"
    shelf.mkdir()

    class Handler(SimpleHTTPRequestHandler):
        def end_headers(self) -> None:
            # uv would remember a page that has a date.
            self.send_header("Cache-Control", "no-store")
            super().end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(shelf)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield Shop(shelf, tmp_path, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()
    thread.join()


def artifact(built: sdists.Built) -> Artifact:
    """As a lock records it."""
    origin = {"name": built.name, "version": built.version, "file": built.file, "index": "default"}
    return Artifact(
        "wheels",
        f"wheels/{built.file}",
        built.size,
        built.sha256,
        origin=origin | dict(built.origin()),
    )


def test_what_exists_only_as_source_is_built_announced_and_fits_any_machine(shop: Shop) -> None:
    make_wheel(shop.shelf, "app", "1", requires=["source_only"])
    sdist = make_sdist(shop.shelf, "source_only", "2.0", requires=("leaf",))
    make_wheel(shop.shelf, "leaf", "1")
    files, built = shop.resolve(shop.wanted("app"))
    wheel = "source_only-2.0-py3-none-any.whl"
    assert files == ["app-1-py3-none-any.whl", "leaf-1-py3-none-any.whl", wheel]
    assert shop.notes.steps == ["source-only 2.0 has no wheel: building one from its sdist"]
    made = built[wheel]
    path = shop.context().blobs.path(made.sha256)
    assert inspection.check(path, wheel) == inspection.Findings((), ())
    assert inspection.metadata(path).requires == ("leaf",)
    assert made.sdist_sha256 == hashlib.sha256(sdist.read_bytes()).hexdigest()
    assert dict(made.origin()) == {
        "sdist": "source_only-2.0.tar.gz",
        "sdist_sha256": made.sdist_sha256,
        "tools": [],
    }


def test_without_sdists_nothing_is_built(shop: Shop) -> None:
    make_wheel(shop.shelf, "app", "1", requires=["source_only"])
    make_sdist(shop.shelf, "source_only", "2.0", before="raise SystemExit('was run')")
    with pytest.raises(ResolutionError) as caught:
        shop.resolve(shop.wanted("app", pure=False))
    said = str(caught.value)
    assert "source-only exists only as source, which `sdists: never` forbids" in said
    assert "all versions of app depend on source-only" in said
    assert not shop.notes.steps
    make_wheel(shop.shelf, "app", "0.9")
    assert shop.resolve(shop.wanted("app", pure=False))[0] == ["app-0.9-py3-none-any.whl"]


def test_a_wheel_for_one_kind_of_machine_is_refused_with_who_asks(shop: Shop) -> None:
    make_wheel(shop.shelf, "app", "1", requires=["native_thing"])
    make_sdist(shop.shelf, "native_thing", "2.0", tag="cp311-cp311-linux_x86_64")
    with pytest.raises(ResolutionError) as caught:
        shop.resolve(shop.wanted("app"))
    said = str(caught.value)
    assert "native-thing cannot be built for any machine" in said
    assert "native_thing-2.0-cp311-cp311-linux_x86_64.whl" in said
    assert "app depend on native-thing" in said
    assert "wheels.build" in said


def test_another_version_is_looked_for_and_that_is_said(shop: Shop) -> None:
    make_sdist(shop.shelf, "native_thing", "2.0", tag="cp311-cp311-linux_x86_64")
    make_wheel(shop.shelf, "native_thing", "1.0")
    assert shop.resolve(shop.wanted("native-thing")) == (["native_thing-1.0-py3-none-any.whl"], {})
    assert "looking for another version" in shop.notes.warnings[0]


def test_a_package_with_wheels_for_other_machines_is_not_even_run(shop: Shop) -> None:
    make_sdist(shop.shelf, "native_thing", "2.0", before="raise SystemExit('was run')")
    make_wheel(shop.shelf, "native_thing", "2.0", tag="cp311-cp311-win_amd64")
    make_wheel(shop.shelf, "native_thing", "1.0")
    assert shop.resolve(shop.wanted("native-thing"))[0] == ["native_thing-1.0-py3-none-any.whl"]
    assert not shop.notes.steps
    with pytest.raises(ResolutionError, match="has wheels for other machines, none for the target"):
        shop.resolve(shop.wanted("native-thing==2.0"))


def test_what_would_compile_fails_at_once_and_is_refused(shop: Shop) -> None:
    compile_it = "subprocess.run([os.environ.get('CC', 'cc'), 'native.c'], check=True)"
    make_sdist(shop.shelf, "native_thing", "2.0", before=compile_it)
    with pytest.raises(ResolutionError, match="native-thing cannot be built: it compiles native"):
        shop.resolve(shop.wanted("native-thing"))


def test_a_build_that_fails_is_explained(shop: Shop) -> None:
    make_sdist(shop.shelf, "needy", "1", before="import torch_of_yesteryear")
    make_sdist(shop.shelf, "broken", "1", before="sys.exit('no such luck')")
    with pytest.raises(ResolutionError, match="it needs torch_of_yesteryear to be there"):
        shop.resolve(shop.wanted("needy"))
    wanted = shop.wanted("broken")
    with pytest.raises(ResolutionError) as caught:
        isolated.build(
            shop.shelf / "broken-1.tar.gz",
            "broken",
            shop.folder,
            target=shop.target,
            indexes=wanted.indexes,
        )
    assert "no such luck" in caught.value.problems
    assert not list(shop.folder.glob("build-*"))


def test_a_failure_to_tell_metadata_is_a_refusal_too(shop: Shop) -> None:
    """uv itself runs the build, for metadata that an old sdist does not state."""
    # Metadata 2.1 does not promise that the wheel's will be the same, so uv asks the backend.
    setup = {"pyproject.toml": PYPROJECT, "backend.py": "import torch_of_yesteryear\n"}
    make_sdist(shop.shelf, "needy", "1", setup=setup, metadata="2.1")
    make_wheel(shop.shelf, "app", "1", requires=["needy"])
    with pytest.raises(ResolutionError) as caught:
        shop.resolve(shop.wanted("app"))
    assert "needy: of its sdist, it needs torch_of_yesteryear to be there" in str(caught.value)
    make_wheel(shop.shelf, "needy", "0.1")
    assert "needy-0.1-py3-none-any.whl" in shop.resolve(shop.wanted("app"))[0]


def test_the_same_source_gives_the_same_bytes_and_is_built_once(shop: Shop) -> None:
    make_sdist(shop.shelf, "source_only", "2.0", code="'X = %r' % os.environ['SOURCE_DATE_EPOCH']")
    wanted = shop.wanted("source-only")
    [first] = shop.resolve(wanted)[1].values()
    [again] = shop.resolve(wanted)[1].values()
    assert first == again
    assert len(shop.notes.steps) == 1
    # Another builder, with another umask and at another time.
    old = os.umask(0o077)
    try:
        [other] = shop.resolve(wanted, store="other")[1].values()
    finally:
        os.umask(old)
    assert len(shop.notes.steps) == 2
    assert other == first


def test_a_lock_is_built_from_on_another_machine(shop: Shop) -> None:
    make_sdist(shop.shelf, "source_only", "2.0")
    wanted = shop.wanted("source-only")
    [built] = shop.resolve(wanted)[1].values()
    elsewhere = shop.context("elsewhere")
    path = sdists.again(artifact(built), wanted, elsewhere)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == built.sha256
    (shop.shelf / "source_only-2.0.tar.gz").unlink()
    (shop.shelf / "simple/source-only/index.html").unlink()
    make_sdist(shop.shelf, "source_only", "2.1")
    with pytest.raises(DownloadError, match=r"source_only-2\.0\.tar\.gz"):
        sdists.again(artifact(built), shop.wanted("source-only"), shop.context("third"))


def test_a_rebuild_that_differs_says_so_and_is_not_used(shop: Shop) -> None:
    make_sdist(shop.shelf, "moody", "1", code="'X = %d' % time.time_ns()")
    wanted = shop.wanted("moody")
    [built] = shop.resolve(wanted)[1].values()
    with pytest.raises(ResolutionError) as caught:
        sdists.again(artifact(built), wanted, shop.context("elsewhere"))
    assert "came out different" in str(caught.value)
    assert built.sha256 in str(caught.value)
    shop.resolve(wanted, store="elsewhere", kept=[artifact(built)])
    assert "came out other than the lock's" in shop.notes.warnings[-1]


def test_an_sdist_that_is_not_the_one_locked_is_refused(shop: Shop) -> None:
    make_sdist(shop.shelf, "source_only", "2.0")
    [built] = shop.resolve(shop.wanted("source-only"))[1].values()
    make_sdist(shop.shelf, "source_only", "2.0", code="'X = 2'")
    with pytest.raises(DownloadError):
        sdists.again(artifact(built), shop.wanted("source-only"), shop.context("elsewhere"))


def test_a_platform_wheel_is_built_where_the_target_is_this_machine(shop: Shop) -> None:
    here = machine.this_platform()
    tag = "cp3{}-cp3{}-linux_x86_64".format(*[machine.this_python().partition(".")[2]] * 2)
    make_sdist(shop.shelf, "native_thing", "2.0", tag=tag, before="assert 'CC' not in os.environ")
    with pytest.raises(ResolutionError, match=r"can be built for .* alone"):
        shop.resolve(shop.wanted("native-thing", build=["native-thing"]))
    shop.target = replace(shop.target, platform=here, glibc=machine.this_glibc())
    wanted = shop.wanted("native-thing", build=["native-thing"])
    assert shop.resolve(wanted)[0] == [f"native_thing-2.0-{tag}.whl"]
    shop.target = replace(shop.target, glibc="2.17")
    with pytest.raises(ResolutionError, match="would need glibc"):
        shop.resolve(shop.wanted("native-thing", build=["native-thing"]), store="fresh")
    shop.target = replace(shop.target, glibc="", python="3.99")
    with pytest.raises(ResolutionError, match=r"is built with Python 3\.99, which is not here"):
        shop.resolve(shop.wanted("native-thing", build=["native-thing"]), store="fresh")


def test_a_build_sees_no_secret_of_the_user(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "PIP_INDEX_URL", "UV_INDEX"):
        monkeypatch.setenv(name, "to-be-seen-by-nobody")
    make_sdist(
        shop.shelf,
        "curious",
        "1",
        before="assert not [v for v in os.environ.values() if 'nobody' in v]",
    )
    assert shop.resolve(shop.wanted("curious"))[0] == ["curious-1-py3-none-any.whl"]


def test_wheels_are_settled_to_bytes_that_follow_from_their_files(tmp_path: Path) -> None:
    source = make_wheel(tmp_path, "demo", "1")
    with zipfile.ZipFile(source, "a") as wheel:
        script = zipfile.ZipInfo("demo-1.data/scripts/run", (2024, 1, 1, 0, 0, 0))
        script.external_attr = 0o100711 << 16
        script.create_system = 3
        wheel.writestr(script, b"#!python\n")
        wheel.writestr("demo-1.data/data/a,b", b"")
    isolated.settle(source, tmp_path / "one")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(tmp_path / "shuffled", "w") as new:
        for entry in reversed(old.infolist()):
            new.writestr(entry.filename, old.read(entry), zipfile.ZIP_DEFLATED)
            new.filelist[-1].external_attr = entry.external_attr
    isolated.settle(tmp_path / "shuffled", tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert inspection.check(tmp_path / "one", source.name) == inspection.Findings((), ())
    with zipfile.ZipFile(tmp_path / "one") as wheel:
        modes = {e.filename: e.external_attr >> 16 for e in wheel.infolist()}
        assert modes["demo-1.data/scripts/run"] == 0o100755
        assert modes["demo.py"] == 0o100644


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("Because antlr4>=4.9,<=4.9.3 has no usable wheels and only", ["antlr4"]),
        ("Because all versions of fairscale have no usable wheels and you", ["fairscale"]),
        ("because A.b==1 has no usable wheels, and c[x]>2 has no usable wheels", ["a-b", "c"]),
        ("hint: Wheels are required for `flash-attn` because building", ["flash-attn"]),
        ("pywin32 has no wheels with a matching platform tag", []),
    ],
)
def test_what_exists_only_as_source_is_read_from_the_resolvers_words(
    said: str, names: list[str]
) -> None:
    assert sdists.lacking(said) == names


EXTENSION = {
    "setup.py": (
        "from setuptools import Extension, setup\n"
        "setup(name='native_thing', version='1.0',"
        " ext_modules=[Extension('native_thing', ['native.c'])])\n"
    ),
    "native.c": "#include <Python.h>\n",
}


def test_a_real_extension_is_refused_as_pure(shop: Shop) -> None:
    """With setuptools from the real index; it calls the compiler that is named away."""
    path = make_sdist(shop.shelf, "native_thing", "1.0", setup=EXTENSION)
    indexes = Indexes(Index("default", default_url()))
    with pytest.raises(ResolutionError, match="native-thing cannot be built: it compiles native"):
        isolated.build(path, "native-thing", shop.folder, target=shop.target, indexes=indexes)


def test_hydra_gets_the_antlr_that_exists_only_as_source(
    tmp_path: Path, check_same: Callable[[Path], str]
) -> None:
    target = Target(python="3.11", platform="linux-aarch64", glibc="2.28")
    wanted = Wanted(
        ("hydra-core>=1.3.2,<1.3.3",), target, Indexes(Index("default", default_url())), sdists=True
    )
    stores = [Blobs(tmp_path / name) for name in ("one", "two")]
    contexts = [Context(tmp_path, target, b, Fetcher(b, Quiet()), Notes()) for b in stores]
    pins, built = sdists.resolve(ask_uv(wanted, tmp_path), wanted, contexts[0])
    versions = {pin.name: pin.version for pin in pins}
    assert versions["hydra-core"] == "1.3.2"
    assert versions["antlr4-python3-runtime"] == "4.9.3"
    made = built["antlr4_python3_runtime-4.9.3-py3-none-any.whl"]
    assert made.sdist_sha256.startswith("f224469b4168294902bb1efa80a8bf78")
    assert any(tool.startswith("setuptools==") for tool in made.tools)
    path = stores[0].path(made.sha256)
    assert inspection.check(path, made.file) == inspection.Findings((), ())
    assert sdists.again(artifact(made), wanted, contexts[1]).read_bytes() == path.read_bytes()
    assert check_same(path) == "4.9.3"


@pytest.fixture
def check_same(tmp_path: Path) -> Callable[[Path], str]:
    """Imports what a wheel holds, straight from it, and says its version."""

    def version(path: Path) -> str:
        code = "import antlr4, importlib.metadata as m; print(m.version('antlr4-python3-runtime'))"
        return subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": str(path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    return version
