"""Topics, separators and click types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest

from lance_spark.cli.quantity import (
    ADDRESS,
    ADDRESSES,
    SIZE,
    parse_separator,
    parse_topic,
)
from lance_spark.errors import OptionError


@pytest.mark.parametrize(("text", "fits"), [("1", 1), ("2k", 2048)])
def test_both_ends_are_within(text: str, fits: int) -> None:
    assert SIZE.within("1", "2k").convert(text, None, None) == fits


@pytest.mark.parametrize("text", ["0", "2049", "1g"])
def test_not_within(text: str) -> None:
    with pytest.raises(click.BadParameter, match="out of range: give 1 to 2k"):
        SIZE.within("1", "2k").convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "topic"),
    [("events", "events"), ("7", "7"), ("id:7", 7), ("id:0", 0), ("id:x", "id:x")],
)
def test_topic(text: str, topic: int | str) -> None:
    assert parse_topic(text) == topic


@pytest.mark.parametrize("text", ["", "id:2147483648"])
def test_no_topic(text: str) -> None:
    with pytest.raises(OptionError):
        parse_topic(text)


def test_separator() -> None:
    assert parse_separator(":") == b":"
    assert parse_separator("\\t") == b"\t"
    assert parse_separator("a\\0é") == b"a\0\xc3\xa9"
    # Bytes of the command line that are no text come back as they were.
    assert parse_separator("\udcff") == b"\xff"
    with pytest.raises(OptionError, match="can't be empty"):
        parse_separator("")


def test_click_type() -> None:
    assert SIZE.convert("1k", None, None) == 1024
    assert SIZE.convert(5, None, None) == 5
    with pytest.raises(click.BadParameter, match="is not a size"):
        SIZE.convert("much", None, None)


@pytest.mark.parametrize(
    ("convert", "good", "bad"),
    [
        (ADDRESS.convert, "127.0.0.1:0", "127.0.0.1"),
        (ADDRESSES.convert, "a,b:1,[::1]:2", "a,,b"),
    ],
)
def test_addresses_stay_texts(convert: Callable[..., Any], good: str, bad: str) -> None:
    assert convert(good, None, None) == good
    with pytest.raises(click.BadParameter, match="host"):
        convert(bad, None, None)
