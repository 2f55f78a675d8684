"""Pickles of repositories: what they would import, told without loading them."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import pickle
import random
import struct
import tarfile
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror.ecosystems.models.policy import pickle_files, pickle_opcodes, pickles
from mirror.ecosystems.models.policy.pickle_files import is_pickle, scan
from mirror.ecosystems.models.policy.pickle_opcodes import UNKNOWN, Broken, Budget, Global
from mirror.ecosystems.source import Context
from mirror.errors import ResolutionError, UsageError
from tests.asking import heard, make_context
from tests.carrying import a_carried, an_item

CLEAN = pickle.dumps({"a": [1, 2.5, "three"]})
EVIL = b"cos\nsystem\n(S'echo harm'\ntR."  # protocol 0, by hand
RAW = bytes(range(256)) * 40


class Evil:
    """Runs a program when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("echo harm",)


def text_of(name: str) -> bytes:
    """The opcode that pushes a short string."""
    return b"\x8c" + bytes([len(name)]) + name.encode()


def said(folder: Path, data: bytes, name: str = "model.bin") -> str | None:
    """The verdict's text; None for what is no pickle."""
    path = folder / name
    path.write_bytes(data)
    verdict = pickles.verdict(scan(path))
    assert verdict is None or verdict.refused == verdict.text.startswith(("dangerous", "could not"))
    return verdict.text if verdict else None


def zipped(members: Sequence[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(members: Sequence[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def an_array(descr: str, data: bytes) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,), }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


# What libraries write


def test_what_torch_saves(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    weights = {"a": torch.ones(3), "b": torch.zeros(2, dtype=torch.bfloat16)}

    def saved(thing: Any, **keys: Any) -> str | None:
        buffer = io.BytesIO()
        torch.save(thing, buffer, **keys)
        return said(tmp_path, buffer.getvalue())

    old = {"_use_new_zipfile_serialization": False}
    assert saved(weights) == saved(weights, **old) == "clean"
    # The number of elements, which begins the tensors' bytes, looks like a pickle.
    assert saved(torch.ones(0x0280), **old) == "clean"
    assert saved(optimizer.state_dict()) == "clean"
    names = "torch._utils._rebuild_parameter, torch.nn.modules.linear.Linear"
    assert saved(model) == saved(model, **old) == f"suspicious: __builtin__.set, {names}"
    for protocol in range(2, 6):
        for keys in ({}, old):
            found = saved(Evil(), pickle_protocol=protocol, **keys)
            assert found == f"dangerous: {os.system.__module__}.system"


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol(tmp_path: Path, protocol: int) -> None:
    clean = pickle.dumps({"a": [1, 2.5, "three" * 300, 2**70, ()]}, protocol)
    assert said(tmp_path, clean) == "clean"
    evil = pickle.dumps([Evil()], protocol)
    assert said(tmp_path, evil) == f"dangerous: {os.system.__module__}.system"
    assert said(tmp_path, clean + evil) == f"dangerous: {os.system.__module__}.system"
    thing = pickle.dumps(random.Random(1), protocol)
    assert str(said(tmp_path, thing)).startswith("suspicious: ")
    assert "random.Random" in str(said(tmp_path, thing))


@pytest.mark.parametrize(
    "wrap",
    [
        gzip.compress,
        bz2.compress,
        zlib.compress,
        lambda data: gzip.compress(gzip.compress(data)),
        lambda data: zipped([("archive/data.pkl", data), ("archive/data/0", RAW)]),
        lambda data: zipped([("a/DATA.PKL", data)], zipfile.ZIP_DEFLATED),
        lambda data: zipped([("x.npy", an_array("'|O'", data))]),
        lambda data: an_array("'|O'", data),
        lambda data: an_array("[('x', [('y', 'O')])]", data),
        lambda data: an_array("('object', (2,))", data),
        lambda data: tarred([("./config.yaml", b"a: 1"), ("./model.ckpt", data)]),
        lambda data: tarred([("model.ckpt", zipped([("m/data.pkl", data)]))]),
        lambda data: tarred([("storages", CLEAN), ("pickle", data)]),
    ],
)
def test_what_libraries_wrap_them_in(tmp_path: Path, wrap: Callable[[bytes], bytes]) -> None:
    assert said(tmp_path, wrap(CLEAN)) == "clean"
    assert said(tmp_path, wrap(EVIL)) == "dangerous: os.system"
    broken = said(tmp_path, wrap(CLEAN[:-3]))
    assert broken == "could not be scanned: it begins as a pickle and is none"


def test_a_tar_file_of_the_first_torch(tmp_path: Path) -> None:
    """tarfile reads headers without a magic too, by their checksum; so did torch."""
    data = bytearray(tarred([("storages", EVIL)]))
    data[257:265] = bytes(8)
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getnames() == ["storages"]
    assert said(tmp_path, bytes(data), "pytorch_model.bin") == "dangerous: os.system"


def test_arrays_of_numbers_are_no_pickles(tmp_path: Path) -> None:
    assert said(tmp_path, an_array("'<f4'", EVIL)) is None
    assert said(tmp_path, an_array("[('Object', '<f4'), ('x', '<i4', (2,))]", RAW)) is None
    assert said(tmp_path, zipped([("x.npy", an_array("'<f4'", RAW))]), "x.npz") is None
    objects = str(said(tmp_path, an_array("'|O'", RAW)))
    assert objects == "could not be scanned: it is an array of objects that is no pickle"
    assert "could not be scanned" in str(said(tmp_path, an_array("f()", RAW)))


# What is no pickle


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 5000,
        RAW,
        struct.pack("<1000H", *range(11, 1011)),  # tokens
        struct.pack("<1000f", *map(float, range(1000))),  # OpenVINO's weights
        b"lmgg" + RAW,
        b"tjgg\3\0\0\0" + RAW,
        b"\x80\x09" + RAW,  # no protocol
        b"cat\ndog\nand more text\n",
        b"class,name\n1,2\n",
        b"column\nvalue\n1\n",
        b"x^2 + y^2\n",
        b"x\x9c" + RAW,
        b"." * 100_000,
        b"(" * 100_000,
        b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02",  # sentencepiece
    ],
)
def test_data_that_has_the_name_of_one(tmp_path: Path, data: bytes) -> None:
    assert said(tmp_path, data) is None


def test_tensors_that_begin_as_pickles(tmp_path: Path) -> None:
    """In a ZIP file torch loads data.pkl alone."""
    members = [("a/data.pkl", CLEAN), ("a/data/0", b"\x80\x02" + RAW), ("a/data/1", b"PK\3\4")]
    assert said(tmp_path, zipped(members)) == "clean"
    assert said(tmp_path, b"\x80\x02" + RAW) == (
        "could not be scanned: it begins as a pickle and is none"
    )


PICKLES = """a.bin a/b.pt c.pth d.ckpt e.pkl f.pickle g.joblib h.dill i.npy j.npz k.pkl.gz l.PTH
m.pth.tar n.nemo o.dat optimizer.pt a/.metadata data.p tokenizer.model"""
OTHERS = "a.safetensors b.json c.gguf d.onnx e.txt f.tar.gz g.py bin h.parquet"


def test_which_names_are_looked_into() -> None:
    assert [name for name in PICKLES.split() if not is_pickle(name)] == []
    assert [name for name in OTHERS.split() if is_pickle(name)] == []


# What hides


MADE = "a name made while it loads"
P4 = b"\x80\x04"
OS, SYSTEM, MATH, X = map(text_of, ("os", "system", "math", "x"))


@pytest.mark.parametrize(
    ("data", "names"),
    [
        # Into the memo, with another string pushed between: from picklescan's view a name "None".
        (P4 + OS + X + b"0q\x00" + SYSTEM + X + b"0q\x01h\x00h\x01\x93.", MADE),
        # The memo of the first pickle is not that of the second.
        (P4 + MATH + b"\x94." + P4 + OS + b"\x940h\x00" + SYSTEM + b"\x93.", "os.system"),
        # Both ways to number the memo.
        (P4 + OS + b"q\x00" + MATH + b"\x94h\x00" + SYSTEM + b"\x93.", MADE),
        (P4 + X + OS + b"q\x0000h\x00" + SYSTEM + b"\x93.", "os.system"),
        # In place of a name that was known.
        (P4 + MATH + b"q\x00" + OS + X + b"0q\x00h\x00" + SYSTEM + b"\x93.", MADE),
        (P4 + OS + SYSTEM + b"22\x93.", MADE),
        (P4 + b"X" + struct.pack("<I", 70_000) + b"a" * 70_000 + X + b"\x93.", MADE),
        (P4 + b"X" + struct.pack("<I", 600) + b"a" * 600 + X + b"\x93.", MADE),
        # Names of Python 2 are translated.
        (b"\x80\x02ccPickle\nloads\n.", "cPickle.loads"),
        (b"curllib2\nurlopen\n.", "urllib2.urlopen"),
        (b"\x80\x02curllib\nurlopen\n.", "urllib.urlopen"),
        # From a harmless module to what it has imported.
        (P4 + text_of("linecache") + text_of("os.system") + b"\x93.", "linecache.os.system"),
        # From a registry that something else has filled.
        (b"\x80\x02\x82\x01.", MADE),
        (b"(ios\nsystem\n.", "os.system"),
        # A frame may end between the two strings.
        (P4 + OS + b"\x95" + bytes(8) + SYSTEM + b"\x93.", "os.system"),
        # It runs before the unpickler sees that the rest is missing, or wrong.
        (EVIL[:-1], "os.system"),
        (b"\x80\x02" + EVIL[:-1] + b"\xff", "os.system"),
        # torch's number written otherwise, then what torch loads next.
        (b"L119547037146038801333356L\n.I1001\n.}." + EVIL, "os.system"),
        (pickle.dumps(1) + b"I1\n." * 50 + EVIL, "os.system"),
    ],
)
def test_tricks(tmp_path: Path, data: bytes, names: str) -> None:
    assert said(tmp_path, data) == f"dangerous: {names}"


def two_ways() -> bytes:
    """A ZIP file with two directories: torch's reader goes by the offset, Python's by the size."""
    evil, clean = zipped([("a/data.pkl", EVIL)]), zipped([("a/data.pkl", CLEAN)])
    at = evil.rindex(b"PK\x05\x06")
    end = bytearray(clean[clean.rindex(b"PK\x05\x06") :])
    end[16:20] = struct.pack("<I", evil.rindex(b"PK\x01\x02"))
    return evil[:at] + clean[: clean.rindex(b"PK\x05\x06")] + bytes(end)


def zip64(data: bytes, moved: int) -> bytes:
    """With the records that large ZIP files have, the first one where it is said to be, or not."""
    at = data.rindex(b"PK\x05\x06")
    start = data.rindex(b"PK\x01\x02")
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, at - start, start)
    return data[:at] + record + struct.pack("<4sLQL", b"PK\x06\x07", 0, at - moved, 1) + data[at:]


def test_zip64(tmp_path: Path) -> None:
    data = zipped([("a/data.pkl", CLEAN)])
    assert said(tmp_path, zip64(data, 0)) == "clean"
    assert "two ways" in str(said(tmp_path, zip64(data, 56)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (CLEAN[:20], "it begins as a pickle and is none"),
        (CLEAN + CLEAN[:20], "what follows its first pickle is none"),
        (b"7z\xbc\xaf\x27\x1c" + RAW, "it is a 7z archive"),
        (b"\xfd7zXZ\0" + RAW, "it is compressed with xz"),
        (zipped([("a/data.pkl", CLEAN)])[:-1], "it is a ZIP file that is cut off, or"),
        (zipped([("a/data.pkl", CLEAN)]) + EVIL, "it is a ZIP file that is cut off, or"),
        (two_ways(), "it is a ZIP file that could be read in two ways"),
        (zipped([("a/x.bin", zipped([("data.pkl", EVIL)]))]), "it is an archive within an archive"),
        (gzip.compress(tarred([("x.pkl", EVIL)])), "it is an archive within an archive"),
        (gzip.compress(CLEAN)[:20], "reading it fails with EOFError"),
        (b"\x1f\x8b\x08" + RAW, "reading it fails with"),
        (tarred([("x.pkl", CLEAN)])[:520], "reading it fails with ReadError"),
        # joblib writes arrays into the midst of a pickle.
        (b"\x80\x04cjoblib.numpy_pickle\nNumpyArrayWrapper\n)\x81" + RAW + b".", "it begins as"),
    ],
)
def test_what_cannot_be_scanned(tmp_path: Path, data: bytes, reason: str) -> None:
    assert str(said(tmp_path, data)).startswith(f"could not be scanned: {reason}")


def test_members_with_one_name(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zipped([("a/data.pkl", EVIL), ("a/data.pkl", CLEAN)])
    assert "two ways" in str(said(tmp_path, data))
    case = zipped([("a/data.pkl", CLEAN), ("a/DATA.pkl", CLEAN)])  # torch's reader ignores it
    assert "two ways" in str(said(tmp_path, case))


class Noting(pickle._Unpickler):
    """Python's own unpickler, that imports nothing and notes what it would."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.names: set[Global] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.names.add((module, name))
        return lambda *arguments: "made"


PIECES = [
    *(text_of(name) for name in ("os", "system", "math", "sin")),
    *(b"q\x00", b"q\x01", b"p0\n", b"h\x00", b"h\x01", b"g0\n", b"\x94", b"\x93", b"0", b"2"),
    *(b"(", b")", b"\x85", b"\x86", b"R", b"cos\npopen\n", b"(imath\ncos\n", b"N", b"X\x01\0\0\0a"),
    *(b"\x95" + bytes(8), b"C\x01x", b"e", b"]", b"1", b"a"),
    *(OS + b"q\x00", X + b"q\x01", OS + b"\x94", SYSTEM + b"\x93", b"h\x00h\x01\x93"),
]


@settings(max_examples=2000, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=16))
def test_nothing_is_imported_that_is_not_found(pieces: list[bytes]) -> None:
    data = b"\x80\x04" + b"".join(pieces) + b"."
    unpickler = Noting(data)
    with suppress(Exception):  # what it imported before counts too
        unpickler.load()
    found: set[Global] = set()
    reader: io.BufferedReader = io.BufferedReader(io.BytesIO(data))
    with suppress(Broken):
        pickle_opcodes.read(reader, found, Budget())
    assert unpickler.names <= found or UNKNOWN in {part for name in found for part in name}


# Size


def test_tensors_stay_unread(tmp_path: Path) -> None:
    """A ZIP file of torch of 3 GB, nearly all of it a hole."""
    size, name, pickled = 3_000_000_000, b"archive/data/0", b"archive/data.pkl"
    sizes = struct.pack("<2L", size, size)

    def local(name: bytes, sizes: bytes) -> bytes:
        return b"PK\x03\x04" + bytes(14) + sizes + struct.pack("<2H", len(name), 0) + name

    def central(name: bytes, sizes: bytes, offset: int) -> bytes:
        start = b"PK\x01\x02" + bytes(16) + sizes + struct.pack("<H", len(name))
        return start + bytes(12) + struct.pack("<L", offset) + name

    path = tmp_path / "model.bin"
    with open(path, "wb") as file:
        file.write(local(name, sizes))
        second = file.seek(size, io.SEEK_CUR)
        own = struct.pack("<2L", len(EVIL), len(EVIL))
        file.write(local(pickled, own) + EVIL)
        at = file.tell()
        directory = central(name, sizes, 0) + central(pickled, own, second)
        file.write(directory)
        file.write(b"PK\x05\x06" + struct.pack("<4H2LH", 0, 0, 2, 2, len(directory), at, 0))
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [name.decode(), pickled.decode()]
    assert looked_at(path) == "dangerous: os.system"


def test_a_large_argument_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    with open(path, "wb") as file:
        file.write(b"\x80\x04\x8e" + struct.pack("<Q", 20_000_000_000))
        file.seek(20_000_000_000, io.SEEK_CUR)
        file.write(b"0" + EVIL)
    assert looked_at(path) == "dangerous: os.system"


def looked_at(path: Path) -> str:
    """The verdict on a file, found in little memory and time."""
    tracemalloc.start()
    start = time.perf_counter()
    verdict = pickles.verdict(scan(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert time.perf_counter() - start < 2
    assert verdict
    return verdict.text


TOO_LARGE = "could not be scanned: it is too large to be scanned"
LARGE = struct.pack("<Q", 10**8)


@pytest.mark.parametrize(
    "data",
    [
        gzip.compress(P4 + b"\x8e" + LARGE + bytes(10**7)),
        zipped([("a/data.pkl", P4 + b"\x8e" + LARGE + bytes(10**7))], zipfile.ZIP_DEFLATED),
        gzip.compress(P4 + b"V" + b"a" * 10**7 + b"\n."),
        P4 + b"N0" * 10_000 + b".",
        pickle.dumps(1) * 10_000,
    ],
)
def test_bombs(tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickle_files, "Budget", lambda: Budget(opcodes=10_000, bytes=10**6))
    assert said(tmp_path, data) == TOO_LARGE


def test_headers_and_directories_of_absurd_length(tmp_path: Path) -> None:
    pax = tarred([("x.pkl", EVIL)], tarfile.PAX_FORMAT)
    header = bytearray(pax[:512])
    header[156:157] = b"x"
    header[124:136] = b"%011o\0" % (1 << 30)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert said(tmp_path, bytes(header) + pax) == TOO_LARGE
    names = [b"\x80\x02", *(b"cm%d\nn\n" % n for n in range(3000)), b"."]
    assert "imports more than" in str(said(tmp_path, b"".join(names)))


# What is refused


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


FILES = {"config.json": b"{}", "a.bin": CLEAN, "b.pt": EVIL, "c.bin": RAW, "d.pkl": CLEAN[:20]}


def test_every_refused_pickle_is_named(
    context: Context, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    carried = [
        a_carried(context.blobs, an_item("org/one"), FILES),
        a_carried(context.blobs, an_item("org/two"), {"x\x1b[2J.pkl": EVIL}),
        a_carried(context.blobs, an_item("org/two", revision="v1", default=False), {"y.pt": EVIL}),
    ]
    with pytest.raises(ResolutionError) as caught:
        pickles.judged(carried, context)
    assert caught.value.problems == (
        "org/one: b.pt: dangerous: os.system",
        "org/one: d.pkl: could not be scanned: it begins as a pickle and is none",
        "org/two: x\\x1b[2J.pkl: dangerous: os.system",
        "org/two at v1: y.pt: dangerous: os.system",
    )
    assert "4 pickles" in caught.value.message
    assert "`pickles`" in str(caught.value.hint)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_what_is_allowed_is_recorded(context: Context) -> None:
    item = an_item("org/one", pickles=["b.*", "*.pkl", "a.bin"])
    carried = a_carried(context.blobs, item, {**FILES, "e.pt": pickle.dumps(random.Random())})
    artifacts = pickles.judged([carried], context)
    assert {a.text("file"): a.text("pickle", "-") for a in artifacts} == {
        "config.json": "-",
        "a.bin": "clean",
        "b.pt": "dangerous: os.system",
        "c.bin": "-",
        "d.pkl": "could not be scanned: it begins as a pickle and is none",
        "e.pt": "suspicious: random.Random",
    }
    assert [(a.path, a.sha256) for a in artifacts] == [
        (a.path, a.sha256) for a in carried.artifacts
    ]
    assert heard(context) == [
        "org/one: e.pt is a pickle, suspicious: random.Random",
        "org/one: `pickles`: a.bin allows nothing: no dangerous pickle has such a name",
    ]


def test_a_pickle_that_cannot_be_read(context: Context) -> None:
    carried = a_carried(context.blobs, an_item(), {"a.bin": CLEAN})
    for place in carried.places.values():
        place.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        pickles.judged([carried], context)


def test_many_names_are_told_in_short(tmp_path: Path) -> None:
    data = b"".join(b"cmodule%02d\n%s\n0" % (n, b"n" * 200) for n in range(30)) + b"N."
    text = str(said(tmp_path, b"\x80\x02" + data))
    assert text.startswith("suspicious: module00.nn")
    assert text.endswith(", 20 more")
    assert len(text) < 1000
