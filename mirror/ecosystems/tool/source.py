"""mirror itself, for the server: what it needs there, and a wheel of the program that runs now."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import mirror
from mirror.core.artifact import Artifact
from mirror.core.compat import version
from mirror.core.manifest import Manifest
from mirror.core.target import Target
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import source as wheels
from mirror.ecosystems.wheels.indexes import Indexes
from mirror.ecosystems.wheels.wanted import Wanted
from mirror.errors import ResolutionError
from mirror.fetch.http import Request

KIND = "tool"
#: The oldest Python that the tool runs on, on any server.
_PYTHON = "3.10"
_DISTRIBUTION = "airgap-mirror"


def inputs(section: Manifest, context: Context) -> Mapping[str, str]:
    """What this version of mirror needs on a server."""
    return {"tool": " ".join(_requirements(section, context.target))}


def resolve(section: Manifest, context: Context) -> list[Artifact]:
    """The wheels that mirror needs on the server, good for any Python from 3.10 on."""
    try:
        return wheels.lock_wheels(_wanted(section, context), KIND, context)
    except ResolutionError as error:
        raise ResolutionError(
            "what mirror itself needs on the server cannot be resolved",
            problems=error.problems,
            hint="The default index has to offer these packages too, whatever the manifest asks.",
        ) from None


def requests(
    artifacts: Sequence[Artifact], section: Manifest, context: Context
) -> list[Request | Path]:
    """As for any wheel."""
    return list(wheels.find_wheels(artifacts, Indexes.of(section.wheels, context.target)))


def derived(artifacts: Sequence[Artifact], context: Context) -> dict[str, bytes]:
    """install.sh, and the running program as a wheel."""
    script = Path(__file__).with_name("install.sh").read_bytes()
    name = f"{_DISTRIBUTION.replace('-', '_')}-{mirror.__version__}-py3-none-any.whl"
    return {"install.sh": script, f"tool/{name}": own_wheel()}


def prove(artifacts: Sequence[Artifact], section: Manifest, context: Context) -> None:
    """As for the project's wheels."""
    wheels.prove_wheels(artifacts, _wanted(section, context), context)


def own_wheel() -> bytes:
    """The program that runs now as a wheel: the same bytes for the same files, wherever built."""
    package = Path(mirror.__file__).parent
    files = {f"mirror/{p.relative_to(package).as_posix()}": p for p in _sources(package)}
    trainer = package.parent / "trainer"
    if trainer.is_dir() and not (package / "trainer").is_dir():
        # Running from a checkout: the trainer is installed into the package, as a build would.
        files |= {
            f"mirror/trainer/{p.relative_to(trainer).as_posix()}": p for p in _sources(trainer)
        }
    info = f"{_DISTRIBUTION.replace('-', '_')}-{mirror.__version__}.dist-info"
    members = {name: path.read_bytes() for name, path in files.items()}
    members[f"{info}/METADATA"] = _metadata().encode()
    members[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: mirror\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    members[f"{info}/entry_points.txt"] = b"[console_scripts]\nmirror = mirror.cli:main\n"
    record = "".join(f"{name},{_record(data)}\n" for name, data in sorted(members.items()))
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    # Stored, not deflated: then the bytes do not depend on a zlib version.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, members[name])
    return buffer.getvalue()


def _requirements(manifest: Manifest, target: Target) -> list[str]:
    """What mirror imports on the server; docs/adr says why so little."""
    needed = ["click>=8.1", "tqdm>=4.66", "packaging>=24.2", "segno>=1.6", _pip(target)]
    if manifest.wheels:
        needed.append("uv>=0.11" if manifest.wheels.installer == "uv" else "installer>=1.0,<2")
    if manifest.conda:
        # Pinned to what the builder solves with: one version reads and writes the records.
        needed.append(f"py-rattler=={metadata.version('py-rattler')}")
    return needed


def _pip(target: Target) -> str:
    """pip goes into the project's environment, whose Python may be older than the tool's."""
    old = version(target.python) < version(_PYTHON)
    return "pip>=23,<26" if old else "pip>=23"


def _wanted(manifest: Manifest, context: Context) -> Wanted:
    return Wanted(
        lines=tuple(_requirements(manifest, context.target)),
        target=replace(context.target, python=_PYTHON, provided=()),
        indexes=Indexes(Indexes.of(manifest.wheels, context.target).default),
    )


def _sources(folder: Path) -> list[Path]:
    kinds = (".py", ".sh", ".json", ".typed")
    return [
        p for p in sorted(folder.rglob("*")) if p.suffix in kinds and "__pycache__" not in p.parts
    ]


def _metadata() -> str:
    return (
        f"Metadata-Version: 2.1\nName: {_DISTRIBUTION}\nVersion: {mirror.__version__}\n"
        f"Requires-Python: >={_PYTHON}\n"
        "Requires-Dist: click\nRequires-Dist: tqdm\n"
        "Requires-Dist: packaging\nRequires-Dist: segno\n"
    )


def _record(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"
