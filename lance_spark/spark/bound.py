"""Where a read starts or ends, as options say it: values that travel, and their text.

What a bound means for a topic (its log, the clock of its server) is `planning`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lance_spark.errors import CheckpointError, OptionError
from lance_spark.offset import StreamOffset
from lance_spark.quantity import parse_time as parse_iso_time

# What Kafka's JSON says for the two ends of a topic.
EARLIEST_OFFSET = -2
LATEST_OFFSET = -1

# Offsets are 64-bit numbers on the wire, and signed ones in a row.
_OFFSET_MAX = 2**63 - 1
# Times are compared as int64 nanoseconds, which end in the year 2262.
_TIME_NS_MAX = 2**63 - 1
_NS_PER_MS = 1_000_000

# How much of a text is repeated in an error.
_SHOWN_MAX = 60
# How many topics are listed in one.
_LISTED_MAX = 8

_FORMS = 'give earliest, latest, or offsets by topic as in {"events": 4096}'


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record that a topic still has."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True, slots=True)
class Latest:
    """Behind the last record that a topic has when the read is planned."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset per topic, sorted by topic.

    `EARLIEST_OFFSET` and `LATEST_OFFSET` stand among them for the ends of a topic.
    """

    offsets: tuple[tuple[str, int], ...]

    def get(self, topic: str) -> int | None:
        """Return the offset for a topic; None if it is not named."""
        return dict(self.offsets).get(topic)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named."""
        return tuple(topic for topic, _ in self.offsets)

    def check_complete(self, option: str, topics: Iterable[str]) -> None:
        """Check that every topic has an offset.

        A topic that is forgotten would be read from its beginning, or not at all, and
        nothing would show it.

        Raises:
            OptionError: some have none; says what to add.
        """
        named = set(self.topics)
        missing = sorted(topic for topic in topics if topic not in named)
        if not missing:
            return
        shown = missing[:_LISTED_MAX]
        more = len(missing) - len(shown)
        raise OptionError(
            f"option {option} has no offset for topic{'s' if missing[1:] else ''} "
            f"{', '.join(map(repr, shown))}{f' and {more} more' if more else ''}: add "
            f"{'one for each' if missing[1:] else 'one'}, as in "
            f"{json.dumps(dict.fromkeys(shown, EARLIEST_OFFSET), ensure_ascii=False)}, "
            f"where {EARLIEST_OFFSET} is earliest and {LATEST_OFFSET} is latest"
        )

    def __str__(self) -> str:
        return json.dumps(dict(self.offsets), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that the server appended at this time or later."""

    time_ns: int

    def __str__(self) -> str:
        return f"{self.time_ns} ns"


Bound = Earliest | Latest | AtOffsets | AtTime


def parse_bound(text: str) -> Bound:
    """Read `earliest`, `latest`, or a JSON object of offsets by topic.

    The offset of a stream is taken, too, as checkpoints and a query's progress show it:
    `{"version": 1, "topics": {"events": {"partitions": {"0": 4096}, ...}}}`.

    Raises:
        OptionError: the text is none of them; says what is wrong with it.
    """
    word = text.strip().lower()
    if word == "earliest":
        return Earliest()
    if word == "latest":
        return Latest()
    if not word.startswith("{"):
        raise OptionError(
            f"{_shorten(text)} is neither earliest, latest nor JSON: {_FORMS}"
        )
    return _read_offsets(text)


def parse_time(text: str) -> AtTime:
    """Read a time in ISO 8601, or in milliseconds since 1970.

    Raises:
        OptionError: it is neither, or out of range.
    """
    stripped = text.strip()
    if stripped.isascii() and stripped.isdecimal():
        # Python refuses to read long numbers; one of 20 digits is out of range anyway.
        time_ns = int(stripped.lstrip("0")[:20] or "0") * _NS_PER_MS
    else:
        try:
            time_ns = parse_iso_time(stripped)
        except OptionError as error:
            raise OptionError(f"{error}, or milliseconds since 1970") from None
    if time_ns > _TIME_NS_MAX:
        raise OptionError(f"{_shorten(text)} is too late: times end in the year 2262")
    return AtTime(time_ns)


def _read_offsets(text: str) -> AtOffsets:
    pairs = _load(text, _Pairs)
    members = dict(pairs)
    # A topic may have one of these names, but then its offset is a number.
    if "version" in members and isinstance(members.get("topics"), _Pairs):
        pairs = _read_stream_offset(text)
    if not pairs:
        raise OptionError(f"no topic is named in {_shorten(text)}: {_FORMS}")
    offsets: dict[str, int] = {}
    for topic, offset in pairs:
        if topic in offsets:
            raise OptionError(f"topic {topic!r} is named twice: name it once")
        offsets[topic] = _check_offset(topic, offset)
    return AtOffsets(tuple(sorted(offsets.items())))


def _load(text: str, make_object: Callable[[list[tuple[str, Any]]], Any]) -> Any:
    try:
        return json.loads(text, object_pairs_hook=make_object)
    # A ValueError is also what a number of thousands of digits gives.
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"{_shorten(text)} can't be read as JSON ({error}): {_FORMS}"
        ) from None


def _read_stream_offset(text: str) -> list[tuple[str, Any]]:
    document = _load(text, _check_unique)
    try:
        topics = StreamOffset.from_document(document).topics
    except CheckpointError as error:
        raise OptionError(
            f"{error.where}: {error.reason}; copy all of what a checkpoint or a "
            f"query's progress shows, or {_FORMS}"
        ) from None
    for topic, place in topics:
        if len(place.positions) > 1:
            raise _no_partitions(topic)
    return [(topic, place.offset) for topic, place in topics]


def _check_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise OptionError(f"{_shorten(key)} is named twice: name it once")
        members[key] = value
    return members


class _Pairs(list[Any]):
    """The members of a JSON object; unlike a dict it keeps what stands there twice."""


def _check_offset(topic: str, offset: Any) -> int:
    if isinstance(offset, _Pairs):
        raise _no_partitions(topic)
    is_number = isinstance(offset, int) and not isinstance(offset, bool)
    if not is_number or not EARLIEST_OFFSET <= offset <= _OFFSET_MAX:
        raise OptionError(
            f"{_shorten(json.dumps(offset))} is not an offset for topic {topic!r}: "
            f"give a whole number from 0, or {EARLIEST_OFFSET} for earliest, "
            f"{LATEST_OFFSET} for latest"
        )
    return int(offset)


def _no_partitions(topic: str) -> OptionError:
    return OptionError(
        f"topic {topic!r} has no partitions: give its offset alone, as in "
        f"{json.dumps({topic: 4096})}"
    )


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")
