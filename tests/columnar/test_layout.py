"""What is inside records, and which of them are malformed there."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given

from lance_spark.columnar.buffer import as_bytes
from lance_spark.columnar.layout import (
    check_records,
    find_ends,
    lay_out,
    validate,
)
from lance_spark.columnar.scan import scan
from lance_spark.errors import RecordError
from tests.columnar import plain
from tests.columnar.strategies import buffers, examples, record, row_lists

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


@given(row_lists())
@examples(60)
def test_parts(rows):
    data = b"".join(plain.encode_row(row, 0) for row in rows)
    expected = plain.decode(data).rows
    view = as_bytes(data)
    found = scan(view)
    layout = lay_out(view, found.starts, find_ends(found))
    assert not len(layout.bad)
    assert layout.types.tolist() == [row.type for row in expected]
    values = zip(layout.value_starts, layout.ends, strict=True)
    assert [data[a:b] for a, b in values] == [row.value or b"" for row in expected]
    keys = zip(layout.key_starts, layout.value_starts[layout.keyed], strict=True)
    keyed = dict(zip(layout.keyed, (data[a:b] for a, b in keys), strict=True))
    stamps = dict(zip(layout.stamped, layout.stamps, strict=True))
    for i, row in enumerate(expected):
        assert keyed.get(i) == row.key
        assert stamps.get(i) == row.timestamp_ns


def test_check_counts_records():
    assert check_records(b"") == 0
    assert check_records(GOOD) == 6


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("tail", [b"", GOOD, b"\x00", b"\x01"])
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
