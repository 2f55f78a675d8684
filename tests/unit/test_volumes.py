"""Bundles in volumes: written, told apart when they arrive, read in place, and rebuilt."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror import inspect
from mirror.bundle import par2, recovery
from mirror.bundle.arrival import Arrival, find_list, look
from mirror.bundle.opening import opened
from mirror.bundle.splitting import Volumes, pack_volumes
from mirror.bundle.volumes import bundle_name, list_path, read_list
from mirror.core.progress import Quiet
from mirror.core.text import parsed_size
from mirror.errors import BundleError, MachineError, MirrorError, TargetError, UsageError
from mirror.store.blobs import Blobs
from tests import bundles

SIZE = 5_000
FILES = {"files/a": b"a", "files/big": os.urandom(28_000), "files/empty": b"", "files/z": b"z" * 99}


class Sent:
    """A bundle in seven volumes, and the same in one piece."""

    def __init__(self, folder: Path, files: dict[str, bytes] = FILES, percent: float = 0) -> None:
        folder.mkdir(exist_ok=True)
        self.made = bundles.sources(folder / "in", files)
        self.whole = self.made.pack(folder / "whole.tar.gz")
        self.folder = folder / "out"
        self.folder.mkdir(exist_ok=True)
        self.target = self.folder / "b.tar.gz"
        wish = Volumes(SIZE, percent)
        self.known = pack_volumes(
            self.made.index, b"", self.made.locate, self.target, wish, Quiet()
        )
        self.blobs = Blobs(folder / "store")

    def volume(self, number: int) -> Path:
        return self.folder / f"b.tar.gz.{number:03}"

    def look(self, *folders: Path, hashes: bool = True) -> Arrival:
        places = list(folders) or [self.folder]
        return look(find_list("b.tar.gz", places), places, Quiet(), hashes=hashes)

    def admit(self, *names: Path) -> None:
        with opened([str(n) for n in names or (self.volume(1),)], Quiet()) as (reader,):
            reader.admit(self.blobs, Quiet())

    def refused(self, *names: Path, kind: type[MirrorError] = BundleError) -> str:
        with pytest.raises(kind) as caught:
            self.admit(*names)
        assert not bundles.staged(self.blobs)
        return str(caught.value)


@pytest.fixture
def sent(tmp_path: Path) -> Sent:
    return Sent(tmp_path)


def test_volumes_are_ranges_of_the_bundle(sent: Sent) -> None:
    files = [sent.folder / part.name for part in sent.known.volumes]
    assert b"".join(f.read_bytes() for f in files) == sent.whole
    assert [f.stat().st_size for f in files[:-1]] == [SIZE] * 6
    assert [f.name for f in files] == [f"b.tar.gz.00{n}" for n in range(1, 8)]
    assert {p.name for p in sent.folder.iterdir()} == {
        *(f.name for f in files),
        "b.tar.gz.volumes.json",
    }


def test_the_list_says_what_each_is(sent: Sent) -> None:
    data = list_path(sent.target).read_bytes()
    document = json.loads(data)
    assert document == {
        "format": 1,
        "bundle": sent.made.index.digest,
        "bytes": len(sent.whole),
        "recovery": [],
        "volumes": [
            {
                "name": f.name,
                "size": f.stat().st_size,
                "sha256": hashlib.sha256(f.read_bytes()).hexdigest(),
            }
            for f in sorted(sent.folder.glob("*.00?"))
        ],
    }
    assert read_list(list_path(sent.target)).to_bytes() == data


@pytest.mark.parametrize("size", [1, 512, 1023, 1024, 4096, 4115, 10**6])
def test_volumes_of_any_size_read_as_one(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles.shrink(monkeypatch)
    files = {"files/a": b"a", "files/b": os.urandom(5_000 if size > 1 else 100)}
    made = bundles.sources(tmp_path / "in", files)
    pack_volumes(made.index, b"", made.locate, tmp_path / "b.tar.gz", Volumes(size), Quiet())
    blobs = Blobs(tmp_path / "store")
    with opened([str(list_path(tmp_path / "b.tar.gz"))], Quiet()) as (reader,):
        reader.admit(blobs, Quiet())
    assert [bundles.held(blobs, a) for a in made.index.artifacts] == list(files.values())


def test_a_shorter_set_leaves_nothing_of_a_longer_one(sent: Sent, tmp_path: Path) -> None:
    bystander = sent.folder / "b.tar.gz.900"
    bystander.write_bytes(b"a person's own")
    again = Sent(tmp_path, {"files/a": b"a"})
    assert len(again.known.volumes) == 1
    assert {p.name for p in sent.folder.iterdir()} == {
        "b.tar.gz.001",
        "b.tar.gz.900",
        "b.tar.gz.volumes.json",
    }


def test_a_writer_that_fails_leaves_the_old_set(sent: Sent, tmp_path: Path) -> None:
    before = {p.name: p.read_bytes() for p in sent.folder.iterdir()}
    made = bundles.sources(tmp_path / "in2", {"files/new": b"n" * 20_000})
    made.locate(made.index.artifacts[0]).write_bytes(b"changed")
    with pytest.raises(BundleError, match="has changed since"):
        pack_volumes(made.index, b"", made.locate, sent.target, Volumes(SIZE), Quiet())
    assert {p.name: p.read_bytes() for p in sent.folder.iterdir()} == before


def test_too_many_volumes(sent: Sent) -> None:
    with pytest.raises(UsageError, match=r"would have .* 9,999 are the most"):
        pack_volumes(sent.made.index, b"", sent.made.locate, sent.target, Volumes(1), Quiet())


# -- reading in place ---------------------------------------------------------------------------


@pytest.mark.parametrize("named", [["001"], ["volumes.json"], ["003", "001"], ["002"]])
def test_any_part_of_the_set_names_it(sent: Sent, named: list[str]) -> None:
    sent.admit(*(sent.folder / f"b.tar.gz.{name}" for name in named))
    assert bundles.held(sent.blobs, sent.made.index.artifacts[1]) == FILES["files/big"]


def test_volumes_on_two_sticks(sent: Sent, tmp_path: Path) -> None:
    other = tmp_path / "stick"
    other.mkdir()
    for number in (2, 5, 7):
        shutil.move(sent.volume(number), other)
    said = sent.refused()
    assert "3 of the 7 volumes of b.tar.gz are not here" in said
    assert "b.tar.gz.002 is missing" in said
    assert "b.tar.gz.007 is missing" in said
    sent.admit(sent.volume(1), other / "b.tar.gz.002")
    assert len(list(sent.folder.iterdir())) + len(list(other.iterdir())) == 8


def test_without_its_list(sent: Sent) -> None:
    list_path(sent.target).unlink()
    said = sent.refused(kind=UsageError)
    assert "b.tar.gz.volumes.json is not beside the volumes" in said
    assert "cat b.tar.gz.[0-9]* | mirror install -" in said, "and no recovery data in between"


def test_its_own_name_means_its_volumes(sent: Sent) -> None:
    sent.admit(sent.target)
    list_path(sent.target).unlink()
    assert "there is no bundle" in sent.refused(sent.target, kind=UsageError)


def test_a_folder_is_no_bundle_and_what_is_in_it_is_named(sent: Sent) -> None:
    said = sent.refused(sent.folder, kind=UsageError)
    assert "is a folder, not a bundle" in said
    assert str(list_path(sent.target)) in said
    assert f"mirror inspect --volumes {sent.folder}" in said


def _swap(sent: Sent) -> None:
    two, three = sent.volume(2).read_bytes(), sent.volume(3).read_bytes()
    sent.volume(2).write_bytes(three)
    sent.volume(3).write_bytes(two)


def _flip(sent: Sent) -> None:
    data = bytearray(sent.volume(4).read_bytes())
    data[100] ^= 1
    sent.volume(4).write_bytes(data)


def _cut(sent: Sent) -> None:
    os.truncate(sent.volume(4), 4_999)


def _grow(sent: Sent) -> None:
    sent.volume(4).write_bytes(bytes(5_001))


def _rename(sent: Sent) -> None:
    sent.volume(4).rename(sent.folder / "b.tar (1).gz.004")


def _repeat(sent: Sent) -> None:
    shutil.copy(sent.volume(3), sent.volume(4))


def _lose(sent: Sent) -> None:
    sent.volume(4).unlink()


WRONG: dict[str, tuple[Callable[[Sent], None], dict[str, str]]] = {
    "missing": (_lose, {"004": "is missing"}),
    "damaged": (_flip, {"004": "is damaged, or of another build"}),
    "partial": (_cut, {"004": "has arrived in part: 4,999 of 5,000 bytes"}),
    "longer": (_grow, {"004": "is 5,001 bytes long, not 5,000: it is of another bundle"}),
    "renamed": (_rename, {"004": "is here as"}),
    "repeated": (_repeat, {"004": "holds the bytes of b.tar.gz.003"}),
    "swapped": (
        _swap,
        {"002": "holds the bytes of b.tar.gz.003; its own are", "003": "holds the bytes of"},
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_volume_is_named(sent: Sent, name: str) -> None:
    spoil, expected = WRONG[name]
    spoil(sent)
    before = {p.name: p.read_bytes() for p in sent.folder.iterdir()}
    lost = {item.part.name[-3:]: str(item) for item in sent.look().lost}
    assert lost.keys() == expected.keys()
    said = sent.refused()
    for number, says in expected.items():
        assert says in lost[number]
        assert f"b.tar.gz.{number} {says}" in said
    assert {p.name: p.read_bytes() for p in sent.folder.iterdir()} == before


def test_a_volume_of_another_build_is_told_by_its_head(sent: Sent, tmp_path: Path) -> None:
    other = Sent(tmp_path / "new", {**FILES, "files/a": b"b"})
    shutil.copy(other.volume(1), sent.volume(1))
    said = sent.refused()
    assert "begins as another bundle than its list" in said
    assert other.made.index.digest in said
    assert "b.tar.gz.001 is damaged, or of another build" in said


def test_lists_of_two_bundles(sent: Sent, tmp_path: Path) -> None:
    other = Sent(tmp_path / "new", {"files/a": b"b"})
    said = sent.refused(sent.volume(1), other.volume(1))
    assert "lists of different bundles b.tar.gz" in said
    assert sent.made.index.digest in said
    assert other.made.index.digest in said


def test_what_is_left_from_another_split_is_told(sent: Sent) -> None:
    sent.volume(8).write_bytes(b"old")
    arrival = sent.look()
    assert not arrival.lost
    assert [str(sent.volume(8)) in stray for stray in arrival.strays] == [True]
    again = sent.look(sent.folder, sent.folder / ".." / sent.folder.name)
    assert again.strays == arrival.strays, "a folder that is named twice is searched once"
    sent.admit()


def test_what_to_send_again_and_what_to_rename(sent: Sent) -> None:
    _lose(sent)
    _swap(sent)
    sent.volume(6).rename(sent.folder / "six")
    lines = inspect.arrival_lines(sent.look())
    assert lines[0].startswith("b.tar.gz: 3 of 7 volumes whole")
    assert lines[-4:] == [
        f"  rename   {sent.volume(3)} to b.tar.gz.002",
        f"  rename   {sent.volume(2)} to b.tar.gz.003",
        f"  rename   {sent.folder / 'six'} to b.tar.gz.006",
        "  send again: b.tar.gz.004",
    ]


def test_a_whole_copy_elsewhere_serves(sent: Sent, tmp_path: Path) -> None:
    other = tmp_path / "stick"
    other.mkdir()
    shutil.copy(sent.volume(4), other)
    _flip(sent)
    assert not sent.look(sent.folder, other).lost
    said = sent.refused(sent.volume(1), other / "b.tar.gz.004")
    assert f"b.tar.gz.004 is damaged in {sent.volume(4)}, and whole in {other}" in said
    sent.admit(other / "b.tar.gz.004", sent.volume(1))


def test_a_stick_that_goes_while_it_is_read(sent: Sent) -> None:
    with opened([str(sent.volume(1))], Quiet()) as (reader,):
        sent.volume(5).unlink()
        with pytest.raises(BundleError, match=r"cannot be read: No such file") as caught:
            reader.check(Quiet())
    assert "b.tar.gz.005 is missing" in str(caught.value)


def _changed(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(keys)


def _first(**keys: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["volumes"][0].update(keys)


@pytest.mark.parametrize(
    "spoil",
    [
        _changed(bundle="x"),
        _changed(bytes=1),
        _changed(bytes=True),
        _changed(volumes=[]),
        _changed(more=1),
        _changed(format=0),
        _changed(volumes={"name": "b"}),
        _changed(recovery=[{"name": "other.par2", "size": 1, "sha256": "0" * 64}]),
        _changed(recovery=[{"name": "b.tar.gz.a/../b", "size": 1, "sha256": "0" * 64}]),
        _first(name="b.tar.gz.002"),
        _first(name="../b.tar.gz.001"),
        _first(size=-1),
        _first(size=1.0),
        _first(sha256="0"),
        lambda document: document.pop("recovery"),
        lambda document: document["volumes"].reverse(),
    ],
)
def test_a_wrong_list_is_refused(sent: Sent, spoil: Callable[[dict[str, Any]], None]) -> None:
    place = list_path(sent.target)
    document = json.loads(place.read_bytes())
    spoil(document)
    place.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n")
    assert "is no list of volumes" in sent.refused()


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"format":1}'])
def test_what_is_no_list_is_refused(sent: Sent, data: bytes) -> None:
    list_path(sent.target).write_bytes(data)
    assert "is no list of volumes" in sent.refused()


def test_a_list_of_the_future(sent: Sent) -> None:
    list_path(sent.target).write_bytes(b'{"format":2}\n')
    assert "has format 2" in sent.refused(kind=TargetError)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("b.tar.gz.001", "b.tar.gz"),
        ("b.tar.gz.1000", "b.tar.gz"),
        ("b.tar.gz.volumes.json", "b.tar.gz"),
        ("b.tar.gz.volumes.json.sig", "b.tar.gz"),
        ("b.tar.gz.par2", "b.tar.gz"),
        ("b.tar.gz.vol012+34.par2", "b.tar.gz"),
        ("b.tar.gz.sig", None),
        ("b-1.0.tar.gz", None),
        ("b.tar.gz", None),
        (".volumes.json", None),
    ],
)
def test_names_of_volumes(file: str, name: str | None) -> None:
    assert bundle_name(file) == name


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512B", 512),
        ("700M", 700_000_000),
        ("4g", 4_000_000_000),
        ("4GB", 4_000_000_000),
        ("4GiB", 2**32),
        ("1.5 T", 1_500_000_000_000),
    ],
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parsed_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0.4", "-1", "4X", "4 G iB", "iB", "4iB", "1e9", "1_0"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"no size|less than a byte"):
        parsed_size(text)


# -- recovery data ------------------------------------------------------------------------------


@pytest.fixture
def covered(tmp_path: Path) -> Sent:
    return Sent(tmp_path, percent=30)


def test_lost_and_damaged_volumes_are_rebuilt(covered: Sent) -> None:
    right = {p.name: p.read_bytes() for p in covered.folder.iterdir()}
    _lose(covered)
    os.truncate(covered.volume(7), 100)
    _flip_at(covered.volume(2), 1_000)
    into = covered.folder
    rebuilt = recovery.repair(covered.look(), into, Quiet())
    assert [part.name[-3:] for part in rebuilt] == ["002", "004", "007"]
    assert {p.name: p.read_bytes() for p in into.iterdir()} == right
    covered.admit()


def test_swapped_volumes_are_put_right(covered: Sent, tmp_path: Path) -> None:
    right = {p.name: p.read_bytes() for p in covered.folder.iterdir()}
    _swap(covered)
    recovery.repair(covered.look(), covered.folder, Quiet())
    assert {p.name: p.read_bytes() for p in covered.folder.iterdir()} == right


def test_rebuilding_elsewhere_leaves_what_arrived(covered: Sent, tmp_path: Path) -> None:
    _flip(covered)
    before = {p.name: p.read_bytes() for p in covered.folder.iterdir()}
    into = tmp_path / "into"
    into.mkdir()
    recovery.repair(covered.look(), into, Quiet())
    assert [p.name for p in into.iterdir()] == ["b.tar.gz.004"]
    assert {p.name: p.read_bytes() for p in covered.folder.iterdir()} == before
    covered.admit(into / "b.tar.gz.004", covered.volume(1))


def test_all_that_was_sent_may_be_named(covered: Sent) -> None:
    """As a shell does for `b.tar.gz.*`."""
    covered.admit(*sorted(covered.folder.iterdir()))


def test_recovery_data_on_two_sticks(covered: Sent, tmp_path: Path) -> None:
    stick, into = tmp_path / "stick", tmp_path / "a" / "new" / "folder"
    stick.mkdir()
    *_, last = sorted(covered.folder.glob("*.par2"), key=lambda path: path.stat().st_size)
    last.rename(stick / "renamed on its way")
    for number in (1, 2):
        covered.volume(number).unlink()
    recovery.repair(covered.look(covered.folder, stick), into, Quiet())
    assert sorted(path.name for path in into.iterdir()) == ["b.tar.gz.001", "b.tar.gz.002"]


def test_more_lost_than_covered(covered: Sent) -> None:
    for number in (1, 2, 3, 4):
        covered.volume(number).unlink()
    before = sorted(covered.folder.iterdir())
    with pytest.raises(BundleError, match="is lost than the recovery data can rebuild") as caught:
        recovery.repair(covered.look(), covered.folder, Quiet())
    assert sorted(covered.folder.iterdir()) == before
    [says] = caught.value.problems
    assert re.fullmatch(r"9\.\d+ kB more are needed, of volumes or of recovery data", says)
    names = "b.tar.gz.001 b.tar.gz.002 b.tar.gz.003 b.tar.gz.004"
    assert caught.value.hint == f"Send at least 2 of these again: {names}"
    for file in covered.folder.glob("*vol*.par2"):
        file.unlink()
    with pytest.raises(BundleError) as caught:
        recovery.repair(covered.look(), covered.folder, Quiet())
    assert any(".par2 is missing" in problem for problem in caught.value.problems)


def test_every_byte_that_is_read_is_counted(sent: Sent) -> None:
    sent.volume(6).rename(sent.folder / "six")
    bars = bundles.Bars()
    place = list_path(sent.target)
    look(place, [sent.folder], bars)
    known = sum(volume.size for volume in sent.known.volumes) - SIZE
    assert bars.seen == [
        ("checking volumes", known, known),
        ("looking for renamed volumes", SIZE, SIZE),
    ]
    bars.seen.clear()
    look(place, [sent.folder], bars, hashes=False)
    assert bars.seen[0] == ("checking volumes", 0, 0)


def test_recovery_is_counted_in_bytes(tmp_path: Path) -> None:
    files = {"files/big": os.urandom(5_000_000)}
    bars = bundles.Bars()
    made = bundles.sources(tmp_path / "in", files)
    target = tmp_path / "b.tar.gz"
    known = pack_volumes(made.index, b"", made.locate, target, Volumes(10**6, 50), bars)
    (label, total, done) = bars.seen[-1]
    assert (label, total) == ("computing recovery data", known.size)
    assert 0.9 * total < done <= total
    for number in (2, 4):
        target.with_name(f"b.tar.gz.{number:03}").unlink()
    bars.seen.clear()
    recovery.repair(look(list_path(target), [tmp_path], bars), tmp_path, bars)
    whole, _, checked, rebuilt, *_ = bars.seen
    assert whole == ("checking volumes", whole[1], whole[1])
    assert checked[:2] == ("checking volumes", known.size)
    assert rebuilt[:2] == ("rebuilding", 2 * 10**6)
    assert all(0.9 * total < done <= total for _, total, done in (checked, rebuilt))


def test_par2_ends_with_mirror(tmp_path: Path) -> None:
    """Also what a launcher of it has started."""
    program = tmp_path / "par2"
    program.write_text(
        f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path}/child\nprintf 'Processing: 1.0%%\\r'; wait",
        encoding="utf-8",
    )
    program.chmod(0o755)

    class Interrupted(Quiet):
        def bar(self, *about: Any, **more: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        par2.run(program, "create", [], [], {"Processing": ("working", 1)}, Interrupted())
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 60
    while alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(process: int) -> bool:
    """A zombie is not: whoever adopted it has yet to collect it."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_what_par2_says_when_it_fails_is_shown_plainly(tmp_path: Path) -> None:
    program = tmp_path / "par2"
    program.write_text("#!/bin/sh\nprintf 'a\\033[95mb\\033[0m\\007\\n\\nc\\n' >&2; exit 6\n")
    program.chmod(0o755)
    done = par2.run(program, "create", [], [], {}, Quiet())
    assert (done.code, done.lacking) == (6, None)
    assert str(done.failure()).splitlines() == [f"{program} failed (6)", "  ab\\x07", "  c"]


def test_without_recovery_data(sent: Sent) -> None:
    _lose(sent)
    with pytest.raises(BundleError, match=r"no recovery data for b\.tar\.gz"):
        recovery.repair(sent.look(), sent.folder, Quiet())


def test_recovery_data_of_no_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"5 % rebuilds no lost volume: each is 14\.\d% of"):
        Sent(tmp_path, percent=5)
    assert list((tmp_path / "out").iterdir()) == []


def test_without_par2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "find_par2", _no_par2)
    with pytest.raises(MachineError, match="par2"):
        Sent(tmp_path, percent=30)
    assert list((tmp_path / "out").iterdir()) == []


def _no_par2() -> Path:
    raise MachineError("recovery data needs the program par2")


def _flip_at(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
