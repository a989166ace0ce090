"""Which byte ranges are read, and how they are cut into splits: decisions only.

A split is a nominal piece of a range, made by arithmetic, so that planning costs the
same for a topic of any size. A record belongs to the split that it starts in; where the
first one starts is found by the task that reads the split (`boundary`). Nothing here
talks to a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lance_spark.errors import DataLoss, OptionError
from lance_spark.model import RECORD_HEADER_BYTES
from lance_spark.spark.bound import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    Bound,
    Earliest,
    Latest,
)
from lance_spark.spark.options import ReadOptions
from lance_spark.spark.setting import BY_NAME

# Spark keeps an object per partition on the driver and a task per partition to run.
SPLITS_MAX = 100_000
# More than so many are made only if somebody asks: planning a large topic should take
# no longer than planning a small one, and most of it is what Spark does per partition.
UNASKED_SPLITS_MAX = 256


@dataclass(frozen=True, slots=True)
class Mark:
    """How a range and its log looked when the range was planned.

    On a server whose offsets shift when it deletes, that tells whether an offset still
    means what it meant then.

    Args:
        size: how many bytes were looked at in each place, at most.
        crc: CRC32C of the first bytes of the log and the first and last of the range.
        log_end: where the log ended; it never ends before, unless it was cut.
    """

    size: int
    crc: int
    log_end: int


@dataclass(frozen=True, slots=True)
class TopicRange:
    """The bytes [start, end) of one partition of a topic.

    Args:
        topic: its name.
        topic_id: its id.
        created_s: when it was created, which tells a topic from its successor.
        start: offset of the first byte.
        end: offset behind the last byte.
        is_located: the server is asked where records start; otherwise that is probed.
        ends_log: the log ended there when the range was planned.
        mark: what the range starts and ends with, on servers whose offsets may shift.
        partition: LWP topics have this one only.
    """

    topic: str
    topic_id: int
    created_s: int
    start: int
    end: int
    is_located: bool = True
    ends_log: bool = False
    mark: Mark | None = None
    partition: int = 0

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Split:
    """One of several pieces of a range that are nearly equal in bytes.

    Args:
        range: what was cut.
        index: which piece this is.
        parts: how many there are.
    """

    range: TopicRange
    index: int = 0
    parts: int = 1

    @property
    def start(self) -> int:
        """Where it starts, not regarding records."""
        return self.point(self.index)

    @property
    def end(self) -> int:
        """Where it ends, not regarding records."""
        return self.point(self.index + 1)

    def point(self, index: int) -> int:
        """Say where the piece of an index starts; the last one ends at `parts`."""
        whole = self.range
        return whole.start + whole.size * index // self.parts


def plan_splits(
    ranges: Sequence[TopicRange],
    *,
    min_partitions: int | None = None,
    max_partition_bytes: int | None = None,
) -> list[Split]:
    """Cut ranges into splits; empty ranges have none.

    Args:
        ranges: what is to be read.
        min_partitions: make at least so many, by cutting large ranges more often,
            where there would be fewer. A hint: a range is never cut into more pieces
            than records fit into it.
        max_partition_bytes: no split is larger; None cuts no range for its size.

    Raises:
        OptionError: these would be too many.
    """
    ranges = [piece for piece in ranges if piece.size > 0]
    total = sum(piece.size for piece in ranges)
    counts = [1] * len(ranges)
    if max_partition_bytes is not None:
        counts = [_count_parts(piece.size, max_partition_bytes, 1) for piece in ranges]
    if min_partitions is not None and sum(counts) < min_partitions:
        wanted = [_count_parts(piece.size, total, min_partitions) for piece in ranges]
        counts = [max(pair) for pair in zip(counts, wanted, strict=True)]
    if sum(counts) > SPLITS_MAX:
        raise OptionError(
            f"{total} bytes would be read in {sum(counts)} partitions, {SPLITS_MAX} "
            "are the most: raise maxPartitionBytes, or lower minPartitions"
        )
    return [
        Split(piece, index, parts)
        for piece, parts in zip(ranges, counts, strict=True)
        for index in range(parts)
    ]


def cut_ranges(ranges: Sequence[TopicRange], options: ReadOptions) -> list[Split]:
    """Cut ranges into splits as the options of a read say."""
    if options.splitting == "none":
        return plan_splits(ranges)
    size = options.max_partition_bytes
    if size is None:
        size = choose_partition_bytes(ranges, BY_NAME["maxPartitionBytes"].default)
    return plan_splits(
        ranges, min_partitions=options.min_partitions, max_partition_bytes=size
    )


def choose_partition_bytes(ranges: Sequence[TopicRange], least: int) -> int:
    """Choose how large splits may be where nobody has said it.

    Args:
        ranges: what is to be read.
        least: what it is, unless that makes too many.
    """
    total = sum(piece.size for piece in ranges)
    return max(least, _divide_up(total, UNASKED_SPLITS_MAX))


def _count_parts(size: int, whole: int, parts: int) -> int:
    """Say how many pieces a range gets where `whole` bytes get so many."""
    return min(_divide_up(size * parts, whole), _divide_up(size, RECORD_HEADER_BYTES))


def _divide_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a log starts and ends while a range of it is planned."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """The part of a range that is there, and what of it is not."""

    start: int
    end: int
    losses: tuple[DataLoss, ...] = ()


def plan_range(topic: str, start: int, end: int, log: Limits) -> PlannedRange:
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


def _find_losses(start: int, end: int, log: Limits) -> Iterator[tuple[int, str]]:
    # A range that starts at the log start, wherever that is, may end before it.
    if min(start, end) < log.start:
        yield min(start, end), "what was before the log start is removed"
    if start > log.end:
        yield start, "the log ends before it: the topic was cut, or created anew"
    elif end > log.end:
        yield end, "the log ends before it: the topic was cut, or created anew"


def resolve_bound(bound: Bound, topic: str, log: Limits) -> int | None:
    """Say which offset a bound means in a topic.

    Args:
        bound: what the user has said; offsets are given for this topic, too.
        topic: the topic's name.
        log: what is there.

    Returns:
        The offset; None if only the server can tell, because it is a time.
    """
    if isinstance(bound, Earliest):
        return log.start
    if isinstance(bound, Latest):
        return log.end
    if isinstance(bound, AtOffsets):
        offset = dict(bound.offsets)[topic]
        return {EARLIEST_OFFSET: log.start, LATEST_OFFSET: log.end}.get(offset, offset)
    return None
