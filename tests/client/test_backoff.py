"""The delays of LWP §17.6."""

from __future__ import annotations

import pytest

from lance_spark.client.retry import Backoff


def delays(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_delay_s() for _ in range(count)]


def test_it_doubles_up_to_the_limit() -> None:
    backoff = Backoff(0.1, 1.0, lambda: 0.0)
    assert delays(backoff, 6) == [0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_jitter_is_a_tenth_at_most() -> None:
    numbers = iter([0.0, 0.5, 0.999])
    backoff = Backoff(1.0, 2.0, lambda: next(numbers))
    assert delays(backoff, 3) == pytest.approx([2.0, 2.1, 2.1998])


def test_reset() -> None:
    backoff = Backoff(0.1, 30.0, lambda: 0.0)
    first = delays(backoff, 3)
    backoff.reset()
    assert delays(backoff, 3) == first


def test_it_never_overflows() -> None:
    backoff = Backoff(0.1, 30.0, lambda: 0.0)
    assert delays(backoff, 5000)[-1] == 30.0


def test_a_base_at_the_limit() -> None:
    assert delays(Backoff(5.0, 5.0, lambda: 0.0), 2) == [5.0, 5.0]
