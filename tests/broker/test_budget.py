"""The budget: what it bounds, who waits, and that nobody waits for ever."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.broker.budget import Budget, TokenBucket
from lance_spark.errors import OptionError
from lance_spark.net.deadline import Deadline
from tests.broker.kit import PATIENCE_S, eventually, patience, running

NOW = Deadline.after(0)


def test_taking_and_giving_back() -> None:
    budget = Budget(10)
    assert budget.try_take(4) and budget.try_take(6)
    assert budget.taken == 10
    assert not budget.try_take(1)
    budget.give_back(4)
    assert budget.try_take(4)


def test_more_than_there_is_for_whoever_comes_alone() -> None:
    budget = Budget(10)
    assert budget.try_take(25)
    assert not budget.try_take(1)
    budget.give_back(25)
    assert budget.try_take(1)
    assert not budget.try_take(25)


def test_giving_back_too_much_is_a_bug() -> None:
    budget = Budget(10)
    assert budget.try_take(1)
    with pytest.raises(AssertionError, match="more was given back"):
        budget.give_back(2)


def test_waiting_until_somebody_gives_back() -> None:
    budget = Budget(10)
    assert budget.try_take(8)
    assert not budget.is_short
    with running(lambda: budget.take(5, patience())) as result:
        assert eventually(lambda: budget.is_short)
        budget.give_back(2)  # Not enough yet.
        assert budget.is_short
        budget.give_back(1)
        assert result() is True
    assert budget.taken == 10
    assert not budget.is_short


class CountingBudget(Budget):
    """Counts how often a session looks whether it is served."""

    looks = 0

    def _is_served(self, *arguments: Any) -> bool:
        self.looks += 1
        return super()._is_served(*arguments)


def test_a_crowd_that_waits_is_not_woken_for_one_of_them() -> None:
    """A thousand sessions that all look cost those that work the interpreter."""
    crowd = 30
    budget = CountingBudget(1)
    assert budget.try_take(1)
    with ExitStack() as stack:
        take = partial(budget.take, 1, patience())
        results = [stack.enter_context(running(take)) for _ in range(crowd)]
        assert eventually(lambda: budget.waiting == crowd)
        assert budget.looks == crowd
        for left in range(crowd, 0, -1):
            budget.give_back(1)
            assert eventually(lambda left=left: budget.waiting < left)
        assert all(result() for result in results)
    # Each looks when it comes, when it is the first, and when it is served.
    assert budget.looks <= 3 * crowd


def test_waiting_has_an_end() -> None:
    budget = Budget(10)
    assert budget.take(8, NOW)
    assert not budget.take(5, NOW)
    assert not budget.take(5, Deadline.after(0.01))
    assert not budget.is_short
    assert budget.taken == 8


def test_one_holder_at_a_time_may_go_over_the_limit() -> None:
    budget = Budget(10)
    one, two = object(), object()
    assert budget.take(5, NOW, holder=None) and budget.take(5, NOW, holder=None)
    # Both hold half and want more: without this they would wait for each other.
    assert budget.take(20, NOW, holder=one)
    assert budget.take(7, NOW, holder=one)
    assert not budget.take(1, NOW, holder=two)
    assert not budget.take(1, NOW)
    budget.give_back(3)  # A part of it: one is still over the limit.
    assert not budget.take(1, NOW, holder=two)
    with running(lambda: budget.take(6, patience(), holder=two)) as result:
        assert eventually(lambda: budget.is_short)
        budget.give_back(29, holder=one)
        assert result() is True
    assert budget.taken == 11
    budget.give_back(11, holder=two)
    assert budget.taken == 0


def test_giving_back_does_not_end_what_another_overdrew() -> None:
    budget = Budget(10)
    one, two = object(), object()
    assert budget.take(10, NOW)
    assert budget.take(5, NOW, holder=one)
    budget.give_back(5, holder=two)
    assert not budget.take(5, NOW, holder=two)


def test_a_closed_budget_lets_nobody_wait() -> None:
    budget = Budget(10)
    assert budget.try_take(10)
    with running(lambda: budget.take(5, patience())) as result:
        assert eventually(lambda: budget.is_short)
        budget.close()
        assert result() is False
    assert not budget.take(1, patience())


def test_those_who_wait_are_served_in_the_order_they_came() -> None:
    budget = Budget(10)
    assert budget.try_take(8)
    with running(lambda: budget.take(10, patience())) as large:
        assert eventually(lambda: budget.is_short)
        # There are 2 left, but not for those who come later.
        assert not budget.try_take(1)
        assert not budget.take(1, NOW)
        with running(lambda: budget.take(1, patience())) as small:
            assert eventually(lambda: budget.waiting == 2)
            budget.give_back(8)
            assert large() is True
            assert (budget.taken, budget.waiting) == (10, 1)
            budget.give_back(10)
            assert small() is True
    assert budget.taken == 1


def test_one_who_gives_up_waiting_lets_the_next_one_in() -> None:
    budget = Budget(10)
    now = [0.0]
    assert budget.try_take(8)
    deadline = Deadline.after(PATIENCE_S, clock=lambda: now[0])
    with running(lambda: budget.take(5, deadline)) as large:
        assert eventually(lambda: budget.waiting == 1)
        with running(lambda: budget.take(2, patience())) as small:
            assert eventually(lambda: budget.waiting == 2)
            now[0] += PATIENCE_S
            budget.give_back(0)
            assert large() is False
            assert small() is True
    assert budget.taken == 10


def test_one_who_is_served_lets_the_next_one_in() -> None:
    budget = Budget(10)
    assert budget.try_take(10)
    with running(lambda: budget.take(5, patience())) as first:
        assert eventually(lambda: budget.waiting == 1)
        with running(lambda: budget.take(5, patience())) as second:
            assert eventually(lambda: budget.waiting == 2)
            budget.give_back(10)
            assert first() is True and second() is True
    assert budget.taken == 10


def test_a_holder_passes_by_those_who_wait() -> None:
    budget = Budget(10)
    one, two = object(), object()
    assert budget.try_take(4) and budget.try_take(4)
    with running(lambda: budget.take(5, patience())) as newcomer:
        assert eventually(lambda: budget.is_short)
        # Who waits for what a holder has must not keep it from finishing.
        assert budget.take(1, NOW, holder=one)
        assert budget.take(1, NOW, holder=two)
        assert budget.take(20, NOW, holder=one)  # Over the limit, as before.
        budget.give_back(25, holder=one)
        assert newcomer() is True
    assert budget.taken == 10


def test_newcomers_wait_behind_a_holder() -> None:
    budget = Budget(10)
    one, two = object(), object()
    assert budget.take(9, NOW) and budget.take(5, NOW, holder=one)
    with running(lambda: budget.take(3, patience(), holder=two)) as holder:
        assert eventually(lambda: budget.is_short)
        budget.give_back(6)  # 2 are left, and it needs 3.
        assert not budget.try_take(1)
        assert not budget.take(1, NOW)
        budget.give_back(1)
        assert holder() is True
    assert budget.taken == 10


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
