"""One request and its answer, or the reason in words why there is none.

A Request's headers go to its own origin only: redirects are followed here, without them as soon as
scheme, host or port change. No message holds a URL's user, password, query or fragment.
"""

from __future__ import annotations

import email.utils
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urljoin, urlsplit

import requests
import urllib3

import mirror
from mirror.core.paths import shown
from mirror.fetch.http import Patience, Request

CHUNK = 256 * 2**10
MAX_REDIRECTS = 10

_MEANINGS = {
    400: "the server does not understand the request",
    401: "the server wants a token or password, or does not accept the one it got",
    403: "the server refuses",
    404: "the server has no such file",
    407: "the proxy wants a user name and password",
    410: "the server has it no longer",
    416: "the server has fewer bytes than it said before",
    429: "the server says: too many requests",
    451: "the server may not give it, for legal reasons",
}
_VERIFICATION = ssl.SSLCertVerificationError
_PROXY_HINT = "Behind a proxy? HTTPS_PROXY, HTTP_PROXY and NO_PROXY name it."
_TRUST_HINT = "If a proxy inspects TLS, let REQUESTS_CA_BUNDLE name a file with its certificate."


class FetchError(Exception):
    """Why bytes did not come.

    reason: for a person, with no secret in it.
    hint: what to do about it.
    again: whether trying again may help.
    after: seconds that the server asks to wait first.
    stale: whether the file seems to be another than the one that earlier bytes are of.
    unreachable: whether no connection to the request's own origin came about at all.
    """

    def __init__(
        self,
        reason: str,
        *,
        hint: str | None = None,
        again: bool = False,
        after: float | None = None,
        stale: bool = False,
        unreachable: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.again = again
        self.after = after
        self.stale = stale
        self.unreachable = unreachable


class Answer:
    """A response of status 200 or 206, its body not read yet.

    url: where it came from at last, fit to be shown.
    partial: whether it is the range that was asked for (206) rather than the whole.
    start: offset in the file of the body's first byte.
    total: size of the whole file in bytes, None when the server does not say.
    framed: whether the end of the body can be told from a cut.
    ranges: whether the server offers ranges of it.
    etag: strong entity tag, empty when there is none.
    encoding: Content-Encoding that was not asked for, empty when there is none.
    """

    def __init__(self, response: requests.Response) -> None:
        headers, self.url = response.headers, public(response.url)
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
            raise _explained(error, self.url) from None


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
) -> Iterator[Answer]:
    """The answer to a request; the connection is given back when the context ends.

    headers: of this exchange (Range and the like), sent to whatever origin answers it.
    Raises FetchError, for every status but 200 and 206 too.
    """
    response = _follow(session, request, patience, method, headers or {})
    try:
        if response.status_code not in (200, 206):
            raise _refusal(response)
        yield Answer(response)
    finally:
        response.close()


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises FetchError when the URL has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        raise FetchError(f"{public(url)} is not an http or https URL") from None
    return parts.scheme, parts.hostname or "", port


def public(url: str) -> str:
    """The URL without user, password, query and fragment, for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL"
    host = parts.netloc.rpartition("@")[2]
    return shown(f"{parts.scheme}://{host}{parts.path}")


def _follow(
    session: requests.Session,
    request: Request,
    patience: Patience,
    method: str,
    headers: Mapping[str, str],
) -> requests.Response:
    url, own = request.url, dict(request.headers)
    home = origin(url)
    # requests would replace an explicit Authorization by what netrc has for the host.
    explicit = any(name.lower() == "authorization" for name in own)
    for _ in range(MAX_REDIRECTS):
        try:
            response = session.request(
                method,
                url,
                headers={**own, **headers},
                auth=_unchanged if explicit else None,
                timeout=(patience.connect, patience.stall),
                allow_redirects=False,
                stream=True,
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            failure = _explained(error, public(url))
            failure.unreachable &= origin(url) == home
            raise failure from None
        if not response.is_redirect:
            return response
        response.close()
        url = _target(url, response.headers["Location"])
        if origin(url) != home:
            own, explicit = {}, True
    raise FetchError(f"{public(request.url)} redirects more than {MAX_REDIRECTS} times")


def _target(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise FetchError(f"{public(url)} redirects to what is no URL") from None


def _unchanged(prepared: requests.PreparedRequest) -> requests.PreparedRequest:
    return prepared


def _refusal(response: requests.Response) -> FetchError:
    status = response.status_code
    meaning = response.headers.get("X-Error-Message") or _MEANINGS.get(status)
    if meaning is None:
        meaning = "the server is in trouble" if status >= 500 else "an answer that is no file"
    return FetchError(
        f"HTTP {status}: {shown(meaning)[:300]} ({public(response.url)})",
        hint=_PROXY_HINT if status == 407 else None,
        again=status in (408, 425, 429) or (status >= 500 and status not in (501, 505)),
        stale=status == 416,
        after=retry_after(response.headers.get("Retry-After"), time.time()),
    )


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait that a Retry-After header asks for: a number, or a date.

    now: seconds since the epoch. None where the header is missing or says nothing.
    """
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _content_range(value: str, url: str) -> tuple[int, int | None]:
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", value.strip())
    if not found:
        raise FetchError(f"the server sent a part of the file without a Content-Range ({url})")
    return int(found[1]), _number(found[2])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdecimal() else None


def _explained(error: BaseException, url: str) -> FetchError:
    """What went wrong, by what is wrapped in it; never by str(), which may hold the whole URL."""
    causes = list(_causes(error))

    def among(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    def unreachable(reason: str, *, hint: str = _PROXY_HINT, again: bool = True) -> FetchError:
        server = "/".join(url.split("/")[:3])
        return FetchError(f"{reason} ({server})", hint=hint, again=again, unreachable=True)

    if among(requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema):
        return FetchError(f"{url} is no valid URL")
    if among(requests.exceptions.ProxyError, urllib3.exceptions.ProxyError):
        return unreachable("the proxy does not let it through")
    if among(requests.exceptions.SSLError, urllib3.exceptions.SSLError):
        found = next((c.verify_message for c in causes if isinstance(c, _VERIFICATION)), "")
        reason = f"no trusted TLS connection: {shown(found or 'the handshake failed')}"
        return unreachable(reason, hint=_TRUST_HINT, again=False)
    if among(urllib3.exceptions.NameResolutionError, socket.gaierror):
        return unreachable("no address is known for the server's name")
    if among(ConnectionRefusedError):
        return unreachable("the server refuses the connection")
    if among(urllib3.exceptions.NewConnectionError):
        return unreachable("the server cannot be reached")
    if among(urllib3.exceptions.ConnectTimeoutError, requests.exceptions.ConnectTimeout):
        return unreachable("the server does not take the connection")
    if among(urllib3.exceptions.TimeoutError, requests.exceptions.Timeout, TimeoutError):
        return FetchError(f"the server has stopped sending ({url})", again=True)
    return FetchError(f"the connection broke ({url})", again=True)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that is wrapped in it, outermost first."""
    seen: list[BaseException] = []
    todo: list[object] = [error]
    while todo:
        one = todo.pop(0)
        if isinstance(one, BaseException) and one not in seen:
            seen.append(one)
            yield one
            todo += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]
