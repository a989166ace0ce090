"""`lance-spark demo`: that it works, and that it would notice if it did not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lance_spark.cli import demo
from lance_spark.cli.demo_follower import Follower, Seen
from lance_spark.cli.demo_record import make_records
from lance_spark.client import LanceClient, Producer
from lance_spark.columnar.layout import validate
from lance_spark.errors import LanceError
from lance_spark.store import Store
from lance_spark.wire.lwp import CommitStatus
from tests.child import Child
from tests.cli.conftest import Run


def test_whole_demo(run: Run, tmp_path: Path) -> None:
    done = run("demo", "--no-spark", "--records", 4000, "--dir", tmp_path / "kept")
    assert (done.code, done.err) == (0, "")
    assert len(done.lines) <= 22
    steps = [line.split()[0] for line in done.lines[1:-1] if line[2] != " "]
    assert steps == [
        *("A", "broker", "produce", "stage", "crash", "restart", "produce"),
        *("follow", "commit", "read", "compare", "The", "stop", "check"),
    ]
    # A sentence says what a part shows.
    parts = [line for line in done.lines[1:-1] if line[0] != " "]
    assert len(parts) == 2 and all(line.endswith(".") for line in parts)
    assert "killed by signal 9" in done.out
    assert "sent again: repeated, not doubled" in done.out
    assert "the broker says: stopped" in done.out
    assert done.lines[-1].startswith("all of it as promised; look around")
    # What it leaves behind is a sound store with these records.
    check = run("check", tmp_path / "kept")
    assert check.code == 0 and "3 topics" in check.out
    with Store(tmp_path / "kept", framing=validate) as store:
        ends = {
            topic.metadata.name: store.view(topic.metadata.id).locate_end().record
            for topic in store.topics()
        }
    assert ends.pop("events") >= 4000
    assert ends == {"orders": 1000, "payments": 1000}


def test_directory_must_be_empty(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = run("demo", "--no-spark", "--records", 100, "--dir", tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "must not exist or be an empty directory" in done.err


def test_sigterm_leaves_nothing(tmp_path: Path) -> None:
    process = Child(
        [sys.executable, "-m", "lance_spark", "demo", "--records", "100000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"TMPDIR": str(tmp_path)},
    )
    with process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("100,000,000 records")
        assert process.stdout.readline().startswith("A broker is killed")
        broker = process.stdout.readline().split()
        assert broker[0] == "broker"
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == ""
        assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{broker[2]}").exists()


@pytest.fixture
def written(client: LanceClient, topic: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """200 records of the demo in a topic that it takes for its own."""
    monkeypatch.setattr(demo, "TOPIC", topic)
    with Producer(client, topic) as producer:
        producer.write(make_records(0, 200))
    return topic


def _see(client: LanceClient, topic: str) -> Seen:
    with Follower(client, topic) as follower:
        return follower.finish(client.bounds(topic).end)


def test_read_back_accepts_what_was_written(
    client: LanceClient, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    demo._read_back(client, 200, 100, _see(client, written))
    out = capsys.readouterr().out
    assert "200 records as Arrow" in out and "NULL 20, user 0x80 20" in out
    assert "none is there twice" in out


def test_read_back_tells_what_is_twice(
    client: LanceClient, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Producer(client, written) as producer:
        producer.write(make_records(190, 300))
    demo._read_back(client, 300, 190, _see(client, written))
    assert "10 records twice: stored" in capsys.readouterr().out


def test_read_back_notices(client: LanceClient, written: str) -> None:
    seen = _see(client, written)
    with pytest.raises(LanceError, match="201 records were acknowledged, 200 are"):
        demo._read_back(client, 201, 0, seen)
    with pytest.raises(LanceError, match="but the consumer that followed"):
        demo._read_back(client, 200, 0, seen._replace(crc=seen.crc ^ 1))
    with Producer(client, written) as producer:
        producer.write(make_records(0, 10))
    with pytest.raises(LanceError, match="acknowledged before the crash"):
        demo._read_back(client, 200, 195, _see(client, written))


def test_doubled_commit_is_noticed() -> None:
    class FakeClient:
        """Appends again when a commit is repeated."""

        record = 0

        def commit_stages(self, *_: object) -> Any:
            self.record += 1000
            status = CommitStatus.COMMITTED
            return SimpleNamespace(topics=(), status=status)

        def locate_end(self, topic: str) -> Any:
            return self

    with pytest.raises(LanceError, match=r"left \[2000, 2000\]"):
        demo._commit_twice(cast(LanceClient, FakeClient()), [])


def test_damage_is_noticed(store_path: Path, segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[7] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LanceError, match="the checker found: damage"):
        demo._check(store_path)
