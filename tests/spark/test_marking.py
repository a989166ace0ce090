"""Marks: what stands before an offset, where servers let their offsets shift."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.driver import LogRef
from lance_spark.client.lwp.driver import PlainDriver, make_driver
from lance_spark.client.lwp.places import is_mark_right, mark_offset
from lance_spark.errors import DataLoss
from lance_spark.model import Bounds, Partition
from lance_spark.offset import MARK_BYTES_MAX, OffsetMark, TopicPlace
from lance_spark.spark import batch_end
from lance_spark.spark.planning import is_marked_right, make_shifted
from lance_spark.spark.pool import clear_pool
from lance_spark.wire.lwp import Record
from tests.spark.reading import (
    DIALECTS,
    connect,
    drop_old,
    fill,
    log_at,
    log_of,
    make_payload,
    make_records,
    run_broker,
)
from tests.spark.streaming import Engine, Requests, expect, values

SIZE = 25
LOG = LogRef(Partition("a"), 1)
REMEDY = "set failOnDataLoss=false to go on with what is left"


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture
def plain() -> Iterator[EmbeddedBroker]:
    with run_broker("plain", segment_bytes=1000) as broker:
        yield broker


def fill_padded(broker: EmbeddedBroker, first: int, count: int) -> Sequence[Record]:
    """Append numbered records of 200 bytes that share all but their number."""
    numbers = range(first, first + count)
    records = [Record(1, b"%08d" % number + bytes(187)) for number in numbers]
    fill(broker, "a", records, batch_bytes=1000)
    return records


# Marks.


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("offset", [0, 1, 25, 16384, 16385, 20_000, 25_000])
def test_a_mark_covers_the_bytes_before_an_offset(dialect: str, offset: int) -> None:
    records = make_records(1000)
    data = make_payload(records)
    with run_broker(dialect) as broker, connect(broker) as client:
        fill(broker, "a", records)
        log = log_at(client, "a")
        before = data[max(0, offset - MARK_BYTES_MAX) : offset]
        mark = mark_offset(client, log, offset, 25_000)
        assert (mark.size, mark.crc) == (len(before), crc32c(before))
        assert mark.end == 25_000
        # What is before the offset may be all there is.
        head = data[:MARK_BYTES_MAX] if offset > MARK_BYTES_MAX else None
        assert mark.head_size == (head and len(head))
        assert mark.head_crc == (head and crc32c(head))
        for good in (mark, OffsetMark(mark.size, mark.crc)):
            assert is_mark_right(client, log, offset, good)
        for bad in (replace(mark, crc=77), replace(mark, head_size=1, head_crc=77)):
            assert not is_mark_right(client, log, offset, bad)


def test_a_mark_of_an_earlier_release(plain: EmbeddedBroker) -> None:
    """It covers 64 bytes, and is compared with what it covers."""
    data = make_payload(fill_padded(plain, 0, 100))
    with connect(plain) as client:
        old = OffsetMark(64, crc32c(data[9936:10_000]))
        log = log_at(client, "a")
        assert is_mark_right(client, log, 10_000, old)
        assert not is_mark_right(client, log, 10_000, replace(old, crc=1))


def test_a_mark_behind_the_log(plain: EmbeddedBroker) -> None:
    fill(plain, "a", make_records(4))
    with connect(plain) as client:
        log = log_at(client, "a")
        with pytest.raises(DataLoss):
            mark_offset(client, log, 101, 100)
        assert not is_mark_right(client, log, 101, OffsetMark(64, 5))


def test_an_offset_without_a_mark_is_believed(
    plain: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(plain) as client:
        driver = make_driver(client)
        requests = Requests(monkeypatch)
        assert is_marked_right(driver, LOG, TopicPlace.at(1, 0, 100))
    assert requests.count == 0


def test_what_is_said_of_an_offset_that_has_shifted() -> None:
    loss = make_shifted(LOG, TopicPlace.at(1, 0, 500), Bounds(0, 700))
    text = str(loss)
    assert "topic 'a': data at offset 500 is lost" in text
    assert "its offsets have shifted" in text
    assert "(log start 0, log end 700)" in text


# Streams on a server that deletes.


def start(broker: EmbeddedBroker, count: int, **given: str) -> Engine:
    """Start a query and let it read some records."""
    fill(broker, "a", make_records(count), batch_bytes=250)
    engine = Engine(broker, topic="a", startingOffsets="earliest", **given)
    assert len(engine.drain()) == count
    return engine


def shift(broker: EmbeddedBroker, left: int) -> int:
    """Have the server delete; give how many bytes it has left."""
    drop_old(broker, "a", left)
    log_start, log_end = log_of(broker, "a")
    assert 0 < log_start < log_end
    return log_end - log_start


def test_offsets_that_have_shifted(
    plain: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(plain, 80)
    fill(plain, "a", make_records(300), batch_bytes=250)
    end = shift(plain, 5000)
    assert end > 80 * SIZE
    for _ in range(2):
        with pytest.raises(DataLoss) as told:
            engine.step()
        text = str(told.value)
        assert "data at offset 2000 is lost" in text and "shifted" in text
        assert f"log end {end}" in text and REMEDY in text
        engine.restart()
    caplog.clear()
    engine.restart(failOnDataLoss="false")
    assert engine.drain() == []
    assert engine.at("a") == end
    assert sum("failOnDataLoss" in r.message for r in caplog.records) == 1
    # It goes on with what comes, and reads nothing twice.
    more = fill(plain, "a", make_records(3))
    assert values(engine.drain()) == values(more)
    assert len(engine.rows) == 83


def test_a_log_that_is_shorter_after_a_shift(
    plain: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(plain, 200)
    end = shift(plain, 2000)
    assert end < 200 * SIZE
    with pytest.raises(DataLoss) as told:
        engine.step()
    text = str(told.value)
    assert f"the log ends {200 * SIZE - end} bytes before it" in text
    assert "the server has deleted data" in text
    caplog.clear()
    engine.restart(failOnDataLoss="false")
    assert engine.drain() == []
    assert sum("failOnDataLoss" in r.message for r in caplog.records) == 1
    more = fill(plain, "a", make_records(3))
    assert values(engine.drain()) == values(more)


def test_a_shift_that_the_end_does_not_show(plain: EmbeddedBroker) -> None:
    """As much was appended as was deleted: it shows when something more comes."""
    engine = start(plain, 200)
    end = shift(plain, 2000)
    missing = 200 * SIZE - end
    fill(plain, "a", make_records(missing // SIZE))
    assert not engine.step()
    fill(plain, "a", make_records(1))
    with pytest.raises(DataLoss, match="shifted"):
        engine.step()


@pytest.mark.parametrize("fails", [True, False])
def test_a_shift_while_a_batch_was_planned(plain: EmbeddedBroker, fails: bool) -> None:
    engine = start(plain, 80)
    fill(plain, "a", make_records(120), batch_bytes=250)
    engine.step(crash=True)
    fill(plain, "a", make_records(300), batch_bytes=250)
    end = shift(plain, 8000)
    assert end > 200 * SIZE
    engine.restart(failOnDataLoss=str(fails))
    if fails:
        with pytest.raises(DataLoss, match=f"shifted.*{REMEDY}.*log end {end}"):
            engine.step()
        return
    assert engine.drain() == []
    more = fill(plain, "a", make_records(3))
    assert values(engine.drain()) == values(more)


@pytest.mark.parametrize("fails", [True, False])
def test_a_shift_between_the_mark_and_the_walk(
    plain: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """What was looked at a moment ago is not there when it is walked through."""
    engine = start(plain, 200, failOnDataLoss=str(fails))
    fill(plain, "a", make_records(20), batch_bytes=250)
    make_ruler = PlainDriver.make_ruler

    def shift_first(*given: Any, **named: Any) -> object:
        monkeypatch.setattr(PlainDriver, "make_ruler", make_ruler)
        shift(plain, 2000)
        return make_ruler(*given, **named)

    monkeypatch.setattr(PlainDriver, "make_ruler", shift_first)
    if fails:
        with pytest.raises(DataLoss, match=REMEDY):
            engine.step()
        return
    engine.drain()
    assert len(engine.rows) == 200
    more = fill(plain, "a", make_records(3))
    assert engine.drain() == expect(more)


# Records that look alike.


def read_some(broker: EmbeddedBroker, count: int, **given: Any) -> Engine:
    """Start a query and let it read so many records of those that are there."""
    engine = Engine(
        broker,
        topic="a",
        startingOffsets="earliest",
        maxRecordsPerTrigger=count,
        **given,
    )
    assert engine.step()
    assert len(engine.rows) == count
    return engine


def test_records_that_share_their_last_bytes(plain: EmbeddedBroker) -> None:
    """A shift by whole records leads to a record whose padding is the same."""
    fill_padded(plain, 0, 300)
    engine = read_some(plain, 100)
    left = shift(plain, 45_000)
    assert left % 200 == 0 and left > 100 * 200, "what is next could still be read"
    for _ in range(2):
        with pytest.raises(DataLoss, match=f"offset 20000 is lost.*shifted.*{REMEDY}"):
            engine.step()
        engine.restart()


def test_records_that_are_alike_but_for_the_head_of_the_log(
    plain: EmbeddedBroker,
) -> None:
    fill_padded(plain, 0, 10)
    fill(plain, "a", [Record(1, bytes(95))] * 1000, batch_bytes=1000)
    engine = read_some(plain, 500)
    end = log_of(plain, "a")[1]
    shift(plain, end - 2500)
    # The end shows nothing either.
    fill(plain, "a", [Record(1, bytes(95))] * 100, batch_bytes=1000)
    with pytest.raises(DataLoss, match="its offsets have shifted"):
        engine.step()


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_are_all_alike(
    plain: EmbeddedBroker, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """No byte shows the shift, but the log is shorter than it was."""
    fill(plain, "a", [Record(1, bytes(95))] * 1000, batch_bytes=1000)
    engine = read_some(plain, 500, failOnDataLoss=str(fails))
    end = shift(plain, 90_000)
    assert 500 * 100 < end < 1000 * 100
    caplog.clear()
    engine.restart()
    if fails:
        with pytest.raises(DataLoss, match=f"longer when.*{REMEDY}.*log end {end}"):
            engine.step()
        return
    # It is the same place as far as anybody can tell, and nothing more is left out.
    assert len(engine.drain()) == (end - 500 * 100) // 100
    assert sum("failOnDataLoss" in r.message for r in caplog.records) == 1


def test_a_shorter_log_is_told_once(plain: EmbeddedBroker) -> None:
    """Also where nothing is left to read, which would bring a new mark."""
    fill(plain, "a", [Record(1, bytes(95))] * 1000, batch_bytes=1000)
    engine = read_some(plain, 500, failOnDataLoss="false")
    assert shift(plain, 50_000) == 500 * 100
    assert engine.restart().drain() == []
    engine.restart(failOnDataLoss="true")
    assert engine.drain() == []
    more = fill(plain, "a", make_records(3))
    assert engine.drain() == expect(more)


def test_what_no_comparison_shows(plain: EmbeddedBroker) -> None:
    """Records that are all alike, and as many came as were deleted.

    The rows that are left out are the same as those that are read instead.
    """
    fill(plain, "a", [Record(1, bytes(95))] * 1000, batch_bytes=1000)
    engine = read_some(plain, 500)
    end = shift(plain, 90_000)
    fill(plain, "a", [Record(1, bytes(95))] * ((100_000 - end) // 100))
    assert len(engine.drain()) == 500


def test_nothing_unread_is_compared_too(plain: EmbeddedBroker) -> None:
    """As much came as was deleted, so that the end is where it was."""
    fill_padded(plain, 0, 300)
    engine = Engine(plain, topic="a", startingOffsets="earliest")
    engine.drain()
    end = shift(plain, 45_000)
    fill_padded(plain, 300, (60_000 - end) // 200)
    engine.restart(available_now=True)
    with pytest.raises(DataLoss, match="its offsets have shifted"):
        engine.step()


@pytest.mark.parametrize("seed", range(8))
def test_random_histories(seed: int) -> None:
    """Every record is read once and in order, or it is told that one is not."""
    chance = random.Random(seed)
    with run_broker("plain", segment_bytes=2000) as broker:
        fill_padded(broker, 0, 20)
        count, is_shifted = 20, False
        engine = Engine(
            broker, topic="a", startingOffsets="earliest", maxRecordsPerTrigger=15
        )
        for _ in range(40):
            step = chance.random()
            if step < 0.35:
                more = chance.choice([1, 30, 90])
                fill_padded(broker, count, more)
                count += more
            elif step < 0.45:
                start, end = log_of(broker, "a")
                drop_old(broker, "a", max(1, end - start - chance.choice([2000, 9000])))
                is_shifted |= log_of(broker, "a")[0] > start
            elif step < 0.55:
                engine.restart()
            else:
                try:
                    if chance.random() < 0.2:
                        engine.step(crash=True)
                        engine.restart()
                    else:
                        engine.step()
                except DataLoss:
                    assert is_shifted
                    break
        numbers = [int(row["value"][:8]) for row in engine.rows]
        first = numbers[0] if numbers else 0
        assert numbers == list(range(first, first + len(numbers)))
        assert first == 0 or is_shifted


# Where a server deletes while a batch is planned: (what is called then, of whom).
MOMENTS = [
    (PlainDriver, "make_ruler"),
    (batch_end, "admit"),
    (PlainDriver, "mark_position"),
]


@pytest.mark.parametrize(("where", "name"), MOMENTS, ids=[m[1] for m in MOMENTS])
@pytest.mark.parametrize("read", [0, 60])
def test_no_end_is_written_down_that_a_shift_makes_wrong(
    plain: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    where: object,
    name: str,
    read: int,
) -> None:
    """Records differ in size, so that an end from before is inside of one."""
    records = [r for n in range(500) for r in make_records(1, 12 + n % 37)]
    fill(plain, "a", records[:read] or (), batch_bytes=250)
    engine = Engine(
        plain,
        topic="a",
        startingOffsets="earliest",
        failOnDataLoss="false",
        maxRecordsPerTrigger=60,
    )
    engine.drain()
    fill(plain, "a", records[read:], batch_bytes=250)
    function = getattr(where, name)

    def shift_first(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(where, name, function)
        shift(plain, 9000)
        return function(*given, **named)

    monkeypatch.setattr(where, name, shift_first)
    engine.drain()
    more = fill(plain, "a", make_records(3))
    assert values(engine.drain()) == values(more)


def test_every_end_on_a_plain_server_has_its_mark(plain: EmbeddedBroker) -> None:
    fill(plain, "a", make_records(10))
    engine = Engine(
        plain, topic="a", startingOffsets="earliest", maxRecordsPerTrigger=3
    )
    engine.drain()
    data = make_payload(make_records(10))
    place = engine.offset.get("a")
    assert place is not None
    assert place.mark == OffsetMark(250, crc32c(data), end=250)


def test_our_own_server_needs_no_marks(broker: EmbeddedBroker) -> None:
    engine = start(broker, 10)
    place = engine.offset.get("a")
    assert place is not None
    assert place.marks == ()
