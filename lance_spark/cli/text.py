"""How commands write numbers, times, bytes and tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

from lance_spark.model import Buffer

_NS_PER_S = 1_000_000_000

# Rows are held back until so many are there, which then share their widths. A table of
# any length takes no more memory than that.
_ALIGNED_ROWS = 200


def count(number: int, noun: str) -> str:
    """Write a number of things: `1 topic`, `2,000 topics`, `3 entries`, `4 batches`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def format_bytes(size: int) -> str:
    """Write a size in the decimal unit that suits it."""
    if size < 1000:
        return count(size, "byte")
    exponent = min((len(str(size)) - 1) // 3, 4)
    return f"{size / 1000**exponent:.1f} {' kMGT'[exponent]}B"


def format_rate(records: int, size: int, seconds: float) -> str:
    """Write how long something took and how much that is per second."""
    seconds = max(seconds, 1e-9)
    return (
        f"{seconds:.2f} s: {records / seconds:,.0f} records/s, "
        f"{size / seconds / 1e6:,.0f} MB/s"
    )


def format_time(ns: int) -> str:
    """Write nanoseconds since 1970 as a time in UTC, to the last digit."""
    seconds, rest = divmod(ns, _NS_PER_S)
    time = datetime.fromtimestamp(seconds, timezone.utc)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def format_json(value: Any) -> str:
    """Write JSON on one line, with nothing in it that a terminal would obey."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def show_name(name: str) -> str:
    """Write a topic's name as it is, unless a terminal would obey something in it."""
    if not name:
        return "(default)"  # Topic 0 has no name.
    return name if name.isprintable() else ascii(name)


class Preview:
    """Writes values, cut to a length that fits a line.

    Args:
        full: write all of a value.
        as_hex: write all bytes as hexadecimal digits, text too.
    """

    # About what is left of a line of 120 characters beside the other columns.
    CHARACTERS = 48

    def __init__(self, *, full: bool = False, as_hex: bool = False) -> None:
        self._full = full
        self._as_hex = as_hex

    def show_bytes(self, value: Buffer) -> str:
        """Write bytes: as quoted text if they are text, else as hexadecimal digits."""
        view = memoryview(value).cast("B")
        # No character of UTF-8 is longer than four bytes.
        head = bytes(view if self._full else view[: 4 * self.CHARACTERS])
        whole = len(head) == len(view)
        text = None if self._as_hex else _decode_text(head, whole=whole)
        return self._cut(head.hex() if text is None else repr(text), whole=whole)

    def show_text(self, text: str) -> str:
        """Write text as it is."""
        return self._cut(text, whole=True)

    def _cut(self, text: str, *, whole: bool) -> str:
        if whole and (self._full or len(text) <= self.CHARACTERS):
            return text
        return text[: self.CHARACTERS - 1] + "…"


def _decode_text(head: bytes, *, whole: bool) -> str | None:
    """Decode the head of a value; None if it is no text.

    Where the value goes on, the head may end inside a character.
    """
    for missing in range(1 if whole else 4):
        try:
            text = head[: len(head) - missing].decode()
        except UnicodeDecodeError:
            continue
        return text if text.translate(_SPACES).isprintable() else None
    return None


_SPACES = dict.fromkeys(map(ord, "\t\n\r"))


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> int:
    """Print rows in aligned columns and return how many there were.

    Args:
        titles: what is above the columns.
        rows: an error that comes out of it passes after the rows before it are printed.
        right: titles of the columns that are aligned on the right.
    """
    table = _Table(titles, right)
    try:
        for row in rows:
            table.add(row)
    finally:
        table.flush()
    return table.rows


class _Table:
    def __init__(self, titles: Sequence[str], right: Sequence[str]) -> None:
        self.rows = 0
        # The last column is not padded: nothing stands behind it.
        self._widths = [0] * (len(titles) - 1)
        self._signs = [">" if title in right else "<" for title in titles[:-1]]
        self._waiting: list[Sequence[str]] = [titles]

    def add(self, row: Sequence[str]) -> None:
        self.rows += 1
        self._waiting.append(row)
        if len(self._waiting) >= _ALIGNED_ROWS:
            self.flush()

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            self._widths = [
                max(width, len(cell))
                for width, cell in zip(self._widths, row, strict=False)
            ]
        for row in waiting:
            cells = zip(row, self._signs, self._widths, strict=False)
            padded = [f"{cell:{sign}{width}}" for cell, sign, width in cells]
            print("  ".join([*padded, row[-1]]).rstrip())
