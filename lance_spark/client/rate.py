"""How fast a producer may send: a window of batches that the server can shrink.

A producer that keeps `w` batches in flight sends `w` per round trip. Asked to slow down
it halves `w` (LWP §4.4). Below one batch the window can't shrink, so the producer
pauses instead: one batch and a pause of one round trip are half a batch per round trip.
Each window of acknowledgements that comes in after that doubles the rate again.

Only decisions live here; whoever sends has the clock.
"""

from __future__ import annotations

# One batch in 64 round trips: slow enough to let any server breathe, and still a sign
# of life that lets the rate recover.
SHARE_MIN = 1 / 64

# Weight of the newest round trip in the smoothed one, that of TCP.
_NEWEST = 1 / 8


class Rate:
    """The rate of one producer.

    Args:
        window_max: how many batches may be in flight at full speed.
    """

    def __init__(self, window_max: int) -> None:
        self._window_max = window_max
        self._batches = float(window_max)
        self._acks = 0
        self._round_trip_s = 0.0

    @property
    def window(self) -> int:
        """How many batches may be in flight."""
        return max(1, int(self._batches))

    @property
    def pause_s(self) -> float:
        """How long to wait before the next batch; 0 while the window says enough."""
        if self._batches >= 1:
            return 0.0
        return self._round_trip_s * (1 / self._batches - 1)

    @property
    def is_full(self) -> bool:
        """Whether nothing holds the producer back."""
        return self._batches >= self._window_max

    def slow_down(self) -> None:
        """Halve the rate, as the server asks."""
        self._batches = max(self._batches / 2, SHARE_MIN)
        self._acks = 0

    def acked(self, round_trip_s: float) -> None:
        """Take note of an acknowledgement; a window of them doubles the rate."""
        step = round_trip_s - self._round_trip_s
        self._round_trip_s += step * _NEWEST if self._round_trip_s else step
        if self.is_full:
            return
        self._acks += 1
        if self._acks >= self.window:
            self._batches = min(2 * self._batches, float(self._window_max))
            self._acks = 0
