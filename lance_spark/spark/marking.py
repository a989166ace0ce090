"""Whether offsets mean what they meant, on servers that shift them when they delete.

A checkpoint may be read long after it was written. Three things are compared then: the
bytes before an offset, which are others after a shift unless records are alike; those
at the head of the log, which are others after each deletion, unless records are alike
there, too; and where the log ends, which is never before the end that was seen, unless
the server has deleted and not got as much since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from crc32c import crc32c

from lance_spark.client import LanceClient
from lance_spark.errors import DataLoss
from lance_spark.offset import MARK_BYTES_MAX, OffsetMark, StreamOffset, TopicPlace
from lance_spark.spark.boundary import fetch_exactly
from lance_spark.spark.planning import Limits, TopicRange
from lance_spark.spark.topics import check_mark, take_mark
from lance_spark.spark.watch import Head


def take_offset_mark(
    client: LanceClient, topic: str, place: TopicPlace, log_end: int
) -> OffsetMark:
    """Look at what stands before an offset and at the head of its log.

    Args:
        client: asks.
        topic: its name.
        place: the offset.
        log_end: where the log ends.

    Raises:
        DataLoss: the log ends before the offset.
    """
    size = min(MARK_BYTES_MAX, place.offset)
    # The bytes before the offset are the head themselves, if they are all there are.
    head_size = MARK_BYTES_MAX if place.offset > size else None
    return _look(client, topic, place, OffsetMark(size, 0, head_size, 0, log_end))


def _look(
    client: LanceClient, topic: str, place: TopicPlace, form: OffsetMark
) -> OffsetMark:
    """Take a mark of the same sizes as another one."""
    before = TopicRange(topic, place.topic_id, place.created_s, 0, place.offset)

    def sum_up(start: int, size: int) -> int:
        return crc32c(fetch_exactly(client, before, start, size))

    crc, head_crc = sum_up(place.offset - form.size, form.size), None
    if form.head_size is not None:
        head_crc = sum_up(0, form.head_size)
    return OffsetMark(form.size, crc, form.head_size, head_crc, form.end)


def is_marked_right(client: LanceClient, topic: str, place: TopicPlace) -> bool:
    """Tell whether an offset still means what it meant, as far as it has a mark.

    Marks of earlier releases cover less, and are compared with what they cover.
    """
    if place.mark is None:
        return True
    try:
        return _look(client, topic, place, place.mark) == place.mark
    except DataLoss:
        return False


def find_cut(topic: str, place: TopicPlace, log: Limits) -> Iterator[DataLoss]:
    """Say if a log ends before where it was seen to end, although the marks are right.

    Then unread records are gone, or records that look alike have shifted. The offset
    is still that of a record, so a query that accepts losses goes on there.
    """
    if place.offset <= log.end < place.seen_end:
        reason = (
            "the log was longer when the offset was written down: the server has "
            "deleted data, or the log was cut or restored from a copy"
        )
        yield DataLoss(topic, place.seen_end, log.start, log.end, reason)


def make_shifted(topic: str, place: TopicPlace, log: Limits) -> DataLoss:
    """Make the error for an offset that means something else by now."""
    reason = (
        "what stands before the offset is not what stood there when it was written "
        "down: the server has deleted data and its offsets have shifted"
    )
    return DataLoss(topic, place.offset, log.start, log.end, reason)


def mark_unread(
    client: LanceClient, start: StreamOffset, heads: Mapping[str, Head]
) -> list[TopicRange]:
    """Look at what is unread, to tell later whether its offsets have shifted since.

    Raises:
        DataLoss: it is not there any more.
        TopicNotFound, TopicDeleted: a topic is gone.
    """
    unread = []
    for topic, head in heads.items():
        place, first = start.get(topic), 0
        if place is not None and place.same_topic(head.topic_id, head.created_s):
            first = place.offset
        if first < head.end:
            whole = TopicRange(topic, head.topic_id, head.created_s, first, head.end)
            unread.append(replace(whole, mark=take_mark(client, whole, head.end)))
    return unread


def check_unread(client: LanceClient, unread: Sequence[TopicRange]) -> None:
    """Check that the offsets of what is unread mean what they meant.

    Raises:
        DataLoss: they do not.
        TopicNotFound, TopicDeleted: a topic is gone.
    """
    for whole in unread:
        check_mark(client, whole)
