"""The part of a pyproject.toml that is uv's: where packages come from, and further limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mirror.core.requirements.lines import index_option, requirement
from mirror.core.requirements.places import locate
from mirror.core.requirements.tables import by_name, table, texts
from mirror.core.requirements.values import (
    Constraint,
    Entry,
    Flag,
    Index,
    Mistake,
    Note,
    Refusal,
    Specifier,
    Workspace,
)

#: Settings that change what uv would choose, and that mirror does not follow.
_NOT_FOLLOWED = (
    "override-dependencies",
    "exclude-dependencies",
    "dependency-metadata",
    "exclude-newer",
    "exclude-newer-package",
)


class Sources:
    """`[tool.uv]` of a document. place: makes FILE:LINE of a text that stands in the file."""

    def __init__(self, document: Mapping[str, Any], place: Callable[[str], str]) -> None:
        self._uv = table(document, "tool", "uv")
        self._sources = by_name(table(document, "tool", "uv", "sources"), "tool.uv.sources")
        self._place = place
        indexes = self._uv.get("index", [])
        if not isinstance(indexes, list) or not all(isinstance(one, dict) for one in indexes):
            raise Refusal("tool.uv.index is not a list of tables")
        self._indexes: list[Mapping[str, Any]] = indexes

    def of(self, asked: Requirement, where: str, chosen: Collection[str]) -> Iterator[Entry]:
        """Where uv takes a package from. chosen: the extras and groups that are asked for.

        The requirement itself holds beside it. Raises Refusal.
        """
        sources = self._sources.get(canonicalize_name(asked.name), [])
        for source in [sources] if isinstance(sources, dict) else sources:
            if not isinstance(source, dict):
                raise Refusal(f"tool.uv.sources.{asked.name} is no table")
            bound = source.get("extra") or source.get("group")
            if bound is None or canonicalize_name(str(bound)) in chosen:
                yield from self._source(asked, source, where)

    def _source(self, asked: Requirement, source: Mapping[str, Any], where: str) -> Iterator[Entry]:
        name = canonicalize_name(asked.name)
        markers = [str(m) for m in (asked.marker, source.get("marker")) if m]
        marker = " and ".join(f"({m})" for m in markers)
        match source:
            case {"index": str(index)}:
                urls = [one.get("url") for one in self._indexes if one.get("name") == index]
                if not urls or not isinstance(urls[0], str):
                    raise Refusal(f"tool.uv.sources.{name}: tool.uv.index has no {index}")
                yield Index(f"tool.uv.sources.{name}", urls[0], where, only=(name,))
            case {"git": str(url)}:
                given = [source[k] for k in ("rev", "tag", "branch") if source.get(k)]
                revision = f"@{given[0]}" if given else ""
                folder = source.get("subdirectory")
                fragment = f"#subdirectory={folder}" if folder else ""
                yield self._at(asked, f"git+{url}{revision}{fragment}", marker, where)
            case {"url": str(url)}:
                yield self._at(asked, url, marker, where)
            case {"path": str(path)}:
                yield locate(f"./{path}" if path else ".", where, name=name, marker=marker)
            case {"workspace": True}:
                members = texts(table(self._uv, "workspace").get("members", []), "members")
                yield Workspace(name, tuple(members), where, marker)
            case _:
                raise Refusal(f"tool.uv.sources.{name} names no place that mirror knows")

    def _at(self, asked: Requirement, url: str, marker: str, where: str) -> Entry:
        extras = f"[{','.join(sorted(asked.extras))}]" if asked.extras else ""
        return requirement(f"{asked.name}{extras} @ {url} ; {marker}".rstrip("; "), where)

    def settings(self) -> Iterator[Entry]:
        """What holds for every package: indexes, limits, prereleases. Raises Refusal."""
        for one in self._indexes:
            if not one.get("explicit"):
                option = "--index-url" if one.get("default") else "--extra-index-url"
                yield from self._index(option, str(one.get("url", "")))
        if url := self._uv.get("index-url"):
            yield from self._index("--index-url", str(url))
        for key in ("extra-index-url", "find-links"):
            for url in texts(self._uv.get(key, []), f"tool.uv.{key}"):
                yield from self._index(f"--{key}", url)
        for text in texts(self._uv.get("constraint-dependencies", []), "constraint-dependencies"):
            try:
                limit = requirement(text, self._place(text))
                if not isinstance(limit, Specifier):
                    raise Refusal("tool.uv.constraint-dependencies: only versions limit a package")
                yield Constraint(limit.name, limit.text, limit.where)
            except Refusal as refusal:
                yield Mistake(str(refusal), self._place(text))
        if self._uv.get("prerelease") == "allow":
            yield Flag("prereleases", self._place("allow"))
        for key in _NOT_FOLLOWED:
            if self._uv.get(key):
                yield Note(f"tool.uv.{key} is not followed", self._place(key))

    def _index(self, option: str, url: str) -> Iterator[Entry]:
        try:
            yield from index_option(option, url, self._place(url))
        except Refusal as refusal:
            yield Mistake(str(refusal), self._place(url))
