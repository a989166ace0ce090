"""Positions as values."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from lance_spark.client.lwp.cursor import SeekKind, SeekPosition, as_position
from lance_spark.errors import OptionError


def test_values() -> None:
    assert SeekPosition(SeekKind.BEGINNING) == SeekPosition.BEGINNING
    assert SeekPosition(SeekKind.END) == SeekPosition.END
    assert SeekPosition.BEGINNING != SeekPosition.END
    assert SeekPosition.offset(42) == SeekPosition(SeekKind.OFFSET, 42)
    assert SeekPosition.time_ns(42) == SeekPosition(SeekKind.TIME, 42)
    assert SeekPosition.offset(2**64 - 1).value == 2**64 - 1


def test_time_is_exact_to_the_microsecond() -> None:
    when = datetime(2024, 2, 3, 0, 0, 0, 123457, tzinfo=timezone.utc)
    assert SeekPosition.time(when) == SeekPosition.time_ns(1706918400123457000)
    elsewhere = when.astimezone(timezone(timedelta(hours=-7)))
    assert SeekPosition.time(elsewhere) == SeekPosition.time(when)


def test_time_needs_a_zone() -> None:
    with pytest.raises(OptionError, match="time zone"):
        SeekPosition.time(datetime(2024, 2, 3))


def test_time_before_1970() -> None:
    with pytest.raises(OptionError, match="time"):
        SeekPosition.time(datetime(1969, 12, 31, tzinfo=timezone.utc))


@pytest.mark.parametrize("value", [-1, 2**64])
def test_refuses_what_no_log_has(value: int) -> None:
    with pytest.raises(OptionError, match="offset"):
        SeekPosition.offset(value)
    with pytest.raises(OptionError, match="time"):
        SeekPosition.time_ns(value)


def test_text() -> None:
    assert str(SeekPosition.BEGINNING) == "beginning"
    assert str(SeekPosition.offset(7)) == "offset 7"


def test_what_a_position_can_be_made_of() -> None:
    assert as_position(5) == SeekPosition.offset(5)
    assert as_position(SeekPosition.END) is SeekPosition.END
    for place in ("beginning", 1.5, None, -1):
        with pytest.raises(OptionError):
            as_position(place)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="is not a datetime"):
        SeekPosition.time("2024")  # type: ignore[arg-type]
