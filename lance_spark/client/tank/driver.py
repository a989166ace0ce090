"""TANK: how a connection speaks it, and its driver.

Positions are sequence numbers, the first of which is 1. An append says which number its
first message is to get (message 5), so that a lost answer can be followed by the same
append: if it was stored, it is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lance_spark.client.config import Runtime
from lance_spark.client.connection import Connection
from lance_spark.client.counted import CountedDriver, Fetched, connect, show
from lance_spark.client.dialect import ConnectionEnded
from lance_spark.client.inbox import Pending
from lance_spark.client.tank.config import TRAITS as TRAITS
from lance_spark.client.tank.config import Config as Config
from lance_spark.errors import (
    ConnectionLost,
    RecordError,
    RemoteProtocolError,
    TlsRefused,
    TopicNotFound,
)
from lance_spark.model import Bounds, Buffer, Partition
from lance_spark.net.deadline import Deadline
from lance_spark.records import NO_SPANS, Records
from lance_spark.wire import tank as wire

MIB = 1024 * 1024
# A broker of this library takes no larger message, unless its settings say so.
_APPEND_BYTES_MAX = 8 * MIB
_RECORD_BYTES_MAX = 16 * MIB - 2**10
# TANK's broker does not wait shorter than this, and not longer.
_WAIT_S_MIN, _WAIT_S_MAX = 0.32, 3600.0
_REQUESTS_MAX = 2**32
# No message has this number; positions have 64 bits with a sign.
_SEQ_MAX = 2**62

assert TRAITS.first_position == wire.SEQ_FIRST


class TankDialect:
    """TANK; answers have the ids of their requests and may overtake each other.

    Args:
        response_bytes_max: the largest answer to take.
    """

    requests_max: int | None = None
    capabilities: frozenset[str] = frozenset()
    keepalive = None

    def __init__(self, response_bytes_max: int) -> None:
        self._response_bytes_max = response_bytes_max

    def make_parser(self) -> wire.FrameParser:
        """Make the parser of what the server sends."""
        size = self._response_bytes_max
        return wire.FrameParser(payload_bytes_max=size, payload_bytes_first=size)

    def greet(self, connection: Connection, deadline: Deadline) -> None:
        """Ask for the status, to learn whether the server speaks TANK."""
        try:
            connection.request(wire.GetStatus(0), deadline=deadline)
        except TlsRefused:
            raise
        except ConnectionLost as error:
            raise ConnectionEnded(
                f"{error} before its first answer; if it is up, check that it speaks "
                "TANK, lets clients in without a token, and that tls is what it uses"
            ) from error

    def name_of(self, request: wire.Message) -> str:
        """Name a request in error texts."""
        return type(request).__name__

    def encode(self, request: Any, number: int) -> Sequence[Buffer]:
        """Write a request with its number as its id."""
        request = replace(request, request_id=number % _REQUESTS_MAX)
        return wire.encode_message(request)

    def encode_batch(self, batch: Any, target: Any, number: int) -> Sequence[Buffer]:
        """Refuse: batches are requests here."""
        raise NotImplementedError

    def number_of(
        self, frame: wire.Frame, waiting: Mapping[int, Pending]
    ) -> int | None:
        """Read the id of the request; None for a ping, which answers none."""
        number = wire.number_of(frame)
        # Only the last 32 bits of a number are sent.
        return next((n for n in waiting if n % _REQUESTS_MAX == number), number)

    def decode(self, frame: wire.Frame, request: Any) -> wire.Message:
        """Read the answer to a request for one partition, and raise its error."""
        answer = wire.decode_response(frame)
        expected = wire.RESPONSES[_answer_kind(request.KIND)]
        if not isinstance(answer, expected):
            raise RemoteProtocolError(
                f"{type(answer).__name__} came in answer to {self.name_of(request)!r}"
            )
        if (
            isinstance(answer, wire.Partitions | wire.Created)
            and answer.topic != request.topic
        ):
            raise RemoteProtocolError(f"the answer is not about {request.topic!r}")
        if isinstance(answer, wire.Produced):
            for topic, write, outcome in answer.match(request):
                where = show(Partition(topic, write.partition))
                _check(request.KIND, outcome.code, where, outcome.leader)
        elif isinstance(answer, wire.Consumed):
            _check_consumed(answer, request)
        elif isinstance(answer, wire.Created):
            _check(request.KIND, answer.code, answer.topic)
        return answer

    def decode_push(self, frame: wire.Frame) -> None:
        """Drop it: a broker greets with a ping, and says nothing else unasked."""


def _answer_kind(kind: wire.Kind) -> wire.Kind:
    return wire.Kind.PRODUCE if kind is wire.Kind.PRODUCE_AT else kind


def _check(kind: wire.Kind, code: int, where: str, leader: str | None = None) -> None:
    if code != wire.OK:
        raise wire.make_error(kind, code, where, leader)


def _check_consumed(answer: wire.Consumed, request: wire.Consume) -> None:
    asked = request.topics[0]
    where = show(Partition(asked.name, asked.fetches[0].partition))
    if len(answer.topics) != 1 or answer.topics[0].name != asked.name:
        raise RemoteProtocolError(f"the answer is not about {where}")
    topic = answer.topics[0]
    if topic.unknown is not None:
        raise wire.make_error(request.KIND, wire.UNKNOWN, where)
    if [found.partition for found in topic.partitions] != [asked.fetches[0].partition]:
        raise RemoteProtocolError(f"the answer is not about {where}")
    found = topic.partitions[0]
    if found.flag != wire.SPARSE:
        where = f"{where} at {asked.fetches[0].seq}"
        _check(request.KIND, found.flag, where, found.leader)


class TankDriver(CountedDriver):
    """Drives TANK's servers."""

    traits = TRAITS
    is_conditional = True
    # With other writers a number that is taken tells nothing.
    is_conditional_alone = True
    key_bytes_max = wire.KEY_BYTES_MAX
    wait_s_min = _WAIT_S_MIN
    append_bytes_max = _APPEND_BYTES_MAX
    record_bytes_max = _RECORD_BYTES_MAX

    def __init__(self, config: Config, runtime: Runtime | None = None) -> None:
        size = config.response_bytes_max
        super().__init__(config, lambda address: [TankDialect(size)], runtime)
        self.fetch_bytes_max = config.response_bytes_max // 2

    # Topics.

    def list_topics(self) -> dict[str, int]:
        """Ask for all topics, of which those count that are enabled."""
        answer: wire.Topics = self._ask(wire.DiscoverTopics(0))
        return {
            topic.name: topic.partitions for topic in answer.topics if topic.enabled
        }

    def create_topic(
        self, name: str, partitions: int = 1, *, retry: bool = False
    ) -> None:
        """Create a topic."""
        self._ask(wire.CreateTopic(0, name, partitions), retry=retry)

    def find_bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
        """Ask for all partitions of the topic: a list of some ends TANK's broker."""
        request = wire.DiscoverPartitions(0, topic)
        answer: wire.Partitions = self._ask(request)
        if not answer.partitions:
            raise TopicNotFound(f"there is no topic {topic!r}")
        found = {}
        for number in partitions:
            if number < len(answer.partitions):
                state = answer.partitions[number]
                reason, where = state.reason, show(Partition(topic, number))
                _check(request.KIND, reason.code, where, reason.leader)
                bounds = found[number] = state.bounds
                if not bounds.start <= bounds.end <= _SEQ_MAX:
                    raise RemoteProtocolError(
                        f"{where} can't begin at {bounds.start} and end at {bounds.end}"
                    )
        return found

    # Records.

    def make_fetch(
        self, at: Partition, position: int, max_bytes: int, wait_s: float = 0.0
    ) -> wire.Consume:
        """Ask for records, and let the server wait for them."""
        wait_ms = 0
        if wait_s > 0:
            wait_ms = int(1000 * min(max(wait_s, _WAIT_S_MIN), _WAIT_S_MAX))
        fetch = wire.Fetch(at.number, position, min(max_bytes, self.fetch_bytes_max))
        return wire.Consume(
            max_wait_ms=wait_ms, topics=(wire.FetchTopic(at.topic, (fetch,)),)
        )

    def read_fetched(
        self, answer: wire.Consumed, at: Partition, position: int
    ) -> Fetched:
        """Read bundles; the first may start before the position."""
        found = answer.topics[0].partitions[0]
        if not memoryview(found.chunk).nbytes:
            # Without a chunk the other numbers mean nothing.
            return Fetched(_NO_RECORDS, position, position)
        is_sparse = found.flag == wire.SPARSE
        base = 0 if is_sparse else found.base_seq
        chunk = wire.read_chunk(
            found.chunk,
            base,
            start=position,
            end=found.hwm + 1,
            expanded_bytes_max=8 * self.config.response_bytes_max,
        )
        records, next_seq = chunk.records, min(chunk.next_seq, found.hwm + 1)
        if records.fault is not None:
            # It is raised when it is first in an answer.
            if not len(records):
                reason = f"{show(at)}: bundle behind {position - 1}: {records.fault}"
                raise RecordError(reason, position, unit="offset")
            records = replace(records, fault=None)
            next_seq = records.position(len(records) - 1) + 1
        # A sparse bundle says itself which numbers there are none of.
        start = position if is_sparse else base
        needed = 0
        if next_seq <= position <= found.hwm:
            # The bundle is cut off; or others came, and it is behind them.
            size = memoryview(found.chunk).nbytes
            needed = size + (chunk.cut_bytes or size)
            if chunk.next_seq == base:
                needed = chunk.cut_bytes
        return Fetched(records, start, max(next_seq, position), needed)

    def make_append(
        self,
        to: Partition,
        records: Records,
        *,
        expected: int | None,
        compression: str,
    ) -> wire.Produce:
        """Ask to append one bundle; records without a time get that of now."""
        bundle = wire.write_records(
            records, stamps_ns=time.time_ns(), compress=compression == "snappy"
        )
        write = wire.Write(to.number, bundle, expected)
        topics = (wire.WriteTopic(to.topic, (write,)),)
        kind = wire.Produce if expected is None else wire.ProduceAt
        return kind(topics=topics)

    def check_appended(self, answer: wire.Produced, to: Partition, count: int) -> None:
        """Take it for success: the dialect has raised what else it may be."""

    def _ask(self, request: wire.Message, *, retry: bool = True) -> Any:
        return self.link.ask(lambda _: request, retry=retry)


_NO_RECORDS = Records(NO_SPANS)


def open_driver(config: Config, *, once: bool = False) -> TankDriver:
    """Connect to a server."""
    return connect(TankDriver(config), once=once)
