"""Where large files are cut, to compare an old one with a new one: at what they consist of.

A safetensors file consists of tensors, a ZIP file (a wheel, what torch.save writes) of members.
Measured (docs/adr/0008): that finds as much as content-defined cutting in the one and more in the
other, and it is nothing but arithmetic.
"""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Iterator
from typing import BinaryIO

_MAX_HEADER = 100_000_000  # the format's own limit
_LENGTH = struct.Struct("<Q")
#: Of a ZIP file's local header: its length without the two fields whose lengths end it.
_LOCAL = 30
_LOCAL_LENGTHS = struct.Struct("<HH")


def cut(file: BinaryIO, size: int) -> list[int]:
    """The offsets between the parts of a file of `size` bytes, in order, 0 and `size` included.

    A file that is neither kind is one part.
    """
    places: set[int] = set()
    try:
        head = file.read(_LENGTH.size)
        file.seek(0)
        places = set(_members(file) if head[:4] == b"PK\x03\x04" else _tensors(file))
    except Exception:  # noqa: BLE001, S110 -- whatever a file is that no parser likes, it is carried
        pass
    return sorted({0, size, *(at for at in places if 0 < at < size)})


def _tensors(file: BinaryIO) -> Iterator[int]:
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    if length > _MAX_HEADER:
        return
    header = json.loads(file.read(length))
    yield _LENGTH.size + length
    for name, about in header.items():
        if name != "__metadata__":
            for offset in about["data_offsets"]:
                yield _LENGTH.size + length + int(offset)


def _members(file: BinaryIO) -> Iterator[int]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    for member in members:
        file.seek(member.header_offset + _LOCAL - _LOCAL_LENGTHS.size)
        start = member.header_offset + _LOCAL
        start += sum(_LOCAL_LENGTHS.unpack(file.read(_LOCAL_LENGTHS.size)))
        yield start
        yield start + member.compress_size
