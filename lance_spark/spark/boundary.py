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
from lance_spark.spark.planning import Split
from lance_spark.spark.probe import find_boundary

# Finds a record that starts in [at, before), None if that can't be told.
Probe = Callable[[int, int], "int | None"]


@dataclass(frozen=True, slots=True)
class Extent:
    """The records of a split: those that start in [start, end).

    Args:
        start: offset of the first record.
        end: where the next split starts.
        is_probed: `end` is where a record seemed to start, so that the last record
            has to end there exactly; otherwise it may end behind it.
        is_last: there is no split behind this one.
    """

    start: int
    end: int
    is_probed: bool
    is_last: bool


def locate_extent(client: LanceClient, split: Split) -> Extent:
    """Ask the server where the records of a split start.

    Raises:
        DataLoss: the split's start is not in the log any more.
    """
    whole = split.range
    start = client.locate_offset(whole.topic_id, split.start).offset
    # Asked last: what was there then was there before, too.
    bounds = client.bounds(whole.topic_id)
    if bounds.start is not None and bounds.start > split.start:
        reason = "what was before the log start is removed"
        raise DataLoss(whole.topic, split.start, bounds.start, bounds.end, reason)
    is_last = split.index + 1 == split.parts
    return Extent(start, split.end, is_probed=False, is_last=is_last)


def probe_extent(client: LanceClient, split: Split) -> Extent | None:
    """Find by looking where the records of a split start and end.

    Returns:
        None if no start can be told: the records belong to the split before.
    """
    whole = split.range

    def fetch(start: int, size: int) -> memoryview:
        return fetch_exactly(
            client, whole.topic_id, start, min(size, whole.end - start)
        )

    def probe(at: int, before: int) -> int | None:
        return find_boundary(fetch, at, before=before, end=whole.end)

    return find_extent(split, probe)


def find_extent(split: Split, probe: Probe) -> Extent | None:
    """Decide where the records of a split start and end, given a way to look."""
    whole = split.range
    start: int | None = whole.start
    if split.index:
        start = probe(split.start, split.end)
    if start is None:
        return None
    for index in range(split.index + 1, split.parts):
        end = probe(split.point(index), split.point(index + 1))
        if end is not None:
            return Extent(start, end, is_probed=True, is_last=False)
    return Extent(start, whole.end, is_probed=False, is_last=True)


def fetch_exactly(
    client: LanceClient, topic_id: int, start: int, size: int
) -> memoryview:
    """Fetch so many bytes, fewer only where the log ends before."""
    parts: list[memoryview] = []
    missing = size
    while missing > 0:
        fetched = client.fetch(topic_id, start + size - missing, missing)
        if not len(fetched.data) or fetched.start != start + size - missing:
            break
        # A server may send more than it was asked for, to complete a record.
        parts.append(fetched.data[:missing])
        missing -= len(parts[-1])
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
