"""Values of options as typed."""

from __future__ import annotations

import pytest

from lance_spark.client.driver import check_servers
from lance_spark.errors import OptionError
from lance_spark.spark.setting import (
    BY_NAME,
    choice,
    parse_flag,
    parse_integer,
    parse_pattern,
    parse_text,
    parse_timeout,
    parse_topics,
)
from tests.each import each


@pytest.mark.parametrize(
    ("text", "flag"), [("true", True), (" True", True), ("FALSE", False)]
)
def test_flag(text: str, flag: bool) -> None:
    assert parse_flag(text) is flag


@pytest.mark.parametrize("text", ["", "yes", "1", "0"])
def test_no_flag(text: str) -> None:
    with pytest.raises(OptionError, match="is neither true nor false"):
        parse_flag(text)


def test_integer() -> None:
    assert (parse_integer("0"), parse_integer(" 12 ")) == (0, 12)
    # Ranges are for others to tell, with better words.
    assert (parse_integer("-1"), parse_integer(str(2**64))) == (-1, 2**64)


@each("text", ["", "-", "--1", "1.0", "1k", "0x1", "٣", "9" * 101])
def test_no_integer(text: str) -> None:
    with pytest.raises(OptionError, match="is not a whole number"):
        parse_integer(text)


def test_text_is_taken_as_it_is() -> None:
    assert parse_text(" a b\n") == " a b\n"


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_no_text(text: str) -> None:
    with pytest.raises(OptionError, match="the value is empty: give one, or leave"):
        parse_text(text)


def test_text_that_is_no_unicode() -> None:
    with pytest.raises(OptionError, match="the value has half a character"):
        parse_text("a\ud800")


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("events", ("events",)),
        (" b , a", ("b", "a")),
        ("a,b,a", ("a", "b")),
        ("ein Thema", ("ein Thema",)),
    ],
)
def test_topics(text: str, topics: tuple[str, ...]) -> None:
    assert parse_topics(text) == topics


@pytest.mark.parametrize("text", ["", " ", ",", "a,", "a,,b"])
def test_no_topics(text: str) -> None:
    with pytest.raises(OptionError, match="has an empty name: give names as in"):
        parse_topics(text)


def test_pattern() -> None:
    assert parse_pattern("events-[0-9]+") == "events-[0-9]+"


@pytest.mark.parametrize("text", ["(", "*", "[", "a{2,1}", "(?P<a"])
def test_no_pattern(text: str) -> None:
    with pytest.raises(OptionError, match="is not a regular expression of Python: "):
        parse_pattern(text)


def test_empty_pattern() -> None:
    with pytest.raises(OptionError, match="the value is empty: give an expression"):
        parse_pattern("")


def test_servers() -> None:
    assert check_servers(" a:1, b ") == "a:1, b"


@pytest.mark.parametrize("text", ["", "a:x", "a,,b", "http://a:1", "a:70000"])
def test_no_servers(text: str) -> None:
    with pytest.raises(OptionError):
        check_servers(text)


def test_choice() -> None:
    parse = choice("auto", "none")
    assert (parse("auto"), parse(" NONE")) == ("auto", "none")


@pytest.mark.parametrize(
    ("words", "known"),
    [(("a",), "a"), (("a", "b"), "a or b"), (("a", "b", "c"), "a, b or c")],
)
def test_no_choice(words: tuple[str, ...], known: str) -> None:
    with pytest.raises(OptionError, match=f"^'x' is unknown: give {known}$"):
        choice(*words)("x")


def test_timeout() -> None:
    assert (parse_timeout("1ms"), parse_timeout("2m")) == (0.001, 120)
    assert parse_timeout("1000000s") == 1_000_000


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("30", "has no unit"),
        ("0", "out of range: give 1ms to 1000000s"),
        ("12d", "out of range"),
        ("soon", "is not a duration"),
    ],
)
def test_no_timeout(text: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        parse_timeout(text)


def test_fetch_bytes() -> None:
    parse = BY_NAME["fetchBytes"].parse
    # The driver asks for a little less than the largest, which no answer can hold.
    assert [parse(text) for text in ("1", "4m", "16m")] == [
        1,
        4 * 1024**2,
        16 * 1024**2,
    ]


@pytest.mark.parametrize("text", ["0", "16777217", "1g"])
def test_no_fetch_bytes(text: str) -> None:
    with pytest.raises(OptionError, match="out of range: give 1 to 16m"):
        BY_NAME["fetchBytes"].parse(text)
