"""What a server tells of topics and groups."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lance_spark.cli.summary import (
    Document,
    find_lag,
    read_groups,
    show_retention,
    summarise,
)
from lance_spark.client import Bounds, LanceClient, consumer_id
from lance_spark.model import Retention
from lance_spark.wire.lwp import ClusterStatus, TopicInfo


class FakeClient:
    def __init__(self, **details: Any) -> None:
        self._details = details

    def bounds(self, topic: int) -> Bounds:
        return Bounds(None, 77)

    def status(self) -> ClusterStatus:
        return ClusterStatus(details=self._details)


def _client(**details: Any) -> LanceClient:
    return cast(LanceClient, FakeClient(**details))


def _lags(topic: Document) -> list[tuple[Any, ...]]:
    return [tuple(consumer.values()) for consumer in topic["consumers"]]


def test_consumers() -> None:
    entries: list[Any] = [
        {"consumer_id": 1, "committed_offset": 60, "max_batch_bytes": None},
        {"consumer_id": 2, "committed_offset": None, "max_batch_bytes": 5},
        # Behind what retention has left, and ahead of a log that was made anew.
        {"consumer_id": 3, "committed_offset": 10},
        {"consumer_id": 4, "committed_offset": 500},
        {"no": "number"},
        "nonsense",
    ]
    details = {"log_start": 50, "log_end": 100, "record_count": 9, "consumers": entries}
    entries.append({"consumer_id": consumer_id("g"), "committed_offset": 70})
    names = {1: "one", consumer_id("g"): "g"}
    found = summarise(_client(), TopicInfo(1, "t", details=details), names)
    assert _lags(found) == [
        (1, "one", 60, 40),
        (2, None, None, 50),
        (3, None, 10, 50),
        (4, None, 500, 0),
        (consumer_id("g"), "g", 70, 30),
    ]
    assert (found["bytes"], found["records"]) == (50, 9)
    assert find_lag(found, "g") == {"committed_offset": 70, "lag_bytes": 30}
    assert find_lag(found, "new") == {"committed_offset": None, "lag_bytes": 50}


def test_plain_server() -> None:
    details = {
        "consumers": [{"consumer_id": 1}, {"consumer_id": 2, "committed_offset": 7}]
    }
    found = summarise(_client(), TopicInfo(1, "t", details=details))
    place = (found["log_start"], found["log_end"], found["bytes"])
    assert place == (None, 77, None)
    assert _lags(found) == [(1, None, None, None), (2, None, 7, 70)]
    assert find_lag(found, "g") == {"committed_offset": None, "lag_bytes": None}
    assert found["max_bytes"] is None
    strange = TopicInfo(1, "t", details={"consumers": 5, "log_end": "x"})
    assert summarise(_client(), strange)["consumers"] is None


def test_groups() -> None:
    groups = [
        {
            "group": "g",
            "generation": 3,
            "strategy": "range",
            "members": [{"member": "m", "topics": ["b", "a"]}, "nonsense"],
        },
        {"group": "h"},
        {"group": ""},
        7,
    ]
    assert read_groups(_client(groups=groups)) == [
        {
            "group": "g",
            "generation": 3,
            "strategy": "range",
            "members": [{"member": "m", "topics": ["a", "b"]}],
        },
        {"group": "h", "generation": None, "strategy": "-", "members": []},
    ]
    assert read_groups(_client()) == read_groups(_client(groups={})) == []


@pytest.mark.parametrize(
    ("retention", "text"),
    [
        (None, "-"),
        (Retention(), "no limit"),
        (Retention(60, 0), "1m"),
        (Retention(0, 1024), "1k"),
        (Retention(60, 5), "1m, 5"),
    ],
)
def test_show_retention(retention: Retention | None, text: str) -> None:
    assert show_retention(retention) == text
