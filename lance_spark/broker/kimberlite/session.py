"""A client that speaks Kimberlite, in the form of any of its releases.

A stream is a topic with one partition, and an offset is a record number. Answers come
in the order of requests, with what subscribers are pushed between them. The home tenant
(setting `kimberlite_tenant`) knows a topic `events` by that name, and tenant 42 knows
the topic `42:events` as `events`. So tenants are names and no more: what keeps clients
apart are tokens, certificates and the rules of topics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from lance_spark.broker.kimberlite.sql import Queries
from lance_spark.broker.service import to_broker_error
from lance_spark.broker.session import (
    STANDING_MAX,
    Owed,
    Session,
    Shared,
    StandingRequest,
)
from lance_spark.columnar import make_schema, write_records
from lance_spark.errors import (
    AuthenticationRequired,
    Backpressure,
    BrokerError,
    ConnectionLost,
    ConsumerNotFound,
    InternalError,
    InvalidOffset,
    InvalidPayload,
    InvalidTopicName,
    LanceError,
    LocalProtocolError,
    OffsetOutOfRange,
    PartitionedTopic,
    PayloadTooLarge,
    RemoteProtocolError,
    Timeout,
    TopicAlreadyExists,
    TopicNotFound,
    UnknownTopic,
    VersionMismatch,
)
from lance_spark.model import Buffer
from lance_spark.net.stream import Stream
from lance_spark.records import NO_SPANS, Records
from lance_spark.wire import kimberlite as wire

logger = logging.getLogger(__name__)

# Tenants and logs share the 64 bits of a stream's id.
_LOG_BITS = 32
# Between a tenant and the name that it gives its stream.
_SEPARATOR = ":"
# What is stored is more than the events: it is read for a read of so many bytes, and
# for one that is answered with a small frame.
_STORED_FACTOR, _STORED_BYTES = 2, 4 * 1024
_SMALL_LOAD_BYTES_MAX = 512 * 1024

_POSITION_AHEAD = 9
# How much of a stream is read at a time for a query, and what it becomes there.
_TABLE_BYTES = 1024 * 1024
_TABLE = make_schema(("offset", "value"))

# How much of a subscription is pushed before it is the turn of others.
_PUSH_EVENTS, _PUSH_BYTES = 256, 128 * 1024
_CREDITS_MAX = 2**32 - 1

_CAPABILITIES = ("query", "append", "subscribe", "query_at", "sync")
_NO_RECORDS = Records(NO_SPANS)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the answer to a request needs to know of it."""

    number: int
    name: str


@dataclass(eq=False, slots=True)
class _Subscription:
    """Events that a client wants pushed.

    Args:
        number: its id, on this connection.
        log: where they are.
        next: the first that was not pushed yet.
        credits: how many more the client takes.
        group: whose place is kept; nobody's if empty.
        committed: that place.
        standing: the request that stands.
    """

    number: int
    log: int
    next: int
    credits: int
    group: str
    committed: int
    standing: StandingRequest = field(init=False)


class KimberliteSession(Session[wire.Frame]):
    """Serves one client of Kimberlite."""

    CARRIES_TOKEN = True

    _parser: wire.FrameParser

    def __init__(self, stream: Stream, shared: Shared, queries: Queries) -> None:
        super().__init__(stream, shared)
        self._queries = queries
        self._peer = wire.Peer()
        self._subscriptions: dict[int, _Subscription] = {}
        # How many there have been, which numbers them.
        self._subscribed = 0
        # Set by the thread that stops the broker.
        self._stopping = False

    def _make_parser(self) -> wire.FrameParser:
        return wire.FrameParser(payload_bytes_max=self._payload_bytes_max)

    # Frames.

    def _handle(self, frame: wire.Frame) -> None:
        if not self._hold_work(wire.find_memory(frame)):
            raise Timeout("there was no memory to read the request")
        request = self._peer.decode_request(frame)
        body = request.body
        asked = _Asked(request.id, type(body).__name__)
        try:
            if not self.is_admitted:
                self._handle_stranger(request, asked)
            elif isinstance(body, wire.AppendEvents):
                self._append_events(request.tenant_id, body, asked)
            else:
                # Answers are in the order of requests.
                self._settle()
                self._turn.begin()
                answer = _HANDLERS[type(body)](self, request.tenant_id, body)
                self._answer(answer, asked)
        except ConnectionLost:
            # An answer was cut off: no other can follow it.
            raise
        except Exception as error:
            self._count("requests_refused")
            self._fail(to_broker_error(error), asked)

    def _handle_stranger(self, request: wire.Request, asked: _Asked) -> None:
        """Look at a request of a client without its token: only at a handshake."""
        try:
            if not isinstance(request.body, wire.Handshake):
                raise AuthenticationRequired(
                    "this broker asks for a token: begin with a handshake that has it"
                )
            self._answer(self._handshake(request.tenant_id, request.body), asked)
        finally:
            self._watch_stranger()

    def _answer(self, message: wire.Message, asked: _Asked) -> None:
        parts = self._encode(message, asked.number)
        if not self._lent:
            self._hold_answer(sum(memoryview(part).nbytes for part in parts))
        self._observe(asked.name, self._began_s)
        self._send(parts)

    def _encode(self, message: wire.Message, number: int) -> list[Buffer]:
        assert self._peer.wire is not None
        try:
            return wire.encode_message(wire.Response(number, message), self._peer.wire)
        except LocalProtocolError as error:
            raise InternalError(f"the answer can't be sent: {error}") from error

    def _fail(self, error: BrokerError, asked: _Asked) -> None:
        self._settle()
        self._answer(wire.ErrorResponse.from_exception(error), asked)

    def _refuse(self, error: BrokerError, frame: wire.Frame | None) -> None:
        number = None if frame is None else self._read_number(frame)
        if number is None:
            logger.warning("%s: closed: %s", self._stream.peer, error)
            self._settle()
            # An error answers a request, and this one can't be told.
            raise ConnectionLost(f"{self._stream.peer}: closed")
        self._fail(error, _Asked(number, "Unknown"))

    def _read_number(self, frame: wire.Frame) -> int | None:
        """Tell which request a frame is; None if that can't be read."""
        try:
            if self._peer.wire is None:
                # Nothing of this client was read yet: it is sent away.
                return self._peer.decode_request(frame).id
            return wire.number_of(frame, self._peer.wire)
        except RemoteProtocolError as error:
            logger.debug("%s: %s", self._stream.peer, error)
            return None

    # Who asks.

    def _handshake(self, tenant: int, message: wire.Handshake) -> wire.Message:
        assert self._peer.wire is not None
        version = self._peer.wire.frame_version
        if message.client_version != version:
            raise VersionMismatch(
                f"the handshake has version {message.client_version} and its frame has "
                f"{version}: both have to be the same"
            )
        if message.auth_token is not None or not self.is_admitted:
            self._present(message.auth_token or "")
        return wire.HandshakeResponse(version, True, _CAPABILITIES)

    # Streams.

    def _name(self, tenant: int, name: str) -> str:
        """Give the name of a stream's topic.

        Raises:
            InvalidPayload: there can't be such a tenant.
            InvalidTopicName: a stream can't have that name.
        """
        if tenant >> _LOG_BITS:
            raise InvalidPayload(f"tenant {tenant}: a tenant is a number below 2^32")
        for letter in (_SEPARATOR, "/"):
            if letter in name:
                raise InvalidTopicName(
                    f"stream name {name[:80]!r} has a {letter!r}, which stands between "
                    "the parts of a topic's name here: leave it out"
                )
        is_home = tenant == self._config.kimberlite_tenant
        return name if is_home else f"{tenant}{_SEPARATOR}{name}"

    def _find(self, tenant: int, stream: int) -> int:
        """Give the log of a stream.

        Raises:
            TopicNotFound: the tenant has no such stream.
        """
        log = stream & (1 << _LOG_BITS) - 1
        unknown = TopicNotFound(f"stream {stream} not found")
        if stream >> _LOG_BITS != tenant or not log:
            raise unknown
        try:
            metadata = self._service.topic(self._client, log).metadata
        except UnknownTopic as error:
            if error.deleted:
                raise
            raise unknown from error
        prefix, colon, _ = metadata.name.rpartition(_SEPARATOR)
        owner = str(self._config.kimberlite_tenant) if not colon else prefix
        if owner != str(tenant) or metadata.partitions is not None:
            raise unknown
        return log

    def _create_stream(self, tenant: int, message: wire.CreateStream) -> wire.Message:
        topic = self._name(tenant, message.name)
        try:
            log = self._find_or_create(topic)
        except PartitionedTopic as error:
            raise InvalidPayload(
                f"topic {message.name!r} has {error.partitions} partitions, and a "
                "stream of Kimberlite has one: use a protocol that has partitions"
            ) from error
        return wire.CreateStreamResponse(tenant << _LOG_BITS | log)

    def _find_or_create(self, topic: str) -> int:
        try:
            return self._exchange.find(self._client, topic, None)
        except PartitionedTopic:
            raise
        except UnknownTopic:
            pass
        try:
            return self._exchange.create(self._client, topic).logs[0].metadata.id
        except TopicAlreadyExists:
            # Another client was quicker.
            return self._exchange.find(self._client, topic, None)

    def _stream_info(self, tenant: int, message: wire.StreamInfo) -> wire.Message:
        log = self._find(tenant, message.stream_id)
        return wire.StreamInfoResponse(self._exchange.bounds(self._client, log).end)

    # Events.

    def _append_events(
        self, tenant: int, message: wire.AppendEvents, asked: _Asked
    ) -> None:
        log = self._find(tenant, message.stream_id)
        if not len(message.events):
            raise InvalidPayload("an append without events: send at least one")
        largest = int(message.events.values.lengths.max())
        if largest > wire.EVENT_BYTES_MAX:
            raise PayloadTooLarge(
                f"an event of {largest} bytes would fit into no answer: "
                f"{wire.EVENT_BYTES_MAX} are the most"
            )
        self._store(asked, log, message.events, expected=message.expected_offset)

    def _acknowledge(self, owed: Owed, failure: LanceError | None) -> Sequence[Buffer]:
        asked: _Asked = owed.request
        self._observe(asked.name, owed.began_s)
        if failure is None:
            answer: wire.Message = wire.AppendEventsResponse(
                owed.appended.record, owed.appended.records
            )
        else:
            answer = wire.ErrorResponse.from_exception(to_broker_error(failure))
        return self._encode(answer, asked.number)

    def _read_events(self, tenant: int, message: wire.ReadEvents) -> wire.Message:
        log, start = self._find(tenant, message.stream_id), message.from_offset
        bounds = self._exchange.bounds(self._client, log)
        if start < bounds.start:
            # Also to a client that asks for no bytes, to learn just that.
            raise _refuse_offset(start, bounds.start)
        if start >= bounds.end or not message.max_bytes:
            return wire.ReadEventsResponse(_NO_RECORDS)
        most = wire.PAYLOAD_BYTES_MAX
        if message.max_bytes <= wire.SMALL_READ_BYTES_MAX:
            most = _SMALL_LOAD_BYTES_MAX
        events = self._load(
            log,
            start,
            min(_STORED_FACTOR * message.max_bytes + _STORED_BYTES, most),
            lambda found: wire.cut_records(
                found, message.max_bytes, wire=self._peer.wire or wire.V5
            ),
        )
        return wire.ReadEventsResponse(events, start + len(events))

    def _load(
        self,
        log: int,
        start: int,
        max_bytes: int,
        fit: Callable[[Records], Records] | None = None,
    ) -> Records:
        """Read events as `_load_records` does.

        Raises:
            InvalidOffset: they are not there any more; its text says which are.
        """
        try:
            return self._load_records(log, start, max_bytes, fit=fit)
        except OffsetOutOfRange as error:
            raise _refuse_offset(start, error.details["log_start"]) from error

    def _sync(self, tenant: int, message: wire.Sync) -> wire.Message:
        self._turn.rest()
        self._service.sync(self._client, self._config.wait_timeout_s)
        self._turn.begin()
        return wire.SyncResponse(True)

    # Subscriptions.

    def _subscribe(self, tenant: int, message: wire.Subscribe) -> wire.Message:
        assert self._peer.wire is not None
        if not self._peer.wire.has_pushes:
            raise InvalidPayload(
                "frames of version 1 have no pushes, which a subscription is made of: "
                "use ReadEvents"
            )
        if len(self._standing) >= STANDING_MAX:
            raise InvalidPayload(
                f"this connection has {STANDING_MAX} subscriptions, which is the most: "
                "end one, or use another connection"
            )
        log = self._find(tenant, message.stream_id)
        group = message.consumer_group or ""
        start = self._find_start(log, message.from_offset, group)
        self._subscribed += 1
        subscription = _Subscription(
            self._subscribed, log, start, message.initial_credits, group, start
        )
        # It stands for as long as the connection.
        subscription.standing = StandingRequest(
            self._service.ends(self._client, [log]),
            lambda final: self._push(subscription),
            math.inf,
        )
        if not self._stand(subscription.standing):
            raise Backpressure("there is no memory for a subscription: try again")
        self._subscriptions[subscription.number] = subscription
        return wire.SubscribeResponse(subscription.number, start, subscription.credits)

    def _find_start(self, log: int, asked: int, group: str) -> int:
        """Tell where a subscription starts: a group at its commit, if it has one.

        Raises:
            InvalidOffset: that is not there; its text says where the stream starts.
        """
        bounds = self._exchange.bounds(self._client, log)
        if group:
            found = self._exchange.committed(self._client, log, group)
            # A group whose place is gone starts where its member asks to, who has to
            # know by now where the stream starts.
            if found is not None and found >= bounds.start:
                return found
        if asked < bounds.start:
            raise _refuse_offset(asked, bounds.start)
        if asked > bounds.end:
            raise InvalidOffset(f"offset {asked} is behind the end, {bounds.end}")
        return asked

    def _subscribe_credit(
        self, tenant: int, message: wire.SubscribeCredit
    ) -> wire.Message:
        found = self._find_subscription(message.subscription_id)
        if found.group:
            # A client that asks for more has dealt with as many as it asks for.
            done = min(found.committed + message.credits, found.next)
            if done > found.committed:
                self._exchange.commit(self._client, found.log, found.group, done)
                found.committed = done
        found.credits = min(found.credits + message.credits, _CREDITS_MAX)
        found.standing.is_due = True
        return wire.SubscriptionAck(found.number, found.credits)

    def _unsubscribe(self, tenant: int, message: wire.Unsubscribe) -> wire.Message:
        found = self._find_subscription(message.subscription_id)
        del self._subscriptions[found.number]
        self._end(found.standing)
        return wire.SubscriptionAck(found.number, found.credits)

    def _find_subscription(self, number: int) -> _Subscription:
        if number not in self._subscriptions:
            raise ConsumerNotFound(f"there is no subscription {number}")
        return self._subscriptions[number]

    def _push(self, subscription: _Subscription) -> bool:
        """Push some of the events that have come; tell whether it was the last time.

        Not all of them: there may be many subscriptions, and requests.
        """
        if self._stopping:
            reason: wire.CloseReason | None = wire.CloseReason.SERVER_SHUTDOWN
        else:
            reason = self._push_events(subscription)
        if reason is None:
            return False
        self._subscriptions.pop(subscription.number, None)
        self._send_pushes([wire.SubscriptionClosed(subscription.number, reason)])
        if self._stopping and not self._subscriptions:
            raise ConnectionLost(f"{self._stream.peer}: the broker stops")
        return True

    def _push_events(self, subscription: _Subscription) -> wire.CloseReason | None:
        """Push some events; tell why the subscription ends, if it does."""
        most, start = min(subscription.credits, _PUSH_EVENTS), subscription.next
        try:
            if start >= self._exchange.bounds(self._client, subscription.log).end:
                return None
            if not most:
                return None
            events = self._load(
                subscription.log,
                start,
                _PUSH_BYTES,
                lambda found: next(wire.split_records(found, events_max=most)),
            )
        except ConnectionLost:
            raise
        except LanceError as error:
            if isinstance(error, UnknownTopic):
                return wire.CloseReason.STREAM_DELETED
            logger.warning("%s: a subscription ends: %s", self._stream.peer, error)
            self._count("requests_refused")
            if isinstance(error, InvalidOffset | Timeout):
                # The client, or the others, were too slow.
                return wire.CloseReason.BACKPRESSURE_TIMEOUT
            return wire.CloseReason.PROTOCOL_ERROR
        pushes = []
        for row in range(len(events)):
            subscription.credits -= 1
            pushes.append(
                wire.SubscriptionEvents(
                    subscription.number,
                    start + row,
                    # The client on PyPI drops all but the first of a push.
                    events.cut(row, row + 1),
                    subscription.credits,
                )
            )
        subscription.next += len(events)
        # There may be more; others come first.
        subscription.standing.is_due = True
        self._send_pushes(pushes)
        return None

    def _send_pushes(self, messages: Sequence[wire.Message]) -> None:
        assert self._peer.wire is not None
        buffers: list[Buffer] = []
        for message in messages:
            buffers += wire.encode_message(wire.Push(message), self._peer.wire)
        self._send(buffers)

    def stop(self) -> bool:
        """Tell subscribers that the broker stops."""
        self._stopping = True
        waiting = list(self._standing)
        for standing in waiting:
            standing.is_due = True
        if self._waker is None:
            return False
        self._waker.set()
        return bool(waiting)

    # Queries.

    def _query(self, tenant: int, message: wire.Query) -> wire.Message:
        columns, rows = self._run_query(tenant, message, None)
        return wire.QueryResponse(columns, rows)

    def _query_at(self, tenant: int, message: wire.QueryAt) -> wire.Message:
        columns, rows = self._run_query(tenant, message, message.position)
        return wire.QueryAtResponse(columns, rows)

    def _run_query(
        self, tenant: int, message: wire.Query | wire.QueryAt, position: int | None
    ) -> tuple[tuple[str, ...], tuple[tuple[wire.Value, ...], ...]]:
        self._turn.rest()
        ends: list[int] = []
        answer = self._queries.run(
            message.sql,
            message.params,
            load=lambda name: self._find_table(tenant, name, position, ends),
            hold=self._hold_answer,
            check=self._check_client,
        )
        self._turn.begin()
        if position is not None and ends and position >= max(ends):
            # The same query would see more later.
            raise wire.make_error(
                _POSITION_AHEAD,
                f"position {position} is ahead: the streams end at {max(ends)}",
            )
        return answer

    def _check_client(self) -> None:
        """Look whether the client still waits for its answer.

        Raises:
            ConnectionLost: it does not, or the broker stops.
        """
        if self._stopping or self._stream.is_peer_gone():
            raise ConnectionLost(f"{self._stream.peer}: a query is given up")

    def _find_table(
        self, tenant: int, name: str, position: int | None, ends: list[int]
    ) -> Iterator[pa.RecordBatch] | None:
        """Give the events of a stream that a query may see; None if there is none.

        Where the stream ends is added to `ends`.
        """
        try:
            log = self._exchange.find(self._client, self._name(tenant, name), None)
        except (UnknownTopic, InvalidTopicName):
            return None
        bounds = self._exchange.bounds(self._client, log)
        ends.append(bounds.end)
        end = bounds.end if position is None else min(bounds.end, position + 1)
        return self._load_table(log, bounds.start, end)

    def _load_table(self, log: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        lent, reserved = self._lent, self._reserved
        while start < end:
            self._turn.begin()
            events = self._load(log, start, _TABLE_BYTES)
            events = events.cut(0, min(end - start, len(events)))
            batch = write_records(replace(events, nulls=None), _TABLE)
            self._turn.rest()
            start += len(events)
            yield batch
            # The worker has it.
            self._free_memory(lent, reserved)

    # The rest.

    def _unknown(self, tenant: int, message: wire.Unknown) -> wire.Message:
        raise InvalidPayload(
            f"request {message.number} is not served: this broker has streams, "
            "subscriptions and queries, and no schemas, tenants, keys or consent"
        )


def _refuse_offset(offset: int, first: int) -> InvalidOffset:
    return InvalidOffset(
        f"offset {offset} is not there any more", details={"log_start": first}
    )


# What answers each kind of request but AppendEvents, which is owed.
_Handler = Callable[[KimberliteSession, int, Any], wire.Message]
_HANDLERS: dict[type[wire.Message], _Handler] = {
    wire.Handshake: KimberliteSession._handshake,
    wire.CreateStream: KimberliteSession._create_stream,
    wire.ReadEvents: KimberliteSession._read_events,
    wire.StreamInfo: KimberliteSession._stream_info,
    wire.Sync: KimberliteSession._sync,
    wire.Subscribe: KimberliteSession._subscribe,
    wire.SubscribeCredit: KimberliteSession._subscribe_credit,
    wire.Unsubscribe: KimberliteSession._unsubscribe,
    wire.Query: KimberliteSession._query,
    wire.QueryAt: KimberliteSession._query_at,
    wire.Unknown: KimberliteSession._unknown,
}
