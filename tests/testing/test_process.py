"""A broker as a child: started, killed, stopped; crashes themselves are integration."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker.config import parse_settings
from lance_spark.client import connect
from lance_spark.errors import LanceError
from lance_spark.net.deadline import Deadline
from lance_spark.testing import BrokerProcess
from lance_spark.testing.process import write_settings
from tests.child import Child

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_life(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", fsync="none")
    assert not process.is_running
    assert repr(process) == "<BrokerProcess at 127.0.0.1:0, not running>"
    with process:
        address, pid = process.address, process.pid
        assert repr(process) == f"<BrokerProcess at {address}, process {pid}>"
        with pytest.raises(LanceError, match=f"running already: {pid}"):
            process.start()
        process.kill()
        process.kill()
        assert not process.is_running
        with pytest.raises(LanceError, match="is not running: start it first"):
            _ = process.pid
        process.start()
        assert process.address == address
        assert process.pid != pid
    assert not process.is_running
    assert process.stop() == 0


def test_every_protocol_keeps_its_address(tmp_path: Path) -> None:
    here = "127.0.0.1:0"
    with BrokerProcess(tmp_path / "data", rustlog=here, tank=here) as process:
        addresses = [process.address_of(name) for name in ("lance", "rustlog", "tank")]
        assert addresses[0] == process.address
        assert len(set(addresses)) == 3 and here not in addresses
        process.kill()
        process.start()
        again = [process.address_of(name) for name in ("lance", "rustlog", "tank")]
        assert again == addresses
        for name in ("rustlog", "tank"):
            with connect(f"{name}://{process.address_of(name)}") as client:
                assert [topic.name for topic in client.topics()] == []
    with pytest.raises(LanceError, match="does not serve 'tank'"):
        BrokerProcess(tmp_path / "data").address_of("tank")


_STARTER = """
import os
import subprocess
import sys
from pathlib import Path
from lance_spark.testing import BrokerProcess
broker = BrokerProcess(Path(sys.argv[1]), fsync="none").start()
print(broker.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    parent = Child(
        [sys.executable, "-c", _STARTER, str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        broker = Path(f"/proc/{int(parent.stdout.readline())}")
        assert broker.exists()
        parent.kill()
        # The pipe ends when the last process that has it is gone.
        assert parent.stdout.read() == ""
    deadline = Deadline.after(30)
    while broker.exists() and " Z " not in (broker / "stat").read_text():
        assert not deadline.expired
        os.sched_yield()


def test_one_that_does_not_start(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data", no_such_setting=1)
    with pytest.raises(LanceError, match=r"did not start: (.|\n)*no_such_setting"):
        process.start()
    assert not process.is_running


def test_one_that_ends_badly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = BrokerProcess(tmp_path / "data", fsync="none")

    def end_badly() -> int:
        process.kill()
        return -9

    monkeypatch.setattr(process, "stop", end_badly)
    with pytest.raises(LanceError, match="ended with -9"), process:
        pass
    # What went wrong before is what matters more.
    with pytest.raises(ZeroDivisionError), process:
        raise ZeroDivisionError


def test_settings_are_written_as_the_file_has_them(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "fsync": "none",
        "tokens": ["ä \N{SNOWMAN} \N{GRINNING FACE} \"'\\"],
        "backpressure": False,
        "idle_timeout_s": 2.5,
        "tls_enabled": True,
        "tls_cert_path": "a b",
        "topics": {"t.1": {"retention": {"max_bytes": 7}}},
    }
    write_settings(tmp_path / "x.toml", settings)
    text = (tmp_path / "x.toml").read_text(encoding="utf-8")
    assert parse_settings(tomllib.loads(text), where="x") == settings
