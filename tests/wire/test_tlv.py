"""Records in bulk: where they are, what is inside them, and the way back to bytes."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import OptionError, RecordError, RowError
from lance_spark.records import Records, Spans
from lance_spark.wire.lwp import (
    RECORD_VALUE_BYTES_MAX,
    check_records,
    read_records,
    scan,
    validate,
    write_payloads,
    write_records,
)
from tests.columnar import plain
from tests.columnar.strategies import buffers, examples, record, row_lists
from tests.each import each

pytestmark = pytest.mark.usefixtures("kernel")

# Each is wrong inside, with a word of what the error says.
BAD = {
    "null with a length": (record(0xFF, b"x"), "0xFF"),
    "no room for a timestamp": (record(0x11, bytes(7)), "8 or more, has 7"),
    "no room for both": (record(0x12, bytes(9)), "10 or more, has 9"),
    "no timestamp of both": (record(0x12, bytes(3)), "10 or more, has 3"),
    "no room for a key length": (record(0x10, b"\x00"), "2 or more, has 1"),
    "empty keyed": (record(0x10, b""), "2 or more, has 0"),
    "key beyond the record": (record(0x10, b"\x03\x00ab"), "3 bytes where 2"),
    "key beyond it, stamped": (record(0x12, bytes(8) + b"\x01\x00"), "1 bytes where 0"),
}
GOOD = b"".join(
    [
        record(1, b"plain"),
        record(0x10, b"\x02\x00kkv"),
        record(0x11, struct.pack("<Q", 7) + b"v"),
        record(0x12, struct.pack("<Q", 2**64 - 1) + b"\x00\x00"),
        record(0xFF, b""),
        record(0x77, b""),
    ]
)


def list_spans(spans):
    return [
        spans.data[a:b].tobytes() for a, b in zip(spans.starts, spans.ends, strict=True)
    ]


def list_rows(records):
    """Give records as rows of the plain implementation."""
    keys = dict(zip(records.keyed.tolist(), list_spans(records.keys), strict=True))
    stamps = dict(
        zip(records.stamped.tolist(), records.stamps_ns.tolist(), strict=True)
    )
    nulls = records.nulls if records.nulls is not None else [False] * len(records)
    return [
        plain.Row(at, behind, kind, keys.get(i), None if null else value, stamps.get(i))
        for i, (at, behind, kind, value, null) in enumerate(
            zip(
                records.find_positions().tolist(),
                records.find_nexts().tolist(),
                records.types.tolist(),
                list_spans(records.values),
                nulls,
                strict=True,
            )
        )
    ]


@given(row_lists(), st.sampled_from([0, 1000]))
@examples(60)
def test_parts(rows, base):
    data = b"".join(plain.encode_row(row, 0) for row in rows)
    expected = [
        row._replace(offset=row.offset + base, next_offset=row.next_offset + base)
        for row in plain.decode(data).rows
    ]
    records = read_records(data, base_offset=base)
    assert records.fault is None
    assert list_rows(records) == expected
    assert write_records(records).tobytes() == data
    for a, b in ((0, len(rows) // 2), (len(rows) // 3, len(rows))):
        assert list_rows(records.cut(a, b)) == expected[a:b]
    some = np.arange(0, len(rows), 3)
    assert list_rows(records.select(some)) == expected[::3]


@given(buffers(), st.booleans())
@examples(150)
def test_damaged_bytes(data, skip):
    try:
        expected = plain.decode(data, skip=skip)
        rows, fault = expected.rows, expected.fault
    except RecordError as error:
        rows, fault = plain.decode(data[: error.position]).rows, error
    records = read_records(data, on_bad="skip" if skip else "stop")
    assert list_rows(records) == rows
    assert (records.fault and records.fault.position) == (fault and fault.position)
    assert (records.fault and records.fault.truncated) == (fault and fault.truncated)
    if fault is not None:
        with pytest.raises(RecordError):
            write_records(records)


class TestWrite:
    """Records of other protocols, which know nothing of LWP's types."""

    DATA = np.frombuffer(b"valuekey", np.uint8)

    def spans(self, *pairs):
        starts, ends = (np.array(part, np.int64) for part in zip(*pairs, strict=True))
        return Spans(self.DATA, starts, ends)

    def test_spans_in_any_order(self):
        records = Records(self.spans((4, 5), (0, 3), (2, 2), (0, 5)))
        assert write_records(records, record_type=2).tobytes() == b"".join(
            record(2, value) for value in (b"e", b"val", b"", b"value")
        )

    def test_no_key_is_not_an_empty_key(self):
        records = Records(
            self.spans((0, 1), (0, 1), (0, 1)),
            keyed=np.array([0, 2]),
            keys=self.spans((5, 5), (5, 8)),
        )
        assert write_records(records).tobytes() == (
            record(0x10, b"\0\0v") + record(1, b"v") + record(0x10, b"\3\0keyv")
        )

    def test_no_value_is_not_an_empty_value(self):
        records = Records(self.spans((0, 0), (0, 0)), nulls=np.array([True, False]))
        assert write_records(records).tobytes() == record(0xFF, b"") + record(1, b"")

    def test_keys_of_another_buffer(self):
        keys = Spans(np.frombuffer(b"abc", np.uint8), np.array([1]), np.array([3]))
        records = Records(self.spans((0, 5)), keyed=np.array([0]), keys=keys)
        assert write_records(records).tobytes() == record(0x10, b"\2\0bcvalue")

    def test_nothing(self):
        nothing = read_records(b"")
        assert len(write_records(nothing)) == 0
        assert list(write_payloads(nothing)) == []

    def test_the_row_of_an_error_is_the_records_position(self):
        records = Records(
            self.spans((0, 1), (0, 1)),
            base=40,
            positions=np.array([3, 7]),
            types=np.array([1, 16]),
        )
        with pytest.raises(RowError, match="type 16 can't") as caught:
            write_records(records)
        assert caught.value.row == 47

    def test_null_records_that_nobody_may_write(self):
        records = Records(self.spans((0, 0)), nulls=np.array([True]))
        assert len(list(write_payloads(records, find_null_fault=lambda: None))) == 1
        with pytest.raises(RowError, match="row 0: not here"):
            write_payloads(records, find_null_fault=lambda: "not here")

    def test_type_of_plain_values(self):
        with pytest.raises(OptionError, match="record type 16 can't"):
            write_records(read_records(b""), record_type=16)


class TestFaults:
    GOOD = record(1, b"abc")

    def check(self, tail, *, truncated):
        found = scan(self.GOOD + tail)
        assert found.starts.tolist() == [0]
        assert found.starts.dtype == np.int64
        assert found.end == 8
        assert found.fault.position == 8
        assert found.fault.truncated is truncated
        return found.fault.reason

    def test_nothing(self):
        found = scan(b"")
        assert found.starts.dtype == np.int64
        assert (found.starts.tolist(), found.end, found.fault) == ([], 0, None)

    @each("size", range(1, 9))
    def test_truncated(self, size):
        tail = record(1, b"abcd")[:size]
        assert "ends inside" in self.check(tail, truncated=True)

    @each("size", range(1, 9))
    def test_type_0_is_never_mended_by_more_bytes(self, size):
        tail = record(0, b"abcd")[:size]
        assert "type 0" in self.check(tail, truncated=False)

    def test_length_over_the_limit(self):
        tail = struct.pack("<BI", 1, RECORD_VALUE_BYTES_MAX + 1)
        assert "16777217" in self.check(tail, truncated=False)

    def test_length_at_the_limit_is_only_not_there_yet(self):
        tail = struct.pack("<BI", 1, RECORD_VALUE_BYTES_MAX)
        self.check(tail, truncated=True)

    def test_largest_record(self):
        data = self.GOOD + record(1, bytes(RECORD_VALUE_BYTES_MAX)) + self.GOOD
        size = RECORD_VALUE_BYTES_MAX + 5
        found = scan(data)
        assert found.starts.tolist() == [0, 8, 8 + size]
        assert (found.end, found.fault) == (16 + size, None)

    def test_length_that_would_overflow(self):
        self.check(b"\x01\xff\xff\xff\xff" + bytes(99), truncated=False)

    def test_fault_inside_a_run(self):
        data = bytearray(self.GOOD * 5000)
        data[8 * 4321] = 0
        found = scan(data)
        assert len(found.starts) == 4321
        assert found.fault.position == found.end == 8 * 4321

    @each("kind", [bytes, bytearray, memoryview, pa.py_buffer])
    def test_kinds_of_memory(self, kind):
        assert scan(kind(self.GOOD * 2)).starts.tolist() == [0, 8]


def test_check_counts_records():
    assert check_records(b"") == 0
    assert check_records(GOOD) == 6


@each("name", BAD)
@each("tail", [b"", GOOD, b"\x00", b"\x01"])
def test_check_names_the_first_bad_record(name, tail):
    bad, text = BAD[name]
    for error in (catch(GOOD + bad + tail), catch(GOOD + bad + bad)):
        assert error.position == len(GOOD)
        assert not error.truncated
        assert text in str(error)
    assert catch(bad).position == 0


@pytest.mark.parametrize(
    ("tail", "truncated"), [(b"\x00", False), (b"\x01", True), (GOOD[:-1], True)]
)
def test_check_names_a_broken_chain(tail, truncated):
    error = catch(GOOD + tail)
    assert error.truncated is truncated
    assert error.position >= len(GOOD)


def catch(data):
    with pytest.raises(RecordError) as caught:
        check_records(data)
    return caught.value


@given(buffers())
@examples(150)
def test_validate_agrees_with_plain_reading(data):
    starts, at, error = [], 0, None
    while at < len(data) and error is None:
        try:
            row = plain.read_record(data, at)
        except RecordError as wrong:
            error = (wrong.position, wrong.truncated)
        else:
            starts.append(at)
            at = row.next_offset
    found = validate(data)
    assert found.starts.tolist() == starts
    assert found.end == at
    fault = found.fault and (found.fault.position, found.fault.truncated)
    assert fault == error
