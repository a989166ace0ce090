"""The thread that gets batches acknowledged.

Rules of this file:

- What callers and the thread share is in `ledger`, guarded by its condition. Nothing is
  sent or received while that is held.
- Batches are sent in the order of their ids. Only a new connection makes them sent
  again, all that have no answer and in the same order: at-least-once.
- No wait is for ever: a batch that has no answer for `request_timeout_s` costs the
  connection, and no answer at all for `retry_timeout_s` costs the batches.

What is a batch and when it is due is in `outbox`, how many may be in flight in `rate`.
The thread itself is one state machine, and stays in one file although it is long.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from lance_spark.client.backoff import Backoff
from lance_spark.client.event import Acked, Event, Refused
from lance_spark.client.ledger import Ledger
from lance_spark.client.outbox import Batch
from lance_spark.client.rate import Rate
from lance_spark.client.retry import may_pass_while_connecting, parse_leader
from lance_spark.errors import (
    BrokerError,
    ConnectionLost,
    LanceError,
    LeaderUnknown,
    NotLeader,
    RateLimited,
    RemoteProtocolError,
    Timeout,
    TopicDeleted,
    TopicNotFound,
    Unsupported,
)
from lance_spark.net.deadline import Deadline
from lance_spark.net.waker import Waker
from lance_spark.wire.lwp import compress

_NULL_FAULT = (
    "no value, no key and no timestamp make a Null record, and a plain server must not "
    "get one: the LANCE server misreads it when it recovers from a crash and loses "
    "everything behind it. Send an empty value, or leave it out; to send it all the "
    "same, set allow_null_records=True (Spark: allowNullRecords=true)"
)

if TYPE_CHECKING:
    from lance_spark.client.client import LanceClient
    from lance_spark.client.connection import Connection
    from lance_spark.client.writer import WriterOptions
    from lance_spark.net.address import Address

logger = logging.getLogger(__name__)

# How long `stop` waits for the thread when nothing is left for it to wait for.
_JOIN_S = 10.0
# How long to listen for what a server said before it closed the connection.
_LAST_WORDS_S = 2.0


class Delivery:
    """Gets the batches of a ledger to one topic or stage.

    Args:
        client: has the connection, and is closed with this.
        topic: the topic's name or id, for texts.
        topic_id: where the batches go.
        options: sizes and limits.
        resolve: finds the topic's id again after the server has lost it; None if there
            is nothing to look up.
        strict: a refused batch is the end of all that follow it, as in a stage.
        check: called with each new connection; what it raises is the end.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        client: LanceClient,
        topic: int | str,
        topic_id: int,
        *,
        options: WriterOptions,
        resolve: Callable[[], int] | None = None,
        strict: bool = False,
        check: Callable[[Connection], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = client.config
        self._client = client
        self._topic = topic
        self._topic_id = topic_id
        self._options = options
        self._resolve = resolve
        self._strict = strict
        self._check = check
        # Of the server that was reached last; None before the first.
        self._is_plain: bool | None = None
        self._clock = clock
        self._request_timeout_s = config.request_timeout_s
        self._retry_timeout_s = config.retry_timeout_s
        self._backoff = Backoff(
            config.backoff_base_s, config.backoff_max_s, random.random
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
        # Something failed since then.
        self._is_troubled = False
        # The topic was looked up again since then, which need not be done twice.
        self._is_looked_up = False
        # Batches in flight that were refused and are to be sent again.
        self._refused_ids: set[int] = set()
        # Below this id one batch is sent at a time, so that a refusal tells which.
        self._careful_below_id = 0
        self._thread = threading.Thread(
            target=self._run, name=f"lance-producer-{topic}", daemon=True
        )
        self._thread.start()

    def find_null_fault(self) -> str | None:
        """Say why Null records can't be taken; None if they can.

        Raises:
            LanceError: what the server is can't be told, as none can be reached.
        """
        if self._options.allow_null_records:
            return None
        if self._is_plain is None:
            self._is_plain = self._client.is_plain
        return _NULL_FAULT if self._is_plain else None

    def stop(self, *, abandon: bool) -> None:
        """End the thread and the connection; may be called again.

        Args:
            abandon: do not wait for what is still pending; it may get stored or not.
        """
        self.ledger.close()
        if abandon:
            self._abandon()
        # Nothing is pending any more, or the thread was just thrown out of its wait.
        self._thread.join(_JOIN_S)
        self._client.close()
        if self._thread.is_alive():
            logger.warning("topic %r: the producer's thread does not end", self._topic)
            return
        with self._changed:
            self._waker.close()

    def release(self) -> None:
        """Have the thread deliver what is pending and end, without waiting for it.

        This is called while objects are collected, maybe in the middle of something
        that holds a lock, so that a thread of its own takes the locks.
        """
        threading.Thread(
            target=self._run_out, name=f"lance-producer-end-{self._topic}", daemon=True
        ).start()

    def _run_out(self) -> None:
        self.ledger.close()
        # It has deadlines of its own for whatever is pending.
        self._thread.join()
        self.stop(abandon=False)

    def _abandon(self) -> None:
        with self._changed:
            self._is_abandoned = True
            self._changed.notify_all()
        # Ends whatever the thread waits for.
        self._client.close()

    def _wake(self) -> None:
        if self._is_receiving:
            self._waker.set()

    # The thread.

    def _run(self) -> None:
        try:
            self._deliver()
            with self._changed:
                if self._is_abandoned:
                    self.ledger.fail(LanceError("the producer was closed"))
        except LanceError as error:
            with self._changed:
                self.ledger.fail(error)
        except Exception as error:
            # A bug must not leave callers waiting for a thread that is gone.
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
                if not self._may_pass(error):
                    raise
                self._recover(error)

    def _may_pass(self, error: LanceError) -> bool:
        # Bytes that were garbled on their way are as good as a lost connection. A
        # server that could never be understood is another matter.
        is_garbled = isinstance(error, RemoteProtocolError)
        if self._connection is None:
            return may_pass_while_connecting(error)
        return error.retriable or is_garbled

    def _await_step(self) -> Batch | None:
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

    def _take(self, now_s: float) -> Batch | None:
        if now_s < self._resume_at_s:
            return None
        is_quiet = not self._outbox.in_flight and not self._is_troubled
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
            connection = self._client.connection()
            if self._options.compresses and not connection.capabilities:
                # It would store the compressed bytes as if they were records.
                raise Unsupported("compression", None, str(connection.address))
            if self._check is not None:
                self._check(connection)
            self._connection = connection
            self._is_plain = not connection.capabilities
        return self._connection

    def _send(self, connection: Connection, batch: Batch) -> None:
        if batch.has_nulls and self.find_null_fault() is not None:
            # They were taken while another server was there.
            raise LanceError(f"{connection.address} is a plain server: {_NULL_FAULT}")
        if self._options.compresses and batch.compressed is None:
            block = compress(batch.payload)
            batch.compressed = len(block) < batch.size
            if batch.compressed:
                batch.payload = block
        connection.send_ingest(
            [batch.payload],
            batch_id=batch.id,
            record_count=batch.records,
            topic_id=self._topic_id,
            compressed=bool(batch.compressed),
            timestamp_ns=time.time_ns(),
            deadline=Deadline.after(self._request_timeout_s),
        )
        batch.sent_at_s = self._clock()

    def _receive(self, connection: Connection) -> None:
        with self._changed:
            now_s = self._clock()
            first = self._outbox.sent_first()
            assert first is not None, "there is nothing to wait for"
            wait_s = first.sent_at_s + self._request_timeout_s - now_s
            due_s = self._due_s(now_s)
        if wait_s <= 0:
            raise Timeout(
                f"{connection.address}: no acknowledgement of batch {first.id} "
                f"for {self._request_timeout_s} s"
            )
        wait_s = wait_s if due_s is None else min(wait_s, due_s)
        events = connection.receive(Deadline.after(wait_s), self._waker)
        if events:
            trouble = self._settle(events)
            if trouble is not None:
                self._hear_others(connection, trouble)
                self._recover(trouble)

    def _settle(
        self, events: Iterable[Event], trouble: LanceError | None = None
    ) -> LanceError | None:
        """Take note of what the server says; return what needs a new connection."""
        with self._changed:
            now_s = self._clock()
            for event in events:
                if isinstance(event, Acked):
                    self._settle_ack(event.batch_id, now_s)
                elif isinstance(event, Refused):
                    # Behind one that needs a new connection the others do not count:
                    # they are all sent again.
                    trouble = trouble or self._settle_refusal(event)
                    if trouble is not None and event.batch_id is not None:
                        self._refused_ids.add(event.batch_id)
                else:
                    self._rate.slow_down()
            self._resume_at_s = max(self._resume_at_s, now_s + self._rate.pause_s)
            self._changed.notify_all()
        return trouble

    def _hear_others(self, connection: Connection, trouble: LanceError) -> None:
        """Hear what became of the batches behind a refused one, to resend fewer."""
        if not self._refused_ids:
            # The server does not say which one it means, and nobody could count.
            return
        deadline = Deadline.after(_LAST_WORDS_S)
        with suppress(ConnectionLost, RemoteProtocolError):
            while self._has_unanswered() and not deadline.expired:
                self._settle(connection.receive(deadline), trouble)

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
        self._is_troubled = self._is_looked_up = False
        self._backoff.reset()

    def _settle_refusal(self, refused: Refused) -> LanceError | None:
        error, batch_id = refused.error, refused.batch_id
        if error.retriable:
            return error
        if batch_id is None:
            if self._outbox.in_flight > 1:
                # Nobody can tell which one it was: ask again, one by one.
                self._careful_below_id = self._outbox.next_id
                return error
            first = self._outbox.sent_first()
            batch_id = 0 if first is None else first.id
        if isinstance(error, (TopicNotFound, TopicDeleted)) and self._may_look_up():
            self._is_looked_up = True
            return error
        if self._strict:
            raise error
        if self.ledger.refuse(batch_id, error):
            self._note_progress(self._clock())
        return None

    def _may_look_up(self) -> bool:
        return self._resolve is not None and not self._is_looked_up

    def _recover(self, error: LanceError) -> None:
        """Give the connection up, and have sent again what has no answer.

        Raises:
            LanceError: the same error, if there was no progress for too long.
        """
        error = self._listen_last(error) or error
        server: Address | None = None
        if self._connection is not None:
            server = self._connection.address
            self._connection.abort()
            self._connection = None
        if isinstance(error, (TopicNotFound, TopicDeleted)):
            self._look_up()
        is_redirected = self._find_leader(error, server)
        with self._changed:
            now_s = self._clock()
            self._outbox.requeue()
            self._refused_ids.clear()
            delay_s = self._delay_s(error)
            if is_redirected and not self._is_troubled:
                delay_s = 0.0
            self._is_troubled = True
            quiet_s = now_s + delay_s - self._progress_at_s
            if quiet_s > self._retry_timeout_s:
                raise error
            self._resume_at_s = max(self._resume_at_s, now_s + delay_s)
        logger.warning(
            "topic %r: %s; going on in %.1f s with batch %s",
            self._topic,
            error,
            delay_s,
            self._outbox.oldest_id,
        )

    def _listen_last(self, error: LanceError) -> LanceError | None:
        """Hear what a server said before it closed: acks, or why it did."""
        trouble: LanceError | None = None
        if self._connection is None or not isinstance(error, ConnectionLost):
            return None
        with suppress(ConnectionLost, RemoteProtocolError):
            while events := self._connection.receive(Deadline.after(_LAST_WORDS_S)):
                trouble = self._settle(events) or trouble
        return trouble

    def _look_up(self) -> None:
        """Find the topic's id again: it may have been created anew."""
        if self._resolve is None:
            return
        try:
            self._topic_id = self._resolve()
        except BrokerError as error:
            # The batches are sent once more in vain, and then refused by name.
            logger.warning("topic %r can't be found again: %s", self._topic, error)

    def _find_leader(self, error: LanceError, server: Address | None) -> bool:
        """Go to the leader that a server names; False if it names none."""
        leader = parse_leader(error) if isinstance(error, NotLeader) else None
        if leader is not None:
            self._client.redirect(leader)
        elif server is not None and isinstance(error, (NotLeader, LeaderUnknown)):
            # The others may know more.
            self._client.avoid(server)
        return leader is not None

    def _delay_s(self, error: LanceError) -> float:
        delay_s = self._backoff.next_delay_s()
        if isinstance(error, RateLimited):
            asked_ms = error.details.get("retry_after_ms")
            if isinstance(asked_ms, (int, float)) and asked_ms >= 0:
                return asked_ms / 1000
        return delay_s
