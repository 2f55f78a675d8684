"""What a package archive says of itself, read and judged before rattler sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.ecosystems.conda.archives import Contents, read
from tests.conda_packages import DATA, PREFIX, Package, needs_data


def archive(folder: Path, package: Package) -> Path:
    path = folder / package.file
    path.write_bytes(package.to_bytes())
    return path


def test_contents(tmp_path: Path) -> None:
    package = Package(
        "p",
        files={
            "bin/p": f"#!{PREFIX}/bin/sh\n".encode(),
            "lib/p.so": f"{PREFIX}\0".encode(),
            "bin/.p-post-link.sh": b"",
            "bin/.p-pre-unlink.sh": b"",
            "share/a b": b"",
        },
        links={"lib/p.so.1": "p.so"},
    )
    found = read(archive(tmp_path, package))
    assert set(found.files) == {*package.files, "lib/p.so.1"}
    assert found.prefix_limit == len(PREFIX), "text may grow, binary files may not"
    assert found.link_scripts == ["bin/.p-post-link.sh"]


def test_packages_from_before_paths_json(tmp_path: Path) -> None:
    info = {"info/paths.json": None, "info/files": b"a\nb/c\n"}
    package = Package("old", files={"a": b"", "b/c": b""}, info=info)
    assert read(archive(tmp_path, package)) == Contents(("a", "b/c"), None)
    far = Package("far", info={**info, "info/files": b"a\n../far\n"})
    with pytest.raises(ValueError, match=r"outside the environment: \.\./far"):
        read(archive(tmp_path, far))


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "\\x", "a\\..\\x", "C:/x", ".."])
def test_paths_that_leave_the_prefix(tmp_path: Path, path: str) -> None:
    package = Package("p", paths=[{"_path": path, "path_type": "hardlink"}])
    with pytest.raises(ValueError, match="write outside the environment"):
        read(archive(tmp_path, package))


@pytest.mark.parametrize(
    "paths",
    [
        b"",
        b"[]",
        b"{}",
        b'{"paths": 3}',
        b'{"paths": [3]}',
        b'{"paths": [{}]}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_malformed_paths(tmp_path: Path, paths: bytes) -> None:
    package = Package("p", info={"info/paths.json": paths})
    with pytest.raises(ValueError, match="what it holds cannot be read"):
        read(archive(tmp_path, package))


@needs_data
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("conda-index/corrupt/noarch/another_bad_package.conda", "invalid zip archive"),
        ("conda-index/corrupt/noarch/bad_package.tar.bz2", "bz2 header missing"),
        ("rattler/sparse/info-only-1.0.0-0.conda", "what it holds cannot be read"),
        ("rattler/sparse/dotslash-test-1.0.0-0.conda", "what it holds cannot be read"),
        ("nowhere.conda", "No such file"),
    ],
)
def test_broken_archives_say_why(file: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(DATA / file)


@needs_data
def test_both_formats_of_one_package_hold_the_same() -> None:
    folder = DATA / "conda" / "conda_format_repo" / "linux-64"
    modern, old = (read(folder / f"zlib-1.2.11-h7b6447c_3{end}") for end in (".conda", ".tar.bz2"))
    assert set(modern.files) == set(old.files)
    assert modern.prefix_limit == old.prefix_limit
    assert "lib/libz.so.1" in modern.files


@needs_data
def test_archives_with_an_odd_zip64_field() -> None:
    """rattler's reader of streams refuses these; the one that installs them does not."""
    found = read(DATA / "pixi/dummy_channel_2/linux-64/dummy-x-0.1.0-hb0f4dca_0.conda")
    assert len(found.files) == 1
