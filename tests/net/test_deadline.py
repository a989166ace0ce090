from __future__ import annotations

import time

import pytest

from lance_spark.net.deadline import Deadline


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_counts_down_to_zero(clock: Clock) -> None:
    deadline = Deadline.after(5, clock)
    assert deadline.remaining() == 5 and not deadline.expired
    clock.now_s += 2
    assert deadline.remaining() == 3 and not deadline.expired
    clock.now_s += 3
    assert deadline.remaining() == 0 and deadline.expired
    clock.now_s += 1
    assert deadline.remaining() == 0 and deadline.expired


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_is_expired(clock: Clock, seconds: float) -> None:
    assert Deadline.after(seconds, clock).expired


def test_endless(clock: Clock) -> None:
    deadline = Deadline.after(float("inf"), clock)
    clock.now_s += 1e9
    assert deadline.remaining() == float("inf") and not deadline.expired


@pytest.mark.parametrize(("seconds", "expected"), [(2, 2), (5, 5), (9, 5), (0, 0)])
def test_sooner_is_the_earlier(clock: Clock, seconds: float, expected: float) -> None:
    assert Deadline.after(5, clock).sooner(seconds).remaining() == expected


def test_sooner_counts_from_now(clock: Clock) -> None:
    deadline = Deadline.after(5, clock)
    clock.now_s += 4
    assert deadline.sooner(3).remaining() == 1
    assert deadline.sooner(0.5).remaining() == 0.5


def test_default_clock_does_not_go_back() -> None:
    before = time.monotonic()
    remaining = Deadline.after(1000).remaining()
    assert 1000 - (time.monotonic() - before) <= remaining <= 1000


def test_repr(clock: Clock) -> None:
    assert repr(Deadline.after(1.5, clock)) == "<Deadline in 1.500 s>"
