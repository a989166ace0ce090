"""A client of Fluvio that sends what it is told, and reads what comes back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.session import WAIT_POSITION_BYTES
from lance_spark.errors import LanceError
from lance_spark.model import Buffer
from lance_spark.net.address import parse_address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.net.tls import TlsContext
from lance_spark.records import Records
from lance_spark.wire import fluvio as wire
from tests.broker.kit import eventually, patience
from tests.broker.tank.kit import cut, lay_out

MIB = 1024 * 1024
HERE = "127.0.0.1:0"
NOW_MS = 1_700_000_000_123


class Row(NamedTuple):
    """A record; `time_ms` 0 is none."""

    value: bytes
    key: bytes | None = None
    time_ms: int = NOW_MS
    offset: int = 0


def make(*rows: Row | bytes) -> Records:
    """Make records of rows, or of values."""
    known = [row if isinstance(row, Row) else Row(row) for row in rows]
    keyed = [n for n, row in enumerate(known) if row.key is not None]
    stamped = [n for n, row in enumerate(known) if row.time_ms]
    return Records(
        lay_out([row.value for row in known]),
        keyed=np.array(keyed, np.int64),
        keys=lay_out([row.key for row in known if row.key is not None]),
        stamped=np.array(stamped, np.int64),
        stamps_ns=np.array([known[n].time_ms * 10**6 for n in stamped], np.uint64),
    )


def batch(*rows: Row | bytes, codec: wire.Codec = wire.Codec.NONE) -> bytes:
    """Write a batch; it has to be compressed if a codec is given."""
    data = bytes(wire.write_records(make(*rows), codec=codec))
    assert data[22] == codec
    return data


def rows_in(fetched: wire.Fetched) -> list[Row]:
    """Give the records that a partition has sent."""
    assert fetched.error == wire.NO_ERROR, fetched
    records = wire.read_chunk(fetched.records).records
    assert records.fault is None
    keys = dict(zip(records.keyed.tolist(), cut(records.keys), strict=True))
    times = dict(zip(records.stamped.tolist(), records.stamps_ns.tolist(), strict=True))
    return [
        Row(value, keys.get(n), times.get(n, 0) // 10**6, records.position(n))
        for n, value in enumerate(cut(records.values))
    ]


def values(rows: Sequence[Row]) -> list[bytes]:
    """Give the values of rows."""
    return [row.value for row in rows]


class FluvioClient:
    """One connection to a broker, to its SC or its SPU."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        role: wire.Role = wire.Role.SPU,
        *,
        tls: TlsContext | None = None,
    ) -> None:
        at = broker.address_of("fluvio" if role is wire.Role.SC else "fluvio_spu")
        # A broker that listens on every address is not there by name.
        address = parse_address(at.replace("0.0.0.0", "127.0.0.1"))
        self.stream: Stream = connect(address, deadline=patience(), tls=tls)
        self._parser = wire.FrameParser()
        self._ids = itertools.count(1)
        self._sent: dict[int, wire.Request] = {}

    def __enter__(self) -> FluvioClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    # Bytes and frames.

    def send(self, *parts: Buffer) -> None:
        """Send bytes as they are."""
        self.stream.send(parts, patience())

    def send_payload(self, payload: bytes) -> None:
        """Send a frame with any payload."""
        self.send(*wire.encode_frame([payload]))

    def submit(self, request: wire.Request) -> int:
        """Send a request; give its number."""
        number = next(self._ids)
        request = replace(request, correlation_id=number)
        self._sent[number] = request
        self.send(*wire.encode_message(request))
        return number

    def next_frame(self) -> wire.Frame | None:
        """Read a frame; None at the end of the stream."""
        while (found := self._parser.next_frame()) is None:
            size = self.stream.recv_into(self._parser.buffer_for_read(), patience())
            if size == 0:
                return None
            self._parser.bytes_written(size)
        return found

    def next(self) -> Any:
        """Read an answer."""
        frame = self.next_frame()
        assert frame is not None, "the broker closed the connection"
        return wire.decode_response(frame, self._sent[wire.number_of(frame)])

    def ended(self) -> bool:
        """Tell whether the broker has closed, with nothing more to say."""
        try:
            return self.next_frame() is None
        except LanceError as error:
            return "reset" in str(error).lower()

    def is_silent(self, seconds: float = 0.1) -> bool:
        """Tell whether nothing comes for a moment."""
        assert self._parser.next_frame() is None
        return not self.stream.wait_readable(Deadline.after(seconds))

    def ask(self, request: wire.Request) -> Any:
        """Send a request and read its answer."""
        number = self.submit(request)
        answer = self.next()
        assert answer.correlation_id == number
        return answer

    def alive(self) -> None:
        """Fail unless the connection works."""
        assert self.ask(wire.ApiVersions()).error == wire.NO_ERROR

    # The SC.

    def create(self, topic: str, partitions: int = 1, **spec: Any) -> wire.ErrorCode:
        """Create a topic; give the code."""
        replicas = (wire.COMPUTED, partitions, 1, False)
        made = wire.TopicSpec(replicas, **spec)
        answer = self.ask(wire.Create("Topic", topic, False, None, made))
        assert answer.name == topic
        error: wire.ErrorCode = answer.error
        return error

    def list(self, kind: str = "Topic", *names: str) -> list[str]:
        """List objects by name."""
        return [one.name for one in self.ask(wire.List(kind, names)).objects]

    # Writing.

    def write(
        self, topic: str, *rows: Row | bytes, partition: int = 0, **how: Any
    ) -> int:
        """Append rows as one batch; give the number of the first."""
        [outcome] = self.produce(topic, (partition, batch(*rows, **how)))
        assert outcome.error == wire.NO_ERROR, outcome
        base: int = outcome.base_offset
        return base

    def produce(
        self, topic: str, *writes: tuple[int, bytes], **fields: Any
    ) -> tuple[wire.Outcome, ...]:
        """Append record sets to partitions."""
        answer = self.ask(make_produce(topic, *writes, **fields))
        [found] = answer.topics
        assert found.name == topic
        outcomes: tuple[wire.Outcome, ...] = found.outcomes
        return outcomes

    # Reading.

    def fetch(
        self, topic: str, offset: int = 0, *, partition: int = 0, **fields: Any
    ) -> wire.Fetched:
        """Ask for one partition; give what it says."""
        request = make_fetch(topic, (partition, offset), **fields)
        return fetched_of(self.ask(request))

    def read(self, topic: str, offset: int = 0, **fields: Any) -> list[Row]:
        """Read what one answer has."""
        return rows_in(self.fetch(topic, offset, **fields))

    def bounds(self, topic: str, *partitions: int) -> list[tuple[int, int]]:
        """Ask for the bounds of partitions."""
        asked = wire.OffsetsTopic(topic, partitions or (0,))
        [found] = self.ask(wire.FetchOffsets((asked,))).topics
        assert found.name == topic
        assert all(one.error == wire.NO_ERROR for one in found.partitions)
        return [(one.start_offset, one.last_stable_offset) for one in found.partitions]


def make_produce(topic: str, *writes: tuple[int, bytes], **fields: Any) -> wire.Produce:
    """Make a request to append record sets to partitions."""
    made = tuple(wire.Write(*write) for write in writes)
    return wire.Produce(topics=(wire.WriteTopic(topic, made),), **fields)


def make_fetch(topic: str, *places: tuple[int, int], **fields: Any) -> wire.Fetch:
    """Make a request to read partitions from records on."""
    parts = tuple(wire.FetchPartition(n, offset=offset) for n, offset in places)
    return wire.Fetch(topics=(wire.FetchTopic(topic, parts),), **fields)


def fetched_of(answer: Any) -> wire.Fetched:
    """Give what the answer to a Fetch of one partition says."""
    assert answer.error == wire.NO_ERROR, answer
    [topic] = answer.topics
    [fetched] = topic.partitions
    assert isinstance(fetched, wire.Fetched)
    return fetched


def stands(broker: EmbeddedBroker, count: int = 1) -> bool:
    """Wait until so many requests stand, each for one thing."""
    assert broker._server is not None
    waiting = broker._server._shared.waiting
    return eventually(lambda: waiting.taken == count * WAIT_POSITION_BYTES)
