"""Wheels that come from no index: from an address, a file, a git repository, a project's folder.

Each becomes a file of this machine, and a requirement line that names it. What has to be built is
built here, once; its wheel is kept in the store and its hash in the lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename

from mirror.core.artifact import Artifact
from mirror.core.requirements.values import GitUrl, LocalProject, LocalWheel, Place, WheelUrl
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import building, isolated
from mirror.ecosystems.wheels.wanted import Wanted
from mirror.errors import UsageError
from mirror.fetch.http import Request


@dataclass(frozen=True, slots=True)
class Placed:
    """A wheel that is a file of this machine now.

    file: its name. commit: of a git repository, empty for everything else.
    """

    place: Place
    path: Path
    file: str
    size: int
    sha256: str
    commit: str = ""

    @property
    def name(self) -> str:
        """The package's name, in normal form."""
        return str(parse_wheel_filename(self.file)[0])

    def artifact(self, kind: str) -> Artifact:
        """For the lock: which place, never where it is in the world."""
        name, version, _, _ = parse_wheel_filename(self.file)
        origin = {"name": str(name), "version": str(version), "file": self.file}
        origin["place"] = key(self.place)
        if isinstance(self.place, GitUrl):
            origin |= {"commit": self.commit, **_asked(self.place)}
        return Artifact(kind, f"{kind}/{self.file}", self.size, self.sha256, origin=origin)


def key(place: Place) -> str:
    """How the lock calls a place: by kind and file, path or package, without any host."""
    match place:
        case WheelUrl():
            return f"address {place.file}"
        case LocalWheel():
            return f"file {place.path}"
        case LocalProject():
            return f"project {place.path}"
        case GitUrl():
            name = f"{place.name} @ " if place.name else ""
            repository = place.url.rstrip("/").rpartition("/")[2].removesuffix(".git")
            below = f" {place.subdirectory}" if place.subdirectory else ""
            return f"git {name}{repository}{below}"


def by_key(wanted: Wanted) -> dict[str, Place]:
    """The places as the lock calls them; one that is asked for twice is there once.

    Raises UsageError for different places that it would call the same.
    """
    found: dict[str, Place] = {}
    problems = []
    for place in wanted.places:
        name = key(place)
        other = found.setdefault(name, place)
        if _address(other) != _address(place):
            problems.append(f"{other.where} and {place.where}: both are {name}")
        found[name] = place
    if problems:
        raise UsageError(
            "different places cannot be told apart in the lock",
            problems=problems,
            hint="Write the package's name before each (NAME @ git+...); of one package, keep one.",
        )
    return found


def line(place: Place, wheel: Path, name: str) -> str:
    """The requirement that asks for the place's package, as this file."""
    extras = f"[{','.join(place.extras)}]" if place.extras else ""
    marker = f" ; {place.marker}" if place.marker else ""
    return f"{name}{extras} @ {wheel.absolute().as_uri()}{marker}"


def have(wanted: Wanted, context: Context, kept: Sequence[Artifact], folder: Path) -> list[Placed]:
    """Every place's wheel, downloaded or built; kept ones are not built again.

    folder: for files under their own names. Raises UsageError, DownloadError, or ResolutionError
    for what cannot be built.
    """
    found = []
    for place in by_key(wanted).values():
        match place:
            case WheelUrl():
                found.append(_download(place, context, folder))
            case LocalWheel():
                path = context.folder / place.path
                size, sha256 = context.hashes.of(path)
                found.append(Placed(place, path, path.name, size, sha256))
            case GitUrl() | LocalProject():
                found.append(_build(place, wanted, context, kept, folder))
    wrong = [
        f"{placed.place.where}: {placed.file} has sha256 {placed.sha256}, which no --hash allows"
        for placed in found
        if (allowed := wanted.hashes.get(placed.name)) and f"sha256:{placed.sha256}" not in allowed
    ]
    if wrong:
        raise UsageError("wheels are not those that the requirements' hashes name", problems=wrong)
    return found


def request(place: Place, artifact: Artifact, context: Context, wanted: Wanted) -> Request | Path:
    """Where a locked place's bytes are.

    What was built is built again when the store has it no more. Raises ResolutionError when that
    gives other bytes than the lock names.
    """
    match place:
        case WheelUrl():
            return Request(place.url, place.file, f"sha256:{artifact.sha256}", artifact.size)
        case LocalWheel():
            return context.folder / place.path
        case GitUrl() | LocalProject():
            return building.again(
                artifact,
                context,
                lambda folder: _wheel(place, wanted, context, folder, artifact.text("commit"))[0],
            )


def _download(place: WheelUrl, context: Context, folder: Path) -> Placed:
    stated = next((h for h in place.hashes if h.startswith("sha256:")), None)
    [blob] = context.fetcher.fetch([Request(place.url, place.file, stated)])
    path = folder / place.file
    building.link(context.blobs.path(blob.sha256), path)
    return Placed(place, path, place.file, blob.size, blob.sha256)


def _build(
    place: GitUrl | LocalProject,
    wanted: Wanted,
    context: Context,
    kept: Sequence[Artifact],
    folder: Path,
) -> Placed:
    commit = ""
    if isinstance(place, GitUrl):
        old = next((a for a in kept if _is_of(a, place)), None)
        if old and context.blobs.has(old.sha256, old.size):
            path = folder / old.text("file")
            building.link(context.blobs.path(old.sha256), path)
            return Placed(place, path, path.name, old.size, old.sha256, old.text("commit"))
        # A branch moves; a lock follows it when it is upgraded.
        commit = old.text("commit") if old else building.commit_of(place)
    wheel, commit = _wheel(place, wanted, context, folder, commit)
    size, sha256 = building.keep(wheel, context)
    return Placed(place, wheel, wheel.name, size, sha256, commit)


def _wheel(
    place: GitUrl | LocalProject, wanted: Wanted, context: Context, folder: Path, commit: str
) -> tuple[Path, str]:
    if isinstance(place, LocalProject):
        name = place.name or (context.folder / place.path).name
        source = building.copy_project(context.folder / place.path, folder)
    else:
        source = building.checkout(place, commit, folder)
        name = place.name or source.name
    product = isolated.build(
        source,
        name,
        folder,
        target=wanted.target,
        indexes=wanted.indexes,
        native=canonicalize_name(name) in wanted.build,
    )
    context.progress.step(f"built {product.path.name} from {key(place)}")
    return product.path, commit


def _address(place: Place) -> tuple[str, ...]:
    """Where a place is: what its key leaves out."""
    match place:
        case WheelUrl():
            return (place.url,)
        case GitUrl():
            return (place.url, place.revision or "")
        case LocalWheel() | LocalProject():
            return (place.path,)


def _asked(place: GitUrl) -> dict[str, str]:
    """What the manifest says of a repository, for the lock: another one is looked up again.

    A digest stands for the address: its host is nobody's business.
    """
    digest = hashlib.sha256(place.url.encode()).hexdigest()[:16]
    return {"repository": digest} | ({"revision": place.revision} if place.revision else {})


def _is_of(artifact: Artifact, place: GitUrl) -> bool:
    """Whether a locked wheel is of this place as it is asked for now."""
    stated = {name: artifact.text(name) for name in ("repository", "revision")}
    same = {name: text for name, text in stated.items() if text} == _asked(place)
    return same and artifact.text("place") == key(place) and bool(artifact.text("commit"))
