"""A broker on a full disk: it starts, serves reads and deletions, refuses writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from lance_spark.errors import LanceError, Undelivered
from lance_spark.testing.faults import ScratchDisk


def send(client: LanceClient, topic: str, *values: bytes) -> None:
    with Producer(client, topic) as producer:
        for value in values:
            producer.send(value)


def log_end(client: LanceClient, topic: str) -> int:
    return client.locate_end(topic).offset


@pytest.mark.parametrize("fsync", ["none", "batch", "always"])
def test_a_broker_on_a_full_disk(tmp_path: Path, fsync: str) -> None:
    disk = ScratchDisk()
    settings = {"data_dir": str(tmp_path / "data"), "fsync": fsync}
    with (
        EmbeddedBroker(files=disk, **settings) as broker,
        LanceClient(broker.address) as client,
    ):
        for topic in ("one", "two"):
            client.create_topic(topic)
            send(client, topic, b"a", b"b")
        client.commit_offset("one", 7, 6)
    disk.fill()
    with (
        EmbeddedBroker(files=disk, **settings) as broker,
        LanceClient(broker.address, retry_timeout_s=1) as client,
    ):
        assert log_end(client, "one") == 12
        fetched = client.fetch("one", 0, 1000)
        assert bytes(fetched.data) == b"\x01\x01\x00\x00\x00a\x01\x01\x00\x00\x00b"
        with pytest.raises(Undelivered, match="No space left on device"):
            send(client, "one", b"c")
        with pytest.raises(LanceError, match="No space left on device"):
            client.create_topic("three")
        client.delete_topic("two")
        assert [topic.name for topic in client.topics()] == ["one"]
        disk.free()
        send(client, "one", b"d")
        client.create_topic("three")
        client.commit_offset("one", 7, 12)
        assert log_end(client, "one") == 18
