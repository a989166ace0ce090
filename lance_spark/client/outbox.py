"""The batches of a producer, from the first record to the acknowledgement.

    add -> open -> sealed -> in flight -> acknowledged
             |       ^           |-----> refused
             |       +-- requeue |
             +-- linger, size, seal

Records gather in the open batch until it is full, has lingered, or is sealed because
somebody waits for it. Sealed batches have their id; ids rise by one and batches leave
in that order, also when they are sent again. Decisions and numbers only: no thread, no
socket, and the time is told by the caller, who also holds the lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from lance_spark.model import Buffer


@dataclass(slots=True, eq=False)
class Batch:
    """Whole records that travel in one frame.

    Args:
        id: the batch id on the wire.
        payload: the bytes to send, compressed or not.
        records: how many records they are.
        size: how many bytes they are uncompressed.
        has_nulls: whether there may be Null records among them.
        compressed: what `payload` is; None as long as nobody has tried.
        sent_at_s: when it was last sent, on the clock of whoever sent it.
    """

    id: int
    payload: Buffer
    records: int
    size: int
    has_nulls: bool = False
    compressed: bool | None = None
    sent_at_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """A number of batches, with their records and bytes."""

    batches: int = 0
    records: int = 0
    bytes: int = 0

    def add(self, batch: Batch) -> None:
        """Count a batch."""
        self.batches += 1
        self.records += batch.records
        self.bytes += batch.size


class Outbox:
    """Everything a producer was given and has not seen acknowledged.

    Args:
        batch_bytes: how large a batch of small records may get.
        linger_s: how long the open batch waits for more records.
    """

    def __init__(self, batch_bytes: int, linger_s: float) -> None:
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._open = bytearray()
        self._open_records = 0
        self._open_nulls = False
        self._open_since_s = 0.0
        self._sealed: deque[Batch] = deque()
        # In the order in which they were sent, which is that of their ids.
        self._in_flight: dict[int, Batch] = {}
        self._next_id = 1
        self.pending_records = 0
        self.pending_bytes = 0
        self.acked = Tally()
        self.refused = Tally()
        self.retried = Tally()

    @property
    def next_id(self) -> int:
        """The id of the batch that is sealed next."""
        return self._next_id

    @property
    def oldest_id(self) -> int | None:
        """The lowest id that is not acknowledged, that of the open batch included."""
        for batch in self.pending():
            return batch.id
        return self._next_id if self._open else None

    @property
    def in_flight(self) -> int:
        """How many batches are sent and not answered."""
        return len(self._in_flight)

    @property
    def has_sealed(self) -> bool:
        """Whether a batch waits for nothing but its turn."""
        return bool(self._sealed)

    @property
    def is_empty(self) -> bool:
        """Whether everything is acknowledged or refused."""
        return not (self._open or self._sealed or self._in_flight)

    def pending(self) -> Iterator[Batch]:
        """Give the batches that have an id and no answer, oldest first."""
        yield from self._in_flight.values()
        yield from self._sealed

    def sent(self) -> Iterator[Batch]:
        """Give the batches in flight, oldest first."""
        yield from self._in_flight.values()

    def sent_first(self) -> Batch | None:
        """Give the batch that has been in flight for the longest time."""
        return next(iter(self._in_flight.values()), None)

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
            self._enqueue(data, records, size, has_nulls)
            return True
        if len(self._open) + size > self._batch_bytes:
            self.seal()
        opened = not self._open
        if opened:
            self._open_since_s = now_s
        self._open += data
        self._open_records += records
        self._open_nulls |= has_nulls
        if len(self._open) == self._batch_bytes:
            self.seal()
        return opened or self.has_sealed

    def seal(self) -> None:
        """End the open batch, so that it waits for no more records."""
        if not self._open:
            return
        data, records, has_nulls = self._open, self._open_records, self._open_nulls
        self._reopen()
        self._enqueue(data, records, len(data), has_nulls)

    def _reopen(self) -> None:
        self._open, self._open_records, self._open_nulls = bytearray(), 0, False

    def _enqueue(self, data: Buffer, records: int, size: int, has_nulls: bool) -> None:
        self._sealed.append(Batch(self._next_id, data, records, size, has_nulls))
        self._next_id += 1

    # Batches out.

    def take(self, now_s: float, window: int) -> Batch | None:
        """Give the next batch to send, if one is due and the window has room."""
        if self.in_flight >= window:
            return None
        if not self._sealed and self._open and not self._linger_left_s(now_s):
            self.seal()
        if not self._sealed:
            return None
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
        return self._linger_left_s(now_s) if self._open else None

    def _linger_left_s(self, now_s: float) -> float:
        return max(0.0, self._open_since_s + self._linger_s - now_s)

    def requeue(self) -> None:
        """Have everything in flight sent again, before anything else."""
        for batch in reversed(self._in_flight.values()):
            self._sealed.appendleft(batch)
            self.retried.add(batch)
        self._in_flight.clear()

    # Answers.

    def ack(self, batch_id: int) -> Batch | None:
        """Settle a batch; None if it is not in flight, as after a second ack."""
        batch = self._remove(batch_id)
        if batch is not None:
            self.acked.add(batch)
        return batch

    def refuse(self, batch_id: int) -> Batch | None:
        """Drop a batch that the server will not take."""
        batch = self._remove(batch_id)
        if batch is not None:
            self.refused.add(batch)
        return batch

    def _remove(self, batch_id: int) -> Batch | None:
        batch = self._in_flight.pop(batch_id, None)
        if batch is not None:
            self.pending_records -= batch.records
            self.pending_bytes -= batch.size
        return batch

    def clear(self) -> None:
        """Drop everything that is not acknowledged."""
        self._reopen()
        self._sealed.clear()
        self._in_flight.clear()
        self.pending_records = self.pending_bytes = 0
