"""Blobs, atomic writes and generations: whole or not at all."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mirror.core.index import Index
from mirror.errors import BundleError, MachineError
from mirror.install import rollback
from mirror.store import atomic
from mirror.store.blobs import Blobs, hash_file, place
from mirror.store.generation import Generation
from mirror.store.generations import Root, remove_tree

INDEX = Index(name="demo", version="1", tool="0", lock="0" * 64, target=None, entries=())


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path / "root")
    root.prepare()
    return root


def committed(root: Root) -> Generation:
    generation = root.begin()
    root.finish(generation, INDEX)
    root.commit(generation)
    return generation


def test_a_blob_is_named_by_its_bytes(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(b"abc")
    assert name == hashlib.sha256(b"abc").hexdigest() == hash_file(blobs.path(name))
    assert blobs.has(name, 3)
    assert not blobs.has(name, 4)
    assert not blobs.has("0" * 64)
    assert blobs.path(name).stat().st_mode & 0o777 == 0o444
    blobs.check(name)
    assert not list(blobs.temporary.iterdir())


def test_a_changed_blob_is_found(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    name = blobs.put(b"abc")
    blobs.path(name).chmod(0o644)
    blobs.path(name).write_bytes(b"abd")
    with pytest.raises(BundleError, match="has changed"):
        blobs.check(name)
    blobs.path(name).unlink()
    with pytest.raises(BundleError, match="missing"):
        blobs.check(name)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    atomic.write(path, b"one")
    atomic.write(path, b"two", 0o600)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["f"]


def test_data_is_linked_and_a_script_is_a_copy(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "s")
    blob = blobs.path(blobs.put(b"#!/bin/sh\n"))
    place(blob, tmp_path / "x" / "data")
    place(blob, tmp_path / "x" / "script", executable=True)
    assert (tmp_path / "x" / "data").stat().st_ino == blob.stat().st_ino
    assert (tmp_path / "x" / "script").stat().st_mode & 0o777 == 0o555
    assert blob.stat().st_mode & 0o777 == 0o444


def test_generations_count_up_and_roll_back(root: Root) -> None:
    with pytest.raises(MachineError, match="nothing is installed"):
        root.current()
    first, second = committed(root), committed(root)
    assert [g.number for g in root.generations()] == [1, 2]
    assert root.current() == second
    assert rollback(root, None) == first
    assert root.current() == first
    assert rollback(root, 2) == second
    with pytest.raises(MachineError, match="no generation 7"):
        rollback(root, 7)
    rollback(root, 1)
    with pytest.raises(MachineError, match="none is older"):
        rollback(root, None)
    assert committed(root).number == 3


def test_what_an_interrupted_install_left_is_removed_by_the_next(root: Root) -> None:
    done = committed(root)
    begun = root.begin()
    (begun.path / "half").mkdir(mode=0o555)
    assert root.generations() == [done]
    assert root.current() == done
    again = root.begin()
    assert again.path == begun.path
    assert not list(again.path.iterdir())


def test_a_current_that_points_at_nothing_whole_is_named(root: Root) -> None:
    generation = committed(root)
    generation.index_file.unlink()
    with pytest.raises(BundleError, match="no whole generation"):
        root.current()


def test_a_generation_whose_record_changed_is_named(root: Root) -> None:
    generation = committed(root)
    generation.index_file.chmod(0o644)
    generation.index_file.write_bytes(b"{}")
    with pytest.raises(BundleError):
        generation.index()


def test_a_root_is_held_by_one(root: Root) -> None:
    code = (
        "import sys; from pathlib import Path; from mirror.store.generations import Root\n"
        "with Root(Path(sys.argv[1])).locked():\n print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(root.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(MachineError, match="another mirror is at work"), root.locked():
            pass
        other.communicate()
    with root.locked():
        pass


def test_a_root_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot be written"):
        Root(tmp_path / "file" / "root").prepare()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(MachineError, match="written by everybody"):
        Root(tmp_path / "open").prepare()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "store").symlink_to(tmp_path)
    with pytest.raises(MachineError, match="symbolic link"):
        Root(tmp_path / "linked").prepare()


def test_a_tree_is_removed_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "link").symlink_to(outside)
    (tree / "deep").chmod(0o555)
    remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()


def test_a_tree_is_removed_while_another_thread_works_in_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    done = threading.Event()

    def work() -> None:
        """As an installer that was told to stop and has not heard it yet: comes and goes."""
        for number in range(300):
            folder = tree / f"{number % 7}"
            try:
                folder.mkdir()
                (folder / "file").touch()
                (folder / "file").unlink()
                folder.rmdir()
            except OSError:
                pass
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    remove_tree(tree)
    done.wait(10)
    thread.join()
    remove_tree(tree)
    assert not tree.exists()
