"""A manifest on disk, and all that is needed to lock and build it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from mirror import machine
from mirror.core import inventory as inventories
from mirror.core import manifest as manifests
from mirror.core import reading
from mirror.core.inventory import Inventory
from mirror.core.manifest import Manifest
from mirror.core.progress import Progress
from mirror.core.target import Target
from mirror.ecosystems.conda import source as conda
from mirror.ecosystems.conda.solving.asked import has_pip_part
from mirror.ecosystems.files import source as files
from mirror.ecosystems.models.source import Repositories
from mirror.ecosystems.source import Context, LocalHashes, Source
from mirror.ecosystems.tool import source as tool
from mirror.ecosystems.wheels import source as wheels
from mirror.errors import UsageError
from mirror.fetch.http import Fetcher
from mirror.store.blobs import Blobs

#: Every ecosystem, in the order in which a bundle holds them.
SOURCES: Mapping[str, Source] = {
    "tool": tool,
    "conda": conda,
    "wheels": wheels,
    "models": Repositories("models"),
    "datasets": Repositories("datasets"),
    "spaces": Repositories("spaces"),
    "files": files,
}


@dataclass(frozen=True, slots=True)
class Project:
    """A manifest on disk, and what is needed to lock and build it."""

    path: Path
    manifest: Manifest
    context: Context

    @property
    def lock_path(self) -> Path:
        """demo.yaml -> demo.lock.toml"""
        return self.path.with_suffix(".lock.toml")

    def sections(self) -> Iterator[tuple[str, Source, Any]]:
        """Each ecosystem that the manifest uses: its kind, its source, its section."""
        for kind, source in SOURCES.items():
            section = self.manifest if kind == "tool" else getattr(self.manifest, kind)
            if section:
                yield kind, source, section


def find_manifest(folder: Path) -> Path:
    """The manifest that no argument means: mirror.yaml here, else the one in manifests/.

    Raises UsageError that lists what there is to choose from.
    """
    here = folder / "mirror.yaml"
    if here.is_file():
        return here
    found = sorted((folder / "manifests").glob("*.yaml"))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            "several manifests are here; name one",
            problems=[str(path.relative_to(folder)) for path in found],
        )
    raise UsageError(
        "no manifest is named, and there is no mirror.yaml here",
        hint="Write one (README.md shows how), or name it: mirror build MANIFEST",
    )


def open_project(path: Path, progress: Progress) -> Project:
    """Read a manifest. Raises UsageError for whatever is wrong with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the manifest {path} cannot be read: {error.strerror}") from None
    manifest = _with_pip_part(reading.parse(data, str(path)), path.parent)
    cache = cache_folder()
    blobs = Blobs(cache)
    context = Context(
        folder=path.parent.absolute(),
        target=_complete(manifest.target, path.parent),
        blobs=blobs,
        fetcher=Fetcher(blobs, progress),
        progress=progress,
        endpoint=manifest.endpoint or "",
        wheels=manifest.wheels,
        hashes=LocalHashes(cache / "local.json"),
    )
    return Project(path, manifest, context)


def _with_pip_part(manifest: Manifest, folder: Path) -> Manifest:
    """With the pip part of the conda section's environment file among the wheels' requirements."""
    file = manifest.conda.environment if manifest.conda else None
    if file is None or not has_pip_part(folder / file):
        return manifest
    section, part = manifest.wheels, f"{Path(file).as_posix()}:pip"
    if section is None:
        section = manifests.WheelsSection(requirements=[part])
    else:
        others = [item for item in section.requirements if item not in (file, part)]
        section = section.model_copy(update={"requirements": [*others, part]})
    return manifest.model_copy(update={"wheels": section})


def cache_folder() -> Path:
    """Where the builder keeps its store: $MIRROR_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("MIRROR_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~")).expanduser() / "mirror" / "cache"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/mirror").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "mirror"


def _complete(section: manifests.TargetSection, folder: Path) -> Target:
    """The target with what the manifest leaves out taken from its inventory, else this machine."""
    known = _inventory(section, folder)
    here = machine.this_platform()
    platform = section.platform or (known.platform if known else here)
    if not platform:
        raise UsageError(
            "this machine is no platform that a bundle can be for",
            hint="Write target.platform in the manifest, for instance linux-x86_64.",
        )
    glibc = section.glibc or (known.glibc if known else "")
    if platform.startswith("linux") and not glibc:
        # Another machine's glibc is not known here: 2.28 is what every Linux since 2019 has.
        glibc = (machine.this_glibc() if platform == here else "") or "2.28"
    return Target(
        python=section.python or (known.python if known else machine.this_python()),
        platform=platform,
        glibc=glibc,
        cuda=section.cuda or "",
        driver=section.driver or (known.driver if known else ""),
        gpus=tuple(section.gpus) or (known.architectures if known else ()),
        provided=tuple(_provided(section, known)),
        conda=tuple(_conda(section, known)),
    )


def _inventory(section: manifests.TargetSection, folder: Path) -> Inventory | None:
    if section.inventory is None:
        return None
    path = folder / section.inventory
    try:
        return inventories.parse(path.read_bytes(), section.inventory)
    except OSError as error:
        raise UsageError(
            f"the inventory {section.inventory} cannot be read: {error.strerror}",
            hint="Write it on the server: mirror probe --env ENV -o FILE",
        ) from None


def _provided(section: manifests.TargetSection, known: Inventory | None) -> list[str]:
    """What the manifest says is there, then what the inventory adds, each with a version."""
    stated = list(_versioned(section.provided))
    left_out = {canonicalize_name(item.partition("==")[0]) for item in (*stated, *section.carry)}
    for item in known.packages if known else ():
        if canonicalize_name(item.partition("==")[0]) not in left_out:
            stated.append(item)
    return stated


def _conda(section: manifests.TargetSection, known: Inventory | None) -> Iterator[str]:
    """The inventory's conda packages that a layer over its environment sees: those for Python.

    Programs and libraries of another prefix are not found from here, so they are no help.
    """
    if known is None or section.python not in (None, known.python):
        return
    left_out = {canonicalize_name(item.partition("==")[0]) for item in section.carry}
    for package in known.conda:
        if package.python and canonicalize_name(package.name) not in left_out:
            yield f"{package.name}={package.version}={package.build}"


def _versioned(provided: Sequence[str]) -> Iterator[str]:
    """Each provided package with a version: the one installed beside mirror where none is given."""
    from importlib import metadata

    unknown = []
    for item in provided:
        if "==" in item:
            yield item
            continue
        try:
            yield f"{item}=={metadata.version(item)}"
        except metadata.PackageNotFoundError:
            unknown.append(item)
    if unknown:
        raise UsageError(
            "target.provided names packages without a version that are not installed here either",
            problems=unknown,
            hint=f"Write the server's version: {unknown[0]}==VERSION",
        )
