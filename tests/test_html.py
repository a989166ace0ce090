"""Tables for notebooks: whole HTML, nothing of others that is not escaped."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from lance_spark.html import (
    ROWS_MAX,
    UNKNOWN,
    Cell,
    render_facts,
    render_table,
    show_bars,
    show_bytes,
    show_cell,
    show_retention,
    show_span,
)
from lance_spark.model import Retention


class Reader(HTMLParser):
    """Reads the cells of tables, and checks that what is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.right: list[list[bool]] = []
        self.outside = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
            self.right.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self.right[-1].append("right" in (dict(attrs)["style"] or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & {*self._open}:
            self.rows[-1][-1] += data
        else:
            self.outside += data


def test_a_table_has_titles_and_rows() -> None:
    text = render_table(("topic", "records"), [("a", 1000), ("b", None)], caption="Two")
    read = Reader(text)
    assert read.rows == [["topic", "records"], ["a", "1,000"], ["b", UNKNOWN]]
    assert read.outside.split() == ["Two"]
    # Numbers are to the right, and so is their title.
    assert read.right == [[False, True]] * 3


def test_a_table_without_rows_is_one() -> None:
    assert Reader(render_table(("topic",), [])).rows == [["topic"]]


def test_a_long_table_is_cut_and_says_so() -> None:
    read = Reader(render_table(("n",), [(n,) for n in range(1234)]))
    assert len(read.rows) == 1 + ROWS_MAX
    assert read.outside.strip() == "… and 1,214 more"


def test_facts_are_rows() -> None:
    read = Reader(render_facts({"id": 3, "name": "x"}, caption="topic x"))
    assert read.rows == [["id", "3"], ["name", "x"]]
    assert read.outside.strip() == "topic x"


@pytest.mark.parametrize("bad", ["<script>alert(1)</script>", "a & b", '" onload="x'])
def test_what_comes_from_outside_is_escaped(bad: str) -> None:
    for text in (
        render_table((bad,), [(bad,)], caption=bad),
        render_facts({bad: bad}, caption=bad),
    ):
        assert "<script" not in text and ' onload="' not in text
        assert any(bad in row for row in Reader(text).rows)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (None, UNKNOWN),
        ("text", "text"),
        (1234567, "1,234,567"),
        (1234.6, "1,235"),
        (0.12345, "0.123"),
        (0.0, "0"),
    ],
)
def test_cells(cell: Cell, shown: str) -> None:
    assert show_cell(cell) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (None, UNKNOWN),
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (123_456_789, "123.5 MB"),
        (5 * 10**15, "5000.0 TB"),
    ],
)
def test_sizes(size: int | None, shown: str) -> None:
    assert show_bytes(size) == shown


def test_spans_take_what_servers_say() -> None:
    assert show_span(1000, 4000) == "3.0 kB, from 1,000 to 4,000"
    for start, end in ((None, 3), (3, None), ("0", "3"), ([], {})):
        assert show_span(start, end) == UNKNOWN


@pytest.mark.parametrize(
    ("retention", "shown"),
    [
        (None, UNKNOWN),
        (Retention(), "all is kept"),
        (Retention(7 * 86_400, 0), "7d"),
        (Retention(0, 2**30), "1g"),
        (Retention(60, 1024), "1m, 1k"),
    ],
)
def test_retention(retention: Retention | None, shown: str) -> None:
    assert show_retention(retention) == shown


def test_bars() -> None:
    assert show_bars([0, 50, 100]) == "▁▅█"
    assert show_bars([0, 0]) == "▁▁"
    assert show_bars([]) == ""
    assert show_bars([-1, 7]) == "▁█"
