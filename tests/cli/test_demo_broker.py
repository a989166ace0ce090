"""The demo's broker process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from lance_spark.cli import demo_broker
from lance_spark.cli.demo_broker import BrokerProcess, held_signals
from lance_spark.client import LanceClient
from lance_spark.errors import ConnectionLost, LanceError


def test_killed_and_started_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.start()
        address, first = broker.address, broker.pid
        with LanceClient(address) as client:
            client.create_topic("events")
        broker.kill()
        with pytest.raises(ConnectionLost), LanceClient(address) as client:
            client.connect()
        broker.start()
        assert (broker.address, broker.notes) == (address, [])
        assert broker.pid != first and broker.start_s > 0
        with LanceClient(address) as client:
            assert [info.name for info in client.topics()] == ["events"]
        assert broker.stop() == "stopped"
        with pytest.raises(LanceError, match="is not running"):
            broker.stop()


def _replace(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(demo_broker, "_COMMAND", (sys.executable, "-c", script))


def test_broker_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _replace(monkeypatch, "print('lance-spark: no disk')")
    with (
        BrokerProcess(tmp_path) as broker,
        pytest.raises(LanceError, match="did not start: lance-spark: no disk"),
    ):
        broker.start()


def test_broker_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _replace(monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(demo_broker, "_START_S", 0.1)
    with (
        BrokerProcess(tmp_path) as broker,
        pytest.raises(LanceError, match="did not start"),
    ):
        broker.start()


_READY = "print('lance-spark broker listening on 127.0.0.1:7, data in x', flush=True)"


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        ("", "ended with -15: "),
        ("import signal; signal.signal(15, lambda *_: None); ", "did not stop"),
    ],
)
def test_broker_that_does_not_stop_cleanly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: str, text: str
) -> None:
    warning = "print('lance-spark: warning: torn')"
    wait = "import time; time.sleep(60)"
    _replace(monkeypatch, f"{prepare}{warning}; {_READY}; {wait}")
    if prepare:
        monkeypatch.setattr(demo_broker, "_STOP_S", 0.1)
    with BrokerProcess(tmp_path) as broker:
        broker.start()
        assert broker.notes == ["torn"] and broker.address == "127.0.0.1:7"
        with pytest.raises(LanceError, match=text):
            broker.stop()


def test_signals_wait() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), held_signals():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("what must not be cut short")
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
