"""When to commit by itself: a decision that consumers and groups share."""

from __future__ import annotations

from collections.abc import Callable

from lance_spark.errors import OptionError


class CommitClock:
    """Says when an automatic commit is due.

    Args:
        interval_s: time between two; None for never.
        clock: a monotonic clock.
    """

    def __init__(self, interval_s: float | None, clock: Callable[[], float]) -> None:
        if interval_s is not None and interval_s < 0:
            raise OptionError(f"auto_commit_interval_s {interval_s} is negative")
        self._interval_s = interval_s
        self._clock = clock
        self._last_s = clock()

    @property
    def is_on(self) -> bool:
        """Whether commits are made at all."""
        return self._interval_s is not None

    def take_due(self) -> bool:
        """Tell whether a commit is due, and if so, wait for the next one."""
        if self._interval_s is None:
            return False
        now_s = self._clock()
        if now_s - self._last_s < self._interval_s:
            return False
        self._last_s = now_s
        return True
