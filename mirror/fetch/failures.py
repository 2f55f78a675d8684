"""Why bytes did not come, in words: never with a URL's user, password, query or fragment."""

from __future__ import annotations

import email.utils
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

import requests
import urllib3

from mirror.core.paths import shown

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
    after: seconds for which the server wants to be left alone, by us and for any file.
    stale: whether the file seems to be another than the one that earlier bytes are of.
    silent: whether the server gave no answer at all.
    status: of the answer, None when there was none.
    code: a Hub's word for what is wrong (X-Error-Code), empty when it gives none.
    origin: scheme, host and port of the server that it is about, where that is known.
    """

    def __init__(
        self,
        reason: str,
        *,
        hint: str | None = None,
        again: bool = False,
        after: float | None = None,
        stale: bool = False,
        silent: bool = False,
        status: int | None = None,
        code: str = "",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.again = again
        self.after = after
        self.stale = stale
        self.silent = silent
        self.status = status
        self.code = code
        self.origin: tuple[str, str, int] | None = None


def public(url: str) -> str:
    """The URL without user, password, query, fragment and a token in its path, for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL"
    host = parts.netloc.rpartition("@")[2]
    path = re.sub(r"/t/[^/]+(?=/)", "/t/****", parts.path)  # how conda's channels have one
    return shown(f"{parts.scheme}://{host}{path}")


def refusal(response: requests.Response) -> FetchError:
    """What a status other than 200 and 206 means."""
    status, headers = response.status_code, response.headers
    again = status in (408, 425, 429) or (status >= 500 and status not in (501, 505))
    code = headers.get("X-Error-Code", "")
    meaning = headers.get("X-Error-Message") or _MEANINGS.get(status)
    if "X-Xet-Hash" in headers and not again and not code:
        meaning = "it is stored in Xet, and this Hub has no plain HTTP way to it"
    if meaning is None:
        meaning = "the server is in trouble" if status >= 500 else "an answer that is no file"
    return FetchError(
        f"HTTP {status}: {shown(meaning)[:300]} ({public(response.url)})",
        hint=_PROXY_HINT if status == 407 else None,
        again=again,
        stale=status == 416,
        after=_rest(status, headers),
        status=status,
        code=code,
    )


def _rest(status: int, headers: Mapping[str, str]) -> float | None:
    """Seconds for which the server wants no request: Retry-After, or what a Hub says instead."""
    if status not in (429, 503):
        return None
    asked = retry_after(headers.get("Retry-After"), time.time())
    if asked is None and status == 429:
        # "api";r=0;t=55: nothing remains of the quota for 55 seconds.
        found = re.search(r";\s*t\s*=\s*(\d+)", headers.get("RateLimit", ""))
        asked = float(found[1]) if found else 0.0
    return asked


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


def impostor(beginning: bytes) -> str:
    """What came instead of a file, as far as its first bytes show it: "; an HTML page came"."""
    if beginning.startswith(b"version https://git-lfs.github.com/spec/"):
        return "; an LFS pointer came instead of the file: this mirror has lost what is in LFS"
    if re.match(rb"\s*<(!doctype\s+html|html)\b", beginning, re.IGNORECASE):
        return "; an HTML page came instead of the file"
    return ""


def explained(error: BaseException, url: str, *, silent: bool) -> FetchError:
    """What went wrong, by what is wrapped in it; never by str(), which may hold the whole URL.

    silent: whether it did before there was an answer.
    """
    causes = list(_causes(error))
    server = "/".join(url.split("/")[:3])

    def among(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    def unreachable(reason: str, *, hint: str = _PROXY_HINT, again: bool = True) -> FetchError:
        return FetchError(f"{reason} ({server})", hint=hint, again=again, silent=True)

    if among(requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema):
        return FetchError(f"{url} is no valid URL")
    if among(requests.exceptions.ProxyError, urllib3.exceptions.ProxyError):
        return unreachable("the proxy does not let it through")
    if among(_VERIFICATION):
        found = next(c.verify_message for c in causes if isinstance(c, _VERIFICATION))
        reason = f"no trusted TLS connection: {shown(found)}"
        return unreachable(reason, hint=_TRUST_HINT, again=False)
    if silent and among(requests.exceptions.SSLError, urllib3.exceptions.SSLError):
        return unreachable("no TLS connection: the handshake failed")
    if among(urllib3.exceptions.NameResolutionError, socket.gaierror):
        return unreachable("no address is known for the server's name")
    if among(ConnectionRefusedError):
        return unreachable("the server refuses the connection")
    if among(urllib3.exceptions.NewConnectionError):
        return unreachable("the server cannot be reached")
    if among(urllib3.exceptions.ConnectTimeoutError, requests.exceptions.ConnectTimeout):
        return unreachable("the server does not take the connection")
    if among(urllib3.exceptions.TimeoutError, requests.exceptions.Timeout, TimeoutError):
        if silent:
            return unreachable("the server does not answer")
        return FetchError(f"the server has stopped sending ({url})", again=True)
    return FetchError(f"the connection broke ({url})", again=True, silent=silent)


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
