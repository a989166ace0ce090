"""A connection: frames, order, limits, memory, and everything that ends it."""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker, session
from lance_spark.broker.budget import Budget
from lance_spark.broker.lwp import command as commands
from lance_spark.broker.lwp import session as lwp_session
from lance_spark.broker.lwp.session import FrameSession
from lance_spark.broker.session import STRANGER_BYTES_MAX, Shared
from lance_spark.errors import (
    ConnectionLost,
    Corrupt,
    InvalidPayload,
    LanceError,
    OperationTimeout,
    PayloadTooLarge,
    StoreReadOnly,
    Timeout,
)
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import SocketStream
from lance_spark.store import Store
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import (
    PAYLOAD_BYTES_FIRST,
    AssignmentStrategy,
    Checksum,
    FrameFlags,
    FrameType,
)
from tests.broker.kit import (
    Client,
    Dial,
    StartBroker,
    clients,
    eventually,
    patience,
    record,
    records,
    running,
)

MIB = 1024 * 1024


def shared(broker: EmbeddedBroker) -> Shared:
    """Give what the sessions of a broker share."""
    assert broker._server is not None
    return broker._server._shared


def memory(broker: EmbeddedBroker) -> Budget:
    return shared(broker).memory


def header(
    *, magic: bytes = b"LANC", version: int = 1, flags: int = 0x20, reserved: int = 0
) -> bytes:
    """Make any header, with the right checksum for it."""
    protected = struct.pack("<4sBBH", magic, version, flags, reserved)
    crc = struct.pack("<I", Checksum.CRC32C.update(protected))
    return protected + crc + bytes(32)


# Checksums.


@pytest.mark.parametrize("checksum", list(Checksum))
def test_the_checksum_that_is_set(
    start: StartBroker, dial: Dial, checksum: Checksum
) -> None:
    broker = start(checksum=checksum.value)
    other = next(c for c in Checksum if c is not checksum)
    client = dial(broker, checksum=checksum)
    client.write(0, record(b"x"), count=1)
    assert client.read(0) == record(b"x")
    stranger = dial(broker, checksum=other)
    stranger.send(stranger.keepalive())
    assert stranger.ended()


def test_each_client_is_answered_in_kind(start: StartBroker, dial: Dial) -> None:
    broker = start(checksum="auto")
    for number, checksum in enumerate(Checksum):
        client = dial(broker, checksum=checksum)
        client.alive()
        client.write(0, record(b"x"), count=1)
        assert len(client.read(0)) == 6 * (number + 1)
        assert client.refused(wire.GetTopic(9)).code == 0x10


def test_a_client_is_held_to_its_checksum(start: StartBroker, dial: Dial) -> None:
    client = dial(start(checksum="auto"), checksum=Checksum.CRC32)
    client.alive()
    client.send(wire.encode_keepalive(checksum=Checksum.CRC32C))
    assert client.ended()


# Kinds of frames.


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (FrameFlags.CONTROL | FrameFlags.KEEPALIVE | FrameFlags.ACK, FrameType.CONTROL),
        (FrameFlags.CONTROL | FrameFlags.BATCH_MODE, FrameType.CONTROL),
        (FrameFlags.KEEPALIVE | FrameFlags.ACK, FrameType.KEEPALIVE),
        (FrameFlags.KEEPALIVE | FrameFlags.BATCH_MODE, FrameType.KEEPALIVE),
    ],
)
def test_which_flag_wins(client: Client, flags: int, expected: FrameType) -> None:
    client.send(client.frame(flags, batch_id=wire.Command.LIST_TOPICS))
    assert client.next().type is expected


@pytest.mark.parametrize("flags", [0, FrameFlags.BATCH_MODE])
def test_a_payload_without_another_type_is_a_batch(client: Client, flags: int) -> None:
    client.send(client.ingest(record(b"x"), flags=flags))
    client.acked(1)
    assert client.read(0) == record(b"x")


@pytest.mark.parametrize(
    "flags", [FrameFlags.ACK, FrameFlags.BACKPRESSURE | FrameFlags.BATCH_MODE]
)
def test_what_only_servers_send_means_nothing(client: Client, flags: int) -> None:
    client.send(client.frame(flags, record(b"x"), batch_id=1, record_count=1))
    client.alive()
    assert client.read(0) == b""


def test_a_frame_without_type_and_payload(client: Client) -> None:
    client.send(client.frame(0, batch_id=3))
    error = client.error()
    assert isinstance(error, InvalidPayload)
    assert "a frame without type and payload" in error.message
    client.alive()


# What is not LWP.

BROKEN = {
    "magic": header(magic=b"LNAC"),
    "version": header(version=2),
    "header checksum": header()[:8] + b"\0\0\0\0" + header()[12:],
    "payload checksum": wire.encode_header(
        FrameFlags.BATCH_MODE, batch_id=9, record_count=1, payload_length=6
    )
    + record(b"x"),
    "bit 7": header(flags=0xA0),
    "reserved bytes": header(reserved=1),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_not_lwp_ends_the_connection_without_a_word(
    broker: EmbeddedBroker, client: Client, kind: str, dial: Dial
) -> None:
    client.send(BROKEN[kind])
    assert client.ended()
    snapshot = broker.metrics.snapshot()
    assert (snapshot.sent_bytes, snapshot.errors) == (0, {})
    dial(broker).alive()


@pytest.mark.parametrize("kind", BROKEN)
def test_what_was_owed_before_is_still_paid(client: Client, kind: str) -> None:
    good = [client.ingest(record(b"x"), n) for n in (1, 2)]
    client.send(b"".join(good) + BROKEN[kind])
    client.acked(1, 2)
    assert client.ended()


def test_bytes_one_at_a_time(client: Client) -> None:
    frames = client.ingest(records("a", 2), count=2) + client.keepalive()
    for position in range(len(frames)):
        client.send(frames[position : position + 1])
    client.acked(1)
    assert client.next().type is FrameType.KEEPALIVE


# Too large.


def test_a_payload_over_the_limit_is_told_to_a_client_that_goes_on(
    start: StartBroker, dial: Dial
) -> None:
    client = dial(start(payload_bytes_max=2048))
    client.send(client.ingest(record(b"x"), 7))
    huge = client.ingest(bytes(3 * MIB), 8, topic=5)

    def send() -> None:
        # More than the sockets hold: the broker has to read it, or nobody hears it.
        client.send(huge)

    with running(send) as sent:
        client.acked(7)
        error = client.error()
        assert isinstance(error, PayloadTooLarge)
        assert error.message == f"payload of {3 * MIB} bytes is over the limit of 2048"
        assert error.details == {"batch_id": 8, "topic_id": 5}
        assert client.ended()
        sent()


def test_a_command_over_the_limit(start: StartBroker, dial: Dial) -> None:
    client = dial(start(payload_bytes_max=2048))
    client.send(client.message(wire.CreateTopic("x" * 3000)))
    error = client.error()
    assert (error.code, error.details) == (0x03, {})
    assert client.ended()


def test_a_client_over_the_limit_that_never_ends(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So much is read for the sake of the error, and no more.
    monkeypatch.setattr(session, "_DRAIN_BYTES", MIB)
    client = dial(start(payload_bytes_max=2048))

    def send() -> None:
        with pytest.raises(ConnectionLost):
            for _ in range(10_000):
                client.send(bytes(64 * 1024))

    client.send(client.ingest(bytes(4096))[: wire.HEADER_BYTES])
    with running(send) as sent:
        assert client.error().code == 0x03
        sent()


def test_nothing_is_taken_for_a_payload_that_is_only_announced(
    broker: EmbeddedBroker, client: Client
) -> None:
    client.send(client.ingest(bytes(16 * MIB))[: wire.HEADER_BYTES + 10])
    assert eventually(lambda: memory(broker).taken > 0)
    assert memory(broker).taken == PAYLOAD_BYTES_FIRST


# Order.


def test_everything_is_answered_in_order(client: Client) -> None:
    topic = client.create("a")
    batch = records("a", 3)
    sent = [
        client.ingest(batch, 1, topic=topic, count=3),
        client.ingest(batch, 2, topic=topic, count=3),
        client.message(wire.Fetch(topic, 0, 1000)),
        client.keepalive(),
        client.ingest(b"no records", 3, topic=topic, count=3),
        client.ingest(batch, 4, topic=topic, count=3),
        client.message(wire.GetTopic(77)),
        client.frame(0),
        client.ingest(batch, 5, topic=topic, count=3),
        client.message(wire.Fetch(topic, 0, 1000)),
        client.ingest(batch, 5, topic=topic, count=3),
    ]
    client.send(b"".join(sent))
    client.acked(1, 2)
    fetched = client.answer()
    assert isinstance(fetched, wire.FetchResponse)
    assert bytes(fetched.data) == batch * 2
    assert client.next().type is FrameType.KEEPALIVE
    assert client.error().details == {"batch_id": 3, "topic_id": topic}
    client.acked(4)
    assert client.error().code == 0x10
    assert client.error().code == 0x04
    client.acked(5)
    fetched = client.answer()
    assert isinstance(fetched, wire.FetchResponse)
    assert bytes(fetched.data) == batch * 4
    client.acked(5)


@pytest.mark.parametrize("fsync", ["none", "batch", "always"])
def test_many_batches_at_once(start: StartBroker, dial: Dial, fsync: str) -> None:
    client = dial(start(fsync=fsync))
    # More than are owed at once, in number.
    count = session._OWED_MAX * 2 + 10 if fsync != "always" else 20
    batch = records("a", 2)
    frames = b"".join(client.ingest(batch, n + 1, count=2) for n in range(count))
    client.send(frames)
    client.acked(*range(1, count + 1))
    assert client.read(0) == batch * count


def test_acknowledgements_do_not_wait_for_too_many_bytes(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_OWED_BYTES_MAX", 100)
    client = dial(start(fsync="batch"))
    frames = [client.ingest(record(b"x" * 60), n) for n in (1, 2, 3, 4, 5)]
    client.send(b"".join(frames))
    client.acked(1, 2, 3, 4, 5)


def test_a_client_that_goes_after_its_batch(
    broker: EmbeddedBroker, dial: Dial, client: Client
) -> None:
    hasty = dial(broker)
    hasty.send(hasty.ingest(record(b"x")))
    hasty.close()
    assert eventually(lambda: client.read(0) == record(b"x"))
    assert eventually(lambda: broker.metrics.snapshot().connections == 1)
    assert shared(broker).queue.taken == memory(broker).taken == 0


def test_a_client_that_ends_its_side_still_gets_its_answers(
    broker: EmbeddedBroker, client: Client
) -> None:
    client.send(client.ingest(record(b"x")) + client.ingest(record(b"y"), 2))
    client.stream.shutdown_write()
    client.acked(1, 2)
    assert client.ended()


# The disk.


def test_a_batch_that_the_disk_refuses(
    broker: EmbeddedBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Store.wait_durable
    failures = [None, Timeout("not durable after 30 s"), StoreReadOnly("broken"), None]

    def refuse(store: Store, topic: int, appended: Any, *, timeout_s: float) -> None:
        failure = failures.pop(0) if failures else None
        if failure is not None:
            raise failure
        wait(store, topic, appended, timeout_s=timeout_s)

    monkeypatch.setattr(Store, "wait_durable", refuse)
    batches = [record(b"%d" % n) for n in range(1, 5)]
    sent = [client.ingest(batch, n) for n, batch in enumerate(batches, 1)]
    client.send(b"".join(sent))
    client.acked(1)
    error = client.error()
    assert isinstance(error, OperationTimeout)
    assert error.details == {"batch_id": 2, "topic_id": 0}
    error = client.error()
    assert (error.code, error.details["batch_id"]) == (0x61, 3)
    client.acked(4)
    assert shared(broker).queue.taken == 0
    # Batch 3 is not stored as far as anybody knows, and may come again. Batch 2 was
    # only late: it is there, and its acknowledgement waits for the disk once more.
    ends = [client.fetch(0, 2**64 - 1).next_offset]
    for n in (1, 2, 3, 4):
        client.send(sent[n - 1])
        client.acked(n)
        ends.append(client.fetch(0, 2**64 - 1).next_offset)
    assert [end - ends[0] for end in ends] == [0, 0, 0, 6, 6]


def test_a_repeated_batch_whose_first_one_the_disk_refuses(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = Store.wait_durable
    failures = [Timeout("not durable after 30 s")]

    def refuse(store: Store, topic: int, appended: Any, *, timeout_s: float) -> None:
        if failures:
            raise failures.pop()
        wait(store, topic, appended, timeout_s=timeout_s)

    monkeypatch.setattr(Store, "wait_durable", refuse)
    # Both at once: the second comes while the first is still owed.
    client.send(client.ingest(record(b"x")) * 2)
    assert client.error().code == 0x62
    client.acked(1)
    assert client.fetch(0, 2**64 - 1).next_offset == 6


def test_late_batches_share_one_timeout(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts: list[float] = []

    def late(store: Store, topic: int, appended: Any, *, timeout_s: float) -> None:
        timeouts.append(timeout_s)
        raise Timeout("not durable in time")

    monkeypatch.setattr(Store, "wait_durable", late)
    client = dial(start(wait_timeout_s=9.0))
    client.send(b"".join(client.ingest(record(b"x"), n) for n in range(1, 6)))
    assert [client.error().code for _ in range(5)] == [0x62] * 5
    # Each has what the ones before it have left.
    assert timeouts == sorted(timeouts, reverse=True)
    assert timeouts[0] <= 9.0 and len(set(timeouts)) > 1


def test_a_write_queue_that_stays_full(start: StartBroker, dial: Dial) -> None:
    broker = start(write_queue_bytes_max=10, wait_timeout_s=0.05)
    client = dial(broker)
    assert shared(broker).queue.try_take(8)  # Another client's, on a slow disk.
    client.send(client.ingest(record(b"x"), 4))
    assert client.next().type is FrameType.BACKPRESSURE
    error = client.error()
    assert error.code == 0x62
    assert error.message == "the write queue was full for 0.05 s"
    assert error.details == {"batch_id": 4, "topic_id": 0}
    shared(broker).queue.give_back(8)
    client.send(client.ingest(record(b"x"), 4))
    client.acked(4)
    assert shared(broker).queue.taken == 0


# Backpressure.


def test_backpressure(start: StartBroker, dial: Dial) -> None:
    broker = start(write_queue_bytes_max=1, fsync="batch")
    client = dial(broker)
    assert shared(broker).queue.try_take(1)  # Another client's.
    client.send(b"".join(client.ingest(record(b"x"), n) for n in range(1, 9)))
    frames = [client.next()]
    shared(broker).queue.give_back(1)
    frames += [client.next() for _ in range(7)]
    slow = [f for f in frames if f.type is FrameType.BACKPRESSURE]
    assert len(slow) == broker.metrics.snapshot().backpressure_frames >= 1
    assert all((f.batch_id, len(f.payload)) == (0, 0) for f in slow)
    acks = [f.batch_id for f in frames if f.type is FrameType.ACK]
    acks += [client.next().batch_id for _ in range(8 - len(acks))]
    assert acks == list(range(1, 9))
    assert client.read(0) == record(b"x") * 8


def test_backpressure_is_not_repeated_at_once(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of them halves the client's rate. The first comes whatever the clock says,
    # which counts from the start of the machine.
    monkeypatch.setattr(lwp_session, "_SLOW_DOWN_INTERVAL_S", time.monotonic() + 3600)
    broker = start(write_queue_bytes_max=1)
    client, queue = dial(broker), shared(broker).queue
    for batch in (1, 2, 3):
        assert queue.try_take(1)  # Another client's.
        client.send(client.ingest(record(b"x"), batch))
        assert eventually(lambda: queue.waiting == 1)
        queue.give_back(1)
        if batch == 1:
            assert client.next().type is FrameType.BACKPRESSURE
        client.acked(batch)
        assert eventually(lambda: queue.taken == 0)
    assert broker.metrics.snapshot().backpressure_frames == 1


def test_backpressure_can_be_turned_off(start: StartBroker, dial: Dial) -> None:
    broker = start(write_queue_bytes_max=1, backpressure=False)
    client = dial(broker)
    client.send(b"".join(client.ingest(record(b"x"), n) for n in range(1, 9)))
    client.acked(*range(1, 9))
    assert broker.metrics.snapshot().backpressure_frames == 0


# Memory.


def test_memory_of_a_client_that_goes_in_the_middle(
    broker: EmbeddedBroker, dial: Dial
) -> None:
    for _ in range(3):
        client = dial(broker)
        client.send(client.ingest(bytes(MIB))[: 400 * 1024])
        assert eventually(lambda: memory(broker).taken == MIB)
        client.close()
        assert eventually(lambda: memory(broker).taken == 0)


def test_memory_is_free_after_each_frame(
    broker: EmbeddedBroker, client: Client
) -> None:
    payload = record(bytes(600 * 1024))
    for n in (1, 2, 3):
        # In one go with the beginning of the next one, which has its own share.
        client.send(client.ingest(payload, n) + client.keepalive())
        client.acked(n)
        assert client.next().type is FrameType.KEEPALIVE
        assert memory(broker).taken == 0
    assert client.read(0, 0, 4 * MIB) == payload * 3


def test_a_client_that_stalls_while_others_need_memory(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_STALL_S", 0.05)
    broker = start(memory_bytes_max=MIB)
    payload = record(bytes(900 * 1024))
    stalled, other = dial(broker), dial(broker)
    stalled.send(stalled.ingest(payload)[: 400 * 1024])
    assert eventually(lambda: memory(broker).taken == len(payload))
    # It may take its time, as long as nobody waits for it.
    other.alive()
    other.send(other.ingest(payload))
    assert other.next().type is FrameType.BACKPRESSURE
    other.acked(1)
    assert stalled.ended()
    assert other.read(0, 0, 2 * MIB) == payload


def test_a_client_that_stalls_alone_is_left_alone(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_STALL_S", 0.01)
    stalls = []
    broker = start()
    client = dial(broker)
    recv_into = SocketStream.recv_into

    def recv(stream: SocketStream, *arguments: Any) -> int:
        try:
            return recv_into(stream, *arguments)
        except Timeout:
            stalls.append(stream)
            raise

    monkeypatch.setattr(SocketStream, "recv_into", recv)
    frame = client.ingest(record(bytes(900 * 1024)))
    client.send(frame[: 400 * 1024])
    assert eventually(lambda: len(stalls) >= 3)
    client.send(frame[400 * 1024 :])
    client.acked(1)


def test_clients_that_hold_memory_and_want_more_do_not_wait_for_each_other(
    start: StartBroker, dial: Dial
) -> None:
    broker = start(memory_bytes_max=4 * PAYLOAD_BYTES_FIRST, backpressure=False)
    payload = record(bytes(3 * MIB))
    with clients(broker, 4) as several:
        frames = [c.ingest(payload) for c in several]
        for client, frame in zip(several, frames, strict=True):
            client.send(frame[: 100 * 1024])
        # Each has the first piece, and together they have everything.
        assert eventually(lambda: memory(broker).taken == 4 * PAYLOAD_BYTES_FIRST)
        threads = []
        for client, frame in zip(several, frames, strict=True):
            rest = frame[100 * 1024 :]
            threads.append(threading.Thread(target=client.send, args=(rest,)))
            threads[-1].start()
        for client in several:
            client.acked(1)
        for thread in threads:
            thread.join(60)
    assert eventually(lambda: memory(broker).taken == 0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for memory for long."""
    take = Budget.take

    def take_soon(budget: Budget, size: int, deadline: Deadline, **more: Any) -> bool:
        return take(budget, size, deadline.sooner(0.05), **more)

    monkeypatch.setattr(Budget, "take", take_soon)


@pytest.mark.usefixtures("impatient")
def test_a_client_that_gets_no_memory(
    start: StartBroker, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start(memory_bytes_max=MIB, backpressure=False)
    client = dial(broker)
    assert memory(broker).try_take(MIB)
    with caplog.at_level(logging.INFO):
        client.send(client.ingest(record(bytes(900 * 1024)))[: 300 * 1024])
        error = client.error()
        assert (error.code, error.retriable) == (0x31, True)
        assert client.ended()
    assert "closed: no memory for it" in caplog.text
    memory(broker).give_back(MIB)
    assert memory(broker).taken == 0


@pytest.mark.usefixtures("impatient")
def test_decompression_has_its_share_of_memory(start: StartBroker, dial: Dial) -> None:
    broker = start(memory_bytes_max=MIB, backpressure=False)
    client = dial(broker)
    packed = wire.compress(records("a", 3000))
    compressed = FrameFlags.BATCH_MODE | FrameFlags.COMPRESSED
    frame = client.ingest(packed, count=3000, flags=compressed)
    assert memory(broker).try_take(MIB)
    client.send(frame)
    error = client.error()
    assert (error.code, error.details["batch_id"]) == (0x62, 1)
    assert error.message == "there was no memory to decompress the batch"
    memory(broker).give_back(MIB)
    client.send(frame)
    client.acked(1)
    assert eventually(lambda: memory(broker).taken == 0)


# Keepalive and silence.


def test_keepalives_are_limited(start: StartBroker, dial: Dial) -> None:
    broker = start(keepalive_burst=3, keepalive_rate=0.1)
    client = dial(broker)
    client.send(client.keepalive() * 10)
    for _ in range(3):
        assert client.next().type is FrameType.KEEPALIVE
    # The seven others are dropped; what follows them is not.
    assert isinstance(client.ask(wire.ListTopics()), wire.TopicListing)
    assert client.is_silent()
    assert broker.metrics.snapshot().keepalives_dropped == 7
    # Each connection has its own.
    dial(broker).alive()


def test_eleven_quick_pings(client: Client) -> None:
    for _ in range(11):
        client.alive()


def test_silence_ends_a_connection(start: StartBroker, dial: Dial) -> None:
    client = dial(start(idle_timeout_s=0.05))
    assert client.ended()
    # Inside a frame, too.
    client = dial(start(idle_timeout_s=0.05))
    client.send(client.keepalive()[:10])
    assert client.ended()


@pytest.mark.parametrize(
    "said", [b"\0\0\0\1\xff", b"\x0a\4\0\0\0\1\0\0\0", b"GET "], ids=repr
)
def test_another_protocol_ends_a_connection(
    start: StartBroker, dial: Dial, said: bytes
) -> None:
    """Its client waits for an answer to less than a header of LWP has."""
    client = dial(start(idle_timeout_s=3600.0))
    client.alive()
    client.send(said[:3])
    assert client.is_silent()
    client.send(said[3:])
    assert client.ended()


# Sending.


@pytest.mark.parametrize("size", [10, 256 * 1024 - 5, 256 * 1024, 3 * MIB + 1])
def test_answers_of_all_sizes(client: Client, size: int) -> None:
    payload = record(bytes([size % 251]) * size)
    client.write(0, payload, count=1)
    answer = client.fetch(0, 0, 4 * MIB)
    assert bytes(answer.data) == payload
    assert (answer.next_offset, answer.record_count) == (len(payload), 1)


def test_a_client_that_does_not_read(start: StartBroker, dial: Dial) -> None:
    broker = start(idle_timeout_s=0.5)
    payload = record(bytes(8 * MIB))
    with Client(broker.address) as writer:
        writer.write(0, payload, count=1)
    reader = dial(broker)
    # More than the sockets hold.
    reader.send(reader.message(wire.Fetch(0, 0, 16 * MIB)) * 4)
    assert eventually(lambda: broker.metrics.snapshot().connections_closed == 2)
    room, size = memoryview(bytearray(MIB)), 0
    while more := reader.stream.recv_into(room, patience()):
        size += more
    assert size < 4 * len(payload)


@pytest.mark.parametrize(
    "failure",
    [Corrupt("segment file", 0, 9, "the file is too short"), Timeout("too slow")],
)
def test_an_answer_that_breaks_off_ends_the_connection(
    broker: EmbeddedBroker,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    failure: LanceError,
) -> None:
    client.write(0, record(bytes(MIB)), count=1)

    def fail(*arguments: Any) -> None:
        raise failure

    monkeypatch.setattr(SocketStream, "send_file", fail)
    client.send(client.message(wire.Fetch(0, 0, 2 * MIB)))
    # Nothing may follow the head of a frame but its payload.
    assert client.ended()
    assert broker.metrics.snapshot().errors == {}


@pytest.mark.parametrize("name", ["topics", "append"])
def test_a_client_that_is_lost_is_not_told_of_it(
    broker: EmbeddedBroker, client: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def lose(*arguments: Any, **options: Any) -> None:
        raise ConnectionLost("gone")

    client.alive()
    monkeypatch.setattr(f"lance_spark.broker.service.Service.{name}", lose)
    frames = {
        "topics": client.message(wire.ListTopics()),
        "append": client.ingest(record(b"x")),
    }
    client.send(frames[name])
    assert client.ended()
    assert broker.metrics.snapshot().errors == {}


# Bugs.


@contextmanager
def broken_handler(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    def fail(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("oops")

    with monkeypatch.context() as patch:
        patch.setattr(f"lance_spark.broker.service.Service.{name}", fail)
        yield


def test_a_bug_in_a_command_is_told_and_the_connection_lives(
    broker: EmbeddedBroker,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with broken_handler(monkeypatch, "topics"):
        error = client.refused(wire.ListTopics())
    assert (error.code, error.message) == (0x60, "internal error: ZeroDivisionError")
    assert "oops" in caplog.text
    with broken_handler(monkeypatch, "append"):
        client.send(client.ingest(record(b"x"), 5))
        error = client.error()
    assert (error.code, error.details) == (0x60, {"batch_id": 5, "topic_id": 0})
    assert shared(broker).queue.taken == 0
    client.alive()
    client.write(0, record(b"x"), 5, count=1)
    assert broker.metrics.snapshot().errors == {0x60: 2}


def test_a_bug_outside_of_commands_ends_one_connection(
    broker: EmbeddedBroker,
    client: Client,
    dial: Dial,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = dial(broker)
    other.alive()
    with monkeypatch.context() as patch:
        patch.setattr(FrameSession, "_settle", lambda self: 1 / 0)
        patch.setattr(FrameSession, "_refuse", lambda *_: 1 / 0)
        client.send(client.keepalive())
        assert client.ended()
    assert "session failed" in caplog.text
    other.alive()


# Metrics.


def test_requests_are_counted_under_names_that_clients_can_not_make_up(
    broker: EmbeddedBroker, client: Client
) -> None:
    for command in (0x99, 0x1234, 2**64 - 1, wire.Command.TOPIC_RESPONSE):
        client.send(client.frame(FrameFlags.CONTROL, batch_id=command))
        assert client.error().code == 0x04
    client.ask(wire.ListTopics())
    client.write(0, record(b"x"), count=1)
    client.alive()
    requests = broker.metrics.snapshot().requests
    assert {name: times.count for name, times in requests.items()} == {
        "Unknown": 4,
        "ListTopics": 1,
        "Ingest": 1,
    }


def test_bytes_are_counted(broker: EmbeddedBroker, client: Client) -> None:
    client.alive()
    client.write(0, record(bytes(MIB)), count=1)
    client.fetch(0, 0, 2 * MIB)
    snapshot = broker.metrics.snapshot()
    frame = wire.HEADER_BYTES
    assert snapshot.received_bytes == frame + (frame + MIB + 5) + (frame + 16)
    assert eventually(
        lambda: (
            broker.metrics.snapshot().sent_bytes
            == frame + frame + (frame + 16 + MIB + 5)
        )
    )


# Those who keep others out.


def test_a_payload_that_dribbles_while_memory_is_short(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_STALL_S", 0.05)
    broker = start(memory_bytes_max=MIB, backpressure=False)
    slow = dial(broker)
    frame = slow.ingest(record(bytes(900 * 1024)))
    slow.send(frame[: 300 * 1024])
    assert eventually(lambda: memory(broker).taken > 0)
    # Somebody else needs what it holds; a byte now and then is not enough.
    honest = dial(broker)
    honest.send(honest.ingest(record(bytes(800 * 1024))))
    position = 300 * 1024

    def dribble() -> bool:
        nonlocal position
        with contextlib.suppress(ConnectionLost):
            slow.send(frame[position : position + 1])
        position += 1
        return broker.metrics.snapshot().connections_closed > 0

    assert eventually(dribble)
    honest.acked(1)


def test_keepalives_do_not_take_the_place_of_a_token(
    start: StartBroker, dial: Dial
) -> None:
    broker = start(tokens=("good",), handshake_timeout_s=0.1, keepalive_burst=1000)
    stranger, known = dial(broker), dial(broker)
    known.ask(wire.Authenticate("good"))
    keepalive = wire.encode_keepalive()

    def keep_on() -> bool:
        with contextlib.suppress(ConnectionLost):
            stranger.send(keepalive)
        return broker.metrics.snapshot().connections_closed == 1

    assert eventually(keep_on)
    known.alive()
    # One that says nothing is closed just the same.
    silent = dial(broker)
    assert silent.ended()


# Before the token.

TOKEN: dict[str, Any] = {"tokens": ("good",)}


def test_nothing_is_looked_into_before_the_token(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request, batches plain and compressed: refused by the type of its frame."""
    looked: list[str] = []

    def note(name: str) -> Callable[..., Any]:
        def look(*_: Any, **__: Any) -> Any:
            looked.append(name)
            raise AssertionError(name)

        return look

    monkeypatch.setattr(commands, "read_batch", note("read_batch"))
    monkeypatch.setattr(wire, "decompressed_bytes_max", note("decompress"))
    for kind in set(wire.REQUESTS.values()) - {wire.Authenticate}:
        monkeypatch.setattr(kind, "decode_payload", note(kind.__name__))
    client = dial(start(**TOKEN, keepalive_burst=1000))
    payload = b"?" * 100
    frames = [
        client.frame(FrameFlags.CONTROL, payload, batch_id=command)
        for command in [*wire.REQUESTS, 0x99, 2**64 - 1]
        if command != wire.Command.AUTHENTICATE
    ]
    frames.append(client.frame(0))
    for frame in frames:
        client.send(frame)
        error = client.error()
        assert (error.code, error.message) == (0x40, "Authentication required")
    compressed = FrameFlags.BATCH_MODE | FrameFlags.COMPRESSED
    for batch, flags in ((5, FrameFlags.BATCH_MODE), (6, compressed)):
        client.send(client.ingest(payload, batch, topic=9, flags=flags))
        error = client.error()
        assert error.code == 0x40
        assert error.details == {"batch_id": batch, "topic_id": 9}
    client.alive()
    assert looked == []


@pytest.mark.parametrize("dialect", ["lwp", "plain"])
def test_large_frames_are_refused_before_the_token(
    start: StartBroker, dial: Dial, dialect: str
) -> None:
    """By the header alone: the payload is not received, nor memory made for it."""
    checksum = wire.Checksum.CRC32 if dialect == "plain" else wire.Checksum.CRC32C
    broker = start(**TOKEN, dialect=dialect)
    for size, flags in (
        (STRANGER_BYTES_MAX + 1, FrameFlags.BATCH_MODE),
        (16 * MIB, FrameFlags.CONTROL),
    ):
        client = dial(broker, checksum=checksum)
        client.send(
            wire.encode_header(
                flags, batch_id=8, payload_length=size, checksum=checksum
            )
        )
        if dialect == "lwp":
            assert client.error().code == 0x03
        assert client.ended()
    # A token that is as large as a frame may be is read, and refused as a token.
    client = dial(broker, checksum=checksum)
    long = "x" * (STRANGER_BYTES_MAX - 1)
    assert not client.ask(wire.Authenticate(long)).ok
    assert client.ask(wire.Authenticate("good")).ok
    client.write(0, records("a", 5000), count=5000)


def test_a_large_batch_right_behind_the_token(start: StartBroker, dial: Dial) -> None:
    """Both arrive at once, when larger frames are not allowed yet."""
    client = dial(start(**TOKEN))
    token = client.message(wire.Authenticate("good"))
    client.send(token + client.ingest(records("a", 9000), 1, count=9000))
    assert client.answer() == wire.AuthenticateResponse(True)
    client.acked(1)
    # Behind a wrong one it is refused.
    client = dial(start(**TOKEN))
    token = client.message(wire.Authenticate("bad"))
    client.send(token + client.ingest(records("a", 9000), 1, count=9000))
    assert client.answer() == wire.AuthenticateResponse(False, "Authentication failed")
    assert client.error().code == 0x03


@pytest.mark.parametrize("what", ["request", "ack", "batch"])
def test_nothing_that_is_sent_takes_the_place_of_a_token(
    start: StartBroker, dial: Dial, what: str
) -> None:
    broker = start(**TOKEN, handshake_timeout_s=0.1)
    stranger = dial(broker)
    frame = {
        "request": stranger.message(wire.ListTopics()),
        "ack": wire.encode_ack(1),
        "batch": stranger.ingest(record(b"x")),
    }[what]

    def keep_on() -> bool:
        with contextlib.suppress(ConnectionLost):
            stranger.send(frame)
        return broker.metrics.snapshot().connections_closed == 1

    assert eventually(keep_on)


def test_nothing_is_read_behind_a_keepalive_that_came_too_late(
    start: StartBroker, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = FrameSession._keepalive

    def slow(self: FrameSession) -> None:
        usual(self)
        assert eventually(lambda: self._admission.expired)

    monkeypatch.setattr(FrameSession, "_keepalive", slow)
    stranger = dial(start(tokens=("good",), handshake_timeout_s=0.5))
    question = b"".join(map(bytes, wire.encode_message(wire.ListTopics())))
    stranger.send(wire.encode_keepalive() + question)
    assert stranger.next().type is FrameType.KEEPALIVE
    assert stranger.ended()


def test_the_status_stays_small(client: Client) -> None:
    for n in range(3):
        topics = tuple(f"{n}-{k}-" + "x" * 200 for k in range(900))
        client.ask(
            wire.JoinGroup(f"group-{n}", "", topics, AssignmentStrategy.RANGE, 60_000)
        )
    client.ask(wire.JoinGroup("a", "", ("t",), AssignmentStrategy.RANGE, 60_000))
    status = client.ask(wire.GetClusterStatus())
    assert isinstance(status, wire.ClusterStatus)
    assert [group["group"] for group in status.details["groups"]] == ["a"]
    assert status.details["groups_truncated"] is True
