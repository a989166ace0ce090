"""RustLog: how a connection speaks it, and its driver.

RustLog has no request for the end of a partition: it is searched by fetches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lance_spark.client.config import Runtime
from lance_spark.client.connection import Connection
from lance_spark.client.counted import CountedDriver, Fetched, connect, show
from lance_spark.client.dialect import ConnectionEnded
from lance_spark.client.inbox import Pending
from lance_spark.client.rustlog.config import TRAITS as TRAITS
from lance_spark.client.rustlog.config import Config as Config
from lance_spark.errors import (
    ConnectionLost,
    InvalidPayload,
    OptionError,
    RemoteProtocolError,
    TlsRefused,
)
from lance_spark.model import Bounds, Buffer, Partition
from lance_spark.net.deadline import Deadline
from lance_spark.records import Records
from lance_spark.wire import rustlog as wire

# In JSON a byte is up to three digits and a comma.
_JSON_GROWTH = 4
_HEAD_BYTES = 64
# What is asked for at once at most: our broker makes answers in memory, and those that
# leave the processor's cache take half as much time again.
_FETCH_BYTES_MAX = 1024 * 1024

assert Config.response_bytes_min == wire.FRAME_BYTES_MAX


class RustlogDialect:
    """One of RustLog's two dialects; answers come in the order of requests.

    Args:
        as_json: speak JSON.
    """

    # RustLog's broker reads no request before it has answered the last one.
    requests_max: int | None = 1
    capabilities: frozenset[str] = frozenset()
    keepalive = None

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def make_parser(self) -> wire.FrameParser:
        """Make the parser of what the server sends."""
        return wire.FrameParser(payload_bytes_first=wire.FRAME_BYTES_MAX)

    def greet(self, connection: Connection, deadline: Deadline) -> None:
        """Ping, as there is no greeting: so a server of another kind is noticed."""
        try:
            connection.request(wire.Ping(), deadline=deadline)
        except TlsRefused:
            raise
        except InvalidPayload as error:
            # RustLog's broker reads the first byte of JSON as an unknown command.
            if not self._as_json:
                raise
            raise OptionError(
                f"dialect json: the server {connection.address} does not speak it "
                f"({error}); leave it out, RustLog's broker speaks binary"
            ) from error
        except ConnectionLost as error:
            raise ConnectionEnded(
                f"{error} before its first answer; if it is up, check that it speaks "
                "RustLog and that tls is what it uses"
            ) from error

    def name_of(self, request: wire.Message) -> str:
        """Name a request in error texts."""
        return request.NAME

    def encode(self, request: wire.Message, number: int) -> Sequence[Buffer]:
        """Write a request; RustLog has no place for its number."""
        return wire.encode_message(request, as_json=self._as_json)

    def encode_batch(self, batch: Any, target: Any, number: int) -> Sequence[Buffer]:
        """Refuse: batches are requests here."""
        raise NotImplementedError

    def number_of(
        self, frame: memoryview, waiting: Mapping[int, Pending]
    ) -> int | None:
        """Give the only request that waits."""
        return next(iter(waiting), 0)

    def decode(self, frame: memoryview, request: wire.Message) -> wire.Message:
        """Read the answer to a request."""
        answer = wire.decode_response(frame)
        if isinstance(answer, wire.ErrorResponse):
            raise answer.to_exception()
        if answer.COMMAND != request.COMMAND:
            raise RemoteProtocolError(
                f"{answer.NAME!r} came in answer to {request.NAME!r}"
            )
        return answer

    def decode_push(self, frame: memoryview) -> None:
        """Drop it: RustLog's servers say nothing unasked."""


class RustlogDriver(CountedDriver):
    """Drives RustLog's servers."""

    traits = TRAITS
    # The server answers one request before it reads the next.
    appends_max = RustlogDialect.requests_max

    def __init__(self, config: Config, runtime: Runtime | None = None) -> None:
        as_json = config.dialect == "json"
        super().__init__(
            config, lambda address: [RustlogDialect(as_json=as_json)], runtime
        )
        growth = _JSON_GROWTH if as_json else 1
        self.append_bytes_max = wire.PIECE_BYTES_MAX // growth
        # With a topic's name of any length beside it.
        self.record_bytes_max = (wire.VALUE_BYTES_MAX - 2**16) // growth - _HEAD_BYTES

    # Topics.

    def list_topics(self) -> dict[str, int]:
        """Ask for all topics."""
        answer: wire.ListTopicsResponse = self._ask(wire.ListTopics())
        return dict(answer.topics)

    def create_topic(
        self, name: str, partitions: int = 1, *, retry: bool = False
    ) -> None:
        """Create a topic."""
        answer = self._ask(wire.CreateTopic(name, partitions), retry=retry)
        if not answer.success:
            raise RemoteProtocolError(f"topic {name!r} was not created, without reason")

    def find_bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
        """Ask for the first records, and look for the ends."""
        answer: wire.DescribeTopicResponse = self._ask(wire.DescribeTopic(topic))
        if answer.topic != topic:
            raise RemoteProtocolError(f"the answer is not about {topic!r}")
        starts = dict(answer.partitions)
        found = {number: starts[number] for number in partitions if number in starts}
        return {
            number: Bounds(start, self.search_end(Partition(topic, number), start))
            for number, start in found.items()
        }

    # Records.

    def make_fetch(
        self, at: Partition, position: int, max_bytes: int, wait_s: float = 0.0
    ) -> wire.Fetch:
        """Ask for records; the server can't wait for them."""
        most = min(max_bytes, _FETCH_BYTES_MAX)
        return wire.Fetch(at.topic, at.number, position, most)

    def read_fetched(
        self, answer: wire.FetchResponse, at: Partition, position: int
    ) -> Fetched:
        """Read records, whose numbers follow from the last one's.

        Raises:
            RemoteProtocolError: they are before the position, where a server has
                nothing to say: it answers something else.
        """
        records = answer.records
        if not len(records):
            # RustLog's broker echoes the position, the JSON tells the log's end.
            return Fetched(records, position, position)
        if records.base < position:
            raise RemoteProtocolError(
                f"{show(at)}: records from {records.base} on came in answer to a fetch "
                f"from {position} on"
            )
        return Fetched(records, records.base, answer.next_offset)

    def make_append(
        self,
        to: Partition,
        records: Records,
        *,
        expected: int | None,
        compression: str,
    ) -> wire.Produce:
        """Ask to append; RustLog has no conditions and no compression."""
        return wire.Produce(to.topic, to.number, records)

    def check_appended(
        self, answer: wire.ProduceResponse, to: Partition, count: int
    ) -> None:
        """Compare how many records were stored: RustLog's broker stores one by one.

        Raises:
            RemoteProtocolError: not all of them.
        """
        if answer.count != count:
            raise RemoteProtocolError(
                f"{show(to)}: {count} records were sent, {answer.count} were stored"
            )

    def _ask(self, request: wire.Message, *, retry: bool = True) -> Any:
        return self.link.ask(lambda _: request, retry=retry)


def open_driver(config: Config, *, once: bool = False) -> RustlogDriver:
    """Connect to a server."""
    return connect(RustlogDriver(config), once=once)
