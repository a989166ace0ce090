"""The click types of what people type: sizes, durations, topics, addresses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from lance_spark.errors import OptionError
from lance_spark.net.address import parse_address, parse_addresses
from lance_spark.quantity import (
    format_size,
    parse_duration,
    parse_record_type,
    parse_size,
    within,
)
from lance_spark.wire.lwp import PAYLOAD_BYTES_MAX

_TOPIC_ID = re.compile(r"id:(\d{1,10})", re.ASCII)
_TOPIC_ID_MAX = 2**31 - 1


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
        return Parsed(self.name, within(self._parse, least, most))


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
