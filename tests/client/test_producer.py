"""Producers: what they ask of the client, and that a broker stores what they send."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.consumer import Consumer
from lance_spark.client.lwp.writer import Producer
from lance_spark.errors import (
    LocalProtocolError,
    OptionError,
    RowError,
    TopicDeleted,
    TopicNotFound,
    Undelivered,
    Unsupported,
)
from lance_spark.wire.lwp import CreateTopic
from tests.client.kit_flow import PATIENCE_S, FakeClient, FakeConnection, record
from tests.client.scripted import Network, Peer

# What they ask of the client.


def _producer(
    client: FakeClient, topic: int | str = "events", **options: Any
) -> Producer:
    any_client: Any = client
    return Producer(any_client, topic, **options)


def test_finds_its_topic() -> None:
    connection = FakeConnection()
    with _producer(FakeClient(connection)) as producer:
        producer.send(b"a")
    assert [sent.topic_id for sent in connection.sent] == [7]


def test_takes_a_topics_number_at_its_word() -> None:
    connection = FakeConnection()
    with _producer(FakeClient(connection, topics={}), 0) as producer:
        producer.send(b"a")
    assert [sent.topic_id for sent in connection.sent] == [0]


def test_leaves_a_server_that_knows_no_leader(network: Network) -> None:
    def lost(peer: Peer) -> None:
        peer.greet()
        peer.ingest()
        peer.refuse(0x22, "leader unknown")
        peer.wait_for_end()

    def leader(peer: Peer) -> None:
        peer.greet()
        peer.ack(peer.ingest().batch_id)
        peer.wait_for_end()

    network.at("a:1", lost)
    network.at("b:2", leader)
    client = network.client("a:1,b:2", backoff_base_s=0.001, retry_timeout_s=9.0)
    with Producer(client, 7) as producer:
        producer.send(b"a")
    assert network.dialed == ["a:1", "b:2"]


def test_close_does_not_wait_for_a_server_that_does_not_answer(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Event()

    def silent(peer: Peer) -> None:
        peer.request()
        asked.set()
        peer.wait_for_end()

    network.serve(silent)
    client = network.client(connect_timeout_s=60.0)
    producer = Producer(client, 7)
    producer.send(b"a")
    # The thread connects when there is something to send.
    assert asked.wait(PATIENCE_S)
    with pytest.raises(Undelivered):
        producer.close(timeout_s=0.0)
    assert "does not end" not in caplog.text


def test_does_not_create_a_topic_unless_told() -> None:
    client = FakeClient(topics={})
    with pytest.raises(TopicNotFound):
        _producer(client)
    assert client.created == []
    with _producer(client, create_topic=True):
        pass
    assert client.created == ["events"]


def test_a_plain_server_gets_nothing_compressed() -> None:
    connection = FakeConnection(capabilities=())
    with pytest.raises(Unsupported, match="compression"):
        _producer(FakeClient(connection), compression="lz4")
    with _producer(FakeClient(connection)) as producer:
        producer.send(b"a")
    assert connection.sent[0].data == record("a")


def test_options_are_checked_before_anything_else() -> None:
    client = FakeClient(topics={})
    with pytest.raises(OptionError, match="batch_bytes"):
        _producer(client, batch_bytes=0)


def test_repr_names_the_topic() -> None:
    with _producer(FakeClient()) as producer:
        assert repr(producer) == "<Producer to 'events'>"


# Against a broker.


@pytest.fixture(scope="module", params=["lwp", "plain"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(dialect=request.param) as broker:
        yield broker


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[LanceClient]:
    with LanceClient(
        broker.address, checksum="auto", backoff_base_s=0.01, backoff_max_s=0.05
    ) as client:
        yield client


def _read(client: LanceClient, topic: str) -> list[bytes | None]:
    with Consumer(client, topic) as consumer:
        return [found.value for found in consumer]


def test_everything_arrives_in_order(client: LanceClient) -> None:
    values = [b"%06d" % number for number in range(5000)]
    with Producer(client, "order", create_topic=True, batch_bytes=1000) as producer:
        for value in values[:1000]:
            producer.send(value)
        producer.write(pa.table({"value": values[1000:]}))
        producer.flush()
        assert (producer.pending_records, producer.acked_records) == (0, 5000)
    assert _read(client, "order") == values


def test_large_and_empty_records(client: LanceClient) -> None:
    largest = bytes(16 * 1024 * 1024)
    with Producer(client, "sizes", create_topic=True) as producer:
        producer.send(b"")
        producer.send(largest)
        with pytest.raises(LocalProtocolError):
            producer.send(largest + b"x")
    found = _read(client, "sizes")
    assert found[0] == b""
    assert found[1] == largest
    assert len(found) == 2


NULLS = pa.table({"value": [b"a", b"", None, b"b"]})


def test_null_records(client: LanceClient, broker: EmbeddedBroker) -> None:
    """A plain server gets one only from those who say that they know better."""
    with Producer(client, "nulls", create_topic=True) as producer:
        if broker.config.dialect == "plain":
            said = "a Null record, and a plain server must not get.*allow_null_records"
            for _ in range(2):
                with pytest.raises(LocalProtocolError, match=said):
                    producer.send(None)
                with pytest.raises(RowError, match=said) as told:
                    producer.write(NULLS)
                assert told.value.row == 2
            producer.flush()
            assert producer.acked_records == 0, "nothing of the columns was taken"
            # It can be used on, and no other record is meant.
            producer.send(b"")
            producer.write(pa.table({"value": [b"v"], "key": [None]}))
        else:
            producer.send(None)
            producer.write(NULLS)
    is_plain = broker.config.dialect == "plain"
    expected = [b"", b"v"] if is_plain else [None, b"a", b"", None, b"b"]
    assert _read(client, "nulls") == expected
    with Producer(client, "nulls", allow_null_records=True) as producer:
        producer.send(None)
        producer.write(NULLS)
    assert _read(client, "nulls") == [*expected, None, b"a", b"", None, b"b"]


def test_a_producer_that_has_not_sent_yet_asks_what_the_server_is(
    client: LanceClient, broker: EmbeddedBroker
) -> None:
    topic_id = client.ensure_topic("asked").id
    with Producer(client.dedicated(), topic_id, linger_s=60.0) as producer:
        if broker.config.dialect == "plain":
            with pytest.raises(LocalProtocolError, match="a Null record"):
                producer.send(None)
        else:
            producer.send(None)


def test_compressed(client: LanceClient, broker: EmbeddedBroker) -> None:
    if broker.config.dialect == "plain":
        # There is no capability of that name: any would do.
        with pytest.raises(Unsupported, match=r"lists no capability of any kind"):
            Producer(client, "lz4", create_topic=True, compression="lz4")
        return
    values = [b"again and again " * 10] * 1000
    with Producer(client, "lz4", create_topic=True, compression="lz4") as producer:
        producer.write(pa.table({"value": values}))
    assert _read(client, "lz4") == values


def test_many_threads_share_a_producer(client: LanceClient) -> None:
    def send(name: int) -> None:
        for number in range(200):
            producer.send(b"%d %d" % (name, number))

    with Producer(client, "threads", create_topic=True, batch_bytes=100) as producer:
        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    found = [
        tuple(map(int, (value or b"").split())) for value in _read(client, "threads")
    ]
    assert len(found) == 800
    for name in range(4):
        assert [n for who, n in found if who == name] == [*range(200)]


def test_a_topic_that_is_deleted_and_created_anew(client: LanceClient) -> None:
    with Producer(client, "again", create_topic=True) as producer:
        producer.send(b"old")
        producer.flush()
        client.delete_topic("again")
        client.call(CreateTopic("again"))
        producer.send(b"new")
        producer.flush()
    assert _read(client, "again") == [b"new"]


def test_a_topic_that_is_deleted(client: LanceClient) -> None:
    client.ensure_topic("deleted")
    producer = Producer(client, "deleted")
    client.delete_topic("deleted")
    producer.send(b"a")
    with pytest.raises(Undelivered) as caught:
        producer.close()
    assert caught.value.records == 1
    assert isinstance(caught.value.cause, (TopicNotFound, TopicDeleted))


def test_a_broker_that_is_restarted(broker: EmbeddedBroker, tmp_path: Path) -> None:
    dialect = broker.config.dialect
    with (
        EmbeddedBroker(dialect=dialect, data_dir=str(tmp_path)) as mine,
        LanceClient(
            mine.address, checksum="auto", backoff_base_s=0.01, backoff_max_s=0.05
        ) as client,
    ):
        with Producer(client, "restart", create_topic=True) as producer:
            for number in range(20):
                producer.send(b"%d" % number)
                if number == 10:
                    producer.flush()
                    mine.stop()
                    mine.start()
            producer.flush()
        found = _read(client, "restart")
    assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(20)]
