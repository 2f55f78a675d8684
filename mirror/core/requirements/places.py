"""Packages that come from no index: wheels and git repositories by address, and local ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from mirror.core.paths import shown
from mirror.core.requirements.text import quoted, shown_url
from mirror.core.requirements.values import (
    GitUrl,
    LocalProject,
    LocalWheel,
    Place,
    Refusal,
    WheelUrl,
)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # two letters at least: C: is a drive
_BARE = re.compile(
    r"[A-Za-z]:?[\\/]|[A-Za-z][A-Za-z0-9+.-]+:|[.~\\/]|[^;\[@\s]*[\\/]|[^;@\s]+\.whl\b"
)
_MARKER = re.compile(r"\s*;\s+|\s+;")
_EXTRAS = re.compile(r"(?P<path>.*?)\s*\[(?P<extras>[^\[\]]*)\]")
_ARCHIVE = re.compile(r"\.(zip|tar|tar\.(gz|bz2|xz|zst)|tgz|tbz2?|txz)$", re.I)
_FORGE_ARCHIVE = re.compile(
    r"(?P<repo>/[^/]+/[^/]+)/(?:archive(?:/refs/(?:heads|tags))?|zipball|tarball)"
    r"/(?P<ref>.+?)(?:\.zip|\.tar\.gz)?$"
)
#: Where conda's packages were built: what `pip freeze` writes for them.
_OF_CONDA = re.compile(
    r"(?:/|[A-Za-z]:/)(?:.*/)?(?:(?:feedstock_root|croot|tmp/build|recipes/ci)/|[^/]*_\d{9,}(?:/work)?$)"
)
_SDIST = "build a wheel from it (pip wheel --no-deps FILE) and name that: ./dist/NAME.whl"
_HASH_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}


def checked_hash(algorithm: str, digest: str) -> str:
    """A hash as the values write it. Raises Refusal when it is weak or too short or too long."""
    if algorithm not in _HASH_DIGITS:
        known = ", ".join(_HASH_DIGITS)
        raise Refusal(f"the hash {quoted(algorithm)} is none of {known}: give one of those")
    if not re.fullmatch(rf"[0-9a-fA-F]{{{_HASH_DIGITS[algorithm]}}}", digest):
        raise Refusal(f"a {algorithm} has {_HASH_DIGITS[algorithm]} hexadecimal digits; this not")
    return f"{algorithm}:{digest.lower()}"


def extras_of(text: str) -> tuple[str, ...]:
    """ "a, b" -> ("a", "b"), in normal form."""
    return tuple(sorted({canonicalize_name(part) for part in re.split(r"[,\s]+", text) if part}))


def is_bare(text: str) -> bool:
    """Whether a requirement is an address or a path without a name before it."""
    return _BARE.match(text) is not None


def bare(text: str, where: str, hashes: tuple[str, ...]) -> Place:
    """`ADDRESS[extras] ; marker`. Raises Refusal."""
    address, marker = text, ""
    if separator := _MARKER.search(text):
        address, marker = text[: separator.start()], text[separator.end() :]
        try:
            marker = str(Marker(marker))
        except InvalidMarker as error:
            raise Refusal(
                f"{quoted(marker)} is no marker: {str(error).splitlines()[0].lower()}"
            ) from None
    extras = ""
    if "#" not in address and (found := _EXTRAS.fullmatch(address)):
        address, extras = found["path"], found["extras"]
    return locate(address, where, extras=extras_of(extras), marker=marker, hashes=hashes)


def locate(
    address: str,
    where: str,
    *,
    name: str | None = None,
    extras: tuple[str, ...] = (),
    marker: str = "",
    hashes: tuple[str, ...] = (),
) -> Place:
    """The place that an address or a path names, for the package `name` if that was said.

    Raises Refusal for what cannot be carried, or not safely, from there.
    """
    scheme = _SCHEME.match(address)
    kind = scheme[1].lower() if scheme else ""
    if kind and re.search(r"\s", address):
        raise Refusal(f"{quoted(address)}: an address holds no spaces")
    if not kind:
        return _on_disk(address, where, name, extras, marker, hashes)
    try:
        parts = urlsplit(address.removeprefix("git+"))
        _ = parts.port
    except ValueError:
        raise Refusal(
            f"{shown_url(address)} is no valid address"
            + (": write / after the host, not :" if kind == "git+ssh" else "")
        ) from None
    fragment = _fragment(parts.fragment)
    asked, own = _egg(fragment.get("egg", ""))
    if name and asked and asked != name:
        raise Refusal(f"{name} and #egg={asked} are two names for one thing: take one out")
    name, extras = name or asked, tuple(sorted({*extras, *own}))
    given = [checked_hash(k, v) for k, v in fragment.items() if k not in ("egg", "subdirectory")]
    if given and hashes and not set(given) & set(hashes):
        raise Refusal("the address and --hash name different hashes")
    hashes = tuple(given) or hashes
    if kind.startswith("git+"):
        if hashes:
            raise Refusal(
                "a git repository has no hash to compare: take it out; the lock holds the commit"
            )
        return _git(parts, where, fragment.get("subdirectory"), name, extras, marker)
    if kind in ("http", "https"):
        return _on_the_web(address, parts, where, name, extras, marker, hashes)
    if kind == "file":
        return _on_disk(_file_path(parts), where, name, extras, marker, hashes)
    if kind.partition("+")[0] in ("hg", "svn", "bzr"):
        raise Refusal(f"{kind}: only git repositories are carried: build a wheel and name that")
    raise Refusal(
        f"{quoted(address)} is no address that packages come from; a git repository is written "
        "git+https://HOST/PATH or git+ssh://git@HOST/PATH"
    )


def _fragment(text: str) -> Mapping[str, str]:
    if not text:
        return {}
    pairs = [part.partition("=") for part in text.split("&")]
    known = {"egg", "subdirectory", "sha256", "sha384", "sha512", "sha1", "md5", "sha224"}
    if any(key not in known for key, _, _ in pairs):  # not shown: a password may hold a #
        raise Refusal("what stands behind the # is neither egg=, subdirectory= nor a hash")
    return {key: unquote(value) for key, _, value in pairs}


def _egg(text: str) -> tuple[str | None, tuple[str, ...]]:
    if not text:
        return None, ()
    try:
        asked = Requirement(text)
    except InvalidRequirement:
        raise Refusal(f"#egg={quoted(text)} is no name of a package") from None
    if asked.specifier or asked.marker or asked.url:
        raise Refusal(f"#egg={quoted(text)} is more than a name: write #egg={asked.name}")
    return canonicalize_name(asked.name), extras_of(",".join(asked.extras))


def _git(
    parts: SplitResult,
    where: str,
    subdirectory: str | None,
    name: str | None,
    extras: tuple[str, ...],
    marker: str,
) -> GitUrl:
    if parts.scheme not in ("https", "http", "ssh", "file"):
        clean = shown_url(parts._replace(scheme="https").geturl())
        raise Refusal(f"git+{parts.scheme}: is not encrypted, or not known: write git+{clean}")
    if parts.password is not None or ("@" in parts.netloc and parts.scheme != "ssh"):
        clean = shown_url(parts.geturl())
        raise Refusal(
            f"the address of {clean} holds credentials, which would be carried with it: write "
            f"git+{clean}; git asks its own credential helper"
        )
    path, at, revision = parts.path.rpartition("@")
    path, revision = (path, revision) if at else (parts.path, "")
    if (at and not revision) or revision.startswith("-") or not path.strip("/"):
        raise Refusal(f"{quoted(parts.geturl())} names no repository and revision that git takes")
    if (parts.hostname or "").startswith("-") or parts.query:
        raise Refusal(f"{shown_url(parts.geturl())} is no address of a git repository")
    if subdirectory is not None and not _is_below(subdirectory):
        raise Refusal(f"#subdirectory={quoted(subdirectory)} leads out of the repository")
    return GitUrl(
        name,
        parts._replace(path=path, fragment="").geturl(),
        where,
        revision=revision or None,
        subdirectory=subdirectory.strip("/") if subdirectory else None,
        extras=extras,
        marker=marker,
    )


def _is_below(path: str) -> bool:
    return not re.match(r"[/\\-]|[A-Za-z]:", path) and ".." not in re.split(r"[/\\]", path)


def _on_the_web(
    address: str,
    parts: SplitResult,
    where: str,
    name: str | None,
    extras: tuple[str, ...],
    marker: str,
    hashes: tuple[str, ...],
) -> WheelUrl:
    clean = shown_url(address)
    if "@" in parts.netloc:
        raise Refusal(
            f"the address of {clean} holds credentials: take them out, and give them in netrc"
        )
    if archive := _FORGE_ARCHIVE.match(parts.path):
        origin = f"{parts.scheme}://{parts.netloc}{archive['repo']}"
        target = f"{name or 'NAME'} @ git+{origin}@{shown(archive['ref'])}"
        raise Refusal(f"{clean} is an archive of a repository: write {target}")
    if _ARCHIVE.search(parts.path):
        raise Refusal(f"{clean} is a source distribution: {_SDIST}")
    if re.search(r"\.(txt|toml|ya?ml)$", parts.path):
        raise Refusal(f"{clean} can change without a trace: download it, and name the file")
    if not parts.path.endswith(".whl"):
        raise Refusal(f"{clean} is no wheel; a repository is written git+{clean}")
    own = _wheel_name(unquote(parts.path.rpartition("/")[2]), name)
    url = parts._replace(fragment="").geturl()
    return WheelUrl(own, url, where, extras=extras, marker=marker, hashes=hashes)


def _wheel_name(file: str, name: str | None) -> str:
    try:
        own = parse_wheel_filename(file)[0]
    except InvalidWheelFilename as error:
        raise Refusal(f"{quoted(file)} is no name of a wheel: {quoted(str(error))}") from None
    if name and name != own:
        raise Refusal(f"the wheel {quoted(file)} is of {own}, not of {name}")
    return own


def _file_path(parts: SplitResult) -> str:
    if parts.netloc not in ("", "localhost"):
        raise Refusal(f"{shown_url(parts.geturl())} is on another machine: copy it here")
    path = unquote(parts.path)
    path = path[1:] if re.match(r"/[A-Za-z]:", path) else path
    folder = _fragment(parts.fragment).get("subdirectory")
    return f"{path}/{folder}" if folder else path


def _on_disk(
    path: str,
    where: str,
    name: str | None,
    extras: tuple[str, ...],
    marker: str,
    hashes: tuple[str, ...],
) -> LocalWheel | LocalProject:
    if "://" in path:
        raise Refusal(f"{quoted(path)} is neither a path nor an address")
    path = path.replace("\\", "/")
    file = path.rpartition("/")[2]
    if _OF_CONDA.match(path):
        raise Refusal(
            f"{quoted(name or path)} was built by conda, in a folder that is no more: write "
            f"{name or 'NAME'}==VERSION"
        )
    if file.endswith(".whl"):
        own = _wheel_name(file, name)
        return LocalWheel(own, path, where, extras=extras, marker=marker, hashes=hashes)
    if _ARCHIVE.search(file):
        raise Refusal(f"{quoted(path)} is a source distribution: {_SDIST}")
    if re.search(r"\.(txt|in)$", file):
        raise Refusal(f"{quoted(path)} is no package: write -r {quoted(path)}")
    if hashes:
        raise Refusal(f"{quoted(path)} is a project and has no hash to compare: take it out")
    return LocalProject(name, path, where, extras=extras, marker=marker)
