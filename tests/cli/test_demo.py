"""`lance-spark demo`: that it works, and that it would notice if it did not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lance_spark import demo
from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from lance_spark.errors import LanceError
from lance_spark.store import Store
from lance_spark.wire.lwp import validate
from tests.child import Child
from tests.cli.conftest import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_whole_demo(run: Run, tmp_path: Path) -> None:
    done = run("demo", "--no-spark", "--records", 4000, "--dir", tmp_path / "kept")
    assert (done.code, done.err) == (0, "")
    steps = [line.split()[0] for line in done.lines[1:-1] if line[2] != " "]
    assert steps == [
        *("A", "broker", "produce", "stage", "crash", "restart", "produce"),
        *("follow", "commit", "read", "compare"),
        *("One", "write", "read", "read", "read", "read", "The", "stop", "check"),
    ]
    # A sentence says what a part shows.
    parts = [line for line in done.lines[1:-1] if line[0] != " "]
    assert len(parts) == 3 and all(line.endswith(".") for line in parts)
    assert "killed by signal 9" in done.out
    assert "sent again: repeated, not doubled" in done.out
    assert done.lines[-1].startswith("all of it as promised; look around")
    # What it leaves behind is a sound store with these records.
    check = run("check", tmp_path / "kept" / "data")
    assert check.code == 0 and "4 topics" in check.out
    with Store(tmp_path / "kept" / "data", framing=validate) as store:
        ends = {
            topic.metadata.name: store.view(topic.metadata.id).locate_end().record
            for topic in store.topics()
        }
    assert ends.pop("events") >= 4000
    assert ends == {"orders": 1000, "payments": 1000, "visits": 1000}


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


# What is compared.


def test_records_are_a_function_of_their_numbers() -> None:
    rows = demo.make_records(np.arange(7, 13))
    assert rows.slice(2, 1).equals(demo.make_records(np.array([9])))
    assert [key is None for key in rows["key"].to_pylist()] == [True, False] * 3
    assert rows["timestamp_ns"].null_count == 4


@pytest.mark.parametrize(
    ("numbers", "doubled"),
    [
        ([*range(10)], 0),
        ([*range(7), *range(5, 10)], 2),
        ([*range(10), *range(5, 10)], 5),
    ],
)
def test_what_a_crash_may_leave(numbers: list[int], doubled: int) -> None:
    assert demo.compare(np.array(numbers), 10, acknowledged=5) == doubled


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0, 1, 2, 4, 5, 6, 7, 8, 9], "1 are lost"),
        ([*range(8)], "2 are lost"),
        ([*range(9), 10], "0 are lost"),
        ([0, 2, 1, *range(3, 10)], "not in the order"),
        ([*range(7), *range(4, 10)], "record 4 was acknowledged, and was stored twice"),
    ],
)
def test_what_it_must_not_leave(numbers: list[int], text: str) -> None:
    with pytest.raises(LanceError, match=text):
        demo.compare(np.array(numbers), 10, acknowledged=5)


def test_changed_records_are_noticed(client: LanceClient, topic: str) -> None:
    with Producer(client, topic) as producer:
        producer.write(demo.make_records(np.arange(5)))
        producer.send(b"000000000005 something else")
    with pytest.raises(LanceError, match="was changed"):
        demo.read_numbers(client, topic)


def test_changed_squares_are_noticed(
    client: LanceClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "TARGET", topic)
    with Producer(client, topic) as producer:
        producer.send(b"0 0")
        producer.send(b"1 2")
    with pytest.raises(LanceError, match="were changed"):
        demo.check_squares(client, 2)


# The part with Spark.


def test_batches(
    spark: SparkSession,
    server: EmbeddedBroker,
    client: LanceClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Producer(client, demo.TOPIC, create_topic=True) as producer:
        producer.write(demo.make_records(np.arange(5000)))
    try:
        demo.run_batches(spark, server.address)
    finally:
        client.delete_topic(demo.TOPIC)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["read", "read", "write", "write"]
    assert "5,000 records of 'events' in 4 tasks, " in lines[0]
    # Every other of a hundred users, twice written and once there.
    assert "50 users and their counts into 'users', sent again" in lines[3]


def test_a_stream_that_crashes(
    spark: SparkSession,
    server: EmbeddedBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo.run_stream(spark, server.address, tmp_path, records=5000)
    lines = capsys.readouterr().out.splitlines()
    steps = [line.split()[0] for line in lines if line[2] != " "]
    assert steps == ["stream", "live", "live", "crash", "restart", "live", "compare"]
    assert "5,000 records in, 5,000 out: each once" in lines[-1]
    last = lines[-2].split()
    assert last[:2] == ["5,000", "5,000"]
