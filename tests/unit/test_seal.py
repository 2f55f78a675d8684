"""The seal of a generation, and what is found by it: each byte that changed, went or came."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirror import verify
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.ecosystems.wheels import installed
from mirror.errors import BundleError, MachineError
from mirror.store import blobs, damage, environment, seal
from mirror.store.generation import Generation
from mirror.store.generations import Root
from mirror.store.hashing import failed, hash_all
from mirror.store.strays import generations, in_use, strays
from mirror.verify import store
from mirror.verify.report import Check
from tests import bundles

FILES = {"files/a": b"a" * 3000, "files/d/b": b"b", "files/run.sh": b"#!/bin/sh\n"}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    found = Root(tmp_path / "root")
    found.prepare()
    add(found)
    return found


def add(root: Root, version: str = "1") -> Generation:
    """A generation with files, an environment and links, in use."""
    made = [bundles.artifact(p, d, executable=p.endswith(".sh")) for p, d in FILES.items()]
    index = Index("demo", version, "0.1", "0" * 64, None, tuple(map(Entry, made)))
    generation = root.begin()
    for artifact in made:
        root.blobs.put(FILES[artifact.path])
        blob, place = root.blobs.path(artifact.sha256), generation.path / artifact.path
        blobs.place(blob, place, executable=artifact.executable)
    packages = generation.env / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "mod.py").write_text("x = 1\n", encoding="utf-8")
    (packages / "na\nme \udce9").write_bytes(b"")
    (generation.env / "bin").mkdir()
    (generation.env / "bin" / "python").symlink_to("/usr/bin/python3")
    (generation.env / "empty").mkdir()
    environment.write_activate(generation, root.path)
    root.finish(generation, index, made={"root": str(root.path)})
    root.commit(generation)
    return generation


def found(root: Root, *, idle: bool = False) -> list[tuple[str, str]]:
    """What differs: sort and path of each."""
    seen = damage.look(root, generations(root), Quiet(), idle=idle)
    return sorted((item.what, item.path) for item in seen.all)


def write(path: Path, data: bytes) -> None:
    """Write into a file as it stands: under all its names."""
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(mode)


# -- the file ------------------------------------------------------------------------------------


def test_it_lists_everything_once_in_one_spelling(root: Root) -> None:
    generation = root.current()
    data = generation.seal_file.read_bytes()
    first, *lines, last = data.decode("ascii").splitlines()
    head = json.loads(first)
    assert head["bundle"] == generation.index().digest
    assert head["made"] == {"root": str(root.path)}
    paths = [json.loads(line)[1] for line in lines]
    assert paths == sorted(paths)
    there = {str(p.relative_to(generation.path)) for p in generation.path.rglob("*")}
    assert {*paths, "index.json", "seal"} == there
    assert len(last) == 64
    assert seal.read(generation.path).to_bytes() == data
    assert stat.S_IMODE(generation.seal_file.stat().st_mode) == 0o444
    assert ["l", "env/bin/python", "/usr/bin/python3"] in [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.replace(b"mod.py", b"mod.pi"), "has changed"),
        (lambda data: data[:-1], "has changed"),
        (lambda data: data + b"\n", "has changed"),
        (lambda data: b"", "has changed"),
    ],
)
def test_a_changed_one_is_refused(root: Root, change: Callable[[bytes], bytes], says: str) -> None:
    generation = root.current()
    write(generation.seal_file, change(generation.seal_file.read_bytes()))
    with pytest.raises(BundleError, match=says):
        seal.read(generation.path)
    assert found(root) == [("changed", "seal")]


def test_one_of_another_kind_is_refused(root: Root) -> None:
    generation = root.current()
    whole = seal.read(generation.path)
    odd = replace(whole, entries={"x": seal.Entry("x", "f", 0o444, 1, "")})
    write(generation.seal_file, odd.to_bytes().replace(b'"format":1', b'"format":2'))
    with pytest.raises(BundleError):
        seal.read(generation.path)
    generation.seal_file.unlink()
    with pytest.raises(BundleError, match="is missing"):
        seal.read(generation.path)


def test_what_is_linked_to_blobs_is_not_read_again(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = os.open

    def watched(path: str, *rest: int, **named: int) -> int:
        seen.append(str(path))
        return real(path, *rest, **named)

    monkeypatch.setattr(os, "open", watched)
    generation = add(root, "2")
    read = {os.path.relpath(path, generation.path) for path in seen}
    assert "files/run.sh" in read  # an executable is a copy
    assert "files/a" not in read
    # Nor does a look at all read a file under two names twice.
    seen.clear()
    damage.look(root, generations(root), Quiet(), idle=True)
    opened = [path for path in seen if path != str(generation.seal_file)]
    assert len({os.stat(p).st_ino for p in opened}) == len(opened)


def test_of_a_large_file_the_word_of_its_wheel_is_taken(root: Root) -> None:
    generation = root.begin()
    folder = generation.env / "lib" / "python3.11" / "site-packages"
    (folder / "a-1.dist-info").mkdir(parents=True)
    (folder / "b-1.dist-info").mkdir()
    whole = {name: os.urandom(installed.LARGE) for name in ("right", "wrong", "torn")}
    rows = []
    for name, data in whole.items():
        (folder / name).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    (folder / "small").write_bytes(b"x")
    rows += ["small,sha256=AAAA,1\n", "odd,sha256=\n", "a-1.dist-info/RECORD,,\n"]
    (folder / "a-1.dist-info" / "RECORD").write_text("".join(rows), encoding="utf-8")
    other = rows[0].replace("right", "torn")  # two wheels that do not agree
    (folder / "b-1.dist-info" / "RECORD").write_text(other, encoding="utf-8")
    (folder / "wrong").write_bytes(whole["right"])
    stated = installed.stated(generation)
    assert sorted(map(os.path.basename, stated)) == ["right", "wrong"]
    index = Index("demo", "2", "0.1", "0" * 64, None, ())
    digest = root.finish(generation, index, stated=stated)
    root.commit(generation)
    assert digest == hashlib.sha256(generation.seal_file.read_bytes()).hexdigest()
    # Written wrongly when it was unpacked: found the first time that somebody looks.
    assert found(root) == [("changed", "env/lib/python3.11/site-packages/wrong")]


# -- what is found -------------------------------------------------------------------------------


def nothing(generation: Generation) -> None:
    """Leave it as it is."""


def with_path(change: Callable[[Path], object], path: str) -> Callable[[Generation], object]:
    return lambda generation: change(generation.path / path)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    write(path, bytes(data))


def to_link(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target.name)


MOD = "env/lib/python3.11/site-packages/mod.py"
CASES: list[tuple[Callable[[Generation], object], list[tuple[str, str]]]] = [
    (nothing, []),
    (with_path(flip, MOD), [("changed", MOD)]),
    (with_path(lambda p: write(p, b""), MOD), [("changed", MOD)]),
    (with_path(Path.unlink, MOD), [("missing", MOD)]),
    (with_path(lambda p: p.chmod(0o600), MOD), [("mode", MOD)]),
    (with_path(lambda p: p.chmod(0o700), "env/empty"), [("mode", "env/empty")]),
    (with_path(Path.rmdir, "env/empty"), [("missing", "env/empty")]),
    (with_path(to_link, MOD), [("changed", MOD), ("extra", MOD.replace("mod.py", "target"))]),
    (with_path(flip, "files/run.sh"), [("changed", "files/run.sh")]),
    (with_path(flip, "files/a"), [("changed", "files/a"), ("changed", "files/a")]),
    (with_path(Path.unlink, "files/a"), [("missing", "files/a")]),
    (with_path(Path.unlink, "env/bin/python"), [("missing", "env/bin/python")]),
    (with_path(flip, "activate"), [("changed", "activate")]),
    (with_path(Path.touch, "env/new"), [("extra", "env/new")]),
    (with_path(Path.mkdir, "new"), [("extra", "new")]),
    (with_path(os.mkfifo, "env/pipe"), [("extra", "env/pipe")]),
    (with_path(lambda p: write(p, p.read_bytes()[:-2]), "index.json"), [("changed", "index.json")]),
    (with_path(Path.unlink, "index.json"), [("changed", "index.json")]),
    (with_path(lambda p: p.chmod(0o644), "index.json"), [("mode", "index.json")]),
    (with_path(lambda p: p.write_text("{"), "launch.json"), [("changed", "launch.json")]),
]


@pytest.mark.parametrize(("change", "expected"), CASES)
def test_each_change_is_found_and_no_other(
    root: Root, change: Callable[[Generation], object], expected: list[tuple[str, str]]
) -> None:
    change(root.current())
    assert found(root) == expected


def test_a_link_with_another_target(root: Root) -> None:
    python = root.current().python
    python.unlink()
    python.symlink_to("/usr/bin/false")
    [item] = damage.look(root, generations(root), Quiet()).all
    assert "is a link to /usr/bin/false, not to /usr/bin/python3" in str(item)


def test_an_index_of_another_bundle(root: Root) -> None:
    generation = root.current()
    other = replace(generation.index(), version="9")
    write(generation.index_file, other.to_bytes())
    assert found(root) == [("changed", "index.json")]


def test_bytecode_that_came_later_is_told_apart(root: Root) -> None:
    folder = root.current().path / MOD
    cache = folder.with_name("__pycache__")
    cache.mkdir()
    (cache / "mod.cpython-311.pyc").touch()
    assert {what for what, _ in found(root)} == {"bytecode"}
    (cache / "notes.txt").touch()
    (cache.with_name("mod.pyc")).touch()  # which Python would import without a source
    assert [path for what, path in found(root) if what == "extra"] == [
        MOD.replace("mod.py", "__pycache__/notes.txt"),
        MOD.replace("mod.py", "mod.pyc"),
    ]


def test_launch_settings_that_verify_wrote_belong(root: Root) -> None:
    generation = root.current()
    activate = generation.path / "activate"
    before = activate.read_bytes()
    for value in ("1", "it's 2"):
        environment.write_launch(generation, root.path, {"env": {"NCCL_P2P_DISABLE": value}})
        assert found(root) == []
        assert activate.read_bytes().startswith(before)
    activate.write_bytes(activate.read_bytes() + b"export MORE=1\n")
    assert found(root) == [("changed", "activate")]
    environment.write_launch(generation, root.path, {"env": {}})
    assert activate.read_bytes() == before
    activate.write_bytes(before + b"# Launch settings, written by mirror verify.\nexport A=1\n")
    assert found(root) == [("changed", "activate")]


def test_blobs_are_held_against_their_names(root: Root) -> None:
    listed = root.blobs.path(bundles.artifact("x", FILES["files/d/b"]).sha256)
    listed.unlink()
    idle = root.blobs.put(b"of no generation")
    flip(root.blobs.path(idle))
    assert found(root) == [("missing", "files/d/b")]
    assert found(root, idle=True) == [("changed", ""), ("missing", "files/d/b")]
    linked = root.blobs.path(bundles.artifact("x", FILES["files/a"]).sha256)
    linked.chmod(0o644)  # of all its names
    assert ("mode", "files/a") in found(root)


def test_what_is_no_part_of_a_root_is_named(root: Root) -> None:
    (root.path / "tmp" / "anything").touch()
    (root.path / "log" / "anything").touch()
    assert strays(root) == []
    places = ("x", "store/x", "store/sha256/zz/", "store/sha256/ab/x", "generations/x")
    for place in places:
        path = root.path / place
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if place.endswith("/") else path.touch()
    (root.path / "generations" / "000009").mkdir()
    root.blobs.staging().touch()
    told = strays(root)
    assert len(told) == len(places) + 2
    assert any("000009 was left by an interrupted install" in line for line in told)
    assert any("store/tmp has 1 file" in line for line in told)


def test_the_one_in_use_is_looked_at_though_its_record_has_gone(root: Root) -> None:
    root.current().index_file.unlink()
    assert (in_use(root), [g.number for g in generations(root)]) == (1, [1])
    (root.path / "current").unlink()
    assert (in_use(root), generations(root)) == (None, [])


# -- reading -------------------------------------------------------------------------------------


def test_many_files_large_and_small(tmp_path: Path) -> None:
    datas = [os.urandom(size) for size in (0, 1, 2**18, 2**21 + 1, *range(200))]
    files = []
    for number, data in enumerate(datas):
        (tmp_path / str(number)).write_bytes(data)
        files.append((str(tmp_path / str(number)), len(data)))
    (tmp_path / "link").symlink_to("0")
    bars = bundles.Bars()
    answers = hash_all([*files, (str(tmp_path / "link"), 0), ("/none", 0)], "reading", bars)
    assert answers[:-2] == [bundles.artifact("x", data).sha256 for data in datas]
    assert all(failed(answer) for answer in answers[-2:])
    assert "No such file" in answers[-1]
    assert bars.seen == [("reading", sum(map(len, datas)), sum(map(len, datas)))]


def test_reading_ends_when_it_is_interrupted(root: Root) -> None:
    with pytest.raises(KeyboardInterrupt):
        damage.look(root, generations(root), bundles.Interrupted())


# -- verify --store ------------------------------------------------------------------------------


def checks(root: Root, number: int | None = None, *, everything: bool = False) -> list[Check]:
    chosen = None if everything else store.choose(root, number)
    return store.self_check(root, chosen, Quiet())


def test_the_self_check_names_all_and_the_bundle(root: Root) -> None:
    assert [check.verdict for check in checks(root)] == ["pass", "pass"]
    generation = root.current()
    flip(generation.files / "a")
    (generation.env / "new").touch()
    (generation.path / MOD).with_name("__pycache__").mkdir()
    (generation.path / MOD).with_name("__pycache__").joinpath("mod.pyc").touch()
    (root.path / "stray").touch()
    stored, tree, bytecode, rest = checks(root)
    digest = generation.index().digest
    assert (stored.verdict, tree.verdict) == ("fail", "fail")
    assert stored.evidence.startswith("1 changed of 3 blobs")
    assert f"demo 1, digest {digest}" in stored.advice
    assert tree.evidence.startswith("1 changed, 1 extra of ")
    assert "generation 1: env/new is a file nobody installed" in tree.evidence
    assert (bytecode.verdict, rest.verdict) == ("warn", "warn")
    assert "mod.pyc" in bytecode.evidence
    assert "stray is no part of a root" in rest.evidence


def test_one_generation_or_all(root: Root) -> None:
    flip(root.current().path / MOD)
    add(root, "2")
    flip(root.blobs.path(root.blobs.put(b"of no generation")))
    assert {check.verdict for check in checks(root)} == {"pass"}
    assert [check.verdict for check in checks(root, 1)] == ["pass", "fail"]
    everything = checks(root, everything=True)
    assert [check.verdict for check in everything] == ["fail", "fail", "pass"]
    assert "1 of them of no generation" in everything[0].evidence
    with pytest.raises(MachineError, match="no generation 7"):
        checks(root, 7)
    (root.path / "current").unlink()
    with pytest.raises(MachineError, match="nothing is in use"):
        checks(root)


def test_the_report_says_in_its_first_line_what_was_found(root: Root, tmp_path: Path) -> None:
    report = verify.verify_store(root, report_folder=tmp_path / "new" / "r", progress=Quiet())
    assert report.headline == "Every byte is the one that was installed."
    for number in range(30):
        (root.current().env / f"new{number}").touch()
    report = verify.verify_store(root, report_folder=tmp_path / "r", progress=Quiet())
    assert report.headline == "Verification failed: store."
    text = (tmp_path / "r" / "report.json").read_text(encoding="utf-8")
    assert all(f"env/new{number} is" in text for number in range(30))
    (tree,) = (c for c in report.stages[0].checks if c.name == "generation 1")
    assert tree.evidence.startswith("30 extra of ")
