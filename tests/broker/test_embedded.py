"""A broker in this process: where it is, what it keeps, what it refuses."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from lance_spark.broker import BrokerConfig, EmbeddedBroker, embedded
from lance_spark.broker.embedded import Exporter
from lance_spark.client import LanceClient, Producer
from lance_spark.errors import LanceError, OptionError, StoreError, StoreLocked
from lance_spark.model import Retention
from lance_spark.store import Store
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import scan
from tests.broker.kit import Client, record
from tests.test_html import Reader


def write(broker: EmbeddedBroker, value: bytes) -> None:
    with Client(broker.address) as client:
        client.write(0, record(value), count=1)


def read(broker: EmbeddedBroker) -> bytes:
    with Client(broker.address) as client:
        return client.read(0)


def test_without_any_setting() -> None:
    with EmbeddedBroker() as broker:
        host, port = broker.address.split(":")
        assert (host, int(port)) == ("127.0.0.1", broker.port)
        assert broker.is_running
        assert repr(broker) == f"<EmbeddedBroker at {broker.address}>"
        assert broker.metrics_address is None
        write(broker, b"x")
        directory = broker.data_dir
        assert (directory / "segments").is_dir()
    assert not directory.exists()
    assert not broker.is_running
    assert repr(broker) == "<EmbeddedBroker not running>"


def test_before_it_is_started() -> None:
    broker = EmbeddedBroker()
    with pytest.raises(LanceError, match="no address yet: start it first"):
        _ = broker.address
    with pytest.raises(LanceError, match="no address yet"):
        _ = broker.port
    with pytest.raises(LanceError, match="no data directory yet: start it first"):
        _ = broker.data_dir
    with pytest.raises(LanceError, match="not running: start it first"):
        _ = broker.service
    broker.stop()


def test_again_at_the_same_address(directory: Path) -> None:
    broker = EmbeddedBroker(data_dir=str(directory / "data"))
    assert broker.start() is broker
    address = broker.address
    with pytest.raises(LanceError, match=f"is running already, at {address}"):
        broker.start()
    write(broker, b"x")
    broker.stop()
    broker.stop()
    assert broker.data_dir == directory / "data"
    with pytest.raises(LanceError, match="not running"):
        _ = broker.service
    with broker:
        assert broker.address == address
        assert read(broker) == record(b"x")
        write(broker, b"y")
    assert broker.metrics.snapshot().traffic.records_in == 2


def test_again_without_a_directory_of_its_own() -> None:
    broker = EmbeddedBroker(fsync="none")
    with broker:
        first = broker.data_dir
        write(broker, b"x")
    with broker:
        assert broker.data_dir != first
        assert read(broker) == b""


def test_settings_and_those_in_their_place(tmp_path: Path) -> None:
    config = BrokerConfig(connections_max=7, dedup_window=5)
    broker = EmbeddedBroker(config, dedup_window=6, data_dir=str(tmp_path))
    assert (broker.config.connections_max, broker.config.dedup_window) == (7, 6)
    assert config.dedup_window == 5


def test_a_setting_that_there_is_not() -> None:
    with pytest.raises(OptionError) as error:
        EmbeddedBroker(tls_certpath="x")
    assert str(error.value) == (
        "EmbeddedBroker: there is no setting tls_certpath; did you mean tls_cert_path?"
    )
    with pytest.raises(OptionError, match="dedup_window='many'"):
        EmbeddedBroker(dedup_window="many")


def test_a_directory_that_another_one_has(directory: Path) -> None:
    path = str(directory / "data")
    other = EmbeddedBroker(data_dir=path)
    with EmbeddedBroker(data_dir=path) as broker:
        with pytest.raises(StoreLocked, match="data"):
            other.start()
        assert not other.is_running
        write(broker, b"x")
    with other:
        assert read(other) == record(b"x")


def test_an_address_that_another_one_has(directory: Path) -> None:
    path = str(directory / "data")
    with EmbeddedBroker(fsync="none") as broker:
        other = EmbeddedBroker(data_dir=path, listen=broker.address)
        with pytest.raises(OptionError, match="already in use"):
            other.start()
        assert not other.is_running
    # Nothing is left of it: the directory is free.
    Store(path, framing=scan).close()


def test_a_temporary_directory_goes_also_if_it_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    broker = EmbeddedBroker(token_file=str(tmp_path / "none"))
    with pytest.raises(OptionError, match="token_file"):
        broker.start()
    assert list(tmp_path.iterdir()) == []


def test_a_data_directory_that_can_not_be_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(StoreError, match="file"):
        EmbeddedBroker(data_dir=str(path)).start()


def test_certificates_that_are_not_there(tmp_path: Path) -> None:
    broker = EmbeddedBroker(
        tls_enabled=True, tls_cert_path=str(tmp_path / "c"), tls_key_path="k"
    )
    with pytest.raises(OptionError, match="TLS certificate file"):
        broker.start()


def test_topics_of_the_settings(directory: Path) -> None:
    path = str(directory / "data")
    topics = {"events": {"retention": {"max_bytes": 1000}}, "logs": {}}
    for _ in range(2):
        with (
            EmbeddedBroker(data_dir=path, topics=topics) as broker,
            Client(broker.address) as client,
        ):
            found = client.ask(wire.ListTopics()).topics
            assert [(t.id, t.name) for t in found] == [(1, "events"), (2, "logs")]
            assert found[0].retention.max_bytes == 1000


def test_metrics_are_served() -> None:
    broker = EmbeddedBroker(metrics="127.0.0.1:0", fsync="none")
    with broker:
        assert broker.metrics_address is not None
        assert broker.metrics_address.startswith("127.0.0.1:")
        write(broker, b"x")
    assert broker.metrics_address is None


def test_metrics_that_can_not_be_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(exporter: Exporter) -> None:
        raise OptionError("no such library")

    monkeypatch.setattr(embedded.Exporter, "start", refuse)
    path = str(tmp_path / "data")
    with pytest.raises(OptionError, match="no such library"):
        EmbeddedBroker(metrics="127.0.0.1:0", data_dir=path).start()
    Store(path, framing=scan).close()


def test_syncs_are_measured(tmp_path: Path) -> None:
    with EmbeddedBroker(data_dir=str(tmp_path / "data"), fsync="always") as broker:
        write(broker, b"x")
        assert broker.metrics.snapshot().syncs.count >= 1


def test_what_was_found_is_said(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / "data"
    with EmbeddedBroker(data_dir=str(path)) as broker:
        write(broker, b"x")
    (path / "consumers.log").write_bytes(b"?" * 100)
    with caplog.at_level(logging.WARNING), EmbeddedBroker(data_dir=str(path)) as broker:
        assert "consumers.log" in caplog.text
        assert read(broker) == record(b"x")


def test_a_store_that_does_not_close_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    close = Store.close

    def fail(store: Store) -> None:
        close(store)
        raise StoreError("the disk is gone")

    broker = EmbeddedBroker(fsync="none").start()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "close", fail)
        with pytest.raises(StoreError, match="the disk is gone"):
            broker.stop()
    assert not broker.is_running
    assert list(tmp_path.iterdir()) == []


def test_a_fork_leaves_the_data_alone() -> None:
    script = """
import os, sys
from lance_spark.broker import EmbeddedBroker
broker = EmbeddedBroker(fsync="none").start()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
print(broker.data_dir.exists())
path = broker.data_dir
broker.stop()
print(path.exists())
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["True", "False"]


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


def test_addresses_of_all_protocols() -> None:
    broker = EmbeddedBroker(fsync="none", tank="127.0.0.1:0")
    assert broker.addresses == {}
    with broker:
        assert list(broker.addresses) == ["lance", "tank"]
        assert broker.addresses["lance"] == broker.address
        assert broker.addresses["tank"] == broker.address_of("tank")
