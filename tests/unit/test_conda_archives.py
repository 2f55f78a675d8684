"""What a package says of itself, judged before rattler sees it: packed, and unpacked."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rattler.package_streaming import extract

from mirror.core.artifact import Json
from mirror.ecosystems.conda.archives import Contents, read
from mirror.ecosystems.conda.linking import unpacked
from tests.conda_packages import DATA, PREFIX, Package, needs_data, special

BOTH = pytest.mark.parametrize("modern", [True, False], ids=["conda", "tar.bz2"])


def archive(folder: Path, package: Package) -> Path:
    path = folder / package.file
    path.write_bytes(package.to_bytes())
    return path


def judge(archive: Path, record: Mapping[str, Json], folder: Path) -> Contents:
    """Unpacked as rattler unpacks it."""
    extract(archive, folder / "unpacked")
    return unpacked.judge(folder / "unpacked", record)


def refused(folder: Path, package: Package, reason: str) -> None:
    """On the builder and on the server alike."""
    made = archive(folder, package)
    with pytest.raises(ValueError, match=reason):
        read(made)
    with pytest.raises((ValueError, OSError), match=reason):
        judge(made, package.index(), folder)


@BOTH
def test_contents(tmp_path: Path, modern: bool) -> None:
    package = Package(
        "p",
        files={
            "bin/p": f"#!{PREFIX}/bin/sh\n".encode(),
            "lib/p.so": f"{PREFIX}\0".encode(),
            "bin/.p-post-link.sh": b"",
            "bin/.p-pre-unlink.sh": b"",
            "Menu/p.json": b"{}",
            "share/a b": b"",
        },
        links={"lib/p.so.1": "p.so"},
        folders=["var/p"],
        modern=modern,
    )
    made = archive(tmp_path, package)
    found = read(made)
    assert set(found.files) == {*package.files, "lib/p.so.1"}
    assert found.prefix_limit == len(PREFIX), "text may grow, binary files may not"
    assert found.links == {"lib/p.so.1": "p.so"}
    assert found.folders == ("var/p",)
    assert found.link_scripts("p") == ["post-link"]
    assert found.menus == ["Menu/p.json"]
    assert not found.python
    assert judge(made, package.index(), tmp_path) == found


def test_packages_from_before_paths_json(tmp_path: Path) -> None:
    files = {"a": PREFIX.encode() + b"\0", "b/c": b"", "b/d": b""}
    prefixes = f'"{PREFIX}" binary "a"\nb/c\n'.encode()
    info = {"info/paths.json": None, "info/files": b"a\nb/c\nb/l\n", "info/has_prefix": prefixes}
    old = Package("old", files=files, links={"b/l": "d"}, info=info)
    made = archive(tmp_path, old)
    assert read(made).files == ("a", "b/c", "b/l")
    found = judge(made, old.index(), tmp_path)
    assert found == Contents(("a", "b/c", "b/l"), len(PREFIX), {"b/l": "d"})
    shutil.rmtree(tmp_path / "unpacked")
    refused(
        tmp_path,
        replace(old, info={**info, "info/files": b"a\n../far\n"}),
        r"outside the environment: \.\./far",
    )


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/x", "\\x", "a\\..\\x", "C:/x", ".."])
def test_paths_that_leave_the_prefix(tmp_path: Path, path: str) -> None:
    package = Package("p", paths=[{"_path": path, "path_type": "hardlink"}])
    refused(tmp_path, package, "write outside the environment")


@pytest.mark.parametrize(
    "path", ["conda-meta/history", "conda-meta/p-1.0-0.json", "conda-meta", "__clobbers__/q/f"]
)
def test_paths_of_the_environments_own_records(tmp_path: Path, path: str) -> None:
    refused(tmp_path, Package("p", files={path: b""}), "the environment's own records")


def test_what_people_keep_beside_the_records_may_be_brought(tmp_path: Path) -> None:
    package = Package("p", files={"conda-meta/pinned": b"numpy <2"})
    assert judge(archive(tmp_path, package), package.index(), tmp_path).files


@BOTH
@pytest.mark.parametrize(
    ("links", "reason"),
    [
        ({"lib/l": ""}, "lib/l leads nowhere|failed to unpack `lib/l`"),
        ({"lib/l": "/etc/passwd"}, "lib/l leads out of the environment: /etc/passwd"),
    ],
)
def test_links_that_are_empty_or_absolute(
    tmp_path: Path, modern: bool, links: Mapping[str, str], reason: str
) -> None:
    refused(tmp_path, Package("p", links=links, modern=modern), reason)


def entry(path: str, **more: Any) -> dict[str, Any]:
    return {"_path": path, "path_type": "hardlink", **more}


@BOTH
@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ([entry("d/x")], "through a symbolic link: d/x is below d"),
        ([entry("e"), entry("d/deep/x")], "through a symbolic link: d/deep/x is below d"),
        ([entry("d", prefix_placeholder="x", file_mode="text")], "said to hold the prefix"),
        ([entry("e/x"), entry("e/x")], "lists e/x twice"),
        ([entry("e/x", path_type="softlink")], "e/x is listed as a symbolic link and is none"),
    ],
)
def test_what_is_listed_is_what_is_there(
    tmp_path: Path, modern: bool, paths: list[dict[str, Any]], reason: str
) -> None:
    """A link in the archive, listed or not, would be followed: out of it, or into its middle."""
    package = Package("p", files={"e/x": b""}, links={"d": "e"}, paths=paths, modern=modern)
    refused(tmp_path, package, reason)


@pytest.mark.parametrize(
    ("path", "reason"), [("ghost", "lists ghost, which it does not hold"), ("e", "is a folder")]
)
def test_what_is_listed_and_not_there(tmp_path: Path, path: str, reason: str) -> None:
    package = Package("p", files={"e/x": b""}, paths=[entry(path)])
    with pytest.raises(ValueError, match=reason):
        judge(archive(tmp_path, package), package.index(), tmp_path)


@BOTH
@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (special("../far", tarfile.REGTYPE), r"invalid package-relative archive path: \.\./far"),
        (special("/far", tarfile.REGTYPE), "invalid package-relative archive path: /far"),
        (special("l", tarfile.LNKTYPE, "/etc/passwd"), "links l to a file outside of itself"),
        (special("l", tarfile.LNKTYPE, "../../x"), r"links l to a file outside of itself: \.\./"),
    ],
)
def test_members_that_would_be_outside_are_named_before_they_travel(
    tmp_path: Path, modern: bool, member: tarfile.TarInfo, reason: str
) -> None:
    """Where they are unpacked all the same, rattler leaves them out: see test_conda_deploy."""
    package = Package("p", files={"own": b""}, members=[member], modern=modern)
    with pytest.raises(ValueError, match=reason):
        read(archive(tmp_path, package))


def test_the_list_that_is_unpacked_last_is_the_one_that_is_judged(tmp_path: Path) -> None:
    """An archive with two of them: a reader of archives meets the first, rattler links the last."""
    kind = {"paths_version": 1, "paths": [entry("../../evil")]}
    package = Package("p", files={"own": b"", "info/paths.json": json.dumps(kind).encode()})
    with_two = replace(package, paths=[entry("own")])
    with pytest.raises(ValueError, match="outside the environment"):
        judge(archive(tmp_path, with_two), with_two.index(), tmp_path)


@pytest.mark.parametrize("path", ["info/paths.json", "info/index.json", "info"])
def test_a_description_that_is_a_link_is_not_read(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "unpacked"
    package = Package("p", files={"f": b""})
    extract(archive(tmp_path, package), folder)
    os.replace(folder / path, tmp_path / "elsewhere")
    (folder / path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a symbolic link, where the package is described"):
        unpacked.judge(folder, package.index())


@pytest.mark.parametrize("key", ["name", "version", "build"])
def test_a_package_that_is_another_than_its_record_says(tmp_path: Path, key: str) -> None:
    package = Package("p")
    with pytest.raises(ValueError, match=f"it is {key} .*, and its channel has other"):
        judge(archive(tmp_path, package), {**package.index(), key: "other"}, tmp_path)


@pytest.mark.parametrize(
    "paths",
    [
        b"",
        b"[]",
        b"{}",
        b'{"paths": 3}',
        b'{"paths": [3]}',
        b'{"paths": [{}]}',
        b'{"paths": [{"_path": 3}]}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_malformed_paths(tmp_path: Path, paths: bytes) -> None:
    package = Package("p", info={"info/paths.json": paths})
    refused(tmp_path, package, "what it holds cannot be read|its info/paths.json is malformed")


@pytest.mark.parametrize("index", [None, b"", b"[]", b"{"])
def test_malformed_index(tmp_path: Path, index: bytes | None) -> None:
    package = Package("p", info={"info/index.json": index})
    refused(tmp_path, package, "what it holds cannot be read|info/index.json")


def test_a_description_of_endless_length_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked, "_LONGEST", 1000)
    package = Package("p", info={"info/paths.json": b" " * 1001})
    with pytest.raises(ValueError, match=r"its info/paths\.json is malformed"):
        judge(archive(tmp_path, package), package.index(), tmp_path)


@needs_data
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("conda-index/corrupt/noarch/another_bad_package.conda", "invalid zip archive"),
        ("conda-index/corrupt/noarch/bad_package.tar.bz2", "bz2 header missing"),
        ("rattler/sparse/info-only-1.0.0-0.conda", "what it holds cannot be read"),
        ("rattler/sparse/dotslash-test-1.0.0-0.conda", "what it holds cannot be read"),
        ("conda/conda_format_repo/linux-64/zlib-1.2.11-h7b6447c_3.conda", "libz.so.* leads now"),
        ("conda/conda_format_repo/linux-64/zlib-1.2.11-h7b6447c_3.tar.bz2", "symbolic link"),
        ("nowhere.conda", "No such file"),
    ],
)
def test_broken_archives_say_why(file: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(DATA / file)


@needs_data
def test_both_formats_of_one_package_hold_the_same(tmp_path: Path) -> None:
    stem = "pixi-pack/webserver/my-webserver-0.1.0-pyh4616a5c_0"
    modern, old = (read(DATA / f"{stem}{end}") for end in (".conda", ".tar.bz2"))
    assert set(modern.files) == set(old.files)
    assert modern.python
    assert old.python


@needs_data
def test_archives_with_an_odd_zip64_field(tmp_path: Path) -> None:
    """rattler's reader of streams refuses these; what unpacks them does not."""
    path = DATA / "pixi/dummy_channel_2/linux-64/dummy-x-0.1.0-hb0f4dca_0.conda"
    found = read(path)
    assert len(found.files) == 1
    record = {"name": "dummy-x", "version": "0.1.0", "build": "hb0f4dca_0"}
    assert judge(path, record, tmp_path) == found


@needs_data
def test_what_is_packed_and_what_is_unpacked_are_judged_alike(tmp_path: Path) -> None:
    """Of every real package that is whole."""
    whole = 0
    for path in [*DATA.rglob("*.conda"), *DATA.rglob("*.tar.bz2")]:
        try:
            found = read(path)
        except ValueError:
            continue
        folder = tmp_path / str(whole)
        folder.mkdir()
        extract(path, folder / "unpacked")
        record = json.loads((folder / "unpacked/info/index.json").read_bytes())
        assert unpacked.judge(folder / "unpacked", record) == found, path
        whole += 1
    assert whole > 100
