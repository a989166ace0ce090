"""How fast keepalives may be sent.

Our broker answers 30 of them at once and 5 a second after that, and drops the others:
a client of the field answers answers, and would not stop. A ping whose keepalive is
dropped would wait for nothing.
"""

from __future__ import annotations

from collections import deque

# Below what the broker answers in any such time.
PINGS_MAX = 25
WINDOW_S = 6.0


class Pace:
    """When the next of many pings may go."""

    def __init__(self) -> None:
        self._sent_s: deque[float] = deque(maxlen=PINGS_MAX)

    def delay_s(self, now_s: float) -> float:
        """Tell how long the next one has to wait."""
        if len(self._sent_s) < PINGS_MAX:
            return 0.0
        return max(0.0, self._sent_s[0] + WINDOW_S - now_s)

    def note(self, now_s: float) -> None:
        """Take note of one that is sent."""
        self._sent_s.append(now_s)
