"""Fluvio under test: its SPU, which has the records."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Any

from crc32c import crc32c

from lance_spark.errors import ConnectionLost
from lance_spark.net.address import parse_address
from lance_spark.net.connect import connect
from lance_spark.wire import fluvio as wire
from tests.broker.kit import make_records, patience
from tests.integration.protocol.entry import MIB, Protocol, Request, join

_I32 = _ALL = 2**31 - 1
_BOMB_BYTES = 100 * MIB
# Where a batch has its length and its checksum, which is of what is behind it, and how
# many records there are.
_LENGTH_AT, _CRC_AT, _SUMMED_AT, _COUNT_AT = 8, 17, 21, 61


class FluvioTeller:
    """A write tells a number."""

    def __init__(self, address: str) -> None:
        self._stream = connect(parse_address(address), deadline=patience())
        self._parser = wire.FrameParser()

    def produce(self, topic: str, values: Sequence[bytes]) -> int:
        """Append; give the position of the first."""
        request = _make_produce(topic, _batch(values))
        self._stream.send(wire.encode_message(request), patience())
        while (frame := self._parser.next_frame()) is None:
            buffer = self._parser.buffer_for_read()
            size = self._stream.recv_into(buffer, patience())
            if not size:
                raise ConnectionLost("the broker closed the connection")
            self._parser.bytes_written(size)
        answer: Any = wire.decode_response(frame, request)
        [outcome] = answer.topics[0].outcomes
        if outcome.error != wire.NO_ERROR:
            raise wire.make_error(outcome.error)
        first: int = outcome.base_offset
        return first

    def close(self) -> None:
        """End the connection."""
        self._stream.close()


def _frame(message: wire.Message) -> bytes:
    return join(wire.encode_message(message))


def _payload(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def _announce(size: int) -> bytes:
    return struct.pack(">I", size)


def _batch(values: Sequence[bytes], codec: wire.Codec = wire.Codec.NONE) -> bytes:
    return bytes(wire.write_records(make_records(*values), codec=codec))


def _make_produce(topic: str, *record_sets: bytes) -> wire.Produce:
    writes = tuple(wire.Write(n, one) for n, one in enumerate(record_sets))
    return wire.Produce(topics=(wire.WriteTopic(topic, writes),))


def _produce(topic: str, *record_sets: bytes) -> bytes:
    return _frame(_make_produce(topic, *record_sets))


def _append(topic: str, values: Sequence[bytes]) -> bytes:
    return _produce(topic, _batch(values))


def _fetch(
    topic: str, offset: int = 0, size: int = _ALL, *, wait_ms: int = 0, count: int = 1
) -> bytes:
    part = wire.FetchPartition(0, offset=offset, max_bytes=size)
    return _frame(
        wire.Fetch(
            max_wait_ms=wait_ms,
            max_bytes=size,
            topics=(wire.FetchTopic(topic, (part,) * count),),
        )
    )


def _stream(topic: str, offset: int = 0) -> bytes:
    return _frame(wire.StreamFetch(topic, offset=offset, max_bytes=_ALL))


def _count_frames(data: bytes) -> int:
    """Count answers: a stream of which nothing can be sent has none."""
    count = 0
    while data:
        (size,) = struct.unpack_from(">I", data)
        assert b"no room" in data[: 4 + size] or size < 100, data[: 4 + size]
        data, count = data[4 + size :], count + 1
    return count


def _bomb(codec: wire.Codec) -> Request:
    @functools.cache
    def make() -> bytes:
        return _batch([bytes(_BOMB_BYTES)], codec)

    return lambda topic: _produce(topic, make())


def _claim(topic: str) -> bytes:
    """Write a batch that claims to have more records than bytes."""
    data = bytearray(_batch([b""])[:_COUNT_AT] + struct.pack(">i", _I32) + bytes(100))
    struct.pack_into(">i", data, _LENGTH_AT, len(data) - _LENGTH_AT - 4)
    struct.pack_into(">I", data, _CRC_AT, crc32c(data[_SUMMED_AT:]))
    return _produce(topic, bytes(data))


NOISE = {
    "no length": bytes(4),
    "a length below 0": b"\xff\xff\xff\xff",
    "no request": _payload(b"\x2a" * 3),
    "an unknown request": _frame(wire.Other(77)),
    "version 32767": _payload(struct.pack(">HhiH", 0, 2**15 - 1, 1, 0)),
    "a name cut off": _payload(struct.pack(">HhiH", 18, 0, 1, 0xFFFF)),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100d0010000cc0303").ljust(220, b"\7"),
    "a topic outside": _fetch("../evil"),
    "no topics": _frame(wire.Fetch(max_wait_ms=60_000)),
    "2 billion topics": _payload(
        struct.pack(">HhiH", 0, 25, 1, 0) + b"\0" + struct.pack(">hii", 0, 0, _I32)
    ),
    "65025 partitions to read": _fetch("bystander", 0, 1, wait_ms=60_000, count=65025),
    "65025 partitions to write": _produce("bystander", *[b""] * 65025),
    "the last partition": _frame(
        wire.Fetch(
            topics=(
                wire.FetchTopic(
                    "bystander", (wire.FetchPartition(2**32 - 1, offset=2**63 - 1),)
                ),
            )
        )
    ),
    "a stream of nobody": _frame(
        wire.UpdateOffsets((wire.Consumed(2**63 - 1, 2**32 - 1),))
    ),
}
BOMBS: dict[str, Request] = {
    **{
        f"becomes 100 MiB by {codec.name.lower()}": _bomb(codec)
        for codec in wire.Codec
        if codec is not wire.Codec.NONE
    },
    "more records than bytes": _claim,
}
REQUESTS: dict[str, Request] = {
    "versions": lambda topic: _frame(wire.ApiVersions()) * 100,
    "offsets": lambda topic: (
        _frame(wire.FetchOffsets((wire.OffsetsTopic(topic, (0,)),))) * 10
    ),
    "flush": lambda topic: _frame(wire.Produce()) * 100,
    "unknown": lambda topic: NOISE["an unknown request"] * 100,
    "fetch": _fetch,
    "fetch small": lambda topic: _fetch(topic, size=1) * 10,
    "fetch many": lambda topic: _fetch(topic, size=1, count=1000),
    "stalled": lambda topic: _fetch(topic) * 8,
    "poll": lambda topic: _fetch(topic, 2**40, wait_ms=3_600_000) * 10,
    "stream": _stream,
    "streams": lambda topic: _stream(topic, 2**40) * 10,
    "small batches": lambda topic: _append(topic, [b"x" * 100]) * 100,
    "batches": lambda topic: _append(topic, [b"x" * 100] * 9000),
    "bad batches": lambda topic: _produce(topic, bytes(100_000)),
    "zstd": lambda topic: _produce(topic, _batch([b"x" * 8 * MIB], wire.Codec.ZSTD)),
    "bombs": BOMBS["becomes 100 MiB by zstd"],
    "announced": lambda topic: _announce(16 * MIB) + bytes(16 * 1024),
}

FLUVIO = Protocol(
    name="fluvio",
    listener="fluvio_spu",
    announce=_announce,
    payload_bytes_max=16 * MIB + 64 * 1024,
    append=_append,
    fetch=_fetch,
    noise=NOISE,
    bombs=BOMBS,
    requests=REQUESTS,
    dial=FluvioTeller,
    poll=_stream,
    count_refused=_count_frames,
)
