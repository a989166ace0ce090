"""Waiting for a descriptor, with a deadline and a way to be woken."""

from __future__ import annotations

import math
import select

from lance_spark.net.deadline import Deadline
from lance_spark.net.waker import Waker

READABLE = select.POLLIN
WRITABLE = select.POLLOUT
# poll(2) takes milliseconds in an int; a longer deadline is waited for in parts.
_WAIT_MS_MAX = 3_600_000


def wait_ready(
    descriptor: int, event: int, deadline: Deadline, waker: Waker | None = None
) -> bool:
    """Wait until a descriptor is ready; tell whether it is.

    Trouble with the descriptor counts as ready: the call that follows will meet it.

    Args:
        descriptor: an open socket or pipe.
        event: `READABLE` or `WRITABLE`.
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
    """Give what is left of a deadline in the unit of poll(2), rounded up."""
    # Rounded down, the last part of a millisecond would be spent spinning.
    return math.ceil(min(deadline.remaining() * 1000, _WAIT_MS_MAX))
