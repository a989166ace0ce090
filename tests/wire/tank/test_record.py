"""Bundles and chunks: with the compiled kernel and with its twin."""

from __future__ import annotations

import random
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.errors import (
    LocalProtocolError,
    RecordError,
    RemoteProtocolError,
    RowError,
)
from lance_spark.records import Records, Spans
from lance_spark.wire import tank
from lance_spark.wire.tank import read_chunk, read_records, write_records
from tests.each import each
from tests.wire.tank.reference import (
    Row,
    bundle,
    find,
    frame_bundle,
    make_rows,
    parse,
    spread,
    unpack,
    varint,
)

pytestmark = pytest.mark.usefixtures("kernel")


def squeeze(plain: bytes) -> bytes:
    """Compress the messages of a bundle that is not sparse."""
    head = 1 if plain[0] else 2
    while head > 1 and plain[head - 1] & 0x80:
        head += 1
    data = pa.Codec("snappy").compress(plain[head:], asbytes=True)
    return bytes([plain[0] | 1]) + plain[1:head] + data


def bundle_of(name: str) -> bytes:
    request = tank.decode_request(parse(find(name, ">")))
    return bytes(request.topics[0].writes[0].bundle)


def chunk_of(name: str, number: int = 1) -> tank.Fetched:
    answer = tank.decode_response(parse(find(name, "<", number)))
    return answer.topics[0].partitions[0]


PRODUCED = {
    "produce_1": [b"hello"],
    "produce_3_bundle": [b"alpha", b"beta", b"gamma"],
    "produce_keyed": [b"v1", b"v2"],
    "produce_20": [b"m%d" % i for i in range(1, 21)],
    "produce_sparse": [b"s%d" % i for i in range(4)],
    "produce_ts_step": [b"a", b"b", b"c"],
}


class TestVectors:
    @each("name", PRODUCED)
    def test_produced_bundles_read_and_write_back(self, name):
        data = bundle_of(name)
        records = read_records(data)
        rows = unpack(records)
        assert [row.value for row in rows] == PRODUCED[name]
        sparse = name == "produce_sparse"
        assert bytes(write_records(records, sparse=sparse)) == data
        assert records.fault is None

    def test_keys_times_and_numbers(self):
        assert [
            row.key for row in unpack(read_records(bundle_of("produce_keyed")))
        ] == [*(b"k1", b"k2")]
        times = [
            row.time_ms for row in unpack(read_records(bundle_of("produce_ts_step")))
        ]
        assert np.diff(times).tolist() == [1000, 1000]
        assert times[0] == 0x1A1E17AB2A5
        seqs = [row.seq for row in unpack(read_records(bundle_of("produce_sparse")))]
        assert seqs == [100, 105, 110, 115]

    def test_compressed(self):
        data = bundle_of("produce_compressed_16")
        head = tank.inspect_bundle(data)
        assert (head.count, head.expanded_bytes) == (16, 1704)
        records = read_records(data)
        assert len(records) == 16
        assert unpack(records)[3].value[:8] == b"row-003-"
        # The block differs between versions of snappy, and says the same.
        again = write_records(records, compress=True)
        assert unpack(read_records(again)) == unpack(records)

    def test_a_chunk_of_all(self):
        fetched = chunk_of("consume_from_0")
        found = read_chunk(fetched.chunk, fetched.base_seq, end=fetched.hwm + 1)
        assert [row.seq for row in unpack(found.records)] == list(range(1, 43))
        assert (found.next_seq, found.cut_bytes, found.records.fault) == (43, 0, None)

    @each(
        ("start", "end", "seqs"),
        [
            *((6, 43, range(6, 43)), (6, 6, []), (0, 7, [5, 6]), (43, 50, [])),
            *((0, None, range(5, 43)), (2**64 - 1, 2**64, []), (30, 9, [])),
        ],
    )
    def test_trimming(self, start, end, seqs):
        fetched = chunk_of("consume_from_6")
        found = read_chunk(fetched.chunk, fetched.base_seq, start=start, end=end)
        assert [row.seq for row in unpack(found.records)] == list(seqs)
        assert found.next_seq == 43

    def test_a_sparse_chunk_has_no_base(self):
        fetched = chunk_of("consume_sparse")
        found = read_chunk(fetched.chunk, fetched.base_seq, start=101, end=111)
        assert [row.seq for row in unpack(found.records)] == [105, 110]
        assert found.next_seq == 116

    @each("name", [*PRODUCED, "produce_compressed_16"])
    def test_every_truncation_is_a_clean_error(self, name):
        data = bundle_of(name)
        for size in range(1, len(data)):
            records = read_records(data[:size])
            assert len(records) == 0
            assert isinstance(records.fault, RecordError)

    @each("name", [*PRODUCED, "produce_compressed_16"])
    def test_every_flipped_bit_is_records_or_a_clean_error(self, name):
        data = bundle_of(name)
        count = tank.inspect_bundle(data).count
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            records = read_records(damaged)
            assert records.fault is None or isinstance(records.fault, RecordError)
            # Never fewer without a word, unless what is left fills the bytes as well.
            assert records.fault is not None or len(records) >= min(count, 1)
            unpack(records)

    def test_every_truncation_of_a_chunk_keeps_the_whole_bundles(self):
        fetched = chunk_of("consume_from_0")
        ends = {17: 1, 47: 4, 71: 6, 173: 26, 336: 42}
        for size in range(len(fetched.chunk) + 1):
            found = read_chunk(fetched.chunk[:size], 1)
            whole = max((rows for end, rows in ends.items() if end <= size), default=0)
            assert len(found.records) == whole
            assert found.records.fault is None
            assert (found.cut_bytes == 0) == (size in (0, *ends))
            assert found.next_seq == whole + 1

    def test_the_size_of_a_bundle_that_is_cut(self):
        chunk = chunk_of("consume_from_0").chunk
        assert read_chunk(chunk[:20], 1).cut_bytes == 30
        assert read_chunk(chunk[:174], 1).cut_bytes == 5  # Not even its length.
        assert read_chunk(chunk[:175], 1).cut_bytes == 163


class TestRandom:
    @each("seed", range(60))
    def test_bundles_agree_with_the_reference(self, seed):
        chance = random.Random(seed)
        rows = make_rows(chance, chance.choice([1, 2, 15, 16, 17, 200, 3000]))
        sparse = chance.random() < 0.5
        rows = spread(rows, chance) if sparse else rows
        data = bundle(rows, sparse=sparse)
        records = read_records(data)
        base = 0 if sparse else -1
        expected = [row._replace(seq=row.seq + base) for row in rows]
        assert unpack(records) == expected
        assert records.fault is None
        assert bytes(write_records(records, sparse=sparse)) == data
        framed = write_records(records, sparse=sparse, framed=True)
        assert bytes(framed) == frame_bundle(data)
        small = write_records(records, sparse=sparse, compress=True)
        assert unpack(read_records(small)) == expected
        assert len(small) <= len(data)
        packed = write_records(records, sparse=sparse, compress=True, framed=True)
        assert bytes(packed) == frame_bundle(bytes(small))

    @each("seed", range(60))
    def test_chunks_of_all_kinds(self, seed):
        chance = random.Random(seed)
        chunk, expected, seq = b"", [], 1
        for _ in range(chance.randrange(12)):
            rows = make_rows(chance, chance.choice([0, 1, 3, 20, 150]), start=seq)
            kind = chance.choice(["plain", "plain", "snappy", "sparse"])
            if kind == "sparse" and rows:
                rows = spread(rows, chance)
                data = bundle(rows, sparse=True)
            else:
                data = bundle(rows)
                data = squeeze(data) if kind == "snappy" and rows else data
            chunk += frame_bundle(data)
            expected += rows
            seq = rows[-1].seq + 1 if rows else seq
        found = read_chunk(chunk, 1)
        assert unpack(found.records) == expected
        assert (found.next_seq, found.cut_bytes) == (seq, 0)
        # Cut and damaged anywhere.
        for _ in range(20):
            damaged = bytearray(chunk[: chance.randrange(len(chunk) + 1)])
            if damaged and chance.random() < 0.7:
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            some = read_chunk(damaged, 1, start=chance.randrange(5))
            fault = some.records.fault
            assert fault is None or isinstance(fault, RecordError)
            unpack(some.records)


ROWS = [Row(1, 5, b"k", b"one"), Row(2, 6, None, b"two")]


class TestReading:
    def test_nothing(self):
        assert len(read_records(b"")) == 0
        assert len(read_chunk(b"", 7).records) == 0
        assert read_chunk(b"", 7).next_seq == 7
        # The broker in the field stores these.
        for empty in (b"", b"\0\0", b"\1\0\0"):
            found = read_chunk(frame_bundle(empty) + frame_bundle(bundle(ROWS)), 1)
            assert unpack(found.records) == ROWS

    def test_the_first_message_without_a_time_has_0(self):
        assert unpack(read_records(b"\x04\x02\x01x")) == [Row(0, 0, None, b"x")]

    @each(
        ("data", "text"),
        [
            (b"\x84" + bundle(ROWS)[1:], "flags 0x84"),
            (b"\x0a" + bundle(ROWS)[1:], "flags 0x0A"),
            (bundle(ROWS) + b"\0", "other messages"),
            (b"\x0c" + bundle(ROWS)[1:], "other messages"),
            (b"\x04" + bundle(ROWS)[1:], "other messages"),
            (bundle(ROWS).replace(b"\x01", b"\x09", 1), "other messages"),
            (b"\x00\xff\xff\xff\xff\x0f" + bytes(20), "4294967295 messages in 20"),
            (b"\x00\xff\xff\xff\xff\x1f" + bytes(20), "32 bits"),
            (b"\x05" + varint(2**31) + bytes(20), "of snappy can't become"),
            (b"\x05" + varint(30) + b"\xff" * 5, "not snappy"),
            (b"\x04\x00" + struct.pack("<Q", 2**63) + b"\x00", "too late"),
        ],
    )
    def test_malformed_bundles(self, data, text):
        for records in (
            read_records(data),
            read_chunk(frame_bundle(data), 1).records,
        ):
            assert len(records) == 0
            assert text in str(records.fault)
        # What is before it arrives.
        good = frame_bundle(bundle(ROWS))
        found = read_chunk(good + frame_bundle(data) + good, 1)
        assert unpack(found.records) == ROWS
        assert text in str(found.records.fault)

    def test_a_chunk_that_has_to_be_sparse_and_is_not(self):
        found = read_chunk(frame_bundle(bundle(ROWS)), 0)
        assert len(found.records) == 0
        assert "no sequence number" in str(found.records.fault)

    def test_a_sparse_bundle_behind_its_own_numbers(self):
        rows = [row._replace(seq=row.seq + 1) for row in ROWS]
        chunk = frame_bundle(bundle(ROWS)) + frame_bundle(bundle(rows, sparse=True))
        found = read_chunk(chunk, 1)
        assert unpack(found.records) == ROWS
        assert "numbers" in str(found.records.fault)

    @pytest.mark.parametrize("seq", [2**62, 2**63, 2**64 - 1])
    def test_numbers_that_make_no_sense(self, seq):
        plain = frame_bundle(bundle(ROWS))
        assert "numbers" in str(read_chunk(plain, seq).records.fault)
        rows = [ROWS[0]._replace(seq=seq)]
        assert "numbers" in str(read_records(bundle(rows, sparse=True)).fault)

    def test_rows_before_a_time_that_is_too_late(self):
        rows = [*ROWS, Row(3, (2**64 - 1) // 10**6 + 1, None, b""), ROWS[0]]
        records = read_records(bundle(rows))
        assert [row.value for row in unpack(records)] == [b"one", b"two"]
        assert "too late" in str(records.fault)
        last = [Row(0, (2**64 - 1) // 10**6, None, b"")]
        assert unpack(read_records(bundle(last))) == last

    def test_bombs(self):
        rows = [Row(i, 0, None, bytes(1 << 20)) for i in range(20)]
        bomb = squeeze(bundle(rows))
        assert len(bomb) < 1 << 20
        assert tank.inspect_bundle(bomb).expanded_bytes > 20 << 20
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        records = read_records(bomb, expanded_bytes_max=20 << 20)
        assert "expanded bundle of" in str(records.fault)
        # Several that are small each.
        many = frame_bundle(squeeze(bundle(rows[:1]))) * 20
        found = read_chunk(many, 1, expanded_bytes_max=5 << 20)
        assert len(found.records) == 4
        assert "expanded bundle of" in str(found.records.fault)
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
        tracemalloc.stop()
        assert pa.total_allocated_bytes() - before < 12 << 20

    def test_what_a_broker_reserves(self):
        rows = [Row(i, 0, b"", b"") for i in range(100)]
        head = tank.inspect_bundle(bundle(rows))
        assert head.count == 100
        # TLV: type, length, time, length of the key.
        assert head.stored_bytes_max >= 100 * (1 + 4 + 8 + 2)
        with pytest.raises(RemoteProtocolError, match="flags"):
            tank.inspect_bundle(b"\x80")


def make_records(values, **others) -> Records:
    data = np.frombuffer(b"".join(values), np.uint8)
    ends = np.cumsum([len(value) for value in values])
    starts = ends - [len(value) for value in values]
    return Records(Spans(data, starts, ends), **others)


def make_keys(keys) -> Spans:
    return make_records(keys).values


class TestWriting:
    def test_records_without_a_time_get_one(self):
        records = make_records([b"a", b"b", b"c"], stamped=np.array([1]))
        records = Records(
            records.values,
            stamped=np.array([1]),
            stamps_ns=np.array([7_999_999], np.uint64),
        )
        times = [row.time_ms for row in unpack(read_records(write_records(records)))]
        assert times == [0, 7, 0]
        data = write_records(records, stamps_ns=3_000_000)
        assert [row.time_ms for row in unpack(read_records(data))] == [3, 7, 3]
        each = np.array([1, 2, 3], np.uint64) * np.uint64(10**6)
        data = write_records(records, stamps_ns=each)
        assert [row.time_ms for row in unpack(read_records(data))] == [1, 7, 3]

    def test_a_null_is_an_empty_value(self):
        records = make_records([b"", b"x"], nulls=np.array([True, False]))
        rows = unpack(read_records(write_records(records)))
        assert [row.value for row in rows] == [b"", b"x"]

    def test_empty_keys_are_keys(self):
        keys = {"keyed": np.array([1]), "keys": make_keys([b""])}
        records = make_records([b"a", b"b"], **keys)
        rows = unpack(read_records(write_records(records)))
        assert [row.key for row in rows] == [None, b""]

    def test_a_long_key(self):
        keys = make_keys([b"x" * 255, b"y" * 256])
        values = [b"a", b"b", b"c", b"d"]
        keyed = np.array([1, 2])
        records = make_records(values, base=100, keyed=keyed, keys=keys)
        assert tank.find_long_key(records) == 2
        with pytest.raises(RowError, match="256 bytes") as info:
            write_records(records)
        assert info.value.row == 102
        before = records.cut(0, 2)
        assert tank.find_long_key(before) is None
        rows = unpack(read_records(write_records(before)))
        assert [row.key for row in rows] == [None, b"x" * 255]

    def test_the_length_of_the_value_is_a_varint(self):
        sizes = [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21]
        records = make_records([bytes(size) for size in sizes])
        rows = unpack(read_records(write_records(records)))
        assert [len(row.value) for row in rows] == sizes

    def test_what_can_not_be_written(self):
        with pytest.raises(LocalProtocolError, match="at least one"):
            write_records(make_records([]))
        for positions in ([0, 0], [1, 0], [-1, 0]):
            records = make_records([b"", b""], positions=np.array(positions))
            with pytest.raises(LocalProtocolError, match="rise"):
                write_records(records, sparse=True)
        far = make_records([b"", b""], positions=np.array([0, 2**33]))
        with pytest.raises(LocalProtocolError, match="does not fit"):
            write_records(far, sparse=True)
        huge = Records(Spans(np.empty(0, np.uint8), np.array([0]), np.array([2**32])))
        with pytest.raises(LocalProtocolError, match="4 GiB"):
            write_records(huge)
        broken = make_records([b""], fault=RecordError("no", 3))
        with pytest.raises(RecordError, match="no"):
            write_records(broken)

    def test_what_does_not_shrink_is_not_compressed(self):
        records = make_records([b"abc"])
        assert bytes(write_records(records, compress=True)) == bytes(
            write_records(records)
        )
