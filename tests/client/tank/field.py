"""A server that behaves as TANK's own broker does, in memory and on a real socket.

What it does is in the notes on the protocol: bundles are stored as they come and sent
whole, or cut where they were once, from the one on that has the asked number; an empty
partition says 0 and 0; an empty tail says too low a number; a list of partitions in
message 6 ends the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lance_spark.net.stream import Stream
from lance_spark.wire import tank as wire
from tests.broker.tank.kit import Row, bundle, rows_of, sparse
from tests.client.field import FieldServerBase


class Bundle(NamedTuple):
    """A bundle with its numbers."""

    first: int
    last: int
    framed: bytes
    is_sparse: bool


@dataclass
class Log:
    """A partition."""

    bundles: list[Bundle] = field(default_factory=list)
    # The oldest number; 0 while nothing was ever written.
    first: int = 0

    @property
    def hwm(self) -> int:
        return self.bundles[-1].last if self.bundles else max(0, self.first - 1)

    def append(self, data: bytes, first_seq: int = 0) -> None:
        """Store a bundle as it is."""
        size = len(data)
        prefix = b""
        while size > 0x7F:
            prefix, size = prefix + bytes([size & 0x7F | 0x80]), size >> 7
        framed = prefix + bytes([size]) + data
        is_sparse = bool(data[0] & 0x40)
        base = first_seq or self.hwm + 1
        chunk = wire.read_chunk(framed, 0 if is_sparse else base)
        first = chunk.records.position(0) if is_sparse else base
        self.bundles.append(Bundle(first, chunk.next_seq - 1, framed, is_sparse))
        self.first = self.first or first

    def drop(self, count: int) -> None:
        """Let retention take the oldest bundles."""
        after = self.hwm + 1
        del self.bundles[:count]
        self.first = self.bundles[0].first if self.bundles else after

    def rows(self) -> list[Row]:
        """Give all messages."""
        return [
            row
            for one in self.bundles
            for row in rows_of(
                wire.read_chunk(one.framed, 0 if one.is_sparse else one.first)
            )
        ]


class FieldServer(FieldServerBase):
    """One server."""

    first_words = (b"".join(map(bytes, wire.encode_message(wire.Ping()))),)

    def __init__(self) -> None:
        self.topics: dict[str, list[Log]] = {}
        self.requests: list[Any] = []
        # Send no more than was asked for, and cut the last bundle.
        self.cuts = False
        # How many bundles before the one with the asked number are sent, too.
        self.bundles_before = 0
        # How many messages above the high water mark are sent, too.
        self.hwm_behind = 0
        # Send a ping before each answer, and the later of two answers first.
        self.pings = False
        self.reorders = False
        # Who leads, if that is another.
        self.leader: str | None = None
        # Whether a list of partitions has ended the server.
        self.exited = False
        super().__init__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        assert not self.exited, "a list of partitions was sent in message 6"

    def fill(self, topic: str, *bundles: Sequence[bytes], partitions: int = 1) -> Log:
        """Put bundles of values into the first partition of a topic."""
        with self.lock:
            logs = self.topics.setdefault(topic, [Log() for _ in range(partitions)])
            for values in bundles:
                logs[0].append(bundle(*values))
            return logs[0]

    def gain(self, topic: str, values: Sequence[bytes]) -> None:
        """Add a partition to a topic, with values in it."""
        with self.lock:
            self.topics[topic].append(Log())
            self.topics[topic][-1].append(bundle(*values))

    def fill_sparse(self, topic: str, seqs: Sequence[int]) -> None:
        """Put a bundle with numbers of its own into the first partition."""
        with self.lock:
            self.topics[topic][0].append(sparse(seqs, *[b"%d" % n for n in seqs]))

    # Serving.

    def make_parser(self) -> wire.FrameParser:
        return wire.FrameParser()

    def _say(self, stream: Stream, message: wire.Message) -> None:
        self.send(stream, [b"".join(map(bytes, wire.encode_message(message)))])

    def answer_all(self, stream: Stream, parser: wire.FrameParser) -> bool:
        answers = []
        while (frame := parser.next_frame()) is not None:
            request: Any = wire.decode_request(frame)
            size = sum(
                memoryview(part).nbytes for part in wire.encode_message(request)[1:]
            )
            with self.lock:
                self.asked[type(request).__name__] += 1
                self.requests.append(request)
                if isinstance(request, wire.DiscoverPartitions):
                    self.exited |= len(frame.payload) > size
                answer = self._handle(request)
            if answer is None:
                return False
            answers.append((request, answer))
        for request, answer in reversed(answers) if self.reorders else answers:
            if self.pings:
                self._say(stream, wire.Ping())
            said = self.lie(request, answer) if self.lie else None
            if said is None:
                self._say(stream, answer)
            self.send(stream, said or ())
        return True

    def _handle(self, request: Any) -> wire.Message | None:
        number = request.request_id
        if isinstance(request, wire.GetStatus):
            return wire.Status(number, topics=len(self.topics))
        if isinstance(request, wire.DiscoverTopics):
            entries = (
                wire.TopicEntry(name, 1, len(logs))
                for name, logs in self.topics.items()
            )
            return wire.Topics(number, tuple(entries))
        if isinstance(request, wire.CreateTopic):
            code = 1 if request.topic in self.topics else 0
            logs = [Log() for _ in range(request.partitions)]
            self.topics.setdefault(request.topic, logs)
            return wire.Created(number, request.topic, code)
        if isinstance(request, wire.DiscoverPartitions):
            states = (
                wire.PartitionState(log.first, log.hwm if log.first else 0)
                for log in self.topics.get(request.topic, [])
            )
            return wire.Partitions(number, request.topic, tuple(states))
        if isinstance(request, wire.Produce):
            return self._produce(request)
        assert isinstance(request, wire.Consume)
        return self._consume(request)

    def _find(self, topic: str, partition: int) -> Log | None:
        logs = self.topics.get(topic, [])
        return logs[partition] if partition < len(logs) else None

    def _produce(self, request: wire.Produce) -> wire.Message | None:
        if self.appends_to_lose:
            self.appends_to_lose -= 1
            return None
        [topic] = request.topics
        [write] = topic.writes
        log, first_seq = self._find(topic.name, write.partition), write.first_seq
        outcome = wire.Outcome(0)
        if self.leader is not None:
            outcome = wire.Outcome(wire.OTHER_LEADER, self.leader)
        elif log is None:
            outcome = wire.Outcome(1 if topic.name in self.topics else wire.UNKNOWN)
        elif first_seq and first_seq <= log.hwm:
            outcome = wire.Outcome(0x0A)
        else:
            log.append(bytes(write.bundle), first_seq or 0)
            if self.answers_to_lose:
                self.answers_to_lose -= 1
                return None
        return wire.Produced(request.request_id, (outcome,))

    def _consume(self, request: wire.Consume) -> wire.Message:
        [topic] = request.topics
        [fetch] = topic.fetches
        log = self._find(topic.name, fetch.partition)
        found = wire.FetchedTopic(topic.name, unknown=1)
        if log is not None:
            found = wire.FetchedTopic(topic.name, (self._fetch(log, fetch),))
        elif topic.name in self.topics:
            unknown = wire.Fetched(fetch.partition, wire.UNKNOWN)
            found = wire.FetchedTopic(topic.name, (unknown,))
        return wire.Consumed(request.request_id, (found,))

    def _fetch(self, log: Log, fetch: wire.Fetch) -> wire.Fetched:
        number, seq = fetch.partition, fetch.seq
        if self.leader is not None:
            return wire.Fetched(number, wire.OTHER_LEADER, leader=self.leader)
        if seq == wire.SEQ_END:
            seq = log.hwm + 1
        if seq and not log.first <= seq <= log.hwm + 1:
            return wire.Fetched(
                number, wire.OUT_OF_RANGE, hwm=log.hwm, first_seq=log.first
            )
        at = next((n for n, b in enumerate(log.bundles) if b.last >= seq), None)
        hwm = log.hwm - self.hwm_behind
        if at is None or seq > hwm:
            # Without a chunk the numbers are not to be trusted.
            return wire.Fetched(number, wire.OK, log.first, max(0, hwm - 12))
        at = max(0, at - self.bundles_before)
        chunk = b""
        for one in log.bundles[at:]:
            if chunk and len(chunk) + len(one.framed) > fetch.fetch_size:
                if self.cuts:
                    chunk += one.framed
                break
            chunk += one.framed
        if self.cuts:
            chunk = chunk[: fetch.fetch_size]
        first = log.bundles[at]
        flag = wire.SPARSE if first.is_sparse else wire.OK
        base = 0 if first.is_sparse else first.first
        return wire.Fetched(number, flag, base, hwm, chunk)
