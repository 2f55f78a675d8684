"""A wheel as a zip archive, read so that no two readers can see different things in it.

A zip archive names and measures each entry twice, in its central directory and in front of the
data; a reader may believe either, and Python's believes mostly the first. So both must agree,
entries must lie one after the other from the first byte on, no two may have one name, and the
archive must end where the file ends.

Memory grows with the number of entries, not with the size of the file.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mirror.core.paths import shown

#: No archive that unpacks to fewer bytes is a bomb; one that unpacks to more may grow so many
#: times. (deflate can make 1,032 bytes of one: a file of zeros does, a whole wheel never.)
_HARMLESS, _GROWTH = 2**30, 200
_CHUNK = 2**20

# Parts of a zip archive, as PKWARE's APPNOTE.TXT lays them out (sections 4.3.7 to 4.3.16).
_LOCAL = struct.Struct("<4s5H3I2H")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_CENTRAL_SIZE, _LOCATOR_SIZE = 46, 20
_ZIP64 = 1
_STREAMED, _UTF8, _ENCRYPTED = 0x8, 0x800, 0x2041
_ALL_ONES = 0xFFFFFFFF


def is_folder(entry: zipfile.ZipInfo) -> bool:
    """Whether an entry is one; also of an entry without a name, where zipfile's own would crash."""
    return entry.filename.endswith("/")


class Archive:
    """A zip archive open for reading and for inspection. A context manager.

    Raises ValueError when it is none that can be read, OSError when the file cannot be.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")  # noqa: SIM115 -- closed by __exit__
        try:
            self._zip = zipfile.ZipFile(self._file)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            self._file.close()
            raise ValueError(f"it is no zip archive that can be read: {error}") from None
        except BaseException:
            self._file.close()
            raise
        self.entries = self._zip.infolist()
        self._by_name = {entry.filename: entry for entry in self.entries}

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()

    def entry(self, name: str) -> zipfile.ZipInfo | None:
        """The entry of this name, None when there is none."""
        return self._by_name.get(name)

    def problems(self) -> Iterator[str]:
        """What readers could disagree about, and what no reader should follow, a line each."""
        yield from self._bad_entries()
        yield from self._bad_layout()
        unpacked = sum(entry.file_size for entry in self.entries)
        packed = self._file.seek(0, io.SEEK_END)
        if unpacked > max(_HARMLESS, packed * _GROWTH):
            yield f"its {packed:,} bytes claim to unpack to {unpacked:,}"

    def chunks(self, entry: zipfile.ZipInfo) -> Iterator[bytes]:
        """An entry's bytes, never more than it states.

        Raises ValueError when they are fewer or others, or when something follows them.
        """
        _, start = self._header(entry)
        raw = self._pieces(start, entry.compress_size)
        size = crc = 0
        try:
            for data in _inflated(raw) if entry.compress_type == zipfile.ZIP_DEFLATED else raw:
                size, crc = size + len(data), zlib.crc32(data, crc)
                if size > entry.file_size:
                    break
                yield data
        except zlib.error:
            size = -1
        if (size, crc) != (entry.file_size, entry.CRC):
            raise ValueError(f"{shown(entry.filename)} does not unpack to what its header says")

    def _bad_entries(self) -> Iterator[str]:
        seen: set[str] = set()
        files = {entry.filename for entry in self.entries if not is_folder(entry)}
        for entry in self.entries:
            name, label = entry.filename, shown(entry.orig_filename)
            if reason := _escape(entry.orig_filename):
                yield f"{label} {reason}"
            elif name != entry.orig_filename:
                yield f"{label} has a second name, {shown(name)}"
            if name in seen:
                yield f"{label} is in it more than once"
            seen.add(name)
            if not files.isdisjoint(_folders(name)):
                yield f"{label} needs a folder where there is a file"
            mode = entry.external_attr >> 16
            if stat.S_ISLNK(mode):
                yield f"{label} is a symbolic link"
            elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                yield f"{label} is no regular file"
            if entry.flag_bits & _ENCRYPTED:
                yield f"{label} is encrypted"
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                yield f"{label} is neither stored nor deflated"
            if is_folder(entry) and entry.file_size:
                yield f"{label} is a folder that holds bytes"

    def _bad_layout(self) -> Iterator[str]:
        """The first place where the archive is not one entry after the other, then its end."""
        position = 0
        for entry in sorted(self.entries, key=lambda e: e.header_offset):
            label = shown(entry.orig_filename)
            if entry.header_offset != position:
                yield f"{label} does not begin where what is before it ends"
                return
            differences, start = self._header(entry)
            if differences:
                yield f"{label} has two headers that differ in {', '.join(differences)}"
                return
            position = start + entry.compress_size
            if entry.flag_bits & _STREAMED:
                trailer = self._read(position, 24)
                length = next((len(d) for d in _descriptors(entry) if trailer.startswith(d)), None)
                if length is None:
                    yield f"{label} is followed by another size and checksum than its own"
                    return
                position += length
        central = sum(
            _CENTRAL_SIZE + len(_raw_name(e)) + len(e.extra) + len(e.comment) for e in self.entries
        )
        if position != self._zip.start_dir:
            yield f"{abs(self._zip.start_dir - position):,} bytes of it belong to no entry"
        elif not self._ends_well(position, central):
            yield "its end is not the end of one zip archive"

    def _header(self, entry: zipfile.ZipInfo) -> tuple[list[str], int]:
        """In what an entry's local header differs from the central one; where its data begins."""
        data = self._read(entry.header_offset, _LOCAL.size)
        if len(data) < _LOCAL.size or not data.startswith(b"PK\3\4"):
            return ["their place"], entry.header_offset
        _, _, flags, method, _, _, crc, packed, size, named, extra = _LOCAL.unpack(data)
        rest = self._read(entry.header_offset + _LOCAL.size, named + extra)
        if _ALL_ONES in (packed, size):
            size, packed = _sizes64(rest[named:], size, packed)
        pairs: list[tuple[str, Any, Any]] = [
            ("name", rest[:named], _raw_name(entry)),
            ("flags", flags, entry.flag_bits),
            ("method", method, entry.compress_type),
        ]
        if not flags & _STREAMED or (crc, packed, size) != (0, 0, 0):
            pairs += [
                ("checksum", crc, entry.CRC),
                ("packed size", packed, entry.compress_size),
                ("size", size, entry.file_size),
            ]
        start = entry.header_offset + _LOCAL.size + named + extra
        return [what for what, local, central in pairs if local != central], start

    def _ends_well(self, start: int, size: int) -> bool:
        """Whether the records after the central directory point to it and end with the file."""
        tail = self._read(start + size, _END64.size + _LOCATOR_SIZE + _END.size + 2**16)
        directory = (len(self.entries), size, start)
        position = 0
        if tail.startswith(b"PK\6\6") and len(tail) >= _END64.size:
            fields = _END64.unpack_from(tail)
            position = fields[1] + 12
            if fields[7:] != directory or tail[position : position + 4] != b"PK\6\7":
                return False
            position += _LOCATOR_SIZE
        if len(tail) < position + _END.size:
            return False
        signature, _, _, _, count, central, offset, length = _END.unpack_from(tail, position)
        comment = tail[position + _END.size :]
        return (
            signature == b"PK\5\6"
            and (position > 0 or (count, central, offset) == directory)
            and len(comment) == length
            and b"PK\5\6" not in comment
        )

    def _read(self, position: int, count: int) -> bytes:
        self._file.seek(position)
        return self._file.read(count)

    def _pieces(self, position: int, count: int) -> Iterator[bytes]:
        end = position + count
        while position < end:
            data = self._read(position, min(_CHUNK, end - position))
            if not data:
                return
            position += len(data)
            yield data


def _inflated(raw: Iterator[bytes]) -> Iterator[bytes]:
    """What a deflate stream unpacks to, in pieces of bounded size.

    Raises zlib.error when it is damaged, cut, or followed by anything.
    """
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    for data in raw:
        while data and not stream.eof:
            yield stream.decompress(data, _CHUNK)
            data = stream.unconsumed_tail
        if data or stream.unused_data:
            raise zlib.error
    while not stream.eof:
        data = stream.decompress(b"", _CHUNK)
        if not data and not stream.eof:
            raise zlib.error
        yield data


def _escape(name: str) -> str | None:
    """Why a file of this name would not stay inside the folder that it is unpacked to."""
    parts = name.removesuffix("/").split("/")
    if name.startswith("/"):
        return "is absolute"
    if ".." in parts:
        return "climbs out"
    if "\\" in name or ":" in parts[0]:
        return "climbs out on Windows"
    if "" in parts or "." in parts:
        return "has an empty component"
    if not name.isprintable():
        return "has a control character in its name"
    return None


def _folders(name: str) -> Iterator[str]:
    """The folders that a name lies in; for a folder's own name, that one too."""
    position = name.find("/")
    while position != -1:
        yield name[:position]
        position = name.find("/", position + 1)


def _raw_name(entry: zipfile.ZipInfo) -> bytes:
    return entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF8 else "cp437")


def _sizes64(extra: bytes, size: int, packed: int) -> tuple[int, int]:
    """Size and packed size of a local header's ZIP64 field; as they were where it has none."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == _ZIP64 and length >= 16 and len(extra) >= 20:
            size, packed = struct.unpack_from("<2Q", extra, 4)
            return size, packed
        extra = extra[4 + length :]
    return size, packed


def _descriptors(entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """The forms in which size and checksum may follow an entry's data, the longest first."""
    for form in ("<I2Q", "<I2I"):
        if form == "<I2I" and max(entry.file_size, entry.compress_size) > _ALL_ONES:
            return
        plain = struct.pack(form, entry.CRC, entry.compress_size, entry.file_size)
        yield b"PK\7\10" + plain
        yield plain
