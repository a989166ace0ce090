"""Which thread is told of which refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lance_spark.client.outbox import REFUSALS_MAX, OutgoingBatch, Refusals
from lance_spark.errors import InvalidPayload

# Runs something in a thread that is always the same, and not the test's own.
Elsewhere = Callable[[Callable[[], list[int]]], list[int]]


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(call).result(60)


def _refuse(refusals: Refusals, *ids: int) -> None:
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
    _refuse(refusals, 1)
    assert _send(refusals) == [1]
    assert _flush(refusals) == []
    _refuse(refusals, 2, 3)
    assert _flush(refusals) == [2, 3]
    assert _send(refusals) == []


def test_each_thread_that_was_there_is_told(elsewhere: Elsewhere) -> None:
    refusals = Refusals()
    assert _send(refusals) == elsewhere(lambda: _send(refusals)) == []
    _refuse(refusals, 1)
    assert elsewhere(lambda: _send(refusals)) == [1]
    assert _send(refusals) == [1]
    _refuse(refusals, 2)
    assert elsewhere(lambda: _flush(refusals)) == [2]
    assert _flush(refusals) == [2]
    assert _flush(refusals) == elsewhere(lambda: _flush(refusals)) == []


def test_what_nobody_knows_is_told_to_a_thread_that_is_new() -> None:
    refusals = Refusals()
    _refuse(refusals, 1)
    assert _send(refusals) == [1]


def test_a_thread_that_is_new_need_not_know_what_others_do(
    elsewhere: Elsewhere,
) -> None:
    refusals = Refusals()
    _refuse(refusals, 1)
    assert _send(refusals) == [1]
    assert elsewhere(lambda: _send(refusals)) == []


def test_a_flush_of_a_new_thread_tells_what_only_a_send_has(
    elsewhere: Elsewhere,
) -> None:
    refusals = Refusals()
    _refuse(refusals, 1)
    assert elsewhere(lambda: _send(refusals)) == [1]
    assert _flush(refusals) == [1]


def test_a_flush_of_a_new_thread_need_not_tell_what_a_flush_has(
    elsewhere: Elsewhere,
) -> None:
    refusals = Refusals()
    _refuse(refusals, 1)
    assert elsewhere(lambda: _flush(refusals)) == [1]
    assert _flush(refusals) == []


def test_they_are_not_gathered_for_ever() -> None:
    refusals = Refusals()
    _refuse(refusals, *range(REFUSALS_MAX + 5))
    assert _flush(refusals) == [*range(5, REFUSALS_MAX + 5)]
    _refuse(refusals, 77)
    assert _flush(refusals) == [77]
