"""Bundles with wrong bytes: each one is refused as damaged, and leaves nothing half-written."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirror.bundle import layout
from mirror.bundle.reader import Reader
from mirror.core.progress import Quiet
from mirror.errors import BundleError, TargetError
from mirror.store.blobs import Blobs
from tests import bundles

LONG = "/".join(["a-long-name"] * 12) + "/x"
SMALL = {
    "files/a": b"hello\n",
    "files/empty": b"",
    LONG: b"w" * 512,
    "files/run.sh": b"exit\n" * 99,
}
BIG = {"files/a": b"hello\n", "models/m": random.Random(1).randbytes(300_000), "files/z": b"end"}


@pytest.fixture
def small(tmp_path: Path) -> bundles.Case:
    return bundles.Case(tmp_path, bundles.sources(tmp_path / "in", SMALL, signature=b"signature\n"))


@pytest.fixture
def big(tmp_path: Path) -> bundles.Case:
    return bundles.Case(tmp_path, bundles.sources(tmp_path / "in", BIG))


def boundaries(tar_size: int) -> Iterator[int]:
    """File offsets at which some part of the framing begins or ends."""
    for at in range(0, tar_size, layout.STORED):
        offset = layout.file_offset(at)
        yield from (offset - 5, offset)
        if at % layout.MEMBER == 0:
            yield offset - 15
        yield layout.file_offset(min(at + layout.STORED, tar_size) - 1) + 1
    yield layout.file_size(tar_size)


def test_the_helpers_make_right_bundles(big: bundles.Case) -> None:
    assert bundles.framed(bytes(big.tar)) == big.data
    assert max(boundaries(len(big.tar))) == len(big.data)
    bundles.admit(big.wrong.with_name("right.tar.gz"), big.blobs)
    big.clean()


# -- cut ------------------------------------------------------------------------------------------


def test_cut_anywhere(big: bundles.Case) -> None:
    cuts = {*range(0, len(big.data), 4096), *range(0, len(big.data), 9973)}
    cuts |= {b + more for b in boundaries(len(big.tar)) for more in (-1, 0, 1)}
    cuts |= set(range(0, 600, 7)) | set(range(len(big.data) - 20, len(big.data)))
    for cut in sorted(c for c in cuts if 0 <= c < len(big.data)):
        message = big.refused(big.data[:cut], "short|ends after|is empty")
        if "short" in message:
            assert f"{len(big.data) - cut:,} bytes short" in message
        elif cut:
            assert f"ends after {cut:,} bytes" in message


def test_cut_in_a_pipe(big: bundles.Case) -> None:
    for cut in sorted({c for c in boundaries(len(big.tar)) if c < len(big.data)}):
        message = big.refused(big.data[:cut], "ends after|is empty", piped=True)
        assert not cut or f"ends after {cut:,} bytes" in message


def test_cut_at_every_seam_of_small_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles.shrink(monkeypatch)
    case = bundles.Case(tmp_path, bundles.sources(tmp_path / "in", BIG | {"models/m": bytes(9000)}))
    for cut in sorted({*boundaries(len(case.tar)), *range(0, len(case.data), 501)}):
        if cut < len(case.data):
            case.refused(case.data[:cut])
            case.refused(case.data[:cut], piped=True)


# -- changed --------------------------------------------------------------------------------------


def test_every_byte_of_the_head_and_many_others(small: bundles.Case) -> None:
    head = layout.file_offset(len(layout.head(small.made.index.to_bytes(), b"signature\n")))
    tail = range(len(small.data) - 1100, len(small.data))
    for at in {*range(head), *range(head, len(small.data), 13), *tail[::11], *tail[-12:]}:
        wrong = bytearray(small.data)
        wrong[at] ^= 1
        small.refused(bytes(wrong))


def test_every_kind_of_change_at_some_bytes(big: bundles.Case) -> None:
    choose = random.Random(7)
    for _ in range(150):
        at = choose.randrange(len(big.data))
        wrong = bytearray(big.data)
        wrong[at] ^= choose.randrange(1, 256)
        try:
            big.refused(bytes(wrong))
        except TargetError:  # the digit of the format
            assert b'"format"' in big.data[at - 12 : at]


def test_every_byte_of_the_framing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles.shrink(monkeypatch)
    case = bundles.Case(tmp_path, bundles.sources(tmp_path / "in", {"models/m": bytes(9000)}))
    tar, data = {layout.file_offset(at) for at in range(len(case.tar))}, case.data
    framing = sorted(set(range(len(data))) - tar)
    assert len(framing) > 100
    for at in framing:
        wrong = bytearray(data)
        wrong[at] ^= 0x10
        message = case.refused(bytes(wrong), "framing is wrong|checksum|not a bundle")
        if "framing is wrong" in message:
            assert f"byte {at:,}" in message


def test_a_changed_artifact_is_named_with_its_place(big: bundles.Case) -> None:
    wrong = bytearray(big.data)
    wrong[-200_000] ^= 1
    start = layout.file_offset(big.tar.index(BIG["models/m"][:100]))
    big.refused(
        bytes(wrong), rf"models/m \(300,000 bytes, from byte {start:,}\) has not the sha256"
    )


def test_a_wrong_checksum_alone(big: bundles.Case) -> None:
    wrong = bytearray(big.data)
    wrong[-8:] = layout.trailer(zlib.crc32(b""), len(big.tar))
    big.refused(bytes(wrong), "checksum")


# -- added ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "added",
    [b"\0", b"x", bytes(512), bytes(10_240), gzip.compress(b""), gzip.compress(b"x" * 99, 0)],
)
@pytest.mark.parametrize("piped", [False, True])
def test_bytes_after_the_end(big: bundles.Case, added: bytes, piped: bool) -> None:
    says = "after its end" if piped else f"has {len(added):,} bytes after its end"
    big.refused(big.data + added, says, piped=piped)


def test_two_bundles_in_one_file(small: bundles.Case) -> None:
    small.refused(small.data + small.data, "after its end")


@pytest.mark.parametrize("blocks", [-2, -1, 1, 2, 18])
def test_other_than_two_blocks_at_the_end(big: bundles.Case, blocks: int) -> None:
    tar = bytes(big.tar)
    wrong = bundles.framed(tar[: 512 * blocks] if blocks < 0 else tar + bytes(512 * blocks))
    big.refused(wrong)
    big.refused(wrong, piped=True)


# -- not a bundle ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda case: b"", "is empty"),
        (lambda case: b"PK\3\4" * 300, "no gzip file"),
        (lambda case: bytes(case.tar), "is a plain tar"),
        (lambda case: gzip.compress(bytes(case.tar), 6), "another program"),
        (lambda case: gzip.compress(bytes(case.tar), 0, mtime=0), "another program|framing"),
        (
            lambda case: layout.GZIP_HEADER + gzip.compress(bytes(case.tar), 6)[10:],
            "another program",
        ),
        (lambda case: layout.GZIP_HEADER + gzip.compress(bytes(case.tar), 0)[10:], "framing"),
        (lambda case: bundles.framed(bytes(10_240)), "no member mirror-bundle.json"),
        (lambda case: bundles.framed(other_tar()), "no member mirror-bundle.json"),
        (lambda case: os.urandom(5000), "no gzip file"),
    ],
)
@pytest.mark.parametrize("piped", [False, True])
def test_something_else(
    big: bundles.Case, make: Callable[[bundles.Case], bytes], says: str, piped: bool
) -> None:
    big.refused(make(big), says, piped=piped)


def other_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("hello"))
    return out.getvalue()


def test_checking_finds_what_admitting_finds(big: bundles.Case, tmp_path: Path) -> None:
    wrong = bytearray(big.data)
    wrong[-100_000] ^= 1
    (tmp_path / "wrong.tar.gz").write_bytes(wrong)
    with Reader.open(tmp_path / "wrong.tar.gz") as reader, pytest.raises(BundleError, match="m "):
        reader.check(Quiet())


def test_names_are_shown_without_their_control_characters(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", {"files/a\u202eb": b"right to left"})
    data = bytearray(made.pack(tmp_path / "b.tar.gz"))
    data[bytes(data).index(b"right to left")] ^= 1
    (tmp_path / "b.tar.gz").write_bytes(data)
    with pytest.raises(BundleError) as caught:
        bundles.admit(tmp_path / "b.tar.gz", Blobs(tmp_path / "store"))
    assert "files/a\\u202eb" in str(caught.value)
