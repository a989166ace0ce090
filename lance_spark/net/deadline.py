"""Waiting: until when, for which descriptor, and how another thread ends the wait."""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import Callable

from lance_spark.errors import Timeout

READABLE = select.POLLIN
WRITABLE = select.POLLOUT
# The peer has ended its side. Where the system has no such event, it still reports
# errors, and that both sides have ended.
HUNG_UP: int = getattr(select, "POLLRDHUP", 0)
# poll(2) takes milliseconds in an int; a longer deadline is waited for in parts.
_WAIT_MS_MAX = 3_600_000


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
        """Return the seconds that are left, 0 when none are."""
        return max(0.0, self._at_s - self._clock())

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._at_s <= self._clock()

    def sooner(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and one that many seconds from now."""
        return Deadline(min(self._at_s, self._clock() + seconds), self._clock)

    def __repr__(self) -> str:
        return f"<Deadline in {self.remaining():.3f} s>"


class Waker:
    """Wakes a thread that waits in `Stream.wait_readable`; any thread may set it.

    It stays set until it is cleared, so that a wake-up before the wait is not lost. A
    closed waker counts as set, so that no thread waits for it in vain.

    Raises:
        Timeout: no descriptor is free for it, so that nothing can be waited for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._is_closed = False
        # A socket pair and not a pipe: one that is forgotten gives a ResourceWarning.
        try:
            self._reader, self._writer = socket.socketpair()
        except OSError as error:
            raise Timeout(
                f"can't wait: {error.strerror}; try again, or raise the limit of open "
                "files (ulimit -n)"
            ) from error

    @property
    def is_set(self) -> bool:
        """Whether a wait would end at once."""
        return self._is_set

    def set(self) -> None:
        """Wake the waiting thread, or the next one that waits."""
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
            # One byte at most is ever in the pair, so that this can't block.
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Make ready for the next wake-up."""
        with self._lock:
            if self._is_set and not self._is_closed:
                self._reader.recv(1)
                self._is_set = False

    def close(self) -> None:
        """Wake the waiting thread and close the descriptors; may be called again."""
        self.set()
        with self._lock:
            self._is_set = self._is_closed = True
            self._reader.close()
            self._writer.close()

    def fileno(self) -> int:
        """Return the descriptor that is readable while this is set."""
        return self._reader.fileno()


def wait_ready(
    descriptor: int, event: int, deadline: Deadline, waker: Waker | None = None
) -> bool:
    """Wait until a descriptor is ready; tell whether it is.

    An error of the descriptor counts as ready: the next call on it will raise it.

    Args:
        descriptor: an open socket or pipe.
        event: `READABLE`, `WRITABLE` or `HUNG_UP`.
        deadline: how long to wait; one that has passed only looks.
        waker: ends the wait early.
    """
    poll = select.poll()
    poll.register(descriptor, event)
    if waker is not None:
        alarm = waker.fileno()
        if alarm < 0:
            return bool(poll.poll(0))
        poll.register(alarm, READABLE)
    while True:
        ready = poll.poll(timeout_ms(deadline))
        if ready:
            return any(number == descriptor for number, _ in ready)
        if deadline.expired:
            return False


def timeout_ms(deadline: Deadline) -> int:
    """Return what is left of a deadline in the unit of poll(2), rounded up."""
    # Rounded down, the last part of a millisecond would be spent spinning.
    return math.ceil(min(deadline.remaining() * 1000, _WAIT_MS_MAX))
