"""`mirror install --into-cache`: beside what a cache of the Hub holds, harming nothing."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact
from mirror.core.progress import Quiet
from mirror.ecosystems.models import into_cache
from mirror.ecosystems.models.into_cache import Additions
from mirror.errors import BundleError, MachineError, MirrorError, UsageError
from mirror.store.generations import Root
from tests.hub.hub import git_id
from tests.repositories import carried, tree

CHECKOUT = Path(__file__).parents[2]
CONFIG, WEIGHTS = b"{}\n", bytes(range(256)) * 40
FILES = {"config.json": CONFIG, "sub/w.safetensors": WEIGHTS}
COMMIT, OTHER = "c" * 40, "d" * 40


@pytest.fixture
def root(tmp_path: Path) -> Root:
    found = Root(tmp_path / "root")
    found.prepare()
    return found


@pytest.fixture
def artifacts(root: Root) -> list[Artifact]:
    return [
        *carried(root.blobs, FILES, commit=COMMIT),
        *carried(root.blobs, {"data.json": b"[1]"}, kind="datasets", commit=COMMIT),
    ]


def consider(artifacts: list[Artifact], cache: Path, root: Root) -> Additions:
    return into_cache.consider(artifacts, cache, root, Quiet())


def lay(artifacts: list[Artifact], cache: Path, root: Root) -> Additions:
    additions = consider(artifacts, cache, root)
    additions.lay(root.blobs, Quiet())
    return additions


def error(artifacts: list[Artifact], cache: Path, root: Root) -> MirrorError:
    """What is found when it is looked at; nothing is written then."""
    before = tree(cache)
    with pytest.raises(MirrorError) as caught:
        consider(artifacts, cache, root)
    assert tree(cache) == before
    return caught.value


def state(folder: Path) -> dict[str, object]:
    """Everything that could be harmed: bytes, link targets, modes, times."""
    return {
        path.relative_to(folder).as_posix(): (
            os.readlink(path) if path.is_symlink() else path.is_dir() or path.read_bytes(),
            path.lstat().st_mode,
            path.is_dir() or path.lstat().st_mtime_ns,
        )
        for path in sorted(folder.rglob("*"))
    }


def added(folder: Path) -> dict[str, bytes | str]:
    return {path: data for path, data in tree(folder).items() if not path.startswith(".locks/")}


def write(folder: Path, files: dict[str, bytes | str]) -> Path:
    """Files, and links where a target is text."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(data) if isinstance(data, str) else path.write_bytes(data)
    return folder


def expected(files: dict[str, bytes] = FILES) -> set[str]:
    home = "models--org--tiny"
    return {
        *(f"{home}/snapshots/{COMMIT}/{name}" for name in files),
        f"{home}/blobs/{git_id(CONFIG)}",
        f"{home}/trees/{COMMIT}.json",
        f"{home}/refs/main",
        f"datasets--org--tiny/snapshots/{COMMIT}/data.json",
        f"datasets--org--tiny/blobs/{git_id(b'[1]')}",
        f"datasets--org--tiny/trees/{COMMIT}.json",
        "datasets--org--tiny/refs/main",
    }


def test_a_new_cache(tmp_path: Path, root: Root, artifacts: list[Artifact]) -> None:
    cache = tmp_path / "new" / "hub"
    additions = lay(artifacts, cache, root)
    assert str(additions) == f"3 files, 10.2 kB, into {cache}"
    found = added(cache)
    (weights,) = set(found) - expected()
    assert found[weights] == WEIGHTS
    home = "models--org--tiny"
    assert found[f"{home}/refs/main"] == COMMIT.encode()
    assert found[f"{home}/snapshots/{COMMIT}/config.json"] == f"../../blobs/{git_id(CONFIG)}"
    snapshot = cache / home / "snapshots" / COMMIT
    assert (snapshot / "sub" / "w.safetensors").read_bytes() == WEIGHTS
    assert (cache / weights).samefile(root.blobs.path(artifacts[1].sha256))
    before = state(cache)
    again = lay(artifacts, cache, root)
    assert (again.empty, str(again)) == (True, f"{cache} has all of it")
    assert state(cache) == before


def test_beside_what_is_there(tmp_path: Path, root: Root, artifacts: list[Artifact]) -> None:
    """Another model, another commit of ours, an unfinished download, and what nobody knows."""
    cache = tmp_path / "hub"
    write(
        cache,
        {
            "CACHEDIR.TAG": b"tag",
            "models--org--other/blobs/1": b"1",
            "models--org--other/refs/main": OTHER.encode(),
            f"models--org--other/snapshots/{OTHER}/f": "../../blobs/1",
            f"models--org--tiny/blobs/{git_id(CONFIG)}": CONFIG,
            "models--org--tiny/blobs/5.incomplete": b"5",
            "models--org--tiny/blobs/.5.0123456789ab.tmpx": b"5",
            "models--org--tiny/refs/main": OTHER.encode(),
            f"models--org--tiny/snapshots/{OTHER}/config.json": f"../../blobs/{git_id(CONFIG)}",
        },
    )
    before = state(cache)
    additions = lay(artifacts, cache, root)
    after = state(cache)
    assert {path: after[path] for path in before} == before
    assert set(added(cache)) >= expected()
    (remark,) = additions.remarks
    assert remark == (
        f"org/tiny: main stays {OTHER!r}, as {cache} has it;"
        f" the bundle's loads with revision={COMMIT!r}"
    )


def test_a_shared_blob_store_is_followed(
    tmp_path: Path, root: Root, artifacts: list[Artifact]
) -> None:
    """Newer clients keep the bytes elsewhere in the cache, and a link in the repository."""
    cache, name = tmp_path / "hub", artifacts[1].sha256
    write(
        cache,
        {
            "blobs/ab/shared": WEIGHTS,
            f"models--org--tiny/blobs/{name}": "../../blobs/ab/shared",
        },
    )
    additions = lay(artifacts, cache, root)
    assert f"models--org--tiny/blobs/{name}" not in additions.missing.blobs
    assert added(cache)[f"models--org--tiny/blobs/{name}"] == "../../blobs/ab/shared"
    (cache / "blobs" / "ab" / "shared").write_bytes(WEIGHTS[::-1])
    assert "has other bytes" in str(error(artifacts, cache, root))
    (cache / "blobs" / "ab" / "shared").unlink()
    assert "is a link to nothing (../../blobs/ab/shared)" in str(error(artifacts, cache, root))


def test_a_cache_without_links(tmp_path: Path, root: Root, artifacts: list[Artifact]) -> None:
    """Where none can be made, the client puts the files themselves into the snapshot."""
    home = f"models--org--tiny/snapshots/{COMMIT}"
    cache = write(tmp_path / "hub", {f"{home}/{name}": data for name, data in FILES.items()})
    before = state(cache)
    additions = lay(artifacts, cache, root)
    assert [path for path in additions.missing.blobs if path.startswith("models")] == []
    after = state(cache)
    assert {path: after[path] for path in before} == before
    (cache / home / "config.json").write_bytes(b"{ }")
    assert f"{cache / home}/config.json has other bytes" in str(error(artifacts, cache, root))


def test_all_damage_is_told_before_anything_is_written(
    tmp_path: Path, root: Root, artifacts: list[Artifact]
) -> None:
    home, weights = "models--org--tiny", artifacts[1].sha256
    cache = write(
        tmp_path / "hub",
        {
            f"{home}/blobs/{weights}": WEIGHTS[::-1],
            f"{home}/snapshots/{COMMIT}/config.json": b"{ edited }",
            f"{home}/.no_exist/{COMMIT}/config.json": b"",
            f"datasets--org--tiny/blobs/{git_id(b'[1]')}": "nowhere",
        },
    )
    found = error(artifacts, cache, root)
    assert isinstance(found, MachineError)
    assert found.problems == (
        f"{cache / home}/blobs/{weights} has other bytes",
        f"{cache}/datasets--org--tiny/blobs/{git_id(b'[1]')} is a link to nothing (nowhere)",
        f"{cache / home}/snapshots/{COMMIT}/config.json has 10 bytes instead of 3",
        f"{cache / home}/.no_exist/{COMMIT}/config.json says that there is no such file",
    )
    assert "Nothing was written" in str(found.hint)


def test_a_link_whose_blob_was_lost_is_whole_again(
    tmp_path: Path, root: Root, artifacts: list[Artifact]
) -> None:
    place = f"models--org--tiny/snapshots/{COMMIT}/config.json"
    cache = write(tmp_path / "hub", {place: f"../../blobs/{git_id(CONFIG)}"})
    lay(artifacts, cache, root)
    assert (cache / place).read_bytes() == CONFIG


def test_a_listing_that_is_there_stays_and_what_it_means_is_said(
    tmp_path: Path, root: Root, artifacts: list[Artifact]
) -> None:
    listed = {name: {"size": 1} for name in [*FILES, "x.bin"]}
    listing = json.dumps({"format_version": 1, "files": listed})
    tree_file = f"models--org--tiny/trees/{COMMIT}.json"
    cache = write(tmp_path / "hub", {tree_file: listing.encode()})
    (remark,) = lay(artifacts, cache, root).remarks
    assert f"lists 1 file at {COMMIT} that neither it nor the bundle has" in remark
    assert (cache / tree_file).read_text() == listing
    write(cache, {f"models--org--tiny/snapshots/{COMMIT}/x.bin": b"x"})
    assert consider(artifacts, cache, root).remarks == ()
    for damaged in (b"", b"[]", b'{"files": 5}', b"\xff"):
        (cache / tree_file).write_bytes(damaged)
        assert consider(artifacts, cache, root).remarks == ()


@pytest.mark.parametrize("ref", [b"", f"{COMMIT}\n".encode(), b"\xff" * 90])
def test_a_ref_that_is_none_stays_too(
    tmp_path: Path, root: Root, artifacts: list[Artifact], ref: bytes
) -> None:
    cache = write(tmp_path / "hub", {"models--org--tiny/refs/main": ref})
    (remark,) = lay(artifacts, cache, root).remarks
    assert "org/tiny: main stays" in remark
    assert len(remark) < 300 + len(str(cache))
    assert (cache / "models--org--tiny" / "refs" / "main").read_bytes() == ref


def test_bytes_under_a_false_name_never_get_in(tmp_path: Path, root: Root) -> None:
    (true,) = carried(root.blobs, {"f": b"1"})
    false = replace(true, origin={**true.origin, "blob_id": git_id(b"another file")})
    additions = consider([false], tmp_path / "hub", root)
    with pytest.raises(BundleError, match="git's object id"):
        additions.lay(root.blobs, Quiet())
    assert not (tmp_path / "hub").exists()


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o2775])
def test_what_is_made_is_open_to_whom_the_cache_is(
    tmp_path: Path, root: Root, artifacts: list[Artifact], mode: int
) -> None:
    cache = tmp_path / "hub"
    cache.mkdir()
    cache.chmod(mode)
    lay(artifacts, cache, root)
    for path in cache.rglob("*"):
        found = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            continue
        if path.is_dir():
            assert found == mode, path
        else:
            assert found == (0o444 if path.parent.name == "blobs" else mode & 0o666), path


def test_who_may_not_add_to_it_is_told_before(
    tmp_path: Path, root: Root, artifacts: list[Artifact]
) -> None:
    cache = write(tmp_path / "hub", {"models--org--tiny/refs/main": COMMIT.encode()})
    home = cache / "models--org--tiny"
    if os.geteuid() == 0:
        os.chown(home, 65534, 65534)
        reason = f"{home} belongs to "
    else:
        home.chmod(0o555)
        reason = f"{home} cannot be written"
    try:
        found = error(artifacts, cache, root)
    finally:
        home.chmod(0o755)
    assert isinstance(found, MachineError)
    (problem,) = found.problems
    assert problem.startswith(reason)
    (cache / "file").write_bytes(b"")
    assert "is no folder" in str(error(artifacts, cache / "file" / "hub", root))


def test_a_cache_that_has_all_of_it_may_be_closed(
    tmp_path: Path, root: Root, artifacts: list[Artifact]
) -> None:
    cache = tmp_path / "hub"
    lay(artifacts, cache, root)
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
    try:
        assert lay(artifacts, cache, root).empty
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_what_is_no_cache(tmp_path: Path, root: Root, artifacts: list[Artifact]) -> None:
    home = write(tmp_path / "huggingface", {"hub/models--a--b/refs/main": b"", "token": b""})
    found = error(artifacts, home, root)
    assert isinstance(found, UsageError)
    assert found.hint == f"Name {home / 'hub'}."
    project = write(tmp_path / "project", {"mirror.yaml": b"", "src/a.py": b"", ".git/HEAD": b""})
    found = error(artifacts, project, root)
    assert isinstance(found, UsageError)
    assert found.problems == ("mirror.yaml", "src")
    assert "mirror's own" in str(error(artifacts, root.path / "generations" / "1" / "hub", root))
    assert "no models" in str(error([], tmp_path / "hub", root))
    (file,) = carried(root.blobs, {"f": b"1"})
    wrong = replace(file, origin={**file.origin, "file": "../../f"})
    assert isinstance(error([wrong], tmp_path / "hub", root), BundleError)


def test_a_cache_that_is_almost_empty(
    tmp_path: Path, root: Root, artifacts: list[Artifact]
) -> None:
    cache = write(tmp_path / "hub", {"version.txt": b"1", "CACHEDIR.TAG": b"", ".locks/x": b""})
    assert lay(artifacts, cache, root).size


def test_another_mirror_at_work_there(
    tmp_path: Path, root: Root, artifacts: list[Artifact]
) -> None:
    cache = write(tmp_path / "hub", {".locks/mirror.lock": b""})
    with open(cache / ".locks" / "mirror.lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(MachineError, match="another mirror"):
            lay(artifacts, cache, root)
    lay(artifacts, cache, root)


@pytest.mark.parametrize("which", ["blobs", "links", "trees", "refs"])
def test_what_appears_meanwhile_is_not_replaced(
    tmp_path: Path, root: Root, artifacts: list[Artifact], which: str
) -> None:
    cache = tmp_path / "hub"
    additions = consider(artifacts, cache, root)
    path = next(iter(getattr(additions.missing, which)))
    write(cache, {path: b"of another program"})
    with pytest.raises(MachineError, match="has appeared meanwhile") as caught:
        additions.lay(root.blobs, Quiet())
    assert path in caught.value.message
    assert (cache / path).read_bytes() == b"of another program"
    assert "tmp" not in "".join(tree(cache))


@pytest.fixture(params=["linked", "copied"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder for caches: on the file system of the root, and on another."""
    if request.param == "linked":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert os.stat(folder).st_dev != tmp_path.stat().st_dev
        yield Path(folder)


_KILLED = """
import os, pickle, shutil, signal, sys
from pathlib import Path
from mirror.core.progress import Quiet

base, store, additions = pickle.load(sys.stdin.buffer)
acts = {"os.link", "os.symlink", "os.mkdir", "os.chmod", "os.rename", "os.remove", "open"}
for number in range(1, 1000):
    folder = base.with_name(f"killed-{number}")
    shutil.copytree(base, folder, symlinks=True)
    child = os.fork()
    if not child:
        left = number
        def kill(event, arguments):
            global left
            if event in acts:
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(kill)
        object.__setattr__(additions, "folder", folder)
        additions.lay(store, Quiet())
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
print(number)
"""


def test_a_kill_at_any_step_harms_nothing_and_running_again_finishes(
    place: Path, root: Root, artifacts: list[Artifact]
) -> None:
    base = write(
        place / "hub",
        {
            "models--org--other/refs/main": OTHER.encode(),
            f"models--org--tiny/blobs/{git_id(CONFIG)}": CONFIG,
            f"models--org--tiny/snapshots/{OTHER}/config.json": f"../../blobs/{git_id(CONFIG)}",
        },
    )
    before, additions = tree(base), consider(artifacts, base, root)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED],
        input=pickle.dumps((base, root.blobs, additions)),
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    steps = int(done.stdout)
    assert steps > 20
    lay(artifacts, base, root)
    whole = added(base)
    for number in range(1, steps + 1):
        cache = place / f"killed-{number}"
        found = added(cache)
        assert {path: found[path] for path in before} == before
        there = {path: data for path, data in found.items() if not path.endswith(".tmp")}
        assert {path: whole[path] for path in there} == there  # whole, or not there
        for ref in cache.glob("models--org--tiny/refs/main"):
            assert ref.read_bytes() == COMMIT.encode()
            snapshot = cache / "models--org--tiny" / "snapshots" / COMMIT
            assert tree(snapshot).keys() == FILES.keys()
            assert all((snapshot / name).read_bytes() == FILES[name] for name in FILES)
        lay(artifacts, cache, root)
        assert added(cache) == whole
        shutil.rmtree(cache)


def test_no_space_for_copies(root: Root, artifacts: list[Artifact]) -> None:
    huge = replace(artifacts[1], size=2**52)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        found = error([artifacts[0], huge], Path(folder) / "hub", root)
        assert isinstance(found, MachineError)
        assert "this needs 4504 TB" in found.message
    consider([artifacts[0], huge], root.path.with_name("hub"), root)  # links need none
