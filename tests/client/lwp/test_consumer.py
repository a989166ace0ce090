"""Consumers: polling, iterating, committing; against a fake and a real broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.consumer import CommitClock, Consumer
from lance_spark.client.lwp.cursor import ConsumerRecord, SeekPosition
from lance_spark.client.lwp.offsets import (
    LockFileOffsetStore,
    MemoryOffsetStore,
    consumer_id,
)
from lance_spark.client.lwp.writer import Producer, StageWriter
from lance_spark.errors import (
    ConnectionLost,
    DataLoss,
    LanceError,
    OffsetsShifted,
    OptionError,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Retention
from tests.client.kit_flow import PATIENCE_S, FakeLog, record

DATA = b"".join(record(f"{number:05}") for number in range(20))


def _consumer(log: FakeLog, **options: Any) -> Consumer:
    client: Any = log
    return Consumer(client, "events", **options)


def _values(records: Iterator[ConsumerRecord]) -> list[int]:
    return [int(r.value) for r in records if r.value is not None]


# Polling.


def test_poll_until_there_is_nothing() -> None:
    log = FakeLog(DATA, whole=True)
    with _consumer(log, max_poll_records=15) as consumer:
        first, second = consumer.poll(), consumer.poll()
        assert first is not None
        assert second is not None
        assert (len(first), len(second)) == (15, 5)
        assert consumer.current_offset == consumer.position == 200
        assert consumer.poll() is None
        log.append(record("00020"))
        third = consumer.poll()
        assert third is not None
        assert third.start_offset == 200


def test_poll_blocking_gives_an_empty_result() -> None:
    with _consumer(FakeLog(DATA, whole=True)) as consumer:
        assert len(consumer.poll_blocking(0.0)) == 20
        result = consumer.poll_blocking(0.0)
    assert result.is_empty
    assert (result.topic, result.current_offset) == ("events", 200)


def test_starts() -> None:
    log: Any = FakeLog(DATA, whole=True)
    assert Consumer.from_beginning(log, "events").current_offset == 0
    assert Consumer.from_end(log, "events").current_offset == 200
    assert Consumer.from_offset(log, "events", 70).current_offset == 70
    assert Consumer(log, 7, start=SeekPosition.END).current_offset == 200
    assert Consumer(log, "events", offset_reset="latest").current_offset == 200


def test_the_end_is_that_of_the_moment_it_was_made() -> None:
    log: Any = FakeLog(DATA, whole=True)
    consumer = Consumer.from_end(log, "events")
    log.append(record("00020"))
    assert _values(iter(consumer)) == [20]


def test_seeks() -> None:
    log = FakeLog(DATA, whole=True)
    consumer = _consumer(log)
    assert consumer.seek_to_end() == consumer.current_offset == 200
    assert consumer.rewind() == 0
    assert consumer.seek(30) == 30
    assert consumer.seek(SeekPosition.offset(40)) == 40
    assert consumer.seek_to_offset(50) == 50
    assert consumer.seek_to_time(60) == 60
    assert _values(iter(consumer))[0] == 6
    assert consumer.lag() == 0
    consumer.rewind()
    assert consumer.lag() == 200
    with pytest.raises(OptionError):
        consumer.seek(-1)
    assert consumer.current_offset == 0


def test_there_is_no_such_topic() -> None:
    log: Any = FakeLog()
    with pytest.raises(TopicNotFound):
        Consumer(log, "nothing")
    assert log.is_closed, "the connection of its own is given back"


def test_closed() -> None:
    log = FakeLog(DATA)
    consumer = _consumer(log)
    consumer.close()
    consumer.close()
    assert log.is_closed
    with pytest.raises(LanceError, match="closed"):
        consumer.poll()
    assert "'events' at 0" in repr(consumer)


# Iterating.


def test_iteration_ends_at_the_end() -> None:
    log = FakeLog(DATA, whole=True)
    consumer = _consumer(log, max_poll_records=3)
    assert _values(iter(consumer)) == [*range(20)]
    assert _values(iter(consumer)) == []
    log.append(record("00020"))
    assert _values(iter(consumer)) == [20]


def test_iteration_that_is_left_has_consumed_what_it_gave() -> None:
    consumer = _consumer(FakeLog(DATA, whole=True), max_poll_records=6)
    for found in consumer:
        if found.value == b"00008":
            break
    assert consumer.current_offset == 90
    assert _values(iter(consumer)) == [*range(9, 20)]


def test_offset_during_an_iteration_is_behind_the_record_given() -> None:
    consumer = _consumer(FakeLog(DATA, whole=True))
    for found in consumer:
        assert consumer.current_offset == found.next_offset


def test_seek_during_an_iteration() -> None:
    consumer = _consumer(FakeLog(DATA, whole=True))
    seen = []
    for found in consumer:
        seen.append(int(found.value or b""))
        if found.value == b"00003":
            consumer.seek(170)
    assert seen == [0, 1, 2, 3, 17, 18, 19]


def test_poll_during_an_iteration_takes_over() -> None:
    consumer = _consumer(FakeLog(DATA, whole=True))
    iterator = iter(consumer)
    assert [next(iterator).value, next(iterator).value] == [b"00000", b"00001"]
    result = consumer.poll()
    assert result is not None
    assert (result.start_offset, len(result)) == (20, 18)
    assert next(iterator, None) is None


def test_batches() -> None:
    consumer = _consumer(FakeLog(DATA, whole=True), max_poll_records=12)
    batches = list(consumer.batches(["offset", "value"]))
    assert [batch.num_rows for batch in batches] == [12, 8]
    assert batches[1].column("offset")[0].as_py() == 120


# Offsets.


def test_resumes_where_it_was() -> None:
    log = FakeLog(DATA, whole=True)
    store = MemoryOffsetStore()
    with _consumer(log, name="me", offset_store=store, max_poll_records=5) as consumer:
        assert consumer.committed_offset is None
        consumer.poll()
        assert consumer.commit() == 50
        assert consumer.committed_offset == 50
        consumer.poll()
    # What was not committed comes again, also if a start is given.
    end = SeekPosition.END
    with _consumer(log, name="me", offset_store=store, start=end) as consumer:
        assert consumer.current_offset == 50
    with _consumer(log, name="you", offset_store=store, start=end) as consumer:
        assert consumer.current_offset == 200


def test_commits_to_the_broker_by_default() -> None:
    log = FakeLog(DATA, whole=True)
    with _consumer(log, name="me") as consumer:
        consumer.poll()
        consumer.commit()
    assert log.committed == {(7, consumer_id("me")): 200}
    with _consumer(log, name="me") as consumer:
        assert consumer.current_offset == 200


def test_commit_in_an_iteration() -> None:
    log = FakeLog(DATA, whole=True)
    store = MemoryOffsetStore()
    consumer = _consumer(log, name="me", offset_store=store)
    for found in consumer:
        if found.value == b"00004":
            consumer.commit()
            break
    assert store.load("me", "events") == 50


def test_nothing_is_committed_twice() -> None:
    saved: list[int] = []

    class Store(MemoryOffsetStore):
        def save(self, consumer: str, topic: int | str, offset: int) -> None:
            saved.append(offset)

    consumer = _consumer(FakeLog(DATA), name="me", offset_store=Store())
    consumer.poll()
    consumer.commit()
    consumer.commit()
    consumer.rewind()
    consumer.commit()
    assert saved == [200, 0]


@pytest.mark.parametrize(
    "options", [{"offset_store": MemoryOffsetStore()}, {"auto_commit": True}]
)
def test_a_name_is_needed(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="name"):
        _consumer(FakeLog(), **options)


def test_commit_without_a_name() -> None:
    with pytest.raises(OptionError, match="without a name"):
        _consumer(FakeLog()).commit()


def test_no_offset_and_nothing_to_fall_back_on() -> None:
    store = MemoryOffsetStore()
    log = FakeLog(DATA)
    with pytest.raises(OptionError, match="offset_reset"):
        _consumer(log, name="me", offset_store=store, offset_reset="error")
    store.save("me", "events", 30)
    log.is_closed = False
    consumer = _consumer(log, name="me", offset_store=store, offset_reset="error")
    assert consumer.current_offset == 30


# Topics that are created anew.


def _commit_and_recreate(log: FakeLog, store: Any) -> None:
    """Commit 50 of a topic, and put another one of the same name in its place."""
    with _consumer(log, name="me", offset_store=store, max_poll_records=5) as consumer:
        consumer.poll()
        consumer.commit()
    log.topic_ids = {"events": 8}


@pytest.mark.parametrize("change", ["id", "time"])
def test_an_offset_of_another_topic_is_lost_data(change: str) -> None:
    log, store = FakeLog(DATA, whole=True), MemoryOffsetStore()
    _commit_and_recreate(log, store)
    if change == "time":
        # A server that was set up anew counts its topics from the start.
        log.topic_ids = {"events": 7}
        log.created_at_s += 1
    with _consumer(log, name="me", offset_store=store) as consumer:
        with pytest.raises(DataLoss, match="created anew"):
            consumer.poll()
        # Nothing is changed before somebody has decided.
        assert consumer.commit() == consumer.committed_offset == 50
    with (
        _consumer(log, name="me", offset_store=store) as consumer,
        pytest.raises(DataLoss, match="created anew"),
    ):
        consumer.poll()


def test_an_offset_of_another_topic_may_be_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, store = FakeLog(DATA, whole=True), MemoryOffsetStore()
    _commit_and_recreate(log, store)
    options = {"name": "me", "offset_store": store, "max_poll_records": 5}
    with _consumer(log, fail_on_data_loss=False, **options) as consumer:
        assert "created anew" in caplog.text
        result = consumer.poll()
        assert result is not None
        assert _values(result.records()) == [0, 1, 2, 3, 4]
        # The same number as before, but it is another topic's.
        assert consumer.commit() == 50
    with _consumer(log, **options) as consumer:
        assert consumer.current_offset == 50
        assert consumer.poll() is not None


def test_a_consumer_that_passed_over_a_loss_commits_for_the_new_topic() -> None:
    log, store = FakeLog(DATA, whole=True), MemoryOffsetStore()
    options = {"name": "me", "offset_store": store}
    with _consumer(log, fail_on_data_loss=False, **options) as consumer:
        consumer.poll()
        log.topic_ids = {"events": 8}
        assert len(consumer.poll_blocking(0.0)) == 20
        consumer.commit()
    with _consumer(log, **options) as consumer:
        assert consumer.poll() is None


def test_a_mere_number_is_taken_for_the_topic_that_is_there() -> None:
    log, store = FakeLog(DATA, whole=True), MemoryOffsetStore()
    store.save("me", "events", 50)
    with _consumer(log, name="me", offset_store=store) as consumer:
        result = consumer.poll()
        assert result is not None
        assert result.start_offset == 50


def test_a_topic_that_is_not_described_is_known_by_its_id() -> None:
    class Log(FakeLog):
        def topic(self, topic: int | str) -> Any:
            raise TopicNotFound("Topic 0 not found")

    log, store = Log(DATA), MemoryOffsetStore()
    for expected in (20, 0):
        with _consumer(log, name="me", offset_store=store) as consumer:
            assert len(consumer.poll_blocking(0.0)) == expected
            consumer.commit()


def test_commits_of_a_topic_that_is_gone_are_not_made_for_the_next() -> None:
    log = FakeLog(DATA, whole=True)
    with _consumer(log, name="me") as consumer:
        consumer.poll()
        log.topic_ids = {"events": 8}
        consumer.commit()
    assert (8, consumer_id("me")) not in log.committed


# Automatic commits.


def _auto(log: FakeLog, store: Any, now_s: list[float]) -> Consumer:
    return _consumer(
        log,
        name="me",
        offset_store=store,
        auto_commit=True,
        auto_commit_interval_s=5.0,
        max_poll_records=5,
        clock=lambda: now_s[0],
    )


def test_auto_commit_is_of_what_was_done_before_the_poll() -> None:
    store, now_s = MemoryOffsetStore(), [0.0]
    with _auto(FakeLog(DATA, whole=True), store, now_s) as consumer:
        consumer.poll()
        assert store.load("me", "events") is None
        now_s[0] = 4.9
        consumer.poll()
        assert store.load("me", "events") is None
        now_s[0] = 5.0
        consumer.poll()
        assert store.load("me", "events") == 100
    assert store.load("me", "events") == 150, "the rest at close"


def test_auto_commit_is_not_made_for_work_that_failed() -> None:
    store = MemoryOffsetStore()
    with (
        pytest.raises(KeyError),
        _auto(FakeLog(DATA, whole=True), store, [0.0]) as consumer,
    ):
        consumer.poll()
        raise KeyError("work")
    assert store.load("me", "events") is None


def test_auto_commit_that_fails_is_told_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Store(MemoryOffsetStore):
        is_down = True

        def save(self, consumer: str, topic: int | str, offset: int) -> None:
            if self.is_down:
                raise ConnectionLost("down")
            super().save(consumer, topic, offset)

    store, now_s = Store(), [0.0]
    consumer = _auto(FakeLog(DATA, whole=True), store, now_s)
    consumer.poll()
    now_s[0] = 5.0
    assert consumer.poll() is not None
    assert "could not commit: down" in caplog.text
    store.is_down = False
    now_s[0] = 10.0
    consumer.poll()
    assert store.load("me", "events") == 100
    store.is_down = True
    with pytest.raises(ConnectionLost):
        consumer.close()


# Against a broker.


@pytest.fixture(scope="module", params=["lwp", "plain"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(dialect=request.param) as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[LanceClient]:
    with LanceClient(broker.address, checksum="auto") as client:
        yield client


def _is_plain(broker: EmbeddedBroker) -> bool:
    return broker.config.dialect == "plain"


def _fill(client: LanceClient, topic: str, count: int, size: int = 0) -> None:
    with Producer(client, topic, create_topic=True, batch_bytes=3000) as producer:
        for number in range(count):
            producer.send(b"%05d" % number + bytes(size))


@pytest.mark.parametrize("fetch_bytes", [1, 100, 4096, 1024 * 1024])
def test_reads_what_was_produced(client: LanceClient, fetch_bytes: int) -> None:
    topic = f"read-{fetch_bytes}"
    _fill(client, topic, 300)
    with Consumer(client, topic, fetch_bytes=fetch_bytes) as consumer:
        assert _values(iter(consumer)) == [*range(300)]
        assert consumer.lag() == 0


def test_waits_for_what_comes(client: LanceClient) -> None:
    _fill(client, "wait", 1)
    with Consumer.from_end(client, "wait") as consumer:
        sender = threading.Thread(target=_fill, args=(client, "wait", 2))
        sender.start()
        found = list(consumer.poll_blocking(PATIENCE_S))
        sender.join(PATIENCE_S)
    assert found[0].value == b"00000"


def test_remembers_on_the_broker(client: LanceClient) -> None:
    _fill(client, "remember", 10)
    for expected in ([0, 1, 2], [3, 4, 5]):
        with Consumer(
            client, "remember", name="group", auto_commit=True, max_poll_records=3
        ) as consumer:
            result = consumer.poll()
            assert result is not None
            assert _values(result.records()) == expected


def test_remembers_in_files(client: LanceClient, tmp_path: Path) -> None:
    _fill(client, "files", 10)
    for expected in ([0, 1, 2, 3], [4, 5, 6, 7]):
        with (
            LockFileOffsetStore(tmp_path) as store,
            Consumer(
                client, "files", name="me", offset_store=store, max_poll_records=4
            ) as consumer,
        ):
            assert _values(consumer.poll_blocking().records()) == expected
            consumer.commit()


def test_files_tell_a_topic_that_is_created_anew(
    client: LanceClient, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"name": "me", "max_poll_records": 10}
    with LockFileOffsetStore(tmp_path) as store:
        options["offset_store"] = store
        _fill(client, "anew", 10)
        with Consumer(client, "anew", **options) as consumer:
            list(consumer)
            consumer.commit()
        client.delete_topic("anew")
        _fill(client, "anew", 15)
        with (
            Consumer(client, "anew", **options) as consumer,
            pytest.raises(DataLoss, match="created anew"),
        ):
            consumer.poll()
        with Consumer(client, "anew", fail_on_data_loss=False, **options) as consumer:
            assert _values(iter(consumer)) == [*range(15)]


def test_starts_inside_a_record(client: LanceClient, broker: EmbeddedBroker) -> None:
    with Producer(client, "inside", create_topic=True) as producer:
        producer.send(record(b"abc"))
        producer.send(b"second")
    if _is_plain(broker):
        # It can't be asked where records start.
        with Consumer.from_offset(client, "inside", 5) as consumer:
            assert consumer.current_offset == 5
        return
    with pytest.raises(OptionError, match=r"offset 5 .*inside a record.* 13;"):
        Consumer.from_offset(client, "inside", 5)
    with Consumer.from_offset(client, "inside", 13) as consumer:
        assert [found.value for found in consumer] == [b"second"]


def test_time(client: LanceClient, broker: EmbeddedBroker) -> None:
    _fill(client, "time", 1)
    between = datetime.now(timezone.utc)
    _fill(client, "time", 2)
    with Consumer(client, "time") as consumer:
        if _is_plain(broker):
            with pytest.raises(Unsupported):
                consumer.seek(SeekPosition.time(between))
        else:
            consumer.seek(SeekPosition.time(between))
            assert _values(iter(consumer)) == [0, 1]


def test_a_deleted_topic_is_lost_data(client: LanceClient) -> None:
    _fill(client, "gone", 3)
    with (
        Consumer(client, "gone") as strict,
        Consumer(client, "gone", fail_on_data_loss=False) as easy,
    ):
        assert len(_values(iter(strict))) == len(_values(iter(easy))) == 3
        client.delete_topic("gone")
        _fill(client, "gone", 2)
        with pytest.raises(DataLoss, match="deleted"):
            strict.poll()
        assert _values(iter(easy)) == [0, 1]


def test_an_overwritten_topic_is_lost_data(
    client: LanceClient, broker: EmbeddedBroker
) -> None:
    if _is_plain(broker):
        with pytest.raises(Unsupported):
            client.commit_stages("writer", 1, [], overwrite=["over"])
        return
    _fill(client, "over", 10)
    with (
        Consumer(client, "over", max_poll_records=2) as strict,
        Consumer(client, "over", fail_on_data_loss=False, fetch_bytes=20) as easy,
    ):
        strict.poll()
        easy.poll()
        with StageWriter(client, "over", "writer", 1) as writer:
            writer.send(b"77777")
            stage = writer.finish()
        client.commit_stages("writer", 1, [stage], overwrite=["over"])
        strict.seek(20)
        with pytest.raises(DataLoss) as caught:
            strict.poll()
        assert caught.value.missing_bytes == 80
        assert _values(iter(easy))[-1] == 77777


# A plain server that deletes: its offsets shift.

# More than one fetch of the last bytes covers, all of it padding but for the number.
PADDING = 200


@pytest.fixture
def plain() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(dialect="plain", segment_bytes=10_000) as broker:
        yield broker


def _first(consumer: Consumer) -> int:
    """Give the number of the next record."""
    result = consumer.poll()
    assert result is not None
    return int(bytes(result.data[5:10]))


def _shift(broker: EmbeddedBroker, client: LanceClient, topic: str) -> int:
    """Have the server delete, then append; give the first number that is left."""
    client.set_retention(topic, Retention(0, 30_000))
    broker.service.maintain()
    with Consumer(client, topic) as consumer:
        first = _first(consumer)
    assert first > 0
    _fill(client, topic, 1000, PADDING)
    return first


@pytest.mark.parametrize("left", ["whole", "early", "first", "polled", "paged"])
def test_a_shift_is_never_passed_over_in_silence(
    plain: EmbeddedBroker, left: str
) -> None:
    """Whatever was done with the records before."""
    with LanceClient(plain.address, checksum="auto") as client:
        _fill(client, "events", 300, PADDING)
        size = 7 if left == "paged" else None
        with Consumer(client, "events", max_poll_records=size) as consumer:
            if left in ("whole", "paged"):
                assert consumer.poll()
            else:
                records = consumer.records()
                for _ in range(1 if left == "first" else 50):
                    next(records)
                if left != "polled":
                    records.close()
            first = _shift(plain, client, "events")
            with pytest.raises(OffsetsShifted, match="its offsets have shifted"):
                for _ in range(100):
                    consumer.poll()
            consumer.rewind()
            assert _first(consumer) == first


def test_a_shift_that_is_no_error(
    plain: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with LanceClient(plain.address, checksum="auto") as client:
        _fill(client, "events", 300, PADDING)
        with Consumer(client, "events", fail_on_data_loss=False) as consumer:
            assert consumer.poll()
            first = _shift(plain, client, "events")
            assert _first(consumer) == first
    assert sum("have shifted" in r.getMessage() for r in caplog.records) == 1


# When an automatic commit is due.


def test_due_once_per_interval() -> None:
    now_s = [100.0]
    commits = CommitClock(5.0, lambda: now_s[0])
    assert commits.is_on
    found = []
    for now_s[0] in (100.0, 104.9, 105.0, 105.1, 109.9, 111.0, 115.9, 116.0):
        found.append(commits.take_due())
    assert found == [False, False, True, False, False, True, False, True]


def test_never() -> None:
    now_s = [0.0]
    commits = CommitClock(None, lambda: now_s[0])
    now_s[0] = 1e9
    assert not commits.is_on
    assert not commits.take_due()


def test_always() -> None:
    commits = CommitClock(0.0, lambda: 1.0)
    assert commits.take_due()
    assert commits.take_due()


def test_negative() -> None:
    with pytest.raises(OptionError, match="auto_commit_interval_s -1"):
        CommitClock(-1, lambda: 0.0)
