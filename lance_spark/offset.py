"""How far a stream has read, as Spark's checkpoint keeps it: values and their JSON.

    {"version": 1,
     "topics": {"events": {"id": 3, "epoch": 1706918400, "partitions": {"0": 4096}}}}

Other protocols than LWP add their name, as in `"protocol": "tank"`.

A topic that is not there keeps its place, with `"away": true`. If another topic takes
its name, its place is kept under `"earlier"` of that one. A server that comes back
after an hour, or a rule that hides nothing any more, brings back the same topic: the
stream does not read its records again.

Checkpoints outlive releases: every later release reads what this one writes. Spark
takes two offsets for the same if their JSON texts are equal, so each value has exactly
one text. The command line reads checkpoints, too, so there is no pyspark here.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeGuard

from lance_spark.errors import CheckpointError
from lance_spark.model import MARK_BYTES_MAX, OffsetMark
from lance_spark.value import dataclass

__all__ = [
    "EARLIER_MAX",
    "MARK_BYTES_MAX",
    "OFFSET_VERSION",
    "PARTITION",
    "OffsetMark",
    "StreamOffset",
    "TopicPlace",
    "is_offset_document",
    "read_protocol",
]

OFFSET_VERSION = 1

# The protocol of offsets that name none.
LANCE = "lance"

# How many topics that had the same name before are remembered, the last ones.
EARLIER_MAX = 8

# Offsets are signed numbers of 64 bits in a row; ids and times are what servers say.
_OFFSET_MAX = 2**63 - 1
_NUMBER_MAX = 2**64 - 1
_CRC_MAX = 2**32 - 1
# One way to write each number, or two keys could mean the same partition.
PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")

# How much of a wrong value is repeated in an error.
_SHOWN_MAX = 60

# What an error is about, and what to do.
_OFFSET = "stream offset"
_DAMAGED = (
    "restore the checkpoint from a copy, or start the query with a new one and "
    "startingOffsets"
)


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """How far one topic was read, and which topic it was.

    Args:
        topic_id: the topic's id.
        created_s: when it was created, in seconds since 1970.
        positions: partitions and the position in each; LWP has partition 0 alone.
        marks: partitions and the mark of the position in each.
        is_away: the topic was not there, which was reported as a loss.
        earlier: places in other topics of the same name, the last one first.
    """

    topic_id: int
    created_s: int
    positions: tuple[tuple[int, int], ...]
    marks: tuple[tuple[int, OffsetMark], ...] = ()
    is_away: bool = False
    earlier: tuple[TopicPlace, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "positions", tuple(sorted(self.positions)))
        marks = tuple(sorted(self.marks, key=itemgetter(0)))
        object.__setattr__(self, "marks", marks)

    @classmethod
    def at(
        cls, topic_id: int, created_s: int, offset: int, mark: OffsetMark | None = None
    ) -> TopicPlace:
        """Return a place in a topic of one partition."""
        marks = () if mark is None else ((0, mark),)
        return cls(topic_id, created_s, ((0, offset),), marks)

    @property
    def offset(self) -> int:
        """The position in partition 0, which every topic has."""
        return dict(self.positions)[0]

    @property
    def mark(self) -> OffsetMark | None:
        """The mark of partition 0, if there is one."""
        return self.mark_of(0)

    def position(self, partition: int, first: int = 0) -> int:
        """Return the position in a partition; `first` if it was not read."""
        return dict(self.positions).get(partition, first)

    def mark_of(self, partition: int) -> OffsetMark | None:
        """Return the mark of a partition's position, if there is one."""
        return dict(self.marks).get(partition)

    def seen_end(self, partition: int) -> int:
        """Return how long a partition's log was, as far as this place knows."""
        mark = self.mark_of(partition)
        return max(self.position(partition), (mark and mark.end) or 0)

    def moved(
        self, partition: int, position: int, mark: OffsetMark | None = None
    ) -> TopicPlace:
        """Return the place with another position in one partition, and its mark."""
        marks = {k: m for k, m in self.marks if k != partition}
        if mark is not None:
            marks[partition] = mark
        positions = {**dict(self.positions), partition: position}
        return replace(
            self, positions=tuple(positions.items()), marks=tuple(marks.items())
        )

    def same_topic(self, topic_id: int, created_s: int) -> bool:
        """Tell whether it is the same topic, and not one created anew."""
        return (self.topic_id, self.created_s) == (topic_id, created_s)

    def find(self, topic_id: int, created_s: int) -> TopicPlace | None:
        """Return the place in a topic that has the name now or had it before."""
        for place in (self, *self.earlier):
            if place.same_topic(topic_id, created_s):
                return place
        return None

    def turn_to(self, topic_id: int, created_s: int, first: int = 0) -> TopicPlace:
        """Return the place in another topic of the name, and remember this one.

        It is where that topic was read up to, if it had the name before, and otherwise
        its first position.
        """
        found = self.find(topic_id, created_s) or self.at(topic_id, created_s, first)
        others = (replace(self, is_away=False, earlier=()), *self.earlier)
        kept = [place for place in others if not place.same_topic(topic_id, created_s)]
        return replace(found, earlier=tuple(kept[:EARLIER_MAX]))


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream has read each of its topics, sorted by name."""

    topics: tuple[tuple[str, TopicPlace], ...]

    def __post_init__(self) -> None:
        topics = tuple(sorted(self.topics, key=itemgetter(0)))
        object.__setattr__(self, "topics", topics)

    @classmethod
    def of(cls, places: Mapping[str, TopicPlace]) -> StreamOffset:
        """Return the offset with these places by topic name."""
        return cls(tuple(places.items()))

    def get(self, topic: str) -> TopicPlace | None:
        """Return the place in a topic; None if it is not among them."""
        index = bisect_left(self.topics, topic, key=itemgetter(0))
        if index < len(self.topics) and self.topics[index][0] == topic:
            return self.topics[index][1]
        return None

    def to_document(self, protocol: str = LANCE) -> dict[str, Any]:
        """Return what goes into the checkpoint; one value has one JSON text."""
        topics = {name: _encode_place(place) for name, place in self.topics}
        document: dict[str, Any] = {"version": OFFSET_VERSION, "topics": topics}
        return document if protocol == LANCE else {**document, "protocol": protocol}

    @classmethod
    def from_document(cls, document: object, protocol: str = LANCE) -> StreamOffset:
        """Read what `to_document` of this or an older release has made.

        What is there besides is ignored: the offsets in a query's progress have more.

        Raises:
            CheckpointError: it is something else; says what is wrong.
        """
        if not isinstance(document, Mapping):
            raise _damaged(
                _OFFSET, f"{_show(document)} is not an offset of this source"
            )
        _check_version(document)
        if read_protocol(document) != protocol:
            found = _show(read_protocol(document))
            raise CheckpointError(
                _OFFSET,
                f"it is an offset of protocol {found}, not of {protocol!r}",
                "start the query with its own format, or with a new checkpoint",
            )
        topics = _take_members(document, "topics", _OFFSET)
        return cls.of({name: _decode_place(name, topics[name]) for name in topics})


def read_protocol(document: object) -> Any:
    """Say which protocol an offset is of."""
    return document.get("protocol", LANCE) if isinstance(document, Mapping) else LANCE


def is_offset_document(document: object) -> bool:
    """Tell whether a JSON value means to be an offset of this source.

    It may be damaged, or of a newer version.
    """
    if not isinstance(document, Mapping) or not {"version", "topics"} <= set(document):
        return False
    return isinstance(document["topics"], Mapping)


def _encode_place(place: TopicPlace) -> dict[str, Any]:
    # The keys in sorted order, also those of partitions: "10" is before "2".
    encoded: dict[str, Any] = {"away": True} if place.is_away else {}
    if place.earlier:
        encoded["earlier"] = [_encode_place(earlier) for earlier in place.earlier]
    encoded.update(epoch=place.created_s, id=place.topic_id)
    if place.marks:
        encoded["marks"] = {
            key: mark.to_document()
            for key, mark in sorted((str(p), m) for p, m in place.marks)
        }
    encoded["partitions"] = dict(sorted((str(p), at) for p, at in place.positions))
    return encoded


def _decode_place(name: object, place: object) -> TopicPlace:
    if not isinstance(name, str):
        raise _damaged(_OFFSET, f"{_show(name)} is not the name of a topic")
    where = f"{_OFFSET}, topic {_show(name)}"
    found = _decode_one(place, where)
    assert isinstance(place, Mapping)
    is_away, earlier = place.get("away", False), place.get("earlier", [])
    if not isinstance(is_away, bool):
        raise _damaged(where, f"'away' is {_show(is_away)} and has to be true or false")
    if not isinstance(earlier, list):
        raise _damaged(where, f"'earlier' is {_show(earlier)} and has to be a list")
    where = f"{where}, earlier"
    places = tuple(_decode_one(each, where) for each in earlier[:EARLIER_MAX])
    return replace(found, is_away=is_away, earlier=places)


def _decode_one(place: object, where: str) -> TopicPlace:
    """Read a place without the places in other topics of the name."""
    if not isinstance(place, Mapping):
        raise _damaged(where, f"{_show(place)} is not a place in a topic")
    positions = dict(_decode_positions(place, where))
    return TopicPlace(
        topic_id=_take_number(place, "id", where, _NUMBER_MAX),
        created_s=_take_number(place, "epoch", where, _NUMBER_MAX),
        positions=tuple(positions.items()),
        marks=tuple(_decode_marks(place, where, positions)),
    )


def _decode_positions(
    place: Mapping[Any, object], where: str
) -> Iterator[tuple[int, int]]:
    partitions = _take_members(place, "partitions", where)
    if "0" not in partitions:
        raise _damaged(where, "there is no partition '0'")
    for key in partitions:
        offset = _take_number(partitions, key, f"{where}, partitions", _OFFSET_MAX)
        yield _read_partition(key, where), offset


def _decode_marks(
    place: Mapping[Any, object], where: str, positions: Mapping[int, int]
) -> Iterator[tuple[int, OffsetMark]]:
    if "marks" not in place:
        return
    marks = _take_members(place, "marks", where)
    where = f"{where}, marks"
    for key in marks:
        partition = _read_partition(key, where)
        if partition not in positions:
            raise _damaged(where, f"there is no partition {_show(key)} to mark")
        mark = _take_members(marks, key, where)
        # A mark covers bytes before the offset, and there are no more than this.
        bytes_max = min(MARK_BYTES_MAX, positions[partition])
        yield partition, _decode_mark(mark, where, bytes_max)


def _decode_mark(mark: Mapping[Any, object], where: str, bytes_max: int) -> OffsetMark:
    size, crc = _decode_sum(mark, where, bytes_max)
    head_size = head_crc = end = None
    if "head" in mark:
        head = _take_members(mark, "head", where)
        head_size, head_crc = _decode_sum(head, f"{where}, head", bytes_max)
    if "end" in mark:
        end = _take_number(mark, "end", where, _OFFSET_MAX)
    return OffsetMark(size, crc, head_size, head_crc, end)


def _decode_sum(
    covered: Mapping[Any, object], where: str, bytes_max: int
) -> tuple[int, int]:
    size = _take_number(covered, "bytes", where, bytes_max)
    return size, _take_number(covered, "crc32c", where, _CRC_MAX)


def _check_version(document: Mapping[Any, object]) -> None:
    if "version" not in document:
        raise _damaged(
            _OFFSET, "there is no 'version', so it is not an offset of this source"
        )
    version = document["version"]
    if not _is_whole(version) or version < 1:
        raise _damaged(
            _OFFSET, f"'version' is {_show(version)} and has to be a number from 1"
        )
    if version > OFFSET_VERSION:
        raise CheckpointError(
            _OFFSET,
            f"version {_show(version)} was written by a newer release of lance_spark "
            f"(this one reads version {OFFSET_VERSION})",
            "upgrade lance_spark",
        )


def _take_members(
    document: Mapping[Any, object], key: object, where: str
) -> Mapping[Any, object]:
    value = document.get(key)
    if not isinstance(value, Mapping):
        raise _damaged(where, f"{_find(document, key)} and has to be an object")
    return value


def _take_number(
    document: Mapping[Any, object], key: object, where: str, number_max: int
) -> int:
    value = document.get(key)
    if not _is_whole(value) or not 0 <= value <= number_max:
        raise _damaged(
            where,
            f"{_find(document, key)} and has to be a whole number from 0 to "
            f"{number_max}",
        )
    return value


def _read_partition(key: object, where: str) -> int:
    if not isinstance(key, str) or not PARTITION.fullmatch(key):
        raise _damaged(where, f"{_show(key)} is not the number of a partition")
    return int(key)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _find(document: Mapping[Any, object], key: object) -> str:
    found = _show(document[key]) if key in document else "missing"
    return f"{_show(key)} is {found}"


def _show(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    # Python refuses to write longer numbers than some thousand digits.
    if isinstance(value, int) and value.bit_length() > _SHOWN_MAX * 3:
        return "a number of too many digits"
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _damaged(where: str, reason: str) -> CheckpointError:
    return CheckpointError(where, reason, _DAMAGED)
