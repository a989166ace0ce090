"""How fast keepalives may be sent."""

from __future__ import annotations

from lance_spark.broker import BrokerConfig
from lance_spark.broker.budget import TokenBucket
from lance_spark.client.pace import PINGS_MAX, WINDOW_S, Pace


def test_a_few_go_at_once() -> None:
    pace = Pace()
    for _ in range(PINGS_MAX):
        assert pace.delay_s(100.0) == 0.0
        pace.note(100.0)
    assert pace.delay_s(100.0) == WINDOW_S
    assert pace.delay_s(104.0) == WINDOW_S - 4.0
    assert pace.delay_s(200.0) == 0.0


def test_the_broker_answers_them_all() -> None:
    now_s = 0.0
    config, pace = BrokerConfig(), Pace()
    bucket = TokenBucket(
        config.keepalive_rate, config.keepalive_burst, clock=lambda: now_s
    )
    for _ in range(500):
        now_s += pace.delay_s(now_s)
        pace.note(now_s)
        assert bucket.take() == 0.0
