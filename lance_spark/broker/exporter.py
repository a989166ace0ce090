"""The broker's metrics over HTTP, in the text format of Prometheus.

Only this file knows prometheus_client, which is an extra, and not before it starts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from lance_spark.broker.metrics import (
    LATENCY_BUCKETS_S,
    METRICS,
    Latencies,
    Metrics,
    MetricSpec,
    TopicGauge,
    read_samples,
)
from lance_spark.errors import LanceError, OptionError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

    from lance_spark.net.address import Address

logger = logging.getLogger(__name__)

# A scraper that connects and says nothing is dropped after this.
_SCRAPE_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0


class Exporter:
    """Serves the metrics of a broker over HTTP, in the text format of Prometheus."""

    def __init__(
        self,
        metrics: Metrics,
        topics: Callable[[], Iterable[TopicGauge]],
        address: Address,
    ) -> None:
        """Make an exporter that is not started.

        Args:
            metrics: the counters.
            topics: lists the topics; called once per scrape.
            address: where to listen; port 0 for a free one.
        """
        self._metrics = metrics
        self._topics = topics
        self._address = address
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
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as error:
            raise OptionError(
                "metrics need the package prometheus-client, which is not installed: "
                "pip install 'lance-spark[metrics]'"
            ) from error
        registry: CollectorRegistry = CollectorRegistry()
        view = _Collector(self._metrics, self._topics)
        registry.register(cast("Collector", view))
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

    def stop(self) -> None:
        """Stop listening; a scrape that is under way may still end."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join(_STOP_TIMEOUT_S)
        self._server.server_close()
        self._server = self._thread = None


def _bound_scrapes(server: WSGIServer) -> None:
    """Give connections the timeout that the library's have not."""

    class Handler(server.RequestHandlerClass):  # type: ignore[name-defined,misc]
        timeout = _SCRAPE_TIMEOUT_S

        def handle(self) -> None:
            try:
                super().handle()
            except OSError as error:
                # It would be printed with its traceback, by the server's own rules.
                logger.debug("metrics: a scrape ended early: %s", error)

    server.RequestHandlerClass = Handler


class _Collector:
    """What a registry asks for the metrics at each scrape."""

    def __init__(
        self, metrics: Metrics, topics: Callable[[], Iterable[TopicGauge]]
    ) -> None:
        self._metrics = metrics
        self._topics = topics

    def describe(self) -> Iterator[Metric]:
        """Give the metrics without values, so that a scrape can ask for some."""
        for spec in METRICS:
            yield _make_family(spec)

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
