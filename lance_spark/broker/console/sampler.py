"""Rates over time: the counters of the broker, looked at once a second.

One thread for all visitors, and one table of bounded size for each topic that has had
traffic and each consumer: a console without visitors costs next to nothing, and
one that many look at no more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from lance_spark.broker.metrics import Metrics, MetricsSnapshot, Traffic
from lance_spark.errors import LanceError, StoreClosed
from lance_spark.store.consumers import ConsumerKey

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
POINTS_MAX = 600
# 600 points of 4 numbers are 19 KiB, those of one number 5 KiB.
TOPICS_MAX = 256
CONSUMERS_MAX = 256
# With more offsets than this, to look at all of them each second is too much.
OFFSETS_MAX = 10_000
# What the broker answers when the fault is its own or its disk's.
FAULT_CODES = (0x60, 0x61)
_STOP_S = 5.0

_Key = TypeVar("_Key")
Point = tuple[int, float, float, float, float]


@dataclass(frozen=True, slots=True)
class Rates:
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


class Sampler:
    """Looks at the counters now and then; any thread may ask.

    Args:
        metrics: the counters.
        lags: measures how far behind each consumer is.
        clock: monotonic seconds.
        wall_ns: the time of day.
        topics_max: how many topics have a history, those with the latest traffic.
        consumers_max: how many consumers have one.
    """

    def __init__(
        self,
        metrics: Metrics,
        lags: Callable[[], Mapping[ConsumerKey, int]],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        topics_max: int = TOPICS_MAX,
        consumers_max: int = CONSUMERS_MAX,
    ) -> None:
        self._metrics = metrics
        self._lags = lags
        self._clock = clock
        self._wall_ns = wall_ns
        # Around everything below, for moments.
        self._lock = threading.Lock()
        self._last = metrics.snapshot()
        self._last_s = clock()
        self.started_s = self._last_s
        self._ticks = 0
        self._times: NDArray[np.int64] = np.zeros(POINTS_MAX, np.int64)
        self._total: NDArray[np.float64] = np.zeros((POINTS_MAX, 4))
        # Errors, and the broker's own faults among them.
        self._errors: NDArray[np.int64] = np.zeros((POINTS_MAX, 2), np.int64)
        self._topics: _Tables[int] = _Tables(topics_max, 4)
        self._consumers: _Tables[ConsumerKey] = _Tables(consumers_max, 1)
        self._pulse = Pulse(connections=self._last.connections)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="lance-console-sampler", daemon=True
        )

    @property
    def ticks(self) -> int:
        """How often it has looked."""
        return self._ticks

    @property
    def uptime_s(self) -> float:
        """How long it has been there, which is as long as its broker."""
        return self._clock() - self.started_s

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
        now, now_s = self._metrics.snapshot(), self._clock()
        lags = self._find_lags()
        with self._lock:
            elapsed_s = max(now_s - self._last_s, 1e-3)
            row = self._ticks % POINTS_MAX
            last = self._last
            self._times[row] = self._wall_ns() // 1_000_000
            self._total[row] = _rate(last.traffic, now.traffic, elapsed_s)
            self._errors[row] = _count_errors(last, now)
            rates = {
                topic: _rate(last.topics.get(topic, Traffic()), traffic, elapsed_s)
                for topic, traffic in now.topics.items()
            }
            moved = {topic: rate for topic, rate in rates.items() if any(rate)}
            self._topics.put(row, moved, keep=now.topics.keys())
            behind = {key: (lag,) for key, lag in lags.items()}
            self._consumers.put(row, behind, keep=lags.keys())
            self._ticks += 1
            self._pulse = self._measure(last, now, elapsed_s)
            self._last, self._last_s = now, now_s

    def _find_lags(self) -> Mapping[ConsumerKey, int]:
        try:
            lags = self._lags()
        except StoreClosed:
            raise
        except LanceError as error:
            logger.debug("the console could not measure lags: %s", error)
            return {}
        return lags if len(lags) <= OFFSETS_MAX else {}

    def _measure(
        self, last: MetricsSnapshot, now: MetricsSnapshot, elapsed_s: float
    ) -> Pulse:
        requests = _count_requests(now) - _count_requests(last)
        minute = self._errors[self._rows(60)].sum(axis=0)
        errors, _ = _count_errors(last, now)
        return Pulse(
            now.connections,
            max(0, requests) / elapsed_s,
            errors / elapsed_s,
            int(minute[0]),
            int(minute[1]),
        )

    # Asking.

    def pulse(self) -> Pulse:
        """Tell what the broker does at the moment."""
        with self._lock:
            return self._pulse

    def rates(self, topic: int | None = None) -> Rates:
        """Tell the rates of the last second, of a topic or of all together."""
        with self._lock:
            rows = self._rows(1)
            if not len(rows):
                return Rates()
            table = self._table(topic)
            return Rates() if table is None else Rates(*table[rows[0]].tolist())

    def history(self, topic: int | None = None) -> list[Point]:
        """Give the rates over time, oldest first."""
        with self._lock:
            rows = self._rows(POINTS_MAX)
            table = self._table(topic)
            times = self._times[rows].tolist()
            if table is None:
                return [(time_ms, 0.0, 0.0, 0.0, 0.0) for time_ms in times]
            rates = table[rows].tolist()
        return [(at, *row) for at, row in zip(times, rates, strict=True)]

    def lag_history(self, key: ConsumerKey, points_max: int) -> list[tuple[int, int]]:
        """Give how far behind a consumer was over time, at most so many points."""
        with self._lock:
            table, since = self._consumers.get(key)
            if table is None:
                return []
            rows = self._rows(min(POINTS_MAX, self._ticks - since))
            # From the end, so that the newest point is always there.
            rows = rows[:: -max(1, -(-len(rows) // points_max))][::-1]
            times, lags = self._times[rows].tolist(), table[rows, 0].tolist()
        return [(at, int(lag)) for at, lag in zip(times, lags, strict=True)]

    def _table(self, topic: int | None) -> NDArray[np.float64] | None:
        return self._total if topic is None else self._topics.get(topic)[0]

    def _rows(self, count: int) -> NDArray[np.int64]:
        """Give the rows of the last points, oldest first."""
        count = min(count, self._ticks, POINTS_MAX)
        return np.arange(self._ticks - count, self._ticks) % POINTS_MAX


class _Tables(Generic[_Key]):
    """A table of points for each of some keys; the one that is idle longest goes."""

    def __init__(self, keys_max: int, width: int) -> None:
        self._keys_max = keys_max
        self._width = width
        self._ticks = 0
        self._tables: OrderedDict[_Key, tuple[NDArray[np.float64], int]] = OrderedDict()

    def get(self, key: _Key) -> tuple[NDArray[np.float64] | None, int]:
        """Give a table and the number of its first point."""
        return self._tables.get(key, (None, 0))

    def put(
        self,
        row: int,
        values: Mapping[_Key, tuple[float, ...]],
        *,
        keep: Set[_Key],
    ) -> None:
        """Fill a row: with values, and with zeros where there is none.

        Args:
            row: which one.
            values: by key; a key that is new gets a table.
            keep: the keys that there are; others lose their tables.
        """
        for key in self._tables.keys() - keep:
            del self._tables[key]
        for table, _ in self._tables.values():
            table[row] = 0
        # Only idle ones make room, and each put as often as there are tables at most:
        # many busy keys must not take turns in throwing each other out.
        idle = iter([key for key in self._tables if key not in values])
        for key, value in values.items():
            if key not in self._tables and not self._add(key, idle):
                continue
            self._tables.move_to_end(key)
            self._tables[key][0][row] = value
        self._ticks += 1

    def _add(self, key: _Key, idle: Iterator[_Key]) -> bool:
        if len(self._tables) >= self._keys_max:
            victim = next(idle, None)
            if victim is None:
                return False
            del self._tables[victim]
        self._tables[key] = np.zeros((POINTS_MAX, self._width)), self._ticks
        return True


def _rate(last: Traffic, now: Traffic, elapsed_s: float) -> tuple[float, ...]:
    # A topic that was made anew starts at 0.
    return tuple(
        max(0, getattr(now, name) - getattr(last, name)) / elapsed_s
        for name in ("records_in", "bytes_in", "records_out", "bytes_out")
    )


def _count_requests(snapshot: MetricsSnapshot) -> int:
    return sum(times.count for times in snapshot.requests.values())


def _count_errors(last: MetricsSnapshot, now: MetricsSnapshot) -> tuple[int, int]:
    new = {code: n - last.errors.get(code, 0) for code, n in now.errors.items()}
    return sum(new.values()), sum(new.get(code, 0) for code in FAULT_CODES)
