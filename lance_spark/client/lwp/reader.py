"""Whole records of a topic, in chunks, with the next fetch under way.

A server may cut an answer anywhere, so the reader keeps the bytes behind the last whole
record and puts them before the next answer. A lost connection costs these bytes and
nothing else: reading goes on behind the last record that was handed out. The reader
does not rely on a server's word for how many records it sent.

The next fetch is sent before the records of the last one are even counted. An answer
with records is used. An empty one was asked for too early, and is asked for again at
the next call.

The offsets of a plain server are positions in what is left of a log: they shift when
it deletes, and nothing in an answer says so. So each fetch from such a server starts
before the bytes that are wanted, with some that were read already: the overlap. If the
server has other bytes there by now, the offset means something else, and that is
DataLoss.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lance_spark.client.lwp.answer import Fetched, PendingFetch
from lance_spark.client.lwp.client import LanceClient
from lance_spark.errors import (
    DataLoss,
    LanceError,
    OffsetsShifted,
    RecordError,
    RemoteProtocolError,
    TopicDeleted,
    TopicNotFound,
)
from lance_spark.model import Scan
from lance_spark.net.deadline import Deadline
from lance_spark.quantity import check_number
from lance_spark.records import Records
from lance_spark.wire.lwp import RECORD_HEADER_BYTES, Capability, read_records, scan

FETCH_BYTES_DEFAULT = 4 * 1024 * 1024
# What a server in the field can answer at most: 16 MiB with both headers.
FETCH_BYTES_MAX = 16 * 1024 * 1024 - 60

# How much of what was read last a fetch from a plain server asks for again. That is
# some hundred records of common size, or several padded ones of a few KiB, and half a
# percent of a fetch of default size.
OVERLAP_BYTES = 16 * 1024

# A wait on the server is cut into pieces, so that a request never outlives its timeout
# and no other thread on the connection waits longer than this.
_WAIT_PIECE_S = 5.0
# A server that can't wait is asked again after a pause that doubles.
_PAUSE_S_MIN = 0.002
_PAUSE_S_MAX = 0.25
# Why an offset before the log's start can't be read.
REMOVED = "what was before the log start is removed"
# How much more each fetch asks for than the one before, where the first is small.
_GROWTH = 4


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records of a topic, at least one.

    Args:
        start: offset of the first.
        end: offset behind the last.
        data: their bytes.
        records: how many they are.
        high_water_mark: where the log ended then; None if the server does not say.
        starts: where each starts in `data`.
        before: what stands before the first, on a plain server.
    """

    start: int
    end: int
    data: memoryview
    records: int
    high_water_mark: int | None
    starts: NDArray[np.int64] = field(repr=False, compare=False)
    before: bytes = field(default=b"", repr=False, compare=False)

    @property
    def found(self) -> Scan:
        """Where the records are, as `decode` takes it instead of looking again."""
        return Scan(self.starts, len(self.data))

    def split(self, records: int) -> tuple[Chunk, Chunk | None]:
        """Cut behind so many records, without a copy; None if nothing is left."""
        if records >= self.records:
            return self, None
        at = int(self.starts[records])
        data, starts, cut = self.data, self.starts, self.start + at
        hwm = self.high_water_mark
        before = join_last(self.before, data[:at]) if hwm is None else b""
        first = Chunk(self.start, cut, data[:at], records, hwm, starts[:records])
        left, after = self.records - records, starts[records:] - at
        rest = Chunk(cut, self.end, data[at:], left, hwm, after, before)
        return replace(first, before=self.before), rest


class RecordReader:
    """Reads the records of a topic that start in [start, end); one thread may use it.

    Args:
        client: has the connection.
        topic: name, or id. A name is looked up once: a topic that is created anew
            under it is another one, and the old one's records are lost.
        start: offset of a record.
        end: where to stop; None never does.
        fetch_bytes: how much to ask for at once.
        first_fetch_bytes: ask for so much at first and for four times as much each
            time, up to `fetch_bytes`, so that the first records come early.
        prefetch: keep a fetch under way while the caller works.
        follow_s: how long to wait for records at the log's end by default.
        topic_id: the id of the topic, if it is known already.
        before: the bytes that stood before `start` when they were read; a plain server
            has to have them there still. Without it the first fetch looks at what
            stands there.
        clock: a monotonic clock.
        sleep: waits where the server can't.
    """

    def __init__(
        self,
        client: LanceClient,
        topic: int | str,
        start: int,
        *,
        end: int | None = None,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        first_fetch_bytes: int | None = None,
        prefetch: bool = True,
        follow_s: float = 0.0,
        topic_id: int | None = None,
        before: bytes | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        check_number("fetch_bytes", fetch_bytes, 1, FETCH_BYTES_MAX)
        if first_fetch_bytes is not None:
            check_number("first_fetch_bytes", first_fetch_bytes, 1)
        self.topic = topic
        self.topic_id = client.topic_id(topic) if topic_id is None else topic_id
        self._client = client
        self._end = end
        self._fetch_bytes = fetch_bytes
        # What the next fetch asks for, or the one that is under way did.
        self._ask_bytes = min(first_fetch_bytes or fetch_bytes, fetch_bytes)
        self._prefetch = prefetch
        self._follow_s = follow_s
        self._clock = clock
        self._sleep = sleep
        # Offset of the next record to hand out.
        self.position = start
        # The bytes from there on that are no whole record yet.
        self._tail = memoryview(b"")
        # What stands before the position, on a plain server: at most OVERLAP_BYTES.
        # None before the first look.
        self.before = before
        # The fetch that is under way, and what its answer has to begin with.
        self._pending: tuple[PendingFetch, bytes] | None = None
        # At the last look there was nothing behind what was read.
        self._is_idle = False
        # A shift that was told. It is told again until there is a seek: the next fetch
        # has nothing to compare with if the reader has given its bytes up.
        self._shifted: DataLoss | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every record that starts before `end` was handed out."""
        return self._end is not None and self.position >= self._end

    def seek(self, position: int, *, before: bytes | None = None) -> None:
        """Go on at the offset of another record.

        Args:
            position: the offset.
            before: the bytes that stood before it when they were read, if they were.
        """
        self._drop_rest()
        self.position, self.before = position, before
        self._shifted, self._is_idle = None, False

    def close(self) -> None:
        """Give up the fetch that is under way; the client stays open."""
        self._drop_rest()

    def next_chunk(self, wait_s: float | None = None) -> Chunk | None:
        """Return the next records.

        Args:
            wait_s: how long to wait for some at the log's end; `follow_s` if not
                given. A server that can't be reached is waited for on top of it, up
                to the client's `retry_timeout_s`.

        Returns:
            At least one record, or None if there is none: all are read, or none came
            in time.

        Raises:
            DataLoss: the record at `position` is not in the log any more.
            OffsetsShifted: a plain server has deleted what was before it and shifted
                its offsets, so that the record can't be found.
            RecordError: the bytes there are not a record; its position is an offset.
        """
        deadline = Deadline.after(
            self._follow_s if wait_s is None else wait_s, self._clock
        )
        pause_s = _PAUSE_S_MIN
        if self._shifted is not None:
            raise self._shifted
        while not self.is_finished:
            asked_at_s = self._clock()
            fetched = self._take(deadline)
            if len(fetched.data):
                chunk = self._cut(fetched)
                if chunk is not None:
                    return chunk
            elif deadline.expired:
                return None
            else:
                # A server that waited for us has done so already.
                rest_s = asked_at_s + pause_s - self._clock()
                self._sleep(max(0.0, min(rest_s, deadline.remaining())))
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        return None

    # Fetching.

    @property
    def _next(self) -> int:
        """Offset of the next byte to fetch."""
        return self.position + len(self._tail)

    def _take(self, deadline: Deadline) -> Fetched:
        """Get the next bytes, none if the log ends here and the deadline passes."""
        fetched = self._take_pending()
        if fetched is None:
            wait_s = min(deadline.remaining(), _WAIT_PIECE_S)
            fetched = self._fetch(wait_s)
        if len(fetched.data):
            # The largest fetch has the overlap within it.
            full = min(self._ask_bytes, FETCH_BYTES_MAX - OVERLAP_BYTES)
            is_full = len(fetched.data) >= full
            self._ask_bytes = min(_GROWTH * self._ask_bytes, self._fetch_bytes)
            if self._prefetch:
                self._submit(fetched, is_full=is_full)
        return fetched

    def _take_pending(self) -> Fetched | None:
        """Get what was fetched ahead; None if there is nothing of use."""
        if self._pending is None:
            return None
        (pending, known), self._pending = self._pending, None
        try:
            timeout_s = self._client.config.request_timeout_s
            fetched = pending.result(Deadline.after(timeout_s))
        except LanceError as error:
            pending.give_up()
            self._start_over(error)
            return None
        if len(fetched.data):
            self._check_answer(fetched, self._next - len(known), known)
            fetched = _skip(fetched, len(known))
        # Empty, it is an answer to a question that was asked some time ago.
        self._is_idle = not len(fetched.data)
        return None if self._is_idle else fetched

    def _start_over(self, error: LanceError) -> None:
        """Start over at the last whole record after a failure that may pass."""
        if isinstance(error, (TopicNotFound, TopicDeleted)):
            raise self._make_topic_gone() from error
        # Garbled bytes are as good as a lost connection: the next one may do better.
        if not error.retriable and not isinstance(error, RemoteProtocolError):
            raise error
        self._tail = memoryview(b"")

    def _fetch(self, wait_s: float) -> Fetched:
        if not self._is_idle:
            fetched = self._fetch_with_overlap(wait_s)
            if fetched is not None:
                return fetched
        # There is nothing new, or the server has cut its answer before it: to ask for
        # what is next and nothing else tells which.
        fetched = self._ask(self._next, self._plan_size(self._next), wait_s)
        self._check_answer(fetched, self._next)
        self._is_idle = not len(fetched.data)
        if not self._is_idle:
            self._check_overlap()
        return fetched

    def _fetch_with_overlap(self, wait_s: float) -> Fetched | None:
        """Fetch what is next together with what was read last, and compare that.

        Returns:
            What is next; None if a plain server answers with none of it.
        """
        known = self._find_overlap()
        skip = self._plan_first_overlap() if known is None else len(known)
        start = self._next - skip
        fetched = self._ask(start, self._plan_size(self._next, skip), wait_s)
        self._check_answer(fetched, start, known or b"")
        if known is None:
            is_whole = len(fetched.data) >= skip
            self.before = bytes(fetched.data[:skip]) if is_whole else b""
        if skip and len(fetched.data) <= skip:
            return None
        return _skip(fetched, skip)

    def _check_overlap(self) -> None:
        """Check that what was read last is still there, by a request of its own."""
        known = self._find_overlap() or b""
        while known:
            start = self._next - len(known)
            fetched = self._ask(start, len(known))
            self._check_answer(fetched, start, known)
            if not len(fetched.data):
                raise self._make_log_cut(fetched)
            # An answer may be cut anywhere.
            known = known[len(fetched.data) :]

    def _ask(self, start: int, size: int, wait_s: float = 0.0) -> Fetched:
        try:
            # By id, because under the same name there may be another topic by now.
            return self._client.fetch(self.topic_id, start, size, wait_s=wait_s)
        except (TopicNotFound, TopicDeleted) as error:
            raise self._make_topic_gone() from error

    def _plan_first_overlap(self) -> int:
        """Decide how many bytes before a new position to fetch with it."""
        if self._client.supports(Capability.LOCATE):
            return 0
        return min(self.position, OVERLAP_BYTES)

    def _find_overlap(self) -> bytes | None:
        """Give the bytes before the next one to fetch; None before the first look."""
        return None if self.before is None else join_last(self.before, self._tail)

    def _submit(self, fetched: Fetched, *, is_full: bool) -> None:
        """Send the next fetch, if there is more to read already."""
        mark = fetched.high_water_mark
        # A full answer is the only sign of more where the server does not say.
        is_more = is_full if mark is None else fetched.end < mark
        if not is_more or (self._end is not None and fetched.end >= self._end):
            return
        known = b""
        if mark is None:
            known = join_last(self.before or b"", self._tail, fetched.data)
        size = self._plan_size(fetched.end, len(known))
        try:
            # There are records to hand out, which must not wait for a connection.
            pending = self._client.submit_fetch(
                self.topic_id, fetched.end - len(known), size, dial=False
            )
            self._pending = pending, known
        except LanceError as error:
            # The next call will meet the same, and has time to do something about it.
            if not error.retriable:
                raise

    def _plan_size(self, start: int, overlap: int = 0) -> int:
        """Decide how much to ask for.

        Args:
            start: offset of the first byte that is wanted.
            overlap: how many bytes before it are asked for as well.

        Returns:
            What is left of the range, up to what is asked for in general, but always
            enough to complete the record that has begun, and the overlap, up to what a
            server can answer.
        """
        size = self._ask_bytes
        if self._end is not None:
            size = min(size, max(self._end - start, RECORD_HEADER_BYTES))
        lacking = self._next + count_lacking_bytes(self._tail) - start
        return min(max(size, lacking) + overlap, FETCH_BYTES_MAX)

    def _drop_rest(self) -> None:
        if self._pending is not None:
            self._pending[0].give_up()
            self._pending = None
        self._tail = memoryview(b"")

    # What came.

    def _check_answer(self, fetched: Fetched, asked: int, known: bytes = b"") -> None:
        """Check that bytes are from where they were asked for.

        Args:
            fetched: what came.
            asked: where it has to start.
            known: what it has to begin with, as far as it goes.
        """
        self._check_place(fetched, asked)
        # A copy of so little takes less time than to compare views byte by byte.
        begin = bytes(fetched.data[: len(known)])
        if begin != known[: len(begin)]:
            self._shifted = self._make_loss(
                "the bytes before it are not those that were read there: the server "
                "has deleted data and its offsets have shifted",
                end=fetched.high_water_mark,
                kind=OffsetsShifted,
            )
            raise self._shifted

    def _check_place(self, fetched: Fetched, asked: int) -> None:
        if fetched.start == asked:
            return
        if fetched.start > asked:
            mark = fetched.high_water_mark
            raise self._make_loss(REMOVED, start=fetched.start, end=mark)
        if len(fetched.data):
            self._drop_rest()
            raise RemoteProtocolError(
                f"topic {self.topic!r}: bytes from {fetched.start} came in answer to "
                f"a fetch from {asked}"
            )
        raise self._make_log_cut(fetched)

    def _make_log_cut(self, fetched: Fetched) -> DataLoss:
        mark = fetched.high_water_mark
        reason = "the log ends before it: the topic was cut, or created anew"
        return self._make_loss(reason, end=fetched.end if mark is None else mark)

    def _make_topic_gone(self) -> DataLoss:
        reason = f"topic id {self.topic_id} is gone: the topic was deleted"
        return self._make_loss(reason)

    def _make_loss(
        self,
        reason: str,
        *,
        start: int | None = None,
        end: int | None = None,
        kind: type[DataLoss] = DataLoss,
    ) -> DataLoss:
        self._drop_rest()
        return kind(self.topic, self.position, start, end, reason)

    def _cut(self, fetched: Fetched) -> Chunk | None:
        """Take the whole records from what is there, and keep the rest."""
        data, start = fetched.data, self.position
        if len(self._tail):
            data = memoryview(b"".join((self._tail, data)))
        found = scan(data)
        fault = found.fault
        if fault is not None and not fault.truncated and not found.end:
            raise self._locate_fault(fault)
        starts, size = found.starts, found.end
        if self._end is not None and start + size > self._end:
            # A record belongs to the range that it starts in.
            count = int(np.searchsorted(starts, self._end - start))
            if count < len(starts):
                starts, size = starts[:count], int(starts[count])
        self.position, before = start + size, self.before or b""
        if fetched.high_water_mark is None:
            self.before = join_last(before, data[:size])
        else:
            # Offsets of a server that says where its log ends do not shift.
            self.before = b""
        if self.is_finished or (fault is not None and not fault.truncated):
            # Good records come first; the next call meets the bad one and says so.
            self._drop_rest()
        else:
            self._tail = data[size:]
        if not size:
            return None
        mark = fetched.high_water_mark
        data = data[:size]
        return Chunk(start, start + size, data, len(starts), mark, starts, before)

    def _locate_fault(self, fault: RecordError) -> RecordError:
        self._drop_rest()
        reason = f"topic {self.topic!r}: {fault.reason}"
        return type(fault)(reason, self.position, truncated=fault.truncated)


class LogReader(RecordReader):
    """Turns chunks into records, for drivers."""

    last_end: int | None = None
    skips = False
    skipped = (0, 0)
    own_client: LanceClient | None = None

    def close(self) -> None:
        """Give up what is under way, and close a client of its own."""
        super().close()
        if self.own_client is not None:
            self.own_client.close()

    def next_records(self, wait_s: float = 0.0) -> Records | None:
        """Return the next records with their positions; None at the log's end."""
        chunk = self.next_chunk(wait_s)
        if chunk is None:
            return None
        if self.last_end is not None and chunk.end > self.last_end:
            chunk, _ = chunk.split(chunk.records - 1)
        records = read_records(
            chunk.data,
            base_offset=chunk.start,
            found=chunk.found,
            on_bad="skip" if self.skips else "stop",
        )
        if self.skips and len(records) < chunk.records:
            sizes = records.find_nexts() - records.find_positions()
            count, size = self.skipped
            count += chunk.records - len(records)
            self.skipped = count, size + len(chunk.data) - int(sizes.sum())
        return records


def _skip(fetched: Fetched, size: int) -> Fetched:
    """Leave out the first bytes of an answer, without a copy."""
    if not size:
        return fetched
    data = fetched.data[size:]
    return replace(fetched, start=fetched.end - len(data), data=data)


def join_last(*parts: bytes | memoryview) -> bytes:
    """Join parts and give the last OVERLAP_BYTES of them."""
    last: list[bytes] = []
    room = OVERLAP_BYTES
    for part in reversed(parts):
        piece = bytes(part[max(0, len(part) - room) :])
        last.append(piece)
        room -= len(piece)
    return b"".join(reversed(last))


def count_lacking_bytes(tail: memoryview) -> int:
    """Count the bytes that the record at the start of a tail lacks, at least."""
    if len(tail) < RECORD_HEADER_BYTES:
        return RECORD_HEADER_BYTES - len(tail) if len(tail) else 0
    length = int.from_bytes(tail[1:RECORD_HEADER_BYTES], "little")
    return RECORD_HEADER_BYTES + length - len(tail)
