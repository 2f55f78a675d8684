"""Symbolic links of a set of packages: none leads out, alone or with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mirror.ecosystems.conda.archives import Contents
from mirror.ecosystems.conda.links import conflicts, escapes

SITE = "lib/python3.11/site-packages"


def package(*files: str, links: Mapping[str, str] | None = None, python: bool = False) -> Contents:
    return Contents((*files, *(links or {})), None, links or {}, python=python)


def found(**packages: Contents) -> list[str]:
    return list(escapes(packages, SITE))


@pytest.mark.parametrize(
    "links",
    [
        {"lib/x": "y"},
        {"lib/x": "../share/y"},
        {"x": "lib/../share"},
        {"a": "a"},
        {"a": "b", "b": "a"},
        {"lib64": "lib", "a/b/c": "../../lib64/../share"},
        {"lib/y": "nowhere/at/all"},
    ],
)
def test_links_that_stay(links: Mapping[str, str]) -> None:
    assert not found(a=package("lib64/x", links=links))


@pytest.mark.parametrize(
    ("links", "named"),
    [
        ({"x": ".."}, "x"),
        ({"lib/x": "../../y"}, "lib/x"),
        ({"lib/x": "../share/../../y"}, "lib/x"),
        # By its words it stays; but a/.. is where a leads to, and one up.
        ({"a": ".", "b": "a/../y"}, "b"),
        ({"a": "b", "b": ".."}, "b"),
        ({"deep/er": ".", "deep/er/x": "../../y"}, "deep/er/x"),
    ],
)
def test_links_that_leave(links: Mapping[str, str], named: str) -> None:
    assert f"p: the symbolic link {named} leads out: {links[named]}" in found(
        p=package(links=links)
    )


def test_a_file_below_a_link_of_another_package() -> None:
    links = {"down": "..", "fine": "lib"}
    problems = found(p=package(links=links), q=package("down/evil", "fine/x", "other"))
    assert problems == [
        "p: the symbolic link down leads out: ..",
        "q: a symbolic link leads out the way to down/evil",
    ]


def test_two_packages_with_other_targets_for_one_link() -> None:
    """Which of the two will be there is not known yet."""
    one, two = package(links={"x": "lib"}), package(links={"x": "lib/../.."})
    assert found(one=one, two=two) == ["two: the symbolic link x leads out: lib/../.."]


def test_links_of_python_packages_start_where_they_are_installed() -> None:
    data = "site-packages/m/data"
    up, higher = {data: "../../../../share/m"}, {data: "../../../../../share/m"}
    assert not found(p=package(links=up, python=True))
    assert len(found(p=package(links=higher, python=True))) == 1
    assert len(found(p=package(links=up))) == 1


def test_links_that_grow_without_end_are_refused() -> None:
    assert found(p=package(links={"a": "a/a/b", "b": "a/b/a"}))


def test_what_is_a_file_here_and_a_folder_there() -> None:
    packages = {
        "a": package("share/x", "lib/m.py", "etc/y"),
        "b": package("share/x/y/z", "share/x/w"),
        "c": package("etc/y", links={"data": "share"}),
        "d": package("data/z", "lib/n.py"),
        "e": replace(package(), folders=("etc/y",)),
        "f": package("site-packages/m/n", python=True),
        "g": package(f"{SITE}/m"),
    }
    assert list(conflicts(packages, SITE)) == [
        "data is a file of c, and a folder of d",
        "etc/y is a file of a and c, and a folder of e",
        f"{SITE}/m is a file of g, and a folder of f",
        "share/x is a file of a, and a folder of b",
    ]
    assert not list(conflicts({name: packages[name] for name in "adf"}, SITE))
