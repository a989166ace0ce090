"""Clients that say what they should not: they are refused, and others go on."""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import Consumer, LanceClient, Producer
from lance_spark.errors import (
    ConnectionLost,
    InvalidPayload,
    InvalidTopicName,
    LanceError,
    PayloadTooLarge,
)
from lance_spark.model import Buffer, Retention
from lance_spark.store import StoreConfig
from lance_spark.wire import lwp
from lance_spark.wire.lwp import Checksum, Command, FrameFlags, FrameType, Message
from tests.campaign import Tally
from tests.integration.examples import EXAMPLES
from tests.integration.kit import (
    Raw,
    make_client,
    read_bytes,
    record,
    wait_for,
)
from tests.integration.process import HAS_PROC, BrokerProcess, count_files
from tests.store.kit import check_clean

MIB = 1024 * 1024
RECORD = record(b"hello")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    data_dir = tmp_path_factory.mktemp("hostile") / "data"
    with EmbeddedBroker(data_dir=str(data_dir), fsync="none") as running:
        yield running


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[LanceClient]:
    with make_client(broker.address) as client:
        yield client


@pytest.fixture
def topic(client: LanceClient) -> int:
    return client.ensure_topic("events").id


@pytest.fixture
def victim(broker: EmbeddedBroker, topic: int) -> Iterator[None]:
    """Somebody who was there before, and to whom nothing happens."""
    with make_client(broker.address) as client, Raw(broker.address) as raw:
        before = read_bytes(client, topic)
        raw.ingest(RECORD, topic_id=topic)
        assert str(raw.frame()) == "ack batch 1"
        yield
        raw.ingest(RECORD, 2, topic_id=topic)
        assert str(raw.frame()) == "ack batch 2"
        assert read_bytes(client, topic) == before + 2 * RECORD


# What is not LWP: the connection ends and nothing is said.


def header(
    magic: bytes = b"LANC",
    version: int = 1,
    flags: int = FrameFlags.BATCH_MODE,
    reserved: int = 0,
    *,
    crc: int | None = None,
    payload: bytes = RECORD,
    payload_crc: int | None = None,
    payload_length: int | None = None,
    topic_id: int = 1,
) -> bytes:
    start = struct.pack("<4sBBH", magic, version, flags, reserved)
    crc = Checksum.CRC32C.update(start) if crc is None else crc
    if payload_crc is None:
        payload_crc = Checksum.CRC32C.update(payload)
    length = len(payload) if payload_length is None else payload_length
    rest = struct.pack("<IQQIIII", crc, 1, 0, 1, length, payload_crc, topic_id)
    return start + rest + payload


NOISE = {
    "bad magic": header(magic=b"LANZ"),
    "version 0": header(version=0),
    "version 2": header(version=2),
    "header CRC": header(crc=0xDEADBEEF),
    "header CRC-32": header(crc=Checksum.CRC32.update(b"LANC\1\4\0\0")),
    "payload CRC": header(payload_crc=1),
    "payload CRC of nothing": header(payload_crc=0),
    "reserved flag": header(flags=FrameFlags.BATCH_MODE | 0x80),
    "all flags": header(flags=0xFF),
    "reserved bytes": header(reserved=1),
    "zeros": bytes(100),
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".ljust(80),
    "TLS": bytes.fromhex("16030100d0010000cc0303").ljust(220, b"\7"),
    "a line": b"hello\n" * 20,
}


@pytest.mark.parametrize("noise", NOISE)
def test_noise_ends_the_connection(
    broker: EmbeddedBroker, victim: None, noise: str
) -> None:
    with Raw(broker.address) as raw:
        raw.try_send(NOISE[noise])
        assert raw.is_ended()


def test_acks_that_are_owed_come_before_the_end(
    broker: EmbeddedBroker, client: LanceClient, topic: int
) -> None:
    size = client.bounds(topic).end
    with Raw(broker.address) as raw:
        raw.send(header(topic_id=topic) + NOISE["bad magic"])
        assert str(raw.frame()) == "ack batch 1"
        assert raw.is_ended()
    assert client.bounds(topic).end == size + len(RECORD)


@pytest.mark.parametrize("length", [lwp.PAYLOAD_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_length_over_the_limit_is_said(
    broker: EmbeddedBroker, victim: None, length: int
) -> None:
    with Raw(broker.address) as raw:
        raw.send(header(payload_length=length))
        answer = raw.answer()
        assert isinstance(answer, lwp.ErrorResponse)
        assert answer.code == lwp.code_of(PayloadTooLarge)
        assert raw.is_ended()


@pytest.mark.parametrize("size", [0, 1, 43, 44, 45, 44 + len(RECORD) - 1])
def test_client_that_goes_in_the_middle(
    broker: EmbeddedBroker, victim: None, size: int
) -> None:
    with Raw(broker.address) as raw:
        raw.send(header()[:size])
        raw.shutdown_write()
        assert raw.is_ended()


# What is LWP and makes no sense: it is said why, and the connection lives.


def too_large() -> bytes:
    value = bytes(16 * MIB + 1)
    return b"\1" + struct.pack("<I", len(value)) + value


@pytest.mark.parametrize(
    ("payload", "fields", "code"),
    [
        pytest.param(RECORD, {"record_count": 2}, 0x04, id="count"),
        pytest.param(RECORD[:-1], {}, 0x04, id="cut off"),
        pytest.param(RECORD + b"\1", {}, 0x04, id="rest"),
        pytest.param(b"\0" + RECORD[1:], {}, 0x04, id="type 0"),
        # Over the limit, but first of all not there: no record in a frame that fits.
        pytest.param(b"\1\xff\xff\xff\xff", {}, 0x04, id="length of 4 GiB"),
        pytest.param(record(b"", 0xFF)[:1] + RECORD[1:], {}, 0x04, id="null"),
        pytest.param(b"\x10\3\0\0\0\xff\xffx", {}, 0x04, id="key length"),
        pytest.param(b"\x11\3\0\0\0abc", {}, 0x04, id="timestamp"),
        pytest.param(b"\x12\3\0\0\0abc", {}, 0x04, id="timestamp and key"),
        pytest.param(too_large(), {}, 0x03, id="record over the limit"),
        pytest.param(b"plain text", {}, 0x04, id="text"),
        pytest.param(b"\xff" * 50, {"compressed": True}, 0x04, id="not LZ4"),
        pytest.param(RECORD, {"topic_id": 4_000}, 0x10, id="no such topic"),
        pytest.param(RECORD, {"topic_id": 0x80000001}, 0x70, id="no such stage"),
    ],
)
def test_refused_batch(
    broker: EmbeddedBroker,
    victim: None,
    topic: int,
    payload: bytes,
    fields: dict[str, int],
    code: int,
) -> None:
    fields = {"topic_id": topic, **fields}
    with Raw(broker.address) as raw:
        raw.ingest(payload, 7, **fields)
        answer = raw.answer()
        assert isinstance(answer, lwp.ErrorResponse)
        assert answer.code == code, answer
        assert answer.details["batch_id"] == 7
        assert answer.details["topic_id"] == fields["topic_id"]
        assert isinstance(raw.ask(lwp.ListTopics()), lwp.TopicListing)


@pytest.mark.parametrize(
    "flags", [FrameFlags.ENCRYPTED | FrameFlags.BATCH_MODE, FrameFlags.ENCRYPTED]
)
def test_encrypted_is_refused(
    broker: EmbeddedBroker, victim: None, flags: int, topic: int
) -> None:
    with Raw(broker.address) as raw:
        raw.send(header(flags=flags, topic_id=topic))
        answer = raw.answer()
        assert isinstance(answer, lwp.ErrorResponse)
        assert answer.code == lwp.code_of(InvalidPayload)


# Noise that is almost LWP.


def conversation(topic: int) -> list[bytes]:
    """Give frames of many kinds, all of them good."""
    messages: list[Message] = [
        lwp.GetClusterStatus(),
        lwp.ListTopics(),
        lwp.GetTopic(topic),
        lwp.Fetch(topic, 0, 1000),
        lwp.Fetch(topic, 0, 1000, lwp.FetchFlags.EXTENDED | lwp.FetchFlags.SNAP),
        lwp.Locate(topic, lwp.LocateKind.RECORD, 1),
        lwp.OpenStage("staged", "writer", 1),
        lwp.AbortStages("writer", 1),
        lwp.Subscribe(topic, 0, 1000, 5),
        lwp.CommitOffset(topic, 5, 0),
        lwp.Wait(0, (lwp.TopicPosition(topic, 0),), 0),
        lwp.LeaveGroup("group", "member"),
    ]
    frames = [b"".join(map(bytes, lwp.encode_message(m))) for m in messages]
    return [*frames, lwp.encode_keepalive()]


def mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at:at] = rng.randbytes(rng.randrange(1, 60))
        elif kind == 2:
            del changed[at : at + rng.randrange(1, 60)]
        elif changed:
            changed[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", bytes(4)])
    return bytes(changed)


def check_nothing_broke(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, seed: str
) -> None:
    """Whatever came was answered for what it is, and not by a bug."""
    found = [log.getMessage() for log in caplog.records if log.levelno >= logging.ERROR]
    assert found == [], seed
    assert 0x60 not in broker.metrics.snapshot().errors, seed


@pytest.mark.parametrize("seed", range(6))
def test_mutated_conversation(
    broker: EmbeddedBroker,
    victim: None,
    topic: int,
    caplog: pytest.LogCaptureFixture,
    seed: int,
) -> None:
    rng = random.Random(f"conversation {seed}")
    for _ in range(40):
        frames = conversation(topic)
        rng.shuffle(frames)
        with Raw(broker.address) as raw:
            raw.try_send(mutate(b"".join(frames), rng))
            raw.shutdown_write()
            while raw.frame() is not None:
                pass
    check_nothing_broke(broker, caplog, f"seed {seed}")


@pytest.mark.parametrize("seed", range(4))
def test_mutated_payloads_in_good_frames(
    broker: EmbeddedBroker,
    client: LanceClient,
    caplog: pytest.LogCaptureFixture,
    seed: int,
) -> None:
    """With the right checksums, so that every command's own checks are met."""
    rng = random.Random(f"payload {seed}")
    # Commands that survive their mutation are carried out: not on anybody's topic.
    name = f"mutated-{seed}"
    topic = client.ensure_topic(name).id
    # One that waits would do nothing but that.
    kinds = [kind for kind in EXAMPLES if kind is not lwp.Wait]
    examples = [EXAMPLES[kind](name, topic).encode_payload() for kind in kinds]
    examples += [[RECORD], []]
    commands = [*lwp.REQUESTS, 0, 0x101, 0x7F, 0xFF, 2**63]
    with Raw(broker.address) as raw:
        for _ in range(400):
            payload = b"".join(map(bytes, rng.choice(examples)))
            payload = mutate(payload, rng) if payload else payload
            raw.send(*lwp.encode_control(rng.choice(commands), [payload]))
            frame = raw.frame()
            assert frame is not None, f"seed {seed}: no answer"
    check_nothing_broke(broker, caplog, f"seed {seed}")


# Sessions of all kinds, for as long as one likes.

TOKEN = "the token"
SESSIONS = 40
SESSIONS_LONG = 4000
# What a broker may keep of topics, stages and groups that survived their mutation.
GROWTH_BYTES_MAX = 128 * MIB
# Two for each segment that its store keeps open.
OPEN_FILES_MAX = 2 * StoreConfig().open_segments_max


class Visitor:
    """Talks to a broker as nobody should, and counts what comes back."""

    def __init__(self, address: str, tally: Tally) -> None:
        self._address = address
        self._rng = tally.rng
        self._counts = tally.counts
        self._hello = join_message(lwp.Authenticate(TOKEN))

    def visit(self) -> None:
        """Have a conversation of all requests, damaged before or behind the token."""
        rng, name = self._rng, f"mutated-{self._rng.randrange(50)}"
        parts = [self._make(kind, name) for kind in EXAMPLES]
        parts += [lwp.encode_keepalive(), self._ingest(), self._ingest()]
        rng.shuffle(parts)
        stream = b"".join(parts[: rng.randrange(1, len(parts) + 1)])
        if rng.random() < 0.7:
            stream = self._hello + stream
        if rng.random() < 0.5:
            stream = mutate(stream, rng)
        with Raw(self._address) as raw:
            raw.try_send(stream)
            if rng.random() < 0.8:
                with contextlib.suppress(ConnectionLost):
                    raw.shutdown_write()
                self._listen(raw)
        self._counts["sessions"] += 1

    def _make(self, kind: type[Message], name: str) -> bytes:
        """Make a request; half of them have a damaged payload, and all else right."""
        topic = self._rng.randrange(60)
        message = EXAMPLES[kind](name, topic)
        payload = b"".join(map(bytes, message.encode_payload()))
        if payload and self._rng.random() < 0.5:
            payload = mutate(payload, self._rng)
        self._counts["requests"] += 1
        return join(lwp.encode_control(message.COMMAND, [payload]))

    def _ingest(self) -> bytes:
        payload = RECORD * self._rng.randrange(1, 4)
        if self._rng.random() < 0.5:
            payload = mutate(payload, self._rng) or RECORD
        # Of a topic or a stage, if there is one.
        target = self._rng.choice([2, 3, 0x80000000, 0x80000001])
        batch = self._rng.randrange(1, 4)
        return join(
            lwp.encode_ingest(
                [payload], batch_id=batch, record_count=1, topic_id=target
            )
        )

    def _listen(self, raw: Raw) -> None:
        while (frame := raw.frame()) is not None:
            self._counts["answers"] += 1
            if frame.type is not FrameType.CONTROL:
                continue
            with contextlib.suppress(LanceError):  # An extended answer to a Fetch.
                answer = lwp.decode_response(frame)
                if isinstance(answer, lwp.ErrorResponse):
                    assert answer.code != 0x60, f"a bug of the broker: {answer}"


def join(buffers: Iterable[Buffer]) -> bytes:
    return b"".join(map(bytes, buffers))


def join_message(message: Message) -> bytes:
    return join(lwp.encode_message(message))


@pytest.mark.fuzz
@pytest.mark.campaign("sessions")
@pytest.mark.skipif(not HAS_PROC, reason="/proc says what it costs")
def test_sessions_of_all_kinds(tmp_path: Path, tally: Tally) -> None:
    while tally.goes_on():
        path = tmp_path / f"{tally.rounds}" / "data"
        path.parent.mkdir()
        process = BrokerProcess(path, fsync="none", tokens=[TOKEN], topics_max=200)
        with process as broker:
            run_sessions(broker, tally)
            assert "Traceback" not in broker.said
        check_clean(path)
        shutil.rmtree(path.parent)


def run_sessions(broker: BrokerProcess, tally: Tally) -> None:
    """Have many conversations, beside a good client, and see what is left of them."""
    visitor = Visitor(broker.address, tally)
    with make_client(broker.address, auth_token=TOKEN) as client:
        for number in range(SESSIONS_LONG if tally.seconds else SESSIONS):
            if number == SESSIONS // 2:
                # Until then it may still load code and fill its caches.
                before = (broker.rss_bytes, broker.threads, count_files(broker.pid))
            visitor.visit()
            if number % 4 == 0:
                check_service(client, b"%d" % number)
            if tally.seconds and tally.is_over and number > SESSIONS:
                break
        memory, threads, files = before
        wait_for(lambda: broker.threads <= threads + 2, "its threads end")
        # Topics and stages that are in use have files open.
        limit = files + OPEN_FILES_MAX
        wait_for(lambda: count_files(broker.pid) <= limit, "its files are closed")
        assert broker.rss_bytes - memory <= GROWTH_BYTES_MAX
    tally.counts["failures"] = 0


def check_service(client: LanceClient, value: bytes) -> None:
    """Write a record and read it back, as a client that does no harm.

    A header's topic and command have no checksum, so that a flip may make one good
    request out of another: the topic may have been deleted, or have other records.
    """
    with Producer(client, "good", create_topic=True) as producer:
        producer.send(value)
    start = client.bounds("good").start
    records = lwp.decode_records(read_bytes(client, "good", start))
    assert bytes(list(records)[-1].value) == value


# Names that try to leave the directory.

NAMES = [
    "",
    ".",
    "..",
    "../evil",
    "../../evil",
    "a/b",
    "/evil",
    "/tmp/evil",
    "a\\b",
    "..\\evil",
    "nul\0byte",
    "line\nbreak",
    "\x7f",
    "x" * 256,
    "ü" * 128,
]


# What names a topic that need not be there.
NAMING: dict[str, Callable[[str], Message]] = {
    "create": lwp.CreateTopic,
    "with retention": lambda name: lwp.CreateTopicWithRetention(name, Retention()),
    "stage": lambda name: lwp.OpenStage(name, "w", 1),
    "overwrite": lambda name: lwp.CommitStages("w", 1, (name,), ()),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", NAMING)
def test_names_stay_inside(broker: EmbeddedBroker, name: str, how: str) -> None:
    around = broker.data_dir.parent
    before = sorted(path.name for path in around.iterdir())
    with Raw(broker.address) as raw:
        answer = raw.ask(NAMING[how](name))
        assert isinstance(answer, lwp.ErrorResponse), answer
        assert answer.code == lwp.code_of(InvalidTopicName)
    assert sorted(path.name for path in around.iterdir()) == before
    segments = [path.name for path in (broker.data_dir / "segments").iterdir()]
    assert all(segment.isdigit() for segment in segments)


def test_name_that_is_not_utf8(broker: EmbeddedBroker) -> None:
    with Raw(broker.address) as raw:
        raw.send(*lwp.encode_control(Command.CREATE_TOPIC, [b"\xff\xfe"]))
        answer = raw.answer()
        assert isinstance(answer, lwp.ErrorResponse)
        assert answer.code in (
            lwp.code_of(InvalidTopicName),
            lwp.code_of(InvalidPayload),
        )


def test_consumer_of_a_strange_name_leaves_nothing_outside(
    broker: EmbeddedBroker, client: LanceClient, topic: int
) -> None:
    before = sorted(broker.data_dir.parent.rglob("*evil*"))
    with Consumer(client, topic, name="../../evil") as consumer:
        list(consumer)
        consumer.commit()
    assert sorted(broker.data_dir.parent.rglob("*evil*")) == before == []
