"""`lance-spark broker`: as a process where signals are the point, in this one else."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import BrokerConfig, EmbeddedBroker
from lance_spark.cli.broker import DEFAULTS, command, make_config
from lance_spark.client import LanceClient, Producer
from lance_spark.errors import OptionError
from lance_spark.store import Fsync
from tests.child import Child
from tests.cli.conftest import Run

PYTHON = [sys.executable, "-m", "lance_spark", "broker"]
READY = re.compile(
    r"lance-spark broker listening on (127\.0\.0\.1:\d+), data in (.+)\n"
)
# With its output buffered, as a user has it: what it says must come all the same.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}


def _start(*arguments: object, python: list[str] = PYTHON) -> Child:
    """Start a broker."""
    return Child(
        [*python, "--listen", "127.0.0.1:0", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def _read_address(process: Any, data_dir: Path) -> str:
    ready = READY.fullmatch(process.stdout.readline())
    assert ready is not None and ready[2] == str(data_dir)
    return ready[1]


def test_serves_until_sigterm(run: Run, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    arguments = ("--data-dir", data_dir, "--metrics", "127.0.0.1:0")
    with _start(*arguments) as process:
        address = _read_address(process, data_dir)
        with LanceClient(address) as client:
            client.create_topic("events")
            with Producer(client, "events") as producer:
                producer.send(b"x")
        line = process.stdout.readline()
        url = re.fullmatch(r"metrics on (http://127\.0\.0\.1:\d+/metrics)\n", line)
        assert url is not None
        with urllib.request.urlopen(url[1], timeout=10) as answer:
            assert b"lance_broker_" in answer.read()
        # A second one has no business there.
        again = run("broker", "--listen", "127.0.0.1:0", "--data-dir", data_dir)
        assert (again.code, again.out) == (1, "")
        assert f"already in use by process {process.pid}" in again.err
        assert again.err.count("\n") == 1
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30) == ("stopped\n", "")
        assert process.returncode == 0
    assert run("check", data_dir).code == 0


def test_interrupt_is_a_normal_end(tmp_path: Path, store_path: Path) -> None:
    # What a crash has left is said on stderr, in plain lines.
    (segment,) = store_path.glob("segments/1/*.lnc")
    with segment.open("ab") as file:
        file.write(b"\x01\x05\x00\x00\x00torn")
    with _start("--data-dir", store_path) as process:
        _read_address(process, store_path)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "stopped\n")
        assert err.startswith("lance-spark: warning: ") and "segments/1" in err


def test_an_ignored_interrupt_stays_ignored(tmp_path: Path) -> None:
    """Ctrl-C is for what is in the foreground; a script's `broker &` goes on."""
    background = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *PYTHON]
    with _start("--data-dir", tmp_path, python=background) as process:
        address = _read_address(process, tmp_path)
        process.send_signal(signal.SIGINT)
        with LanceClient(address) as client:
            client.create_topic("events")
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30) == ("stopped\n", "")
        assert process.returncode == 0


_SLOW_STOP = """
import sys, threading
from lance_spark.broker import EmbeddedBroker
from lance_spark.cli.main import main

def stop(self):
    print("stopping", flush=True)
    threading.Event().wait(60)

EmbeddedBroker.stop = stop
sys.exit(main(["broker", *sys.argv[1:]]))
"""


def test_second_signal_does_not_wait(tmp_path: Path) -> None:
    python = [sys.executable, "-c", _SLOW_STOP]
    with _start("--data-dir", tmp_path, python=python) as process:
        _read_address(process, tmp_path)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT


@pytest.fixture
def stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the signal as soon as a broker has started."""
    real = EmbeddedBroker.start

    def start(self: EmbeddedBroker) -> EmbeddedBroker:
        started = real(self)
        os.kill(os.getpid(), signal.SIGTERM)
        return started

    monkeypatch.setattr(EmbeddedBroker, "start", start)


@pytest.mark.usefixtures("stopped_at_once")
def test_signal_during_the_start(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    monkeypatch.chdir(tmp_path)
    done = run("broker", "--listen", "127.0.0.1:0")
    assert (done.code, done.err) == (0, "")
    assert READY.fullmatch(done.lines[0] + "\n")
    assert done.lines[1:] == ["stopped"]
    assert (tmp_path / "lance-data" / "segments").is_dir()
    # Nothing is left of it in this process.
    after = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    assert after == before


@pytest.mark.usefixtures("stopped_at_once")
def test_verbose(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f'listen = "127.0.0.1:0"\ndata_dir = "{tmp_path / "d"}"\n')
    done = run("broker", "--config", file, "--verbose", "--dialect", "plain")
    assert done.code == 0
    assert done.lines[0].endswith(f"data in {tmp_path / 'd'}")


@pytest.mark.usefixtures("stopped_at_once")
def test_console(run: Run, tmp_path: Path) -> None:
    arguments = ("broker", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "d")
    done = run(*arguments, "--ui", "127.0.0.1:0", "--ui-admin")
    assert done.code == 0, done.err
    assert re.fullmatch(r"console on http://127\.0\.0\.1:\d+/", done.lines[1])
    done = run(*arguments, "--ui-admin")
    assert done.code == 1 and "set ui too" in done.err


def test_console_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('ui = "127.0.0.1:5"\nui_admin = true\n')
    # A flag that is not given leaves what the file says.
    config = make_config(file, {"ui": None, "ui_admin": None})
    assert (config.ui, config.ui_admin) == ("127.0.0.1:5", True)


def test_port_in_use(run: Run, server: EmbeddedBroker, tmp_path: Path) -> None:
    done = run("broker", "--listen", server.address, "--data-dir", tmp_path / "d")
    assert (done.code, done.out) == (1, "")
    assert "already in use" in done.err and done.err.count("\n") == 1
    # And the directory is free again.
    assert run("check", tmp_path / "d").code == 0


@pytest.mark.parametrize("by_file", [False, True])
def test_data_dir_is_a_file(run: Run, tmp_path: Path, by_file: bool) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f"data_dir = '{file}'\n" if by_file else "")
    where = ["--config", file] if by_file else ["--data-dir", file]
    done = run("broker", "--listen", "127.0.0.1:0", *where)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"lance-spark: {file}: not a directory")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "could not be read"),
        ("listen = ", "is not TOML"),
        ("lissen = 'x:1'", "did you mean listen?"),
        ("connections_max = 0", "connections_max=0: must be"),
        ("fsync = 'sometimes'", "one of none, batch, always"),
    ],
)
def test_bad_config(run: Run, tmp_path: Path, content: str | None, text: str) -> None:
    file = tmp_path / "broker.toml"
    if content is not None:
        file.write_text(content)
    done = run("broker", "--config", file, "--data-dir", tmp_path / "d")
    assert (done.code, done.out) == (1, "")
    assert text in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--listen", "localhost"],
        ["--metrics", "x"],
        ["--ui", "8080"],
        ["--segment-bytes", "big"],
        ["--fsync", "never"],
        ["--checksum", "default"],
        ["--dialect", "kafka"],
    ],
)
def test_wrong_usage(run: Run, arguments: list[str]) -> None:
    done = run("broker", *arguments)
    assert (done.code, done.out) == (2, "")
    assert f"Invalid value for '{arguments[0]}'" in done.err


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        'listen = "0.0.0.0:7"\nfsync = "none"\nsegment_bytes = 5000\n'
        "connections_max = 9\n"
    )
    nothing = dict.fromkeys(
        ("listen", "data_dir", "checksum", "fsync", "segment_bytes", "metrics")
    )
    config = make_config(file, {**nothing, "fsync": "always", "segment_bytes": 2**20})
    assert (config.listen, config.fsync) == ("0.0.0.0:7", Fsync.ALWAYS)
    assert (config.segment_bytes, config.connections_max) == (2**20, 9)
    assert config.data_dir == DEFAULTS["data_dir"]
    config = make_config(None, nothing)
    assert config == BrokerConfig(listen="127.0.0.1:1992", data_dir="lance-data")
    with pytest.raises(OptionError):
        make_config(None, {"listen": "nowhere"})


def test_help_tells_the_defaults() -> None:
    usual = BrokerConfig()
    shown = {
        parameter.name: re.search(r"\[default: \.?/?([^\],]+)", parameter.help or "")
        for parameter in command.params
        if hasattr(parameter, "help")
    }
    told = {name: found[1] for name, found in shown.items() if found is not None}
    assert told == {
        **DEFAULTS,
        "checksum": "crc32c",
        "fsync": usual.fsync.value,
        "segment_bytes": f"{usual.segment_bytes // 2**20}m",
        "dialect": usual.dialect,
        "fluvio_spu": "a free port of the same host",
    }
