"""Indexes that requirement files name: which are declared, and how to declare the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from mirror.core.requirements.text import shown_url
from mirror.core.requirements.values import Index, Mistake

#: What an index of CUDA builds is named for; other packages in it are stale copies.
_TORCH = ("torch", "torchvision", "torchaudio")
_BUILD = re.compile(r"cpu|xpu|cu\d+|rocm[\d.]+")
_CONFUSION = "packages of any name could come from there (dependency confusion)"
_WHY = {
    "--index-url": "every package would come from there (a copy of the default index is named in "
    "the environment, UV_DEFAULT_INDEX, not in a file)",
    "--extra-index-url": _CONFUSION,
    "--find-links": _CONFUSION,
}


def normal(url: str) -> str:
    """One spelling of an index's address: no credentials, no default port, no / at the end."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return url
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    host = parts.hostname or ""
    place = host if port in (None, usual) else f"{host}:{port}"
    return parts._replace(netloc=place, path=parts.path.rstrip("/"), fragment="").geturl()


def undeclared(
    found: Sequence[Index], declared: Collection[str], asked: Collection[str]
) -> dict[Index, Mistake]:
    """The mistake that each index is whose address is not among those declared.

    asked: names of the packages that are asked for; torch and its like are proposed for `only`.
    """
    known = {normal(url) for url in declared}
    mistakes = {}
    for index in found:
        url = normal(index.url)
        if url in known:
            continue
        only = {name for other in found if normal(other.url) == url for name in other.only}
        if _BUILD.fullmatch(url.rpartition("/")[2]):
            only |= set(_TORCH).intersection(asked)
        names = ", ".join(sorted(only)) or "PACKAGE"
        yaml = f'{{{_name(url)}: {{url: "{shown_url(url)}", only: [{names}]}}}}'
        why = _WHY.get(index.option, "this index is not declared")
        mistakes[index] = Mistake(
            f"{index.option} {shown_url(index.url)}: {why}: declare it in the manifest, with what "
            f"is to come from it; under wheels:  indexes: {yaml}",
            index.where,
        )
    return mistakes


def _name(url: str) -> str:
    """https://download.pytorch.example/whl/cu128 -> pytorch-cu128"""
    parts = urlsplit(url)
    labels = [label for label in (parts.hostname or "").split(".") if label != "github"]
    owner = labels[-2] if len(labels) > 1 and not labels[-2].isdigit() else "extra"
    last = re.sub(r"\.html?$", "", parts.path.rpartition("/")[2])
    last = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-")
    return owner if last in ("", "simple", "whl") else f"{owner}-{last}"
