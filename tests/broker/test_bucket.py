"""How often something may happen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.broker.bucket import TokenBucket
from lance_spark.errors import OptionError

# A busy machine is no failure.
relaxed = settings(deadline=None)


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def drain(bucket: TokenBucket) -> int:
    """Take all tokens there are."""
    taken = 0
    while bucket.take() == 0:
        taken += 1
    return taken


def test_a_burst_and_then_the_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(5.0, 30, clock)
    assert drain(bucket) == 30
    clock.now += 1.0
    assert drain(bucket) == 5
    assert bucket.take() == pytest.approx(0.2)


def test_nothing_is_taken_in_vain() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 1, clock)
    assert bucket.take() == 0.0
    assert [bucket.take() for _ in range(3)] == pytest.approx([0.5] * 3)
    clock.now += 0.25
    assert bucket.take() == pytest.approx(0.25)
    clock.now += 0.25
    assert bucket.take() == 0.0


def test_it_holds_no_more_than_its_burst() -> None:
    clock = Clock()
    bucket = TokenBucket(5.0, 3, clock)
    assert drain(bucket) == 3
    clock.now += 1e6
    assert drain(bucket) == 3


def test_a_clock_that_goes_back_gives_nothing() -> None:
    clock = Clock()
    bucket = TokenBucket(1.0, 2, clock)
    assert drain(bucket) == 2
    clock.now -= 10
    assert bucket.take() == pytest.approx(11)


def test_the_real_clock_is_the_default() -> None:
    assert TokenBucket(1e-6, 1).take() == 0.0


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_refused(rate: float) -> None:
    with pytest.raises(OptionError, match=r"token rate .* above 0"):
        TokenBucket(rate, 1)


@pytest.mark.parametrize("burst", [0, -3])
def test_a_burst_that_is_refused(burst: int) -> None:
    with pytest.raises(OptionError, match=f"token burst {burst}"):
        TokenBucket(1.0, burst)


steps = st.lists(st.floats(0.0, 10.0), max_size=50)
# Seconds since the machine started: up to four months.
starts = st.floats(0.0, 1e7)


@relaxed
@given(st.floats(0.01, 1000.0), st.integers(1, 50), steps, starts)
def test_never_more_than_burst_and_rate(
    rate: float, burst: int, waits: list[float], start: float
) -> None:
    clock = Clock(start)
    bucket = TokenBucket(rate, burst, clock)
    taken = 0
    for wait in waits:
        clock.now += wait
        taken += bucket.take() == 0
    assert taken <= burst + (clock.now - start) * rate + 0.01


@relaxed
@given(st.floats(0.01, 1000.0), st.integers(1, 50), steps, starts)
def test_the_wait_it_asks_for_is_long_enough(
    rate: float, burst: int, waits: list[float], start: float
) -> None:
    clock = Clock(start)
    bucket = TokenBucket(rate, burst, clock)
    for wait in waits:
        drain(bucket)
        clock.now += wait
        asked = bucket.take()
        if asked:
            clock.now += asked
            assert bucket.take() == 0.0
