"""One request and its answer, or the reason in words why there is none.

A Request's headers go to its own origin only: redirects are followed here, without them as soon as
scheme, host or port change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeAlias
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

import mirror
from mirror.core.paths import shown
from mirror.fetch.failures import FetchError, explained, impostor, public, refusal
from mirror.fetch.request import Patience, Request

CHUNK = 256 * 2**10
MAX_REDIRECTS = 10
_HEAD = 512
#: A redirect's or refusal's body of so many bytes is read: that is cheaper than to connect again.
_SHORT = 64 * 2**10

#: Scheme, host and port.
Origin: TypeAlias = tuple[str, str, int]


class Answer:
    """A response of status 200 or 206, its body not read yet.

    url: where it came from at last, fit to be shown.
    elsewhere: the same in full, where that is another origin than was asked; it may hold a
        signature, so it is never shown.
    partial: whether it is the range that was asked for (206) rather than the whole.
    start: offset in the file of the body's first byte.
    total: size of the whole file in bytes, None when the server does not say.
    framed: whether the end of the body can be told from a cut.
    ranges: whether the server offers ranges of it.
    etag: strong entity tag, empty when there is none.
    encoding: Content-Encoding that was not asked for, empty when there is none.
    headers: all of them, as they came: not fit to be shown.
    """

    def __init__(self, response: requests.Response, elsewhere: str | None) -> None:
        headers, self.url = response.headers, public(response.url)
        self.elsewhere = elsewhere
        self.headers: Mapping[str, str] = headers
        self._raw: urllib3.BaseHTTPResponse = response.raw
        self.partial = response.status_code == 206
        self.start, self.total = 0, _number(headers.get("Content-Length"))
        self.framed = self.total is not None or "chunked" in headers.get("Transfer-Encoding", "")
        if self.partial:
            self.start, self.total = _content_range(headers.get("Content-Range", ""), self.url)
        self.ranges = self.partial or headers.get("Accept-Ranges", "").lower() == "bytes"
        etag = headers.get("ETag", "")
        self.etag = etag if etag.startswith('"') else ""
        encoding = headers.get("Content-Encoding", "").lower()
        self.encoding = "" if encoding == "identity" else shown(encoding)

    def chunks(self) -> Iterator[bytes]:
        """The body as it was sent, each chunk as soon as it is here. Raises FetchError."""
        try:
            while chunk := self._raw.read1(CHUNK, decode_content=False):
                yield chunk
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise explained(error, self.url, silent=False) from None

    def interrupt(self) -> None:
        """Wake the thread that waits for the body: there will be no more of it."""
        with suppress(OSError, ValueError, RuntimeError):  # it has ended by itself
            self._raw.shutdown()

    def impostor(self) -> str:
        """What seems to have come instead of the file; reads of the body, which is then of no use.

        Empty when nothing speaks against it.
        """
        if self.start or self.encoding:
            return ""
        head = b""
        for chunk in self.chunks():
            head += chunk
            if len(head) >= _HEAD:
                break
        return impostor(head)


def session() -> requests.Session:
    """Connections for one thread, kept alive per origin; proxies as the environment has them."""
    made = requests.Session()
    made.headers.clear()
    made.headers.update(
        {
            "User-Agent": f"mirror/{mirror.__version__}",
            "Accept": "*/*",
            "Accept-Encoding": "identity",  # the bytes as they are, so that ranges and sizes hold
            "Connection": "keep-alive",
        }
    )
    return made


@contextmanager
def ask(
    session: requests.Session,
    request: Request,
    patience: Patience,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    leave: bool = True,
    elsewhere: str | None = None,
    before: Callable[[Origin], object] = lambda origin: None,
) -> Iterator[Answer]:
    """The answer to a request; the connection is given back when the context ends.

    headers: of this exchange (Range and the like), sent to whatever origin answers it.
    leave: whether to follow a redirect to another origin, too.
    elsewhere: where an earlier answer was from; asked instead, without the request's own headers.
    before: called with each origin that is about to be asked; may raise FetchError.
    Raises FetchError, for every status but 200 and 206 too.
    """
    url = elsewhere or request.url
    home, own = origin(request.url), {} if elsewhere else dict(request.headers)
    # requests would replace an explicit Authorization by what netrc has for the host, and what
    # netrc has is for the origin that was asked for.
    bare = bool(elsewhere) or any(name.lower() == "authorization" for name in own)
    for _ in range(MAX_REDIRECTS):
        before(origin(url))
        response = _send(session, patience, method, url, {**own, **(headers or {})}, bare=bare)
        away = origin(url) != home
        try:
            if not response.is_redirect:
                if response.status_code not in (200, 206):
                    failure = refusal(response)
                    failure.origin = origin(url)
                    raise failure
                yield Answer(response, url if away else None)
                return
            url = _target(url, response.headers["Location"])
            if origin(url) != home:
                if not leave:
                    raise refusal(response)
                own, bare = {}, True
        finally:
            _end(response)
    raise FetchError(f"{public(request.url)} redirects more than {MAX_REDIRECTS} times")


def origin(url: str) -> Origin:
    """Scheme, host and port. Raises FetchError when the URL has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        raise FetchError(f"{public(url)} is not an http or https URL") from None
    return parts.scheme, parts.hostname or "", port


def _send(
    session: requests.Session,
    patience: Patience,
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    bare: bool,
) -> requests.Response:
    """One request; bare: without what netrc has. Raises FetchError when no answer comes."""
    try:
        return session.request(
            method,
            url,
            headers=headers,
            auth=_unchanged if bare else None,
            timeout=(patience.connect, patience.stall),
            allow_redirects=False,
            stream=True,
        )
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        failure = explained(error, public(url), silent=True)
        failure.origin = origin(url)
        raise failure from None


def _end(response: requests.Response) -> None:
    """Give the connection back; one whose body was not read cannot be used again."""
    if response.status_code not in (200, 206):
        length = _number(response.headers.get("Content-Length"))
        if length is not None and length <= _SHORT:
            response.raw.drain_conn()
    response.close()


def _target(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise FetchError(f"{public(url)} redirects to what is no URL") from None


def _unchanged(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
    return prepared


def _content_range(value: str, url: str) -> tuple[int, int | None]:
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", value.strip())
    if not found:
        raise FetchError(f"the server sent a part of the file without a Content-Range ({url})")
    return int(found[1]), _number(found[2])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None
