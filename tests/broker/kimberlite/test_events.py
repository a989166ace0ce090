"""Appends and reads: who wins, what is durable, how much an answer holds."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import lance_spark.broker.kimberlite.session as module
from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import LocalProtocolError, Timeout
from lance_spark.testing.faults import ScratchDisk
from lance_spark.wire import kimberlite as wire
from lance_spark.wire.kimberlite import record as wire_record
from tests.broker.kimberlite.conftest import DialKimberlite
from tests.broker.kimberlite.kit import (
    HERE,
    HOME,
    MIB,
    KimberliteClient,
    values_of,
)
from tests.broker.kit import StartBroker, eventually, make_records
from tests.each import each
from tests.store.seam import SeamFiles

FORMS = ("v5", "v5-0.6", "v3", "v1-postcard", "v1-bincode", "v1-literal")


def make_read(stream: int, start: int = 0, max_bytes: int = MIB) -> wire.Message:
    return wire.ReadEvents(stream, start, max_bytes)


# Conditional appends.


def test_one_of_those_that_expect_the_same_wins(
    shared: EmbeddedBroker, dial_kimberlite: DialKimberlite, name: str
) -> None:
    clients = [dial_kimberlite(shared) for _ in range(4)]
    stream = clients[0].create(name)
    together = threading.Barrier(4)

    def race(number: int) -> list[bool]:
        won = []
        for place in range(10):
            together.wait(20)
            event = b"%d of %d" % (place, number)
            append = clients[number].make_append(stream, event, expected=place)
            answer = clients[number].ask(append)
            won.append(answer == wire.AppendEventsResponse(place, 1))
            if not won[-1]:
                assert answer.code == 16
                assert answer.message.endswith(f"actual {place + 1}")
        return won

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(race, range(4)))
    winners = [column.index(True) for column in zip(*won, strict=True)]
    assert [sum(column) for column in zip(*won, strict=True)] == [1] * 10
    assert clients[0].read_all(stream) == [
        b"%d of %d" % (place, number) for place, number in enumerate(winners)
    ]


def test_pipelined_appends(client: KimberliteClient, stream: int) -> None:
    """What was sent and is not durable yet counts, and answers keep their order."""
    asked = [
        client.submit(client.make_append(stream, *events, expected=expected))
        for events, expected in (
            ([b"a", b"b"], 0),
            ([b"c"], 2),
            ([b"too early"], 9),
            ([b"too late"], 0),
            ([b"d"], 3),
        )
    ]
    asked.append(client.submit(wire.StreamInfo(stream)))
    first, second, early, late, third, length = map(client.answer, asked)
    assert first == wire.AppendEventsResponse(0, 2)
    assert second == wire.AppendEventsResponse(2, 1)
    assert third == wire.AppendEventsResponse(3, 1)
    for conflict in (early, late):
        assert (conflict.code, conflict.message[-8:]) == (16, "actual 3")
    assert length == wire.StreamInfoResponse(4)
    assert client.read_all(stream) == [b"a", b"b", b"c", b"d"]


def test_many_pipelined_appends(client: KimberliteClient, stream: int) -> None:
    asked = [
        client.submit(client.make_append(stream, b"%d" % n, expected=n))
        for n in range(600)
    ]
    for n, number in enumerate(asked):
        assert client.answer(number) == wire.AppendEventsResponse(n, 1)
    assert client.read_all(stream) == [b"%d" % n for n in range(600)]


@pytest.fixture
def files() -> SeamFiles:
    return SeamFiles(sync=False)


@pytest.fixture
def durable(stack: ExitStack, directory: Path, files: SeamFiles) -> EmbeddedBroker:
    """A broker that syncs, on files that a test can hold back."""
    path = str(directory / "data")
    return stack.enter_context(
        EmbeddedBroker(files=files, data_dir=path, kimberlite=HERE)
    )


def is_sync(operation: str, name: str) -> bool:
    return operation == "sync" and name.endswith(".lnc")


def test_a_conflict_is_told_once_what_caused_it_is_durable(
    durable: EmbeddedBroker, files: SeamFiles, dial_kimberlite: DialKimberlite
) -> None:
    first, second, third = (dial_kimberlite(durable) for _ in range(3))
    stream = first.create("events")
    released, reached = threading.Event(), threading.Event()

    def hold(operation: str, name: str) -> None:
        if is_sync(operation, name):
            reached.set()
            assert released.wait(20)

    files.before = hold
    try:
        won = first.submit(first.make_append(stream, b"a"))
        assert reached.wait(20)
        lost = second.submit(second.make_append(stream, b"b"))
        assert first.is_silent() and second.is_silent()
        # Nor is it shown.
        assert third.length(stream) == 0
        assert third.read(stream) == ([], None)
    finally:
        released.set()
    assert first.answer(won) == wire.AppendEventsResponse(0, 1)
    assert second.answer(lost).code == 16
    assert third.read(stream) == ([b"a"], 1)


def test_a_disk_that_fails(
    durable: EmbeddedBroker, files: SeamFiles, dial_kimberlite: DialKimberlite
) -> None:
    client = dial_kimberlite(durable)
    stream = client.create("events")
    client.append(stream, b"a")

    def fail(operation: str, name: str) -> None:
        if is_sync(operation, name):
            raise OSError(5, "Input/output error")

    files.before = fail
    client.refused(client.make_append(stream, b"b", expected=1), 12)
    files.before = lambda operation, name: None
    # It may be there or not: neither a place behind it nor a conflict is told.
    for expected in (1, 2):
        client.refused(client.make_append(stream, b"c", expected=expected), 12)
    client.refused(wire.Sync(), 12)
    assert client.read(stream) == ([b"a"], 1)
    counts = durable.metrics.snapshot().protocols["kimberlite"]
    assert counts.requests_refused == 4


def test_a_full_disk(directory: Path, dial_kimberlite: DialKimberlite) -> None:
    """The same append is stored once there is room."""
    disk, path = ScratchDisk(), str(directory / "data")
    with EmbeddedBroker(
        files=disk, data_dir=path, kimberlite=HERE, fsync="none"
    ) as broker:
        client = dial_kimberlite(broker)
        stream = client.create("events")
        client.append(stream, b"a")
        append = client.make_append(stream, b"b", expected=1)
        disk.fill()
        assert "No space left" in client.refused(append, 12)
        disk.free()
        assert client.ask(append) == wire.AppendEventsResponse(1, 1)
        assert client.read(stream) == ([b"a", b"b"], 2)


def test_sync(
    stack: ExitStack, directory: Path, files: SeamFiles, dial_kimberlite: DialKimberlite
) -> None:
    """It makes durable what no append has waited for, of any client."""
    synced: list[str] = []
    path = str(directory / "data")
    broker = stack.enter_context(
        EmbeddedBroker(files=files, data_dir=path, kimberlite=HERE, fsync="none")
    )
    client, other = dial_kimberlite(broker), dial_kimberlite(broker)
    stream = client.create("events")
    files.before = lambda operation, name: (
        synced.append(name) if is_sync(operation, name) else None
    )
    client.append(stream, b"a")
    assert synced == []
    assert other.ask(wire.Sync()) == wire.SyncResponse(True)
    assert {Path(name).parent.name for name in synced} == {str(stream & 0xFFFF)}


def test_one_sync_at_a_time(
    shared: EmbeddedBroker,
    dial_kimberlite: DialKimberlite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks at every topic: many of them would leave time for nothing else."""
    clients = [dial_kimberlite(shared) for _ in range(3)]
    store, released = shared.service.store, threading.Event()
    running: list[int] = []

    def sync() -> None:
        running.append(1)
        assert len(running) == 1
        assert released.wait(20)
        running.pop()

    monkeypatch.setattr(store, "sync", sync)
    asked = [client.submit(wire.Sync()) for client in clients]
    assert eventually(lambda: bool(running))
    assert all(client.is_silent(0.02) for client in clients)
    released.set()
    for client, number in zip(clients, asked, strict=True):
        assert client.answer(number) == wire.SyncResponse(True)


def test_a_sync_that_others_hold_up(
    start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    broker = start(kimberlite=HERE, wait_timeout_s=0.05)
    client = dial_kimberlite(broker)
    with broker.service._syncing:
        assert "busy" in client.refused(wire.Sync(), 13)
    assert client.ask(wire.Sync()) == wire.SyncResponse(True)


# What can't be appended.


def test_too_much_or_nothing(
    start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    sizes = {"batch_bytes_max": 100_000, "payload_bytes_max": 100_000}
    client = dial_kimberlite(start(kimberlite=HERE, **sizes))
    stream = client.create("events")
    empty = wire.AppendEvents(stream, make_records(), 0)
    assert "without events" in client.refused(empty, 2)
    many = [b""] * 7000
    text = client.refused(client.make_append(stream, *many), 2)
    assert "7000 records" in text and "batch_bytes_max" in text
    assert client.length(stream) == 0
    assert client.append(stream, *many[:5000]) == 0


def test_the_largest_event(
    broker: EmbeddedBroker, kimberlite: KimberliteClient
) -> None:
    """What can be appended can be read: an answer has more beside its events."""
    client = kimberlite
    stream = client.create("events")
    event = b"x" * (wire.EVENT_BYTES_MAX + 1)
    text = client.refused(client.make_append(stream, b"a", event), 2)
    assert "fit into no answer" in text
    assert client.append(stream, b"a", event[1:]) == 0
    assert client.read(stream, 1, 1) == ([event[1:]], 2)
    client.send(struct.pack(">IHII", wire.MAGIC, 5, wire.PAYLOAD_BYTES_MAX + 1, 0))
    assert client.ended()


GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "magic": lambda frame: b"VDB!" + frame[4:],
    "version": lambda frame: frame[:4] + b"\0\6" + frame[6:],
    "checksum": lambda frame: frame[:10] + b"\0\0\0\0" + frame[14:],
    "length": lambda frame: frame[:6] + b"\xff\xff\xff\xff" + frame[10:],
    "one bit": lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]),
}


@each("name", GARBAGE)
def test_garbage_ends_the_connection(shared: EmbeddedBroker, name: str) -> None:
    """The answers before it come first, and nothing of it is stored."""
    with KimberliteClient(shared) as client, KimberliteClient(shared) as other:
        stream = client.create(f"behind a wrong {name}")
        number = client.submit(client.make_append(stream, b"a"))
        append = wire.Request(9, HOME, client.make_append(stream, b"b", expected=1))
        frame = b"".join(map(bytes, wire.encode_message(append, client.wire)))
        client.send(GARBAGE[name](frame))
        assert client.answer(number) == wire.AppendEventsResponse(0, 1)
        assert client.ended()
        assert other.read(stream) == ([b"a"], 1)


def test_another_version_later_on(client: KimberliteClient, stream: int) -> None:
    client.append(stream, b"a")
    client.wire = wire.WIRES["v3"]
    client.submit(wire.Sync())
    assert client.ended()


# Reads.


@each("form", FORMS)
def test_how_much_is_read(shared: EmbeddedBroker, form: str) -> None:
    """An event is taken while those before it have fewer bytes than asked for."""
    with KimberliteClient(shared, form=form) as client:
        stream = client.create(f"sizes in {form}")
        events = [b"%09d." % n for n in range(20)]
        client.append(stream, *events)
        for size, count in (
            (1, 1),
            (10, 1),
            (11, 2),
            (20, 2),
            (21, 3),
            (2**64 - 1, 20),
        ):
            assert client.read(stream, 0, size) == (events[:count], count)
            assert client.read(stream, 5, size) == (
                events[5 : 5 + count],
                min(5 + count, 20),
            )
        assert client.read(stream, 0, 0) == ([], None)
        for start in (20, 21, 2**64 - 1):
            assert client.read(stream, start) == ([], None)


@each("form", FORMS)
def test_answers_fit_the_client_of_pypi(shared: EmbeddedBroker, form: str) -> None:
    """It takes frames of 128 KiB, and asks for 1 MiB unless it is told otherwise."""
    with KimberliteClient(shared, form=form) as client:
        stream = client.create(f"frames in {form}")
        sizes = (0, 1, 127, 128, 1000, 40_000, 100_000, 131_000)
        events = [b"x" * sizes[n % len(sizes)] for n in range(40)] + [b""] * 20_000
        client.append(stream, *events)
        found: list[bytes] = []
        while True:
            client.submit(make_read(stream, len(found)))
            frame = client.next_frame()
            assert frame is not None
            size = wire.HEADER_BYTES + len(frame.payload)
            assert size <= wire.SMALL_FRAME_BYTES_MAX
            answer = wire.decode_response(frame, client.wire).body
            assert isinstance(answer, wire.ReadEventsResponse)
            if not len(answer.events):
                break
            found += values_of(answer.events)
            assert answer.next_offset == len(found)
        assert found == events
        # One that asks for more gets more.
        assert len(client.read(stream, 0, 4 * MIB)[0]) > 20_000


def test_an_event_larger_than_the_frames_of_pypi(
    client: KimberliteClient, stream: int
) -> None:
    events = [b"a", b"x" * 300_000, b"b"]
    client.append(stream, *events)
    assert client.read(stream) == (events[:1], 1)
    assert client.read(stream, 1, 1) == (events[1:2], 2)
    assert client.read_all(stream) == events


def evict(start: StartBroker) -> EmbeddedBroker:
    """Start a broker that forgets."""
    topics = {"events": {"retention": {"max_bytes": 300}}}
    return start(kimberlite=HERE, segment_bytes=100, topics=topics)


def test_what_is_not_there_any_more(
    start: StartBroker, dial_kimberlite: DialKimberlite
) -> None:
    broker = evict(start)
    client = dial_kimberlite(broker)
    stream = client.create("events")
    for n in range(8):
        client.append(stream, b"%d" % n * 60, expected=n)
    broker.service.maintain()
    first = broker.service.store.view(stream & 0xFFFF).records.start
    assert 0 < first < 8
    for size in (0, 1, MIB, 4 * MIB):
        for offset in (0, first - 1):
            text = client.refused(make_read(stream, offset, size), 11)
            assert text.endswith(f"first offset {first}")
    assert client.read(stream, first, 1) == ([b"%d" % first * 60], first + 1)
    assert client.length(stream) == 8
    text = client.refused(wire.Subscribe(stream, 0, 1), 11)
    assert text.endswith(f"first offset {first}")


def test_an_event_that_fits_into_no_frame(
    shared: EmbeddedBroker,
    client: KimberliteClient,
    stream: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those before it are read, and the client is told why there are no more."""
    client.append(stream, b"a", b"x" * 200_000, b"b")
    monkeypatch.setattr(wire_record, "EVENT_BYTES_MAX", 150_000)
    before = shared.metrics.snapshot().protocols["kimberlite"].records_refused
    assert client.read(stream) == ([b"a"], 1)
    text = client.refused(make_read(stream, 1), 12)
    assert "record 1 can't be sent" in text and "200000 bytes" in text
    assert "record 1" in caplog.text
    counts = shared.metrics.snapshot().protocols["kimberlite"]
    assert counts.records_refused == before + 1
    assert client.read(stream, 2) == ([b"b"], 3)


# Memory, and what goes wrong inside.


def test_answers_are_charged(
    client: KimberliteClient, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    original = module.KimberliteSession._hold_answer

    def watch(self: Any, size: int) -> None:
        held.append(size)
        original(self, size)

    monkeypatch.setattr(module.KimberliteSession, "_hold_answer", watch)
    client.append(stream, b"x" * (3 * MIB), *[b"y" * 1000] * 3000)
    client.read(stream, 0, 1)
    assert 6 * MIB <= max(held) < 7 * MIB
    # Not all of 1 MiB is read for an answer of 128 KiB.
    held.clear()
    client.read(stream, 1, MIB)
    assert max(held) < 2 * MIB


def test_no_memory(
    shared: EmbeddedBroker,
    client: KimberliteClient,
    stream: int,
    dial_kimberlite: DialKimberlite,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients are asked to try again, also by the answer to their first request."""
    client.append(stream, b"a")

    def refuse(self: Any, size: int) -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(module.KimberliteSession, "_hold_work", refuse)
        for one in (client, dial_kimberlite(shared)):
            assert "no memory" in one.refused(make_read(stream), 13)
    failures = [Timeout("no memory for the answer")]
    original = module.KimberliteSession._hold_answer

    def fail_once(self: Any, size: int) -> None:
        if failures:
            raise failures.pop()
        original(self, size)

    monkeypatch.setattr(module.KimberliteSession, "_hold_answer", fail_once)
    assert "no memory" in client.refused(make_read(stream), 13)
    assert client.read(stream) == ([b"a"], 1)


def test_an_answer_that_can_not_be_written(
    client: KimberliteClient, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = wire.encode_message

    def encode(message: Any, form: wire.Wire) -> Any:
        if isinstance(message.body, wire.StreamInfoResponse):
            raise LocalProtocolError("a message of 17 MiB")
        return original(message, form)

    with monkeypatch.context() as patch:
        patch.setattr(wire, "encode_message", encode)
        number = wire.Request(1, HOME, wire.StreamInfo(stream))
        client.send(*original(number, client.wire))
        answer = client.answer(1)
    assert (answer.code, answer.message) == (
        1,
        "the answer can't be sent: a message of 17 MiB",
    )
    assert client.length(stream) == 0


def test_a_bug_ends_a_request_and_no_more(
    client: KimberliteClient,
    stream: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*rest: Any) -> Any:
        raise RuntimeError("secret")

    with monkeypatch.context() as patch:
        patch.setitem(module._HANDLERS, wire.StreamInfo, fail)
        text = client.refused(wire.StreamInfo(stream), 1)
    assert text == "internal error: RuntimeError"
    assert "secret" in caplog.text
    assert client.length(stream) == 0
