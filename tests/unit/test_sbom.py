"""The bill of materials, the licences in it, and what a lock records for them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from mirror import build, inspect
from mirror.build import forecast, sbom
from mirror.bundle import layout
from mirror.bundle.reader import Reader
from mirror.core import bill, licences, parts
from mirror.core import index as indexes
from mirror.core.artifact import Artifact, Json
from mirror.core.index import SBOM_NAME, Provenance
from mirror.core.progress import Quiet
from mirror.ecosystems.wheels import inspection, stated
from mirror.errors import BundleError, UsageError
from mirror.fetch.http import Request
from mirror.project import open_project
from tests import bundles
from tests.hub import Server
from tests.index import make_wheel, serve
from tests.origins import make_context

TOOL = ("click", "tqdm", "packaging", "segno", "pip", "uv")
MANIFEST = """
name: demo
version: "1"
target: {python: "3.11", platform: linux-x86_64, glibc: "2.28"}
wheels: {requirements: ["alpha[fast]"]}
models: [{path: model/, name: our/run7, weights: none}]
files: [{path: data/, to: ./}]
"""
HASH = "ab" * 32


def an_artifact(kind: str, path: str, **origin: Json) -> Artifact:
    return Artifact(kind, path, 7, hashlib.sha256(path.encode()).hexdigest(), origin=origin)


def a_wheel(name: str, **origin: Json) -> Artifact:
    file = f"{name}-1.0-py3-none-any.whl"
    own = {"name": name, "version": "1.0", "file": file, **origin}
    return an_artifact("wheels", f"wheels/{file}", **own)


def written(*artifacts: Artifact, **about: Any) -> dict[str, Any]:
    """The bill of these, held against CycloneDX's own schema."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    subject = sbom.Subject("demo", "1", "0" * 64, "Python 3.11", artifacts, **about)
    data = sbom.write(subject)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode("ascii")) is None
    document = dict(json.loads(data))
    assert data.decode("ascii") == json.dumps(document, sort_keys=True, indent=2) + "\n"
    return document


def components(document: Mapping[str, Any]) -> dict[str, Any]:
    return {item["bom-ref"]: item for item in document["components"]}


def properties(component: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(item["name"], item["value"]) for item in component["properties"]]


# -- the licences that metadata state ---------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "known"),
    [
        ("apache-2.0", "Apache-2.0"),
        ("mit OR apache-2.0", "MIT OR Apache-2.0"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("The MIT License", "MIT"),
        ("3-Clause BSD License", "BSD-3-Clause"),
        ("LicenseRef-Ours", "LicenseRef-Ours"),
        ("BSD", "BSD"),
        ("Apache Software License", "Apache Software License"),
        ("llama2", "llama2"),
        ("apache-2.0, mit", "apache-2.0, mit"),
        ("Ours\x1b[31m\n  2", "Ours\\x1b[31m 2"),
        ("x" * 5000, "x" * 100),
        ("(" * 900, "(" * 100),
        (" UNKNOWN ", ""),
        ("see LICENSE", ""),
        ("", ""),
    ],
)
def test_what_is_no_spdx_beyond_doubt_stays_a_name(stated: str, known: str) -> None:
    assert licences.known(stated) == known
    assert licences.known(known) == known


BSD, MIT, APACHE = (
    f"License :: OSI Approved :: {name}"
    for name in ("BSD License", "MIT License", "Apache Software License")
)
TEXT = "Copyright 2020 Somebody\n\n Redistribution and use in source and binary forms ..."


@pytest.mark.parametrize(
    ("expression", "text", "classifiers", "licence"),
    [
        ("MIT", "BSD", [APACHE], "MIT"),
        ("", "Apache 2.0", [MIT], "Apache-2.0"),
        ("", "BSD", [BSD], "BSD"),
        ("", "Something", [MIT], "MIT"),
        ("", "", [MIT], "MIT"),
        ("", "", ["License :: OSI Approved", MIT, "Topic :: Utilities"], "MIT"),
        ("", "", [BSD], "BSD License"),
        ("", "", [MIT, APACHE], "MIT License, Apache Software License"),
        ("", "NVIDIA Proprietary", ["License :: Other/Proprietary License"], "NVIDIA Proprietary"),
        ("", TEXT, [BSD], "BSD License"),
        ("", TEXT, [], "Copyright 2020 Somebody"),
        ("", "MIT License\n\nPermission is ...", [], "MIT"),
        ("", "UNKNOWN", ["Topic :: Utilities"], ""),
        ("", "", [], ""),
    ],
)
def test_the_licence_of_a_wheel(
    expression: str, text: str, classifiers: Sequence[str], licence: str
) -> None:
    assert licences.of_wheel(expression, text, classifiers) == licence


# -- what a lock records ----------------------------------------------------------------------


def remote(server: Server, wheel: Path) -> stated.Wheel:
    data = wheel.read_bytes()
    server.files[f"/{wheel.name}"] = data
    sha256 = hashlib.sha256(data).hexdigest()
    request = Request(f"{server.url}/{wheel.name}", wheel.name, f"sha256:{sha256}", len(data))
    return stated.Wheel(wheel.name, sha256, request)


@pytest.mark.parametrize("behind", [b"", os.urandom(300_000)], ids=["small", "large"])
def test_metadata_are_read_from_the_end_of_a_wheel(tmp_path: Path, behind: bytes) -> None:
    files = {"big.bin": os.urandom(400_000)}
    files |= {"demo-1.0.dist-info/LICENSE": behind} if behind else {}
    wheel = make_wheel(tmp_path, "demo", "1.0", files=files, about=["License: MIT"])
    context = make_context(tmp_path / "builder")
    with Server() as server:
        asked = remote(server, wheel)
        found = stated.read([asked], context)
        assert found[wheel.name].licence == "MIT"
        ranges = [seen.range for seen in server.seen]
        assert len(ranges) <= 3
        brought = sum((r[1] or 0) - r[0] + 1 for r in ranges if r)
        assert None not in ranges
        assert brought <= 3 * 2**16 < len(wheel.read_bytes())
        assert not context.blobs.has(asked.sha256)
        assert stated.read([asked], context) == found
        assert len(server.seen) == len(ranges), "what was read once is kept"


def test_a_server_without_ranges_gives_the_whole(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "demo", "1.0", about=["License-Expression: ISC"])
    context = make_context(tmp_path / "builder")
    with Server() as server:
        server.inject(lambda seen, reply: setattr(reply, "ranges", False))
        asked = remote(server, wheel)
        assert stated.read([asked], context)[wheel.name].licence == "ISC"
    assert context.blobs.has(asked.sha256), "the build would fetch it anyway"


def test_what_is_no_wheel_states_nothing(tmp_path: Path) -> None:
    context = make_context(tmp_path / "builder")
    broken = tmp_path / "broken-1.0-py3-none-any.whl"
    broken.write_bytes(b"PK" * 999)
    assert stated.read([stated.Wheel(broken.name, HASH, broken)], context) == {}


def test_needs_are_those_of_the_target_and_of_the_extras_that_are_asked_for() -> None:
    def metadata(*requires: str) -> inspection.Metadata:
        return inspection.Metadata("x", "1", requires, "", "")

    found = {
        "alpha": metadata(
            "Beta[deep]>=1",
            "gamma; extra == 'fast'",
            "delta; extra == 'other'",
            "winonly; sys_platform == 'win32'",
            "not a requirement !!",
        ),
        "beta": metadata("zeta; extra == 'deep'"),
        "gamma": metadata(),
        "zeta": metadata(),
    }
    environment = {"sys_platform": "linux"}
    assert stated.origins(found, ["alpha[fast]>=1"], environment) == {
        "alpha": {"requires": ["beta", "gamma"]},
        "beta": {"requires": ["zeta"]},
        "gamma": {},
        "zeta": {},
    }
    plain = stated.origins(found, ["alpha"], environment)
    assert plain["alpha"] == {"requires": ["beta"]}


# -- the bill ---------------------------------------------------------------------------------


def test_packages_have_purls_hashes_licences_and_needs() -> None:
    record: Json = {"license": "bsd-3-clause", "build": "h1", "depends": ["zlib >=1", "__glibc"]}
    conda = {"file": "x-2-h1.conda", "channel": "conda-forge", "subdir": "linux-64"}
    own = an_artifact("tool", "tool/airgap_mirror-0.1.0-py3-none-any.whl")
    document = written(
        a_wheel("alpha", index="default", license="MIT", requires=["beta", "torch", "python-x"]),
        a_wheel("beta", index="default", license="MIT OR ISC"),
        a_wheel("gamma", index="default", license="Ours, all of it"),
        a_wheel("silent", index="default"),
        a_wheel("local", place="file wheels/local.whl"),
        a_wheel("ofgit", place="git ofgit", commit="c" * 40),
        a_wheel("built", index="default", sdist="b-1.tar.gz", sdist_sha256=HASH, tools=["a==1"]),
        an_artifact(
            "conda",
            "conda/linux-64/x-2-h1.conda",
            **{"name": "x", "version": "2", "record": record, **conda},
            distributions=[{"name": "python-x", "version": "2"}],
        ),
        an_artifact("conda", "conda/noarch/zlib.conda", name="zlib", version="1", file="zlib"),
        own,
        an_artifact("tool", "install.sh"),
        an_artifact("wheels", "requirements.txt"),
        an_artifact("bundle", "SHA256SUMS"),
    )
    found = components(document)
    alpha = found["wheels/alpha-1.0-py3-none-any.whl"]
    assert alpha["purl"] == "pkg:pypi/alpha@1.0?file_name=alpha-1.0-py3-none-any.whl"
    sha256 = a_wheel("alpha").sha256
    assert alpha["hashes"] == [{"alg": "SHA-256", "content": sha256}]
    declared = {"acknowledgement": "declared"}
    assert alpha["licenses"] == [{"license": {"id": "MIT", **declared}}]
    others = [found[f"wheels/{n}-1.0-py3-none-any.whl"] for n in ("beta", "gamma", "silent")]
    assert others[0]["licenses"] == [{"expression": "MIT OR ISC", **declared}]
    assert others[1]["licenses"] == [{"license": {"name": "Ours, all of it", **declared}}]
    assert "licenses" not in others[2], "unknown stays unknown"
    assert "purl" not in found["wheels/local-1.0-py3-none-any.whl"]
    of_git = found["wheels/ofgit-1.0-py3-none-any.whl"]
    assert of_git["pedigree"] == {"commits": [{"uid": "c" * 40}]}
    built = found["wheels/built-1.0-py3-none-any.whl"]
    assert built["externalReferences"] == [
        {
            "type": "source-distribution",
            "url": "b-1.tar.gz",
            "hashes": [{"alg": "SHA-256", "content": HASH}],
        }
    ]
    assert ("mirror:built-with", "a==1") in properties(built)
    package = found["conda/linux-64/x-2-h1.conda"]
    about = "build=h1&channel=conda-forge&subdir=linux-64&type=conda"
    assert package["purl"] == f"pkg:conda/x@2?{about}"
    assert package["licenses"] == [{"license": {"id": "BSD-3-Clause", **declared}}]
    assert found[own.path]["licenses"] == [{"license": {"id": "Apache-2.0", **declared}}]
    assert not {"install.sh", "requirements.txt", "SHA256SUMS"} & found.keys()
    needs = {item["ref"]: item.get("dependsOn", []) for item in document["dependencies"]}
    assert needs[alpha["bom-ref"]] == [package["bom-ref"], "wheels/beta-1.0-py3-none-any.whl"]
    assert needs[package["bom-ref"]] == ["conda/noarch/zlib.conda"]
    assert len(needs["bundle"]) == len(found)


def test_models_datasets_and_files() -> None:
    def repository(kind: str, repo: str, *files: str, **more: Json) -> list[Artifact]:
        own = {"repo": repo, "revision": "main", "commit": "d" * 40, **more}
        return [an_artifact(kind, f"{kind}/{repo}/{file}", file=file, **own) for file in files]

    document = written(
        *repository("models", "org/net", "README.md", "a/w.safetensors", license="apache-2.0"),
        *repository("models", "our/run7", "w.safetensors"),
        *repository("datasets", "org/data", "x.parquet", license="cc-by-4.0"),
        *repository("spaces", "org/app", "app.py"),
        an_artifact("files", "files/configs/a.yaml"),
        hub=frozenset({("models", "org/net"), ("datasets", "org/data")}),
    )
    found = components(document)
    net = found["models/org/net"]
    assert (net["type"], net["group"], net["name"]) == ("machine-learning-model", "org", "net")
    assert net["version"] == "d" * 40
    assert net["purl"] == f"pkg:huggingface/org/net@{'d' * 40}"
    assert net["licenses"][0]["license"]["id"] == "Apache-2.0"
    assert [(item["type"], item["name"]) for item in net["components"]] == [
        ("file", "README.md"),
        ("file", "a/w.safetensors"),
    ]
    card = an_artifact("models", "models/org/net/README.md")
    assert net["externalReferences"] == [
        {
            "type": "model-card",
            "url": card.path,
            "hashes": [{"alg": "SHA-256", "content": card.sha256}],
        }
    ]
    own = found["models/our/run7"]
    assert not {"purl", "licenses", "externalReferences", "modelCard"} & own.keys()
    assert found["datasets/org/data"]["type"] == "data"
    assert found["spaces/org/app"]["type"] == "application"
    assert found["files/configs/a.yaml"]["type"] == "file"
    assert found["files/configs/a.yaml"]["name"] == "configs/a.yaml"


def test_the_same_input_gives_the_same_bytes_and_no_clock_is_asked() -> None:
    wheels = [a_wheel(name, index="default", license="MIT") for name in ("b", "a")]
    subject = sbom.Subject("demo", "1", "0" * 64, "", wheels)
    data = sbom.write(subject)
    assert data == sbom.write(replace(subject, artifacts=wheels[::-1]))
    assert b"timestamp" not in data
    assert data.endswith(b"}\n")
    dated = replace(subject, time=1_700_000_000)
    assert json.loads(sbom.write(dated))["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    serials = {json.loads(sbom.write(s))["serialNumber"] for s in (subject, dated)}
    serials.add(json.loads(sbom.write(replace(subject, lock="1" * 64)))["serialNumber"])
    assert len(serials) == 3


# -- in a bundle ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in TOOL:
        make_wheel(shelf, name, "99.0", about=["License-Expression: MIT"])
    extra = ["Provides-Extra: fast"]
    needs = ["beta; extra == 'fast'"]
    make_wheel(shelf, "alpha", "1.0", requires=needs, about=[*extra, "License: Ours"])
    make_wheel(shelf, "beta", "1.0")
    project = tmp_path / "p"
    (project / "data").mkdir(parents=True)
    (project / "data" / "note").write_text("1", encoding="utf-8")
    (project / "model").mkdir()
    (project / "model" / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    (project / "model" / "config.json").write_text("{}", encoding="utf-8")
    (project / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    with serve(shelf) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield project


def built(folder: Path) -> build.Built:
    return build.build(open_project(folder / "m.yaml", Quiet()), None)


def a_bill(path: Path) -> bytes:
    with Reader.open(path) as reader:
        return inspect.bill(reader)


def test_a_bundle_carries_its_bill_and_its_provenance(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = built(folder)
    assert made.path
    manifest = hashlib.sha256((folder / "m.yaml").read_bytes()).hexdigest()
    assert made.index.provenance == Provenance(manifest, None)
    [artifact] = [a for a in made.index.artifacts if a.path == SBOM_NAME]
    assert artifact.kind == "bundle"
    data = a_bill(made.path)
    assert hashlib.sha256(data).hexdigest() == artifact.sha256
    found = components(json.loads(data))
    assert found["wheels/alpha-1.0-py3-none-any.whl"]["licenses"][0]["license"]["name"] == "Ours"
    assert "licenses" not in found["wheels/beta-1.0-py3-none-any.whl"]
    assert "purl" not in found["models/our/run7"], "it comes from a folder"
    needs = {i["ref"]: i.get("dependsOn") for i in json.loads(data)["dependencies"]}
    assert needs["wheels/alpha-1.0-py3-none-any.whl"] == ["wheels/beta-1.0-py3-none-any.whl"]
    whole = made.path.read_bytes()
    monkeypatch.setenv("MIRROR_CACHE", str(folder / "another"))
    again = built(folder)
    assert again.path
    assert again.path.read_bytes() == whole, "nothing of the builder or its clock is in it"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = built(folder)
    assert dated.path
    assert dated.index.provenance == Provenance(manifest, 1_700_000_000)
    assert json.loads(a_bill(dated.path))["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert any("dated 2023-11-14 22:13:20 UTC" in line for line in shown(dated.path))


def shown(path: Path) -> list[str]:
    with Reader.open(path) as reader:
        return inspect.lines(inspect.inspect(reader, deep=False, progress=Quiet()), files=False)


def test_a_warm_build_writes_no_bill(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = built(folder)

    def never(subject: sbom.Subject) -> bytes:
        raise AssertionError("it was kept")

    monkeypatch.setattr(sbom, "write", never)
    again = built(folder)
    assert not again.changed
    assert again.index == first.index


def test_a_dry_run_knows_the_size_and_keeps_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = built(folder)
    cold = folder / "cold"
    monkeypatch.setenv("MIRROR_CACHE", str(cold))
    seen = forecast.forecast(open_project(folder / "m.yaml", Quiet()), None, None)
    assert (seen.plan.size, seen.plan.index) == (made.size, made.index)
    assert not cold.exists()


@pytest.mark.parametrize("text", ["now", "-1", "1.5", "٣", "9" * 30, "253402300800", " 1"])
def test_a_wrong_source_date_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH is no number") as caught:
        build.record.source_date()
    assert caught.value.exit_code == 2


# -- read from a bundle -----------------------------------------------------------------------


class Counted(BytesIO):
    """A source of bytes that tells how many were read."""

    name = "counted"

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.size: int | None = None
        self.digest: str | None = None

    def read_into(self, views: Sequence[memoryview]) -> int:
        return sum(self.readinto(view) for view in views)

    def suspects(self, progress: object) -> list[str]:
        return []


def with_bill(folder: Path, data: bytes, behind: int = 0) -> bytes:
    """A bundle with these bytes as its bill, and a large file behind it."""
    made = bundles.sources(folder / "in", {SBOM_NAME: data, "files/large": bytes(behind)})
    entries = list(made.index.entries)
    entries[0] = replace(entries[0], artifact=replace(entries[0].artifact, kind="bundle"))
    made = replace(made, index=replace(made.index, entries=tuple(entries)))
    return made.pack(folder / "b.tar.gz")


def test_a_bill_is_read_no_further_than_its_end(tmp_path: Path) -> None:
    data = with_bill(tmp_path, b'{"a": 1}\n', behind=60_000_000)
    source = Counted(data)
    with Reader.open(source) as reader:
        assert inspect.bill(reader) == b'{"a": 1}\n'
        assert source.tell() < layout.CHUNK + 2**16, "the chunk that it ends in"


def test_damage_in_a_bill_is_named(tmp_path: Path) -> None:
    data = bytearray(with_bill(tmp_path, b'{"a": 1}\n' * 99))
    data[data.index(b'{"a": 1}\n') + 2] ^= 1
    (tmp_path / "b.tar.gz").write_bytes(data)
    with pytest.raises(BundleError, match="has not the sha256"):
        a_bill(tmp_path / "b.tar.gz")


def test_an_older_bundle_says_that_it_has_none(tmp_path: Path) -> None:
    bundles.sources(tmp_path / "in", {"files/a": b"1"}).pack(tmp_path / "b.tar.gz")
    with pytest.raises(UsageError, match="has no bill of materials") as caught:
        a_bill(tmp_path / "b.tar.gz")
    assert "mirror 0.1 made none" in caught.value.message
    assert "--licences" in (caught.value.hint or "")


def test_an_increment_with_the_bill_of_its_base_says_so(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", {SBOM_NAME: b"{}", "files/a": b"1"})
    first, *rest = made.index.entries
    held = replace(first, artifact=replace(first.artifact, kind="bundle"), shipped=False)
    index = replace(made.index, entries=(held, *rest), base="b" * 64)
    replace(made, index=index).pack(tmp_path / "b.tar.gz")
    with pytest.raises(UsageError, match="that of its base"):
        a_bill(tmp_path / "b.tar.gz")


@pytest.mark.parametrize(
    "data",
    [b"no json", b'"\x1b[31m"', b'"\xc3\xa9"', b"[" * 200_000, b'{"a":\t1}'],
    ids=["text", "escape", "not-ascii", "deep", "tab"],
)
def test_what_no_mirror_writes_is_not_printed(data: bytes) -> None:
    with pytest.raises(BundleError) as caught:
        bill.parsed(data, "b")
    assert str(caught.value).isprintable()


def test_provenance_is_read_strictly() -> None:
    index = replace(bundles.index_of(), provenance=Provenance(HASH, 0))
    assert indexes.parse(index.to_bytes()) == index
    assert b"provenance" not in bundles.index_of().to_bytes()
    document = json.loads(index.to_bytes())
    for wrong in (
        None,
        {},
        {"manifest": HASH},
        {"manifest": HASH, "time": None, "more": 1},
        {"manifest": "x", "time": None},
        *({"manifest": HASH, "time": time} for time in (-1, 1.0, "1", True, 253_402_300_800)),
    ):
        changed = {**document, "provenance": wrong}
        with pytest.raises(BundleError):
            indexes.parse(indexes.canonical(changed) + b"\n")


# -- the table of licences --------------------------------------------------------------------


def test_the_table_has_what_is_unknown_at_its_end() -> None:
    found = bill.rows(
        [
            a_wheel("silent"),
            a_wheel("quiet"),
            a_wheel("none"),
            a_wheel("one", license="mit"),
            a_wheel("two", license="MIT"),
            a_wheel("ours", license="Ours\x1b[0m"),
            a_wheel("long", license="MIT AND " * 30 + "MIT"),
        ]
    )
    assert [row.licence for row in found][:1] == ["MIT"]
    assert found[-1].licence == ""
    assert [part.name for part in found[-1].parts] == ["none", "quiet", "silent"]
    lines = bill.lines(found)
    assert all(len(line) <= 80 and line.isprintable() for line in lines)
    assert lines[0].split() == ["MIT", "2", "parts,", "14", "B"]
    assert lines[1] == "    one 1.0, two 1.0"
    assert any(line.startswith("UNKNOWN") for line in lines)
    assert lines[-1] == "7 parts, 3 of them without a known licence"
    [first, *_] = json.loads(json.dumps(bill.to_json(found)))
    assert (first["license"], first["count"], first["bytes"]) == ("MIT", 2, 14)
    last = json.loads(json.dumps(bill.to_json(found)))[-1]
    assert last["license"] is None


def test_very_many_names_are_cut_short() -> None:
    lines = bill.lines(bill.rows([a_wheel(f"p{n}", license="MIT") for n in range(500)]))
    assert len(lines) < 15
    assert "    and more: --json names all of them" in lines


def test_parts_have_paths_of_their_own() -> None:
    own = {"repo": "o/n", "commit": "c" * 40}
    found = parts.of(
        [
            an_artifact("models", "models/o/n/a/x", file="a/x", revision="main", **own),
            an_artifact("models", "models/o/n@v1/a/x", file="a/x", revision="v1", **own),
            an_artifact("models", "models/o/n/y", file="y", revision="main", **own),
        ]
    )
    assert [(part.path, len(part.artifacts)) for part in found] == [
        ("models/o/n", 2),
        ("models/o/n@v1", 1),
    ]
