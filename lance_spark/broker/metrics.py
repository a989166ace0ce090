"""What the broker counts, and how Prometheus sees it.

`Metrics` has the only counters: sessions count in it, the console's sampler reads it,
and so does each scrape. prometheus_client writes the text and serves it, and does not
count: with its counters, the seven counts of a small append took 3.3 µs instead of
1.3 µs, and its labels are names of topics where the broker counts by their ids. It is
an extra, imported when a broker with metrics starts.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, cast

from lance_spark.errors import LanceError, OptionError
from lance_spark.net.address import Address

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector, CollectorRegistry


logger = logging.getLogger(__name__)

# From a fetch out of the page cache to a disk that is in trouble.
LATENCY_BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
_PREFIX = "lance_broker_"
# A scraper that connects and sends nothing is dropped after this.
_SCRAPE_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """How often something happened, by how long it took.

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
    """Records and their bytes, in and out."""

    records_in: int = 0
    bytes_in: int = 0
    records_out: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionCounts:
    """Counters of all connections, or of those of one protocol."""

    connections_opened: int = 0
    connections_closed: int = 0
    connections_refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    requests_refused: int = 0
    records_refused: int = 0
    backpressure_frames: int = 0
    keepalives_dropped: int = 0

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return self.connections_opened - self.connections_closed


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot(ConnectionCounts):
    """All counters at one moment; `traffic` counts deleted topics, too."""

    protocols: Mapping[str, ConnectionCounts] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)
    topics: Mapping[int, Traffic] = field(default_factory=dict)
    requests: Mapping[str, Latencies] = field(default_factory=dict)
    syncs: Latencies = field(default_factory=Latencies)
    errors: Mapping[int, int] = field(default_factory=dict)


_BUCKETS = len(LATENCY_BUCKETS_S) + 1
_COUNTERS = tuple(f.name for f in fields(ConnectionCounts))


class Metrics:
    """The counters of a broker; any thread may count."""

    def __init__(self) -> None:
        # One lock for all: it is held for a few additions only.
        self._lock = threading.Lock()
        # The fields of `ConnectionCounts`, by protocol.
        self._counts: dict[str, dict[str, int]] = defaultdict(
            lambda: dict.fromkeys(_COUNTERS, 0)
        )
        self._errors: Counter[int] = Counter()
        # The fields of `Traffic`: of all topics, and by topic.
        self._traffic = [0, 0, 0, 0]
        self._topics: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        # The counts of `Latencies`, and behind them the sum.
        self._requests: dict[str, list[float]] = defaultdict(_new_histogram)
        self._syncs = _new_histogram()

    def count(self, protocol: str, name: str, by: int = 1) -> None:
        """Add to a counter, by the name of its field in `ConnectionCounts`."""
        with self._lock:
            self._counts[protocol][name] += by

    def observe_request(self, command: str, seconds: float) -> None:
        """Count a request and the time that it took.

        Args:
            command: becomes a label: the name of a command, nothing that a client can
                make up.
            seconds: how long it took.
        """
        with self._lock:
            _observe(self._requests[command], seconds)

    def observe_sync(self, seconds: float) -> None:
        """Count a sync of the disk and its time."""
        with self._lock:
            _observe(self._syncs, seconds)

    def count_error(self, code: int) -> None:
        """Count an error that was sent."""
        with self._lock:
            self._errors[code] += 1

    def appended(self, topic_id: int | None, records: int, bytes: int) -> None:
        """Count records that were stored, for a topic or for none that exists yet."""
        self._add(topic_id, 0, records, bytes)

    def fetched(self, topic_id: int, records: int, bytes: int) -> None:
        """Count records that were sent."""
        self._add(topic_id, 2, records, bytes)

    def _add(self, topic_id: int | None, at: int, records: int, bytes: int) -> None:
        with self._lock:
            self._traffic[at] += records
            self._traffic[at + 1] += bytes
            if topic_id is not None:
                topic = self._topics[topic_id]
                topic[at] += records
                topic[at + 1] += bytes

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
            counts = {name: ConnectionCounts(**c) for name, c in self._counts.items()}
            totals = {
                name: sum(c[name] for c in self._counts.values()) for name in _COUNTERS
            }
            return MetricsSnapshot(
                **totals,
                protocols=counts,
                traffic=Traffic(*self._traffic),
                topics={topic: Traffic(*c) for topic, c in self._topics.items()},
                requests={name: _freeze(h) for name, h in self._requests.items()},
                syncs=_freeze(self._syncs),
                errors=dict(self._errors),
            )


def _new_histogram() -> list[float]:
    return [0] * _BUCKETS + [0.0]


def _observe(histogram: list[float], seconds: float) -> None:
    histogram[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
    histogram[-1] += seconds


def _freeze(histogram: list[float]) -> Latencies:
    return Latencies(tuple(map(int, histogram[:-1])), histogram[-1])


@dataclass(frozen=True, slots=True)
class TopicGauge:
    """The state of a topic at one moment; the default topic has no name."""

    id: int
    name: str
    log_start: int
    log_end: int
    records: int
    stages: int
    bytes_on_disk: int


# What Prometheus sees. A new counter is a row here and a field above.


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric; `source` is the field that it is read from."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...]
    source: str


def _counter(name: str, help: str, *labels: str) -> MetricSpec:
    return MetricSpec(f"{_PREFIX}{name}_total", "counter", help, labels, name)


def _gauge(name: str, help: str) -> MetricSpec:
    return MetricSpec(f"{_PREFIX}{name}", "gauge", help, (), name)


def _traffic(name: str, help: str) -> MetricSpec:
    return replace(_counter(name, help), source=f"traffic.{name}")


def _histogram(name: str, help: str, *labels: str) -> MetricSpec:
    source = f"{name}s"
    return MetricSpec(f"{_PREFIX}{name}_seconds", "histogram", help, labels, source)


def _of_protocol(spec: MetricSpec) -> MetricSpec:
    name = spec.name.replace(_PREFIX, f"{_PREFIX}protocol_")
    return replace(spec, name=name, labels=("protocol",))


def _topic_counter(source: str, help: str) -> MetricSpec:
    return replace(_counter(f"topic_{source}", help, "topic"), source=source)


def _topic_gauge(name: str, help: str, source: str) -> MetricSpec:
    return MetricSpec(f"{_PREFIX}topic_{name}", "gauge", help, ("topic",), source)


METRICS: tuple[MetricSpec, ...] = (
    _gauge("connections", "Connections that are open now."),
    _counter("connections_opened", "Connections that were taken."),
    _counter("connections_closed", "Connections that were taken and have ended."),
    _counter("connections_refused", "Connections that were turned away."),
    _counter("received_bytes", "Bytes that came over all connections."),
    _counter("sent_bytes", "Bytes that went over all connections."),
    _of_protocol(_gauge("connections", "Connections of a protocol, open now.")),
    _of_protocol(_counter("received_bytes", "Bytes that came over a protocol.")),
    _of_protocol(_counter("sent_bytes", "Bytes that went over a protocol.")),
    _of_protocol(_counter("requests_refused", "Requests answered with an error.")),
    _of_protocol(
        _counter("records_refused", "Records that a protocol can't carry to a client.")
    ),
    _traffic("records_in", "Records stored, deleted topics included."),
    _traffic("bytes_in", "Bytes of records stored, deleted topics included."),
    _traffic("records_out", "Records fetched, deleted topics included."),
    _traffic("bytes_out", "Bytes of records fetched, deleted topics included."),
    _histogram("request", "Time that requests took, by command.", "command"),
    _histogram("sync", "Time that the disk took to make appends durable."),
    _counter("errors", "Errors that were sent, by code (LWP 12.2).", "code"),
    _counter("backpressure_frames", "Backpressure frames that were sent."),
    _counter("keepalives_dropped", "Keepalives that came too fast to be answered."),
    _topic_counter("records_in", "Records stored in a topic."),
    _topic_counter("bytes_in", "Bytes of records stored in a topic."),
    _topic_counter("records_out", "Records fetched from a topic."),
    _topic_counter("bytes_out", "Bytes of records fetched from a topic."),
    _topic_gauge("log_start_offset", "Where a topic's log starts.", "log_start"),
    _topic_gauge("log_end_offset", "Where a topic's log ends.", "log_end"),
    _topic_gauge("records", "Records that a topic holds.", "records"),
    _topic_gauge("stages", "Stages that are open for a topic.", "stages"),
    _topic_gauge(
        "disk_bytes", "Bytes of a topic on disk, index included.", "bytes_on_disk"
    ),
)

# The values of the labels, and the number.
Sample = tuple[tuple[str, ...], float | Latencies]


def read_samples(
    counters: MetricsSnapshot, topics: Iterable[TopicGauge]
) -> dict[str, list[Sample]]:
    """Give the values of every metric of the table, by its name."""
    topics = list(topics)
    return {spec.name: _read(spec, counters, topics) for spec in METRICS}


def _read(
    spec: MetricSpec, counters: MetricsSnapshot, topics: list[TopicGauge]
) -> list[Sample]:
    read = attrgetter(spec.source)
    if spec.labels == ("topic",):
        if spec.kind == "gauge":
            return [((topic.name,), read(topic)) for topic in topics]
        # One without traffic shows zeros, so that its series starts with the topic.
        none, traffic = Traffic(), counters.topics
        return [((topic.name,), read(traffic.get(topic.id, none))) for topic in topics]
    if spec.labels == ("protocol",):
        return [((name,), read(of)) for name, of in sorted(counters.protocols.items())]
    found = read(counters)
    if spec.labels == ("code",):
        return [((f"0x{code:02X}",), count) for code, count in sorted(found.items())]
    if spec.labels == ("command",):
        return [((command,), times) for command, times in sorted(found.items())]
    return [((), found)]


class Exporter:
    """Serves the metrics of a broker over HTTP, in the text format of Prometheus."""

    def __init__(
        self,
        metrics: Metrics,
        topics: Callable[[], Iterable[TopicGauge]],
        address: Address | None = None,
    ) -> None:
        """Make an exporter that is not started.

        Args:
            metrics: the counters.
            topics: lists the topics; called once per scrape.
            address: where to listen; port 0 for a free one.
        """
        self._metrics = metrics
        self._topics = topics
        self._address = address or Address("127.0.0.1", 0)
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> Address:
        """Where it listens; once started with the port it got."""
        if self._server is None:
            return self._address
        return replace(self._address, port=self._server.server_port)

    def start(self) -> None:
        """Listen, and serve on threads of its own.

        Raises:
            OptionError: the library is not installed, or the address can't be used.
        """
        if self._server is not None:
            return
        registry = self._make_registry()
        from prometheus_client import start_http_server

        host, port = self._address.host, self._address.port
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise OptionError(
                f"metrics address {self._address}: can't listen there: {error}; "
                "choose another one, or port 0 for a free port"
            ) from error
        _bound_scrapes(server)
        self._server, self._thread = server, thread

    def render(self) -> str:
        """Give what a scrape gets.

        Raises:
            OptionError: the library is not installed.
        """
        registry = self._make_registry()
        from prometheus_client import generate_latest

        return generate_latest(registry).decode()

    def _make_registry(self) -> CollectorRegistry:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise OptionError(
                "metrics need the package prometheus-client, which is not installed: "
                "pip install 'lance-spark[metrics]'"
            ) from error
        registry = CollectorRegistry()
        registry.register(cast("Collector", self))
        return registry

    def stop(self) -> None:
        """Stop listening; a scrape that is under way may still end."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join(_STOP_TIMEOUT_S)
        self._server.server_close()
        self._server = self._thread = None

    # What the registry asks for.

    def describe(self) -> Iterator[Metric]:
        """Give the metrics without values, so that a scrape can ask for some."""
        return map(_make_family, METRICS)

    def collect(self) -> Iterator[Metric]:
        """Give the metrics of now."""
        try:
            topics = tuple(self._topics())
        except LanceError as error:
            # The store is closing, say; the counters are of use all the same.
            logger.warning("metrics: topics are left out of a scrape: %s", error)
            topics = ()
        samples = read_samples(self._metrics.snapshot(), topics)
        for spec in METRICS:
            family = _make_family(spec)
            for labels, value in samples[spec.name]:
                if isinstance(value, Latencies):
                    family.add_metric(labels, _bucketize(value), value.sum_s)
                else:
                    family.add_metric(labels, value)
            yield family


def _bound_scrapes(server: WSGIServer) -> None:
    """Give connections a timeout, as those of the library have none."""

    class Handler(server.RequestHandlerClass):  # type: ignore[name-defined,misc]
        timeout = _SCRAPE_TIMEOUT_S

        def handle(self) -> None:
            try:
                super().handle()
            except OSError as error:
                # The server would print it with its traceback.
                logger.debug("metrics: a scrape ended early: %s", error)

    server.RequestHandlerClass = Handler


def _make_family(spec: MetricSpec) -> Any:
    from prometheus_client import metrics_core

    kinds = {
        "counter": metrics_core.CounterMetricFamily,
        "gauge": metrics_core.GaugeMetricFamily,
        "histogram": metrics_core.HistogramMetricFamily,
    }
    return kinds[spec.kind](spec.name, spec.help, labels=spec.labels)


def _bucketize(latencies: Latencies) -> list[tuple[str, float]]:
    """Give the buckets as Prometheus wants them: each with those before it."""
    bounds = [*map(str, LATENCY_BUCKETS_S), "+Inf"]
    return list(zip(bounds, accumulate(latencies.counts), strict=True))
