"""The thread that keeps an idle connection alive (LWP §2.3).

It knows its link by a weak reference only, so that a client that nobody holds any more
can go, and the thread with it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class Living(Protocol):
    """Something to be kept alive."""

    def keep_alive(self) -> float:
        """Do what is due, and return the seconds until to come again."""


class Keepalive:
    """Call `keep_alive` of something from time to time, for as long as it is there.

    Args:
        living: what to keep alive.
        first_s: seconds until the first call.
    """

    def __init__(self, living: Living, first_s: float) -> None:
        self._stop = threading.Event()
        # Wakes the thread at once when what it serves is collected.
        weakref.finalize(living, self._stop.set).atexit = False
        self._thread = threading.Thread(
            target=_run,
            args=(self._stop, weakref.ref(living), first_s),
            name="lance-keepalive",
            daemon=True,
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> None:
        """End the thread, and wait so long for it to be gone."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


def _run(stop: threading.Event, reference: weakref.ref[Living], delay_s: float) -> None:
    while not stop.wait(delay_s):
        living = reference()
        if living is None:
            return
        delay_s = living.keep_alive()
        # Held over the wait, it could never be collected.
        del living
