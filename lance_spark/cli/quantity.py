"""Sizes, durations, times and topics as people type them, and their click types."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import click

from lance_spark.errors import OptionError
from lance_spark.model import RecordType
from lance_spark.net.address import parse_address, parse_addresses
from lance_spark.wire.lwp import PAYLOAD_BYTES_MAX

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
_FRACTION = re.compile(r"[.,](\d{1,9})", re.ASCII)

_TOPIC_ID = re.compile(r"id:(\d{1,10})", re.ASCII)
_TOPIC_ID_MAX = 2**31 - 1


RECORD_TYPES = {
    "raw": int(RecordType.RAW),
    "json": int(RecordType.JSON),
    "msgpack": int(RecordType.MESSAGE_PACK),
    "protobuf": int(RecordType.PROTOBUF),
    "avro": int(RecordType.AVRO),
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


def parse_duration(text: str) -> float:
    """Read seconds: `500ms`, `30s`, `5m`, `2h`, `7d`; a bare number is in seconds.

    Raises:
        OptionError: it is none.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise OptionError(
            f"{text!r} is not a duration: give a number and ms, s, m, h or d, as in 30s"
        )
    return float(found[1]) * _DURATION_UNITS[found[2]] / 1000


def format_duration(seconds: int) -> str:
    """Write whole seconds so that they can be typed again."""
    for unit in "dhm":
        if seconds and seconds % (_DURATION_UNITS[unit] // 1000) == 0:
            return f"{seconds // (_DURATION_UNITS[unit] // 1000)}{unit}"
    return f"{seconds}s"


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


def parse_topic(text: str) -> int | str:
    """Read a topic: its name, or `id:` and its number.

    Raises:
        OptionError: it is empty, or the number is none of a topic.
    """
    if not text:
        raise OptionError("a topic has a name; give it, or its number as in id:7")
    found = _TOPIC_ID.fullmatch(text)
    if found is None:
        return text
    if int(found[1]) > _TOPIC_ID_MAX:
        raise OptionError(f"{text!r}: topic ids end at {_TOPIC_ID_MAX}")
    return int(found[1])


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


def parse_separator(text: str) -> bytes:
    r"""Read what stands between a key and a value; `\t` and `\0` are understood.

    Raises:
        OptionError: it is empty.
    """
    if not text:
        raise OptionError("a separator can't be empty")
    return (
        text.replace("\\t", "\t").replace("\\0", "\0").encode(errors="surrogateescape")
    )


if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # Generic since click 8.5 only.


class Parsed(_Type):
    """A click type made of a function that raises OptionError.

    Args:
        name: what the help calls a value.
        parse: reads it.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Read a value, unless it is a default that needs no reading."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)

    def within(self, least: str, most: str) -> Parsed:
        """Make a type of which both ends of a range are given as people type them."""
        low, high = self._parse(least), self._parse(most)

        def parse(text: str) -> Any:
            value = self._parse(text)
            if not low <= value <= high:
                raise OptionError(f"{text!r} is out of range: give {least} to {most}")
            return value

        return Parsed(self.name, parse)


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Make a parser that keeps the text and only looks at it."""

    def parse(text: str) -> str:
        check(text)
        return text

    return parse


SIZE = Parsed("size", parse_size)
BATCH_SIZE = SIZE.within("1", format_size(PAYLOAD_BYTES_MAX))
DURATION = Parsed("duration", parse_duration)
TOPIC = Parsed("topic", parse_topic)
RECORD_TYPE = Parsed("type", parse_record_type)
SEPARATOR = Parsed("text", parse_separator)
ADDRESS = Parsed("host:port", _checked(parse_address))
# The port of a server is known if it is not given; see `ClientConfig`.
ADDRESSES = Parsed(
    "host:port,...", _checked(lambda text: parse_addresses(text, default_port=1992))
)
