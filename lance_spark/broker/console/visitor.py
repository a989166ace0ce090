"""Who looks at the console: visitors that have signed in, and those who guess."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from lance_spark.broker.access import Principal
from lance_spark.broker.budget import TokenBucket
from lance_spark.errors import AuthenticationFailed, RateLimited

# A browser has one set of cookies for all ports of a host, so each has its own name.
COOKIE = "lance_session_{port}"
SESSIONS_MAX = 1000
SESSION_S = 12 * 3600
# Wrong tokens from one address: so many at once, then one in so many seconds.
FAILURES_BURST = 5
FAILURE_INTERVAL_S = 5.0
# Addresses that are remembered for that.
_SUSPECTS_MAX = 1000

Authenticate = Callable[[Principal, str], Principal]


class Visitors:
    """Those who have signed in; any thread may ask.

    Args:
        authenticate: checks a token; see `Gate.authenticate`.
        clock: monotonic seconds.
        sessions_max: how many may be signed in; the one that came first goes.
    """

    def __init__(
        self,
        authenticate: Authenticate,
        *,
        clock: Callable[[], float] = time.monotonic,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        self._authenticate = authenticate
        self._clock = clock
        self._sessions_max = sessions_max
        self._lock = threading.Lock()
        # When each session ends, by its id. They are of one length, so the first one
        # is the oldest.
        self._sessions: OrderedDict[str, float] = OrderedDict()
        self._suspects: OrderedDict[str, TokenBucket] = OrderedDict()

    def sign_in(self, token: str, *, peer: str) -> str:
        """Begin a session; give its id, which nobody can guess.

        Args:
            token: what the visitor has presented.
            peer: the address that it comes from.

        Raises:
            AuthenticationFailed: the token is wrong.
            RateLimited: too many were, from this address.
        """
        self._check_suspect(peer)
        try:
            # Text that is no Unicode can't be a token, nor be compared with one.
            token.encode()
            self._authenticate(Principal(), token)
        except UnicodeEncodeError:
            raise AuthenticationFailed("Authentication failed") from None
        with self._lock:
            # Who knows a token is no suspect.
            self._suspects.pop(peer, None)
            session = secrets.token_urlsafe(32)
            self._sessions[session] = self._clock() + SESSION_S
            while len(self._sessions) > self._sessions_max:
                self._sessions.popitem(last=False)
        return session

    def _check_suspect(self, peer: str) -> None:
        # Each try takes a token of the bucket, before it is known to be wrong: tries
        # that come at the same time must not all pass.
        with self._lock:
            bucket = self._suspects.get(peer)
            if bucket is None:
                rate = 1 / FAILURE_INTERVAL_S
                bucket = TokenBucket(rate, FAILURES_BURST, self._clock)
                self._suspects[peer] = bucket
            self._suspects.move_to_end(peer)
            if len(self._suspects) > _SUSPECTS_MAX:
                self._suspects.popitem(last=False)
            wait_s = bucket.take()
        if wait_s > 0:
            raise RateLimited(
                "Too many wrong tokens",
                details={"retry_after_ms": int(wait_s * 1000) + 1},
            )

    def sign_out(self, session: str | None) -> None:
        """End a session, if it is one."""
        with self._lock:
            self._sessions.pop(session or "", None)

    def is_signed_in(self, session: str | None) -> bool:
        """Tell whether a session goes on."""
        with self._lock:
            ends_s = self._sessions.get(session or "")
            if ends_s is None:
                return False
            if ends_s <= self._clock():
                del self._sessions[session or ""]
                return False
            return True
