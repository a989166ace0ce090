"""What a producer owes: the batches, who waits for them, and what became of them.

Callers add records and wait here; the thread of `delivery` takes batches and reports
what the server says. One condition guards all of it and is notified at every change
that somebody may wait for. Nothing here sends or receives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lance_spark.client.outbox import Batch, Outbox
from lance_spark.client.refusals import Refusals
from lance_spark.errors import LanceError, Timeout, Undelivered
from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline

if TYPE_CHECKING:
    from lance_spark.client.writer import WriterOptions

# How often a caller that waits without a deadline looks around. Whoever reports a
# failure wakes it, so this only bounds the damage of a bug.
_LOOK_S = 1.0


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
        options: WriterOptions,
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
        self.outbox = Outbox(options.batch_bytes, options.linger_s)
        self.is_closed = False
        # What the server would not take.
        self._refusals = Refusals()
        # Whether nothing can be delivered any more, why, and what it was.
        self._is_failed = False
        self._failed_why: Exception | None = None
        self._lost: list[Batch] = []

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
                # What lingers would only keep us waiting.
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
                    raise self._make_overdue(below)
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
        """Give everything up: whoever waits, and whoever comes, is told why."""
        self._is_failed, self._failed_why = True, error
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
        return oldest is not None and oldest < below and not self._is_failed

    def _make_overdue(self, below: int) -> Undelivered:
        late = [batch for batch in self.outbox.pending() if batch.id < below]
        return self._make_undelivered(late, Timeout("no acknowledgement in time"))

    def _raise_undelivered(self, *, flushes: bool) -> None:
        refusals = self._refusals.untold()
        refused = [refusal.batch for refusal in refusals]
        if self._is_failed:
            why = self._failed_why
            raise self._make_undelivered(refused + self._lost, why) from why
        if refused:
            self._refusals.note_told(flushes=flushes)
            first_why = refusals[0].error
            raise self._make_undelivered(refused, first_why) from first_why

    def _make_undelivered(
        self, batches: Iterable[Batch], cause: Exception | None
    ) -> Undelivered:
        batches = list(batches)
        return Undelivered(
            self.topic,
            tuple(batch.id for batch in batches),
            sum(batch.records for batch in batches),
            sum(batch.size for batch in batches),
            cause,
        )


def _strip(batch: Batch) -> Batch:
    """Keep the numbers for an error; the bytes are not worth their memory."""
    return Batch(batch.id, b"", batch.records, batch.size)
