"""What callers of a producer wait for and are told; nothing is sent here."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from lance_spark.client.lwp.writer import WriterOptions
from lance_spark.client.outbox import Ledger
from lance_spark.errors import InvalidPayload, LanceError, Timeout, Undelivered
from lance_spark.net.deadline import Deadline
from tests.client.kit_flow import PATIENCE_S


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
    assert not ledger.outbox.has_sealed
    ledger.close()
    assert ledger.outbox.has_sealed


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
