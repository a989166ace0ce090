"""Batches: when they are cut, when they are due, in which order they leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from lance_spark.client.lwp.writer import WriterOptions
from lance_spark.client.outbox import (
    REFUSALS_MAX,
    BatchOptions,
    Ledger,
    Outbox,
    OutgoingBatch,
    Refusals,
)
from lance_spark.errors import InvalidPayload, LanceError, Timeout, Undelivered
from lance_spark.net.deadline import Deadline
from tests.client.kit_flow import PATIENCE_S


def _describe(batch: OutgoingBatch | None) -> tuple[int, bytes, int] | None:
    if batch is None:
        return None
    return (batch.id, bytes(memoryview(batch.payload)), batch.records)


def _drain(outbox: Outbox) -> list[tuple[int, bytes, int] | None]:
    outbox.seal()
    found = []
    while (batch := outbox.take(0.0, 100)) is not None:
        found.append(_describe(batch))
    return found


# Cutting.


def test_records_gather_up_to_the_limit() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=10, linger_s=1.0))
    for data in (b"aaaa", b"bbbb", b"cccc", b"dd"):
        outbox.add(data, 1, 0.0)
    assert _drain(outbox) == [(1, b"aaaabbbb", 2), (2, b"ccccdd", 2)]


def test_a_batch_that_is_full_is_sealed() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=8, linger_s=1.0))
    outbox.add(b"aaaa", 1, 0.0)
    assert not outbox._sealed
    outbox.add(b"bbbb", 2, 0.0)
    assert outbox._sealed
    assert _describe(outbox.take(0.0, 1)) == (1, b"aaaabbbb", 3)


def test_which_batches_have_null_records() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=10, linger_s=1.0))
    for size, has_nulls in ((3, False), (3, True), (3, False), (3, False), (8, True)):
        outbox.add(bytes(size), 1, 0.0, has_nulls=has_nulls)
    outbox.seal()
    found = [(batch.size, batch.has_nulls) for batch in outbox.pending()]
    assert found == [(9, True), (3, False), (8, True)]


def test_a_large_payload_is_not_copied() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=10, linger_s=1.0))
    payload = pa.py_buffer(b"123456")
    outbox.add(b"aa", 1, 0.0)
    outbox.add(payload, 3, 0.0)
    outbox.add(b"bb", 1, 0.0)
    first, second = outbox.take(0.0, 9), outbox.take(0.0, 9)
    assert _describe(first) == (1, b"aa", 1)
    assert second is not None
    assert second.payload is payload
    assert (second.records, second.size) == (3, 6)
    assert _drain(outbox) == [(3, b"bb", 1)]


def test_a_payload_of_half_a_batch_is_gathered() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=10, linger_s=1.0))
    outbox.add(b"12345", 1, 0.0)
    assert not outbox._sealed


def test_a_record_over_the_limit_goes_alone() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=4, linger_s=1.0))
    outbox.add(b"a", 1, 0.0)
    outbox.add(b"123456789", 1, 0.0)
    assert _drain(outbox) == [(1, b"a", 1), (2, b"123456789", 1)]


def test_sealing_nothing_makes_no_batch() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=4, linger_s=1.0))
    outbox.seal()
    assert outbox.is_empty
    assert outbox.next_id == 1


def test_says_when_there_is_something_new() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=10, linger_s=1.0))
    assert outbox.add(b"a", 1, 0.0), "a batch was opened: it lingers from now on"
    assert not outbox.add(b"a", 1, 0.0)
    assert outbox.add(b"1234567890", 1, 0.0), "a batch was sealed"


# When a batch is due.


def test_linger() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=100, linger_s=0.5))
    assert outbox.due_s(9.0, 1) is None
    outbox.add(b"a", 1, 10.0)
    outbox.add(b"b", 1, 10.4)
    assert outbox.due_s(10.25, 1) == 0.25
    assert outbox.take(10.25, 1) is None
    assert outbox.due_s(11.0, 1) == 0.0
    assert _describe(outbox.take(10.5, 1)) == (1, b"ab", 2)
    assert outbox.due_s(10.5, 2) is None


def test_linger_starts_with_the_first_record_of_each_batch() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=100, linger_s=0.5))
    outbox.add(b"a", 1, 10.0)
    outbox.seal()
    outbox.add(b"b", 1, 20.0)
    assert _describe(outbox.take(20.0, 9)) == (1, b"a", 1)
    assert outbox.take(20.0, 9) is None
    assert outbox.due_s(20.0, 9) == 0.5


def test_window() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=1, linger_s=0.0))
    for data in (b"a", b"b", b"c"):
        outbox.add(data, 1, 0.0)
    assert outbox.due_s(0.0, 2) == 0.0
    assert _describe(outbox.take(0.0, 2)) == (1, b"a", 1)
    assert _describe(outbox.take(0.0, 2)) == (2, b"b", 1)
    assert outbox.take(0.0, 2) is None
    assert outbox.due_s(0.0, 2) is None
    assert outbox.in_flight == 2
    outbox.ack(1)
    assert _describe(outbox.take(0.0, 2)) == (3, b"c", 1)


def test_what_lingers_goes_on_growing_while_the_window_is_full() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=10, linger_s=0.0))
    outbox.add(b"a", 1, 0.0)
    outbox.take(0.0, 1)
    outbox.add(b"b", 1, 0.0)
    assert outbox.take(5.0, 1) is None
    outbox.add(b"c", 1, 5.0)
    outbox.ack(1)
    assert _describe(outbox.take(5.0, 1)) == (2, b"bc", 2)


# Answers.


def _filled(count: int) -> Outbox:
    outbox = Outbox(BatchOptions(batch_bytes=2, linger_s=0.0))
    for number in range(count):
        outbox.add(b"%02d" % number, 1, 0.0)
    return outbox


def test_numbers() -> None:
    outbox = _filled(3)
    assert (outbox.pending_records, outbox.pending_bytes) == (3, 6)
    for _ in range(3):
        outbox.take(0.0, 9)
    assert (outbox.pending_records, outbox.pending_bytes) == (3, 6)
    outbox.ack(1)
    outbox.refuse(2)
    assert (outbox.pending_records, outbox.pending_bytes) == (1, 2)
    assert (outbox.acked.batches, outbox.acked.records, outbox.acked.bytes) == (1, 1, 2)
    assert (outbox.refused.batches, outbox.refused.records) == (1, 1)
    outbox.clear()
    assert outbox.is_empty
    assert (outbox.pending_records, outbox.pending_bytes) == (0, 0)


def test_an_answer_that_nobody_waits_for_changes_nothing() -> None:
    outbox = _filled(2)
    outbox.take(0.0, 1)
    assert outbox.ack(2) is None, "it was not sent"
    assert outbox.refuse(9) is None
    assert outbox.ack(1) is not None
    assert outbox.ack(1) is None
    assert (outbox.pending_records, outbox.acked.records) == (1, 1)


def test_requeue_keeps_the_order() -> None:
    outbox = _filled(5)
    for _ in range(4):
        outbox.take(0.0, 9)
    outbox.ack(2)
    outbox.requeue()
    assert outbox.in_flight == 0
    assert outbox.retried.batches == 3
    assert [batch.id for batch in outbox.pending()] == [1, 3, 4, 5]
    assert _drain(outbox) == [
        (1, b"00", 1),
        (3, b"02", 1),
        (4, b"03", 1),
        (5, b"04", 1),
    ]


def test_oldest_id() -> None:
    outbox = Outbox(BatchOptions(batch_bytes=10, linger_s=0.0))
    assert outbox.oldest_id is None
    outbox.add(b"a", 1, 0.0)
    assert outbox.oldest_id == outbox.next_id == 1
    outbox.seal()
    outbox.add(b"b", 1, 0.0)
    outbox.take(0.0, 9)
    outbox.take(0.0, 9)
    # Out of order, as a server in the field may answer.
    outbox.ack(2)
    assert outbox.oldest_id == 1
    outbox.ack(1)
    assert outbox.oldest_id is None


def test_what_is_in_flight() -> None:
    outbox = _filled(3)
    outbox.take(0.0, 9)
    outbox.take(0.0, 9)
    assert [batch.id for batch in outbox.sent()] == [1, 2]


def test_the_one_that_waits_longest() -> None:
    outbox = _filled(2)
    assert outbox.sent() == []
    outbox.take(1.0, 9)
    outbox.take(2.0, 9)
    first = outbox.sent()[0]
    assert first is not None
    assert (first.id, first.sent_at_s) == (1, 1.0)


# What callers of a producer wait for and are told; nothing is sent here.


def _make(wake: Callable[[], None] = lambda: None, buffer_bytes: int = 20) -> Ledger:
    options = WriterOptions(batch_bytes=10, buffer_bytes=buffer_bytes, linger_s=0.0)
    return Ledger("events", options, wake=wake)


def _soon() -> Deadline:
    return Deadline.after(PATIENCE_S)


def _settle(ledger: Ledger, *answers: int) -> None:
    """Send what is due, and acknowledge some of it."""
    with ledger.changed:
        while ledger.outbox.take(1e9, 100) is not None:
            pass
        for batch_id in answers:
            ledger.outbox.ack(batch_id)
        ledger.changed.notify_all()


class Background:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


# Room.


def test_memory_is_bounded() -> None:
    ledger = _make(buffer_bytes=20)
    ledger.add(b"1234567890", 1, _soon())
    ledger.add(b"1234567890", 1, _soon())
    with pytest.raises(Timeout, match=r"20 of 20 wait.*buffer_bytes"):
        ledger.add(b"1", 1, Deadline.after(0.0))
    assert ledger.outbox.pending_bytes == 20


def test_an_ack_makes_room() -> None:
    woken = threading.Event()
    ledger = _make(woken.set, buffer_bytes=20)
    ledger.add(b"1234567890", 1, _soon())
    ledger.add(b"1234567", 1, _soon())
    woken.clear()
    waiting = Background(lambda: ledger.add(b"abcd", 1, _soon()))
    # Whoever waits for room has what lingers sealed and the thread woken.
    assert woken.wait(PATIENCE_S)
    assert ledger.outbox.next_id == 3
    _settle(ledger, 1)
    waiting.finish()
    assert ledger.outbox.pending_bytes == 11


def test_something_larger_than_the_buffer_goes_alone() -> None:
    ledger = _make(buffer_bytes=10)
    ledger.add(b"x" * 100, 1, _soon())
    with pytest.raises(Timeout):
        ledger.add(b"1", 1, Deadline.after(0.0))


def test_the_thread_is_woken_when_there_is_something_new() -> None:
    wakes: list[int] = []
    ledger = _make(lambda: wakes.append(1))
    ledger.add(b"a", 1, _soon())
    assert len(wakes) == 1
    ledger.add(b"b", 1, _soon())
    assert len(wakes) == 1, "the batch lingers already"
    ledger.add(b"1234567890", 1, _soon())
    assert len(wakes) == 2


# Flush.


def test_flush_of_nothing_returns() -> None:
    _make().flush()


def test_flush_waits_for_what_was_added_before_it() -> None:
    woken = threading.Event()
    ledger = _make(woken.set)
    ledger.add(b"a", 1, _soon())
    woken.clear()
    flushing = Background(ledger.flush)
    assert woken.wait(PATIENCE_S)
    # What comes later is somebody else's.
    ledger.add(b"b", 1, _soon())
    _settle(ledger, 1)
    flushing.finish()
    assert ledger.outbox.pending_records == 1


def test_flush_that_runs_out_of_time_names_what_is_missing() -> None:
    ledger = _make()
    ledger.add(b"1234567890", 3, _soon())
    ledger.add(b"abc", 2, _soon())
    with pytest.raises(Undelivered) as caught:
        ledger.flush(Deadline.after(0.0))
    error = caught.value
    assert (error.topic, error.batches) == ("events", (1, 2))
    assert (error.records, error.size) == (5, 13)
    assert isinstance(error.cause, Timeout)
    # It may still arrive.
    _settle(ledger, 1, 2)
    ledger.flush()


# Refusals and failures.


def _refuse(ledger: Ledger, batch_id: int, error: LanceError) -> bool:
    with ledger.changed:
        ledger.outbox.take(1e9, 100)
        return ledger.refuse(batch_id, error)


def test_a_refusal_is_told_once() -> None:
    ledger = _make(buffer_bytes=100)
    ledger.add(b"1234567890", 4, _soon())
    ledger.add(b"abcdefghij", 2, _soon())
    why = InvalidPayload("that is no record")
    assert _refuse(ledger, 1, why)
    with pytest.raises(
        Undelivered, match=r"4 records \(10 bytes\).*no record"
    ) as caught:
        ledger.add(b"c", 1, _soon())
    assert (caught.value.batches, caught.value.cause) == ((1,), why)
    assert caught.value.__cause__ is why
    ledger.add(b"c", 1, _soon())
    _settle(ledger, 2, 3)
    ledger.flush()


def test_flush_tells_of_refusals() -> None:
    ledger = _make()
    ledger.add(b"1234567890", 1, _soon())
    flushing = Background(ledger.flush)
    assert _refuse(ledger, 1, InvalidPayload("no"))
    with ledger.changed:
        ledger.changed.notify_all()
    with pytest.raises(Undelivered):
        flushing.finish()


def test_several_refusals_come_with_the_first_cause() -> None:
    ledger = _make(buffer_bytes=100)
    for _ in range(3):
        ledger.add(b"1234567890", 1, _soon())
    first = InvalidPayload("first")
    assert _refuse(ledger, 1, first)
    assert _refuse(ledger, 2, InvalidPayload("second"))
    assert not _refuse(ledger, 1, InvalidPayload("again")), "it is gone already"
    _settle(ledger, 3)
    with pytest.raises(Undelivered) as caught:
        ledger.flush()
    assert (caught.value.batches, caught.value.cause) == ((1, 2), first)


def test_a_failure_is_told_for_ever() -> None:
    ledger = _make(buffer_bytes=100)
    ledger.add(b"1234567890", 1, _soon())
    ledger.add(b"abc", 1, _soon())
    flushing = Background(ledger.flush)
    why = RuntimeError("broken")
    with ledger.changed:
        ledger.fail(why)
    with pytest.raises(Undelivered):
        flushing.finish()
    for _ in range(2):
        with pytest.raises(Undelivered) as caught:
            ledger.flush()
        assert (caught.value.batches, caught.value.records) == ((1, 2), 2)
        assert caught.value.cause is why
        with pytest.raises(Undelivered):
            ledger.add(b"d", 1, _soon())
    assert ledger.outbox.pending_bytes == 0, "the bytes are not kept"


def test_a_failure_ends_the_wait_for_room() -> None:
    woken = threading.Event()
    ledger = _make(woken.set, buffer_bytes=10)
    ledger.add(b"1234567890", 1, _soon())
    woken.clear()
    waiting = Background(lambda: ledger.add(b"a", 1, _soon()))
    assert woken.wait(PATIENCE_S)
    with ledger.changed:
        ledger.fail(RuntimeError("broken"))
    with pytest.raises(Undelivered):
        waiting.finish()


def test_closed() -> None:
    wakes: list[int] = []
    ledger = _make(lambda: wakes.append(1))
    ledger.close()
    assert wakes
    with pytest.raises(LanceError, match="closed"):
        ledger.add(b"a", 1, _soon())


def test_close_lets_nothing_linger() -> None:
    ledger = Ledger("events", WriterOptions(linger_s=1000.0), wake=lambda: None)
    ledger.add(b"a", 1, _soon())
    assert not ledger.outbox._sealed
    ledger.close()
    assert ledger.outbox._sealed


# Several threads.


def test_a_send_of_another_thread_does_not_hide_a_refusal() -> None:
    ledger = _make(buffer_bytes=100)
    ledger.add(b"1234567890", 1, _soon())
    assert _refuse(ledger, 1, InvalidPayload("no"))
    other = Background(lambda: ledger.add(b"b", 1, _soon()))
    with pytest.raises(Undelivered):
        other.finish()
    with pytest.raises(Undelivered) as caught:
        ledger.flush()
    assert caught.value.batches == (1,)
    ledger.flush()


def test_flushes_of_several_threads_all_tell() -> None:
    ledger = _make()
    ledger.add(b"1234567890", 1, _soon())
    flushing = [Background(ledger.flush) for _ in range(3)]
    deadline = _soon()
    while len(ledger.changed._waiters) < 3:  # type: ignore[attr-defined]
        assert not deadline.expired
        threading.Event().wait(0.001)
    assert _refuse(ledger, 1, InvalidPayload("no"))
    with ledger.changed:
        ledger.changed.notify_all()
    for each in flushing:
        with pytest.raises(Undelivered):
            each.finish()


# Which thread is told of which refusal.


# Runs something in a thread that is always the same, and not the test's own.
Elsewhere = Callable[[Callable[[], list[int]]], list[int]]


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(call).result(60)


def _refusals_refuse(refusals: Refusals, *ids: int) -> None:
    for batch_id in ids:
        refusals.add(
            OutgoingBatch(batch_id, b"", 1, 1), InvalidPayload(f"no {batch_id}")
        )


def _use(refusals: Refusals, *, flushes: bool) -> list[int]:
    refusals.enter(flushes=flushes)
    told = [refusal.batch.id for refusal in refusals.untold()]
    refusals.note_told(flushes=flushes)
    return told


def _send(refusals: Refusals) -> list[int]:
    return _use(refusals, flushes=False)


def _flush(refusals: Refusals) -> list[int]:
    return _use(refusals, flushes=True)


def test_one_thread_is_told_once() -> None:
    refusals = Refusals()
    _refusals_refuse(refusals, 1)
    assert _send(refusals) == [1]
    assert _flush(refusals) == []
    _refusals_refuse(refusals, 2, 3)
    assert _flush(refusals) == [2, 3]
    assert _send(refusals) == []


def test_each_thread_that_was_there_is_told(elsewhere: Elsewhere) -> None:
    refusals = Refusals()
    assert _send(refusals) == elsewhere(lambda: _send(refusals)) == []
    _refusals_refuse(refusals, 1)
    assert elsewhere(lambda: _send(refusals)) == [1]
    assert _send(refusals) == [1]
    _refusals_refuse(refusals, 2)
    assert elsewhere(lambda: _flush(refusals)) == [2]
    assert _flush(refusals) == [2]
    assert _flush(refusals) == elsewhere(lambda: _flush(refusals)) == []


def test_what_nobody_knows_is_told_to_a_thread_that_is_new() -> None:
    refusals = Refusals()
    _refusals_refuse(refusals, 1)
    assert _send(refusals) == [1]


def test_a_thread_that_is_new_need_not_know_what_others_do(
    elsewhere: Elsewhere,
) -> None:
    refusals = Refusals()
    _refusals_refuse(refusals, 1)
    assert _send(refusals) == [1]
    assert elsewhere(lambda: _send(refusals)) == []


def test_a_flush_of_a_new_thread_tells_what_only_a_send_has(
    elsewhere: Elsewhere,
) -> None:
    refusals = Refusals()
    _refusals_refuse(refusals, 1)
    assert elsewhere(lambda: _send(refusals)) == [1]
    assert _flush(refusals) == [1]


def test_a_flush_of_a_new_thread_need_not_tell_what_a_flush_has(
    elsewhere: Elsewhere,
) -> None:
    refusals = Refusals()
    _refusals_refuse(refusals, 1)
    assert elsewhere(lambda: _flush(refusals)) == [1]
    assert _flush(refusals) == []


def test_they_are_not_gathered_for_ever() -> None:
    refusals = Refusals()
    _refusals_refuse(refusals, *range(REFUSALS_MAX + 5))
    assert _flush(refusals) == [*range(5, REFUSALS_MAX + 5)]
    _refusals_refuse(refusals, 77)
    assert _flush(refusals) == [77]
