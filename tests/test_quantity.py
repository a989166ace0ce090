"""Sizes, durations, times and record types as typed."""

from __future__ import annotations

import math
import re

import pytest

from lance_spark.errors import OptionError
from lance_spark.quantity import (
    RECORD_TYPES,
    check_choice,
    check_number,
    format_duration,
    format_rate,
    format_size,
    parse_duration,
    parse_record_type,
    parse_size,
    parse_time,
    within,
)
from lance_spark.wire.lwp import RecordType
from tests.each import each


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1", 1), ("64k", 65536), ("1M", 1048576), (" 10g ", 10 * 1024**3)],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@each("text", ["", "k", "1.5m", "-1", "1 k", "1t", "0x10", "٣", "9" * 19])
def test_no_size(text: str) -> None:
    with pytest.raises(OptionError, match="is not a size: give bytes, or k, m or g"):
        parse_size(text)


def test_size_that_no_number_holds() -> None:
    assert parse_size("8589934591g") == 2**63 - 2**30
    with pytest.raises(OptionError, match="too large: give less than 8589934592g"):
        parse_size("8589934592g")


@each("size", [0, 1, 1023, 1024, 1536, 1024**2, 10 * 1024**3, 2**62])
def test_size_can_be_typed_again(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_size_is_short() -> None:
    assert [format_size(s) for s in (1024**3, 3 * 1024**2, 2048, 7)] == [
        *("1g", "3m", "2k", "7"),
    ]


@each(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("30", 30),
        ("0", 0),
        ("5m", 300),
        ("2H", 7200),
        ("7d", 604800),
        ("0.5s", 0.5),
        ("1.5h", 5400),
    ],
)
def test_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@each("text", ["", "s", "-1s", "1w", "1 s s", "nan", "1e3s", "inf"])
def test_no_duration(text: str) -> None:
    with pytest.raises(OptionError, match="is not a duration: give a number and ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (90, "90s"), (7200, "2h"), (604800, "7d")],
)
def test_duration_can_be_typed_again(seconds: int, text: str) -> None:
    assert format_duration(seconds) == text
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["30", "0.5", " 7 "])
def test_duration_without_the_unit_it_needs(text: str) -> None:
    assert parse_duration(text) == float(text)
    with pytest.raises(OptionError, match=rf"has no unit: .* as in {text.strip()}s"):
        parse_duration(text, needs_unit=True)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("0s", 0), ("30s", 30)])
def test_duration_with_the_unit_it_needs(text: str, seconds: float) -> None:
    assert parse_duration(text, needs_unit=True) == seconds


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1_000_000_000),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01 01:00:00+01:00", 0),
        ("2023-11-14T22:13:20.123456789Z", 1_700_000_000_123_456_789),
        ("2023-11-14T22:13:20.5+00:00", 1_700_000_000_500_000_000),
        ("2023-11-14T22:13:20,1234567891234Z", 1_700_000_000_123_456_789),
    ],
)
def test_time(text: str, ns: int) -> None:
    assert parse_time(text) == ns


@each(
    "text",
    [
        *("", "yesterday", "12:30", "2024-13-01", "2024"),
        *("2024-01-01,5", "2024-01-01T00.5Z", "2024-01-01T00:00:00+00:00.5"),
    ],
)
def test_no_time(text: str) -> None:
    with pytest.raises(OptionError, match="is not a time: give one as"):
        parse_time(text)


def test_time_before_lwp() -> None:
    with pytest.raises(OptionError, match="before 1970"):
        parse_time("1969-12-31T23:59:59Z")


@pytest.mark.parametrize(
    ("text", "number"),
    [("raw", 1), ("JSON", 2), ("msgpack", 3), ("0x80", 0x80), ("254", 0xFE)],
)
def test_record_type(text: str, number: int) -> None:
    assert parse_record_type(text) == number


@pytest.mark.parametrize("text", ["", "text", "0x7F", "0xFF", "1", "0x10"])
def test_no_record_type(text: str) -> None:
    with pytest.raises(
        OptionError, match="raw, json, msgpack, protobuf, avro, or 0x80"
    ):
        parse_record_type(text)


@pytest.mark.parametrize(("text", "fits"), [("1", 1), ("2k", 2048), ("7", 7)])
def test_both_ends_are_within(text: str, fits: int) -> None:
    assert within(parse_size, "1", "2k")(text) == fits


@pytest.mark.parametrize("text", ["0", "2049", "1g"])
def test_not_within(text: str) -> None:
    with pytest.raises(OptionError, match=f"'{text}' is out of range: give 1 to 2k"):
        within(parse_size, "1", "2k")(text)


def test_within_refuses_what_its_parser_does() -> None:
    with pytest.raises(OptionError, match="is not a size"):
        within(parse_size, "1", "2k")("much")


def test_settings_that_are_numbers() -> None:
    for value in (1, 7, 2**70):
        check_number("size", value, 1)
    for value in (0, 1.0, True, "1", None):
        text = f"size={value!r}: must be a whole number of at least 1"
        with pytest.raises(OptionError, match=re.escape(text)):
            check_number("size", value, 1)
    for value in (0, 0.5, 60):
        check_number("wait_s", value, 0, 60)
    for value in (-1, 60.1, True, "1", math.nan, math.inf):
        with pytest.raises(OptionError, match="must be a number from 0 to 60"):
            check_number("wait_s", value, 0, 60)


def test_settings_that_are_words() -> None:
    check_choice("kind", "a", ("a", "b"))
    with pytest.raises(OptionError, match="kind='c': must be one of a, b"):
        check_choice("kind", "c", ("a", "b"))


def test_names_are_those_of_the_protocol() -> None:
    plain = [kind for kind in RecordType if kind < RecordType.KEY_VALUE]
    assert list(RECORD_TYPES.values()) == plain


def test_format_rate() -> None:
    assert format_rate(3000, 4_000_000, 2.0) == "2.00 s: 1,500 records/s, 2 MB/s"
    assert format_rate(0, 0, 0.0).startswith("0.00 s: 0 records/s")
