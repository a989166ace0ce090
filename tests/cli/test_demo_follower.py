"""The demo's consumer."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from lance_spark.cli import demo_follower
from lance_spark.cli.demo_follower import Follower, Seen
from lance_spark.client import LanceClient, Producer
from lance_spark.errors import DataLoss, LanceError, TopicNotFound
from lance_spark.wire.lwp import Record, encode_record


def test_follows(client: LanceClient, topic: str) -> None:
    data = b"".join(bytes(encode_record(Record(1, b"%d" % n))) for n in range(10))
    with Follower(client, topic) as follower, Producer(client, topic) as producer:
        for number in range(10):
            producer.send(b"%d" % number)
            producer.flush()
        assert follower.finish(60) == Seen(10, 60, crc32c(data))


def test_error_comes_out(client: LanceClient) -> None:
    with Follower(client, "nowhere") as follower, pytest.raises(TopicNotFound):
        follower.finish(1)


def test_topic_that_goes(client: LanceClient, topic: str) -> None:
    with Follower(client, topic) as follower:
        client.delete_topic(topic)
        with pytest.raises((DataLoss, TopicNotFound)):
            follower.finish(10**6)


def test_missing_records_are_noticed(
    client: LanceClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_follower, "_FINISH_S", 0.2)
    with (
        Follower(client, topic) as follower,
        pytest.raises(LanceError, match="read up to 0 of 6 bytes"),
    ):
        follower.finish(6)


def test_given_up(client: LanceClient, topic: str) -> None:
    with pytest.raises(KeyboardInterrupt), Follower(client, topic) as follower:
        raise KeyboardInterrupt
    assert not follower._thread.is_alive()
