"""What the overview knows that requests do not show by themselves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.access import Principal
from lance_spark.broker.console import overview as module
from lance_spark.broker.console.overview import Overview
from lance_spark.broker.console.sampler import Rates, Sampler
from lance_spark.net.address import Address
from tests.broker.console.visit import Visitor, add_topic
from tests.broker.kit import StartBroker, records


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
    service, address = broker.service, Address("127.0.0.1", 1)
    sampler = Sampler(service.metrics, service.lags)
    overview = Overview(service, broker.config, sampler, address)
    for number in range(3):
        assert overview.describe(Principal())["tick"] == number
        sampler.sample()
    moving = Moving(service.metrics, service.lags)
    overview = Overview(service, broker.config, moving, address)
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


def test_plain_dialect(start: StartBroker) -> None:
    broker = start(ui=True, dialect="plain")
    add_topic(broker, "t", records("x", 3))
    visitor = Visitor(broker)
    assert visitor.get("/api/overview")["broker"]["dialect"] == "plain"
    assert len(visitor.records("t")["records"]) == 3
