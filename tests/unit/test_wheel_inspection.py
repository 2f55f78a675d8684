"""Wheels are opened before they ship: real ones pass, each crafted fault is named."""

from __future__ import annotations

import base64
import hashlib
import io
import stat
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mirror.ecosystems.wheels import archive, inspection

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
METADATA = b"Metadata-Version: 2.1\nName: Demo\nVersion: 1.0\nRequires-Dist: numpy>=1\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def row(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def members(**more: bytes) -> dict[str, bytes]:
    """The members of a good wheel; `more` are module files by stem."""
    return {
        "demo/__init__.py": b"X = 1\n" * 1000,
        **{f"demo/{stem}.py": data for stem, data in more.items()},
        f"{INFO}/METADATA": METADATA,
        f"{INFO}/WHEEL": WHEEL,
    }


def wheel(
    folder: Path,
    files: dict[str, bytes] | None = None,
    *,
    record: str | None = None,
    write: Callable[[zipfile.ZipFile], None] = lambda _: None,
) -> Path:
    """A wheel of these members with a true RECORD, or with another; `write` adds to the archive."""
    files = members() if files is None else files
    if record is None:
        record = "".join(row(n, data) for n, data in files.items()) + f"{INFO}/RECORD,,\n"
    path = folder / "blob"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in {**files, f"{INFO}/RECORD": record.encode()}.items():
            out.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
        write(out)
    return path


def problems(path: Path, name: str = NAME) -> tuple[str, ...]:
    return inspection.check(path, name).problems


def the_problem(path: Path, name: str = NAME) -> str:
    found = problems(path, name)
    assert len(found) == 1, found
    return found[0]


def patched(path: Path, old: bytes, new: bytes, *, last: bool = False) -> Path:
    """Replace the first (or last) occurrence of some bytes, which must be there."""
    data = path.read_bytes()
    at = data.rindex(old) if last else data.index(old)
    path.write_bytes(data[:at] + new + data[at + len(old) :])
    return path


def test_a_good_wheel_has_no_problem_and_says_what_it_needs(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    assert inspection.check(path, NAME) == inspection.Findings((), ())
    assert inspection.metadata(path) == inspection.Metadata("Demo", "1.0", ("numpy>=1",), "", "")


def test_the_forms_that_real_zip_writers_use_are_taken(tmp_path: Path) -> None:
    class Pipe(io.BytesIO):
        """Cannot seek, so that sizes follow the data."""

        def seekable(self) -> bool:
            return False

        def seek(self, *_: object) -> int:
            raise OSError

        def tell(self) -> int:
            raise OSError

    files = members()
    files[f"{INFO}/RECORD"] = "".join(row(n, d) for n, d in files.items()).encode()
    stream = Pipe()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("demo/", b"")
        for name, data in files.items():
            out.writestr(name, data)
    path = tmp_path / "streamed"
    path.write_bytes(stream.getvalue())
    assert problems(path) == ()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as out:
        for name, data in files.items():
            with out.open(name, "w", force_zip64=True) as member:
                member.write(data)
        out.comment = b"made by hand"
    assert problems(path) == ()
    data = stream.getvalue()
    at = data.rindex(b"PK\7\10")
    path.write_bytes(data[: at + 4] + b"\0\0\0\0" + data[at + 8 :])
    assert "another size and checksum" in the_problem(path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../evil.py", "climbs out"),
        ("demo/../../evil.py", "climbs out"),
        ("/etc/evil", "is absolute"),
        ("..\\evil.py", "climbs out on Windows"),
        ("C:/evil.py", "climbs out on Windows"),
        ("demo//evil.py", "has an empty component"),
        ("./evil.py", "has an empty component"),
        ("demo/\x1b[2Jevil.py", "has a control character"),
        ("demo/__init__.py/evil.py", "needs a folder where there is a file"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    path = wheel(tmp_path, members() | {name: b"evil"})
    problem = the_problem(path)
    assert reason in problem
    assert problem.isprintable()


def test_a_name_cut_short_by_nul_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, members() | {"demo/a.py@.txt": b"evil"})
    data = path.read_bytes().replace(b"a.py@.txt", b"a.py\0.txt")
    path.write_bytes(data)
    assert any("demo/a.py\\x00.txt" in problem for problem in problems(path))


def test_repeated_entries_are_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = wheel(tmp_path, write=lambda out: out.writestr("demo/__init__.py", b"evil"))
    assert the_problem(path) == "demo/__init__.py is in it more than once"


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(stat.S_IFLNK | 0o777, "a symbolic link"), (stat.S_IFIFO | 0o644, "no regular file")],
)
def test_links_and_devices_are_refused(tmp_path: Path, mode: int, reason: str) -> None:
    info = zipfile.ZipInfo("demo/link")
    info.create_system = 3
    info.external_attr = mode << 16
    path = wheel(tmp_path, write=lambda out: out.writestr(info, b"/etc/passwd"))
    assert the_problem(path) == f"demo/link is {reason}"


def test_encrypted_and_oddly_packed_entries_are_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path, members(odd=b"x" * 100))
    data = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = data.index(signature)
        data[at + flags] |= 1
    path.write_bytes(data)
    assert the_problem(path) == "demo/__init__.py is encrypted"
    path = wheel(
        tmp_path, write=lambda out: out.writestr("demo/b.py", b"x", compress_type=zipfile.ZIP_LZMA)
    )
    assert the_problem(path) == "demo/b.py is neither stored nor deflated"


@pytest.mark.parametrize(
    ("field", "offset", "length"),
    [
        ("flags", 6, 2),
        ("method", 8, 2),
        ("checksum", 14, 4),
        ("packed size", 18, 4),
        ("size", 22, 4),
    ],
)
def test_local_and_central_headers_that_differ_are_refused(
    tmp_path: Path, field: str, offset: int, length: int
) -> None:
    path = wheel(tmp_path)
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)
    assert the_problem(path) == f"demo/__init__.py has two headers that differ in {field}"


def test_a_second_name_in_the_local_header_is_refused(tmp_path: Path) -> None:
    path = patched(wheel(tmp_path), b"demo/__init__.py", b"demo/__evil__.py")
    assert the_problem(path) == "demo/__init__.py has two headers that differ in name"


def test_bytes_that_belong_to_no_entry_are_refused(tmp_path: Path) -> None:
    def hide(out: zipfile.ZipFile) -> None:
        out.writestr("demo/hidden.py", b"evil")
        del out.filelist[-1]

    path = wheel(tmp_path, write=hide)
    assert "bytes of it belong to no entry" in the_problem(path)
    good = wheel(tmp_path).read_bytes()
    path.write_bytes(b"#!/bin/sh\n" + good)
    assert "does not begin where what is before it ends" in the_problem(path)
    path.write_bytes(good + b"more")
    assert problems(path) != ()
    path.write_bytes(good + good)
    assert problems(path) != ()
    path.write_bytes(good[:-100])
    assert "no zip archive" in the_problem(path)


def test_an_end_that_counts_otherwise_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\5\6")
    struct.pack_into("<H", data, at + 10, 3)
    path.write_bytes(data)
    assert the_problem(path) == "its end is not the end of one zip archive"


def test_data_that_unpacks_to_more_or_less_is_refused(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    data = bytearray(path.read_bytes())
    for signature, size in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        struct.pack_into("<I", data, data.index(signature) + size, 17)
    path.write_bytes(data)
    assert problems(path) == ("demo/__init__.py does not unpack to what its header says",)
    # Damage inside the deflated data.
    path = wheel(tmp_path)
    data = bytearray(path.read_bytes())
    data[30 + len("demo/__init__.py") + 3] ^= 0xFF
    path.write_bytes(data)
    assert problems(path) == ("demo/__init__.py does not unpack to what its header says",)


def test_a_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheel(tmp_path, members(zeros=bytes(5_000_000)))
    assert problems(path) == ()
    monkeypatch.setattr(archive, "_HARMLESS", 2**20)
    assert "claim to unpack to" in the_problem(path)


def test_record_lists_all_and_only_what_is_there(tmp_path: Path) -> None:
    files = members(extra=b"more")
    true = "".join(row(n, d) for n, d in files.items())
    wrong = row("demo/extra.py", b"less")
    right = row("demo/extra.py", b"more")
    for record, problem in {
        true + row("demo/gone.py", b""): "RECORD lists demo/gone.py, which is not there",
        true.replace(right, ""): "demo/extra.py is not in RECORD",
        true.replace(right, wrong): "demo/extra.py is not what RECORD says",
        true.replace(right, right.replace(",4", ",5")): "demo/extra.py is not what RECORD says",
        true.replace(right, "demo/extra.py,,\n"): "demo/extra.py has no sha256 in RECORD",
        true.replace(right, "demo/extra.py,md5=abc,4\n"): "demo/extra.py has no sha256 in RECORD",
    }.items():
        assert the_problem(wheel(tmp_path, files, record=record)) == problem
    twice = problems(wheel(tmp_path, files, record=true + wrong))
    assert twice == ("RECORD lists demo/extra.py twice, and differently",)
    assert problems(wheel(tmp_path, files, record=true + right)) == ()


def test_other_hashes_and_signatures_of_record_are_taken(tmp_path: Path) -> None:
    files = members() | {f"{INFO}/RECORD.jws": b"{}"}
    digest = base64.urlsafe_b64encode(hashlib.sha512(METADATA).digest()).decode()
    record = "".join(row(n, d) for n, d in members().items())
    record = record.replace(row(f"{INFO}/METADATA", METADATA), f"{INFO}/METADATA,sha512={digest},")
    assert problems(wheel(tmp_path, files, record=record)) == ()


def test_an_edited_metadata_is_a_remark(tmp_path: Path) -> None:
    files = members() | {f"{INFO}/top_level.txt": b"demo"}
    record = "".join(row(n, d) for n, d in members().items()) + row(f"{INFO}/top_level.txt", b"x")
    found = inspection.check(wheel(tmp_path, files, record=record), NAME)
    assert found.problems == ()
    assert found.remarks == (f"{INFO}/top_level.txt is not what RECORD says",)


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("METADATA", b"Name: Demo", b"Name: other", "METADATA says that it is 'other' '1.0'"),
        ("METADATA", b"Version: 1.0", b"Version: 2", "METADATA says that it is 'Demo' '2'"),
        ("WHEEL", b"Wheel-Version: 1.0", b"Wheel-Version: 2.0", "version '2.0' of the wheel"),
        ("WHEEL", b"py3-none-any", b"cp311-cp311-linux_x86_64", "for cp311-cp311-linux_x86_64"),
    ],
)
def test_metadata_that_contradicts_the_file_name_is_refused(
    tmp_path: Path, file: str, old: bytes, new: bytes, problem: str
) -> None:
    files = members()
    files[f"{INFO}/{file}"] = files[f"{INFO}/{file}"].replace(old, new)
    assert problem in the_problem(wheel(tmp_path, files))


def test_a_renamed_wheel_is_taken_for_the_same_machine_alone(tmp_path: Path) -> None:
    files = members()
    files[f"{INFO}/WHEEL"] = WHEEL.replace(b"py3-none-any", b"cp36-cp36m-linux_x86_64")
    path = wheel(tmp_path, files)
    found = inspection.check(path, "demo-1.0-py3-none-manylinux_2_28_x86_64.whl")
    assert (found.problems, len(found.remarks)) == ((), 1)
    for other in ("manylinux_2_28_aarch64", "win_amd64", "macosx_11_0_arm64", "any"):
        assert "for cp36-cp36m-linux_x86_64" in the_problem(path, f"demo-1.0-py3-none-{other}.whl")


def test_what_is_no_wheel_is_said(tmp_path: Path) -> None:
    path = wheel(tmp_path)
    assert "wheel filename" in the_problem(path, "demo.whl").lower()
    assert f"its metadata stands in {INFO}" in problems(path, "demo-2.0-py3-none-any.whl")
    none = {"demo/__init__.py": b"", f"{INFO}.txt": b""}
    with zipfile.ZipFile(path, "w") as out:
        for name, data in none.items():
            out.writestr(name, data)
    assert the_problem(path) == "a wheel has one .dist-info folder; this has none"
    with pytest.raises(ValueError, match="this has none"):
        inspection.metadata(path)
    path = wheel(tmp_path, members() | {"other-1.dist-info/METADATA": b""})
    assert f"this has {INFO}, other-1.dist-info" in the_problem(path)
    files = members()
    del files[f"{INFO}/WHEEL"]
    assert the_problem(wheel(tmp_path, files)) == f"{INFO}/WHEEL is missing"
    with pytest.raises(OSError, match="nowhere"):
        inspection.check(tmp_path / "nowhere", NAME)


@pytest.mark.parametrize(
    "line",
    [
        "../../x = demo:main",
        "sub/x = demo:main",
        "..\\x = demo:main",
        "C:x = demo:main",
        ".. = demo:main",
        "x = import os",
        "x = demo",
        "x",
        "fine = demo:main\n  ../x = demo:main",  # configparser takes it for a continuation
    ],
)
def test_entry_points_that_climb_out_or_start_nothing_are_refused(
    tmp_path: Path, line: str
) -> None:
    text = f"[other]\nplugin/../a = demo\n  [console_scripts]\n{line}\n"
    path = wheel(tmp_path, members() | {f"{INFO}/entry_points.txt": text.encode()})
    assert the_problem(path).startswith("its program ")


def test_ordinary_entry_points_and_data_folders_are_taken(tmp_path: Path) -> None:
    text = (
        "# made by hand\n[console_scripts]\nx=demo:main\nx-3.11 = demo.sub : Class.main [extra]\n"
        "[gui_scripts]\n\n[mlflow.plugin]\nfile/plugin = demo\n"
    )
    data = {
        f"demo-1.0.data/{place}": b"#!python\n"
        for place in ("scripts/x", "data/share/x", "headers/x.h", "purelib/x.py", "platlib/x.so")
    }
    files = members() | data | {f"{INFO}/entry_points.txt": text.encode()}
    assert inspection.check(wheel(tmp_path, files), NAME) == inspection.Findings((), ())
    path = wheel(tmp_path, members() | {"demo-1.0.data/bin/x": b"#!python\n"})
    assert the_problem(path) == "demo-1.0.data/bin is no place that installers know"


def test_many_problems_are_counted_not_listed(tmp_path: Path) -> None:
    files = members(**{f"m{number}": b"" for number in range(100)})
    found = problems(wheel(tmp_path, files, record=""))
    assert len(found) == 21
    assert found[-1] == "and 81 more"


REAL = ["numpy==2.3.5", "tokenizers", "accelerate", "six==1.5.2", "decord==0.6.0"]


def test_real_wheels_pass(tmp_path: Path) -> None:
    platforms = ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2010_x86_64"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *REAL]
    command += ["--dest", str(tmp_path), "--only-binary", ":all:", "--python-version", "3.11"]
    for platform in platforms:
        command += ["--platform", platform]
    subprocess.run(command, check=True, timeout=300)
    wheels = sorted(tmp_path.glob("*.whl"))
    assert len(wheels) == len(REAL)
    for path in wheels:
        found = inspection.check(path, path.name)
        assert found.problems == (), path.name
        assert bool(found.remarks) is path.name.startswith("decord"), found
        assert inspection.metadata(path).name
