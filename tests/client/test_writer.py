"""Options of writers, and what record a call of `send` makes."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from lance_spark.client.dialect import Acked
from lance_spark.client.lwp.writer import Writer, WriterOptions
from lance_spark.errors import (
    LanceError,
    LocalProtocolError,
    OptionError,
    RowError,
    Timeout,
    Undelivered,
)
from lance_spark.wire.lwp import PAYLOAD_BYTES_MAX, Record, decode_records
from tests.client.kit_flow import PATIENCE_S, FakeClient, FakeConnection, ignore, record


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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"batch_bytes": 0}, "batch_bytes 0"),
        ({"batch_bytes": PAYLOAD_BYTES_MAX + 1, "buffer_bytes": 2**40}, "batch_bytes"),
        ({"linger_s": -1}, "linger_s"),
        ({"linger_s": float("nan")}, "linger_s"),
        ({"max_in_flight": 0}, "max_in_flight 0"),
        ({"batch_bytes": 100, "buffer_bytes": 99}, "buffer_bytes 99"),
        ({"compression": "gzip"}, "'gzip' is unknown; use none or lz4"),
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


@pytest.mark.parametrize(
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
