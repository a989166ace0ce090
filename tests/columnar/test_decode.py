"""Bytes to Arrow: the same rows as plain reading, in the columns asked for."""

from __future__ import annotations

import datetime as dt
import struct
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.columnar.columns import TYPES
from lance_spark.columnar.decode import DEFAULT_COLUMNS, decode, make_schema
from lance_spark.errors import OptionError, RecordError
from lance_spark.model import Scan
from lance_spark.wire.lwp import scan
from tests.columnar import plain
from tests.columnar.strategies import buffers, examples, record, row_lists
from tests.each import each

pytestmark = pytest.mark.usefixtures("kernel")

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
BASE = 10_000


def expect(rows, columns, text=()):
    """Make the rows that a batch of these columns should have."""
    expected = []
    for row in rows:
        values = row._asdict()
        values["topic"] = "events"
        values["offset"] += BASE
        values["next_offset"] += BASE
        ns = row.timestamp_ns
        values["timestamp"] = None if ns is None else ns // 1000
        for name in text:
            values[name] = None if values[name] is None else values[name].decode()
        expected.append({name: values[name] for name in columns})
    return expected


def to_rows(batch):
    batch.validate(full=True)
    if "timestamp" in batch.schema.names:
        at = batch.schema.names.index("timestamp")
        assert batch.schema.field(at).type == pa.timestamp("us", tz="UTC")
        # As a number: Python's datetime ends long before int64 does.
        numbers = batch.column(at).cast(pa.int64())
        batch = batch.set_column(at, "timestamp", numbers)
    return batch.to_pylist()


columns_asked = st.permutations(sorted({*TYPES} - {"partition"})).flatmap(
    lambda names: st.integers(0, len(names)).map(lambda n: tuple(names[:n]))
)


@given(row_lists(), columns_asked)
@examples(120)
def test_agrees_with_plain_reading(rows, columns):
    data = b"".join(plain.encode_row(row, 0) for row in rows)
    decoded = decode(data, columns=columns, base_offset=BASE, topic="events")
    assert decoded.batch.schema == make_schema(columns)
    assert decoded.batch.num_rows == len(rows)
    if columns:
        assert to_rows(decoded.batch) == expect(plain.decode(data).rows, columns)
    assert (decoded.end, decoded.skipped, decoded.fault) == (len(data), 0, None)


@given(
    data=buffers(),
    columns=columns_asked,
    skip=st.booleans(),
    keep=st.booleans(),
    text=st.sampled_from([(), ("key",), ("value",), ("key", "value")]),
    wide=st.booleans(),
)
@examples(200)
def test_agrees_on_damaged_data(data, columns, skip, keep, text, wide):
    asked = [name for name in text if name in columns]
    stamps = "timestamp_ns" in columns and not wide
    how = {"skip": skip, "keep_partial": keep, "stamps": stamps, "text": asked}
    options = {
        "columns": columns,
        "topic": "events",
        "base_offset": BASE,
        "on_bad": "skip" if skip else "fail",
        "partial": "keep" if keep else "error",
        "key_type": pa.string() if "key" in text else pa.binary(),
        "value_type": pa.string() if "value" in text else pa.binary(),
        "stamp_type": pa.uint64() if wide else pa.int64(),
    }
    try:
        expected = plain.decode(data, **how)
    except RecordError as error:
        with pytest.raises(RecordError) as caught:
            decode(data, **options)
        assert caught.value.position == error.position + BASE
        assert caught.value.truncated == error.truncated
        return
    decoded = decode(data, **options)
    assert decoded.batch.num_rows == len(expected.rows)
    if columns:
        assert to_rows(decoded.batch) == expect(expected.rows, columns, asked)
    assert decoded.end == expected.end
    assert decoded.skipped == expected.skipped
    assert decoded.skipped_bytes == expected.skipped_bytes
    assert (decoded.fault is None) == (expected.fault is None)
    if expected.fault is not None:
        assert decoded.fault.position == expected.fault.position + BASE


MIXED = b"".join(
    [
        record(1, b"hello"),
        record(0xFF, b""),
        record(0x10, b"\x01\x00kv"),
        record(0x12, struct.pack("<Q", 1_700_000_000_123_456_789) + b"\x00\x00"),
        record(0x77, b""),
    ]
)


def test_row_schema():
    decoded = decode(MIXED, base_offset=100, topic="t", columns=tuple(TYPES))
    assert decoded.batch.schema == pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("next_offset", pa.int64()),
            ("type", pa.int16()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestamp_ns", pa.int64()),
        ]
    )
    rows = decoded.batch.to_pylist()
    assert [row["value"] for row in rows] == [b"hello", None, b"v", b"", b""]
    assert [row["key"] for row in rows] == [None, None, b"k", b"", None]
    assert [row["type"] for row in rows] == [1, 255, 16, 18, 119]
    assert {row["partition"] for row in rows} == {0}
    assert rows[0]["offset"] == 100
    assert rows[1]["offset"] == rows[0]["next_offset"] == 110
    assert rows[3]["timestamp_ns"] == 1_700_000_000_123_456_789
    after = dt.timedelta(microseconds=1_700_000_000_123_456)
    assert rows[3]["timestamp"] == EPOCH + after
    assert decode(MIXED).batch.schema.names == list(DEFAULT_COLUMNS)


def test_nothing():
    decoded = decode(b"", columns=tuple(TYPES), topic="t")
    assert decoded.batch.num_rows == 0
    assert decoded.batch.schema == make_schema(tuple(TYPES))
    assert decoded.end == 0


@each(
    "kind",
    [bytes, bytearray, memoryview, pa.py_buffer, lambda b: np.frombuffer(b, "u1")],
)
def test_kinds_of_memory(kind):
    assert decode(kind(MIXED)).batch == decode(MIXED).batch


def test_outlives_the_buffer():
    data = bytearray(MIXED)
    batch = decode(data).batch
    data[:] = bytes(len(data))
    assert batch == decode(MIXED).batch


class TestFound:
    """Records that the caller has found already are not looked for again."""

    @given(
        data=buffers(),
        skip=st.sampled_from(["fail", "skip"]),
        keep=st.sampled_from(["error", "keep"]),
    )
    @examples(100)
    def test_same_as_without(self, data, skip, keep):
        options = {"base_offset": BASE, "on_bad": skip, "partial": keep}
        found = scan(data)
        try:
            expected = decode(data, **options)
        except RecordError as error:
            with pytest.raises(RecordError) as caught:
                decode(data, found=found, **options)
            assert str(caught.value) == str(error)
            return
        decoded = decode(data, found=found, **options)
        assert decoded.batch == expected.batch
        assert (decoded.end, decoded.skipped) == (expected.end, expected.skipped)
        assert str(decoded.fault) == str(expected.fault)

    def test_no_second_scan(self, monkeypatch):
        found = scan(MIXED)
        module = sys.modules["lance_spark.columnar.decode"]
        monkeypatch.setattr(module, "scan", None)
        assert decode(MIXED, found=found).batch.num_rows == 5

    def test_only_some(self):
        found = scan(MIXED)
        some = Scan(found.starts[:2], int(found.starts[2]))
        decoded = decode(MIXED + b"\0", found=some)
        assert decoded.batch == decode(MIXED[: some.end]).batch
        assert (decoded.end, decoded.fault) == (some.end, None)

    def test_of_another_buffer(self):
        with pytest.raises(AssertionError, match="not of this buffer"):
            decode(MIXED[:-1], found=scan(MIXED))


class TestPartial:
    DATA = MIXED + record(1, b"later")[:-1]

    def test_kept(self):
        decoded = decode(self.DATA, partial="keep")
        assert decoded.batch.num_rows == 5
        assert decoded.end == len(MIXED)
        assert decoded.fault is None

    def test_error(self):
        with pytest.raises(RecordError, match="ends inside") as caught:
            decode(self.DATA, base_offset=7)
        assert caught.value.position == len(MIXED) + 7
        assert caught.value.truncated

    def test_skipped(self):
        decoded = decode(self.DATA, on_bad="skip")
        assert (decoded.skipped, decoded.skipped_bytes) == (1, 9)
        assert decoded.end == len(self.DATA)
        assert decoded.fault.truncated

    def test_kept_when_skipping(self):
        decoded = decode(self.DATA, on_bad="skip", partial="keep")
        assert (decoded.skipped, decoded.end) == (0, len(MIXED))


class TestText:
    def test_string_columns(self):
        data = record(1, "é".encode()) + record(0x10, b"\x01\x00kv")
        batch = decode(data, key_type=pa.string(), value_type=pa.string()).batch
        batch.validate(full=True)
        assert batch["value"].to_pylist() == ["é", "v"]
        assert batch["key"].to_pylist() == [None, "k"]

    def test_halves_of_a_character_do_not_make_a_whole(self):
        # The bytes of all values together are UTF-8, those of each are not.
        data = record(1, b"\xc3") + record(1, b"\xa9")
        with pytest.raises(RecordError, match="the value is not UTF-8") as caught:
            decode(data, value_type=pa.string())
        assert caught.value.position == 0

    def test_the_first_bad_record_is_named_whatever_is_wrong(self):
        data = record(1, b"ok") + record(1, b"\xff") + record(0x10, b"") + b"\x00"
        with pytest.raises(RecordError, match="UTF-8") as caught:
            decode(data, value_type=pa.string())
        assert caught.value.position == 7
        with pytest.raises(RecordError, match="0x10") as caught:
            decode(data)
        assert caught.value.position == 13

    def test_all_kinds_of_bad_are_skipped_at_once(self):
        late = record(0x11, b"\xff" * 8)
        data = record(1, b"ok") + record(1, b"\xff") + record(0x10, b"") + late
        columns = ["value", "timestamp_ns"]
        text = pa.string()
        decoded = decode(data, columns=columns, value_type=text, on_bad="skip")
        assert decoded.batch["value"].to_pylist() == ["ok"]
        assert (decoded.skipped, decoded.skipped_bytes) == (3, 6 + 5 + 13)
        assert decoded.fault is None


class TestTimestamps:
    LATE = record(0x11, struct.pack("<Q", 2**63))
    ALL = (0, 999, 1000, 2**63 - 1, 2**63, 2**64 - 1000, 2**64 - 1)

    def test_beyond_int64(self):
        with pytest.raises(RecordError) as caught:
            decode(MIXED + self.LATE, columns=["timestamp_ns"], base_offset=BASE)
        assert caught.value.position == len(MIXED) + BASE
        assert caught.value.reason == (
            "timestamp 9223372036854775808 ns does not fit into timestamp_ns, which "
            "ends in the year 2262: read column timestamp instead, which has "
            "microseconds"
        )
        skipped = decode(MIXED + self.LATE, columns=["timestamp_ns"], on_bad="skip")
        assert skipped.skipped == 1

    @pytest.mark.parametrize("between", [b"", record(1, b"")], ids=["all", "some"])
    def test_every_one_in_microseconds_and_unsigned(self, between):
        data = b"".join(
            record(0x11, struct.pack("<Q", ns)) + between for ns in self.ALL
        )
        columns = ["timestamp", "timestamp_ns"]
        batch = decode(data, columns=columns, stamp_type=pa.uint64()).batch
        rows = [ns for ns in self.ALL for ns in ([ns, None] if between else [ns])]
        assert batch["timestamp_ns"].to_pylist() == rows
        assert batch["timestamp"].cast(pa.int64()).to_pylist() == [
            None if ns is None else ns // 1000 for ns in rows
        ]
        last = [time for time in batch["timestamp"].to_pylist() if time is not None][-1]
        assert last.isoformat() == "2554-07-21T23:34:33.709551+00:00"

    def test_not_looked_at_unless_asked_for(self):
        assert decode(self.LATE, columns=["value"]).batch["value"].to_pylist() == [b""]


class TestOptions:
    def test_unknown_column(self):
        with pytest.raises(
            OptionError, match=r"no such column: ofset; there are .*off"
        ):
            decode(b"", columns=["ofset"])

    def test_column_twice(self):
        with pytest.raises(OptionError, match="twice"):
            decode(b"", columns=["key", "key"])

    def test_topic_without_a_name(self):
        with pytest.raises(OptionError, match="topic"):
            decode(b"", columns=["topic"])

    @pytest.mark.parametrize("name", ["key", "value"])
    def test_wrong_type(self, name):
        with pytest.raises(OptionError, match=f"{name} can be binary or string"):
            decode(b"", **{f"{name}_type": pa.int64()})

    def test_wrong_type_of_timestamps(self):
        with pytest.raises(OptionError, match="can be int64 or uint64, not string"):
            decode(b"", stamp_type=pa.string())

    def test_too_much_at_once(self, monkeypatch):
        module = sys.modules["lance_spark.columnar.columns"]
        total = sum(len(row.value or b"") for row in plain.decode(MIXED).rows)
        monkeypatch.setattr(module, "COLUMN_BYTES_MAX", total)
        decode(MIXED)
        monkeypatch.setattr(module, "COLUMN_BYTES_MAX", total - 1)
        with pytest.raises(OptionError, match="at once"):
            decode(MIXED)


@each("rows", [1, 3, 4, 5, 40_000])
@each("name", ["t", "ü" * 255])
def test_topic_in_every_row(name, rows):
    data = record(1, b"") * rows
    for _ in range(2):
        (column,) = decode(data, columns=["topic"], topic=name).batch.columns
        column.validate(full=True)
        assert column.value_counts().to_pylist() == [{"values": name, "counts": rows}]
