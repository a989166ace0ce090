"""Clients that nobody here wrote: lnc-client of PyPI, and the sample of LWP §14.1.

`lnc-client` 0.2.9 computes CRC-32, answers answers to keepalives, and drops the rest of
a response that ends inside a record. The broker has to be good to it all the same. What
is worked around here is in its own code: topics by id, long timeouts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import crc32c
import lnc_client
import pytest
from lnc_client import (
    ClientConfig,
    ProducerConfig,
    RecordType,
    StandaloneConfig,
    StandaloneConsumer,
    TlvRecord,
)

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient, Producer
from lance_spark.net.address import parse_address
from lance_spark.wire.lwp import HEADER_BYTES
from tests.integration.kit import make_client, read_values

DEADLINE_S = 60.0
POLL_S = 10.0


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(checksum="auto", fsync="none") as running:
        yield running


@pytest.fixture
def ours(broker: EmbeddedBroker) -> Iterator[LanceClient]:
    """Our client of the same broker, with the other checksum."""
    with make_client(broker.address) as client:
        yield client


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end in a thread, or fail: this client has been seen to hang."""
    results: list[Any] = []
    failures: list[BaseException] = []

    def target() -> None:
        try:
            results.append(asyncio.run(asyncio.wait_for(work, DEADLINE_S)))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=target, name="lnc-client", daemon=True)
    thread.start()
    thread.join(DEADLINE_S + 5)
    assert not thread.is_alive(), "lnc-client does not return"
    if failures:
        raise failures[0]
    return results[0]


@contextlib.asynccontextmanager
async def connect(broker: EmbeddedBroker) -> AsyncIterator[lnc_client.LanceClient]:
    config = ClientConfig(host="127.0.0.1", port=broker.port)
    async with lnc_client.LanceClient(config) as client:
        yield client


@contextlib.asynccontextmanager
async def produce(
    broker: EmbeddedBroker, **options: Any
) -> AsyncIterator[lnc_client.Producer]:
    producer = await lnc_client.Producer.connect(
        broker.address, ProducerConfig(**options)
    )
    try:
        yield producer
    finally:
        await asyncio.wait_for(producer.close(), 10)


async def consume(
    broker: EmbeddedBroker, topic: int, *, max_fetch: int = 1 << 20
) -> list[TlvRecord]:
    """Poll from byte 0 until there is nothing more."""
    config = StandaloneConfig("lnc", topic_id=topic, max_fetch_bytes=max_fetch)
    records: list[TlvRecord] = []
    async with await StandaloneConsumer.connect(broker.address, config) as consumer:
        while (result := await consumer.poll(POLL_S)) is not None:
            records += result.records
        await consumer.commit()
    return records


def pairs(records: list[TlvRecord]) -> list[tuple[int, bytes]]:
    return [(record.record_type, record.value) for record in records]


# Topics.


def test_topics(broker: EmbeddedBroker, ours: LanceClient) -> None:
    async def work() -> None:
        async with connect(broker) as client:
            made = await client.create_topic_once("lnc-topics")
            assert (await client.create_topic("lnc-topics")).id == made.id
            assert (await client.ensure_topic("lnc-topics")).id == made.id
            with pytest.raises(lnc_client.TopicAlreadyExistsError):
                await client.create_topic_once("lnc-topics")
            assert (await client.get_topic(made.id)).name == "lnc-topics"
            assert (await client.get_topic_by_name("lnc-topics")).id == made.id
            names = {info.name for info in await client.list_topics()}
            assert "lnc-topics" in names
            with pytest.raises(lnc_client.TopicNotFoundError):
                await client.get_topic(999_999)
            await client.delete_topic(made.id)
            assert "lnc-topics" not in {t.name for t in await client.list_topics()}
            # Without its cache it finds the topic gone, and makes another one.
            async with connect(broker) as other:
                again = await other.ensure_topic("lnc-topics")
                assert again.id > made.id

    run(work())


def test_ensure_finds_a_topic_that_is_there(
    broker: EmbeddedBroker, ours: LanceClient
) -> None:
    """It creates, is refused, and looks through the list."""
    topic = ours.ensure_topic("lnc-ensured").id

    async def work() -> int:
        async with connect(broker) as client:
            return (await client.ensure_topic("lnc-ensured")).id

    assert run(work()) == topic


def test_retention(broker: EmbeddedBroker, ours: LanceClient) -> None:
    async def work() -> None:
        async with connect(broker) as client:
            made = await client.create_topic_with_retention("lnc-kept", 3600, 1 << 30)
            assert made.retention == lnc_client.RetentionInfo(3600, 1 << 30)
            changed = await client.set_retention(made.id, 7200, 0)
            assert changed.id == made.id
            got = await client.get_topic(made.id)
            assert got.retention == lnc_client.RetentionInfo(7200, 0)

    run(work())
    retention = ours.topic("lnc-kept").retention
    assert retention is not None
    assert (retention.max_age_s, retention.max_bytes) == (7200, 0)


# Records in and out, none lost.


def test_send(broker: EmbeddedBroker, ours: LanceClient) -> None:
    topic = ours.ensure_topic("lnc-send").id
    values = [f"value {n}".encode() for n in range(50)]

    async def work() -> list[TlvRecord]:
        async with produce(broker) as producer:
            for value in values:
                await producer.send("lnc-send", value)
        return await consume(broker, topic)

    assert pairs(run(work())) == [(RecordType.RAW_DATA, value) for value in values]
    assert read_values(ours, topic) == values


def test_send_async_and_flush(broker: EmbeddedBroker, ours: LanceClient) -> None:
    topic = ours.ensure_topic("lnc-async").id
    values = [b"%d" % n for n in range(500)]

    async def work() -> list[TlvRecord]:
        async with produce(broker) as producer:
            for value in values:
                await producer.send_async(topic, value, record_type=RecordType.JSON)
            await producer.flush()
            # Acknowledged is durable and visible, before the producer is closed.
            return await consume(broker, topic)

    assert pairs(run(work())) == [(RecordType.JSON, value) for value in values]


MIXED = [
    TlvRecord.raw(b"raw"),
    TlvRecord.json(b'{"a": 1}'),
    TlvRecord(RecordType.MSGPACK, b"\x81\xa1a\x01"),
    TlvRecord(RecordType.PROTOBUF, b"\x08\x01"),
    TlvRecord(RecordType.AVRO, b"\x02"),
    TlvRecord.key_value("key", b"value"),
    TlvRecord.key_value("", b""),
    TlvRecord.timestamped(1_700_000_000_000_000_001, b"timed"),
    TlvRecord(
        RecordType.KEY_TIMESTAMPED, struct.pack("<QH", 2**64 - 1, 3) + b"keyboth"
    ),
    TlvRecord(0x80, b"mine"),
    TlvRecord(0xFE, bytes(1000)),
    TlvRecord.raw(b""),
    TlvRecord.null(),
]


@pytest.mark.parametrize("compression", [False, True], ids=["plain", "lz4"])
def test_batches_of_mixed_types(
    broker: EmbeddedBroker, ours: LanceClient, compression: bool
) -> None:
    topic = ours.ensure_topic(f"lnc-mixed-{compression}").id

    async def work() -> list[TlvRecord]:
        async with produce(broker, compression=compression) as producer:
            for _ in range(5):
                await producer.send_batch(topic, MIXED)
            await producer.send(topic, b"x" * 10_000)
        return await consume(broker, topic)

    expected = pairs(5 * MIXED + [TlvRecord.raw(b"x" * 10_000)])
    assert pairs(run(work())) == expected
    (first, *_) = ours.fetch(topic, 0, 1 << 20).data.tobytes().split(b"raw")
    # Stored as plain records, whatever way they came.
    assert first == b"\x01\x03\x00\x00\x00"


@pytest.mark.parametrize("max_fetch", [1, 2, 5, 17, 43, 100, 250, 1000, 4096])
def test_small_fetches_lose_nothing(
    broker: EmbeddedBroker, ours: LanceClient, max_fetch: int
) -> None:
    """It drops what is cut off behind the last whole record: nothing may be."""
    topic = ours.ensure_topic("lnc-fetch").id
    values = [bytes([n % 256]) * (n * n % 700) for n in range(60)]
    if not ours.bounds(topic).end:

        async def fill() -> None:
            async with produce(broker) as producer:
                for value in values:
                    await producer.send_async(topic, value)
                await producer.flush()

        run(fill())
    records = run(consume(broker, topic, max_fetch=max_fetch))
    assert [record.value for record in records] == values


def test_large_value(broker: EmbeddedBroker, ours: LanceClient) -> None:
    topic = ours.ensure_topic("lnc-large").id
    value = bytes(range(256)) * 40_000

    async def work() -> list[TlvRecord]:
        async with produce(broker) as producer:
            await producer.send(topic, value)
        return await consume(broker, topic, max_fetch=1000)

    assert [record.value for record in run(work())] == [value]


def test_commit_and_offsets(broker: EmbeddedBroker, ours: LanceClient) -> None:
    topic = ours.ensure_topic("lnc-commit").id

    async def work() -> tuple[int, int]:
        async with produce(broker) as producer:
            await producer.send(topic, b"first")
        config = StandaloneConfig("committer", topic_id=topic)
        async with await StandaloneConsumer.connect(broker.address, config) as consumer:
            assert await consumer.poll(POLL_S) is not None
            assert await consumer.poll(POLL_S) is None
            await consumer.commit()
            offset = consumer.current_offset
            consumer.rewind()
            again = await consumer.poll(POLL_S)
            assert again is not None and again.end_offset == offset
            return consumer._consumer_id, offset

    consumer_id, offset = run(work())
    assert ours.committed_offset(topic, consumer_id) == offset == len(b"first") + 5

    async def more() -> None:
        async with connect(broker) as client:
            await client.subscribe(topic, 0, 1000, 7)
            await client.commit_offset(topic, 7, 3)

    run(more())
    assert ours.committed_offset(topic, 7) == 3


def test_both_clients_on_one_topic(broker: EmbeddedBroker, ours: LanceClient) -> None:
    """One speaks CRC-32, the other CRC32C, and they read each other's records."""
    topic = ours.ensure_topic("lnc-shared").id
    with Producer(ours, topic) as producer:
        producer.send(b"ours", key=b"k", timestamp_ns=5)

    async def work() -> list[TlvRecord]:
        async with produce(broker) as theirs:
            await theirs.send(topic, b"theirs")
        return await consume(broker, topic)

    first, second = run(work())
    assert first.record_type == RecordType.KEY_TIMESTAMPED
    assert first.value == struct.pack("<QH", 5, 1) + b"kours"
    assert pairs([second]) == [(RecordType.RAW_DATA, b"theirs")]
    assert read_values(ours, topic) == [b"ours", b"theirs"]


def test_errors_are_understood(broker: EmbeddedBroker) -> None:
    async def work() -> None:
        config = StandaloneConfig("nobody", topic_id=999_999)
        async with await StandaloneConsumer.connect(broker.address, config) as consumer:
            with pytest.raises(lnc_client.LanceError, match="999999 not found"):
                await consumer.poll(POLL_S)
        async with connect(broker) as client:
            with pytest.raises(lnc_client.TopicNotFoundError) as caught:
                await client.delete_topic(999_999)
            assert not caught.value.is_retryable()

    run(work())


# Keepalives.


def test_pings(broker: EmbeddedBroker) -> None:
    async def work() -> list[float]:
        async with connect(broker) as client:
            return [await client.ping() for _ in range(11)]

    assert all(seconds > 0 for seconds in run(work()))


def test_keepalive_storm_is_damped() -> None:
    """It answers every answer, one more ball in play with each of its ticks.

    Undamped that is thousands of frames per second, and its close() does not return.
    """
    idle_s, interval_s = 2.0, 0.05
    burst, rate = 10, 5.0
    settings: dict[str, Any] = {
        "keepalive_burst": burst,
        "keepalive_rate": rate,
        "fsync": "none",
    }
    with EmbeddedBroker(checksum="auto", **settings) as broker:

        async def work() -> tuple[int, float, float]:
            async with connect(broker) as client:
                topic = (await client.ensure_topic("lnc-idle")).id
            producer = await lnc_client.Producer.connect(
                broker.address, ProducerConfig(keepalive_interval_s=interval_s)
            )
            await producer.send(topic, b"before")
            before = broker.metrics.snapshot().received_bytes
            began = time.monotonic()
            await asyncio.sleep(idle_s)
            seconds = time.monotonic() - began
            frames = (broker.metrics.snapshot().received_bytes - before) / HEADER_BYTES
            await producer.send(topic, b"after")
            await asyncio.wait_for(producer.close(), 10)
            return topic, frames, seconds

        topic, frames, seconds = run(work())
        # Its own ticks, and one frame for each answer that it was given.
        ticks = seconds / interval_s + 1
        assert ticks / 4 < frames <= ticks + burst + rate * (seconds + 1)
        assert broker.metrics.snapshot().keepalives_dropped > 0
        with make_client(broker.address) as client:
            assert read_values(client, topic) == [b"before", b"after"]


def test_idle_clients_are_kept() -> None:
    """Its keepalives are enough for the broker, its silence is not."""
    with EmbeddedBroker(checksum="auto", fsync="none", idle_timeout_s=0.4) as broker:

        async def work(interval_s: float) -> None:
            config = ClientConfig(
                host="127.0.0.1",
                port=broker.port,
                keepalive_interval_s=interval_s,
                request_timeout_s=5.0,
            )
            async with lnc_client.LanceClient(config) as client:
                await asyncio.sleep(1.2)
                await client.list_topics()

        run(work(0.1))
        with pytest.raises(lnc_client.ConnectionError):
            run(work(30.0))


# The sample of LWP §14.1, as it is printed there apart from its topic.


class SampleClient:
    """Sends text where records belong, and understands acks only."""

    def __init__(self, address: str) -> None:
        target = parse_address(address)
        self.sock = socket.create_connection((target.host, target.port), 30)
        self.batch_id = 0

    def send_ingest(self, payload: bytes, record_count: int = 1) -> int:
        self.batch_id += 1
        start = struct.pack("<4sBBH", b"LANC", 1, 0x04, 0)
        header = struct.pack(
            "<4sBBHIQQIIII",
            b"LANC",
            1,
            0x04,
            0,
            crc32c.crc32c(start),
            self.batch_id,
            int(time.time() * 1_000_000_000),
            record_count,
            len(payload),
            crc32c.crc32c(payload),
            0,  # What it calls padding is the default topic.
        )
        self.sock.sendall(header + payload)
        return self.batch_id

    def recv_ack(self) -> int:
        data = self.recv_exact(HEADER_BYTES)
        magic, _, flags = struct.unpack_from("<4sBB", data, 0)
        if magic != b"LANC":
            raise ValueError(f"Invalid magic: {magic!r}")
        if flags != 0x08:
            raise ValueError(f"Expected ACK, got flags: {flags:#x}")
        return int(struct.unpack_from("<Q", data, 12)[0])

    def recv_exact(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.sock.recv(size - len(data))
            if not chunk:
                raise ConnectionError("Connection closed")
            data += chunk
        return data


def test_sample_of_the_specification() -> None:
    with EmbeddedBroker(payload_validation="off", fsync="none") as broker:
        sample = SampleClient(broker.address)
        with contextlib.closing(sample.sock):
            for _ in range(3):
                sent = sample.send_ingest(b"Hello, LANCE!")
                assert sample.recv_ack() == sent
        with make_client(broker.address) as client:
            assert client.fetch(0, 0, 1000).data == 3 * b"Hello, LANCE!"


def test_sample_is_told_what_is_wrong() -> None:
    """In strict mode: an error that says what the matter is, and nothing is stored."""
    with EmbeddedBroker(fsync="none") as broker:
        sample = SampleClient(broker.address)
        with contextlib.closing(sample.sock):
            sample.send_ingest(b"Hello, LANCE!")
            with pytest.raises(ValueError, match="got flags: 0x40"):
                sample.recv_ack()
            said = json.loads(sample.sock.recv(1000))
            assert "malformed record" in said["message"]
            assert said["details"]["batch_id"] == 1
            # It goes on with what LWP §8 asks for.
            sent = sample.send_ingest(b"\x01\x0d\x00\x00\x00Hello, LANCE!")
            assert sample.recv_ack() == sent
        with make_client(broker.address) as client:
            assert read_values(client, 0) == [b"Hello, LANCE!"]
