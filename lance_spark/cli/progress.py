"""How far long work is, on a line of the terminal that is written over and over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from lance_spark.cli.text import format_bytes

_INTERVAL_S = 0.1
_BAR_CHARACTERS = 24
_CLEAR = "\r\x1b[K"


class Progress:
    """Shows progress on standard error if that is a terminal, and nothing elsewhere.

    Args:
        label: what is being done.
        hidden: show nothing on a terminal either.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        label: str,
        *,
        hidden: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._clock = clock
        self._is_shown = sys.stderr.isatty() and not hidden
        self._began_s = clock()
        self._last_s: float | None = None

    def update(self, records: int, size: int, done: float | None = None) -> None:
        """Say how far it is, which is shown now and then.

        Args:
            records: how many so far.
            size: their bytes.
            done: how much of everything that is, from 0 to 1, if that is known.
        """
        now_s = self._clock()
        if not self._is_shown:
            return
        if self._last_s is not None and now_s - self._last_s < _INTERVAL_S:
            return
        self._last_s = now_s
        bar = "" if done is None else f"{draw_bar(done)}  "
        rate = size / max(now_s - self._began_s, _INTERVAL_S) / 1e6
        amount = f"{records:,} records, {format_bytes(size)}, {rate:,.1f} MB/s"
        self._write(f"{_CLEAR}{self._label}  {bar}{amount}")

    def clear(self) -> None:
        """Leave the line empty for what is said next."""
        if self._last_s is not None:
            self._last_s = None
            self._write(_CLEAR)

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def draw_bar(done: float) -> str:
    """Draw how much is done, from 0 to 1."""
    done = min(max(done, 0.0), 1.0)
    marks = "#" * int(done * _BAR_CHARACTERS)
    return f"[{marks:-<{_BAR_CHARACTERS}}] {done:4.0%}"
