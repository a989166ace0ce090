"""A client of TANK that sends what it is told, and reads what comes back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
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
from lance_spark.records import Records, Spans
from lance_spark.wire import tank as wire
from tests.broker.kit import eventually, patience

MIB = 1024 * 1024
HERE = "127.0.0.1:0"
NOW_MS = 1_700_000_000_123


class Row(NamedTuple):
    """A message."""

    value: bytes
    key: bytes | None = None
    time_ms: int = NOW_MS
    seq: int = 0


def lay_out(parts: Sequence[bytes]) -> Spans:
    """Make spans of some bytes."""
    lengths = np.array([len(part) for part in parts], np.int64)
    ends = np.cumsum(lengths, dtype=np.int64)
    return Spans(np.frombuffer(b"".join(parts), np.uint8), ends - lengths, ends)


def make(*rows: Row | bytes, seqs: Sequence[int] | None = None) -> Records:
    """Make records of rows, or of values."""
    known = [row if isinstance(row, Row) else Row(row) for row in rows]
    keyed = [n for n, row in enumerate(known) if row.key is not None]
    positions = None if seqs is None else np.array(seqs, np.int64)
    return Records(
        lay_out([row.value for row in known]),
        positions=positions,
        keyed=np.array(keyed, np.int64),
        keys=lay_out([row.key for row in known if row.key is not None]),
        stamped=np.arange(len(known)),
        stamps_ns=np.array([row.time_ms * 10**6 for row in known], np.uint64),
    )


def bundle(*rows: Row | bytes, compress: bool = False) -> bytes:
    """Write a bundle."""
    return bytes(wire.write_records(make(*rows), compress=compress))


def sparse(seqs: Sequence[int], *rows: Row | bytes) -> bytes:
    """Write a bundle that says its numbers."""
    return bytes(wire.write_records(make(*rows, seqs=seqs), sparse=True))


def rows_of(chunk: wire.Chunk) -> list[Row]:
    """Give the messages of a chunk."""
    records = chunk.records
    assert records.fault is None
    keys = dict(zip(records.keyed.tolist(), cut(records.keys), strict=True))
    times = dict(zip(records.stamped.tolist(), records.stamps_ns.tolist(), strict=True))
    return [
        Row(value, keys.get(n), times[n] // 10**6, records.position(n))
        for n, value in enumerate(cut(records.values))
    ]


def cut(spans: Spans) -> list[bytes]:
    """Give the bytes of spans."""
    bounds = zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
    return [spans.data[start:end].tobytes() for start, end in bounds]


class TankClient:
    """One connection to a broker."""

    def __init__(
        self,
        broker: EmbeddedBroker | str,
        *,
        tls: TlsContext | None = None,
        greeted: bool = True,
    ) -> None:
        address = broker if isinstance(broker, str) else broker.address_of("tank")
        self.stream: Stream = connect(
            parse_address(address), deadline=patience(), tls=tls
        )
        self._parser = wire.FrameParser()
        self._ids = itertools.count(1)
        if greeted:
            assert self.next() == wire.Ping()

    def __enter__(self) -> TankClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    # Bytes and frames.

    def send(self, *parts: Buffer) -> None:
        """Send bytes as they are."""
        self.stream.send(parts, patience())

    def send_payload(self, kind: int, payload: bytes) -> None:
        """Send a frame with any payload."""
        self.send(bytes([kind]) + len(payload).to_bytes(4, "little"), payload)

    def submit(self, message: wire.Message) -> None:
        """Send a request."""
        self.send(*wire.encode_message(message))

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
        return wire.decode_response(frame)

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

    def ask(self, message: wire.Message) -> Any:
        """Send a request and read its answer."""
        self.submit(message)
        return self.next()

    def alive(self) -> None:
        """Fail unless the connection works."""
        assert isinstance(self.ask(wire.GetStatus(7)), wire.Status)

    # Topics.

    def create(self, topic: str, partitions: int = 1, config: str = "") -> int:
        """Create a topic; give the code."""
        answer = self.ask(wire.CreateTopic(3, topic, partitions, config))
        assert (answer.request_id, answer.topic) == (3, topic)
        return int(answer.code)

    def bounds(self, topic: str) -> list[tuple[int, int]]:
        """Ask for the first and last numbers of all partitions."""
        answer = self.ask(wire.DiscoverPartitions(4, topic))
        assert (answer.request_id, answer.topic) == (4, topic)
        return [(one.first_seq, one.hwm) for one in answer.partitions]

    # Writing.

    def make_produce(
        self, *topics: tuple[str, Sequence[tuple[Any, ...]]]
    ) -> wire.Produce:
        """Make a request: topics with (partition, bundle[, first_seq])."""
        has_seq = any(len(write) > 2 for _, writes in topics for write in writes)
        kind = wire.ProduceAt if has_seq else wire.Produce
        return kind(
            request_id=next(self._ids),
            topics=tuple(
                wire.WriteTopic(name, tuple(wire.Write(*write) for write in writes))
                for name, writes in topics
            ),
        )

    def produce(self, *topics: tuple[str, Sequence[tuple[Any, ...]]]) -> list[int]:
        """Append; give the codes."""
        request = self.make_produce(*topics)
        answer = self.ask(request)
        assert isinstance(answer, wire.Produced), answer
        assert answer.request_id == request.request_id
        return [outcome.code for outcome in answer.outcomes]

    def write(self, topic: str, *rows: Row | bytes, partition: int = 0) -> None:
        """Append rows to a partition as one bundle."""
        assert self.produce((topic, [(partition, bundle(*rows))])) == [wire.OK]

    # Reading.

    def make_consume(
        self,
        *topics: tuple[str, Sequence[tuple[int, int, int]]],
        wait_ms: int = 0,
        min_bytes: int = 0,
        version: int = 2,
    ) -> wire.Consume:
        """Make a request: topics with (partition, seq, fetch_size)."""
        return wire.Consume(
            version,
            next(self._ids),
            "test",
            wait_ms,
            min_bytes,
            topics=tuple(
                wire.FetchTopic(name, tuple(wire.Fetch(*one) for one in fetches))
                for name, fetches in topics
            ),
        )

    def consume(
        self, topic: str, seq: int, size: int = MIB, *, partition: int = 0, **more: int
    ) -> wire.Fetched:
        """Ask for one partition; give what it says."""
        request = self.make_consume((topic, [(partition, seq, size)]), **more)
        return fetched_of(self.ask(request), request)

    def read(
        self, topic: str, seq: int = 0, size: int = MIB, *, partition: int = 0
    ) -> list[Row]:
        """Read what one answer has."""
        return rows_in(self.consume(topic, seq, size, partition=partition))

    def read_all(self, topic: str, partition: int = 0, size: int = MIB) -> list[Row]:
        """Read until there is nothing more."""
        rows: list[Row] = []
        while found := self.read(
            topic, rows[-1].seq + 1 if rows else 0, size, partition=partition
        ):
            rows += found
        return rows


def fetched_of(answer: Any, request: wire.Consume) -> wire.Fetched:
    """Give what the answer to a request for one partition says."""
    assert isinstance(answer, wire.Consumed), answer
    assert answer.request_id == request.request_id
    [topic] = answer.topics
    assert topic.name == request.topics[0].name
    if topic.unknown is not None:
        return wire.Fetched(-1, wire.UNKNOWN)
    [fetched] = topic.partitions
    return fetched


def rows_in(fetched: wire.Fetched) -> list[Row]:
    """Give the messages of an answer, which has to begin at the asked one."""
    assert fetched.flag == wire.OK, fetched
    rows = rows_of(wire.read_chunk(fetched.chunk, fetched.base_seq))
    assert not rows or rows[0].seq == fetched.base_seq
    assert not rows or rows[-1].seq <= fetched.hwm
    return rows


def values(rows: Sequence[Row]) -> list[bytes]:
    """Give the values of rows."""
    return [row.value for row in rows]


def stands(broker: EmbeddedBroker, count: int = 1) -> bool:
    """Wait until so many requests for one partition stand."""
    assert broker._server is not None
    waiting = broker._server._shared.waiting
    return eventually(lambda: waiting.taken >= count * 2 * WAIT_POSITION_BYTES)
