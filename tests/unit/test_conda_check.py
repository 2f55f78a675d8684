"""An environment of conda packages, looked at again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirror.ecosystems.conda.linking.check import problems
from mirror.ecosystems.deploy import Site
from tests.conda_packages import PREFIX, Package, put, run


@pytest.fixture
def there(tmp_path: Path) -> Site:
    text = f"#!{PREFIX}/bin/sh\n".encode()
    one = Package("one", files={"bin/one": text, "lib/one": b"1"}, links={"lib/l": "one"})
    clobbered = Package("two", files={"bin/one": b"2"}, depends=["one"])
    found = put(tmp_path, one, clobbered)
    run(found)
    return found


def seen(there: Site) -> list[str]:
    return problems(there.generation.env, there.index.of_kind("conda"))


def test_what_is_as_it_was_installed(there: Site) -> None:
    assert not seen(there), "replaced prefixes and clobbered files are as they were installed"


def test_what_is_gone_or_changed(there: Site) -> None:
    env = there.generation.env
    (env / "lib/one").unlink()
    (env / "lib/l").unlink()
    (env / "bin/one").write_bytes(b"other")
    assert sorted(seen(there)) == [
        "one-1.0-0: lib/l is missing",
        "one-1.0-0: lib/one is missing",
        "two-1.0-0: bin/one has changed",
    ]


def test_records_that_are_not_ours(there: Site) -> None:
    folder = there.generation.env / "conda-meta"
    (folder / "one-1.0-0.json").unlink()
    (folder / "two-1.0-0.json").write_text("{}", encoding="utf-8")
    (folder / "three-1.0-0.json").write_text(json.dumps({"name": "three"}), encoding="utf-8")
    assert seen(there) == [
        "one-1.0-0 is not installed",
        "three-1.0-0 was installed by somebody else",
        f"two-1.0-0: {folder / 'two-1.0-0.json'} is not what was written there",
    ]


def test_link_scripts_may_change_files(tmp_path: Path) -> None:
    script = b'echo changed > "$PREFIX/lib/p"\n'
    package = Package("p", files={"lib/p": b"", "bin/.p-post-link.sh": script})
    there = put(tmp_path, package, scripts=["p"])
    run(there)
    assert not seen(there)
    (there.generation.env / "lib/p").unlink()
    assert seen(there) == ["p-1.0-0: lib/p is missing"]
