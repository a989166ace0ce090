"""How a producer slows down and recovers."""

from __future__ import annotations

from lance_spark.client.delivery import SHARE_MIN, Rate


def test_starts_at_full_speed() -> None:
    rate = Rate(8)
    assert (rate.window, rate.pause_s, rate.is_full) == (8, 0.0, True)


def test_halves_and_recovers() -> None:
    rate = Rate(8)
    windows = []
    for _ in range(3):
        rate.slow_down()
        windows.append(rate.window)
    assert windows == [4, 2, 1]
    assert not rate.is_full
    # A window of acks doubles the window: 1 + 2 + 4 of them, and not one less.
    recovering = []
    for _ in range(7):
        rate.acked(0.01)
        recovering.append(rate.window)
    assert recovering == [2, 2, 4, 4, 4, 4, 8]
    assert rate.is_full


def test_a_window_that_is_not_a_power_of_two() -> None:
    rate = Rate(5)
    rate.slow_down()
    assert rate.window == 2
    for _ in range(2):
        rate.acked(0.01)
    assert (rate.window, rate.is_full) == (5, True)


def test_another_slow_down_starts_the_count_again() -> None:
    rate = Rate(4)
    rate.slow_down()
    rate.acked(0.01)
    rate.slow_down()
    assert rate.window == 1
    rate.acked(0.01)
    assert rate.window == 2


def test_pauses_below_one_batch() -> None:
    rate = Rate(1)
    rate.acked(0.08)
    rate.slow_down()
    # Half a batch per round trip: a batch, and a round trip of nothing.
    assert (rate.window, rate.pause_s) == (1, 0.08)
    rate.slow_down()
    assert rate.pause_s == 0.24
    rate.acked(0.08)
    assert rate.pause_s == 0.08
    rate.acked(0.08)
    assert rate.pause_s == 0.0


def test_never_stops() -> None:
    rate = Rate(8)
    rate.acked(0.01)
    for _ in range(1000):
        rate.slow_down()
    assert rate.window == 1
    assert rate.pause_s == 0.01 * (1 / SHARE_MIN - 1)


def test_round_trip_is_smoothed() -> None:
    rate = Rate(1)
    rate.acked(0.08)
    rate.acked(0.16)
    rate.slow_down()
    assert rate.pause_s == 0.09
