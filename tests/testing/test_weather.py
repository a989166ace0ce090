"""Delays and cuts that all connections meet."""

from __future__ import annotations

import threading
import time

from lance_spark.testing.weather import Side, Weather

# Longer than any test lasts.
FOREVER_S = 3600.0
PATIENCE_S = 30.0


def test_clear() -> None:
    weather = Weather()
    weather.hold_up()
    assert weather.take(Side.CLIENT, b"abc") == (b"abc", False)


def test_delays_add_up() -> None:
    weather = Weather()
    weather.add_delay(0.02)
    weather.add_delay(0.01)
    began_s = time.monotonic()
    weather.hold_up(0.01)
    assert time.monotonic() - began_s >= 0.04


def test_who_waits_goes_on_when_the_delay_ends() -> None:
    weather = Weather()
    weather.add_delay(FOREVER_S)
    waiting = start(weather)
    weather.drop_delay(FOREVER_S)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    # Taken back, it can't be taken back again.
    weather.drop_delay(FOREVER_S)


def test_other_delays_stay() -> None:
    weather = Weather()
    weather.add_delay(FOREVER_S)
    weather.add_delay(1.0)
    waiting = start(weather)
    weather.drop_delay(1.0)
    waiting.join(0.05)
    assert waiting.is_alive()
    weather.end()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def start(weather: Weather) -> threading.Thread:
    thread = threading.Thread(target=weather.hold_up)
    thread.start()
    return thread


def test_cut_counts_one_side_over_all_connections() -> None:
    weather = Weather()
    weather.add_cut(Side.CLIENT, 5, 1)
    assert weather.take(Side.BROKER, b"0123456789") == (b"0123456789", False)
    assert weather.take(Side.CLIENT, b"abc") == (b"abc", False)
    assert weather.take(Side.CLIENT, b"defg") == (b"de", True)
    assert weather.take(Side.CLIENT, b"hij") == (b"hij", False)


def test_cut_comes_again() -> None:
    weather = Weather()
    weather.add_cut(Side.BROKER, 2, 2)
    taken = [weather.take(Side.BROKER, b"abc") for _ in range(3)]
    assert taken == [(b"ab", True), (b"ab", True), (b"abc", False)]


def test_cut_before_the_first_byte() -> None:
    weather = Weather()
    weather.add_cut(Side.CLIENT, 0, 1)
    assert weather.take(Side.CLIENT, b"a") == (b"", True)


def test_cut_that_is_taken_back() -> None:
    weather = Weather()
    cut = weather.add_cut(Side.CLIENT, 0, 1)
    weather.drop_cut(cut)
    weather.drop_cut(cut)
    assert weather.take(Side.CLIENT, b"a") == (b"a", False)
