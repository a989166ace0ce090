"""Which topics are read and which ranges of them, as the server has them now."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace

from crc32c import crc32c

from lance_spark.client import Capability, LanceClient, TopicInfo
from lance_spark.errors import (
    DataLoss,
    OptionError,
    TopicDeleted,
    TopicNotFound,
    Unsupported,
)
from lance_spark.offset import MARK_BYTES_MAX
from lance_spark.spark.bound import AtOffsets, AtTime, Bound
from lance_spark.spark.boundary import fetch_exactly
from lance_spark.spark.options import ReadOptions
from lance_spark.spark.planning import (
    Limits,
    Mark,
    TopicRange,
    plan_range,
    resolve_bound,
)

logger = logging.getLogger(__name__)

_REMEDY = "set failOnDataLoss=false to go on with what is left"


def choose_topics(
    options: ReadOptions, listing: Sequence[TopicInfo]
) -> list[TopicInfo]:
    """Pick the topics that the options name, in the order of their names.

    Raises:
        TopicNotFound: a topic that is named is not there.
        OptionError: offsets are given for a topic that is not read.
    """
    by_name = {info.name: info for info in listing}
    if options.topic_pattern is not None:
        pattern = re.compile(options.topic_pattern)
        names = [name for name in by_name if pattern.fullmatch(name)]
    else:
        # All of them, where none has to be named.
        names = list(options.topics or by_name)
    missing = [name for name in names if name not in by_name]
    if missing:
        raise TopicNotFound(
            f"no topic is named {', '.join(map(repr, missing))}, or none that this "
            "client may use; create it, or correct the option topic"
        )
    for bound in (options.start, options.end):
        _check_named(bound, names)
    return [by_name[name] for name in sorted(names)]


def _check_named(bound: Bound, names: Sequence[str]) -> None:
    if isinstance(bound, AtOffsets):
        strangers = [topic for topic, _ in bound.offsets if topic not in names]
        if strangers:
            raise OptionError(
                f"offsets are given for {', '.join(map(repr, strangers))}, which is "
                f"not read; the topics are {', '.join(map(repr, names)) or 'none'}"
            )


def check_offsets(options: ReadOptions, topics: Sequence[TopicInfo]) -> None:
    """Check that offsets are given for all topics or for none.

    Raises:
        OptionError: a pattern matches a topic that has none.
    """
    for option, bound in (
        ("startingOffsets", options.start),
        ("endingOffsets", options.end),
    ):
        if isinstance(bound, AtOffsets):
            bound.check_complete(option, (info.name for info in topics))


def resolve_ranges(
    client: LanceClient, options: ReadOptions, topics: Sequence[TopicInfo]
) -> list[TopicRange]:
    """Say which bytes of the topics are to be read, and how.

    Raises:
        DataLoss: a part of what is asked for is gone, and that is an error.
        OptionError: a range ends before it starts, or a topic has no offset where
            others have one.
        Unsupported: a time is given, and the server has no index of times.
    """
    check_offsets(options, topics)
    is_located = choose_locate(client, options)
    ranges = []
    for info in topics:
        try:
            whole = _resolve_range(client, options, info)
        except (TopicNotFound, TopicDeleted):
            loss = make_gone(info.name, info.id)
            report_loss(loss, is_error=options.fail_on_data_loss)
        else:
            ranges.append(replace(whole, is_located=is_located))
    return ranges


def choose_locate(client: LanceClient, options: ReadOptions) -> bool:
    """Decide whether the server is asked where records start, or is looked into.

    Raises:
        Unsupported: the server can't be asked, and the option says it has to.
    """
    if client.supports(Capability.LOCATE):
        return options.splitting != "probe"
    if options.splitting == "locate":
        raise Unsupported(
            "splitting=locate (use auto, probe or none)",
            Capability.LOCATE.value,
            client.config.servers,
        )
    return False


def _resolve_range(
    client: LanceClient, options: ReadOptions, info: TopicInfo
) -> TopicRange:
    bounds = client.bounds(info.id)
    # A server that does not say where a log starts lets it start at 0 always.
    log = Limits(bounds.start or 0, bounds.end)

    def resolve(bound: Bound, option: str) -> int:
        offset = resolve_bound(bound, info.name, log)
        if offset is None:
            assert isinstance(bound, AtTime)
            # A record that came since may be the first one of that time.
            offset = min(locate_time(client, info.id, bound, option), log.end)
        return offset

    start = resolve(options.start, "startingTimestamp")
    end = resolve(options.end, "endingTimestamp")
    planned = plan_range(info.name, start, end, log)
    for loss in planned.losses:
        report_loss(loss, is_error=options.fail_on_data_loss)
    whole = TopicRange(
        topic=info.name,
        topic_id=info.id,
        created_s=info.created_at_s,
        start=planned.start,
        end=planned.end,
        ends_log=planned.end == log.end,
    )
    if bounds.start is None:
        whole = replace(whole, mark=take_mark(client, whole, log.end))
    return whole


def locate_time(client: LanceClient, topic_id: int, bound: AtTime, option: str) -> int:
    """Ask for the first record of a time.

    Raises:
        Unsupported: the server has no index of times.
    """
    if not client.supports(Capability.LOCATE):
        raise Unsupported(
            f"{option} (a plain server has no index of times; use offsets)",
            Capability.LOCATE.value,
            client.config.servers,
        )
    return client.locate_time(topic_id, bound.time_ns).offset


def take_mark(client: LanceClient, whole: TopicRange, log_end: int) -> Mark:
    """Look at the log's head and at both ends of a range.

    What a server deletes, it deletes at the head of the log. Records there and at the
    ends of the range may be alike by chance, but hardly in all three places.

    Raises:
        DataLoss: they are not there.
    """
    size = min(MARK_BYTES_MAX, whole.size)
    crc = 0
    # In this order: where a piece is empty, or the range is one piece, less is asked.
    for start, end in (
        (0, min(MARK_BYTES_MAX, whole.start)),
        (whole.start, whole.start + size),
        (max(whole.start + size, whole.end - size), whole.end),
    ):
        crc = crc32c(fetch_exactly(client, whole, start, end - start), crc)
    return Mark(size, crc, log_end)


def check_mark(client: LanceClient, whole: TopicRange) -> None:
    """Check that the offsets of a range mean what they meant when it was planned.

    Raises:
        DataLoss: they do not, so that nothing can be read by them.
    """
    mark = whole.mark
    if mark is None:
        return
    try:
        is_same = take_mark(client, whole, mark.log_end) == mark
    except DataLoss:
        is_same = False
    # A range that ends with its log has shown that the log is as long as it was.
    if is_same and whole.end < mark.log_end:
        is_same = client.bounds(whole.topic_id).end >= mark.log_end
    if not is_same:
        raise make_moved(whole)


def make_moved(whole: TopicRange) -> DataLoss:
    """Make the error for a range whose offsets mean something else by now."""
    reason = (
        "the server has deleted data and its offsets have shifted since the query was "
        "planned: run it again"
    )
    return DataLoss(whole.topic, whole.start, None, None, reason)


def make_gone(topic: str, topic_id: int, asked: int = 0) -> DataLoss:
    """Make the error for a topic that was there when the query began."""
    reason = f"topic id {topic_id} is gone: the topic was deleted"
    return DataLoss(topic, asked, None, None, reason)


def report_loss(loss: DataLoss, *, is_error: bool) -> None:
    """Raise a loss with its remedy, or say it in the log where that is enough."""
    if is_error:
        reason = f"{loss.reason}; {_REMEDY}"
        raise DataLoss(loss.topic, loss.asked, loss.log_start, loss.log_end, reason)
    logger.warning("going on in spite of failOnDataLoss: %s", loss)
