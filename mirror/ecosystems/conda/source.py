"""Conda packages on the builder: solved for the target, carried as an offline channel.

asked.py      what the manifest and its environment file ask for
channels.py   the channels; subdirs.py opens them
reachable.py  the records that matter; solver.py chooses among them
packages.py   where the packages are that were chosen; contents.py what is in them
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from mirror.core.artifact import Artifact, Json
from mirror.core.manifest import CondaSection
from mirror.ecosystems.conda import archives, links
from mirror.ecosystems.conda.records import (
    KIND,
    REPODATA,
    brings_python,
    record,
    repodata,
    site_packages,
)
from mirror.ecosystems.conda.solving import asked, contents, packages, subdirs
from mirror.ecosystems.conda.solving.asked import Asked
from mirror.ecosystems.conda.solving.channels import Channel
from mirror.ecosystems.conda.solving.packages import Chosen, Given
from mirror.ecosystems.conda.solving.solver import solve
from mirror.ecosystems.conda.solving.subdirs import Subdir
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError, ResolutionError
from mirror.fetch.http import Request
from mirror.store.blobs import place

_DISTRIBUTIONS = "distributions"


def inputs(section: CondaSection, context: Context) -> Mapping[str, str]:
    """Digests of the environment file, of package files, and of the repodata in every folder."""
    found = asked.read(section, context)
    folders = {
        f"conda/{channel.name}/{subdir}": context.hashes.of(path)[1] if path.is_file() else "none"
        for channel in found.channels
        if channel.folder
        for subdir in _subdirs(context)
        for path in [channel.folder / subdir / REPODATA]
    }
    return {**found.digests, **folders}


def resolve(section: CondaSection, context: Context) -> list[Artifact]:
    """The records that satisfy the section on the target.

    Opens no connection when every channel is a folder. Raises UsageError for channels and specs
    that are none, ResolutionError for what cannot be satisfied, DownloadError for channels that
    cannot be read and for packages that are missing, damaged or not what their record says.
    """
    found = asked.read(section, context)
    for note in found.notes:
        context.progress.warn(note)
    artifacts = packages.artifacts(_chosen(found, context), context)
    artifacts = _with_distributions(artifacts, found, context)
    return _with_link_scripts(artifacts, section.link_scripts, context)


def requests(
    artifacts: Sequence[Artifact], section: CondaSection, context: Context
) -> list[Request | Path]:
    """Where each package is: in a channel's folder, or under its URL.

    Raises DownloadError that names the packages whose channel the manifest no longer lists.
    """
    return packages.requests(artifacts, asked.read(section, context))


def derived(artifacts: Sequence[Artifact], context: Context) -> dict[str, bytes]:
    """The repodata that makes a channel of the packages."""
    return repodata(artifacts, context.target.subdir)


def prove(artifacts: Sequence[Artifact], section: CondaSection, context: Context) -> None:
    """Show that the bundle's channel alone, offline, solves to exactly these packages.

    And that each is whole and can be unpacked where it belongs. Raises ResolutionError or
    DownloadError.
    """
    found = asked.read(section, context)
    with tempfile.TemporaryDirectory(prefix="mirror-") as name:
        folder = Path(name).resolve()
        for path, data in derived(artifacts, context).items():
            file = folder / path
            file.parent.mkdir(parents=True)
            file.write_bytes(data)
        channel = Channel(KIND, str(folder / KIND), folder / KIND)
        specs = [replace(spec, channel=None, subdir=None) for spec in found.specs]
        carried = {artifact.text("name") for artifact in artifacts}
        opened = subdirs.opened([channel], _subdirs(context), folder, context.progress)
        records = solve(specs, opened, context.target, carried=carried)
    solved = {f"conda/{known.subdir}/{known.file_name}" for known in records}
    locked = {artifact.path for artifact in artifacts}
    if solved != locked:
        raise ResolutionError(
            "the locked conda packages are not what their own channel solves to",
            problems=sorted(f"{path} is not needed" for path in locked - solved),
            hint="Remove the lock and run `mirror lock` again.",
        )
    _prove_archives(artifacts, found, context)


def _subdirs(context: Context) -> tuple[str, str]:
    return (context.target.subdir, "noarch")


def _chosen(found: Asked, context: Context) -> list[Chosen]:
    given, cache = Given(found, context), context.blobs.folder / "repodata"
    kept = [artifact for artifact in context.kept if artifact.kind == KIND]

    @contextmanager
    def opened() -> Iterator[list[Subdir]]:
        with subdirs.opened(found.channels, _subdirs(context), cache, context.progress) as there:
            yield [*given.subdirs, *there]

    records = solve(found.specs, opened(), context.target, kept)
    brought = {known.name.normalized for known in records}
    if "python" not in brought and (needy := [r.file_name for r in records if r.noarch.python]):
        # A Python that the target has links nothing into another prefix than its own.
        try:
            records = solve(found.specs, opened(), context.target, kept, carried=["python"])
        except ResolutionError as error:
            raise _without_python(error, needy) from None
    return [Chosen(known, given.origin(known, found.channels)) for known in records]


def _without_python(error: ResolutionError, needy: Sequence[str]) -> ResolutionError:
    reason = "is linked by a Python of its own prefix, which has to be carried"
    return ResolutionError(
        error.message,
        problems=[*error.problems, *(f"{file} {reason}" for file in needy)],
        hint=error.hint,
    )


def _with_link_scripts(
    artifacts: Sequence[Artifact], allowed: Sequence[str], context: Context
) -> list[Artifact]:
    """The same; the packages whose link scripts may run say so, for the server to know."""
    names = {name.lower() for name in allowed}
    for name in sorted(names - {str(record(artifact)["name"]).lower() for artifact in artifacts}):
        context.progress.warn(f"conda.link-scripts names {name}, which is none of the packages")
    return [
        replace(artifact, origin={**artifact.origin, "link_scripts": True})
        if str(record(artifact)["name"]).lower() in names
        else artifact
        for artifact in artifacts
    ]


def _with_distributions(
    artifacts: Sequence[Artifact], found: Asked, context: Context
) -> list[Artifact]:
    """The same, with the Python distributions that each brings by its own metadata: for wheels.

    Those that need a Python are fetched for that, now rather than when the bundle is built.
    """
    known = {a.sha256: a.origin[_DISTRIBUTIONS] for a in context.kept if _DISTRIBUTIONS in a.origin}
    unread = [a for a in artifacts if a.sha256 not in known and _is_for_python(a)]
    places = packages.requests(unread, found)
    context.fetcher.fetch([place for place in places if isinstance(place, Request)])

    def look(artifact: Artifact, path: Path) -> None:
        if brought := contents.of(path, artifact.sha256, context.blobs).distributions:
            known[artifact.sha256] = [_table(item) for item in brought]

    _look_into(unread, found, context, look)
    return [
        replace(a, origin={**a.origin, _DISTRIBUTIONS: known[a.sha256]}) if a.sha256 in known else a
        for a in artifacts
    ]


def _table(distribution: contents.Distribution) -> dict[str, Json]:
    table = asdict(distribution)
    return {**table, "requires": list(distribution.requires)}


def _is_for_python(artifact: Artifact) -> bool:
    """Whether a package can bring distributions."""
    found = record(artifact)
    depends = found.get("depends")
    names = {str(spec).split(" ")[0] for spec in depends} if isinstance(depends, list) else set()
    return found.get("noarch") == "python" or bool(names & {"python", "python_abi"})


def _prove_archives(artifacts: Sequence[Artifact], found: Asked, context: Context) -> None:
    inside: dict[str, archives.Contents] = {}

    def look(artifact: Artifact, path: Path) -> None:
        inside[artifact.text("name")] = archives.read(path)
        contents.of(path, artifact.sha256, context.blobs)

    _look_into(artifacts, found, context, look)
    if together := links.problems(inside, site_packages(artifacts)):
        raise ResolutionError("conda packages do not fit together", problems=together)
    needy = [a.text("file") for a in artifacts if record(a).get("noarch") == "python"]
    if needy and not brings_python(artifacts):
        raise ResolutionError(
            "conda packages are written in Python, and none of the set brings one",
            problems=needy,
            hint="Add python to conda.packages.",
        )


def _look_into(
    artifacts: Sequence[Artifact],
    found: Asked,
    context: Context,
    look: Callable[[Artifact, Path], None],
) -> None:
    """Have each package looked into. Raises DownloadError for those of which it says ValueError."""
    problems = []
    places = packages.requests(artifacts, found)
    total = sum(artifact.size for artifact in artifacts)
    context.blobs.temporary.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=context.blobs.temporary) as folder,
        context.progress.bar("looking into conda packages", total) as advance,
    ):
        for artifact, origin in zip(artifacts, places, strict=True):
            try:
                look(artifact, _archive(artifact, origin, Path(folder), context))
            except ValueError as error:
                problems.append(f"{artifact.text('file')}: {error}")
            advance(artifact.size)
    if problems:
        raise DownloadError("conda packages are damaged at their channel", problems=problems)


def _archive(artifact: Artifact, origin: Request | Path, folder: Path, context: Context) -> Path:
    """The package's archive. Raises ValueError when it is another one now, or gone."""
    if context.blobs.has(artifact.sha256, artifact.size):
        # rattler tells the formats by a file's name, and a blob has none.
        path = folder / artifact.text("file")
        place(context.blobs.path(artifact.sha256), path)
        return path
    assert isinstance(origin, Path)  # noqa: S101 -- all others were fetched
    try:
        if context.hashes.of(origin)[1] != artifact.sha256:
            raise ValueError(f"{origin} has other bytes than the lock names")
    except OSError as error:
        raise ValueError(f"{origin}: {error.strerror}") from None
    return origin
