"""Wheels: resolved for another machine, against what it has, proved from their own metadata."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core.manifest import Manifest, WheelsSection
from mirror.core.paths import masked
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.source import Context
from mirror.ecosystems.tool import source as tool
from mirror.ecosystems.wheels import source, uv
from mirror.ecosystems.wheels.indexes import Indexes, default_url
from mirror.ecosystems.wheels.wanted import Wanted
from mirror.errors import DownloadError, ResolutionError, TargetError, UsageError, together
from mirror.fetch.http import Fetcher
from mirror.store.blobs import Blobs
from tests.index import make_wheel, serve


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    return folder


@pytest.fixture
def context(tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    blobs = Blobs(tmp_path / "cache")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with serve(shelf) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield Context(
            folder=tmp_path,
            target=Target(python="3.11", platform="linux-x86_64", glibc="2.28"),
            blobs=blobs,
            fetcher=Fetcher(blobs, Quiet()),
            progress=Quiet(),
        )


def section(*requirements: str) -> WheelsSection:
    return WheelsSection(requirements=list(requirements))


def test_markers_and_tags_are_the_targets(shelf: Path, context: Context) -> None:
    make_wheel(shelf, "app", "1", requires=["winonly; sys_platform == 'win32'", "native"])
    make_wheel(shelf, "winonly", "1")
    for tag in ("cp311-cp311-manylinux_2_28_x86_64", "cp311-cp311-win_amd64"):
        make_wheel(shelf, "native", "1", tag=tag)
    make_wheel(shelf, "native", "2", tag="cp311-cp311-manylinux_2_34_x86_64")
    linux = source.resolve(section("app"), context)
    windows = source.resolve(
        section("app"), replace(context, target=Target(python="3.11", platform="win-amd64"))
    )
    assert [a.text("file") for a in linux] == [
        "app-1-py3-none-any.whl",
        "native-1-cp311-cp311-manylinux_2_28_x86_64.whl",
    ]
    assert {a.text("name") for a in windows} == {"app", "native", "winonly"}
    assert all("127.0.0.1" not in str(a) for a in linux + windows)


def test_what_the_server_has_is_resolved_against_and_left_out(
    shelf: Path, context: Context
) -> None:
    make_wheel(shelf, "vision", "1", requires=["torch==2.5.0"])
    make_wheel(shelf, "vision", "2", requires=["torch==2.8.0"])
    make_wheel(shelf, "torch", "2.9.0")
    context = replace(context, target=replace(context.target, provided=("torch==2.8.0+cu128",)))
    assert [a.text("file") for a in source.resolve(section("torch", "vision"), context)] == [
        "vision-2-py3-none-any.whl"
    ]
    with pytest.raises(ResolutionError) as caught:
        source.resolve(section("vision==1"), context)
    assert "torch==2.5.0" in str(caught.value)
    assert "The target provides torch==2.8.0+cu128." in str(caught.value)


def test_the_servers_package_is_never_taken_for_the_indexs_of_the_same_version(
    shelf: Path, context: Context
) -> None:
    make_wheel(shelf, "torch", "2.8.0", requires=["nvidia-nccl"])
    make_wheel(shelf, "nvidia-nccl", "1")
    make_wheel(shelf, "vision", "2", requires=["torch==2.8.0"])
    context = replace(context, target=replace(context.target, provided=("torch==2.8.0",)))
    locked = source.resolve(section("vision"), context)
    assert [a.text("name") for a in locked] == ["vision"]


def test_two_that_conflict_are_named(shelf: Path, context: Context) -> None:
    make_wheel(shelf, "a", "1", requires=["c<2"])
    make_wheel(shelf, "b", "1", requires=["c>=2"])
    make_wheel(shelf, "c", "1")
    make_wheel(shelf, "c", "2")
    with pytest.raises(ResolutionError) as caught:
        source.resolve(section("a", "b"), context)
    said = str(caught.value)
    # uv explains from either side, as it comes.
    assert "c<2" in said or "c>=2" in said, said
    assert "you require a and b" in said, said


def test_a_lock_is_kept_where_it_still_fits(shelf: Path, context: Context) -> None:
    make_wheel(shelf, "a", "1")
    old = source.resolve(section("a"), context)
    make_wheel(shelf, "a", "2")
    context = replace(context, kept=tuple(old))
    assert source.resolve(section("a"), context) == old
    assert [a.text("version") for a in source.resolve(section("a>1"), context)] == ["2"]


def test_the_whole_way_from_index_to_proof(shelf: Path, context: Context) -> None:
    make_wheel(shelf, "a", "1", requires=["b"])
    make_wheel(shelf, "b", "1")
    wanted = section("a")
    locked = source.resolve(wanted, context)
    requests = source.requests(locked, wanted, context)
    context.fetcher.fetch([r for r in requests if not isinstance(r, Path)])
    source.prove(locked, wanted, context)
    text = source.derived(locked, context)["requirements.txt"].decode()
    assert f"b==1 \\\n    --hash=sha256:{locked[1].sha256}" in text
    with pytest.raises(ResolutionError, match="b"):
        source.prove(locked[:1], wanted, context)
    with pytest.raises(ResolutionError, match="nothing in the manifest needs"):
        source.prove(locked, section("b"), context)


def test_a_wheel_that_left_the_index_is_named(shelf: Path, context: Context) -> None:
    wheel = make_wheel(shelf, "a", "1")
    locked = source.resolve(section("a"), context)
    wheel.unlink()
    make_wheel(shelf, "a", "2")
    with pytest.raises(DownloadError, match=r"a-1-py3-none-any\.whl"):
        source.requests(locked, section("a"), context)


def test_an_index_out_of_reach_is_a_download_error(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(DownloadError) as caught:
        source.resolve(section("a"), context)
    assert "secret" not in str(caught.value)


def test_the_target_is_named_as_uv_names_it() -> None:
    target = Target(python="3.11", platform="linux-aarch64", glibc="2.30")
    assert uv.platform(target) == "aarch64-manylinux_2_28"
    with pytest.raises(ResolutionError):
        uv.platform(replace(target, glibc="2.12"))


@pytest.mark.skipif(sys.platform == "win32", reason="the server side is POSIX")
def test_the_index_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    assert default_url().endswith("/simple/")
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.invalid/simple")
    assert default_url() == "https://example.invalid/simple"


@pytest.mark.parametrize(
    "value", ["notaurl", "ftp://me:hush@example.invalid/", "https://", "https://me:hu/sh@a.invalid"]
)
@pytest.mark.parametrize("variable", ["UV_DEFAULT_INDEX", "PIP_INDEX_URL"])
def test_a_variable_that_holds_no_address_is_named(
    context: Context, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.delenv("UV_INDEX_URL", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=variable) as caught:
        source.resolve(section("a"), context)
    assert "hu" not in str(caught.value)


def test_several_errors_are_led_by_what_must_be_mended_first() -> None:
    errors = [
        ResolutionError("no set", hint="Change it."),
        TargetError("no fit"),
        DownloadError("no answer", problems=["401"], hint="Log in."),
    ]
    found = together(errors)
    assert (type(found), found.message, found.hint) == (DownloadError, "no answer", "Log in.")
    assert found.problems == ("401", "no fit", "no set", "  Change it.")
    assert type(together([*errors, UsageError("wrong")])) is UsageError
    assert type(together(errors[:2])) is TargetError
    assert together(errors[:1]) is errors[0]


def test_advice_that_several_errors_give_is_given_once() -> None:
    errors = [ResolutionError(f"{name} fails", hint=f"Mend {name}.\nAsk.") for name in "abc"]
    found = together(errors)
    assert (found.message, found.hint) == ("a fails", "Mend a.\nAsk.")
    assert found.problems == ("b fails", "  Mend b.", "c fails", "  Mend c.")


def test_passwords_in_addresses_are_masked() -> None:
    said = "a https://me:hu@sh@h.invalid/x@1 and http://TOKEN@b.invalid: http://c.invalid/d@e"
    clean = "a https://h.invalid/x@1 and http://b.invalid: http://c.invalid/d@e"
    assert masked(said) == clean


def test_what_mirror_itself_needs_is_said_to_be_that(shelf: Path, context: Context) -> None:
    make_wheel(shelf, "a", "1")
    manifest = Manifest.model_validate(
        {"name": "n", "version": "1", "wheels": {"requirements": ["a"]}}
    )
    with pytest.raises(ResolutionError, match="what mirror itself needs on the server") as caught:
        tool.resolve(manifest, context)
    assert any("click" in problem for problem in caught.value.problems)
    assert "index" in (caught.value.hint or "")


@pytest.mark.parametrize("day", ["2026-02-30", "2026-13-01"])
def test_a_day_that_is_none_is_named(context: Context, day: str) -> None:
    wanted = WheelsSection.model_validate({"requirements": ["a"], "exclude-newer": day})
    with pytest.raises(UsageError, match=day):
        source.resolve(wanted, context)


def test_the_index_named_for_the_targets_cuda_is_taken(shelf: Path, context: Context) -> None:
    make_wheel(shelf, "torch", "1")
    for cuda, name in (("12.8", "pytorch-cu128"), ("12.6", "pytorch-cu126")):
        target = replace(context.target, cuda=cuda)
        section = WheelsSection.model_validate(
            {
                "requirements": ["torch"],
                "indexes": {
                    label: {"url": f"https://example.invalid/{label}", "only": ["torch"]}
                    for label in ("pytorch-cu126", "pytorch-cu128", "ours")
                },
            }
        )
        indexes = Indexes.of(section, target)
        assert [index.name for index in indexes.named] == ["ours", name]


def test_torch_of_the_default_index_is_held_to_the_targets_cuda(context: Context) -> None:
    context = replace(context, target=replace(context.target, cuda="12.8"))
    wanted = Wanted.of(section("torch"), context)
    assert wanted.constraints == ("torch>=2.8.0,<2.11",)
    provided = replace(context, target=replace(context.target, provided=("torch==2.5.0",)))
    assert Wanted.of(section("torch"), provided).constraints == ()


def test_a_project_that_does_not_allow_the_targets_python_is_named(context: Context) -> None:
    (context.folder / "pyproject.toml").write_text(
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.12"\ndependencies = []\n'
    )
    with pytest.raises(TargetError, match=r"Python >=3\.12 is asked for"):
        source.resolve(section("pyproject.toml"), context)
