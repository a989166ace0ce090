"""A token bucket: how often something may happen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from lance_spark.errors import OptionError

# A token counts as there when this part of it is missing. Sums of intervals are not
# exact, and a rest of a rounding error would ask for a wait that moves no clock.
_SLACK = 1e-3


class TokenBucket:
    """So many at once, then so many per second.

    Not thread-safe: each connection has its own, used by the thread that reads it.
    """

    __slots__ = ("_allowance_s", "_clock", "_full_at_s", "_interval_s")

    def __init__(
        self,
        rate_per_s: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
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
