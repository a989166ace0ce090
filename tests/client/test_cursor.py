"""A place in a topic: seeking, cutting results, passing over losses."""

from __future__ import annotations

from typing import Any

import pytest

from lance_spark.client.lwp.cursor import (
    Cursor,
    CursorOptions,
    SeekPosition,
    resolve_position,
)
from lance_spark.errors import DataLoss, OptionError, TopicNotFound
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
