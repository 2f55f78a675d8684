"""Resolving, building again and installing packages, set against uv and pip by themselves."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from mirror.bundle.flow import Background
from mirror.bundle.reader import Reader
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems import environment
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.tool import deploy as tool
from mirror.ecosystems.wheels import deploy as wheels
from mirror.ecosystems.wheels import running
from mirror.ecosystems.wheels.wanted import workplace
from mirror.store.blobs import Blobs, place
from mirror.store.generation import Generation
from tests.bench.rows import REPOSITORY, Compared, Group, Limited, Row, run

#: A project of the usual kind, for a server that has torch.
PROVIDED = "torch==2.8.0"
PROJECT = ("accelerate", "transformers>=4.50", "gymnasium", "wandb")
PROJECT_TARGET = Target(python="3.10", platform="linux-x86_64", glibc="2.28", provided=(PROVIDED,))
#: About fifty wheels of some 30 MB together, small ones and a few large ones, as a notebook needs.
NOTEBOOK = ("ipykernel", "nbconvert", "pandas")


class Resolve(Group):
    """`mirror lock --upgrade`, the whole program with warm caches, against bare uv.

    uv resolves the same set for the same target: torch is the stub that stands for it in mirror's
    resolution too. mirror locks its own tool besides.
    """

    name = "resolve"
    index = True
    aims = (Compared("mirror lock --upgrade", "uv pip compile", 2.0),)

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.folder = folder
        self.variables = {
            "MIRROR_CACHE": str(folder / "cache"),
            "UV_CACHE_DIR": str(folder / "uv"),
            # For a Python that is not here, uv would go and look for one to download.
            "UV_PYTHON_DOWNLOADS": "never",
        }
        target = PROJECT_TARGET
        (folder / "mirror.yaml").write_text(
            "name: bench\nversion: '1'\n"
            f"target: {{python: '{target.python}', platform: {target.platform},"
            f" glibc: '{target.glibc}', provided: [{PROVIDED}]}}\n"
            f"wheels: {{requirements: {list(PROJECT)}}}\n",
            encoding="utf-8",
        )
        with workplace(target) as (place_of_stubs, _):
            [stub] = place_of_stubs.glob("*.whl")
            kept = Path(shutil.copy(stub, folder))
        limits = f"{PROVIDED.partition('=')[0]} @ {kept.as_uri()}\n"
        (folder / "limits.txt").write_text(limits, encoding="utf-8")
        (folder / "asked.txt").write_text("\n".join(PROJECT), encoding="utf-8")
        for row in self.rows():
            row.work()  # the caches are warm from here on

    def rows(self) -> list[Row]:
        """Both ask the index whether anything is new."""
        return [Row("mirror lock --upgrade", self.lock), Row("uv pip compile", self.compile)]

    def lock(self) -> None:
        command = (sys.executable, "-m", "mirror", "lock", "--upgrade", "mirror.yaml")
        run(*command, folder=self.folder, variables=self.variables)

    def compile(self) -> None:
        run(
            *(running.program(), "pip", "compile", "asked.txt", "--constraints", "limits.txt"),
            *("--no-config", "--only-binary", ":all:", "--upgrade", "--python", sys.executable),
            *("--python-platform", "x86_64-manylinux_2_28", "--python-version", "3.10"),
            *("--format", "pylock.toml", "--output-file", "pylock.toml"),
            folder=self.folder,
            variables=self.variables,
        )


class Environment(Group):
    """An environment from wheels, hashes required, against what people do by hand.

    All three go from nothing to an environment that has the wheels, and to make the virtual
    environment is part of it: `venv`, then pip; `uv venv`, then uv. mirror's is what `mirror
    install` does when the blobs are in the root; it leaves a pip in the environment, as `venv` does
    and uv does not. To unpack the tool is not timed, nor to remove uv's cache: an install does that
    beside what follows, the others not at all. uv begins with an empty cache on the same file
    system. As small files do, each works in a folder of its own, and all go at the end.
    """

    name = "environment"
    index = True
    aims = (
        Compared("mirror, wheels", "uv venv, pip sync", 1.2),
        Compared("mirror, wheels", "venv, pip install", 1 / 5),
    )

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.folder = self.place = folder
        self.background = Background()
        (folder / "mirror.yaml").write_text(
            f"name: bench\nversion: '1'\nwheels: {{requirements: {list(NOTEBOOK)}}}\n",
            encoding="utf-8",
        )
        bundle = folder / "bench.tar.gz"
        build(folder / "mirror.yaml", bundle, folder / "cache")
        self.blobs = Blobs(folder / "store")
        with Reader.open(bundle) as reader:
            self.index_of_bundle = reader.index
            reader.admit(self.blobs, Quiet())
        self.wheels = self.index_of_bundle.of_kind("wheels")
        tool.deploy(self.index_of_bundle.of_kind("tool"), self.site(folder))
        self.tool = folder / "tool"
        for artifact in self.wheels:
            name = artifact.path.removeprefix("wheels/")
            place(self.blobs.path(artifact.sha256), folder / "links" / name)
        self.links = folder / "links"

    def site(self, folder: Path) -> Site:
        """For a generation in this folder."""
        return Site(
            self.index_of_bundle,
            self.blobs,
            Generation(folder),
            Path(sys.executable),
            Quiet(),
            self.background,
        )

    def rows(self) -> list[Row]:
        """Each begins with an empty folder."""
        return [
            Row("mirror, wheels", self.deploy, ready=self.begin),
            Row("uv venv, pip sync", self.sync, ready=self.begin),
            Row("venv, pip install", self.pip, ready=self.begin),
        ]

    def begin(self) -> None:
        self.background.finish()
        self.place = Path(tempfile.mkdtemp(dir=self.folder))
        (self.place / "tool").symlink_to(self.tool)

    def deploy(self) -> None:
        site = self.site(self.place)
        environment.create(site)
        wheels.deploy(self.wheels, site)

    def sync(self) -> None:
        uv, env = running.program(), self.place / "env"
        run(
            *(uv, "venv", "--offline", "--no-config", "--python", sys.executable, env),
            folder=self.place,
        )
        run(
            *(uv, "pip", "sync", "--python", env / "bin/python"),
            *("--offline", "--no-config", "--no-index", "--require-hashes"),
            *("--cache-dir", self.place / "cache", "--find-links", self.links),
            self.links / "requirements.txt",
            folder=self.place,
        )

    def pip(self) -> None:
        run(sys.executable, "-m", "venv", self.place / "env", folder=self.place)
        run(
            *(self.place / "env/bin/python", "-m", "pip", "--isolated", "install", "--no-index"),
            *("--require-hashes", "--no-deps", "--disable-pip-version-check"),
            *("--find-links", self.links, "--requirement", self.links / "requirements.txt"),
            folder=self.place,
        )


class Again(Group):
    """`mirror build` of the demo manifest when nothing changed since: the whole program."""

    name = "again"
    index = True
    aims = (Limited("mirror build, again", 1.0),)

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.folder = folder
        shutil.copytree(REPOSITORY / "manifests", folder / "manifests")
        self.build()

    def rows(self) -> list[Row]:
        return [Row("mirror build, again", self.build)]

    def build(self) -> None:
        build(
            self.folder / "manifests" / "demo.yaml",
            self.folder / "demo.tar.gz",
            self.folder / "cache",
        )


def build(manifest: Path, bundle: Path, cache: Path) -> None:
    run(
        *(sys.executable, "-m", "mirror", "build", manifest, "--output", bundle),
        folder=manifest.parent,
        variables={"MIRROR_CACHE": str(cache)},
    )
