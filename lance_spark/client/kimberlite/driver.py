"""Kimberlite: how a connection speaks it, and its driver.

A stream is a topic with one partition. Requests name it by its id, and the only one
that tells the id of a name is the one that creates the stream if there is none. An
append says how long the stream is (`expected_offset`), so that a lost answer can be
followed by the same append: if it was stored, it is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lance_spark.client.config import Runtime
from lance_spark.client.connection import Connection
from lance_spark.client.counted import (
    CountedDriver,
    CountedWriter,
    Fetched,
    connect,
    show,
)
from lance_spark.client.dialect import ConnectionEnded
from lance_spark.client.driver import CheckServer, TopicEntry, WriterSettings
from lance_spark.client.inbox import Pending
from lance_spark.client.kimberlite.config import TRAITS as TRAITS
from lance_spark.client.kimberlite.config import WIRES
from lance_spark.client.kimberlite.config import Config as Config
from lance_spark.errors import (
    AuthenticationFailed,
    ConnectionLost,
    InvalidOffset,
    InvalidPayload,
    OptionError,
    RemoteProtocolError,
    TlsRefused,
    TopicNotFound,
)
from lance_spark.model import Bounds, Buffer, Partition
from lance_spark.net.deadline import Deadline
from lance_spark.records import Records
from lance_spark.wire import kimberlite as wire

MIB = 1024 * 1024
# An answer may pass what was asked for by an event, and fits into a frame all the same.
_FETCH_BYTES_MAX = 4 * MIB
# Positions have 64 bits with a sign, and sums of them stay within.
_OFFSET_MAX = 2**62
_ANSWERS: Mapping[type[wire.Message], type[wire.Message]] = {
    wire.Handshake: wire.HandshakeResponse,
    wire.CreateStream: wire.CreateStreamResponse,
    wire.AppendEvents: wire.AppendEventsResponse,
    wire.ReadEvents: wire.ReadEventsResponse,
    wire.StreamInfo: wire.StreamInfoResponse,
}


class KimberliteDialect:
    """Kimberlite; answers come in the order of requests, with pushes between them.

    Args:
        config: the form of the messages, the tenant and the token.
    """

    requests_max: int | None = None
    capabilities: frozenset[str] = frozenset()
    keepalive = None

    def __init__(self, config: Config) -> None:
        self._config = config
        self._wire = wire.WIRES[config.wire]

    def make_parser(self) -> wire.FrameParser:
        """Make the parser of what the server sends."""
        size = self._config.response_bytes_max
        return wire.FrameParser(payload_bytes_max=size, payload_bytes_first=size)

    def greet(self, connection: Connection, deadline: Deadline) -> None:
        """Say the version and the token."""
        config, version = self._config, self._wire.frame_version
        request = wire.Handshake(version, config.auth_token)
        try:
            answer = connection.request(request, deadline=deadline)
        except TlsRefused:
            raise
        except ConnectionLost as error:
            raise ConnectionEnded(
                f"{error} before its first answer; if it is up, check that it speaks "
                f"Kimberlite in the form {config.wire} (wire), and that tls is what it "
                "uses"
            ) from error
        except RemoteProtocolError as error:
            reason = f"{error}, asked in the form {config.wire} (wire)"
            raise RemoteProtocolError(reason) from error
        except InvalidPayload as error:
            raise self._refuse(connection, str(error)) from error
        if answer.server_version != version:
            raise self._refuse(connection, f"it has version {answer.server_version}")
        if config.auth_token is not None and not answer.authenticated:
            raise AuthenticationFailed("the server does not accept the token")

    def _refuse(self, connection: Connection, reason: str) -> OptionError:
        return OptionError(
            f"wire {self._config.wire}: the server {connection.address} does not take "
            f"it ({reason}); give the form of its release, one of {', '.join(WIRES)}"
        )

    def name_of(self, request: wire.Message) -> str:
        """Name a request in error texts."""
        return type(request).__name__

    def encode(self, request: wire.Message, number: int) -> Sequence[Buffer]:
        """Write a request with its number as its id."""
        message = wire.Request(number, self._config.tenant, request)
        return wire.encode_message(message, self._wire)

    def encode_batch(self, batch: Any, target: Any, number: int) -> Sequence[Buffer]:
        """Refuse: batches are requests here."""
        raise NotImplementedError

    def number_of(
        self, frame: wire.Frame, waiting: Mapping[int, Pending]
    ) -> int | None:
        """Read the id of the request; None for a push, which answers none."""
        return wire.number_of(frame, self._wire)

    def decode(self, frame: wire.Frame, request: wire.Message) -> wire.Message:
        """Read the answer to a request, and raise its error."""
        answer = wire.decode_response(frame, self._wire).body
        if isinstance(answer, wire.ErrorResponse):
            raise answer.to_exception()
        if not isinstance(answer, _ANSWERS[type(request)]):
            raise RemoteProtocolError(
                f"{type(answer).__name__} came in answer to {self.name_of(request)!r}"
            )
        return answer

    def decode_push(self, frame: wire.Frame) -> None:
        """Drop it: this client subscribes to nothing."""


class KimberliteDriver(CountedDriver):
    """Drives Kimberlite's servers."""

    traits = TRAITS
    is_conditional = True
    append_bytes_max = wire.APPEND_BYTES_MAX
    append_records_max = wire.APPEND_EVENTS_MAX
    record_bytes_max = wire.APPEND_BYTES_MAX

    def __init__(self, config: Config, runtime: Runtime | None = None) -> None:
        super().__init__(config, lambda address: [KimberliteDialect(config)], runtime)
        self._stream_id = config.stream_id
        self.traits = replace(TRAITS, creates_to_find=config.stream_id is None)
        form = wire.WIRES[config.wire]
        # Release 0.1 took every append.
        self.is_conditional = form.version > 0
        self._tells_length = form == wire.V5
        # The ids of names; a look at a name asks for it again.
        self._ids: dict[str, int] = {}

    # Topics.

    def list_topics(self) -> dict[str, int]:
        """Refuse: a stream is found by its name only.

        Raises:
            Unsupported: always, unless there is only the stream of `stream_id`.
        """
        if self._stream_id is None:
            what = "listing streams: name the stream that you mean"
            raise self.make_unsupported(what)
        return {str(self._stream_id): 1}

    def topics(self, names: Collection[str] | None = None) -> list[TopicEntry]:
        """Look streams up by name; those that do not exist are created.

        Raises:
            Unsupported: no names are given.
            OptionError: several are, for the one stream of `stream_id`.
        """
        names = self.list_topics() if names is None else names
        if self._stream_id is None:
            for name in names:
                self.create_topic(name, retry=True)
        elif len(set(names)) > 1:
            raise OptionError(
                f"stream_id {self._stream_id} is one stream, and so it can't be "
                f"{', '.join(sorted(names))}: leave it out, or name one"
            )
        else:
            try:
                for name in names:
                    self.find_end(Partition(name))
            except TopicNotFound:
                return []
        return [TopicEntry(name) for name in sorted(set(names))]

    def create_topic(
        self, name: str, partitions: int = 1, *, retry: bool = False
    ) -> None:
        """Create a stream, or find the one that is there: nothing tells which."""
        if partitions != 1:
            raise self.make_unsupported(f"a stream of {partitions} partitions")
        request = wire.CreateStream(name)
        # The same again does no harm.
        answer: wire.CreateStreamResponse = self.link.ask(lambda _: request)
        self._ids[name] = answer.stream_id

    def find_bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
        """Read at 0, which tells the first offset, and ask for the length."""
        at = Partition(topic)
        start = 0
        try:
            self.link.ask(lambda _: self.make_fetch(at, 0, 1))
        except InvalidOffset as error:
            first = error.details.get("log_start")
            if first is None:
                raise
            start = first
        end = self.find_end(at, start)
        if not start <= end:
            raise RemoteProtocolError(
                f"stream {topic!r} can't begin at {start} and end at {end}"
            )
        return {0: Bounds(start, end)} if 0 in partitions else {}

    def find_end(self, at: Partition, start: int = 0) -> int:
        """Ask for the length; releases before 0.8 do not tell it."""
        if self._tells_length:
            try:
                answer: wire.StreamInfoResponse = self.link.ask(
                    lambda _: wire.StreamInfo(self._find_id(at))
                )
            except InvalidPayload:
                # Its number meant something else before 0.8.
                self._tells_length = False
            else:
                if answer.length > _OFFSET_MAX:
                    raise RemoteProtocolError(
                        f"stream {at.topic!r} can't have {answer.length} events"
                    )
                return answer.length
        return self.search_end(at, start)

    def _find_id(self, at: Partition) -> int:
        if at.number:
            raise TopicNotFound(f"there is no partition {show(at)}: streams have one")
        if self._stream_id is not None:
            return self._stream_id
        if at.topic not in self._ids:
            self.create_topic(at.topic, retry=True)
        return self._ids[at.topic]

    # Records.

    def make_fetch(
        self, at: Partition, position: int, max_bytes: int, wait_s: float = 0.0
    ) -> wire.ReadEvents:
        """Ask for events; the server can't wait for them."""
        most = min(max_bytes, _FETCH_BYTES_MAX)
        return wire.ReadEvents(self._find_id(at), position, most)

    def read_fetched(
        self, answer: wire.ReadEventsResponse, at: Partition, position: int
    ) -> Fetched:
        """Read events, the first of which is the one that was asked for.

        Raises:
            RemoteProtocolError: the answer names another one behind the last.
        """
        events = replace(answer.events, base=position)
        end = position + len(events)
        if len(events) and answer.next_offset not in (None, end):
            raise RemoteProtocolError(
                f"{show(at)}: {answer.next_offset} follows {len(events)} events from "
                f"{position} on"
            )
        return Fetched(events, position, end)

    def open_writer(
        self,
        to: Partition,
        *,
        options: WriterSettings,
        create_topic: bool,
        check: CheckServer,
    ) -> CountedWriter:
        """Write rows to a stream, which is created in any case: so its id is found."""
        self.topics([to.topic])
        return CountedWriter(self, to, options)

    def make_append(
        self,
        to: Partition,
        records: Records,
        *,
        expected: int | None,
        compression: str,
    ) -> wire.AppendEvents:
        """Ask to append behind so many events."""
        return wire.AppendEvents(self._find_id(to), records, expected)

    def check_appended(
        self, answer: wire.AppendEventsResponse, to: Partition, count: int
    ) -> None:
        """Compare how many events were stored.

        Raises:
            RemoteProtocolError: not all of them.
        """
        if answer.count != count:
            raise RemoteProtocolError(
                f"{show(to)}: {count} events were sent, {answer.count} were stored"
            )


def open_driver(config: Config) -> KimberliteDriver:
    """Connect to a server."""
    return connect(KimberliteDriver(config))
