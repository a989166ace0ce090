"""The line of the demo that changes: in place on a terminal, now and then elsewhere."""

from __future__ import annotations

import io
from typing import Any

import pytest

from lance_spark.cli.demo_live import LiveLine, describe


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


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
    live = LiveLine(output)
    for written in (250, 1000):
        live.show(make_numbers(written))
    live.leave()
    live.leave()
    _, first, last = output.getvalue().split("\r\x1b[K")
    assert "[##--------]     250 out" in first and "\n" not in first
    assert "[##########]   1,000 out" in last and last.endswith("2.5 kB\n")
    assert output.getvalue().count("\n") == 1


def test_a_narrow_terminal_has_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output = Terminal()
    LiveLine(output).show(make_numbers())
    assert len(output.getvalue().removeprefix("\r\x1b[K")) == 39


def test_lines_without_a_terminal() -> None:
    now_s = 0.0
    output = io.StringIO()
    live = LiveLine(output, clock=lambda: now_s)
    for tenth in range(40):
        now_s = tenth / 10
        live.show(make_numbers(tenth))
    for later_s in (10.0, 20.0, 30.0):
        now_s = later_s
        # Nothing has changed.
        live.show(make_numbers(30))
    live.leave()
    lines = output.getvalue().splitlines()
    assert [line.split("] ")[1].split()[0] for line in lines] == ["0", "15", "30"]
    assert "\x1b" not in output.getvalue()


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, "20,000/s batch 7, lag 2.5 kB"),
        ({"behind_bytes": None}, "batch 7, lag ?"),
        ({"batch": None}, "20,000/s the query starts"),
        (
            {"produced": 0, "written": 0, "batch": 0, "behind_bytes": 0},
            "lag 0 bytes",
        ),
    ],
)
def test_what_is_shown(changes: dict[str, Any], end: str) -> None:
    assert describe(make_numbers(**changes)).endswith(end)


def test_it_fits_a_terminal() -> None:
    most = {"produced": 160_000, "batch": 99, "behind_bytes": 999}
    assert len(f"  {'live':8} {describe(make_numbers(160_000, **most))}") < 80
