"""`mirror verify --store` and `mirror repair`: what was damaged is found, named and put back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core import delta as deltas
from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.errors import BundleError, MachineError, TrustError
from mirror.install import install
from mirror.planning import Wish
from mirror.repair import Repaired, repair
from mirror.store import damage, environment
from mirror.store.generation import Generation
from mirror.store.generations import Root
from mirror.store.strays import generations
from tests import bundles, signing
from tests.e2e.conftest import CHECKOUT, Demo, mirror, mirror_json

FILES = {"files/a": b"a" * 3000, "files/d/b": b"b" * 50, "files/run.sh": b"#!/bin/sh\n"}


class Place:
    """A root, and bundles for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = Root(folder / "root")

    def pack(
        self,
        name: str,
        files: Mapping[str, bytes],
        held: Iterable[bytes] = (),
        base: Index | None = None,
        further: Mapping[Artifact, bytes] | None = None,
    ) -> Index:
        """A bundle in a file of this name and of this version."""
        made = bundles.sources(self.folder / "in", files)
        kept = {hashlib.sha256(data).hexdigest() for data in held}
        entries = [Entry(a, a.sha256 not in kept) for a in made.index.artifacts]
        for artifact, data in (further or {}).items():
            (made.folder / artifact.sha256).write_bytes(data)
            entries.append(Entry(artifact))
        index = replace(
            made.index,
            version=name,
            entries=tuple(entries),
            base=base.digest if base else None,
        )
        replace(made, index=index).pack(self.folder / name)
        return index

    def install(self, *names: str) -> Generation:
        return install(self.paths(names), self.root, Wish(), Quiet()).generation

    def repair(self, *names: str, trust: Path | None = None) -> Repaired:
        return repair(self.paths(names), self.root, Quiet(), trust=trust)

    def paths(self, names: Iterable[str]) -> list[str]:
        return [str(self.folder / name) for name in names]

    def damaged(self) -> list[str]:
        found = damage.look(self.root, generations(self.root), Quiet(), idle=True)
        return [str(item) for item in found.all]

    def blob(self, data: bytes) -> Path:
        return self.root.blobs.path(hashlib.sha256(data).hexdigest())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    found.pack("1", FILES)
    found.install("1")
    return found


def tree(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a folder: what it is, whose it is, and when it was changed."""
    found: dict[str, tuple[object, ...]] = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        link = os.readlink(path) if path.is_symlink() else ""
        found[str(path.relative_to(folder))] = (status.st_mode, data, link)
    return found


def write(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    mode = stat.S_IMODE(path.stat().st_mode)
    path.chmod(0o644)
    path.write_bytes(bytes(data))
    path.chmod(mode)


def to_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine").write_text("work", encoding="utf-8")


def kept(place: Place, done: Repaired) -> dict[str, bytes]:
    """What was put aside."""
    if done.aside is None:
        return {}
    assert done.aside.parent == place.root.path / "tmp"
    paths = (path for path in done.aside.rglob("*") if path.is_file())
    return {str(path.relative_to(done.aside)): path.read_bytes() for path in paths}


# -- one thing at a time -------------------------------------------------------------------------

DAMAGE: list[Callable[[Place], object]] = [
    lambda p: flip(p.blob(FILES["files/a"])),
    lambda p: write(p.blob(FILES["files/a"]), b""),
    lambda p: write(p.blob(FILES["files/a"]), FILES["files/a"] + b"!"),
    lambda p: p.blob(FILES["files/a"]).unlink(),
    lambda p: p.blob(FILES["files/a"]).chmod(0o666),
    lambda p: to_link(p.blob(FILES["files/a"])),
    lambda p: to_folder(p.blob(FILES["files/a"])),
    lambda p: shutil.rmtree(p.blob(FILES["files/a"]).parent),
    lambda p: (p.root.current().files / "a").unlink(),
    lambda p: to_link(p.root.current().files / "a"),
    lambda p: to_folder(p.root.current().files / "a"),
    lambda p: flip(p.root.current().files / "run.sh"),
    lambda p: (p.root.current().files / "run.sh").chmod(0o444),
    lambda p: shutil.rmtree(p.root.current().files),
    lambda p: (p.root.current().files / "d").chmod(0o700),
    lambda p: (p.root.current().path / "activate").unlink(),
    lambda p: flip(p.root.current().path / "activate"),
    lambda p: flip(p.root.current().index_file),
    lambda p: p.root.current().index_file.unlink(),
    lambda p: flip(p.root.current().seal_file),
    lambda p: p.root.current().seal_file.unlink(),
    lambda p: p.root.current().launch_file.write_text("no JSON", encoding="utf-8"),
    lambda p: flip(p.root.blobs.path(p.root.blobs.put(b"of no generation"))),
]


@pytest.mark.parametrize("number", range(len(DAMAGE)))
def test_each_damage_is_found_and_put_back(place: Place, number: int) -> None:
    before = tree(place.root.current().path), place.damaged()
    assert before[1] == []
    DAMAGE[number](place)
    assert place.damaged() != []
    done = place.repair("1")
    assert done.done
    assert not done.left
    assert place.damaged() == []
    assert tree(place.root.current().path) == before[0]
    assert place.root.current().files.joinpath("a").samefile(place.blob(FILES["files/a"]))
    assert place.repair("1") == Repaired((), (), None)


def test_what_somebody_put_there_is_kept_aside(place: Place) -> None:
    generation = place.root.current()
    (generation.path / "notes" / "deep").mkdir(parents=True)
    (generation.path / "notes" / "deep" / "x").write_text("mine", encoding="utf-8")
    (generation.files / "__pycache__").mkdir()
    (generation.files / "__pycache__" / "m.pyc").touch()
    edited = generation.files / "a"
    edited.unlink()
    edited.write_text("edited", encoding="utf-8")
    flip(place.blob(FILES["files/d/b"]))
    done = place.repair("1")
    assert kept(place, done) == {
        "000001/notes/deep/x": b"mine",
        "000001/files/a": b"edited",
    }, "neither bytecode nor the bytes of a blob"
    assert not (generation.files / "__pycache__").exists()
    assert place.damaged() == []


def test_what_is_right_is_not_touched(place: Place) -> None:
    flip(place.blob(FILES["files/d/b"]))
    spared = [place.blob(FILES["files/a"]), place.root.current().files / "run.sh"]
    spared += [place.root.current().index_file, place.root.current().seal_file]
    before = [(p.stat().st_ino, p.stat().st_ctime_ns) for p in spared]
    place.repair("1")
    assert [(p.stat().st_ino, p.stat().st_ctime_ns) for p in spared] == before


def test_a_blob_that_generations_share_is_healed_in_all(place: Place) -> None:
    place.pack("2", {"files/a": FILES["files/a"], "files/new": b"new"})
    second = place.install("2")
    flip(place.blob(FILES["files/a"]))
    assert len(place.damaged()) == 3
    place.repair("2")
    assert place.damaged() == []
    names = [place.root.generations()[0].files / "a", second.files / "a"]
    assert all(path.samefile(place.blob(FILES["files/a"])) for path in names)


def test_a_bundle_of_another_name_that_has_the_bytes(place: Place) -> None:
    other = {"files/elsewhere": FILES["files/a"], "files/more": b"more"}
    place.pack("other", other)
    flip(place.blob(FILES["files/a"]))
    place.repair("other")
    assert place.damaged() == []
    assert not place.blob(b"more").exists(), "nothing else is taken from it"


def test_a_bundle_that_lacks_the_bytes(place: Place) -> None:
    digest = place.root.current().index().digest
    place.pack("other", {"files/more": b"more"})
    flip(place.blob(FILES["files/a"]))
    (place.root.current().files / "run.sh").unlink()
    with pytest.raises(BundleError) as caught:
        place.repair("other")
    assert f"demo 1, digest {digest}" in str(caught.value)
    assert "files/a" in str(caught.value)
    assert len(place.damaged()) == 2, "what could be put right was"
    place.repair("other", "1")
    assert place.damaged() == []


def test_without_a_bundle_what_needs_none(place: Place) -> None:
    (place.root.current().files / "run.sh").unlink()
    place.repair()
    assert place.damaged() == []
    with pytest.raises(MachineError, match="nothing is installed"):
        repair([], Root(place.folder / "none"), Quiet())


def test_a_damaged_bundle_is_refused(place: Place) -> None:
    flip(place.blob(FILES["files/a"]))
    path = place.folder / "1"
    data = bytearray(path.read_bytes())
    data[data.index(b"a" * 100)] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(BundleError, match="1 is damaged"):
        place.repair("1")
    assert len(place.damaged()) == 2
    assert not bundles.staged(place.root.blobs)


def test_launch_settings_stay(place: Place) -> None:
    generation = place.root.current()
    environment.write_launch(generation, place.root.path, {"env": {"NCCL_P2P_DISABLE": "1"}})
    before = tree(generation.path)
    (generation.path / "activate").unlink()
    place.repair()
    assert tree(generation.path) == before
    flip(generation.path / "activate")
    place.repair()
    assert tree(generation.path) == before


# -- bundles of every form -----------------------------------------------------------------------


def test_volumes(place: Place) -> None:
    data = place.folder / "1"
    folder = place.folder / "volumes"
    folder.mkdir()
    size = data.stat().st_size // 3 + 1
    parts = []
    for number, at in enumerate(range(0, data.stat().st_size, size), 1):
        part = data.read_bytes()[at : at + size]
        (folder / f"b.tar.gz.{number:03d}").write_bytes(part)
        name, digest = f"b.tar.gz.{number:03d}", hashlib.sha256(part).hexdigest()
        parts.append({"name": name, "sha256": digest, "size": len(part)})
    listed = {
        "bundle": place.root.current().index().digest,
        "bytes": data.stat().st_size,
        "format": 1,
        "recovery": [],
        "volumes": parts,
    }
    text = json.dumps(listed, sort_keys=True, separators=(",", ":")) + "\n"
    (folder / "b.tar.gz.volumes.json").write_text(text, encoding="utf-8")
    flip(place.blob(FILES["files/a"]))
    repair([str(folder / "b.tar.gz.001")], place.root, Quiet())
    assert place.damaged() == []


def chain(place: Place) -> tuple[bytes, bytes]:
    """Two increments on what is installed; the second ships a file in part."""
    first = {"files/a": FILES["files/a"], "files/c": b"c" * 4000}
    base = place.root.current().index()
    one = place.pack("first", first, FILES.values(), base)
    new = b"c" * 4000 + b"new"
    changed = {"files/a": FILES["files/a"], "files/c": new}
    part = deltas.artifact(
        hashlib.sha256(new).hexdigest(),
        hashlib.sha256(first["files/c"]).hexdigest(),
        [deltas.Piece(4000, 0), deltas.Piece(3)],
        size=3,
        sha256=hashlib.sha256(b"new").hexdigest(),
    )
    held = [*FILES.values(), new]
    place.pack("second", changed, held, one, {part: b"new"})
    place.install("first")
    place.install("second")
    return first["files/c"], new


def test_an_increment_heals_what_it_ships_and_says_which_has_the_rest(place: Place) -> None:
    base = place.root.current().index().digest
    old, _ = chain(place)
    flip(place.blob(FILES["files/a"]))
    flip(place.blob(old))
    with pytest.raises(BundleError) as caught:
        place.repair("first")
    assert f"in what demo first builds on, the bundle {base}" in str(caught.value)
    assert f"in demo 1, digest {base}" in str(caught.value)
    assert not any(hashlib.sha256(old).hexdigest() in line for line in place.damaged())
    place.repair("second", "1")
    assert place.damaged() == []


def test_a_file_that_was_shipped_in_part_is_put_together_again(place: Place) -> None:
    old, new = chain(place)
    flip(place.blob(new))
    place.repair()  # of what is here
    assert place.damaged() == []
    for data in (old, new, b"new"):
        flip(place.blob(data))
    with pytest.raises(BundleError, match="in demo first, digest"):
        place.repair("second")
    place.repair("second", "first")
    assert place.damaged() == []


def test_a_bundle_that_nobody_trusted_signed(place: Place, tmp_path: Path) -> None:
    signing.ssh_keygen()
    key = signing.make(tmp_path / "alice")
    trusted = tmp_path / "allowed_signers"
    trusted.write_text(f"alice {key.public.line}\n", encoding="utf-8")
    flip(place.blob(FILES["files/a"]))
    with pytest.raises(TrustError):
        place.repair("1", trust=trusted)
    assert len(place.damaged()) == 2
    index = place.root.current().index().to_bytes()
    (place.folder / "1.sig").write_bytes(key.sign(index))
    place.repair("1", trust=trusted)
    assert place.damaged() == []


# -- killed ------------------------------------------------------------------------------------

#: Ends as kill -9 ends it, before its Nth change of the disk.
KILLED = """
import os, signal, sys
last, count = int(sys.argv.pop(1)), 0
def counted(change):
    def run(*args, **named):
        global count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*args, **named)
    return run
for name in ("rename", "replace", "link", "symlink", "unlink", "rmdir", "mkdir", "chmod"):
    setattr(os, name, counted(getattr(os, name)))
from mirror.cli import main
main()
"""


def test_killed_anywhere_running_it_again_finishes(place: Place) -> None:
    chain(place)
    generation = place.root.current()
    before = {g.number: tree(g.path) for g in place.root.generations()}
    flip(place.blob(FILES["files/a"]))
    (generation.files / "c").unlink()
    (generation.path / "extra").write_text("mine", encoding="utf-8")
    (generation.path / "activate").unlink()
    flip(generation.index_file)
    saved = place.folder / "saved"
    shutil.copytree(place.root.path, saved, symlinks=True)
    moment = 1
    while True:
        command = [sys.executable, "-c", KILLED, str(moment), "repair", "-q"]
        command += [*place.paths(["second", "1"]), "--root", str(place.root.path)]
        ended = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, timeout=60, check=False
        ).returncode
        assert ended in (0, -signal.SIGKILL)
        place.repair("second", "1")
        assert place.damaged() == []
        assert {g.number: tree(g.path) for g in place.root.generations()} == before
        aside = [p.read_bytes() for p in (place.root.path / "tmp").rglob("extra")]
        assert aside == [b"mine"]
        if not ended:
            break
        moment += 7
        shutil.rmtree(place.root.path)
        shutil.copytree(saved, place.root.path, symlinks=True)
    assert moment > 20


# -- as people run it ----------------------------------------------------------------------------


def test_the_command_line(place: Place) -> None:
    root = place.root.path
    assert mirror_json("verify", "--store", "--root", root)["verdict"] == "pass"
    flip(place.blob(FILES["files/a"]))
    (place.root.current().path / "extra").touch()
    said = mirror("verify", "--store", "--root", root, code=9).stdout
    assert "Verification failed: store." in said
    assert "files/a" in said
    assert "extra is a file" in said
    assert "mirror repair BUNDLE" in said
    report = json.loads(mirror("verify", "--store", "--json", "--root", root, code=9).stdout)
    assert [stage["name"] for stage in report["stages"]] == ["store"]
    mirror("verify", "--store", "--all", "--root", root, code=9)
    mirror("verify", "--all", "--root", root, code=2)
    mirror("verify", "--store", "--all", "--generation", 1, "--root", root, code=2)
    before = tree(root)
    bundle = place.folder / "1"
    planned = mirror_json("repair", bundle, "--dry-run", "--root", root)
    assert len(planned["repaired"]) == 3
    assert f"put back from {bundle}" in planned["repaired"][0]
    assert mirror_json("repair", "--dry-run", "--root", root, code=5)["damaged"]
    assert tree(root) == before
    mirror("repair", "--root", root, code=5)
    done = mirror_json("repair", bundle, "--root", root)
    assert done["damaged"] == []
    log = (root / "log" / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    last = [json.loads(line) for line in log][-1]
    assert (last["action"], last["state"], last["left"]) == ("repair", "done", 0)
    assert "nothing is damaged" in mirror("repair", bundle, "--root", root).stdout
    mirror("verify", "--store", "--all", "--root", root)
    mirror("repair", place.folder / "none", "--root", root, code=2)


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes somebody else")
def test_somebody_else_may_look(place: Place, tmp_path: Path) -> None:
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == 0 and folder != Path("/") and folder.name != "tmp":
            folder.chmod(0o755)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    python = Path(sys.executable).resolve()
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if subprocess.run([*nobody, python, "-c", ""], check=False).returncode:
        pytest.skip("nobody may not start this Python")
    flip(place.blob(FILES["files/a"]))
    variables = {"XDG_STATE_HOME": str(state), "HOME": str(state)}
    line = ("verify", "--store", "--all", "--root", place.root.path)
    said = mirror(*line, before=nobody, environment=variables, code=9).stdout
    assert "files/a" in said
    assert f"report: {state}" in said.replace("\n", " ")


# -- an environment ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def env_root(demo_bundle: Demo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root of its own with the demo: an environment of wheels in a conda prefix, and a model."""
    root = tmp_path_factory.mktemp("env") / "root"
    mirror("install", demo_bundle.bundle, "--root", root)
    return root


def test_an_environment_is_made_whole_again(env_root: Path, demo_bundle: Demo) -> None:
    root = Root(env_root)
    generation = root.current()
    before = tree(generation.path)
    inside = next(generation.env.glob("lib/python3*/site-packages"))
    flip(next(inside.glob("tokenizers/*.so")))
    write(inside / "accelerate" / "__init__.py", b"import os\n")
    shutil.rmtree(inside / "safetensors")
    (generation.env / "bin" / "accelerate").write_text("#!/bin/false\n", encoding="utf-8")
    next(inside.glob("accelerate-*.dist-info/RECORD")).unlink()
    next(generation.env.glob("conda-meta/*.json")).write_text("{}", encoding="utf-8")
    (inside / "mirror-over.pth").unlink()
    (generation.env / "pyvenv.cfg").unlink()
    (inside / "hack.py").write_text("mine", encoding="utf-8")
    (generation.tool / "bin" / "mirror").write_text("#!/bin/false\n", encoding="utf-8")
    next(path for path in generation.hub.rglob("*") if path.is_symlink()).unlink()
    next(generation.hub.rglob("refs/*")).unlink()
    (generation.models / "mirror" / "tiny-llama").unlink()
    weights = next(generation.hub.rglob("model.safetensors"))
    flip(weights.resolve())
    mirror("verify", "--store", "--root", env_root, code=9)
    said = mirror("repair", demo_bundle.bundle, "--root", env_root)
    after = tree(generation.path)
    assert after.keys() == before.keys()
    assert [path for path in after if after[path] != before[path]] == []
    assert "sealed again" not in said.stderr
    mirror("verify", "--store", "--all", "--root", env_root)
    assert [g.number for g in root.generations()] == [1]
    assert sorted(p.name for p in (env_root / "generations").iterdir()) == ["000001"]


def test_an_environment_without_a_seal(env_root: Path) -> None:
    generation = Root(env_root).current()
    before = tree(generation.path)
    generation.seal_file.unlink()
    next(generation.env.glob("lib/python3*/site-packages/accelerate/__init__.py")).unlink()
    mirror("verify", "--store", "--root", env_root, code=9)
    mirror("repair", "--root", env_root)
    after = tree(generation.path)
    assert after.keys() == before.keys()
    # What uv writes of the time differs, and with it the records that list that.
    differ = {Path(path).name for path in after if after[path] != before[path]}
    assert differ <= {"seal", "uv_cache.json", "RECORD"}
    mirror("verify", "--store", "--all", "--root", env_root)
