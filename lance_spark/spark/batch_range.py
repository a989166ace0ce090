"""Which bytes a micro-batch reads, given the offsets where it starts and ends.

After a restart this is asked for a batch that another process has planned, perhaps
long ago: whatever the offsets say is compared with what the server has now.
"""

from __future__ import annotations

from dataclasses import replace

from lance_spark.client import LanceClient
from lance_spark.errors import DataLoss, TopicDeleted, TopicNotFound
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark.marking import find_cut, is_marked_right, make_shifted
from lance_spark.spark.options import ReadOptions
from lance_spark.spark.planning import Limits, TopicRange, plan_range
from lance_spark.spark.topics import choose_locate, make_gone, take_mark


def resolve_batch(
    client: LanceClient,
    options: ReadOptions,
    *,
    start: StreamOffset,
    end: StreamOffset,
) -> tuple[list[TopicRange], list[DataLoss]]:
    """Say which bytes of which topics are between two offsets.

    A topic that is not in the start is read from its beginning, one that is not in the
    end not at all. A start behind the end is one that Spark has asked for anew, for a
    batch whose end it has written down: there is nothing in between.

    Returns:
        The ranges that are there, and what is gone.
    """
    is_located = choose_locate(client, options)
    ranges: list[TopicRange] = []
    losses: list[DataLoss] = []
    for topic, place in end.topics:
        before = start.get(topic)
        if before is not None:
            before = before.find(place.topic_id, place.created_s)
        first = 0 if before is None else before.offset
        if first >= place.offset:
            continue
        try:
            whole, found = _resolve_topic(client, topic, before=before, end=place)
        except (TopicNotFound, TopicDeleted):
            losses.append(make_gone(topic, place.topic_id, first))
            continue
        except DataLoss as loss:
            # A plain server deletes just now.
            losses.append(loss)
            continue
        losses.extend(found)
        if whole is not None and whole.size:
            ranges.append(replace(whole, is_located=is_located))
    return ranges, losses


def make_recreated(
    topic: str, place: TopicPlace, topic_id: int, log: Limits | None = None
) -> DataLoss:
    """Make the error for a topic that has another one's name.

    Args:
        topic: the name.
        place: how far the old one was read.
        topic_id: the new one's id.
        log: where the new one starts and ends, if that is known.
    """
    if any(earlier.topic_id == topic_id for earlier in place.earlier):
        reason = (
            f"the topic with id {place.topic_id} is gone, and the one with id "
            f"{topic_id}, which had the name before, is back: the stream goes on where "
            "it was in that one"
        )
    else:
        reason = (
            f"the topic was created anew: its id was {place.topic_id}, created at "
            f"{place.created_s}, and is {topic_id} now, so what was not read of the "
            "old one is gone"
        )
    if log is None:
        return DataLoss(topic, place.offset, None, None, reason)
    # A start behind the offset would count as bytes that are missing in between.
    log_start = log.start if log.start <= place.offset else None
    return DataLoss(topic, place.offset, log_start, log.end, reason)


def _resolve_topic(
    client: LanceClient, topic: str, *, before: TopicPlace | None, end: TopicPlace
) -> tuple[TopicRange | None, list[DataLoss]]:
    """Give the range of a topic, if there is one, and what is lost of it."""
    info = client.topic(end.topic_id)
    if info.name != topic or not end.same_topic(info.id, info.created_at_s):
        return None, [make_recreated(topic, end, info.id)]
    bounds = client.bounds(end.topic_id)
    log = Limits(bounds.start or 0, bounds.end)
    for place in (before, end):
        if place is not None and not is_marked_right(client, topic, place):
            return None, [make_shifted(topic, place, log)]
    first = 0 if before is None else before.offset
    planned = plan_range(topic, first, end.offset, log)
    losses = [*planned.losses, *find_cut(topic, end, log)]
    whole = TopicRange(
        topic=topic,
        topic_id=end.topic_id,
        created_s=end.created_s,
        start=planned.start,
        end=planned.end,
    )
    if bounds.start is None and whole.size:
        whole = replace(whole, mark=take_mark(client, whole, log.end))
    return whole, losses
