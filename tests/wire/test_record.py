"""Single records."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import LocalProtocolError, RecordError
from lance_spark.wire.lwp import (
    RECORD_VALUE_BYTES_MAX,
    Record,
    RecordType,
    decode_record,
    decode_records,
    encode_record,
)
from tests.each import each
from tests.wire.vectors import named, plain

TYPED = {RecordType.KEY_VALUE, RecordType.TIMESTAMPED, RecordType.KEY_TIMESTAMPED}
TYPED |= {RecordType.NULL}
keys = st.binary(max_size=50)
times = st.integers(0, 2**64 - 1)
records = st.one_of(
    st.builds(
        Record, st.integers(1, 254).filter(lambda t: t not in TYPED), st.binary()
    ),
    st.builds(Record, st.just(0x10), st.binary(), keys),
    st.builds(Record, st.just(0x11), st.binary(), st.none(), times),
    st.builds(Record, st.just(0x12), st.binary(), keys, times),
    st.just(Record(RecordType.NULL)),
)


def test_example_of_section_8_6() -> None:
    data = b"".join(encode_record(Record(1, v)) for v in (b"hello", b"world"))
    assert data.hex() == "010500000068656c6c6f0105000000776f726c64"


@each("row", **named("records"))
def test_vectors(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    record, end = decode_record(data)
    assert end == len(data)
    assert plain(record) == row["fields"]
    assert encode_record(record) == data
    for size in range(len(data)):
        with pytest.raises(RecordError) as caught:
            decode_record(data[:size])
        assert caught.value.truncated


@given(st.lists(records))
def test_round_trip(expected: list[Record]) -> None:
    data = b"".join(map(encode_record, expected))
    assert list(decode_records(data)) == expected


def test_values_are_views() -> None:
    data = encode_record(Record(0x10, b"value", b"key"))
    record, _ = decode_record(data)
    assert record.key is not None
    assert record.value.obj is record.key.obj is data


def test_position() -> None:
    data = b"??" + encode_record(Record(1, b"a")) + b"\x00\x00\x00\x00\x00"
    assert decode_record(data, 2) == (Record(1, b"a"), 8)
    with pytest.raises(RecordError) as caught:
        list(decode_records(data, 2))
    assert caught.value.position == 8
    assert not caught.value.truncated


@each(
    ("data", "reason"),
    [
        (b"\x00\x00\x00\x00\x00", "type 0"),
        (b"\x01" + struct.pack("<I", RECORD_VALUE_BYTES_MAX + 1), "over the limit"),
        (b"\xff\x01\x00\x00\x00a", "null record"),
        (b"\xff\x01\x00\x00\x00", "null record"),
        (b"\x11\x07\x00\x00\x00" + bytes(7), "timestamp"),
        (b"\x12\x07\x00\x00\x00" + bytes(7), "timestamp"),
        (b"\x12\x09\x00\x00\x00" + bytes(9), "key's length"),
        (b"\x10\x01\x00\x00\x00\x00", "key's length"),
        (b"\x10\x03\x00\x00\x00\x02\x00a", "key of 2 bytes"),
    ],
)
def test_malformed(data: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason) as caught:
        decode_record(data)
    assert not caught.value.truncated


@each(
    ("record", "reason"),
    [
        (Record(0), "not 1 to 255"),
        (Record(256), "not 1 to 255"),
        (Record(0x10, b"v"), "key do not agree"),
        (Record(1, b"v", b"k"), "key do not agree"),
        (Record(0x11, b"v"), "time do not agree"),
        (Record(1, b"v", None, 1), "time do not agree"),
        (Record(0xFF, b"v"), "no value"),
        (Record(0x11, b"v", None, -1), "out of range"),
        (Record(0x10, b"v", b"k" * 65536), "out of range"),
        (Record(1, bytes(RECORD_VALUE_BYTES_MAX + 1)), "over the limit"),
    ],
    ids=range(10),
)
def test_can_not_be_written(record: Record, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        encode_record(record)


def test_largest_record() -> None:
    record = Record(1, bytes(RECORD_VALUE_BYTES_MAX))
    assert decode_record(encode_record(record))[0] == record
