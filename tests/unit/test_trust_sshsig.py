"""Signatures as OpenSSH makes them: ours and ssh-keygen's verdict agree, in both directions."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric import rsa as theirs
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror.trust import signing, sshsig
from mirror.trust.keys import PublicKey, UnknownAlgorithm, WrongSignature
from mirror.trust.sshsig import MAX_SIGNATURES, NAMESPACE, Signature, Unreadable
from mirror.trust.wire import Fields, mpint, string, uint32
from tests import signing as made
from tests.signing import INDEX, Key

KINDS = {
    "ed25519": ("ed25519",),
    "ecdsa256": ("ecdsa", "-b", "256"),
    "ecdsa384": ("ecdsa", "-b", "384"),
    "ecdsa521": ("ecdsa", "-b", "521"),
    "rsa": ("rsa", "-b", "2048"),
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    folder = tmp_path_factory.mktemp("keys")
    return {
        name: made.make(folder / name, kind, "", *more) for name, (kind, *more) in KINDS.items()
    }


def only(data: bytes) -> Signature:
    [found] = sshsig.read(data)
    assert isinstance(found, Signature)
    return found


def require(data: bytes) -> None:
    """Raises unless it holds one signature that is right over the index."""
    [found] = sshsig.read(data)
    if isinstance(found, Unreadable):
        raise UnknownAlgorithm(found.why)
    found.require(INDEX)


def rebuilt(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The same armour around changed bytes."""
    blob = change(only(data).blob)
    return armour(blob)


def armour(blob: bytes) -> bytes:
    text = base64.encodebytes(blob)
    return b"-----BEGIN SSH SIGNATURE-----\n" + text + b"-----END SSH SIGNATURE-----\n"


@pytest.mark.parametrize("hash_name", ["sha512", "sha256"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_ssh_keygen_signs_is_right_here(
    keys: dict[str, Key], kind: str, hash_name: str
) -> None:
    text = keys[kind].sign(INDEX, hash_name=hash_name)
    found = only(text)
    assert found.key == keys[kind].public
    assert (found.namespace, found.hash) == (NAMESPACE, hash_name)
    assert found.armoured == text  # byte for byte as it writes them
    found.require(INDEX)
    for other in (INDEX + b" ", INDEX[:-1], b""):
        with pytest.raises(WrongSignature, match="not over these bytes"):
            found.require(other)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_signed_here_is_right_to_ssh_keygen(
    keys: dict[str, Key], kind: str, tmp_path: Path
) -> None:
    key = signing.open_key(str(keys[kind].path), made.nobody())
    text = key.sign(INDEX).armoured
    assert made.openssh_agrees(tmp_path, key.public, INDEX, text)
    assert not made.openssh_agrees(tmp_path, key.public, INDEX + b" ", text)


@pytest.mark.parametrize("token", [made.token_ed25519, made.token_ecdsa])
@pytest.mark.parametrize("hash_name", ["sha512", "sha256"])
def test_signatures_of_hardware_tokens(
    token: Callable[..., made.Token], hash_name: str, tmp_path: Path
) -> None:
    key = token()
    text = key.sign(INDEX, hash_name=hash_name)
    only(text).require(INDEX)
    assert made.openssh_agrees(tmp_path, key.public, INDEX, text)
    with pytest.raises(WrongSignature, match="not over these bytes"):
        only(text).require(INDEX + b" ")


@pytest.mark.parametrize("token", [made.token_ed25519, made.token_ecdsa])
@pytest.mark.parametrize("flags", [0, 4])
def test_a_token_that_nobody_touched(token: Callable[..., made.Token], flags: int) -> None:
    with pytest.raises(WrongSignature, match="nobody touched"):
        only(token(flags).sign(INDEX)).require(INDEX)


@pytest.mark.parametrize("at", [-1, -5])
def test_flags_and_counter_of_a_token_are_signed(at: int) -> None:
    """The counter's last byte; the flags, from which only the presence is read."""
    text = made.token_ed25519().sign(INDEX)

    def change(blob: bytes) -> bytes:
        data = bytearray(blob)
        data[at] ^= 2
        return bytes(data)

    with pytest.raises(WrongSignature, match="not over these bytes"):
        only(rebuilt(text, change)).require(INDEX)


def test_a_token_of_another_application_is_another_key(tmp_path: Path) -> None:
    token = made.token_ed25519()
    other = PublicKey.from_blob(token.public.blob[:-4] + b"git:")
    stolen = Signature(other, NAMESPACE, "sha512", only(token.sign(INDEX)).value)
    with pytest.raises(WrongSignature):
        stolen.require(INDEX)
    assert not made.openssh_agrees(tmp_path, other, INDEX, stolen.armoured)


@pytest.mark.parametrize("namespace", ["file", "git", "mirror-bundle2", "mirror"])
def test_another_namespace(keys: dict[str, Key], namespace: str, tmp_path: Path) -> None:
    text = keys["ed25519"].sign(INDEX, namespace=namespace)
    with pytest.raises(WrongSignature, match=f"for the namespace {namespace}, not"):
        only(text).require(INDEX)
    assert not made.openssh_agrees(tmp_path, keys["ed25519"].public, INDEX, text)


def test_the_namespace_cannot_be_changed_afterwards(keys: dict[str, Key], tmp_path: Path) -> None:
    text = keys["ed25519"].sign(INDEX, namespace="mirror-bundlX")
    forged = rebuilt(text, lambda blob: blob.replace(b"mirror-bundlX", b"mirror-bundle"))
    with pytest.raises(WrongSignature, match="not over these bytes"):
        only(forged).require(INDEX)
    assert not made.openssh_agrees(tmp_path, keys["ed25519"].public, INDEX, forged)


def test_one_changed_byte_anywhere_is_seen_and_openssh_agrees(
    keys: dict[str, Key], tmp_path: Path
) -> None:
    text = keys["ed25519"].sign(INDEX)
    blob = only(text).blob
    for at in range(0, len(blob), 3):
        wrong = bytearray(blob)
        wrong[at] ^= 1
        with pytest.raises((WrongSignature, UnknownAlgorithm)):
            require(armour(bytes(wrong)))
        if at % 21 == 0:
            assert not made.openssh_agrees(
                tmp_path, keys["ed25519"].public, INDEX, armour(bytes(wrong))
            )


def test_several_signatures_in_a_file(keys: dict[str, Key], tmp_path: Path) -> None:
    first, second = keys["ed25519"].sign(INDEX), keys["rsa"].sign(INDEX)
    for text in (
        first + second,
        first.rstrip() + b"\n\n" + second,
        (first + second).replace(b"\n", b"\r\n"),
    ):
        assert [s.key for s in sshsig.read(text) if isinstance(s, Signature)] == [
            keys["ed25519"].public,
            keys["rsa"].public,
        ]
    assert made.openssh_agrees(tmp_path, keys["ed25519"].public, INDEX, first + second)
    assert sshsig.read(b"") == []
    many = first * MAX_SIGNATURES
    assert len(sshsig.read(many)) == MAX_SIGNATURES
    with pytest.raises(WrongSignature, match="more than 16 signatures"):
        sshsig.read(many + first)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\n",
        b"signed\n",
        b"-----BEGIN SSH SIGNATURE-----\n",
        b"-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----\n",
        b"-----BEGIN SSH SIGNATURE-----\n####\n-----END SSH SIGNATURE-----\n",
        b"-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----\n",
        b"-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n",
        b"-----BEGIN SSH SIGNATURE-----\nU1NIU0l\n-----END SSH SIGNATURE-----\n",
        b"-----BEGIN PGP SIGNATURE-----\nAAAA\n-----END PGP SIGNATURE-----\n",
        bytes(4096),
        b"\xff" * 4096,
        armour(b"SSHSIG" + uint32(1) + uint32(2**32 - 1)),
        armour(b"SSHSIG" + uint32(1) + string(b"")),
    ],
)
def test_armoured_garbage(garbage: bytes) -> None:
    with pytest.raises(WrongSignature, match="no SSH signature"):
        sshsig.read(garbage)


@pytest.mark.parametrize("after", [b"x", b"\0", b"hello\n", b"-----BEGIN SSH"])
def test_bytes_before_between_and_after(keys: dict[str, Key], after: bytes) -> None:
    text = keys["ed25519"].sign(INDEX)
    for wrong in (text + after, after + text, text + after + text):
        with pytest.raises(WrongSignature, match="no SSH signature"):
            sshsig.read(wrong)


def test_a_blob_that_goes_on_or_ends_early(keys: dict[str, Key], tmp_path: Path) -> None:
    text = keys["ed25519"].sign(INDEX)
    for change in (lambda blob: blob + b"x", lambda blob: blob[:-1]):
        wrong = rebuilt(text, change)
        with pytest.raises(WrongSignature, match="no SSH signature: it"):
            sshsig.read(wrong)
        assert not made.openssh_agrees(tmp_path, keys["ed25519"].public, INDEX, wrong)


def test_versions_hashes_and_kinds_of_the_future_are_named(keys: dict[str, Key]) -> None:
    text = keys["ed25519"].sign(INDEX)
    later = rebuilt(text, lambda blob: blob[:6] + uint32(2) + blob[10:])
    assert sshsig.read(later) == [
        Unreadable("version 2 of SSH signatures is not one that mirror checks")
    ]
    hashed = rebuilt(text, lambda blob: blob.replace(b"sha512", b"sha3-9"))
    with pytest.raises(UnknownAlgorithm, match="the hash sha3-9"):
        only(hashed).require(INDEX)
    kind = rebuilt(text, lambda blob: blob.replace(b"ssh-ed25519", b"ssh-ed99999"))
    assert sshsig.read(kind) == [
        Unreadable("keys of the kind ssh-ed99999 are none that mirror checks")
    ]


def test_sha1_and_algorithms_of_other_keys_are_named(keys: dict[str, Key]) -> None:
    rsa = only(keys["rsa"].sign(INDEX))
    fields = Fields(rsa.value)
    assert fields.text() == "rsa-sha2-512"
    value = fields.string()
    for name in (b"ssh-rsa", b"ssh-ed25519", b"rsa-sha2-256-cert-v01@openssh.com"):
        other = Signature(rsa.key, NAMESPACE, "sha512", string(name) + string(value))
        with pytest.raises(UnknownAlgorithm, match=re.escape(name.decode())):
            other.require(INDEX)
    weaker = Signature(rsa.key, NAMESPACE, "sha512", string(b"rsa-sha2-256") + string(value))
    with pytest.raises(WrongSignature):
        weaker.require(INDEX)


def test_a_signature_of_rsa_has_one_form_only(keys: dict[str, Key]) -> None:
    """Larger by the modulus it is the same number to the arithmetic, and with a zero in front."""
    rsa = only(keys["rsa"].sign(INDEX))
    fields, key = Fields(rsa.value), Fields(rsa.key.blob)
    name, value = fields.string(), fields.string()
    key.text()
    key.mpint()
    modulus = key.mpint()
    more = [value.rjust(n, b"\0") for n in (257, 300)]
    number = int.from_bytes(value, "big") + modulus
    if number < 2**2048:
        more.append(number.to_bytes(256, "big"))
    more.append(number.to_bytes(257, "big"))
    for other in (*more, b"", bytes(256), (1).to_bytes(256, "big")):
        wrong = Signature(rsa.key, NAMESPACE, "sha512", string(name) + string(other))
        with pytest.raises(WrongSignature, match="not over these bytes"):
            wrong.require(INDEX)


def test_a_signature_of_rsa_beyond_the_modulus() -> None:
    """A modulus with room above it in as many bytes, so that the length alone refuses nothing."""
    private = theirs.generate_private_key(65537, 2050)
    numbers = private.public_key().public_numbers()
    blob = b"".join([string(b"ssh-rsa"), mpint(numbers.e), mpint(numbers.n)])
    value = private.sign(sshsig.signed_bytes(INDEX), padding.PKCS1v15(), hashes.SHA512())
    key, size = PublicKey.from_blob(blob), len(value)
    for number, right in ((0, True), (1, False), (3, False)):
        data = (int.from_bytes(value, "big") + number * numbers.n).to_bytes(size, "big")
        found = Signature(key, NAMESPACE, "sha512", string(b"rsa-sha2-512") + string(data))
        if right:
            found.require(INDEX)
        else:
            with pytest.raises(WrongSignature, match="not over these bytes"):
                found.require(INDEX)


def test_names_in_a_signature_are_shown_escaped(keys: dict[str, Key]) -> None:
    namespace = "\x1b[2J\u202e"
    text = Signature(keys["ed25519"].public, namespace, "sha512", b"").armoured
    with pytest.raises(WrongSignature) as caught:
        only(text).require(INDEX)
    assert str(caught.value).isprintable()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_nothing_but_a_signature_is_read(blob: bytes) -> None:
    """Whatever is in the armour: a signature, a named reason, or an error of the one kind."""
    try:
        found = sshsig.read(armour(b"SSHSIG" + uint32(1) + blob))
        for item in found:
            if isinstance(item, Signature):
                item.require(INDEX)
    except (WrongSignature, UnknownAlgorithm):
        return
    assert all(isinstance(item, Unreadable) for item in found)


# -- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_has_the_fingerprint_that_ssh_keygen_prints(keys: dict[str, Key], kind: str) -> None:
    said = made.run(["ssh-keygen", "-l", "-f", str(keys[kind].half)]).stdout.decode()
    assert keys[kind].public.fingerprint in said
    assert keys[kind].public.comment == kind
    assert keys[kind].public.line == keys[kind].half.read_text(encoding="utf-8").strip()


def with_kind(kind: str, *parts: bytes) -> str:
    blob = b"".join(map(string, (kind.encode(), *parts)))
    return f"{kind} {base64.b64encode(blob).decode()}"


RSA = (2**2047 + 1).to_bytes(257, "big")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "KIND BASE64 COMMENT"),
        ("ssh-ed25519", "KIND BASE64 COMMENT"),
        ("ssh-ed25519 ####", "not base64"),
        ("ssh-ed25519 AAAA", "ends early"),
        (with_kind("ssh-ed25519", bytes(31)), "no key of Ed25519"),
        (with_kind("ssh-ed25519", bytes(32)), "no key of Ed25519"),
        (with_kind("ssh-ed25519", b"\x58" + b"\x66" * 31, b""), "goes on after its end"),
        (with_kind("ecdsa-sha2-nistp256", b"nistp256", b"\4" + bytes(64)), "not on the curve"),
        (with_kind("ecdsa-sha2-nistp256", b"nistp256", b"\2" + bytes(32)), "no key of ECDSA"),
        (with_kind("ecdsa-sha2-nistp256", b"nistp224", b"\4" + bytes(56)), "no key of ECDSA"),
        (with_kind("ssh-rsa", b"\1\0\1", b"\x7f" * 128), "1,023 bits"),
        (with_kind("ssh-rsa", b"\1\0\1", b"\x7f" * 2049), "16,391 bits"),
        (with_kind("ssh-rsa", b"\1", RSA), "no key of RSA"),
        (with_kind("ssh-rsa", b"\2", RSA), "no key of RSA"),
        (with_kind("ssh-rsa", b"\x7f" * 9, RSA), "no key of RSA"),
        (with_kind("ssh-rsa", b"\0\1\0\1", RSA), "shortest form"),
        (with_kind("ssh-rsa", b"\x81\0\1", RSA), "negative"),
    ],
)
def test_what_is_no_key(line: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PublicKey.from_line(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (with_kind("ssh-dss", b"x"), "of the kind ssh-dss"),
        (with_kind("ssh-ed25519-cert-v01@openssh.com", b"x"), "is a certificate"),
        (with_kind("webauthn-sk-ecdsa-sha2-nistp256@openssh.com", b"x"), "webauthn"),
        (with_kind("ssh-mldsa44", b"x"), "of the kind ssh-mldsa44"),
    ],
)
def test_kinds_that_are_not_checked_here_are_named(line: str, says: str) -> None:
    with pytest.raises(UnknownAlgorithm, match=says):
        PublicKey.from_line(line)


def test_a_line_that_names_another_kind_than_its_key(keys: dict[str, Key]) -> None:
    line = keys["ed25519"].public.line.replace("ssh-ed25519", "ssh-rsa", 1)
    with pytest.raises(ValueError, match="says ssh-rsa and holds a key of the kind ssh-ed25519"):
        PublicKey.from_line(line)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 255, 256, 2**255, 2**256 - 1])
def test_numbers_have_one_form(value: int) -> None:
    assert Fields(mpint(value)).mpint() == value
    longer = b"\0" + mpint(value)[4:]
    with pytest.raises(ValueError, match="shortest"):
        Fields(string(longer)).mpint()
