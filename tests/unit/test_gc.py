"""What gc removes and keeps, wherever it is killed; pins; what each generation takes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror import gc
from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.ecosystems import environment
from mirror.errors import BundleError, MachineError
from mirror.install import rollback
from mirror.store import blobs
from mirror.store.generation import Generation
from mirror.store.generations import Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path / "root")
    root.prepare()
    return root


def install(root: Root, *contents: str, held: str = "") -> Generation:
    """A generation of these files, each linked into it; of `held`, only in its index."""
    names = [*contents, *([held] if held else [])]
    entries = [Entry(artifact(name), shipped=name != held) for name in names]
    base = "b" * 64 if held else None
    index = Index("demo", "1", "0", "0" * 64, None, tuple(entries), base=base)
    generation = root.begin()
    for entry in entries:
        sha256 = root.blobs.put(text(entry.artifact.path.removeprefix("files/")))
        if entry.shipped:
            blobs.place(root.blobs.path(sha256), generation.path / entry.artifact.path)
    (generation.path / "activate").write_bytes(b"12345")
    root.finish(generation, index)
    root.commit(generation)
    return generation


def text(name: str) -> bytes:
    return f"{name:_<1000}".encode()


def artifact(name: str) -> Artifact:
    data = text(name)
    return Artifact("files", f"files/{name}", len(data), hashlib.sha256(data).hexdigest())


def there(root: Root) -> set[str]:
    """The names of the files whose blobs are in the store."""
    return {root.blobs.path(sha256).read_text().rstrip("_") for sha256 in root.blobs}


def numbers(root: Root) -> list[int]:
    return [generation.number for generation in root.generations()]


def collect(root: Root, keep: int = 1, *, rehearse: bool = False) -> gc.Collected:
    return gc.collect(root, keep, Quiet(), rehearse=rehearse)


def test_the_one_in_use_and_the_one_before_stay(root: Root) -> None:
    install(root, "a", "every")
    install(root, "b", "every")
    install(root, "c", "every")
    root.blobs.put(text("nobody's"))
    done = collect(root)
    assert numbers(root) == [2, 3]
    assert there(root) == {"b", "c", "every"}
    assert [g.number for g in done.generations] == [1]
    assert done.blobs == 2
    assert rollback(root, None).number == 2
    assert collect(root) == gc.Collected((), 0, 0)


def test_after_a_rollback_the_one_that_was_left_stays_too(root: Root) -> None:
    for name in "abcd":
        install(root, name)
    rollback(root, 2)
    collect(root)
    assert numbers(root) == [1, 2, 3]
    collect(root, 0)
    assert numbers(root) == [2]
    assert there(root) == {"b"}


def test_many_to_keep(root: Root) -> None:
    for name in "abcd":
        install(root, name)
    collect(root, 9)
    assert numbers(root) == [1, 2, 3, 4]
    collect(root, 2)
    assert numbers(root) == [2, 3, 4]


def test_what_is_pinned_stays(root: Root) -> None:
    first = install(root, "a")
    install(root, "b")
    install(root, "c")
    gc.pin(root, 1, wanted=True)
    gc.pin(root, 1, wanted=True)
    assert first.pinned
    collect(root, 0)
    assert numbers(root) == [1, 3]
    assert there(root) == {"a", "c"}
    gc.pin(root, 1, wanted=False)
    gc.pin(root, 1, wanted=False)
    collect(root, 0)
    assert numbers(root) == [3]
    with pytest.raises(MachineError, match="no generation 1; it has 3"):
        gc.pin(root, 1, wanted=True)


def test_what_is_held_by_one_that_stays_stays(root: Root) -> None:
    install(root, "base", "old")
    install(root, "new", held="base")
    collect(root, 0)
    assert there(root) == {"base", "new"}


def test_a_generation_that_another_is_built_on_stays(root: Root) -> None:
    first, _, third, fourth = (install(root, name) for name in "abcd")
    (third.env).mkdir()
    home = first.env / "bin"
    home.mkdir(parents=True)
    (third.env / "pyvenv.cfg").write_text(f"home = {home}\nversion = 3.11\n")
    packages = fourth.env / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "mirror-over.pth").write_text(f"# {third.env}\n")
    assert environment.layered_over(fourth) == third.env
    collect(root, 0)
    assert numbers(root) == [1, 3, 4]


def test_a_rehearsal_says_the_same_and_removes_nothing(root: Root) -> None:
    install(root, "a", "both")
    install(root, "b", "both")
    (root.path / "elsewhere").hardlink_to(root.blobs.path(artifact("a").sha256))
    root.blobs.put(text("nobody's"))
    said = collect(root, 0, rehearse=True)
    assert numbers(root) == [1, 2]
    assert there(root) == {"a", "b", "both", "nobody's"}
    assert collect(root, 0) == said
    current = root.current()
    records = current.index_file.stat().st_size + current.seal_file.stat().st_size
    assert said.freed == len(text("nobody's")) + 5 + records


def test_what_an_interrupted_install_left_goes(root: Root) -> None:
    install(root, "a")
    begun = root.begin()
    root.blobs.temporary.mkdir()
    (root.blobs.temporary / "half").touch()
    collect(root)
    assert not begun.path.exists()
    assert not root.blobs.temporary.exists()
    assert numbers(root) == [1]


def test_a_root_whose_first_install_never_ended(root: Root) -> None:
    install(root, "a")
    (root.path / "current").unlink()
    collect(root, 0)
    assert numbers(root) == [1]
    shutil.rmtree(root.path / "generations")
    collect(root, 0)
    assert not there(root)


def test_where_nothing_is_removed(root: Root, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="nothing is installed"):
        collect(Root(tmp_path / "none"))
    install(root, "a")
    second = install(root, "b")
    third = install(root, "c")
    second.index_file.chmod(0o644)
    second.index_file.write_bytes(b"{}")
    with pytest.raises(BundleError):
        collect(root)
    assert numbers(root) == [1, 2, 3]
    collect(root, 0)  # what goes need not be whole
    assert numbers(root) == [3]
    third.index_file.unlink()
    with pytest.raises(BundleError, match="no whole generation"):
        collect(root)
    assert there(root) == {"c"}


def test_another_mirror_at_work_is_not_disturbed(root: Root) -> None:
    install(root, "a")
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
        for work in (lambda: collect(root), lambda: gc.pin(root, 1, wanted=True)):
            with pytest.raises(MachineError, match="another mirror is at work"):
                work()
        other.communicate()


class Killed(BaseException):
    """What nobody catches, as nobody catches kill -9."""


def test_killed_anywhere_it_leaves_whole_generations_and_ends_when_run_again(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(root, "a", "every")
    install(root, "b", "every")
    install(root, "c", held="every")
    saved = tmp_path / "saved"
    shutil.copytree(root.path, saved, symlinks=True)
    moment = 0
    while True:
        shutil.rmtree(root.path)
        shutil.copytree(saved, root.path, symlinks=True)
        with monkeypatch.context() as patch:
            ended = not killed(patch, moment, lambda: collect(root, 0))
        for generation in root.generations():
            for entry in generation.index().entries:
                root.blobs.check(entry.artifact.sha256)
                assert not entry.shipped or (generation.path / entry.artifact.path).is_file()
            assert (generation.path / "activate").is_file()
        assert root.current().number == 3
        collect(root, 0)
        assert numbers(root) == [3]
        assert there(root) == {"c", "every"}
        assert not (root.path / "generations/000001").exists()
        if ended:
            break
        moment += 1
    assert moment > 10


def killed(patch: pytest.MonkeyPatch, moment: int, work: Callable[[], object]) -> bool:
    """Whether the work was killed, before its change number `moment` to the disk."""
    left = moment

    def counted(change: Callable[..., None]) -> Callable[..., None]:
        def run(*args: object, **named: object) -> None:
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            change(*args, **named)

        return run

    for name in ("unlink", "rmdir", "rename", "replace"):
        patch.setattr(os, name, counted(getattr(os, name)))
    try:
        work()
    except Killed:
        return True
    return False


def test_what_each_generation_takes(root: Root) -> None:
    install(root, "a", "both")
    second = install(root, "b", "c", held="both")
    gc.pin(root, 1, wanted=True)
    one, two = gc.survey(root)
    size = len(text("a"))
    assert (one.shared, two.shared) == (size, size)
    records = second.index_file.stat().st_size + second.seal_file.stat().st_size
    assert two.own == 2 * size + 5 + records
    assert (one.current, two.current) == (False, True)
    assert (one.pinned, two.pinned) == (True, False)
    assert one.lines()[0] == "     1  demo 1, pinned"
    assert two.lines()[0] == "*    2  demo 1"
    assert two.lines()[1].endswith("1.00 kB shared; for any machine")
    document = two.to_json()
    assert (document["bytes"], document["own"], document["shared"]) == (3 * size, two.own, size)
