"""A place in a topic: seeking, cutting results, passing over losses."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.client.lwp.cursor import (
    ConsumerRecord,
    Cursor,
    CursorOptions,
    PollResult,
    SeekKind,
    SeekPosition,
    as_position,
    make_empty_result,
    make_result,
    resolve_position,
)
from lance_spark.client.lwp.reader import Chunk
from lance_spark.errors import DataLoss, OptionError, RecordError, TopicNotFound
from lance_spark.wire.lwp import Record, encode_record, scan
from tests.client.kit_flow import FakeLog, record

DATA = b"".join(record(f"{number:05}") for number in range(20))
STEP = 10


def _cursor(
    log: FakeLog, start: SeekPosition | None = SeekPosition.BEGINNING, **options: Any
) -> Cursor:
    client: Any = log
    return Cursor(client, "events", start, CursorOptions(**options))


def _values(cursor: Cursor) -> list[str]:
    values = []
    while (result := cursor.poll()) is not None:
        values += [str(r.value, "ascii") for r in result.records() if r.value]
    return values


# Positions.


@pytest.mark.parametrize("whole", [True, False])
def test_resolve(whole: bool) -> None:
    log = FakeLog(DATA, whole=whole)
    log.start = 50
    client: Any = log
    offsets = [
        resolve_position(client, "events", position)
        for position in (
            SeekPosition.BEGINNING,
            SeekPosition.END,
            SeekPosition.offset(70),
            SeekPosition.time_ns(123),
        )
    ]
    # A plain server does not say where its log starts: it counts from what is left.
    assert offsets == [50 if whole else 0, 200, 70, 123]


@pytest.mark.parametrize("offset", [51, 55, 59])
def test_an_offset_inside_a_record_is_refused(offset: int) -> None:
    log = FakeLog(DATA, whole=True)
    log.start = 50
    text = f"offset {offset} of topic 7 is inside a record: the next one starts at 60"
    with pytest.raises(OptionError, match=text):
        _cursor(log, SeekPosition.offset(offset))
    cursor = _cursor(log)
    with pytest.raises(OptionError, match=text):
        cursor.seek(offset)
    assert cursor.position == 50, "it stays where it was"


@pytest.mark.parametrize("offset", [0, 49, 50, 60, 200, 201, 1000])
def test_what_is_no_inside_of_a_record_is_no_error(offset: int) -> None:
    log = FakeLog(DATA, whole=True)
    log.start = 50
    # What is gone, or not there, is told when it is read.
    assert _cursor(log, SeekPosition.offset(offset)).position == offset


def test_a_plain_server_can_not_tell_what_is_inside_a_record() -> None:
    log = FakeLog(DATA)
    assert _cursor(log, SeekPosition.offset(55)).position == 55
    assert log.located == []


def test_going_back_asks_nobody() -> None:
    log = FakeLog(DATA, whole=True)
    cursor = _cursor(log)
    result = cursor.poll()
    assert result is not None
    cursor.go_back(result, 30)
    assert _values(cursor)[0] == "00003"
    assert log.located == []


def test_begins_where_it_is_told() -> None:
    log = FakeLog(DATA, whole=True)
    for start, first in (
        (SeekPosition.BEGINNING, "00000"),
        (SeekPosition.offset(70), "00007"),
    ):
        assert _values(_cursor(log, start))[0] == first
    assert _values(_cursor(log, SeekPosition.END)) == []


@pytest.mark.parametrize(("reset", "position"), [("earliest", 0), ("latest", 200)])
def test_begins_where_the_options_say(reset: str, position: int) -> None:
    log = FakeLog(DATA, whole=True)
    assert _cursor(log, None, offset_reset=reset).position == position


def test_nothing_says_where_to_begin() -> None:
    with pytest.raises(OptionError, match="'events' and offset_reset is 'error'"):
        _cursor(FakeLog(DATA), None, offset_reset="error")


@pytest.mark.parametrize(
    "options", [{"offset_reset": "newest"}, {"max_poll_records": 0}]
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        CursorOptions(**options)


def test_seek_forgets_what_was_read() -> None:
    log = FakeLog(DATA, whole=True)
    cursor = _cursor(log, max_poll_records=3)
    cursor.poll()
    assert cursor.seek(150) == cursor.position == 150
    assert _values(cursor)[0] == "00015"
    assert cursor.seek(SeekPosition.BEGINNING) == 0
    assert _values(cursor)[0] == "00000"
    assert cursor.seek(SeekPosition.END) == 200


def test_lag() -> None:
    log = FakeLog(DATA, whole=True)
    cursor = _cursor(log, max_poll_records=3)
    assert cursor.lag() == 200
    cursor.poll()
    assert cursor.lag() == 170
    log.append(DATA)
    assert cursor.lag() == 370
    cursor.seek(1000)
    assert cursor.lag() == 0


# Polling.


def test_max_poll_records_cuts_and_loses_nothing() -> None:
    log = FakeLog(DATA, whole=True)
    cursor = _cursor(log, max_poll_records=7)
    counts, ends, positions = [], [], []
    while (result := cursor.poll()) is not None:
        counts.append(len(result))
        ends.append(result.end_of_stream)
        positions.append((result.start_offset, result.current_offset))
        assert cursor.position == result.current_offset
    assert counts == [7, 7, 6]
    assert positions == [(0, 70), (70, 140), (140, 200)]
    assert ends == [False, False, True]
    # One fetch had them all.
    assert [how for _, _, how in log.asked] == ["fetch", "fetch"]


def test_polls_by_the_id_it_was_given() -> None:
    log = FakeLog(DATA, whole=True)
    log.topic_ids = {"events": 8}
    client: Any = log
    options = CursorOptions()
    cursor = Cursor(client, "events", None, options, topic_id=8)
    log.topic_ids = {"elsewhere": 8}
    assert cursor.topic_id == 8
    assert len(_values(cursor)) == 20
    cursor.close()


# Lost data.


def test_loss_is_an_error_by_default() -> None:
    log = FakeLog(DATA, whole=True)
    log.start = 100
    cursor = _cursor(log, SeekPosition.offset(50))
    for _ in range(2):
        with pytest.raises(DataLoss):
            cursor.poll()


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", "00010"), ("latest", None)]
)
def test_loss_may_be_passed_over(
    reset: str, expected: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = FakeLog(DATA, whole=True)
    log.start = 100
    cursor = _cursor(
        log, SeekPosition.offset(50), fail_on_data_loss=False, offset_reset=reset
    )
    assert _values(cursor)[:1] == ([] if expected is None else [expected])
    assert "50 bytes gone" in caplog.text
    assert cursor.position == 200


def test_loss_without_anywhere_to_go_is_an_error() -> None:
    log = FakeLog(DATA, whole=True)
    log.start = 100
    cursor = _cursor(
        log, SeekPosition.offset(50), fail_on_data_loss=False, offset_reset="error"
    )
    with pytest.raises(DataLoss):
        cursor.poll()


def test_a_topic_created_anew_is_read_from_its_start() -> None:
    log = FakeLog(DATA, whole=True)
    cursor = _cursor(log, fail_on_data_loss=False)
    _values(cursor)
    log.topic_ids = {"events": 9}
    log.data = bytearray(record("fresh"))
    assert _values(cursor) == ["fresh"]
    assert cursor.topic_id == 9
    assert log.forgotten == ["events"]


def _known_loss(log: FakeLog, **options: Any) -> Cursor:
    client: Any = log
    start = SeekPosition.offset(55)
    loss = DataLoss("events", 55, None, None, "created anew")
    return Cursor(client, "events", start, CursorOptions(**options), loss=loss)


@pytest.mark.parametrize(
    "options", [{}, {"fail_on_data_loss": False, "offset_reset": "error"}]
)
def test_a_loss_that_is_known_is_told_until_somebody_seeks(
    options: dict[str, Any],
) -> None:
    cursor = _known_loss(FakeLog(DATA, whole=True), **options)
    for _ in range(2):
        with pytest.raises(DataLoss, match="created anew"):
            cursor.poll()
    assert cursor.position == 55
    cursor.seek(60)
    assert _values(cursor)[0] == "00006"


def test_a_loss_that_is_known_may_be_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cursor = _known_loss(FakeLog(DATA, whole=True), fail_on_data_loss=False)
    assert cursor.position == 0
    assert len(_values(cursor)) == 20
    assert "created anew" in caplog.text


def test_a_topic_that_stays_away_is_an_error() -> None:
    log = FakeLog(DATA, whole=True)
    cursor = _cursor(log, fail_on_data_loss=False)
    log.topic_ids = {}
    with pytest.raises(TopicNotFound):
        cursor.poll()


def test_a_log_that_is_lost_all_the_time() -> None:
    class Log(FakeLog):
        def _read(self, start: int, max_bytes: int) -> Any:
            self.start += 10
            return super()._read(start, max_bytes)

    log = Log(DATA * 100, whole=True)
    with pytest.raises(DataLoss):
        _cursor(log, fail_on_data_loss=False).poll()


# Results of polls: as columns, and one by one.


RECORDS = [
    Record(0x01, b"plain"),
    Record(0x10, b"value", b"key"),
    Record(0x11, b"timed", None, 1_706_918_400_123_456_789),
    Record(0x12, b"", b"", 5),
    Record(0xFF),
]
POLL_DATA = b"".join(map(encode_record, RECORDS))


def _result(
    data: bytes = POLL_DATA, start: int = 1000, mark: int | None = None
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
    assert (result.start_offset, result.current_offset) == (1000, 1000 + len(POLL_DATA))
    assert result.data == POLL_DATA
    assert not result.is_empty
    assert "data" not in repr(result), "nobody wants megabytes in a log"


@pytest.mark.parametrize(
    ("mark", "is_end"),
    [(None, False), (1000 + len(POLL_DATA) + 1, False), (1000 + len(POLL_DATA), True)],
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
    assert records[4].next_offset == 1000 + len(POLL_DATA)


def test_records_survive_their_buffer() -> None:
    data = bytearray(POLL_DATA)
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
    result = _result(POLL_DATA + b"\x10\x03\0\0\0\xff\xffx")
    with pytest.raises(RecordError) as caught:
        list(result)
    assert caught.value.position == 1000 + len(POLL_DATA)
    with pytest.raises(RecordError) as caught:
        result.to_arrow()
    assert caught.value.position == 1000 + len(POLL_DATA)


def test_empty() -> None:
    result = make_empty_result("events", 77)
    assert result.is_empty
    assert result.end_of_stream
    assert (result.start_offset, result.current_offset, len(result)) == (77, 77, 0)
    assert list(result) == []
    assert result.to_arrow().num_rows == 0


# Positions as values.


def test_values() -> None:
    assert SeekPosition(SeekKind.BEGINNING) == SeekPosition.BEGINNING
    assert SeekPosition(SeekKind.END) == SeekPosition.END
    assert SeekPosition.BEGINNING != SeekPosition.END
    assert SeekPosition.offset(42) == SeekPosition(SeekKind.OFFSET, 42)
    assert SeekPosition.time_ns(42) == SeekPosition(SeekKind.TIME, 42)
    assert SeekPosition.offset(2**64 - 1).value == 2**64 - 1


def test_time_is_exact_to_the_microsecond() -> None:
    when = datetime(2024, 2, 3, 0, 0, 0, 123457, tzinfo=timezone.utc)
    assert SeekPosition.time(when) == SeekPosition.time_ns(1706918400123457000)
    elsewhere = when.astimezone(timezone(timedelta(hours=-7)))
    assert SeekPosition.time(elsewhere) == SeekPosition.time(when)


def test_time_needs_a_zone() -> None:
    with pytest.raises(OptionError, match="time zone"):
        SeekPosition.time(datetime(2024, 2, 3))


def test_time_before_1970() -> None:
    with pytest.raises(OptionError, match="time"):
        SeekPosition.time(datetime(1969, 12, 31, tzinfo=timezone.utc))


@pytest.mark.parametrize("value", [-1, 2**64])
def test_refuses_what_no_log_has(value: int) -> None:
    with pytest.raises(OptionError, match="offset"):
        SeekPosition.offset(value)
    with pytest.raises(OptionError, match="time"):
        SeekPosition.time_ns(value)


def test_text() -> None:
    assert str(SeekPosition.BEGINNING) == "beginning"
    assert str(SeekPosition.offset(7)) == "offset 7"


def test_what_a_position_can_be_made_of() -> None:
    assert as_position(5) == SeekPosition.offset(5)
    assert as_position(SeekPosition.END) is SeekPosition.END
    for place in ("beginning", 1.5, None, -1):
        with pytest.raises(OptionError):
            as_position(place)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="is not a datetime"):
        SeekPosition.time("2024")  # type: ignore[arg-type]
