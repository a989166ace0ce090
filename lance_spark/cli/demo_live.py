"""What the demo shows of a stream: a table whose last line changes, or grows."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from lance_spark.cli.text import format_bytes

_CLEAR = "\r\x1b[K"
_BAR_CHARACTERS = 10
# What a terminal of 80 columns has room for.
_HEAD = "produced               written  records/s        lag  batch"
# How often a line is printed where none can be written over.
_LINE_S = 1.5


class LiveTable:
    """Shows the numbers of a moment in place of those before, below a head.

    Args:
        output: where to; standard output if not given.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        output: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._output = sys.stdout if output is None else output
        self._clock = clock
        self._is_terminal = self._output.isatty()
        # Whether the head is there, and whether the last line has no end yet.
        self._is_begun = False
        self._is_open = False
        self._printed_s: float | None = None
        self._printed = self._newest = ""

    def show(self, numbers: Mapping[str, Any]) -> None:
        """Show numbers: over the last ones, or now and then on a line of their own."""
        text = f"  {'':8} {describe(numbers)}"
        if not self._is_begun:
            self._is_begun = True
            self._write(f"  {'live':8} {_HEAD}\n")
        if self._is_terminal:
            # A line that is longer than the terminal could not be written over.
            columns = shutil.get_terminal_size().columns
            self._write(_CLEAR + text[: columns - 1])
            self._is_open = True
            return
        self._newest = text
        now_s = self._clock()
        is_early = self._printed_s is not None and now_s - self._printed_s < _LINE_S
        if not is_early and text != self._printed:
            self._printed_s, self._printed = now_s, text
            self._write(f"{text}\n")

    def leave(self) -> None:
        """Leave the last numbers where they are, and end the table."""
        if self._newest != self._printed:
            self._write(f"{self._newest}\n")
        self._is_begun = False
        self._printed_s, self._printed, self._newest = None, "", ""
        if self._is_open:
            self._is_open = False
            self._write("\n")

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()


def describe(numbers: Mapping[str, Any]) -> str:
    """Write how much of what is produced is written, how fast, and what is behind."""
    produced, written = numbers["produced"], numbers["written"]
    marks = "#" * (_BAR_CHARACTERS * min(written, produced) // max(produced, 1))
    batch, behind = numbers["batch"], numbers["behind_bytes"]
    lag = "-" if batch is None or behind is None else format_bytes(behind)
    return (
        f"{produced:>8,} [{marks:-<{_BAR_CHARACTERS}}] {written:>8,} "
        f"{numbers['rate']:>10,} {lag:>10} {'-' if batch is None else batch:>6}"
    )
