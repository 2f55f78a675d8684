"""Linking conda packages, set against rattler alone."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from mirror.core.artifact import Artifact, Json
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.conda import deploy
from mirror.ecosystems.conda.records import repodata
from mirror.ecosystems.deploy import Site
from mirror.store.blobs import Blobs, place
from mirror.store.generation import Generation
from tests.bench.rows import Compared, Group, Row
from tests.conda_packages import PREFIX, Package

_TARGET = Target(python="3.11", platform="linux-x86_64", glibc="2.28")
_SUBDIR = "linux-64"
_SMALL = (500, 2_000, 8_000, 30_000, 120_000)


class CondaInstall(Group):
    """A hundred packages of `size` bytes together, and ten that are tar.bz2 of a tenth of that.

    Half of each is two libraries, one with the prefix in it; the rest are small files. The bytes
    are random, so that as many have to be compared as are installed: a package that compresses is
    less work for mirror. rattler alone is given the same records and the same files; it compares
    no hash before it unpacks, and looks at no path.
    """

    name = "conda"
    aims = (
        Compared("mirror, .conda", "rattler, .conda", 1.2),
        Compared("mirror, .tar.bz2", "rattler, .tar.bz2", 1.2),
    )

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.scratch, self.folder = scratch, folder
        self.blobs = Blobs(folder / "store")
        self.modern = self.make(100, size // 100, modern=True)
        self.old = self.make(10, size // 100, modern=False)

    def rows(self) -> list[Row]:
        """Each begins with an empty folder, on the file system of the packages."""
        sets = ((".conda", self.modern), (".tar.bz2", self.old))
        return [row for name, artifacts in sets for row in self.both(name, artifacts)]

    def both(self, name: str, artifacts: list[Artifact]) -> list[Row]:
        size = sum(artifact.size for artifact in artifacts)
        return [
            Row(f"mirror, {name}", lambda: self.deploy(artifacts), size=size),
            Row(f"rattler, {name}", lambda: self.install(artifacts), size=size),
        ]

    def make(self, count: int, size: int, *, modern: bool) -> list[Artifact]:
        """Packages of `size` bytes each, in the store and in a channel."""
        made = []
        for number in range(count):
            name = f"package-{number:03d}"
            package = Package(
                name,
                files=_files(name, size),
                noarch=None,
                subdir=_SUBDIR,
                modern=modern,
            )
            data = package.to_bytes()
            sha256 = self.blobs.put(data)
            known = {**package.index(), "size": len(data), "sha256": sha256}
            path = f"conda/{_SUBDIR}/{package.file}"
            origin: dict[str, Json] = {"subdir": _SUBDIR, "file": package.file, "record": known}
            made.append(Artifact("conda", path, len(data), sha256, origin=origin))
        for path, data in repodata(made, _SUBDIR).items():
            made.append(Artifact("conda", path, len(data), self.blobs.put(data)))
        for artifact in made:
            place(self.blobs.path(artifact.sha256), self.channel(made) / artifact.path)
        return made

    def channel(self, artifacts: list[Artifact]) -> Path:
        return self.folder / f"channel-{len(artifacts)}"

    def deploy(self, artifacts: list[Artifact]) -> None:
        index = Index("bench", "1", "0", "0" * 64, _TARGET, tuple(map(Entry, artifacts)))
        generation = Generation(self.scratch / "generations" / "000001")
        generation.path.mkdir(parents=True)
        deploy.deploy(artifacts, Site(index, self.blobs, generation, Path(), Quiet()))

    def install(self, artifacts: list[Artifact]) -> None:
        import rattler

        folder = self.channel(artifacts) / "conda"
        channel = rattler.Channel(str(folder))
        opened = rattler.SparseRepoData(channel, _SUBDIR, folder / _SUBDIR / "repodata.json")
        records = opened.load_all_records(rattler.PackageFormatSelection.BOTH)
        asyncio.run(
            rattler.install(
                records,
                self.scratch / "env",
                cache_dir=self.scratch / "cache",
                installed_packages=[],
                platform=rattler.Subdir(_SUBDIR),
                client=rattler.Client(),
                show_progress=False,
            )
        )


def _files(name: str, size: int) -> dict[str, bytes]:
    head = b"\x7fELF" + PREFIX.encode() + b"/lib\0"
    files = {
        f"lib/lib{name}.so.1": os.urandom(size // 4),
        f"lib/lib{name}_prefix.so.1": head + os.urandom(size // 4),
        f"bin/{name}": f"#!{PREFIX}/bin/sh\n".encode(),
    }
    left, number = size // 2, 0
    while left > 0:
        length = min(left, _SMALL[number % len(_SMALL)])
        files[f"share/{name}/{number % 20}/{number}"] = os.urandom(length)
        left, number = left - length, number + 1
    return files
