"""Who wants to know when a log grows or the list of topics changes.

A reader that waits on several logs at once can't sleep on the condition of each. It
leaves a function instead, which wakes it; what has changed it finds out by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Wake = Callable[[], None]


class Watchers:
    """Functions to be called on every change. They must be quick and never raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced rather than changed, so that `notify` needs no lock.
        self._wakes: tuple[Wake, ...] = ()

    def add(self, wake: Wake) -> None:
        """Call a function on every change from now on."""
        with self._lock:
            self._wakes = (*self._wakes, wake)

    def remove(self, wake: Wake) -> None:
        """Call it no more; it may be called once again by a change under way."""
        with self._lock:
            wakes = list(self._wakes)
            wakes.remove(wake)
            self._wakes = tuple(wakes)

    def notify(self) -> None:
        """Tell of a change."""
        for wake in self._wakes:
            wake()
