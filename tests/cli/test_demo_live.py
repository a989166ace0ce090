"""The demo's live table: in place on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import io
from typing import Any

import pytest

from lance_spark.cli.demo_live import LiveTable, describe


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


SHOWN = ["0", "15", "30", "40", "41"]


def make_numbers(written: int = 500, **changes: Any) -> dict[str, Any]:
    numbers = {
        "produced": 1000,
        "written": written,
        "rate": 20_000,
        "batch": 7,
        "behind_bytes": 2500,
    }
    return {**numbers, **changes}


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    output = Terminal()
    live = LiveTable(output)
    for written in (250, 1000):
        live.show(make_numbers(written))
    live.leave()
    live.leave()
    head, first, last = output.getvalue().split("\r\x1b[K")
    assert head.startswith("  live     produced") and head.endswith("batch\n")
    assert "[##--------]      250 " in first and "\n" not in first
    assert "[##########]    1,000 " in last and last.endswith("2.5 kB      7\n")
    assert output.getvalue().count("\n") == 2


def test_a_narrow_terminal_has_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output = Terminal()
    LiveTable(output).show(make_numbers())
    _, line = output.getvalue().split("\r\x1b[K")
    assert len(line) == 39


def test_lines_without_a_terminal() -> None:
    now_s = 0.0
    output = io.StringIO()
    live = LiveTable(output, clock=lambda: now_s)
    for tenth in range(40):
        now_s = tenth / 10
        live.show(make_numbers(tenth))
    for later_s in (10.0, 20.0, 30.0):
        now_s = later_s
        # Nothing has changed.
        live.show(make_numbers(30))
    live.show(make_numbers(40))
    # What was too early to be shown is, at the end.
    live.show(make_numbers(41))
    live.leave()
    head, *lines = output.getvalue().splitlines()
    assert "written" in head
    assert [line.split("] ")[1].split()[0] for line in lines] == SHOWN
    assert "\x1b" not in output.getvalue()


def test_each_table_has_its_head() -> None:
    output = io.StringIO()
    live = LiveTable(output)
    for _ in range(2):
        live.show(make_numbers())
        live.leave()
    assert [line.split()[0] for line in output.getvalue().splitlines()] == [
        *("live", "1,000"),
        *("live", "1,000"),
    ]


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, ["20,000", "2.5", "kB", "7"]),
        ({"behind_bytes": None}, ["20,000", "-", "7"]),
        ({"batch": None}, ["20,000", "-", "-"]),
        ({"produced": 0, "written": 0, "batch": 0, "behind_bytes": 0}, ["bytes", "0"]),
    ],
)
def test_what_is_shown(changes: dict[str, Any], end: list[str]) -> None:
    assert describe(make_numbers(**changes)).split()[-len(end) :] == end


def test_it_fits_a_terminal_and_its_head() -> None:
    output = io.StringIO()
    most = {"produced": 160_000, "batch": 99, "behind_bytes": 999_900}
    LiveTable(output).show(make_numbers(160_000, **most))
    head, line = output.getvalue().splitlines()
    assert len(head) == len(line) < 80
    # Numbers end where their names do.
    for name in ("produced", "written", "records/s", "lag", "batch"):
        assert line[head.index(name) + len(name) :][:1] in ("", " "), name
