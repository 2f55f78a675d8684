"""Paths, index, lock, compatibility: the rules, without a file or a network."""

from __future__ import annotations

import json
import sys

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from mirror.core import compat, index, lock, paths
from mirror.core.artifact import Artifact, Json
from mirror.core.index import Entry, Index
from mirror.core.lock import Lock
from mirror.core.target import Target
from mirror.core.text import human_size, human_time
from mirror.errors import BundleError, TargetError, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HASH = "ab" * 32
TARGET = Target(python="3.11", platform="linux-x86_64", glibc="2.28", provided=("torch==2.8.0",))
ORIGIN: dict[str, Json] = {"name": "a", "nested": {"list": ["x", 1, True]}}


def make_index(*names: str, kind: str = "wheels") -> Index:
    return Index(
        name="demo",
        version="1",
        tool="0.1.0",
        lock=HASH,
        target=TARGET,
        verify={"steps": 40},
        entries=tuple(
            Entry(Artifact(kind, name, 3, HASH, executable=name.endswith(".sh"), origin=ORIGIN))
            for name in names
        ),
    )


@pytest.mark.parametrize(
    "path",
    [
        *("", "/a", "a//b", "a/", "./a", "a/../b", "..", "a\\b", "a\x00", "a\nb", "a\x1b[1m"),
        *("CON", "x/nul.txt", "com1", "a.", "a ", "a:b", "e\u0301", "\udc80", "x" * 256, "a?"),
    ],
)
def test_paths_that_no_bundle_may_hold(path: str) -> None:
    assert paths.problem(path)


@pytest.mark.parametrize("path", ["a", "a/b.c", ".hidden", "\u00e9", "console/x", "a" * 255])
def test_paths_that_a_bundle_may_hold(path: str) -> None:
    assert paths.problem(path) is None


def test_paths_that_cannot_stand_together() -> None:
    assert len(list(paths.problems(["a/B", "A/b"]))) == 1
    assert len(list(paths.problems(["a", "a/b/c"]))) == 1
    assert not list(paths.problems(["a/b", "a/c", "ab"]))


def test_what_is_shown_cannot_move_the_cursor() -> None:
    assert paths.shown("a\x1b[2J\nb") == "a\\x1b[2J\\nb"


def test_an_index_has_one_spelling() -> None:
    made = make_index("a", "b.sh")
    data = made.to_bytes()
    assert index.parse(data) == made
    assert data.isascii()
    assert data.endswith(b"}\n")
    for other in (
        data[:-1],
        data + b"\n",
        data.replace(b":", b": ", 1),
        data.replace(b"3", b"3.0"),
    ):
        with pytest.raises(BundleError):
            index.parse(other)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_index_are_refused_and_never_crash(data: bytes) -> None:
    with pytest.raises(BundleError):
        index.parse(data)


@given(st.data())
def test_a_changed_byte_is_refused_or_gives_another_index(data: st.DataObject) -> None:
    original = make_index("a", "b.sh").to_bytes()
    at = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[at] ^= data.draw(st.integers(1, 255))
    try:
        read = index.parse(bytes(changed))
    except (BundleError, TargetError):
        return
    assert read.to_bytes() == bytes(changed)
    assert read.digest != make_index("a", "b.sh").digest


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"format": True},
        {"extra": 1},
        {"name": "a/b"},
        {"lock": "x"},
        {"base": 1},
        {"target": []},
        {"target": {"python": "3.11", "platform": "amiga"}},
        {"verify": []},
        {"artifacts": {}},
        {"artifacts": [1]},
        {"artifacts": [{"kind": "k", "path": "p", "size": -1, "sha256": HASH}]},
        {"artifacts": [{"kind": "k", "path": "p", "size": 1.0, "sha256": HASH}]},
        {"artifacts": [{"kind": "k", "path": "p", "size": True, "sha256": HASH}]},
        {"artifacts": [{"kind": "k", "path": "p", "size": 2**60, "sha256": HASH}]},
        {"artifacts": [{"kind": "k", "path": "p", "size": 1, "sha256": HASH.upper()}]},
        {"artifacts": [{"kind": "k", "path": "p", "size": 1, "sha256": HASH, "mode": 4095}]},
        {"artifacts": [{"kind": "k", "path": "../p", "size": 1, "sha256": HASH}]},
        {"artifacts": [{"kind": "k", "path": index.INDEX_NAME, "size": 1, "sha256": HASH}]},
    ],
)
def test_an_index_of_another_shape_is_refused(change: dict[str, object]) -> None:
    document = json.loads(make_index("a").to_bytes()) | change
    with pytest.raises(BundleError):
        index.parse(index.canonical(document) + b"\n")


def test_a_newer_format_says_what_to_do() -> None:
    with pytest.raises(TargetError, match="format 2"):
        index.parse(b'{"format":2}')


def test_a_deep_index_is_refused() -> None:
    with pytest.raises(BundleError):
        index.parse(b"[" * 200_000)


def test_a_lock_reads_back_as_it_was_written() -> None:
    artifacts = (
        Artifact("models", "models/a", 1, HASH, origin={"commit": "0" * 40}),
        Artifact("wheels", "wheels/b", 2, HASH, executable=True, origin=ORIGIN),
    )
    made = Lock(inputs=HASH, target=TARGET, artifacts=artifacts)
    assert lock.parse(made.to_bytes(), "x") == made
    assert made.to_bytes().decode().count("\n[[") == 2


def test_a_lock_is_written_as_the_library_writes_it() -> None:
    odd: dict[str, Json] = {
        "quote": 'a"b\\c',
        "lines": "a\nb\r\tc",
        "control": "\x01\x7f",
        "text": "é 你好 \u2028",
        "a key": 1,
        "ключ": "x",
        "": "",
        "yes": True,
        "no": False,
        "half": 0.5,
        "none": [],
        "list": ["a", 'b"'],
        "tables": [{"a": 1}, {"b": ["x"]}],
        "table": {"a": {"b": 1}},
    }
    origins: list[dict[str, Json]] = [{}, odd, *({key: value} for key, value in odd.items())]
    made = Lock(
        inputs=HASH,
        target=TARGET,
        artifacts=tuple(
            Artifact("models", f"m/{n:02}", n, HASH, executable=n % 2 == 1, origin=origin)
            for n, origin in enumerate(origins)
        ),
    )
    text = made.to_bytes().decode()
    assert text.partition("\n")[2] == tomli_w.dumps(tomllib.loads(text), indent=2)
    assert lock.parse(made.to_bytes(), "x") == made
    assert made.to_bytes() is made.to_bytes(), "it is written once"


def test_null_in_an_origin_is_absent_from_the_lock() -> None:
    artifact = Artifact("conda", "c", 1, HASH, origin={"record": {"a": None, "b": 1}})
    made = Lock(inputs=HASH, target=TARGET, artifacts=(artifact,))
    read = lock.parse(made.to_bytes(), "x")
    assert read.artifacts[0].origin == {"record": {"b": 1}}
    assert read.to_bytes() == made.to_bytes()


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"format = 2", b"format = 1\ninputs = 'x'\ntarget = {}", b"[["]
)
def test_what_is_no_lock_is_named(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"x\.lock\.toml"):
        lock.parse(data, "x.lock.toml")


@pytest.mark.parametrize(
    ("wheel", "need"),
    [
        ("a-1-py3-none-any.whl", ()),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", (2, 28)),
        ("a-1-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", (2, 17)),
        ("a-1-cp39-abi3-manylinux1_x86_64.whl", (2, 5)),
        ("a-1-cp311-cp311-win_amd64.whl", ()),
    ],
)
def test_the_glibc_that_a_wheel_needs(wheel: str, need: tuple[int, ...]) -> None:
    assert compat.needed_glibc(wheel) == need


def test_a_bundle_for_another_machine_is_known_before_it_is_unpacked() -> None:
    made = make_index("wheels/a-1-cp311-cp311-manylinux_2_34_x86_64.whl", "wheels/b-1-any.whl")
    assert not list(compat.problems(made, compat.Facts("linux-x86_64", "2.34")))
    [old] = compat.problems(made, compat.Facts("linux-x86_64", "2.28"))
    assert "needs glibc 2.34; this machine has 2.28" in old
    [arm] = compat.problems(made, compat.Facts("linux-aarch64", "2.39"))
    assert "for linux-x86_64; this machine is linux-aarch64" in arm


@pytest.mark.parametrize(
    ("have", "wanted", "same"),
    [
        ("2.8.0", "2.8", True),
        ("2023.03", "2023.3", True),
        ("2.8.0+cu128", "2.8.0", True),
        ("2.8.0", "2.8.0+cu128", True),
        ("2.8.0+cu126", "2.8.0+cu128", False),
        ("2.8.1", "2.8.0", False),
        ("", "2.8.0", False),
    ],
)
def test_versions_that_are_the_same(have: str, wanted: str, same: bool) -> None:
    assert compat.same_version(have, wanted) is same


def test_sizes_and_times_for_people() -> None:
    assert [human_size(n) for n in (0, 999, 1000, 1234567, 99_960_000, 10**15)] == [
        *("0 B", "999 B", "1.00 kB", "1.23 MB", "100 MB", "1000 TB")
    ]
    assert [human_time(s) for s in (0.423, 12.34, 65)] == ["0.42 s", "12.3 s", "1 min 05 s"]
