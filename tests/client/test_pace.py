"""How fast keepalives may be sent."""

from __future__ import annotations

from collections import deque

from lance_spark.broker import BrokerConfig
from lance_spark.broker.bucket import TokenBucket
from lance_spark.client.connection import PING_WINDOW_S, PINGS_MAX, plan_ping_delay_s


def test_a_few_go_at_once() -> None:
    sent_s: deque[float] = deque(maxlen=PINGS_MAX)
    for _ in range(PINGS_MAX):
        assert plan_ping_delay_s(sent_s, 100.0) == 0.0
        sent_s.append(100.0)
    assert plan_ping_delay_s(sent_s, 100.0) == PING_WINDOW_S
    assert plan_ping_delay_s(sent_s, 104.0) == PING_WINDOW_S - 4.0
    assert plan_ping_delay_s(sent_s, 200.0) == 0.0


def test_the_broker_answers_them_all() -> None:
    now_s = 0.0
    config = BrokerConfig()
    sent_s: deque[float] = deque(maxlen=PINGS_MAX)
    bucket = TokenBucket(
        config.keepalive_rate, config.keepalive_burst, clock=lambda: now_s
    )
    for _ in range(500):
        now_s += plan_ping_delay_s(sent_s, now_s)
        sent_s.append(now_s)
        assert bucket.take() == 0.0
