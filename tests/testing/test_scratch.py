"""Brokers for tests: what they are like, and that nothing stays of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.errors import ConnectionLost, LanceError, OptionError
from lance_spark.testing import (
    BrokerProcess,
    ScratchBroker,
    run_broker,
    run_broker_process,
    scratch,
)
from tests.integration.kit import wait_for


def find_data(broker: ScratchBroker) -> Path:
    return Path(broker.broker.data_dir)


def test_a_broker_is_fresh_and_nothing_stays_of_it() -> None:
    threads = set(threading.enumerate())
    with run_broker() as one, run_broker() as other:
        one.topic("t").fill(["a"])
        assert not other.topic("t").exists
        data = find_data(one)
        assert data.is_dir()
        address = one.address
    assert not data.exists() and not data.parent.exists()
    wait_for(lambda: set(threading.enumerate()) <= threads, "its threads end")
    with (
        pytest.raises(ConnectionLost),
        LanceClient(address, retry_timeout_s=0.01) as client,
    ):
        client.connect()


def test_clients_come_through_the_relay() -> None:
    with run_broker() as broker:
        assert broker.address != broker.direct_address == broker.broker.address
        assert broker.options == {"servers": broker.address}
        assert broker.topic("t").options == {"servers": broker.address, "topic": "t"}
        with LanceClient(broker.address) as client:
            client.create_topic("t")
        assert broker.topic("t").exists
        assert repr(broker) == f"<ScratchBroker at {broker.address}>"


def test_without_a_relay() -> None:
    with run_broker(relay=False) as broker:
        assert broker.address == broker.direct_address
        for fault in ("drop_connections", "delay", "cut_after"):
            arguments = [] if fault == "drop_connections" else [1]
            with pytest.raises(OptionError, match=f"{fault}: .* leave out relay=False"):
                getattr(broker.faults, fault)(*arguments)


def test_settings_are_those_of_a_broker(tmp_path: Path) -> None:
    with run_broker(segment_bytes=64 * 1024, data_dir=str(tmp_path / "mine")) as broker:
        assert isinstance(broker.broker, EmbeddedBroker)
        assert broker.broker.config.segment_bytes == 64 * 1024
        assert broker.broker.config.fsync.value == "none"
        broker.topic("t").fill(["a"])
    # A directory that was named is its owner's.
    assert (tmp_path / "mine").is_dir()
    with run_broker(data_dir=str(tmp_path / "mine")) as broker:
        broker.topic("t").assert_holds(["a"])


@pytest.mark.parametrize("run", [run_broker, run_broker_process])
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"fsinc": "none"},
            "run_broker: there is no setting fsinc; did you mean fsync?",
        ),
        ({"fsync": "never"}, "fsync"),
        (
            {"tls_enabled": True, "tls_cert_path": "a", "tls_key_path": "b"},
            "brokers of the testing kit speak no TLS",
        ),
    ],
)
def test_settings_that_can_not_be_used(
    run: Any, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionError, match=text), run(**settings):
        pass


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"tokens": ("open sesame", "other")}, {"authToken": "open sesame"}),
        ({"dialect": "plain"}, {"checksum": "crc32"}),
        ({"checksum": "crc32"}, {"checksum": "crc32"}),
        ({"checksum": "auto"}, {}),
    ],
)
def test_options_have_what_clients_need(
    settings: dict[str, Any], options: dict[str, str]
) -> None:
    with run_broker(**settings) as broker:
        assert broker.options == {"servers": broker.address, **options}
        assert broker.topic("t").fill(["a"]) == 1
        broker.topic("t").assert_holds(["a"])
        assert "sesame" not in f"{broker!r}{broker.topic('t')!r}"


@pytest.mark.parametrize("run", [run_broker, run_broker_process])
def test_settings_that_are_paths(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("open sesame\n")
    with run(token_file=file, data_dir=tmp_path / "mine") as broker:
        assert broker.options["authToken"] == "open sesame"
        broker.topic("t").fill(["a"])
        broker.topic("t").assert_holds(["a"])
        assert find_data(broker) == tmp_path / "mine"


@pytest.mark.parametrize("problem", ["small", "missing", "not ours"])
def test_data_is_elsewhere_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    memory = tmp_path / "memory"
    if problem != "missing":
        memory.mkdir()
    if problem == "small":
        monkeypatch.setattr(scratch, "_MEMORY_BYTES_MIN", 1 << 80)
    if problem == "not ours":
        monkeypatch.setattr(scratch.os, "access", lambda *_: False)
    monkeypatch.setattr(scratch, "_MEMORY", memory)
    with run_broker() as broker:
        assert memory not in find_data(broker).parents
        broker.topic("t").fill(["a"])


def test_data_is_in_memory_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_MEMORY", tmp_path)
    monkeypatch.setattr(scratch, "_MEMORY_BYTES_MIN", 0)
    with run_broker() as broker:
        assert tmp_path in find_data(broker).parents


def test_a_fault_that_does_not_end_leaves_no_client() -> None:
    with pytest.raises(ZeroDivisionError), run_broker() as broker:
        client = broker.client
        broker.faults._begin(lambda: 1 // 0)
    with pytest.raises(LanceError, match="is closed"):
        client.topics()


def test_a_broker_in_a_process_of_its_own() -> None:
    with run_broker_process(tokens=("open sesame",)) as broker:
        assert isinstance(broker.broker, BrokerProcess)
        assert broker.broker.pid > 0
        broker.topic("t").fill(["a"])
        broker.topic("t").assert_holds(["a"])
        data = find_data(broker)
    assert not broker.broker.is_running
    assert not data.parent.exists()


def test_a_test_that_fails_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), run_broker() as broker:
        data = find_data(broker)
        broker.faults.fill_disk()
        raise ZeroDivisionError
    assert not data.exists()
