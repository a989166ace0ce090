"""What all connections through a relay meet from now on: delays and cuts.

A `Fate` is decided when a connection is made; weather changes under connections that
are there already.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import Enum


class Side(Enum):
    """Where bytes go to."""

    BROKER = "broker"
    CLIENT = "client"


@dataclass(eq=False)
class Cut:
    """Ends the connection that carries a byte, counted over all of them.

    Args:
        side: where the bytes go to that are counted.
        size: how many are let through.
        times: how often; the count begins anew after each.
        left: how many may pass until the next.
    """

    side: Side
    size: int
    times: int
    left: int


class Weather:
    """Delays and cuts that hold for all connections; any thread may change them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._delays_s: list[float] = []
        self._cuts: list[Cut] = []
        self._is_over = False

    def add_delay(self, seconds: float) -> None:
        """Have each piece wait so much longer."""
        with self._lock:
            self._delays_s.append(seconds)

    def drop_delay(self, seconds: float) -> None:
        """Take a delay back; what waits for it goes on."""
        with self._lock:
            if seconds in self._delays_s:
                self._delays_s.remove(seconds)
            self._changed.notify_all()

    def hold_up(self, least_s: float = 0.0) -> None:
        """Wait as long as a piece has to.

        Args:
            least_s: how long it waits in any weather.
        """
        began_s = time.monotonic()
        with self._lock:
            while not self._is_over:
                # Asked each time: a delay may end under who waits.
                end_s = began_s + least_s + sum(self._delays_s)
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))

    def end(self) -> None:
        """Let everything go on at once, from now on."""
        with self._lock:
            self._is_over = True
            self._changed.notify_all()

    def add_cut(self, side: Side, size: int, times: int) -> Cut:
        """End connections behind so many bytes, counted from now on."""
        cut = Cut(side, size, times, size)
        with self._lock:
            self._cuts.append(cut)
        return cut

    def drop_cut(self, cut: Cut) -> None:
        """Take a cut back."""
        with self._lock:
            if cut in self._cuts:
                self._cuts.remove(cut)

    def take(self, side: Side, data: bytes) -> tuple[bytes, bool]:
        """Give what passes of some bytes, and whether the connection ends then."""
        with self._lock:
            for cut in self._cuts:
                if cut.side is not side:
                    continue
                if len(data) < cut.left:
                    cut.left -= len(data)
                    continue
                data = data[: cut.left]
                cut.left = cut.size
                cut.times -= 1
                if not cut.times:
                    self._cuts.remove(cut)
                return data, True
            return data, False
