"""What holds of every index and every bundle, whichever it is."""

from __future__ import annotations

import io
import random
import string
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirror.bundle import layout
from mirror.core import index, paths, strict_json
from mirror.core.artifact import Artifact, Json
from mirror.core.index import MAX_SIZE, Entry, Index
from mirror.core.target import PLATFORMS, Target
from mirror.errors import BundleError, MirrorError, TargetError
from tests import bundles
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS

_DIGITS = "0123456789abcdef"
_hashes = st.text(_DIGITS, min_size=64, max_size=64)
_words = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,20}", fullmatch=True)
_parts = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters='\\:*?"<>|/'), max_size=30
)
_paths = (
    st.lists(_parts, min_size=1, max_size=4).map("/".join).filter(lambda p: not paths.problem(p))
)
_json: st.SearchStrategy[Json] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
_tables = st.dictionaries(st.text(max_size=8), _json, max_size=3)
_printed = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
_targets = st.builds(
    Target,
    python=_printed,
    platform=st.sampled_from(sorted(PLATFORMS)),
    glibc=_printed | st.just(""),
    gpus=st.lists(_printed, max_size=3).map(tuple),
    provided=st.lists(_printed, max_size=3).map(tuple),
)
_artifacts = st.builds(
    Artifact,
    kind=st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True),
    path=_paths,
    size=st.integers(0, MAX_SIZE),
    sha256=_hashes,
    executable=st.booleans(),
    origin=_tables,
)
_indexes = st.builds(
    Index,
    name=_words,
    version=_words,
    tool=_words,
    lock=_hashes,
    target=st.none() | _targets,
    entries=st.lists(st.builds(Entry, _artifacts, st.booleans()), max_size=4).map(tuple),
    verify=_tables,
    base=st.none() | _hashes,
)


def require_printable(error: MirrorError) -> None:
    assert all(line.isprintable() for line in str(error).split("\n"))


def _stands(made: Index) -> bool:
    names = [index.INDEX_NAME, index.SIGNATURE_NAME, *(a.path for a in made.artifacts)]
    return not list(paths.problems(names))


@given(_indexes.filter(_stands))
def test_an_index_reads_back_as_it_was_written(made: Index) -> None:
    data = made.to_bytes()
    assert index.parse(data) == made
    assert index.parse(data).to_bytes() == data


@given(_indexes.filter(_stands), st.randoms(use_true_random=False))
def test_a_changed_index_is_refused_or_is_what_it_spells(
    made: Index, choose: random.Random
) -> None:
    data = mutated(made.to_bytes(), made.to_bytes(), choose)
    try:
        found = index.parse(data)
    except (BundleError, TargetError) as error:
        require_printable(error)
        return
    assert found.to_bytes() == data


@given(_paths, st.integers(0, 2**60), st.sampled_from([0o644, 0o755]))
def test_a_header_is_one_that_tar_reads_alike(path: str, size: int, mode: int) -> None:
    header = layout.member_header(path, size, mode)
    assert len(header) % layout.TAR_BLOCK == 0
    with tarfile.open(fileobj=io.BytesIO(header + bytes(1024)), mode="r:") as tar:
        member = tar.next()
    assert member is not None
    assert (member.name, member.size, member.mode) == (path, size, mode)
    assert member.isreg()
    assert (member.uid, member.gid, member.mtime) == (0, 0, 0)


@given(st.lists(_paths, max_size=6))
def test_paths_that_stand_together_unpack_to_as_many_files(names: list[str]) -> None:
    """On a system that tells case and forms of Unicode apart: this one."""
    if list(paths.problems(names)):
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
            assert path.resolve().is_relative_to(Path(folder).resolve())


@given(_json)
def test_strict_json_reads_what_json_does(value: Json) -> None:
    assert strict_json.loads(index.canonical(value)) == value


@given(st.integers(1, 80), st.text(string.printable + '[]{}"\\' * 9, max_size=40))
def test_depth_is_counted_outside_of_texts_alone(depth: int, text: str) -> None:
    value: Any = text
    for number in range(depth):
        value = [value] if number % 2 else {text: value}
    data = index.canonical(value)
    if depth <= strict_json.MAX_DEPTH:
        assert strict_json.loads(data) == value
    else:
        with pytest.raises(ValueError, match="deep"):
            strict_json.loads(data)


# -- whole bundles ------------------------------------------------------------------------------

_CONTENTS = st.binary(max_size=3000) | st.integers(0, 9000).map(bytes)
_BUNDLE = next(surface for surface in TARGETS if surface.name == "bundle")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    bundles.shrink(monkeypatch)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(_paths, _CONTENTS, max_size=4).filter(
        lambda files: not list(paths.problems(files))
    ),
    st.binary(max_size=700),
    st.randoms(use_true_random=False),
)
def test_what_is_taken_is_what_the_writer_makes(
    files: dict[str, bytes], signature: bytes, choose: random.Random
) -> None:
    """The bundle itself is; each change to it is refused, or makes another that a writer makes."""
    if not files or not _stands(bundles.index_of(*(bundles.artifact(p, b"") for p in files))):
        return
    with tempfile.TemporaryDirectory() as folder:
        made = replace(bundles.sources(Path(folder, "in"), files), signature=signature)
        data = made.pack(Path(folder, "b.tar.gz"))
    assert _BUNDLE.read(data)
    for _ in range(10):
        try:
            _BUNDLE.read(mutated(data, data[::-1], choose))
        except (BundleError, TargetError) as error:
            require_printable(error)
