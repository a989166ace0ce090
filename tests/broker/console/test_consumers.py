"""Consumers and groups, as a broker with clients has them."""

from __future__ import annotations

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.access import Principal
from lance_spark.broker.assignment import Strategy
from lance_spark.broker.console import consumers as module
from lance_spark.broker.console.consumers import find_consumer_id
from lance_spark.client.lwp.offsets import consumer_id
from lance_spark.errors import Corrupt
from tests.broker.console.visit import Visitor, add_topic
from tests.broker.kit import records

NOBODY = Principal()


@pytest.mark.parametrize("name", ["readers", "grüße", "x" * 255])
def test_number_of_a_group_is_that_of_the_client(name: str) -> None:
    assert find_consumer_id(name) == consumer_id(name)


def test_consumers(broker: EmbeddedBroker, visitor: Visitor) -> None:
    assert visitor.get("/api/consumers") == {
        "groups": [],
        "consumers": [],
        "left_out": 0,
    }
    topic = add_topic(broker, "t", records("x", 10), records("y", 10))
    other = add_topic(broker, "empty")
    service = broker.service
    large = 2**64 - 1
    service.commit_offset(NOBODY, topic, large, 5 * 25)
    # One that is there and has not committed.
    service.subscribe(NOBODY, topic, 3, start=1, max_batch_bytes=10)
    service.commit_offset(NOBODY, other, 1, 0)
    assert broker._console is not None
    broker._console._sampler.sample()
    found = visitor.get("/api/consumers")["consumers"]
    by_id = {row["id"]: row for row in found}
    assert sorted(by_id) == ["1", str(large), "3"] and len(found) == 3
    history = by_id[str(large)].pop("history")
    assert history and {lag for _, lag in history} == {15 * 25}
    assert by_id[str(large)] == {
        "id": str(large),
        "topic": "t",
        "committed": 125,
        "bytes_behind": 375,
        "records_behind": 15,
        "group": None,
    }
    assert by_id["3"] == {
        "id": "3",
        "topic": "t",
        "committed": None,
        "bytes_behind": None,
        "records_behind": None,
        "group": None,
        "history": [],
    }
    assert (by_id["1"]["bytes_behind"], by_id["1"]["records_behind"]) == (0, 0)


def test_groups(broker: EmbeddedBroker, visitor: Visitor) -> None:
    add_topic(broker, "a", records("x", 4))
    add_topic(broker, "b", records("x", 4))
    service = broker.service
    for member in ("one", "two"):
        service.join_group(
            NOBODY,
            "readers",
            member,
            topics=["a", "b", "later"],
            strategy=Strategy.ROUND_ROBIN,
            session_timeout_s=60,
        )
    generation = service.beat_group(NOBODY, "readers", "one", 1).generation
    service.beat_group(NOBODY, "readers", "one", generation)
    service.beat_group(NOBODY, "readers", "two", generation)
    service.commit_offset(NOBODY, 1, consumer_id("readers"), 25)
    found = visitor.get("/api/consumers")
    (group,) = found["groups"]
    assert group["name"] == "readers" and group["generation"] == generation
    assert group["strategy"] == "round-robin"
    assert [member["id"] for member in group["members"]] == ["one", "two"]
    for member in group["members"]:
        assert member["topics"] == ["a", "b", "later"]
        assert set(member["assigned"]) <= {"a", "b", "later"}
    assigned = [topic for member in group["members"] for topic in member["assigned"]]
    assert sorted(assigned) == ["a", "b", "later"]
    assert group["lag"] == [
        {"topic": "a", "committed": 25, "bytes_behind": 75, "records_behind": 3}
    ]
    (consumer,) = found["consumers"]
    assert consumer["group"] == "readers"


def test_bounds(
    broker: EmbeddedBroker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONSUMERS_MAX", 2)
    topic = add_topic(broker, "t")
    for consumer in range(5):
        broker.service.store.commit_offset(consumer, topic, 0)
    found = visitor.get("/api/consumers")
    assert len(found["consumers"]) == 2 and found["left_out"] == 3


def test_groups_are_not_left_out(
    broker: EmbeddedBroker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONSUMERS_MAX", 2)
    topic = add_topic(broker, "t", records("x", 4))
    for consumer in range(5):
        broker.service.store.commit_offset(consumer, topic, 0)
    join(broker, "readers", "one", "t")
    broker.service.commit_offset(NOBODY, topic, consumer_id("readers"), 25)
    found = visitor.get("/api/consumers")
    assert [row["group"] for row in found["consumers"]] == ["readers", None]
    assert found["left_out"] == 4
    (group,) = found["groups"]
    assert [row["committed"] for row in group["lag"]] == [25]


def test_names_that_are_no_unicode(broker: EmbeddedBroker, visitor: Visitor) -> None:
    # JSON can have half a character, and a client may call itself that.
    join(broker, "g\ud800", "m\udfff", "t\ud800")
    (group,) = visitor.get("/api/consumers")["groups"]
    assert group["name"] == "g?"
    assert (group["members"][0]["id"], group["members"][0]["topics"]) == ("m?", ["t?"])


def join(broker: EmbeddedBroker, group: str, member: str, topic: str) -> None:
    """Join a group."""
    broker.service.join_group(
        NOBODY,
        group,
        member,
        topics=[topic],
        strategy=Strategy.ROUND_ROBIN,
        session_timeout_s=60,
    )


def test_very_many_offsets_are_not_measured(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = add_topic(broker, "t", records("x", 4))
    broker.service.store.commit_offset(7, topic, 25)
    console = broker._console
    assert console is not None
    assert list(console._find_lags().values()) == [75]
    monkeypatch.setattr("lance_spark.broker.console.console.OFFSETS_MAX", 0)
    monkeypatch.delattr("lance_spark.broker.service.Service.lags")
    assert console._find_lags() == {}


def test_damage_does_not_hide_a_consumer(
    broker: EmbeddedBroker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise Corrupt("topic 1", 0, 1, "torn")

    topic = add_topic(broker, "t", records("x", 2))
    broker.service.store.commit_offset(1, topic, 25)
    monkeypatch.setattr(broker.service, "locate", fail)
    (found,) = visitor.get("/api/consumers")["consumers"]
    assert (found["bytes_behind"], found["records_behind"]) == (25, None)


def test_a_consumer_that_retention_has_passed(
    broker: EmbeddedBroker, visitor: Visitor
) -> None:
    topic = add_topic(broker, "t", records("x", 4))
    store = broker.service.store
    store.commit_offset(7, topic, 25)
    # What replaces the content of a topic moves the start of its log.
    store.commit_stages("writer", 1, [], ["t"])
    (found,) = visitor.get("/api/consumers")["consumers"]
    assert (found["bytes_behind"], found["records_behind"]) == (75, 0)
    health = visitor.get("/api/overview")["health"]
    (note,) = health["notes"]
    assert "passed 1 consumer" in note["text"] and "7 in t" in note["text"]
