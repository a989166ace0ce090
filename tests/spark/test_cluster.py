"""A standalone cluster: tasks that run twice at a time, executors that are killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.integration.kit import PATIENCE_S
from tests.integration.process import HAS_PROC
from tests.spark.engine import cluster_job, speculation_job
from tests.spark.engine.daemon import Cluster
from tests.spark.saving import to_numbers
from tests.spark.writing import count_stages, read_values


def test_a_task_is_run_twice_at_a_time(
    cluster: Cluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Both copies have written all their rows before one of them is chosen."""
    cluster.run(speculation_job, broker.address, str(tmp_path))
    rows, parts = speculation_job.ROWS, speculation_job.PARTITIONS
    # Two attempts with each delivery, and none that was alone for too long.
    attempts = list(tmp_path.glob("*-once.[01]"))
    assert len(attempts) == 2 * len(speculation_job.DELIVERIES)
    assert list(tmp_path.glob("*.late")) == []
    once = to_numbers(read_values(broker, "exactly-once"))
    assert once == list(range(rows))
    assert count_stages(broker) == 0
    found = Counter(to_numbers(read_values(broker, "at-least-once")))
    assert set(found) == set(range(rows))
    assert min(found[n] for n in range(rows // parts, 2 * rows // parts)) > 1


@contextmanager
def watch_stages(broker: EmbeddedBroker, topic: str, path: Path) -> Iterator[None]:
    """Make a file as soon as two stages of a topic hold rows: one of each executor."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            stages = broker.service.store.stages()
            if sum(s.metadata.topic == topic and s.size > 0 for s in stages) > 1:
                path.touch()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


@pytest.mark.skipif(not HAS_PROC, reason="an executor is found in /proc")
def test_rows_are_there_once_though_an_executor_is_killed(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    names = ("rustlog", "kimberlite", "fluvio", "tank")
    listeners = dict.fromkeys(names, "127.0.0.1:0")
    with EmbeddedBroker(fsync="none", **listeners) as broker:
        check_jobs(cluster, broker, topic, tmp_path, [*listeners])


def check_jobs(
    cluster: Cluster,
    broker: EmbeddedBroker,
    topic: str,
    tmp_path: Path,
    formats: list[str],
) -> None:
    killed = f"{topic}-killed"
    others = [f"{name}={broker.address_of(name)}" for name in formats]
    with watch_stages(broker, killed, tmp_path / "staged"):
        found = cluster.run(cluster_job, broker.address, topic, str(tmp_path), *others)
    rows = cluster_job.ROWS
    for each in others:
        # Four tasks, so each of the three partitions has rows. Some may be there twice:
        # the cluster starts slow tasks a second time, and delivery is at-least-once.
        is_one = each.startswith("kimberlite=")
        partitions = {} if is_one else {"partitions": 3}
        assert found.pop(each) == {"values": rows, **partitions}
    once = {"rows": rows, "values": rows, "sum": rows * (rows - 1) // 2}
    assert all(each.pop("partitions") > 1 for each in found.values())
    # Both worked. Whose rows count is Spark's affair: it starts a task that is slow a
    # second time, on a busy machine any of them, and one executor may win them all.
    assert len(list(tmp_path.glob("daemon-*"))) > 1
    del found[topic]["executors"]
    assert found[topic] == {**once, "topic": topic}
    assert (tmp_path / "killed").exists() and not (tmp_path / "late").exists()
    assert found[killed] == {**once, "topic": killed, "executors": 0}
    # What the killed one had staged is gone with the commit.
    assert broker.service.store.stages() == []
