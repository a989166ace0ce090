"""The batches of a producer: gathered, sent, acknowledged or refused. No socket.

    add -> open -> sealed -> in flight -> acknowledged
             |       ^           |-----> refused
             |       +-- requeue |
             +-- linger, size, seal

Records gather in the open batch until it is full, has lingered, or is sealed because a
caller waits for it. Sealed batches have their id; ids rise by one and batches leave in
that order, also when they are sent again. That is the `Outbox`.

The `Ledger` is what callers and the thread of `delivery` share: callers add records and
wait, the thread takes batches and reports what the server says. One condition guards
all of it and is notified at every change that a thread may wait for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lance_spark.errors import LanceError, Timeout, Undelivered
from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline
from lance_spark.quantity import check_number
from lance_spark.value import dataclass

# More would only hide a server that does not answer.
IN_FLIGHT_MAX = 1024
# A producer that is never flushed or closed must not gather refusals for ever.
REFUSALS_MAX = 10_000
# How often a caller that waits without a deadline looks around. A failure wakes it, so
# this only bounds the damage of a bug.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """How records are gathered in batches, and how many of these may wait.

    Args:
        batch_bytes: how large a batch may get; a larger record goes alone.
        linger_s: how long a batch waits for more records.
        max_in_flight: how many batches may be sent and not acknowledged.
        buffer_bytes: how much may be pending before `send` and `write` wait.

    Raises:
        OptionError: a value can't be used.
    """

    batch_bytes: int = 1024 * 1024
    linger_s: float = 0.005
    max_in_flight: int = 8
    buffer_bytes: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        check_number("batch_bytes", self.batch_bytes, 1, 2**63 - 1)
        check_number("max_in_flight", self.max_in_flight, 1, IN_FLIGHT_MAX)
        check_number("linger_s", self.linger_s, 0, 3600)
        check_number("buffer_bytes", self.buffer_bytes, self.batch_bytes, 2**63 - 1)


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """Whole records that travel in one frame.

    Args:
        id: the batch id on the wire.
        payload: the bytes to send, compressed or not.
        records: how many records they are.
        size: how many bytes they are uncompressed.
        has_nulls: whether there may be Null records among them.
        compressed: whether `payload` is; None before the first try.
        sent_at_s: when it was last sent, on the clock of the sender.
    """

    id: int
    payload: Buffer
    records: int
    size: int
    has_nulls: bool = False
    compressed: bool | None = None
    sent_at_s: float = 0.0


@dataclass(slots=True)
class BatchCount:
    """A number of batches, with their records and bytes."""

    batches: int = 0
    records: int = 0
    bytes: int = 0

    def add(self, batch: OutgoingBatch) -> None:
        """Count a batch."""
        self.batches += 1
        self.records += batch.records
        self.bytes += batch.size


class Outbox:
    """Everything a producer was given and has not seen acknowledged.

    The caller holds the lock, and tells the time.

    Args:
        options: how large batches get, and how long the open one waits for more.
    """

    def __init__(self, options: BatchOptions) -> None:
        self._batch_bytes = options.batch_bytes
        self._linger_s = options.linger_s
        # The id of the batch that is sealed next.
        self.next_id = 1
        # The batch that gathers records; empty ones do not count.
        self._open = self._make_open()
        self._open_since_s = 0.0
        self._sealed: deque[OutgoingBatch] = deque()
        # In the order in which they were sent, which is that of their ids.
        self._in_flight: dict[int, OutgoingBatch] = {}
        self.pending_records = 0
        self.pending_bytes = 0
        self.acked = BatchCount()
        self.refused = BatchCount()
        self.retried = BatchCount()

    @property
    def oldest_id(self) -> int | None:
        """The lowest id that is not acknowledged, that of the open batch included."""
        for batch in self.pending():
            return batch.id
        return self.next_id if self._open.size else None

    @property
    def in_flight(self) -> int:
        """How many batches are sent and not answered."""
        return len(self._in_flight)

    @property
    def is_empty(self) -> bool:
        """Whether everything is acknowledged or refused."""
        return self.oldest_id is None

    def pending(self) -> Iterator[OutgoingBatch]:
        """Give the batches that have an id and no answer, oldest first."""
        yield from self._in_flight.values()
        yield from self._sealed

    def sent(self) -> list[OutgoingBatch]:
        """List the batches in flight, oldest first."""
        return list(self._in_flight.values())

    # Records in.

    def add(
        self, data: Buffer, records: int, now_s: float, *, has_nulls: bool = False
    ) -> bool:
        """Take whole records.

        Up to half a batch is copied into the open batch. More goes as it is, so that
        large payloads are never copied and small ones still fill batches.

        Returns:
            Whether there is something new to do: a batch is sealed, or opened.
        """
        size = memoryview(data).nbytes
        self.pending_records += records
        self.pending_bytes += size
        if 2 * size > self._batch_bytes:
            self.seal()
            self._open = OutgoingBatch(self.next_id, data, records, size, has_nulls)
            self.seal()
            return True
        if self._open.size + size > self._batch_bytes:
            self.seal()
        batch = self._open
        opened = not batch.size
        if opened:
            self._open_since_s = now_s
        batch.payload += data
        batch.records += records
        batch.size += size
        batch.has_nulls |= has_nulls
        if batch.size == self._batch_bytes:
            self.seal()
        return opened or bool(self._sealed)

    def seal(self) -> None:
        """End the open batch, so that it waits for no more records."""
        if self._open.size:
            self._sealed.append(self._open)
            self.next_id += 1
            self._open = self._make_open()

    def _make_open(self) -> OutgoingBatch:
        return OutgoingBatch(self.next_id, bytearray(), 0, 0)

    # Batches out.

    def take(self, now_s: float, window: int) -> OutgoingBatch | None:
        """Give the next batch to send, if one is due and the window has room."""
        if self.due_s(now_s, window) != 0.0:
            return None
        if not self._sealed:
            self.seal()
        batch = self._sealed.popleft()
        batch.sent_at_s = now_s
        self._in_flight[batch.id] = batch
        return batch

    def due_s(self, now_s: float, window: int) -> float | None:
        """Say in how many seconds `take` gives a batch; None if time alone won't do."""
        if self.in_flight >= window:
            return None
        if self._sealed:
            return 0.0
        if not self._open.size:
            return None
        return max(0.0, self._open_since_s + self._linger_s - now_s)

    def requeue(self, *, was_sent: bool = True) -> None:
        """Have everything in flight sent again, before anything else.

        Args:
            was_sent: whether there was a connection to send it on.
        """
        for batch in reversed(self._in_flight.values()):
            self._sealed.appendleft(batch)
            if was_sent:
                self.retried.add(batch)
        self._in_flight.clear()

    # Answers.

    def ack(self, batch_id: int) -> OutgoingBatch | None:
        """Settle a batch; None if it is not in flight, as after a second ack."""
        return self._settle(batch_id, self.acked)

    def refuse(self, batch_id: int) -> OutgoingBatch | None:
        """Drop a batch that the server will not take."""
        return self._settle(batch_id, self.refused)

    def _settle(self, batch_id: int, count: BatchCount) -> OutgoingBatch | None:
        batch = self._in_flight.pop(batch_id, None)
        if batch is not None:
            self.pending_records -= batch.records
            self.pending_bytes -= batch.size
            count.add(batch)
        return batch

    def clear(self) -> None:
        """Drop everything that is not acknowledged."""
        self._open = self._make_open()
        self._sealed.clear()
        self._in_flight.clear()
        self.pending_records = self.pending_bytes = 0


class Refusal(NamedTuple):
    """A batch, and why the server refused it."""

    batch: OutgoingBatch
    error: LanceError


class _Told(threading.local):
    """How many refusals the present thread knows of, or need not know of."""

    count: int | None = None


class Refusals:
    """What the server would not take, and which threads know; the caller has the lock.

    A batch holds records of several threads. Each thread that uses the producer is told
    of a refusal once, so that none takes its records for stored because another thread
    was told that they are not. A thread that comes later need not know what others were
    told, unless it flushes and no flush has told it yet.
    """

    def __init__(self) -> None:
        self._kept: deque[Refusal] = deque(maxlen=REFUSALS_MAX)
        # How many there were, and of how many any thread, or a flush, was told.
        self._count = 0
        self._told_any_thread = 0
        self._told_a_flush = 0
        self._told = _Told()

    def add(self, batch: OutgoingBatch, error: LanceError) -> None:
        """Take note of a refusal."""
        self._kept.append(Refusal(batch, error))
        self._count += 1

    def enter(self, *, flushes: bool) -> None:
        """Note that the present thread uses the producer, if it is new here."""
        if self._told.count is None:
            self._told.count = self._told_a_flush if flushes else self._told_any_thread

    def untold(self) -> list[Refusal]:
        """List what the present thread was not told yet."""
        if not self._count:
            return []
        missing = self._count - (self._told.count or 0)
        return list(self._kept)[-missing:] if missing else []

    def note_told(self, *, flushes: bool) -> None:
        """Note that the present thread is told of all there are."""
        self._told.count = self._told_any_thread = self._count
        if flushes:
            self._told_a_flush = self._count


class Ledger:
    """The batches of one producer; any number of threads may add to it.

    Args:
        topic: the topic's name or id, for texts.
        options: sizes and limits.
        wake: called with `changed` held when there is something new to send.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        topic: int | str,
        options: BatchOptions,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.topic = topic
        self._buffer_bytes = options.buffer_bytes
        self._wake = wake
        self._clock = clock
        # Guards everything below.
        self.changed = threading.Condition()
        self.outbox = Outbox(options)
        self.is_closed = False
        # What the server would not take.
        self._refusals = Refusals()
        # Why nothing can be delivered any more, and what it was.
        self._failure: Exception | None = None
        self._lost: list[OutgoingBatch] = []

    # For callers.

    def add(
        self, data: Buffer, records: int, deadline: Deadline, *, has_nulls: bool = False
    ) -> None:
        """Take whole records, waiting for room as long as there is none.

        Raises:
            Timeout: there was no room before the deadline; nothing was taken.
            Undelivered: something that was taken before can't be delivered.
            LanceError: the producer is closed.
        """
        size = memoryview(data).nbytes
        with self.changed:
            self._refusals.enter(flushes=False)
            self._check_usable()
            while not self._has_room(size):
                # A batch that lingers would only prolong the wait.
                self.outbox.seal()
                self._announce()
                if deadline.expired:
                    raise Timeout(self._explain_full(size))
                self.changed.wait(deadline.remaining())
                self._check_usable()
            now_s = self._clock()
            if self.outbox.add(data, records, now_s, has_nulls=has_nulls):
                self._announce()

    def flush(self, deadline: Deadline | None = None) -> None:
        """Wait until everything that was added before is acknowledged.

        Raises:
            Undelivered: it is not, because of a refusal or failure, or because the
                deadline passed; in that last case it may still be.
        """
        with self.changed:
            self._refusals.enter(flushes=True)
            self.outbox.seal()
            below = self.outbox.next_id
            self._announce()
            while self._is_pending(below):
                if deadline is not None and deadline.expired:
                    late = [b for b in self.outbox.pending() if b.id < below]
                    cause = Timeout("no acknowledgement in time")
                    raise self._make_undelivered(late, cause)
                left_s = _LOOK_S if deadline is None else deadline.remaining()
                self.changed.wait(min(left_s, _LOOK_S))
            self._raise_undelivered(flushes=True)

    def close(self) -> None:
        """Take no more records, and let those that are there wait for no others."""
        with self.changed:
            self.is_closed = True
            self.outbox.seal()
            self._announce()

    # For the thread, which holds `changed`.

    def refuse(self, batch_id: int, error: LanceError) -> bool:
        """Drop a batch that the server will not take; tell whether it was there."""
        batch = self.outbox.refuse(batch_id)
        if batch is None:
            return False
        self._refusals.add(_strip(batch), error)
        return True

    def fail(self, error: Exception) -> None:
        """Give everything up; callers that wait or come later are told why."""
        self._failure = error
        self.outbox.seal()
        self._lost = [_strip(batch) for batch in self.outbox.pending()]
        self.outbox.clear()
        self.changed.notify_all()

    # Inside.

    def _announce(self) -> None:
        self.changed.notify_all()
        self._wake()

    def _check_usable(self) -> None:
        self._raise_undelivered(flushes=False)
        if self.is_closed:
            raise LanceError(f"topic {self.topic!r}: the producer is closed")

    def _has_room(self, size: int) -> bool:
        pending = self.outbox.pending_bytes
        # Something larger than the buffer goes alone: it could wait for ever otherwise.
        return not pending or pending + size <= self._buffer_bytes

    def _explain_full(self, size: int) -> str:
        return (
            f"topic {self.topic!r}: no room for {size} bytes in time: "
            f"{self.outbox.pending_bytes} of {self._buffer_bytes} wait for the "
            "server, which acknowledges too slowly or not at all; send more slowly, or "
            "raise buffer_bytes or the timeout"
        )

    def _is_pending(self, below: int) -> bool:
        oldest = self.outbox.oldest_id
        return oldest is not None and oldest < below and self._failure is None

    def _raise_undelivered(self, *, flushes: bool) -> None:
        refusals, why = self._refusals.untold(), self._failure
        if not refusals and why is None:
            return
        if why is None:
            self._refusals.note_told(flushes=flushes)
            why = refusals[0].error
        refused = [refusal.batch for refusal in refusals]
        raise self._make_undelivered(refused + self._lost, why) from why

    def _make_undelivered(
        self, batches: list[OutgoingBatch], cause: Exception
    ) -> Undelivered:
        return Undelivered(
            self.topic,
            tuple(batch.id for batch in batches),
            sum(batch.records for batch in batches),
            sum(batch.size for batch in batches),
            cause,
        )


def _strip(batch: OutgoingBatch) -> OutgoingBatch:
    """Keep the numbers for an error; the bytes are not worth their memory."""
    return OutgoingBatch(batch.id, b"", batch.records, batch.size)
