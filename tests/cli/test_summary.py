"""What a server tells of topics and groups."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lance_spark.cli.summary import (
    ActiveGroup,
    ConsumerLag,
    read_groups,
    show,
    show_bytes,
    show_retention,
    summarise,
)
from lance_spark.client import Bounds, LanceClient
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


def test_consumers() -> None:
    entries = [
        {"consumer_id": 1, "committed_offset": 60, "max_batch_bytes": None},
        {"consumer_id": 2, "committed_offset": None, "max_batch_bytes": 5},
        # Behind what retention has left, and ahead of a log that was made anew.
        {"consumer_id": 3, "committed_offset": 10},
        {"consumer_id": 4, "committed_offset": 500},
        {"no": "number"},
        "nonsense",
    ]
    details = {"log_start": 50, "log_end": 100, "record_count": 9, "consumers": entries}
    found = summarise(_client(), TopicInfo(1, "t", details=details))
    assert found.consumers == (
        ConsumerLag(1, 60, 40),
        ConsumerLag(2, None, 50),
        ConsumerLag(3, 10, 50),
        ConsumerLag(4, 500, 0),
    )
    assert (found.size, found.records) == (50, 9)
    assert found.find_lag(1) == ConsumerLag(1, 60, 40)
    assert found.find_lag(9) == ConsumerLag(9, None, 50)


def test_plain_server() -> None:
    details = {
        "consumers": [{"consumer_id": 1}, {"consumer_id": 2, "committed_offset": 7}]
    }
    found = summarise(_client(), TopicInfo(1, "t", details=details))
    assert (found.log_start, found.log_end, found.size) == (None, 77, None)
    assert found.consumers == (ConsumerLag(1, None, None), ConsumerLag(2, 7, 70))
    assert found.find_lag(3) == ConsumerLag(3, None, None)
    assert found.to_document()["max_bytes"] is None
    strange = TopicInfo(1, "t", details={"consumers": 5, "log_end": "x"})
    assert summarise(_client(), strange).consumers is None


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
        ActiveGroup("g", 3, "range", {"m": ("a", "b")}),
        ActiveGroup("h", None, "-", {}),
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


def test_show() -> None:
    assert (show(None), show(0), show(12345)) == ("-", "0", "12345")
    assert (show_bytes(None), show_bytes(1500)) == ("-", "1.5 kB")
