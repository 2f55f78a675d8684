"""The package indexes of one manifest: which package comes from which, and where its files are.

A package named under an index's `only:` comes from that index and from no other; every other
package comes from the default index. So a name that two indexes offer is never taken from the one
that was not meant. The lock records the index's name; its address stays in the manifest, its
credentials in netrc or the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from packaging.utils import canonicalize_name

from mirror.core import cuda
from mirror.core.manifest import WheelsSection
from mirror.core.target import Target
from mirror.errors import DownloadError
from mirror.fetch.http import Request

if TYPE_CHECKING:
    from requests import Session

#: The name under which the lock records the index that is used when no other is named.
DEFAULT = "default"
_HINT = "Check the network; another default index is named by UV_DEFAULT_INDEX or PIP_INDEX_URL."


@dataclass(frozen=True, slots=True)
class Index:
    """One index. `only`: the packages that come from it, canonical names; empty for the default.

    flat: its address is a page of links to files (find-links), not a simple index.
    """

    name: str
    url: str
    only: frozenset[str] = frozenset()
    flat: bool = False

    @property
    def credentials(self) -> tuple[str, str] | None:
        """From UV_INDEX_NAME_USERNAME and _PASSWORD, which uv reads too; netrc is left to both."""
        stem = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", self.name.upper())
        user, password = (os.environ.get(f"{stem}_{end}") for end in ("USERNAME", "PASSWORD"))
        return (user or "", password or "") if user or password else None

    def request(self, file: str, url: str, sha256: str | None, size: int | None) -> Request:
        """For a file of this index; its credentials go along where the file is on its own host."""
        plain, _ = split_credentials(url)
        return Request(
            url=plain,
            label=file,
            digest=f"sha256:{sha256}" if sha256 else None,
            size=size,
            headers=self._headers if urlsplit(plain)[:2] == self._origin else {},
        )

    @property
    def _origin(self) -> tuple[str, str]:
        parts = urlsplit(split_credentials(self.url)[0])
        return parts.scheme, parts.netloc

    @property
    def _headers(self) -> dict[str, str]:
        """The Authorization header that a session would send to this index, netrc included."""
        from requests import Request as Prepared
        from requests import Session

        plain, credentials = split_credentials(self.url)
        with Session() as session:
            session.auth = self.credentials or credentials
            headers = session.prepare_request(Prepared("GET", plain)).headers
        return (
            {"Authorization": str(headers["Authorization"])} if "Authorization" in headers else {}
        )


@dataclass(frozen=True, slots=True)
class Indexes:
    """All indexes of a manifest."""

    default: Index
    named: tuple[Index, ...] = ()

    @classmethod
    def of(cls, section: WheelsSection | None, target: Target) -> Indexes:
        """Those that the manifest declares; the default from the environment if it names none.

        Of indexes named for a CUDA ("pytorch-cu128"), the one for the target's.
        """
        declared = section.indexes if section else {}
        found = [
            Index(
                name=name,
                url=item.url,
                only=frozenset(canonicalize_name(package) for package in item.only),
                flat=item.flat,
            )
            for name, item in sorted(declared.items())
            if not _is_for_another_cuda(name, target)
        ]
        default = next((index for index in found if index.name == DEFAULT), None)
        return cls(
            default=default or Index(DEFAULT, default_url()),
            named=tuple(index for index in found if index.name != DEFAULT),
        )

    def of_package(self, name: str) -> Index:
        """Where this package comes from."""
        canonical = canonicalize_name(name)
        return next((index for index in self.named if canonical in index.only), self.default)

    def by_name(self, name: str) -> Index:
        """The index that a lock names. Raises DownloadError when the manifest has it no more."""
        for index in (self.default, *self.named):
            if index.name == name:
                return index
        raise DownloadError(
            f"the lock takes wheels from the index {name}, which the manifest does not declare",
            hint=f"Declare it under wheels.indexes as {name}, or lock again: mirror lock",
        )

    def files(self, wanted: Iterable[tuple[str, str]]) -> Mapping[str, Request]:
        """Every file of these (index name, package name) pairs: file name -> where it is now."""
        found: dict[str, Request] = {}
        problems: list[str] = []
        pairs: dict[str, set[str]] = {}
        for index_name, package in wanted:
            pairs.setdefault(index_name, set()).add(package)
        for index_name, packages in sorted(pairs.items()):
            files, wrong = _read(self.by_name(index_name), sorted(packages))
            found |= files
            problems += wrong
        if problems:
            raise DownloadError("a package index cannot be read", problems=problems, hint=_HINT)
        return found


def _is_for_another_cuda(name: str, target: Target) -> bool:
    named = re.search(r"(?:^|[-_.])(cu\d{2,3}|cpu)$", name)
    return bool(named and target.cuda and named[1] != cuda.label(target.cuda))


def default_url() -> str:
    """The default index: the one the environment names for uv or pip, else the public one."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if value := os.environ.get(variable):
            return value
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return PYPI_SIMPLE_ENDPOINT


def _read(index: Index, packages: Sequence[str]) -> tuple[dict[str, Request], list[str]]:
    """The files that an index has of these packages, and what went wrong, a line each."""
    from concurrent.futures import ThreadPoolExecutor

    from pypi_simple import NoSuchProjectError, PyPISimple
    from requests import HTTPError, RequestException, Session

    found: dict[str, Request] = {}
    problems: list[str] = []

    def look(name: str) -> None:
        try:
            if index.flat:
                links = _flat_links(session, url)
            else:
                links = [
                    (p.filename, p.url, p.digests.get("sha256"), p.size)
                    for p in client.get_project_page(name).packages
                ]
        except NoSuchProjectError:
            problems.append(f"{name}: the index {index.name} has no such package")
        except HTTPError as error:
            problems.append(f"{name}: {index.name} answered {error.response.status_code}")
        except RequestException as error:
            problems.append(f"{name}: {index.name}: {type(error).__name__}")
        else:
            for file, place, sha256, size in links:
                found[file] = index.request(file, place, sha256, size)

    url, credentials = split_credentials(index.url)
    with Session() as session, ThreadPoolExecutor(8) as pool:
        session.auth = index.credentials or credentials
        with PyPISimple(url, session=session) as client:
            list(pool.map(look, packages[:1] if index.flat else packages))
    return found, problems


def split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """An address without its user and password, and those."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    host = parts.netloc.rpartition("@")[2]
    plain = urlunsplit(parts._replace(netloc=host))
    return plain, (parts.username or "", parts.password or "")


def _flat_links(session: Session, url: str) -> list[tuple[str, str, str | None, int | None]]:
    """The files that a find-links page links to: name, address, sha256 where it is stated."""
    from pypi_simple.html import RepositoryPage

    answer = session.get(url, timeout=30)
    answer.raise_for_status()
    links: list[tuple[str, str, str | None, int | None]] = []
    for link in RepositoryPage.from_html(answer.content, base_url=answer.url).links:
        place, _, fragment = link.url.partition("#")
        file = unquote(urlsplit(place).path.rpartition("/")[2])
        links.append((file, place, fragment.removeprefix("sha256=") or None, None))
    return links
