"""Results of polls: as columns, and one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lance_spark.client.lwp.cursor import (
    ConsumerRecord,
    PollResult,
    make_empty_result,
    make_result,
)
from lance_spark.client.lwp.reader import Chunk
from lance_spark.columnar.scan import scan
from lance_spark.errors import OptionError, RecordError
from lance_spark.wire.lwp import Record, encode_record

RECORDS = [
    Record(0x01, b"plain"),
    Record(0x10, b"value", b"key"),
    Record(0x11, b"timed", None, 1_706_918_400_123_456_789),
    Record(0x12, b"", b"", 5),
    Record(0xFF),
]
DATA = b"".join(map(encode_record, RECORDS))


def _result(
    data: bytes = DATA, start: int = 1000, mark: int | None = None
) -> PollResult:
    found = scan(data)
    chunk = Chunk(
        start,
        start + len(data),
        memoryview(data),
        len(found.starts),
        mark,
        found.starts,
    )
    return make_result("events", chunk)


def test_fields() -> None:
    result = _result()
    assert (result.topic, result.record_count, len(result)) == ("events", 5, 5)
    assert (result.start_offset, result.current_offset) == (1000, 1000 + len(DATA))
    assert result.data == DATA
    assert not result.is_empty
    assert "data" not in repr(result), "nobody wants megabytes in a log"


@pytest.mark.parametrize(
    ("mark", "is_end"),
    [(None, False), (1000 + len(DATA) + 1, False), (1000 + len(DATA), True)],
)
def test_end_of_stream(mark: int | None, is_end: bool) -> None:
    result = _result(mark=mark)
    assert (result.end_of_stream, result.high_water_mark) == (is_end, mark)


def test_records() -> None:
    records = list(_result())
    assert records[:3] == [
        ConsumerRecord(1000, 0x01, None, b"plain", None, 1010),
        ConsumerRecord(1010, 0x10, b"key", b"value", None, 1025),
        ConsumerRecord(1025, 0x11, None, b"timed", 1_706_918_400_123_456_789, 1043),
    ]
    assert records[3].key == b""
    assert records[3].value == b""
    assert records[4].value is None
    assert records[4].next_offset == 1000 + len(DATA)


def test_records_survive_their_buffer() -> None:
    data = bytearray(DATA)
    records = list(_result(data))  # type: ignore[arg-type]
    data[:] = bytes(len(data))
    assert records[1].key == b"key"


def test_to_arrow() -> None:
    batch = _result().to_arrow()
    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.names == ["offset", "type", "key", "value", "timestamp"]
    assert batch.column("offset").to_pylist() == [r.offset for r in _result()]
    assert batch.column("value").to_pylist() == [r.value for r in _result()]


def test_to_arrow_builds_what_is_asked_for() -> None:
    batch = _result().to_arrow(["topic", "next_offset"])
    assert batch.schema.names == ["topic", "next_offset"]
    assert batch.column("topic").to_pylist() == ["events"] * 5
    with pytest.raises(OptionError, match="price"):
        _result().to_arrow(["price"])


def test_a_bad_record_is_told_with_its_offset() -> None:
    result = _result(DATA + b"\x10\x03\0\0\0\xff\xffx")
    with pytest.raises(RecordError) as caught:
        list(result)
    assert caught.value.position == 1000 + len(DATA)
    with pytest.raises(RecordError) as caught:
        result.to_arrow()
    assert caught.value.position == 1000 + len(DATA)


def test_empty() -> None:
    result = make_empty_result("events", 77)
    assert result.is_empty
    assert result.end_of_stream
    assert (result.start_offset, result.current_offset, len(result)) == (77, 77, 0)
    assert list(result) == []
    assert result.to_arrow().num_rows == 0
