"""Which ranges are read, and how they are cut into splits.

A read asks for positions; the server has what it has. Both are compared here, for batch
reads (`resolve_ranges`) and for the micro-batches of a stream (`resolve_batch`). What
is missing is a loss. Splits are cut by arithmetic, so that planning costs the same for
a topic of any size; the task that reads a split finds its first record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lance_spark.client.driver import (
    ConnectionConfig,
    Driver,
    LogRef,
    Range,
    Split,
    TopicEntry,
    Traits,
    list_topics,
)
from lance_spark.errors import DataLoss, OptionError, TopicDeleted, TopicNotFound
from lance_spark.model import Bounds, Partition
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark.bound import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    Bound,
)
from lance_spark.spark.options import SIZE_OPTION, ReadOptions, describe_missing

logger = logging.getLogger(__name__)

# Spark keeps an object per partition on the driver and a task per partition to run.
SPLITS_MAX = 100_000
# More splits are made only if the user asks for them: most of the time to plan a large
# topic is what Spark does per partition.
UNASKED_SPLITS_MAX = 256

_REMEDY = "set failOnDataLoss=false to go on with what is left"


# Splits.


def cut_ranges(
    ranges: Sequence[Range], options: ReadOptions, traits: Traits
) -> list[Split]:
    """Cut ranges into splits as the options of a read say; empty ranges have none.

    If the user does not say how large splits may be, there are not too many of them.

    Raises:
        OptionError: there would be too many splits.
    """
    if options.splitting == "none":
        return plan_splits(ranges, traits)
    size = options.max_partition_size
    if size is None:
        total = sum(piece.size for piece in ranges)
        size = max(traits.split_units, _divide_up(total, UNASKED_SPLITS_MAX))
    return plan_splits(
        ranges, traits, min_partitions=options.min_partitions, max_partition_size=size
    )


def plan_splits(
    ranges: Sequence[Range],
    traits: Traits,
    *,
    min_partitions: int | None = None,
    max_partition_size: int | None = None,
) -> list[Split]:
    """Cut ranges into splits; empty ranges have none.

    Args:
        ranges: what is to be read.
        traits: what positions are, and how large the smallest record is.
        min_partitions: make at least so many splits, by cutting large ranges more
            often. A hint: a range is never cut into more pieces than it has records.
        max_partition_size: no split is larger; None cuts no range for its size.

    Raises:
        OptionError: there would be too many splits.
    """
    ranges = [piece for piece in ranges if piece.size > 0]
    total = sum(piece.size for piece in ranges)
    counts = [1] * len(ranges)

    def count(size: int, whole_size: int, parts: int) -> int:
        """Say how many pieces a range gets where `whole_size` gets so many."""
        most = _divide_up(size, traits.record_units_min)
        return min(_divide_up(size * parts, whole_size), most)

    if max_partition_size is not None:
        counts = [count(piece.size, max_partition_size, 1) for piece in ranges]
    if min_partitions is not None and sum(counts) < min_partitions:
        wanted = [count(piece.size, total, min_partitions) for piece in ranges]
        counts = [max(pair) for pair in zip(counts, wanted, strict=True)]
    if sum(counts) > SPLITS_MAX:
        raise OptionError(
            f"{total} {traits.unit} would be read in {sum(counts)} partitions, "
            f"{SPLITS_MAX} are the most: raise {SIZE_OPTION[traits.unit]}, or lower "
            "minPartitions"
        )
    return [
        Split(piece, index, parts)
        for piece, parts in zip(ranges, counts, strict=True)
        for index in range(parts)
    ]


def _divide_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


# Ranges.


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The part of a range that is there, and what of it is not."""

    start: int
    end: int
    losses: tuple[DataLoss, ...] = ()


def plan_range(topic: str, start: int, end: int, log: Bounds) -> PlannedRange:
    """Compare the range that is asked for with the log.

    Args:
        topic: the topic's name, for errors.
        start: the first offset that is asked for.
        end: the offset behind the last.
        log: what is there.

    Returns:
        The range that can be read, perhaps empty, and each loss to report.

    Raises:
        OptionError: the range ends before it starts.
    """
    if start > end and end >= log.start and start <= log.end:
        raise OptionError(
            f"topic {topic!r}: the range starts at offset {start}, after its end at "
            f"{end}; lower the start or raise the end (log start {log.start}, log end "
            f"{log.end})"
        )
    losses = [
        DataLoss(topic, offset, log.start, log.end, reason)
        for offset, reason in _find_losses(start, end, log)
    ]
    start = min(max(start, log.start), log.end)
    return PlannedRange(start, max(start, min(end, log.end)), tuple(losses))


def _find_losses(start: int, end: int, log: Bounds) -> Iterator[tuple[int, str]]:
    # A range that starts at the log start, wherever that is, may end before it.
    if min(start, end) < log.start:
        yield min(start, end), "what was before the log start is removed"
    if start > log.end:
        yield start, "the log ends before it: the topic was cut, or created anew"
    elif end > log.end:
        yield end, "the log ends before it: the topic was cut, or created anew"


def resolve_bound(
    driver: Driver, bound: Bound, log: LogRef, bounds: Bounds, *, option: str
) -> int:
    """Say which position a bound means in a partition.

    Args:
        driver: is asked if it is a time.
        bound: what the user has said; if it is offsets, they include this partition.
        log: which partition.
        bounds: where it starts and ends.
        option: the one that gives a time, for errors.

    Raises:
        Unsupported: it is a time, and the server has no index of times.
    """
    if not isinstance(bound, AtOffsets):
        return driver.locate_time(log, bound.time_ns, option=option)
    offset = bound.get(log.partition)
    assert offset is not None
    ends = {EARLIEST_OFFSET: bounds.start, LATEST_OFFSET: bounds.end}
    return ends.get(offset, offset)


# Topics.


def find_topics(driver: Driver, options: ReadOptions) -> list[TopicEntry]:
    """Find the topics that the options name, in the order of their names.

    Raises:
        TopicNotFound: a topic that is named is not there.
        OptionError: offsets are given for a topic that is not read.
    """
    if driver.traits.creates_to_find:
        logger.warning(
            "%s finds a stream by its name only by creating it: of %s, those that did "
            "not exist exist now and are empty; option streamId reads without that",
            driver.traits.protocol,
            ", ".join(map(repr, options.topics)),
        )
    return choose_topics(options, list_topics(driver, options.topics))


def choose_topics(
    options: ReadOptions, listing: Sequence[TopicEntry]
) -> list[TopicEntry]:
    """Pick the topics that the options name, in the order of their names.

    Raises:
        TopicNotFound: a topic that is named is not there.
        OptionError: offsets are given for a topic that is not read.
    """
    chosen = [entry for entry in listing if options.reads(entry.name)]
    names = sorted(entry.name for entry in chosen)
    missing = [name for name in options.topics if name not in names]
    if missing:
        raise TopicNotFound(_explain_missing(options.client, missing, listing))
    if options.topic_pattern is not None and not chosen:
        logger.warning(
            "no topic matches topicPattern %r: there is nothing to read",
            options.topic_pattern,
        )
    for bound in (options.start, options.end):
        if isinstance(bound, AtOffsets):
            _check_named(bound, names)
    return sorted(chosen, key=lambda entry: entry.name)


def _explain_missing(
    config: ConnectionConfig, missing: Sequence[str], listing: Sequence[TopicEntry]
) -> str:
    """Say what to ask for instead of topics whose partitions are topics here."""
    for name in missing:
        parts = [e.name for e in listing if e.name.startswith(f"{name}/")]
        if f"{name}/0" in parts:
            return (
                f"topic {name!r} has {len(parts)} partitions, which are topics of "
                f"their own in this format: name them, {f'{name}/0'!r} to "
                f"{f'{name}/{len(parts) - 1}'!r}, or read it with a format that has "
                "partitions, such as tank"
            )
    return describe_missing(config, missing)


def _check_named(bound: AtOffsets, names: Sequence[str]) -> None:
    strangers = [topic for topic in bound.topics if topic not in names]
    if strangers:
        raise OptionError(
            f"offsets are given for {', '.join(map(repr, strangers))}, which is not "
            f"read; the topics are {', '.join(map(repr, names)) or 'none'}"
        )


def check_offsets(options: ReadOptions, topics: Sequence[TopicEntry]) -> None:
    """Check that offsets are given for all topics and partitions, or for none.

    Raises:
        OptionError: a pattern matches a topic that has none, or a partition has none.
    """
    for option, bound in (
        ("startingOffsets", options.start),
        ("endingOffsets", options.end),
    ):
        if isinstance(bound, AtOffsets):
            bound.check_complete(option, (entry.name for entry in topics))
            for entry in topics:
                bound.check_partitions(option, entry.name, entry.partitions)


def find_bounds(driver: Driver, entry: TopicEntry) -> dict[LogRef, Bounds]:
    """Say where the partitions of a topic start and end, as its listing has them.

    Raises:
        TopicNotFound: a partition is gone.
    """
    if entry.bounds is not None:
        return {log: entry.bounds[log.partition.number] for log in entry.logs}
    found = driver.bounds(entry.logs)
    if len(found) < len(entry.logs):
        raise TopicNotFound(describe_missing(driver.config, [entry.name]))
    return {log: found[log.partition] for log in entry.logs}


# Ranges of a batch read.


def resolve_ranges(
    driver: Driver, options: ReadOptions, topics: Sequence[TopicEntry]
) -> list[Range]:
    """Say which positions of the topics are to be read, and how.

    Raises:
        DataLoss: a part of what is asked for is gone, and that is an error.
        OptionError: a range ends before it starts, or a topic has no offset where
            others have one.
        Unsupported: a time is given, and the server has no index of times.
    """
    check_offsets(options, topics)
    finder = driver.choose_finder(options.splitting)
    ranges: list[Range] = []
    for entry in topics:
        try:
            for log, bounds in find_bounds(driver, entry).items():
                planned = _resolve_range(driver, options, log, bounds)
                piece = Range(
                    log,
                    planned.start,
                    planned.end,
                    finder,
                    ends_log=planned.end == bounds.end,
                    is_aligned=planned.start in (bounds.start, bounds.end),
                )
                ranges.append(driver.mark_range(piece, bounds.end))
        except (TopicNotFound, TopicDeleted):
            loss = make_gone(entry.logs[0], 0)
            _report(driver, options, loss)
    return ranges


def _resolve_range(
    driver: Driver, options: ReadOptions, log: LogRef, bounds: Bounds
) -> PlannedRange:
    asked: list[int] = []
    for bound, option in (
        (options.start, "startingTimestamp"),
        (options.end, "endingTimestamp"),
    ):
        position = resolve_bound(driver, bound, log, bounds, option=option)
        # A record that came since may be the first one of that time.
        is_time = isinstance(bound, AtTime)
        asked.append(min(position, bounds.end) if is_time else position)
    start, end = asked
    planned = plan_range(log.name, start, end, bounds)
    for loss in planned.losses:
        _report(driver, options, loss)
    return planned


def _report(driver: Driver, options: ReadOptions, loss: DataLoss) -> None:
    is_error = options.fail_on_data_loss
    report_loss(loss, is_error=is_error, unit=driver.traits.unit)


# Ranges of a micro-batch.


def resolve_batch(
    driver: Driver,
    options: ReadOptions,
    *,
    start: StreamOffset,
    end: StreamOffset,
    aligned: Mapping[Partition, int] | None = None,
) -> tuple[list[Range], list[DataLoss]]:
    """Say which positions of which partitions are between two offsets.

    After a restart this is asked for a batch that another process has planned, perhaps
    long ago: whatever the offsets say is compared with what the server has now. A
    partition that is not in the start is read from its beginning, one that is not in
    the end not at all. If the start is behind the end, Spark has asked for it anew, for
    a batch whose end it has written down: there is nothing in between.

    Args:
        driver: asks.
        options: what the user has said.
        start: where the batch starts.
        end: where it ends.
        aligned: positions at which records were seen to start.

    Returns:
        The ranges that are there, and what is gone.
    """
    finder = driver.choose_finder(options.splitting)
    first = driver.traits.first_position
    ranges: list[Range] = []
    losses: list[DataLoss] = []
    for topic, place in end.topics:
        before = start.get(topic)
        if before is not None:
            before = before.find(place.topic_id, place.created_s)
        starts = {} if before is None else dict(before.positions)
        for number, stop in place.positions:
            begin = starts.get(number, first)
            if begin >= stop:
                continue
            log = LogRef(Partition(topic, number), place.topic_id, place.created_s)
            piece = Range(log, begin, stop, finder)
            try:
                found = _compare(driver, piece, before, place, aligned or {})
            except (TopicNotFound, TopicDeleted):
                losses.append(make_gone(log, piece.start))
            except DataLoss as loss:
                # A plain server deletes just now.
                losses.append(loss)
            else:
                ranges += found[0]
                losses += found[1]
    return ranges, losses


def _compare(
    driver: Driver,
    asked: Range,
    before: TopicPlace | None,
    end: TopicPlace,
    aligned: Mapping[Partition, int],
) -> tuple[list[Range], list[DataLoss]]:
    """Give what is there of a range of one partition, and what is lost of it."""
    log, unit = asked.log, driver.traits.unit
    entry = driver.describe(log)
    if entry.name != log.topic or not end.same_topic(entry.topic_id, entry.created_s):
        return [], [make_recreated(log, end, entry.topic_id)]
    bounds = find_bounds(driver, entry).get(log)
    if bounds is None:
        return [], [make_gone(log, asked.start)]
    # Where records have numbers, a log that ends inside of the batch still has those
    # before its end.
    is_cut = asked.finder == "counted" and bounds.end < asked.end
    for place in (before, None if is_cut else end):
        if place is not None and not is_marked_right(driver, log, place):
            return [], [make_shifted(log, place, bounds, unit)]
    planned = plan_range(log.name, asked.start, asked.end, bounds)
    losses = [*planned.losses, *find_cut(log, end, bounds, unit)]
    if planned.start == planned.end:
        return [], losses
    piece = Range(
        log,
        planned.start,
        planned.end,
        asked.finder,
        is_aligned=planned.start in (bounds.start, aligned.get(log.partition)),
    )
    return [driver.mark_range(piece, bounds.end)], losses


# Losses.


def is_marked_right(driver: Driver, log: LogRef, place: TopicPlace) -> bool:
    """Tell whether a position still means what it meant, as far as it has a mark."""
    number = log.partition.number
    mark = place.mark_of(number)
    return mark is None or driver.is_mark_right(log, place.position(number), mark)


def find_cut(
    log: LogRef, place: TopicPlace, bounds: Bounds, unit: str
) -> Iterator[DataLoss]:
    """Say if a log ends before where it was seen to end, although its mark is right.

    Then unread records are gone, or records that look alike have shifted. The position
    is still that of a record, so a query that accepts losses goes on there.
    """
    number = log.partition.number
    seen_end = place.seen_end(number)
    if place.position(number) <= bounds.end < seen_end:
        reason = (
            f"the log was {seen_end - bounds.end} {unit} longer when the offset "
            "was written down: the server has deleted data, or the log was cut "
            "or restored from a copy"
        )
        yield DataLoss(log.name, seen_end, bounds.start, bounds.end, reason)


def make_shifted(
    log: LogRef, place: TopicPlace, bounds: Bounds, unit: str = "bytes"
) -> DataLoss:
    """Make the error for a position that means something else by now."""
    if unit == "bytes":
        reason = (
            "the bytes before the offset are not those that stood there when it was "
            "written down: the server has deleted data and its offsets have shifted"
        )
    else:
        reason = (
            "the records before the offset are not those that stood there when it was "
            "written down: the server has lost its records, or another log has taken "
            "the place of this one"
        )
    position = place.position(log.partition.number)
    return DataLoss(log.name, position, bounds.start, bounds.end, reason)


def check_range(driver: Driver, piece: Range) -> None:
    """Check that the positions of a range have not shifted since it was planned.

    Raises:
        DataLoss: they have, so nothing can be read by them.
        TopicNotFound, TopicDeleted: the topic is gone.
    """
    if not driver.is_range_right(piece):
        raise make_moved(piece)


def make_moved(piece: Range) -> DataLoss:
    """Make the error for a range whose positions mean something else by now."""
    reason = (
        "the server has deleted data and its offsets have shifted since the query was "
        "planned: run it again"
    )
    return DataLoss(piece.log.name, piece.start, None, None, reason)


def make_recreated(
    log: LogRef, place: TopicPlace, topic_id: int, bounds: Bounds | None = None
) -> DataLoss:
    """Make the error for a topic that has taken another one's name.

    Args:
        log: which partition.
        place: how far the old topic was read.
        topic_id: the new one's id.
        bounds: where the new one starts and ends, if that is known.
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
            f"{place.created_s}, and is {topic_id} now, so records of the old one that "
            "were not read are gone"
        )
    position = place.position(log.partition.number)
    if bounds is None:
        return DataLoss(log.name, position, None, None, reason)
    # A start behind the position would count as bytes that are missing in between.
    log_start = bounds.start if bounds.start <= position else None
    return DataLoss(log.name, position, log_start, bounds.end, reason)


def make_gone(log: LogRef, asked: int) -> DataLoss:
    """Make the error for a topic that was there when the query began."""
    # Not every protocol has ids.
    which = f"topic id {log.topic_id}" if log.topic_id else "it"
    reason = f"{which} is gone: the topic was deleted"
    return DataLoss(log.name, asked, None, None, reason)


def report_loss(loss: DataLoss, *, is_error: bool, unit: str = "bytes") -> None:
    """Raise a loss with its remedy, or log it where the user accepts losses."""
    at = loss.topic, loss.asked, loss.log_start, loss.log_end
    if is_error:
        raise DataLoss(*at, f"{loss.reason}; {_REMEDY}", unit)
    told = DataLoss(*at, loss.reason, unit)
    logger.warning("going on in spite of failOnDataLoss: %s", told)
