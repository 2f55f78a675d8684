"""Which files may hold pickles, and what these would import: plain, or in what libraries wrap them.

torch's ZIP files, older ones of torch, NumPy's arrays of objects, joblib's compressed files, NeMo's
TAR files. What a file is, is read from its first bytes, as those libraries do; data that merely has
such a name is no pickle. What begins as one of them and cannot be followed to its end is a failure,
never taken for clean. Memory and time are bounded: of a ZIP file only its pickles are read.
"""

from __future__ import annotations

import ast
import bz2
import gzip
import io
import posixpath
import tarfile
import warnings
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mirror.ecosystems.models.policy import pickle_opcodes
from mirror.ecosystems.models.policy.pickle_opcodes import (
    UNKNOWN,
    Broken,
    Budget,
    Global,
    Unscannable,
)

_ENDINGS = (
    *(".bin", ".pt", ".pth", ".ckpt", ".ptl", ".th", ".pyth", ".nemo"),  # torch
    *(".pkl", ".pickle", ".pk", ".p", ".dill", ".joblib", ".dat", ".data", ".model"),
    *(".npy", ".npz", ".pdparams", ".pdopt"),
)
_PACKED = (".gz", ".bz2", ".xz", ".lzma", ".zst", ".lz4", ".z", ".zip", ".tar", ".tgz", ".7z")
#: Of torch's distributed checkpoints, and of its oldest files, which are TAR files.
_NAMES = (".metadata", "storages", "tensors", "pickle")

_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_NUMPY = b"\x93NUMPY"
_PROTOCOLS = b"\x80"
#: Begins what torch saved before it saved ZIP files: five pickles, and then the tensors' bytes.
_TORCH = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")
_TORCH_PICKLES = 5
#: So many without a protocol's mark and without a name are data: a text can be full of them.
_UNMARKED = 10_000
_OPAQUE = {
    b"7z\xbc\xaf\x27\x1c": "it is a 7z archive",
    b"\xfd7zXZ\x00": "it is compressed with xz",
    b"\x5d\x00": "it is compressed with lzma",
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd",
    b"\x04\x22\x4d\x18": "it is compressed with lz4",
    b"ZF0x": "it is compressed by an old joblib",
}

_BROKEN = ("it begins as a pickle and is none", "what follows its first pickle is none")
_AMBIGUOUS = "it is a ZIP file that could be read in two ways"

#: No single read is longer: directories of archives and headers are read whole.
_LONGEST = 16 << 20
_MEMBERS = 200_000
_NESTED = 3


@dataclass
class Scan:
    """What a file was found to be.

    pickle: whether it holds a pickle, or what cannot be told from one.
    names: what loading it would import. guesses: the same of what may as well be data.
    failure: why not all of it could be scanned; empty when all was.
    """

    pickle: bool = False
    names: set[Global] = field(default_factory=set)
    guesses: set[Global] = field(default_factory=set)
    failure: str = ""


def is_pickle(file: str) -> bool:
    """Whether a file of this name may hold a pickle."""
    name = posixpath.basename(file).lower()
    packed = next((ending for ending in _PACKED if name.endswith(ending)), "")
    return name.removesuffix(packed).endswith(_ENDINGS) or name in _NAMES


def scan(path: Path) -> Scan:
    """What a file would import when it is loaded. Raises OSError when it cannot be opened."""
    found = Scan()
    with open(path, "rb") as file:
        try:
            _file(_Bounded(file, Budget(), seekable=True), found, 0)
        except Unscannable as error:
            found.failure = str(error)
        except Exception as error:  # noqa: BLE001 -- whatever a parser trips over, it did not pass
            found.failure = f"reading it fails with {type(error).__name__}"
    found.pickle |= bool(found.failure)
    return found


class _Bounded(io.RawIOBase):
    """A file that is read in pieces of bounded length and, where it is unpacked, in sum."""

    def __init__(self, file: IO[bytes], budget: Budget, *, seekable: bool) -> None:
        super().__init__()
        self._file: Any = file
        self._seekable = seekable
        self.budget = budget

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """Not where it is unpacked: going back would unpack all again."""
        return self._seekable

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of any file. Raises UnsupportedOperation."""
        if not self._seekable:
            raise io.UnsupportedOperation
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """As of any file."""
        return int(self._file.tell())

    def read(self, size: int = -1, /) -> bytes:
        """Up to so many bytes, or all that is left. Raises Unscannable for too many."""
        data, piece = bytearray(), 1 << 16
        while len(data) <= _LONGEST >= size:
            part = super().read(piece if size < 0 else min(size - len(data), piece))
            if not part:
                return bytes(data)
            data += part
        raise Unscannable("it is too large to be scanned")

    def readinto(self, buffer: Any, /) -> int:
        """As of any file. Raises Unscannable when the budget is spent."""
        count = int(self._file.readinto(buffer))
        if not self._seekable:
            self.budget.bytes -= count
            if self.budget.bytes < 0:
                raise Unscannable("it is too large to be scanned")
        return count


class _Inflated(io.RawIOBase):
    """What zlib unpacks of a file; joblib uses it without gzip's header."""

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__()
        self._file = file
        self._engine = zlib.decompressobj()

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """As of any file. Raises zlib.error."""
        while not self._engine.eof:
            packed = self._engine.unconsumed_tail or self._file.read(1 << 16)
            data = self._engine.decompress(packed, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            if not packed:
                break
        return 0


def _file(file: _Bounded, found: Scan, depth: int) -> None:
    """Scan whatever a file is."""
    if depth > _NESTED:
        raise Unscannable("it is packed too often")
    data: io.BufferedReader = io.BufferedReader(file, 1 << 16)
    head = data.peek(512)[:512]
    for magic, reason in _OPAQUE.items():
        if head.startswith(magic):
            raise Unscannable(reason)
    if head.startswith(_ZIP):
        _zip(file, found, depth)
    elif _is_tar(head):
        _tar(file, found, depth)
    elif head.startswith(_NUMPY):
        _numpy(data, found, file.budget)
    elif head.startswith(b"\x1f\x8b"):
        _file(_unpacked(gzip.GzipFile(fileobj=data), file), found, depth + 1)
    elif head.startswith(b"BZh"):
        _file(_unpacked(bz2.BZ2File(data), file), found, depth + 1)
    elif head[:1] == b"x" and _inflates(head):
        _file(_unpacked(io.BufferedReader(_Inflated(data)), file), found, depth + 1)
    else:
        _pickles(data, found, file.budget)


def _unpacked(inner: IO[bytes] | gzip.GzipFile | bz2.BZ2File, outer: _Bounded) -> _Bounded:
    return _Bounded(inner, outer.budget, seekable=False)  # type: ignore[arg-type] # files all


def _inflates(head: bytes) -> bool:
    """Whether zlib knows the beginning as its own: other data has its magic too."""
    try:
        zlib.decompressobj().decompress(head)
    except zlib.error:
        return False
    return True


def _is_tar(head: bytes) -> bool:
    """Whether it begins with a header of TAR, in any of its forms: they share a checksum."""
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _zip(file: _Bounded, found: Scan, depth: int) -> None:
    """torch and NumPy; the members that are no pickles stay unread."""
    # As torch reads a ZIP file: flags, checksums and names in its local headers mean nothing.
    from picklescan.relaxed_zipfile import RelaxedZipFile  # type: ignore[import-untyped]

    if not file.seekable():
        raise Unscannable("it is an archive within an archive")
    start = _directory(file)
    with RelaxedZipFile(file) as archive:
        members = archive.infolist()
        names = {member.filename.lower() for member in members}
        # Readers of ZIP files differ in what they make of these; none is what a library writes.
        if archive.start_dir != start or len(names) < len(members) or len(members) > _MEMBERS:
            raise Unscannable(_AMBIGUOUS)
        for member in members:
            with archive.open(member) as inner:
                _member(_unpacked(inner, file), member.filename, found, depth + 1)


def _directory(file: _Bounded) -> int:
    """Where a ZIP file says that its directory begins. Raises Unscannable when it does not."""
    start = max(file.seek(0, io.SEEK_END) - 98, 0)
    file.seek(start)
    tail = file.read(98).rjust(98)
    zip64, locator, end = tail[:56], tail[56:76], tail[76:]
    if not end.startswith(b"PK\x05\x06"):
        raise Unscannable("it is a ZIP file that is cut off, or has something behind its end")
    if not locator.startswith(b"PK\x06\x07"):
        return int.from_bytes(end[16:20], "little")
    if int.from_bytes(locator[8:16], "little") != start:
        raise Unscannable(_AMBIGUOUS)
    return int.from_bytes(zip64[48:56], "little")


def _tar(file: _Bounded, found: Scan, depth: int) -> None:
    """NeMo, and torch in its first year."""
    if not file.seekable():
        raise Unscannable("it is an archive within an archive")
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for count, member in enumerate(archive):
            if count > _MEMBERS:
                raise Unscannable("it is too large to be scanned")
            if inner := archive.extractfile(member):  # a link's is that of its target
                part = _Bounded(inner, file.budget, seekable=True)
                _member(part, member.name, found, depth + 1)


def _member(file: _Bounded, name: str, found: Scan, depth: int) -> None:
    """Part of an archive: strict where a library would load it by its name or by what it is."""
    if is_pickle(name):
        _file(file, found, depth)
        return
    data: io.BufferedReader = io.BufferedReader(file)
    head = data.peek(8)
    if head.startswith(_NUMPY):
        _numpy(data, found, file.budget)
    elif head.startswith(_PROTOCOLS):
        _pickles(data, found, file.budget, certain=False)


def _numpy(data: io.BufferedReader, found: Scan, budget: Budget) -> None:
    """An array; behind its header is a pickle, when it is one of objects."""
    major = data.read(8)[6:7]
    length = int.from_bytes(data.read(2 if major == b"\x01" else 4), "little")
    if length > 1 << 16:
        raise Unscannable("it is an array with a header of absurd length")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parser's, about what an odd header has
        header = ast.literal_eval(data.read(length).decode("latin-1").strip())
    if _has_objects(header["descr"]):
        _pickles(data, found, budget)
        if not found.pickle:
            raise Unscannable("it is an array of objects that is no pickle")


def _has_objects(kind: Any) -> bool:
    """Whether an array of this dtype, as its header describes it, holds Python objects."""
    if isinstance(kind, str):
        return "O" in kind or "obj" in kind
    if isinstance(kind, tuple):
        return _has_objects(kind[0])
    return any(_has_objects(field[1]) if isinstance(field, tuple) else True for field in kind)


def _pickles(data: io.BufferedReader, found: Scan, budget: Budget, *, certain: bool = True) -> None:
    """Pickles one after the other; or data, which has some other beginning.

    certain: whether what begins as a pickle is to be one.
    """
    count, torch = 0, _TORCH in data.peek(64)[:64]
    while head := data.peek(2):
        if torch and count == _TORCH_PICKLES:
            return
        # Protocols 0 and 1 have no mark: what begins so may be data.
        marked = head.startswith(_PROTOCOLS) and head[1:2] <= b"\x05"
        if not marked and not found.names and count >= _UNMARKED:
            return
        names: set[Global] = set()
        try:
            pickle_opcodes.read(data, names, budget)
        except Broken:
            found.guesses |= {name for name in names if _is_plausible(name)}
            if marked and certain:
                found.names |= names
                raise Unscannable(_BROKEN[count > 0]) from None
            return
        count += 1
        found.names |= names
        found.pickle |= marked or bool(names) or not data.peek(1)


def _is_plausible(name: Global) -> bool:
    """Whether it can be meant as one: in data anything comes up."""
    return UNKNOWN not in name and all(part.isidentifier() for part in ".".join(name).split("."))
