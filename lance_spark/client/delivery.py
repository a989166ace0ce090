"""The thread that gets batches acknowledged, in any protocol.

Rules of this file:

- What callers and the thread share is in the `Ledger`, guarded by its condition.
  Nothing is sent or received while that is held.
- Batches are sent in the order of their ids. Only a new connection makes them sent
  again, all that have no answer and in the same order: at-least-once.
- No wait is for ever: a batch that has no answer for `request_timeout_s` costs the
  connection, and no answer at all for `retry_timeout_s` costs the batches.

`outbox` says which batch is due, `Rate` how many may be in flight, `retry` how to go on
after a failure. The thread itself is one state machine, and stays in one file although
it is long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from lance_spark.client.connection import Connection
from lance_spark.client.dialect import Acked, Refused, SlowDown
from lance_spark.client.link import Link
from lance_spark.client.outbox import BatchOptions, Ledger, OutgoingBatch
from lance_spark.client.retry import Retry
from lance_spark.errors import (
    BrokerError,
    ConnectionLost,
    LanceError,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.net.deadline import Deadline, Waker

logger = logging.getLogger(__name__)

# How long `stop` waits for the thread when it has nothing left to wait for.
_JOIN_S = 10.0
# How long to listen for what a server said before it closed the connection.
_LAST_WORDS_S = 2.0
# One batch in 64 round trips: slow enough to let any server breathe, and still a sign
# of life that lets the rate recover.
SHARE_MIN = 1 / 64
# Weight of the newest round trip in the smoothed one, that of TCP.
_NEWEST = 1 / 8


class Rate:
    """How fast a producer may send: a window of batches that the server can shrink.

    A producer that keeps `w` batches in flight sends `w` per round trip. Asked to slow
    down it halves `w` (LWP §4.4). Below one batch the window can't shrink, so the
    producer pauses instead: one batch and a pause of one round trip are half a batch
    per round trip. Each window of acknowledgements that comes in after that doubles the
    rate again. The caller has the clock.

    Args:
        window_max: how many batches may be in flight at full speed.
    """

    def __init__(self, window_max: int) -> None:
        self._window_max = window_max
        self._batches = float(window_max)
        self._acks = 0
        self._round_trip_s = 0.0

    @property
    def window(self) -> int:
        """How many batches may be in flight."""
        return max(1, int(self._batches))

    @property
    def pause_s(self) -> float:
        """How long to wait before the next batch; 0 while the window says enough."""
        if self._batches >= 1:
            return 0.0
        return self._round_trip_s * (1 / self._batches - 1)

    @property
    def is_full(self) -> bool:
        """Whether nothing holds the producer back."""
        return self._batches >= self._window_max

    def slow_down(self) -> None:
        """Halve the rate, as the server asks."""
        self._batches = max(self._batches / 2, SHARE_MIN)
        self._acks = 0

    def acked(self, round_trip_s: float) -> None:
        """Take note of an acknowledgement; a window of them doubles the rate."""
        step = round_trip_s - self._round_trip_s
        self._round_trip_s += step * _NEWEST if self._round_trip_s else step
        if self.is_full:
            return
        self._acks += 1
        if self._acks >= self.window:
            self._batches = min(2 * self._batches, float(self._window_max))
            self._acks = 0


class Delivery:
    """Gets the batches of a ledger to one topic or stage.

    Args:
        link: has the connection, and is closed with this.
        topic: the topic's name or id, for texts.
        target: where the batches go, as the dialect names it.
        options: sizes and limits.
        resolve: finds the target again after the server has lost it; None if there
            is nothing to look up.
        strict: a refused batch is the end of all that follow it, as in a stage.
        check: called with each new connection; an error that it raises ends the
            delivery.
        prepare: called with each batch before it is sent, likewise.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        link: Link,
        topic: int | str,
        target: Any,
        *,
        options: BatchOptions,
        resolve: Callable[[], Any] | None = None,
        strict: bool = False,
        check: Callable[[Connection], None] = lambda _: None,
        prepare: Callable[[Connection, OutgoingBatch], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._topic = topic
        self._target = target
        self._resolve = resolve
        self._strict = strict
        self._check = check
        self._prepare = prepare
        self._clock = clock
        self._config = link.config
        # A server that could never be understood is another matter than bytes that
        # were garbled on their way.
        self._retry = Retry(
            backoff=link.make_backoff(),
            mends_garbled=True,
            can_look_up=resolve is not None,
        )
        self._rate = Rate(options.max_in_flight)
        self._connection: Connection | None = None

        # Wakes the thread where it waits for the server; `_is_receiving` says that it
        # does, so that no system call is made for one that does not.
        self._waker = Waker()
        self._is_receiving = False
        self.ledger = Ledger(topic, options, wake=self._wake, clock=clock)
        self._changed = self.ledger.changed
        self._outbox = self.ledger.outbox
        self._is_abandoned = False
        # Nothing is sent before this time.
        self._resume_at_s = 0.0
        # When an answer came last, or the first batch after a time of quiet was sent.
        self._progress_at_s = 0.0
        # Batches in flight that were refused and are to be sent again.
        self._refused_ids: set[int] = set()
        # Below this id one batch is sent at a time, so that a refusal tells which.
        self._careful_below_id = 0
        self._thread = threading.Thread(
            target=self._run, name=f"lance-producer-{topic}", daemon=True
        )
        self._thread.start()

    def stop(self, *, abandon: bool, keep_link: bool = False) -> None:
        """End the thread and the connection; may be called again.

        Args:
            abandon: do not wait for what is still pending; it may get stored or not.
            keep_link: leave the connection as it is, for another one.
        """
        self.ledger.close()
        if abandon:
            with self._changed:
                self._is_abandoned = True
                self._changed.notify_all()
            # Ends whatever the thread waits for.
            self._link.close()
        # Nothing is pending any more, or the wait of the thread was just ended.
        self._thread.join(_JOIN_S)
        if not keep_link or self._thread.is_alive():
            self._link.close()
        if self._thread.is_alive():
            logger.warning("topic %r: the producer's thread does not end", self._topic)
            return
        with self._changed:
            self._waker.close()

    def release(self) -> None:
        """Have the thread deliver what is pending and end, without waiting for it.

        The garbage collector calls this, maybe in the middle of something that holds a
        lock, so that a thread of its own takes the locks.
        """
        threading.Thread(
            target=self._run_out, name=f"lance-producer-end-{self._topic}", daemon=True
        ).start()

    def _run_out(self) -> None:
        self.ledger.close()
        # It has deadlines of its own for whatever is pending.
        self._thread.join()
        self.stop(abandon=False)

    def _wake(self) -> None:
        if self._is_receiving:
            self._waker.set()

    # The thread.

    def _run(self) -> None:
        try:
            self._deliver()
            if self._is_abandoned:
                raise LanceError("the producer was closed")
        except Exception as error:
            # A bug must not leave callers waiting for a thread that is gone.
            if not isinstance(error, LanceError):
                logger.exception("topic %r: the producer failed", self._topic)
            with self._changed:
                self.ledger.fail(error)

    def _deliver(self) -> None:
        while True:
            with self._changed:
                batch = self._await_step()
                if batch is None and not self._is_receiving:
                    return
            try:
                connection = self._connect()
                if batch is not None:
                    self._send(connection, batch)
                else:
                    self._receive(connection)
            except LanceError as error:
                if self._is_abandoned:
                    return
                self._recover(error)

    def _await_step(self) -> OutgoingBatch | None:
        """Wait for something to do.

        Returns:
            A batch to send. None with `_is_receiving` set if it is time to receive, and
            without if there is nothing more to do.
        """
        self._is_receiving = False
        while not self._is_abandoned:
            self._waker.clear()
            now_s = self._clock()
            batch = self._take(now_s)
            if batch is not None:
                return batch
            if self._outbox.in_flight:
                self._is_receiving = True
                return None
            if self.ledger.is_closed and self._outbox.is_empty:
                return None
            self._changed.wait(self._due_s(now_s))
        return None

    def _take(self, now_s: float) -> OutgoingBatch | None:
        if now_s < self._resume_at_s:
            return None
        is_quiet = not self._outbox.in_flight and not self._retry.has_failed
        batch = self._outbox.take(now_s, self._window())
        if batch is not None and is_quiet:
            self._progress_at_s = now_s
        return batch

    def _due_s(self, now_s: float) -> float | None:
        due_s = self._outbox.due_s(now_s, self._window())
        return None if due_s is None else max(due_s, self._resume_at_s - now_s)

    def _window(self) -> int:
        oldest = self._outbox.oldest_id
        if oldest is not None and oldest < self._careful_below_id:
            return 1
        return self._rate.window

    def _connect(self) -> Connection:
        if self._connection is None:
            connection = self._link.connect_once()
            self._check(connection)
            self._connection = connection
        return self._connection

    def _send(self, connection: Connection, batch: OutgoingBatch) -> None:
        self._prepare(connection, batch)
        deadline = Deadline.after(self._config.request_timeout_s)
        connection.send_batch(batch, self._target, deadline=deadline)
        batch.sent_at_s = self._clock()

    def _receive(self, connection: Connection) -> None:
        with self._changed:
            now_s = self._clock()
            # There is one, or the thread would not receive.
            first = next(self._outbox.pending())
            wait_s = first.sent_at_s + self._config.request_timeout_s - now_s
            due_s = self._due_s(now_s)
        if wait_s <= 0:
            raise Timeout(
                f"{connection.address}: no acknowledgement of batch {first.id} "
                f"for {self._config.request_timeout_s} s"
            )
        wait_s = wait_s if due_s is None else min(wait_s, due_s)
        pushes = connection.receive(Deadline.after(wait_s), self._waker)
        trouble = self._settle(pushes) if pushes else None
        if trouble is not None:
            self._recover(trouble, passes=True)

    def _settle(
        self, pushes: Iterable[Any], trouble: LanceError | None = None
    ) -> LanceError | None:
        """Take note of what the server says; return what needs a new connection."""
        with self._changed:
            now_s = self._clock()
            for push in pushes:
                if isinstance(push, Acked):
                    self._settle_ack(push.batch_id, now_s)
                elif isinstance(push, Refused):
                    # Behind one that needs a new connection the others do not count:
                    # they are all sent again.
                    trouble = trouble or self._settle_refusal(push)
                    if trouble is not None and push.batch_id is not None:
                        self._refused_ids.add(push.batch_id)
                elif isinstance(push, SlowDown):
                    self._rate.slow_down()
            self._resume_at_s = max(self._resume_at_s, now_s + self._rate.pause_s)
            self._changed.notify_all()
        return trouble

    def _settle_rest(
        self, connection: Connection, trouble: LanceError | None
    ) -> LanceError | None:
        """Learn what became of the batches in flight, to resend fewer.

        A server that has closed the connection may have said why.
        """
        deadline = Deadline.after(_LAST_WORDS_S)
        with suppress(ConnectionLost, RemoteProtocolError):
            while self._has_unanswered() and not deadline.expired:
                trouble = self._settle(connection.receive(deadline), trouble)
        return trouble

    def _has_unanswered(self) -> bool:
        with self._changed:
            sent = {batch.id for batch in self._outbox.sent()}
        return bool(sent - self._refused_ids)

    def _settle_ack(self, batch_id: int, now_s: float) -> None:
        batch = self._outbox.ack(batch_id)
        if batch is not None:
            self._rate.acked(now_s - batch.sent_at_s)
            self._note_progress(now_s)

    def _note_progress(self, now_s: float) -> None:
        self._progress_at_s = now_s
        self._retry.note_progress()

    def _settle_refusal(self, refused: Refused) -> LanceError | None:
        error, batch_id = refused.error, refused.batch_id
        if error.retriable:
            return error
        if batch_id is None:
            sent = self._outbox.sent()
            if len(sent) > 1:
                # There is no telling which one it was: send them again, one by one.
                self._careful_below_id = self._outbox.next_id
                return error
            batch_id = sent[0].id if sent else 0
        if self._retry.may_look_up(error):
            return error
        if self._strict:
            raise error
        if self.ledger.refuse(batch_id, error):
            self._note_progress(self._clock())
        return None

    def _recover(self, error: LanceError, *, passes: bool = False) -> None:
        """Give the connection up, and have sent again what has no answer.

        Args:
            error: what happened.
            passes: whether another try is known to make sense.

        Raises:
            LanceError: the error is final, or there was no progress for too long.
        """
        connection, self._connection = self._connection, None
        asked = None if connection is None else connection.address
        # A refusal that does not say which batch it means lets no others be counted.
        is_telling = self._refused_ids if passes else isinstance(error, ConnectionLost)
        if connection is not None:
            if is_telling:
                trouble = self._settle_rest(connection, error if passes else None)
                error, passes = trouble or error, trouble is not None
            connection.abort()
        with self._changed:
            now_s = self._clock()
            self._outbox.requeue(was_sent=asked is not None)
            self._refused_ids.clear()
            left_s = self._progress_at_s + self._config.retry_timeout_s - now_s
        decision = self._retry.decide(error, asked=asked, left_s=left_s, passes=passes)
        if decision.looks_up:
            self._look_up()
        self._link.follow(decision)
        with self._changed:
            resume_at_s = now_s + decision.delay_s
            self._resume_at_s = max(self._resume_at_s, resume_at_s)
        logger.warning(
            "topic %r: %s; going on in %.1f s with batch %s",
            self._topic,
            error,
            decision.delay_s,
            self._outbox.oldest_id,
        )

    def _look_up(self) -> None:
        """Find the topic's id again: it may have been created anew."""
        assert self._resolve is not None
        try:
            self._target = self._resolve()
        except BrokerError as error:
            # The batches are sent once more in vain, and then refused by name.
            logger.warning("topic %r can't be found again: %s", self._topic, error)
