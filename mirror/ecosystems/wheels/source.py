"""Wheels on the builder: resolved for the target, found on the index, proved complete."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet

from mirror.core import cuda
from mirror.core.artifact import Artifact
from mirror.core.manifest import WheelsSection
from mirror.core.requirements.values import LocalWheel, Place
from mirror.core.target import Target
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import (
    brought,
    building,
    collisions,
    inspection,
    pip_tools,
    places,
    reading,
    sdists,
    stated,
    uv,
)
from mirror.ecosystems.wheels.indexes import Indexes
from mirror.ecosystems.wheels.wanted import Wanted, read, workplace
from mirror.errors import DownloadError, ResolutionError, TargetError, UsageError
from mirror.fetch.http import Request

KIND = "wheels"
_RESOLVERS = {"uv": uv.resolve, "pip-tools": pip_tools.resolve}


def inputs(section: WheelsSection, context: Context) -> Mapping[str, str]:
    """The files that the requirements name. An index moves; a lock does not follow by itself."""
    found = read(section, context)
    for note in found.notes:
        context.progress.detail(note)
    digests = reading.inputs(found, context.folder, context.hashes)
    for project in found.local_projects:
        digests[f"project {project.path}"] = building.folder_digest(
            context.folder / project.path, context
        )
    return digests


def resolve(section: WheelsSection, context: Context) -> list[Artifact]:
    """The wheels for the target; what it provides is resolved against and left out."""
    found = read(section, context)
    for note in found.notes:
        context.progress.warn(note)
    wrong = [
        f"{python.where}: Python {python.text} is asked for"
        for python in found.pythons
        if not _allows(python.text, context.target.python)
    ]
    if wrong:
        raise TargetError(
            f"the target has Python {context.target.python}, which its projects do not allow",
            problems=wrong,
        )
    conda = brought.of(context.resolved)
    brought.refuse(found, conda, context.target)
    for note in brought.agreeing(conda, context.target)[1]:
        context.progress.warn(note)
    artifacts = lock_wheels(Wanted.of(section, context), KIND, context)
    _fit(artifacts, context)
    return artifacts


def lock_wheels(wanted: Wanted, kind: str, context: Context) -> list[Artifact]:
    """Resolve what is wanted into artifacts under `KIND/`."""
    kept = [artifact for artifact in context.kept if artifact.kind == kind]
    with workplace(wanted.target, wanted.brought) as (folder, provided):
        shelf = folder / "places"
        shelf.mkdir()
        placed = {item.file: item for item in places.have(wanted, context, kept, shelf)}
        lines = [*wanted.lines, *(places.line(p.place, p.path, p.name) for p in placed.values())]

        def ask(wheels_only: Collection[str] | None) -> list[uv.Pin]:
            return _RESOLVERS[wanted.resolver](
                lines,
                wanted.target,
                folder,
                constraints=[*provided, *wanted.constraints],
                indexes=wanted.indexes,
                kept=[(a.text("name"), a.text("version")) for a in kept],
                exclude_newer=wanted.exclude_newer,
                prereleases=wanted.prereleases,
                wheels_only=None if wheels_only is None else {*wheels_only, *wanted.wheels_only},
            )

        try:
            pins, built = sdists.resolve(ask, wanted, context, kept)
        except ResolutionError as error:
            raise brought.explained(error, wanted.brought) from None
        for pin in pins:
            if pin.yanked is not None:
                reason = f": {pin.yanked}" if pin.yanked else ""
                context.progress.warn(f"{pin.name} {pin.version} was yanked{reason}")
        listed = _measured([p for p in pins if p.file not in placed], wanted.indexes, context)
        _compare_hashes(listed, built, wanted)
        found = [_artifact(pin, kind, wanted.indexes, built.get(pin.file)) for pin in listed]
        found += [placed[pin.file].artifact(kind) for pin in pins if pin.file in placed]
        places_of = {pin.file: _place(pin, wanted.indexes, context) for pin in listed}
        places_of |= {item.file: item.path for item in placed.values()}
        found = _with_statements(found, places_of, lines, wanted.target, context)
    return sorted(found, key=lambda artifact: artifact.path)


def _place(pin: uv.Pin, indexes: Indexes, context: Context) -> Path | Request:
    """Where a chosen wheel is: what was built is in the store."""
    if pin.sha256 and not pin.url:
        return context.blobs.path(pin.sha256)
    return indexes.of_package(pin.name).request(pin.file, pin.url, pin.sha256, pin.size)


def _with_statements(
    artifacts: Sequence[Artifact],
    places_of: Mapping[str, Path | Request],
    lines: Sequence[str],
    target: Target,
    context: Context,
) -> list[Artifact]:
    """The artifacts with the licence that each states, and the packages that it needs."""
    wheels = [stated.Wheel(a.text("file"), a.sha256, places_of[a.text("file")]) for a in artifacts]
    found = stated.read(wheels, context)
    by_name = {a.text("name"): found[a.text("file")] for a in artifacts if a.text("file") in found}
    more = stated.origins(by_name, lines, pip_tools.markers(target))
    return [replace(a, origin={**a.origin, **more.get(a.text("name"), {})}) for a in artifacts]


def requests(
    artifacts: Sequence[Artifact], section: WheelsSection, context: Context
) -> list[Request | Path]:
    """Where each wheel is now: on its index, or at its place."""
    wanted = Wanted.of(section, context)
    by_key = places.by_key(wanted)
    listed = [a for a in artifacts if not a.text("place") and not a.text("sdist")]
    found: dict[str, Request | Path] = dict(
        zip((a.path for a in listed), find_wheels(listed, wanted.indexes), strict=True)
    )
    for artifact in artifacts:
        if place := artifact.text("place"):
            found[artifact.path] = places.request(by_key[place], artifact, context, wanted)
        elif artifact.text("sdist"):
            found[artifact.path] = sdists.again(artifact, wanted, context)
    return [found[artifact.path] for artifact in artifacts]


def find_wheels(artifacts: Sequence[Artifact], indexes: Indexes) -> list[Request]:
    """Where their indexes keep these wheels now: looked up by package, matched by file name.

    Raises DownloadError that names every wheel which its index has no more.
    """
    known = indexes.files((a.text("index"), a.text("name")) for a in artifacts)
    missing = [a for a in artifacts if a.text("file") not in known]
    if missing:
        raise DownloadError(
            "the index no longer has wheels that the lock names",
            problems=[a.text("file") for a in missing],
            hint="Lock again (mirror lock) to take what it has now.",
        )
    return [
        replace(known[a.text("file")], digest=f"sha256:{a.sha256}", size=a.size) for a in artifacts
    ]


def derived(artifacts: Sequence[Artifact], context: Context) -> dict[str, bytes]:
    """A hashed requirements.txt, so that plain pip installs from the unpacked bundle."""
    options = "--no-index --find-links wheels --require-hashes --no-deps"
    lines = [
        f"# pip install {options} -r requirements.txt\n",
        *(
            f"{a.text('name')}=={a.text('version')} \\\n    --hash=sha256:{a.sha256}\n"
            for a in sorted(artifacts, key=lambda a: a.text("name"))
        ),
    ]
    return {"requirements.txt": "".join(lines).encode()}


def prove(artifacts: Sequence[Artifact], section: WheelsSection, context: Context) -> None:
    """Resolve once more from nothing but these wheels' own metadata, with no network.

    And open every one: a wheel that does not hold what its record says is not shipped, nor one that
    would write over what a conda package brings.
    """
    _fit(artifacts, context)
    wanted = Wanted.of(section, context)
    prove_wheels(artifacts, wanted, context)
    by_key = places.by_key(wanted)
    files = {a.text("file"): _bytes(a, by_key.get(a.text("place")), context) for a in artifacts}
    conda = [artifact for artifact in context.resolved if artifact.kind == "conda"]
    if problems := list(collisions.problems(files, conda, context)):
        raise ResolutionError(
            "wheels would write over what conda packages bring",
            problems=problems,
            hint="Take one of the two out, or take both from conda.",
        )


def prove_wheels(artifacts: Sequence[Artifact], wanted: Wanted, context: Context) -> None:
    """Show that what is wanted resolves to exactly these wheels from these wheels alone."""
    by_key = places.by_key(wanted)
    with workplace(wanted.target, wanted.brought) as (folder, provided):
        wheels = folder / "wheels"
        wheels.mkdir()
        lines = list(wanted.lines)
        for artifact in artifacts:
            file, place = wheels / artifact.text("file"), by_key.get(artifact.text("place"))
            building.link(_bytes(artifact, place, context), file)
            if place:
                lines.append(places.line(place, file, artifact.text("name")))
        _open_all(artifacts, wheels, context)
        pins = uv.resolve(
            lines,
            wanted.target,
            folder,
            constraints=[
                *provided,
                *wanted.constraints,
                *(f"{a.text('name')}=={a.text('version')}" for a in artifacts),
            ],
            find_links=[wheels],
        )
    proved = {pin.file for pin in pins}
    unused = sorted(a.text("file") for a in artifacts if a.text("file") not in proved)
    if unused:
        raise ResolutionError(
            "the lock holds wheels that nothing in the manifest needs",
            problems=unused,
            hint="Lock again: mirror lock",
        )


def _open_all(artifacts: Sequence[Artifact], folder: Path, context: Context) -> None:
    problems: list[str] = []
    with context.progress.bar("checking wheels", sum(a.size for a in artifacts)) as advance:
        for artifact in artifacts:
            file = artifact.text("file")
            found = inspection.check(folder / file, file)
            problems += [f"{file}: {problem}" for problem in found.problems]
            for remark in found.remarks:
                context.progress.detail(f"{file}: {remark}")
            advance(artifact.size)
    if problems:
        raise ResolutionError("wheels are not what they should be", problems=problems)


def _fit(artifacts: Sequence[Artifact], context: Context) -> None:
    """Raises TargetError for wheels that cannot work with the target's CUDA, driver or GPUs."""
    wheels = [(a.text("name"), a.text("version"), a.text("file")) for a in artifacts]
    found = cuda.check(context.target, wheels)
    for warning in found.warnings:
        context.progress.warn(warning)
    if found.problems:
        raise TargetError("the wheels do not fit the target", problems=found.problems)


def _allows(specifier: str, python: str) -> bool:
    """Whether some release of this minor version of Python is allowed."""
    allowed = SpecifierSet(specifier)
    return any(allowed.contains(f"{python}.{patch}") for patch in (0, 99))


def _bytes(artifact: Artifact, place: Place | None, context: Context) -> Path:
    if isinstance(place, LocalWheel):
        return context.folder / place.path
    return context.blobs.path(artifact.sha256)


def _measured(pins: Sequence[uv.Pin], indexes: Indexes, context: Context) -> list[uv.Pin]:
    """The pins, each with sha256 and size; those that an HTML index leaves out are fetched."""
    unknown = [pin for pin in pins if pin.sha256 is None or pin.size is None]
    fetched = context.fetcher.fetch(
        [
            indexes.of_package(pin.name).request(pin.file, pin.url, pin.sha256, pin.size)
            for pin in unknown
        ]
    )
    measured = {
        pin.file: replace(pin, sha256=blob.sha256, size=blob.size)
        for pin, blob in zip(unknown, fetched, strict=True)
    }
    return [measured.get(pin.file, pin) for pin in pins]


def _compare_hashes(
    pins: Sequence[uv.Pin], built: Mapping[str, sdists.Built], wanted: Wanted
) -> None:
    wrong = []
    for pin in pins:
        made_of = built.get(pin.file)
        sha256 = made_of.sdist_sha256 if made_of else pin.sha256
        allowed = wanted.hashes.get(pin.name)
        if allowed and f"sha256:{sha256}" not in allowed:
            file = made_of.sdist if made_of else pin.file
            wrong.append(f"{file} has sha256 {sha256}, which none of its --hash allows")
    if wrong:
        raise UsageError("wheels are not those that the requirements' hashes name", problems=wrong)


def _artifact(pin: uv.Pin, kind: str, indexes: Indexes, built: sdists.Built | None) -> Artifact:
    assert pin.sha256 is not None  # noqa: S101 -- _measured saw to it
    assert pin.size is not None  # noqa: S101
    return Artifact(
        kind=kind,
        path=f"{kind}/{pin.file}",
        size=pin.size,
        sha256=pin.sha256,
        origin={
            "name": pin.name,
            "version": pin.version,
            "file": pin.file,
            "index": indexes.of_package(pin.name).name,
            **(built.origin() if built else {}),
        },
    )
