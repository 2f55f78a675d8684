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
from mirror.errors import DownloadError, UsageError
from mirror.fetch.http import Request

if TYPE_CHECKING:
    from requests import Session

#: The name under which the lock records the index that is used when no other is named.
DEFAULT = "default"
_HINT = "Check the network; another default index is named by UV_DEFAULT_INDEX or PIP_INDEX_URL."
#: How a server's answer 401 or 403 reads: as requests, uv and pip put it.
_DENIAL = re.compile(r"\b40[13]( Unauthorized| Forbidden| Client Error)|answered 40[13]\b")


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
    def plain(self) -> str:
        """Its address without user and password."""
        return split_credentials(self.url)[0]

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User and password: those of its variables, which uv reads too, else of its address.

        netrc is left to whoever asks the index.
        """
        user, password = (os.environ.get(variable) for variable in self.variables)
        if user or password:
            return user or "", password or ""
        return split_credentials(self.url)[1]

    @property
    def variables(self) -> tuple[str, str]:
        """The names of the variables that hold its user and its password."""
        stem = "UV_INDEX_" + re.sub(r"[^A-Z0-9]", "_", self.name.upper())
        return f"{stem}_USERNAME", f"{stem}_PASSWORD"

    def is_named_in(self, text: str) -> bool:
        """Whether a text holds its address, or `_read`'s words about it."""
        address = re.escape(self.plain.rstrip("/"))
        return bool(re.search(rf"{address}(?![\w.-])|: {re.escape(self.name)} answered ", text))

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
        parts = urlsplit(self.plain)
        return parts.scheme, parts.netloc

    @property
    def _headers(self) -> dict[str, str]:
        """The Authorization header that a session would send to this index, netrc included."""
        from requests import Request as Prepared
        from requests import Session

        with Session() as session:
            session.auth = self.credentials
            headers = session.prepare_request(Prepared("GET", self.plain)).headers
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

    def files(
        self, wanted: Iterable[tuple[str, str]], *, yanked: bool = True
    ) -> Mapping[str, Request]:
        """Every file of these (index name, package name) pairs: file name -> where it is now.

        yanked: whether those that their publishers withdrew are among them.
        """
        found: dict[str, Request] = {}
        problems: list[str] = []
        pairs: dict[str, set[str]] = {}
        for index_name, package in wanted:
            pairs.setdefault(index_name, set()).add(package)
        for index_name, packages in sorted(pairs.items()):
            files, wrong = _read(self.by_name(index_name), sorted(packages), yanked=yanked)
            found |= files
            problems += wrong
        if problems:
            raise self.unreadable(problems)
        return found

    def unreadable(self, problems: Sequence[str]) -> DownloadError:
        """The error for an index that cannot be read, by what its reader said.

        It names the index, and where credentials come from, when the server refused those it got.
        """
        said = "\n".join(problems)
        if not is_denial(said):
            return DownloadError("a package index cannot be read", problems=problems, hint=_HINT)
        every = (self.default, *self.named)
        denying = [index for index in every if index.is_named_in(said)]
        named = " and ".join(f"the index {index.name}" for index in denying) or "a package index"
        places = [" and ".join(index.variables) for index in denying or every]
        return DownloadError(
            f"{named} gives nothing without the right user and password",
            problems=[line for line in problems if is_denial(line)],
            hint=f"Credentials come from netrc, or from {'; '.join(places)}.",
        )

    def denials(self, packages: Iterable[str]) -> list[str]:
        """A line for each package whose index refuses the credentials that it gets.

        uv takes that for an index without the package, where the index is the package's own.
        """
        pairs: dict[Index, list[str]] = {}
        for package in sorted(set(packages)):
            pairs.setdefault(self.of_package(package), []).append(package)
        lines = [line for index, names in pairs.items() for line in _read(index, names)[1]]
        return [line for line in lines if is_denial(line)]


def is_denial(text: str) -> bool:
    """Whether a resolver's words say that a server refused a user and password, or their lack."""
    return _DENIAL.search(text) is not None


def _is_for_another_cuda(name: str, target: Target) -> bool:
    named = re.search(r"(?:^|[-_.])(cu\d{2,3}|cpu)$", name)
    return bool(named and target.cuda and named[1] != cuda.label(target.cuda))


def default_url() -> str:
    """The default index: the one the environment names for uv or pip, else the public one.

    Raises UsageError when the variable holds no http or https address.
    """
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if value := os.environ.get(variable):
            if not _is_address(value):
                # Not shown: it may hold a password.
                raise UsageError(
                    f"the variable {variable} is no http or https address of a package index"
                )
            return value
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    return PYPI_SIMPLE_ENDPOINT


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _read(
    index: Index, packages: Sequence[str], *, yanked: bool = True
) -> tuple[dict[str, Request], list[str]]:
    """The files that an index has of these packages, and what went wrong, a line each."""
    from concurrent.futures import ThreadPoolExecutor

    from pypi_simple import NoSuchProjectError, PyPISimple
    from requests import HTTPError, RequestException, Session

    found: dict[str, Request] = {}
    problems: list[str] = []

    def look(name: str) -> None:
        try:
            if index.flat:
                links = _flat_links(session, index.plain)
            else:
                links = [
                    (p.filename, p.url, p.digests.get("sha256"), p.size)
                    for p in client.get_project_page(name).packages
                    if yanked or not p.is_yanked
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

    with Session() as session, ThreadPoolExecutor(8) as pool:
        session.auth = index.credentials
        with PyPISimple(index.plain, session=session) as client:
            list(pool.map(look, packages[:1] if index.flat else packages))
    return found, problems


def split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """An address without its user and password, and those."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url, None
    host = parts.netloc.rpartition("@")[2]
    plain = urlunsplit(parts._replace(netloc=host))
    return plain, (unquote(parts.username or ""), unquote(parts.password or ""))


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
