"""Which segments retention drops: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence

from lance_spark.model import Retention
from lance_spark.store.extent import LogStart
from lance_spark.store.segment import Segment


def plan_retention(
    segments: Sequence[Segment], retention: Retention, now_ns: int
) -> LogStart | None:
    """Find where the log should start.

    Whole segments are dropped from the old end: those whose last batch is too old, and
    then as many as it takes to come below the size. The last segment always stays.

    Returns:
        The new start, None if nothing is to be dropped.
    """
    keep = 0
    if retention.max_age_s:
        oldest_ns = now_ns - retention.max_age_s * 1_000_000_000
        while keep < len(segments) - 1 and segments[keep].last_append_ns < oldest_ns:
            keep += 1
    if retention.max_bytes:
        size = sum(segment.size for segment in segments[keep:])
        while keep < len(segments) - 1 and size > retention.max_bytes:
            size -= segments[keep].size
            keep += 1
    if keep == 0:
        return None
    first = segments[keep]
    return LogStart(first.base_offset, first.base_record, first.name.number)
