"""A budget of bytes that all connections share.

It bounds what the broker holds at one moment, whatever its clients do. Whoever finds
it spent waits until somebody gives back. Those who wait are served in the order in
which they came: small requests would else keep a large one out for ever.
"""

from __future__ import annotations

import threading
from collections import deque

from lance_spark.net.deadline import Deadline


class Budget:
    """So many bytes, taken and given back by any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        # One ticket for each that waits, the first one on the left.
        self._waiting: deque[object] = deque()
        # Who has gone over the limit, and is therefore the only one who may.
        self._overdrawn: object | None = None
        self._closed = False
        self._changed = threading.Condition()

    @property
    def taken(self) -> int:
        """How much is taken at this moment."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many wait for bytes that others hold."""
        return len(self._waiting)

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for bytes that others hold."""
        return bool(self._waiting)

    def try_take(self, size: int) -> bool:
        """Take bytes if they are there and nobody waits for them.

        More than the whole budget is given to whoever comes while nothing is taken,
        so that no request is too large for ever.
        """
        with self._changed:
            return not self._waiting and self._try_take(size)

    def take(
        self, size: int, deadline: Deadline, *, holder: object | None = None
    ) -> bool:
        """Take bytes, waiting for them; False if the deadline passed.

        Args:
            size: how many.
            deadline: how long to wait for them.
            holder: who asks, if it holds bytes already. Those who hold some and want
                more would all wait for one another, so that one of them at a time may
                go over the limit, until it has given everything back. For the same
                reason they pass by those who wait.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                while not self._is_served(ticket, size, holder):
                    if self._closed or deadline.expired:
                        return False
                    self._changed.wait(deadline.remaining())
                return True
            finally:
                self._waiting.remove(ticket)
                # What is left may do for the next one.
                self._changed.notify_all()

    def give_back(self, size: int, *, holder: object | None = None) -> None:
        """Give back what was taken; `holder` is who has nothing left with that."""
        with self._changed:
            self._taken -= size
            assert self._taken >= 0, "more was given back than was taken"
            if holder is not None and holder is self._overdrawn:
                self._overdrawn = None
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _is_served(self, ticket: object, size: int, holder: object | None) -> bool:
        if holder is None and self._waiting[0] is not ticket:
            return False
        return self._try_take(size) or self._overdraw(size, holder)

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
