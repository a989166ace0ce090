"""Arrow to bytes: the same payloads as plain writing, or the error of the same row."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.columnar.decode import decode
from lance_spark.columnar.encode import encode
from lance_spark.errors import OptionError, RowError
from lance_spark.wire.lwp import RECORD_VALUE_BYTES_MAX, RecordType
from lance_spark.wire.lwp.tlv import PAYLOAD_BYTES_LIMIT
from tests.columnar import plain
from tests.columnar.plain import Row
from tests.columnar.strategies import blobs, examples, keys, row_lists
from tests.each import each

COLUMNS = {
    "value": pa.binary(),
    "key": pa.binary(),
    "timestamp_ns": pa.int64(),
    "type": pa.int16(),
}


def make_table(rows, types=COLUMNS):
    arrays = {
        name: pa.array([getattr(row, name) for row in rows], kind)
        for name, kind in types.items()
    }
    return pa.table(arrays)


def pieces(payloads):
    return [(payload.data.to_pybytes(), payload.records) for payload in payloads]


def write(columns, **options):
    return b"".join(data for data, _ in pieces(encode(columns, **options)))


def values(*items, kind=None, **others):
    return pa.table({"value": pa.array(items, kind or pa.binary()), **others})


@given(
    rows=row_lists(),
    limit=st.one_of(st.integers(1, 200), st.just(1 << 20)),
    default=st.sampled_from([1, 2, 5, 0x20, 0x80, 0xFE]),
    at_once=st.booleans(),
)
@examples(200)
def test_agrees_with_plain_writing(rows, limit, default, at_once):
    options = {"record_type": default, "payload_bytes_max": limit}
    with pytest.MonkeyPatch.context() as patch:
        if not at_once:
            module = sys.modules["lance_spark.wire.lwp.tlv"]
            patch.setattr(module, "_PREPARED_ROWS_MAX", 0)
        found = pieces(encode(make_table(rows), **options))
    assert found == list(plain.encode(rows, default, limit))


# Rows of which most can't be records.
wild = st.builds(
    Row,
    st.just(0),
    st.just(0),
    st.one_of(st.none(), st.sampled_from([-1, 0, 1, 2, 16, 17, 18, 254, 255, 256])),
    st.one_of(st.none(), keys),
    st.one_of(st.none(), blobs),
    st.one_of(st.none(), st.sampled_from([-1, 0, 5, 2**63 - 1])),
)


@given(row_lists(5), st.lists(wild, max_size=3), row_lists(5))
@examples(200)
def test_agrees_on_rows_that_are_no_records(before, rows, after):
    rows = [*before, *rows, *after]
    try:
        expected = list(plain.encode(rows))
    except RowError as error:
        with pytest.raises(RowError) as caught:
            encode(make_table(rows))
        assert caught.value.row == error.row
    else:
        assert pieces(encode(make_table(rows))) == expected


@given(row_lists(), st.data())
@examples(60)
def test_slices_and_chunks(rows, data):
    table = make_table(rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = [
        table.slice(a, b - a)
        for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)
    ]
    whole = pieces(encode(table, payload_bytes_max=50))
    assert pieces(encode(pa.concat_tables(parts), payload_bytes_max=50)) == whole
    for part, (a, b) in zip(
        parts, zip([0, *cuts], [*cuts, len(rows)], strict=True), strict=True
    ):
        expected = b"".join(plain.encode_row(row, 0) for row in rows[a:b])
        assert write(part) == expected
        for batch in part.to_batches():
            assert isinstance(batch, pa.RecordBatch)
            assert write(batch) == expected


@given(row_lists())
@examples(60)
def test_a_copy_is_the_same_bytes(rows):
    data = b"".join(plain.encode_row(row, 0) for row in rows)
    names = ("topic", "offset", "next_offset", "type", "key", "value", "timestamp_ns")
    assert write(decode(data, topic="t", columns=names).batch) == data


def test_groups_of_rows(monkeypatch):
    rows = [Row(0, 0, None, None, bytes([n]), None) for n in range(10)]
    module = sys.modules["lance_spark.columnar.encode"]
    monkeypatch.setattr(module, "_GROUP_ROWS_MAX", 4)
    assert [records for _, records in pieces(encode(make_table(rows)))] == [4, 4, 2]
    rows[9] = Row(0, 0, None, b"k", None, None)
    with pytest.raises(RowError, match="row 9"):
        encode(make_table(rows))


@pytest.mark.parametrize(
    "columns", [values(), values().to_batches(), values(kind=None)]
)
def test_nothing(columns):
    for part in columns if isinstance(columns, list) else [columns]:
        assert list(encode(part)) == []
    assert list(encode(pa.RecordBatch.from_pylist([], values().schema))) == []


KINDS = [
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.binary()),
]


@each("value_kind", KINDS, ids=str)
@each("key_kind", KINDS, ids=str)
def test_kinds_of_bytes_and_text(value_kind, key_kind):
    texts = ["", "é", None, "a longer value than twelve bytes"] * 2
    table = pa.table(
        {
            "value": pa.array(texts).cast(value_kind),
            "key": pa.array(["k", None, None, "a key of more than twelve"] * 2).cast(
                key_kind
            ),
        }
    )
    expected = write(
        pa.table({name: table[name].cast("binary") for name in ("value", "key")})
    )
    assert write(table) == expected
    assert write(table.slice(1, 6), payload_bytes_max=1)[0] == 1


def test_fixed_size_binary():
    assert write(values(b"abc", None, kind=pa.binary(3))) == (
        b"\x01\x03\x00\x00\x00abc\xff\x00\x00\x00\x00"
    )


def test_columns_without_a_type():
    nothing = pa.nulls(2)
    table = pa.table(
        {"value": nothing, "key": nothing, "timestamp": nothing, "type": nothing}
    )
    assert write(table) == b"\xff\x00\x00\x00\x00" * 2


def test_what_a_null_lies_over_is_not_written():
    offsets, data = pa.py_buffer(np.array([0, 2, 4], np.int32)), pa.py_buffer(b"abcd")
    mask = pa.py_buffer(b"\x02")
    array = pa.Array.from_buffers(pa.binary(), 2, [mask, offsets, data])
    assert write(pa.table({"value": array})) == b"\xff\0\0\0\0\x01\x02\0\0\0cd"
    keyed = pa.table({"value": pa.array([b"v", b"w"]), "key": array})
    assert write(keyed) == b"\x01\x01\0\0\0v\x10\x05\0\0\0\x02\0cdw"


@each("unit", ["s", "ms", "us", "ns"])
@each("zone", [None, "UTC", "Europe/Berlin"])
def test_units_and_zones_of_timestamps(unit, zone):
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    ticks = pa.array([0, None, 1_700_000_000 * per_second], pa.int64())
    table = values(b"a", b"b", b"c", timestamp=ticks.cast(pa.timestamp(unit, zone)))
    stamps = decode(write(table), columns=["timestamp_ns"]).batch["timestamp_ns"]
    assert stamps.to_pylist() == [0, None, 1_700_000_000 * 10**9]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int64(), pa.uint64()])
def test_kinds_of_type_numbers(kind):
    table = values(b"a", b"b", type=pa.array([2, None], kind))
    assert decode(write(table)).batch["type"].to_pylist() == [2, 1]


def test_payloads_are_bounded():
    sizes = [10, 10, 10, 100, 10, 10]
    table = values(*(bytes(size - 5) for size in sizes))
    found = pieces(encode(table, payload_bytes_max=30))
    assert [(len(data), records) for data, records in found] == [
        (30, 3),
        (100, 1),
        (20, 2),
    ]
    assert [records for _, records in pieces(encode(table, payload_bytes_max=29))] == [
        2,
        1,
        1,
        2,
    ]


class TestErrors:
    """Each is found before the first payload is made, and names its row."""

    def refuse(self, match, row=1, **columns):
        columns.setdefault("value", pa.array([b"a", b"b", b"c"]))
        for table in (pa.table(columns), pa.table(columns).slice(1)):
            at = row - (3 - table.num_rows)
            with pytest.raises(RowError, match=match) as caught:
                encode(table)
            assert caught.value.row == at
            assert str(caught.value).startswith(f"row {at}: ")

    def test_key_without_value(self):
        self.refuse(
            "no keyed tombstone",
            value=pa.array([b"a", None, b"c"]),
            key=pa.array([None, b"k", None]),
        )

    def test_timestamp_without_value(self):
        self.refuse(
            "Null record carries no timestamp",
            value=pa.array([b"a", None, b"c"]),
            timestamp_ns=pa.array([None, 5, None], pa.int64()),
        )

    def test_timestamp_before_1970(self):
        self.refuse("before 1970", timestamp_ns=pa.array([None, -1, 0], pa.int64()))

    @pytest.mark.parametrize("unit", ["s", "ms", "us"])
    def test_timestamp_beyond_2554(self, unit):
        unit_ns = {"s": 10**9, "ms": 10**6, "us": 1000}[unit]
        last = (2**64 - 1) // unit_ns
        for ticks in (last + 1, 2**62, 2**63 - 1):
            stamps = pa.array([None, ticks, 0], pa.int64()).cast(pa.timestamp(unit))
            self.refuse("beyond the year 2554", timestamp=stamps)
        stamps = pa.array([None, last, 0], pa.int64()).cast(pa.timestamp(unit))
        data = write(values(b"a", b"b", b"c", timestamp=stamps))
        found = decode(data, columns=["timestamp_ns"], stamp_type=pa.uint64()).batch
        assert found["timestamp_ns"].to_pylist() == [None, last * unit_ns, 0]

    def test_long_key(self):
        self.refuse("key of 65536 bytes", key=pa.array([None, bytes(65536), None]))
        longest = values(b"v", key=pa.array([bytes(65535)]))
        assert len(write(longest)) == 5 + 2 + 65535 + 1

    @each("number", [-1, 0, 16, 17, 18, 255, 256, 2**40])
    def test_type_of_a_plain_value(self, number):
        self.refuse(f"type {number} can't", type=pa.array([None, number, 2]))

    @pytest.mark.parametrize("number", [1, 16, 18, 255])
    def test_type_that_contradicts(self, number):
        self.refuse(
            f"type {number} contradicts .* need 17",
            timestamp_ns=pa.array([None, 5, None], pa.int64()),
            type=pa.array([None, number, None]),
        )

    def test_type_that_contradicts_null(self):
        self.refuse(
            "type 2 contradicts .* need 255",
            value=pa.array([b"a", None, None]),
            type=pa.array([2, 2, 255]),
        )

    def test_record_over_the_limit(self):
        # The length counts key and timestamp.
        room = RECORD_VALUE_BYTES_MAX - 8 - 2 - 1
        rest = {
            "key": pa.array([None, b"k", None]),
            "timestamp_ns": pa.array([None, 1, None], pa.int64()),
        }
        largest = pa.table({"value": pa.array([b"", bytes(room), b""]), **rest})
        assert [len(data) for data, _ in pieces(encode(largest))] == [
            5,
            RECORD_VALUE_BYTES_MAX + 5,
            5,
        ]
        self.refuse(
            "16777217 bytes with key",
            value=pa.array([b"", bytes(room + 1), b""]),
            **rest,
        )

    def test_first_row_wins(self):
        self.refuse(
            "before 1970",
            key=pa.array([None, None, bytes(65536)]),
            timestamp_ns=pa.array([None, -1, None], pa.int64()),
        )


class TestOptions:
    def refuse(self, match, columns=None, **options):
        with pytest.raises(OptionError, match=match):
            encode(values(b"a") if columns is None else columns, **options)

    def test_unknown_columns(self):
        self.refuse(
            "can't write id, name: ", pa.table({"value": ["a"], "name": [1], "id": [1]})
        )

    def test_column_twice(self):
        self.refuse(
            "more than one column key",
            pa.Table.from_arrays([pa.array(["a"])] * 3, names=["value", "key", "key"]),
        )

    def test_no_value(self):
        self.refuse("needs a column value; there are key", pa.table({"key": ["a"]}))
        self.refuse("there are none", pa.table({}))

    def test_both_timestamps(self):
        both = values(b"a", timestamp=pa.nulls(1), timestamp_ns=pa.nulls(1))
        self.refuse("not both", both)

    @pytest.mark.parametrize(
        ("name", "array"),
        [
            ("value", pa.array([1])),
            ("value", pa.array([1]).dictionary_encode()),
            ("key", pa.array([1.5])),
            ("timestamp", pa.array([1])),
            ("timestamp_ns", pa.array([1], pa.uint64())),
            ("timestamp_ns", pa.array([1], pa.timestamp("ns"))),
            ("type", pa.array(["json"])),
        ],
    )
    def test_wrong_type(self, name, array):
        columns = {"value": pa.array(["a"]), name: array}
        self.refuse(f"column {name} must be .*, not ", pa.table(columns))

    @pytest.mark.parametrize("number", [-1, 0, 16, 17, 18, 255, 256])
    def test_default_type(self, number):
        self.refuse(f"record type {number} can't", record_type=number)
        assert write(values(b"a"), record_type=RecordType.JSON)[0] == 2

    @pytest.mark.parametrize("size", [0, -1, PAYLOAD_BYTES_LIMIT + 1])
    def test_payload_size(self, size):
        self.refuse("payload of", payload_bytes_max=size)
