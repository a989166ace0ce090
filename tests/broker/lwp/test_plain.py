"""The dialect of the field: line by line what the head of `plain` says of it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import lz4.block
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import ConnectionLost, StoreReadOnly
from lance_spark.model import Retention
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import OFFSET_MAX, Checksum, Command, FrameFlags, FrameType
from tests.broker.kit import (
    Client,
    Dial,
    StartBroker,
    clients,
    eventually,
    record,
    records,
)


@pytest.fixture
def broker(start: StartBroker) -> EmbeddedBroker:
    return start(dialect="plain", segment_bytes=100)


@pytest.fixture
def client(broker: EmbeddedBroker, dial: Dial) -> Client:
    return dial(broker, checksum=Checksum.CRC32)


@pytest.fixture
def topic(client: Client) -> int:
    return client.create("events")


def text_of(client: Client, message: wire.Message) -> str:
    """Ask for something that is refused; give the payload of the error."""
    client.send(client.message(message))
    frame = client.next()
    assert frame.command == Command.ERROR_RESPONSE
    return bytes(frame.payload).decode()


# CRC-32, errors as bare text, no capabilities, no command of ours.


def test_crc_32(broker: EmbeddedBroker, client: Client, dial: Dial) -> None:
    client.alive()
    stranger = dial(broker, checksum=Checksum.CRC32C)
    stranger.send(stranger.keepalive())
    assert stranger.ended()


def test_another_checksum_can_be_set(start: StartBroker, dial: Dial) -> None:
    dial(start(dialect="plain", checksum="crc32c")).alive()


def test_errors_are_texts(client: Client, topic: int) -> None:
    assert text_of(client, wire.CreateTopic("")) == "Topic name required"
    assert text_of(client, wire.CreateTopic("events")) == (
        "Topic 'events' already exists"
    )
    assert text_of(client, wire.GetTopic(9)) == "Topic not found"
    for message in (wire.DeleteTopic(9), wire.SetRetention(9, Retention(1, 1))):
        assert text_of(client, message) == "Configuration error: Topic 9 not found"
    assert text_of(client, wire.Subscribe(9, 0, 1, 1)) == "Topic not found"
    assert text_of(client, wire.Fetch(9, 0, 1)) == "Topic 9 not found"
    client.ask(wire.DeleteTopic(topic))
    assert text_of(client, wire.GetTopic(topic)) == "Topic not found"
    client.send(client.ingest(record(b"x"), topic=topic))
    assert bytes(client.next().payload) == b"Unknown topic"
    client.send(client.ingest(record(b"x"), topic=0x8000_0001))
    assert bytes(client.next().payload) == b"Unknown topic"
    client.send(
        client.frame(FrameFlags.CONTROL, b"odd", batch_id=Command.SET_RETENTION)
    )
    assert bytes(client.next().payload).startswith(b"Invalid set retention payload")


def test_no_capabilities(client: Client) -> None:
    status = client.ask(wire.GetClusterStatus())
    assert status == wire.ClusterStatus()
    assert status.capabilities == ()


OURS = [
    wire.Locate(1, wire.LocateKind.START),
    wire.OpenStage("a", "w", 1),
    wire.CommitStages("w", 1, (), ()),
    wire.AbortStages("w", 1),
    wire.Wait(0, (), 0),
    wire.JoinGroup("g", "", ("a",), wire.AssignmentStrategy.RANGE, 30_000),
    wire.GroupHeartbeat("g", "m", 1),
    wire.LeaveGroup("g", "m"),
]


@pytest.mark.parametrize("message", OURS, ids=lambda m: type(m).__name__)
def test_no_command_of_ours(client: Client, message: wire.Message) -> None:
    assert text_of(client, message) == "Invalid client command"


@pytest.mark.parametrize("command", [0x30, 0x99, Command.FETCH_RESPONSE])
def test_commands_that_it_does_not_know(client: Client, command: int) -> None:
    client.send(client.frame(FrameFlags.CONTROL, batch_id=command))
    assert bytes(client.next().payload) == b"Invalid client command"


def test_only_the_low_byte_of_a_command_counts(client: Client) -> None:
    client.send(client.frame(FrameFlags.CONTROL, b"odd", batch_id=0x101))
    answer = client.answer()
    assert isinstance(answer, wire.TopicInfo)
    assert answer.name == "odd"


# Payloads are stored as they come.


def test_payloads_are_not_checked(client: Client, topic: int) -> None:
    parts = [b"Hello, LANCE!", record(b"whole"), b"\x01\x05\0\0\0cut"]
    for number, part in enumerate(parts):
        # Neither the count nor the batch id matter.
        client.send(client.ingest(part, number, topic=topic, count=99))
        client.acked(number)
    encrypted = FrameFlags.ENCRYPTED | FrameFlags.BATCH_MODE
    client.send(client.ingest(b"?", 3, topic=topic, flags=encrypted))
    client.acked(3)
    assert client.read(topic) == b"".join([*parts, b"?"])


def test_payloads_are_not_decompressed(client: Client, topic: int) -> None:
    packed = lz4.block.compress(records("a", 9), store_size=False)
    compressed = FrameFlags.BATCH_MODE | FrameFlags.COMPRESSED
    client.send(client.ingest(packed, topic=topic, count=9, flags=compressed))
    client.acked(1)
    assert client.read(topic) == packed


def test_batches_are_never_recognised(client: Client, topic: int) -> None:
    client.send(client.ingest(record(b"x"), 7, topic=topic) * 2)
    client.acked(7, 7)
    client.send(client.ingest(record(b"y"), 7, topic=topic))
    client.acked(7)
    assert client.read(topic) == record(b"x") * 2 + record(b"y")


def test_empty_frames_are_not_answered(client: Client) -> None:
    client.send(client.ingest(b"") + client.frame(0))
    client.alive()


def test_a_payload_over_the_limit_ends_the_connection_without_a_word(
    start: StartBroker, dial: Dial
) -> None:
    broker = start(dialect="plain", payload_bytes_max=2048)
    client = dial(broker, checksum=Checksum.CRC32)
    client.send(client.ingest(bytes(3000)))
    assert client.ended()
    assert broker.metrics.snapshot().sent_bytes == 0


def test_a_batch_that_the_disk_refuses(
    client: Client, topic: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("lance_spark.store.Store.append", refuse)
        client.send(client.ingest(record(b"x"), topic=topic))
        assert bytes(client.next().payload) == b"internal error: ZeroDivisionError"
    with monkeypatch.context() as patch:
        patch.setattr(
            "lance_spark.store.Store.wait_durable",
            lambda *arguments, **options: (_ for _ in ()).throw(
                StoreReadOnly("broken disk")
            ),
        )
        client.send(client.ingest(record(b"x"), topic=topic))
        assert bytes(client.next().payload) == b"broken disk"
    client.write(topic, record(b"x"), count=1)


# A Fetch is cut at the byte.


@pytest.mark.parametrize("max_bytes", [1, 3, 7, 24, 26, 60, 1000])
def test_a_fetch_is_cut_at_the_byte(client: Client, topic: int, max_bytes: int) -> None:
    content = b""
    for n in range(1, 4):  # Several segments.
        batch = records(f"{n}", 3)
        client.write(topic, batch, n, count=3)
        content += batch
    parts, start = [], 0
    while start < len(content):
        answer = client.fetch(topic, start, max_bytes)
        data = bytes(answer.data)
        assert len(data) == min(max_bytes, 75 - start % 75)
        assert (answer.record_count, answer.next_offset) == (1, start + len(data))
        parts.append(data)
        start += len(data)
    assert b"".join(parts) == content


def test_where_nothing_is(client: Client, topic: int) -> None:
    client.write(topic, records("a", 2), count=2)
    for start, size in ((50, 10), (OFFSET_MAX, 10), (20, 0)):
        answer = client.fetch(topic, start, size)
        expected = min(start, 50)
        assert (answer.next_offset, answer.record_count) == (expected, 0)
        assert len(answer.data) == 0
    for start in (51, 2**63 - 1):
        assert client.ask(wire.Fetch(topic, start, 10)) == wire.CatchingUp(50)


def test_what_follows_a_fetch_is_not_looked_at(client: Client, topic: int) -> None:
    client.write(topic, records("a", 1), count=1)
    for more in (b"", b"?", b"\xff" * 8):
        payload = struct.pack("<IQI", topic, 0, 10) + more
        client.send(client.frame(FrameFlags.CONTROL, payload, batch_id=Command.FETCH))
        answer = client.answer()
        assert isinstance(answer, wire.FetchResponse)
        assert bytes(answer.data) == records("a", 1)[:10]
    client.send(client.frame(FrameFlags.CONTROL, bytes(15), batch_id=Command.FETCH))
    assert bytes(client.next().payload) == (
        b"Protocol error: Fetch request payload too small"
    )


# Offsets shift, and 0 deletes.


def fill(client: Client, topic: int, batches: int = 5) -> list[bytes]:
    """Write batches that are a segment each."""
    content = [records(f"{n}", 3) for n in range(batches)]
    for n, batch in enumerate(content, 1):
        client.write(topic, batch, n, count=3)
    return content


@pytest.mark.parametrize("retention", [(0, 0), (0, 10**9), (10**9, 0)])
def test_a_retention_of_0_deletes_all_but_the_last_segment(
    broker: EmbeddedBroker, client: Client, topic: int, retention: tuple[int, int]
) -> None:
    content = fill(client, topic)
    answer = client.ask(wire.SetRetention(topic, Retention(*retention)))
    # It says what it was told, and not what that means.
    assert answer == wire.TopicRetention(topic, Retention(*retention))
    broker.service.maintain()
    assert client.read(topic) == content[-1]


def test_a_retention_with_both_limits(
    broker: EmbeddedBroker, client: Client, topic: int
) -> None:
    content = fill(client, topic)
    client.ask(wire.SetRetention(topic, Retention(10**6, 10**6)))
    broker.service.maintain()
    assert client.read(topic) == b"".join(content)


def test_creating_with_retention(broker: EmbeddedBroker, client: Client) -> None:
    message = wire.CreateTopicWithRetention("a", Retention(60, 0))
    made = client.ask(message)
    assert (made.name, made.retention) == ("a", Retention(60, 0))
    content = fill(client, made.id)
    broker.service.maintain()
    assert client.read(made.id) == content[-1]


def test_offsets_shift_when_retention_deletes(
    broker: EmbeddedBroker, client: Client, topic: int
) -> None:
    content = fill(client, topic)
    client.ask(wire.SetRetention(topic, Retention(10**6, 160)))
    broker.service.maintain()
    left = b"".join(content[-2:])
    assert client.fetch(topic, OFFSET_MAX).next_offset == len(left)
    assert client.read(topic) == left
    assert client.read(topic, 80) == left[80:]
    assert client.ask(wire.Fetch(topic, 5 * 75, 10)) == wire.CatchingUp(len(left))


# Names and topic 0.


def test_names(client: Client) -> None:
    assert client.create("Az-09") == 1
    for name in ("a_b", "a.b", "a b", "a\n", "ä", "../x"):
        text = text_of(client, wire.CreateTopic(name))
        assert text.startswith(f"Invalid data: Topic name '{name}' contains invalid")
        message = wire.CreateTopicWithRetention(name, Retention())
        assert text_of(client, message) == text


def test_topic_0_can_be_written_and_not_read(client: Client) -> None:
    client.write(0, record(b"x"), count=1)
    assert text_of(client, wire.Fetch(0, 0, 10)) == "Topic 0 not found"
    assert text_of(client, wire.GetTopic(0)) == "Topic not found"
    assert client.ask(wire.Subscribe(0, 0, 1, 7)) == wire.SubscribeAck(7, 0)


def test_what_topics_say_of_themselves(client: Client, topic: int) -> None:
    info = client.ask(wire.GetTopic(topic))
    assert client.ask(wire.ListTopics()) == wire.TopicListing((info,))
    assert (info.id, info.name, info.retention, info.details) == (
        topic,
        "events",
        None,
        {},
    )
    assert client.ask(wire.DeleteTopic(topic)) == wire.TopicDeletion(topic)


# Consumers.


def test_offsets_are_never_checked_and_forgotten(
    directory: Path, start: StartBroker
) -> None:
    broker = EmbeddedBroker(dialect="plain", data_dir=str(directory / "data"))
    with broker, clients(broker, 2, checksum=Checksum.CRC32) as (one, two):
        topic = one.create("events")
        # Beyond the end, of a topic that there is not, and back again.
        assert one.ask(wire.CommitOffset(topic, 7, 5000)) == wire.CommitAck(7, 5000)
        assert one.ask(wire.CommitOffset(99, 7, 5000)) == wire.CommitAck(7, 5000)
        assert two.ask(wire.Subscribe(topic, 0, 1, 7)) == wire.SubscribeAck(7, 5000)
        assert two.ask(wire.Subscribe(topic, 3, 1, 7)) == wire.SubscribeAck(7, 3)
        assert two.ask(wire.CommitOffset(topic, 7, 1)) == wire.CommitAck(7, 1)
        assert one.ask(wire.Subscribe(topic, 0, 1, 7)) == wire.SubscribeAck(7, 1)
        assert one.ask(wire.Subscribe(topic, OFFSET_MAX, 1, 7)).start == OFFSET_MAX
        for consumer in (7, 7, 99):
            one.send(one.message(wire.Unsubscribe(topic, consumer)))
            one.acked(consumer)
    with broker, clients(broker, 1, checksum=Checksum.CRC32) as (one,):
        assert one.ask(wire.Subscribe(topic, 0, 1, 7)) == wire.SubscribeAck(7, 0)


# Silence and keepalives.


def test_every_keepalive_is_answered(start: StartBroker, dial: Dial) -> None:
    broker = start(dialect="plain", keepalive_burst=1, keepalive_rate=0.1)
    client = dial(broker, checksum=Checksum.CRC32)
    client.send(client.keepalive() * 100)
    assert all(client.next().type is FrameType.KEEPALIVE for _ in range(100))


def test_silence_does_not_end_a_connection(start: StartBroker, dial: Dial) -> None:
    broker = start(dialect="plain", idle_timeout_s=0.02)
    client = dial(broker, checksum=Checksum.CRC32)
    client.alive()
    assert client.is_silent(0.1)
    client.alive()


# Tokens.


def test_tokens(start: StartBroker, dial: Dial) -> None:
    broker = start(dialect="plain", tokens=("good",))
    client = dial(broker, checksum=Checksum.CRC32)
    assert text_of(client, wire.ListTopics()) == "Authentication required"
    client.send(client.ingest(record(b"x")))
    assert bytes(client.next().payload) == b"Authentication required"
    for _ in range(4):
        assert not client.ask(wire.Authenticate("bad")).ok
    assert client.ask(wire.Authenticate("good")).ok
    client.write(0, record(b"x"), count=1)


def test_a_client_that_goes_in_the_middle_of_an_error(
    broker: EmbeddedBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can't be told of an error is not told of another one."""
    lost = ConnectionLost("gone")

    def lose(*arguments: Any, **options: Any) -> None:
        raise lost

    for frame in (
        lambda c: c.message(wire.ListTopics()),
        lambda c: c.ingest(record(b"x")),
    ):
        client = dial(broker, checksum=Checksum.CRC32)
        client.alive()
        with monkeypatch.context() as patch:
            patch.setattr("lance_spark.broker.service.Service.topics", lose)
            patch.setattr("lance_spark.broker.service.Service.append", lose)
            client.send(frame(client))
            assert client.ended()
    assert eventually(lambda: broker.metrics.snapshot().connections == 0)
    assert broker.metrics.snapshot().errors == {}
