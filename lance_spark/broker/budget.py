"""What bounds clients: a budget of bytes that all share, and a rate for each.

A `Budget` bounds what the broker holds at one moment, whatever its clients do. A
session that finds it spent waits until another one gives bytes back. Waiting sessions
are served in the order in which they came: otherwise small requests would keep a large
one out for ever.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from lance_spark.errors import OptionError
from lance_spark.net.deadline import Deadline

# A token counts as there when no more than this part of it is missing. Sums of
# intervals are not exact, and the rest that a rounding error leaves would ask for a
# wait that moves no clock.
_SLACK = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class _Ticket:
    """A session that waits."""

    changed: threading.Condition
    holder: object | None


class Budget:
    """A number of bytes that any thread may take and give back."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        # One ticket for each waiting session, the first one on the left.
        self._waiting: deque[_Ticket] = deque()
        # The session that has gone over the limit: no other may until it is done.
        self._overdrawn: object | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """How much is taken at this moment."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many sessions wait for bytes that others hold."""
        return len(self._waiting)

    @property
    def is_short(self) -> bool:
        """Whether a session waits for bytes that others hold."""
        return bool(self._waiting)

    def try_take(self, size: int) -> bool:
        """Take bytes if they are free and no session waits for them.

        While nothing is taken, a request may get more than the whole budget, so that
        no request is too large for ever.
        """
        with self._lock:
            return not self._waiting and self._try_take(size)

    def take(
        self, size: int, deadline: Deadline, *, holder: object | None = None
    ) -> bool:
        """Take bytes, waiting for them; False if the deadline passed.

        Args:
            size: how many.
            deadline: how long to wait for them.
            holder: the session that asks, if it holds bytes already. Sessions that
                hold some and want more would all wait for one another. So one of
                them at a time may go over the limit until it has given everything
                back, and such sessions pass by those that hold nothing.
        """
        ticket = _Ticket(threading.Condition(self._lock), holder)
        with self._lock:
            self._waiting.append(ticket)
            try:
                while not self._is_served(ticket, size):
                    if self._closed or deadline.expired:
                        return False
                    ticket.changed.wait(deadline.remaining())
                return True
            finally:
                self._waiting.remove(ticket)
                # What is left may do for the next one.
                self._wake()

    def give_back(self, size: int, *, holder: object | None = None) -> None:
        """Give bytes back; `holder` is a session that holds none after that."""
        with self._lock:
            self._taken -= size
            assert self._taken >= 0, "more was given back than was taken"
            if holder is not None and holder is self._overdrawn:
                self._overdrawn = None
            self._wake()

    def close(self) -> None:
        """End all waits, now and from now on."""
        with self._lock:
            self._closed = True
            for ticket in self._waiting:
                ticket.changed.notify()

    def _wake(self) -> None:
        """Wake the sessions that may be served by now.

        Not all of them: a thousand that wait would each take the lock and the
        interpreter to find that it is the turn of another.
        """
        for place, ticket in enumerate(self._waiting):
            if place == 0 or ticket.holder is not None:
                ticket.changed.notify()

    def _is_served(self, ticket: _Ticket, size: int) -> bool:
        if ticket.holder is None and self._waiting[0] is not ticket:
            return False
        return self._try_take(size) or self._overdraw(size, ticket.holder)

    def _try_take(self, size: int) -> bool:
        if self._taken and self._taken + size > self._limit:
            return False
        self._taken += size
        return True

    def _overdraw(self, size: int, holder: object | None) -> bool:
        if holder is None or (self._overdrawn or holder) is not holder:
            return False
        self._overdrawn = holder
        self._taken += size
        return True


class TokenBucket:
    """Allows a burst, then so many per second.

    Not thread-safe: each connection has its own, used by the thread that reads it.
    """

    __slots__ = ("_allowance_s", "_clock", "_full_at_s", "_interval_s")

    def __init__(
        self, rate_per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Make a full bucket.

        Args:
            rate_per_s: how many tokens come back per second.
            burst: how many it holds.
            clock: monotonic seconds.

        Raises:
            OptionError: the rate or the burst is not positive.
        """
        if not (rate_per_s > 0 and math.isfinite(rate_per_s)):
            raise OptionError(f"token rate {rate_per_s!r}: must be above 0 per second")
        if burst < 1:
            raise OptionError(f"token burst {burst!r}: must be at least 1")
        self._interval_s = 1.0 / rate_per_s
        # How far the time at which it is full may be ahead for there to be a token.
        self._allowance_s = (burst - 1) * self._interval_s
        self._clock = clock
        # Instead of a count of tokens, which would be refilled in fractions.
        self._full_at_s = clock()

    def take(self) -> float:
        """Take a token.

        Returns:
            0.0 if there was one, else the seconds until there is; nothing is taken.
        """
        now = self._clock()
        full_at = max(self._full_at_s, now)
        wait_s = full_at - self._allowance_s - now
        if wait_s > _SLACK * self._interval_s:
            return wait_s
        self._full_at_s = full_at + self._interval_s
        return 0.0
