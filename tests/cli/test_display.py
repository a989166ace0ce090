"""Numbers, times, bytes and tables as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from lance_spark.cli.display import (
    ByteCount,
    count,
    format_json,
    format_time,
    print_table,
    show_name,
    show_progress,
)


def test_count() -> None:
    assert count(1, "topic") == "1 topic"
    assert count(0, "topic") == "0 topics"
    assert count(12345, "entry") == "12,345 entries"
    assert count(2, "batch") == "2 batches"


def test_show_name() -> None:
    assert show_name("events") == "events"
    assert show_name("é x") == "é x"
    assert show_name("") == "(default)"
    assert show_name("a\x1b[2J") == "'a\\x1b[2J'"


def test_format_time() -> None:
    assert format_time(0) == "1970-01-01T00:00:00.000000000Z"
    assert format_time(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456789Z"
    assert format_time(2**64 - 1) == "2554-07-21T23:34:33.709551615Z"


def test_format_json_disarms_controls() -> None:
    assert format_json({"a": "é"}) == '{"a": "é"}'
    assert format_json({"a": "\u202ex"}) == '{"a": "\\u202ex"}'


def test_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"n": 1, "name": "a", "size": ByteCount(5), "rest": "x"},
        {"n": 1000, "name": "bb", "size": None, "rest": "y" * 50},
    ]
    print_table(rows)
    assert capsys.readouterr().out.splitlines() == [
        "   n  name     size  rest",
        "   1  a     5 bytes  x",
        "1000  bb          -  " + "y" * 50,
    ]
    print_table([])
    assert capsys.readouterr().out == ""


def test_table_shows_what_came_before_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rows() -> Iterator[dict[str, int]]:
        for number in range(450):
            yield {"number": number}
        raise ValueError

    with pytest.raises(ValueError):
        print_table(rows())
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["number", *map(str, range(450))]


def _strip(text: str) -> str:
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", text)


@pytest.mark.usefixtures("terminal")
def test_table_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"n": 1, "name": "[b]a", "rest": "x"},
        {"n": 1000, "name": "日本", "rest": "y" * 80},
    ]
    print_table(rows)
    out = capsys.readouterr().out
    assert "\x1b[1m" in out
    lines = [line.rstrip() for line in _strip(out).splitlines()]
    # Wide characters are as wide as they are shown, and nothing is cut off.
    assert lines[:3] == ["   n  name  rest", "   1  [b]a  x", f"1000  日本  {'y' * 68}"]
    assert lines[3:] == [" " * 12 + "y" * 12]


@pytest.mark.usefixtures("terminal")
def test_table_on_a_terminal_comes_in_pieces(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed: list[str] = []

    def rows() -> Iterator[dict[str, str]]:
        for number in range(450):
            yield {"n": str(number)}
            printed.append(capsys.readouterr().out)
        raise ValueError

    with pytest.raises(ValueError):
        print_table(rows())
    pieces = [*filter(None, printed), capsys.readouterr().out]
    assert len(pieces) == 3 and pieces[0].count("\x1b[1m") == 1
    lines = [line.rstrip() for line in _strip("".join(pieces)).splitlines()]
    assert lines == ["n", *map(str, range(450))]


def test_no_progress_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("copying") as update:
        update(1, 1, 0.5)
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_progress_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("copying", hidden=True) as update:
        update(1, 1, None)
    assert capsys.readouterr().err == ""
    with show_progress("copying") as update:
        update(2000, 4_000_000, None)
        update(2000, 8_800_000, 0.5)
    text = capsys.readouterr().err
    assert "copying" in text and "2,000 records, 8.8 MB, " in _strip(text)
    # The line is gone at the end.
    assert text.endswith("\x1b[2K")


@pytest.mark.usefixtures("terminal")
def test_progress_ends_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), show_progress("copying"):
        raise ZeroDivisionError
    assert "\x1b[?25h" in capsys.readouterr().err  # The cursor is shown again.
