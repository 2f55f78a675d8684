"""A wheel made from source: in an environment of its own, and the same bytes each time.

uv makes the environment, installs what the source says it is built with, and runs its backend
there. Isolated are the packages that it sees, not the machine: a build runs code of the package as
the user who builds.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.utils import parse_wheel_filename

from mirror import machine
from mirror.core.compat import version
from mirror.core.paths import shown
from mirror.core.target import Target
from mirror.ecosystems.wheels import running
from mirror.ecosystems.wheels.indexes import Indexes
from mirror.errors import MirrorError, ResolutionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_DATE = (1980, 1, 1, 0, 0, 0)
_PYPROJECT_LIMIT = 2**20


@dataclass(frozen=True, slots=True)
class Product:
    """A wheel made here. tools: what it was built with, `name==version` each."""

    path: Path
    tools: tuple[str, ...]


def build(
    source: Path,
    name: str,
    folder: Path,
    *,
    target: Target,
    indexes: Indexes,
    tools: Sequence[str] = (),
    native: bool = False,
) -> Product:
    """Make a wheel of an sdist or of a project's folder, in `folder`, under its proper name.

    tools: versions of build requirements to build with; those of today when left out. native:
    whether it may be a wheel for this kind of machine, which the target must be, then.
    Raises ResolutionError that says why there is none, or none that fits the target.
    """
    python = _python(target, name, native)
    environment = running.environment(indexes, native=native)
    with TemporaryDirectory(prefix="build-", dir=folder) as inner:
        workplace = Path(inner)
        limits = workplace / "tools.txt"
        pins = tuple(tools) or _tools(source, name, workplace, python, environment)
        limits.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
        done = running.run(
            *("build", "--wheel", source, "--out-dir", workplace, "--no-create-gitignore"),
            *("--no-config", "--no-sources", "--python", python, "--build-constraints", limits),
            environment=environment,
        )
        wheels = list(workplace.glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            raise _failed(name, done)
        if not native and not _fits_any_machine(wheels[0].name):
            raise ResolutionError(
                f"{name} cannot be built for any machine: its wheel is {shown(wheels[0].name)}"
            )
        path = folder / wheels[0].name
        settle(wheels[0], path)
    return Product(path, pins)


def settle(wheel: Path, target: Path) -> None:
    """Write a wheel anew so that its bytes follow from its files alone.

    Stored rather than deflated (a bundle is not smaller for it, and no zlib version shows), sorted,
    at a fixed time, with modes that no umask shows, RECORD last and written here.
    """
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w") as new:
        files = {e.filename: e for e in old.infolist() if not e.is_dir()}
        record = next(name for name in files if name.endswith(".dist-info/RECORD"))
        info = record.removesuffix("RECORD")
        rows = []
        for name in sorted(files.keys() - {record}, key=lambda name: (name.startswith(info), name)):
            entry = files[name]
            digest = hashlib.sha256()
            with old.open(entry) as source, new.open(_entry(entry), "w") as copy:
                while chunk := source.read(2**20):
                    digest.update(chunk)
                    copy.write(chunk)
            encoded = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
            quoted = f'"{name}"' if "," in name else name
            rows.append(f"{quoted},sha256={encoded},{entry.file_size}\n")
        listing = "".join([*rows, f"{record},,\n"]).encode()
        with new.open(_entry(files[record], len(listing)), "w") as copy:
            copy.write(listing)


def _entry(old: zipfile.ZipInfo, size: int | None = None) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(old.filename, _DATE)
    entry.create_system = 3
    executable = old.create_system == 3 and (old.external_attr >> 16) & 0o111
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.file_size = old.file_size if size is None else size
    return entry


def _python(target: Target, name: str, native: bool) -> Path:
    """The interpreter to build with: of the target's version when there is one here."""
    found = machine.find_python(target.python)
    if not native:
        return found or Path(sys.executable)
    here = machine.this_platform()
    if here != target.platform:
        raise ResolutionError(f"{name} can be built for {here or 'this machine'} alone")
    glibc = machine.this_glibc()
    if target.glibc and version(glibc) > version(target.glibc):
        raise ResolutionError(f"{name} built here would need glibc {glibc}")
    if found is None:
        raise ResolutionError(f"{name} is built with Python {target.python}, which is not here")
    return found


def _tools(
    source: Path, name: str, workplace: Path, python: Path, environment: Mapping[str, str]
) -> tuple[str, ...]:
    """The build requirements that the source states, each at the version that is taken today."""
    asked, limits = workplace / "asked.txt", workplace / "limits.txt"
    asked.write_text("".join(f"{line}\n" for line in _stated(source, name)), encoding="utf-8")
    for constraints in (running.CONSTRAINTS, ()):
        limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
        done = running.run(
            *("pip", "compile", asked, "--constraints", limits, "--python", python, "--quiet"),
            *("--no-config", "--no-sources", "--no-header", "--no-annotate"),
            environment=environment,
        )
        if done.returncode == 0:
            return tuple(sorted(line for line in done.stdout.splitlines() if "==" in line))
    raise _failed(name, done)


def _stated(source: Path, name: str) -> list[str]:
    """`build-system.requires`; PEP 517 says what stands for a source that states none."""
    data = _pyproject(source, name)
    try:
        system = tomllib.loads(data.decode("utf-8-sig")).get("build-system", {})
    except ValueError as error:
        raise ResolutionError(f"the pyproject.toml of {name} cannot be read: {error}") from None
    return [str(line) for line in system.get("requires", ["setuptools>=40.8.0", "wheel"])]


def _pyproject(source: Path, name: str) -> bytes:
    """The bytes of a source's pyproject.toml, none where it has none."""
    if source.is_dir():
        file = source / "pyproject.toml"
        return file.read_bytes() if file.is_file() else b""
    is_it = re.compile(r"[^/]+/pyproject\.toml").fullmatch
    try:
        if source.suffix == ".zip":
            with zipfile.ZipFile(source) as archive:
                found = next((e for e in archive.infolist() if is_it(e.filename)), None)
                return archive.open(found).read(_PYPROJECT_LIMIT) if found else b""
        with tarfile.open(source) as sdist:
            for member in sdist:
                if is_it(member.name.removeprefix("./")) and member.isfile():
                    file_object = sdist.extractfile(member)
                    return file_object.read(_PYPROJECT_LIMIT) if file_object else b""
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise ResolutionError(f"the sdist of {name} cannot be read: {error}") from None
    return b""


def _fits_any_machine(file: str) -> bool:
    tags = parse_wheel_filename(file)[3]
    return any(str(tag) == "py3-none-any" for tag in tags)


def _failed(name: str, done: subprocess.CompletedProcess[str]) -> MirrorError:
    return ResolutionError(
        f"{name} cannot be built: {reason(done.stderr)}",
        problems=_tail(done.stderr.splitlines()),
    )


def reason(said: str) -> str:
    """Why a build failed, in a few words, from what it said."""
    if running.NO_COMPILER in said:
        return "it compiles native code"
    if missing := re.search(r"No module named '([\w.]+)'", said):
        return f"it needs {missing[1]} to be there, and does not say so"
    return "its build fails"


def _tail(lines: Iterable[str]) -> list[str]:
    """The end of what a build said, without uv's own words about it."""
    said = [line.rstrip() for line in lines if line.strip()]
    ends = next((n for n, line in enumerate(said) if line.startswith("error: ")), len(said))
    return [shown(line) for line in (said[:ends] or said)[-5:]]
