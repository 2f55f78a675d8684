"""Packages that exist only as source: allowed into a resolution, built into wheels, remembered.

The resolver is let choose sdists from the first (docs/adr/0005): what an sdist alone provides is
then found where plain pip finds it. Those that it chose are built here; one that does not become a
wheel for the target is refused, with the reason, and the resolver is asked again without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from mirror.core.artifact import Artifact, Json
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import building, inspection, isolated
from mirror.ecosystems.wheels.uv import Pin
from mirror.ecosystems.wheels.wanted import Wanted
from mirror.errors import DownloadError, ResolutionError
from mirror.fetch.http import Request
from mirror.store import atomic

#: Asks the resolver. The argument: packages that must come as wheels; None means all of them.
#: Among the pins that it returns, those whose file is no .whl are sdists.
Ask: TypeAlias = Callable[[Collection[str] | None], list[Pin]]

_LACKING = re.compile(
    r"(?:^|\s|`)([A-Za-z0-9][\w.-]*?)(?:\[[\w,.-]*\])?(?:[<>=!~]\S*)? ha(?:s|ve) no usable wheels"
    r"|Wheels are required for `([^`]+)`"
)
_BUILT = re.compile(r"Failed to (?:download and )?build `([A-Za-z0-9][\w.-]*?)(?:==| @ |`)")


@dataclass(frozen=True, slots=True)
class Built:
    """A wheel that was built of an sdist, and is in the store.

    sdist, sdist_sha256: the file that it was made of. tools: what it was built with.
    """

    name: str
    version: str
    file: str
    size: int
    sha256: str
    sdist: str
    sdist_sha256: str
    tools: tuple[str, ...]

    def origin(self) -> Mapping[str, Json]:
        """What a lock records of it besides name, version, file and index."""
        return {
            "sdist": self.sdist,
            "sdist_sha256": self.sdist_sha256,
            "tools": list(self.tools),
        }


def lacking(said: str) -> list[str]:
    """The packages of which a resolver says that they exist, but only as sdists."""
    names = (match[1] or match[2] for match in _LACKING.finditer(said))
    return sorted({canonicalize_name(name) for name in names})


def resolve(
    ask: Ask, wanted: Wanted, context: Context, kept: Sequence[Artifact] = ()
) -> tuple[list[Pin], dict[str, Built]]:
    """Resolve, and build whatever has to be; the pins are all wheels, some of them built.

    kept: what the previous lock holds: an sdist of it is built with the same tools again.
    Returns the pins, and what was built by the wheel's file name. Raises ResolutionError with the
    resolver's reasons and with those why sdists were refused.
    """
    refused: dict[str, str] = {}
    while True:
        try:
            pins = ask(frozenset(refused) if wanted.sdists else None)
        except ResolutionError as error:
            failed = _BUILT.search(str(error))
            name = canonicalize_name(failed[1]) if failed else ""
            if not name or name in refused or not wanted.sdists:
                raise _explained(error, refused, wanted) from None
            refused[name] = f"{name}: of its sdist, {isolated.reason(str(error))}"
            context.progress.warn(f"{refused[name]}: looking for a wheel")
            continue
        chosen = [pin for pin in pins if not pin.file.endswith(".whl")]
        again = _hopeless(chosen, wanted)
        built: dict[Pin, Built] = {}
        for pin in chosen if not again else ():
            try:
                built[pin] = _made(pin, wanted, context, kept)
            except ResolutionError as error:
                again[pin.name] = f"{error.message} (version {pin.version} has no wheel)"
                context.progress.warn(f"{again[pin.name]}: looking for another version")
        if not again:
            return [_pin(built[p]) if p in built else p for p in pins], {
                item.file: item for item in built.values()
            }
        refused |= again


def again(artifact: Artifact, wanted: Wanted, context: Context) -> Path:
    """The bytes of a locked wheel that was built of an sdist, where the store has them no more.

    Built with the tools that the lock names. Raises ResolutionError when other bytes come out than
    it names, DownloadError when the index has the sdist no more.
    """
    name, sdist = artifact.text("name"), artifact.text("sdist")
    files = wanted.indexes.files([(artifact.text("index"), name)])
    if sdist not in files:
        raise DownloadError(
            "the index no longer has an sdist that the lock names",
            problems=[sdist],
            hint="Lock again (mirror lock) to take what it has now.",
        )
    request = replace(files[sdist], digest=f"sha256:{artifact.text('sdist_sha256')}")
    native = canonicalize_name(name) in wanted.build
    context.progress.step(f"building {name} {artifact.text('version')} from its sdist")
    return building.again(
        artifact,
        context,
        lambda folder: (
            _wheel(request, name, _tools(artifact), native, wanted, context, folder).path
        ),
    )


def _made(pin: Pin, wanted: Wanted, context: Context, kept: Sequence[Artifact]) -> Built:
    """The wheel of an sdist: the one made of it before, if there is one, else made now."""
    native = pin.name in wanted.build
    request = wanted.indexes.of_package(pin.name).request(pin.file, pin.url, pin.sha256, pin.size)
    [source] = context.fetcher.fetch([request])
    note = _note(source.sha256, native, context)
    with suppress(OSError, ValueError, TypeError):
        known = json.loads(note.read_bytes())
        built = Built(**known | {"tools": tuple(known["tools"])})
        if context.blobs.has(built.sha256, built.size):
            return built
    old = next((a for a in kept if a.text("sdist_sha256") == source.sha256), None)
    context.progress.step(f"{pin.name} {pin.version} has no wheel: building one from its sdist")
    with TemporaryDirectory(prefix="mirror-") as inner:
        product = _wheel(
            replace(request, digest=f"sha256:{source.sha256}"),
            pin.name,
            _tools(old) if old else (),
            native,
            wanted,
            context,
            Path(inner).resolve(),
        )
        file = product.path.name
        _check(product.path, pin)
        size, sha256 = building.keep(product.path, context)
    if old and old.sha256 != sha256:
        context.progress.warn(f"{file} was built again and came out other than the lock's")
    built = Built(
        name=pin.name,
        version=pin.version,
        file=file,
        size=size,
        sha256=sha256,
        sdist=pin.file,
        sdist_sha256=source.sha256,
        tools=product.tools,
    )
    note.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(note, json.dumps({s: getattr(built, s) for s in Built.__slots__}).encode())
    return built


def _wheel(
    request: Request,
    name: str,
    tools: Sequence[str],
    native: bool,
    wanted: Wanted,
    context: Context,
    folder: Path,
) -> isolated.Product:
    [blob] = context.fetcher.fetch([request])
    source = folder / request.label
    building.link(context.blobs.path(blob.sha256), source)
    return isolated.build(
        source,
        name,
        folder,
        target=wanted.target,
        indexes=wanted.indexes,
        tools=tools,
        native=native,
    )


def _check(wheel: Path, pin: Pin) -> None:
    """Raises ResolutionError unless the wheel is whole and of the package that was asked for."""
    problems = list(inspection.check(wheel, wheel.name).problems)
    name, version, _, _ = parse_wheel_filename(wheel.name)
    if (name, version) != (canonicalize_name(pin.name), Version(pin.version)):
        problems.append(f"it is of {name} {version}")
    if problems:
        raise ResolutionError(
            f"the wheel built of {pin.file} is not what it should be", problems=problems
        )


def _hopeless(pins: Sequence[Pin], wanted: Wanted) -> dict[str, str]:
    """Sdists of packages that are made for each kind of machine: name -> why they will not do.

    There are wheels of the same version for other machines, so its build is no matter of Python
    alone. Told from the index's list of files, before any code of the package is run.
    """
    pins = [pin for pin in pins if pin.name not in wanted.build]
    if not pins:
        return {}
    files = wanted.indexes.files((wanted.indexes.of_package(p.name).name, p.name) for p in pins)
    return {
        pin.name: f"{pin.name} {pin.version} has wheels for other machines, none for the target"
        for pin in pins
        if any(_is_for_a_machine(file, pin) for file in files)
    }


def _is_for_a_machine(file: str, pin: Pin) -> bool:
    try:
        name, version, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    same = (name, version) == (canonicalize_name(pin.name), Version(pin.version))
    return same and all(tag.platform != "any" for tag in tags)


def _explained(
    error: ResolutionError, refused: Mapping[str, str], wanted: Wanted
) -> ResolutionError:
    """The resolver's error, with what it cannot know: why sdists were not to be had."""
    names = lacking(str(error))
    if wanted.sdists:
        reasons = [refused[name] for name in names if name in refused]
        ways = "have it built here for this kind of machine (wheels.build)"
    else:
        reasons = [f"{name} exists only as source, which `sdists: never` forbids" for name in names]
        ways = "allow that it is built (wheels.sdists: pure)"
    if not reasons:
        return error
    return ResolutionError(
        error.message,
        problems=[*error.problems, *reasons],
        hint="Name a wheel of it by its address (NAME @ https://...), say that the server has it "
        f"(target.provided), or {ways}.",
    )


def _pin(built: Built) -> Pin:
    return Pin(built.name, built.version, built.file, "", built.sha256, built.size)


def _tools(artifact: Artifact) -> tuple[str, ...]:
    tools = artifact.origin.get("tools")
    return tuple(str(tool) for tool in tools) if isinstance(tools, (list, tuple)) else ()


def _note(sha256: str, native: bool, context: Context) -> Path:
    """Where it stands what became of an sdist; a native wheel is for one Python and machine."""
    kind = f"{context.target.python}-{context.target.platform}" if native else "any"
    return context.blobs.folder / "sdists" / f"{sha256}-{kind}.json"
