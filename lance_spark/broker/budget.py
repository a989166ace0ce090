"""A budget of bytes that all connections share.

It bounds what the broker holds at one moment, whatever its clients do. Whoever finds
it spent waits until somebody gives back.
"""

from __future__ import annotations

import threading

from lance_spark.net.deadline import Deadline


class Budget:
    """So many bytes, taken and given back by any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting = 0
        # Who has gone over the limit, and is therefore the only one who may.
        self._overdrawn: object | None = None
        self._closed = False
        self._changed = threading.Condition()

    @property
    def taken(self) -> int:
        """How much is taken at this moment."""
        return self._taken

    @property
    def is_short(self) -> bool:
        """Whether somebody waits for bytes that others hold."""
        return self._waiting > 0

    def try_take(self, size: int) -> bool:
        """Take bytes if they are there.

        More than the whole budget is given to whoever comes while nothing is taken,
        so that no request is too large for ever.
        """
        with self._changed:
            return self._try_take(size)

    def take(
        self, size: int, deadline: Deadline, *, holder: object | None = None
    ) -> bool:
        """Take bytes, waiting for them; False if the deadline passed.

        Args:
            size: how many.
            deadline: how long to wait for them.
            holder: who asks, if it holds bytes already. Those who hold some and want
                more would all wait for one another, so that one of them at a time may
                go over the limit, until it has given everything back.
        """
        with self._changed:
            self._waiting += 1
            try:
                while not self._try_take(size) and not self._overdraw(size, holder):
                    if self._closed or deadline.expired:
                        return False
                    self._changed.wait(deadline.remaining())
                return True
            finally:
                self._waiting -= 1

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
