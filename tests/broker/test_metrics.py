"""What the broker counts, and its view for Prometheus."""

from __future__ import annotations

import sys
import threading

import pytest

from lance_spark.broker.metrics import (
    LATENCY_BUCKETS_S,
    METRICS,
    Latencies,
    Metrics,
    MetricsSnapshot,
    TopicGauge,
    Traffic,
    read_samples,
)

EVENTS = TopicGauge(
    id=3,
    name="events",
    log_start=100,
    log_end=900,
    records=20,
    stages=2,
    bytes_on_disk=1234,
)
DEFAULT = TopicGauge(
    id=0, name="", log_start=0, log_end=0, records=0, stages=0, bytes_on_disk=0
)


def slot(seconds: float) -> int:
    """Find the bucket that a time is counted in."""
    metrics = Metrics()
    metrics.observe_sync(seconds)
    return metrics.snapshot().syncs.counts.index(1)


# Counting.


def test_nothing_is_counted_at_first() -> None:
    assert Metrics().snapshot() == MetricsSnapshot()


def test_connections() -> None:
    metrics = Metrics()
    for _ in range(3):
        metrics.connection_opened()
    metrics.connection_closed()
    metrics.connection_refused()
    metrics.connection_refused()
    snapshot = metrics.snapshot()
    assert (snapshot.connections_opened, snapshot.connections_closed) == (3, 1)
    assert (snapshot.connections_refused, snapshot.connections) == (2, 2)


def test_frames() -> None:
    metrics = Metrics()
    metrics.received(44)
    metrics.received(6)
    metrics.sent(7)
    metrics.backpressure_sent()
    for _ in range(2):
        metrics.keepalive_dropped()
    snapshot = metrics.snapshot()
    assert (snapshot.received_bytes, snapshot.sent_bytes) == (50, 7)
    assert (snapshot.backpressure_frames, snapshot.keepalives_dropped) == (1, 2)


def test_traffic_is_counted_in_sum_and_by_topic() -> None:
    metrics = Metrics()
    metrics.appended(1, 10, 1000)
    metrics.appended(2, 1, 50)
    metrics.fetched(1, 4, 400)
    metrics.fetched(1, 4, 400)
    snapshot = metrics.snapshot()
    assert snapshot.topics == {1: Traffic(10, 1000, 8, 800), 2: Traffic(1, 50, 0, 0)}
    assert snapshot.traffic == Traffic(11, 1050, 8, 800)


def test_a_deleted_topic_stays_in_the_sum() -> None:
    metrics = Metrics()
    metrics.appended(1, 10, 1000)
    metrics.appended(2, 1, 50)
    metrics.forget_topic(1)
    metrics.forget_topic(7)
    snapshot = metrics.snapshot()
    assert set(snapshot.topics) == {2}
    assert snapshot.traffic == Traffic(11, 1050, 0, 0)


def test_what_a_late_request_brings_back_is_dropped() -> None:
    metrics = Metrics()
    for topic in range(5):
        metrics.fetched(topic, 1, 1)
    metrics.retain_topics([0, 3, 9])
    assert set(metrics.snapshot().topics) == {0, 3}


def test_requests_and_errors() -> None:
    metrics = Metrics()
    metrics.observe_request("Fetch", 0.0002)
    metrics.observe_request("Fetch", 0.4)
    metrics.observe_request("Ingest", 100.0)
    metrics.count_error(0x42)
    metrics.count_error(0x42)
    metrics.count_error(0x01)
    snapshot = metrics.snapshot()
    assert {name: times.count for name, times in snapshot.requests.items()} == {
        "Fetch": 2,
        "Ingest": 1,
    }
    assert snapshot.requests["Fetch"].sum_s == pytest.approx(0.4002)
    assert snapshot.requests["Ingest"].counts[-1] == 1
    assert snapshot.errors == {0x42: 2, 0x01: 1}
    assert snapshot.syncs == Latencies()


def test_a_time_is_counted_in_the_first_bucket_that_holds_it() -> None:
    for i, bound in enumerate(LATENCY_BUCKETS_S):
        assert slot(bound) == i
        assert slot(bound * 1.001) == i + 1
    assert slot(0.0) == 0


def test_a_snapshot_does_not_change() -> None:
    metrics = Metrics()
    metrics.appended(1, 1, 1)
    metrics.observe_request("Fetch", 1)
    metrics.count_error(1)
    before = metrics.snapshot()
    metrics.appended(1, 1, 1)
    metrics.appended(2, 1, 1)
    metrics.observe_request("Fetch", 1)
    metrics.count_error(1)
    assert before.traffic == before.topics[1] == Traffic(1, 1, 0, 0)
    assert (before.requests["Fetch"].count, before.errors) == (1, {1: 1})
    assert set(before.topics) == {1}


def test_nothing_is_lost_among_threads() -> None:
    metrics = Metrics()
    start = threading.Barrier(4)

    def work() -> None:
        start.wait(10)
        for _ in range(2000):
            metrics.appended(1, 1, 10)
            metrics.observe_request("Ingest", 0.001)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    snapshot = metrics.snapshot()
    assert snapshot.topics[1] == Traffic(8000, 80_000, 0, 0)
    assert snapshot.requests["Ingest"].count == 8000


# The table.


def test_the_table_follows_the_customs() -> None:
    names = [spec.name for spec in METRICS]
    assert len(set(names)) == len(names)
    for spec in METRICS:
        assert spec.name.startswith("lance_broker_")
        assert spec.name.endswith("_total") == (spec.kind == "counter")
        assert spec.name.endswith("_seconds") == (spec.kind == "histogram")
        assert spec.help.endswith(".")
        assert set(spec.labels) <= {"topic", "command", "code"}
        assert ("topic" in spec.labels) == ("_topic_" in spec.name)


def fill() -> Metrics:
    """Count something of everything."""
    metrics = Metrics()
    for _ in range(5):
        metrics.connection_opened()
    metrics.connection_closed()
    metrics.connection_refused()
    metrics.received(500)
    metrics.sent(600)
    metrics.appended(3, 10, 1000)
    metrics.appended(9, 1, 1)
    metrics.fetched(3, 20, 2000)
    metrics.observe_request("Fetch", 0.0003)
    metrics.observe_request("Fetch", 0.3)
    metrics.observe_sync(0.004)
    metrics.count_error(0x42)
    metrics.backpressure_sent()
    metrics.keepalive_dropped()
    return metrics


def test_each_metric_of_the_table_has_a_value() -> None:
    samples = read_samples(fill().snapshot(), [EVENTS])
    assert list(samples) == [spec.name for spec in METRICS]
    for spec in METRICS:
        assert samples[spec.name], spec.name
        for labels, value in samples[spec.name]:
            assert len(labels) == len(spec.labels)
            assert isinstance(value, Latencies) == (spec.kind == "histogram")


def test_a_topic_without_traffic_shows_zeros() -> None:
    samples = read_samples(Metrics().snapshot(), [EVENTS])
    assert samples["lance_broker_topic_bytes_in_total"] == [(("events",), 0)]
