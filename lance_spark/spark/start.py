"""Where a stream starts that has no checkpoint yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lance_spark.client import Capability, LanceClient, TopicInfo
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark.bound import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    Bound,
    Earliest,
    Latest,
)
from lance_spark.spark.marking import take_offset_mark
from lance_spark.spark.planning import Limits, resolve_bound
from lance_spark.spark.topics import locate_time


def is_moving(bound: Bound) -> bool:
    """Tell whether a bound means another offset with each record that comes."""
    if isinstance(bound, AtOffsets):
        return any(offset == LATEST_OFFSET for _, offset in bound.offsets)
    return isinstance(bound, (Latest, AtTime))


def needs_pin(bound: Bound, start: StreamOffset) -> bool:
    """Tell whether the first batch has to be an empty one.

    Spark writes down where batches end, never where the first one starts, and asks
    for that again if the first batch was not finished. Where the answer may be another
    one by then, the first batch ends where it starts, which writes it down. What is
    earliest moves, too, when retention removes records that were to be read; where it
    is 0, that is known without being written down (`find_first_start`).
    """
    return is_moving(bound) or any(
        place.offset and _is_earliest(bound, topic) for topic, place in start.topics
    )


def find_first_start(
    bound: Bound, start: StreamOffset, end: StreamOffset
) -> StreamOffset:
    """Say where the first batch starts, which another process may have planned.

    Args:
        bound: what the user has said.
        start: what that means now.
        end: where the batch ends, as it was written down.
    """
    if is_moving(bound):
        # It is the pin, also for topics that the options do not name any more.
        return end
    if not any(_is_within(place, end.get(topic)) for topic, place in start.topics):
        return start
    # It has records, so it is no pin, and what was earliest was 0.
    return StreamOffset.of(
        {
            topic: TopicPlace.at(place.topic_id, place.created_s, 0)
            if _is_earliest(bound, topic)
            else place
            for topic, place in start.topics
        }
    )


def _is_earliest(bound: Bound, topic: str) -> bool:
    if isinstance(bound, AtOffsets):
        return bound.get(topic) == EARLIEST_OFFSET
    return isinstance(bound, Earliest)


def _is_within(start: TopicPlace, end: TopicPlace | None) -> bool:
    if end is None or not start.same_topic(end.topic_id, end.created_s):
        return False
    return start.offset < end.offset


def resolve_start(
    client: LanceClient, bound: Bound, topics: Sequence[TopicInfo]
) -> StreamOffset:
    """Say where a stream starts in each of its topics.

    A topic that has no offset where others have one is left out. It came after the
    stream was started, and is read from its beginning as all that come later are;
    `check_offsets` is for those that were there.

    Raises:
        Unsupported: it is a time, and the server has no index of times.
        TopicNotFound, TopicDeleted: a topic was deleted just now.
        DataLoss: the log of a plain server shrinks just now.
    """
    return StreamOffset.of(
        {
            info.name: _resolve_place(client, bound, info)
            for info in topics
            if not isinstance(bound, AtOffsets) or info.name in bound.topics
        }
    )


def _resolve_place(client: LanceClient, bound: Bound, info: TopicInfo) -> TopicPlace:
    bounds = client.bounds(info.id)
    # A server that does not say where a log starts lets it start at 0 always.
    log = Limits(bounds.start or 0, bounds.end)
    offset = resolve_bound(bound, info.name, log)
    if offset is None:
        assert isinstance(bound, AtTime)
        offset = locate_time(client, info.id, bound, "startingTimestamp")
    place = TopicPlace.at(info.id, info.created_at_s, offset)
    if client.supports(Capability.LOCATE):
        if log.start < offset < log.end:
            # What the user gives may be inside a record; a checkpoint never is.
            offset = client.locate_offset(info.id, offset).offset
        return TopicPlace.at(info.id, info.created_at_s, offset)
    if offset > log.end:
        # It is told as a loss when the first batch is planned.
        return place
    mark = take_offset_mark(client, info.name, place, log.end)
    return replace(place, marks=((0, mark),))
