"""Options of writers, and what record a call of `send` makes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from lance_spark.client.dialect import Acked
from lance_spark.client.lwp.consumer import Consumer
from lance_spark.client.lwp.writer import StageWriter, Writer, WriterOptions
from lance_spark.errors import (
    LanceError,
    LocalProtocolError,
    OptionError,
    RowError,
    Timeout,
    TopicDeleted,
    TopicNotFound,
    Undelivered,
    Unsupported,
)
from lance_spark.wire.lwp import (
    PAYLOAD_BYTES_MAX,
    CreateTopic,
    Record,
    StageContent,
    decode_records,
)
from tests.client.kit_flow import (
    PATIENCE_S,
    FakeClient,
    FakeConnection,
    Sent,
    ignore,
    record,
)
from tests.client.scripted import Network, Peer
from tests.each import each


def _make(connection: FakeConnection, **options: Any) -> Writer:
    chosen = WriterOptions(**options)
    client: Any = FakeClient(connection)
    return Writer(client, "events", 7, chosen, check=None)


def _records(connection: FakeConnection) -> list[Record]:
    return [
        Record(r.type, bytes(r.value), r.key and bytes(r.key), r.timestamp_ns)
        for sent in connection.sent
        for r in decode_records(sent.data)
    ]


# Options.


@each(
    ("options", "text"),
    [
        ({"batch_bytes": 0}, "batch_bytes=0"),
        ({"batch_bytes": PAYLOAD_BYTES_MAX + 1, "buffer_bytes": 2**40}, "batch_bytes"),
        ({"linger_s": -1}, "linger_s"),
        ({"linger_s": float("nan")}, "linger_s"),
        ({"max_in_flight": 0}, "max_in_flight=0"),
        ({"batch_bytes": 100, "buffer_bytes": 99}, "buffer_bytes=99"),
        ({"compression": "gzip"}, "compression='gzip': must be one of none, lz4"),
        ({"record_type": 0x10}, "record type 16"),
        ({"record_type": 0}, "record type 0"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        WriterOptions(**options)


# One record at a time.


def test_send_chooses_the_type() -> None:
    connection = FakeConnection()
    with _make(connection, record_type=0x02) as writer:
        writer.send(b"plain")
        writer.send("größe")
        writer.send(b"", type=0x85)
        writer.send(b"v", key=b"k")
        writer.send(b"v", timestamp_ns=5)
        writer.send("v", key="", timestamp_ns=5, type=0x12)
        writer.send(None)
        writer.send(memoryview(b"view"), key=bytearray(b"k"))
    assert _records(connection) == [
        Record(0x02, b"plain"),
        Record(0x02, "größe".encode()),
        Record(0x85, b""),
        Record(0x10, b"v", b"k"),
        Record(0x11, b"v", None, 5),
        Record(0x12, b"v", b"", 5),
        Record(0xFF, b""),
        Record(0x10, b"view", b"k"),
    ]


@each(
    ("arguments", "text"),
    [
        ({"value": None, "key": b"k"}, "no value"),
        ({"value": None, "timestamp_ns": 1}, "no value"),
        ({"value": None, "type": 1}, "contradicts"),
        ({"value": b"v", "key": b"k", "type": 1}, "contradicts"),
        ({"value": b"v", "timestamp_ns": 1, "type": 0x12}, "contradicts"),
        ({"value": b"v", "key": b"k" * 65536}, "key or timestamp"),
        ({"value": b"v", "timestamp_ns": -1}, "key or timestamp"),
        ({"value": bytes(16 * 1024 * 1024 + 1)}, "over the limit"),
        ({"value": bytes(16 * 1024 * 1024 - 2), "key": b"k"}, "over the limit"),
    ],
)
def test_what_is_no_record_is_refused_before_anything_is_sent(
    arguments: dict[str, Any], text: str
) -> None:
    connection = FakeConnection()
    with _make(connection) as writer:
        with pytest.raises(LocalProtocolError, match=text):
            writer.send(**arguments)
        assert writer.pending_records == 0
    assert connection.sent == []


@pytest.mark.parametrize("kind", [0, 0x11, 0xFF, 256])
def test_a_type_that_plain_values_can_not_have(kind: int) -> None:
    with _make(FakeConnection()) as writer, pytest.raises(OptionError):
        writer.send(b"v", type=kind)


# Columns.


def test_write_sends_whole_payloads_in_order() -> None:
    connection = FakeConnection()
    values = [b"%03d" % number for number in range(100)]
    with _make(connection, batch_bytes=80) as writer:
        writer.write(pa.table({"value": values[:60]}))
        writer.send(values[60])
        writer.write(pa.record_batch({"value": values[61:]}))
    assert [bytes(r.value) for r in _records(connection)] == values
    assert [sent.batch_id for sent in connection.sent] == [
        *range(1, len(connection.sent) + 1)
    ]
    assert max(len(sent.data) for sent in connection.sent) <= 80
    assert (writer.acked_records, writer.acked_bytes) == (100, 800)
    assert writer.acked_batches == len(connection.sent)


def test_write_of_no_rows() -> None:
    connection = FakeConnection()
    with _make(connection) as writer:
        writer.write(pa.table({"value": pa.array([], pa.binary())}))
    assert connection.sent == []


def test_a_bad_row_is_refused_before_anything_is_sent() -> None:
    connection = FakeConnection()
    table = pa.table({"key": [None, None, b"k"], "value": [b"a", b"b", None]})
    with _make(connection, batch_bytes=6) as writer:
        with pytest.raises(RowError, match="row 2"):
            writer.write(table)
        with pytest.raises(OptionError, match="price"):
            writer.write(pa.table({"value": [b"a"], "price": [1]}))
        huge = pa.table({"value": [b"a", bytes(16 * 1024 * 1024 + 1)]})
        with pytest.raises(RowError, match="row 1: a record of 16777217 bytes"):
            writer.write(huge)
    assert connection.sent == []


def test_a_write_that_finds_no_room_says_how_far_it_came() -> None:
    connection = FakeConnection(ignore)
    writer = _make(connection, batch_bytes=16, buffer_bytes=32)
    table = pa.table({"value": [b"%03d" % number for number in range(10)]})
    with pytest.raises(Timeout, match="4 of 10 rows were taken"):
        writer.write(table, timeout_s=0.01)
    writer.close(abandon=True)


# The end.


def test_close_flushes_once() -> None:
    connection = FakeConnection()
    writer = _make(connection, linger_s=1000)
    writer.send(b"a")
    writer.close()
    writer.close()
    assert len(connection.sent) == 1
    with pytest.raises(LanceError, match="closed"):
        writer.send(b"b")


def test_close_raises_what_is_undelivered_and_still_closes() -> None:
    connection = FakeConnection(ignore)
    writer = _make(connection)
    writer.send(b"a")
    connection.await_sent(1)
    with pytest.raises(Undelivered) as caught:
        writer.close(timeout_s=0.01)
    assert caught.value.batches == (1,)
    assert not connection.is_open
    writer.close()


def _in_background(call: Callable[[], None]) -> Future[None]:
    future: Future[None] = Future()

    def run() -> None:
        try:
            call()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_nothing_is_taken_once_close_has_begun() -> None:
    connection = FakeConnection(ignore)
    writer = _make(connection, linger_s=1000)
    writer.send(b"a")
    closing = _in_background(writer.close)
    connection.await_sent(1)
    # It would be in no flush, and could only be lost.
    with pytest.raises(LanceError, match="the producer is closed"):
        writer.send(b"late")
    connection.push(Acked(1))
    closing.result(PATIENCE_S)
    assert (writer.acked_records, writer.pending_records) == (1, 0)


def test_a_second_close_does_not_return_before_everything_is_acknowledged() -> None:
    connection = FakeConnection(ignore)
    writer = _make(connection)
    writer.send(b"a")
    closing = _in_background(writer.close)
    connection.await_sent(1)
    with pytest.raises(Undelivered):
        writer.close(timeout_s=0.0)
    with pytest.raises(Undelivered, match="the producer was closed"):
        closing.result(PATIENCE_S)
    writer.close()


def test_one_that_is_dropped_delivers_what_it_has_and_ends() -> None:
    connection = FakeConnection()
    chosen = WriterOptions(linger_s=1000)
    client: Any = FakeClient(connection)
    writer = Writer(client, "dropped", 7, chosen, check=None)
    writer.send(b"a")
    with pytest.warns(ResourceWarning, match="'dropped': a producer was dropped"):
        del writer
        gc.collect()
    connection.await_sent(1)
    for thread in threading.enumerate():
        if thread.name.startswith("lance-producer") and "dropped" in thread.name:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert client.is_closed


def test_one_that_was_closed_can_be_dropped_in_silence() -> None:
    # A warning would be an error here.
    writer = _make(FakeConnection())
    writer.close()
    del writer
    gc.collect()


def test_an_exception_in_the_block_is_not_hidden(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = FakeConnection(ignore)
    with pytest.raises(KeyError, match="mine"), _make(connection) as writer:
        writer.send(b"a")
        writer.send(b"b")
        connection.await_sent(1)
        raise KeyError("mine")
    assert "2 records are abandoned" in caplog.text
    assert not connection.is_open


def test_numbers() -> None:
    connection = FakeConnection(ignore)
    writer = _make(connection)
    writer.send(b"abc")
    writer.send(b"defgh")
    assert (writer.pending_records, writer.pending_bytes) == (2, 18)
    assert writer.retried_batches == writer.refused_records == 0
    writer.close(abandon=True)
    assert record("abc") == b"\x01\x03\0\0\0abc"


@pytest.mark.parametrize("value", [5, True, 0, [1, 2], {1: 2}, 3.5, {"a": 1}])
def test_only_text_and_bytes_are_taken(value: object) -> None:
    with EmbeddedBroker(fsync="none") as broker, LanceClient(broker.address) as client:
        with Producer(client, "t", create_topic=True) as producer:
            with pytest.raises(
                OptionError, match=f"a value of type {type(value).__name__}"
            ):
                producer.send(value)
            with pytest.raises(OptionError, match="a key of type"):
                producer.send("v", key=value)
            with pytest.raises(OptionError, match="give an Arrow table"):
                producer.write([1, 2])
            with pytest.raises(OptionError, match="record type 'json'"):
                producer.send("v", type="json")  # type: ignore[arg-type]
            producer.send(bytearray(b"one"))
            producer.send(memoryview(b"two"), key=np.array([7], np.uint8))
        assert client.bounds("t").end == len(b"one") + 5 + len(b"two") + 5 + 3


# Producers: what they ask of the client, and that a broker stores what they send.


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


# Stage writers: what a stage holds is what its writer says it does.


def _writer(staging: FakeClient, **options: Any) -> StageWriter:
    any_client: Any = staging
    return StageWriter(any_client, "events", "job-1", 3, **options)


def test_sends_to_its_stage_and_counts() -> None:
    connection = FakeConnection()
    staging = FakeClient(connection, topics={})
    writer = _writer(staging, batch_bytes=20)
    for value in (b"aaaaa", b"bbbbb", b"ccccc"):
        writer.send(value)
    assert writer.finish() == StageContent(0x8000_0001, 2, 30)
    assert staging.stages == [("events", "job-1", 3)]
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
    client = FakeClient(first, second)
    writer = _writer(client)
    writer.send(b"a")
    first.await_sent(1)
    first.fail()
    assert writer.finish() == StageContent(0x8000_0001, 1, 6)
    assert first.sent == second.sent
    # A second answer to the batch must not meet the next writer.
    assert client.is_closed and not client.returned


def test_stages_one_behind_the_other_share_a_connection() -> None:
    client = FakeClient(FakeConnection())
    for number in (1, 2):
        writer = _writer(client)
        writer.send(b"a")
        assert writer.finish().batch_count == 1
        writer.close()
        assert (client.returned, client.is_closed) == (number, False)
    writer = _writer(client)
    writer.close(abandon=True)
    assert client.returned == 2 and client.is_closed


def test_a_topic_gets_a_connection_of_its_own() -> None:
    """The server tells its batches apart by their numbers on the connection."""
    client = FakeClient(FakeConnection())
    with Producer(client, "events") as producer:  # type: ignore[arg-type]
        producer.send(b"a")
    assert client.is_closed and not client.returned


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
    staging = FakeClient()
    with pytest.raises(OptionError):
        _writer(staging, max_in_flight=0)
    assert staging.stages == []
    plain = FakeClient(FakeConnection(capabilities=()))
    with pytest.raises(Unsupported):
        _writer(plain, compression="lz4")


def test_repr() -> None:
    with _writer(FakeClient()) as writer:
        assert repr(writer) == "<StageWriter of stage 0x80000001 for 'events'>"


# Against a stages.


@pytest.fixture(scope="module")
def stages() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as stages:
        yield stages


@pytest.fixture
def staging(stages: EmbeddedBroker) -> Iterator[LanceClient]:
    with LanceClient(stages.address) as staging:
        yield staging


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_commits_what_was_staged(staging: LanceClient, compression: str) -> None:
    topic = f"staged-{compression}"
    values = [b"%06d" % number + bytes(50) for number in range(2000)]
    stages = []
    for half in (values[:1000], values[1000:]):
        with StageWriter(
            staging, topic, topic, 1, batch_bytes=4000, compression=compression
        ) as writer:
            writer.write(pa.table({"value": half}))
            stages.append(writer.finish())
    # Nobody sees anything, not even the topic, before the commit.
    assert topic not in [info.name for info in staging.topics()]
    staging.commit_stages(topic, 1, stages)
    assert _read(staging, topic) == values


def test_a_stage_that_is_gone(staging: LanceClient) -> None:
    writer = StageWriter(staging, "gone", "gone", 1)
    staging.abort_stages("gone", 1)
    writer.send(b"a")
    with pytest.raises(Undelivered, match="StageNotFound"):
        writer.finish()


def test_a_broker_that_is_restarted_stores_every_batch_once(tmp_path: Any) -> None:
    with (
        EmbeddedBroker(data_dir=str(tmp_path)) as stages,
        LanceClient(stages.address, backoff_base_s=0.01, backoff_max_s=0.05) as staging,
    ):
        writer = StageWriter(staging, "events", "job", 1, batch_bytes=30)
        for number in range(30):
            writer.send(b"%05d" % number)
            if number in (10, 20):
                stages.stop()
                stages.start()
        stage = writer.finish()
        staging.commit_stages("job", 1, [stage])
        assert _read(staging, "events") == [b"%05d" % n for n in range(30)]


def test_a_plain_server_has_no_stages() -> None:
    with (
        EmbeddedBroker(dialect="plain") as stages,
        LanceClient(stages.address, checksum="auto") as staging,
        pytest.raises(Unsupported),
    ):
        StageWriter(staging, "events", "job", 1)
