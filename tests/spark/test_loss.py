"""What streams do about data that is gone: say it as an error, or once and go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import DataLoss
from lance_spark.spark.batch_end import LossLog
from lance_spark.spark.pool import clear_pool
from tests.spark import writing
from tests.spark.reading import (
    DIALECTS,
    connect,
    drop_old,
    fill,
    log_of,
    make_records,
    run_broker,
)
from tests.spark.streaming import Engine, delete, expect, recreate

SIZE = 25
REMEDY = "set failOnDataLoss=false to go on with what is left"


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with run_broker(request.param, segment_bytes=1000) as broker:
        yield broker


@pytest.fixture
def lwp() -> Iterator[EmbeddedBroker]:
    with run_broker("lwp", segment_bytes=1000) as broker:
        yield broker


# The log of losses.


def make_loss(log_start: int | None = 30, asked: int = 10) -> DataLoss:
    return DataLoss("a", asked, log_start, 90, "why")


def test_an_error_says_what_to_do() -> None:
    losses = LossLog(is_error=True)
    for _ in range(2):
        with pytest.raises(DataLoss) as told:
            losses.report(make_loss())
        assert told.value.reason == f"why; {REMEDY}"
        assert (told.value.asked, told.value.log_start) == (10, 30)
    assert losses.lost("a") == 0


def test_the_same_loss_is_told_once_and_counted_as_it_grows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses = LossLog(is_error=False)
    for log_start in (30, 30, 70, 50, None):
        losses.report(make_loss(log_start))
    assert len(caplog.records) == 1
    assert losses.lost("a") == 60
    losses.report(make_loss(80, asked=70))
    assert len(caplog.records) == 2
    assert losses.lost("a") == 70
    # A part of what was counted already, met from another offset.
    losses.report(make_loss(80, asked=40))
    assert losses.lost("a") == 70
    # Its successor has offsets of its own.
    losses.begin_anew("a")
    losses.report(make_loss(5, asked=0))
    assert losses.lost("a") == 75
    assert losses.lost("b") == 0


def test_a_query_that_loses_for_ever_does_not_remember_all_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    losses = LossLog(is_error=False)
    for n in range(100):
        losses.report(make_loss(10 * n + 5, asked=10 * n))
    assert len(caplog.records) == 100
    losses.report(make_loss(995, asked=990))
    assert len(caplog.records) == 100
    losses.report(make_loss(5, asked=0))
    assert len(caplog.records) == 101
    assert losses.lost("a") == 500


# Each kind of loss: how it comes about, and what remains of it.

Lose = Callable[[EmbeddedBroker], list[dict[str, Any]]]


def recreate_larger(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    delete(broker, "a")
    return fill(broker, "a", make_records(60))


def recreate_smaller(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    delete(broker, "a")
    return fill(broker, "a", make_records(3))


def recreate_empty(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    recreate(broker, "a", [])
    return []


def remove(broker: EmbeddedBroker) -> list[dict[str, Any]]:
    delete(broker, "a")
    return []


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (recreate_larger, ["the topic was created anew", "log start 0, log end 1500"]),
        (recreate_smaller, ["the topic was created anew", "log start 0, log end 75"]),
        (recreate_empty, ["the topic was created anew", "log start 0, log end 0"]),
        (remove, ["is gone: the topic was deleted"]),
    ],
)
def test_a_topic_that_is_another_one_or_none(
    server: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    lose: Lose,
    words: list[str],
) -> None:
    fill(server, "a", make_records(20))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    engine.drain()
    rest = lose(server)
    for _ in range(2):
        with pytest.raises(DataLoss) as told:
            engine.step()
        engine.restart()
        text = str(told.value)
        assert "topic 'a': data at offset 500 is lost" in text
        for word in [*words, REMEDY]:
            assert word in text
    caplog.clear()
    engine.restart(failOnDataLoss="false")
    assert engine.drain() == expect(rest)
    # It is all told, and it is told once.
    warnings = [r for r in caplog.records if "failOnDataLoss" in r.message]
    assert len(warnings) == 1 and words[0] in warnings[0].message
    assert engine.drain() == []
    more = fill(server, "a", make_records(2))
    assert engine.drain() == expect(more)
    # And the query is past it.
    engine.restart(failOnDataLoss="true")
    last = fill(server, "a", make_records(1))
    assert engine.drain() == expect(last)


def test_a_topic_created_anew_while_a_batch_was_planned(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(20))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    engine.drain()
    fill(server, "a", make_records(5))
    engine.step(crash=True)
    recreate(server, "a", make_records(60))
    with pytest.raises(DataLoss, match=REMEDY) as told:
        engine.restart().step()
    assert "data at offset 500 is lost" in str(told.value)
    engine.restart(failOnDataLoss="false")
    assert len(engine.drain()) == 60


def test_a_topic_that_vanishes_and_others_that_stay(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(20))
    fill(server, "b", make_records(20))
    engine = Engine(
        server, topicPattern="a|b", startingOffsets="earliest", failOnDataLoss="false"
    )
    engine.drain()
    delete(server, "a")
    rows = fill(server, "b", make_records(5))
    assert engine.drain() == expect(rows)
    # It may come back, and is not read again then.
    assert (engine.at("a"), engine.at("b")) == (20 * SIZE, 25 * SIZE)


def test_a_topic_that_vanishes_while_it_waits_for_its_first_batch(
    server: EmbeddedBroker,
) -> None:
    fill(server, "t-a", make_records(4))
    engine = Engine(
        server,
        topicPattern="t-.*",
        startingOffsets="earliest",
        maxBytesPerTrigger=SIZE,
    )
    engine.drain()
    for topic in ("t-a", "t-b", "t-c"):
        fill(server, topic, make_records(2))
    engine.step()
    unread = [topic for topic in ("t-b", "t-c") if not engine.at(topic)]
    delete(server, unread[0])
    with pytest.raises(DataLoss, match=f"'{unread[0]}'.*the topic was deleted"):
        engine.drain()


def look_once_and(engine: Engine, do: Callable[[], None]) -> None:
    """Do something behind the engine's next look, before it asks anything more."""
    watch = engine.reader._plan._watch
    look = watch.look

    def look_and_do(*given: Any) -> Any:
        watch.look = look  # type: ignore[method-assign]
        found = look(*given)
        do()
        return found

    watch.look = look_and_do  # type: ignore[method-assign]


@pytest.mark.parametrize("is_error", [True, False])
def test_a_topic_that_vanishes_between_two_questions(
    server: EmbeddedBroker, is_error: bool
) -> None:
    fill(server, "a", make_records(20))
    rows = fill(server, "b", make_records(20))
    engine = Engine(
        server,
        topicPattern="a|b",
        startingOffsets="earliest",
        failOnDataLoss=str(is_error),
    )
    look_once_and(engine, lambda: delete(server, "a"))
    if is_error:
        with pytest.raises(DataLoss, match="the topic was deleted"):
            engine.drain()
    else:
        assert engine.drain() == expect(rows)


def test_a_topic_that_vanishes_behind_the_plan(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(20))
    rows = fill(server, "b", make_records(20))
    engine = Engine(
        server, topicPattern="a|b", startingOffsets="earliest", failOnDataLoss="false"
    )
    engine.step(crash=True)
    delete(server, "a")
    engine.restart().step()
    assert engine.rows == expect(rows)
    assert not engine.drain()


# Retention.


def test_retention_has_passed_some_of_it(
    lwp: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(lwp, "a", make_records(20))
    engine = Engine(lwp, topic="a", startingOffsets="earliest")
    engine.drain()
    rows = fill(lwp, "a", make_records(100), batch_bytes=250)
    drop_old(lwp, "a", 1500)
    start, end = log_of(lwp, "a")
    assert 500 < start < end
    with pytest.raises(DataLoss) as told:
        engine.step()
    text = str(told.value)
    assert f"data at offset 500 is lost, {start - 500} bytes gone" in text
    assert f"(log start {start}, log end {end})" in text
    assert REMEDY in text
    # It is noticed before the end of the batch is written down.
    assert len(engine.offsets) == 1
    caplog.clear()
    engine.restart(failOnDataLoss="false", maxRecordsPerTrigger=7)
    left = [row for row in rows if row["offset"] >= start]
    assert engine.drain() == expect(left)
    assert sum("failOnDataLoss" in r.message for r in caplog.records) == 1
    report = engine.reader.reportLatestOffset()
    assert report is not None
    assert report["topics"]["a"]["bytesLost"] == start - 500


def test_retention_passes_a_batch_that_is_planned(lwp: EmbeddedBroker) -> None:
    rows = fill(lwp, "a", make_records(100), batch_bytes=250)
    engine = Engine(lwp, topic="a", startingOffsets='{"a": 0}')
    engine.step(crash=True)
    drop_old(lwp, "a", 1500)
    start, _ = log_of(lwp, "a")
    with pytest.raises(DataLoss, match=f"offset 0 is lost, {start} bytes gone"):
        engine.restart().step()
    engine.restart(failOnDataLoss="false").step()
    assert engine.rows == expect(row for row in rows if row["offset"] >= start)


@pytest.mark.parametrize("fails", [True, False])
def test_retention_has_passed_all_of_it(lwp: EmbeddedBroker, fails: bool) -> None:
    fill(lwp, "a", make_records(4))
    engine = Engine(
        lwp, topic="a", startingOffsets="earliest", failOnDataLoss=str(fails)
    )
    engine.drain()
    fill(lwp, "a", make_records(100), batch_bytes=2500)
    drop_old(lwp, "a", 1)
    start, end = log_of(lwp, "a")
    assert start == end == 104 * SIZE
    if fails:
        with pytest.raises(DataLoss, match="2500 bytes gone"):
            engine.drain()
        return
    assert engine.drain() == []
    assert engine.at("a") == end
    rows = fill(lwp, "a", make_records(2))
    assert engine.drain() == expect(rows)


def overwrite(broker: EmbeddedBroker, *given: bytes) -> None:
    job = writing.make_job(broker, overwrite=True, topic="a")
    writing.run_job(job, [writing.values(*given)] if given else [])


@pytest.mark.parametrize("new", [(b"new",), ()], ids=["rows", "nothing"])
def test_what_was_not_read_is_overwritten(
    lwp: EmbeddedBroker, new: tuple[bytes, ...]
) -> None:
    fill(lwp, "a", make_records(4))
    engine = Engine(lwp, topic="a", startingOffsets="earliest")
    engine.drain()
    fill(lwp, "a", make_records(2))
    overwrite(lwp, *new)
    with pytest.raises(DataLoss, match="offset 100 is lost, 50 bytes gone"):
        engine.step()
    engine.restart(failOnDataLoss="false")
    assert [row["value"] for row in engine.drain()] == list(new)
    more = fill(lwp, "a", make_records(2))
    assert engine.drain() == expect(more)


def test_what_was_read_is_overwritten(lwp: EmbeddedBroker) -> None:
    fill(lwp, "a", make_records(4))
    engine = Engine(lwp, topic="a", startingOffsets="earliest")
    engine.drain()
    overwrite(lwp, b"new")
    assert [row["value"] for row in engine.drain()] == [b"new"]


# A log that ends before what was read.


def test_a_log_that_ends_before_the_checkpoint(
    server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, "a", make_records(20))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    engine.drain()
    engine.move("a", 540)
    with pytest.raises(DataLoss) as told:
        engine.step()
    text = str(told.value)
    assert "data at offset 540 is lost" in text
    assert "the log ends 40 bytes before it" in text
    assert "(log start 0, log end 500)" in text and REMEDY in text
    # It was looked at again for a while, as the log may not be open yet.
    assert 1.9 < sum(engine.time.slept_s) < 2.5
    caplog.clear()
    engine.restart(failOnDataLoss="false")
    assert engine.drain() == []
    assert sum("failOnDataLoss" in r.message for r in caplog.records) == 1
    rows = fill(server, "a", make_records(2))
    assert engine.drain() == expect(rows)


@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_was_cut_and_has_grown_again(
    lwp: EmbeddedBroker, fails: bool
) -> None:
    """The offset is inside of a record that was not there when it was written down."""
    fill(lwp, "a", make_records(4))
    engine = Engine(lwp, topic="a", startingOffsets="earliest")
    engine.drain()
    rows = fill(lwp, "a", make_records(4))
    engine.move("a", 4 * SIZE + 7)
    engine.restart(failOnDataLoss=str(fails))
    if fails:
        with pytest.raises(DataLoss) as told:
            engine.step()
        assert "data at offset 107 is lost" in str(told.value)
        assert "no record starts there any more" in str(told.value)
        return
    assert engine.drain() == expect(rows[1:])
    assert engine.at("a") == 8 * SIZE


def test_a_log_that_comes_back_is_no_loss(
    server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, "a", make_records(20))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    engine.drain()
    engine.move("a", 22 * SIZE)

    def come_back() -> None:
        if len(engine.time.slept_s) == 5:
            fill(server, "a", make_records(4))

    engine.time.meanwhile = come_back
    assert len(engine.drain()) == 2
    assert not caplog.records


def test_a_log_that_comes_back_before_a_batch_is_done_again(
    server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, "a", make_records(20))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    engine.step(crash=True)
    engine.move("a", 22 * SIZE)
    engine.restart()

    def come_back() -> None:
        if len(engine.time.slept_s) == 5:
            fill(server, "a", make_records(4))

    engine.time.meanwhile = come_back
    assert len(engine.drain()) == 24
    assert not caplog.records


def test_a_log_that_does_not_come_back_before_a_batch_is_done_again(
    server: EmbeddedBroker,
) -> None:
    fill(server, "a", make_records(20))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    engine.step(crash=True)
    engine.move("a", 540)
    with pytest.raises(DataLoss, match=r"offset 540 is lost.*log end 500"):
        engine.restart().step()
    assert 1.9 < sum(engine.time.slept_s) < 2.5
    engine.restart(failOnDataLoss="false").drain()
    rows = fill(server, "a", make_records(2))
    assert engine.drain() == expect(rows)


# Options that have changed.


def test_a_topic_that_the_options_do_not_name_any_more(
    server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, "a", make_records(4))
    fill(server, "b", make_records(4))
    engine = Engine(server, topic="a,b", startingOffsets="earliest")
    engine.drain()
    rows = fill(server, "a", make_records(1))
    with pytest.raises(DataLoss) as told:
        engine.restart(topic="a").step()
    text = str(told.value)
    assert "topic 'b': data at offset 100 is lost" in text
    assert "the options do not name it any more" in text and REMEDY in text
    caplog.clear()
    engine.restart(topic="a", failOnDataLoss="false")
    assert engine.drain() == expect(rows)
    assert engine.at("b") is None
    assert sum("failOnDataLoss" in r.message for r in caplog.records) == 1


def test_a_batch_whose_topic_the_options_do_not_name_any_more(
    server: EmbeddedBroker,
) -> None:
    """What a batch has was written down before; it is done as it was planned."""
    fill(server, "a", make_records(4))
    fill(server, "b", make_records(4))
    engine = Engine(server, topic="a,b", startingOffsets="earliest")
    engine.step(crash=True)
    engine.restart(topic="a", startingOffsets="earliest", failOnDataLoss="false")
    engine.step()
    assert len(engine.rows) == 8
    engine.drain()
    assert len(engine.rows) == 8


def test_a_topic_that_the_options_name_now(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(4))
    rows = fill(server, "b", make_records(4))
    engine = Engine(server, topic="a", startingOffsets="latest")
    engine.drain()
    engine.restart(topic="a,b")
    assert engine.drain() == expect(rows)


def test_a_topic_that_the_options_name_now_and_that_is_not_there(
    server: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, "a", make_records(4))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    engine.drain()
    engine.restart(topic="a,b")
    with pytest.raises(Exception, match="no topic is named 'b'"):
        engine.step()
    caplog.clear()
    engine.restart(failOnDataLoss="false")
    assert engine.drain() == []
    assert engine.drain() == []
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    rows = fill(server, "b", make_records(4))
    assert engine.drain() == expect(rows)


def test_behind_a_loss_the_checkpoint_names_the_new_topic(
    server: EmbeddedBroker,
) -> None:
    fill(server, "a", make_records(4))
    engine = Engine(
        server, topic="a", startingOffsets="earliest", failOnDataLoss="false"
    )
    engine.drain()
    recreate(server, "a", make_records(2))
    engine.drain()
    with connect(server) as client:
        found = client.topic("a")
    place = engine.offset.get("a")
    assert place is not None
    assert place.same_topic(found.id, found.created_at_s)
    assert len(engine.rows) == 6
