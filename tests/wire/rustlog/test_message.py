"""Messages of both dialects, there and back, and everything that is none."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

import pytest

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.wire import rustlog
from lance_spark.wire.rustlog import (
    FRAME_BYTES_MAX,
    ErrorResponse,
    Fetch,
    FetchResponse,
    Message,
    Ping,
    Produce,
    ProduceResponse,
    decode_request,
    decode_response,
    describe,
    encode_message,
    encode_produce,
    find_memory,
    is_json,
    write_records,
)
from tests.each import each
from tests.wire.rustlog.plain import (
    KINDS,
    LAYOUTS,
    VECTORS,
    encode_plainly,
    join,
    list_values,
    make_message,
    make_records,
    parse,
    reduce,
)

# What RustLog's broker could not read either.
MALFORMED = ("unknown_type_request", "truncated_request")
GOOD = [row for row in VECTORS if row["name"] not in MALFORMED]


def ids(row: dict[str, str]) -> str:
    return row["name"]


def is_answer(row: dict[str, str]) -> bool:
    return "request" not in row["name"]


def decode(row: dict[str, str], frame: Any) -> Message:
    return decode_response(frame) if is_answer(row) else decode_request(frame)


def to_payload(message: Message, *, as_json: bool = False) -> bytes:
    return join(encode_message(message, as_json=as_json))[4:]


def json_frame(name: str, **body: Any) -> bytes:
    return json.dumps({name: body}).encode()


@pytest.mark.usefixtures("kernel")
class TestVectors:
    @each("row", GOOD, ids=ids)
    def test_there_and_back(self, row: dict[str, str]) -> None:
        raw = bytes.fromhex(row["hex"])
        for step in (None, 1):
            [frame] = parse(raw, step)
            message = decode(row, frame)
            assert join(encode_message(message, as_json=is_json(frame))) == raw
            if not is_json(frame):
                assert encode_plainly(message) == raw

    @each("row", VECTORS, ids=ids)
    def test_shown(self, row: dict[str, str]) -> None:
        [frame] = parse(bytes.fromhex(row["hex"]))
        assert describe(frame, is_answer=is_answer(row)) == row["shown"]
        if "ping" not in row["name"] and row["name"] not in MALFORMED:
            assert describe(frame) == row["shown"]

    @each("row", VECTORS, ids=ids)
    def test_every_truncation_is_an_error(self, row: dict[str, str]) -> None:
        payload = bytes.fromhex(row["hex"])[4:]
        for size in range(len(payload)):
            with pytest.raises(RemoteProtocolError):
                decode(row, payload[:size])
            assert describe(payload[:size], is_answer=is_answer(row)).startswith(
                "malformed"
            )

    @each("row", VECTORS, ids=ids)
    def test_every_flipped_bit_is_a_message_or_an_error(
        self, row: dict[str, str]
    ) -> None:
        payload = bytes.fromhex(row["hex"])[4:]
        for bit in range(8 * len(payload)):
            flipped = bytearray(payload)
            flipped[bit // 8] ^= 1 << bit % 8
            for read in (decode_request, decode_response):
                try:
                    message = read(flipped)
                except RemoteProtocolError as error:
                    assert len(str(error)) < 300
                else:
                    again = read(to_payload(message, as_json=is_json(flipped)))
                    if isinstance(message, ErrorResponse) and message.code is None:
                        assert again.message.endswith(message.message)  # type: ignore[attr-defined]
                        continue
                    assert reduce(again) == reduce(message)

    def test_values(self) -> None:
        found = {}
        for row in GOOD:
            message = decode(row, bytes.fromhex(row["hex"])[4:])
            if isinstance(message, Produce | FetchResponse):
                records = message.records
                found[row["name"]] = (
                    list_values(records),
                    records.find_positions().tolist(),
                )
        assert found["fetch_all_response"] == ([b"bytes", b"more", b"third"], [0, 1, 2])
        assert found["fetch_max1_response"] == ([b"more"], [1])
        assert found["fetch_past_end_response"] == ([], [])
        assert found["produce_emptyrec_request"] == ([b""], [0])
        assert found["json_produce_request"] == ([b"bytes", b"more"], [0, 1])
        assert found["json_fetch_response"] == ([b"bytes", b"more"], [1000, 1001])

    def test_trailing_bytes_of_requests_are_ignored(self) -> None:
        for row in GOOD:
            frame = bytes.fromhex(row["hex"])[4:] + b"\0"
            if is_json(frame):
                continue
            if is_answer(row):
                with pytest.raises(RemoteProtocolError, match="1 bytes too many"):
                    decode_response(frame)
            else:
                assert reduce(decode_request(frame)) == reduce(decode(row, frame[:-1]))


@pytest.mark.usefixtures("kernel")
class TestChance:
    @each("kind", KINDS)
    def test_binary(self, kind: type[Message]) -> None:
        choice = random.Random(kind.__name__)
        messages = [make_message(kind, choice) for _ in range(60)]
        stream = b"".join(join(encode_message(message)) for message in messages)
        assert stream == b"".join(map(encode_plainly, messages))
        read = decode_request if kind in rustlog.REQUESTS.values() else decode_response
        for step in (None, 7, 1001):
            found = [read(frame) for frame in parse(stream, step)]
            assert list(map(reduce, found)) == list(map(reduce, messages))

    @each("kind", KINDS)
    def test_json(self, kind: type[Message]) -> None:
        choice = random.Random(kind.__name__)
        read = decode_request if kind in rustlog.REQUESTS.values() else decode_response
        for _ in range(60):
            message = make_message(kind, choice)
            payload = to_payload(message, as_json=True)
            assert is_json(payload)
            assert list(json.loads(payload)) == [kind.__name__.removesuffix("Response")]
            found = read(payload)
            if isinstance(message, ErrorResponse):
                assert isinstance(found, ErrorResponse) and found.code is None
                assert found.message.endswith(message.message)
            else:
                assert reduce(found) == reduce(message)
            spaced = json.dumps(json.loads(payload), indent=1).encode()
            assert reduce(read(b"\n " + spaced)) == reduce(found)


def damage(payload: bytearray, choice: random.Random) -> None:
    """Do one of the things that lengths, counts and texts break at."""
    at = choice.randrange(len(payload) + 1)
    kind = choice.randrange(5)
    if kind == 0:
        edge = choice.choice([0, 1, 4, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF])
        payload[at : at + 4] = edge.to_bytes(4, "big")
    elif kind == 1:
        payload[at:at] = choice.randbytes(choice.randrange(1, 6))
    elif kind == 2:
        del payload[at : at + choice.randrange(1, 6)]
    elif kind == 3:
        other = bytes.fromhex(choice.choice(VECTORS)["hex"])[4:]
        payload[at:] = other[choice.randrange(len(other)) :]
    else:
        tokens = (b"null", b"[", b"]", b"{}", b'"', b"-1", b"1e9", b"\\ud800", b",")
        payload[at : at + 1] = choice.choice(tokens)


@pytest.mark.usefixtures("kernel")
def test_damage_is_a_message_or_an_error() -> None:
    choice = random.Random(14)
    for _ in range(6000):
        payload = bytearray.fromhex(choice.choice(VECTORS)["hex"])[4:]
        for _ in range(choice.choice([1, 1, 2, 5])):
            damage(payload, choice)
        for read in (decode_request, decode_response):
            try:
                message = read(payload)
            except RemoteProtocolError as error:
                assert len(str(error)) < 300
            else:
                to_payload(message, as_json=is_json(payload))
        assert describe(payload)


def test_tables() -> None:
    assert {kind.__name__ for kind in KINDS} == set(LAYOUTS)
    assert sorted(rustlog.REQUESTS) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0xFF]
    assert sorted(rustlog.RESPONSES) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0xFE, 0xFF]
    for command, kind in rustlog.REQUESTS.items():
        assert rustlog.RESPONSES[command].__name__ == f"{kind.__name__}Response"


def test_large_records_are_not_copied_into_a_frame() -> None:
    records = make_records([b"x" * 20_000, b"y"])
    frame = encode_message(Produce("t", 0, records))
    assert len(frame) > 1 and len(frame[-1]) == 20_009
    assert join(frame) == encode_plainly(Produce("t", 0, records))


@pytest.mark.parametrize("size", [1, 50_000])
def test_produce_of_written_records(size: int) -> None:
    one, two = make_records([b"a" * size, b""]), make_records([b"b"])
    data = join([write_records(one), write_records(two)])
    frame = join(encode_produce("orders", 3, 3, data))
    both = Produce("orders", 3, make_records([b"a" * size, b"", b"b"]))
    assert frame == encode_plainly(both)


def test_lenient_json() -> None:
    for group in ({}, {"group_id": None}, {"group_id": ""}):
        body = {"topic": "t", "partition": 0, "offset": 1, "max_bytes": 2**40}
        fetch = decode_request(json_frame("Fetch", unknown=[1], **body, **group))
        assert fetch == Fetch("t", 0, 1, 2**32 - 1)


@each(
    "frame",
    [
        b"{}",
        b'{"a":{},"b":{}}',
        b'"Ping"',
        b'{"Ping":null}',
        b" []",
        b"{" * 100_000,
        b'{"Fetch":' + b"[" * 100_000,
        b'{"Ping":{}}\xff',
        b'{"Ping":{"a":' + b"9" * 5000 + b"}}",
        json_frame("Nonsense"),
        json_frame("x" * 100_000),
        json_frame("DescribeTopic"),
        json_frame("DescribeTopic", topic=1),
        json_frame("DescribeTopic", topic="\ud800"),
        json_frame("DescribeTopic", topic="x" * 65536),
        json_frame("CreateTopic", topic="t", partitions=-1),
        json_frame("CreateTopic", topic="t", partitions=2**32),
        json_frame("CreateTopic", topic="t", partitions=True),
        json_frame("CreateTopic", topic="t", partitions=1.0),
        json_frame("CreateTopic", topic="t", partitions=float("inf")),
        json_frame("OffsetFetch", topic="t", partition=0, group_id=None),
        *(
            json_frame("Produce", topic="t", partition=0, records=records)
            for records in (
                None,
                "ab",
                ["ab"],
                [5],
                [10**12],
                [[256]],
                [[-1]],
                [[1.0]],
                [[True]],
                [[None]],
                [[[1]]],
                {"a": 1},
            )
        ),
    ],
    ids=lambda frame: str(frame[:60]),
)
def test_malformed_json_request(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_request(frame)
    assert len(str(caught.value)) < 200


RECORD = {"offset": 5, "payload": [1]}


@each(
    "frame",
    [
        json_frame("Produce", offsets=None),
        json_frame("Produce", offsets=[-1]),
        json_frame("Produce", offsets=["0"]),
        json_frame("Fetch", records=[], next_offset=None),
        json_frame("Fetch", records=[], next_offset=2**63),
        json_frame("Fetch", records=None, next_offset=6),
        json_frame("Fetch", records=[RECORD], next_offset=7),
        json_frame("Fetch", records=[RECORD, RECORD], next_offset=6),
        json_frame("Fetch", records=[{"payload": [1]}], next_offset=6),
        json_frame("Fetch", records=[{"offset": 5}], next_offset=6),
        json_frame("Fetch", records=[[1]], next_offset=6),
        json_frame("ListTopics", topics=None),
        json_frame("ListTopics", topics=[["a"]]),
        json_frame("ListTopics", topics=["ab"]),
        json_frame("OffsetCommit", success=1),
        json_frame("OffsetFetch", offset=-1),
        # Binary: records that end before they start, or beyond what can be counted.
        bytes.fromhex("02 00000001 00000000 0000000000000000"),
        bytes.fromhex("02 00000000 8000000000000000"),
        bytes.fromhex("06 ffffffff"),
        bytes.fromhex("02 ffffffff 0000000000000000"),
        bytes.fromhex("07 0001 ff 00000000 00000000"),
        bytes.fromhex("2a"),
        b"",
    ],
    ids=lambda frame: str(frame[:60]),
)
def test_malformed_response(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_response(frame)


def test_what_can_not_be_sent() -> None:
    for message in (
        Fetch("t", -1, 0, 0),
        Fetch("t", 0, 2**64, 0),
        Fetch("x" * 65536, 0, 0, 0),
        Fetch("\ud800", 0, 0, 0),
        ErrorResponse(None, ""),
        Produce("t", 0, make_records([bytes(FRAME_BYTES_MAX)])),
    ):
        with pytest.raises(LocalProtocolError):
            encode_message(message)
    with pytest.raises(LocalProtocolError):
        encode_message(Fetch("\ud800", 0, 0, 0), as_json=True)
    with pytest.raises(LocalProtocolError):
        encode_message(ProduceResponse(2**40, 2**20), as_json=True)


def test_the_largest_frame() -> None:
    records = make_records([bytes(FRAME_BYTES_MAX - 16)])
    [frame] = parse(join(encode_message(Produce("t", 0, records))))
    assert len(frame) == FRAME_BYTES_MAX
    [size] = decode_request(frame).records.values.lengths  # type: ignore[attr-defined]
    assert size == FRAME_BYTES_MAX - 16


def test_pings_look_alike() -> None:
    assert describe(to_payload(Ping())) == "0xFF PingResponse"
    assert describe(to_payload(Ping()), is_answer=False) == "0xFF Ping"


MANY = 1 << 18
BOMBS = {
    "lists": b'{"Produce":{"records":[' + b"[]," * MANY,
    "objects": b'{"Produce":{"records":[' + b"{}," * MANY,
    "nesting": b"{" + b"[" * MANY,
    "texts": b'{"Produce":{"records":[' + b'"ab",' * MANY,
    "numbers": b'{"Produce":{"records":[[' + b"999," * MANY + b"1]]}}",
    "floats": b'{"Produce":{"records":[[' + b"1.5," * MANY + b"1]]}}",
    "bytes": b'{"Produce":{"topic":"t","partition":0,"records":[['
    + b"9," * MANY
    + b"1]]}}",
    "large text": b'{"Produce":{"topic":"\xf0\x9f\x98\x80' + b"x" * MANY + b'"}}',
    "records": b'{"Produce":{"topic":"t","partition":0,"records":['
    + b"[1]," * (MANY - 1)
    + b"[]]}}",
    "too many": b'{"Produce":{"topic":"t","partition":0,"records":['
    + b"[1]," * MANY
    + b"[]]}}",
    "announced": b"\x01\x00\x01t\0\0\0\0\xff\xff\xff\xff" + bytes(MANY),
    "topics": b"\x06\0\2\0\0" + bytes(MANY),
}


@pytest.mark.parametrize("name", BOMBS)
def test_memory_is_bounded(name: str) -> None:
    frame = BOMBS[name]
    tracemalloc.start()
    try:
        for read in (decode_request, decode_response):
            try:
                found = read(frame)
            except RemoteProtocolError:
                continue
            assert not isinstance(found, Produce) or len(found.records) <= MANY
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # Records of four bytes grow most: a few positions of eight bytes each.
    limit = find_memory(frame) if is_json(frame) else 20 * len(frame)
    assert peak < limit + MANY
    if not is_json(frame) and frame[0] == 1:
        assert peak < find_memory(frame) + MANY


def test_json_that_takes_too_much() -> None:
    frame = b'{"Produce":{"topic":"t","partition":0,"records":[' + b"[]," * (10 * MANY)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="send fewer at a time"):
            decode_request(frame)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(frame)
    finally:
        tracemalloc.stop()
