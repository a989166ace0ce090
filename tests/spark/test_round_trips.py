"""How often a server is asked: to plan, and in a task before its first fetch.

Latency is paid for each of these requests, once per plan and once per split.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.spark.pool import clear_pool
from tests.spark.reading import fill, make_reader, make_records
from tests.spark.streaming import Engine, Requests

# Of 25 bytes each, so that one fetch of 64 KB has not all of them.
RECORDS = make_records(8000)


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


def ask(
    broker: EmbeddedBroker, patch: pytest.MonkeyPatch, **given: Any
) -> tuple[list[str], list[list[str]]]:
    """Plan a read and run its tasks; give what the server was asked for in each."""
    reader = make_reader(broker, **given)
    # The connection is made and kept.
    reader.partitions()
    requests = Requests(patch)
    partitions = reader.partitions()
    planned, tasks = requests.names[:], []
    for partition in partitions:
        requests.names.clear()
        for _ in reader.read(partition):
            pass
        tasks.append(requests.names[:])
    return planned, tasks


def others(names: list[str]) -> list[str]:
    return [name for name in names if name != "Fetch"]


def test_a_topic_of_one_split(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: three to plan, four before the first fetch and one at the end."""
    fill(broker, "a", make_records(10))
    planned, [task] = ask(broker, monkeypatch, topic="a")
    assert planned == ["ListTopics"]
    assert task == ["Fetch", "GetTopic"]


def test_many_topics_are_planned_with_one_request(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: two more for each topic."""
    for number in range(20):
        fill(broker, f"t-{number}", make_records(1))
    planned, tasks = ask(broker, monkeypatch, topicPattern="t-.*")
    assert planned == ["ListTopics"]
    assert tasks == [["Fetch", "GetTopic"]] * 20


def test_a_topic_of_several_splits(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: five before the first fetch and one at the end."""
    fill(broker, "a", RECORDS)
    planned, tasks = ask(broker, monkeypatch, topic="a", minPartitions=3)
    assert planned == ["ListTopics"]
    for number, task in enumerate(tasks):
        # Whether the point is inside a record, or retention has passed it.
        assert task.index("Fetch") <= (2 if number else 0)
        # That the topic is the same one, and where the next split starts.
        assert len(others(task)) <= 6


def test_a_plain_server(
    plain_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: one more before the first fetch; the marks are read in both."""
    fill(plain_broker, "a", make_records(10))
    planned, [task] = ask(plain_broker, monkeypatch, topic="a")
    # Where it ends, and its mark.
    assert planned == ["ListTopics", "Fetch", "Fetch"]
    assert others(task) == ["GetTopic"]
    assert len(task) == 4


def test_a_micro_batch(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: three to plan the ranges, and four before the first fetch."""
    fill(broker, "a", make_records(10))
    engine = Engine(broker, topic="a", startingOffsets="earliest")
    engine.drain()
    fill(broker, "a", make_records(10))
    requests = Requests(monkeypatch)
    assert engine.step()
    # The look, whether the start is a record, the range, and the task.
    assert requests.names == ["Wait", "Locate", "GetTopic", "Fetch", "GetTopic"]
