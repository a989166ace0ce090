"""Stage writers: what a stage holds is what its writer says it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.dialect import Acked
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.consumer import Consumer
from lance_spark.client.lwp.writer import StageWriter
from lance_spark.errors import OptionError, Undelivered, Unsupported
from lance_spark.wire.lwp import StageContent
from tests.client.kit_flow import FakeClient, FakeConnection, Sent, ignore


def _writer(client: FakeClient, **options: Any) -> StageWriter:
    any_client: Any = client
    return StageWriter(any_client, "events", "job-1", 3, **options)


def test_sends_to_its_stage_and_counts() -> None:
    connection = FakeConnection()
    client = FakeClient(connection, topics={})
    writer = _writer(client, batch_bytes=20)
    for value in (b"aaaaa", b"bbbbb", b"ccccc"):
        writer.send(value)
    assert writer.finish() == StageContent(0x8000_0001, 2, 30)
    assert client.stages == [("events", "job-1", 3)]
    assert [(s.batch_id, s.topic_id) for s in connection.sent] == [
        (1, 0x8000_0001),
        (2, 0x8000_0001),
    ]


def test_counts_uncompressed_bytes() -> None:
    connection = FakeConnection()
    writer = _writer(FakeClient(connection), compression="lz4")
    writer.send(bytes(1000))
    assert writer.finish().byte_count == 1005
    assert len(connection.sent[0].data) < 100


def test_an_empty_stage() -> None:
    assert _writer(FakeClient()).finish() == StageContent(0x8000_0001, 0, 0)


def test_a_resend_counts_once() -> None:
    first, second = FakeConnection(ignore), FakeConnection()
    writer = _writer(FakeClient(first, second))
    writer.send(b"a")
    first.await_sent(1)
    first.fail()
    assert writer.finish() == StageContent(0x8000_0001, 1, 6)
    assert first.sent == second.sent


def test_what_is_not_delivered_is_never_finished() -> None:
    def ack_first(connection: FakeConnection, sent: Sent) -> None:
        if sent.batch_id == 1:
            connection.push(Acked(1))

    connection = FakeConnection(ack_first)
    writer = _writer(FakeClient(connection), batch_bytes=10)
    writer.send(b"aaaaa")
    writer.send(b"bbbbb")
    with pytest.raises(Undelivered):
        writer.finish(timeout_s=0.01)
    # A second try must not pass for what the first one did not do.
    with pytest.raises(Undelivered, match="closed before"):
        writer.finish()


def test_options_are_checked() -> None:
    client = FakeClient()
    with pytest.raises(OptionError):
        _writer(client, max_in_flight=0)
    assert client.stages == []
    plain = FakeClient(FakeConnection(capabilities=()))
    with pytest.raises(Unsupported):
        _writer(plain, compression="lz4")


def test_repr() -> None:
    with _writer(FakeClient()) as writer:
        assert repr(writer) == "<StageWriter of stage 0x80000001 for 'events'>"


# Against a broker.


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[LanceClient]:
    with LanceClient(broker.address) as client:
        yield client


def _read(client: LanceClient, topic: str) -> list[bytes | None]:
    with Consumer(client, topic) as consumer:
        return [found.value for found in consumer]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_commits_what_was_staged(client: LanceClient, compression: str) -> None:
    topic = f"staged-{compression}"
    values = [b"%06d" % number + bytes(50) for number in range(2000)]
    stages = []
    for half in (values[:1000], values[1000:]):
        with StageWriter(
            client, topic, topic, 1, batch_bytes=4000, compression=compression
        ) as writer:
            writer.write(pa.table({"value": half}))
            stages.append(writer.finish())
    # Nobody sees anything, not even the topic, before the commit.
    assert topic not in [info.name for info in client.topics()]
    client.commit_stages(topic, 1, stages)
    assert _read(client, topic) == values


def test_a_stage_that_is_gone(client: LanceClient) -> None:
    writer = StageWriter(client, "gone", "gone", 1)
    client.abort_stages("gone", 1)
    writer.send(b"a")
    with pytest.raises(Undelivered, match="StageNotFound"):
        writer.finish()


def test_a_broker_that_is_restarted_stores_every_batch_once(tmp_path: Any) -> None:
    with (
        EmbeddedBroker(data_dir=str(tmp_path)) as broker,
        LanceClient(broker.address, backoff_base_s=0.01, backoff_max_s=0.05) as client,
    ):
        writer = StageWriter(client, "events", "job", 1, batch_bytes=30)
        for number in range(30):
            writer.send(b"%05d" % number)
            if number in (10, 20):
                broker.stop()
                broker.start()
        stage = writer.finish()
        client.commit_stages("job", 1, [stage])
        assert _read(client, "events") == [b"%05d" % n for n in range(30)]


def test_a_plain_server_has_no_stages() -> None:
    with (
        EmbeddedBroker(dialect="plain") as broker,
        LanceClient(broker.address, checksum="auto") as client,
        pytest.raises(Unsupported),
    ):
        StageWriter(client, "events", "job", 1)
