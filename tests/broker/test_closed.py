"""A broker on a store with damaged files: what is closed, and what goes on."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.access import Principal
from lance_spark.broker.assignment import Strategy
from lance_spark.client import LanceClient
from lance_spark.errors import (
    AuthenticationRequired,
    LanceError,
    StorageError,
    StoreError,
)
from lance_spark.model import Retention
from lance_spark.store import NamedStage
from tests.broker.console.visit import Visitor, add_topic
from tests.broker.kit import PATIENCE_S, StartBroker, records

ANYBODY = Principal()
START = np.array([0])
TEXT = r"metadata\.json is damaged .*check --repair"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.fixture
def data_dir(directory: Path) -> Path:
    """Topics one and two, a stage for two, an offset in each."""
    path = directory / "data"
    files = {"fsync": "none", "stage_inline_bytes": 0}
    with EmbeddedBroker(data_dir=str(path), **files) as broker:
        for name in ("one", "two"):
            topic = add_topic(broker, name, records(name, 3))
            broker.service.store.commit_offset(7, topic, 25)
        stage = broker.service.store.open_stage("two", "w", 1)
        broker.service.store.append_stage(stage, 1, records("s", 1))
    return path


def test_a_closed_topic(start: StartBroker, data_dir: Path) -> None:
    flip(data_dir / "segments/1/metadata.json")
    broker = start(
        data_dir=str(data_dir),
        ui=True,
        metrics="127.0.0.1:0",
        topics={"two": {"retention": {"max_age_secs": 3600}}, "new": {}},
    )
    service = broker.service
    joined = {"strategy": Strategy.RANGE, "session_timeout_s": 30.0}
    for call in (
        lambda: service.topic(ANYBODY, 1),
        lambda: service.view(ANYBODY, 1),
        lambda: service.read(ANYBODY, 1, 0, 100),
        lambda: service.locate(ANYBODY, 1, "start", 0),
        lambda: service.ends(ANYBODY, [2, 1]),
        lambda: service.append(ANYBODY, 1, 1, records("x", 1), starts=START),
        lambda: service.delete_topic(ANYBODY, 1),
        lambda: service.set_retention(ANYBODY, 1, Retention(0, 1)),
        lambda: service.consumers(ANYBODY, 1),
        lambda: service.commit_offset(ANYBODY, 1, 7, 0),
        lambda: service.subscribe(ANYBODY, 1, 7, start=0, max_batch_bytes=1),
    ):
        with pytest.raises(StorageError, match=TEXT):
            call()
    for call in (
        lambda: service.create_topic(ANYBODY, "unknown"),
        lambda: service.create_topic(ANYBODY, "one"),
        lambda: service.open_stage(ANYBODY, "unknown", "v", 1),
        lambda: service.commit_stages(
            ANYBODY, "v", 1, stages=[], overwrite=["unknown"]
        ),
        lambda: service.join_group(ANYBODY, "g", "m", topics=["unknown"], **joined),
    ):
        with pytest.raises(StoreError, match="can't be found or made"):
            call()
    # The others are served, and so are the lists of everything.
    with LanceClient(broker.address) as client:
        assert [topic.name for topic in client.topics()] == ["two"]
        with pytest.raises(StorageError, match=TEXT):
            client.topic(1)
        with pytest.raises(StorageError, match="can't be found or made"):
            client.create_topic("unknown")
    stage = service.stages(ANYBODY)[0]
    named = NamedStage(stage.metadata.id, 1, stage.size)
    service.join_group(ANYBODY, "g", "m", topics=["two"], **joined)
    assert service.all_consumers(ANYBODY).keys() == {2}
    assert [gauge.name for gauge in service.gauges()] == ["", "two"]
    assert {key.topic for key in service.lags()} == {2}
    assert len(service.describe_groups(ANYBODY)) == 1
    service.commit_stages(ANYBODY, "w", 1, stages=[named], overwrite=[])
    service.maintain()
    found = Visitor(broker).get("/api/overview")
    assert [topic["name"] for topic in found["topics"]] == ["two"]
    assert found["health"]["status"] == "error"
    assert broker.metrics_address is not None
    url = f"http://{broker.metrics_address}/metrics"
    with urlopen(url, timeout=PATIENCE_S) as answer:
        assert b'topic="two"' in answer.read()
    assert service.store.consumer_offsets()[7, 1] == 25  # type: ignore[index]


def test_the_default_topic_is_closed(start: StartBroker, data_dir: Path) -> None:
    flip(data_dir / "segments/0/metadata.json")
    broker = start(data_dir=str(data_dir), ui=True)
    service = broker.service
    with pytest.raises(StorageError, match="segments/0/metadata"):
        service.view(ANYBODY, 0)
    assert service.create_topic(ANYBODY, "new").metadata.id == 3
    assert [gauge.id for gauge in service.gauges()] == [1, 2, 3]
    service.maintain()
    assert len(Visitor(broker).get("/api/overview")["topics"]) == 3


def test_a_client_without_a_token_learns_nothing(
    start: StartBroker, data_dir: Path
) -> None:
    flip(data_dir / "segments/1/metadata.json")
    service = start(data_dir=str(data_dir), tokens=["secret-token"]).service
    with pytest.raises(AuthenticationRequired):
        service.topic(ANYBODY, 1)


def test_a_damaged_stage(start: StartBroker, data_dir: Path) -> None:
    (file,) = data_dir.glob("stages/*/stage.json")
    flip(file)
    service = start(data_dir=str(data_dir)).service
    assert service.stages(ANYBODY) == []
    named = NamedStage(int(file.parent.name), 1, len(records("s", 1)))
    with pytest.raises(StoreError, match=r"stage\.json is damaged .*check --repair"):
        service.commit_stages(ANYBODY, "w", 1, stages=[named], overwrite=[])
    service.maintain()
    assert file.exists()
    again = service.open_stage(ANYBODY, "two", "w", 1)
    assert again > named.id


def test_a_broker_without_its_ids_says_what_to_do(
    start: StartBroker, data_dir: Path
) -> None:
    flip(data_dir / "store.json")
    with pytest.raises(LanceError, match=r"store\.json is damaged .*check --repair"):
        start(data_dir=str(data_dir))
