"""Building and installing what has changed, beside building and installing all of it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.bench.rows import Compared, Group, Limited, Row, need, run, write_random
from tests.index import make_wheel, serve

#: What mirror itself needs on a server; the index of the bench has nothing of use in them.
_TOOL = ("click", "tqdm", "packaging", "segno", "pip")
#: So many files, and so many tensors in a checkpoint: one of them changes.
_PARTS = 100
#: Row names.
FULL, PART, NOTHING = "build, all", "build, 1 % changed", "build, nothing changed"
INSTALL, INSTALL_PART = "install, all", "install, 1 % changed"
MODEL, TENSOR = "checkpoint, whole", "checkpoint, one tensor"
XDELTA, RSYNC, ZSTD = "xdelta3 -e", "rsync --write-batch", "zstd --patch-from"
_PATCHES = {
    XDELTA: ("xdelta3", "-e", "-s", "OLD", "NEW", "OUT"),
    RSYNC: ("rsync", "--no-whole-file", "--only-write-batch=OUT", "NEW", "OLD"),
    ZSTD: ("zstd", "-q", "-T0", "--long=31", "--patch-from=OLD", "NEW", "-o", "OUT"),
}


class Increments(Group):
    """Files of `size` bytes together, 100 of them, and a checkpoint of a quarter of that.

    Of the files one is another than in the bundle before, of the checkpoint's tensors one. All that
    mirror does is the whole program; peers make a patch of the same checkpoint, of which they check
    nothing. Takes six times `size` on the disk.
    """

    name = "increments"
    aims = (
        Limited(NOTHING, 1.0),
        Compared(PART, FULL, 1 / 2),
        Compared(INSTALL_PART, INSTALL, 1 / 2),
        Compared(TENSOR, MODEL, None),
        Compared(TENSOR, XDELTA, 1.0),
        Compared(TENSOR, RSYNC, None),
        Compared(TENSOR, ZSTD, None),
    )

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.folder, self.scratch, self.size = folder, scratch, size
        #: Of what each row has made, in bytes.
        self.made: dict[str, int] = {}
        shelf = folder / "shelf"
        shelf.mkdir()
        for name in _TOOL:
            make_wheel(shelf, name, "99.0")
        with serve(shelf) as url:
            for name, files in (("data", self._files()), ("model", self._checkpoints())):
                for version in files:
                    self._project(f"{name}-{version}", url)
        self.root = folder / "root"
        self.installed(self.bundle("data-old"), self.root)

    def rows(self) -> list[Row]:
        """A build that has to be done again writes to a place where nothing is."""
        old, new = self.bundle("data-old"), self.bundle("data-new")
        part, model = self.folder / "part.tar.gz", self.bundle("model-old")
        self.build("data-new", part, old)
        return [
            Row(FULL, lambda: self.packed(FULL, "data-new"), size=self.size),
            Row(PART, lambda: self.packed(PART, "data-new", old)),
            Row(NOTHING, lambda: self.build("data-new", new)),
            Row(INSTALL, lambda: self.installed(new, self.scratch / "root"), size=self.size),
            Row(
                INSTALL_PART,
                lambda: self.installed(part, self.scratch / "root"),
                ready=lambda: run("cp", "-al", self.root, "root", folder=self.scratch),
            ),
            Row(MODEL, lambda: self.packed(MODEL, "model-new"), size=self.size // 4),
            Row(
                TENSOR,
                lambda: self.packed(TENSOR, "model-new", model),
                ready=lambda: shutil.rmtree(self.folder / "cache" / "deltas", ignore_errors=True),
                size=self.size // 4,
            ),
            *(
                Row(name, lambda name=name: self.patch(name), size=self.size // 4)  # type: ignore[misc]
                for name in _PATCHES
            ),
        ]

    def notes(self) -> list[str]:
        """How large is what was made."""
        lines = []
        for whole, names in ((FULL, (PART,)), (MODEL, (TENSOR, *_PATCHES))):
            for name in names:
                if self.made.get(name) and self.made.get(whole):
                    share = self.made[name] / self.made[whole]
                    lines.append(f"{name:<23}{self.made[name]:>13,} bytes, {share:.2%} of {whole}")
        lines.append(f"{'increment, no change':<23}{self._idle():>13,} bytes")
        return lines

    def bundle(self, project: str) -> Path:
        """Where the project's bundle is that is built before anything is measured."""
        return self.folder / f"{project}.tar.gz"

    def build(self, project: str, out: Path, since: Path | None = None) -> None:
        older = ("--since", since) if since else ()
        self._mirror("build", self.folder / project / "mirror.yaml", "-o", out, *older)

    def packed(self, row: str, project: str, since: Path | None = None) -> None:
        out = self.scratch / "bundle.tar.gz"
        self.build(project, out, since)
        self.made[row] = out.stat().st_size

    def installed(self, bundle: Path, root: Path) -> None:
        self._mirror("install", bundle, "--root", root)

    def patch(self, row: str) -> None:
        names = {kind: self.folder / f"model-{kind}" / "data" / "model" for kind in ("old", "new")}
        out = self.scratch / "patch"
        places = {"OLD": str(names["old"]), "NEW": str(names["new"]), "OUT": str(out)}
        program, *options = _PATCHES[row]
        need(program)
        run(program, *(_filled(option, places) for option in options), folder=self.scratch)
        self.made[row] = out.stat().st_size

    def _idle(self) -> int:
        out = self.folder / "idle.tar.gz"
        self.build("data-new", out, self.bundle("data-new"))
        return out.stat().st_size

    def _files(self) -> Iterable[str]:
        """A version after the other: the new one shares all files but one with the old one."""
        old, new = (self.folder / f"data-{version}" / "data" for version in ("old", "new"))
        old.mkdir(parents=True)
        for number in range(_PARTS):
            write_random(old / f"{number:03}", self.size // _PARTS)
        yield "old"
        new.mkdir(parents=True)
        for file in old.iterdir():
            os.link(file, new / file.name)
        (new / "042").unlink()
        write_random(new / "042", self.size // _PARTS)
        yield "new"

    def _checkpoints(self) -> Iterable[str]:
        length = self.size // 4 // _PARTS // 2 * 2
        tensors = [os.urandom(length) for _ in range(_PARTS)]
        for version in ("old", "new"):
            place = self.folder / f"model-{version}" / "data"
            place.mkdir(parents=True)
            write_tensors(place / "model", tensors)
            yield version
            tensors[42] = os.urandom(length)

    def _project(self, name: str, index: str) -> None:
        text = f"name: {name}\nversion: 1\nfiles: [{{path: data/, to: ./}}]\n"
        (self.folder / name / "mirror.yaml").write_text(text, encoding="utf-8")
        manifest = self.folder / name / "mirror.yaml"
        self._mirror("build", manifest, "-o", self.bundle(name), UV_DEFAULT_INDEX=index)

    def _mirror(self, *arguments: str | Path, **variables: str) -> None:
        variables["MIRROR_CACHE"] = str(self.folder / "cache")
        command = (sys.executable, "-m", "mirror", *arguments)
        run(*command, folder=self.folder, variables=variables)


def write_tensors(path: Path, tensors: Sequence[bytes]) -> None:
    """A safetensors file of these, in bf16."""
    header, at = {}, 0
    for number, data in enumerate(tensors):
        ends = [at, at + len(data)]
        header[f"layer.{number}"] = {
            "dtype": "BF16",
            "shape": [len(data) // 2],
            "data_offsets": ends,
        }
        at += len(data)
    spelled = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(spelled)) + spelled)
        file.writelines(tensors)


def _filled(option: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        option = option.replace(name, place)
    return option
