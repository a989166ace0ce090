"""Where a log starts and ends, and what an append has added to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lance_spark.store.segment import Segment


class LogStart(NamedTuple):
    """Where a log starts: its first offset and record, and in which segment."""

    offset: int = 0
    record: int = 0
    segment: int = 0


class Point(NamedTuple):
    """An offset, and the number of the record that starts there."""

    offset: int
    record: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a log, as a place that it can be set back to.

    Args:
        offset: offset of the next byte.
        record: number of the next record.
        segment: number of the last segment, -1 if there is none.
        size: bytes in that segment.
        rows: index rows of that segment.
        next_segment: number that a new segment would get.
    """

    offset: int
    record: int
    segment: int
    size: int
    rows: int
    next_segment: int


class LogState(NamedTuple):
    """How many segments a log had, and a copy of the last one, to go back to."""

    segments: int
    last: Segment | None


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch that is written, and durable once `Log.wait` says so."""

    start: int
    end: int
    record: int
    records: int
