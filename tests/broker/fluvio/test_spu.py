"""The SPU: what is stored, what is answered, when, and how much of it."""

from __future__ import annotations

import struct
import threading
import time
import tracemalloc
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.fluvio import spu as module
from lance_spark.broker.session import STANDING_MAX, Session
from lance_spark.wire import fluvio as wire
from lance_spark.wire.fluvio import Codec, Role, compression
from tests.broker.fluvio.conftest import DialFluvio
from tests.broker.fluvio.kit import (
    HERE,
    MIB,
    NOW_MS,
    FluvioClient,
    Row,
    batch,
    fetched_of,
    make_fetch,
    make_produce,
    rows_in,
    stands,
    values,
)
from tests.broker.kit import Dial, StartBroker, clients, eventually, record, records
from tests.each import each
from tests.store.seam import SeamFiles
from tests.wire.fluvio import reference

OK = wire.NO_ERROR
# Longer than a test has patience.
LONG_MS = 60_000
CODECS = [codec for codec in Codec if codec is not Codec.NONE]
# What versions differ in, those around it, and some that there are none of.
VERSIONS = [-1, 0, 1, 2, 3, 4, 5, 7, 9, 10, 11, 16, 17, 18, 19, 22, 23, 24, 25, 99]


@pytest.fixture
def wide(sc: FluvioClient, spu: FluvioClient) -> FluvioClient:
    """A client of the SPU, with a topic `wide` of three partitions as well."""
    sc.create("wide", 3)
    return spu


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def codes(*outcomes: wire.Outcome) -> list[int]:
    return [outcome.error.code for outcome in outcomes]


def find_log(broker: EmbeddedBroker, name: str = "orders") -> int:
    topic = broker.service.store.find_topic(name)
    assert topic is not None
    return topic.metadata.id


def delete(broker: EmbeddedBroker, name: str = "orders") -> None:
    broker.service.store.delete_topic(find_log(broker, name))


def shared_by(broker: EmbeddedBroker) -> Any:
    assert broker._server is not None
    return broker._server._shared


# Frames and versions.


def test_any_version_is_read(
    broker: EmbeddedBroker, spu: FluvioClient, dial_fluvio: DialFluvio
) -> None:
    """By what the header says, also if it was not offered."""
    for n, version in enumerate(VERSIONS):
        [outcome] = spu.produce("orders", (0, batch(b"x")), api_version=version)
        assert (outcome.error, outcome.base_offset) == (OK, n), version
        fetched = spu.fetch("orders", n, api_version=version)
        assert values(rows_in(fetched)) == [b"x"], version
        assert (fetched.high_watermark, fetched.log_start) == (n + 1, 0)
        asked = wire.OffsetsTopic("orders", (0,))
        answer = spu.ask(wire.FetchOffsets((asked,), api_version=version))
        assert answer.topics[0].partitions[0].last_stable_offset == n + 1, version
        with dial_fluvio(broker) as streaming:
            request = wire.StreamFetch("orders", offset=n, api_version=version)
            pushed = streaming.ask(request)
            assert values(rows_in(pushed.partition)) == [b"x"], version
            done = (wire.Consumed(n, pushed.stream_id),)
            updated = streaming.ask(wire.UpdateOffsets(done, api_version=version))
            assert updated.streams == (wire.StreamOutcome(pushed.stream_id),)
            assert values(rows_in(streaming.next().partition)) == [b"x"], version


def test_fetch_offsets_byte_by_byte(spu: FluvioClient) -> None:
    """Version 23 has one field more than those before and behind it."""
    spu.write("orders", b"a", b"b")
    topics = b"\0\0\0\1\0\6orders\0\0\0\1\0\0\0\0"
    answer = b"\0\0\0\1\0\6orders\0\0\0\1" + struct.pack(">hIqq", 0, 0, 0, 2)
    for version, more in (
        (0, b""),
        (22, b""),
        (23, b"\0"),
        (23, b"\1\0\2me"),
        (24, b""),
        (25, b""),
        (24, b"and what a later version has"),
    ):
        spu.send_payload(struct.pack(">HhiH", 1002, version, 7, 0) + topics + more)
        frame = spu.next_frame()
        assert frame is not None
        assert bytes(frame.payload) == b"\0\0\0\7" + answer, version


REQUESTS: dict[str, wire.Request] = {
    "Produce": make_produce("orders", (0, batch(b"x"))),
    "Fetch": make_fetch("orders", (0, 0)),
    "FetchOffsets": wire.FetchOffsets((wire.OffsetsTopic("orders", (0,)),)),
    "StreamFetch": wire.StreamFetch("orders"),
    "UpdateOffsets": wire.UpdateOffsets((wire.Consumed(0, 1),)),
    "ApiVersions": wire.ApiVersions(),
}


@each("name", REQUESTS)
def test_requests_that_are_cut_off(
    broker: EmbeddedBroker,
    spu: FluvioClient,
    dial_fluvio: DialFluvio,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    whole = b"".join(bytes(p) for p in wire.encode_message(REQUESTS[name]))[4:]
    for size in (3, 9, 11, len(whole) - 1):
        client = dial_fluvio(broker)
        client.send_payload(whole[:size])
        assert client.ended(), size
    assert "closed" in caplog.text
    # The frame itself.
    client = dial_fluvio(broker)
    client.send(struct.pack(">i", len(whole)) + whole[:-1])
    client.stream.close()
    assert spu.bounds("orders") == [(0, 0)]


@each("frame", [b"\xff" * 4, b"\x80\0\0\0", b"\0\0\0\0", b"GET / HTTP/1.1\r\n"])
def test_what_is_no_frame(
    broker: EmbeddedBroker, dial_fluvio: DialFluvio, frame: bytes
) -> None:
    client = dial_fluvio(broker)
    client.send(frame)
    assert client.ended()


def test_a_frame_that_is_too_large(
    start: StartBroker, dial_fluvio: DialFluvio, caplog: pytest.LogCaptureFixture
) -> None:
    """The client can't be told, so the log has to say which setting it is."""
    broker = start(fluvio=HERE, payload_bytes_max=MIB)
    dial_fluvio(broker, Role.SC).create("orders")
    client = dial_fluvio(broker)
    client.submit(make_produce("orders", (0, batch(bytes(MIB)))))
    assert client.ended()
    assert f"is over the limit of {MIB} (payload_bytes_max)" in caplog.text
    assert dial_fluvio(broker).bounds("orders") == [(0, 0)]


def test_requests_that_are_not_known(spu: FluvioClient) -> None:
    """They are answered, whatever is in them, and the connection goes on."""
    known = {one.key for one in spu.ask(wire.ApiVersions()).keys}
    assert known == {0, 1, 18, 1002, 1003, 1005}
    for key in (2, 1001, 1004, 1006, 65535):
        answer = spu.ask(wire.Other(key, b"\xff" * 20))
        assert isinstance(answer, wire.Failed)
        assert answer.error == wire.ErrorCode(2, (f"request {key} is not known here",))
    spu.alive()


# Writing.


def test_what_is_written_is_read(spu: FluvioClient) -> None:
    """A key that is empty is another one than none."""
    rows = [Row(b"a", b"k"), Row(b"", b""), Row(b"c", None, NOW_MS + 5)]
    assert spu.write("orders", *rows) == 0
    assert spu.write("orders", *rows) == 3
    expected = [row._replace(offset=n) for n, row in enumerate(rows + rows)]
    assert spu.read("orders") == expected


@each("codec", CODECS)
def test_codecs(broker: EmbeddedBroker, spu: FluvioClient, codec: Codec) -> None:
    [(_, end)] = spu.bounds("orders")
    packed = batch(*[Row(b"x" * 100, b"k")] * 500, codec=codec)
    assert len(packed) < 10_000
    [outcome] = spu.produce("orders", (0, packed))
    assert (outcome.error, outcome.base_offset) == (OK, end)
    rows = spu.read("orders", end)
    assert rows == [Row(b"x" * 100, b"k", NOW_MS, end + n) for n in range(500)]


def test_times(spu: FluvioClient) -> None:
    """At most 0 is none: it becomes that of the append, the same at every read."""
    before = time.time_ns() // 10**6
    for first, second in ((-1, -1), (0, 5), (-(2**62), 3), (7, -4), (NOW_MS, 0)):
        rows = [reference.Row(0, first, None, b"a"), reference.Row(1, second, b"", b"")]
        [outcome] = spu.produce("orders", (0, reference.batch(rows)))
        assert outcome.error == OK
    times = [row.time_ms for row in spu.read("orders")]
    appended = [t for n, t in enumerate(times) if n not in (6, 8)]
    assert (times[6], times[8]) == (7, NOW_MS)
    assert before <= min(appended) <= max(appended) <= time.time_ns() // 10**6
    assert appended == sorted(appended) and times[0] == times[1]
    for n, expected in enumerate(times):
        assert spu.read("orders", n, max_bytes=1)[0].time_ms == expected


def test_several_topics_and_partitions(wide: FluvioClient) -> None:
    """What can be written is, and each of the others says why it is not."""
    topics = {
        "wide": [(2, batch(b"a", b"b")), (7, batch(b"x")), (0, batch(b"c"))],
        "nosuch": [(0, batch(b"x")), (2**32 - 1, batch(b"y"))],
        # A partition's name is no topic's.
        "wide/1": [(0, batch(b"x"))],
        "": [(0, batch(b"x"))],
        "orders": [(1, batch(b"x")), (0, batch(b"d")), (0, batch(b"e"))],
    }
    made = tuple(
        make_produce(name, *writes).topics[0] for name, writes in topics.items()
    )
    answer = wide.ask(wire.Produce(topics=made))
    assert [topic.name for topic in answer.topics] == list(topics)
    assert [
        [(one.partition, one.error.code, one.base_offset) for one in topic.outcomes]
        for topic in answer.topics
    ] == [
        [(2, 0, 0), (7, 2001, -1), (0, 0, 0)],
        [(0, 2001, -1), (2**32 - 1, 2001, -1)],
        [(0, 2001, -1)],
        [(0, 2001, -1)],
        [(1, 2001, -1), (0, 0, 0), (0, 0, 1)],
    ]
    assert wide.bounds("wide", 0, 1, 2) == [(0, 1), (0, 0), (0, 2)]
    assert values(wide.read("wide", partition=2)) == [b"a", b"b"]
    assert values(wide.read("orders")) == [b"d", b"e"]


def test_batches_of_a_write_are_one_append(
    broker: EmbeddedBroker, spu: FluvioClient
) -> None:
    sets = [batch(*numbers(3, 3 * n), codec=codec) for n, codec in enumerate(Codec)]
    # What a producer says of offsets means nothing.
    sets = [struct.pack(">q", 99 - n) + data[8:] for n, data in enumerate(sets)]
    [outcome] = spu.produce("orders", (0, b"".join(sets)))
    assert (outcome.error, outcome.base_offset) == (OK, 0)
    assert values(spu.read("orders")) == numbers(15)
    view = broker.service.store.view(find_log(broker))
    found = view.read(0, MIB)
    times = view.find_append_times(found, 0)
    assert found.records == 15 and len(set(times.tolist())) == 1


def test_nothing_to_write(spu: FluvioClient) -> None:
    """Clients ask with a topic and no partitions whether all is written."""
    assert spu.ask(wire.Produce()).topics == ()
    assert spu.produce("orders") == spu.produce("nosuch") == ()
    spu.write("orders", b"a")
    for nothing in (b"", reference.batch([]), reference.batch([]) * 3):
        [outcome] = spu.produce("orders", (0, nothing))
        assert (outcome.error, outcome.base_offset) == (OK, 1)
    assert spu.bounds("orders") == [(0, 1)]


ROWS = [reference.Row(0, 5, None, b"one"), reference.Row(1, 6, b"k", b"two")]
PLAIN = reference.batch(ROWS)
HEADED = b"\0\0\0\1" + reference.record(ROWS[0], delta=0, number=0, tail=b"\2\2h\2x")
LATE = [ROWS[0], reference.Row(1, 2**63 - 1, None, b"late")]
REFUSED = {
    "a wrong checksum": (reference.batch(ROWS, crc=7), "checksum"),
    "a flipped bit": (PLAIN[:-3] + b"x" + PLAIN[-2:], "checksum"),
    "cut off": (PLAIN[:-1], "are there"),
    "a head that is cut off": (PLAIN[:40], "are there"),
    "garbage": (b"garbage" * 20, "a batch of"),
    "more behind it": (PLAIN + b"\0", "are there"),
    "another version": (PLAIN[:16] + b"\1" + PLAIN[17:], "version 1"),
    "an unknown codec": (reference.batch(ROWS, attributes=5), "attributes 0x0005"),
    "no gzip": (reference.batch(ROWS, attributes=1), "gzip"),
    "no snappy": (reference.batch(ROWS, attributes=2), "Snappy"),
    "no lz4": (reference.batch(ROWS, attributes=3), "lz4"),
    "no zstd": (reference.batch(ROWS, attributes=4), "zstd"),
    "no count": (PLAIN[:8] + b"\0\0\0\x2e" + PLAIN[12:58], "a batch of 46"),
    "more records than bytes": (
        reference.batch(ROWS, body=b"\x7f\xff\xff\xff" + bytes(60)),
        "2147483647 records in 64",
    ),
    "fewer records than it says": (
        reference.batch(ROWS, body=b"\0\0\0\3" + reference.records_of(ROWS)[4:]),
        "other records",
    ),
    "more records than it says": (
        reference.batch(ROWS, body=reference.records_of(ROWS) + b"\0"),
        "other records",
    ),
    "headers": (reference.batch(ROWS[:1], body=HEADED), "has headers"),
    "a producer": (reference.batch(ROWS, producer_id=7), "producer 7"),
    "a schema": (
        reference.batch(
            ROWS, attributes=16, body=b"\0\0\0\x09" + reference.records_of(ROWS)
        ),
        "schema 9",
    ),
    "a time that is too late": (reference.batch(LATE), "too late"),
    "a good one, and a bad one": (
        batch(b"good") + reference.batch(ROWS, crc=7),
        "checksum",
    ),
    "a compressed one, and a bad one": (
        batch(b"good", codec=Codec.ZSTD) + reference.batch(ROWS, crc=7),
        "checksum",
    ),
}


@each(("data", "text"), list(REFUSED.values()), ids=REFUSED)
def test_batches_that_are_refused(
    wide: FluvioClient, caplog: pytest.LogCaptureFixture, data: bytes, text: str
) -> None:
    """Nothing of them is stored, and what is in the same request is."""
    [_, (_, end)] = wide.bounds("wide", 0, 1)
    caplog.clear()
    outcomes = wide.produce("wide", (1, batch(b"x")), (0, data), (1, batch(b"y")))
    assert [one.base_offset for one in outcomes] == [end, -1, end + 1]
    assert codes(*outcomes) == [0, 2, 0]
    assert text in outcomes[1].error.fields[0]
    assert "wide/0" in caplog.text and text in caplog.text
    assert wide.bounds("wide", 0, 1) == [(0, 0), (0, end + 2)]


def test_what_would_be_ignored_is_refused(wide: FluvioClient) -> None:
    for text, fields in {
        "transaction": {"transactional_id": "t"},
        "SmartModules": {"smart_modules": (wire.SmartModule((0, "m")),)},
    }.items():
        writes = [(n, batch(b"x")) for n in range(2)]
        outcomes = wide.produce("wide", *writes, **fields)
        assert codes(*outcomes) == [2, 2]
        assert all(text in one.error.fields[0] for one in outcomes)
    # Whatever waits for other replicas has them: there are none.
    for isolation in (wire.READ_COMMITTED, wire.READ_UNCOMMITTED, 0, 99):
        outcomes = wide.produce("wide", (2, batch(b"x")), isolation=isolation)
        assert codes(*outcomes) == [0]
    assert wide.bounds("wide", 0, 1, 2) == [(0, 0), (0, 0), (0, 4)]


def test_more_than_a_batch_may_hold(
    start: StartBroker,
    dial_fluvio: DialFluvio,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = start(fluvio=HERE, batch_bytes_max=MIB, payload_bytes_max=MIB)
    dial_fluvio(broker, Role.SC).create("orders", 2)
    client = dial_fluvio(broker)
    # Small records take more room when they are stored; compressed ones, and several
    # batches, are too large as a whole only.
    small = batch(*[b""] * 70_000)
    large = batch(b"x" * (2 * MIB), codec=Codec.ZSTD)
    many = batch(b"x" * (MIB // 3), codec=Codec.LZ4) * 4
    mixed = batch(b"x" * (MIB * 2 // 3)) + batch(b"x" * (MIB // 2), codec=Codec.GZIP)
    for data in (small, large, many, mixed):
        assert len(data) < MIB
        outcomes = client.produce("orders", (0, data), (1, batch(b"x")))
        assert codes(*outcomes) == [10, 0]
    assert caplog.text.count("orders/0") == 4
    assert client.bounds("orders", 0, 1) == [(0, 0), (0, 4)]
    assert eventually(lambda: shared_by(broker).memory.taken == 0)


@each("codec", CODECS)
def test_bombs(
    start: StartBroker,
    dial_fluvio: DialFluvio,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    codec: Codec,
) -> None:
    """They are refused before what they become is there, or takes of the memory."""
    limit = 8 * MIB
    broker = start(fluvio=HERE, batch_bytes_max=limit, payload_bytes_max=limit)
    dial_fluvio(broker, Role.SC).create("orders")
    spu = dial_fluvio(broker)
    made: list[int] = []
    taken: list[int] = []
    make, memory = compression._make_pieces, shared_by(broker).memory
    take = type(memory).try_take

    def count_pieces(*arguments: Any) -> Any:
        for piece in make(*arguments):
            made.append(len(piece))
            yield piece

    def count_taken(self: Any, size: int) -> bool:
        taken.append(size)
        return take(self, size)

    def fail(*arguments: Any, **more: Any) -> Any:
        raise AssertionError("it is expanded a second time")

    # Zeros, and so many records that they take more when they are stored.
    zeros = bytes(compression.compress(codec, bytes(MIB))) * 24
    rows = reference.record(reference.Row(0, None, None, b""), delta=0, number=0)
    count = 3 * limit // 4 // len(rows)
    many = compression.compress(codec, struct.pack(">I", count) + rows * count)
    with monkeypatch.context() as patch:
        patch.setattr(compression, "_make_pieces", count_pieces)
        patch.setattr(type(memory), "try_take", count_taken)
        patch.setattr(wire, "read_records", fail)
        for body in (zeros, bytes(many)):
            data = reference.batch(ROWS, body=body, attributes=codec)
            made.clear()
            assert codes(*spu.produce("orders", (0, data))) == [10]
            # The last piece is the one that is too much, which is not handed out.
            assert limit // 2 < sum(made) <= limit
        # Each is within the limit, but not all of them.
        half = batch(bytes(limit * 2 // 3), codec=codec)
        made.clear()
        assert codes(*spu.produce("orders", (0, half * 2))) == [10]
        assert sum(made) <= limit
    assert f"is over the limit of {limit}" in caplog.messages[-1]
    # Frames, and nothing else.
    assert max(taken, default=0) < 2 * MIB
    assert eventually(lambda: memory.taken == 0)
    assert spu.bounds("orders") == [(0, 0)]


@pytest.fixture
def files() -> SeamFiles:
    return SeamFiles()


@pytest.fixture
def durable(stack: ExitStack, directory: Path, files: SeamFiles) -> EmbeddedBroker:
    """A broker that syncs, on files that a test can hold back."""
    path = str(directory / "data")
    return stack.enter_context(EmbeddedBroker(files=files, data_dir=path, fluvio=HERE))


def test_it_is_answered_once_it_is_durable(
    durable: EmbeddedBroker, files: SeamFiles, dial_fluvio: DialFluvio
) -> None:
    client, other, third = (dial_fluvio(durable) for _ in range(3))
    dial_fluvio(durable, Role.SC).create("orders", 2)
    released, reached = threading.Event(), threading.Event()

    def hold(operation: str, name: str) -> None:
        if operation == "sync" and name.endswith(".lnc"):
            reached.set()
            assert released.wait(20)

    files.before = hold
    try:
        writes = [(n, batch(b"%d" % n)) for n in range(2)]
        client.submit(make_produce("orders", *writes))
        assert reached.wait(20)
        assert client.is_silent()
        # Nor is it shown.
        assert other.read("orders") == []
        assert other.bounds("orders", 0, 1) == [(0, 0), (0, 0)]
        other.submit(make_fetch("orders", (0, 0), max_wait_ms=LONG_MS))
        third.submit(wire.StreamFetch("orders", 1))
        assert other.is_silent(0.05) and third.is_silent(0.05)
    finally:
        released.set()
    [topic] = client.next().topics
    assert codes(*topic.outcomes) == [0, 0]
    assert values(rows_in(fetched_of(other.next()))) == [b"0"]
    assert values(rows_in(third.next().partition)) == [b"1"]


def test_a_disk_that_fails(
    durable: EmbeddedBroker,
    files: SeamFiles,
    dial_fluvio: DialFluvio,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dial_fluvio(durable, Role.SC).create("orders", 2)
    client = dial_fluvio(durable)
    client.write("orders", b"a")

    def count() -> int:
        counts = durable.metrics.snapshot().protocols["fluvio_spu"]
        return counts.requests_refused

    def fail(operation: str, name: str) -> None:
        if operation == "sync" and name.endswith(".lnc"):
            raise OSError(5, "Input/output error")

    before, files.before = count(), fail
    outcomes = client.produce("orders", *[(n, batch(b"b")) for n in range(2)])
    assert codes(*outcomes) == [56, 56]
    assert "orders/1" in caplog.text and count() == before + 2
    files.before = lambda operation, name: None
    assert values(client.read("orders")) == [b"a"]


def test_answers_come_when_all_partitions_are_settled(
    wide: FluvioClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owed answers are settled in the middle of a request when memory is short."""
    original = Session._hold_work

    def settle_first(self: Any, size: int) -> bool:
        self._settle()
        return original(self, size)

    monkeypatch.setattr(Session, "_hold_work", settle_first)
    outcomes = wide.produce("wide", *[(n, batch(b"%d" % n)) for n in range(3)])
    assert [(one.error, one.base_offset) for one in outcomes] == [(OK, 0)] * 3
    assert wide.is_silent(0.02)
    wide.alive()


def test_pipelined_requests(spu: FluvioClient) -> None:
    count = 300
    sent = [
        spu.submit(make_produce("orders", (0, batch(b"%d" % n)))) for n in range(count)
    ]
    answers = [spu.next() for _ in sent]
    assert [one.correlation_id for one in answers] == sent
    assert [one.topics[0].outcomes[0].base_offset for one in answers] == list(
        range(count)
    )
    assert values(spu.read("orders")) == numbers(count)


def test_answers_that_are_large_are_not_owed(
    spu: FluvioClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names in them are not counted, so that only few may wait for the disk."""
    original, owed = module.SpuSession._produce, []

    def produce(self: Any, request: wire.Produce) -> Any:
        answer = original(self, request)
        owed.append(len(self._owed))
        return answer

    handlers = {**module.SpuSession.HANDLERS, wire.Produce: produce}
    monkeypatch.setattr(module.SpuSession, "HANDLERS", handlers)
    write = make_produce("orders", (0, batch(b"x")))
    names = tuple(wire.WriteTopic("x" * 30_000) for _ in range(5))
    for request in (write, replace(write, topics=(*write.topics, *names))):
        answer = spu.ask(request)
        assert codes(*answer.topics[0].outcomes) == [0]
        assert [one.name for one in answer.topics] == [t.name for t in request.topics]
    assert eventually(lambda: owed == [1, 0])


def test_a_request_that_waits_for_the_disk_keeps_no_records() -> None:
    """The memory of its frame is given back while its answer is still owed."""
    request = make_produce("orders", (0, bytes(1000)), (1, bytes(1000)))
    kept = module._forget_records(
        replace(
            request,
            client_id="x" * 1000,
            smart_modules=(wire.SmartModule((1, bytes(1000))),),
        )
    )
    assert [w.records for t in kept.topics for w in t.writes] == [b"", b""]
    assert (kept.smart_modules, kept.client_id) == ((), "")


# Fetch: where it begins, and how much it is.


def test_it_begins_at_the_asked_record(spu: FluvioClient) -> None:
    spu.write("orders", *numbers(10))
    for offset in (0, 1, 5, 9):
        found = spu.fetch("orders", offset)
        assert (found.high_watermark, found.log_start) == (10, 0)
        rows = rows_in(found)
        assert values(rows) == numbers(10 - offset, offset)
        assert [row.offset for row in rows] == list(range(offset, 10))
    # At the end it is nothing, at once.
    assert spu.fetch("orders", 10) == wire.Fetched(
        0, high_watermark=10, log_start=0, records=b""
    )


def test_out_of_range(spu: FluvioClient) -> None:
    spu.write("orders", *numbers(10))
    for offset in (11, 1000, 2**63 - 1):
        for found in (
            spu.fetch("orders", offset, max_wait_ms=LONG_MS),
            spu.ask(wire.StreamFetch("orders", offset=offset)).partition,
        ):
            assert found.error.code == 2 and str(offset) in found.error.fields[0]
            assert bytes(found.records) == b""
    for offset in (-1, -(2**63)):
        found = spu.fetch("orders", offset, max_wait_ms=LONG_MS)
        assert found.error == wire.ErrorCode(71, (offset, 0))


def test_after_retention(start: StartBroker, dial_fluvio: DialFluvio) -> None:
    topics = {"orders": {"retention": {"max_bytes": 400}}}
    broker = start(fluvio=HERE, segment_bytes=100, topics=topics)
    client, streaming = dial_fluvio(broker), dial_fluvio(broker)
    client.write("orders", b"0" * 60)
    pushed = streaming.ask(wire.StreamFetch("orders", max_bytes=1))
    assert len(rows_in(pushed.partition)) == 1
    for n in range(1, 10):
        client.write("orders", b"%d" % n * 60)
    broker.service.maintain()
    [(first, end)] = client.bounds("orders")
    assert end == 10 and 1 < first < 10
    evicted = wire.ErrorCode(71, (first - 1, first))
    found = client.fetch("orders", first - 1, max_wait_ms=LONG_MS)
    assert found.error == evicted
    assert client.ask(wire.StreamFetch("orders", offset=first - 1)).partition == found
    assert client.read("orders", first)[0].offset == first
    # A stream that is slower than retention.
    assert (
        streaming.ask(wire.UpdateOffsets((wire.Consumed(1, 1),))).streams[0].error == OK
    )
    assert streaming.next().partition.error == wire.ErrorCode(71, (1, first))


def test_sizes(spu: FluvioClient) -> None:
    spu.write("orders", *numbers(10))
    for most in (-(2**31), -1, 0, 1):
        assert values(spu.read("orders", 4, max_bytes=most)) == [b"4"]
    assert 1 < len(spu.read("orders", 0, max_bytes=60)) < 10
    assert len(spu.read("orders", 0, max_bytes=2**31 - 1)) == 10
    # The limit of the request counts, as in the field.
    part = wire.FetchPartition(0, max_bytes=1)
    answer = spu.ask(wire.Fetch(topics=(wire.FetchTopic("orders", (part,)),)))
    assert len(rows_in(fetched_of(answer))) == 10


def test_answers_have_a_bound(
    wide: FluvioClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions that do not fit are left for the next request."""
    monkeypatch.setattr(module, "_ANSWER_BYTES_MAX", 1000)
    monkeypatch.setattr(module, "_PARTITION_COST_BYTES", 0)
    for n in range(3):
        wide.write("wide", *[b"x" * 90] * 8, partition=n)
    request = make_fetch("wide", *[(n, 0) for n in range(3)])
    [topic] = wide.ask(request).topics
    counts = [len(rows_in(one)) for one in topic.partitions]
    assert counts[0] == 8 and 0 < counts[1] < 8 and counts[2] == 0
    assert [one.high_watermark for one in topic.partitions] == [8] * 3
    # A record that is larger than any answer comes alone.
    wide.write("wide", b"y" * 5000, b"z")
    assert values(wide.read("wide", 8)) == [b"y" * 5000]


def test_the_first_records_come_whatever_is_before_them(wide: FluvioClient) -> None:
    """Else partitions that are at their end would hold up the others for ever."""
    wide.write("wide", *numbers(10), partition=2)
    for most in (1, 60):
        places = [(0, 0), (7, 0), (1, 0), (2, 3), (2, 4)]
        [topic] = wide.ask(make_fetch("wide", *places, max_bytes=most)).topics
        assert [one.error.code for one in topic.partitions] == [0, 2001, 0, 0, 0]
        assert values(rows_in(topic.partitions[3])) == [b"3"]
        assert [bytes(topic.partitions[n].records) for n in (0, 2, 4)] == [b""] * 3


def test_unknown_topics_and_partitions(wide: FluvioClient) -> None:
    wide.write("wide", b"a", partition=1)
    topics = (
        *make_fetch("nosuch", (0, 0), (1, 0)).topics,
        *make_fetch("wide", (7, 0), (1, 0), (0, 0)).topics,
        *make_fetch("wide/1", (0, 0)).topics,
    )
    answer = wide.ask(wire.Fetch(max_wait_ms=LONG_MS, topics=topics))
    assert answer.error == OK
    assert [
        [(one.partition, one.error.code) for one in topic.partitions]
        for topic in answer.topics
    ] == [[(0, 2001), (1, 2001)], [(7, 2001), (1, 0), (0, 0)], [(0, 2001)]]
    assert values(rows_in(answer.topics[1].partitions[1])) == [b"a"]
    assert wide.ask(wire.Fetch(max_wait_ms=LONG_MS)).topics == ()
    asked = (wire.OffsetsTopic("wide", (1, 9)), wire.OffsetsTopic("nosuch", (0,)))
    [known, unknown] = wide.ask(wire.FetchOffsets(asked)).topics
    assert known.partitions == (
        wire.PartitionOffsets(OK, 1, 0, 1),
        wire.PartitionOffsets(wire.ErrorCode(2001), 9),
    )
    assert unknown.partitions == (wire.PartitionOffsets(wire.ErrorCode(2001), 0),)
    assert wide.ask(wire.FetchOffsets()).topics == ()


# What is in it.


def test_records_of_other_protocols(
    broker: EmbeddedBroker, spu: FluvioClient, dial: Dial
) -> None:
    """Without a time they have that of their batch, the same at every read."""
    lwp = dial(broker)
    for n in range(3):
        lwp.write(find_log(broker), records(f"{n}", 5), n + 1, count=5)
    spu.write("orders", Row(b"own", b"k", 77))
    rows = spu.read("orders")
    times = [row.time_ms for row in rows]
    assert [len(set(times[n : n + 5])) for n in (0, 5, 10)] == [1, 1, 1]
    assert rows[-1] == Row(b"own", b"k", 77, 15)
    assert rows[0].value.startswith(b"0/0") and rows[0].key is None
    for offset in range(16):
        assert spu.read("orders", offset, max_bytes=1) == rows[offset : offset + 1]
        assert spu.read("orders", offset) == rows[offset:]


def test_times_that_are_far_apart(spu: FluvioClient) -> None:
    """They are in batches of their own, as deltas have 32 bits in the field."""
    rows = [Row(b"%d" % n, None, 1 + n % 3 * 2**32) for n in range(20)]
    spu.write("orders", *rows)
    for offset in (0, 7):
        expected = [row._replace(offset=n) for n, row in enumerate(rows)]
        assert spu.read("orders", offset) == expected[offset:]


def test_what_is_no_records(start: StartBroker, dial_fluvio: DialFluvio) -> None:
    broker = start(fluvio=HERE, payload_validation="off")
    with clients(broker, 1) as [lwp]:
        topic = lwp.create("orders")
        lwp.write(topic, record(b"a"), 1, count=1)
        lwp.write(topic, b"no records at all", 2, count=1)
    client = dial_fluvio(broker)
    assert values(client.read("orders")) == [b"a"]
    assert client.fetch("orders", 1, max_wait_ms=LONG_MS).error.code == 56
    assert client.ask(wire.StreamFetch("orders", offset=1)).partition.error.code == 56


# Fetches that wait.


def test_a_fetch_stands_while_others_are_answered(
    broker: EmbeddedBroker, wide: FluvioClient, dial: Dial, dial_fluvio: DialFluvio
) -> None:
    """An append wakes it, over any protocol and connection."""
    polls = [
        wide.submit(make_fetch("wide", (n, 0), max_wait_ms=LONG_MS)) for n in range(3)
    ]
    assert stands(broker, 2 * len(polls))
    wide.alive()
    assert values(wide.read("wide")) == []
    dial(broker).write(find_log(broker, "wide/1"), record(b"lwp"), 1, count=1)
    answer = wide.next()
    assert answer.correlation_id == polls[1]
    assert values(rows_in(fetched_of(answer))) == [b"lwp"]
    dial_fluvio(broker).write("wide", b"other", partition=2)
    answer = wide.next()
    assert answer.correlation_id == polls[2]
    assert values(rows_in(fetched_of(answer))) == [b"other"]
    own = wide.submit(make_produce("wide", (0, batch(b"own"))))
    answers = {one.correlation_id: one for one in (wide.next(), wide.next())}
    assert codes(*answers[own].topics[0].outcomes) == [0]
    assert values(rows_in(fetched_of(answers[polls[0]]))) == [b"own"]
    assert eventually(lambda: shared_by(broker).waiting.taken == 0)


def test_how_long_it_waits(start: StartBroker, dial_fluvio: DialFluvio) -> None:
    broker = start(fluvio=HERE, wait_s_max=0.2)
    dial_fluvio(broker, Role.SC).create("orders")
    client = dial_fluvio(broker)
    for wait_ms, least_s in ((-1, 0), (0, 0), (50, 0.05), (2**31 - 1, 0.2)):
        began = time.monotonic()
        assert rows_in(client.fetch("orders", max_wait_ms=wait_ms)) == []
        assert time.monotonic() - began >= least_s


def test_some_partitions_have_news(
    broker: EmbeddedBroker, wide: FluvioClient, dial_fluvio: DialFluvio
) -> None:
    """One that has something, or can't be read, answers for all at once."""
    wide.write("wide", b"a", partition=2)
    for other in ((2, 0), (9, 0), (1, 5), (1, -1)):
        request = make_fetch("wide", (0, 0), other, max_wait_ms=LONG_MS)
        [topic] = wide.ask(request).topics
        assert rows_in(topic.partitions[0]) == []
    # All at their end: the first that grows answers.
    wide.submit(make_fetch("wide", (0, 0), (1, 0), (2, 1), max_wait_ms=LONG_MS))
    assert stands(broker, 4)
    dial_fluvio(broker).write("wide", b"b", partition=1)
    [topic] = wide.next().topics
    assert [values(rows_in(one)) for one in topic.partitions] == [[], [b"b"], []]


def test_min_bytes(
    broker: EmbeddedBroker, spu: FluvioClient, dial_fluvio: DialFluvio
) -> None:
    writer = dial_fluvio(broker)
    spu.submit(make_fetch("orders", (0, 0), max_wait_ms=LONG_MS, min_bytes=250))
    assert stands(broker, 2)
    for _ in range(2):
        writer.write("orders", b"x" * 100)
        assert spu.is_silent(0.05)
    writer.write("orders", b"x" * 100)
    assert len(rows_in(fetched_of(spu.next()))) == 3
    # It is about tails alone. And if the time is up, what is there is sent.
    found = spu.fetch("orders", 2, max_wait_ms=LONG_MS, min_bytes=2**31 - 1)
    assert len(rows_in(found)) == 1
    waiting = shared_by(broker).waiting
    for wait_ms in (100, 1000, 10_000):
        spu.submit(make_fetch("orders", (0, 3), max_wait_ms=wait_ms, min_bytes=250))
        # On a busy machine the time may be up before it is written.
        assert eventually(lambda: waiting.taken > 0 or not spu.is_silent(0))
        writer.write("orders", b"late")
        if rows := rows_in(fetched_of(spu.next())):
            break
    assert set(values(rows)) == {b"late"}


def test_a_topic_that_is_deleted_meanwhile(
    broker: EmbeddedBroker, sc: FluvioClient, spu: FluvioClient
) -> None:
    sc.create("other")
    for min_bytes in (0, 1000):
        topics = (
            *make_fetch("orders", (0, 0)).topics,
            *make_fetch("other", (0, 0)).topics,
        )
        spu.submit(wire.Fetch(LONG_MS, min_bytes, topics=topics))
        assert stands(broker, 4)
        delete(broker)
        [gone, other] = spu.next().topics
        assert [one.error.code for one in gone.partitions] == [2001]
        assert rows_in(other.partitions[0]) == []
        assert eventually(lambda: shared_by(broker).waiting.taken == 0)
        sc.create("orders")


def test_many_polls(broker: EmbeddedBroker, spu: FluvioClient) -> None:
    """Those over the limit are answered at once, and the memory is given back."""
    shared, more = shared_by(broker), 20
    poll = make_fetch("orders", (0, 0), max_wait_ms=LONG_MS)
    polls = {spu.submit(poll) for _ in range(STANDING_MAX + more)}
    for _ in range(more):
        assert rows_in(fetched_of(spu.next())) == []
    assert shared.waiting.taken >= STANDING_MAX * 512
    own = spu.submit(make_produce("orders", (0, batch(b"a"))))
    numbers = {spu.next().correlation_id for _ in range(STANDING_MAX + 1)}
    assert own in numbers and len(numbers & polls) == STANDING_MAX
    assert eventually(lambda: shared.waiting.taken == shared.memory.taken == 0)


def test_a_poll_costs_what_it_asks_for(
    broker: EmbeddedBroker, spu: FluvioClient, dial_fluvio: DialFluvio
) -> None:
    waiting = shared_by(broker).waiting
    names = tuple(wire.FetchTopic("x" * 30_000) for _ in range(50))
    topics = (*make_fetch("orders", (0, 0)).topics, *names)
    for poll, size in (
        (make_fetch("orders", *[(0, 0)] * 2000), 2000 * 512),
        (wire.Fetch(topics=topics), 50 * 30_000),
    ):
        with dial_fluvio(broker) as client:
            client.submit(replace(poll, max_wait_ms=LONG_MS))
            assert eventually(lambda least=size: waiting.taken >= least)
        assert eventually(lambda: waiting.taken == 0)


def test_what_stands_keeps_no_more_than_it_needs(
    broker: EmbeddedBroker, sc: FluvioClient, spu: FluvioClient
) -> None:
    """It would not be counted, and may stand for ever."""
    count, noise = 20, "x" * 30_000
    forgotten = tuple(wire.ForgottenTopic(noise) for _ in range(5))
    requests = [
        make_fetch("orders", (0, 0), max_wait_ms=LONG_MS, forgotten=forgotten),
        wire.StreamFetch("orders", client_id=noise),
        # At this version it has bytes in the middle, which are a part of the frame.
        wire.StreamFetch("orders", api_version=17),
    ]
    frames = [b"".join(map(bytes, wire.encode_message(one))) for one in requests]
    payloads = [frame[4:] + bytes(100_000) for frame in frames]
    watch = wire.Watch("Topic", client_id=noise)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count):
            for payload in payloads:
                spu.send_payload(payload)
            sc.ask(watch)
        # A Fetch of a topic and a partition counts twice.
        assert stands(broker, (len(payloads) + 1) * count + count)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < count * 30_000


# Memory.


@pytest.fixture
def scarce(start: StartBroker, dial_fluvio: DialFluvio) -> EmbeddedBroker:
    """A broker that does not wait long for memory, with some large records."""
    broker = start(fluvio=HERE, wait_timeout_s=0.05)
    dial_fluvio(broker, Role.SC).create("orders", 3)
    client = dial_fluvio(broker)
    client.write("orders", b"small")
    for n in (1, 2):
        client.write("orders", b"x" * (MIB // 2), partition=n)
    return broker


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much was waited for, for each large answer."""
    sizes: list[int] = []
    original = module.SpuSession._hold_answer

    def watch(self: Any, size: int) -> None:
        sizes.append(size)
        original(self, size)

    monkeypatch.setattr(module.SpuSession, "_hold_answer", watch)
    return sizes


def test_an_answer_without_memory(
    scarce: EmbeddedBroker,
    held: list[int],
    dial_fluvio: DialFluvio,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It must not look as if the log ended there."""
    client, waiting = dial_fluvio(scarce), shared_by(scarce).waiting
    waiting.try_take(waiting._limit)
    answer = client.ask(make_fetch("orders", (1, 0), (2, 0)))
    assert (answer.error.code, answer.topics) == (7, ())
    assert "no memory for the answer" in caplog.text
    # Other partitions are there, and waited for once.
    assert len(held) == 1
    answer = client.ask(make_fetch("orders", (0, 0), *[(1, 0), (2, 0)] * 5))
    assert len(held) == 2
    parts = answer.topics[0].partitions
    assert values(rows_in(parts[0])) == [b"small"]
    assert [(one.high_watermark, rows_in(one)) for one in parts[1:]] == [(1, [])] * 10
    waiting.give_back(waiting._limit)
    assert len(client.read("orders", partition=1)) == 1


def test_a_stream_without_memory(
    scarce: EmbeddedBroker, dial_fluvio: DialFluvio
) -> None:
    """It waits for it, with its connection."""
    client, waiting = dial_fluvio(scarce), shared_by(scarce).waiting
    client.submit(wire.StreamFetch("orders", 0))
    assert values(rows_in(client.next().partition)) == [b"small"]
    number = client.submit(wire.StreamFetch("orders", 1, 1))
    assert stands(scarce, 2)
    taken = waiting._limit - waiting.taken
    waiting.try_take(taken)
    dial_fluvio(scarce).write("orders", b"y" * (MIB // 2), partition=1)
    client.alive()
    assert client.is_silent(0.2)
    client.alive()
    waiting.give_back(taken)
    pushed = client.next()
    assert pushed.correlation_id == number
    assert values(rows_in(pushed.partition)) == [b"y" * (MIB // 2)]


def test_one_large_record_is_counted(
    scarce: EmbeddedBroker, held: list[int], dial_fluvio: DialFluvio
) -> None:
    """A fetch of a byte gives a record of any size: its size is held."""
    dial_fluvio(scarce).fetch("orders", partition=1, max_bytes=1)
    assert max(held) >= MIB


# Streams.


def advance(client: FluvioClient, *places: tuple[int, int]) -> list[int]:
    """Tell how far streams are read, as (offset, stream); give the codes."""
    done = tuple(wire.Consumed(*place) for place in places)
    answer = client.ask(wire.UpdateOffsets(done))
    assert [one.stream_id for one in answer.streams] == [stream for _, stream in places]
    return [one.error.code for one in answer.streams]


def test_one_push_per_update(spu: FluvioClient) -> None:
    spu.write("orders", *numbers(3))
    pushed = spu.ask(wire.StreamFetch("orders", max_bytes=1))
    number, stream = pushed.correlation_id, pushed.stream_id
    for n in range(3):
        assert (pushed.topic, pushed.correlation_id) == ("orders", number)
        assert (pushed.stream_id, pushed.partition.high_watermark) == (stream, 3)
        assert [row.offset for row in rows_in(pushed.partition)] == [n]
        # Nothing more, also if something comes.
        assert spu.is_silent(0.02)
        assert advance(spu, (n + 1, stream)) == [0]
        if n < 2:
            pushed = spu.next()
    assert spu.is_silent(0.02)
    spu.submit(make_produce("orders", (0, batch(b"3"))))
    spu.submit(make_produce("orders", (0, batch(b"4"))))
    answers = [spu.next() for _ in range(3)]
    [pushed] = [one for one in answers if isinstance(one, wire.Streamed)]
    assert rows_in(pushed.partition)[0].offset == 3
    assert spu.is_silent(0.02)
    # Back to where the client says that it is.
    assert advance(spu, (1, stream)) == [0]
    assert [row.offset for row in rows_in(spu.next().partition)] == [1]
    assert advance(spu, (99, stream)) == [0]
    assert spu.next().partition.error.code == 2
    assert advance(spu, (0, stream)) == [3002]


def test_a_record_that_comes_during_a_push(
    broker: EmbeddedBroker, spu: FluvioClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither a second push, nor forgotten."""
    store, log = broker.service.store, find_log(broker)
    spu.write("orders", b"0")
    original = module.SpuSession._load

    def load(self: Any, *arguments: Any) -> Any:
        found = original(self, *arguments)
        store.append(log, record(b"late"))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(module.SpuSession, "_load", load)
        pushed = spu.ask(wire.StreamFetch("orders"))
        assert values(rows_in(pushed.partition)) == [b"0"]
        assert spu.is_silent(0.05)
    assert advance(spu, (1, pushed.stream_id)) == [0]
    assert values(rows_in(spu.next().partition)) == [b"late"]


def test_streams_share_a_connection(
    broker: EmbeddedBroker, wide: FluvioClient, dial: Dial
) -> None:
    """With each other, with fetches and with appends."""
    sent = [wide.submit(wire.StreamFetch("wide", n)) for n in range(3)]
    sent.append(wide.submit(wire.StreamFetch("wide", 1)))
    assert stands(broker, 4)
    dial(broker).write(find_log(broker, "wide/1"), record(b"lwp"), 1, count=1)
    streams = {}
    for _ in range(2):
        pushed = wide.next()
        assert values(rows_in(pushed.partition)) == [b"lwp"]
        streams[pushed.correlation_id] = pushed.stream_id
    assert list(streams) == [sent[1], sent[3]]
    assert len(set(streams.values())) == 2
    assert values(wide.read("wide", partition=1)) == [b"lwp"]
    own = wide.submit(make_produce("wide", (0, batch(b"own"))))
    answers = {one.correlation_id: one for one in (wide.next(), wide.next())}
    assert codes(*answers[own].topics[0].outcomes) == [0]
    streams[sent[0]] = answers[sent[0]].stream_id
    assert values(rows_in(answers[sent[0]].partition)) == [b"own"]
    # One of those that are told of is not there.
    places = [(1, streams[sent[0]]), (0, 77), (0, streams[sent[3]])]
    assert advance(wide, *places) == [0, 3002, 0]
    pushed = wide.next()
    assert pushed.stream_id == streams[sent[3]]
    assert values(rows_in(pushed.partition)) == [b"lwp"]
    assert wide.is_silent(0.02)
    wide.stream.close()
    shared = shared_by(broker)
    assert eventually(lambda: shared.waiting.taken == shared.memory.taken == 0)


def test_a_topic_that_is_deleted_under_a_stream(
    broker: EmbeddedBroker, sc: FluvioClient, spu: FluvioClient
) -> None:
    # One stream waits for records, and one for its client.
    waiting = spu.submit(wire.StreamFetch("orders"))
    assert stands(broker)
    delete(broker)
    pushed = spu.next()
    assert pushed.correlation_id == waiting
    assert pushed.partition.error == wire.ErrorCode(2001)
    sc.create("orders")
    spu.write("orders", b"a")
    streaming = spu.ask(wire.StreamFetch("orders"))
    delete(broker)
    assert spu.is_silent(0.02)
    streams = (pushed.stream_id, streaming.stream_id)
    assert advance(spu, *[(1, stream) for stream in streams]) == [3002, 0]
    assert spu.next().partition.error == wire.ErrorCode(2001)
    # The new one of that name is another one.
    sc.create("orders")
    assert spu.is_silent(0.02)
    assert eventually(lambda: shared_by(broker).waiting.taken == 0)


def test_streams_that_are_refused(spu: FluvioClient) -> None:
    module_of = wire.SmartModule((0, "m"))
    for code, text, fields in (
        (2001, "", {"topic": "nosuch"}),
        (2001, "", {"partition": 1}),
        (2, "consumer 'me'", {"consumer_id": "me"}),
        (2, "SmartModules", {"smart_modules": (module_of,)}),
        (2, "SmartModules", {"wasm": b"code", "api_version": 17}),
        (2, "SmartModules", {"smart_module": module_of, "api_version": 16}),
        (2, "SmartModules", {"derived": wire.DerivedStream("s"), "api_version": 18}),
    ):
        answer = spu.ask(wire.StreamFetch(**{"topic": "orders", **fields}))
        error = answer.partition.error
        assert error.code == code and text in "".join(map(str, error.fields))
    spu.alive()
    assert spu.is_silent(0.02)


def test_too_many_streams(broker: EmbeddedBroker, spu: FluvioClient) -> None:
    for _ in range(STANDING_MAX):
        spu.submit(wire.StreamFetch("orders"))
    assert stands(broker, STANDING_MAX)
    error = spu.ask(wire.StreamFetch("orders")).partition.error
    assert error.code == 2 and f"may have {STANDING_MAX}" in error.fields[0]
    # A fetch that can't wait is answered, and what stands is served.
    assert rows_in(spu.fetch("orders", max_wait_ms=LONG_MS)) == []
    spu.submit(make_produce("orders", (0, batch(b"a"))))
    answers = [spu.next() for _ in range(STANDING_MAX + 1)]
    pushed = {one.stream_id for one in answers if isinstance(one, wire.Streamed)}
    assert len(pushed) == STANDING_MAX
