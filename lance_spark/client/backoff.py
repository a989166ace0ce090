"""How long to wait before trying again (LWP §17.6)."""

from __future__ import annotations

from collections.abc import Callable

# A crowd that lost the same server should not come back in the same moment.
JITTER = 0.1


class Backoff:
    """Delays that double from try to try, with up to a tenth of jitter on top.

    Args:
        base_s: half of the first delay: the specification counts attempts from 1.
        max_s: the longest delay, not counting its jitter.
        random: gives numbers in [0, 1).
    """

    def __init__(
        self, base_s: float, max_s: float, random: Callable[[], float]
    ) -> None:
        self._base_s = base_s
        self._max_s = max_s
        self._random = random
        self._delay_s = base_s

    def next_delay_s(self) -> float:
        """Return the delay before the next try."""
        # Doubling what is already bounded can't overflow, however many tries there are.
        self._delay_s = min(self._delay_s * 2, self._max_s)
        return self._delay_s * (1 + JITTER * self._random())

    def reset(self) -> None:
        """Start again with the first delay."""
        self._delay_s = self._base_s
