"""What the broker counts, and its view for Prometheus.

`Metrics` is called for each request and knows no library. `METRICS` is the table of
what is shown, for `exporter`, the docs and the tests alike. Both are in one file
because a new counter is a line in each of them.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

# From a fetch out of the page cache to a disk that is in trouble.
LATENCY_BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
_PREFIX = "lance_broker_"


@dataclass(frozen=True, slots=True)
class Latencies:
    """How often something took how long.

    Args:
        counts: one per bucket of `LATENCY_BUCKETS_S`, each without those before it,
            and one for what took longer.
        sum_s: all of it together.
    """

    counts: tuple[int, ...] = (0,) * (len(LATENCY_BUCKETS_S) + 1)
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        """How often it happened."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What went in and out."""

    records_in: int = 0
    bytes_in: int = 0
    records_out: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All counters at one moment; `traffic` counts deleted topics, too."""

    connections_opened: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    backpressure_frames: int = 0
    keepalives_dropped: int = 0
    traffic: Traffic = field(default_factory=Traffic)
    topics: Mapping[int, Traffic] = field(default_factory=dict)
    requests: Mapping[str, Latencies] = field(default_factory=dict)
    syncs: Latencies = field(default_factory=Latencies)
    errors: Mapping[int, int] = field(default_factory=dict)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self.connections_opened - self.connections_closed


class Metrics:
    """The counters of a broker; any thread may count."""

    def __init__(self) -> None:
        # One lock for all: it is held for a few additions only.
        self._lock = threading.Lock()
        self._opened = 0
        self._closed = 0
        self._refused = 0
        self._received = 0
        self._sent = 0
        self._backpressure = 0
        self._keepalives = 0
        self._traffic = _Counts()
        self._topics: dict[int, _Counts] = {}
        self._requests: dict[str, _Histogram] = {}
        self._syncs = _Histogram()
        self._errors: dict[int, int] = {}

    def connection_opened(self) -> None:
        """Count a connection that was taken."""
        with self._lock:
            self._opened += 1

    def connection_closed(self) -> None:
        """Count the end of a connection that was taken."""
        with self._lock:
            self._closed += 1

    def connection_refused(self) -> None:
        """Count a connection that was turned away."""
        with self._lock:
            self._refused += 1

    def received(self, size: int) -> None:
        """Count bytes that came over a connection."""
        with self._lock:
            self._received += size

    def sent(self, size: int) -> None:
        """Count bytes that went over a connection."""
        with self._lock:
            self._sent += size

    def backpressure_sent(self) -> None:
        """Count a Backpressure frame."""
        with self._lock:
            self._backpressure += 1

    def keepalive_dropped(self) -> None:
        """Count a keepalive that was not answered, because they came too fast."""
        with self._lock:
            self._keepalives += 1

    def observe_request(self, command: str, seconds: float) -> None:
        """Count a request and the time that it took.

        Args:
            command: what it was. It becomes a label: the name of a command, nothing
                that a client can make up.
            seconds: how long it took.
        """
        with self._lock:
            histogram = self._requests.get(command)
            if histogram is None:
                histogram = self._requests[command] = _Histogram()
            histogram.add(seconds)

    def observe_sync(self, seconds: float) -> None:
        """Count a sync of the disk and its time."""
        with self._lock:
            self._syncs.add(seconds)

    def count_error(self, code: int) -> None:
        """Count an error that was sent."""
        with self._lock:
            self._errors[code] = self._errors.get(code, 0) + 1

    def appended(self, topic_id: int | None, records: int, bytes: int) -> None:
        """Count records that were stored, for a topic or for none that exists yet."""
        with self._lock:
            self._traffic.records_in += records
            self._traffic.bytes_in += bytes
            if topic_id is not None:
                counts = self._topic(topic_id)
                counts.records_in += records
                counts.bytes_in += bytes

    def fetched(self, topic_id: int, records: int, bytes: int) -> None:
        """Count records that were given out."""
        with self._lock:
            for counts in (self._traffic, self._topic(topic_id)):
                counts.records_out += records
                counts.bytes_out += bytes

    def forget_topic(self, topic_id: int) -> None:
        """Drop the counters of a topic that was deleted; the totals keep them."""
        with self._lock:
            self._topics.pop(topic_id, None)

    def retain_topics(self, existing: Collection[int]) -> None:
        """Drop the counters of all topics but these.

        A request that was under way when its topic was deleted brings the counters
        back. Called now and then, this keeps them from piling up.
        """
        with self._lock:
            for topic_id in self._topics.keys() - set(existing):
                del self._topics[topic_id]

    def snapshot(self) -> MetricsSnapshot:
        """Copy all counters, as of one moment."""
        with self._lock:
            return MetricsSnapshot(
                connections_opened=self._opened,
                connections_closed=self._closed,
                connections_refused=self._refused,
                received_bytes=self._received,
                sent_bytes=self._sent,
                backpressure_frames=self._backpressure,
                keepalives_dropped=self._keepalives,
                traffic=self._traffic.freeze(),
                topics={topic: c.freeze() for topic, c in self._topics.items()},
                requests={name: h.freeze() for name, h in self._requests.items()},
                syncs=self._syncs.freeze(),
                errors=dict(self._errors),
            )

    def _topic(self, topic_id: int) -> _Counts:
        counts = self._topics.get(topic_id)
        if counts is None:
            counts = self._topics[topic_id] = _Counts()
        return counts


class _Counts:
    """A `Traffic` that can be added to."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.records_out = 0
        self.bytes_out = 0

    def freeze(self) -> Traffic:
        return Traffic(self.records_in, self.bytes_in, self.records_out, self.bytes_out)


class _Histogram:
    """`Latencies` that can be added to."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def freeze(self) -> Latencies:
        return Latencies(tuple(self._counts), self._sum_s)


@dataclass(frozen=True, slots=True)
class TopicGauge:
    """What a topic is like when somebody looks; the default topic has no name."""

    id: int
    name: str
    log_start: int
    log_end: int
    records: int
    stages: int
    bytes_on_disk: int


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric as Prometheus sees it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]


def _counter(name: str, help: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{_PREFIX}{name}_total", "counter", help, labels)


def _gauge(name: str, help: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{_PREFIX}{name}", "gauge", help, labels)


def _histogram(name: str, help: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{_PREFIX}{name}_seconds", "histogram", help, labels)


METRICS: tuple[MetricSpec, ...] = (
    _gauge("connections", "Connections that are open now."),
    _counter("connections_opened", "Connections that were taken."),
    _counter("connections_closed", "Connections that were taken and have ended."),
    _counter("connections_refused", "Connections that were turned away."),
    _counter("received_bytes", "Bytes that came over all connections."),
    _counter("sent_bytes", "Bytes that went over all connections."),
    _counter("records_in", "Records stored, deleted topics included."),
    _counter("bytes_in", "Bytes of records stored, deleted topics included."),
    _counter("records_out", "Records fetched, deleted topics included."),
    _counter("bytes_out", "Bytes of records fetched, deleted topics included."),
    _histogram("request", "Time that requests took, by command.", "command"),
    _histogram("sync", "Time that the disk took to make appends durable."),
    _counter("errors", "Errors that were sent, by code (LWP 12.2).", "code"),
    _counter("backpressure_frames", "Backpressure frames that were sent."),
    _counter("keepalives_dropped", "Keepalives that came too fast to be answered."),
    _counter("topic_records_in", "Records stored in a topic.", "topic"),
    _counter("topic_bytes_in", "Bytes of records stored in a topic.", "topic"),
    _counter("topic_records_out", "Records fetched from a topic.", "topic"),
    _counter("topic_bytes_out", "Bytes of records fetched from a topic.", "topic"),
    _gauge("topic_log_start_offset", "Where a topic's log starts.", "topic"),
    _gauge("topic_log_end_offset", "Where a topic's log ends.", "topic"),
    _gauge("topic_records", "Records that a topic holds.", "topic"),
    _gauge("topic_stages", "Stages that are open for a topic.", "topic"),
    _gauge("topic_disk_bytes", "Bytes of a topic on disk, index included.", "topic"),
)

# The values of the labels, and the number.
Sample = tuple[tuple[str, ...], float | Latencies]


def read_samples(
    counters: MetricsSnapshot, topics: Iterable[TopicGauge]
) -> dict[str, list[Sample]]:
    """Give the values of every metric of the table, by its name."""
    total = counters.traffic
    plain: dict[str, float | Latencies] = {
        "connections": counters.connections,
        "connections_opened_total": counters.connections_opened,
        "connections_closed_total": counters.connections_closed,
        "connections_refused_total": counters.connections_refused,
        "received_bytes_total": counters.received_bytes,
        "sent_bytes_total": counters.sent_bytes,
        "records_in_total": total.records_in,
        "bytes_in_total": total.bytes_in,
        "records_out_total": total.records_out,
        "bytes_out_total": total.bytes_out,
        "sync_seconds": counters.syncs,
        "backpressure_frames_total": counters.backpressure_frames,
        "keepalives_dropped_total": counters.keepalives_dropped,
    }
    samples: dict[str, list[Sample]] = {spec.name: [] for spec in METRICS}
    for name, value in plain.items():
        samples[_PREFIX + name].append(((), value))
    for command, times in sorted(counters.requests.items()):
        samples[f"{_PREFIX}request_seconds"].append(((command,), times))
    for code, count in sorted(counters.errors.items()):
        samples[f"{_PREFIX}errors_total"].append(((f"0x{code:02X}",), count))
    for topic in topics:
        # One without traffic shows zeros, so that its series starts with the topic.
        traffic = counters.topics.get(topic.id, Traffic())
        for name, value in _read_topic(topic, traffic).items():
            samples[f"{_PREFIX}topic_{name}"].append(((topic.name,), value))
    return samples


def _read_topic(topic: TopicGauge, traffic: Traffic) -> dict[str, int]:
    return {
        "records_in_total": traffic.records_in,
        "bytes_in_total": traffic.bytes_in,
        "records_out_total": traffic.records_out,
        "bytes_out_total": traffic.bytes_out,
        "log_start_offset": topic.log_start,
        "log_end_offset": topic.log_end,
        "records": topic.records,
        "stages": topic.stages,
        "disk_bytes": topic.bytes_on_disk,
    }
