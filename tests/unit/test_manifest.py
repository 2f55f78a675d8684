"""A manifest: what it means, and every mistake named with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mirror
from mirror.core import reading
from mirror.core.manifest import FolderRepository, HubRepository, LocalFile, RemoteFile, json_schema
from mirror.errors import UsageError

GOOD = b"""\
name: demo
version: 4.10
target:
  python: 3.10
  glibc: 2.28
  gpus: [sm_90]
  provided: [torch==2.8.0, numpy]
wheels:
  requirements: [accelerate, "transformers>=4.50; python_version > '3.8'"]
models:
  - org/name
  - {repo: org/other, revision: v1}
  - {path: run7, name: our/run7}
files:
  - {path: a, to: b}
  - {url: "https://example.invalid/x", sha256: "%s", to: c}
verify: {precision: no, steps: 1_0}
""" % (b"0" * 64)


def mistakes(data: bytes) -> str:
    with pytest.raises(UsageError) as caught:
        reading.parse(data, "m.yaml")
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_every_scalar_is_text_before_it_is_typed() -> None:
    manifest = reading.parse(GOOD.replace(b"1_0", b"10"), "m.yaml")
    assert (manifest.version, manifest.target.python) == ("4.10", "3.10")
    assert manifest.verify.precision == "no"
    assert manifest.verify.steps == 10
    assert manifest.verify.checks == []
    assert manifest.models == [
        "org/name",
        HubRepository(repo="org/other", revision="v1"),
        FolderRepository(path="run7", name="our/run7"),
    ]
    assert [type(item) for item in manifest.files] == [LocalFile, RemoteFile]


@pytest.mark.parametrize("change", ["bom", "crlf", "empty section"])
def test_what_editors_do_to_files_is_understood(change: str) -> None:
    data = GOOD
    if change == "bom":
        data = b"\xef\xbb\xbf" + data
    elif change == "crlf":
        data = data.replace(b"\n", b"\r\n")
    else:
        data = data + b"conda:\n"
    assert reading.parse(data, "m.yaml").name == "demo"


def test_all_mistakes_in_one_run_each_with_its_place() -> None:
    said = mistakes(
        b"""\
name: x
version: 1
targt: {}
target:
  python: 3.1o
  glib: 2.28
wheels:
  requirements: [--pre x, "foo=1", "a @ https://u:p@example.invalid/a-1-py3-none-any.whl", ok]
models:
  - {repoo: a/b}
files: {a: b}
verify: {steps: no}
"""
    )
    for line in (
        "m.yaml:3:1: unknown key targt; did you mean target?",
        "m.yaml:5:3: target.python: '3.1o' is not a Python version such as 3.11",
        "m.yaml:6:3: unknown key target.glib; did you mean glibc?",
        "m.yaml:8:18: wheels.requirements.0:",
        "m.yaml:8:27: wheels.requirements.1:",
        "m.yaml:8:36: wheels.requirements.2:",
        "m.yaml:10:6: unknown key models.0.repoo; did you mean repo?",
        "m.yaml:11:1: files must be a list",
        "m.yaml:12:10: verify.steps:",
    ):
        assert line in said
    assert "wheels.requirements.3" not in said


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "a manifest is a table"),
        (b"- a", "a manifest is a table"),
        (b"name:\n\tx: 1", "m.yaml:2:1: found character '\\t'"),
        (b"name:\n\tx: 1", "The line holds a tab"),
        (b"name: [", "m.yaml:1:8"),
        (b"name: \xe9", "m.yaml:1: the manifest is not UTF-8 text"),
        (b"name: a\nname: b\nversion: 1", "m.yaml:2:1: the key name is here twice"),
        (b"a: &x [*x]", "an alias holds itself"),
        (b"name: 'a b'\nversion: 1", "'a b' is not a name of letters"),
        (b"version: 1", "name is missing"),
        (b"name: a\nversion: 1\ntarget: {provided: ['torch>=2']}", "neither NAME nor NAME==VER"),
        (b"name: a\nversion: 1\nwheels: {requirements: []}", "wheels.requirements is empty"),
        (b"models: [{repo: a/b, name: a/c}]", "m.yaml:1:22: the key models.0.name does not belong"),
        (b"models: [{repo: a/b, default: on it}]", "default: 'on it' is neither true nor false"),
        (
            b"verify:\n  checks: [ray, olama]",
            "m.yaml:2:17: verify.checks.1: 'olama' is not 'ray' or",
        ),
        (b"verify: {checks: ray}", "m.yaml:1:10: verify.checks must be a list"),
        (b"endpoint: http://u:p@hub.invalid", "they come from netrc, or from HF_TOKEN"),
    ],
)
def test_a_mistake_is_named(data: bytes, words: str) -> None:
    assert words in mistakes(data)


def test_further_checks_are_asked_for_by_name() -> None:
    data = GOOD.replace(b"steps: 1_0", b"checks: [vllm, ray]")
    assert reading.parse(data, "m.yaml").verify.checks == ["vllm", "ray"]


def test_the_schema_for_editors_comes_from_the_same_classes() -> None:
    file = Path(mirror.__file__).with_name("manifest.schema.json")
    made = json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"
    assert file.read_text(encoding="utf-8") == made
