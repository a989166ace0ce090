"""Servers that lie: clients of protocols besides LWP fail in time, and cleanly.

Whatever a server says, a client raises a `LanceError` before its deadline, takes no
more memory than its settings allow, and delivers no row that is not at its position.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.client import LogClient, connect
from lance_spark.errors import LanceError
from lance_spark.wire import fluvio, kimberlite, rustlog, tank
from lance_spark.wire.fluvio.compression import compress
from tests.broker.rustlog.kit import make
from tests.broker.tank.kit import bundle
from tests.client.fluvio.field import FieldCluster as FluvioCluster
from tests.client.fluvio.field import batch as fluvio_batch_of
from tests.client.kimberlite.field import FieldServer as KimberliteServer
from tests.client.rustlog.field import FieldServer as RustlogServer
from tests.client.tank.field import FieldServer as TankServer
from tests.integration.process import HAS_PROC, read_status
from tests.integration.test_hostile import mutate
from tests.patience import PATIENCE_S, try_patiently
from tests.wire.fluvio import reference as fluvio_reference

MIB = 1024 * 1024
# A lie may cost this time again and again until the last try.
TIMES = {
    "connect_timeout_s": 0.5,
    "request_timeout_s": 0.3,
    "retry_timeout_s": 0.6,
    "backoff_base_s": 0.01,
    # The least that RustLog allows. TANK's bundles may become eight times as much.
    "response_bytes_max": 10 * MIB,
}
# An answer, twice what it is expanded to, and what else is loaded meanwhile.
GROWTH_BYTES_MAX = (10 + 2 * 80 + 24) * MIB
_ME = os.getpid()
VALUES = [b"value %d" % n for n in range(20)]
HUGE = 2**32 - 1
U64 = 2**64 - 1
Lie = Callable[[Any, Any], Iterable[bytes] | None]


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    """Give positions and values."""
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("offset", "value"))
        yield from zip(*columns, strict=True)


class AnotherRow(Exception):
    """A row that its position does not have."""


def check_rows(rows: Iterable[tuple[int, bytes]], first: int) -> None:
    """Check that each row is that of its position; `append` may have added some."""
    for number, (position, value) in enumerate(rows, first):
        assert position == number, "a gap"
        expected = dict(enumerate(VALUES, first)).get(position, b"more")
        if value != expected:
            raise AnotherRow(position)


def read_all(client: LogClient) -> None:
    """Read the topic as far as the server says that it goes."""
    first = client.driver.traits.first_position
    check_rows(rows_of(client.read("orders", fetch_bytes=100)), first)


def read_range(client: LogClient) -> None:
    """Read what is known to be there."""
    first = client.driver.traits.first_position
    end = first + len(VALUES)
    check_rows(rows_of(client.read("orders", 0, first, end, fetch_bytes=100)), first)


def follow(client: LogClient) -> None:
    """Follow the topic from its first record on."""
    first = client.driver.traits.first_position
    batches = client.follow("orders", 0, first, timeout_s=0.2, fetch_bytes=100)
    check_rows(rows_of(batches), first)


def append(client: LogClient) -> None:
    client.append("orders", [b"more"], 0)


def create(client: LogClient) -> None:
    client.append("new", [b"more"], 0, create=True)


Work = Callable[[LogClient], None]


@dataclass(frozen=True)
class Liar:
    """A protocol whose server lies.

    Args:
        run: makes the server of the field.
        lies: by name: the work, the request whose answer is a lie, and the lie.
        encode: writes the answer, for lies that damage it.
    """

    run: Callable[[], AbstractContextManager[Any]]
    lies: dict[str, tuple[Work, type[Any], Lie]]
    encode: Callable[[Any], Iterable[Any]]


def endless(frame: bytes) -> Lie:
    """Say the same again and again."""
    return lambda request, answer: itertools.repeat(frame * 100)


def silent(request: Any, answer: Any) -> Iterable[bytes]:
    return ()


# RustLog.


def rustlog_frame(message: rustlog.Message) -> bytes:
    return b"".join(map(bytes, rustlog.encode_message(message)))


def rustlog_payload(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def rustlog_fetched(values: list[bytes], next_offset: int) -> Lie:
    return lambda request, answer: [
        rustlog_frame(rustlog.FetchResponse(make(values), next_offset))
    ]


def rustlog_change(**fields: Any) -> Lie:
    return lambda request, answer: [rustlog_frame(replace(answer, **fields))]


RUSTLOG: dict[str, tuple[Work, type[Any], Lie]] = {
    "a huge frame": (
        *(read_all, rustlog.Fetch),
        lambda *_: [struct.pack(">I", HUGE) + b"\2"],
    ),
    "a frame that never comes": (
        *(read_all, rustlog.Fetch),
        lambda *_: [struct.pack(">I", 10 * MIB) + b"\2"],
    ),
    "no frame": (read_all, rustlog.Fetch, lambda *_: [bytes(4)]),
    "4 billion records": (
        *(read_all, rustlog.Fetch),
        lambda *_: [rustlog_payload(b"\2" + b"\xff" * 12)],
    ),
    "a record of 4 GiB": (
        *(read_all, rustlog.Fetch),
        lambda *_: [rustlog_payload(b"\2\0\0\0\1" + b"\xff" * 12)],
    ),
    "another answer": (
        *(read_all, rustlog.Fetch),
        lambda *_: [rustlog_frame(rustlog.PingResponse())],
    ),
    "records that come later": (
        *(read_all, rustlog.Fetch),
        rustlog_fetched([b"x"], 2**40),
    ),
    "records behind all offsets": (
        *(read_all, rustlog.Fetch),
        lambda *_: [rustlog_payload(b"\2\0\0\0\1\0\0\0\1x" + b"\xff" * 8)],
    ),
    "records before the first": (
        *(read_all, rustlog.Fetch),
        lambda *_: [
            rustlog_payload(b"\2\0\0\0\2\0\0\0\1x\0\0\0\1y" + bytes(7) + b"\1")
        ],
    ),
    "offsets that go back": (
        *(read_all, rustlog.Fetch),
        lambda request, answer: (
            [rustlog_frame(rustlog.FetchResponse(make(VALUES[:1]), 1))]
            if request.offset
            else None
        ),
    ),
    "nothing, again and again": (read_range, rustlog.Fetch, rustlog_fetched([], 0)),
    "another topic": (
        *(read_all, rustlog.DescribeTopic),
        rustlog_change(topic="another"),
    ),
    "a first offset behind all": (
        *(read_all, rustlog.DescribeTopic),
        rustlog_change(partitions=((0, U64),)),
    ),
    "no such partition": (
        *(read_all, rustlog.DescribeTopic),
        rustlog_change(partitions=((7, 0),)),
    ),
    "4 billion partitions": (
        *(read_all, rustlog.ListTopics),
        rustlog_change(topics=(("orders", HUGE),)),
    ),
    "4 billion topics": (
        *(read_all, rustlog.ListTopics),
        lambda *_: [rustlog_payload(b"\6" + b"\xff" * 40)],
    ),
    "fewer records stored": (append, rustlog.Produce, rustlog_change(count=0)),
    "more records stored": (append, rustlog.Produce, rustlog_change(count=HUGE)),
    "not created": (create, rustlog.CreateTopic, rustlog_change(success=False)),
    "silence": (read_all, rustlog.Fetch, silent),
    "silence to an append": (append, rustlog.Produce, silent),
    "endless answers": (
        *(read_all, rustlog.Fetch),
        endless(rustlog_frame(rustlog.PingResponse())),
    ),
}


# TANK.


def tank_frame(message: tank.Message) -> bytes:
    return b"".join(map(bytes, tank.encode_message(message)))


def tank_payload(kind: tank.Kind, payload: bytes) -> bytes:
    return struct.pack("<BI", kind, len(payload)) + payload


def tank_change(**fields: Any) -> Lie:
    return lambda request, answer: [tank_frame(replace(answer, **fields))]


def tank_fetched(**fields: Any) -> Lie:
    """Change what an answer says of its partition."""

    def lie(request: Any, answer: Any) -> Iterable[bytes]:
        [topic] = answer.topics
        found = replace(topic.partitions[0], **fields)
        topics = (replace(topic, partitions=(found,)),)
        return [tank_frame(replace(answer, topics=topics))]

    return lie


def tank_topics(*topics: tank.FetchedTopic) -> Lie:
    return tank_change(topics=topics)


def framed(data: bytes) -> bytes:
    """Put the length of a bundle in front of it."""
    size, prefix = len(data), b""
    while size > 0x7F:
        prefix, size = prefix + bytes([size & 0x7F | 0x80]), size >> 7
    return prefix + bytes([size]) + data


def snappy_bomb(*_: Any) -> bytes:
    """Make a chunk of bundles that become more than all that may be expanded."""
    zeros = bytes(pa.Codec("snappy").compress(bytes(40 * MIB)))
    return framed(b"\x05" + zeros) * 3


def tank_bomb(request: Any, answer: Any) -> Iterable[bytes]:
    frames = tank_fetched(chunk=snappy_bomb(), hwm=100)(request, answer)
    assert frames is not None
    return frames


TANK: dict[str, tuple[Work, type[Any], Lie]] = {
    "a huge frame": (read_all, tank.Consume, lambda *_: [b"\2" + b"\xff" * 4]),
    "a frame that never comes": (
        *(read_all, tank.Consume),
        lambda *_: [struct.pack("<BI", 2, 30 * MIB)],
    ),
    "an unknown message": (read_all, tank.Consume, lambda *_: [b"\x09" + bytes(4)]),
    "another request": (
        *(read_all, tank.Consume),
        lambda request, answer: [tank_frame(replace(answer, request_id=HUGE))],
    ),
    "another answer": (
        *(read_all, tank.Consume),
        lambda request, answer: [tank_frame(tank.Status(request.request_id))],
    ),
    "another topic": (
        *(read_all, tank.Consume),
        tank_topics(tank.FetchedTopic("another", (tank.Fetched(0),))),
    ),
    "another partition": (read_all, tank.Consume, tank_fetched(partition=9)),
    "no topic": (read_all, tank.Consume, tank_topics()),
    "two topics": (
        *(read_all, tank.Consume),
        tank_topics(*[tank.FetchedTopic("orders", (tank.Fetched(0),))] * 2),
    ),
    "a header of 4 GiB": (
        *(read_all, tank.Consume),
        lambda request, answer: [
            tank_payload(
                tank.Kind.CONSUME,
                b"\xff" * 4 + struct.pack("<IB", request.request_id, 255),
            )
        ],
    ),
    "a chunk of 4 GiB": (
        *(read_all, tank.Consume),
        lambda request, answer: [
            tank_frame(answer).replace(
                struct.pack("<I", len(answer.topics[0].partitions[0].chunk)),
                b"\xff" * 4,
                1,
            )
        ],
    ),
    "no bundles": (read_all, tank.Consume, tank_fetched(chunk=b"\x7f" * 2000)),
    "zeros": (read_all, tank.Consume, tank_fetched(chunk=bytes(2000))),
    "a bundle of 4 GiB": (
        *(read_all, tank.Consume),
        tank_fetched(chunk=b"\xff\xff\xff\xff\x0f" + bytes(2000)),
    ),
    "more messages than bytes": (
        *(read_all, tank.Consume),
        tank_fetched(chunk=framed(b"\0\xff\xff\xff\xff\x0f" + bytes(100))),
    ),
    "a snappy bomb": (read_all, tank.Consume, tank_bomb),
    "snappy that claims 2 GiB": (
        *(read_all, tank.Consume),
        tank_fetched(chunk=framed(b"\x05\xff\xff\xff\xff\x07" + bytes(90))),
    ),
    "messages that come later": (read_all, tank.Consume, tank_fetched(base_seq=2**40)),
    "messages behind all": (
        *(read_all, tank.Consume),
        tank_fetched(base_seq=U64, hwm=U64),
    ),
    "a high water mark behind all": (
        *(read_all, tank.DiscoverPartitions),
        tank_change(partitions=(tank.PartitionState(1, U64),)),
    ),
    "a first number behind all": (
        *(read_all, tank.DiscoverPartitions),
        tank_change(partitions=(tank.PartitionState(U64, 20),)),
    ),
    "numbers that go back": (
        *(read_all, tank.Consume),
        lambda request, answer: (
            tank_fetched(base_seq=1, chunk=framed(bundle(VALUES[0])))(request, answer)
            if request.topics[0].fetches[0].seq > 1
            else None
        ),
    ),
    "a low high water mark": (read_all, tank.Consume, tank_fetched(hwm=0)),
    "another topic's partitions": (
        *(read_all, tank.DiscoverPartitions),
        tank_change(topic="another"),
    ),
    "no partitions": (read_all, tank.DiscoverPartitions, tank_change(partitions=())),
    "more topics than bytes": (
        *(read_all, tank.DiscoverTopics),
        lambda request, answer: [
            tank_payload(
                tank.Kind.DISCOVER_TOPICS,
                struct.pack("<IIB", request.request_id, HUGE, 0),
            )
        ],
    ),
    "no outcome": (append, tank.Produce, tank_change(outcomes=())),
    "an unknown outcome": (
        *(append, tank.Produce),
        tank_change(outcomes=(tank.Outcome(0x77),)),
    ),
    "another topic created": (create, tank.CreateTopic, tank_change(topic="another")),
    "silence": (read_all, tank.Consume, silent),
    "silence to an append": (append, tank.Produce, silent),
    "endless pings": (read_all, tank.Consume, endless(tank_frame(tank.Ping()))),
    "endless answers": (
        *(read_all, tank.Consume),
        endless(tank_frame(tank.Status(0))),
    ),
}

# Kimberlite.


def kimberlite_frame(message: kimberlite.Response | kimberlite.Push) -> bytes:
    return b"".join(map(bytes, kimberlite.encode_message(message)))


def kimberlite_change(**fields: Any) -> Lie:
    def lie(request: Any, answer: Any) -> Iterable[bytes] | None:
        if isinstance(answer.body, kimberlite.ErrorResponse):
            return None
        return [kimberlite_frame(replace(answer, body=replace(answer.body, **fields)))]

    return lie


def kimberlite_say(body: kimberlite.Message) -> Lie:
    return lambda request, answer: [kimberlite_frame(replace(answer, body=body))]


def kimberlite_payload(payload: bytes) -> Lie:
    """Answer with such bytes behind the id of the request."""

    def lie(request: Any, answer: Any) -> Iterable[bytes]:
        head = b"\1" + bytes([answer.request_id])
        frame = kimberlite.encode_frame(5, [head + payload])
        return [b"".join(map(bytes, frame))]

    return lie


def kimberlite_header(version: int, length: int) -> bytes:
    return struct.pack(">IHII", kimberlite.MAGIC, version, length, 0)


KIMBERLITE: dict[str, tuple[Work, type[Any], Lie]] = {
    "a huge frame": (
        *(read_all, kimberlite.ReadEvents),
        lambda *_: [kimberlite_header(5, HUGE)],
    ),
    "a frame that never comes": (
        *(read_all, kimberlite.ReadEvents),
        lambda *_: [kimberlite_header(5, 9 * MIB) + b"\1"],
    ),
    "a wrong checksum": (
        *(read_all, kimberlite.ReadEvents),
        lambda *_: [kimberlite_header(5, 4) + b"\1\2\3\4"],
    ),
    "another version": (
        *(read_all, kimberlite.ReadEvents),
        lambda *_: [b"".join(map(bytes, kimberlite.encode_frame(3, [b"\1\1\6"])))],
    ),
    "an unknown version": (
        *(read_all, kimberlite.ReadEvents),
        lambda *_: [kimberlite_header(9, 0)],
    ),
    "an unknown answer": (read_all, kimberlite.ReadEvents, kimberlite_payload(b"\x63")),
    "another id": (
        *(read_all, kimberlite.ReadEvents),
        lambda request, answer: [kimberlite_frame(replace(answer, request_id=HUGE))],
    ),
    "another answer": (
        *(read_all, kimberlite.ReadEvents),
        kimberlite_say(kimberlite.StreamInfoResponse(20)),
    ),
    "4 billion events": (
        *(read_all, kimberlite.ReadEvents),
        kimberlite_payload(b"\6\xff\xff\xff\xff\x0f" + bytes(100)),
    ),
    "an event of 4 GiB": (
        *(read_all, kimberlite.ReadEvents),
        kimberlite_payload(b"\6\1\xff\xff\xff\xff\x0f" + bytes(100)),
    ),
    "another next offset": (
        *(read_all, kimberlite.ReadEvents),
        kimberlite_change(next_offset=2**40),
    ),
    "nothing, again and again": (
        *(read_range, kimberlite.ReadEvents),
        kimberlite_say(kimberlite.ReadEventsResponse(make([]))),
    ),
    "an endless stream": (
        *(read_all, kimberlite.StreamInfo),
        kimberlite_change(length=U64),
    ),
    "a first offset behind all": (
        *(read_all, kimberlite.ReadEvents),
        kimberlite_say(kimberlite.ErrorResponse(11, f"gone, first offset {U64}")),
    ),
    "no first offset": (
        *(read_all, kimberlite.ReadEvents),
        kimberlite_say(kimberlite.ErrorResponse(11, "gone")),
    ),
    "an unknown error": (
        *(read_all, kimberlite.ReadEvents),
        kimberlite_say(kimberlite.ErrorResponse(99, "?")),
    ),
    "a redirect to nowhere": (
        *(read_all, kimberlite.ReadEvents),
        kimberlite_say(kimberlite.ErrorResponse(15, "try 127.0.0.1:1")),
    ),
    "fewer events stored": (
        *(append, kimberlite.AppendEvents),
        kimberlite_change(count=0),
    ),
    "a conflict without end": (
        *(append, kimberlite.AppendEvents),
        kimberlite_say(kimberlite.ErrorResponse(16, "expected 20, actual 20")),
    ),
    "no id": (create, kimberlite.CreateStream, kimberlite_payload(b"\2")),
    "silence": (read_all, kimberlite.ReadEvents, silent),
    "silence to an append": (append, kimberlite.AppendEvents, silent),
    "endless pushes": (
        *(read_all, kimberlite.ReadEvents),
        endless(kimberlite_frame(kimberlite.Push(kimberlite.SubscriptionClosed(1, 1)))),
    ),
    "endless answers": (
        *(read_all, kimberlite.ReadEvents),
        endless(kimberlite_frame(kimberlite.Response(0, kimberlite.SyncResponse()))),
    ),
}


# Fluvio.


def fluvio_frame(message: fluvio.Message) -> bytes:
    return b"".join(map(bytes, fluvio.encode_message(message)))


def fluvio_payload(payload: bytes) -> Lie:
    """Answer with such bytes behind the id of the request."""
    return lambda request, answer: [
        struct.pack(">ii", 4 + len(payload), request.correlation_id) + payload
    ]


def fluvio_change(**fields: Any) -> Lie:
    return lambda request, answer: [fluvio_frame(replace(answer, **fields))]


def fluvio_part(**fields: Any) -> Lie:
    """Change what an answer says of its partition."""

    def lie(request: Any, answer: Any) -> Iterable[bytes]:
        [topic] = answer.topics
        parts = (replace(topic.partitions[0], **fields),)
        topics = (replace(topic, partitions=parts),)
        return [fluvio_frame(replace(answer, topics=topics))]

    return lie


def fluvio_outcome(**fields: Any) -> Lie:
    """Change what an answer says of an append."""

    def lie(request: Any, answer: Any) -> Iterable[bytes]:
        [topic] = answer.topics
        topics = (replace(topic, outcomes=(replace(topic.outcomes[0], **fields),)),)
        return [fluvio_frame(replace(answer, topics=topics))]

    return lie


def fluvio_listed(kind: str, change: Callable[[Any], Any]) -> Lie:
    """Change each object of a list, and let the client ask for it."""

    def lie(request: Any, answer: Any) -> Iterable[bytes] | None:
        if isinstance(request, fluvio.Fetch):
            return fluvio_part(error=fluvio.ErrorCode(6))(request, answer)
        if not isinstance(request, fluvio.List) or request.kind != kind:
            return None
        objects = tuple(map(change, answer.objects))
        return [fluvio_frame(replace(answer, objects=objects))]

    return lie


def fluvio_batch(base: int, *values: bytes) -> bytes:
    return struct.pack(">q", base) + fluvio_batch_of(values)[8:]


def fluvio_bomb(codec: fluvio.Codec) -> Lie:
    """Send a batch that becomes more than all that may be expanded."""

    def lie(request: Any, answer: Any) -> Iterable[bytes] | None:
        body = bytes(compress(codec, bytes(4 * MIB))) * 24
        data = fluvio_reference.batch(
            [fluvio_reference.Row(0, None, None, b"")], body=body, attributes=codec
        )
        return fluvio_part(records=data)(request, answer)

    return lie


ROWS = [fluvio_reference.Row(0, None, None, b"x")]
FLUVIO: dict[str, tuple[Work, type[Any], Lie]] = {
    "a huge frame": (
        *(read_all, fluvio.Fetch),
        lambda request, answer: [
            struct.pack(">ii", 2**31 - 1, request.correlation_id),
        ],
    ),
    "a frame of less than nothing": (
        *(read_all, fluvio.Fetch),
        lambda *_: [b"\xff" * 8],
    ),
    "a frame that never comes": (
        *(read_all, fluvio.Fetch),
        lambda request, answer: [struct.pack(">ii", 9 * MIB, request.correlation_id)],
    ),
    "no frame": (read_all, fluvio.Fetch, lambda *_: [bytes(4)]),
    "another id": (
        *(read_all, fluvio.Fetch),
        lambda request, answer: [fluvio_frame(replace(answer, correlation_id=2**30))],
    ),
    "another answer": (
        *(read_all, fluvio.Fetch),
        lambda request, answer: [
            fluvio_frame(fluvio.Updated(correlation_id=request.correlation_id))
        ],
    ),
    "another topic": (
        *(read_all, fluvio.Fetch),
        fluvio_change(topics=(fluvio.FetchedTopic("another", (fluvio.Fetched(0),)),)),
    ),
    "another partition": (read_all, fluvio.Fetch, fluvio_part(partition=9)),
    "no topic": (read_all, fluvio.Fetch, fluvio_change(topics=())),
    "two topics": (
        *(read_all, fluvio.Fetch),
        fluvio_change(
            topics=(fluvio.FetchedTopic("orders", (fluvio.Fetched(0),)),) * 2
        ),
    ),
    "two partitions": (
        *(read_all, fluvio.Fetch),
        fluvio_change(
            topics=(fluvio.FetchedTopic("orders", (fluvio.Fetched(0),) * 2),)
        ),
    ),
    "2 billion topics": (
        *(read_all, fluvio.Fetch),
        fluvio_payload(bytes(10) + b"\x7f\xff\xff\xff" + bytes(100)),
    ),
    "records of 2 GiB": (
        *(read_all, fluvio.Fetch),
        lambda request, answer: [
            fluvio_frame(answer).replace(
                struct.pack(">i", len(answer.topics[0].partitions[0].records)),
                b"\x7f\xff\xff\xff",
                1,
            )
        ],
    ),
    "an unknown error": (
        *(read_all, fluvio.Fetch),
        fluvio_payload(struct.pack(">ihi", 0, 1234, 0)),
    ),
    "an error for all": (
        *(read_all, fluvio.Fetch),
        fluvio_change(error=fluvio.ErrorCode(-1), topics=()),
    ),
    "no leader, wherever it is asked": (
        *(read_all, fluvio.Fetch),
        fluvio_part(error=fluvio.ErrorCode(6)),
    ),
    "a record that was never there": (
        *(read_all, fluvio.Fetch),
        fluvio_part(error=fluvio.ErrorCode(1)),
    ),
    "a first record behind all": (
        *(read_all, fluvio.Fetch),
        fluvio_part(error=fluvio.ErrorCode(71, (0, 2**63 - 1))),
    ),
    "no batches": (read_all, fluvio.Fetch, fluvio_part(records=b"\x7f" * 2000)),
    "zeros": (read_all, fluvio.Fetch, fluvio_part(records=bytes(2000))),
    "a batch of 2 GiB": (
        *(read_all, fluvio.Fetch),
        fluvio_part(records=bytes(8) + b"\x7f\xff\xff\xff" + bytes(100)),
    ),
    "a batch that is always cut off": (
        *(read_all, fluvio.Fetch),
        fluvio_part(records=fluvio_batch(0, *VALUES)[:100]),
    ),
    "a wrong checksum": (
        *(read_all, fluvio.Fetch),
        fluvio_part(records=fluvio_reference.batch(ROWS, crc=7)),
    ),
    "more records than bytes": (
        *(read_all, fluvio.Fetch),
        fluvio_part(
            records=fluvio_reference.batch(ROWS, body=b"\x7f\xff\xff\xff" + bytes(60))
        ),
    ),
    **{
        f"a {codec.name.lower()} bomb": (read_all, fluvio.Fetch, fluvio_bomb(codec))
        for codec in fluvio.Codec
        if codec is not fluvio.Codec.NONE
    },
    "records that come later": (
        *(read_all, fluvio.Fetch),
        fluvio_part(records=fluvio_batch(2**40, b"x")),
    ),
    "records behind all": (
        *(read_all, fluvio.Fetch),
        fluvio_part(records=fluvio_batch(2**63 - 1, b"x")),
    ),
    "records before the first": (
        *(read_all, fluvio.Fetch),
        fluvio_part(records=fluvio_batch(-1, b"x")),
    ),
    "a gap": (
        *(read_all, fluvio.Fetch),
        lambda request, answer: fluvio_part(
            records=fluvio_batch(0, VALUES[0]) + fluvio_batch(2, VALUES[2])
        )(request, answer),
    ),
    "numbers that go back": (
        *(read_all, fluvio.Fetch),
        lambda request, answer: (
            fluvio_part(records=fluvio_batch(0, VALUES[0]))(request, answer)
            if request.topics[0].partitions[0].offset
            else None
        ),
    ),
    "nothing, again and again": (
        *(read_range, fluvio.Fetch),
        fluvio_part(records=b""),
    ),
    "an end behind all": (
        *(read_all, fluvio.FetchOffsets),
        fluvio_part(last_stable_offset=2**63 - 1),
    ),
    "a start below zero": (
        *(read_all, fluvio.FetchOffsets),
        fluvio_part(start_offset=-1),
    ),
    "a start behind the end": (
        *(read_all, fluvio.FetchOffsets),
        fluvio_part(start_offset=21),
    ),
    "the bounds of another one": (
        *(read_all, fluvio.FetchOffsets),
        fluvio_part(partition=2**32 - 1),
    ),
    "no bounds": (read_all, fluvio.FetchOffsets, fluvio_change(topics=())),
    "4 billion partitions": (
        *(read_all, fluvio.List),
        fluvio_listed(
            "Topic",
            lambda topic: replace(
                topic, spec=fluvio.TopicSpec((fluvio.COMPUTED, HUGE, 1, False))
            ),
        ),
    ),
    "2 billion objects": (
        *(read_all, fluvio.List),
        fluvio_payload(b"\0\5Topic\0\0\0\x14\x7f\xff\xff\xff" + bytes(16)),
    ),
    "a list of 4 GiB": (
        *(read_all, fluvio.List),
        fluvio_payload(b"\0\5Topic" + b"\xff" * 4 + bytes(100)),
    ),
    "another list": (
        *(read_all, fluvio.List),
        fluvio_change(kind="SmartModule", objects=()),
    ),
    "a partition whose number is long": (
        *(read_all, fluvio.Request),
        fluvio_listed("Partition", lambda one: replace(one, name="t-" + "9" * 9999)),
    ),
    "a leader that is not there": (
        *(read_all, fluvio.Request),
        fluvio_listed(
            "Partition", lambda one: replace(one, spec=replace(one.spec, leader=7))
        ),
    ),
    "an SPU that is not there": (
        *(read_all, fluvio.Request),
        fluvio_listed("SPU", lambda one: move_spu(one, "127.0.0.1", 1)),
    ),
    "an SPU without an address": (
        *(read_all, fluvio.Request),
        fluvio_listed("SPU", lambda one: move_spu(one, "no host", 1)),
    ),
    "no outcome": (append, fluvio.Produce, fluvio_change(topics=())),
    "an outcome of another partition": (
        *(append, fluvio.Produce),
        fluvio_outcome(partition=3),
    ),
    "an outcome that is unknown": (
        *(append, fluvio.Produce),
        fluvio_outcome(error=fluvio.ErrorCode(-1)),
    ),
    "another topic created": (create, fluvio.Create, fluvio_change(name="another")),
    "silence": (read_all, fluvio.Fetch, silent),
    "silence of the controller": (read_all, fluvio.List, silent),
    "silence to an append": (append, fluvio.Produce, silent),
    "endless answers": (
        *(read_all, fluvio.Fetch),
        endless(fluvio_frame(fluvio.Updated(correlation_id=0))),
    ),
}


def move_spu(spu: Any, host: str, port: int) -> Any:
    """Say that an SPU is elsewhere."""
    public = fluvio.PublicEndpoint(port, (fluvio.Ingress(host),))
    return replace(spu, spec=replace(spu.spec, public=public))


LIARS = {
    "fluvio": Liar(FluvioCluster, FLUVIO, fluvio.encode_message),
    "kimberlite": Liar(KimberliteServer, KIMBERLITE, kimberlite.encode_message),
    "rustlog": Liar(RustlogServer, RUSTLOG, rustlog.encode_message),
    "tank": Liar(TankServer, TANK, tank.encode_message),
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="lance_spark.client")


@pytest.fixture
def server(protocol: str) -> Iterator[Any]:
    with LIARS[protocol].run() as running:
        running.fill("orders", VALUES[:10])
        running.fill("orders", VALUES[10:])
        yield running


@pytest.mark.skipif(not HAS_PROC, reason="/proc says what it costs")
@pytest.mark.parametrize(
    ("protocol", "name"), [(p, name) for p, liar in LIARS.items() for name in liar.lies]
)
def test_a_lie_is_told_in_time(server: Any, protocol: str, name: str) -> None:
    work, kind, lie = LIARS[protocol].lies[name]
    with connect(f"{protocol}://{server.address}", **TIMES) as client:
        try_patiently(lambda: read_all(client))
        server.lie = lambda request, answer: (
            lie(request, answer) if isinstance(request, kind) else None
        )
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        before = read_status(_ME, "VmRSS")
        began_s = time.monotonic()
        with pytest.raises(LanceError) as told:
            work(client)
        assert time.monotonic() - began_s < PATIENCE_S
        assert str(told.value)
        assert " at 0x" not in str(told.value), "an object, and not what it is"
        grown = (read_status(_ME, "VmHWM") - before) * 1024
        assert grown < GROWTH_BYTES_MAX, f"{grown / MIB:.0f} MiB"
        # It was the lie: the same client goes on with the truth.
        server.lie = None
        try_patiently(lambda: read_all(client))


@pytest.mark.parametrize("protocol", LIARS)
@pytest.mark.parametrize("work", [read_all, follow, append, create])
def test_damaged_answers(server: Any, protocol: str, work: Work) -> None:
    """A flipped value can't be told, as there is no checksum; all else is an error."""
    rng = random.Random(f"{protocol} {work.__name__}")

    def damage(request: Any, answer: Any) -> Iterable[bytes] | None:
        if rng.random() < 0.6:
            return None
        frame = b"".join(map(bytes, LIARS[protocol].encode(answer)))
        return [mutate(frame, rng)]

    times = {**TIMES, "request_timeout_s": 0.1, "retry_timeout_s": 0.15}
    failures = 0
    with connect(f"{protocol}://{server.address}") as client:
        client.driver.topics(["orders"])
    for _ in range(12):
        server.lie = damage
        try:
            with connect(f"{protocol}://{server.address}", **times) as client:
                work(client)
        except LanceError:
            failures += 1
        except AnotherRow:
            pass  # Only a checksum would tell.
    assert failures
    server.lie = None
    with connect(f"{protocol}://{server.address}") as client:
        client.driver.topics(["orders"])
