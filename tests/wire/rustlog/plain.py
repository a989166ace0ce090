"""The vectors, an independent encoder, and messages of chance."""

from __future__ import annotations

import dataclasses
import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np

from lance_spark.records import Records, Spans
from lance_spark.wire.rustlog import REQUESTS, RESPONSES, FrameParser, Message

VECTORS = [
    row
    for name in ("binary", "json")
    for row in json.loads((Path(__file__).parent / f"vectors/{name}.json").read_text())
]
KINDS = [*REQUESTS.values(), *RESPONSES.values()]

# What stands behind the type, as in the notes: s text, t long text, r records, o an
# offset that may be missing, p pairs of text and u32, q pairs of u32 and u64.
LAYOUTS = {
    "Produce": "topic:s partition:I records:r",
    "ProduceResponse": "base_offset:Q count:I",
    "Fetch": "group_id:s topic:s partition:I offset:Q max_bytes:I",
    "FetchResponse": "records:r next_offset:Q",
    "OffsetCommit": "group_id:s topic:s partition:I offset:Q",
    "OffsetCommitResponse": "success:B",
    "OffsetFetch": "group_id:s topic:s partition:I",
    "OffsetFetchResponse": "offset:o",
    "CreateTopic": "topic:s partitions:I",
    "CreateTopicResponse": "success:B",
    "ListTopics": "",
    "ListTopicsResponse": "topics:p",
    "DescribeTopic": "topic:s",
    "DescribeTopicResponse": "topic:s partition_count:I partitions:q",
    "DescribePartition": "topic:s partition:I",
    "DescribePartitionResponse": "topic:s partition:I base_offset:Q",
    "MetricsFetch": "",
    "MetricsFetchResponse": "text:t",
    "Ping": "",
    "PingResponse": "",
    "ErrorResponse": "code:H message:s",
}


def make_records(values: list[bytes], base: int = 0) -> Records:
    """Make records whose values lie in disorder, with foreign bytes between them."""
    data, spans = b"<", {}
    for row in sorted(range(len(values)), key=lambda row: values[row]):
        spans[row] = (len(data), len(data) + len(values[row]))
        data += values[row] + b"|"
    pairs = np.array([spans[row] for row in range(len(values))], np.int64)
    starts, ends = np.ascontiguousarray(pairs.reshape(-1, 2).T)
    return Records(Spans(np.frombuffer(data, np.uint8), starts, ends), base)


def list_values(records: Records) -> list[bytes]:
    spans = records.values
    bounds = zip(spans.starts, spans.ends, strict=True)
    return [spans.data[start:end].tobytes() for start, end in bounds]


def reduce(message: Message) -> dict[str, Any]:
    """Reduce a message to what can be compared."""
    found = {
        field.name: getattr(message, field.name)
        for field in dataclasses.fields(message)
    }  # type: ignore[arg-type]
    for name, value in found.items():
        if isinstance(value, Records):
            found[name] = list_values(value)
    return {"kind": type(message).__name__, **found}


def encode_plainly(message: Message) -> bytes:
    """Write a binary frame without the codec."""
    payload = bytes([message.COMMAND])
    for item in LAYOUTS[type(message).__name__].split():
        name, code = item.split(":")
        payload += _encode_value(code, reduce(message)[name])
    return struct.pack(">I", len(payload)) + payload


def _encode_value(code: str, value: Any) -> bytes:
    if code == "s":
        return struct.pack(">H", len(value.encode())) + value.encode()
    if code == "t":
        return struct.pack(">I", len(value.encode())) + value.encode()
    if code == "o":
        return b"\0" if value is None else struct.pack(">BQ", 1, value)
    if code == "r":
        parts = [struct.pack(">I", len(item)) + item for item in value]
        return struct.pack(">I", len(parts)) + b"".join(parts)
    if code in "pq":
        codes = "sI" if code == "p" else "IQ"
        parts = [
            _encode_value(c, v)
            for item in value
            for c, v in zip(codes, item, strict=True)
        ]
        return struct.pack(">I", len(value)) + b"".join(parts)
    return struct.pack(">" + code, value)


def make_message(kind: type[Message], choice: random.Random) -> Message:
    """Make a message of chance."""
    values: dict[str, Any] = {}
    for item in LAYOUTS[kind.__name__].split():
        name, code = item.split(":")
        values[name] = _make_value(code, choice)
    if name_of_records := [n for n, v in values.items() if isinstance(v, Records)]:
        count = len(values[name_of_records[0]])
        if "next_offset" in values:
            values["next_offset"] = count + choice.choice(
                [0, 1, 2**31, 2**63 - 1 - count]
            )
    if "count" in values:
        values["count"] = choice.randrange(300)
        values["base_offset"] = values["count"] and choice.randrange(2**60)
    if "success" in values:
        values["success"] = choice.random() < 0.5
    return kind(**values)


def _make_value(code: str, choice: random.Random) -> Any:
    if code in "st":
        letters = 'aZ0 /.\\"{[\x00\x1f\n\xe9\u20ac\U0001f600'
        return "".join(choice.choices(letters, k=choice.choice([0, 1, 5, 300])))
    if code == "o":
        return choice.choice([None, 0, 2**64 - 1])
    if code == "r":
        count, size = choice.choice([0, 1, 2, 200]), choice.choice([1, 2, 40])
        return make_records(
            [choice.randbytes(choice.randrange(size)) for _ in range(count)]
        )
    if code in "pq":
        first, second = ("s", "I") if code == "p" else ("I", "Q")
        count = choice.randrange(5)
        return tuple(
            (_make_value(first, choice), _make_value(second, choice))
            for _ in range(count)
        )
    most = 256 ** struct.calcsize(code) - 1
    return choice.choice([0, 1, choice.randint(0, most), most])


def parse(stream: bytes, step: int | None = None) -> list[memoryview]:
    """Take the frames out of a stream that comes in pieces of `step` bytes."""
    parser, frames = FrameParser(), []
    for at in range(0, len(stream), step or len(stream)):
        parser.receive_data(stream[at : at + (step or len(stream))])
        frames += parser.frames()
    parser.receive_eof()
    assert parser.error is None
    return frames


def join(parts: Any) -> bytes:
    return b"".join(bytes(part) for part in parts)
