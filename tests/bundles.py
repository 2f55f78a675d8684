"""Bundles made on the spot."""

from __future__ import annotations

import gzip
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from mirror.bundle import layout, writer
from mirror.bundle.reader import Reader
from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.progress import Advance, Quiet
from mirror.errors import BundleError
from mirror.store.blobs import Blobs


def artifact(path: str, data: bytes, *, executable: bool = False) -> Artifact:
    """The artifact that these bytes are."""
    return Artifact("files", path, len(data), hashlib.sha256(data).hexdigest(), executable)


def index_of(*artifacts: Artifact) -> Index:
    """An index that ships these."""
    return Index("demo", "1", "0.1", "0" * 64, None, tuple(Entry(a) for a in artifacts))


@dataclass(frozen=True)
class Sources:
    """Files on the builder: the index that lists them and where each one is."""

    folder: Path
    index: Index
    signature: bytes = b""

    def locate(self, artifact: Artifact) -> Path:
        """The file that holds an artifact's bytes."""
        return self.folder / artifact.sha256

    def pack(self, target: Path) -> bytes:
        """Write the bundle; returns its bytes."""
        writer.pack_file(self.index, self.signature, self.locate, target, Quiet())
        return target.read_bytes()


def sources(folder: Path, files: Mapping[str, bytes], signature: bytes = b"") -> Sources:
    """Write these files to a folder; those named *.sh are executable."""
    folder.mkdir(exist_ok=True)
    found = []
    for path, data in files.items():
        found.append(artifact(path, data, executable=path.endswith(".sh")))
        (folder / found[-1].sha256).write_bytes(data)
    return Sources(folder, index_of(*found), signature)


def admit(bundle: Path | int, blobs: Blobs) -> Reader:
    """Read all of a bundle into a store."""
    with Reader.open(bundle) as reader:
        reader.admit(blobs, Quiet())
    return reader


def staged(blobs: Blobs) -> list[Path]:
    """What lies in the store half-written."""
    return [p for p in blobs.folder.rglob("*") if p.is_file() and len(p.name) != 64]


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Make stored blocks 1 KiB, chunks 2 KiB and gzip members 4 KiB: every seam in a few bytes."""
    patch.setattr(layout, "STORED", 1024)
    patch.setattr(layout, "CHUNK", 2048)
    patch.setattr(layout, "MEMBER", 4096)


def held(blobs: Blobs, artifact: Artifact) -> bytes:
    """The bytes of a blob."""
    return blobs.path(artifact.sha256).read_bytes()


def write_framed(file: IO[bytes], tar: bytes) -> None:
    """Write the bundle that holds this tar, whatever is in it, by the functions of layout alone."""
    total, crc = len(tar), 0
    for chunk in layout.chunks(0, total):
        data = memoryview(tar)[chunk.start : chunk.stop]
        for front, cut in zip(chunk.frame(total), chunk.cuts(), strict=True):
            file.write(front)
            file.write(data[cut])
        crc = layout.crc32(data, crc, chunk.start)
        if chunk.ends_member(total):
            file.write(layout.trailer(crc, chunk.stop))


@contextmanager
def stream(data: bytes, *, end: bool = True) -> Iterator[int]:
    """A pipe that these bytes come out of; without `end`, it stays silent after them."""
    source, sink = os.pipe()

    def send() -> None:
        with open(sink, "wb", buffering=0, closefd=end) as file:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
            except BrokenPipeError:
                pass  # the reader has seen enough

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield source
    finally:
        os.close(source)
        thread.join()
        if not end:
            os.close(sink)


class Interrupted(Quiet):
    """A person who presses Ctrl-C when some bytes are done."""

    @contextmanager
    def bar(self, label: str, total: int, unit: str = "B", **about: object) -> Iterator[Advance]:
        """Count, and press."""
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            done += amount
            if done > total // 2:
                raise KeyboardInterrupt

        yield advance


class Bars(Quiet):
    """Remembers each bar: its label, its total and what was counted."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []

    @contextmanager
    def bar(self, label: str, total: int, unit: str = "B", **about: object) -> Iterator[Advance]:
        """Count, and remember at the end."""
        done = 0

        def advance(amount: int) -> None:
            nonlocal done
            assert amount >= 0
            done += amount

        yield advance
        self.seen.append((label, total, done))


def framed(tar: bytes) -> bytes:
    """Right framing around any tar."""
    total, crc, out = len(tar), 0, b""
    for chunk in layout.chunks(0, total):
        data = memoryview(tar)[chunk.start : chunk.stop]
        pairs = zip(chunk.frame(total), chunk.cuts(), strict=True)
        out += b"".join(front + data[cut] for front, cut in pairs)
        crc = layout.crc32(data, crc, chunk.start)
        out += layout.trailer(crc, chunk.stop) if chunk.ends_member(total) else b""
    return out


class Case:
    """One right bundle, a place to write wrong ones, and a store that must stay clean."""

    def __init__(self, folder: Path, made: Sources) -> None:
        self.made = made
        self.data = made.pack(folder / "right.tar.gz")
        self.blobs = Blobs(folder / "store")
        self.wrong = folder / "wrong.tar.gz"

    @property
    def tar(self) -> bytearray:
        """The right tar inside the framing; a fresh copy."""
        return bytearray(gzip.decompress(self.data))

    def refused(self, data: bytes, says: str = ".", *, piped: bool = False) -> str:
        """Assert that `data` is refused as damaged; returns the message."""
        with pytest.raises(BundleError, match=says) as caught:
            self._admit_piped(data) if piped else self._admit_file(data)
        assert type(caught.value) is BundleError
        assert caught.value.exit_code == 5
        assert caught.value.hint
        assert str(caught.value).isprintable() or "\n" in str(caught.value)
        self.clean()
        return caught.value.message

    def _admit_file(self, data: bytes) -> None:
        self.wrong.write_bytes(data)
        admit(self.wrong, self.blobs)

    def _admit_piped(self, data: bytes) -> None:
        with stream(data) as file:
            admit(file, self.blobs)

    def clean(self) -> None:
        """Assert that the store holds no half-written and no wrong blob."""
        assert not staged(self.blobs)
        for path in self.blobs.folder.rglob("*"):
            if path.is_file():
                self.blobs.check(path.name)
