"""Where streams start, and that the start is written down before anything is read."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, TopicInfo
from lance_spark.errors import (
    DataLoss,
    OptionError,
    RecordError,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Partition
from lance_spark.offset import StreamOffset, TopicPlace
from lance_spark.spark.bound import EARLIEST, LATEST, AtOffsets, AtTime, Bound
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.stream import find_first_start, is_moving, needs_pin
from tests.spark.reading import (
    DIALECTS,
    drop_old,
    fill,
    log_of,
    make_records,
    run_broker,
)
from tests.spark.streaming import Engine, delete, expect

# The records of these tests, header and all.
SIZE = 25


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with run_broker(request.param, segment_bytes=1000) as broker:
        yield broker


# Which place that is.


def test_latest_is_the_default(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(3))
    engine = Engine(server, topic="a")
    assert engine.drain() == []
    rows = fill(server, "a", make_records(2))
    assert engine.drain() == expect(rows)


def test_earliest(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", make_records(3))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    assert engine.drain() == expect(rows)
    rows = fill(server, "a", make_records(2))
    assert engine.drain() == expect(rows)


def test_earliest_is_what_retention_has_left(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(100), batch_bytes=250)
    drop_old(server, "a", 1500)
    start, end = log_of(server, "a")
    assert 0 < start < end
    engine = Engine(server, topic="a", startingOffsets="earliest")
    assert len(engine.drain()) == (end - start) / SIZE


@pytest.mark.parametrize(
    ("given", "count"),
    [(-2, 4), (0, 4), (SIZE, 3), (2 * SIZE, 2), (4 * SIZE, 0), (-1, 0)],
)
def test_an_offset_by_topic(server: EmbeddedBroker, given: int, count: int) -> None:
    rows = fill(server, "a", make_records(4))
    engine = Engine(server, topic="a", startingOffsets=json.dumps({"a": given}))
    engine.drain()
    assert engine.rows == expect(rows[4 - count :])
    more = fill(server, "a", make_records(1))
    assert engine.drain() == expect(more)


@pytest.mark.parametrize("given", ['{"a": -1}', '{"a": 25}', '{"a": -2}'])
@pytest.mark.parametrize("available_now", [False, True])
def test_a_topic_without_an_offset_is_an_error_at_the_start(
    server: EmbeddedBroker, given: str, available_now: bool
) -> None:
    fill(server, "a", make_records(4))
    fill(server, "b", make_records(2))
    engine = Engine(
        server,
        topicPattern="a|b",
        startingOffsets=given,
        available_now=available_now,
        failOnDataLoss="false",
    )
    for _ in range(2):
        with pytest.raises(OptionError) as told:
            engine.step()
        assert str(told.value) == (
            "option startingOffsets has no offset for topic 'b': add one, as in "
            '{"b": -2}, where -2 is earliest and -1 is latest'
        )
        # Nothing is written down, so that it is told again.
        assert engine.offsets == []
        engine.restart(available_now=available_now)


@pytest.mark.parametrize("given", [-1, 2 * SIZE, -2])
@pytest.mark.parametrize("crash", [False, True])
def test_a_topic_that_comes_after_the_start_needs_no_offset(
    server: EmbeddedBroker, given: int, crash: bool
) -> None:
    """After a crash in the first batch, Spark asks anew where the stream starts."""
    rows = fill(server, "a", make_records(4))
    first = {-1: 4, -2: 0}.get(given, 2)
    start = json.dumps({"a": given})
    engine = Engine(server, topicPattern="[abc]", startingOffsets=start)
    assert engine.step(crash=crash)
    later = fill(server, "b", make_records(2))
    if crash:
        engine.restart()
    engine.drain()
    assert engine.rows == expect(rows[first:], later)
    assert engine.restart().drain() == []


def test_a_topic_that_comes_between_the_start_and_the_first_look(
    server: EmbeddedBroker,
) -> None:
    rows = fill(server, "a", make_records(4))
    engine = Engine(server, topicPattern="[abc]", startingOffsets='{"a": -2}')
    engine.reader.initialOffset()
    later = fill(server, "b", make_records(2))
    engine.step(crash=True)
    engine.restart().drain()
    assert engine.rows == expect(rows, later)


@pytest.mark.parametrize(("given", "count"), [(1, 3), (SIZE - 1, 3), (3 * SIZE + 1, 0)])
def test_an_offset_inside_a_record_means_the_next_one(
    broker: EmbeddedBroker, given: int, count: int
) -> None:
    rows = fill(broker, "a", make_records(4))
    engine = Engine(broker, topic="a", startingOffsets=json.dumps({"a": given}))
    start = engine.reader.initialOffset()
    assert start["topics"]["a"]["partitions"] == {"0": (4 - count) * SIZE}
    engine.drain()
    assert engine.rows == expect(rows[4 - count :])
    assert engine.at("a") == 4 * SIZE


def test_a_plain_server_can_not_tell_that_an_offset_is_inside_a_record(
    plain_broker: EmbeddedBroker,
) -> None:
    fill(plain_broker, "a", make_records(4))
    engine = Engine(plain_broker, topic="a", startingOffsets='{"a": 13}')
    with pytest.raises(RecordError) as told:
        engine.drain()
    text = str(told.value)
    assert "malformed record at byte 13" in text and "topic 'a'" in text
    assert "startingOffsets has to name an offset at which a record starts" in text


@pytest.mark.parametrize("given", [101, 2**63 - 1])
def test_an_offset_behind_the_log_is_a_loss(server: EmbeddedBroker, given: int) -> None:
    fill(server, "a", make_records(4))
    engine = Engine(server, topic="a", startingOffsets=json.dumps({"a": given}))
    with pytest.raises(DataLoss) as told:
        engine.drain()
    text = str(told.value)
    assert f"data at offset {given} is lost" in text
    assert f"the log ends {given - 100} bytes before it" in text
    assert "(log start 0, log end 100)" in text
    engine.restart(failOnDataLoss="false")
    assert engine.drain() == []
    rows = fill(server, "a", make_records(1))
    assert engine.drain() == expect(rows)


def test_an_offset_that_retention_has_passed_is_a_loss() -> None:
    with run_broker("lwp", segment_bytes=1000) as broker:
        fill(broker, "a", make_records(100), batch_bytes=250)
        drop_old(broker, "a", 1500)
        start, end = log_of(broker, "a")
        assert 25 < start < end
        engine = Engine(broker, topic="a", startingOffsets='{"a": 25}')
        with pytest.raises(DataLoss, match=f"{start - 25} bytes gone"):
            engine.drain()
        engine.restart(failOnDataLoss="false")
        assert len(engine.drain()) == (end - start) / SIZE


def test_the_offset_of_another_checkpoint(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(4))
    first = Engine(server, topic="a", startingOffsets="earliest")
    first.drain()
    rows = fill(server, "a", make_records(2))
    second = Engine(server, topic="a", startingOffsets=first.offsets[-1])
    second.drain()
    assert second.rows == expect(rows)


# Times.


def test_a_time(broker: EmbeddedBroker) -> None:
    fill(broker, "a", make_records(3))
    between_ms = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= between_ms:
        pass
    rows = fill(broker, "a", make_records(2))
    engine = Engine(broker, topic="a", startingTimestamp=between_ms)
    engine.drain()
    assert engine.rows == expect(rows)


def test_a_time_that_was_before_everything(broker: EmbeddedBroker) -> None:
    rows = fill(broker, "a", make_records(3))
    engine = Engine(broker, topic="a", startingTimestamp="2001-01-01")
    engine.drain()
    assert engine.rows == expect(rows)


def test_a_time_that_is_to_come(broker: EmbeddedBroker) -> None:
    fill(broker, "a", make_records(3))
    engine = Engine(broker, topic="a", startingTimestamp="2200-01-01")
    assert engine.drain() == []
    # The offset is resolved once, as in Kafka: what comes next is read.
    rows = fill(broker, "a", make_records(2))
    assert engine.drain() == expect(rows)


def test_a_plain_server_knows_no_times(plain_broker: EmbeddedBroker) -> None:
    fill(plain_broker, "a", make_records(3))
    engine = Engine(plain_broker, topic="a", startingTimestamp="2001-01-01")
    with pytest.raises(Unsupported) as told:
        engine.reader.initialOffset()
    assert "startingTimestamp (a plain server has no index of times" in str(told.value)
    assert plain_broker.address in str(told.value)


# What is not there.


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_named_has_to_be_there(
    server: EmbeddedBroker, fails: str
) -> None:
    fill(server, "a")
    engine = Engine(server, topic="a,b", failOnDataLoss=fails)
    with pytest.raises(TopicNotFound) as told:
        engine.step()
    assert "no topic is named 'b'" in str(told.value)
    assert "correct the option topic" in str(told.value)


def test_a_plain_server_that_is_to_locate_records(
    plain_broker: EmbeddedBroker,
) -> None:
    fill(plain_broker, "a", make_records(3))
    engine = Engine(plain_broker, topic="a", splitting="locate")
    with pytest.raises(Unsupported, match="use auto, probe or none"):
        engine.step()
    assert engine.offsets == []


def test_offsets_for_a_topic_that_is_not_read(server: EmbeddedBroker) -> None:
    fill(server, "a")
    engine = Engine(server, topicPattern="a.*", startingOffsets='{"ab": 3}')
    with pytest.raises(OptionError, match="offsets are given for 'ab'"):
        engine.step()


# The pin.


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (EARLIEST, False),
        (LATEST, True),
        (AtTime(5), True),
        (AtOffsets(((Partition("a"), 0), (Partition("b"), -2))), False),
        (AtOffsets(((Partition("a"), 0), (Partition("b"), -1))), True),
    ],
)
def test_what_may_mean_another_place_later(bound: Bound, expected: bool) -> None:
    assert is_moving(bound) is expected


def make_offset(**offsets: int) -> StreamOffset:
    return StreamOffset.of({t: TopicPlace.at(1, 2, at) for t, at in offsets.items()})


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (EARLIEST, True),
        (LATEST, True),
        (AtOffsets(((Partition("a"), 0), (Partition("b"), -2))), True),
        (AtOffsets(((Partition("a"), -2), (Partition("b"), 50))), False),
    ],
)
def test_what_is_earliest_moves_where_something_is_removed(
    bound: Bound, expected: bool
) -> None:
    assert needs_pin(bound, make_offset(a=0, b=50)) is expected
    assert needs_pin(bound, make_offset(a=0, b=0)) is is_moving(bound)


@pytest.mark.parametrize(
    ("bound", "end", "expected"),
    [
        # A pin is empty, whichever topics are read now.
        (LATEST, make_offset(a=40, c=5), make_offset(a=40, c=5)),
        # Records are in it, so what was earliest was 0.
        (EARLIEST, make_offset(a=80, b=20), make_offset(a=0, b=0)),
        (
            AtOffsets(((Partition("a"), -2), (Partition("b"), 70))),
            make_offset(a=80, b=90),
            make_offset(a=0, b=70),
        ),
        (EARLIEST, make_offset(a=50, b=70), make_offset(a=50, b=70)),
        (EARLIEST, make_offset(c=80), make_offset(a=50, b=70)),
    ],
)
def test_where_a_first_batch_started_that_another_process_has_planned(
    bound: Bound, end: StreamOffset, expected: StreamOffset
) -> None:
    assert find_first_start(bound, make_offset(a=50, b=70), end) == expected


PINNED = [
    {"startingOffsets": "latest"},
    {"startingOffsets": '{"a": -1}'},
    {"startingTimestamp": "2200-01-01"},
]


@pytest.mark.parametrize("given", PINNED, ids=["latest", "offset", "time"])
def test_the_first_batch_is_empty_and_says_where_the_stream_starts(
    broker: EmbeddedBroker, given: dict[str, str]
) -> None:
    fill(broker, "a", make_records(3))
    engine = Engine(broker, topic="a", **given)
    engine.reader.initialOffset()
    rows = fill(broker, "a", make_records(2))
    assert engine.step()
    assert engine.rows == [] and engine.at("a") == 3 * SIZE
    # The pin is spent, though the next batch starts at the same offset.
    assert engine.step()
    assert engine.rows == expect(rows)


@pytest.mark.parametrize("given", PINNED, ids=["latest", "offset", "time"])
@pytest.mark.parametrize("more", [0, 1], ids=["before", "after"])
def test_a_crash_in_the_first_batch_loses_nothing_and_repeats_nothing(
    broker: EmbeddedBroker, given: dict[str, str], more: int
) -> None:
    fill(broker, "a", make_records(3))
    engine = Engine(broker, topic="a", **given)
    engine.step(crash=True)
    rows = fill(broker, "a", make_records(5))
    engine.restart()
    engine.step()
    assert engine.rows == []
    if more:
        # Again, as the log of what is done was lost: commits/0 was deleted.
        engine.done = 0
        rows += fill(broker, "a", make_records(2))
        engine.restart().step()
        assert engine.rows == []
    engine.drain()
    assert engine.rows == expect(rows)


def test_a_crash_in_the_first_batch_of_a_plain_server(
    plain_broker: EmbeddedBroker,
) -> None:
    fill(plain_broker, "a", make_records(3))
    engine = Engine(plain_broker, topic="a")
    engine.step(crash=True)
    rows = fill(plain_broker, "a", make_records(5))
    engine.restart().drain()
    assert engine.rows == expect(rows)


def test_earliest_has_no_pin(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", make_records(3))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    engine.step(crash=True)
    fill(server, "a", make_records(2))
    engine.restart()
    engine.step()
    assert engine.rows == expect(rows)


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("dropped", [False, True], ids=["at 0", "behind 0"])
def test_earliest_that_moves_while_the_first_batch_is_not_finished(
    dropped: bool, fails: bool
) -> None:
    with run_broker("lwp", segment_bytes=1000) as broker:
        fill(broker, "a", make_records(200), batch_bytes=250)
        if dropped:
            drop_old(broker, "a", 4000)
        engine = Engine(broker, topic="a", startingOffsets="earliest")
        engine.step(crash=True)
        drop_old(broker, "a", 2000)
        engine.restart(failOnDataLoss=str(fails))
        if fails:
            with pytest.raises(DataLoss, match="what was before the log start"):
                engine.drain()
            return
        log_start, log_end = log_of(broker, "a")
        assert len(engine.drain()) == (log_end - log_start) / SIZE


def test_a_pin_of_a_topic_that_the_options_do_not_name_any_more(
    server: EmbeddedBroker,
) -> None:
    """What is before the pin was never to be read."""
    fill(server, "a", make_records(3))
    fill(server, "b", make_records(4))
    engine = Engine(server, topic="a,b")
    engine.step(crash=True)
    engine.restart(topic="a", failOnDataLoss="false").drain()
    assert engine.rows == []
    rows = fill(server, "a", make_records(2))
    assert engine.drain() == expect(rows)


def test_a_topic_that_is_deleted_while_the_start_is_looked_for(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(server, "t-a", make_records(3))
    fill(server, "t-b", make_records(4))
    # One of ours lists the bounds, too: what goes behind the list is a loss.
    fails = server.config.dialect == "plain"
    engine = Engine(
        server,
        topicPattern="t-.*",
        startingOffsets="earliest",
        failOnDataLoss=str(fails),
    )
    topics = LanceClient.topics

    def delete_next(client: LanceClient) -> list[TopicInfo]:
        listing = topics(client)
        monkeypatch.setattr(LanceClient, "topics", topics)
        delete(server, "t-b")
        return listing

    monkeypatch.setattr(LanceClient, "topics", delete_next)
    assert engine.drain() == expect(rows)


def test_a_topic_that_comes_after_the_pin_is_read_from_its_beginning(
    server: EmbeddedBroker,
) -> None:
    fill(server, "t-a", make_records(3))
    engine = Engine(server, topicPattern="t-.*")
    engine.step(crash=True)
    rows = fill(server, "t-b", make_records(2))
    engine.restart().drain()
    assert engine.rows == expect(rows)


def test_a_topic_that_is_empty_is_pinned_too(server: EmbeddedBroker) -> None:
    fill(server, "a")
    engine = Engine(server, topic="a")
    engine.step(crash=True)
    assert engine.at("a") == 0
    rows = fill(server, "a", make_records(2))
    engine.restart().drain()
    assert engine.rows == expect(rows)


def test_the_start_is_the_same_however_often_it_is_asked_for(
    server: EmbeddedBroker,
) -> None:
    fill(server, "a", make_records(3))
    reader = Engine(server, topic="a").reader
    first = reader.initialOffset()
    fill(server, "a", make_records(1))
    assert json.dumps(reader.initialOffset()) == json.dumps(first)


def test_a_plain_server_gets_marks(plain_broker: EmbeddedBroker) -> None:
    fill(plain_broker, "a", make_records(3))
    fill(plain_broker, "b")
    document = Engine(plain_broker, topic="a,b").reader.initialOffset()
    offset = StreamOffset.from_document(document)
    sizes = [
        place.mark and (place.mark.size, place.mark.end) for _, place in offset.topics
    ]
    assert sizes == [(75, 75), (0, 0)]
