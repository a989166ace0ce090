"""Messages: the captured ones, and what is not in any capture."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc
from dataclasses import FrozenInstanceError

import pytest

from lance_spark.errors import LanceError, LocalProtocolError, RemoteProtocolError
from lance_spark.model import Bounds
from lance_spark.wire import tank
from lance_spark.wire.tank import (
    Fetched,
    FetchedTopic,
    Kind,
    Outcome,
    Write,
    WriteTopic,
)
from lance_spark.wire.tank.frame import FORM
from tests.each import each
from tests.wire.tank.reference import FRAMES, find, join, parse

DECODERS = {">": tank.decode_request, "<": tank.decode_response}
# Some were sent many times.
ALL = {(direction, data): name for name, direction, data in FRAMES}


def there_and_back(message, direction):
    frame = parse(join(tank.encode_message(message)))
    again = DECODERS[direction](frame)
    assert again == message
    return frame


class TestVectors:
    @each(("direction", "data"), ALL, ids=ALL.values())
    def test_decodes_and_encodes_back(self, direction, data):
        message = DECODERS[direction](parse(data))
        assert join(tank.encode_message(message)) == data

    @each(("direction", "data"), ALL, ids=ALL.values())
    def test_bytes_behind_are_ignored(self, direction, data):
        frame = parse(data)
        message = DECODERS[direction](frame)
        if isinstance(message, tank.Produced):
            return  # It ends where its payload does.
        longer = tank.Frame(frame.kind, memoryview(bytes(frame.payload) + b"\0\1"))
        assert DECODERS[direction](longer) == message

    @each(("direction", "data"), ALL, ids=ALL.values())
    def test_every_truncation_is_a_clean_error(self, direction, data):
        frame = parse(data)
        for size in range(len(frame.payload)):
            cut = tank.Frame(frame.kind, frame.payload[:size])
            # Bytes that a message can do without: outcomes, and nothing else.
            if frame.kind is Kind.PRODUCE and direction == "<" and size >= 4:
                assert len(tank.decode_response(cut).outcomes) < 2
            else:
                with pytest.raises(RemoteProtocolError):
                    DECODERS[direction](cut)

    @each(("direction", "data"), ALL, ids=ALL.values())
    def test_every_flipped_bit_is_a_message_or_a_clean_error(self, direction, data):
        frame = parse(data)
        for bit in range(8 * len(frame.payload)):
            damaged = bytearray(frame.payload)
            damaged[bit // 8] ^= 1 << bit % 8
            flipped = tank.Frame(frame.kind, memoryview(bytes(damaged)))
            use(flipped, DECODERS[direction])

    @each(("direction", "data"), ALL, ids=ALL.values())
    def test_describe_finds_the_direction(self, direction, data):
        frame = parse(data)
        kind = type(DECODERS[direction](frame)).__name__
        assert tank.describe(frame).startswith(f"{kind}(")


def use(frame, *decoders):
    """Do everything to a frame that can be done, which may fail in one way only."""
    for decode in decoders:
        try:
            message = decode(frame)
        except RemoteProtocolError:
            continue
        if isinstance(message, tank.Message):
            again = parse(join(tank.encode_message(message)))
            assert decode(again) == message
        if isinstance(message, tank.Produce):
            for topic in message.topics:
                for write in topic.writes:
                    records = tank.read_records(write.bundle)
                    assert records.fault is None or isinstance(
                        records.fault, LanceError
                    )
        if isinstance(message, tank.Consumed):
            for topic in message.topics:
                for fetched in topic.partitions:
                    tank.read_chunk(fetched.chunk, min(fetched.base_seq, 2**62))


def test_noise_of_every_kind():
    chance = random.Random(14)
    seeds = [parse(data) for _, _, data in FRAMES]
    tracemalloc.start()
    for _ in range(2000):
        frame = chance.choice(seeds)
        damaged = bytearray(frame.payload)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(damaged) + 1)
            damaged[at : at + chance.randrange(5)] = chance.choice(
                [b"\xff" * 4, b"\0" * 8, chance.randbytes(3), b""]
            )
        kind = frame.kind if chance.random() < 0.9 else chance.choice(list(Kind))
        noise = tank.Frame(kind, memoryview(bytes(damaged)))
        assert tank.describe(noise)
        use(noise, *DECODERS.values(), tank.number_of)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * 1024 * 1024


def test_what_a_vector_says():
    consumed = tank.decode_response(parse(find("consume_from_6", "<", 1)))
    (topic,) = consumed.topics
    (fetched,) = topic.partitions
    assert (consumed.request_id, topic.name, fetched.partition) == (1, "orders", 0)
    assert (fetched.base_seq, fetched.hwm, len(fetched.chunk)) == (5, 42, 289)
    past = tank.decode_response(parse(find("consume_past_end", "<", 1)))
    assert past.topics[0].partitions[0] == Fetched(
        0, tank.OUT_OF_RANGE, hwm=42, first_seq=1
    )
    unknown = tank.decode_response(parse(find("consume_unknown_topic", "<", 1)))
    assert unknown.topics == (FetchedTopic("nosuch", unknown=1),)
    local = tank.decode_request(parse(find("consume_prefer_local", ">")))
    assert (local.client_version, local.op_flags) == (3, 1)
    status = tank.decode_response(parse(find("status", "<", 1)))
    assert (status.topics, status.partitions, status.version) == (1, 3, 400)
    at = tank.decode_request(parse(find("produce_sparse", ">")))
    assert at.topics[0].writes[0].first_seq == 100


def test_bounds():
    answer = tank.decode_response(parse(find("discover_partitions2", "<", 1)))
    bounds = [state.bounds for state in answer.partitions]
    assert bounds == [Bounds(1, 43), Bounds(1, 4), Bounds(100, 116)]
    assert tank.PartitionState(0, 0).bounds == Bounds(1, 1)
    # A log of this broker that was emptied.
    assert tank.PartitionState(11, 10).bounds == Bounds(11, 11)


@pytest.mark.parametrize(
    "message",
    [
        tank.Produced(7, (Outcome(), Outcome(0xFC, "10.0.0.1:11011"), Outcome(2))),
        tank.Partitions(
            7,
            "t",
            (
                tank.PartitionState(1, 2),
                tank.PartitionState(reason=Outcome(0xFC, "1.2.3.4:5")),
                tank.PartitionState(reason=Outcome(0xFD)),
            ),
        ),
        tank.Consumed(
            7,
            (
                FetchedTopic(
                    "t",
                    (
                        Fetched(1, base_seq=3, hwm=9, chunk=b"abc"),
                        Fetched(2, 0xFB),
                        Fetched(3, tank.OTHER_LEADER, leader="1.2.3.4:5"),
                        Fetched(4, tank.SPARSE, hwm=8, chunk=b"de"),
                        Fetched(5, tank.OUT_OF_RANGE, hwm=8, first_seq=4),
                        Fetched(6, 0xFD),
                        Fetched(7, tank.UNKNOWN),
                    ),
                ),
                FetchedTopic("u", unknown=3),
                FetchedTopic("v"),
            ),
        ),
        tank.Status(7, in_cluster=1, cluster_name="c", nodes=3, topics=2),
        tank.Topics(7, (tank.TopicEntry("ä" * 127), tank.TopicEntry("", 0, 9))),
        tank.Created(7, "t", 10),
    ],
)
def test_answers_that_no_capture_has(message):
    frame = there_and_back(message, "<")
    assert tank.number_of(frame) == 7
    assert tank.describe(frame).startswith(type(message).__name__)


def test_byte_order_of_an_address():
    answer = tank.Produced(1, (Outcome(0xFC, "10.0.0.1:11011"),))
    assert join(answer.encode(FORM))[4:].hex() == "fc0a000001032b"


def test_topics_of_a_cluster_name_their_replicas():
    payload = bytes.fromhex("07000000 02000000 01 0161 01 0300 03 0162 00 0100 02")
    answer = tank.decode_response(tank.Frame(Kind.DISCOVER_TOPICS, memoryview(payload)))
    names = [(entry.name, entry.partitions) for entry in answer.topics]
    assert names == [("a", 3), ("b", 1)]


class TestMatch:
    REQUEST = tank.Produce(
        topics=(
            WriteTopic("a", (Write(0, b""), Write(1, b""))),
            WriteTopic("b", ()),
            WriteTopic("c", (Write(5, b""), Write(6, b""))),
        )
    )

    def match(self, *codes):
        answer = tank.Produced(1, tuple(map(Outcome, codes)))
        found = answer.match(self.REQUEST)
        return [(name, write.partition, one.code) for name, write, one in found]

    def test_one_per_partition(self):
        assert self.match(0, 1, 2, 0xFE) == [
            *(("a", 0, 0), ("a", 1, 1), ("c", 5, 2), ("c", 6, 0xFE))
        ]

    @pytest.mark.parametrize("code", [0xFF, 0xFE])
    def test_one_for_a_whole_topic(self, code):
        assert self.match(code, 0, 2) == [
            *(("a", 0, code), ("a", 1, code), ("c", 5, 0), ("c", 6, 2))
        ]

    def test_too_few(self):
        with pytest.raises(RemoteProtocolError, match="fewer"):
            self.match(0, 0, 0)


@each(
    "message",
    [
        tank.GetStatus(2**32),
        tank.CreateTopic(1, "x" * 256, 1),
        tank.CreateTopic(1, "\ud800", 1),
        tank.CreateTopic(1, "x", 65536),
        tank.Produced(1, (Outcome(0xFC),)),
        tank.Produced(1, (Outcome(0xFC, "no.address"),)),
        tank.Produced(1, (Outcome(256),)),
        tank.Consumed(1, (FetchedTopic("t", (Fetched(1, 2),)),)),
        tank.Consumed(1, (FetchedTopic("t", (Fetched(1, 0xFB, chunk=b"x"),)),)),
        tank.Consume(topics=(tank.FetchTopic("t", ()),) * 256),
    ],
)
def test_what_does_not_fit(message):
    with pytest.raises(LocalProtocolError):
        tank.encode_message(message)


def test_first_seq_goes_with_one_kind():
    for kind, seq in ((tank.Produce, 1), (tank.ProduceAt, None)):
        with pytest.raises(LocalProtocolError, match="first_seq"):
            kind(topics=(WriteTopic("t", (Write(0, b"", seq),)),))
    message = tank.ProduceAt(topics=(WriteTopic("t", (Write(0, b"b", 0),)),))
    there_and_back(message, ">")


@pytest.mark.parametrize(
    ("kind", "payload", "text"),
    [
        (Kind.PRODUCE_AT, "", "no answer"),
        (Kind.DISCOVER_PARTITIONS, "01000000 0161 ffff", "65535 items"),
        (Kind.DISCOVER_TOPICS, "01000000 ffffffff 00", "4294967295 topics"),
        (Kind.CONSUME, "ffffffff", "4294967295 bytes needed"),
        (Kind.CONSUME, "0b000000 01000000 01 0161 01 0000 77", "unknown flag 0x77"),
        (Kind.CREATE_TOPIC, "01000000 01ff 00", "UTF-8"),
    ],
)
def test_malformed_answers(kind, payload, text):
    frame = tank.Frame(kind, memoryview(bytes.fromhex(payload)))
    with pytest.raises(RemoteProtocolError, match=text):
        tank.decode_response(frame)


def test_a_varint_of_more_than_32_bits():
    payload = bytes.fromhex("01000000 0161 0100 ffffffff7f")
    with pytest.raises(RemoteProtocolError, match="32 bits"):
        tank.decode_request(tank.Frame(Kind.CREATE_TOPIC, memoryview(payload)))


def test_describe():
    assert tank.describe(parse(find("produce_1", ">"))) == (
        "Produce(request_id=1 client_id='c++' topics=[WriteTopic(name='orders' "
        "writes=[Write(partition=0 bundle=16 bytes)])])"
    )
    broken = tank.Frame(Kind.STATUS, memoryview(b"\1"))
    assert tank.describe(broken).startswith("STATUS malformed: Status: 4 bytes needed")


def test_no_message_can_be_changed():
    for message in {*tank.REQUESTS.values(), *tank.RESPONSES.values()}:
        assert dataclasses.is_dataclass(message)
        with pytest.raises(FrozenInstanceError):
            message.__new__(message).changed = 0


def test_number_of():
    for name, direction, data in FRAMES:
        frame = parse(data)
        if direction == "<":
            number = getattr(tank.decode_response(frame), "request_id", None)
            assert tank.number_of(frame) == number, name
    with pytest.raises(RemoteProtocolError):
        tank.number_of(tank.Frame(Kind.CONSUME, memoryview(b"\0\0\0\0\1")))
