"""RustLog under test."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

from lance_spark.errors import ConnectionLost
from lance_spark.wire import rustlog as wire
from tests.broker.rustlog.kit import RustlogClient, make
from tests.integration.protocol.entry import MIB, Protocol, Request, join

_numbers = itertools.count(1)
_U32 = 2**32 - 1


class RustlogTeller(RustlogClient):
    """Produce tells a number, and 03 and 04 are commits."""

    def next_payload(self) -> bytes:
        """Read the payload of a frame."""
        payload = super().next_payload()
        if payload is None:
            raise ConnectionLost("the broker closed the connection")
        return payload

    def commit(self, topic: str, group: str, position: int) -> None:
        """Have it keep how far a group is."""
        assert self.ask(wire.OffsetCommit(topic, 0, group, position)).success

    def committed(self, topic: str, group: str) -> int | None:
        """Ask how far a group is."""
        found: int | None = self.ask(wire.OffsetFetch(topic, 0, group)).offset
        return found

    def close(self) -> None:
        """End the connection."""
        self.stream.close()


def _frame(message: wire.Message, *, as_json: bool = False) -> bytes:
    return join(wire.encode_message(message, as_json=as_json))


def _announce(size: int) -> bytes:
    return struct.pack(">I", size) + b"\x01"


def _payload(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def _append(topic: str, values: Sequence[bytes], **form: Any) -> bytes:
    return _frame(wire.Produce(topic, 0, make(values)), **form)


def _fetch(topic: str, size: int = _U32, **form: Any) -> bytes:
    return _frame(wire.Fetch(topic, 0, 0, size), **form)


def _head(topic: str, count: int) -> bytes:
    """Write the start of a Produce of so many records."""
    name = topic.encode()
    head = struct.pack(">BH", 1, len(name)) + name
    return head + struct.pack(">II", 0, count)


def _json_of(records: bytes) -> Request:
    def make_one(topic: str) -> bytes:
        head = f'{{"Produce":{{"topic":"{topic}","partition":0,"records":['
        return _payload(head.encode() + records + b"[]]}}")

    return make_one


def _commit(topic: str) -> bytes:
    group = f"{next(_numbers) % 1000}"
    return _frame(wire.OffsetCommit(topic, 0, group, 0))


NOISE = {
    "no length": bytes(4),
    "no command": _payload(b"\x2a"),
    "an answer": _payload(b"\xfe\x00\x01\x00\x00"),
    "a name cut off": _payload(b"\x01\x00\xff"),
    "text": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100d0010000cc0303").ljust(220, b"\7"),
    "half of JSON": _payload(b'{"Produce":{"topic"'),
    "deep JSON": _payload(b'{"Produce":' + b"[" * 100_000),
    "a topic of 4 billion partitions": _frame(wire.CreateTopic("vast", _U32)),
    "a topic of 65535 partitions": _frame(wire.CreateTopic("vast", 2**16 - 1)),
    "a topic outside": _frame(wire.CreateTopic("../evil", 1)),
    "the last partition": _frame(wire.Fetch("bystander", _U32, 2**64 - 1, _U32)),
}
BOMBS: dict[str, Request] = {
    "more records than bytes": lambda topic: _payload(_head(topic, _U32)),
    "a record of 4 GiB": lambda topic: _payload(
        _head(topic, 1) + b"\xff" * 4 + bytes(1000)
    ),
    "empty records in JSON": _json_of(b"[]," * (3 * MIB)),
}
REQUESTS: dict[str, Request] = {
    "ping": lambda topic: _frame(wire.Ping()) * 1000,
    "list": lambda topic: _frame(wire.ListTopics()) * 10,
    "describe": lambda topic: _frame(wire.DescribeTopic(topic)) * 10,
    "describe one": lambda topic: _frame(wire.DescribePartition(topic, 0)) * 10,
    "create": lambda topic: _frame(wire.CreateTopic(topic, 1)) * 10,
    "commit": _commit,
    "committed": lambda topic: _frame(wire.OffsetFetch(topic, 0, "no")) * 10,
    "metrics": lambda topic: _frame(wire.MetricsFetch()),
    "unknown": lambda topic: _payload(b"\x2a") * 100,
    "fetch": _fetch,
    "fetch small": lambda topic: _fetch(topic, 1) * 10,
    "fetch JSON": lambda topic: _fetch(topic, 2**20, as_json=True),
    "stalled": lambda topic: _fetch(topic) * 8,
    "small batches": lambda topic: _append(topic, [b"x" * 100]) * 100,
    "batches": lambda topic: _append(topic, [b"x" * 100] * 9000),
    "bad batches": lambda topic: _payload(_head(topic, 9000) + bytes(100_000)),
    "batches in JSON": lambda topic: _append(topic, [b"x" * 100] * 500, as_json=True),
    "bombs": BOMBS["empty records in JSON"],
    "announced": lambda topic: _announce(10 * MIB) + bytes(16 * 1024),
}

RUSTLOG = Protocol(
    name="rustlog",
    announce=_announce,
    payload_bytes_max=wire.FRAME_BYTES_MAX,
    append=_append,
    fetch=_fetch,
    noise=NOISE,
    bombs=BOMBS,
    requests=REQUESTS,
    dial=RustlogTeller,
)
