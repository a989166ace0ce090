"""What the demo shows of a stream: a line that changes, or lines now and then."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from lance_spark.cli.text import format_bytes

_CLEAR = "\r\x1b[K"
_BAR_CHARACTERS = 10
# How often a line is printed where none can be written over.
_LINE_S = 1.5


class LiveLine:
    """Shows the numbers of a moment in place of those before.

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
        self._is_open = False
        self._printed_s: float | None = None
        self._printed = ""

    def show(self, numbers: Mapping[str, Any]) -> None:
        """Show numbers: over the last ones, or now and then on a line of their own."""
        text = f"  {'live':8} {describe(numbers)}"
        if self._is_terminal:
            # A line that is longer than the terminal could not be written over.
            columns = shutil.get_terminal_size().columns
            self._write(_CLEAR + text[: columns - 1])
            self._is_open = True
            return
        now_s = self._clock()
        is_early = self._printed_s is not None and now_s - self._printed_s < _LINE_S
        if not is_early and text != self._printed:
            self._printed_s, self._printed = now_s, text
            self._write(f"{text}\n")

    def leave(self) -> None:
        """Leave the last numbers where they are, and go to the next line."""
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
    if numbers["batch"] is None:
        state = "the query starts"
    else:
        behind = numbers["behind_bytes"]
        behind = "?" if behind is None else format_bytes(behind)
        state = f"batch {numbers['batch']}, lag {behind}"
    # What a terminal of 80 columns has room for.
    return (
        f"{produced:>7,} in [{marks:-<{_BAR_CHARACTERS}}] {written:>7,} out "
        f"{numbers['rate']:>6,}/s {state}"
    )
