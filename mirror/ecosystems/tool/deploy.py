"""mirror itself on the server: unpacked into the generation, with a launcher that needs nothing."""

from __future__ import annotations

import shlex
import struct
import sys
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.core.paths import shown
from mirror.ecosystems.deploy import Site
from mirror.errors import BundleError
from mirror.store.blobs import place

# -I keeps what the user's environment says about Python out of mirror, and mirror's own packages
# out of the programs that it starts.
_LAUNCHER = """\
#!/bin/sh
# Made by mirror install: runs the mirror of this generation.
tool=$(CDPATH= cd -- "$(dirname -- "$(readlink -f -- "$0")")/.." && pwd)
[ -n "${{MIRROR_ROOT:-}}" ] || MIRROR_ROOT={root}
export MIRROR_ROOT
python={python}
[ -x "$python" ] || python=python3
exec "$python" -I -B -c 'import sys; sys.path.insert(0, sys.argv.pop(1))
from mirror.cli import main
main()' "$tool/site" "$@"
"""

#: Other ways of packing raise OSError, as a full disk does; no wheel is packed in one.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: What zipfile raises for archives that are none.
_UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, IndexError),
    *(NotImplementedError, RuntimeError),
)


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Unpack the tool's wheels to tool/site, keep them in tool/wheels, write tool/bin/mirror."""
    tool = site.generation.tool
    (tool / "bin").mkdir(parents=True)
    for artifact in artifacts:
        blob = site.blobs.path(artifact.sha256)
        if artifact.path.endswith(".whl"):
            place(blob, tool / "wheels" / Path(artifact.path).name)
            _unpack(blob, tool / "site", artifact.path)
    for program in (tool / "site").glob("*.data/scripts/*"):
        program.chmod(0o755)
        program.replace(tool / "bin" / program.name)
    launcher = tool / "bin" / "mirror"
    root = site.generation.path.parent.parent
    text = _LAUNCHER.format(root=shlex.quote(str(root)), python=shlex.quote(str(_lasting_python())))
    launcher.write_text(text, encoding="utf-8", newline="\n")
    launcher.chmod(0o755)


def _unpack(wheel: Path, folder: Path, name: str) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if any(entry.compress_type not in _METHODS for entry in archive.infolist()):
                raise ValueError("it is neither stored nor deflated")
            archive.extractall(folder)
    except _UNREADABLE as error:
        raise BundleError(f"{shown(name)} is no wheel: {shown(str(error))}") from None


def _lasting_python() -> Path:
    """The interpreter that runs now, as its installation and not as an environment made from it."""
    base = getattr(sys, "_base_executable", sys.executable)
    return Path(base).resolve()
