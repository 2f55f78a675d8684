"""Bundles that build on one another: installed one by one, in one go, and with a link missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.errors import MirrorError, TargetError, UsageError
from mirror.gc import collect
from mirror.install import Installed, install, rehearse
from mirror.planning import Wish
from mirror.store.generations import Root
from tests import bundles

FULL = {"files/a": b"a" * 3000, "files/b": b"b"}
FIRST = {"files/a": FULL["files/a"], "files/b": b"B", "files/c": b"c" * 5000}
SECOND = {"files/a": FULL["files/a"], "files/c": FIRST["files/c"], "files/d": b"d"}


class Chain:
    """full <- first <- second, each shipping only what is new in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = Root(folder / "root")
        self.full = self.pack("full", FULL, None, ())
        self.first = self.pack("first", FIRST, self.full, FULL.values())
        self.second = self.pack("second", SECOND, self.first, FIRST.values())

    def pack(
        self, name: str, files: Mapping[str, bytes], base: Index | None, held: Iterable[bytes]
    ) -> Index:
        made = bundles.sources(self.folder / "in", files)
        kept = {bundles.artifact("files/x", data).sha256 for data in held}
        entries = tuple(Entry(a, a.sha256 not in kept) for a in made.index.artifacts)
        index = replace(
            made.index,
            version=name,
            base=base.digest if base else None,
            entries=entries,
        )
        replace(made, index=index).pack(self.path(name))
        return index

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.tar.gz"

    def install(self, *names: str) -> Installed:
        paths = [str(self.path(name)) for name in names]
        return install(paths, self.root, Wish(), Quiet())

    def refused(self, *names: str, kind: type[MirrorError] = TargetError) -> str:
        """Assert that nothing is written; returns what is said, the same as by --dry-run."""
        before = self.tree()
        said = []
        for use in (install, rehearse):
            with pytest.raises(kind) as caught:
                use([str(self.path(name)) for name in names], self.root, Wish(), Quiet())
            said.append(str(caught.value))
        assert said[0] == said[1]
        assert self.tree() == before
        return said[0]

    def tree(self) -> set[Path]:
        return {p for p in self.root.path.rglob("*") if p.name != "lock"}

    def files(self) -> dict[str, bytes]:
        folder = self.root.current().files
        return {f"files/{p.name}": p.read_bytes() for p in folder.iterdir()}


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path)


def test_one_after_the_other(chain: Chain) -> None:
    for number, (name, files) in enumerate(
        [("full", FULL), ("first", FIRST), ("second", SECOND)], start=1
    ):
        done = chain.install(name)
        assert (done.generation.number, done.changed) == (number, True)
        assert chain.files() == files


def test_all_in_one_go_make_one_generation(chain: Chain) -> None:
    done = chain.install("full", "first", "second")
    assert done.index == chain.second
    assert [g.number for g in chain.root.generations()] == [1]
    assert chain.files() == SECOND
    for name in ("full", "first"):  # which is why these install without their bytes now
        chain.path(name).unlink()
    assert not chain.install("second").changed


def test_the_rest_of_a_chain_in_one_go(chain: Chain) -> None:
    chain.install("full")
    assert chain.install("first", "second").generation.number == 2
    assert chain.files() == SECOND


def test_a_link_installed_twice(chain: Chain) -> None:
    chain.install("full", "first")
    again = chain.install("first")
    assert not again.changed
    assert len(chain.root.generations()) == 1


def test_the_whole_chain_again_after_its_end(chain: Chain) -> None:
    chain.install("full", "first", "second")
    assert not chain.install("full", "first", "second").changed


def test_without_the_base(chain: Chain) -> None:
    said = chain.refused("first")
    assert "first.tar.gz builds on 1 file (3.00 kB) that neither it holds nor the root" in said
    assert "files/a (3.00 kB)" in said
    assert f"the bundle {chain.full.digest} holds them, or one that it builds on" in said
    assert "nothing is installed here" in said


def test_a_skipped_link(chain: Chain) -> None:
    chain.install("full")
    said = chain.refused("second")
    assert "files/c (5.00 kB)" in said
    assert "files/a" not in said
    assert f"the bundle {chain.first.digest} holds them" in said
    assert f"here is generation 1: demo full, {chain.full.digest}" in said


def test_a_skipped_link_in_one_go(chain: Chain) -> None:
    assert "files/c (5.00 kB)" in chain.refused("full", "second")


def test_a_skipped_link_that_is_not_needed(chain: Chain) -> None:
    files = {"files/a": FULL["files/a"], "files/e": b"e"}
    chain.pack("third", files, chain.second, SECOND.values())
    chain.install("full", "third")
    assert chain.files() == files


def test_a_base_that_lacks_its_own_base(chain: Chain) -> None:
    said = chain.refused("first", "second")
    assert "files/a (3.00 kB)" in said
    assert "first.tar.gz is that bundle; what it builds on is missing too" in said


def test_what_has_gone_from_the_store(chain: Chain) -> None:
    chain.install("full")
    chain.root.blobs.path(chain.full.artifacts[0].sha256).unlink()
    said = chain.refused("first")
    assert "that bundle is generation 1 here, and its files have gone since" in said
    chain.install("full", "first")
    assert chain.files() == FIRST


def test_after_gc_removed_what_it_needs(chain: Chain) -> None:
    chain.pack("other", {"files/z": b"z"}, None, ())
    chain.install("full")
    chain.install("other")
    collect(chain.root, 0, Quiet())
    said = chain.refused("first")
    assert f"the bundle {chain.full.digest} holds them" in said
    assert "here is generation 2: demo other" in said
    chain.install("full", "first")
    assert chain.files() == FIRST


def test_gc_keeps_what_the_next_link_needs(chain: Chain) -> None:
    chain.install("full", "first")
    collect(chain.root, 0, Quiet())
    chain.install("second")
    assert chain.files() == SECOND


def test_a_blob_of_the_wrong_size_is_missing(chain: Chain) -> None:
    chain.install("full")
    blob = chain.root.blobs.path(chain.full.artifacts[0].sha256)
    blob.unlink()
    blob.write_bytes(b"short")
    assert "files/a" in chain.refused("first")


def test_an_increment_for_another_root(chain: Chain, tmp_path: Path) -> None:
    chain.pack("other", {"files/z": b"z"}, None, ())
    chain.install("other")
    said = chain.refused("first")
    assert "here is generation 1: demo other" in said
    assert "mirror probe" in said


def test_an_increment_on_an_inventory_names_no_bundle(chain: Chain) -> None:
    chain.pack("probed", FIRST, None, FULL.values())
    assert "names no bundle that holds them" in chain.refused("probed")
    chain.install("full")
    chain.install("probed")
    assert chain.files() == FIRST


def test_many_missing_are_counted(chain: Chain) -> None:
    files = {f"files/{n}": bytes([n]) * 10 for n in range(40)}
    base = chain.pack("many", files, None, ())
    chain.pack("none", files, base, files.values())
    said = chain.refused("none")
    assert "builds on 40 files (400 B)" in said
    assert "and 28 more" in said


def test_no_change_is_a_generation_of_its_own_record(chain: Chain) -> None:
    chain.pack("same", FULL, chain.full, FULL.values())
    assert chain.path("same").stat().st_size < 3_000
    chain.install("full")
    assert chain.install("same").generation.number == 2
    assert chain.files() == FULL


def test_the_wrong_order_is_named(chain: Chain) -> None:
    said = chain.refused("first", "full", kind=UsageError)
    assert f"{chain.path('first')} builds on {chain.path('full')}, after it" in said


def test_the_same_bundle_twice(chain: Chain) -> None:
    copy = chain.path("copy")
    copy.write_bytes(chain.path("full").read_bytes())
    assert "two of the bundles are the same" in chain.refused("full", "copy", kind=UsageError)
    assert "named twice" in chain.refused("full", "full", kind=UsageError)


def test_bundles_that_have_nothing_to_do_with_each_other(chain: Chain) -> None:
    chain.pack("other", {"files/z": b"z"}, None, ())
    said = chain.refused("other", "full", kind=UsageError)
    assert f"{chain.path('other')} is nothing that the ones after it build on" in said


def test_a_damaged_link_ends_it_before_a_generation_is_made(chain: Chain) -> None:
    chain.install("full")
    data = bytearray(chain.path("second").read_bytes())
    data[-1100] ^= 1
    chain.path("second").write_bytes(data)
    with pytest.raises(MirrorError, match="is damaged"):
        chain.install("first", "second")
    assert [g.number for g in chain.root.generations()] == [1]
    assert chain.files() == FULL
    assert not bundles.staged(chain.root.blobs)
