"""How streams are planned: topics, limits, `AvailableNow`, and what is reported."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.lwp.driver import PlainDriver
from lance_spark.errors import CheckpointError, RecordError
from lance_spark.model import Retention
from lance_spark.spark import batch_end
from lance_spark.spark.pool import clear_pool
from lance_spark.wire.lwp import Record
from tests.spark.reading import (
    DIALECTS,
    append_bytes,
    connect,
    drop_old,
    fill,
    log_of,
    make_payload,
    make_records,
    run_broker,
)
from tests.spark.streaming import (
    Engine,
    Requests,
    by_place,
    delete,
    expect,
    recreate,
    values,
)

SIZE = 25
TOPICS = [f"t-{number}" for number in range(10)]


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with run_broker(request.param, segment_bytes=1000) as broker:
        yield broker


def start(broker: EmbeddedBroker, **given: Any) -> Engine:
    """Start a query that reads all topics from their beginning."""
    options = {"topicPattern": ".*", "startingOffsets": "earliest", **given}
    return Engine(broker, **options)


# Topics.


def test_several_topics_in_the_order_of_their_names(server: EmbeddedBroker) -> None:
    rows = {name: fill(server, name, make_records(3)) for name in ("c", "a", "b")}
    engine = Engine(server, topic="c,a", startingOffsets="earliest")
    assert engine.drain() == expect(rows["a"], rows["c"])
    assert list(json.loads(engine.offsets[-1])["topics"]) == ["a", "c"]


def test_a_new_topic_is_read_from_its_beginning(server: EmbeddedBroker) -> None:
    fill(server, "t-a", make_records(3))
    fill(server, "other", make_records(3))
    engine = Engine(server, topicPattern="t-.*")
    assert engine.drain() == []
    rows = fill(server, "t-b", make_records(4))
    fill(server, "another", make_records(3))
    assert engine.drain() == expect(rows)
    # It is read from where the stream is, then, also by another process.
    more = fill(server, "t-b", make_records(2))
    assert engine.restart().drain() == expect(more)


def test_a_new_topic_without_records_is_not_worth_a_batch(
    server: EmbeddedBroker,
) -> None:
    fill(server, "t-a", make_records(3))
    engine = start(server)
    engine.drain()
    fill(server, "t-b")
    assert not engine.step()
    rows = fill(server, "t-b", make_records(1))
    assert engine.drain() == expect(rows)


def test_a_pattern_that_nothing_matches_yet(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(3))
    engine = Engine(server, topicPattern="t-.*")
    assert engine.drain() == []
    assert engine.offsets == ['{"version": 1, "topics": {}}']
    assert not engine.step()
    rows = fill(server, "t-a", make_records(2))
    assert engine.drain() == expect(rows)


def test_a_server_without_topics(server: EmbeddedBroker) -> None:
    engine = start(server)
    assert engine.drain() == []
    assert engine.restart().drain() == []


def test_names_in_any_script(broker: EmbeddedBroker) -> None:
    names = ["żółw 🐢", "ключ", "a b", "日本"]
    rows = {name: fill(broker, name, make_records(3)) for name in names}
    engine = Engine(broker, topic=",".join(names), startingOffsets="earliest")
    engine.drain()
    assert by_place(engine.rows) == expect(*(rows[name] for name in sorted(names)))
    more = fill(broker, names[0], make_records(1))
    assert engine.restart().drain() == expect(more)


def test_a_topic_that_is_deleted_and_comes_again_and_again(
    server: EmbeddedBroker,
) -> None:
    fill(server, "a", make_records(3))
    engine = start(server, failOnDataLoss="false")
    engine.drain()
    for _ in range(3):
        delete(server, "a")
        assert engine.drain() == []
        rows = fill(server, "a", make_records(3))
        assert engine.drain() == expect(rows)


# Offsets.


def test_the_same_offset_is_the_same_text(server: EmbeddedBroker) -> None:
    for name in ("b", "a"):
        fill(server, name, make_records(3))
    engine = start(server)
    engine.drain()
    [text] = engine.offsets
    for process in range(2):
        limit = engine.reader.getDefaultReadLimit()
        found = engine.reader.latestOffset(json.loads(text), limit)
        assert json.dumps(found) == text, process
        engine.restart()


def test_offsets_never_go_back(server: EmbeddedBroker) -> None:
    engine = start(server, maxBytesPerTrigger=100)
    chance = random.Random(5)
    for _ in range(5):
        for name in chance.sample(TOPICS, 4):
            fill(server, name, make_records(chance.randrange(5)))
        for _ in range(chance.randrange(4)):
            engine.step()
        if chance.random() < 0.5:
            engine.restart()
    engine.drain()
    assert all(size >= 0 for sizes in engine.sizes() for size in sizes.values())
    for name in engine.offset.topics:
        assert engine.at(name[0]) == log_of(server, name[0])[1]


@pytest.mark.parametrize("document", [{}, {"version": 2, "topics": {}}, {"a": 5}])
def test_a_checkpoint_that_is_not_ours(
    broker: EmbeddedBroker, document: dict[str, Any]
) -> None:
    reader = start(broker).reader
    with pytest.raises(CheckpointError):
        reader.latestOffset(document, reader.getDefaultReadLimit())
    with pytest.raises(CheckpointError):
        reader.partitions(document, document)


def test_what_a_topic_is_called_no_more_matters_not(server: EmbeddedBroker) -> None:
    """The checkpoint may have more than the reader asks for in this process."""
    rows = fill(server, "a", make_records(3))
    engine = start(server)
    engine.drain()
    document = json.loads(engine.offsets[-1])
    document["topics"]["a"]["more"] = {"from": "a newer release"}
    engine.offsets[-1] = json.dumps(document)
    more = fill(server, "a", make_records(2))
    assert engine.restart().drain() == expect(more)
    assert engine.rows == expect(rows, more)


# Bounds. Every batch is checked, from what the checkpoint says.


def fill_ten(broker: EmbeddedBroker, seed: int = 7) -> list[dict[str, Any]]:
    """Fill ten topics with backlogs and records of different sizes."""
    chance = random.Random(seed)
    rows = []
    for number, name in enumerate(TOPICS):
        records = [
            Record(1, b"%04d" % index + b"x" * chance.randrange(60))
            for index in range(3 + 3 * number)
        ]
        rows += fill(broker, name, records)
    return rows


LIMITS = [
    {"maxBytesPerTrigger": 1100},
    {"maxRecordsPerTrigger": 31},
    {"maxBytesPerTrigger": 1100, "maxRecordsPerTrigger": 20},
    {"maxBytesPerTrigger": 900, "maxRecordsPerTrigger": 50},
]


def check_limits(engine: Engine, limits: dict[str, int]) -> None:
    """Check that no batch has more than it may, to the byte and to the record."""
    for rows in engine.batches:
        size = sum(len(row["value"]) + 5 for row in rows)
        assert size <= limits.get("maxBytesPerTrigger", size)
        assert len(rows) <= limits.get("maxRecordsPerTrigger", len(rows))
    for rows, sizes in zip(engine.batches[1:], engine.sizes(), strict=True):
        # What the checkpoint says is what was read.
        assert sum(sizes.values()) == sum(len(row["value"]) + 5 for row in rows)


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_limits_over_ten_topics(server: EmbeddedBroker, limits: dict[str, int]) -> None:
    rows = fill_ten(server)
    engine = start(server, **limits)
    engine.drain()
    assert by_place(engine.rows) == expect(rows)
    check_limits(engine, limits)
    # And they are used: not more batches than half of their room would make.
    size = sum(len(row["value"]) + 5 for row in rows)
    least = max(
        size // limits.get("maxBytesPerTrigger", size),
        len(rows) // limits.get("maxRecordsPerTrigger", len(rows)),
    )
    assert len(engine.batches) <= 2 * least + 2


def test_every_batch_has_something_of_every_topic(server: EmbeddedBroker) -> None:
    """Topics with much do not starve those with little."""
    for number, name in enumerate(TOPICS):
        fill(server, name, make_records(100 if number == 3 else 10))
    engine = start(server, maxBytesPerTrigger=20 * SIZE)
    engine.step()
    assert {row["topic"] for row in engine.rows} == set(TOPICS)


def test_a_record_that_is_larger_than_the_limit(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", [Record(1, b"x" * 500), Record(1, b"y"), Record(1, b"z")])
    engine = start(server, maxBytesPerTrigger=50)
    engine.drain()
    assert [len(batch) for batch in engine.batches] == [1, 2]
    assert engine.rows == expect(rows)


def test_topics_whose_backlog_comes_and_goes_take_turns(
    server: EmbeddedBroker,
) -> None:
    """Records that are each over the limit, so that one topic moves in each batch."""
    for name in ("a", "c"):
        fill(server, name, [Record(1, b"x" * 100)] * 12)
    fill(server, "b")
    engine = start(server, maxBytesPerTrigger=50)
    for number in range(12):
        if number % 2:
            fill(server, "b", [Record(1, b"x" * 100)])
        assert engine.step()
    topics = [row["topic"] for row in engine.rows]
    assert min(topics.count(name) for name in "abc") >= 3


def test_topics_without_a_backlog_take_turns_too(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were they left out, a topic could be passed over for ever."""
    for name in "abc":
        fill(server, name, make_records(2))
    engine = start(server)
    engine.drain()
    asked, admit = [], batch_end.admit

    def note(backlogs: Any, *given: Any, turn: int) -> Any:
        asked.append((turn, [backlog.partition.topic for backlog in backlogs]))
        return admit(backlogs, *given, turn=turn)

    monkeypatch.setattr(batch_end, "admit", note)
    fill(server, "b", make_records(1))
    assert engine.step()
    assert not engine.step()
    fill(server, "c", make_records(1))
    assert engine.step()
    assert [topics for _, topics in asked] == [["a", "b", "c"]] * 3
    # A turn is a batch, and not a look.
    first, _, second = (turn for turn, _ in asked)
    assert second == first + 1


def test_no_limit(broker: EmbeddedBroker) -> None:
    rows = fill_ten(broker)
    engine = start(broker)
    engine.step()
    assert by_place(engine.rows) == expect(rows)


def test_a_plain_server_has_a_limit_always(
    plain_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = replace(PlainDriver.traits, batch_units_max=100)
    monkeypatch.setattr(PlainDriver, "traits", limit)
    rows = fill(plain_broker, "a", make_records(10))
    engine = start(plain_broker)
    engine.drain()
    assert [len(batch) for batch in engine.batches] == [4, 4, 2]
    assert engine.rows == expect(rows)


def test_a_limit_of_records_is_enough_for_a_plain_server(
    plain_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = replace(PlainDriver.traits, batch_units_max=100)
    monkeypatch.setattr(PlainDriver, "traits", limit)
    fill(plain_broker, "a", make_records(10))
    engine = start(plain_broker, maxRecordsPerTrigger=7)
    engine.drain()
    assert [len(batch) for batch in engine.batches] == [7, 3]


# What is not whole, or no record at all.


def test_a_record_that_is_not_whole_is_not_there_yet(
    plain_broker: EmbeddedBroker,
) -> None:
    rows = fill(plain_broker, "a", make_records(2))
    data = make_payload(make_records(3))
    append_bytes(plain_broker, "a", data[:10])
    engine = start(plain_broker)
    assert engine.drain() == expect(rows)
    assert engine.at("a") == 2 * SIZE
    append_bytes(plain_broker, "a", data[10:30])
    assert len(engine.drain()) == 1
    append_bytes(plain_broker, "a", data[30:])
    assert len(engine.drain()) == 2
    assert values(engine.rows) == values(rows) + [r.value for r in make_records(3)]


def test_a_log_that_is_but_a_piece_of_a_record(plain_broker: EmbeddedBroker) -> None:
    append_bytes(plain_broker, "a", b"\x01\x10")
    engine = start(plain_broker)
    assert engine.drain() == []
    assert engine.drain() == []


def test_bytes_that_are_no_record(plain_broker: EmbeddedBroker) -> None:
    rows = fill(plain_broker, "a", make_records(2))
    append_bytes(plain_broker, "a", b"\xff" * 40)
    engine = start(plain_broker)
    engine.step()
    assert engine.rows == expect(rows)
    with pytest.raises(RecordError) as told:
        engine.step()
    text = str(told.value)
    assert "malformed record at byte 50" in text and "topic 'a'" in text
    assert "start a new query behind it, with startingOffsets" in text


# AvailableNow.


@pytest.mark.parametrize("limits", [{}, *LIMITS[1:3]], ids=str)
def test_available_now_ends_where_the_topics_ended(
    server: EmbeddedBroker, limits: dict[str, int]
) -> None:
    rows = fill_ten(server)
    engine = start(server, available_now=True, **limits)
    for name in TOPICS:
        fill(server, name, make_records(2))
    fill(server, "t-new", make_records(2))
    engine.drain()
    assert by_place(engine.rows) == expect(rows)
    check_limits(engine, limits)
    # The rest is for the next run.
    engine.restart(available_now=True)
    assert len(engine.drain()) == 22


def test_available_now_goes_on_in_another_process(server: EmbeddedBroker) -> None:
    rows = fill_ten(server)
    engine = start(server, available_now=True, maxBytesPerTrigger=900)
    engine.step()
    engine.step()
    engine.step(crash=True)
    rows += fill(server, TOPICS[0], [Record(1, b"later")] * 5)
    engine.restart(available_now=True)
    fill(server, TOPICS[0], make_records(3))
    engine.drain()
    assert by_place(engine.rows) == by_place(expect(rows))
    check_limits(engine, {"maxBytesPerTrigger": 900})


def test_available_now_with_the_pin(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(3))
    engine = Engine(server, topic="a", available_now=True)
    rows = fill(server, "a", make_records(2))
    # The start is resolved behind the end.
    assert engine.drain() == []
    engine.restart(available_now=True)
    assert engine.drain() == []
    more = fill(server, "a", make_records(1))
    engine.restart(available_now=True)
    assert engine.drain() == expect(more)
    assert rows


def test_available_now_with_nothing_there(server: EmbeddedBroker) -> None:
    engine = start(server, available_now=True)
    fill(server, "a", make_records(3))
    assert engine.drain() == []


def test_available_now_when_the_end_is_gone() -> None:
    with run_broker("lwp", segment_bytes=1000) as broker:
        fill(broker, "a", make_records(100), batch_bytes=250)
        engine = start(
            broker,
            available_now=True,
            maxBytesPerTrigger=500,
            failOnDataLoss="false",
        )
        engine.step()
        fill(broker, "a", make_records(200), batch_bytes=250)
        drop_old(broker, "a", 1500)
        log_start, _ = log_of(broker, "a")
        assert log_start > 100 * SIZE
        assert engine.drain() == []
        rows_left = (log_of(broker, "a")[1] - log_start) // SIZE
        engine.restart(available_now=True)
        assert len(engine.drain()) == rows_left


def test_available_now_when_a_topic_is_another_one(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(10))
    engine = start(
        server,
        available_now=True,
        maxRecordsPerTrigger=4,
        failOnDataLoss="false",
    )
    engine.step()
    recreate(server, "a", make_records(6))
    assert engine.drain() == []
    engine.restart(available_now=True)
    assert len(engine.drain()) == 6


def test_available_now_with_a_record_that_is_not_whole(
    plain_broker: EmbeddedBroker,
) -> None:
    rows = fill(plain_broker, "a", make_records(2))
    data = make_payload(make_records(1))
    append_bytes(plain_broker, "a", data[:10])
    engine = start(plain_broker, available_now=True)
    append_bytes(plain_broker, "a", data[10:])
    assert engine.drain() == expect(rows)
    assert engine.at("a") == 2 * SIZE


# What is reported.


def report(engine: Engine, topic: str = "a") -> dict[str, Any]:
    found = engine.reader.reportLatestOffset()
    assert found is not None
    numbers: dict[str, Any] = found["topics"][topic]
    return numbers


def test_what_is_reported(broker: EmbeddedBroker) -> None:
    with connect(broker) as client:
        client.create_topic("a", retention=Retention(3600, 10_000))
    fill(broker, "a", make_records(10))
    engine = start(broker, maxRecordsPerTrigger=4)
    engine.step()
    found = report(engine)
    assert found["partitions"] == {"0": 10 * SIZE}
    assert found["bytesBehind"] == 6 * SIZE
    assert found["recordsBehind"] == 6
    assert found["retentionHeadroomBytes"] == 10_000 - 6 * SIZE
    assert 0 <= found["oldestUnreadMs"] < 3_600_000
    assert found["retentionHeadroomMs"] == 3_600_000 - found["oldestUnreadMs"]
    engine.drain()
    found = report(engine)
    assert (found["bytesBehind"], found["recordsBehind"]) == (0, 0)
    assert found["oldestUnreadMs"] is None
    assert found["retentionHeadroomMs"] == 3_600_000
    assert found["bytesLost"] == 0


def test_what_a_plain_server_does_not_say(plain_broker: EmbeddedBroker) -> None:
    fill(plain_broker, "a", make_records(10))
    engine = start(plain_broker, maxRecordsPerTrigger=4)
    engine.step()
    found = report(engine)
    assert found["bytesBehind"] == 6 * SIZE
    for name in ("recordsBehind", "oldestUnreadMs", "retentionHeadroomMs"):
        assert found[name] is None


def test_a_report_asks_nobody(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, "a", make_records(10))
    engine = start(server)
    # There is none yet, which is fine.
    assert engine.reader.reportLatestOffset() is None
    engine.drain()
    requests = Requests(monkeypatch)
    for _ in range(10):
        report(engine)
    assert requests.count == 0


def test_topics_for_the_next_run_are_reported(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(3))
    engine = start(server, available_now=True)
    fill(server, "b", make_records(2))
    engine.drain()
    assert report(engine, "b")["bytesBehind"] == 2 * SIZE
