"""The contract: what a client may rely on, whichever server it talks to.

Every test runs against the broker in this process, in a process of its own, with
certificates on both sides, with tokens, and in the plain dialect. What that last one
lacks is an error of its own kind, `Unsupported`, and not a surprise.

Here are the connection, topics and producing; `test_contract_read` has the rest.
"""

from __future__ import annotations

import itertools
import pickle
import random
import threading

import pyarrow as pa
import pytest

from lance_spark.client import (
    Consumer,
    LanceClient,
    Producer,
    SeekPosition,
)
from lance_spark.errors import (
    DataLoss,
    InvalidTopicName,
    LanceError,
    LocalProtocolError,
    RowError,
    TopicAlreadyExists,
    TopicDeleted,
    TopicNotFound,
    Undelivered,
    Unsupported,
)
from lance_spark.model import Retention
from lance_spark.wire.lwp import RECORD_VALUE_BYTES_MAX, Capability, RecordType
from tests.integration.contract import Target, fill, read
from tests.integration.kit import make_client, read_bytes, wait_for

NUMBERS = itertools.count(1)
GONE = (TopicNotFound, TopicDeleted)


# The connection.


def test_ping_and_status(target: Target, client: LanceClient) -> None:
    assert client.ping() > 0
    assert [client.ping() > 0 for _ in range(10)] == [True] * 10
    status = client.status()
    assert status.is_leader
    assert client.is_plain is target.is_plain
    expected = set() if target.is_plain else {c.value for c in Capability}
    assert set(status.capabilities) == client.capabilities == expected
    for capability in Capability:
        assert client.supports(capability) is not target.is_plain


def test_settings_travel(target: Target, client: LanceClient) -> None:
    """Spark sends them to executors, which connect by themselves."""
    config = pickle.loads(pickle.dumps(client.config))
    with LanceClient(config=config) as copy:
        assert copy.connect().ping() > 0
    with client.dedicated() as other:
        assert other.topics() == client.topics()


def test_used_after_close(target: Target, client: LanceClient) -> None:
    client.topics()
    client.close()
    with pytest.raises(LanceError, match="closed"):
        client.topics()


def test_many_threads_on_one_client(client: LanceClient, topic: str) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(30):
                assert client.topic(topic).name == topic
                assert client.bounds(topic).end == 0
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []


# Topics.


def test_topics(client: LanceClient, name: str) -> None:
    made = client.create_topic(name)
    assert made.name == name and made.id > 0
    with pytest.raises(TopicAlreadyExists):
        client.create_topic(name)
    assert client.ensure_topic(name).id == made.id
    assert client.ensure_topic(f"{name}-too").id > made.id
    assert client.topic(name).id == client.topic(made.id).id == made.id
    listed = {info.name: info.id for info in client.list_topics()}
    assert listed[name] == made.id
    assert client.topic_id(name) == made.id
    client.delete_topic(name)
    assert name not in {info.name for info in client.topics()}
    with pytest.raises(GONE):
        client.topic(made.id)
    with pytest.raises(TopicNotFound):
        client.topic(name)
    # The name is free again, and the id is not used again.
    assert client.create_topic(name).id > made.id


def test_topic_that_is_not_there(client: LanceClient) -> None:
    for call in (
        lambda: client.topic(999_999),
        lambda: client.delete_topic(999_999),
        lambda: client.set_retention(999_999, Retention()),
        lambda: client.subscribe(999_999, 1),
    ):
        with pytest.raises(GONE):
            call()
    for missing in ("no-such-topic", 999_999):
        with pytest.raises(LanceError):
            client.fetch(missing, 0, 100)
    with pytest.raises(TopicNotFound):
        Producer(client, "no-such-topic")
    with pytest.raises(TopicNotFound):
        Consumer(client, "no-such-topic")


@pytest.mark.parametrize("bad", ["", "..", "a/b", "new\nline"])
def test_bad_topic_name(client: LanceClient, bad: str) -> None:
    with pytest.raises(InvalidTopicName):
        client.create_topic(bad)


def test_name_that_only_some_servers_take(
    target: Target, client: LanceClient, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    wide = f"{name}.with_ünicode"
    if target.is_plain:
        with pytest.raises(InvalidTopicName, match="Only letters"):
            client.create_topic(wide)
        return
    assert client.create_topic(wide).name == client.topic(wide).name == wide
    assert "only take letters" in caplog.text


def test_topic_that_is_created_anew(client: LanceClient, topic: str) -> None:
    """A name goes on working for whoever has looked it up before."""
    fill(client, topic)
    with make_client(client.config.servers, config=client.config) as other:
        other.delete_topic(topic)
        other.create_topic(topic)
    assert read(client, topic) == []
    assert fill(client, topic, 3) == read(client, topic)


def test_retention(target: Target, client: LanceClient, name: str) -> None:
    made = client.create_topic(name, retention=Retention(3600, 10**9))
    assert made.retention == Retention(3600, 10**9)
    changed = client.set_retention(name, Retention(0, 10**9))
    assert changed == Retention(0, 10**9)
    if not target.is_plain:
        assert client.topic(name).retention == Retention(0, 10**9)


def fill_segments(client: LanceClient, topic: str, *, create: bool = False) -> None:
    """Write enough for several segments, each of which retention may take."""
    with Producer(client, topic, batch_bytes=1, create_topic=create) as producer:
        for _ in range(10):
            producer.send(bytes(30_000))


def test_no_retention_deletes_nothing(client: LanceClient, name: str) -> None:
    """0 is no limit, also for a server that would take it at its word."""
    client.create_topic(name, retention=Retention())
    client.set_retention(name, Retention(0, 0))
    fill_segments(client, name)
    # When this one has lost something, the other one has been looked at, too.
    doomed = f"{name}-doomed"
    fill_segments(client, doomed, create=True)
    size = len(read_bytes(client, doomed))
    client.set_retention(doomed, Retention(0, 70_000))
    wait_for(lambda: left_of(client, doomed) < size, "retention")
    assert read(client, name) == 10 * [bytes(30_000)]


def left_of(client: LanceClient, topic: str) -> int:
    bounds = client.bounds(topic)
    return bounds.end - (bounds.start or 0)


def test_retention_deletes(target: Target, client: LanceClient, topic: str) -> None:
    fill_segments(client, topic)
    size = client.bounds(topic).end
    client.set_retention(topic, Retention(0, 70_000))
    wait_for(lambda: left_of(client, topic) <= 140_000, "retention")
    bounds = client.bounds(topic)
    if target.is_plain:
        assert bounds.end < size  # It counts from what is left.
        return
    assert bounds.end == size
    start = SeekPosition.offset(0)
    with (
        Consumer(client, topic, start=start) as consumer,
        pytest.raises(DataLoss) as caught,
    ):
        consumer.poll()
    assert caught.value.missing_bytes == bounds.start
    with Consumer(client, topic, start=start, fail_on_data_loss=False) as consumer:
        assert next(iter(consumer)).offset == bounds.start


# Producing.

RECORDS = [
    pytest.param({"value": b"raw"}, RecordType.RAW, id="raw"),
    pytest.param({"value": b"{}", "type": 2}, RecordType.JSON, id="json"),
    pytest.param({"value": b"\x80", "type": 3}, RecordType.MESSAGE_PACK, id="msgpack"),
    pytest.param({"value": b"\x08\x01", "type": 4}, RecordType.PROTOBUF, id="protobuf"),
    pytest.param({"value": b"\x02", "type": 5}, RecordType.AVRO, id="avro"),
    pytest.param({"value": b"v", "key": b"k"}, RecordType.KEY_VALUE, id="key"),
    pytest.param(
        {"value": b"v", "timestamp_ns": 1_700_000_000_000_000_007},
        RecordType.TIMESTAMPED,
        id="timestamp",
    ),
    pytest.param(
        {"value": b"v", "key": b"k", "timestamp_ns": 7},
        RecordType.KEY_TIMESTAMPED,
        id="key and timestamp",
    ),
    pytest.param({"value": b"mine", "type": 0x80}, 0x80, id="application"),
    pytest.param({"value": None}, RecordType.NULL, id="null"),
]


@pytest.mark.parametrize(("sent", "kind"), RECORDS)
def test_each_record_type(
    client: LanceClient, topic: str, sent: dict[str, object], kind: int
) -> None:
    # A plain server must not get a Null record, unless somebody says so.
    with Producer(client, topic, allow_null_records=True) as producer:
        producer.send(**sent)  # type: ignore[arg-type]
    with Consumer(client, topic) as consumer:
        (found,) = consumer
    assert found.type == kind
    assert found.value == sent["value"]
    assert found.key == sent.get("key")
    assert found.timestamp_ns == sent.get("timestamp_ns")
    assert (found.offset, found.next_offset) == (0, client.bounds(topic).end)


def test_empty_values_and_keys(client: LanceClient, topic: str) -> None:
    with Producer(client, topic, allow_null_records=True) as producer:
        producer.send(b"")
        producer.send(b"", key=b"")
        producer.send(b"", key=b"", timestamp_ns=0)
        producer.send("text", key="ключ")
        producer.send(b"v", key=bytes(65_535))
        producer.send(None)
    with Consumer(client, topic) as consumer:
        found = [(r.key, r.value, r.timestamp_ns) for r in consumer]
    assert found == [
        (None, b"", None),
        (b"", b"", None),
        (b"", b"", 0),
        ("ключ".encode(), b"text", None),
        (bytes(65_535), b"v", None),
        (None, None, None),
    ]


def test_largest_record(client: LanceClient, topic: str) -> None:
    value = random.Random(16).randbytes(RECORD_VALUE_BYTES_MAX)
    with Producer(client, topic) as producer:
        producer.send(b"before")
        producer.send(value)
        producer.send(b"after")
    assert read(client, topic) == [b"before", value, b"after"]


def test_records_that_can_not_be(client: LanceClient, topic: str) -> None:
    """They are refused before anything is sent."""
    with Producer(client, topic) as producer:
        with pytest.raises(LocalProtocolError):
            producer.send(bytes(RECORD_VALUE_BYTES_MAX + 1))
        with pytest.raises(LocalProtocolError):
            producer.send(None, key=b"k")
        with pytest.raises(LocalProtocolError):
            producer.send(b"v", key=b"k", type=RecordType.JSON)
        with pytest.raises(RowError) as caught:
            producer.write(pa.table({"value": [b"x", None], "key": [None, b"k"]}))
        assert caught.value.row == 1
        producer.send(b"good")
    assert read(client, topic) == [b"good"]


def test_arrow(client: LanceClient, topic: str) -> None:
    rows = 10_000
    table = pa.table(
        {
            "value": [f"value {n}".encode() if n % 7 else None for n in range(rows)],
            "key": [b"%d" % n if n % 3 == 0 and n % 7 else None for n in range(rows)],
            "timestamp_ns": pa.array(
                [n if n % 5 == 0 and n % 7 else None for n in range(rows)], pa.int64()
            ),
        }
    )
    with Producer(
        client, topic, batch_bytes=20_000, allow_null_records=True
    ) as producer:
        producer.write(table)
        producer.write(table.slice(0, 10).to_batches()[0])
    assert producer.acked_records == rows + 10
    columns = ["value", "key", "timestamp_ns"]
    with Consumer(client, topic, fetch_bytes=50_000) as consumer:
        found = pa.Table.from_batches(consumer.batches(columns))
    expected = pa.concat_tables([table, table.slice(0, 10)])
    assert found.to_pylist() == expected.to_pylist()


def test_lz4(target: Target, client: LanceClient, topic: str) -> None:
    if target.is_plain:
        with pytest.raises(Unsupported) as caught:
            Producer(client, topic, compression="lz4")
        assert caught.value.capability is None
        return
    values = [b"x" * 1000, bytes(range(256)), b""] * 20
    with Producer(client, topic, compression="lz4", batch_bytes=5000) as producer:
        for value in values:
            producer.send(value)
    assert read(client, topic) == values
    # The log holds what was meant, and not how it came.
    assert len(read_bytes(client, topic)) == producer.acked_bytes


def test_order_of_one_producer(client: LanceClient, topic: str) -> None:
    values = [b"%d" % n for n in range(3000)]
    with Producer(client, topic, batch_bytes=200, max_in_flight=20) as producer:
        for value in values:
            producer.send(value)
            if value.endswith(b"99"):
                producer.flush(30)
    assert producer.pending_records == 0
    assert read(client, topic) == values


def test_acknowledged_is_visible(client: LanceClient, topic: str) -> None:
    with Producer(client, topic) as producer, Consumer(client, topic) as consumer:
        for n in range(20):
            producer.send(b"%d" % n)
            producer.flush(30)
            (found,) = consumer
            assert found.value == b"%d" % n


def test_deleted_topic_is_noticed(client: LanceClient, topic: str) -> None:
    with pytest.raises(Undelivered) as caught, Producer(client, topic) as producer:
        client.delete_topic(topic)
        producer.send(b"lost")
    assert caught.value.records == 1
    assert isinstance(caught.value.cause, GONE)


def test_producer_creates_its_topic(client: LanceClient, name: str) -> None:
    with Producer(client, name, create_topic=True) as producer:
        producer.send(b"first")
    with Producer(client, name, create_topic=True) as producer:
        producer.send(b"second")
    assert read(client, name) == [b"first", b"second"]
