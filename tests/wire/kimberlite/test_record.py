"""Events in bulk, and how they are cut into messages."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc

import numpy as np
import pytest

from lance_spark.errors import LanceError, RemoteProtocolError, RowError
from lance_spark.records import Records, Spans
from lance_spark.wire import kimberlite
from lance_spark.wire.kimberlite import (
    APPEND_BYTES_MAX,
    EVENT_BYTES_MAX,
    EVENTS_MAX,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    SMALL_FRAME_BYTES_MAX,
    V5,
    WIRES,
    cut_records,
    encode_message,
    read_records,
    split_records,
    write_records,
)
from tests.wire.kimberlite.reference import write
from tests.wire.rustlog.plain import join, list_values, make_records

pytestmark = pytest.mark.usefixtures("kernel")

BOTH = [V5, WIRES["v1-bincode"]]
TOP = 2**64 - 1


def write_plainly(values, wire):
    return write(tuple(values), fixed=wire.fixed)


def make_sizes(sizes):
    """Make records of some sizes that share their bytes."""
    ends = np.array(sizes, np.int64)
    return Records(Spans(np.zeros(max(sizes), np.uint8), np.zeros_like(ends), ends))


@pytest.mark.parametrize("wire", BOTH, ids=lambda wire: wire.name)
def test_there_and_back(wire):
    for seed in range(30):
        choice = random.Random(seed)
        size = choice.choice([1, 2, 100, 300, 20_000])
        count = choice.choice([0, 1, 64, 65, 66, 300])
        values = [choice.randbytes(choice.randrange(size)) for _ in range(count)]
        if choice.random() < 0.3:
            values = [b"same" for _ in values]
        data = write_plainly(values, wire)
        assert write_records(make_records(values), wire=wire).tobytes() == data
        records = read_records(data + b"tail", count, wire=wire, base=7)
        assert list_values(records) == values
        assert records.find_positions().tolist() == list(range(7, 7 + count))
        assert write_records(records, wire=wire).tobytes() == data
        half = count // 2
        assert list_values(read_records(data, half, wire=wire)) == values[:half]
        for wrong in (data[:-1], data[: len(data) // 2]):
            if wrong != data:
                with pytest.raises(RemoteProtocolError, match="are announced"):
                    read_records(wrong, count, wire=wire)
        with pytest.raises(RemoteProtocolError, match=f"{count} of them are there"):
            read_records(data, EVENTS_MAX, wire=wire)


def test_what_is_not_carried():
    values = make_records([b"one", b"", b"three"])
    records = Records(
        values.values,
        base=100,
        positions=np.array([0, 5, 9]),
        types=np.array([1, 255, 16]),
        nulls=np.array([False, True, False]),
        keyed=np.array([2]),
        keys=make_records([b"key"]).values,
        stamped=np.array([0]),
        stamps_ns=np.array([5], np.uint64),
    )
    assert write_records(records).tobytes() == b"\3one\0\5three"


def test_fault():
    records = dataclasses.replace(make_records([b"x"]), fault=LanceError("broken"))
    with pytest.raises(LanceError, match="broken"):
        write_records(records)


def test_too_many_events_are_not_looked_at():
    data = bytes(2 * EVENTS_MAX)
    assert len(read_records(data, EVENTS_MAX)) == EVENTS_MAX
    tracemalloc.start()
    try:
        for count in (EVENTS_MAX + 1, 2**63, TOP):
            with pytest.raises(RemoteProtocolError, match="1048576 are the most"):
                read_records(data, count)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def append_of(records, wire):
    body = kimberlite.AppendEvents(TOP, records, TOP)
    return join(encode_message(kimberlite.Request(TOP, TOP, body), wire))


class TestAppends:
    @pytest.mark.parametrize("wire", BOTH, ids=lambda wire: wire.name)
    def test_pieces_are_whole_and_as_large_as_they_may_be(self, wire):
        choice = random.Random(5)
        sizes = [choice.choice([0, 1, 100, 70_000, 3_000_000]) for _ in range(300)]
        records = make_sizes(sizes)
        pieces = list(split_records(records, wire=wire))
        found = [size for piece in pieces for size in piece.values.lengths.tolist()]
        assert found == sizes
        assert [piece.position(0) for piece in pieces[1:]] == [
            sum(map(len, pieces[: i + 1])) for i in range(len(pieces) - 1)
        ]
        totals = [int(piece.values.lengths.sum()) for piece in pieces]
        assert max(totals) <= APPEND_BYTES_MAX
        for total, after in zip(totals, pieces[1:], strict=False):
            assert total + after.values.lengths[0] > APPEND_BYTES_MAX

    def test_ten_thousand_events(self):
        pieces = list(split_records(make_sizes([3] * 25_000)))
        assert [len(piece) for piece in pieces] == [10_000, 10_000, 5_000]
        assert list(split_records(make_records([]))) == []

    @pytest.mark.parametrize("wire", BOTH, ids=lambda wire: wire.name)
    def test_the_largest_event_is_alone_and_fits(self, wire):
        sizes = [5, EVENT_BYTES_MAX, 5]
        pieces = list(split_records(make_sizes(sizes), wire=wire))
        assert [len(piece) for piece in pieces] == [1, 1, 1]
        assert len(append_of(pieces[1], wire)) <= HEADER_BYTES + PAYLOAD_BYTES_MAX

    def test_an_event_that_fits_into_no_frame(self):
        records = dataclasses.replace(make_sizes([5, 6, EVENT_BYTES_MAX + 1]), base=40)
        pieces = split_records(records)
        assert len(next(pieces)) == 2
        with pytest.raises(RowError, match="no frame of Kimberlite") as info:
            next(pieces)
        assert info.value.row == 42


def read_of(records, wire=V5):
    body = kimberlite.ReadEventsResponse(records, TOP)
    return join(encode_message(kimberlite.Response(TOP, body), wire))


class TestReads:
    @pytest.mark.parametrize(
        ("max_bytes", "count"),
        [(0, 0), (1, 1), (3, 1), (4, 3), (5, 3), (8, 3), (9, 4), (10, 4), (TOP, 4)],
    )
    def test_the_last_event_may_reach_beyond(self, max_bytes, count):
        records = make_records([b"abc", b"", b"01234", b"x"], base=6)
        found = cut_records(records, max_bytes)
        assert len(found) == count
        assert found.find_positions().tolist() == list(range(6, 6 + count))

    def test_nothing(self):
        assert len(cut_records(make_records([]), 100)) == 0

    @pytest.mark.parametrize("wire", BOTH, ids=lambda wire: wire.name)
    @pytest.mark.parametrize("size", [0, 1, 100, 200, 5_000, 65_000])
    def test_a_small_read_gets_a_small_frame(self, wire, size):
        records = make_sizes([size] * 140_000)
        found = cut_records(records, 1024 * 1024, wire=wire)
        assert len(read_of(found, wire)) <= SMALL_FRAME_BYTES_MAX
        # It is nearly full.
        more = size + (8 if wire.fixed else 3) + 128
        assert len(read_of(found, wire)) + more > SMALL_FRAME_BYTES_MAX

    def test_one_event_may_be_larger(self):
        found = cut_records(make_sizes([200_000, 5]), 1000)
        assert found.values.lengths.tolist() == [200_000]
        found = cut_records(make_sizes([5, 200_000]), 1000)
        assert found.values.lengths.tolist() == [5]

    def test_a_large_read_gets_a_large_frame(self):
        records = make_sizes([100_000] * 200)
        assert len(cut_records(records, 4 * 1024 * 1024)) == 42
        most = cut_records(records, TOP)
        size = len(read_of(most))
        assert 0 <= HEADER_BYTES + PAYLOAD_BYTES_MAX - size < 101_000
        assert len(cut_records(make_sizes([0] * (EVENTS_MAX + 1)), TOP)) == EVENTS_MAX

    def test_an_event_that_fits_into_no_frame(self):
        records = make_sizes([EVENT_BYTES_MAX + 1, 5])
        with pytest.raises(RowError, match="no frame"):
            cut_records(records, 100)


def test_pushes():
    options = {"events_max": 3, "frame_bytes_max": SMALL_FRAME_BYTES_MAX}
    records = make_sizes([1, 1, 1, 1, 131_000, 200_000, 60_000, 60_000, 60_000])
    pieces = list(split_records(records, **options))
    assert [len(piece) for piece in pieces] == [3, 1, 1, 1, 2, 1]
    for piece in pieces:
        body = kimberlite.SubscriptionEvents(TOP, 2**61, piece, 2**32 - 1)
        size = len(join(encode_message(kimberlite.Push(body))))
        assert size <= SMALL_FRAME_BYTES_MAX or len(piece) == 1
