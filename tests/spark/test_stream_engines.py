"""Streams on a standalone cluster with two workers, and through Spark Connect."""

from __future__ import annotations

import json
from pathlib import Path

from lance_spark.broker import EmbeddedBroker
from tests.spark.engine import stream_job
from tests.spark.engine.daemon import Cluster, run_script
from tests.spark.reading import fill, make_records
from tests.spark.writing import count_stages, read_values


def test_a_cluster_that_runs_a_task_twice(
    cluster: Cluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    rows = fill(broker, "in", make_records(400, 100))
    task_bytes = rows[-1]["next_offset"] // stream_job.TASKS
    found = cluster.run(stream_job, broker.address, str(tmp_path), str(task_bytes))
    assert found >= len(rows)
    assert read_values(broker, "out") == [row["value"] for row in rows]
    assert count_stages(broker) == 0
    # Both copies, on two executors, had passed all rows on when the first one ended.
    met = [path.name.split("-") for path in tmp_path.glob("met-*")]
    assert len({executor for _, _, executor in met}) == 2
    assert not (tmp_path / "late").exists()


def test_a_client_of_connect(
    connect: str, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    rows = fill(broker, "in", make_records(200))
    printed = run_script(
        *(Path(stream_job.__file__), connect, broker.address, str(tmp_path)),
        directory=tmp_path,
    )
    found = json.loads(printed.splitlines()[-1])
    assert found["rows"] == [70, 70, 60]
    assert found["behind"] == [130, 60, 0]
    assert "no topic is named 'gone'" in found["missing"]
    assert read_values(broker, "out") == [row["value"] for row in rows]
