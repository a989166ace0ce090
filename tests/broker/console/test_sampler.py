from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

from lance_spark.broker.console import sampler as module
from lance_spark.broker.console.sampler import POINTS_MAX, Pulse, Rates, Sampler
from lance_spark.broker.metrics import Metrics
from lance_spark.errors import StorageError, StoreClosed
from lance_spark.store.consumers import ConsumerKey
from tests.broker.kit import PATIENCE_S

if TYPE_CHECKING:
    from lance_spark.broker.service import Service


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def wall_ns(self) -> int:
        return int(self.now_s * 1e9)


class Broker:
    """All that a sampler looks at."""

    def __init__(self, lags: Callable[[], dict[ConsumerKey, int]] = dict) -> None:
        self.metrics = Metrics()
        self.lags = lags
        self.consumer_count = 0


def look_at(broker: Broker, **clocks: Any) -> Sampler:
    return Sampler(cast("Service", broker), **clocks)


class Scene:
    """A sampler with all that it looks at."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lags: dict[ConsumerKey, int] = {}
        self.broker = Broker(lambda: self.lags)
        self.metrics = self.broker.metrics
        self.sampler = look_at(
            self.broker, clock=self.clock, wall_ns=self.clock.wall_ns
        )

    def tick(self, seconds: float = 1.0) -> None:
        self.clock.now_s += seconds
        self.sampler.sample()


def test_before_the_first_look() -> None:
    scene = Scene()
    assert scene.sampler.rates() == Rates() == scene.sampler.rates(7)
    assert scene.sampler.history() == [] == scene.sampler.history(7)
    assert scene.sampler.pulse() == Pulse()
    assert scene.sampler.lag_history(ConsumerKey(1, 1), 10) == []


def test_rates_are_per_second() -> None:
    scene = Scene()
    scene.metrics.appended(1, 10, 1000)
    scene.metrics.appended(2, 30, 500)
    scene.metrics.fetched(1, 4, 400)
    scene.metrics.count("lance", "connections_opened")
    scene.metrics.observe_request("Fetch", 0.1)
    scene.metrics.count_error(0x10)
    scene.tick(2.0)
    assert scene.sampler.rates(1) == Rates(5.0, 500.0, 2.0, 200.0)
    assert scene.sampler.rates(2) == Rates(15.0, 250.0, 0.0, 0.0)
    assert scene.sampler.rates() == Rates(20.0, 750.0, 2.0, 200.0)
    assert scene.sampler.pulse() == Pulse(1, 0.5, 0.5, 1, 0)
    scene.tick()
    assert scene.sampler.rates(1) == Rates() == scene.sampler.rates()
    assert scene.sampler.pulse() == Pulse(1, 0.0, 0.0, 1, 0)
    assert scene.sampler.history(1) == [
        (1_002_000, 5.0, 500.0, 2.0, 200.0),
        (1_003_000, 0.0, 0.0, 0.0, 0.0),
    ]
    # One that never had any.
    assert scene.sampler.history(3) == [
        (1_002_000, 0.0, 0.0, 0.0, 0.0),
        (1_003_000, 0.0, 0.0, 0.0, 0.0),
    ]


def test_errors_of_the_last_minute() -> None:
    scene = Scene()
    scene.metrics.count_error(0x61)
    scene.metrics.count_error(0x10)
    scene.tick()
    for _ in range(59):
        scene.tick()
    assert scene.sampler.pulse().errors_last_min == 2
    assert scene.sampler.pulse().faults_last_min == 1
    scene.tick()
    assert scene.sampler.pulse() == Pulse()


def test_history_is_bounded() -> None:
    scene = Scene()
    for number in range(POINTS_MAX + 5):
        scene.metrics.appended(1, number, 0)
        scene.tick()
    points = scene.sampler.history(1)
    assert [point[1] for point in points] == list(range(5, POINTS_MAX + 5))
    assert points == scene.sampler.history()
    assert points[-1][0] == scene.clock.wall_ns() // 1_000_000


def test_a_topic_that_is_gone() -> None:
    scene = Scene()
    scene.metrics.appended(1, 5, 5)
    scene.tick()
    scene.metrics.forget_topic(1)
    scene.tick()
    assert [point[1] for point in scene.sampler.history(1)] == [5.0, 0.0]
    # Counters that start anew are not a negative rate.
    scene.metrics.appended(1, 2, 2)
    scene.tick()
    assert scene.sampler.rates(1).records_in_per_s == 2.0


def test_a_point_has_so_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    scene = Scene()
    for topic in (1, 2, 3):
        scene.metrics.appended(topic, topic, 0)
        scene.tick()
    firsts = [[p[1] for p in scene.sampler.history(topic)] for topic in (1, 2, 3)]
    assert firsts == [[1, 0, 0], [0, 2, 0], [0, 0, 3]]
    # Busy ones do not throw each other out.
    for _ in range(3):
        for topic in (1, 2, 3):
            scene.metrics.appended(topic, 1, 0)
        scene.tick()
        rates = [scene.sampler.rates(t).records_in_per_s for t in (1, 2, 3)]
        assert rates == [1, 0, 1]
    assert scene.sampler.rates().records_in_per_s == 3
    # An idle one makes room.
    scene.metrics.appended(2, 1, 0)
    scene.tick()
    assert scene.sampler.rates(2).records_in_per_s == 1


def test_lags_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONSUMERS_MAX", 2)
    scene = Scene()
    key, late, over = (ConsumerKey(n, 1) for n in (1, 2, 3))
    for lag in range(5):
        scene.lags[key] = lag
        if lag >= 3:
            scene.lags[late] = 10 * lag
            scene.lags[over] = 1
        scene.tick()
    whole = scene.sampler.lag_history(key, 10)
    assert whole == [(1_001_000 + 1000 * n, n) for n in range(5)]
    assert [lag for _, lag in scene.sampler.lag_history(key, 3)] == [0, 2, 4]
    assert [lag for _, lag in scene.sampler.lag_history(key, 1)] == [4]
    # It has a history since it is there.
    assert [lag for _, lag in scene.sampler.lag_history(late, 10)] == [30, 40]
    assert scene.sampler.lag_history(over, 10) == []
    del scene.lags[key]
    scene.tick()
    assert scene.sampler.lag_history(key, 10) == []
    assert [lag for _, lag in scene.sampler.lag_history(over, 10)] == [1]


def test_very_many_offsets_are_not_measured() -> None:
    scene = Scene()
    key = ConsumerKey(1, 1)
    scene.lags[key] = 5
    scene.broker.consumer_count = module.OFFSETS_MAX
    scene.tick()
    assert [lag for _, lag in scene.sampler.lag_history(key, 10)] == [5]
    scene.broker.consumer_count += 1
    scene.broker.lags = lambda: pytest.fail("they are measured")
    scene.tick()
    assert scene.sampler.lag_history(key, 10) == []


def test_lags_that_can_not_be_measured(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise StorageError("the disk is gone")

    sampler = look_at(Broker(fail))
    with caplog.at_level(logging.DEBUG):
        sampler.sample()
    assert sampler.ticks == 1 and "the disk is gone" in caplog.text


def test_thread(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.001)
    looked = threading.Semaphore(0)
    faults: list[Exception] = [ValueError("a bug")]

    def lags() -> dict[ConsumerKey, int]:
        looked.release()
        if faults:
            raise faults.pop()
        return {}

    sampler = look_at(Broker(lags))
    sampler.start()
    for _ in range(3):
        assert looked.acquire(timeout=PATIENCE_S)
    assert "could not look at the broker" in caplog.text
    # It ends by itself with the store.
    faults.append(StoreClosed("closed"))
    sampler._thread.join(PATIENCE_S)
    assert not sampler._thread.is_alive()
    sampler.stop()
    sampler.stop()


def test_never_started() -> None:
    sampler = look_at(Broker())
    assert sampler.uptime_s >= 0
    sampler.stop()
