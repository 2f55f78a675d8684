"""Signatures of elliptic curves, checked with plain integers: Ed25519 and ECDSA.

Ed25519 is RFC 8032, section 5.1, without the cofactor and with the bounds that OpenSSH checks;
ECDSA is FIPS 186-5 over the curves of SP 800-186. Only public values occur here, so that time can
give nothing away, and nothing here signs. docs/adr/0009 says why no library does this.

Sums of points use formulas without exceptions (Hisil, Wong, Carter and Dawson 2008 for Ed25519;
Renes, Costello and Batina 2016 for the others): no point needs a case of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

#: Of Ed25519's curve -x² + y² = 1 + d x² y²: prime, order of its base point, and d.
_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
#: A square root of -1.
_I = pow(2, (_P - 1) // 4, _P)

Point = TypeVar("Point")


def _combined(
    u: int, first: Point, v: int, second: Point, add: Callable[[Point, Point], Point], zero: Point
) -> Point:
    """The point u first + v second, bit by bit of both numbers together."""
    both = add(first, second)
    found = zero
    for bit in reversed(range(max(u.bit_length(), v.bit_length()))):
        found = add(found, found)
        match u >> bit & 1, v >> bit & 1:
            case 1, 1:
                found = add(found, both)
            case 1, 0:
                found = add(found, first)
            case 0, 1:
                found = add(found, second)
    return found


# -- Ed25519 ------------------------------------------------------------------------------------


def ed25519(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the signature (64 bytes) over the message is that of the public key (32 bytes)."""
    if len(signature) != 64:
        return False
    point, s = _public(public), int.from_bytes(signature[32:], "little")
    if point is None or s >= _L:
        return False
    digest = hashlib.sha512(signature[:32] + public + message).digest()
    h = int.from_bytes(digest, "little") % _L
    x, y, z, t = point
    found = _combined(s, _BASE, h, (-x % _P, y, z, -t % _P), _edwards_sum, (0, 1, 1, 0))
    return _encoded(found) == signature[:32]


def is_ed25519(public: bytes) -> bool:
    """Whether these bytes are a public key of Ed25519."""
    return _public(public) is not None


def _public(data: bytes) -> _Extended | None:
    """A public key's point; None for one of small order too, for which anybody can sign."""
    point = _decoded(data)
    if point is None:
        return None
    eightfold = point
    for _ in range(3):
        eightfold = _edwards_sum(eightfold, eightfold)
    return point if eightfold[0] else None  # x is 0 for the neutral point, and that of order 2


#: A point in extended coordinates: x = X/Z, y = Y/Z, T = XY/Z.
_Extended = tuple[int, int, int, int]


def _edwards_sum(one: _Extended, other: _Extended) -> _Extended:
    (x1, y1, z1, t1), (x2, y2, z2, t2) = one, other
    a = (y1 - x1) * (y2 - x2) % _P
    b = (y1 + x1) * (y2 + x2) % _P
    c = 2 * _D * t1 * t2 % _P
    d = 2 * z1 * z2 % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _encoded(point: _Extended) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, -1, _P)
    return (y * inverse % _P | (x * inverse % _P & 1) << 255).to_bytes(32, "little")


def _decoded(data: bytes) -> _Extended | None:
    """The point that these bytes spell; None when they spell none, or not in the one right way."""
    value = int.from_bytes(data, "little")
    y, odd = value & (2**255 - 1), value >> 255
    if len(data) != 32 or y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * _I % _P
    if x * x % _P != square or (x == 0 and odd):
        return None
    if x & 1 != odd:
        x = _P - x
    return x, y, 1, x * y % _P


def _base() -> _Extended:
    found = _decoded((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    assert found is not None  # noqa: S101 -- RFC 8032's
    return found


_BASE = _base()


# -- ECDSA --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Curve:
    """y² = x³ - 3x + b modulo p; its base point (x, y), of order n; SSH's hash for it."""

    p: int
    b: int
    n: int
    x: int
    y: int
    hash: str

    @property
    def size(self) -> int:
        """Bytes of a coordinate."""
        return (self.p.bit_length() + 7) // 8


CURVES = {
    "nistp256": Curve(
        p=2**256 - 2**224 + 2**192 + 2**96 - 1,
        b=0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B,
        n=0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
        x=0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
        y=0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
        hash="sha256",
    ),
    "nistp384": Curve(
        p=2**384 - 2**128 - 2**96 + 2**32 - 1,
        b=int(
            "b3312fa7e23ee7e4988e056be3f82d19181d9c6efe814112"
            "0314088f5013875ac656398d8a2ed19d2a85c8edd3ec2aef",
            16,
        ),
        n=int(
            "ffffffffffffffffffffffffffffffffffffffffffffffff"
            "c7634d81f4372ddf581a0db248b0a77aecec196accc52973",
            16,
        ),
        x=int(
            "aa87ca22be8b05378eb1c71ef320ad746e1d3b628ba79b98"
            "59f741e082542a385502f25dbf55296c3a545e3872760ab7",
            16,
        ),
        y=int(
            "3617de4a96262c6f5d9e98bf9292dc29f8f41dbd289a147c"
            "e9da3113b5f0b8c00a60b1ce1d7e819d7a431d7c90ea0e5f",
            16,
        ),
        hash="sha384",
    ),
    "nistp521": Curve(
        p=2**521 - 1,
        b=int(
            "0051953eb9618e1c9a1f929a21a0b68540eea2da725b99b315f3b8b489918ef109e1"
            "56193951ec7e937b1652c0bd3bb1bf073573df883d2c34f1ef451fd46b503f00",
            16,
        ),
        n=int(
            "01fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffa"
            "51868783bf2f966b7fcc0148f709a5d03bb5c9b8899c47aebb6fb71e91386409",
            16,
        ),
        x=int(
            "00c6858e06b70404e9cd9e3ecb662395b4429c648139053fb521f828af606b4d3dba"
            "a14b5e77efe75928fe1dc127a2ffa8de3348b3c1856a429bf97e7e31c2e5bd66",
            16,
        ),
        y=int(
            "011839296a789a3bc0045c8a5fb42c7d1bd998f54449579b446817afbd17273e662c"
            "97ee72995ef42640c550b9013fad0761353c7086a272c24088be94769fd16650",
            16,
        ),
        hash="sha512",
    ),
}


def ecdsa(curve: Curve, public: tuple[int, int], message: bytes, r: int, s: int) -> bool:
    """Whether (r, s) over the message is a signature of the public key, a point `on_curve`."""
    if not (0 < r < curve.n and 0 < s < curve.n):
        return False
    e = int.from_bytes(hashlib.new(curve.hash, message).digest(), "big")  # never longer than n
    w = pow(s, -1, curve.n)
    p, b = curve.p, curve.b

    def add(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
        (x1, y1, z1), (x2, y2, z2) = one, other
        xx, yy, zz = x1 * x2, y1 * y2, z1 * z2
        xy, xz, yz = x1 * y2 + x2 * y1, x1 * z2 + x2 * z1, y1 * z2 + y2 * z1
        low, high = (yy + 3 * xz - 3 * b * zz) % p, (yy - 3 * xz + 3 * b * zz) % p
        mixed, plain = (3 * b * xz - 3 * xx - 9 * zz) % p, 3 * (xx - zz) % p
        return (
            (xy * low - yz * mixed) % p,
            (high * low + plain * mixed) % p,
            (yz * high + xy * plain) % p,
        )

    base, key = (curve.x, curve.y, 1), (*public, 1)
    x, _, z = _combined(e * w % curve.n, base, r * w % curve.n, key, add, (0, 1, 0))
    return z != 0 and x * pow(z, -1, p) % p % curve.n == r


def on_curve(curve: Curve, point: tuple[int, int]) -> bool:
    """Whether the point is one of the curve, in its one right form."""
    x, y = point
    return x < curve.p and y < curve.p and (y * y - x**3 + 3 * x - curve.b) % curve.p == 0
