"""What all connections of one fetch know about the servers: who wants a rest, who is lost."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from mirror.core.paths import shown
from mirror.core.text import human_time
from mirror.fetch.exchange import Origin
from mirror.fetch.failures import FetchError
from mirror.fetch.request import Patience

#: A rest of at least so many seconds is told.
_WORTH_TELLING = 5.0
#: A server that turns requests away gets half as many at once, and one more whenever so many
#: seconds have passed without that.
_GROW_SECONDS = 5.0
_LOOK_SECONDS = 0.1


@dataclass(slots=True)
class _State:
    """Times are of the monotonic clock.

    lost: why nobody needs to try any more. answered: when it last gave what it was asked for.
    until: when it may be asked again. rests: in a row, without an answer between; the last began
    at `rested`.
    active: requests on their way. limit: of these, as it was when it was last halved, at `halved`.
    """

    lost: FetchError | None = None
    answered: float = 0.0
    until: float = 0.0
    rests: int = 0
    rested: float = 0.0
    active: int = 0
    limit: float = math.inf
    halved: float = 0.0

    def wait(self, now: float) -> float:
        """Seconds until one request more may be sent, 0 now, inf when others have to end first."""
        grown = (now - self.halved) / _GROW_SECONDS
        slots = 0.0 if self.active + 1 <= self.limit + grown else math.inf
        return max(self.until - now, slots, 0.0)


class Origins:
    """Safe to be used from several threads.

    stop: ends all waiting. say: told of long rests.
    """

    def __init__(
        self, patience: Patience, stop: threading.Event, say: Callable[[str], object]
    ) -> None:
        self._patience = patience
        self._stop = stop
        self._say = say
        self._changed = threading.Condition()
        self._states: defaultdict[Origin, _State] = defaultdict(_State)

    def enter(self, origin: Origin) -> None:
        """Wait until a request may be sent; `leave` follows. Raises FetchError when it is lost."""
        with self._changed:
            state = self._states[origin]
            while not state.lost and (wait := state.wait(time.monotonic())):
                self._changed.wait(min(wait, _LOOK_SECONDS))
                if self._stop.is_set():
                    raise FetchError("interrupted")
            if state.lost:
                raise state.lost
            state.active += 1

    def leave(self, origin: Origin, *, answered: bool) -> None:
        """A request is over."""
        with self._changed:
            state = self._states[origin]
            state.active -= 1
            if answered:
                state.answered, state.rests = time.monotonic(), 0
            self._changed.notify_all()

    def turned_away(self, failure: FetchError, sent: float) -> None:
        """The origin has too much to do (429, 503).

        If it says for how long it wants no request, it gets none: too many such rests in a row, or
        too long a one, and it is lost. Otherwise it gets half as many at once. What was sent before
        the one or the other is no reason to do it again.
        sent: when the request was.
        """
        with self._changed:
            assert failure.origin is not None  # noqa: S101 -- an answer says who gave it
            state, now = self._states[failure.origin], time.monotonic()
            if failure.after is None:
                if sent >= state.halved:
                    state.limit, state.halved = max(1, (state.active + 1) // 2), now
                return
            if sent < state.rested or state.lost:
                return
            state.rests, state.rested = state.rests + 1, now
            pause = self._patience.pause(state.rests, failure.after)
            if pause is None:
                state.lost = _turned_away(failure)
                return
            state.until = now + pause
            if pause >= _WORTH_TELLING:
                self._say(f"{failure.origin[1]} wants no request for {human_time(pause)}")

    def give_up(self, failure: FetchError, since: float) -> None:
        """A file has failed; if nothing has answered since then, its origin is lost for all."""
        if failure.silent and failure.origin:
            with self._changed:
                state = self._states[failure.origin]
                if state.answered <= since and not state.lost:
                    failure.again = False  # for the other files, which are told the same
                    state.lost = failure


def _turned_away(failure: FetchError) -> FetchError:
    """The same for files that were not asked for yet."""
    scheme, host, port = failure.origin or ("", "", 0)
    wish = f", for {human_time(failure.after)}" if failure.after else ""
    server = f"{scheme}://{shown(host)}:{port}"
    return FetchError(f"HTTP {failure.status}: the server turns all requests away{wish} ({server})")
