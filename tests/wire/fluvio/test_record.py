"""Batches and record sets: with the compiled kernel and with its twin."""

from __future__ import annotations

import random
import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from lance_spark.errors import (
    LocalProtocolError,
    PayloadOverLimit,
    RecordError,
    RemoteProtocolError,
    RowError,
)
from lance_spark.records import Records, Spans
from lance_spark.wire import fluvio
from lance_spark.wire.fluvio import (
    Codec,
    Role,
    inspect_batches,
    read_chunk,
    read_records,
    write_records,
)
from lance_spark.wire.fluvio.compression import compress
from tests.wire.fluvio.reference import (
    PARTS,
    Row,
    batch,
    find,
    make_records,
    make_rows,
    parse,
    record,
    records_of,
    unpack,
)

pytestmark = pytest.mark.usefixtures("kernel")

CODECS = [codec for codec in Codec if codec is not Codec.NONE]


def squeeze(rows, codec):
    """Write a compressed batch."""
    body = bytes(compress(codec, records_of(rows)))
    return batch(rows, body=body, attributes=codec)


def produced(number):
    request = fluvio.decode_request(
        parse(find(f"spu_Produce_request_{number}")), Role.SPU
    )
    return bytes(request.topics[0].writes[0].records)


def pushed():
    frame = parse(find("spu_StreamFetch_response_1"))
    answer = fluvio.decode_response(frame, fluvio.StreamFetch("t1", api_version=24))
    return bytes(answer.partition.records)


class TestVectors:
    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            (1, [(b"k1", b"hello"), (b"", b"world")]),
            (4, [(b"", b"a"), (b"", b"b"), (b"", b"c")]),
        ],
    )
    def test_produced_batches_read_and_write_back(self, number, expected):
        data = produced(number)
        records = read_records(data)
        assert records.fault is None
        assert [(row.key, row.value) for row in unpack(records)] == expected
        # The client in the field puts the number of the last record in front.
        base = len(expected) - 1
        assert bytes(write_records(records, base_offset=base)) == data

    def test_gzip(self):
        data = produced(7)
        (head,) = inspect_batches(data)
        assert (head.codec, head.count) == (Codec.GZIP, 1)
        records = read_records(data)
        assert records.fault is None
        (row,) = unpack(records)
        assert (row.key, row.value) == (b"", b"z" * 200)
        again = write_records(records, codec=Codec.GZIP)
        assert unpack(read_records(again)) == [row]

    @pytest.mark.parametrize("codec", CODECS)
    def test_what_the_client_in_the_field_compresses(self, codec):
        data = PARTS[f"batch_{codec.name.lower()}"]
        (head,) = inspect_batches(data)
        assert (head.codec, head.count, head.expanded_bytes) == (codec, 3, 275)
        records = read_records(data)
        assert records.fault is None
        values = [b"value-" * 20, b"value-" * 20, b""]
        assert [(row.key, row.value) for row in unpack(records)] == [
            (b"k", value) for value in values
        ]
        for size in range(1, len(data)):
            assert read_records(data[:size]).fault is not None
            assert read_chunk(data[:size]).records.fault is None
        for bit in range(128, 8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            found = read_records(damaged)
            assert (len(found), type(found.fault)) == (0, RecordError)
            # Checked by its sum only; without that the codec meets it.
            with suppress(RemoteProtocolError):
                list(inspect_batches(damaged))

    def test_batches_that_were_pushed(self):
        found = read_chunk(pushed(), start=1, end=4)
        rows = unpack(found.records)
        assert [(row.offset, row.value) for row in rows] == [
            *((1, b"world"), (2, b"a"), (3, b"b"))
        ]
        assert (found.next_offset, found.cut_bytes) == (5, 0)

    @pytest.mark.parametrize("name", ["batch_basic", "batch_schema_id_42"])
    def test_batches_of_unit_tests(self, name):
        data = PARTS[name]
        row = Row(0, 1555478494747, None, b"test")
        assert unpack(read_records(data)) == [row]
        (head,) = inspect_batches(data)
        schema = 42 if name.endswith("42") else None
        assert (head.schema_id, head.count, head.expanded_bytes) == (schema, 1, 15)
        assert (head.refusal is None) == (schema is None)
        if schema is None:
            # Its last offset delta is one that a record pushed alone does not get.
            written = bytearray(write_records(read_records(data)))
            written[23:27] = b"\xff" * 4
            assert (written[:17], written[21:]) == (data[:17], data[21:])

    @pytest.mark.parametrize("number", [1, 4, 7])
    def test_every_truncation_is_a_clean_error(self, number):
        data = produced(number)
        for size in range(1, len(data)):
            records = read_records(data[:size])
            assert len(records) == 0
            assert isinstance(records.fault, RecordError)
            assert records.fault.truncated
            found = read_chunk(data[:size], start=3)
            assert (len(found.records), found.records.fault) == (0, None)
            assert found.cut_bytes == (len(data) if size >= 12 else 61)
            assert found.next_offset == 3
            with pytest.raises(RemoteProtocolError, match="are there"):
                list(inspect_batches(data[:size]))

    @pytest.mark.parametrize("number", [1, 4, 7])
    def test_every_flipped_bit_is_found(self, number):
        data = produced(number)
        good = unpack(read_records(data))
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            records = read_records(damaged)
            # Neither the base offset nor the epoch of the leader are summed.
            if bit < 64 or 96 <= bit < 128:
                assert records.fault is None
                assert unpack(records) == good
            else:
                assert isinstance(records.fault, RecordError)
                assert len(records) == 0


@pytest.mark.parametrize("seed", range(12))
class TestRandom:
    def test_batches_agree_with_the_reference(self, seed):
        chance = random.Random(seed)
        start = chance.choice([0, 7, 2**40])
        count = chance.choice([1, 2, 63, 64, 65, 200, 2000])
        rows = make_rows(chance, count, start=start)
        data = batch(rows)
        found = read_chunk(data)
        assert unpack(found.records) == rows
        assert (found.next_offset, found.records.fault) == (start + count, None)
        assert bytes(write_records(found.records, base_offset=start)) == data
        numbered = [row._replace(offset=i) for i, row in enumerate(rows)]
        assert unpack(read_records(data)) == numbered
        (head,) = inspect_batches(data)
        assert (head.base_offset, head.count) == (start, count)
        for codec in CODECS:
            small = write_records(found.records, base_offset=start, codec=codec)
            assert unpack(read_chunk(small).records) == rows
            (packed,) = inspect_batches(small)
            assert (packed.codec, packed.count) == (codec, count)
            assert packed.expanded_bytes == head.expanded_bytes

    def test_sets_of_all_kinds(self, seed):
        chance = random.Random(seed)
        data, expected, ends, offset = b"", [], {0: 0}, chance.randrange(9)
        first = offset
        for _ in range(chance.randrange(1, 8)):
            rows = make_rows(chance, chance.choice([0, 1, 3, 20, 150]), start=offset)
            codec = chance.choice([Codec.NONE, *Codec])
            made = squeeze(rows, codec) if codec is not Codec.NONE else batch(rows)
            # An empty batch has a place, too.
            data += struct.pack(">q", offset) + made[8:]
            expected += rows
            offset += len(rows)
            ends[len(data)] = len(expected)
        found = read_chunk(data)
        assert unpack(found.records) == expected
        assert (found.next_offset, found.cut_bytes) == (offset, 0)
        assert sum(head.count for head in inspect_batches(data)) == len(expected)
        for _ in range(15):
            size = chance.randrange(len(data) + 1)
            some = read_chunk(data[:size])
            whole = max(end for end in ends if end <= size)
            assert unpack(some.records) == expected[: ends[whole]]
            assert some.records.fault is None
            assert (some.cut_bytes == 0) == (size in ends)
            assert some.next_offset == (first + ends[whole] if whole else 0)
            low, high = sorted(chance.choices(range(offset + 3), k=2))
            cut = read_chunk(data, start=low, end=high)
            wanted = [row for row in expected if low <= row.offset < high]
            assert unpack(cut.records) == wanted
            damaged = bytearray(data[:size])
            if damaged:
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            other = read_chunk(damaged, start=chance.randrange(5))
            fault = other.records.fault
            assert fault is None or isinstance(fault, RecordError)
            unpack(other.records)
            assert len(read_records(damaged)) <= len(expected)


ROWS = [Row(0, 5, b"k", b"one"), Row(1, 6, None, b"two")]


class TestReading:
    def test_nothing(self):
        assert len(read_records(b"")) == 0
        found = read_chunk(b"", start=7)
        assert (len(found.records), found.next_offset, found.cut_bytes) == (0, 7, 0)
        assert list(inspect_batches(b"")) == []
        empty = batch([])
        assert len(read_records(empty)) == 0
        assert unpack(read_records(empty + batch(ROWS) + empty)) == ROWS

    def test_no_key_and_an_empty_key(self):
        rows = [Row(0, 5, None, b""), Row(1, 5, b"", b""), Row(2, 5, None, b"")]
        records = read_records(batch(rows))
        assert records.keyed.tolist() == [1]
        assert unpack(records) == rows

    @pytest.mark.parametrize("time", [-1, 0, -5])
    def test_a_first_time_of_at_most_0_is_none(self, time):
        body = records_of([row._replace(time_ms=9) for row in ROWS])
        data = batch([Row(0, time, None, b"")], body=body)
        assert [row.time_ms for row in unpack(read_records(data))] == [None, None]

    def test_a_delta_before_1970_is_none(self):
        rows = [Row(0, 5, None, b""), Row(1, 0, None, b""), Row(2, -3, None, b"")]
        times = [row.time_ms for row in unpack(read_records(batch(rows)))]
        assert times == [5, None, None]

    def test_a_producer_may_say_any_offset(self):
        data = struct.pack(">q", -(2**63)) + batch(ROWS)[8:]
        assert unpack(read_records(data)) == ROWS

    def test_several_batches_of_a_producer_count_on(self):
        records = read_records(batch(ROWS) + batch(ROWS))
        assert [row.offset for row in unpack(records)] == [0, 1, 2, 3]

    def test_gaps_between_batches(self):
        late = [row._replace(offset=row.offset + 10) for row in ROWS]
        found = read_chunk(batch(ROWS) + batch(late), start=1, end=11)
        assert unpack(found.records) == [ROWS[1], late[0]]
        assert found.next_offset == 12

    @pytest.mark.parametrize("offset", [-1, 1, 0, 2**62, 2**63 - 1, -(2**63)])
    def test_batches_out_of_order(self, offset):
        wrong = struct.pack(">q", offset) + batch(ROWS)[8:]
        found = read_chunk(batch(ROWS) + wrong + batch(ROWS))
        assert unpack(found.records) == ROWS
        assert f"record {offset}, which is not in order" in str(found.records.fault)
        assert found.next_offset == 2

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (batch(ROWS, crc=1), "checksum"),
            (squeeze(ROWS, Codec.GZIP)[:-1] + b"x", "checksum"),
            (batch(ROWS, attributes=5), "version 2 with attributes 0x0005"),
            (batch(ROWS, attributes=7), "attributes 0x0007"),
            (batch(ROWS, attributes=Codec.GZIP), "not gzip"),
            (batch(ROWS, attributes=Codec.SNAPPY), "its name|needed"),
            (batch(ROWS, attributes=Codec.LZ4), "not lz4"),
            (batch(ROWS, attributes=Codec.ZSTD), "not zstd"),
            (batch(ROWS)[:16] + b"\x01" + batch(ROWS)[17:], "a batch of version 1"),
            (batch(ROWS, body=records_of(ROWS) + b"\0"), "other records"),
            (batch(ROWS, body=b"\0\0\0\3" + records_of(ROWS)[4:]), "other records"),
            (batch(ROWS, body=b"\x7f\xff\xff\xff" + bytes(20)), "other records"),
            (b"\0" * 8 + b"\xff" * 4 + b"\0" * 60, "a batch of -1 bytes"),
            (b"\0" * 11 + b"\x30" + b"\0" * 60, "a batch of 48 bytes"),
        ],
    )
    def test_malformed_batches(self, data, text):
        for records in (read_records(data), read_chunk(data).records):
            assert len(records) == 0
            assert any(part in str(records.fault) for part in text.split("|"))
        # What is before it arrives.
        late = struct.pack(">q", 2) + data[8:]
        found = read_chunk(batch(ROWS) + late + batch(ROWS))
        assert unpack(found.records) == ROWS
        assert any(part in str(found.records.fault) for part in text.split("|"))
        assert (found.next_offset, found.cut_bytes) == (2, 0)

    def test_the_wrong_sum_of_many_small_batches(self):
        good = [struct.pack(">q", i) + batch(ROWS[:1])[8:] for i in range(50)]
        bad = bytearray(good[30])
        bad[-2] ^= 1
        found = read_chunk(b"".join(good[:30]) + bytes(bad) + b"".join(good[31:]))
        assert len(found.records) == found.next_offset == 30
        assert found.records.fault.position == 30 * len(bad)

    @pytest.mark.parametrize("codec", Codec)
    def test_a_count_that_can_not_be(self, codec):
        body = bytes(compress(codec, b"\x7f\xff\xff\xff" + bytes(60)))
        data = batch(ROWS, body=body, attributes=codec)
        assert "other records" in str(read_records(data).fault)
        with pytest.raises(RemoteProtocolError, match="2147483647 records in 64"):
            list(inspect_batches(data))
        short = batch(ROWS, body=bytes(compress(codec, b"abc")), attributes=codec)
        with pytest.raises(
            RemoteProtocolError, match=r"how many records|a batch of 48"
        ):
            list(inspect_batches(short))
        assert read_records(short).fault is not None

    def test_headers(self):
        made = [
            record(ROWS[0], delta=0, number=0),
            record(ROWS[1], delta=0, number=1, tail=b"\x02abc"),
            record(ROWS[0], delta=0, number=2),
        ]
        data = batch(ROWS, body=struct.pack(">i", 3) + b"".join(made))
        records = read_records(data)
        assert "record 1 has headers" in str(records.fault)
        assert [row.value for row in unpack(records)] == [b"one"]
        # A client reads what a broker in the field has stored.
        found = read_chunk(data)
        assert [row.value for row in unpack(found.records)] == [b"one", b"two", b"one"]
        assert found.records.fault is None

    def test_a_time_that_is_too_late(self):
        last = (2**64 - 1) // 10**6
        rows = [Row(0, last, None, b"a"), Row(1, last + 1, None, b"b")]
        records = read_records(batch(rows))
        assert unpack(records) == rows[:1]
        assert "too late" in str(records.fault)

    def test_what_a_broker_does_not_keep(self):
        (head,) = inspect_batches(batch(ROWS, producer_id=7))
        assert "producer 7" in str(head.refusal)
        (head,) = inspect_batches(
            batch(ROWS, body=b"\0\0\0\1" + bytes(4), attributes=16)
        )
        assert "schema 1" in str(head.refusal)
        (head,) = inspect_batches(batch(ROWS))
        assert head.refusal is None

    def test_what_a_broker_reserves(self):
        rows = [Row(i, 5, b"", b"") for i in range(100)]
        for data in (batch(rows), squeeze(rows, Codec.ZSTD)):
            (head,) = inspect_batches(data)
            assert (head.count, head.expanded_bytes) == (100, len(records_of(rows)))
            # TLV: type, length, time, length of the key.
            assert head.stored_bytes_max >= 100 * (1 + 4 + 8 + 2)

    @pytest.mark.parametrize("codec", CODECS)
    def test_bombs(self, codec):
        rows = [Row(i, None, None, bytes(1 << 18)) for i in range(64)]
        bomb = squeeze(rows, codec)
        assert len(bomb) < 1 << 20
        (head,) = inspect_batches(bomb)
        assert head.expanded_bytes > 16 << 20
        small = squeeze(rows[:4], codec)
        many = b"".join(struct.pack(">q", 4 * i) + small[8:] for i in range(10))
        tracemalloc.start()
        assert "expanded batch of" in str(
            read_records(bomb, expanded_bytes_max=4 << 20).fault
        )
        # Several that are small each.
        found = read_chunk(many, expanded_bytes_max=4 << 20)
        assert "expanded batch of" in str(found.records.fault)
        assert len(found.records) == found.next_offset == 12
        for data in (bomb, many):
            with pytest.raises(PayloadOverLimit):
                list(inspect_batches(data, expanded_bytes_max=4 << 20))
        # The pieces, what they are joined to, and one more.
        assert tracemalloc.get_traced_memory()[1] < 12 << 20
        tracemalloc.stop()


def times_of(data):
    return [row.time_ms for row in unpack(read_records(data))]


class TestWriting:
    def test_nothing(self):
        assert write_records(make_records([])) == b""

    def test_records_without_a_time_get_one(self):
        rows = [row._replace(time_ms=None) for row in [*ROWS, *ROWS]]
        assert times_of(write_records(make_records(rows))) == [None] * 4
        data = write_records(make_records(rows), stamps_ns=3_999_999)
        assert times_of(data) == [3] * 4
        each = np.arange(1, 5).astype(np.uint64) * np.uint64(10**6)
        mixed = make_records([rows[0], rows[1]._replace(time_ms=9), *rows[2:]])
        assert times_of(write_records(mixed, stamps_ns=each)) == [1, 9, 3, 4]

    def test_times_and_none_are_batches_of_their_own(self):
        times = [None, None, 5, 6, None, 7]
        rows = [Row(i, time, None, b"x") for i, time in enumerate(times)]
        data = write_records(make_records(rows), base_offset=10)
        heads = list(inspect_batches(data))
        assert [head.base_offset for head in heads] == [10, 12, 14, 15]
        assert [head.first_time_ms for head in heads] == [-1, 5, -1, 7]
        assert times_of(data) == times

    def test_deltas_stay_within_32_bits(self):
        day = 86_400_000
        times = [day * 365 * 40, day * 365 * 50, day * 365 * 50 + 2**31 - 1]
        times += [times[-1] + 1, 1, 2**31, 2**31 + 1, (2**64 - 1) // 10**6]
        rows = [Row(i, time, None, b"x") for i, time in enumerate(times)]
        data = write_records(make_records(rows))
        assert [head.count for head in inspect_batches(data)] == [1, 2, 1, 2, 1, 1]
        assert times_of(data) == times
        found = read_chunk(data)
        assert [row.offset for row in unpack(found.records)] == list(range(8))
        assert bytes(data) == b"".join(
            batch(some)
            for some in (rows[:1], rows[1:3], rows[3:4], rows[4:6], rows[6:7], rows[7:])
        )

    def test_times_that_go_back_and_forth(self):
        chance = random.Random(15)
        times = [chance.randrange(1, 10**12) for _ in range(300)]
        rows = [Row(i, t, None, b"%d" % t) for i, t in enumerate(times)]
        assert unpack(read_chunk(write_records(make_records(rows))).records) == rows

    def test_keys(self):
        rows = [
            Row(i, 5, key, b"v") for i, key in enumerate([None, b"", b"k" * 300, None])
        ]
        assert unpack(read_records(write_records(make_records(rows)))) == rows

    def test_a_null_is_an_empty_value(self):
        nulls = np.array([True, False])
        records = replace(
            make_records([ROWS[0]._replace(value=b""), ROWS[1]]), nulls=nulls
        )
        rows = unpack(read_records(write_records(records)))
        assert [row.value for row in rows] == [b"", b"two"]

    def test_positions_do_not_count(self):
        records = replace(make_records(ROWS), base=100, positions=np.array([3, 7]))
        found = read_chunk(write_records(records, base_offset=5))
        assert [row.offset for row in unpack(found.records)] == [5, 6]

    def test_lengths_are_varints(self):
        sizes = [0, 1, 63, 64, 8191, 8192, 2**20 - 1, 2**20]
        rows = [Row(i, 5, None, bytes(size)) for i, size in enumerate(sizes)]
        assert unpack(read_records(write_records(make_records(rows)))) == rows

    @pytest.mark.parametrize("codec", CODECS)
    def test_what_does_not_shrink_is_compressed_all_the_same(self, codec):
        """A topic may take no other codec."""
        records = make_records(ROWS)
        made = write_records(records, codec=codec)
        assert len(made) >= len(write_records(records))
        assert [head.codec for head in inspect_batches(made)] == [codec]

    def test_what_can_not_be_written(self):
        huge = Records(
            Spans(np.empty(0, np.uint8), np.array([0, 0]), np.array([0, 2**31])), base=7
        )
        with pytest.raises(RowError, match="Fluvio takes") as info:
            write_records(huge)
        assert info.value.row == 8
        broken = replace(make_records(ROWS), fault=RecordError("no", 3))
        with pytest.raises(RecordError, match="no"):
            write_records(broken)

    def test_a_batch_that_is_too_large(self):
        from lance_spark.wire.fluvio.record import _write_head

        class Huge(bytes):
            def __len__(self):
                return 2**31

        with pytest.raises(LocalProtocolError, match="a batch of 2147483693 bytes"):
            _write_head(0, 1, Codec.NONE, (1, 1), Huge())
