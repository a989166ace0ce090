"""Rulers: where the records of a log end (`client.driver.Ruler`).

A checkpoint keeps batch ends for ever, so they have to be true record boundaries. Our
own broker knows them and is asked (`LocatedRuler`). Any other server is read, headers
and all, from the start of the batch (`WalkedRuler`): a boundary that was only probed is
good enough to split work, but a wrong one would stay in the checkpoint.

A ruler serves one log during one planning. It remembers the answers, because record
numbers and boundaries do not change, and it never answers with an offset outside the
range it was asked about. It does not handle loss: the client's errors go through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lance_spark.client import RecordReader
from lance_spark.errors import RecordError
from lance_spark.model import Location
from lance_spark.wire.lwp import RECORD_HEADER_BYTES

if TYPE_CHECKING:
    from lance_spark.client import LanceClient

# What Locate can carry.
_RECORD_MAX = 2**64 - 1
# The first fetch of a walk: most first records and small quotas need no second one,
# and a thousand topics cost no more than one large fetch each does elsewhere.
_FIRST_BYTES = 16 * 1024

_NOTHING = np.empty(0, np.int64)


class LocatedRuler:
    """Asks a server that has an index of its records.

    `end` is taken for a boundary, because the log ended there once. If retention has
    passed a start, the records before the log's start count as if they had no size.

    Args:
        client: of a server with the capability `locate`.
        topic_id: id of the topic.
    """

    def __init__(self, client: LanceClient, topic_id: int) -> None:
        self._client = client
        self._topic_id = topic_id
        # Number of the first record at or behind an offset.
        self._records: dict[int, int] = {}

    def fit(
        self, start: int, end: int, *, max_bytes: int | None, max_records: int | None
    ) -> int:
        """Find the last record boundary within limits; four requests at most.

        Raises:
            BrokerError, ConnectionLost, Timeout: the server refused or is away.
        """
        limit = _limit(start, end, max_bytes)
        if start >= limit or (max_records is not None and max_records < 1):
            return start
        found: Location | None = None
        if limit < end:
            found = self._find_last(limit)
            if found is None or found.offset <= start:
                return start
        if max_records is not None:
            first = self._record_at(start)
            if found is None or found.record - first > max_records:
                target = min(first + max_records, _RECORD_MAX)
                found = self._note(self._client.locate_record(self._topic_id, target))
                if found.offset > limit:
                    # The quota is larger than the range, or retention was quicker.
                    return end if limit == end else start
        return limit if found is None else min(max(found.offset, start), limit)

    def step(self, start: int, end: int) -> int | None:
        """Find the end of the record at `start`, with one request."""
        if start >= end:
            return None
        found = self._note(self._client.locate_offset(self._topic_id, start + 1))
        return found.offset if start < found.offset <= end else None

    def count(self, start: int, end: int) -> int:
        """Count the records between two boundaries; two requests at most."""
        if start >= end:
            return 0
        first, last = self._record_at(start), self._records.get(end)
        if last is None:
            found = self._note(self._client.locate_offset(self._topic_id, end))
            if found.offset > end:
                # Retention has passed the end meanwhile: none of them is left.
                return 0
            last = found.record
        return max(0, last - first)

    def _find_last(self, limit: int) -> Location | None:
        """Find the last boundary at or before a limit; None if it is gone."""
        after = self._note(self._client.locate_offset(self._topic_id, limit))
        if after.offset <= limit:
            return after
        if after.record == 0:
            return None
        # Numbers count up through segments, retention and overwriting alike. They start
        # where the log does, so the one before may be answered with a later place.
        before = self._client.locate_record(self._topic_id, after.record - 1)
        return self._note(before) if before.offset <= limit else None

    def _record_at(self, offset: int) -> int:
        record = self._records.get(offset)
        if record is None:
            record = self._client.locate_offset(self._topic_id, offset).record
            self._records[offset] = record
        return record

    def _note(self, found: Location) -> Location:
        self._records[found.offset] = found.record
        return found


class WalkedRuler:
    """Reads the records of a server that can't be asked, from a start on.

    A later question with the same start and a larger quota goes on where the last one
    stopped. The ruler holds the record ends of one chunk at a time. Nothing behind a
    partial or malformed record can be told, so answers end before it; a malformed
    record at the very start is an error, because no answer before it exists.

    Args:
        client: of any server.
        topic: its name, for errors.
        topic_id: its id.
        fetch_bytes: how much to ask for at once.
    """

    def __init__(
        self, client: LanceClient, topic: str, topic_id: int, fetch_bytes: int
    ) -> None:
        self._client = client
        self._topic = topic
        self._topic_id = topic_id
        self._fetch_bytes = fetch_bytes
        self._begin(0)

    def fit(
        self, start: int, end: int, *, max_bytes: int | None, max_records: int | None
    ) -> int:
        """Find the last record boundary within limits, reading no more than needed.

        Raises:
            DataLoss: the log does not have the bytes at `start` any more.
            RecordError: the bytes at `start` are not a record.
            BrokerError, ConnectionLost, Timeout: the server refused or is away.
        """
        limit = _limit(start, end, max_bytes)
        if start >= limit or (max_records is not None and max_records < 1):
            return start
        self._walk(start, limit, max_records)
        inside = self._count_held(limit)
        if max_records is not None:
            inside = min(inside, max_records - self._passed)
        return self._base + (int(self._ends[inside - 1]) if inside > 0 else 0)

    def step(self, start: int, end: int) -> int | None:
        """Find the end of the record at `start`; raises as `fit` does."""
        if start >= end:
            return None
        if start != self._origin or self._first_end is None:
            self._walk(start, end, 1)
        first = self._first_end
        return first if first is not None and first <= end else None

    def count(self, start: int, end: int) -> int:
        """Count the records between two boundaries; raises as `fit` does."""
        if start >= end:
            return 0
        self._walk(start, end, None)
        return self._passed + self._count_held(end)

    # The walk: [origin, base) is passed, the ends of [base, position] are held.

    def _begin(self, origin: int) -> None:
        self._origin = origin
        self._first_end: int | None = None
        self._base = origin
        # What a plain server had before the position, so that a walk that is taken up
        # again notices a shift in between.
        self._before: bytes | None = None
        self._passed = 0
        # Relative to the base, so that offsets of any size fit.
        self._ends: NDArray[np.int64] = _NOTHING
        # Nothing whole follows, or nothing that is a record.
        self._is_over = False

    @property
    def _position(self) -> int:
        return self._base + (int(self._ends[-1]) if len(self._ends) else 0)

    def _walk(self, start: int, limit: int, max_records: int | None) -> None:
        """Read until the last boundary within limits is among the held ones."""
        is_behind = limit < self._base or (
            max_records is not None and max_records < self._passed
        )
        if start != self._origin or is_behind:
            self._begin(start)
        if not self._is_wanted(limit, max_records):
            return
        reader = RecordReader(
            self._client,
            self._topic,
            self._position,
            end=limit,
            fetch_bytes=self._fetch_bytes,
            first_fetch_bytes=_FIRST_BYTES,
            # A quota of records may be met by any chunk; one of bytes ends the range.
            prefetch=max_records is None,
            topic_id=self._topic_id,
            before=self._before,
        )
        try:
            while self._is_wanted(limit, max_records):
                self._take(reader)
            self._before = reader.before
        finally:
            reader.close()

    def _is_wanted(self, limit: int, max_records: int | None) -> bool:
        if self._is_over or limit - self._position < RECORD_HEADER_BYTES:
            return False
        return max_records is None or self._passed + len(self._ends) < max_records

    def _take(self, reader: RecordReader) -> None:
        """Hold the next chunk instead of the last one."""
        try:
            chunk = reader.next_chunk(0.0)
        except RecordError:
            if self._first_end is None:
                raise
            self._is_over = True
            return
        if chunk is None:
            # Not there yet; a record that has only begun ends behind every range.
            self._is_over = True
            return
        self._base, self._passed = chunk.start, self._passed + len(self._ends)
        self._ends = np.append(chunk.starts[1:], len(chunk.data))
        if self._first_end is None:
            self._first_end = chunk.start + int(self._ends[0])

    def _count_held(self, limit: int) -> int:
        reach = min(limit, self._position) - self._base
        return int(np.searchsorted(self._ends, reach, "right"))


def _limit(start: int, end: int, max_bytes: int | None) -> int:
    return end if max_bytes is None else min(end, start + max(0, max_bytes))
