"""Batches: when they are cut, when they are due, in which order they leave."""

from __future__ import annotations

import pyarrow as pa

from lance_spark.client.outbox import BatchOptions, Outbox, OutgoingBatch


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
    assert not outbox.has_sealed
    outbox.add(b"bbbb", 2, 0.0)
    assert outbox.has_sealed
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
    assert not outbox.has_sealed


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
