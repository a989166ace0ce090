"""Kimberlite under test.

Requests name a stream by its id, and an append tells how long the stream is: only one
in the form of release 0.1 does not, which is the form of what is to be stored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from lance_spark.errors import AppendConflictError, ConnectionLost
from lance_spark.wire import kimberlite as wire
from tests.broker.kimberlite.kit import HOME, KimberliteClient
from tests.broker.kit import make_records
from tests.integration.protocol.entry import MIB, Protocol, Request, join

_U32, _U64 = 2**32 - 1, 2**64 - 1
_VERSION = wire.V5.frame_version


class KimberliteTeller(KimberliteClient):
    """An append tells a number, and is made again at the end that it finds."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._lengths: dict[int, int] = {}

    def next_frame(self) -> wire.Frame:
        """Read a frame."""
        frame = super().next_frame()
        if frame is None:
            raise ConnectionLost("the broker closed the connection")
        return frame

    def produce(self, topic: str, values: Sequence[bytes]) -> int:
        """Append; give the position of the first."""
        stream = self._do(wire.CreateStream(topic)).stream_id
        length = self._do(wire.StreamInfo(stream)).length
        append = wire.AppendEvents(stream, make_records(*values), length)
        while True:
            try:
                first: int = self._do(append).first_offset
                return first
            except AppendConflictError as error:
                told = error.details["next_record"]
                append = wire.AppendEvents(stream, append.events, told)

    def _do(self, message: wire.Message) -> Any:
        answer = self.ask(message)
        if isinstance(answer, wire.ErrorResponse):
            raise answer.to_exception()
        return answer

    def close(self) -> None:
        """End the connection."""
        self.stream.close()


def _find_name(address: str, topic: str) -> str:
    with KimberliteClient(address) as client:
        return str(client.create(topic))


def _frame(message: wire.Message, form: str = "v5") -> bytes:
    request = wire.Request(1, HOME, message)
    return join(wire.encode_message(request, wire.WIRES[form]))


def _payload(payload: bytes, version: int = _VERSION) -> bytes:
    return join(wire.encode_frame(version, [payload]))


def _announce(size: int) -> bytes:
    return struct.pack(">IHII", wire.MAGIC, _VERSION, size, 0)


def _append(stream: str, values: Sequence[bytes]) -> bytes:
    message = wire.AppendEvents(int(stream), make_records(*values))
    return _frame(message, "v1-bincode")


def _append_at(stream: str, values: Sequence[bytes], expected: int = 0) -> bytes:
    return _frame(wire.AppendEvents(int(stream), make_records(*values), expected))


def _read(stream: str, size: int = _U64) -> bytes:
    return _frame(wire.ReadEvents(int(stream), 0, size))


def _subscribe(stream: str, credits: int = _U32) -> bytes:
    return _frame(wire.Subscribe(int(stream), 0, credits))


def _leb(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def _events(stream: str, count: int, rest: bytes) -> bytes:
    """Write an append that claims to have so many events."""
    # A request, its id and tenant, no audit, AppendEvents.
    return _payload(bytes((0, 1, HOME, 0, 2)) + _leb(int(stream)) + _leb(count) + rest)


NOISE = {
    "no payload": _payload(b""),
    "no request": _payload(b"\x2a" * 20),
    "an answer": _payload(b"\x01\x01\x01\x05\x01\x00"),
    "a name cut off": _payload(b"\x00\x01\x01\x00\x01\xff\x01"),
    "version 77": _payload(b"\x00\x01\x01\x00\x08", 77),
    "a wrong checksum": _announce(5) + b"\x00\x01\x01\x00\x08",
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100d0010000cc0303").ljust(220, b"\7"),
    "a stream outside": _frame(wire.CreateStream("../evil")),
    "a tenant of 64 bits": _payload(
        b"\x00\x01" + _leb(_U64) + b"\x00\x01\x04vast\x00\x01\x01"
    ),
    "the last stream": _frame(wire.ReadEvents(_U64, _U64, _U64)),
    "a subscription of nobody": _frame(wire.SubscribeCredit(_U64, _U32)),
    "a request that is not served": _payload(b"\x00\x01\x01\x00\x2a\x00"),
}
BOMBS: dict[str, Request] = {
    "more events than bytes": lambda stream: _events(stream, _U32, bytes(100)),
    "an event of 4 GiB": lambda stream: _events(stream, 1, _leb(_U32) + bytes(1000)),
    "15 million events": lambda stream: _events(stream, 15 * MIB, bytes(15 * MIB + 1)),
}
REQUESTS: dict[str, Request] = {
    "handshake": lambda stream: _frame(wire.Handshake(_VERSION)) * 100,
    "length": lambda stream: _frame(wire.StreamInfo(int(stream))) * 100,
    "create": lambda stream: _frame(wire.CreateStream("taken")) * 10,
    "sync": lambda stream: _frame(wire.Sync()),
    "unknown": lambda stream: NOISE["a request that is not served"] * 100,
    "read": _read,
    "read small": lambda stream: _read(stream, 1) * 10,
    "stalled": lambda stream: _read(stream) * 8,
    "subscribe": _subscribe,
    "subscribe without credits": lambda stream: _subscribe(stream, 0) * 10,
    "small batches": lambda stream: _append(stream, [b"x" * 100]) * 100,
    "batches": lambda stream: _append(stream, [b"x" * 100] * 9000),
    "bad batches": lambda stream: _events(stream, 9000, bytes(100_000)),
    "refused batches": lambda stream: _append_at(stream, [b"x"]) * 10,
    "bombs": BOMBS["15 million events"],
    "announced": lambda stream: _announce(16 * MIB) + bytes(16 * 1024),
}

KIMBERLITE = Protocol(
    name="kimberlite",
    announce=_announce,
    payload_bytes_max=wire.PAYLOAD_BYTES_MAX,
    append=_append,
    fetch=_read,
    noise=NOISE,
    bombs=BOMBS,
    requests=REQUESTS,
    dial=KimberliteTeller,
    poll=_subscribe,
    count_refused=lambda data: data.count(b"this connection has 256 subscriptions"),
    is_conditional=True,
    is_checked=True,
    find_name=_find_name,
)
