"""Where the records of a log are: finders, rulers and marks.

**Finders** (`client.driver.RecordFinder`) find the records of a split, which is cut
without regard to records. A server that knows its records is asked for the first one at
or behind a point (`LocatedFinder`); on others the bytes are searched (`ProbedFinder`).
Both give the same answer to every task that asks about the same point, so the tasks on
its two sides agree without talking to each other. A search can be misled where values
hold records themselves, and an index by batches that were stored without a look at
their records. So a task checks that its records end where the next split was told to
start (`find_next`).

**Rulers** (`client.driver.Ruler`) find the end of a batch. A checkpoint keeps the end
for ever, so it has to be a true record boundary. Our own broker knows it and is
asked (`LocatedRuler`). Any other server is read, headers and all, from the start of the
batch (`WalkedRuler`): a boundary that was only probed is good enough to split work, but
a wrong one would stay in the checkpoint. A ruler serves one log during one planning. It
remembers the answers, because record numbers and boundaries do not change, and it never
answers with an offset outside the range it was asked about. It does not handle loss:
the client's errors go through.

**Marks** tell whether offsets of a plain server still mean the same bytes. It shifts
its offsets when it deletes, and nothing in its answers says so. What it deletes
is at the head of the log. So a mark covers the head of the log, and the bytes before an
offset or at both ends of a range. They are others after a shift, unless records are
alike in all of these places. The log's end is compared, too: a log that ends before
where it was seen to end was cut, or has lost more than it has got since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lance_spark.checksum import crc32c
from lance_spark.client.driver import Extent, LogRef, Range, Split
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.reader import REMOVED, RecordReader
from lance_spark.errors import DataLoss, RecordError
from lance_spark.model import MARK_BYTES_MAX, Location, OffsetMark
from lance_spark.wire.lwp import RECORD_HEADER_BYTES
from lance_spark.wire.lwp.chains import find_meeting, follow_chains

# (start, size) -> the bytes there, fewer only at the end of the range.
Fetch = Callable[[int, int], memoryview]

# Each is tried if the one before it did not do. The first holds enough records of up to
# some 5 KB, the last enough of up to 150 KB; larger ones are not worth the reading.
WINDOW_BYTES = (64 * 1024, 256 * 1024, 1024 * 1024)
# What Locate can carry.
_RECORD_MAX = 2**64 - 1
# The first fetch of a walk: most first records and small quotas need no second one,
# and a thousand topics cost no more than one large fetch each does elsewhere.
_FIRST_BYTES = 16 * 1024

_NOTHING = np.empty(0, np.int64)


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


@dataclass(frozen=True, slots=True)
class RangeMark:
    """How a range and its log looked when the range was planned.

    Args:
        size: how many bytes were looked at in each place, at most.
        crc: CRC32C of the first bytes of the log and the first and last of the range.
        log_end: where the log ended.
    """

    size: int
    crc: int
    log_end: int


def mark_offset(
    client: LanceClient, log: LogRef, offset: int, log_end: int
) -> OffsetMark:
    """Look at the bytes before an offset and at the head of its log.

    Raises:
        DataLoss: the log ends before the offset.
    """
    size = min(MARK_BYTES_MAX, offset)
    # The bytes before the offset are the head themselves, if they are all there are.
    head_size = MARK_BYTES_MAX if offset > size else None
    form = OffsetMark(size, 0, head_size, 0, log_end)
    return _look(client, log, offset, form)


def is_mark_right(
    client: LanceClient, log: LogRef, offset: int, mark: OffsetMark
) -> bool:
    """Tell whether an offset still means what it meant when it was marked.

    Marks of earlier releases cover less, and are compared with what they cover.
    """
    try:
        return _look(client, log, offset, mark) == mark
    except DataLoss:
        return False


def _look(
    client: LanceClient, log: LogRef, offset: int, form: OffsetMark
) -> OffsetMark:
    """Take a mark of the same sizes as another one."""
    before = Range(log, 0, offset)

    def sum_up(start: int, size: int) -> int:
        return crc32c(fetch_exactly(client, before, start, size))

    crc, head_crc = sum_up(offset - form.size, form.size), None
    if form.head_size is not None:
        head_crc = sum_up(0, form.head_size)
    return replace(form, crc=crc, head_crc=head_crc)


def mark_range(client: LanceClient, piece: Range, log_end: int) -> RangeMark:
    """Look at the log's head and at both ends of a range.

    Raises:
        DataLoss: they are not there.
    """
    size = min(MARK_BYTES_MAX, piece.size)
    crc = 0
    # In this order: where a part is empty, or the range is one part, less is asked.
    for start, end in (
        (0, min(MARK_BYTES_MAX, piece.start)),
        (piece.start, piece.start + size),
        (max(piece.start + size, piece.end - size), piece.end),
    ):
        crc = crc32c(fetch_exactly(client, piece, start, end - start), crc)
    return RangeMark(size, crc, log_end)


def is_range_right(client: LanceClient, piece: Range) -> bool:
    """Tell whether the offsets of a range mean what they meant when it was marked."""
    mark = piece.mark
    if not isinstance(mark, RangeMark):
        return True
    try:
        is_same = mark_range(client, piece, mark.log_end) == mark
    except DataLoss:
        is_same = False
    # A range that ends with its log has shown that the log is as long as it was.
    if is_same and piece.end < mark.log_end:
        is_same = client.bounds(piece.log.topic_id).end >= mark.log_end
    return is_same
