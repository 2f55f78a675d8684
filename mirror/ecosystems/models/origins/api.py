"""A Hub over HTTP, as one run asks it: what a revision names, what is in it, who may have it.

The Hub's client gives the names and the token. The requests go the way of the downloads
(mirror.fetch.exchange), which has a time-out for each of them, the same proxies and certificates,
and a token that stays with the Hub's own origin. The client itself waits for whatever a Retry-After
says, has no time-out for listings, follows them to any host, and closes the connections of all
threads when one of them gets none.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

from requests import Session
from requests.utils import parse_header_links

from mirror.core.paths import shown
from mirror.core.text import human_time
from mirror.ecosystems.models.origins import credentials
from mirror.ecosystems.models.origins.credentials import Credentials
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError, MirrorError, ResolutionError, UsageError
from mirror.fetch import exchange
from mirror.fetch.failures import FetchError
from mirror.fetch.http import Fetcher, Request

T = TypeVar("T")

_ANOTHER = "`endpoint:` in the manifest, else HF_ENDPOINT, names another Hub or a mirror of it."
HINT = f"HF_TOKEN holds the token for gated and private repositories.\n{_ANOTHER}"
_MISTYPED = "It may be mistyped, expired or revoked."
#: Bytes of one answer: a page of a listing has some 300 kB.
_LARGEST = 64 * 2**20
#: Pages of one listing, of some 1,000 files each.
_MOST_PAGES = 10_000
_NOUNS = {"models": "model", "datasets": "dataset", "spaces": "space"}
#: A pause of at least so many seconds is told.
_WORTH_TELLING = 5.0
#: One run has one fetcher.
_hubs: WeakKeyDictionary[Fetcher, Hub] = WeakKeyDictionary()
_guard = threading.Lock()


def of(context: Context) -> Hub:
    """The Hub of this run, the same for all its threads.

    Raises UsageError when its address or the token cannot be used, DownloadError when the
    environment forbids to ask it.
    """
    from huggingface_hub import constants

    default = os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
    default = default.strip().rstrip("/") or constants.HUGGINGFACE_CO_URL_HOME.rstrip("/")
    address = context.endpoint.rstrip("/") or default
    _check(address, "`endpoint:`" if context.endpoint else "HF_ENDPOINT")
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if os.environ.get(name, "").upper() in constants.ENV_VARS_TRUE_VALUES:
            host = urlsplit(address).netloc
            raise DownloadError(f"{name} is set: {host} may not be asked", hint=f"Unset {name}.")
    with _guard:
        known = _hubs.get(context.fetcher)
        if known is None or known.endpoint != address:
            found = credentials.find(address)
            known = _hubs[context.fetcher] = Hub(address, found, context)
            if found.source not in ("", "netrc") and address != default:
                context.progress.step(
                    f"{found.name} is sent to {known.host}, the manifest's endpoint"
                )
        return known


def label(kind: str, name: str) -> str:
    """What a repository is called by a Hub's pages: org/name, datasets/org/name."""
    return name if kind == "models" else f"{kind}/{name}"


def stop(context: Context) -> None:
    """Let every thread of this run that waits to ask the Hub again give up."""
    if hub := _hubs.get(context.fetcher):
        hub.stop()


def _check(address: str, name: str) -> None:
    """Raises UsageError unless requests can be made below this address."""
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment:
        raise UsageError(f"{name} is not the address of a Hub: it is no http or https URL")
    if "@" in parts.netloc:
        raise UsageError(
            f"{name} holds a user or a password",
            hint="Take them out: HF_TOKEN holds a token, netrc a user and password for a host.",
        )


class Hub:
    """One Hub, for all threads of a run: its address, what it is sent, what is known of it."""

    def __init__(self, endpoint: str, credentials: Credentials, context: Context) -> None:
        self.endpoint = endpoint
        self.host = urlsplit(endpoint).netloc
        self.credentials = credentials
        self.patience = context.fetcher.patience
        self.admitted: set[tuple[str, str]] = set()  # label and commit of what may be downloaded
        self._say = context.progress.step
        # Of the monotonic clock: when it last answered; until when people know that it takes long.
        self._answered = self._told = 0.0
        self._lost: FetchError | None = None
        self._stopped = threading.Event()
        self._state = ""
        self._rejected = False
        self._lock = threading.Lock()

    def url(self, kind: str, name: str, commit: str, path: str) -> str:
        """Where the bytes of a file are."""
        from huggingface_hub import hf_hub_url

        repo_type = kind.removesuffix("s")
        return hf_hub_url(name, path, repo_type=repo_type, revision=commit, endpoint=self.endpoint)

    @contextmanager
    def repository(self, kind: str, name: str) -> Iterator[Repository]:
        """To ask about one repository, in one thread. Raises UsageError for an impossible name."""
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

        try:
            validate_repo_id(name)
        except HFValidationError:
            raise UsageError(f"{name!r} cannot be the name of a repository on a Hub") from None
        with exchange.session() as session:
            yield Repository(self, kind, name, session)

    def stop(self) -> None:
        """No more waiting, in any thread."""
        self._stopped.set()

    def patiently(self, call: Callable[[], T]) -> T:
        """Call until it succeeds or patience ends. Raises FetchError.

        A Hub that does not answer, or turns everybody away, is asked with all patience only once.
        """
        since, failures = time.monotonic(), 0
        while True:
            if self._lost:
                raise self._lost
            try:
                found = call()
            except FetchError as failure:
                failures += 1
                pause = self.patience.pause(failures, failure.after)
                if not failure.again or pause is None:
                    at_home = failure.origin == exchange.origin(self.endpoint)
                    closed = at_home and (failure.silent or failure.status == 429)
                    if closed and self._answered < since:
                        self._lost = failure
                    raise
                self._tell(pause)
                if self._stopped.wait(pause):
                    raise
            else:
                self._answered = time.monotonic()
                return found

    def _tell(self, pause: float) -> None:
        """That it takes long; of several threads one says it."""
        end = time.monotonic() + pause
        with self._lock:
            if pause >= _WORTH_TELLING and end > self._told + _WORTH_TELLING:
                self._told = end
                self._say(f"{self.host} is asked again in {human_time(pause)}")

    def token_state(self, session: Session) -> str:
        """A sentence about the token: none, or where it comes from and of which kind it is.

        The Hub is asked for that once, and need not answer.
        """
        with self._lock:
            if not self._state:
                self._state = self._asked_state(session, self.credentials.name)
            return self._state

    def rejects_token(self, session: Session) -> bool:
        """Whether the Hub does not know the token: then it refuses also what is open to all."""
        self.token_state(session)
        return self._rejected

    def _asked_state(self, session: Session, sent: str) -> str:
        if not sent:
            return (
                "No token is set: let HF_TOKEN hold one of an account that has access, or run"
                " `hf auth login`."
            )
        try:
            body, _ = _answer(session, f"{self.endpoint}/api/whoami-v2", "whoami", self)
            access = json.loads(body)["auth"]["accessToken"]
            role, grains = access["role"], access.get("fineGrained") or {}
        except FetchError as failure:
            if failure.status == 401:
                self._rejected = True
                return f"{self.host} does not know {sent}. {_MISTYPED}"
            role, grains = "", {}
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            role, grains = "", {}
        why = "its account has no access"
        if role == "fineGrained" and not grains.get("canReadGatedRepos"):
            why = (
                "it needs the permission to read public gated repositories, and private ones each"
                " by name"
            )
        kind = {"read": " (read)", "write": " (write)", "fineGrained": " (fine-grained)"}
        return f"{self.host} was sent {sent}{kind.get(role, '')}: {why}."


class Repository:
    """One repository on a Hub, asked by one thread. Its methods raise MirrorError in words."""

    def __init__(self, hub: Hub, kind: str, name: str, session: Session) -> None:
        self.hub = hub
        self.label = label(kind, name)
        self._noun = _NOUNS[kind]
        self._api = f"{hub.endpoint}/api/{kind}/{name}"
        self._session = session

    def info(self, revision: str) -> dict[str, Any]:
        """What the Hub knows of a branch, a tag or a commit."""
        found, _ = self._json(f"{self._api}/revision/{quote(revision, safe='')}", revision)
        if not isinstance(found, dict):
            raise self.odd("its answer describes no repository")
        return found

    def entries(self, commit: str) -> Iterator[dict[str, Any]]:
        """Files and folders at a commit, as they are listed, page after page."""
        first = f"{self._api}/tree/{commit}?recursive=true"
        pages, url = {first}, first
        while url:
            page, headers = self._json(url, commit)
            if headers.get("X-Repo-Commit", commit) != commit:
                raise self.odd(f"it lists another commit than {commit}")
            if not isinstance(page, list) or not all(isinstance(entry, dict) for entry in page):
                raise self.odd("its answer is no listing")
            yield from page
            # Of the next page's address only what differs counts: a mirror may pass on its
            # origin's, and the token goes to no other host than the Hub's own.
            following = _next_query(headers.get("Link", ""))
            url = f"{self._api}/tree/{commit}?{following}" if following else ""
            if url in pages:
                raise self.odd("its listing repeats itself, as if it gave the first page only")
            pages.add(url)
            if len(pages) > _MOST_PAGES:
                raise self.odd("its listing never ends")

    def admit(self, commit: str, url: str, gated: str) -> None:
        """Have it shown, once a run, that a file of a gated repository may be downloaded.

        gated: "auto" or "manual", as far as known.
        """
        if (self.label, commit) in self.hub.admitted:
            return
        try:
            # The Hub itself answers, or sends to its storage, which need not take a HEAD.
            self.hub.patiently(
                lambda: _answer(self._session, url, self.label, self.hub, "HEAD", leave=False)
            )
        except FetchError as failure:
            if failure.status in (401, 403):
                raise self._gated(gated) from None
            if failure.status not in (301, 302, 303, 307, 308):
                raise self._refused(failure, commit) from None
        self.hub.admitted.add((self.label, commit))

    def odd(self, why: str) -> DownloadError:
        """The error for an answer that no Hub gives."""
        return DownloadError(
            f"{self.label}: {self.hub.host} does not answer as a Hub does: {why}",
            hint=f"A proxy or a login page may have answered.\n{HINT}",
        )

    def _json(self, url: str, revision: str) -> tuple[Any, Mapping[str, str]]:
        try:
            body, headers = self.hub.patiently(
                lambda: _answer(self._session, url, self.label, self.hub)
            )
        except FetchError as failure:
            raise self._refused(failure, revision) from None
        try:
            return json.loads(body), headers
        except (ValueError, RecursionError):
            raise self.odd("its answer is no JSON") from None

    def _refused(self, failure: FetchError, revision: str) -> MirrorError:
        """The error for a request that failed, by the Hub's own code where it gives one."""
        host = self.hub.host
        if failure.code == "RevisionNotFound":
            return ResolutionError(
                f"{self.label} has no revision {revision!r}",
                hint="A revision is a branch, a tag or a commit; left out, it is main.",
            )
        if failure.code == "GatedRepo":
            return self._gated("")
        if failure.status == 401 and not failure.code and self.hub.rejects_token(self._session):
            told = f"{self.label}: {host} does not know {self.hub.credentials.name}"
            return ResolutionError(told, hint=f"{_MISTYPED}\n{_ANOTHER}")
        if failure.code == "RepoNotFound" or failure.status == 401:
            return ResolutionError(
                f"{self.label}: {host} has no such {self._noun}, or shows it to others only",
                hint=f"Check the spelling, and whether it is a {self._noun}.\n{self._token_hint}",
            )
        if failure.status == 403:
            told = f"{self.label}: {host} answers {failure.reason}"
            return ResolutionError(told, hint=self._token_hint)
        hint = f"{failure.hint}\n{HINT}" if failure.hint else HINT
        if failure.status is None:
            state = "reached" if failure.silent else "asked"
            told = f"{self.label}: the Hub {host} cannot be {state}: {failure.reason}"
            return DownloadError(told, hint=hint)
        asks = f"; it asks to wait {human_time(failure.after)}" if failure.after else ""
        return DownloadError(f"{self.label}: {host} answers {failure.reason}{asks}", hint=hint)

    @property
    def _token_hint(self) -> str:
        return f"{self.hub.token_state(self._session)}\n{_ANOTHER}"

    def _gated(self, gated: str) -> ResolutionError:
        then = " and wait for its owner to let you in" if gated == "manual" else ""
        return ResolutionError(
            f"{self.label} is gated, and this user may not download it",
            hint=f"Accept its terms on {self.hub.endpoint}/{self.label}{then}."
            f"\n{self.hub.token_state(self._session)}",
        )


def _answer(
    session: Session, url: str, label: str, hub: Hub, method: str = "GET", *, leave: bool = True
) -> tuple[bytes, Mapping[str, str]]:
    """Body and headers of one answer. Raises FetchError."""
    request = Request(url, label, headers=hub.credentials.headers)
    with exchange.ask(session, request, hub.patience, method=method, leave=leave) as answer:
        if answer.encoding:
            raise FetchError(f"it compresses ({answer.encoding}) what was asked for as it is")
        body = bytearray()
        for chunk in answer.chunks():
            body += chunk
            if len(body) > _LARGEST:
                raise FetchError(f"its answer is longer than {_LARGEST:,} bytes ({answer.url})")
        return bytes(body), answer.headers


def _next_query(link: str) -> str:
    """The query of the next page's address in a Link header; empty on the last page."""
    following = (entry["url"] for entry in parse_header_links(link) if entry.get("rel") == "next")
    try:
        return shown(urlsplit(next(following, "")).query)
    except ValueError:
        return ""
