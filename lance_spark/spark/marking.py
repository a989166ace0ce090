"""What stands before an offset, on servers whose offsets shift when they delete.

A checkpoint may be read long after it was written. The bytes before an offset tell
whether it still means what it meant then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from crc32c import crc32c

from lance_spark.client import LanceClient
from lance_spark.errors import DataLoss
from lance_spark.offset import MARK_BYTES_MAX, OffsetMark, StreamOffset, TopicPlace
from lance_spark.spark.boundary import fetch_exactly
from lance_spark.spark.planning import Limits, TopicRange
from lance_spark.spark.topics import check_mark, take_mark
from lance_spark.spark.watch import Head


def take_offset_mark(client: LanceClient, topic: str, place: TopicPlace) -> OffsetMark:
    """Look at what stands before an offset.

    Raises:
        DataLoss: the log ends before it.
    """
    size = min(MARK_BYTES_MAX, place.offset)
    start = place.offset - size
    before = TopicRange(topic, place.topic_id, place.created_s, start, place.offset)
    return OffsetMark(size, crc32c(fetch_exactly(client, before, start, size)))


def is_marked_right(client: LanceClient, topic: str, place: TopicPlace) -> bool:
    """Tell whether an offset still means what it meant, as far as it has a mark."""
    if place.mark is None:
        return True
    try:
        return take_offset_mark(client, topic, place) == place.mark
    except DataLoss:
        return False


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
            unread.append(replace(whole, mark=take_mark(client, whole)))
    return unread


def check_unread(client: LanceClient, unread: Sequence[TopicRange]) -> None:
    """Check that the offsets of what is unread mean what they meant.

    Raises:
        DataLoss: they do not.
        TopicNotFound, TopicDeleted: a topic is gone.
    """
    for whole in unread:
        check_mark(client, whole)
