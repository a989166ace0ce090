"""A standalone cluster: a master, two workers, executors that other processes kill."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lance_spark.broker import EmbeddedBroker
from tests.integration.kit import PATIENCE_S
from tests.integration.process import HAS_PROC
from tests.spark.engine import cluster_job
from tests.spark.engine.daemon import run_script

pytestmark = pytest.mark.skipif(not HAS_PROC, reason="an executor is found in /proc")


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


def test_rows_are_there_once_though_an_executor_is_killed(
    standalone: str, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    script = Path(cluster_job.__file__)
    killed = f"{topic}-killed"
    with watch_stages(broker, killed, tmp_path / "staged"):
        printed = run_script(
            script, standalone, broker.address, topic, str(tmp_path), directory=tmp_path
        )
    found = json.loads(printed.splitlines()[-1])
    rows = cluster_job.ROWS
    once = {"rows": rows, "values": rows, "sum": rows * (rows - 1) // 2}
    assert all(each.pop("partitions") > 1 for each in found.values())
    assert found[topic].pop("executors") > 1
    assert found[topic] == {**once, "topic": topic}
    assert (tmp_path / "killed").exists() and not (tmp_path / "late").exists()
    assert found[killed] == {**once, "topic": killed, "executors": 0}
    # What the killed one had staged is gone with the commit.
    assert broker.service.store.stages() == []
