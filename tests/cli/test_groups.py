"""`lance-spark groups`."""

from __future__ import annotations

import json

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer, consumer_id
from lance_spark.errors import TopicNotFound
from lance_spark.wire.lwp import AssignmentStrategy
from tests.cli.conftest import Run


def test_no_groups(ask: Run) -> None:
    assert ask("groups") == (0, "", "no groups\n")
    assert ask("groups", "--json") == (0, "", "")


def test_groups(ask: Run, client: LanceClient, topic: str) -> None:
    with Producer(client, topic) as producer:
        producer.send(b"12345")
        producer.send(b"67890")
    client.commit_offset(topic, consumer_id("etl"), 10)
    sticky = AssignmentStrategy.STICKY
    client.join_group("etl", [topic], member="m1", strategy=sticky)
    generation = client.join_group(
        "etl", [topic], member="m2", strategy=sticky
    ).generation
    client.join_group("new", [topic], member="m3")
    done = ask("groups")
    listed = ask("groups", "--json")
    for group, member in (("etl", "m1"), ("etl", "m2"), ("new", "m3")):
        client.leave_group(group, member)
    assert (done.code, done.err) == (0, "")
    assert [" ".join(line.split()) for line in done.lines] == [
        "group generation strategy member committed lag topic",
        f"etl {generation} sticky m1 10 10 {topic}",
        f"etl {generation} sticky m2 - - -",
        f"new 1 range m3 - 20 {topic}",
    ]
    first, second = (json.loads(line) for line in listed.lines)
    place = {"topic": topic, "committed_offset": 10, "lag_bytes": 10}
    assert first == {
        "group": "etl",
        "generation": generation,
        "strategy": "sticky",
        "members": [
            {"member": "m1", "topics": [place]},
            {"member": "m2", "topics": []},
        ],
    }
    assert second["members"][0]["topics"][0]["committed_offset"] is None


def test_topic_that_is_gone(
    ask: Run, client: LanceClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.join_group("late", [topic], member="m")

    def vanish(self: LanceClient, topic: str) -> None:
        raise TopicNotFound("gone")

    with monkeypatch.context() as patch:
        patch.setattr(LanceClient, "topic", vanish)
        done = ask("groups")
    client.leave_group("late", "m")
    assert done.code == 0
    assert done.lines[1].split() == ["late", "1", "range", "m", "-", "-", topic]


def test_plain_server(run: Run, plain_server: EmbeddedBroker) -> None:
    done = run("groups", "-s", plain_server.address, "--checksum", "crc32")
    assert (done.code, done.out) == (1, "")
    assert "consumer groups" in done.err and done.err.count("\n") == 1
