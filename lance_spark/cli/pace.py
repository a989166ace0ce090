"""A steady rate for records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

# Records go in portions of about this time, which is as even as anybody can see.
_PORTION_S = 0.1


class Pace:
    """Lets records pass at a rate, and does not catch up after a pause.

    Args:
        rate: records per second.
        clock: a monotonic clock.
        sleep: waits.
    """

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._portion = max(1, int(rate * _PORTION_S))
        self._due_s = clock()

    def portions(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Give the rows in portions, each when it is due."""
        for start in range(0, rows.num_rows, self._portion):
            portion = rows.slice(start, self._portion)
            now_s = self._clock()
            if self._due_s > now_s:
                self._sleep(self._due_s - now_s)
            self._due_s = max(self._due_s, now_s) + portion.num_rows / self._rate
            yield portion
