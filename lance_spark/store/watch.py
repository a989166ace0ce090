"""Who wants to know when a log grows or the list of topics changes.

A reader that waits on several logs at once can't sleep on the condition of each. It
leaves a function with each log instead, and the offset behind which it wants to read.
The function is called when the log has grown past that offset, and not before: an
append costs nothing for readers that wait for a later one, however many they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Wake = Callable[[], None]

# The offset of a reader that any change wakes.
_ANY = -1
# Further than any log grows: no reader waits.
_NEVER = 2**64


class Watchers:
    """Functions to be called on a change. They must be quick and never raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: dict[Wake, int] = {}
        # No reader waits for less. A log that grows looks at this alone, without the
        # lock: a reader that comes at that moment looks at the log behind `add`.
        self._least = _NEVER

    def __len__(self) -> int:
        return len(self._wakes)

    def add(self, wake: Wake, beyond: int = _ANY) -> None:
        """Call a function on every change that reaches beyond an offset."""
        with self._lock:
            self._wakes[wake] = beyond
            self._least = min(self._least, beyond)

    def remove(self, wake: Wake) -> None:
        """Call it no more; it may be called once again by a change under way."""
        with self._lock:
            beyond = self._wakes.pop(wake)
            if beyond <= self._least:
                self._least = min(self._wakes.values(), default=_NEVER)

    def notify(self, end: int = _NEVER) -> None:
        """Tell of a change; `end` is where a log that has grown ends now."""
        if end <= self._least:
            return
        with self._lock:
            woken = [wake for wake, beyond in self._wakes.items() if beyond < end]
        for wake in woken:
            wake()
