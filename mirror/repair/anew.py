"""Files of a generation that no blob holds, made anew: by installing them beside it once more.

What is installed says where it is: a script names its interpreter, a record the hash of that
script. The folders of two generations have names of one length, so one name is put for the other,
in text and in binary files alike; the hashes that speak of such files follow. What comes out is
held against the seal: most files are again the same in every byte.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mirror import install
from mirror.core.index import Index
from mirror.core.progress import Progress, uncounted
from mirror.ecosystems import environment
from mirror.planning import Plan, Wish, make_plan
from mirror.store.blobs import hash_file
from mirror.store.generation import Generation
from mirror.store.generations import Root
from mirror.store.seal import Entry, Seal

#: Larger files hold no path that anybody would put there.
_MOST = 64 * 2**20
_RECORD = re.compile(r"[^/]+\.dist-info/RECORD$")
_ENVIRONMENT = ("tool", "conda", "wheels")  # uv, and a pip for the environment, are in the tool
_BY_FOLDER = {
    "env": _ENVIRONMENT,
    "wheels": _ENVIRONMENT,
    "conda": _ENVIRONMENT,
    "tool": ("tool",),
    "files": ("files",),
    **dict.fromkeys(("hub", "models", "datasets", "spaces"), ("models", "datasets", "spaces")),
}


ALL = tuple(install.DEPLOYS)


def kinds(path: str) -> tuple[str, ...]:
    """What has to be deployed for a path of a generation to be there; nothing for what is none."""
    return _BY_FOLDER.get(path.partition("/")[0], ())


@dataclass(frozen=True, slots=True)
class Anew:
    """A generation as it is deployed once more, in a folder of its own.

    folder: where it lies now. original: whose files it has. made: how, as a seal has it.
    sealed: the original's seal, where it has one.
    """

    folder: Generation
    original: Generation
    made: Mapping[str, str]
    sealed: Seal | None

    def get(self, path: str, mode: int, staging: Callable[[], Path]) -> tuple[Path, Entry] | None:
        """A file as it belongs in the original, at a name that `staging` gives; what it is.

        None when there is no such file here.
        """
        here = self.folder.path / path
        if here.is_symlink() or not here.is_file():
            return None
        target, data = staging(), self._moved(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            os.link(here, target)
        else:
            target.write_bytes(data)
        os.chmod(target, mode)
        size = target.stat().st_size
        return target, Entry(path, "f", mode, size, hash_file(target, uncounted))

    def entries(self, now: dict[str, Entry]) -> Iterator[Entry]:
        """All that there is, as a seal of the original would list it; now: as it lies here."""
        old, new = str(self.folder.path), str(self.original.path)
        for entry in now.values():
            data = self._moved(entry.path) if entry.kind == "f" else None
            if data is not None:
                digest = hashlib.sha256(data).hexdigest()
                yield entry._replace(size=len(data), text=digest)
            elif entry.kind == "l":
                yield entry._replace(text=entry.text.replace(old, new))
            else:
                yield entry

    def _moved(self, path: str) -> bytes | None:
        """The bytes of a file as they belong in the original; None when that changes nothing."""
        here = self.folder.path / path
        if here.stat().st_size > _MOST:
            return None
        before = data = here.read_bytes()
        data = data.replace(os.fsencode(self.folder.path), os.fsencode(self.original.path))
        for old, new in self._hashes(path):
            data = data.replace(old, new)
        return data if data != before else None

    def _hashes(self, path: str) -> Iterator[tuple[bytes, bytes]]:
        """What a record says of other files: of each that is another in the original, both."""
        if _RECORD.search(path):
            above = os.path.dirname(os.path.dirname(path))
            text = (self.folder.path / path).read_text(encoding="utf-8")
            for name, stated, size in (
                row for row in csv.reader(text.splitlines()) if len(row) == 3
            ):
                other = self._other(os.path.normpath(f"{above}/{name}")) if stated else None
                if other and (new := f"sha256={_encoded(other.text)}") != stated:
                    old = f"{name},{stated},{size}\n"
                    yield old.encode(), f"{name},{new},{other.size}\n".encode()
        elif path.startswith("env/conda-meta/") and path.endswith(".json"):
            document = json.loads((self.folder.path / path).read_bytes())
            for item in document.get("paths_data", {}).get("paths", ()):
                stated = item.get("sha256_in_prefix")
                if stated and (other := self._other(f"env/{item['_path']}")):
                    yield stated.encode(), other.text.encode()

    def _other(self, path: str) -> Entry | None:
        """A file as it is in the original: by its seal, else as it is made here."""
        if self.sealed:
            return self.sealed.entries.get(path)
        here = self.folder.path / path
        if _RECORD.search(path) or not here.is_file() or (data := self._moved(path)) is None:
            return None
        return Entry(path, "f", 0, len(data), hashlib.sha256(data).hexdigest())


def _encoded(sha256: str) -> str:
    """As a wheel's RECORD spells a hash."""
    return base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()


def deploy(
    original: Generation,
    index: Index,
    seal: Seal | None,
    wanted: Collection[str],
    root: Root,
    progress: Progress,
) -> Anew:
    """Deploy these kinds once more, into a folder that the caller has to discard.

    seal: says how it was made; without one that is found out as far as it can be.
    Raises MachineError and TargetError as an install does.
    """
    known = dict(seal.made) if seal else {}
    over = Path(known["over"]) if "over" in known else None
    if seal is None:
        over = environment.layered_over(original)
    if index.target and ("wheels" in wanted or "conda" in wanted):
        python = Path(known["python"]) if "python" in known else None
        wish = Wish(python if python and python.exists() else None, over)
        plan = make_plan(index, (), root, wish, progress)
    else:
        plan = Plan(index, None, None, None, None, 0, None)
    root = named(seal, root)
    folder = root.begin()
    try:
        install.lay_out(plan, root, folder, progress, wanted)
    except BaseException:
        root.discard(folder)
        raise
    original = Generation(root.path / "generations" / original.path.name)
    return Anew(folder, original, install.made(plan, root), seal)


def named(seal: Seal | None, root: Root) -> Root:
    """The root under the name by which it was installed: that is in its files."""
    name = seal.made.get("root") if seal else None
    try:
        return Root(Path(name)) if name and os.path.samefile(name, root.path) else root
    except OSError:
        return root
