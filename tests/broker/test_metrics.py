"""What the broker counts, and its view for Prometheus."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lance_spark.broker import metrics as module
from lance_spark.broker.metrics import (
    LATENCY_BUCKETS_S,
    METRICS,
    Exporter,
    Latencies,
    Metrics,
    MetricsSnapshot,
    TopicGauge,
    Traffic,
    read_samples,
)
from lance_spark.errors import OptionError, StoreClosed
from lance_spark.net.address import Address

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
        metrics.count("lance", "connections_opened")
    metrics.count("lance", "connections_closed")
    metrics.count("lance", "connections_refused")
    metrics.count("lance", "connections_refused")
    snapshot = metrics.snapshot()
    assert (snapshot.connections_opened, snapshot.connections_closed) == (3, 1)
    assert (snapshot.connections_refused, snapshot.connections) == (2, 2)


def test_frames() -> None:
    metrics = Metrics()
    metrics.count("lance", "received_bytes", 44)
    metrics.count("lance", "received_bytes", 6)
    metrics.count("lance", "sent_bytes", 7)
    metrics.count("lance", "backpressure_frames")
    for _ in range(2):
        metrics.count("lance", "keepalives_dropped")
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
        assert set(spec.labels) <= {"topic", "command", "code", "protocol"}
        assert ("topic" in spec.labels) == ("_topic_" in spec.name)


def fill() -> Metrics:
    """Count something of everything."""
    metrics = Metrics()
    for _ in range(5):
        metrics.count("lance", "connections_opened")
    metrics.count("lance", "connections_closed")
    metrics.count("lance", "connections_refused")
    metrics.count("lance", "received_bytes", 500)
    metrics.count("lance", "sent_bytes", 600)
    metrics.appended(3, 10, 1000)
    metrics.appended(9, 1, 1)
    metrics.fetched(3, 20, 2000)
    metrics.observe_request("Fetch", 0.0003)
    metrics.observe_request("Fetch", 0.3)
    metrics.observe_sync(0.004)
    metrics.count_error(0x42)
    metrics.count("lance", "backpressure_frames")
    metrics.count("lance", "keepalives_dropped")
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


# Serving.


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., Exporter]]:
    """Start exporters; all are stopped together, as each takes half a second."""
    started: list[Exporter] = []

    def start(
        metrics: Metrics, topics: Callable[[], Any] = list, host: str = "127.0.0.1"
    ) -> Exporter:
        exporter = Exporter(metrics, topics, Address(host, 0))
        exporter.start()
        started.append(exporter)
        return exporter

    yield start
    with ThreadPoolExecutor(len(started) or 1) as pool:
        list(pool.map(Exporter.stop, started))


def get(exporter: Exporter, query: str = "", accept: str = "*/*") -> str:
    request = Request(
        f"http://{exporter.address}/metrics{query}", headers={"Accept": accept}
    )
    with urlopen(request, timeout=10) as answer:
        assert answer.status == 200
        body: bytes = answer.read()
    return body.decode()


def scrape(exporter: Exporter, query: str = "") -> dict[tuple[str, str], float]:
    """Give the values by name and labels, as `("x_total", "topic=events")`."""
    values = {}
    for family in text_string_to_metric_families(get(exporter, query)):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            assert (sample.name, labels) not in values
            values[sample.name, labels] = sample.value
    return values


def test_a_scrape(serve: Callable[..., Exporter]) -> None:
    values = scrape(serve(fill(), lambda: [DEFAULT, EVENTS]))
    plain = {
        "connections": 4,
        "connections_opened_total": 5,
        "connections_closed_total": 1,
        "connections_refused_total": 1,
        "received_bytes_total": 500,
        "sent_bytes_total": 600,
        "records_in_total": 11,
        "bytes_in_total": 1001,
        "records_out_total": 20,
        "bytes_out_total": 2000,
        "backpressure_frames_total": 1,
        "keepalives_dropped_total": 1,
        "sync_seconds_count": 1,
        "sync_seconds_sum": 0.004,
    }
    for name, value in plain.items():
        assert values[f"lance_broker_{name}", ""] == pytest.approx(value), name
    of_topic = {
        "records_in_total": 10,
        "bytes_in_total": 1000,
        "records_out_total": 20,
        "bytes_out_total": 2000,
        "log_start_offset": 100,
        "log_end_offset": 900,
        "records": 20,
        "stages": 2,
        "disk_bytes": 1234,
    }
    for name, value in of_topic.items():
        assert values[f"lance_broker_topic_{name}", "topic=events"] == value, name
        assert values[f"lance_broker_topic_{name}", "topic="] == 0, name
    assert values["lance_broker_errors_total", "code=0x42"] == 1


def test_a_histogram_is_cumulative(serve: Callable[..., Exporter]) -> None:
    values = scrape(serve(fill()))
    name = "lance_broker_request_seconds"
    buckets = [
        values[f"{name}_bucket", f"command=Fetch,le={bound}"]
        for bound in [*LATENCY_BUCKETS_S, "+Inf"]
    ]
    expected = [(bound >= 0.0003) + (bound >= 0.3) for bound in LATENCY_BUCKETS_S]
    assert buckets == [*expected, 2]
    assert values[f"{name}_count", "command=Fetch"] == 2
    assert values[f"{name}_sum", "command=Fetch"] == pytest.approx(0.3003)


def test_a_scrape_has_the_types_and_texts_of_the_table(
    serve: Callable[..., Exporter],
) -> None:
    text = get(serve(fill(), lambda: [EVENTS]))
    for spec in METRICS:
        assert f"# HELP {spec.name} {spec.help}\n" in text
        assert f"# TYPE {spec.name} {spec.kind}\n" in text
    families = {family.name for family in text_string_to_metric_families(text)}
    assert families == {spec.name.removesuffix("_total") for spec in METRICS}


def test_each_scrape_is_of_its_moment(serve: Callable[..., Exporter]) -> None:
    metrics, topics = Metrics(), [EVENTS]
    exporter = serve(metrics, lambda: topics)
    key = "lance_broker_topic_records_in_total", "topic=events"
    assert scrape(exporter)[key] == 0
    metrics.appended(3, 5, 50)
    assert scrape(exporter)[key] == 5
    topics.clear()
    assert key not in scrape(exporter)


def test_a_scrape_can_ask_for_some(serve: Callable[..., Exporter]) -> None:
    name = "lance_broker_connections"
    assert scrape(serve(fill()), f"?name[]={name}") == {(name, ""): 4}


def test_the_newer_format(serve: Callable[..., Exporter]) -> None:
    text = get(serve(fill()), accept="application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")


def test_a_name_with_strange_characters(serve: Callable[..., Exporter]) -> None:
    name = 'a "quoted" näme, with {braces}=1'
    gauge = TopicGauge(1, name, 0, 8, 1, 0, 8)
    values = scrape(serve(Metrics(), lambda: [gauge]))
    assert values["lance_broker_topic_log_end_offset", f"topic={name}"] == 8


def test_counters_are_served_without_the_topics(
    serve: Callable[..., Exporter], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> list[TopicGauge]:
        raise StoreClosed("the store is closed")

    values = scrape(serve(fill(), fail))
    assert values["lance_broker_connections", ""] == 4
    assert not any("topic=" in labels for _, labels in values)
    assert "the store is closed" in caplog.text


def test_an_exporter_has_a_registry_of_its_own(
    serve: Callable[..., Exporter],
) -> None:
    one, other = Metrics(), Metrics()
    one.count("lance", "connections_opened")
    first, second = serve(one), serve(other)
    assert first.address.port != second.address.port
    key = "lance_broker_connections", ""
    assert (scrape(first)[key], scrape(second)[key]) == (1, 0)
    # Nothing of the process, the interpreter or another library is in it.
    assert {name.split("_")[0] for name, _ in scrape(first)} == {"lance"}


def test_it_listens_on_ipv6(serve: Callable[..., Exporter]) -> None:
    try:
        exporter = serve(fill(), host="::1")
    except OptionError as error:
        pytest.skip(f"there is no IPv6 here: {error}")
    assert scrape(exporter)["lance_broker_connections", ""] == 4


# Starting and stopping.


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def test_start_and_stop_once_and_again() -> None:
    before = threads()
    exporter = Exporter(Metrics(), list, Address("127.0.0.1", 0))
    assert exporter.address == Address("127.0.0.1", 0)
    exporter.stop()
    for _ in range(2):
        exporter.start()
        exporter.start()
        address = exporter.address
        assert address.port != 0
        assert ("lance_broker_connections", "") in scrape(exporter)
        exporter.stop()
        exporter.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address.host, address.port), timeout=10)
    assert exporter.address == Address("127.0.0.1", 0)
    for thread in threads() - before:
        # One that served a scrape may need a moment to close it.
        thread.join(10)
    assert threads() <= before


def test_stopping_does_not_wait_for_a_scraper_that_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_SCRAPE_TIMEOUT_S", 0.2)
    before = threads()
    exporter = Exporter(Metrics(), list, Address("127.0.0.1", 0))
    exporter.start()
    address = exporter.address
    with socket.create_connection((address.host, address.port), timeout=10) as silent:
        # The other one is served meanwhile.
        assert ("lance_broker_connections", "") in scrape(exporter)
        exporter.stop()
        # It is dropped, by and by.
        assert silent.recv(1) == b""
    for thread in threads() - before:
        thread.join(10)
    assert threads() <= before


def test_a_scraper_that_goes_away_is_no_noise(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_SCRAPE_TIMEOUT_S", 0.1)
    before = threads()
    exporter = Exporter(Metrics(), list, Address("127.0.0.1", 0))
    exporter.start()
    with socket.create_connection(
        (exporter.address.host, exporter.address.port), timeout=10
    ) as silent:
        silent.sendall(b"GET /metr")
        assert silent.recv(1) == b""
    exporter.stop()
    for thread in threads() - before:
        thread.join(10)
    assert capfd.readouterr() == ("", "")


def test_an_address_that_is_taken(serve: Callable[..., Exporter]) -> None:
    address = serve(Metrics()).address
    second = Exporter(Metrics(), list, address)
    with pytest.raises(OptionError, match=f"metrics address {address}: can't listen"):
        second.start()
    second.stop()


def test_an_address_of_another_machine() -> None:
    exporter = Exporter(Metrics(), list, Address("192.0.2.1", 0))
    with pytest.raises(OptionError, match=r"metrics address 192\.0\.2\.1:0: can't"):
        exporter.start()
    assert exporter.address.port == 0


def test_the_library_is_needed_to_start_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    exporter = Exporter(Metrics(), list, Address("127.0.0.1", 0))
    with pytest.raises(OptionError, match=r"pip install 'lance-spark\[metrics\]'"):
        exporter.start()
    exporter.stop()
