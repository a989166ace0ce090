"""Where a read starts or ends, as options say it: values that travel, and their text.

What a bound means for a topic (its log, the clock of its server) is `planning`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from lance_spark.errors import CheckpointError, OptionError
from lance_spark.model import Partition
from lance_spark.offset import PARTITION, StreamOffset, read_protocol
from lance_spark.quantity import parse_time as parse_iso_time
from lance_spark.value import dataclass

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
class AtOffsets:
    """A position per partition, or the same end of all of them.

    Args:
        offsets: the partitions that are named, sorted. `EARLIEST_OFFSET` and
            `LATEST_OFFSET` stand among them for the ends of a partition.
        default: which of the two is meant for all partitions; None if some are named.
        by_partition: the topics that are named with numbers of partitions.
        protocol: whose stream has noted the positions, if one has.
    """

    offsets: tuple[tuple[Partition, int], ...] = ()
    default: int | None = None
    by_partition: tuple[str, ...] = field(default=(), compare=False)
    protocol: str | None = field(default=None, compare=False)

    def get(self, partition: Partition) -> int | None:
        """Return the offset for a partition; None if it is not named."""
        return dict(self.offsets).get(partition, self.default)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named."""
        return tuple(dict.fromkeys(partition.topic for partition, _ in self.offsets))

    def covers(self, topic: str) -> bool:
        """Tell whether something is said of a topic."""
        return self.default is not None or topic in self.topics

    def check_complete(self, option: str, topics: Iterable[str]) -> None:
        """Check that every topic has an offset.

        A topic that is forgotten would be read from its beginning, or not at all, and
        nothing would show it.

        Raises:
            OptionError: some have none; says what to add.
        """
        missing = sorted(topic for topic in topics if not self.covers(topic))
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

    def check_partitions(self, option: str, topic: str, numbers: Sequence[int]) -> None:
        """Check that a topic which is named has an offset for each of its partitions.

        Raises:
            OptionError: one has none, or is not there; lists all there are.
        """
        given = [each.number for each, _ in self.offsets if each.topic == topic]
        if given and given != sorted(numbers):
            example = {topic: dict.fromkeys(map(str, numbers), EARLIEST_OFFSET)}
            raise OptionError(
                f"option {option} has offsets for the partitions {given} of topic "
                f"{topic!r}, which has {sorted(numbers)}: give one for each, as in "
                f"{json.dumps(example, ensure_ascii=False)}"
            )


EARLIEST = AtOffsets(default=EARLIEST_OFFSET)
LATEST = AtOffsets(default=LATEST_OFFSET)


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record that the server appended at this time or later."""

    time_ns: int


Bound = AtOffsets | AtTime


def parse_bound(text: str) -> AtOffsets:
    """Read `earliest`, `latest`, or a JSON object of offsets by topic.

    A topic has one offset, or an object with one for each partition. The offset of a
    stream is taken, too, as checkpoints and a query's progress show it:
    `{"version": 1, "topics": {"events": {"partitions": {"0": 4096}, ...}}}`.

    Raises:
        OptionError: the text is none of them; says what is wrong with it.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
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
    members = _load(text)
    # A topic may have one of these names, but then its offset is a number.
    if "version" in members and isinstance(members.get("topics"), dict):
        return _read_stream_offset(text, members)
    if not members:
        raise OptionError(f"no topic is named in {_shorten(text)}: {_FORMS}")
    offsets: dict[Partition, int] = {}
    for topic, given in members.items():
        by_number = given if isinstance(given, dict) else {"0": given}
        for number, offset in by_number.items():
            if not PARTITION.fullmatch(number):
                raise OptionError(
                    f"topic {topic!r}: {_shorten(number)} is not the number of a "
                    "partition"
                )
            offsets[Partition(topic, int(number))] = _check_offset(topic, offset)
    by_partition = tuple(t for t, given in members.items() if isinstance(given, dict))
    return AtOffsets(tuple(sorted(offsets.items())), by_partition=by_partition)


def _load(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_check_unique)
    # A ValueError is also what a number of thousands of digits gives.
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"{_shorten(text)} can't be read as JSON ({error}): {_FORMS}"
        ) from None


def _read_stream_offset(text: str, document: object) -> AtOffsets:
    protocol = read_protocol(document)
    try:
        topics = StreamOffset.from_document(document, protocol).topics
    except CheckpointError as error:
        raise OptionError(
            f"{error.where}: {error.reason}; copy all of what a checkpoint or a "
            f"query's progress shows, or {_FORMS}"
        ) from None
    if not topics:
        raise OptionError(f"no topic is named in {_shorten(text)}: {_FORMS}")
    return AtOffsets(
        tuple(
            (Partition(topic, number), position)
            for topic, place in topics
            for number, position in place.positions
        ),
        by_partition=tuple(topic for topic, at in topics if len(at.positions) > 1),
        protocol=protocol,
    )


def _check_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise OptionError(f"{_shorten(key)} is named twice: name it once")
        members[key] = value
    return members


def _check_offset(topic: str, offset: Any) -> int:
    is_number = isinstance(offset, int) and not isinstance(offset, bool)
    if not is_number or not EARLIEST_OFFSET <= offset <= _OFFSET_MAX:
        raise OptionError(
            f"{_shorten(json.dumps(offset))} is not an offset for topic {topic!r}: "
            f"give a whole number, or {EARLIEST_OFFSET} for earliest, "
            f"{LATEST_OFFSET} for latest"
        )
    return int(offset)


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")
