"""The protocol: batches, topics, reading, waiting, consumers. Stages are elsewhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.block
import lz4.frame
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.assignment import Strategy
from lance_spark.broker.lwp import command as commands
from lance_spark.broker.lwp.command import CAPABILITIES
from lance_spark.broker.session import WAIT_POSITION_BYTES
from lance_spark.model import Retention
from lance_spark.net.deadline import Deadline
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import (
    OFFSET_MAX,
    Command,
    FetchFlags,
    FrameFlags,
    FrameType,
    LocateKind,
)
from tests.broker.kit import (
    Client,
    Dial,
    StartBroker,
    eventually,
    record,
    records,
    running,
)

COMPRESSED = FrameFlags.BATCH_MODE | FrameFlags.COMPRESSED
MIB = 1024 * 1024


@pytest.fixture
def topic(client: Client) -> int:
    return client.create("events")


def payload_of(frame: wire.Frame) -> dict[str, object]:
    """Read an answer as the JSON that it is."""
    document = json.loads(bytes(frame.payload))
    assert isinstance(document, dict)
    return document


# Batches.


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"flags": FrameFlags.ENCRYPTED}, "encrypted payloads are not supported"),
        ({"batch": 0}, "an ingest needs a batch id, which is never 0"),
        ({"payload": b""}, "an ingest needs a payload"),
        ({"payload": b"Hello, LANCE!"}, "malformed record at byte 0"),
        ({"count": 2}, "the frame says 2 records and holds 1"),
        ({"count": 0}, "the frame says 0 records and holds 1"),
        ({"payload": record(b"x", kind=0)}, "malformed record at byte 0"),
        ({"payload": record(b"\xff\xffk", kind=0x10)}, "a key of 65535 bytes where 1"),
        ({"payload": record(b"seven..", kind=0x11)}, "needs a length of 8 or more"),
        ({"payload": record(b"x", kind=0xFF)}, "Null record"),
        ({"flags": COMPRESSED, "payload": b"\xf0garbage"}, "payload is not LZ4"),
    ],
)
def test_batches_that_are_refused(
    client: Client, topic: int, fields: dict[str, object], text: str
) -> None:
    given = {"payload": record(b"x"), "batch": 5, "count": 1, **fields}
    client.send(client.ingest(topic=topic, **given))  # type: ignore[arg-type]
    error = client.error()
    assert (error.code, error.details) == (
        0x04,
        {"batch_id": given["batch"], "topic_id": topic},
    )
    assert text in error.message
    # Nothing is stored, and the connection lives.
    assert client.read(topic) == b""
    client.write(topic, record(b"x"), 5, count=1)


def test_a_record_over_the_limit(client: Client, topic: int) -> None:
    whole = record(b"x" * (16 * MIB))
    client.write(topic, whole, count=1)
    client.send(client.ingest(record(b"x" * (16 * MIB + 1)), 2, topic=topic))
    error = client.error()
    assert (error.code, error.details["batch_id"]) == (0x03, 2)
    client.alive()
    answer = client.fetch(topic, 0, 1)
    assert (len(answer.data), answer.next_offset) == (len(whole), len(whole))


@pytest.mark.parametrize("kind", [0x01, 0x06, 0x7F, 0x80, 0xFE])
def test_types_that_nobody_has_assigned_are_stored(
    client: Client, topic: int, kind: int
) -> None:
    client.write(topic, record(b"x", kind=kind), count=1)
    assert client.read(topic) == record(b"x", kind=kind)


def test_a_batch_for_a_topic_that_there_is_not(client: Client, topic: int) -> None:
    client.send(client.ingest(record(b"x"), 5, topic=77))
    error = client.error()
    assert (error.code, error.message) == (0x10, "Topic 77 not found")
    assert error.details == {"batch_id": 5, "topic_id": 77}
    client.ask(wire.DeleteTopic(topic))
    client.send(client.ingest(record(b"x"), 6, topic=topic))
    assert client.error().code == 0x13
    client.send(client.ingest(record(b"x"), 7, topic=0x8000_0001))
    assert client.error().code == 0x70


def test_without_validation_anything_is_stored(start: StartBroker, dial: Dial) -> None:
    client = dial(start(payload_validation="off"))
    client.write(0, b"Hello, LANCE!", 1, count=9)
    client.write(0, records("a", 2), 2, count=7)
    answer = client.fetch(0, 0, 1)
    # What is no record is fetched as one.
    assert (bytes(answer.data), answer.record_count) == (b"Hello, LANCE!", 1)
    assert client.fetch(0, 13).record_count == 2
    # A header that makes no sense is refused all the same.
    client.send(client.ingest(b"x", 0))
    assert client.error().code == 0x04


@pytest.mark.parametrize("form", ["raw block", "sized block", "frame"])
def test_compressed_batches_are_stored_plain(
    client: Client, topic: int, form: str
) -> None:
    payload = records("a", 100)
    packed = {
        "raw block": lz4.block.compress(payload, store_size=False),
        "sized block": lz4.block.compress(payload, store_size=True),
        "frame": lz4.frame.compress(payload),
    }[form]
    assert len(packed) < len(payload)
    client.send(client.ingest(packed, topic=topic, count=100, flags=COMPRESSED))
    client.acked(1)
    assert client.read(topic) == payload


@pytest.mark.parametrize("framed", [True, False])
def test_a_bomb(start: StartBroker, dial: Dial, framed: bool) -> None:
    client = dial(start(payload_bytes_max=MIB))
    large = record(bytes(4 * MIB))
    if framed:
        packed = lz4.frame.compress(large)
    else:
        packed = lz4.block.compress(large, store_size=False)
    assert len(packed) < MIB // 4
    client.send(client.ingest(packed, 3, flags=COMPRESSED))
    assert client.error().code == (0x03 if framed else 0x04)
    assert client.read(0) == b""
    client.alive()


def test_a_batch_that_comes_again(
    broker: EmbeddedBroker, client: Client, topic: int, dial: Dial
) -> None:
    batch = records("a", 2)
    frame = client.ingest(batch, 7, topic=topic, count=2)
    client.send(frame * 2)
    client.acked(7, 7)
    client.send(frame)
    client.acked(7)
    assert client.read(topic) == batch
    # The same id for something else.
    client.send(client.ingest(records("b", 2), 7, topic=topic, count=2))
    error = client.error()
    assert (error.code, error.details["batch_id"]) == (0x04, 7)
    client.send(client.ingest(batch, 7, topic=0, count=2))
    assert client.error().code == 0x04
    # Another connection's ids are its own.
    other = dial(broker)
    other.send(other.ingest(records("b", 2), 7, topic=topic, count=2))
    other.acked(7)
    assert client.read(topic) == batch + records("b", 2)


def test_only_so_many_batches_are_remembered(start: StartBroker, dial: Dial) -> None:
    client = dial(start(dedup_window=2))
    for n in (1, 2, 3, 3, 2):
        client.write(0, record(b"%d" % n), n, count=1)
    assert client.read(0) == b"".join(record(b"%d" % n) for n in (1, 2, 3))
    client.write(0, record(b"1"), 1, count=1)
    assert client.read(0) == b"".join(record(b"%d" % n) for n in (1, 2, 3, 1))


def test_a_refused_batch_is_not_remembered(client: Client, topic: int) -> None:
    client.send(client.ingest(record(b"x"), 7, topic=topic, count=2))
    assert client.error().code == 0x04
    client.write(topic, record(b"x"), 7, count=1)
    assert client.read(topic) == record(b"x")


def test_the_default_topic(client: Client) -> None:
    client.write(0, records("a", 3), count=3)
    answer = client.fetch(0, 0, 30)
    assert (bytes(answer.data), answer.record_count) == (records("a", 1), 1)
    assert client.ask(wire.ListTopics()) == wire.TopicListing(())
    assert client.ask(wire.GetTopic(0)).details["record_count"] == 3
    assert client.refused(wire.DeleteTopic(0)).code == 0x04


# Errors.


def test_errors_as_json(client: Client) -> None:
    client.send(client.message(wire.GetTopic(42)))
    frame = client.next()
    assert frame.command == Command.ERROR_RESPONSE
    assert payload_of(frame) == {
        "code": 0x10,
        "message": "Topic 42 not found",
        "details": {"topic_id": 42},
    }


def test_errors_as_text(start: StartBroker, dial: Dial) -> None:
    client = dial(start(error_format="text", payload_bytes_max=2048))
    client.send(client.message(wire.CreateTopic("")))
    assert bytes(client.next().payload) == b"Topic name required"
    client.send(client.ingest(bytes(4000)))
    assert bytes(client.next().payload).startswith(b"payload of 4000 bytes is over")


def test_commands_that_there_are_not(client: Client) -> None:
    # All 64 bits count: 0x101 creates no topic.
    for command in (0x00, 0x0A, 0x101, Command.FETCH_RESPONSE, 2**64 - 1):
        client.send(client.frame(FrameFlags.CONTROL, b"name", batch_id=command))
        error = client.error()
        assert (error.code, f"0x{command:02X}" in error.message) == (0x04, True)
    compressed = FrameFlags.CONTROL | FrameFlags.COMPRESSED
    client.send(client.frame(compressed, b"name", batch_id=Command.CREATE_TOPIC))
    assert client.error().code == 0x04
    assert client.ask(wire.ListTopics()) == wire.TopicListing(())


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (Command.SET_RETENTION, 0x04),
        (Command.CREATE_TOPIC_WITH_RETENTION, 0x04),
        (Command.DELETE_TOPIC, 0x04),
        (Command.COMMIT_OFFSET, 0x04),
        (Command.WAIT, 0x04),
        (Command.FETCH, 0x50),
        (Command.LOCATE, 0x50),
    ],
)
def test_payloads_that_can_not_be_read(
    client: Client, command: Command, code: int
) -> None:
    client.send(client.frame(FrameFlags.CONTROL, b"odd", batch_id=command))
    error = client.error()
    assert error.code == code
    assert error.message.startswith("Invalid ")
    client.alive()


def test_a_locate_of_no_kind_and_a_fetch_with_flags_of_the_future(
    client: Client,
) -> None:
    for command, payload in (
        (Command.LOCATE, struct.pack("<IBQ", 0, 9, 0)),
        (Command.FETCH, struct.pack("<IQIII", 0, 0, 10, 0x80, 0)),
    ):
        client.send(client.frame(FrameFlags.CONTROL, payload, batch_id=command))
        assert client.error().code == 0x50


# Topics.


def test_the_life_of_a_topic(client: Client) -> None:
    made = client.ask(wire.CreateTopic("events"))
    assert (made.id, made.name, made.epoch) == (1, "events", 1)
    assert made.created_at_s > 1_700_000_000
    assert made.retention == Retention()
    client.write(1, records("a", 3), count=3)
    [listed] = client.ask(wire.ListTopics()).topics
    got = client.ask(wire.GetTopic(1))
    assert (listed.id, listed.name, listed.created_at_s) == (
        1,
        "events",
        got.created_at_s,
    )
    for info in (listed, got):
        for key, value in {
            "log_start": 0,
            "log_end": 75,
            "first_record": 0,
            "record_count": 3,
        }.items():
            assert info.details[key] == value
    assert (got.details["consumers"], got.details["stages"]) == ([], 0)
    assert client.ask(wire.DeleteTopic(1)) == wire.TopicDeletion(1)
    for message in (wire.GetTopic(1), wire.DeleteTopic(1), wire.Fetch(1, 0, 10)):
        error = client.refused(message)
        assert (error.code, error.message) == (0x13, "Topic 1 was deleted")
    assert client.ask(wire.ListTopics()) == wire.TopicListing(())


@pytest.mark.parametrize(
    "message",
    [
        wire.GetTopic(9),
        wire.DeleteTopic(9),
        wire.SetRetention(9, Retention()),
        wire.Fetch(9, 0, 10),
        wire.Locate(9, LocateKind.START),
        wire.Subscribe(9, 0, 10, 1),
        wire.Unsubscribe(9, 1),
        wire.CommitOffset(9, 1, 0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_topic_that_there_is_not(client: Client, message: wire.Message) -> None:
    error = client.refused(message)
    if isinstance(message, wire.Unsubscribe):
        assert error.code == 0x52
    else:
        assert (error.code, error.message) == (0x10, "Topic 9 not found")


def test_a_name_that_is_taken(client: Client, topic: int) -> None:
    error = client.refused(wire.CreateTopic("events"))
    assert (error.code, error.message) == (0x11, "Topic 'events' already exists")


@pytest.mark.parametrize("name", ["a", "with space", "日本", "a" * 255, "...", "a.b_c"])
def test_names(broker: EmbeddedBroker, client: Client, name: str) -> None:
    assert client.ask(wire.CreateTopic(name)).name == name
    assert client.ask(wire.ListTopics()).topics[0].name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "../../etc",
        "a\\b",
        "a\0b",
        "a\nb",
        "\x7f",
        "a" * 256,
        "日" * 86,
    ],
)
def test_names_that_are_none(
    start: StartBroker, dial: Dial, directory: Path, name: str
) -> None:
    client = dial(start(data_dir=str(directory / "deep" / "data")))
    for message in (
        wire.CreateTopic(name),
        wire.CreateTopicWithRetention(name, Retention()),
        wire.OpenStage(name, "w", 1),
    ):
        error = client.refused(message)
        assert error.code == 0x12
    assert client.ask(wire.ListTopics()) == wire.TopicListing(())
    assert [p.name for p in directory.iterdir()] == ["deep"]


def test_a_name_that_is_not_utf_8(client: Client) -> None:
    client.send(client.frame(FrameFlags.CONTROL, b"\xff\xfe", batch_id=1))
    assert client.error().code == 0x04


@pytest.mark.parametrize("width", ["<H", "<I"])
def test_creating_with_retention_in_both_forms(client: Client, width: str) -> None:
    payload = struct.pack(width, 6) + b"events" + struct.pack("<QQ", 60, 1000)
    command = Command.CREATE_TOPIC_WITH_RETENTION
    client.send(client.frame(FrameFlags.CONTROL, payload, batch_id=command))
    document = payload_of(client.next())
    assert (document["max_age_secs"], document["max_bytes"]) == (60, 1000)
    assert document["retention"] == {"max_age_secs": 60, "max_bytes": 1000}
    assert client.ask(wire.GetTopic(1)).retention == Retention(60, 1000)


def test_setting_retention(start: StartBroker, dial: Dial) -> None:
    broker = start(segment_bytes=100)
    client = dial(broker)
    topic = client.create("a")
    for n in range(1, 6):
        client.write(topic, records("a", 4), n, count=4)
    client.send(client.message(wire.SetRetention(topic, Retention(0, 0))))
    assert payload_of(client.next()) == {
        "topic_id": topic,
        "max_age_secs": 0,
        "max_bytes": 0,
    }
    broker.service.maintain()
    # 0 is no limit.
    assert client.ask(wire.GetTopic(topic)).details["log_start"] == 0
    answer = client.ask(wire.SetRetention(topic, Retention(0, 250)))
    assert answer == wire.TopicRetention(topic, Retention(0, 250))
    broker.service.maintain()
    info = client.ask(wire.GetTopic(topic))
    assert info.retention == Retention(0, 250)
    assert (info.details["log_start"], info.details["log_end"]) == (300, 500)
    assert (info.details["first_record"], info.details["record_count"]) == (12, 8)


def test_ids_are_never_used_again(start: StartBroker, directory: Path) -> None:
    path = str(directory / "data")
    with (
        EmbeddedBroker(data_dir=path, fsync="none") as broker,
        Client(broker.address) as client,
    ):
        assert [client.create(name) for name in "abc"] == [1, 2, 3]
        client.ask(wire.DeleteTopic(3))
        assert client.create("c") == 4
        client.ask(wire.DeleteTopic(4))
    with (
        EmbeddedBroker(data_dir=path, fsync="none") as broker,
        Client(broker.address) as client,
    ):
        names = {t.name: t.id for t in client.ask(wire.ListTopics()).topics}
        assert names == {"a": 1, "b": 2}
        assert client.create("c") == 5


# Fetch.


@pytest.fixture
def content(client: Client, topic: int) -> bytes:
    """Records of many sizes over several batches, and where they are one string."""
    sizes = [0, 1, 5, 40, 200, 3, 0, 0, 90, 7]
    parts = []
    for n in range(1, 5):
        batch = b"".join(record(bytes([64 + n]) * size) for size in sizes)
        client.write(topic, batch, n, count=len(sizes))
        parts.append(batch)
    return b"".join(parts)


def boundaries(data: bytes) -> set[int]:
    found, at = {0}, 0
    while at < len(data):
        at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
        found.add(at)
    return found


@pytest.mark.parametrize("max_bytes", [1, 2, 5, 6, 10, 44, 45, 46, 205, 206, 999, 5000])
def test_whole_records_whatever_is_asked_for(
    client: Client, topic: int, content: bytes, max_bytes: int
) -> None:
    ends = boundaries(content)
    parts, start, count = [], 0, 0
    while start < len(content):
        answer = client.fetch(topic, start, max_bytes)
        data = bytes(answer.data)
        assert answer.next_offset - len(data) == start
        assert answer.next_offset in ends
        # At least one, also if it is larger than asked for.
        assert answer.record_count >= 1
        assert len(data) <= max_bytes or answer.record_count == 1
        parts.append(data)
        start, count = answer.next_offset, count + answer.record_count
    assert (b"".join(parts), count) == (content, 40)


def test_where_nothing_is(client: Client, topic: int, content: bytes) -> None:
    end = len(content)
    for start in (end, end + 1, 10 * end, 2**63 - 1, OFFSET_MAX):
        answer = client.fetch(topic, start)
        assert (answer.next_offset, answer.record_count, len(answer.data)) == (
            end,
            0,
            0,
        )


def test_an_empty_topic(client: Client, topic: int) -> None:
    for start in (0, 1, OFFSET_MAX):
        answer = client.fetch(topic, start)
        assert (answer.next_offset, answer.record_count, len(answer.data)) == (0, 0, 0)


def test_no_bytes_are_asked_for(client: Client, topic: int, content: bytes) -> None:
    answer = client.fetch(topic, 7, 0)
    assert (answer.next_offset, len(answer.data)) == (7, 0)


def test_a_start_inside_a_record(client: Client, topic: int, content: bytes) -> None:
    # Served from that byte, so that the answers together are the stream.
    answer = client.fetch(topic, 7, 1)
    assert bytes(answer.data) == content[7:11]
    snapped = client.fetch(topic, 7, 1, flags=FetchFlags.SNAP)
    assert bytes(snapped.data) == content[11:21]
    last = client.fetch(topic, len(content) - 1, 1, flags=FetchFlags.SNAP)
    assert (last.next_offset, len(last.data)) == (len(content), 0)


def test_the_extended_answer(client: Client, topic: int, content: bytes) -> None:
    flags = FetchFlags.EXTENDED | FetchFlags.SNAP
    answer = client.ask(wire.Fetch(topic, 7, 10, flags), extended=True)
    assert isinstance(answer, wire.ExtendedFetchResponse)
    assert (answer.start, answer.end) == (11, 21)
    assert answer.high_water_mark == len(content)
    assert bytes(answer.data) == content[11:21]
    behind = client.ask(
        wire.Fetch(topic, OFFSET_MAX, 10, FetchFlags.EXTENDED), extended=True
    )
    assert (behind.start, behind.end) == (len(content), len(content))


def test_no_answer_is_larger_than_the_broker_allows(
    start: StartBroker, dial: Dial
) -> None:
    client = dial(start(fetch_bytes_max=1024))
    client.write(0, records("a", 100), count=100)
    answer = client.fetch(0, 0, 2**32 - 1)
    assert (len(answer.data), answer.record_count) == (1000, 40)


def test_before_the_start_of_the_log(start: StartBroker, dial: Dial) -> None:
    broker = start(segment_bytes=100)
    client = dial(broker)
    topic = client.ask(wire.CreateTopicWithRetention("a", Retention(0, 150))).id
    batches = [records(f"{n}", 4) for n in range(5)]
    for n, batch in enumerate(batches, 1):
        client.write(topic, batch, n, count=4)
    broker.service.maintain()
    for at in (0, 1, 299):
        answer = client.fetch(topic, at)
        assert len(answer.data) > 0
        # Offsets do not shift; where the data starts can be told.
        assert answer.next_offset - len(answer.data) == 400
        assert bytes(answer.data) == batches[4]
    assert client.ask(wire.Locate(topic, LocateKind.START)).offset == 400


# Locate.


def test_locate(client: Client, topic: int, content: bytes) -> None:
    ends = sorted(boundaries(content))

    def locate(kind: LocateKind, value: int = 0) -> tuple[int, int]:
        answer = client.ask(wire.Locate(topic, kind, value))
        assert isinstance(answer, wire.LocateResponse), answer
        return answer.offset, answer.record

    for offset in (0, 1, 5, 6, 250, len(content) - 1, len(content), OFFSET_MAX):
        at = next((e for e in ends if e >= offset), len(content))
        assert locate(LocateKind.OFFSET, offset) == (at, ends.index(at))
    for number in (0, 1, 9, 10, 39, 40, 10**9):
        number = min(number, 40)
        assert locate(LocateKind.RECORD, number) == (ends[number], number)
    assert locate(LocateKind.START) == (0, 0)
    assert locate(LocateKind.END) == (len(content), 40)
    third = client.ask(wire.Locate(topic, LocateKind.RECORD, 25))
    found = client.ask(wire.Locate(topic, LocateKind.TIME, third.append_time_ns))
    assert (found.record, found.append_time_ns) == (20, third.append_time_ns)
    assert locate(LocateKind.TIME, 0) == (0, 0)
    assert locate(LocateKind.TIME, OFFSET_MAX >> 1) == (len(content), 40)
    assert client.ask(wire.Locate(topic, LocateKind.END)).append_time_ns == 0


# Waiting.

LONG_MS = 30_000


def waits(broker: EmbeddedBroker, topic: int) -> bool:
    """Tell whether somebody waits for a topic."""
    return bool(broker.service.store.topic(topic).log.watchers._wakes)


@pytest.fixture
def writer(broker: EmbeddedBroker, dial: Dial) -> Client:
    return dial(broker)


@pytest.mark.parametrize("offset", [0, 10**6, OFFSET_MAX])
def test_a_fetch_waits_for_data(
    broker: EmbeddedBroker, client: Client, topic: int, writer: Client, offset: int
) -> None:
    fetch = wire.Fetch(topic, offset, 1000, FetchFlags.WAIT, LONG_MS)
    client.send(client.message(fetch))
    assert eventually(lambda: waits(broker, topic))
    writer.write(topic, records("a", 2), count=2)
    answer = client.answer()
    assert isinstance(answer, wire.FetchResponse)
    assert answer.next_offset == 50
    assert bytes(answer.data) == (records("a", 2) if offset == 0 else b"")
    assert eventually(lambda: not waits(broker, topic))


def test_a_fetch_does_not_wait_where_there_is_data(client: Client, topic: int) -> None:
    client.write(topic, records("a", 2), count=2)
    for max_bytes in (0, 1000):
        fetch = wire.Fetch(topic, 0, max_bytes, FetchFlags.WAIT, LONG_MS)
        assert client.ask(fetch).next_offset == min(max_bytes, 50)


def test_a_fetch_waits_no_longer_than_it_says(client: Client, topic: int) -> None:
    answer = client.fetch(topic, 0, flags=FetchFlags.WAIT, max_wait_ms=20)
    assert (answer.next_offset, len(answer.data)) == (0, 0)
    # Without the flag the time means nothing.
    assert client.fetch(topic, 0, max_wait_ms=LONG_MS).next_offset == 0


def test_nobody_waits_longer_than_the_broker_allows(
    start: StartBroker, dial: Dial
) -> None:
    client = dial(start(wait_s_max=0.02))
    assert client.fetch(0, 0, flags=FetchFlags.WAIT, max_wait_ms=LONG_MS).data == b""
    version = client.ask(wire.GetClusterStatus()).details["topics_version"]
    assert client.ask(wire.Wait(version, (), LONG_MS)).version == version


@pytest.mark.parametrize("together", [True, False])
def test_a_further_request_ends_the_wait(
    broker: EmbeddedBroker, client: Client, topic: int, together: bool
) -> None:
    fetch = client.message(wire.Fetch(topic, 0, 1000, FetchFlags.WAIT, LONG_MS))
    if together:
        client.send(fetch + client.keepalive())
    else:
        client.send(fetch)
        assert eventually(lambda: waits(broker, topic))
        client.send(client.keepalive())
    answer = client.answer()
    assert isinstance(answer, wire.FetchResponse)
    assert len(answer.data) == 0
    assert client.next().type is FrameType.KEEPALIVE


def test_what_is_not_lwp_ends_the_wait(client: Client, topic: int) -> None:
    fetch = client.message(wire.Fetch(topic, 0, 1000, FetchFlags.WAIT, LONG_MS))
    client.send(fetch + b"?" * 100)
    assert isinstance(client.answer(), wire.FetchResponse)
    assert client.ended()


def test_a_client_that_goes_while_it_waits(
    broker: EmbeddedBroker, client: Client, topic: int
) -> None:
    client.send(client.message(wire.Fetch(topic, 0, 1000, FetchFlags.WAIT, LONG_MS)))
    assert eventually(lambda: waits(broker, topic))
    client.close()
    assert eventually(lambda: broker.metrics.snapshot().connections == 0)
    assert not waits(broker, topic)


def test_a_topic_that_goes_while_it_is_waited_for(
    broker: EmbeddedBroker, client: Client, topic: int, writer: Client
) -> None:
    client.send(client.message(wire.Fetch(topic, 0, 1000, FetchFlags.WAIT, LONG_MS)))
    assert eventually(lambda: waits(broker, topic))
    writer.ask(wire.DeleteTopic(topic))
    assert client.error().code == 0x13


def version_of(client: Client) -> int:
    version = client.ask(wire.GetClusterStatus()).details["topics_version"]
    assert isinstance(version, int)
    return version


def wait_for(version: int, *positions: tuple[int, int], ms: int = LONG_MS) -> wire.Wait:
    return wire.Wait(version, tuple(wire.TopicPosition(*p) for p in positions), ms)


def ends_of(answer: wire.Message) -> dict[int, int]:
    assert isinstance(answer, wire.WaitResponse), answer
    return {end.topic_id: end.offset for end in answer.ends}


def test_waiting_for_one_of_several_topics(
    broker: EmbeddedBroker, client: Client, topic: int, writer: Client
) -> None:
    other = client.create("other")
    version = version_of(client)
    client.send(client.message(wait_for(version, (topic, 0), (other, 0))))
    assert eventually(lambda: waits(broker, topic) and waits(broker, other))
    writer.write(other, records("a", 1), count=1)
    answer = client.answer()
    assert ends_of(answer) == {topic: 0, other: 25}
    assert answer == wire.WaitResponse(version, answer.ends)  # type: ignore[attr-defined]


def test_waiting_for_what_is_there_already(client: Client, topic: int) -> None:
    client.write(topic, records("a", 1), count=1)
    version = version_of(client)
    assert ends_of(client.ask(wait_for(version, (topic, 24)))) == {topic: 25}
    assert ends_of(client.ask(wait_for(version + 1, (topic, 25)))) == {topic: 25}


def test_waiting_ends_with_the_time(client: Client, topic: int) -> None:
    version = version_of(client)
    answer = client.ask(wait_for(version, (topic, 0), (77, 0), ms=20))
    # Topics that there are not are left out.
    assert answer == wire.WaitResponse(version, (wire.TopicPosition(topic, 0),))


def catalog_waits(broker: EmbeddedBroker) -> bool:
    return bool(broker.service.store._catalog.watchers._wakes)


def test_waiting_for_a_new_topic(
    broker: EmbeddedBroker, client: Client, topic: int, writer: Client
) -> None:
    version = version_of(client)
    client.send(client.message(wait_for(version, (topic, 0))))
    assert eventually(lambda: catalog_waits(broker))
    writer.create("new")
    answer = client.answer()
    assert isinstance(answer, wire.WaitResponse)
    assert answer.version > version
    assert answer.version == version_of(client)
    assert not catalog_waits(broker)


def test_waiting_for_a_topic_that_goes(
    broker: EmbeddedBroker, client: Client, topic: int, writer: Client
) -> None:
    version = version_of(client)
    client.send(client.message(wait_for(version, (topic, 0))))
    assert eventually(lambda: catalog_waits(broker))
    writer.ask(wire.DeleteTopic(topic))
    answer = client.answer()
    assert ends_of(answer) == {}
    assert isinstance(answer, wire.WaitResponse) and answer.version > version


def test_appends_that_no_wait_is_for_are_not_looked_at(
    broker: EmbeddedBroker,
    client: Client,
    topic: int,
    writer: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All positions are looked at when a wait begins and when it ends: counted."""
    looks: list[int] = []
    ends = broker.service.ends

    def count(who: Any, topics: Any) -> dict[int, int]:
        looks.append(len(topics))
        return ends(who, topics)

    monkeypatch.setattr(broker.service, "ends", count)
    other = writer.create("other")
    most = wire.LIST_LIMITS["Wait.positions"]
    absent = ((n, 0) for n in range(10**6, 10**6 + most - 1))
    client.send(client.message(wait_for(version_of(client), (topic, 1000), *absent)))
    assert eventually(lambda: waits(broker, topic) and bool(looks))
    for batch in range(1, 31):
        writer.write(other, records("a", 1), batch, count=1)
        writer.write(topic, records("a", 1), 100 + batch, count=1)
    assert looks == [most]
    writer.write(topic, records("b", 20), 200, count=20)
    assert ends_of(client.answer()) == {topic: 30 * 25 + 500}
    assert looks == [most, most]


def test_a_wait_for_too_many_topics(client: Client, topic: int) -> None:
    status = client.ask(wire.GetClusterStatus())
    most = status.details["limits"][wire.WAIT_POSITIONS_MAX]
    assert most == wire.LIST_LIMITS["Wait.positions"]
    positions = struct.pack("<IQ", topic, 0) * (most + 1)
    payload = struct.pack("<QI", 0, most + 1) + positions + struct.pack("<I", 0)
    client.send(client.frame(FrameFlags.CONTROL, payload, batch_id=wire.Command.WAIT))
    error = client.error()
    assert error.code == 0x04
    assert f"list of {most + 1} items is too long: at most {most}" in error.message
    client.alive()


def test_waits_are_charged_and_leave_memory_to_others(
    start: StartBroker, dial: Dial
) -> None:
    """A quarter of the memory is for waits; a further one is answered at once."""
    broker = start(memory_bytes_max=1024 * 1024)
    shared = broker._server._shared  # type: ignore[union-attr]
    most, free = wire.LIST_LIMITS["Wait.positions"], shared.memory._limit // 4
    clients = [dial(broker) for _ in range(free // (most * WAIT_POSITION_BYTES) or 1)]
    version = version_of(clients[0])
    many = wait_for(version, *((n, 2**60) for n in range(most)))
    for number, client in enumerate(clients, 1):
        client.send(client.message(many))
        size = number * most * WAIT_POSITION_BYTES
        assert eventually(lambda size=size: shared.waiting.taken == size)
        assert shared.memory.taken >= size
    late = dial(broker)
    assert late.ask(many) == wire.WaitResponse(version, (wire.TopicPosition(0, 0),))
    late.write(0, records("a", 1), count=1)
    for client in clients:
        client.send(client.keepalive())
        assert isinstance(client.answer(), wire.WaitResponse)
    assert eventually(lambda: not shared.waiting.taken and not shared.memory.taken)
    # There is room again.
    late.send(late.message(many))
    assert eventually(lambda: shared.waiting.taken > 0)


def test_large_answers_are_charged(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they are built, to the share of waits; batches have the rest."""
    monkeypatch.setattr(commands, "_TOPIC_BYTES", 200_000)
    broker = start(memory_bytes_max=4 * MIB, wait_timeout_s=0.02)
    shared = broker._server._shared  # type: ignore[union-attr]
    client = dial(broker)
    client.create("a")
    client.create("b")
    assert len(client.ask(wire.ListTopics()).topics) == 2
    assert eventually(lambda: not shared.waiting.taken and not shared.memory.taken)
    # As if others had asked and did not read.
    assert shared.waiting.try_take(MIB)
    described: list[object] = []
    monkeypatch.setattr(commands, "_describe", described.append)
    error = client.refused(wire.ListTopics())
    assert error.code == 0x62
    assert "no memory for the answer: other clients do not read" in error.message
    assert described == []
    client.write(0, records("a", 50_000), count=50_000)
    assert shared.waiting.taken == MIB
    assert eventually(lambda: not shared.memory.taken)


# Consumers.


def test_consumers(client: Client, topic: int) -> None:
    client.write(topic, records("a", 4), count=4)
    subscribe = wire.Subscribe(topic, 0, 4096, 7)
    assert client.ask(subscribe) == wire.SubscribeAck(7, 0)
    # Nothing is ever pushed.
    assert client.is_silent()
    assert client.ask(wire.CommitOffset(topic, 7, 50)) == wire.CommitAck(7, 50)
    assert client.ask(subscribe) == wire.SubscribeAck(7, 50)
    assert client.ask(wire.Subscribe(topic, 25, 1, 7)) == wire.SubscribeAck(7, 25)
    assert client.ask(wire.Subscribe(topic, 0, 9, 8)) == wire.SubscribeAck(8, 0)
    assert client.ask(wire.GetTopic(topic)).details["consumers"] == [
        {"consumer_id": 7, "committed_offset": 50, "max_batch_bytes": 1},
        {"consumer_id": 8, "committed_offset": None, "max_batch_bytes": 9},
    ]
    client.send(client.message(wire.Unsubscribe(topic, 8)))
    client.acked(8)
    error = client.refused(wire.Unsubscribe(topic, 8))
    assert (error.code, error.message) == (
        0x52,
        "Consumer 8 is not subscribed to topic 1",
    )
    error = client.refused(wire.CommitOffset(topic, 7, 101))
    assert (error.code, error.details) == (0x51, {"log_end": 100})


def test_commits_survive_a_restart(broker: EmbeddedBroker, directory: Path) -> None:
    path = str(directory / "data")
    with EmbeddedBroker(data_dir=path) as first, Client(first.address) as client:
        client.write(0, records("a", 4), count=4)
        client.ask(wire.CommitOffset(0, 7, 75))
    with EmbeddedBroker(data_dir=path) as second, Client(second.address) as client:
        assert client.ask(wire.Subscribe(0, 0, 1, 7)) == wire.SubscribeAck(7, 75)
        assert client.read(0) == records("a", 4)


def test_groups(broker: EmbeddedBroker, client: Client, dial: Dial) -> None:
    topics = {name: client.create(name) for name in ("a", "b")}
    strategy = wire.AssignmentStrategy.RANGE

    def join(member: str, *names: str) -> wire.GroupJoined:
        answer = client.ask(wire.JoinGroup("g", member, names, strategy, 30_000))
        assert isinstance(answer, wire.GroupJoined), answer
        return answer

    def beat(member: str, generation: int) -> dict[str, int]:
        answer = client.ask(wire.GroupHeartbeat("g", member, generation))
        assert isinstance(answer, wire.GroupHeartbeatResponse), answer
        assert answer.generation == 2
        return {topic.name: topic.topic_id for topic in answer.assignment}

    first = join("", "a", "b")
    assert first.member
    assert {t.name: t.topic_id for t in first.assignment} == topics
    second = join("two", "a", "b")
    assert (second.generation, second.member) == (2, "two")
    kept = beat(first.member, first.generation)
    # What moves is nobody's until its owner has let go of it.
    assert kept.keys() | beat("two", 2).keys() < {"a", "b"}
    beat(first.member, 2)
    assert {**beat(first.member, 2), **beat("two", 2)} == topics
    groups = client.ask(wire.GetClusterStatus()).details["groups"]
    [group] = groups
    assert (group["group"], group["generation"], group["strategy"]) == ("g", 2, "range")
    members = {m["member"]: m["topics"] for m in group["members"]}
    assert members.keys() == {first.member, "two"}
    assert client.ask(wire.LeaveGroup("g", first.member)) == wire.GroupLeft()
    for message in (
        wire.GroupHeartbeat("g", first.member, 2),
        wire.LeaveGroup("g", first.member),
    ):
        assert client.refused(message).code == 0x52
    error = client.refused(wire.JoinGroup("g", "x", ("a",), strategy, 1))
    assert error.code == 0x04


# Status, tokens and limits.


@pytest.mark.parametrize("command", [0x30, 0x07])
def test_the_status(client: Client, command: int) -> None:
    client.send(client.frame(FrameFlags.CONTROL, batch_id=command))
    status = client.answer()
    assert isinstance(status, wire.ClusterStatus)
    assert status.capabilities == CAPABILITIES
    assert set(CAPABILITIES) == {
        *("fetch-flags", "locate", "staged-commit", "wait", "groups", "partitions"),
    }
    assert (status.mode, status.is_leader, status.node_count) == ("standalone", True, 1)
    assert status.details["server"].startswith("lance_spark/")


@pytest.fixture
def guarded(start: StartBroker, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    path = tmp_path / "tokens"
    path.write_text("from-file\n", encoding="utf-8")
    yield start(tokens=("first",), token_file=str(path), topics={"events": {}})


def test_without_a_token(guarded: EmbeddedBroker, dial: Dial) -> None:
    client = dial(guarded)
    client.alive()
    for message in (wire.ListTopics(), wire.GetClusterStatus(), wire.Fetch(1, 0, 9)):
        error = client.refused(message)
        assert (error.code, error.message) == (0x40, "Authentication required")
    client.send(client.ingest(record(b"x"), 3, topic=1))
    error = client.error()
    assert (error.code, error.details["batch_id"]) == (0x40, 3)


@pytest.mark.parametrize("token", ["first", "from-file"])
def test_with_a_token(guarded: EmbeddedBroker, dial: Dial, token: str) -> None:
    client = dial(guarded)
    answer = client.ask(wire.Authenticate("wrong"))
    assert answer == wire.AuthenticateResponse(False, "Authentication failed")
    assert client.refused(wire.ListTopics()).code == 0x40
    assert client.ask(wire.Authenticate(token)) == wire.AuthenticateResponse(True)
    client.write(1, record(b"x"), count=1)
    assert client.read(1) == record(b"x")
    # Who has said it once can still be wrong.
    assert not client.ask(wire.Authenticate("wrong")).ok
    client.alive()


def test_tokens_can_not_be_tried_for_ever(guarded: EmbeddedBroker, dial: Dial) -> None:
    client = dial(guarded)
    for _ in range(3):
        assert not client.ask(wire.Authenticate("wrong")).ok
    assert client.ended()
    assert guarded.metrics.snapshot().errors == {0x41: 3}
    assert dial(guarded).ask(wire.Authenticate("first")).ok


def test_a_token_where_none_is_needed(client: Client) -> None:
    assert client.ask(wire.Authenticate("anything")).ok


def test_the_rate_of_fetches(start: StartBroker, dial: Dial) -> None:
    broker = start(fetch_rate_limit=0.01)
    client = dial(broker)
    client.fetch(0, 0)
    error = client.refused(wire.Fetch(0, 0, 10))
    assert (error.code, error.message) == (
        0x30,
        "Rate limit exceeded: 0.01 requests/sec",
    )
    assert 1 <= error.details["retry_after_ms"] <= 100_001
    # Other commands and other connections are not limited by it.
    client.ask(wire.ListTopics())
    dial(broker).fetch(0, 0)


# Access.


def test_access_denied_in_the_words_of_the_specification(
    start: StartBroker, dial: Dial
) -> None:
    rule = {"mtls_enabled": True, "allowed_cns": ["spark"]}
    broker = start(topics={"secret": {"auth": rule}, "open": {}})
    client = dial(broker)
    text = "Access denied: client 'anonymous' not authorized for topic 1"
    error = client.refused(wire.Fetch(1, 0, 10))
    assert (error.code, error.message, error.details) == (0x42, text, {"topic_id": 1})
    client.send(client.ingest(record(b"x"), 3, topic=1))
    error = client.error()
    assert (error.code, error.message) == (0x42, text)
    assert error.details == {"topic_id": 1, "batch_id": 3}
    assert [t.name for t in client.ask(wire.ListTopics()).topics] == ["open"]
    for message in (
        wire.Wait(0, (wire.TopicPosition(1, 0),), 10),
        wire.OpenStage("secret", "w", 1),
        wire.CommitStages("w", 1, ("secret",), ()),
        wire.JoinGroup("g", "", ("secret",), wire.AssignmentStrategy.RANGE, 30_000),
    ):
        assert client.refused(message).code == 0x42
    client.write(2, record(b"x"), count=1)


def test_groups_do_not_tell_of_hidden_topics(start: StartBroker, dial: Dial) -> None:
    rule = {"mtls_enabled": True, "allowed_cns": ["spark"]}
    broker = start(topics={"secret": {"auth": rule}, "open": {}})
    groups, strategy = broker.service.groups, Strategy.RANGE
    groups.join("both", "m", ["secret", "open"], strategy, 30)
    groups.join("mixed", "hidden", ["secret"], strategy, 30)
    groups.join("mixed", "seen", ["open"], strategy, 30)
    client = dial(broker)
    [group] = client.ask(wire.GetClusterStatus()).details["groups"]
    assert group["group"] == "mixed"
    assert group["members"] == [{"member": "seen", "topics": ["open"]}]
    # Nor can those that are not seen be touched.
    for message in (
        wire.GroupHeartbeat("both", "m", 1),
        wire.LeaveGroup("both", "m"),
        wire.JoinGroup("both", "m", ("open",), wire.AssignmentStrategy.RANGE, 30_000),
    ):
        assert client.refused(message).code == 0x42
    assert groups.subscription("both", "m") == {"secret", "open"}


# Damage.


def test_damaged_bytes(directory: Path) -> None:
    path = directory / "data"
    settings = {"data_dir": str(path), "fsync": "none", "segment_bytes": 100}
    with EmbeddedBroker(**settings) as broker, Client(broker.address) as client:
        topic = client.create("a")
        for n in range(1, 4):
            client.write(topic, records(f"{n}", 4), n, count=4)
        client.write(0, record(b"fine"), 4, count=1)
    [first, *_] = sorted((path / "segments" / str(topic)).glob("0_*.lnc"))
    data = bytearray(first.read_bytes())
    data[-30] ^= 0xFF
    first.write_bytes(data)
    with EmbeddedBroker(**settings) as broker, Client(broker.address) as client:
        for message in (
            wire.Fetch(topic, 0, 1000),
            wire.Fetch(topic, 30, 1000, FetchFlags.SNAP),
            wire.Locate(topic, LocateKind.RECORD, 2),
        ):
            error = client.refused(message)
            assert error.code == 0x61
            assert "damaged bytes [0, 100)" in error.message
        # What is behind it, and other topics, are served.
        assert client.read(topic, 100) == records("2", 4) + records("3", 4)
        assert client.read(0) == record(b"fine")
        client.write(topic, records("4", 1), count=1)
        assert client.read(topic, 300) == records("4", 1)


def test_waiting_and_writing_do_not_wait_for_each_other(
    broker: EmbeddedBroker, client: Client, topic: int, writer: Client
) -> None:
    """A reader follows a writer through many small batches, and misses none."""
    batches = [records(f"{n}", 1) for n in range(200)]

    def write() -> None:
        for n, batch in enumerate(batches, 1):
            writer.write(topic, batch, n, count=1)

    with running(write) as written:
        parts, start = [], 0
        deadline = Deadline.after(20)
        while start < 200 * 25 and not deadline.expired:
            answer = client.fetch(topic, start, flags=FetchFlags.WAIT, max_wait_ms=1000)
            parts.append(bytes(answer.data))
            start = answer.next_offset
        written()
    assert b"".join(parts) == b"".join(batches)
