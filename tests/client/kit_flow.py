"""Fakes below producers and readers, with the interface of the client's own.

`FakeClient` hands out `FakeConnection`s, which answer ingests as a test says.
`FakeLog` is a client with one topic of bytes, cut as a test says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lance_spark.client.dialect import Acked
from lance_spark.client.lwp.answer import Fetched, KnownBounds
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.client.outbox import OutgoingBatch
from lance_spark.client.retry import Backoff, Decision
from lance_spark.errors import ConnectionLost, LanceError, TopicNotFound
from lance_spark.model import Location
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline, Waker
from lance_spark.wire.lwp import Capability, Record, TopicInfo, encode_record

# Long enough for any machine; only a test that fails anyway waits for it.
PATIENCE_S = 20.0
# How soon a fake connection notices that it was woken.
LOOK_S = 0.002

# Tests of failures should not wait for real back-offs.
QUICK = ClientConfig(
    servers="fake:1992",
    request_timeout_s=PATIENCE_S,
    retry_timeout_s=PATIENCE_S,
    backoff_base_s=0.0005,
    backoff_max_s=0.002,
)


def record(value: str | bytes) -> bytes:
    """Make a raw record; 5 bytes longer than its value."""
    return encode_record(Record(1, value.encode() if isinstance(value, str) else value))


@dataclass(frozen=True)
class Sent:
    """An ingest that reached the server."""

    batch_id: int
    data: bytes
    records: int
    topic_id: int
    compressed: bool


Answer = Callable[["FakeConnection", Sent], None]


def ack(connection: FakeConnection, sent: Sent) -> None:
    """Acknowledge every batch at once."""
    connection.push(Acked(sent.batch_id))


def ignore(connection: FakeConnection, sent: Sent) -> None:
    """Say nothing."""


class FakeConnection:
    """A connection whose server does what `answer` does for each ingest."""

    def __init__(
        self, answer: Answer = ack, *, capabilities: Sequence[str] = ("fetch-flags",)
    ) -> None:
        self.address = "fake:1992"
        self.capabilities = frozenset(capabilities)
        self.answer = answer
        self.sent: list[Sent] = []
        self.in_flight_max = 0
        self._changed = threading.Condition()
        self._events: list[Any] = []
        self._answered = 0
        self._failure: LanceError | None = None

    @property
    def is_open(self) -> bool:
        return self._failure is None

    # What the server does.

    def push(self, *events: Any) -> None:
        with self._changed:
            self._events.extend(events)
            self._answered += sum(isinstance(event, Acked) for event in events)
            self._changed.notify_all()

    def fail(self, error: LanceError | None = None) -> None:
        with self._changed:
            self._failure = self._failure or error or ConnectionLost("it was cut")
            self._changed.notify_all()

    def await_sent(self, count: int) -> list[Sent]:
        """Wait until so many batches have come."""
        with self._changed:
            done = self._changed.wait_for(lambda: len(self.sent) >= count, PATIENCE_S)
            assert done, f"{len(self.sent)} of {count} batches came"
            return list(self.sent)

    # What the producer does.

    def send_batch(
        self, batch: OutgoingBatch, target: int, *, deadline: Deadline
    ) -> None:
        data, compressed = bytes(batch.payload), bool(batch.compressed)
        sent = Sent(batch.id, data, batch.records, target, compressed)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self.sent.append(sent)
            in_flight = len(self.sent) - self._answered
            self.in_flight_max = max(self.in_flight_max, in_flight)
            self._changed.notify_all()
        self.answer(self, sent)

    def receive(self, deadline: Deadline, waker: Waker | None = None) -> list[Any]:
        def is_done() -> bool:
            is_woken = waker is not None and waker.is_set
            return bool(self._events or self._failure or is_woken)

        with self._changed:
            # A waker does not notify the condition, so that it is looked at.
            while not is_done() and not deadline.expired:
                self._changed.wait(min(deadline.remaining(), LOOK_S))
            events, self._events = self._events, []
            if not events and self._failure is not None:
                raise self._failure
            return events

    def abort(self) -> None:
        self.fail(ConnectionLost("closed here"))


class FakeClient:
    """Gives connections in the order in which a test lists them; the last one stays.

    An exception in the list is raised in its turn.
    """

    def __init__(
        self,
        *connections: FakeConnection | Exception,
        config: ClientConfig = QUICK,
        topics: dict[str, int] | None = None,
    ) -> None:
        self.config = config
        self.topics = {"events": 7} if topics is None else topics
        self.is_closed = False
        self.created: list[str] = []
        self.stages: list[tuple[str, str, int]] = []
        # How often a connection came back that another writer can have.
        self.returned = 0
        self.leaders: list[Address] = []
        self.avoided: list[object] = []
        self._connections = list(connections or (FakeConnection(),))
        self._live: FakeConnection | None = None

    def connection(self) -> FakeConnection:
        if self.is_closed:
            raise LanceError("the client is closed")
        if self._live is None or not self._live.is_open:
            step = self._connections[0]
            if len(self._connections) > 1:
                self._connections.pop(0)
            if isinstance(step, Exception):
                raise step
            self._live = step
        return self._live

    @property
    def is_plain(self) -> bool:
        return not self.connection().capabilities

    def dedicated(self) -> FakeClient:
        return self

    def borrow(self) -> FakeClient:
        return self

    def give_back(self, borrowed: FakeClient) -> None:
        self.returned += 1

    @property
    def link(self) -> FakeClient:
        return self

    def connect_once(self) -> FakeConnection:
        return self.connection()

    def make_backoff(self) -> Backoff:
        config = self.config
        return Backoff(config.backoff_base_s, config.backoff_max_s, lambda: 0.0)

    def follow(self, decision: Decision) -> None:
        if decision.leader is not None:
            self.leaders.append(decision.leader)
            if self._live is not None:
                self._live.fail(ConnectionLost("somebody else leads"))
        elif decision.avoids is not None:
            self.avoided.append(decision.avoids)

    def close(self) -> None:
        self.is_closed = True
        if self._live is not None:
            self._live.fail(ConnectionLost("the client was closed"))

    def topic_id(self, topic: int | str) -> int:
        if isinstance(topic, int):
            return topic
        if topic not in self.topics:
            raise TopicNotFound(f"no topic is named {topic!r}")
        return self.topics[topic]

    def forget(self, topic: int | str) -> None:
        pass

    def ensure_topic(self, topic: str) -> Location:
        self.created.append(topic)
        self.topics.setdefault(topic, 100 + len(self.created))
        return _Named(self.topics[topic])  # type: ignore[return-value]

    def open_stage(self, topic: str, writer_id: str, sequence: int) -> int:
        self.stages.append((topic, writer_id, sequence))
        return 0x8000_0000 + len(self.stages)


@dataclass(frozen=True)
class _Named:
    id: int


class FakeLog:
    """A client with one topic, `events`, of which [start, end) can be read.

    Args:
        data: the bytes of the topic, of which the first is at offset 0.
        whole: answer with whole records and where the log ends, as our broker does;
            otherwise cut anywhere and say nothing, as a plain server does.
    """

    def __init__(self, data: bytes = b"", *, whole: bool = False) -> None:
        self.config = QUICK
        self.data = bytearray(data)
        self.start = 0
        self.whole = whole
        # What was asked for: the start, the size, and how.
        self.asked: list[tuple[int, int, str]] = []
        # Raised by the next requests, one each; None lets one through.
        self.errors: list[Exception | None] = []
        # Called before a request is answered.
        self.before: Callable[[], None] | None = None
        self.given_up = 0
        self.topic_ids = {"events": 7}
        self.created_at_s = 1_700_000_000
        # The offsets whose records were looked for.
        self.located: list[int] = []
        self.forgotten: list[int | str] = []
        self.committed: dict[tuple[int | str, int], int] = {}
        self.is_closed = False
        self.waits_s: list[float] = []

    def append(self, data: bytes) -> None:
        self.data += data

    def shift(self, size: int) -> None:
        """Delete the first bytes as a plain server does: what is left starts at 0."""
        del self.data[:size]

    def topic_id(self, topic: int | str) -> int:
        if isinstance(topic, int):
            return topic
        if topic not in self.topic_ids:
            raise TopicNotFound(f"no topic is named {topic!r}")
        return self.topic_ids[topic]

    def forget(self, topic: int | str) -> None:
        self.forgotten.append(topic)

    def dedicated(self) -> FakeLog:
        return self

    def close(self) -> None:
        self.is_closed = True

    def bounds(self, topic: int | str) -> KnownBounds:
        self._check(topic)
        return KnownBounds(self.start if self.whole else None, len(self.data))

    def supports(self, capability: Capability) -> bool:
        assert capability is Capability.LOCATE
        return self.whole

    def topic(self, topic: int | str) -> TopicInfo:
        self._check(topic)
        topic_id = self.topic_id(topic)
        return TopicInfo(topic_id, "events", self.created_at_s)

    def locate_time(self, topic: int | str, time_ns: int) -> Location:
        self._check(topic)
        return Location(time_ns, 0, time_ns)

    def locate_start(self, topic: int | str) -> Location:
        self._check(topic)
        return Location(self.start, 0, 0)

    def locate_offset(self, topic: int | str, offset: int) -> Location:
        self._check(topic)
        self.located.append(offset)
        at = self.start
        while at < min(offset, len(self.data)):
            at += 5 + int.from_bytes(self.data[at + 1 : at + 5], "little")
        return Location(at, 0, 0)

    def fetch(
        self, topic: int | str, start: int, max_bytes: int, *, wait_s: float = 0.0
    ) -> Fetched:
        self.waits_s.append(wait_s)
        self.asked.append((start, max_bytes, "fetch"))
        self._interfere()
        self._check(topic)
        return self._read(start, max_bytes)

    def submit_fetch(
        self, topic_id: int, start: int, max_bytes: int, *, dial: bool
    ) -> FakePendingFetch:
        assert not dial, "a fetch ahead must not wait for a connection"
        self.asked.append((start, max_bytes, "ahead"))
        return FakePendingFetch(self, topic_id, start, max_bytes)

    def commit_offset(
        self,
        topic: int | str,
        consumer_id: int,
        offset: int,
        *,
        timeout_s: float | None = None,
    ) -> int:
        self._interfere()
        topic = self.topic_ids.get(str(topic), topic)
        self.committed[topic, consumer_id] = offset
        return offset

    def committed_offset(self, topic: int | str, consumer_id: int) -> int | None:
        topic = self.topic_ids.get(str(topic), topic)
        return self.committed.get((topic, consumer_id))

    def _interfere(self) -> None:
        if self.before is not None:
            self.before()
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    def _check(self, topic: int | str) -> None:
        if self.topic_id(topic) not in self.topic_ids.values():
            raise TopicNotFound(f"Topic {topic} not found")

    def _read(self, start: int, max_bytes: int) -> Fetched:
        end = len(self.data)
        mark = end if self.whole else None
        start = max(start, self.start)
        if start >= end:
            return Fetched(end, end, memoryview(b""), mark)
        stop = min(start + max_bytes, end)
        if self.whole:
            stop = self._align(start, stop)
        data = memoryview(bytes(self.data[start:stop]))
        return Fetched(start, stop, data, mark)

    def _align(self, start: int, stop: int) -> int:
        at = start
        while at < len(self.data):
            after = at + 5 + int.from_bytes(self.data[at + 1 : at + 5], "little")
            if after > stop and at > start:
                break
            at = after
        return at


class FakePendingFetch:
    """A fetch ahead; it is answered when it is sent, as pipelined requests are."""

    def __init__(self, log: FakeLog, topic_id: int, start: int, max_bytes: int) -> None:
        self._log = log
        self._error: Exception | None = None
        try:
            log._interfere()
            log._check(topic_id)
            self._fetched = log._read(start, max_bytes)
        except LanceError as error:
            self._error = error

    def result(self, deadline: Deadline) -> Fetched:
        if self._error is not None:
            raise self._error
        return self._fetched

    def give_up(self) -> None:
        self._log.given_up += 1
