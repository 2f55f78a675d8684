"""SSH's binary encoding (RFC 4251, section 5), read strictly and bounded by the bytes at hand."""

from __future__ import annotations


class Fields:
    """Fields of a binary value, taken one after the other. Each raises ValueError where it is not.

    `end` has to be called last: what follows the last field is an error too.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        """So many bytes as they are."""
        if count > len(self._data) - self._at:
            raise ValueError("it ends early")
        self._at += count
        return self._data[self._at - count : self._at]

    def byte(self) -> int:
        """One byte."""
        return self.take(1)[0]

    def uint32(self) -> int:
        """A number of four bytes."""
        return int.from_bytes(self.take(4), "big")

    def string(self) -> bytes:
        """Bytes behind their length."""
        return self.take(self.uint32())

    def text(self) -> str:
        """A string that is a name: printable ASCII without spaces."""
        try:
            found = self.string().decode("ascii")
        except UnicodeDecodeError:
            raise ValueError("a name in it is not ASCII") from None
        if not found or not found.isprintable() or " " in found:
            raise ValueError("a name in it is empty, or has odd characters")
        return found

    def mpint(self) -> int:
        """A number that is not negative, in the one shortest form."""
        data = self.string()
        if data and (data[0] & 0x80 or (data[0] == 0 and not (data[1:2] and data[1] & 0x80))):
            raise ValueError("a number in it is negative, or not in its shortest form")
        return int.from_bytes(data, "big")

    def end(self) -> None:
        """Nothing is left."""
        if self._at != len(self._data):
            raise ValueError("it goes on after its end")


def uint32(value: int) -> bytes:
    """As `Fields.uint32` reads it."""
    return value.to_bytes(4, "big")


def string(data: bytes) -> bytes:
    """As `Fields.string` reads it."""
    return uint32(len(data)) + data


def mpint(value: int) -> bytes:
    """As `Fields.mpint` reads it."""
    return string(value.to_bytes(value.bit_length() // 8 + 1, "big") if value else b"")
