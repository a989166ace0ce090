"""Rates over time: the counters of the broker, looked at once a second.

One thread looks, for all visitors, and keeps so many points. A point has only what
moved in its second, up to a limit: a console without visitors costs next to nothing,
and one that many look at no more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lance_spark.broker.metrics import MetricsSnapshot, Traffic
from lance_spark.broker.service import Service
from lance_spark.errors import LanceError, StoreClosed
from lance_spark.store.consumers import ConsumerKey

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
POINTS_MAX = 600
# How many topics and consumers a point has numbers of, which takes 35 KiB.
TOPICS_MAX = 256
CONSUMERS_MAX = 256
# With more offsets than this, to look at all of them each second is too much.
OFFSETS_MAX = 10_000
# What the broker answers when the fault is its own or its disk's.
FAULT_CODES = (0x60, 0x61)
_STOP_S = 5.0
_POINTS_PER_MIN = 60


class Rates(NamedTuple):
    """What went through in a second: of a topic, or of all."""

    records_in_per_s: float = 0.0
    bytes_in_per_s: float = 0.0
    records_out_per_s: float = 0.0
    bytes_out_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the broker as a whole does at the moment.

    Args:
        connections: how many are open.
        requests_per_s: how many requests there were in the last second.
        errors_per_s: how many errors were sent in the last second.
        errors_last_min: how many in the last minute.
        faults_last_min: those among them that are the broker's own.
    """

    connections: int = 0
    requests_per_s: float = 0.0
    errors_per_s: float = 0.0
    errors_last_min: int = 0
    faults_last_min: int = 0


@dataclass(frozen=True, slots=True)
class _Point:
    """What one look has found.

    Args:
        time_ms: the time of day.
        rows: where the rates of a topic are, by its id; None is all topics together.
        rates: the numbers of `Rates`, a row each. An array takes a tenth of the memory
            that as many objects do.
        lags: how far behind consumers are.
        errors: how many errors were sent since the last look.
        faults: those among them that are the broker's own.
        pulse: what the broker as a whole does.
    """

    time_ms: int = 0
    rows: Mapping[int | None, int] = field(default_factory=dict)
    rates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 4)))
    lags: Mapping[ConsumerKey, int] = field(default_factory=dict)
    errors: int = 0
    faults: int = 0
    pulse: Pulse = Pulse()

    def find(self, topic: int | None) -> Rates:
        row = self.rows.get(topic)
        return Rates() if row is None else Rates(*self.rates[row].tolist())


class Sampler:
    """Looks at the counters now and then; any thread may ask.

    Args:
        service: the broker.
        clock: monotonic seconds.
        wall_ns: the time of day.

    Attributes:
        ticks: how often it has looked.
    """

    def __init__(
        self,
        service: Service,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._service = service
        self._clock = clock
        self._wall_ns = wall_ns
        self._last = service.metrics.snapshot()
        self._last_s = self._started_s = clock()
        self.ticks = 0
        # Oldest first. Each look replaces it, so that other threads need no lock.
        self._points: tuple[_Point, ...] = ()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="lance-console-sampler", daemon=True
        )

    @property
    def uptime_s(self) -> float:
        """How long it has been there, which is as long as its broker."""
        return self._clock() - self._started_s

    def start(self) -> None:
        """Look once a second, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; may be called again."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            try:
                self.sample()
            except StoreClosed:
                return
            except Exception:
                # A gap in a picture is not worth more than a line.
                logger.exception("the console could not look at the broker")

    # Looking.

    def sample(self) -> None:
        """Look once; what was counted since the last time becomes a point."""
        now, now_s = self._service.metrics.snapshot(), self._clock()
        lags, before, last = self._find_lags(), self._newest, self._last
        elapsed_s = max(now_s - self._last_s, 1e-3)
        moved = [t for t, seen in now.topics.items() if seen != last.topics.get(t)]
        # Those that had a place keep it: many must not take turns.
        topics = sorted(moved, key=lambda t: t not in before.rows)[:TOPICS_MAX]
        consumers = sorted(lags, key=lambda c: c not in before.lags)
        rates = [
            _rate(last.topics.get(t, Traffic()), now.topics[t], elapsed_s)
            for t in topics
        ]
        new = {code: n - last.errors.get(code, 0) for code, n in now.errors.items()}
        errors = sum(new.values())
        faults = sum(new.get(code, 0) for code in FAULT_CODES)
        requests = _count_requests(now) - _count_requests(last)
        minute = self._points[1 - _POINTS_PER_MIN :]
        point = _Point(
            time_ms=self._wall_ns() // 1_000_000,
            rows={topic: row for row, topic in enumerate([None, *topics])},
            rates=np.array([_rate(last.traffic, now.traffic, elapsed_s), *rates]),
            lags={key: lags[key] for key in consumers[:CONSUMERS_MAX]},
            errors=errors,
            faults=faults,
            pulse=Pulse(
                now.connections,
                requests / elapsed_s,
                errors / elapsed_s,
                errors + sum(point.errors for point in minute),
                faults + sum(point.faults for point in minute),
            ),
        )
        self._points = (*self._points[1 - POINTS_MAX :], point)
        self.ticks += 1
        self._last, self._last_s = now, now_s

    def _find_lags(self) -> Mapping[ConsumerKey, int]:
        if self._service.consumer_count > OFFSETS_MAX:
            return {}
        try:
            return self._service.lags()
        except StoreClosed:
            raise
        except LanceError as error:
            logger.debug("the console could not measure lags: %s", error)
            return {}

    # Asking.

    @property
    def _newest(self) -> _Point:
        return self._points[-1] if self._points else _Point()

    def connections(self) -> dict[str, int]:
        """Tell how many connections each protocol had at the last look."""
        found = self._last.protocols
        return {protocol: counts.connections for protocol, counts in found.items()}

    def pulse(self) -> Pulse:
        """Tell what the broker does at the moment."""
        return self._newest.pulse

    def rates(self, topic: int | None = None) -> Rates:
        """Tell the rates of the last second, of a topic or of all together."""
        return self._newest.find(topic)

    def history(self, topic: int | None = None) -> list[tuple[float, ...]]:
        """Give the times in ms and the rates, oldest first."""
        return [(point.time_ms, *point.find(topic)) for point in self._points]

    def lag_history(self, key: ConsumerKey, points_max: int) -> list[tuple[int, int]]:
        """Give how far behind a consumer was over time, at most so many points."""
        found = [*takewhile(lambda point: key in point.lags, reversed(self._points))]
        # From the end, so that the newest point is always there.
        found = found[:: max(1, -(-len(found) // points_max))]
        return [(point.time_ms, point.lags[key]) for point in reversed(found)]


_read_counts = attrgetter("records_in", "bytes_in", "records_out", "bytes_out")


def _rate(last: Traffic, now: Traffic, elapsed_s: float) -> list[float]:
    # A topic that was made anew starts at 0.
    pairs = zip(_read_counts(last), _read_counts(now), strict=True)
    return [max(0, new - old) / elapsed_s for old, new in pairs]


def _count_requests(snapshot: MetricsSnapshot) -> int:
    return sum(times.count for times in snapshot.requests.values())
