"""The arithmetic of format 1, against other people's programs."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.bundle import layout
from tests import bundles

NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=80
)
SIZES = st.one_of(
    st.integers(0, 2**20), st.sampled_from([8**11 - 1, 8**11, 2**40, 2**53]), st.integers(0, 2**53)
)


@given(
    st.lists(NAMES, min_size=1, max_size=5).map("/".join), SIZES, st.sampled_from([0o644, 0o755])
)
def test_a_header_is_what_pythons_tarfile_writes(path: str, size: int, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = size, mode
    expected = member.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
    assert layout.member_header(path, size, mode) == expected


@pytest.mark.parametrize("length", [1, 99, 100, 101, 155, 256, 511, 512, 513, 4000])
@pytest.mark.parametrize("size", [0, 1, 8**11 - 1, 8**11, 2**53])
def test_gnu_tar_reads_a_header(length: int, size: int) -> None:
    name = "/".join(["d" * 90] * 45)[: length - 1] + "x"
    header = layout.member_header(name, size, 0o755)
    assert len(header) % 512 == 0
    listed = subprocess.run(["tar", "-tvf", "-"], input=header, capture_output=True, check=False)
    first = listed.stdout.decode().split("\n")[0].split()
    assert first[0] == "-rwxr-xr-x"
    assert first[1] == "0/0"
    assert int(first[2]) == size
    assert first[-1] == name


def test_a_name_of_two_byte_characters_is_measured_in_bytes() -> None:
    assert len(layout.member_header("é" * 50, 1, 0o644)) == 512
    assert len(layout.member_header("é" * 51, 1, 0o644)) == 3 * 512


def test_the_constants_fit_each_other() -> None:
    assert layout.STORED == 65_024 <= 0xFFFF
    assert layout.STORED % layout.TAR_BLOCK == 0
    assert layout.MEMBER == 67_104_768 <= 64 * 2**20
    assert layout.MEMBER % layout.CHUNK == 0
    assert layout.CHUNK % layout.STORED == 0


def framed(tar: bytes) -> bytes:
    """The file that holds this tar, by the functions of layout alone."""
    out = io.BytesIO()
    bundles.write_framed(out, tar)
    return out.getvalue()


SEAMS = [
    size + more
    for size in (512, layout.STORED, layout.CHUNK, layout.MEMBER, layout.MEMBER + layout.STORED)
    for more in (-512, 0, 512)
    if size + more
]


@pytest.mark.parametrize("size", SEAMS)
def test_gzip_unpacks_the_framing_at_every_seam(size: int) -> None:
    tar = (b"0123456789abcde\n" * (size // 16 + 1))[:size]
    file = framed(tar)
    assert len(file) == layout.file_size(size)
    assert gzip.decompress(file) == tar


def test_offsets_are_where_the_bytes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    bundles.shrink(monkeypatch)
    tar = b"".join(i.to_bytes(4, "big") for i in range(4 * 4096 // 4))
    file = framed(tar)
    assert gzip.decompress(file) == tar
    for at in range(0, len(tar), 4):
        offset = layout.file_offset(at)
        assert file[offset : offset + 4] == tar[at : at + 4]


@given(st.integers(1, 40), st.integers(0, 39))
def test_a_tar_may_be_continued_from_anywhere(blocks: int, start: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bundles.shrink(patch)
        start = min(start, blocks - 1) * 512
        parts = list(layout.chunks(start, blocks * 512))
        assert parts[0].start == start
        assert parts[-1].stop == blocks * 512
        assert all(a.stop == b.start for a, b in itertools.pairwise(parts))
        assert all(0 < p.size <= layout.CHUNK for p in parts)
        for chunk in parts:
            cuts = chunk.cuts()
            assert [c.start for c in cuts] == [0, *(c.stop for c in cuts[:-1])]
            assert cuts[-1].stop == chunk.size
            assert list(map(len, chunk.frame(blocks * 512))) == list(
                map(len, chunk.frame(layout.UNBOUNDED))
            )


def test_the_size_of_a_bundle_follows_from_its_index(tmp_path: Path) -> None:
    long = "/".join(["deep"] * 40)
    made = bundles.sources(
        tmp_path / "in", {"a": b"", "b": b"x" * 512, long: b"y" * 100_000}, signature=b"s" * 700
    )
    data = made.pack(tmp_path / "b.tar.gz")
    assert len(data) == layout.bundle_size(made.index, 700)


@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(0, 4))
def test_spans_cover_every_piece_once_and_in_order(sizes: list[int], skip: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bundles.shrink(patch)
        wanted = [bundles.artifact(f"f{n}", bytes(size)) for n, size in enumerate(sizes)]
        pieces = list(layout.payload(wanted))
        start = skip * 512
        total = start + layout.payload_size(wanted)
        assert sum(len(p) if isinstance(p, bytes) else p.size for p in pieces) == total - start
        met: dict[int, int] = {}
        ended = []
        for chunk, found in layout.spans(pieces, layout.chunks(start, total)):
            at = 0
            for span in found:
                assert span.place.start == at
                at = span.place.stop
                number = next(n for n, p in enumerate(pieces) if p is span.piece)
                assert met.get(number, 0) == span.at
                met[number] = span.at + at - span.place.start
                if span.last:
                    ended.append(number)
            assert at == chunk.size
        assert ended == list(range(len(pieces)))


PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


def test_the_example_in_the_documentation(tmp_path: Path) -> None:
    """Also holds format 1 still: these bytes may never change."""
    made = bundles.sources(tmp_path / "in", {"files/hello.txt": b"hello\n"})
    data = made.pack(tmp_path / "b.tar.gz")
    index = made.index.to_bytes()
    assert f"in {len(index)} bytes:\n\n```json\n{index.decode()}```" in PAGE
    assert f"| digest | `{made.index.digest}` |" in PAGE
    assert f": {len(gzip.decompress(data)):,} bytes |" in PAGE
    assert f"| bundle | {len(data):,} bytes |" in PAGE
    assert f"| hash of the bundle | `{hashlib.sha256(data).hexdigest()}` |" in PAGE


def test_the_offsets_in_the_documentation() -> None:
    rows = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.M)
    assert len(rows) == 7
    for tar, file in rows:
        assert layout.file_offset(int(tar.replace(",", ""))) == int(file.replace(",", ""))
    for number in (layout.MEMBER, layout.STORED, layout.file_size(layout.MEMBER)):
        assert f"{number:,}" in PAGE
    assert layout.GZIP_HEADER.hex(" ") in PAGE
