"""The reader of a stream as Spark uses it: planned here, pickled, read elsewhere."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.link import Dialer
from lance_spark.client.lwp.driver import PLAIN_BATCH_BYTES
from lance_spark.errors import ConnectionLost, LanceError, Timeout
from lance_spark.spark.pool import clear_pool
from tests.spark.reading import (
    DIALECTS,
    EVERY_COLUMN,
    EVERY_TYPE,
    Fetches,
    fill,
    make_records,
    make_schema,
    pick,
    run_broker,
)
from tests.spark.streaming import Engine, by_place, expect

SIZE = 25


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


@pytest.fixture(params=DIALECTS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with run_broker(request.param) as broker:
        yield broker


# Rows.


def test_every_type_and_column(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", EVERY_TYPE)
    engine = Engine(server, topic="a", startingOffsets="earliest", schema=EVERY_COLUMN)
    engine.drain()
    assert engine.rows == pick(rows, *EVERY_COLUMN.names)


def test_the_columns_that_are_wanted(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", make_records(3))
    schema = make_schema("offset long, value binary")
    engine = Engine(server, topic="a", startingOffsets="earliest", schema=schema)
    engine.drain()
    assert engine.rows == pick(rows, "offset", "value")


def test_all_splits_together_have_every_record_once(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", make_records(400, 50))
    rows += fill(server, "b", make_records(100, 90))
    engine = Engine(
        server,
        topic="a,b",
        startingOffsets="earliest",
        maxPartitionBytes=2000,
        maxBytesPerTrigger=11_000,
    )
    engine.drain()
    assert len(engine.batches) > 2
    assert by_place(engine.rows) == expect(rows)


def test_a_batch_that_is_read_again_has_the_same_rows(server: EmbeddedBroker) -> None:
    fill(server, "a", make_records(10))
    engine = Engine(server, topic="a", startingOffsets="earliest")
    engine.drain()
    fill(server, "a", make_records(5))
    engine.step()
    [_, rows] = engine.batches
    fill(server, "a", make_records(7))
    for _ in range(2):
        # The log of batches that are done has lost its newest file.
        engine.done = 1
        engine.restart().step()
        assert engine.batches[1] == rows


# What travels, and what does not.


def test_a_reader_travels_after_it_was_used(broker: EmbeddedBroker) -> None:
    rows = fill(broker, "a", make_records(3))
    engine = Engine(
        broker, topic="a", startingOffsets="earliest", consumerGroup="readers"
    )
    engine.drain()
    copy = pickle.loads(pickle.dumps(engine.reader))
    assert copy._planner is None and copy._group is None
    start = copy.initialOffset()
    end = copy.latestOffset(start, copy.getDefaultReadLimit())
    batches = [copy.read(part) for part in copy.partitions(start, end)]
    assert expect(row for b in batches for one in b for row in one.to_pylist()) == (
        expect(rows)
    )
    copy.stop()
    engine.reader.stop()


def test_a_reader_that_was_not_asked_for_anything_opens_nothing(
    broker: EmbeddedBroker,
) -> None:
    engine = Engine(broker, topic="a")
    pickle.dumps(engine.reader)
    engine.reader.stop()
    assert broker.metrics.snapshot().connections_opened == 0


def test_stop_lets_go_of_everything_and_may_come_twice(broker: EmbeddedBroker) -> None:
    fill(broker, "a", make_records(3))
    engine = Engine(
        broker, topic="a", startingOffsets="earliest", consumerGroup="readers"
    )
    engine.drain()
    engine.reader.stop()
    engine.reader.stop()
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("lance-group") for name in names)


def test_two_sources_of_one_query(server: EmbeddedBroker) -> None:
    """A self-join has two readers of one topic, each with its own offsets."""
    rows = fill(server, "a", make_records(10))
    one = Engine(server, topic="a", startingOffsets="earliest", maxRecordsPerTrigger=3)
    two = Engine(server, topic="a", startingOffsets="earliest", maxRecordsPerTrigger=4)
    while any([one.step(), two.step()]):
        pass
    assert one.rows == two.rows == expect(rows)


# Bounds as Spark sees them.


@pytest.mark.parametrize(
    ("dialect", "given", "expected"),
    [
        ("lwp", {}, ReadAllAvailable()),
        ("plain", {}, ReadMaxBytes(PLAIN_BATCH_BYTES)),
        ("lwp", {"maxBytesPerTrigger": "1k"}, ReadMaxBytes(1024)),
        ("plain", {"maxRecordsPerTrigger": "7"}, ReadMaxRows(7)),
    ],
)
def test_the_limit_that_spark_is_told(
    dialect: str, given: dict[str, str], expected: ReadLimit
) -> None:
    with run_broker(dialect) as broker:
        reader = Engine(broker, topic="a", **given).reader
        found = reader.getDefaultReadLimit()
        assert (type(found), vars(found)) == (type(expected), vars(expected))


def test_a_trigger_that_wants_everything_gets_it(server: EmbeddedBroker) -> None:
    """`Trigger.Once` does not regard limits."""
    fill(server, "a", make_records(10))
    reader = Engine(
        server, topic="a", startingOffsets="earliest", maxRecordsPerTrigger=3
    ).reader
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["topics"]["a"]["partitions"] == {"0": 10 * SIZE}


# A broker that is away.


def fail_after(engine: Engine, broker: EmbeddedBroker) -> None:
    """Check that a process fails with the cause; leave one that is more patient."""
    engine.restart(retryTimeout="50ms")
    broker.stop()
    with pytest.raises((ConnectionLost, Timeout)) as told:
        engine.step()
    text = str(told.value)
    assert broker.address in text and "gave up after" in text
    broker.start()
    engine.restart(retryTimeout="1m")


def test_a_broker_that_stays_away(server: EmbeddedBroker) -> None:
    rows = fill(server, "a", make_records(10))
    engine = Engine(
        server,
        topic="a",
        startingOffsets="earliest",
        maxRecordsPerTrigger=4,
    )
    fail_after(engine, server)
    engine.step()
    fail_after(engine, server)
    engine.step(crash=True)
    fail_after(engine, server)
    engine.drain()
    assert engine.rows == expect(rows)


def come_back(broker: EmbeddedBroker, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have a broker that is stopped start again when it was called in vain."""
    dial = Dialer.dial

    def dial_and_start(dialer: Dialer, *given: Any) -> Any:
        try:
            return dial(dialer, *given)
        except LanceError:
            if not broker.is_running:
                broker.start()
            raise

    patch.setattr(Dialer, "dial", dial_and_start)
    return broker.stop


def test_a_broker_that_comes_back_in_time(
    server: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(server, "a", make_records(10))
    engine = Engine(
        server, topic="a", startingOffsets="earliest", maxRecordsPerTrigger=4
    )
    stop = come_back(server, monkeypatch)
    while True:
        stop()
        if not engine.step():
            break
    assert engine.rows == expect(rows)
    assert [len(batch) for batch in engine.batches] == [4, 4, 2]


def test_a_broker_that_goes_while_a_task_reads(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = fill(broker, "a", make_records(3000, 60), batch_bytes=5000)
    engine = Engine(broker, topic="a", startingOffsets="earliest", fetchBytes="16k")
    fetches = Fetches(broker, monkeypatch)
    come_back(broker, monkeypatch)
    gone = threading.Event()

    def go() -> None:
        # Not in the broker's own thread, which it would wait for.
        threading.Thread(target=lambda: (broker.stop(), gone.set())).start()

    fetches.after(40_000, go)
    engine.drain()
    assert gone.is_set()
    assert engine.rows == expect(rows)


# A server that is of another kind than the one that the checkpoint is from.


@pytest.mark.parametrize(("first", "second"), [DIALECTS, DIALECTS[::-1]])
def test_another_kind_of_server(tmp_path: Path, first: str, second: str) -> None:
    def run(dialect: str) -> EmbeddedBroker:
        return EmbeddedBroker(fsync="none", data_dir=str(tmp_path), dialect=dialect)

    with run(first) as broker:
        rows = fill(broker, "a", make_records(10))
        engine = Engine(broker, topic="a", startingOffsets="earliest")
        engine.drain()
        rows += fill(broker, "a", make_records(3))
        engine.step(crash=True)
    with run(second) as broker:
        engine.restart(broker=broker)
        rows += fill(broker, "a", make_records(4))
        engine.drain()
        assert not engine.step()
    with run(first) as broker:
        rows += fill(broker, "a", make_records(2))
        engine.restart(broker=broker).drain()
    assert engine.rows == expect(rows)


def test_the_offset_in_the_checkpoint_is_what_the_docs_show(
    broker: EmbeddedBroker,
) -> None:
    fill(broker, "events", make_records(4))
    engine = Engine(broker, topic="events", startingOffsets="earliest")
    engine.drain()
    document = json.loads(engine.offsets[-1])
    epoch = document["topics"]["events"].pop("epoch")
    assert epoch > 1_700_000_000
    assert document == {
        "version": 1,
        "topics": {"events": {"id": 1, "partitions": {"0": 100}}},
    }
