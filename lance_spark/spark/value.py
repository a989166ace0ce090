"""Values of options as people type them, apart from what `quantity` and `bound` read.

Each parser raises an OptionError that says what is wrong and what to give instead; the
option's name is put before it by `setting`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from lance_spark.client import FETCH_BYTES_MAX, ClientConfig
from lance_spark.client.config import DURATION_S_MAX
from lance_spark.errors import OptionError
from lance_spark.quantity import parse_duration, parse_size, within

_INTEGER = re.compile(r"-?\d{1,100}", re.ASCII)
# What no server takes in the name of a topic. Each may refuse more.
TOPIC_BYTES_MAX = 255
_NOT_IN_TOPICS = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]")


def parse_flag(text: str) -> bool:
    """Read `true` or `false`.

    Raises:
        OptionError: it is neither.
    """
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise OptionError(f"{text!r} is neither true nor false")
    return found


def parse_integer(text: str) -> int:
    """Read a whole number; which ones will do is for the caller to say.

    Raises:
        OptionError: it is none.
    """
    if not _INTEGER.fullmatch(text.strip()):
        raise OptionError(f"{text!r} is not a whole number")
    return int(text)


def parse_text(text: str) -> str:
    """Take a text as it is; it is not shown in errors, as it may be a secret.

    Raises:
        OptionError: it is empty, or no Unicode.
    """
    if not text.strip():
        raise OptionError("it is empty: give a value, or leave the option out")
    if not _is_unicode(text):
        raise OptionError("it has half a character (a lone surrogate): leave that out")
    return text


def parse_topics(text: str) -> tuple[str, ...]:
    """Read names separated by commas, each of them once.

    Raises:
        OptionError: one is empty.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise OptionError(f"{text!r} has an empty name: give names as in events,clicks")
    return tuple(dict.fromkeys(names))


def find_topic_fault(name: str) -> str | None:
    """Say why no server can have a topic of that name, and what to give instead.

    None if one can. The server has the last word, but only when rows are on their way.
    """
    if not _is_unicode(name):
        return "has half a character (a lone surrogate): leave that out"
    size = len(name.encode())
    if not 1 <= size <= TOPIC_BYTES_MAX:
        return f"has {size} bytes: give 1 to {TOPIC_BYTES_MAX}"
    if name in (".", ".."):
        return "is a name of directories: give another"
    if _NOT_IN_TOPICS.search(name):
        return "has a slash, a backslash or a control character: leave that out"
    return None


def parse_pattern(text: str) -> str:
    """Check a regular expression.

    Raises:
        OptionError: it is none, or empty.
    """
    if not text:
        raise OptionError("it is empty: give an expression as in events-.*")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise OptionError(
            f"{text!r} is no regular expression of Python's: {error}"
        ) from None
    return text


def parse_servers(text: str) -> str:
    """Check addresses as a client takes them.

    Raises:
        OptionError: one of them is none.
    """
    return ClientConfig(servers=text.strip()).servers


def choice(*words: str) -> Callable[[str], str]:
    """Make a parser for one of a few words, in any case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            known = " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
            raise OptionError(f"{text!r} is unknown: give {known}")
        return word

    return parse


parse_timeout = within(
    partial(parse_duration, needs_unit=True), "1ms", f"{DURATION_S_MAX:.0f}s"
)


def parse_fetch_bytes(text: str) -> int:
    """Read how much to fetch at once.

    Raises:
        OptionError: it is no size, or more than an answer can hold.
    """
    # What an answer can hold is a few bytes less than what people would type.
    return min(within(parse_size, "1", "16m")(text), FETCH_BYTES_MAX)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
