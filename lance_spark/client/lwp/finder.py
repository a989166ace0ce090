"""Finding the records of a split (`client.driver.RecordFinder`).

A split is cut without regard to records. A server that knows its records is asked for
the first one at or behind a point (`LocatedFinder`); on others the bytes are searched
(`ProbedFinder`). Both give the same answer to every task that asks about the same
point, so the tasks on its two sides agree without talking to each other.

A search can be misled where values hold records themselves, and an index by batches
that were stored without a look at their records. So a task checks that its records end
where the next split was told to start (`find_next`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from lance_spark.client.driver import Extent, Range, Split
from lance_spark.client.lwp.reader import REMOVED
from lance_spark.errors import DataLoss
from lance_spark.wire.lwp.chains import find_meeting, follow_chains

if TYPE_CHECKING:
    from lance_spark.client import LanceClient

# (start, size) -> the bytes there, fewer only at the end of the range.
Fetch = Callable[[int, int], memoryview]

# Each is tried if the one before it did not do. The first holds enough records of up to
# some 5 KB, the last enough of up to 150 KB; larger ones are not worth the reading.
WINDOW_BYTES = (64 * 1024, 256 * 1024, 1024 * 1024)


class LocatedFinder:
    """Asks a server that has an index of its records."""

    is_told = True

    def __init__(self, client: LanceClient) -> None:
        self._client = client

    def find_extent(self, split: Split) -> Extent:
        """Find the first record of a split, with two requests at most.

        The end needs none: the reader stops at the first record that starts behind it.
        """
        piece, topic_id = split.range, split.range.log.topic_id
        if piece.is_aligned and not split.index:
            # The first fetch tells whether retention has passed it.
            return self.find_rest(split, split.start)
        start = self._client.locate_offset(topic_id, split.start).offset
        if start != split.start:
            # Either the point is inside a record, or retention has passed it. Asked
            # last: what the log has now, it had before, too.
            log_start = self._client.locate_start(topic_id).offset
            if log_start > split.start:
                log_end = self._client.locate_end(topic_id).offset
                raise DataLoss(piece.topic, split.start, log_start, log_end, REMOVED)
        return self.find_rest(split, start)

    def find_rest(self, split: Split, start: int) -> Extent:
        """Return the end of the split as it was cut."""
        return Extent(start, split.end, is_last=split.is_last)

    def find_next(self, split: Split, extent: Extent) -> int | None:
        """Ask for the first record behind the split; None if retention has passed."""
        if extent.is_last:
            return None
        topic_id = split.range.log.topic_id
        found = self._client.locate_offset(topic_id, split.end).offset
        if found > split.end and self._client.locate_start(topic_id).offset >= found:
            return None
        return found

    def skip(self, split: Split, position: int, end: int) -> int:
        """Ask for the next record."""
        topic_id = split.range.log.topic_id
        return min(self._client.locate_offset(topic_id, position + 1).offset, end)

    def has_records(self, split: Split, position: int) -> bool:
        """Tell whether a record starts behind a position of the range."""
        return self.skip(split, position, split.range.end) < split.range.end


class ProbedFinder:
    """Searches the bytes for records."""

    is_told = False

    def __init__(self, client: LanceClient) -> None:
        self._client = client

    def find_extent(self, split: Split) -> Extent | None:
        """Search for the first record of the split and of the next."""
        start: int | None = split.range.start
        if split.index:
            start = self.probe(split.range, split.start, split.end)
        return None if start is None else self.find_rest(split, start)

    def find_rest(self, split: Split, start: int) -> Extent:
        """Search for the first record of the next split that has one."""
        for index in range(split.index + 1, split.parts):
            end = self.probe(split.range, split.point(index), split.point(index + 1))
            if end is not None:
                return Extent(start, end, is_last=False)
        return Extent(start, split.range.end, is_last=True)

    def find_next(self, split: Split, extent: Extent) -> int | None:
        """Return the extent's end, which was searched for."""
        return None if extent.is_last else extent.end

    def skip(self, split: Split, position: int, end: int) -> int:
        """Give up all that follows: nothing would tell a wrong guess."""
        return end

    def has_records(self, split: Split, position: int) -> bool:
        """Search behind a position."""
        return self.probe(split.range, position + 1, split.range.end) is not None

    def probe(self, piece: Range, at: int, before: int) -> int | None:
        """Find a record that starts in [at, before); None if that can't be told."""
        fetch = partial(fetch_exactly, self._client, piece)
        return find_boundary(fetch, at, before=before, end=piece.end)


def find_boundary(fetch: Fetch, at: int, *, before: int, end: int) -> int | None:
    """Find a position in [at, before) at which a record starts.

    It need not be the first. The answer depends on the bytes and the arguments alone.

    Args:
        fetch: gets bytes; is asked for those of [at, end) only.
        at: where to look from on.
        before: the answer is below it.
        end: where the range ends. A record may start before it and end behind it.

    Returns:
        The position, or None if the bytes do not tell.
    """
    window = b""
    for size in WINDOW_BYTES:
        rest = min(size, end - at) - len(window)
        window += bytes(fetch(at + len(window), rest)) if rest > 0 else b""
        is_all = at + size >= end or size == WINDOW_BYTES[-1]
        # Half of what is there shows where chains lead that start in the other half.
        reach = min(len(window), before - at) // 2
        found = find_meeting(follow_chains(window), reach, wary=not is_all)
        if found is not None:
            return at + found if at + found < before else None
        # To look much further than the answer may be is not worth the reading.
        if is_all or at + size >= before:
            break
    return None


def fetch_exactly(
    client: LanceClient, piece: Range, start: int, size: int
) -> memoryview:
    """Fetch so many bytes of a range that was there when it was planned.

    Raises:
        DataLoss: they are not there any more.
    """
    parts: list[memoryview] = []
    missing = size
    while missing > 0:
        at = start + size - missing
        fetched = client.fetch(piece.log.topic_id, at, missing)
        if not len(fetched.data):
            reason = "the log ends before the range that was planned"
            raise DataLoss(piece.topic, at, None, fetched.end, reason)
        if fetched.start != at:
            log_end = fetched.high_water_mark
            raise DataLoss(piece.topic, at, fetched.start, log_end, REMOVED)
        # A server may send more than it was asked for, to complete a record.
        parts.append(fetched.data[:missing])
        missing -= len(parts[-1])
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
