"""The line that shows how far long work is."""

from __future__ import annotations

import pytest

from lance_spark.cli.progress import Progress, draw_bar


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("copying")
    progress.update(1, 1, 0.5)
    progress.clear()
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_line_is_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress("copying", clock=clock)
    clock.now_s = 2.0
    progress.update(1000, 4_000_000)
    progress.update(1001, 4_100_000)  # Too soon to be shown.
    clock.now_s = 2.2
    progress.update(2000, 8_800_000, 0.5)
    progress.clear()
    progress.clear()
    assert capsys.readouterr().err.split("\r\x1b[K") == [
        "",
        "copying  1,000 records, 4.0 MB, 2.0 MB/s",
        "copying  [############------------]  50%  2,000 records, 8.8 MB, 4.0 MB/s",
        "",
    ]


@pytest.mark.usefixtures("terminal")
def test_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("copying", hidden=True).update(1, 1)
    assert capsys.readouterr().err == ""


def test_bar_has_ends() -> None:
    assert draw_bar(0) == f"[{'-' * 24}]   0%"
    assert draw_bar(1) == draw_bar(7) == f"[{'#' * 24}] 100%"
    assert draw_bar(-1) == draw_bar(0)
