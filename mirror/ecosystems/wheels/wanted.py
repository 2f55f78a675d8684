"""What a resolver is asked for: the manifest's requirements, as lines that every resolver takes."""

from __future__ import annotations

import datetime
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from packaging.utils import canonicalize_name

from mirror.core import cuda
from mirror.core.manifest import WheelsSection
from mirror.core.requirements.values import Place, Requirements
from mirror.core.target import Target
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import reading
from mirror.ecosystems.wheels.brought import Brought, agreeing, of
from mirror.ecosystems.wheels.indexes import Indexes
from mirror.errors import UsageError

_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a resolver is asked for.

    lines: requirements on packages of an index. places: packages that are somewhere else.
    constraints: lines on versions, for whatever needs the package. hashes: by name, those of which
    the wheel must have one. exclude_newer: a moment (UTC, ISO 8601): what was uploaded later does
    not exist.
    build: packages that may be built for the builder's own platform; sdists: whether one without a
    wheel may be built into one for any platform, but for those of wheels_only.
    brought: by name, what conda packages of the same lock bring.
    """

    lines: tuple[str, ...]
    target: Target
    indexes: Indexes
    places: tuple[Place, ...] = ()
    constraints: tuple[str, ...] = ()
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    prereleases: bool = False
    resolver: str = "uv"
    exclude_newer: str | None = None
    sdists: bool = False
    build: frozenset[str] = frozenset()
    wheels_only: frozenset[str] = frozenset()
    brought: Mapping[str, Brought] = field(default_factory=dict)

    @classmethod
    def of(cls, section: WheelsSection, context: Context) -> Wanted:
        """What the manifest's section asks for. Raises UsageError for mistakes in its files."""
        found, indexes = read(section, context), Indexes.of(section, context.target)
        brought, _ = agreeing(of(context.resolved), context.target)
        return cls(
            lines=tuple(item.text for item in found.specifiers),
            places=(
                *found.wheel_urls,
                *found.git_urls,
                *found.local_wheels,
                *found.local_projects,
            ),
            constraints=(
                *(item.text for item in found.constraints),
                *_matching(indexes, context, brought),
            ),
            hashes=found.hashes,
            prereleases=found.prereleases,
            target=context.target,
            indexes=indexes,
            resolver=section.resolver,
            exclude_newer=_end(section.exclude_newer) if section.exclude_newer else None,
            sdists=section.sdists == "pure" and ":all:" not in found.wheels_only,
            wheels_only=found.wheels_only,
            build=frozenset(canonicalize_name(name) for name in section.build),
            brought=brought,
        )


def _end(day: str) -> str:
    """The end of a day, by UTC: the same moment on every builder. Raises UsageError for no day."""
    try:
        after = datetime.date.fromisoformat(day) + datetime.timedelta(days=1)
    except ValueError:
        raise UsageError(f"wheels.exclude-newer: {day} is no date") from None
    return f"{after}T00:00:00Z"


def read(section: WheelsSection, context: Context) -> Requirements:
    """The section's requirements, with all files that they name."""
    indexes = Indexes.of(section, context.target)
    urls = [index.url for index in (indexes.default, *indexes.named)]
    return reading.read(section.requirements, context.folder, urls)


def _matching(indexes: Indexes, context: Context, brought: Collection[str]) -> list[str]:
    """Keeps torch to the target's CUDA, where it comes from the default index.

    That index has one build of each version; which CUDA it is for is in cuda_tables.
    """
    target = context.target
    provided = {canonicalize_name(item.partition("==")[0]) for item in target.provided}
    there = "torch" in provided or "torch" in brought
    if not target.cuda or there or indexes.of_package("torch") != indexes.default:
        return []
    versions = cuda.torch_for(target.cuda, target.platform)
    if not versions:
        return []
    newest = [int(part) for part in versions[0].split(".")[:2]]
    return [f"torch>={versions[-1]},<{newest[0]}.{newest[1] + 1}"]


@contextmanager
def workplace(
    target: Target, brought: Mapping[str, Brought] = MappingProxyType({})
) -> Iterator[tuple[Path, list[str]]]:
    """A folder for the resolver, and constraints that stand for what is there without wheels.

    Each names a stub by its address: a wheel of nothing but metadata. The resolver takes it for the
    package that the server has, and finds no dependencies in it, which the server has too; or for
    the one that conda brings, with the dependencies that this has. In a find-links folder it would
    lose against the index's wheel of the same version.
    """
    with TemporaryDirectory(prefix="mirror-") as name:
        folder = Path(name).resolve()
        stubs = {item.name: _write_stub(folder, item) for item in brought.values()}
        for text in target.provided:
            package, _, version = text.partition("==")
            if canonicalize_name(package) not in brought:
                stubs[package] = _write_stub(folder, Brought(package, version))
        yield folder, [f"{package} @ {stub.as_uri()}" for package, stub in stubs.items()]


def _write_stub(folder: Path, known: Brought) -> Path:
    name, version = known.name, known.version
    stem = f"{canonicalize_name(name).replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        extras = sorted({extra for text in known.requires for extra in _EXTRA.findall(text)})
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Provides-Extra: {extra}" for extra in extras]
        lines += [f"Requires-Dist: {text}" for text in known.requires]
        wheel.writestr(f"{info}/METADATA", "".join(f"{line}\n" for line in lines))
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: mirror\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path
