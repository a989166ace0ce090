"""Tables as HTML, for what notebooks show of a broker, a topic or a query.

Pure text: no notebook is needed, and whatever comes from outside is escaped. There are
no colours and no styles beyond alignment, so that a table looks like every other one of
the notebook, light or dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from lance_spark.model import Retention
from lance_spark.quantity import format_bytes, format_limits

# What a cell may be; None is a number that is not known.
Cell = str | int | float | None

# A table for people; a DataFrame is for a thousand rows.
ROWS_MAX = 20

# How such a number is shown.
UNKNOWN = "\N{EN DASH}"
_BARS = "▁▂▃▄▅▆▇█"


def render_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    caption: str = "",
    rows_max: int = ROWS_MAX,
) -> str:
    """Write a table; numbers are aligned to the right.

    Args:
        columns: their titles.
        rows: a cell for each column.
        caption: what stands above it.
        rows_max: how many rows are shown; of the others only their number is.
    """
    shown = rows[:rows_max]
    cells = [[row[n] for row in shown] for n in range(len(columns))]
    right = [bool(c) and not any(isinstance(x, str) for x in c) for c in cells]
    lines = ["<table>", "<thead>", _row("th", columns, right), "</thead>", "<tbody>"]
    lines += [_row("td", row, right) for row in shown]
    lines += ["</tbody>", "</table>"]
    if len(rows) > len(shown):
        lines.append(f"<div>… and {len(rows) - len(shown):,} more</div>")
    return "\n".join([*_caption(caption), *lines])


def render_facts(facts: Mapping[str, Cell], *, caption: str = "") -> str:
    """Write a table of names and what they are, one to a row."""
    lines = [*_caption(caption), "<table>", "<tbody>"]
    for name, cell in facts.items():
        lines.append(f"<tr>{_cell('th', name, False)}{_cell('td', cell, False)}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>"])


def show_cell(cell: Cell) -> str:
    """Write a number for people, and a text as it is; neither is escaped."""
    if cell is None:
        return UNKNOWN
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        # Three digits say enough of what was measured.
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return str(cell)


def show_bytes(size: int | None) -> str:
    """Write a size that may not be known."""
    return UNKNOWN if size is None else format_bytes(size)


def show_span(start: object, end: object) -> str:
    """Write how much of a log is there, and from where to where.

    Servers say what they like, so that this takes anything.
    """
    if not isinstance(start, int) or not isinstance(end, int):
        return UNKNOWN
    return f"{show_bytes(end - start)}, from {start:,} to {end:,}"


def show_retention(retention: Retention | None) -> str:
    """Write what a topic may drop: `7d, 1g`, or that it keeps everything."""
    return UNKNOWN if retention is None else format_limits(retention) or "all is kept"


def show_bars(values: Sequence[float]) -> str:
    """Write numbers as a line of bars, the largest as a full one."""
    most = max(values, default=0)
    if most <= 0:
        return _BARS[0] * len(values)
    top = len(_BARS) - 1
    return "".join(_BARS[round(max(0, value) / most * top)] for value in values)


def _caption(text: str) -> list[str]:
    return [f"<div><strong>{escape(text)}</strong></div>"] if text else []


def _row(tag: str, cells: Sequence[Cell], right: Sequence[bool]) -> str:
    pairs = zip(cells, right, strict=True)
    return f"<tr>{''.join(_cell(tag, cell, is_right) for cell, is_right in pairs)}</tr>"


def _cell(tag: str, cell: Cell, right: bool) -> str:
    side = "right" if right else "left"
    return f'<{tag} style="text-align: {side}">{escape(show_cell(cell))}</{tag}>'
