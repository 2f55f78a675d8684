"""Signatures of curves: what OpenSSL signs is right here, and nothing else is."""

from __future__ import annotations

import hashlib
from functools import partial

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror.trust import curves

P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
few = settings(max_examples=25, deadline=None)
seeds = st.binary(min_size=32, max_size=32)
LIBRARY = {
    "nistp256": (ec.SECP256R1(), hashes.SHA256()),
    "nistp384": (ec.SECP384R1(), hashes.SHA384()),
    "nistp521": (ec.SECP521R1(), hashes.SHA512()),
}

# RFC 8032, section 7.1: secret key, public key, message, signature.
RFC_8032 = """
9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60
d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a

e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155
5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b
4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb
3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c
72
92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da
085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00
c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7
fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025
af82
6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac
18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a
"""


@pytest.mark.parametrize("number", range(3))
def test_the_examples_of_rfc_8032(number: int) -> None:
    lines = [bytes.fromhex(line) for line in RFC_8032.split("\n")[1:]]
    secret, public, message, front, back = lines[5 * number :][:5]
    made = Ed25519PrivateKey.from_private_bytes(secret).sign(message)
    assert made == front + back
    right = partial(curves.ed25519, public, message)
    assert right(made)
    for bit in range(0, 512, 7):
        wrong = bytearray(made)
        wrong[bit // 8] ^= 1 << bit % 8
        assert not right(bytes(wrong))


@few
@given(seeds, st.binary(max_size=200), st.integers(0, 511), st.binary(max_size=9))
def test_ed25519_as_openssl_signs(seed: bytes, message: bytes, bit: int, other: bytes) -> None:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    public, signature = private.public_key().public_bytes_raw(), private.sign(message)
    assert curves.is_ed25519(public)
    assert curves.ed25519(public, message, signature)
    wrong = bytearray(signature)
    wrong[bit // 8] ^= 1 << bit % 8
    assert not curves.ed25519(public, message, bytes(wrong))
    assert curves.ed25519(public, other, signature) == (other == message)


def test_an_ed25519_signature_has_one_form_only() -> None:
    """s + L gives the same point; a second signature of the same message must not pass."""
    private = Ed25519PrivateKey.from_private_bytes(bytes(32))
    public, signature = private.public_key().public_bytes_raw(), private.sign(b"m")
    s = int.from_bytes(signature[32:], "little")
    for more in (L, 2 * L, 8 * L):
        if s + more < 2**256:
            again = signature[:32] + (s + more).to_bytes(32, "little")
            assert not curves.ed25519(public, b"m", again)
    for wrong in (b"", signature[:63], signature + b"\0", bytes(64)):
        assert not curves.ed25519(public, b"m", wrong)


@pytest.mark.parametrize(
    "value",
    [P, P + 1, 2**255 - 1, 2, 1 | 1 << 255],  # y too large thrice; no point; x = 0 with a sign
)
def test_what_is_no_key_of_ed25519(value: int) -> None:
    public = value.to_bytes(32, "little")
    assert not curves.is_ed25519(public)
    assert not curves.ed25519(public, b"m", bytes(64))
    assert not curves.is_ed25519(public[:31])


@pytest.mark.parametrize(
    "value",
    [
        1,  # the neutral point
        P - 1,  # order 2
        0,  # order 4
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,  # order 8
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    ],
)
def test_keys_of_small_order_are_none(value: int) -> None:
    """Of the neutral point, say, anybody can make signatures: s = 0 and R = 1 over any message."""
    public = value.to_bytes(32, "little")
    assert not curves.is_ed25519(public)
    assert not curves.ed25519(public, b"m", (1).to_bytes(32, "little") + bytes(32))


@pytest.mark.parametrize("name", LIBRARY)
def test_the_curves_are_those_of_openssl(name: str) -> None:
    curve, (theirs, hashing) = curves.CURVES[name], LIBRARY[name]
    assert (curve.size * 8 - theirs.key_size) in range(8)
    assert curve.hash == hashing.name
    one = ec.derive_private_key(1, theirs).public_key().public_numbers()
    assert (one.x, one.y) == (curve.x, curve.y)
    assert curves.on_curve(curve, (one.x, one.y))
    last = ec.derive_private_key(curve.n - 1, theirs).public_key().public_numbers()
    assert (last.x, last.y) == (curve.x, curve.p - curve.y)
    assert hashlib.new(curve.hash).digest_size * 8 <= curve.n.bit_length()


@pytest.mark.parametrize("name", LIBRARY)
@settings(max_examples=6, deadline=None)
@given(secret=st.integers(1, 2**255), message=st.binary(max_size=99), bit=st.integers(0, 255))
def test_ecdsa_as_openssl_signs(name: str, secret: int, message: bytes, bit: int) -> None:
    curve, (theirs, hashing) = curves.CURVES[name], LIBRARY[name]
    private = ec.derive_private_key(secret, theirs)
    numbers = private.public_key().public_numbers()
    r, s = utils.decode_dss_signature(private.sign(message, ec.ECDSA(hashing)))
    right = partial(curves.ecdsa, curve, (numbers.x, numbers.y))
    assert right(message, r, s)
    assert right(message, r, curve.n - s)  # ECDSA has both: OpenSSL says so too
    assert not right(message + b"x", r, s)
    assert not right(message, r ^ 1 << bit, s)
    assert not right(message, r, s ^ 1 << bit)


@pytest.mark.parametrize("name", LIBRARY)
def test_ecdsa_out_of_its_range(name: str) -> None:
    curve = curves.CURVES[name]
    point = (curve.x, curve.y)
    for r, s in ((0, 1), (1, 0), (curve.n, 1), (1, curve.n), (-1, 1), (curve.n + 1, 1)):
        assert not curves.ecdsa(curve, point, b"m", r, s)
    for x, y in ((0, 0), (curve.x, curve.y + 1), (curve.x + curve.p, curve.y)):
        assert not curves.on_curve(curve, (x, y))


def test_ecdsa_where_both_points_are_one() -> None:
    """The key is the base point: points that are summed are equal, opposite or at infinity."""
    for name, (theirs, hashing) in LIBRARY.items():
        curve = curves.CURVES[name]
        for secret in (1, 2, curve.n - 1):
            private = ec.derive_private_key(secret, theirs)
            numbers = private.public_key().public_numbers()
            r, s = utils.decode_dss_signature(private.sign(b"m", ec.ECDSA(hashing)))
            assert curves.ecdsa(curve, (numbers.x, numbers.y), b"m", r, s)
