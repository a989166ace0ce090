"""How commands write numbers, times, bytes, tables and progress.

Tables and progress bars are drawn by rich where a person looks at a terminal. Elsewhere
tables are plain text in the same columns, and there is no progress. Rich takes fifty
times as long for a row, which a file of many records would make felt.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from lance_spark.quantity import format_bytes

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


# A cell of a table; None is a number or text that is not known.
Cell = str | int | None
Row = Mapping[str, Cell]
UNKNOWN = "-"


class ByteCount(int):
    """A size that a table shows in the unit that suits it."""

    def __str__(self) -> str:
        return format_bytes(int(self))


def show_cell(cell: Cell) -> str:
    """Write what may not be known."""
    return UNKNOWN if cell is None else str(cell)


def print_table(rows: Iterable[Row]) -> None:
    """Print rows in aligned columns, numbers on the right.

    Args:
        rows: cells by their titles, which are the same in each row. An error that comes
            out of it passes after the rows before it are printed.
    """
    widths: list[int] = []
    waiting: list[Row] = []
    try:
        for row in rows:
            waiting.append(row)
            if len(waiting) >= _ALIGNED_ROWS:
                _print_rows(waiting, widths)
                waiting = []
    finally:
        if waiting:
            _print_rows(waiting, widths)


def print_list(
    noun: str, documents: Sequence[Any], rows: Iterable[Row], *, as_json: bool
) -> None:
    """Print things, an object of JSON or a row of a table for each.

    Args:
        noun: what they are.
        documents: the objects.
        rows: the rows.
        as_json: print the objects.
    """
    if as_json:
        for document in documents:
            print(format_json(document))
    elif documents:
        print_table(rows)
    else:
        print(f"no {noun}", file=sys.stderr)


def _print_rows(rows: Sequence[Row], widths: list[int]) -> None:
    """Print a piece of a table: the first one, if there are no widths yet."""
    columns = ([row[title] for row in rows] for title in rows[0])
    is_right = [any(isinstance(cell, int) for cell in cells) for cells in columns]
    lines = [[show_cell(cell) for cell in row.values()] for row in rows]
    if not widths:
        lines.insert(0, list(rows[0]))
    if sys.stdout.isatty():
        _draw_lines(lines, is_right, has_titles=not widths)
    found = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    widths[:] = map(max, widths or found, found)
    if not sys.stdout.isatty():
        signs = [">" if right else "<" for right in is_right]
        for line in lines:
            # The last column is not padded: nothing stands behind it.
            cells = zip(line[:-1], signs, widths, strict=False)
            padded = [f"{cell:{sign}{width}}" for cell, sign, width in cells]
            print("  ".join([*padded, line[-1]]).rstrip())


def _draw_lines(
    lines: Sequence[Sequence[str]], is_right: Sequence[bool], *, has_titles: bool
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for right in is_right:
        # A cell that does not fit goes on below: nothing is left out.
        table.add_column(justify="right" if right else "left", overflow="fold")
    for number, line in enumerate(lines):
        style = "bold" if has_titles and number == 0 else ""
        table.add_row(*map(Text, line), style=style)  # Text has no markup.
    Console().print(table)


Update = Callable[[int, int, float | None], None]


@contextmanager
def show_progress(label: str, *, hidden: bool = False) -> Iterator[Update]:
    """Show on standard error how far something is, if that is a terminal.

    The line is gone at the end of the block.

    Args:
        label: what is being done.
        hidden: show nothing on a terminal either.

    Yields:
        A function that takes how many records were done, their bytes, and how much of
        everything that is, from 0 to 1 or None if that is not known.
    """
    if hidden or not sys.stderr.isatty():
        yield lambda records, size, done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn(label), BarColumn(24), TextColumn("{task.description}"))
    began_s = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def update(records: int, size: int, done: float | None) -> None:
            rate = size / max(time.monotonic() - began_s, 0.1) / 1e6
            amount = f"{count(records, 'record')}, " if records else ""
            text = f"{amount}{format_bytes(size)}, {rate:,.1f} MB/s"
            total = None if done is None else 1.0
            progress.update(task, description=text, completed=done, total=total)

        yield update
