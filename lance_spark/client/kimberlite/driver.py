"""Kimberlite: how a connection speaks it, and its driver.

A stream is a topic with one partition. Requests name it by its id, and the only one
that tells the id of a name is the one that creates the stream if there is none. An
append says how long the stream is (`expected_offset`), so that a lost answer can be
followed by the same append: if it was stored, it is refused.
"""

from __future__ import annotations

import weakref
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
from lance_spark.client.driver import (
    CheckServer,
    TopicEntry,
    WriterSettings,
    warn_if_new,
)
from lance_spark.client.inbox import Pending
from lance_spark.client.kimberlite.config import TRAITS as TRAITS
from lance_spark.client.kimberlite.config import WIRES
from lance_spark.client.kimberlite.config import Config as Config
from lance_spark.errors import (
    AuthenticationFailed,
    ConnectionLost,
    InvalidOffset,
    InvalidPayload,
    LanceError,
    OptionError,
    RemoteProtocolError,
    TlsRefused,
    TopicAlreadyExists,
    TopicNotFound,
    Unsupported,
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
# The first version of frames whose servers tell the id of a stream again.
_TELLS_AGAIN_SINCE = 3
# How often a server may close the connection when it is asked for a length.
_CLOSINGS_MAX = 2
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
        except AuthenticationFailed as error:
            raise AuthenticationFailed(
                f"{connection.address}: {error.message}: the server asks for a token "
                "that it knows: give one, or correct it (auth_token)"
            ) from error
        if answer.server_version != version:
            raise self._refuse(connection, f"it has version {answer.server_version}")
        if config.auth_token is not None and not answer.authenticated:
            raise AuthenticationFailed(
                f"{connection.address}: the server does not accept the token: correct "
                "it (auth_token)"
            )

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
        # Whether the server tells lengths; None as long as that is not known. And how
        # often it has closed the connection instead.
        self._tells_length = None if form == wire.V5 else False
        self._closings = 0
        # The ids of names, and the connections by which they were told. A look at a
        # name asks for its id again.
        self._ids: dict[str, int] = {}
        self._told_by: dict[str, weakref.ref[Connection]] = {}
        # Releases before 0.4.2 refuse to tell the id of a stream that is there.
        self._tells_again = form.frame_version >= _TELLS_AGAIN_SINCE

    # Topics.

    def list_topics(self) -> dict[str, int]:
        """Refuse: a stream is found by its name only.

        Raises:
            Unsupported: always, unless there is only the stream of `stream_id`.
        """
        if self._stream_id is None:
            raise self.make_unsupported("listing streams (name one instead)")
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
                if self._tells_again or name not in self._ids:
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
            raise self._refuse_partitions(partitions)
        self._ids[name], self._told_by[name] = self._ask_id(name)

    def _ask_id(self, name: str) -> tuple[int, weakref.ref[Connection]]:
        """Ask for the id of a stream, and say by which connection it was told."""
        asked: list[Connection] = []

        def build(connection: Connection) -> wire.CreateStream:
            asked.append(connection)
            return wire.CreateStream(name)

        try:
            # The same again does no harm.
            answer: wire.CreateStreamResponse = self.link.ask(build)
        except TopicAlreadyExists as error:
            raise TopicAlreadyExists(
                f"{error.message}: releases before 0.4.2 do not tell the id of a "
                "stream that is there: give it (stream_id, in Spark streamId)"
            ) from error
        return answer.stream_id, weakref.ref(asked[-1])

    def _refuse_partitions(self, partitions: int) -> Unsupported:
        return self.make_unsupported(f"a stream of {partitions} partitions")

    def find_bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, Bounds]:
        """Read at 0, which tells the first offset, and ask for the length."""
        at = Partition(topic)
        start = 0
        try:
            # No bytes: the first event may be large, and this is asked often.
            self.link.ask(lambda _: self.make_fetch(at, 0, 0))
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
        length = None if self._tells_length is False else self._ask_length(at)
        if length is None:
            return self.search_end(at, start)
        if length > _OFFSET_MAX:
            raise RemoteProtocolError(f"stream {at.topic!r} can't have {length} events")
        return length

    def _ask_length(self, at: Partition) -> int | None:
        """Ask how many events a stream has; None if the server does not tell it.

        A server before 0.8 takes the request for another one, which it can't read, and
        closes the connection. That may also be chance, so that it is asked again the
        next time, until it has answered once or has closed several times.
        """

        def build(_: Connection) -> wire.StreamInfo:
            return wire.StreamInfo(self._find_id(at))

        answer: wire.StreamInfoResponse
        is_known = self._tells_length is not None
        # So that a server which can't be reached is told from one that closes.
        self.link.connection()
        try:
            answer = self.link.ask(build, retry=is_known)
        except InvalidPayload:
            self._tells_length = False
            return None
        except ConnectionLost:
            if is_known:
                raise
            self._closings += 1
            if self._closings >= _CLOSINGS_MAX:
                self._tells_length = False
            return None
        except LanceError as error:
            if is_known or not error.retriable:
                raise
            answer = self.link.ask(build)
        self._tells_length = True
        return answer.length

    def _find_id(self, at: Partition) -> int:
        if at.number:
            raise TopicNotFound(f"there is no partition {show(at)}: streams have one")
        if self._stream_id is not None:
            return self._stream_id
        name = at.topic
        known = self._ids.get(name)
        if known is None:
            self.create_topic(name, retry=True)
        elif self._tells_again and self._told_by[name]() is not self.link.live():
            # Another server may answer now, or one that has forgotten its streams: then
            # the id may be that of another stream.
            found, told_by = self._ask_id(name)
            if found != known:
                raise TopicNotFound(
                    f"stream {name!r} has the id {found} now, and had {known}: it was "
                    "created anew, or this is another server"
                )
            self._told_by[name] = told_by
        return self._ids[name]

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
        """Write rows to a stream, which is created in any case: so its id is found.

        Raises:
            Unsupported: it was to get several partitions.
        """
        if options.partitions != 1:
            raise self._refuse_partitions(options.partitions)
        self.topics([to.topic])
        if not create_topic and self._stream_id is None:
            warn_if_new(self, to.topic, [Bounds(0, self._probe(to, 0))])
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


def open_driver(config: Config, *, once: bool = False) -> KimberliteDriver:
    """Connect to a server."""
    return connect(KimberliteDriver(config), once=once)
