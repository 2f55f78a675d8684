"""Roots that others could write to, and roots with links in them: refused, with exit code 8.

By the real command, as root and as an ordinary user.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.bundles import Sources, sources
from tests.hostile.making import Ended, mirror

NOBODY, STRANGER = 65534, 12345
FILES = {"files/a.txt": b"a" * 100, "files/run.sh": b"echo\n"}
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user can get to, with two bundles that share a file."""
    with tempfile.TemporaryDirectory(prefix="root-", dir="/tmp") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        made(folder, "1").pack(folder / "one.tar.gz")
        made(folder, "2").pack(folder / "two.tar.gz")
        yield folder


def made(folder: Path, version: str) -> Sources:
    return sources(folder / "sources", {**FILES, "files/version": version.encode()})


def do(place: Path, *arguments: object, code: int = 0, wrapper: Sequence[str] = ()) -> Ended:
    """Run mirror on `place/root`; every refusal names what is wrong, and no more is said."""
    ended = mirror(place, *arguments, "--root", place / "root", wrapper=wrapper, seconds=30)
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    return ended


def install(place: Path, which: str = "one", **how: object) -> Ended:
    return do(place, "install", place / f"{which}.tar.gz", **how)  # type: ignore[arg-type]


def refused(place: Path, what: Path | str, *, by: Sequence[Sequence[object]] = ()) -> str:
    """Assert that nothing that changes a root works in this one, and that all name this."""
    said = ""
    for command in by or [("install", place / "two.tar.gz"), ("gc", "--keep", "0")]:
        said = do(place, *command, code=8).err
        assert str(what) in said, said
        assert "--root" in said or "again" in said, said
    return said


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """All that is below a folder: mode, owner, bytes or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = b""
        if path.is_symlink():
            data = os.fsencode(os.readlink(path))
        elif path.is_file():
            data = path.read_bytes()
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_uid, data)
    return found


def as_user(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


# -- links ---------------------------------------------------------------------------------------


def blob_folder(root: Path) -> Path:
    return next(iter(sorted((root / "store" / "sha256").iterdir())))


PLACES: dict[str, Callable[[Path], Path]] = {
    "store": lambda root: root / "store",
    "store/tmp": lambda root: root / "store" / "tmp",
    "store/sha256": lambda root: root / "store" / "sha256",
    "store/sha256/ab": blob_folder,
    "generations": lambda root: root / "generations",
    "generations/000001": lambda root: root / "generations" / "000001",
    "generations/000002": lambda root: root / "generations" / "000002",
    "launch.json": lambda root: root / "generations" / "000001" / "launch.json",
    "activate": lambda root: root / "generations" / "000001" / "activate",
    "pin": lambda root: root / "generations" / "000001.pin",
    "new": lambda root: root / "generations" / "000002.new",
    "tmp": lambda root: root / "tmp",
    "log": lambda root: root / "log",
    "audit log": lambda root: root / "log" / "audit.jsonl",
    "record": lambda root: root / "log" / "before-000002.txt",
    "script log": lambda root: root / "log" / "link-scripts-000002.log",
    "lock": lambda root: root / "lock",
    "baseline": lambda root: root / "baseline.json",
}


@pytest.mark.parametrize("name", PLACES)
def test_a_link_at_whatever_mirror_writes_is_refused(place: Path, name: str) -> None:
    install(place)
    link, outside = PLACES[name](place / "root"), place / "outside"
    outside.mkdir()
    if link.exists():
        shutil.move(link, outside / "it")
    else:
        (outside / "it").mkdir() if not link.suffix else (outside / "it").write_bytes(b"")
    link.symlink_to(outside / "it")
    before = snapshot(outside)
    refused(place, link)
    assert snapshot(outside) == before
    assert link.is_symlink()


def test_a_link_to_nothing_makes_no_file(place: Path) -> None:
    install(place)
    for name in ("lock", "log/audit.jsonl"):
        path = place / "root" / name
        path.unlink()
        path.symlink_to(place / "made")
        refused(place, path)
        assert not (place / "made").exists()
        path.unlink()


def test_what_only_writes_logs_follows_no_link(place: Path) -> None:
    install(place)
    shutil.move(place / "root" / "log", place / "elsewhere")
    (place / "root" / "log").symlink_to(place / "elsewhere")
    before = snapshot(place / "elsewhere")
    assert f"{place / 'root' / 'log'} is a symbolic link" in do(place, "verify", code=8).err
    assert snapshot(place / "elsewhere") == before


@pytest.mark.parametrize("target", ["../elsewhere", "/etc", "generations/../../elsewhere", "."])
def test_current_points_at_a_generation_of_the_root_or_nothing_works(
    place: Path, target: str
) -> None:
    install(place)
    current = place / "root" / "current"
    shutil.copytree(current.resolve(), place / "elsewhere")
    current.unlink()
    current.symlink_to(target)
    ways = [("install", place / "two.tar.gz"), ("gc",), ("list",), ("rollback", "1"), ("verify",)]
    assert target in refused(place, current, by=ways)
    assert os.readlink(current) == target
    assert str(current) in mirror(place, "run", "--root", place / "root", "--", "true").err


def test_current_that_is_a_folder(place: Path) -> None:
    install(place)
    current = place / "root" / "current"
    current.unlink()
    current.mkdir()
    refused(place, current, by=[("install", place / "two.tar.gz"), ("gc",), ("rollback", "1")])
    assert list(current.iterdir()) == []
    assert not (place / "root" / "generations" / "000002").exists()


def test_a_generation_behind_a_link_is_not_used(place: Path) -> None:
    install(place)
    generation = place / "root" / "generations" / "000001"
    shutil.move(generation, place / "elsewhere")
    generation.symlink_to(place / "elsewhere")
    refused(place, "current", by=[("list", "--models"), ("rollback", "1")])


def test_a_blob_that_is_a_link_is_no_blob(place: Path) -> None:
    install(place)
    [blob] = [p for p in (place / "root" / "store").rglob("*") if p.name == shared(place)]
    shutil.move(blob, place / "it")
    blob.symlink_to(place / "it")
    before = (place / "it").stat()
    assert "is no file" in do(place, "verify", "--store", code=9).out.decode()
    install(place, "two")
    assert stat.S_ISREG(blob.lstat().st_mode)
    assert blob.stat().st_ino != before.st_ino
    assert (place / "it").stat().st_mode == before.st_mode
    laid = place / "root" / "current" / "files" / "a.txt"
    assert laid.stat().st_ino == blob.stat().st_ino


def shared(place: Path) -> str:
    index = made(place, "1").index
    return next(a.sha256 for a in index.artifacts if a.path == "files/a.txt")


# -- what is planted -----------------------------------------------------------------------------


def test_hard_links_in_staging_harm_nobody(place: Path) -> None:
    install(place)
    victim = place / "victim"
    victim.write_bytes(b"mine")
    victim.chmod(0o640)
    staging = place / "root" / "store" / "tmp"
    staging.mkdir(exist_ok=True)
    for name in ("blob", ".0123456789ab.tmp", shared(place)):
        os.link(victim, staging / name)
    (staging / "folder").mkdir()
    os.link(victim, staging / "folder" / "0")
    (staging / "folder").chmod(0o500)
    install(place, "two")
    assert victim.read_bytes() == b"mine"
    status = victim.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o640, 1)


@pytest.mark.parametrize("name", ["lock", "log/audit.jsonl", "baseline.json"])
def test_a_pipe_is_waited_for_by_nobody(place: Path, name: str) -> None:
    install(place)
    path = place / "root" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    commands = (("install", place / "two.tar.gz"), ("gc",))
    ended = [do(place, *command, code=8) for command in commands]
    assert all(str(path) in one.err for one in ended)
    assert max(one.seconds for one in ended) < 30


# -- who else can write --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o777, 0o1777])
@pytest.mark.parametrize("where", [".", "store/tmp", "generations", "generations/000001", "log"])
def test_a_folder_that_everybody_can_write(place: Path, where: str, mode: int) -> None:
    install(place)
    folder = place / "root" / where
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    assert f"{folder} can be written by everybody" in refused(place, folder)
    folder.chmod(0o755)
    install(place, "two")


def test_an_empty_root_that_everybody_can_write_stays_empty(place: Path) -> None:
    root = place / "root"
    for mode in (0o777, 0o1777):
        root.mkdir(exist_ok=True)
        root.chmod(mode)
        refused(place, root, by=[("install", place / "one.tar.gz")])
        assert list(root.iterdir()) == []


def test_the_way_to_a_root(place: Path) -> None:
    way = place / "way"
    way.mkdir()
    (way / "root").mkdir()
    (place / "root").symlink_to(way / "root")  # of a person's own, in a folder of his own
    way.chmod(0o777)
    refused(place, f"{way} can be written by everybody", by=[("install", place / "one.tar.gz")])
    way.chmod(0o1777)  # others cannot take away what is ours
    install(place)
    (place / "root").unlink()
    (way / "a").symlink_to(place / "b")
    (place / "b").mkdir()
    (place / "root").symlink_to(way / "a" / "root")
    way.chmod(0o777)  # of which only a link is on the way
    refused(place, f"{way} can be written by everybody", by=[("install", place / "one.tar.gz")])
    assert list((place / "b").iterdir()) == []


@only_root
def test_groups(place: Path) -> None:
    install(place)
    root = place / "root"
    root.chmod(0o2775)
    install(place, "two")  # the group is one's own
    os.chown(root, -1, STRANGER)
    root.chmod(0o2775)
    assert f"{root} can be written by a group that is not yours ({STRANGER})" in refused(
        place, root
    )


@only_root
@pytest.mark.parametrize("where", [".", "store", "tmp", "generations/000001"])
def test_a_folder_of_another_user(place: Path, where: str) -> None:
    install(place)
    folder = place / "root" / where
    os.chown(folder, STRANGER, -1)
    assert f"{folder} belongs to another user ({STRANGER})" in refused(place, folder)


@only_root
def test_a_folder_above_that_another_user_owns(place: Path) -> None:
    os.chown(place, NOBODY, -1)
    said = refused(place, place, by=[("install", place / "one.tar.gz")])
    assert f"{place} belongs to another user ({NOBODY}, nobody)" in said
    assert not (place / "root").exists()


# -- as whom -------------------------------------------------------------------------------------


@only_root
def test_an_ordinary_user(place: Path) -> None:
    user, home = as_user(NOBODY), place / "his"
    (home / "root").mkdir(parents=True)
    for folder in (home, home / "root"):
        os.chown(folder, NOBODY, NOBODY)
    (place / "root").symlink_to(home / "root")
    install(place, wrapper=user)
    install(place, "two", wrapper=user)
    for command in (("rollback",), ("pin", "2"), ("gc", "--keep", "0"), ("list",), ("repair",)):
        do(place, *command, wrapper=user)
    found = [home / "root", *(home / "root").rglob("*")]
    assert {path.lstat().st_uid for path in found} == {NOBODY}
    refused(place, home, by=[("install", place / "one.tar.gz")])  # root in somebody's home


@only_root
def test_an_ordinary_user_in_roots_root(place: Path) -> None:
    install(place)
    user, before = as_user(NOBODY), snapshot(place / "root")
    os.chown(place / "home", NOBODY, -1)  # where his logs go
    reading = [("list",), ("list", "--history"), ("verify", "--store")]
    for command in reading:
        do(place, *command, wrapper=user)
    writing = [("install", place / "two.tar.gz"), ("gc",), ("pin", "1"), ("repair",)]
    for arguments in writing:
        do(place, *arguments, code=8, wrapper=user)
    assert snapshot(place / "root") == before


@only_root
def test_files_belong_to_whoever_installs(place: Path) -> None:
    install(place)
    found = [place / "root", *(place / "root").rglob("*")]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in found} == {(0, 0)}


@pytest.mark.parametrize("umask", ["000", "022", "077", "777"])
def test_modes_are_constants(place: Path, umask: str) -> None:
    odd = ["sh", "-c", f'umask {umask}; exec "$@"', "sh"]
    install(place, wrapper=odd)
    install(place, "two", wrapper=odd)
    do(place, "rollback", wrapper=odd)
    do(place, "pin", "2", wrapper=odd)
    (place / "root" / "lock").unlink()
    do(place, "gc", wrapper=odd)
    found = {}
    for path in [place / "root", *(place / "root").rglob("*")]:
        if not path.is_symlink():
            found[str(path.relative_to(place))] = stat.S_IMODE(path.stat().st_mode)
    assert {mode for name, mode in found.items() if (place / name).is_dir()} == {0o755}
    files = {name: mode for name, mode in found.items() if (place / name).is_file()}
    assert {mode for name, mode in files.items() if "/sha256/" in name} == {0o444}
    assert set(files.values()) == {0o444, 0o555, 0o644}
    assert found["root/lock"] == found["root/log/audit.jsonl"] == 0o644
    assert found["root/generations/000002.pin"] == 0o644
