"""Channels: what a manifest may call one, and what is written down of it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from mirror.ecosystems.conda.channels import Channel, parse
from mirror.errors import UsageError
from tests.conda_packages import write_channel


@pytest.mark.parametrize(
    "text", ["local/", "./local", "../{0}/local", "{1}/local", "file://{1}/local"]
)
def test_folder(tmp_path: Path, text: str) -> None:
    folder = write_channel(tmp_path / "local")
    (found,) = parse([text.format(tmp_path.name, tmp_path)], tmp_path)
    assert found == Channel("local", str(folder), folder)


@pytest.mark.parametrize(
    ("text", "name", "location"),
    [
        ("conda-forge", "conda-forge", "conda-forge"),
        ("nvidia/label/cuda-12.4.0", "nvidia/label/cuda-12.4.0", "nvidia/label/cuda-12.4.0"),
        ("https://c.invalid/conda-forge", "conda-forge", "https://c.invalid/conda-forge"),
        ("https://c.invalid:8443/a/b/", "b", "https://c.invalid:8443/a/b/"),
        (
            "https://c.invalid/x/nvidia/label/cuda-12/",
            "nvidia/label/cuda-12",
            "https://c.invalid/x/nvidia/label/cuda-12/",
        ),
        ("https://c.invalid/", "channel", "https://c.invalid/"),
        ("https://c.invalid/b?token=s3cret#s3cret", "b", "https://c.invalid/b"),
    ],
)
def test_elsewhere(tmp_path: Path, text: str, name: str, location: str) -> None:
    assert parse([text], tmp_path) == [Channel(name, location)]


def test_credentials_go_into_headers_and_nowhere_else(tmp_path: Path) -> None:
    (found,) = parse(["https://me:s3%40cret@c.invalid/private"], tmp_path)
    assert found.location == "https://c.invalid/private"
    assert found.headers == {"Authorization": "Basic " + base64.b64encode(b"me:s3@cret").decode()}
    assert "s3" not in repr(found)


def test_every_problem_is_named_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    write_channel(tmp_path / "here")
    wrong = {
        "missing/": f"there is no folder {tmp_path / 'missing'}",
        "./bare": "it has no noarch/repodata.json",
        "here": "write ./here for it",
        "s3://u:s3cret@bucket/x": "channels are folders, http(s) URLs or names",
        "https://c.invalid/t/s3cret/x": "a token in a channel's path is not supported",
        "https:///x": "https://: channels are folders",
        "https://ho st/x": "https://ho st: channels are folders",
        "https://s3cret@c.invalid:99999/x": "Port out of range",
        "https://[s3cret/x": "Invalid IPv6 URL",
        "::": "::: channels are folders (./channel), http(s) URLs or names",
        "..x": "..x: channels are folders",
    }
    with pytest.raises(UsageError) as caught:
        parse([*wrong, "conda-forge", "https://c.invalid/conda-forge"], tmp_path)
    assert len(caught.value.problems) == len(wrong) + 1
    for expected in [*wrong.values(), "two channels are both called conda-forge"]:
        assert expected in str(caught.value)
    assert "s3cret" not in str(caught.value)
