"""A broker that looks like one in use: three topics, a group that lags, open stages."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import (
    Consumer,
    GroupedConsumer,
    LanceClient,
    Producer,
    StageWriter,
)
from lance_spark.model import Retention

_PAGES = ("/", "/cart", "/search?q=lamp", "/product/1042", "/checkout")
_CITIES = ("Lyon", "Porto", "Graz", "Leeds", "Turin", "Ghent")
# How often each thread does something; the rates below are per second.
_STEP_S = 0.05


def _order(n: int, chance: random.Random) -> tuple[str, dict[str, Any]]:
    customer = f"c-{chance.randrange(900):03}"
    items = [
        {"sku": f"A-{chance.randrange(1000, 1100)}", "count": chance.randrange(1, 4)}
        for _ in range(chance.randrange(1, 4))
    ]
    return customer, {
        "order": 100_000 + n,
        "customer": customer,
        "city": chance.choice(_CITIES),
        "total": round(chance.uniform(9, 240), 2),
        "items": items,
    }


def _payment(n: int, chance: random.Random) -> tuple[str, dict[str, Any]]:
    return f"o-{100_000 + n}", {
        "order": 100_000 + n,
        "method": chance.choice(("card", "transfer", "voucher")),
        "amount": round(chance.uniform(9, 240), 2),
        "ok": chance.random() < 0.97,
    }


def _click(n: int, chance: random.Random) -> tuple[str, dict[str, Any]]:
    return f"s-{chance.randrange(5000):04}", {
        "page": chance.choice(_PAGES),
        "ms": int(chance.expovariate(1 / 180)),
    }


_Make = Callable[[int, random.Random], tuple[str, dict[str, Any]]]
# Topic, what is in it, how many records are there before, and then per second.
_TOPICS: tuple[tuple[str, _Make, int, float, Retention], ...] = (
    ("clicks", _click, 60_000, 900, Retention(max_age_s=86_400)),
    ("orders", _order, 24_000, 320, Retention(max_age_s=604_800)),
    ("payments", _payment, 21_000, 140, Retention(max_bytes=50 * 2**30)),
)


def _table(make: _Make, first: int, count: int, chance: random.Random) -> pa.Table:
    made = [make(n, chance) for n in range(first, first + count)]
    return pa.table(
        {
            "key": [key.encode() for key, _ in made],
            "value": [json.dumps(value).encode() for _, value in made],
        }
    )


def _produce(client: LanceClient, stop: threading.Event, at: int) -> None:
    name, make, first, per_s, _ = _TOPICS[at]
    chance = random.Random(at)
    began_s = time.monotonic()
    with Producer(client, name) as producer:
        while not stop.wait(_STEP_S):
            wave = 1 + 0.35 * math.sin((time.monotonic() - began_s) / 7 + at)
            count = int(per_s * _STEP_S * wave * chance.uniform(0.8, 1.2)) + 1
            producer.write(_table(make, first, count, chance))
            first += count


def _consume(client: LanceClient, stop: threading.Event) -> None:
    """Read orders and payments in a group, which stalls now and then."""
    with GroupedConsumer(
        client,
        "billing",
        ["orders", "payments"],
        auto_commit=False,
        offset_reset="latest",
        # Little at a time, so that catching up takes a while.
        fetch_bytes=6 * 1024,
    ) as member:
        began_s = time.monotonic()
        while not stop.wait(_STEP_S):
            if math.sin((time.monotonic() - began_s) / 4) < 0.6:
                member.poll(timeout_s=0.05)
            member.commit()


def _watch(client: LanceClient, stop: threading.Event) -> None:
    with Consumer(client, "clicks", name="dashboard") as consumer:
        consumer.seek_to_end()
        while not stop.wait(_STEP_S):
            consumer.poll()
            consumer.commit()


def fill(broker: EmbeddedBroker, *, share: float = 1.0) -> None:
    """Write what was there before anybody looks.

    Args:
        broker: a broker without topics.
        share: how much of it, at most 1.
    """
    chance = random.Random(7)
    with LanceClient(broker.address) as client:
        for name, make, count, _, retention in _TOPICS:
            client.create_topic(name, retention=retention)
            with Producer(client, name) as producer:
                producer.write(_table(make, 0, int(count * share), chance))
        for topic in ("orders", "payments"):
            with StageWriter(client, topic, f"nightly-load/{topic}", 41) as stage:
                stage.write(_table(_order, 0, 500, chance))
                stage.finish()


@contextmanager
def busy(broker: EmbeddedBroker) -> Iterator[None]:
    """Keep a broker that is filled busy for as long as the block runs."""
    stop = threading.Event()
    with ExitStack() as stack:

        def connect() -> LanceClient:
            return stack.enter_context(LanceClient(broker.address))

        work: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            *((_produce, (connect(), stop, at)) for at in range(len(_TOPICS))),
            (_consume, (connect(), stop)),
            (_consume, (connect(), stop)),
            (_watch, (connect(), stop)),
        ]
        threads = [threading.Thread(target=run, args=given) for run, given in work]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
