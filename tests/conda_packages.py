"""Conda packages made on the spot, and the two sides of the gap to pass them through."""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import os
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mirror.core.artifact import Artifact, Json
from mirror.core.index import Entry, Index
from mirror.core.manifest import CondaSection
from mirror.core.progress import Advance
from mirror.core.target import Target
from mirror.ecosystems.conda import deploy
from mirror.ecosystems.conda.records import document, repodata
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.source import Context
from mirror.fetch.http import Fetcher
from mirror.store.blobs import Blobs
from mirror.store.generation import Generation
from mirror.store.generations import Root

TARGET = Target(python="3.11", platform="linux-x86_64", glibc="2.28")
PREFIX = "/opt/" + "placeholder_" * 10
DEMO_CHANNEL = Path(__file__).parents[1] / "manifests" / "channel"

_DATA = os.environ.get("MIRROR_TEST_DATA", str(Path(__file__).parents[2] / "shared" / "data"))
#: Real packages of others.
DATA = Path(_DATA) / "conda"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no real conda packages in {DATA} (set MIRROR_TEST_DATA)"
)

_BLOCK = 128 * 1024


class Recorder:
    """A Progress that remembers what a person would have read."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.steps: list[str] = []
        self.details: list[str] = []
        self.advanced: dict[str, int] = {}

    def step(self, text: str) -> None:
        self.steps.append(text)

    def detail(self, text: str) -> None:
        self.details.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    @contextmanager
    def bar(self, label: str, total: int, unit: str = "B", **about: object) -> Iterator[Advance]:
        def advance(amount: int) -> None:
            self.advanced[label] = self.advanced.get(label, 0) + amount

        yield advance


@dataclass
class Package:
    """A package to be made: what its record says, and what is in it.

    files: path -> bytes; those that hold PREFIX get the prefix replaced.
    links: path -> target of a symbolic link. folders: empty ones.
    paths: paths.json's entries instead of those of `files`, `links` and `folders`.
    info: further files of info/, or others instead of those made; None leaves one out.
    members: what stands at the end of the archive, unlisted.
    modern: whether it is a .conda.
    """

    name: str
    version: str = "1.0"
    depends: Sequence[str] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    noarch: str | None = "generic"
    subdir: str = "noarch"
    build: str = "0"
    paths: Sequence[Mapping[str, Any]] | None = None
    info: Mapping[str, bytes | None] = field(default_factory=dict)
    folders: Sequence[str] = ()
    members: Sequence[tarfile.TarInfo] = ()
    modern: bool = False
    site_packages: str | None = None

    @property
    def file(self) -> str:
        end = "conda" if self.modern else "tar.bz2"
        return f"{self.name}-{self.version}-{self.build}.{end}"

    def index(self) -> dict[str, Json]:
        table: dict[str, Json] = {
            "name": self.name,
            "version": self.version,
            "build": self.build,
            "build_number": 0,
            "depends": list(self.depends),
            "subdir": self.subdir,
        }
        more = {"noarch": self.noarch, "python_site_packages_path": self.site_packages}
        return table | {key: value for key, value in more.items() if value}

    def to_bytes(self) -> bytes:
        entries = [_entry(path, data) for path, data in self.files.items()]
        entries += [{"_path": path, "path_type": "softlink"} for path in self.links]
        entries += [{"_path": path, "path_type": "directory"} for path in self.folders]
        listed = entries if self.paths is None else list(self.paths)
        info: dict[str, bytes | None] = {
            "info/index.json": json.dumps(self.index()).encode(),
            "info/paths.json": json.dumps({"paths": listed, "paths_version": 1}).encode(),
            **self.info,
        }
        described = [_member(path, data) for path, data in info.items() if data is not None]
        held = [_member(path, data) for path, data in self.files.items()]
        others = [special(path, tarfile.SYMTYPE, target) for path, target in self.links.items()]
        others += [special(path, tarfile.DIRTYPE) for path in self.folders]
        held += [(member, b"") for member in [*others, *self.members]]
        if not self.modern:
            return bz2.compress(_tar([*described, *held]))
        buffer = io.BytesIO()
        stem = f"{self.name}-{self.version}-{self.build}"
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("metadata.json", b'{"conda_pkg_format_version": 2}')
            archive.writestr(f"pkg-{stem}.tar.zst", zstd(_tar(held)))
            archive.writestr(f"info-{stem}.tar.zst", zstd(_tar(described)))
        return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    """A zstd frame of these bytes (RFC 8878), without a compressor.

    In blocks that hold them as they are, or one byte and how often it comes.
    """
    parts = [b"\x28\xb5\x2f\xfd\x80\x38", struct.pack("<I", len(data))]
    for start in range(0, len(data), _BLOCK):
        block = data[start : start + _BLOCK]
        same = block == block[:1] * len(block)
        last = start + _BLOCK >= len(data)
        parts.append(struct.pack("<I", len(block) << 3 | same << 1 | last)[:3])
        parts.append(block[:1] if same else block)
    return b"".join(parts)


def _member(path: str, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), 0o755 if path.startswith("bin/") else 0o644
    return member, data


def special(path: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A member that is no file: a link to `target`, a folder, a device; or an empty file."""
    member = tarfile.TarInfo(path)
    member.type, member.linkname, member.mode = kind, target, 0o755
    return member


def _tar(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"_path": path, "path_type": "hardlink", "size_in_bytes": len(data)}
    entry["sha256"] = hashlib.sha256(data).hexdigest()
    if PREFIX.encode() in data:
        entry["prefix_placeholder"] = PREFIX
        entry["file_mode"] = "binary" if b"\0" in data else "text"
    return entry


def write_channel(folder: Path, *packages: Package, hashed: bool = True) -> Path:
    """A channel in a folder; `hashed`: whether its records say what the packages' bytes are."""
    records: dict[str, dict[str, Json]] = {"noarch": {}, "linux-64": {}}
    for package in packages:
        data = package.to_bytes()
        (folder / package.subdir).mkdir(parents=True, exist_ok=True)
        (folder / package.subdir / package.file).write_bytes(data)
        known: dict[str, Json] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        records[package.subdir][package.file] = {**package.index(), **(known if hashed else {})}
    for subdir, found in records.items():
        (folder / subdir).mkdir(parents=True, exist_ok=True)
        (folder / subdir / "repodata.json").write_bytes(document(subdir, found))
    return folder


def index_channel(folder: Path, *archives: Path) -> Path:
    """A channel of packages that are there already, indexed by rattler."""
    import asyncio

    from rattler.index.index import index_fs

    (folder / "noarch").mkdir(parents=True)
    for archive in archives:
        shutil.copy(archive, folder / "noarch")
        (folder / "noarch" / archive.name).chmod(0o644)
    asyncio.run(index_fs(folder, write_zst=False, write_shards=False))
    return folder


def section(channel: Path | str, *packages: str) -> CondaSection:
    return CondaSection(channels=[str(channel)], packages=list(packages))


def context(
    folder: Path, target: Target = TARGET, kept: Sequence[Artifact] = (), beside: Path | None = None
) -> Context:
    blobs, progress = Blobs(folder / "builder"), Recorder()
    return Context(
        folder=beside or folder,
        target=target,
        blobs=blobs,
        fetcher=Fetcher(blobs, progress),
        progress=progress,
        kept=tuple(kept),
    )


def carry(wanted: CondaSection, here: Context, root: Path) -> Site:
    """Resolve, prove, and bring everything into the store of a root: the state before deploy."""
    from mirror.ecosystems.conda import source  # the server's tests do without the builder

    artifacts = source.resolve(wanted, here)
    source.prove(artifacts, wanted, here)
    store = Root(root)
    store.prepare()
    for place in source.requests(artifacts, wanted, here):
        assert isinstance(place, Path)
        store.blobs.put(place.read_bytes())
    derived = [
        Artifact("conda", path, len(data), store.blobs.put(data))
        for path, data in source.derived(artifacts, here).items()
    ]
    return site(store, [*artifacts, *derived], here.target)


def put(folder: Path, *packages: Package, scripts: Sequence[str] = ()) -> Site:
    """The packages in a root's store, as a bundle brings them, proved by nobody.

    scripts: packages whose link scripts the bundle allows.
    """
    store = Root(folder / "root")
    store.prepare()
    artifacts: list[Artifact] = []
    for package in packages:
        data = package.to_bytes()
        sha256 = store.blobs.put(data)
        path = f"conda/{package.subdir}/{package.file}"
        found = {**package.index(), "size": len(data), "sha256": sha256}
        origin: dict[str, Json] = {"subdir": package.subdir, "file": package.file, "record": found}
        origin |= {"link_scripts": True} if package.name in scripts else {}
        artifacts.append(Artifact("conda", path, len(data), sha256, origin=origin))
    for path, data in repodata(artifacts, TARGET.subdir).items():
        artifacts.append(Artifact("conda", path, len(data), store.blobs.put(data)))
    return site(store, artifacts, TARGET)


def run(there: Site) -> Recorder:
    """Deploy; returns what was told."""
    deploy.deploy(there.index.of_kind("conda"), there)
    assert isinstance(there.progress, Recorder)
    return there.progress


def site(root: Root, artifacts: Sequence[Artifact], target: Target) -> Site:
    index = Index(
        name="t",
        version="1",
        tool="0",
        lock="0" * 64,
        target=target,
        entries=tuple(Entry(artifact) for artifact in artifacts),
    )
    return Site(index, root.blobs, root.begin(), Path(), Recorder())


def installed_files(prefix: Path) -> list[str]:
    """Every file in a prefix but the environment's own records."""
    return [
        path.relative_to(prefix).as_posix()
        for path in sorted(prefix.rglob("*"))
        if (path.is_file() or path.is_symlink()) and path.parent.name != "conda-meta"
    ]


def install(wanted: CondaSection, here: Context, root: Path) -> tuple[Generation, list[str]]:
    """The whole way; returns the generation and what was warned about."""
    there = carry(wanted, here, root)
    return there.generation, run(there).warnings
