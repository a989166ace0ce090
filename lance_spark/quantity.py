"""Sizes, durations, times and record types as people type them; checks of settings.

The command line and the options of Spark read them by the same functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import datetime, timedelta, timezone
from typing import NoReturn, TypeVar

from lance_spark.errors import OptionError
from lance_spark.model import Retention

_Value = TypeVar("_Value", int, float)

# Binary, as in Spark: what is asked for here is memory and disk.
_SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"(\d{1,18})([kmg]?)", re.ASCII)
# Below 2**63, where numbers in files and frames end.
_SIZE_END = 2**33 * _SIZE_UNITS["g"]

# In ms; a number without a unit is in seconds.
_DURATION_UNITS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "": 1000,
}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d|)", re.ASCII)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Of a second, and no finer than nanoseconds.
_FRACTION = re.compile(r"(?<=:\d\d:\d\d)[.,](\d{1,9})\d*", re.ASCII)

# The names by which people call the types of LWP §8.2.
RECORD_TYPES = {
    "raw": 0x01,
    "json": 0x02,
    "msgpack": 0x03,
    "protobuf": 0x04,
    "avro": 0x05,
}
_USER_TYPE_MIN, _USER_TYPE_MAX = 0x80, 0xFE


def parse_size(text: str) -> int:
    """Read a number of bytes: `65536`, `64k`, `1m`, `10g`.

    Raises:
        OptionError: it is none, or more than any disk has.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise OptionError(
            f"{text!r} is not a size: give bytes, or k, m or g, as in 64m"
        )
    size = int(found[1]) * _SIZE_UNITS[found[2]]
    if size >= _SIZE_END:
        raise OptionError(f"{text!r} is too large: give less than {2**33}g")
    return size


def format_size(size: int) -> str:
    """Write a size so that it can be typed again, to the last byte."""
    for unit in "gmk":
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return str(size)


def format_bytes(size: int) -> str:
    """Write a size in the decimal unit that suits it, for people."""
    if size < 1000:
        return "1 byte" if size == 1 else f"{size} bytes"
    exponent = min((len(str(size)) - 1) // 3, 4)
    return f"{size / 1000**exponent:.1f} {' kMGT'[exponent]}B"


def format_rate(records: int, size: int, seconds: float) -> str:
    """Write how long something took and how much that is per second, for people."""
    seconds = max(seconds, 1e-9)
    pace = f"{records / seconds:,.0f} records/s, {size / seconds / 1e6:,.0f} MB/s"
    return f"{seconds:.2f} s: {pace}"


def parse_duration(text: str, *, needs_unit: bool = False) -> float:
    """Read seconds: `500ms`, `30s`, `5m`, `2h`, `7d`; a bare number is in seconds.

    Args:
        text: the duration.
        needs_unit: refuse a bare number, except 0. In Spark some take it for seconds
            and some for milliseconds.

    Raises:
        OptionError: it is none.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise OptionError(
            f"{text!r} is not a duration: give a number and ms, s, m, h or d, as in 30s"
        )
    number = float(found[1])
    if needs_unit and number and not found[2]:
        raise OptionError(
            f"{text!r} has no unit: give ms, s, m, h or d with it, as in {found[1]}s"
        )
    return number * _DURATION_UNITS[found[2]] / 1000


def format_duration(seconds: int) -> str:
    """Write whole seconds so that they can be typed again."""
    for unit in "dhm":
        if seconds and seconds % (_DURATION_UNITS[unit] // 1000) == 0:
            return f"{seconds // (_DURATION_UNITS[unit] // 1000)}{unit}"
    return f"{seconds}s"


def format_limits(retention: Retention) -> str:
    """Write what a topic may drop so that it can be typed again; nothing if nothing."""
    age = format_duration(retention.max_age_s) if retention.max_age_s else ""
    size = format_size(retention.max_bytes) if retention.max_bytes else ""
    return ", ".join(filter(None, (age, size)))


def parse_time(text: str) -> int:
    """Read an ISO 8601 time as nanoseconds since 1970; without a zone it is UTC.

    Raises:
        OptionError: it is none, or before 1970.
    """
    # Python reads no more than microseconds, and before 3.11 neither a Z nor less.
    fraction = _FRACTION.search(text)
    whole = _FRACTION.sub("", text, count=1).strip()
    whole = re.sub("[zZ]$", "+00:00", whole)
    try:
        if re.search("[.,]", whole):
            raise ValueError("Python ignores fractions of anything else")
        when = datetime.fromisoformat(whole)
    except ValueError:
        raise OptionError(
            f"{text!r} is not a time: give one as 2024-05-01T12:30:00Z"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    seconds = (when - _EPOCH) // timedelta(seconds=1)
    if seconds < 0:
        raise OptionError(f"{text!r} is before 1970")
    nanoseconds = int(fraction[1].ljust(9, "0")) if fraction else 0
    return seconds * 1_000_000_000 + nanoseconds


def within(
    parse: Callable[[str], _Value], least: str, most: str
) -> Callable[[str], _Value]:
    """Make a parser that also refuses what is out of a range.

    Args:
        parse: reads a value.
        least: the smallest one, as people type it.
        most: the largest one.
    """
    low, high = parse(least), parse(most)

    def parse_within(text: str) -> _Value:
        value = parse(text)
        if not low <= value <= high:
            raise OptionError(f"{text!r} is out of range: give {least} to {most}")
        return value

    return parse_within


def check_number(
    what: str, value: object, low: float, high: float | None = None
) -> None:
    """Check a setting that a program or a file has given as a number.

    Args:
        what: whose setting it is, and its name.
        value: anything.
        low: the least that it may be.
        high: the most; without one the number has to be whole.

    Raises:
        OptionError: it is something else. A bool is no number, and NaN is none either.
    """
    if high is None:
        is_good = type(value) is int and value >= low
        wanted = f"a whole number of at least {low}"
    else:
        is_good = type(value) in (int, float) and low <= value <= high  # type: ignore[operator]
        wanted = f"a number from {low} to {high}"
    if not is_good:
        refuse_setting(what, value, wanted)


def check_choice(what: str, value: object, choices: Collection[str]) -> None:
    """Check a setting that is one of some words.

    Raises:
        OptionError: it is something else.
    """
    if value not in choices:
        refuse_setting(what, value, f"one of {', '.join(choices)}")


def refuse_setting(what: str, value: object, wanted: str) -> NoReturn:
    """Raise the error for a setting that has to be something else."""
    raise OptionError(f"{what}={value!r}: must be {wanted}")


def parse_record_type(text: str) -> int:
    """Read the type of plain values: a name, or a number from 0x80 to 0xFE.

    Raises:
        OptionError: there is none such.
    """
    known = RECORD_TYPES.get(text.lower())
    if known is not None:
        return known
    try:
        number = int(text, 0)
    except ValueError:
        number = 0
    if not _USER_TYPE_MIN <= number <= _USER_TYPE_MAX:
        names = ", ".join(RECORD_TYPES)
        raise OptionError(f"{text!r} is no type: give {names}, or 0x80 to 0xFE")
    return number
