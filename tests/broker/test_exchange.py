"""Records in and out of logs by number, and topics with partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lance_spark.broker.access import (
    Policy,
    Principal,
    TopicRule,
    apply_topics,
    read_rules,
)
from lance_spark.broker.assignment import Strategy
from lance_spark.broker.exchange import Exchange
from lance_spark.broker.service import Service, to_broker_error
from lance_spark.errors import (
    AccessDenied,
    AppendConflict,
    AppendConflictError,
    InvalidName,
    InvalidPartitionCount,
    InvalidPayload,
    LimitReached,
    OffsetOutOfRange,
    OptionError,
    PartitionedTopic,
    StorageError,
    Timeout,
    TopicAlreadyExists,
    TopicNotFound,
    UnknownTopic,
)
from lance_spark.model import Bounds, Retention
from lance_spark.records import Records, Spans
from lance_spark.store import Store, StoreConfig, View
from lance_spark.wire.lwp import read_records, scan, write_batch
from tests.broker.kit import record

ME = Principal()


def make(*values: bytes) -> Records:
    """Make records of values."""
    ends = np.cumsum([len(value) for value in values], dtype=np.int64)
    starts = ends - np.array([len(value) for value in values], dtype=np.int64)
    data = np.frombuffer(b"".join(values), np.uint8)
    return Records(Spans(data, starts, ends))


def values_of(records: Records) -> list[bytes]:
    spans = records.values
    return [
        bytes(spans.data[start:end])
        for start, end in zip(spans.starts, spans.ends, strict=True)
    ]


@pytest.fixture
def store(directory: Path) -> Iterator[Store]:
    config = StoreConfig(fsync="none", segment_bytes=200)  # type: ignore[arg-type]
    with Store(directory / "data", framing=scan, config=config) as store:
        yield store


@pytest.fixture
def service(store: Store) -> Service:
    return Service(store, topics_max=10)


@pytest.fixture
def exchange(service: Service) -> Exchange:
    return make_exchange(service)


def make_exchange(service: Service) -> Exchange:
    return Exchange(service, read_records=read_records, write_records=write_batch)


# Topics.


def test_a_topic_with_one_partition_is_the_log_of_its_name(
    exchange: Exchange, service: Service
) -> None:
    family = exchange.create(ME, "orders")
    assert (family.name, family.partitions, list(family.logs)) == ("orders", 1, [0])
    assert exchange.find(ME, "orders") == family.logs[0].metadata.id
    assert [topic.metadata.name for topic in service.topics(ME)] == ["orders"]
    for topic, partition in (("orders", 1), ("other", 0), ("orders", -1)):
        with pytest.raises(UnknownTopic, match=topic):
            exchange.find(ME, topic, partition)


def test_a_topic_with_partitions_is_a_family_of_logs(
    exchange: Exchange, service: Service
) -> None:
    family = exchange.create(ME, "orders", 3, retention=Retention(60, 0))
    exchange.create(ME, "events")
    names = [topic.metadata.name for topic in service.topics(ME)]
    assert names == ["orders/0", "orders/1", "orders/2", "events"]
    assert [(f.name, f.partitions) for f in exchange.topics(ME)] == [
        ("events", 1),
        ("orders", 3),
    ]
    for number in range(3):
        log = exchange.find(ME, "orders", number)
        assert log == family.logs[number].metadata.id
        assert service.topic(ME, log).metadata.retention == Retention(60, 0)
    with pytest.raises(UnknownTopic, match="orders/3"):
        exchange.find(ME, "orders", 3)


def test_a_name_with_a_number_is_no_topic(exchange: Exchange) -> None:
    """For clients without partitions, `orders/1` is a log; for others it is none."""
    family = exchange.create(ME, "orders", 2)
    exchange.create(ME, "events")
    for partition in (0, 1):
        with pytest.raises(UnknownTopic, match="orders/1"):
            exchange.find(ME, "orders/1", partition)
    assert exchange.find(ME, "orders/1", None) == family.logs[1].metadata.id
    assert exchange.find(ME, "events", None) == exchange.find(ME, "events")
    with pytest.raises(PartitionedTopic, match="'orders/0' to 'orders/1'") as error:
        exchange.find(ME, "orders", None)
    told = to_broker_error(error.value)
    assert isinstance(told, TopicNotFound) and "has 2 partitions" in told.message
    with pytest.raises(UnknownTopic):
        exchange.find(ME, "other", None)


def test_a_topic_with_partitions_is_no_log_for_lwp(
    exchange: Exchange, service: Service
) -> None:
    exchange.create(ME, "orders", 2)
    for call in (
        lambda: service.open_stage(ME, "orders", "w", 1),
        lambda: service.commit_stages(ME, "w", 1, stages=[], overwrite=["orders"]),
        lambda: service.join_group(
            ME,
            "g",
            "",
            topics=["orders"],
            strategy=Strategy.RANGE,
            session_timeout_s=10,
        ),
    ):
        with pytest.raises(PartitionedTopic, match="has 2 partitions: name one"):
            call()


def test_topics_that_can_not_be_created(exchange: Exchange, store: Store) -> None:
    exchange.create(ME, "orders", 2)
    for partitions in (1, 2, 5):
        with pytest.raises(TopicAlreadyExists, match="orders"):
            exchange.create(ME, "orders", partitions)
    for name in ("", "a/b"):
        with pytest.raises(InvalidName):
            exchange.create(ME, name, 2)
    with pytest.raises(LimitReached, match="topics_max"):
        exchange.create(ME, "many", 9)
    exchange = make_exchange(Service(store, partitions_max=4))
    for partitions in (-1, 0, 5):
        with pytest.raises(InvalidPartitionCount, match="a topic has 1 to 4"):
            exchange.create(ME, "wide", partitions)
    assert [family.name for family in exchange.topics(ME)] == ["orders"]


# Access.


def test_a_rule_covers_all_partitions(store: Store) -> None:
    rule = TopicRule(True, allowed_cns=frozenset({"spark"}))
    service = Service(store, named={"orders": rule})
    exchange = make_exchange(service)
    store.create_topics({"orders": 2, "open": 2})
    assert [family.name for family in exchange.topics(ME)] == ["open"]
    for number in range(2):
        with pytest.raises(AccessDenied):
            exchange.find(ME, "orders", number)
        log = store.find_topic(f"orders/{number}")
        assert log is not None
        for call in (
            lambda log=log: exchange.bounds(ME, log.metadata.id),
            lambda log=log: exchange.store(ME, log.metadata.id, make(b"x")),
            lambda log=log: exchange.load(ME, log.metadata.id, 0, max_bytes=9),
            lambda log=log: exchange.commit(ME, log.metadata.id, "g", 0),
            lambda log=log: exchange.committed(ME, log.metadata.id, "g"),
        ):
            with pytest.raises(AccessDenied):
                call()
    for call in (
        lambda: exchange.create(ME, "orders", 2),
        lambda: exchange.find(ME, "orders", None),
    ):
        with pytest.raises(AccessDenied):
            call()


def test_the_rule_of_a_partition_hides_the_topic(store: Store) -> None:
    """Also when no configuration names it: what exists must not be told."""
    store.create_topics({"orders": 2}, auth={"mtls_enabled": True})
    policy = Policy(rules=read_rules(store))
    exchange = make_exchange(Service(store, policy=policy))
    assert exchange.topics(ME) == []
    for partition in (None, 0, 1):
        with pytest.raises(AccessDenied):
            exchange.find(ME, "orders", partition)
    with pytest.raises(AccessDenied):
        exchange.create(ME, "orders", 2)


def test_the_configuration_of_a_partitioned_topic(store: Store) -> None:
    logs = store.create_topics({"orders": 2})
    auth = {"mtls_enabled": True, "allowed_cns": ["spark"]}
    apply_topics(store, {"orders": {"auth": auth, "retention": {"max_bytes": 9}}})
    assert {log.metadata.id for log in logs} == read_rules(store).keys()
    for log in store.topics():
        assert log.metadata.retention == Retention(0, 9)


def test_the_configuration_makes_partitions(store: Store) -> None:
    for _ in range(2):  # Also when the topics are there.
        apply_topics(store, {"orders": {"partitions": 3}, "one": {"partitions": 1}})
        assert (store.partitions("orders"), store.partitions("one")) == (3, 1)
    apply_topics(store, {"orders": {"retention": {"max_bytes": 9}}})
    assert {log.metadata.retention.max_bytes for log in store.topics()} == {0, 9}
    for name, partitions in (("orders", 4), ("one", 2), ("orders", 1)):
        with pytest.raises(OptionError, match="and that can't be changed"):
            apply_topics(store, {name: {"partitions": partitions}})


# Records.


def test_records_by_number(exchange: Exchange, service: Service) -> None:
    log = exchange.create(ME, "orders").logs[0].metadata.id
    assert exchange.bounds(ME, log) == Bounds(0, 0)
    exchange.store(ME, log, make(b"a", b"", b"ccc"))
    exchange.store(ME, log, make(b"d"))
    assert exchange.bounds(ME, log) == Bounds(0, 4)
    for start, values in enumerate(([b"a", b"", b"ccc", b"d"], [b"", b"ccc", b"d"])):
        loaded = exchange.load(ME, log, start, max_bytes=1000)
        assert values_of(loaded.records) == values
        assert loaded.bounds == Bounds(0, 4)
        assert loaded.records.find_positions().tolist() == list(range(start, 4))
        assert loaded.records.find_nexts().tolist() == list(range(start + 1, 5))
    assert len(exchange.load(ME, log, 4, max_bytes=1000).records) == 0
    for start in (-1, 5, 2**64 - 1):
        with pytest.raises(OffsetOutOfRange) as error:
            exchange.load(ME, log, start, max_bytes=1000)
        assert error.value.details == {"log_start": 0, "log_end": 4}
    traffic = service.metrics.snapshot().topics[log]
    assert (traffic.records_in, traffic.records_out) == (4, 4 + 3)


def test_a_log_is_read_to_its_end_over_segments(exchange: Exchange) -> None:
    log = exchange.create(ME, "orders").logs[0].metadata.id
    expected = [b"%d" % n * (n % 7) for n in range(200)]
    for first in range(0, 200, 5):
        exchange.store(ME, log, make(*expected[first : first + 5]))
    for max_bytes in (1, 40, 1000):
        found: list[bytes] = []
        while len(found) < 200:
            records = exchange.load(ME, log, len(found), max_bytes=max_bytes).records
            assert records.position(0) == len(found)
            found += values_of(records)
        assert found == expected


def test_an_append_that_expects_a_number(exchange: Exchange) -> None:
    log = exchange.create(ME, "orders").logs[0].metadata.id
    exchange.store(ME, log, make(b"a", b"b"), expected=0)
    for expected in (0, 1, 3):
        with pytest.raises(
            AppendConflict, match="the next record is number 2"
        ) as error:
            exchange.store(ME, log, make(b"c"), expected=expected)
        told = to_broker_error(error.value)
        assert isinstance(told, AppendConflictError)
        assert told.details == {"next_record": 2}
    appended = exchange.store(ME, log, make(b"c"), expected=2)
    assert appended.records == 1
    assert exchange.bounds(ME, log) == Bounds(0, 3)


def test_records_that_retention_has_dropped(exchange: Exchange, store: Store) -> None:
    log = exchange.create(ME, "orders", retention=Retention(0, 1)).logs[0].metadata.id
    for n in range(20):
        exchange.store(ME, log, make(b"%020d" % n))
    store.maintain()
    bounds = exchange.bounds(ME, log)
    assert 0 < bounds.start < bounds.end == 20
    with pytest.raises(OffsetOutOfRange, match=r"has \[\d+, 20\)"):
        exchange.load(ME, log, 0, max_bytes=1000)
    loaded = exchange.load(ME, log, bounds.start, max_bytes=1000)
    assert values_of(loaded.records)[0] == b"%020d" % bounds.start


def test_bytes_that_are_no_records_are_a_storage_error(
    exchange: Exchange, service: Service
) -> None:
    """Those around them are served; the batch counts as one record."""
    log = exchange.create(ME, "orders").logs[0].metadata.id
    exchange.store(ME, log, make(b"a", b"b"))
    # Begins with a whole record, which is not one of this log.
    broken = record(b"no") + b"records"
    service.append(ME, log, 0, broken, starts=np.zeros(1, np.int64))
    exchange.store(ME, log, make(b"c"))
    assert exchange.bounds(ME, log) == Bounds(0, 4)
    found = []
    for start in (0, 1):
        loaded = exchange.load(ME, log, start, max_bytes=1000)
        found.append(values_of(loaded.records)[0])
    assert found == [b"a", b"b"]
    with pytest.raises(StorageError, match="stored as record 2 is no record"):
        exchange.load(ME, log, 2, max_bytes=1000)
    assert values_of(exchange.load(ME, log, 3, max_bytes=1000).records) == [b"c"]


def test_a_conflict_is_answered_once_the_records_are_durable(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig(wait_timeout_s=0.05)
    with Store(directory / "slow", framing=scan, config=config) as store:
        exchange = make_exchange(Service(store))
        log = exchange.create(ME, "orders").logs[0].metadata.id
        with monkeypatch.context() as patched:
            # The syncer is not told of the append: nothing makes it durable.
            patched.setattr(Store, "_request_sync", lambda store, log: None)
            exchange.store(ME, log, make(b"a"), expected=0)
            with pytest.raises(Timeout):
                exchange.store(ME, log, make(b"b"), expected=0)
        store.sync()
        with pytest.raises(AppendConflict, match="record is number 1"):
            exchange.store(ME, log, make(b"b"), expected=0)
        assert exchange.bounds(ME, log) == Bounds(0, 1)


# Consumers.


def test_groups_commit_record_numbers(exchange: Exchange, service: Service) -> None:
    log = exchange.create(ME, "orders", 2).logs[1].metadata.id
    exchange.store(ME, log, make(b"a", b"b", b"c"))
    assert exchange.committed(ME, log, "spark") is None
    for number in (3, 2):  # A group may go back.
        exchange.commit(ME, log, "spark", number)
        assert exchange.committed(ME, log, "spark") == number
    service.commit_offset(ME, log, 7, 6)  # LWP's consumer, in bytes.
    assert [state.consumer for state in service.consumers(ME, log)] == [7]
    assert list(service.lags().values()) == [12]
    with pytest.raises(OffsetOutOfRange, match="Record 4 is beyond the end 3"):
        exchange.commit(ME, log, "spark", 4)
    for name in ("", "x" * 256):
        with pytest.raises(LimitReached, match="from 1 to 255"):
            exchange.commit(ME, log, name, 1)
    with pytest.raises(UnknownTopic):
        exchange.commit(ME, 99, "spark", 0)


def test_so_many_groups_and_consumers_are_kept(store: Store) -> None:
    exchange = make_exchange(Service(store, consumers_max=2))
    log = exchange.create(ME, "orders").logs[0].metadata.id
    for name in ("a", "b", "a"):
        exchange.commit(ME, log, name, 0)
    with pytest.raises(InvalidPayload, match="consumers_max"):
        exchange.commit(ME, log, "c", 0)


def test_a_number_whose_record_is_lost_is_not_another_record(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where numbers were skipped in a repair, the index gives the next record."""
    log = exchange.create(ME, "orders").logs[0].metadata.id
    exchange.store(ME, log, make(b"a", b"b", b"c"))
    locate = View.locate_record
    monkeypatch.setattr(View, "locate_record", lambda view, n: locate(view, n + 1))
    with pytest.raises(StorageError, match="record 1 was in a part that is lost"):
        exchange.load(ME, log, 1, max_bytes=100)


def test_memory_is_asked_for_before_records_are_read(exchange: Exchange) -> None:
    log = exchange.create(ME, "orders").logs[0].metadata.id
    exchange.store(ME, log, make(b"a" * 100, b"b"))
    held = []
    exchange.load(ME, log, 0, max_bytes=1, hold=held.append)
    assert [(len(found), found.records) for found in held] == [(105, 1)]


def test_one_topic_is_found_without_a_list(exchange: Exchange, store: Store) -> None:
    exchange.create(ME, "orders", 3)
    exchange.create(ME, "one")
    family = exchange.family(ME, "orders")
    assert (family.partitions, sorted(family.logs)) == (3, [0, 1, 2])
    assert exchange.family(ME, "one").partitions == 1
    for name in ("orders/1", "no", "orders/7"):
        with pytest.raises(UnknownTopic, match=name):
            exchange.family(ME, name)
