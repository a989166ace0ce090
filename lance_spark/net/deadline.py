"""Deadlines: a point in time by which something has to be done."""

from __future__ import annotations

import time
from collections.abc import Callable


class Deadline:
    """A point on a monotonic clock; it can be handed on to whatever is called."""

    __slots__ = ("_at_s", "_clock")

    def __init__(self, at_s: float, clock: Callable[[], float]) -> None:
        self._at_s = at_s
        self._clock = clock

    @classmethod
    def after(
        cls, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> Deadline:
        """Make the deadline that many seconds from now."""
        return cls(clock() + seconds, clock)

    def remaining(self) -> float:
        """Tell how many seconds are left, 0 when none are."""
        return max(0.0, self._at_s - self._clock())

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._at_s <= self._clock()

    def sooner(self, seconds: float) -> Deadline:
        """Give the earlier of this deadline and the one that many seconds from now."""
        return Deadline(min(self._at_s, self._clock() + seconds), self._clock)

    def __repr__(self) -> str:
        return f"<Deadline in {self.remaining():.3f} s>"
