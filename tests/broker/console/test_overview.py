"""What the overview knows that requests do not show by themselves."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.access import Principal
from lance_spark.broker.assignment import Strategy
from lance_spark.broker.console import overview as module
from lance_spark.broker.console.overview import (
    GIB,
    Overview,
    find_consumer_id,
    judge,
)
from lance_spark.broker.console.sampler import Pulse, Rates, Sampler
from lance_spark.client.log import connect
from lance_spark.client.lwp.offsets import consumer_id
from lance_spark.errors import Corrupt
from lance_spark.net.address import Address
from lance_spark.store import Finding, Severity
from tests.broker.console.visit import Visitor, add_topic
from tests.broker.kit import StartBroker, records
from tests.each import each


def test_damage_at_the_start(start: StartBroker, directory: Path) -> None:
    path = directory / "data"
    with EmbeddedBroker(data_dir=str(path), fsync="none") as broker:
        add_topic(broker, "t", records("x", 3))
    (path / "consumers.log").write_bytes(b"?" * 100)
    visitor = Visitor(start(ui=True, data_dir=str(path)))
    health = visitor.get("/api/overview")["health"]
    assert health["status"] == "error"
    assert "consumers.log" in health["notes"][0]["text"]


def test_a_disk_that_can_not_be_asked(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", fail)
        found = visitor.get("/api/overview")
    assert found["broker"]["disk_total_bytes"] == 0
    assert found["health"]["status"] == "ok"


def test_too_many_offsets_are_not_looked_at(
    broker: EmbeddedBroker, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = add_topic(broker, "t", records("x", 4))
    broker.service.store.commit_offset(7, topic, 25)
    broker.service.store.commit_stages("writer", 1, [], ["t"])
    assert visitor.get("/api/overview")["health"]["notes"]
    monkeypatch.setattr(module, "OFFSETS_MAX", 0)
    assert visitor.get("/api/overview")["health"]["notes"] == []


class Moving(Sampler):
    """One that looks at the broker each time that somebody asks it for rates."""

    def rates(self, topic: int | None = None) -> Rates:
        found = super().rates(topic)
        self.sample()
        return found


def test_the_number_of_an_overview(broker: EmbeddedBroker) -> None:
    """Numbers rise by one, unless rates of some second are missing between two."""
    service, addresses = broker.service, {"lance": Address("127.0.0.1", 1)}
    sampler = Sampler(service)
    overview = Overview(service, broker.config, sampler, addresses)
    for number in range(3):
        assert overview.describe(Principal())["tick"] == number
        sampler.sample()
    moving = Moving(service)
    overview = Overview(service, broker.config, moving, addresses)
    told = overview.describe(Principal())["tick"]
    # The next one is two behind it, at least.
    assert moving.ticks == 1 and told + 2 <= moving.ticks


def test_a_rule_that_protects_nothing(start: StartBroker) -> None:
    rule = {"auth": {"mtls_enabled": False, "allowed_cns": ["b", "a"]}}
    visitor = Visitor(start(ui=True, topics={"t": rule}))
    found = visitor.get("/api/topics/t")
    expected = {"mtls": False, "allowed_cns": ["a", "b"], "allowed_topics": []}
    assert found["rule"] == expected
    assert visitor.get("/api/overview")["health"]["status"] == "ok"


def test_protocols_and_partitions(start: StartBroker) -> None:
    broker = start(ui=True, rustlog="127.0.0.1:0", tank="127.0.0.1:0")
    visitor = Visitor(broker)
    with connect(f"tank://{broker.address_of('tank')}") as client:
        client.append("orders", [b"a", b"b"], 2, create=True, partitions=3)
        client.append("alone", [b"c"], create=True)
        assert broker._console is not None
        broker._console._sampler.sample()
        found = visitor.get("/api/overview")
    assert found["broker"]["protocols"] == [
        {"name": "lance", "address": broker.address, "connections": 0},
        {
            "name": "rustlog",
            "address": broker.address_of("rustlog"),
            "connections": 0,
        },
        {"name": "tank", "address": broker.address_of("tank"), "connections": 1},
    ]
    keys = ("name", "topic", "partition", "partitions", "records")
    assert [tuple(topic[key] for key in keys) for topic in found["topics"]] == [
        ("alone", "alone", 0, 1, 1),
        *(("orders/0", "orders", 0, 3, 0), ("orders/1", "orders", 1, 3, 0)),
        ("orders/2", "orders", 2, 3, 2),
    ]
    assert visitor.get("/api/topics/orders%2F2")["records"] == 2
    assert len(visitor.records("orders/2")["records"]) == 2


def test_who_speaks_what(start: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start(ui=True, rustlog="127.0.0.1:0", tank="127.0.0.1:0")
    visitor = Visitor(broker)
    assert visitor.get("/api/clients") == {"clients": [], "left_out": 0}
    before_ms = time.time_ns() // 1_000_000
    with ExitStack() as stack:
        for name in ("tank", "lance", "rustlog"):
            url = f"{name}://{broker.address_of(name)}"
            stack.enter_context(connect(url)).driver.server  # noqa: B018 - it connects.
        found = visitor.get("/api/clients")
        clients = found["clients"]
        assert [one["protocol"] for one in clients] == ["tank", "lance", "rustlog"]
        assert {one["name"] for one in clients} == {None}
        assert {one["standing"] for one in clients} == {0}
        assert len({one["peer"] for one in clients}) == 3
        assert all(before_ms <= one["since_ms"] for one in clients)
        monkeypatch.setattr(module, "CLIENTS_MAX", 1)
        assert visitor.get("/api/clients") == {"clients": clients[:1], "left_out": 2}


def test_strangers_are_not_told_who_is_there(start: StartBroker) -> None:
    visitor = Visitor(start(ui=True, tokens=["secret"]))
    assert visitor.ask("GET", "/api/clients").status == 401


def test_plain_dialect(start: StartBroker) -> None:
    broker = start(ui=True, dialect="plain")
    add_topic(broker, "t", records("x", 3))
    visitor = Visitor(broker)
    assert visitor.get("/api/overview")["broker"]["dialect"] == "plain"
    assert len(visitor.records("t")["records"]) == 3


WELL: dict[str, Any] = {"disk_free_bytes": 500 * GIB, "disk_total_bytes": 1000 * GIB}
DAMAGE = Finding(Severity.DAMAGE, "segments/1", "bytes are gone", 0, 5)
NOTE = Finding(Severity.NOTE, "segments/1", "cut behind the last record")
DAY_S = 24 * 3600


@pytest.mark.parametrize(
    "signs",
    [
        {},
        {"findings": [NOTE]},
        {"disk_free_bytes": 0, "disk_total_bytes": 0},  # It could not be asked.
        {"pulse": Pulse(errors_last_min=60)},
        {"idle_stages_s": [0.0, DAY_S - 1.0]},
    ],
)
def test_well(signs: dict[str, Any]) -> None:
    assert judge(**{**WELL, **signs}) == {"status": "ok", "notes": []}


@each(
    ("signs", "level", "text"),
    [
        ({"disk_free_bytes": 49 * GIB}, "warning", "49.0 GiB are free, 5 %"),
        ({"disk_free_bytes": 9 * GIB}, "error", "9.0 GiB are free, 1 %"),
        (
            {"disk_free_bytes": GIB - 1, "disk_total_bytes": 2 * GIB},
            "warning",
            "1.0 GiB are free, 50 %",
        ),
        ({"rules_closed": 1}, "warning", "1 topic has an access rule and TLS is off"),
        ({"rules_closed": 2}, "warning", "2 topics have an access rule"),
        ({"findings": [NOTE, DAMAGE]}, "error", "data directory: segments/1."),
        ({"pulse": Pulse(faults_last_min=2)}, "error", "2 requests failed"),
        ({"pulse": Pulse(errors_last_min=61)}, "warning", "61 requests were refused"),
        ({"idle_stages_s": [DAY_S + 1.0] * 2}, "warning", "2 stages have been idle"),
        ({"passed": [(7, "events")]}, "warning", "passed 1 consumer, which will miss"),
        (
            {"passed": [(n, "t") for n in range(7)]},
            "warning",
            "0 in t, 1 in t, 2 in t, 3 in t, 4 in t and 2 more",
        ),
    ],
)
def test_notes(signs: dict[str, Any], level: str, text: str) -> None:
    health = judge(**{**WELL, **signs})
    assert health["status"] == level
    (note,) = health["notes"]
    assert note["level"] == level and text in note["text"]


def test_the_worst_counts() -> None:
    health = judge(**WELL, findings=[DAMAGE], rules_closed=1)
    assert health["status"] == "error"
    assert [note["level"] for note in health["notes"]] == ["warning", "error"]


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
    (consumer,) = found["consumers"]
    assert (consumer["group"], consumer["topic"]) == ("readers", "a")
    assert (consumer["committed"], consumer["bytes_behind"]) == (25, 75)
    assert consumer["records_behind"] == 3


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
    assert found["consumers"][0]["committed"] == 25
    assert found["left_out"] == 4


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


def test_stages(broker: EmbeddedBroker, visitor: Visitor) -> None:
    assert visitor.get("/api/stages") == {"stages": []}
    store = broker.service.store
    first = store.open_stage("new topic", "writer", 5)
    second = store.open_stage("other", "writer", 5)
    third = store.open_stage("other", "writer", 6)
    store.append_stage(second, 1, records("x", 3))
    store.stage(first).active_ns = 1_000_000_000
    store.stage(second).active_ns = 5_000_000_000
    store.stage(third).active_ns = 2_000_000_000
    ttl_ms = broker.config.stage_ttl_s * 1000
    found = visitor.get("/api/stages")["stages"]
    assert found == [
        {
            "id": first,
            "topic": "new topic",
            "writer": "writer",
            "sequence": "5",
            "batches": 0,
            "bytes": 0,
            "last_active_ms": 1000,
            # With the last activity of its job.
            "expires_ms": 5000 + ttl_ms,
        },
        {
            "id": second,
            "topic": "other",
            "writer": "writer",
            "sequence": "5",
            "batches": 1,
            "bytes": 75,
            "last_active_ms": 5000,
            "expires_ms": 5000 + ttl_ms,
        },
        {
            "id": third,
            "topic": "other",
            "writer": "writer",
            "sequence": "6",
            "batches": 0,
            "bytes": 0,
            "last_active_ms": 2000,
            "expires_ms": 2000 + ttl_ms,
        },
    ]
    health = visitor.get("/api/overview")["health"]
    assert health["status"] == "warning"
    assert "3 stages have been idle" in health["notes"][0]["text"]


def test_sequences_are_exact(broker: EmbeddedBroker, visitor: Visitor) -> None:
    store = broker.service.store
    for sequence in (2**64 - 2, 2**64 - 1):
        store.open_stage("t", "writer", sequence)
    found = visitor.get("/api/stages")["stages"]
    assert [stage["sequence"] for stage in found] == [str(2**64 - 2), str(2**64 - 1)]
    body = {"writer": "writer", "sequence": found[0]["sequence"]}
    assert visitor.ask("POST", "/api/stages/abort", body).json == {"dropped": 1}
    assert [s.metadata.job.sequence for s in store.stages()] == [2**64 - 1]
    for wrong in ("", "-1", "1.0", "²", "x", str(2**64), "9" * 30):
        body = {"writer": "writer", "sequence": wrong}
        assert visitor.ask("POST", "/api/stages/abort", body).status == 400, wrong
