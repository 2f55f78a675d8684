"""Make `manifests/channel/`: a conda channel in a folder, with one small package, for the demo.

    python manifests/make_channel.py [FOLDER]

The same bytes every time, so what is committed can be compared with what this makes.
"""

from __future__ import annotations

import bz2
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

from mirror.core.artifact import Json
from mirror.ecosystems.conda.records import document

FOLDER = Path(__file__).parent / "channel"
#: Stands for the prefix in the package's files; every installer puts the real one in its place.
PLACEHOLDER = "/opt/" + "placeholder_" * 20
NAME, VERSION, BUILD = "demo-notes", "1.0", "0"
TIMESTAMP = 1_767_225_600  # the first second of 2026

NOTES = """\
This file came to you as a conda package.

A connected machine took it from a channel that is a folder, wrote its record into a lock, and put
it into a bundle. This machine, with no conda and no network, linked it into the environment from
there. `demo-notes` prints the environment's path: it was not known when the package was made, so it
was written into the script on arrival.
"""
SCRIPT = f"""\
#!/bin/sh
prefix="{PLACEHOLDER}"
echo "demo-notes {VERSION}, installed in $prefix"
echo
cat "$prefix/share/demo-notes/notes.txt"
"""
ACTIVATE = f"""\
DEMO_NOTES="{PLACEHOLDER}/share/demo-notes/notes.txt"
export DEMO_NOTES
"""
#: Path in the prefix -> text, and whether it can be run.
FILES = {
    "bin/demo-notes": (SCRIPT, True),
    "etc/conda/activate.d/demo-notes.sh": (ACTIVATE, False),
    "share/demo-notes/notes.txt": (NOTES, False),
}
INDEX: dict[str, Json] = {
    "name": NAME,
    "version": VERSION,
    "build": BUILD,
    "build_number": 0,
    "depends": [],
    "license": "Apache-2.0",
    "noarch": "generic",
    "subdir": "noarch",
    "timestamp": TIMESTAMP * 1000,
}
ABOUT: dict[str, Json] = {
    "summary": "A note and a script that prints where it was installed",
    "license": "Apache-2.0",
}


def make(folder: Path) -> None:
    """Write the channel into `folder`: two subdirs, the package, their repodata."""
    package = package_bytes()
    record: dict[str, Json] = {
        **INDEX,
        "size": len(package),
        "md5": hashlib.md5(package, usedforsecurity=False).hexdigest(),
        "sha256": hashlib.sha256(package).hexdigest(),
    }
    file = f"{NAME}-{VERSION}-{BUILD}.tar.bz2"
    subdirs: dict[str, dict[str, Json]] = {"noarch": {file: record}, "linux-64": {}}
    for subdir, packages in subdirs.items():
        (folder / subdir).mkdir(parents=True, exist_ok=True)
        (folder / subdir / "repodata.json").write_bytes(document(subdir, packages))
    (folder / "noarch" / file).write_bytes(package)


def package_bytes() -> bytes:
    """The package: a tar of its files and of what conda wants to know about them."""
    paths: Json = {"paths": [_path(name) for name in FILES], "paths_version": 1}
    members = {
        "info/index.json": (_json(INDEX), False),
        "info/about.json": (_json(ABOUT), False),
        "info/paths.json": (_json(paths), False),
        "info/files": ("".join(f"{name}\n" for name in FILES), False),
        **FILES,
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (text, executable) in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            member.mode = 0o755 if executable else 0o644
            member.mtime = TIMESTAMP
            tar.addfile(member, io.BytesIO(text.encode()))
    return bz2.compress(buffer.getvalue(), 9)


def _path(name: str) -> dict[str, Json]:
    data = FILES[name][0].encode()
    entry: dict[str, Json] = {
        "_path": name,
        "path_type": "hardlink",
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_in_bytes": len(data),
    }
    if PLACEHOLDER.encode() in data:
        entry |= {"prefix_placeholder": PLACEHOLDER, "file_mode": "text"}
    return entry


def _json(value: Json) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    make(target)
    print(f"made {target}")
