"""What a notebook shows of a broker, and of the topics that a client lists."""

from __future__ import annotations

from pathlib import Path

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from lance_spark.model import Retention
from tests.test_html import Reader


def fill(servers: str) -> None:
    """Make two topics, one of them with three records."""
    with LanceClient(servers) as client:
        client.create_topic("<b>", retention=Retention(3600, 0))
        with Producer(client, "events", create_topic=True) as producer:
            for value in (b"one", b"two", b"three"):
                producer.send(value)


def test_a_broker_shows_where_it_is_and_what_it_holds() -> None:
    with EmbeddedBroker(fsync="none", tokens=["correct horse"]) as broker:
        shown = broker._repr_html_()
        assert Reader(shown).rows[0] == ["address", broker.address]
        assert ["data", "in a temporary directory"] in Reader(shown).rows
        assert "correct horse" not in shown
        assert "topic" not in shown


def test_topics_of_a_broker_are_rows() -> None:
    with EmbeddedBroker(fsync="none") as broker:
        fill(broker.address)
        rows = Reader(broker._repr_html_()).rows
    assert rows[-3][:3] == ["topic", "records", "log"]
    assert rows[-2][:3] == ["<b>", "0", "0 bytes, from 0 to 0"]
    assert rows[-1][:3] == ["events", "3", "26 bytes, from 0 to 26"]


def test_a_broker_that_is_not_running(tmp_path: Path) -> None:
    broker = EmbeddedBroker(data_dir=str(tmp_path))
    rows = Reader(broker._repr_html_()).rows
    assert rows[:2] == [["address", "not running"], ["data", str(tmp_path)]]


def test_topics_of_a_client() -> None:
    with EmbeddedBroker(fsync="none") as broker, LanceClient(broker.address) as client:
        assert Reader(client.topics()._repr_html_()).rows[1:] == []
        fill(broker.address)
        topics = client.topics()
        rows = Reader(topics._repr_html_()).rows
        assert rows[1:] == [
            ["1", "<b>", "0", "0 bytes, from 0 to 0", "1h"],
            ["2", "events", "3", "26 bytes, from 0 to 26", "all is kept"],
        ]
        # Still a list, for everybody else.
        assert [topic.name for topic in topics] == ["<b>", "events"]
        one = Reader(client.topic("events")._repr_html_())
    assert one.outside.strip() == "topic events"
    assert ["records", "3"] in one.rows and ["retention", "all is kept"] in one.rows
