"""Wheels on the builder: resolved for the target, found on the index, proved complete."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packaging.utils import canonicalize_name

from mirror.core.artifact import Artifact
from mirror.core.manifest import WheelsSection
from mirror.core.target import Target
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import uv
from mirror.errors import DownloadError, ResolutionError
from mirror.fetch.http import Request

KIND = "wheels"
#: The name under which the lock records the index that is used when no other is named.
DEFAULT_INDEX = "default"


def inputs(section: WheelsSection, context: Context) -> Mapping[str, str]:
    """Nothing but the manifest itself: an index moves, a lock does not follow by itself."""
    return {}


def resolve(section: WheelsSection, context: Context) -> list[Artifact]:
    """The wheels for the target; what it provides is resolved against and left out."""
    return lock_wheels(section.requirements, context.target, KIND, context)


def lock_wheels(
    requirements: Sequence[str], target: Target, kind: str, context: Context
) -> list[Artifact]:
    """Resolve requirements for a target into artifacts under `KIND/`."""
    kept = [(a.text("name"), a.text("version")) for a in context.kept if a.kind == kind]
    with _workplace(target) as (folder, provided):
        pins = uv.resolve(
            requirements,
            target,
            folder,
            constraints=provided,
            index_url=index_url(),
            kept=kept,
        )
    return [_artifact(pin, kind) for pin in _measured(pins, context)]


def requests(
    artifacts: Sequence[Artifact], section: object, context: Context
) -> list[Request | Path]:
    """Where the index keeps each wheel now: looked up by name, matched by file name."""
    known = _on_index(artifact.text("name") for artifact in artifacts)
    missing = [a for a in artifacts if a.text("file") not in known]
    if missing:
        raise DownloadError(
            "the index no longer has wheels that the lock names",
            problems=[a.text("file") for a in missing],
            hint="Lock again (mirror lock) to take what it has now.",
        )
    return [
        Request(
            url=known[a.text("file")].url,
            label=a.text("file"),
            digest=f"sha256:{a.sha256}",
            size=a.size,
        )
        for a in artifacts
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
    """Resolve once more from nothing but these wheels' own metadata, with no network."""
    prove_wheels(artifacts, section.requirements, context.target, context)


def prove_wheels(
    artifacts: Sequence[Artifact], requirements: Sequence[str], target: Target, context: Context
) -> None:
    """Show that the requirements resolve to exactly these wheels from these wheels alone."""
    with _workplace(target) as (folder, provided):
        wheels = folder / "wheels"
        wheels.mkdir()
        for artifact in artifacts:
            _link(context.blobs.path(artifact.sha256), wheels / artifact.text("file"))
        pins = uv.resolve(
            requirements,
            target,
            folder,
            constraints=[
                *provided,
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


def index_url() -> str:
    """The default index: the one the environment names for uv or pip, else the public one."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if value := os.environ.get(variable):
            return value
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return PYPI_SIMPLE_ENDPOINT


@contextmanager
def _workplace(target: Target) -> Iterator[tuple[Path, list[str]]]:
    """A folder for the resolver, and constraints that stand for what the target provides.

    Each names a stub by its address: a wheel of nothing but a name and a version. The resolver
    takes it for the package that the server has, and finds no dependencies in it, which the server
    has too. In a find-links folder it would lose against the index's wheel of the same version.
    """
    with tempfile.TemporaryDirectory(prefix="mirror-") as name:
        folder = Path(name).resolve()
        provided = []
        for item in target.provided:
            package, _, version = item.partition("==")
            stub = _write_stub(folder, package, version)
            provided.append(f"{package} @ {stub.as_uri()}")
        yield folder, provided


def _write_stub(folder: Path, name: str, version: str) -> Path:
    stem = f"{canonicalize_name(name).replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: mirror\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def _measured(pins: Sequence[uv.Pin], context: Context) -> list[uv.Pin]:
    """The pins, each with sha256 and size; those that an HTML index leaves out are fetched."""
    unknown = [pin for pin in pins if pin.sha256 is None or pin.size is None]
    fetched = context.fetcher.fetch(
        [
            Request(pin.url, pin.file, digest=f"sha256:{pin.sha256}" if pin.sha256 else None)
            for pin in unknown
        ]
    )
    measured = {
        pin.file: replace(pin, sha256=blob.sha256, size=blob.size)
        for pin, blob in zip(unknown, fetched, strict=True)
    }
    return [measured.get(pin.file, pin) for pin in pins]


def _artifact(pin: uv.Pin, kind: str) -> Artifact:
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
            "index": DEFAULT_INDEX,
        },
    )


def _on_index(names: Iterable[str]) -> dict[str, Request]:
    """Every file that the index has of these packages: file name -> where it is."""
    from concurrent.futures import ThreadPoolExecutor

    from pypi_simple import NoSuchProjectError, PyPISimple
    from requests import RequestException

    found: dict[str, Request] = {}
    problems: list[str] = []

    def look(name: str) -> None:
        try:
            page = client.get_project_page(name)
        except NoSuchProjectError:
            problems.append(f"{name}: the index has no such package")
            return
        except RequestException as error:
            problems.append(f"{name}: {type(error).__name__}")
            return
        for package in page.packages:
            found[package.filename] = Request(
                url=package.url,
                label=package.filename,
                digest=f"sha256:{d}" if (d := package.digests.get("sha256")) else None,
                size=package.size,
            )

    with PyPISimple(index_url()) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(look, sorted(set(names))))
    if problems:
        raise DownloadError(
            "the package index cannot be read",
            problems=sorted(problems),
            hint="Check the network; another index is named by UV_DEFAULT_INDEX or PIP_INDEX_URL.",
        )
    return found


def _link(blob: Path, name: Path) -> None:
    try:
        name.symlink_to(blob.absolute())
    except OSError:  # Windows lets only some users make symbolic links
        import shutil

        shutil.copyfile(blob, name)
