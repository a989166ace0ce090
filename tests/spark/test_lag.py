"""How far behind streams are."""

from __future__ import annotations

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.lwp.driver import make_driver
from lance_spark.model import Partition, Retention
from lance_spark.spark.watch import Lag, SeenLog, Watch, add_lags, measure_lag
from tests.each import each
from tests.spark.reading import connect, fill, make_records
from tests.spark.streaming import Requests, delete

SIZE = 25


def look(broker: EmbeddedBroker) -> SeenLog:
    with connect(broker) as client:
        return Watch(lambda name: name == "a").look_now(make_driver(client))[
            Partition("a")
        ]


@each(
    ("retention", "lag", "expected"),
    [
        (None, Lag(100, 4, 7), (None, None)),
        (Retention(0, 0), Lag(100, 4, 7), (None, None)),
        (Retention(0, 900), Lag(100, 4, 7), (800, None)),
        (Retention(0, 900), Lag(1000, 4, 7), (0, None)),
        (Retention(10, 0), Lag(100, 4, 7), (None, 9993)),
        (Retention(10, 0), Lag(100, 4, 20_000), (None, 0)),
        (Retention(10, 0), Lag(0), (None, 10_000)),
        (Retention(10, 0), Lag(100, None), (None, None)),
        (Retention(10, 900), Lag(100, 4, 7), (800, 9993)),
    ],
)
def test_how_much_room_retention_leaves(
    retention: Retention | None, lag: Lag, expected: tuple[int | None, int | None]
) -> None:
    found = lag.to_document(retention, 0)
    assert (found["retentionHeadroomBytes"], found["retentionHeadroomMs"]) == expected


def test_what_is_reported_of_a_topic() -> None:
    assert Lag(100, 4, 7).to_document(None, 12) == {
        "bytesBehind": 100,
        "recordsBehind": 4,
        "oldestUnreadMs": 7,
        "retentionHeadroomBytes": None,
        "retentionHeadroomMs": None,
        "bytesLost": 12,
        "recordsLost": None,
    }


def test_what_is_unread(broker: EmbeddedBroker) -> None:
    fill(broker, "a", make_records(10))
    head = look(broker)
    with connect(broker) as client:
        appended_ns = client.locate_offset("a", 0).append_time_ns
        lag = measure_lag(
            make_driver(client),
            head,
            3 * SIZE,
            clock_ns=lambda: appended_ns + 5_999_999,
        )
        assert lag == Lag(7 * SIZE, 7, 5)
        # A clock that is behind the server's.
        lag = measure_lag(
            make_driver(client), head, 0, clock_ns=lambda: appended_ns - 10**9
        )
        assert lag == Lag(10 * SIZE, 10, 0)


def test_nothing_is_asked_if_all_is_read(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "a", make_records(10))
    head = look(broker)
    with connect(broker) as client:
        driver = make_driver(client)
        requests = Requests(monkeypatch)
        assert measure_lag(driver, head, head.end) == Lag(0, 0, None)
        assert measure_lag(driver, head, 2**63) == Lag(0, 0, None)
    assert requests.count == 0


def test_a_plain_server_does_not_count_records(plain_broker: EmbeddedBroker) -> None:
    fill(plain_broker, "a", make_records(10))
    with connect(plain_broker) as client:
        assert measure_lag(make_driver(client), look(plain_broker), SIZE) == Lag(
            9 * SIZE, None
        )


def test_a_topic_that_is_gone_meanwhile(broker: EmbeddedBroker) -> None:
    fill(broker, "a", make_records(10))
    head = look(broker)
    delete(broker, "a")
    with connect(broker) as client:
        assert measure_lag(make_driver(client), head, SIZE) == Lag(9 * SIZE, None)


@pytest.mark.parametrize(
    ("lags", "expected"),
    [
        ([Lag(5, 1, 7)], Lag(5, 1, 7)),
        ([Lag(5, 1, 7), Lag(0)], Lag(5, 1, 7)),
        ([Lag(5, 1, 7), Lag(6, 2, 9)], Lag(11, 3, 9)),
        ([Lag(5, 1, 7), Lag(6, None)], Lag(11, None, 7)),
    ],
)
def test_the_lag_of_several_partitions(lags: list[Lag], expected: Lag) -> None:
    assert add_lags(lags) == expected
