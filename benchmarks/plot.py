"""The pictures of docs/performance.md, drawn from the numbers in its tables.

python -m benchmarks.plot             draw them anew, without measuring

Bars are as long as the numbers of the tables and carry their text, so that a picture
never says other than the page. It is plain SVG: a picture brings its own background and
its own colours for light and for dark, and fetches nothing.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.report import DOCS

IMAGES = DOCS.parent / "images"

_WIDTH = 760
_LABELS_WIDTH = 250
# What is left for bars, with room for the text behind the longest.
_BARS_WIDTH = 400
_LABEL_COLUMNS = 33
_BAR, _BAR_GAP, _GROUP_GAP, _MARGIN = 16, 3, 14, 20

_STYLE = """
  svg { color-scheme: light dark; --back: #ffffff; --edge: #d5dde1; --ink: #1d2a31;
    --muted: #52616a; --a: #0b6e7f; --b: #9fb3bc; --c: #d98324; --d: #6b4fa0;
    --e: #3b6fb6; --f: #c9a227; }
  @media (prefers-color-scheme: dark) { svg { --back: #10191f; --edge: #2c3a43;
    --ink: #e6edf0; --muted: #a5b4bc; --a: #4fb8c9; --b: #5d707a; --c: #f0a656;
    --d: #b49be6; --e: #6f9fe0; --f: #e3c65a; } }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
    fill: var(--ink); }
  .title { font-size: 15px; font-weight: 600; }
  .value, .legend { font-size: 12px; fill: var(--muted); }
"""
_COLOURS = "abcdef"

# A number with its unit as `report` writes them: 1.24 GB, 62 M, 0.036 x, 238 ms.
_NUMBER = re.compile(r"([\d.]+)(?: ([GMk]?)(?:i?B|x)?| (ms|s|µs))?")
_FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "s": 1.0, "ms": 1e-3, "µs": 1e-6}


@dataclass(frozen=True)
class Series:
    """Bars of one colour.

    Attributes:
        table: the title of the table that has their numbers.
        column: the head of the column.
        name: what the legend says.
    """

    table: str
    column: str
    name: str


@dataclass(frozen=True)
class Picture:
    """A picture of one benchmark.

    Attributes:
        name: the file is `bench-NAME.svg`.
        bench: the benchmark whose tables it is drawn from.
        title: what it shows.
        series: its bars; a group of bars for each row of the tables.
        stacked: whether the bars of a group stand behind one another.
        baseline: a number that a line marks, such as a ratio of equals.
    """

    name: str
    bench: str
    title: str
    series: tuple[Series, ...]
    stacked: bool = False
    baseline: float | None = None


_PHASES = (
    "latestOffset",
    "walCommit",
    "getBatch",
    "queryPlanning",
    "addBatch",
    "commitOffsets",
)

PICTURES = (
    Picture(
        "kafka",
        "kafka",
        "How many times as fast as Spark with Kafka; the line is the same speed",
        (
            Series("Records per second, or", "to Kafka", "as Kafka"),
            Series("Records per second, or", "to tuned Kafka", "as tuned Kafka"),
        ),
        baseline=1.0,
    ),
    Picture(
        "columnar",
        "columnar",
        "How many times as fast as one record at a time in plain Python",
        (
            Series("Decode, compiled scan", "to plain", "decode, compiled scan"),
            Series("Decode, pure Python", "to plain", "decode, pure Python"),
            Series("Encode, pure Python", "to plain", "encode"),
        ),
    ),
    Picture(
        "store",
        "store",
        "Bytes per second appended to a store, and to a plain file",
        (
            Series("Appending large batches", "bytes/s", "store"),
            Series("Appending large batches", "plain file, bytes/s", "plain file"),
        ),
    ),
    Picture(
        "broker",
        "broker",
        "Bytes per second between client and broker, and by a raw copy",
        (
            Series("One client, batches of 1 MiB", "bytes/s", "client and broker"),
            Series("One client, batches of 1 MiB", "raw copy", "raw copy"),
        ),
    ),
    Picture(
        "clients",
        "broker",
        "Records per second, on the same broker",
        (
            Series("Records per second, against", "ours", "lance_spark"),
            Series("Records per second, against", "`lnc-client`", "lnc-client"),
        ),
    ),
    Picture(
        "spark",
        "spark",
        "Bytes per second of one task, and the most that a Python source can have",
        (
            Series("Bytes of values per second", "`lance`", "lance_spark"),
            Series("Bytes of values per second", "ceiling", "ceiling"),
        ),
    ),
    Picture(
        "stream",
        "stream",
        "Where the time of a micro-batch goes, in ms",
        tuple(Series("Where that goes", phase, phase) for phase in _PHASES),
        stacked=True,
    ),
)


# Reading the page.


def read_tables(page: str, bench: str) -> dict[str, list[list[str]]]:
    """Read the tables of a benchmark: head and rows, by title.

    Raises:
        ValueError: if the page has no place for them.
    """
    _, found, rest = page.partition(f"<!-- bench:{bench} -->\n")
    if not found:
        raise ValueError(f"the page has no <!-- bench:{bench} -->")
    tables: dict[str, list[list[str]]] = {}
    title = ""
    for line in rest.partition("<!-- /bench -->")[0].splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not cells[-1].startswith("---"):
                tables.setdefault(title, []).append(cells)
        elif line:
            title = line
    return tables


def read_column(
    tables: dict[str, list[list[str]]], series: Series
) -> list[tuple[str, str]]:
    """Give label and text of each row.

    Raises:
        ValueError: if there is no such table or column.
    """
    for title, (head, *rows) in tables.items():
        if title.startswith(series.table) and series.column in head:
            column = head.index(series.column)
            return [(row[0], row[column]) for row in rows]
    raise ValueError(f"no column {series.column!r} below {series.table!r}")


def parse_quantity(text: str) -> float:
    """Read a number with its unit; seconds and pieces are 1.

    Raises:
        ValueError: if it is none.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a number with a unit")
    return float(found[1]) * _FACTORS[found[2] or found[3] or ""]


# Drawing.


def draw(picture: Picture, page: str) -> str:
    """Draw a picture from the tables of a page."""
    tables = read_tables(page, picture.bench)
    columns = [read_column(tables, series) for series in picture.series]
    labels = [_shorten(label) for label, _ in columns[0]]
    groups = [[column[row][1] for column in columns] for row in range(len(labels))]
    draw_bars = _draw_stack if picture.stacked else _draw_group
    lengths = [[parse_quantity(text) for text in group] for group in groups]
    longest = max(sum(row) if picture.stacked else max(row) for row in lengths)
    parts: list[str] = []
    y = 76.0
    for label, group in zip(labels, groups, strict=True):
        lines = textwrap.wrap(label, _LABEL_COLUMNS, break_on_hyphens=False)
        bars = 1 if picture.stacked else len(group)
        height = max(bars * (_BAR + _BAR_GAP) - _BAR_GAP, 16 * len(lines))
        parts += _draw_label(lines, y + height / 2)
        parts += draw_bars(group, y, _BARS_WIDTH / longest)
        y += height + _GROUP_GAP
    end = y - _GROUP_GAP
    if picture.baseline is not None:
        x = _LABELS_WIDTH + 12 + picture.baseline * _BARS_WIDTH / longest
        # Behind everything else, which it would make hard to read.
        parts.insert(0, f'<path d="M{x:.1f} 70V{end + 6:.1f}" stroke="var(--muted)"/>')
    return _wrap(picture, [*_draw_head(picture), *parts], end + _MARGIN)


def _shorten(label: str) -> str:
    # What the other side does is in the table.
    return label.partition("; plain file")[0].replace("`", "")


def _draw_head(picture: Picture) -> Iterator[str]:
    yield _text(_MARGIN, 31, picture.title, "title")
    x = float(_MARGIN)
    for series, colour in zip(picture.series, _COLOURS, strict=False):
        yield _bar(x, 44, 12, 12, colour)
        yield _text(x + 17, 54, series.name, "legend")
        x += 17 + 6.6 * len(series.name) + 18


def _draw_label(lines: Sequence[str], middle: float) -> Iterator[str]:
    top = middle - 8 * len(lines) + 12
    for number, line in enumerate(lines):
        yield _text(_LABELS_WIDTH, top + 16 * number, line, "", end=True)


def _draw_group(group: Sequence[str], y: float, scale: float) -> Iterator[str]:
    left = _LABELS_WIDTH + 12
    for text, colour in zip(group, _COLOURS, strict=False):
        width = max(1.0, parse_quantity(text) * scale)
        yield _bar(left, y, width, _BAR, colour)
        yield _text(left + width + 6, y + 12, text, "value")
        y += _BAR + _BAR_GAP


def _draw_stack(group: Sequence[str], y: float, scale: float) -> Iterator[str]:
    x = float(_LABELS_WIDTH + 12)
    for text, colour in zip(group, _COLOURS, strict=False):
        width = parse_quantity(text) * scale
        if width:
            # A gap tells neighbours apart for those who see no colours.
            yield _bar(x, y, max(1.0, width - 1), _BAR, colour)
        x += width
    total = sum(map(parse_quantity, group))
    yield _text(x + 6, y + 12, f"{total:.0f}", "value")


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {shape} fill="var(--{colour})"/>'


def _text(x: float, y: float, text: str, kind: str, *, end: bool = False) -> str:
    anchor = ' text-anchor="end"' if end else ""
    name = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{anchor}{name}>{escape(text)}</text>'


def _wrap(picture: Picture, parts: Sequence[str], height: float) -> str:
    size = f'width="{_WIDTH}" height="{height:.0f}" viewBox="0 0 {_WIDTH} {height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(picture.title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1:.0f}" '
            'rx="6" fill="var(--back)" stroke="var(--edge)"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def draw_pictures(page: Path = DOCS, directory: Path = IMAGES) -> list[Path]:
    """Draw all pictures from the tables of a page, and return their files."""
    text = page.read_text(encoding="utf-8")
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for picture in PICTURES:
        path = directory / f"bench-{picture.name}.svg"
        path.write_text(draw(picture, text), encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    for path in draw_pictures():
        print(path.name)
