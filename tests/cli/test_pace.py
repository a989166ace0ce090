"""Records at a steady rate."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lance_spark.cli.pace import Pace


class Time:
    """A clock that only moves while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


def _rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"x"] * count})


def test_portions_come_when_they_are_due() -> None:
    time = Time()
    pace = Pace(100, clock=time.clock, sleep=time.sleep)
    sizes = [portion.num_rows for portion in pace.portions(_rows(25))]
    assert sizes == [10, 10, 5]
    assert time.slept == pytest.approx([0.1, 0.1])
    # The next ones wait for those before them.
    assert sum(p.num_rows for p in pace.portions(_rows(1))) == 1
    assert time.slept[2:] == pytest.approx([0.05])


def test_pause_is_not_caught_up() -> None:
    time = Time()
    pace = Pace(10, clock=time.clock, sleep=time.sleep)
    list(pace.portions(_rows(1)))
    time.now_s += 1000
    list(pace.portions(_rows(3)))
    assert time.slept == pytest.approx([0.1, 0.1])


def test_slow_rate() -> None:
    time = Time()
    pace = Pace(0.5, clock=time.clock, sleep=time.sleep)
    assert [p.num_rows for p in pace.portions(_rows(2))] == [1, 1]
    assert time.slept == pytest.approx([2.0])
