"""TANK under test."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import pyarrow as pa

from lance_spark.wire import tank as wire
from lance_spark.wire.tank.frame import FORM
from tests.broker.tank.kit import bundle
from tests.integration.protocol.entry import MIB, Protocol, Request, join

_U32 = 2**32 - 1
# As many partitions as the counts of one byte allow.
_TOPICS = _PARTITIONS = 255
_FETCHES = tuple(wire.Fetch(n, 0, _U32) for n in range(_PARTITIONS))
_WRITES = tuple(wire.Write(n, b"") for n in range(_PARTITIONS))


def _frame(message: wire.Message) -> bytes:
    return join(wire.encode_message(message))


def _announce(size: int) -> bytes:
    return struct.pack("<BI", wire.Kind.PRODUCE, size)


def _payload(kind: int, payload: bytes) -> bytes:
    return struct.pack("<BI", kind, len(payload)) + payload


def _write(topic: str, *bundles: bytes, first_seq: int | None = None) -> bytes:
    kind = wire.Produce if first_seq is None else wire.ProduceAt
    writes = tuple(wire.Write(n, one, first_seq) for n, one in enumerate(bundles))
    return _frame(kind(request_id=1, topics=(wire.WriteTopic(topic, writes),)))


def _append(topic: str, values: Sequence[bytes]) -> bytes:
    return _write(topic, bundle(*values))


def _consume(
    topic: str, seq: int = 0, size: int = _U32, *, wait_ms: int = 0, count: int = 1
) -> bytes:
    fetches = (wire.Fetch(0, seq, size),) * count
    return _frame(
        wire.Consume(
            request_id=1,
            max_wait_ms=wait_ms,
            topics=(wire.FetchTopic(topic, fetches),),
        )
    )


def _poll(topic: str) -> bytes:
    return _consume(topic, wire.SEQ_END, wait_ms=3_600_000)


def _count_empty(data: bytes) -> int:
    """Count answers without records; a ping is none."""
    count = 0
    while data:
        kind, size = struct.unpack_from("<BI", data)
        count += kind == wire.Kind.CONSUME
        data = data[wire.HEADER_BYTES + size :]
    return count


def _repeat(message: wire.Produce | wire.Consume) -> bytes:
    """Write a request that names its topic as often as it can."""
    [topic] = message.topics
    part, payload = join(topic.encode(FORM)), _frame(message)[wire.HEADER_BYTES :]
    head = payload[: -len(part) - 1] + bytes([_TOPICS])
    return _payload(message.KIND, head + _TOPICS * part)


@functools.cache
def _zeros() -> bytes:
    return bytes(pa.Codec("snappy").compress(bytes(200 * MIB)))


NOISE = {
    "unknown message": _payload(9, b""),
    "an answer": _payload(wire.Kind.CONSUME, b"\xff" * 40),
    "a name cut off": _payload(wire.Kind.DISCOVER_PARTITIONS, bytes(4) + b"\xff"),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100d0010000cc0303").ljust(220, b"\7"),
    "65025 partitions to read": _repeat(
        wire.Consume(
            request_id=1,
            max_wait_ms=60_000,
            topics=(wire.FetchTopic("bystander", _FETCHES),),
        )
    ),
    "65025 partitions to write": _repeat(
        wire.Produce(request_id=1, topics=(wire.WriteTopic("bystander", _WRITES),))
    ),
    "a topic of 65535 partitions": _frame(wire.CreateTopic(1, "vast", 2**16 - 1)),
    "a topic outside": _frame(wire.CreateTopic(1, "../evil", 1)),
    "no topics": _frame(wire.Consume(request_id=1)),
    "the last partition": _frame(
        wire.Consume(
            request_id=1,
            topics=(
                wire.FetchTopic("bystander", (wire.Fetch(2**16 - 1, 2**63, _U32),)),
            ),
        )
    ),
}
BOMBS: dict[str, Request] = {
    "claims 2 GiB": lambda topic: _write(topic, b"\x05\xff\xff\xff\xff\x07" + bytes(9)),
    "becomes 200 MiB": lambda topic: _write(topic, b"\x05" + _zeros()),
    "16 million messages in snappy": lambda topic: _write(
        topic, b"\x01\x80\x80\x80\x08" + _zeros()
    ),
    "8 million messages": lambda topic: _write(
        topic, b"\0\x80\x80\x80\x04" + bytes(15 * MIB)
    ),
    "more messages than bytes": lambda topic: _write(
        topic, b"\0\xff\xff\xff\xff\x0f" + bytes(100)
    ),
}
REQUESTS: dict[str, Request] = {
    "ping": lambda topic: _frame(wire.Ping()) * 1000,
    "status": lambda topic: _frame(wire.GetStatus(1)) * 10,
    "topics": lambda topic: _frame(wire.DiscoverTopics(1)) * 10,
    "partitions": lambda topic: _frame(wire.DiscoverPartitions(1, topic)) * 10,
    "topology": lambda topic: _frame(wire.DiscoverTopology(1)) * 10,
    "create": lambda topic: _frame(wire.CreateTopic(1, topic, 1)) * 10,
    "reload": lambda topic: _frame(wire.ReloadConf(1, topic, 0)) * 10,
    "unknown": lambda topic: _payload(9, b""),
    "consume": _consume,
    "consume small": lambda topic: _consume(topic, size=1) * 10,
    "consume many": lambda topic: _consume(topic, size=1, count=_PARTITIONS),
    "stalled": lambda topic: _consume(topic) * 8,
    "poll": lambda topic: _poll(topic) * 10,
    "small batches": lambda topic: _append(topic, [b"x" * 100]) * 100,
    "batches": lambda topic: _append(topic, [b"x" * 100] * 9000),
    "snappy": lambda topic: _write(topic, bundle(b"x" * 8 * MIB, compress=True)),
    "bad batches": lambda topic: _write(topic, b"\x08" + bytes(100_000)),
    "refused batches": lambda topic: _write(topic, bundle(b"x"), first_seq=1) * 10,
    "bombs": BOMBS["becomes 200 MiB"],
    "announced": lambda topic: _announce(16 * MIB) + bytes(16 * 1024),
}

TANK = Protocol(
    name="tank",
    announce=_announce,
    payload_bytes_max=16 * MIB + 64 * 1024,
    append=_append,
    fetch=_consume,
    noise=NOISE,
    bombs=BOMBS,
    requests=REQUESTS,
    poll=_poll,
    count_refused=_count_empty,
    is_conditional=True,
)
