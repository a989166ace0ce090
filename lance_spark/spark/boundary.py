"""Where the records of a split really start and end.

A split is cut without regard to records (`planning`). A server that knows its records
is asked for the first boundary at or behind a point; on others it is found by looking
(`probe`). Both give the same answer to everybody who asks about the same point, so the
tasks on its two sides agree without talking to each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lance_spark.client import LanceClient
from lance_spark.errors import DataLoss
from lance_spark.spark.planning import Split, TopicRange
from lance_spark.spark.probe import find_boundary

# Finds a record that starts in [at, before), None if that can't be told.
Probe = Callable[[int, int], "int | None"]


@dataclass(frozen=True, slots=True)
class Extent:
    """The records of a split: those that start in [start, end).

    Args:
        start: offset of the first record.
        end: where the next split's first record starts, so that our last one has to
            end there exactly. The last split's may end behind the range.
        is_last: there is no split behind this one.
    """

    start: int
    end: int
    is_last: bool


def locate_extent(client: LanceClient, split: Split) -> Extent:
    """Ask the server where the records of a split start.

    Raises:
        DataLoss: the split's start is not in the log any more.
    """
    whole = split.range
    start = client.locate_offset(whole.topic_id, split.start).offset
    extent = locate_end(client, split, start)
    # Asked last: what was there then was there before, too.
    bounds = client.bounds(whole.topic_id)
    if bounds.start is not None and bounds.start > split.start:
        reason = "what was before the log start is removed"
        raise DataLoss(whole.topic, split.start, bounds.start, bounds.end, reason)
    return extent


def locate_end(client: LanceClient, split: Split, start: int) -> Extent:
    """Ask the server where the records of a split end that starts with a record."""
    if split.index + 1 == split.parts:
        return Extent(start, split.end, is_last=True)
    end = client.locate_offset(split.range.topic_id, split.end).offset
    return Extent(start, end, is_last=False)


def probe_extent(client: LanceClient, split: Split) -> Extent | None:
    """Find by looking where the records of a split start and end.

    Returns:
        None if no start can be told: the records belong to the split before.

    Raises:
        DataLoss: bytes of the range are not in the log any more.
    """
    return find_extent(split, make_probe(client, split.range))


def make_probe(client: LanceClient, whole: TopicRange) -> Probe:
    """Make the function that looks for records in a range."""

    def fetch(start: int, size: int) -> memoryview:
        return fetch_exactly(client, whole, start, size)

    def probe(at: int, before: int) -> int | None:
        return find_boundary(fetch, at, before=before, end=whole.end)

    return probe


def find_extent(split: Split, probe: Probe) -> Extent | None:
    """Decide where the records of a split start and end, given a way to look."""
    start: int | None = split.range.start
    if split.index:
        start = probe(split.start, split.end)
    return None if start is None else probe_end(split, start, probe)


def probe_end(split: Split, start: int, probe: Probe) -> Extent:
    """Decide where the records of a split end that starts with a record."""
    for index in range(split.index + 1, split.parts):
        end = probe(split.point(index), split.point(index + 1))
        if end is not None:
            return Extent(start, end, is_last=False)
    return Extent(start, split.range.end, is_last=True)


def fetch_exactly(
    client: LanceClient, whole: TopicRange, start: int, size: int
) -> memoryview:
    """Fetch so many bytes of a range that was there when it was planned.

    Raises:
        DataLoss: they are not there any more.
    """
    parts: list[memoryview] = []
    missing = size
    while missing > 0:
        at = start + size - missing
        fetched = client.fetch(whole.topic_id, at, missing)
        if not len(fetched.data):
            reason = "the log ends before the range that was planned"
            raise DataLoss(whole.topic, at, None, fetched.end, reason)
        if fetched.start != at:
            mark = fetched.high_water_mark
            reason = "what was before the log start is removed"
            raise DataLoss(whole.topic, at, fetched.start, mark, reason)
        # A server may send more than it was asked for, to complete a record.
        parts.append(fetched.data[:missing])
        missing -= len(parts[-1])
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
