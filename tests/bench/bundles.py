"""Packing and installing, set against what copies, packs and hashes files."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

from mirror.bundle import writer
from mirror.bundle.reader import Reader
from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.store.blobs import Blobs, hash_file
from tests.bench.rows import Compared, Group, Row, run

MEGABYTE = 1_000_000


class Bundles(Group):
    """Random files of `size` bytes together: 4 of an eighth, 20 of an 80th, 200 of an 800th.

    Takes four times `size` on the disk.
    """

    name = "bundles"
    aims = (
        Compared("pack", "cat", 1.5),
        Compared("pack", "tar -cf", 1.0),
        Compared("pack", "tar -czf", 1 / 15),
        Compared("pack, synced", "cat, synced", None),
        Compared("install, synced", "cp, openssl dgst", 1.3),
        Compared("install, synced", "tar -xzf, sha256sum", 1 / 5),
        Compared("install, synced", "cp, openssl dgst, synced", None),
    )

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.scratch, self.size = scratch, size
        self.sources = folder / "sources"
        self.bundle = folder / "bundle.tar.gz"
        self.archive = folder / "quarter.tar.gz"
        self.sources.mkdir()
        sizes = [size // 8] * 4 + [size // 80] * 20 + [size // 800] * 200
        artifacts = []
        for number, length in enumerate(sizes):
            path = self.sources / f"{number:05d}"
            with open(path, "wb") as file:
                for start in range(0, length, MEGABYTE):
                    file.write(os.urandom(min(MEGABYTE, length - start)))
            artifacts.append(Artifact("files", path.name, length, hash_file(path)))
        self.content = Index("bench", "1", "0", "0" * 64, None, tuple(map(Entry, artifacts)))
        self.files = [artifact.path for artifact in artifacts]
        # Every fourth file, for what is slow: they come in fours of one size.
        self.quarter = self.files[::4]
        writer.pack_file(self.content, b"", self.locate, self.bundle, Quiet())

    def rows(self) -> list[Row]:
        """Where it is named so, synced: a disk may cost more than the work."""
        return [
            Row("pack", self.pack, size=self.size),
            Row("pack, synced", self.pack_file, size=self.size),
            self.shell("cat", 'cat "$@" > "$OUT/one"'),
            self.shell("cat, synced", 'cat "$@" > "$OUT/one"; sync "$OUT/one"'),
            self.shell("tar -cf", 'tar -cf "$OUT/one.tar" "$@"'),
            self.shell("tar -czf", 'tar -czf "$ARCHIVE" "$@"', slow=True),
            Row("install, synced", self.install, size=self.size),
            self.shell("cp, openssl dgst", 'cp "$@" "$OUT"; cd "$OUT"; openssl dgst -sha256 "$@"'),
            self.shell(
                "cp, openssl dgst, synced",
                'cp "$@" "$OUT"; cd "$OUT"; openssl dgst -sha256 "$@"; sync -f .',
            ),
            self.shell(
                "tar -xzf, sha256sum",
                'cd "$OUT"; tar -xzf "$ARCHIVE"; sha256sum "$@"',
                slow=True,
            ),
        ]

    def locate(self, artifact: Artifact) -> Path:
        return self.sources / artifact.path

    def pack(self) -> None:
        with open(self.scratch / "b.tar.gz", "wb") as file:
            writer.pack(self.content, b"", self.locate, file.fileno(), Quiet())

    def pack_file(self) -> None:
        writer.pack_file(self.content, b"", self.locate, self.scratch / "b.tar.gz", Quiet())

    def install(self) -> None:
        with Reader.open(self.bundle) as reader:
            reader.admit(Blobs(self.scratch), Quiet())

    def shell(self, name: str, command: str, *, slow: bool = False) -> Row:
        """A command in the folder of the sources; "$@" are the files, $OUT is scratch.

        slow: once, with a quarter of the files.
        """
        files = self.quarter if slow else self.files
        variables = {"OUT": str(self.scratch), "ARCHIVE": str(self.archive)}

        def work() -> None:
            subprocess.run(
                ["sh", "-ec", command, "sh", *files],
                cwd=self.sources,
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL,
                check=True,
            )

        return Row(name, work, scale=4 if slow else 1, often=not slow, size=self.size)


class Pictures(Group):
    """A dataset of files of 20 to 200 kB, as pictures are, of `size` bytes together.

    What was removed just before makes new files slow on some file systems (ext4 looks past the
    inodes for half a minute), so every row works in a folder of its own, and all go at the end.
    """

    name = "pictures"
    aims: ClassVar[tuple[Compared, ...]] = (
        Compared("admit pictures", "tar pictures", 1 / 3),
        Compared("admit pictures", "tar pictures, synced", 1 / 3),
    )
    #: Bytes of the smallest file, and how much longer the largest is.
    smallest, spread = 20_000, 180_000
    #: One file for so many bytes of `size`.
    per_file = 110_000

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.folder, self.bundle = folder, folder / "small.tar.gz"
        self.size = 0
        sources = folder / "small"
        sources.mkdir()
        artifacts = []
        sums = ""
        for number in range(size // self.per_file):
            data = os.urandom(self.smallest + number * 9001 % self.spread)
            path = f"files/{number // 1000:03d}/{number:06d}"
            sha256 = hashlib.sha256(data).hexdigest()
            (sources / sha256).write_bytes(data)
            artifacts.append(Artifact("files", path, len(data), sha256))
            sums += f"{sha256}  {path}\n"
            self.size += len(data)
        listing = sums.encode()
        sha256 = hashlib.sha256(listing).hexdigest()
        (sources / sha256).write_bytes(listing)
        artifacts.append(Artifact("tool", "SHA256SUMS", len(listing), sha256))
        content = Index("bench", "1", "0", "0" * 64, None, tuple(map(Entry, artifacts)))
        writer.pack_file(content, b"", lambda a: sources / a.sha256, self.bundle, Quiet())

    def rows(self) -> list[Row]:
        """admit: with what opening the bundle takes, and synced. tar: and then sha256sum."""
        unpack = 'tar -xzf "$0"; sha256sum --quiet -c SHA256SUMS'
        return [
            Row(f"admit {self.name}", self.admit, size=self.size),
            self.shell(f"tar {self.name}", unpack),
            self.shell(f"tar {self.name}, synced", f"{unpack}; sync -f ."),
        ]

    def fresh(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.folder))

    def admit(self) -> None:
        with Reader.open(self.bundle) as reader:
            reader.admit(Blobs(self.fresh()), Quiet())

    def shell(self, name: str, command: str) -> Row:
        def work() -> None:
            run("sh", "-ec", command, self.bundle, folder=self.fresh())

        return Row(name, work, size=self.size)


class SmallFiles(Pictures):
    """The same with files of 1 to 10 kB, one for every 10 kB of `size`: 100,000 for 1,000 MB.

    To make and to rename 100,000 files takes the file system as long as a third of what tar takes:
    three times faster cannot be had, and no slower than tar is what is asked.
    """

    name = "small-files"
    aims = (
        Compared("admit small-files", "tar small-files", None),
        Compared("admit small-files", "tar small-files, synced", 1.0),
    )
    smallest, spread = 1_000, 9_000
    per_file = 10_000
