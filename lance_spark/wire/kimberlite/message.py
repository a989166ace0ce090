"""Kimberlite's messages, requests, answers and pushes, as values.

Each is the fields of its `LAYOUT`; `frame` says what the letters mean. What a message
is called on the wire and which of its fields are there depends on the form, a `Wire`:
a server learns it from the frames of its client with a `Peer`, a client is told.

    request   [00] | id | tenant | [audit] | number | fields
    answer    [01] | id of the request     | number | fields
    push      [02]                         | number | fields

The byte in front is there since frame version 2, and so are pushes. Answers come in the
order of requests, with pushes between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from lance_spark.errors import BrokerError, LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.records import NO_SPANS, Records
from lance_spark.wire.kimberlite.error import code_of, make_error, text_of
from lance_spark.wire.kimberlite.frame import (
    CANDIDATES,
    V5,
    WIRES,
    DataClass,
    Frame,
    Wire,
    encode_frame,
)
from lance_spark.wire.kimberlite.record import read_records, write_records
from lance_spark.wire.schema import Cursor, Form, Many, Option, Since, Struct, show

# In front of a message: what it is. Forms before this one do without.
_REQUEST, _RESPONSE, _PUSH = range(3)
_TAGGED_SINCE = 2
_AUDITED_SINCE = 3
# An offset from here on is nonsense, and below it sums stay within 64 bits.
_OFFSET_LIMIT = 1 << 62


class Message(Struct):
    """A message of one direction."""

    __slots__ = ()


# Values of fields.


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time in a query, in ns since 1970."""

    ns: int


# What a query takes and gives.
Value = int | str | bool | Timestamp | None


class _Value:
    """A value: its type, then the value itself."""

    def encode(self, form: Form, value: Value, before: object) -> Iterator[Buffer]:
        # In Python a bool is an int.
        if value is None:
            yield form.encode_one("t", 0)
        elif isinstance(value, bool):
            yield form.encode_one("t", 3) + form.encode_one("?", value)
        elif isinstance(value, str):
            yield form.encode_one("t", 2) + form.encode_one("s", value)
        elif isinstance(value, Timestamp):
            yield form.encode_one("t", 4) + form.encode_one("q", value.ns)
        else:
            yield form.encode_one("t", 1) + form.encode_one("q", value)

    def read(self, cursor: Cursor, before: object) -> Value:
        kind: int = cursor.one("t")
        if kind > 4:
            raise cursor.error(f"type {kind} of a value is unknown")
        if kind == 0:
            return None
        found = cursor.one("qs?q"[kind - 1])
        value: Value = Timestamp(found) if kind == 4 else found
        return value


class _Events:
    """Events: how many they are, then each behind its length."""

    def encode(self, form: Form, value: Records, before: object) -> Iterator[Buffer]:
        assert isinstance(form, Wire)
        yield form.encode_one("n", len(value))
        yield write_records(value, wire=form)

    def read(self, cursor: Cursor, before: object) -> Records:
        assert isinstance(cursor.form, Wire)
        count: int = cursor.one("n")
        if count > cursor.remaining:
            raise cursor.error(f"{count} events in {cursor.remaining} bytes")
        if not count:
            return Records(NO_SPANS)
        rest = cursor.peek(cursor.remaining)
        records = read_records(rest, count, wire=cursor.form)
        cursor.take(int(records.values.ends[-1]))
        return records


_VALUES = Many(_Value(), "n")
_TEXTS = Many("s", "n")
_EVENTS = _Events()
_TEXT_OR_NONE = Option("s", "o")


# Requests.


@dataclass(frozen=True, slots=True)
class Handshake(Message):
    """The first request, with the version of the frames and maybe a token.

    Any other version is answered with an error.
    """

    LAYOUT = ("H", _TEXT_OR_NONE)

    client_version: int
    auth_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class CreateStream(Message):
    """Create a stream, or find the one of that name: nothing else tells its id.

    The region is the name of one, or None if the stream may be anywhere.
    """

    LAYOUT = "scp"

    name: str
    # The strictest, and one of the two that every release knows.
    data_class: DataClass = DataClass.PHI
    region: str | None = None


@dataclass(frozen=True, slots=True)
class AppendEvents(Message):
    """Append events if the stream has as many as expected; 0.1 could not say so."""

    LAYOUT = ("Q", _EVENTS, Since(1, "Q"))

    stream_id: int
    events: Records
    expected_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Query(Message):
    """Ask in SQL."""

    LAYOUT = ("s", _VALUES, Since(3, _TEXT_OR_NONE))

    sql: str
    params: tuple[Value, ...] = ()
    break_glass_reason: str | None = None


@dataclass(frozen=True, slots=True)
class QueryAt(Message):
    """Ask in SQL what the answer was at a position."""

    LAYOUT = ("s", _VALUES, "Q", Since(3, _TEXT_OR_NONE))

    sql: str
    params: tuple[Value, ...] = ()
    position: int = 0
    break_glass_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ReadEvents(Message):
    """Read events from an offset on; see `cut_records` for what `max_bytes` means."""

    LAYOUT = "QQQ"

    stream_id: int
    from_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class StreamInfo(Message):
    """Ask how many events a stream has."""

    LAYOUT = "Q"

    stream_id: int


@dataclass(frozen=True, slots=True)
class Subscribe(Message):
    """Ask for events as they come, at first so many as there are credits."""

    LAYOUT = ("Q", "Q", "I", _TEXT_OR_NONE)

    stream_id: int
    from_offset: int
    initial_credits: int
    consumer_group: str | None = None


@dataclass(frozen=True, slots=True)
class Sync(Message):
    """Ask to write everything to disk."""


@dataclass(frozen=True, slots=True)
class SubscribeCredit(Message):
    """Let the server send more events."""

    LAYOUT = "QI"

    subscription_id: int
    credits: int


@dataclass(frozen=True, slots=True)
class Unsubscribe(Message):
    """End a subscription."""

    LAYOUT = "Q"

    subscription_id: int


@dataclass(frozen=True, slots=True)
class Unknown(Message):
    """A request that only servers in the field know: schemas, tenants, keys, …"""

    number: int
    body: Buffer = b""

    def encode(self, form: Form) -> Iterator[Buffer]:
        yield self.body


# Answers.


@dataclass(frozen=True, slots=True)
class ErrorResponse(Message):
    """A refusal, which may answer any request; `error` has the codes."""

    LAYOUT = "ts"

    code: int
    message: str

    @classmethod
    def from_exception(cls, error: BrokerError) -> ErrorResponse:
        """Make the answer that tells of an error."""
        # Rather mended than refused: it may quote what a client has sent.
        return cls(code_of(error), text_of(error).encode(errors="replace").decode())

    def to_exception(self) -> BrokerError:
        """Make the exception that tells of this error."""
        return make_error(self.code, self.message)


@dataclass(frozen=True, slots=True)
class HandshakeResponse(Message):
    """The answer to Handshake; clients in the field want their own version."""

    LAYOUT = ("H", "?", _TEXTS)

    server_version: int
    authenticated: bool = True
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateStreamResponse(Message):
    """The answer to CreateStream."""

    LAYOUT = "Q"

    stream_id: int


@dataclass(frozen=True, slots=True)
class AppendEventsResponse(Message):
    """The answer to AppendEvents."""

    LAYOUT = "QI"

    first_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class QueryResponse(Message):
    """The answer to Query; read are at most 65 535 rows."""

    LAYOUT = (_TEXTS, Many(_VALUES, "n"))

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Value, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class QueryAtResponse(QueryResponse):
    """The answer to QueryAt."""


@dataclass(frozen=True, slots=True)
class ReadEventsResponse(Message):
    """The answer to ReadEvents.

    The next offset is that behind the events, also where the stream ends; None if there
    are none.
    """

    LAYOUT = (_EVENTS, Option("Q", "o"))

    events: Records
    next_offset: int | None = None


@dataclass(frozen=True, slots=True)
class StreamInfoResponse(Message):
    """The answer to StreamInfo: the offset of the next event."""

    LAYOUT = "Q"

    length: int


@dataclass(frozen=True, slots=True)
class SubscribeResponse(Message):
    """The answer to Subscribe."""

    LAYOUT = "QQI"

    subscription_id: int
    start_offset: int
    credits: int


@dataclass(frozen=True, slots=True)
class SyncResponse(Message):
    """The answer to Sync."""

    LAYOUT = "?"

    success: bool = True


@dataclass(frozen=True, slots=True)
class SubscriptionAck(Message):
    """The answer to SubscribeCredit and Unsubscribe."""

    LAYOUT = "QI"

    subscription_id: int
    credits_remaining: int = 0


# Pushes.


@dataclass(frozen=True, slots=True)
class SubscriptionEvents(Message):
    """Events of a subscription; each takes a credit.

    The client on PyPI hands its caller only the first of them: push one at a time.
    """

    LAYOUT = ("Q", "Q", _EVENTS, "I")

    subscription_id: int
    start_offset: int
    events: Records
    credits_remaining: int

    @classmethod
    def read(cls, cursor: Cursor, before: Sequence[Any] = ()) -> SubscriptionEvents:
        number, start, events, credits = cursor.read(cls.LAYOUT)
        if start >= _OFFSET_LIMIT:
            raise cursor.error(f"offset {start} is out of range")
        return cls(number, start, replace(events, base=start), credits)


class CloseReason(IntEnum):
    """Why a subscription has ended."""

    CLIENT_CANCELLED = 0
    SERVER_SHUTDOWN = 1
    STREAM_DELETED = 2
    BACKPRESSURE_TIMEOUT = 3
    PROTOCOL_ERROR = 4


@dataclass(frozen=True, slots=True)
class SubscriptionClosed(Message):
    """The end of a subscription, for a `CloseReason` or one of a later release."""

    LAYOUT = "Qt"

    subscription_id: int
    reason: int


# What is around a message.


@dataclass(frozen=True, slots=True)
class Audit(Struct):
    """Who asks and why, as the application says; servers of this library ignore it."""

    LAYOUT = (_TEXT_OR_NONE,) * 4

    actor: str | None = None
    reason: str | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends."""

    id: int
    tenant_id: int
    body: Message
    audit: Audit | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """What a server answers."""

    request_id: int
    body: Message


@dataclass(frozen=True, slots=True)
class Push:
    """What a server sends of its own accord."""

    body: Message


_Rows = Sequence[tuple[type[Message], int]]
# In the order of their numbers, each with the first version of a form that has it; one
# that came later than those behind it has moved their numbers.
_REQUESTS: _Rows = (
    *((Handshake, 0), (CreateStream, 0), (AppendEvents, 0), (Query, 0), (QueryAt, 0)),
    *((ReadEvents, 0), (StreamInfo, 6), (Subscribe, 1), (Sync, 0)),
    *((SubscribeCredit, 2), (Unsubscribe, 2)),
)
_RESPONSES: _Rows = (
    *((ErrorResponse, 0), (HandshakeResponse, 0), (CreateStreamResponse, 0)),
    *((AppendEventsResponse, 0), (QueryResponse, 0), (QueryAtResponse, 0)),
    *((ReadEventsResponse, 0), (StreamInfoResponse, 6), (SubscribeResponse, 1)),
    *((SyncResponse, 0), (SubscriptionAck, 2)),
)
_PUSHES: _Rows = ((SubscriptionEvents, 2), (SubscriptionClosed, 2))


def _number(rows: _Rows) -> Mapping[str, Sequence[type[Message]]]:
    """Number messages in each form."""
    return {
        wire.name: [message for message, first in rows if first <= wire.numbering]
        for wire in WIRES.values()
    }


_NUMBERED = {
    Request: _number(_REQUESTS),
    Response: _number(_RESPONSES),
    Push: _number(_PUSHES),
}
# Every message, by direction.
REQUESTS = tuple(message for message, _ in _REQUESTS)
RESPONSES = tuple(message for message, _ in (*_RESPONSES, *_PUSHES))


# Messages to frames.


def encode_message(message: Request | Response | Push, wire: Wire = V5) -> list[Buffer]:
    """Write a message as a frame: buffers to be sent one after the other.

    Raises:
        LocalProtocolError: a field does not fit, or the form does not have the message.
        LanceError: the `fault` of records.
    """
    return encode_frame(wire.frame_version, list(_encode(message, wire)))


def _encode(message: Request | Response | Push, wire: Wire) -> Iterator[Buffer]:
    body, kinds = message.body, _NUMBERED[type(message)]
    if isinstance(message, Request):
        tag, head = _REQUEST, [message.id, message.tenant_id]
    elif isinstance(message, Response):
        tag, head = _RESPONSE, [message.request_id]
    else:
        tag, head = _PUSH, []
    if wire.version >= _TAGGED_SINCE:
        yield wire.encode_one("t", tag)
    for number in head:
        yield wire.encode_one("Q", number)
    if isinstance(message, Request):
        yield from wire.encode(_AUDIT, message.audit)
    if isinstance(body, Unknown):
        yield wire.encode_one("t", body.number)
    elif type(body) in kinds[wire.name]:
        yield wire.encode_one("t", kinds[wire.name].index(type(body)))
    else:
        name = type(body).__name__
        raise LocalProtocolError(f"{wire.name} has no {name} among its messages")
    yield from body.encode(wire)


_AUDIT = Since(_AUDITED_SINCE, Option(Audit, "o"))


# Frames to messages.


def decode_request(frame: Frame, wire: Wire = V5) -> Request:
    """Read what a client asks in a form that is known.

    The body is `Unknown` if its number is, which a server answers with error 2.

    Raises:
        RemoteProtocolError: it is malformed, or not all of the payload is read.
    """
    cursor, _ = _open(frame, wire, "request", _REQUEST)
    number, tenant, audit = cursor.read(("Q", "Q", _AUDIT))
    return Request(number, tenant, _read_body(cursor, Request, whole=True), audit)


def decode_response(frame: Frame, wire: Wire = V5) -> Response | Push:
    """Read what a server sends; bytes behind the last known field are ignored.

    Raises:
        RemoteProtocolError: it is malformed, or in another form.
    """
    return _decode_response(frame, wire, whole=False)


def _decode_response(frame: Frame, wire: Wire, *, whole: bool) -> Response | Push:
    cursor, tag = _open(frame, wire, "answer", _RESPONSE, _PUSH)
    if tag == _PUSH:
        return Push(_read_body(cursor, Push, whole=whole))
    number = cursor.one("Q")
    return Response(number, _read_body(cursor, Response, whole=whole))


def _open(frame: Frame, wire: Wire, what: str, *tags: int) -> tuple[Cursor, int]:
    """Start to read a payload: behind the number that says what it is, and that.

    Before there were such numbers, it is the first of those that may be.
    """
    if frame.version != wire.frame_version:
        raise RemoteProtocolError(
            f"a frame of version {frame.version}, this side speaks {wire.name}"
        )
    cursor = Cursor(frame.payload, what, wire)
    tag: int = cursor.one("t") if wire.version >= _TAGGED_SINCE else tags[0]
    if tag not in tags:
        raise cursor.error(f"{tag} in front is another direction's")
    return cursor, tag


def _read_body(
    cursor: Cursor, envelope: type[Request | Response | Push], *, whole: bool
) -> Message:
    assert isinstance(cursor.form, Wire)
    kinds = _NUMBERED[envelope][cursor.form.name]
    number: int = cursor.one("t")
    if number < len(kinds):
        cursor.what = kinds[number].__name__
        body = kinds[number].read(cursor)
        if whole and cursor.remaining:
            raise cursor.error(f"{cursor.remaining} bytes are left over")
        return body
    if envelope is Request:
        return Unknown(number, cursor.take(cursor.remaining))
    raise cursor.error(f"message {number} is unknown")


def number_of(frame: Frame, wire: Wire = V5) -> int | None:
    """Tell which request a frame answers, or is; None for a push.

    Raises:
        RemoteProtocolError: it is too short to say, or in another form.
    """
    cursor, tag = _open(frame, wire, "message", _REQUEST, _RESPONSE, _PUSH)
    if tag == _PUSH:
        return None
    number: int = cursor.one("Q")
    return number


class Peer:
    """What a server knows of how its client writes.

    Frames do not name their form: the releases 0.8 have renumbered messages within a
    version, and version 1 has been written in three ways. So every form of the frame's
    version is tried, and one that fills the payload exactly is right. Those that do not
    are never tried again.
    """

    def __init__(self) -> None:
        # The likeliest first.
        self._wires: tuple[Wire, ...] = ()

    @property
    def wire(self) -> Wire | None:
        """How to answer; None as long as nothing could be read."""
        return self._wires[0] if self._wires else None

    def decode_request(self, frame: Frame) -> Request:
        """Read what the client asks; it is to be answered in the form of `wire`.

        Raises:
            RemoteProtocolError: it is malformed, or in another version than before.
        """
        wires = self._wires or CANDIDATES[frame.version]
        fitting: list[Wire] = []
        found: list[Request] = []
        unknown: list[Request] = []
        problem = RemoteProtocolError("the request is unknown in every form")
        for place, wire in enumerate(wires):
            try:
                request = decode_request(frame, wire)
            except RemoteProtocolError as error:
                problem = error
                continue
            if isinstance(request.body, Unknown):
                unknown.append(request)
                continue
            found.append(request)
            fitting.append(wire)
            if isinstance(request.body, AppendEvents):
                # Only these are large, and not worth to be read again for every form.
                fitting += wires[place + 1 :]
                break
        if not found and _is_sure(wires):
            found = unknown
        if not found:
            raise problem
        self._wires = tuple(fitting) or wires
        return found[0]


def _is_sure(wires: Sequence[Wire]) -> bool:
    """Tell whether the head of a request reads the same in all of some forms."""
    return len({(wire.fixed, wire.frame_version) for wire in wires}) == 1


# For people.


def describe(frame: Frame) -> str:
    """Say what is in a frame of either direction, in a line for people.

    A frame does not tell its form, and in version 1 not its direction, but nearly
    always fits just one.
    """
    problems, unknown = [], []
    for wire in CANDIDATES[frame.version]:
        for decode in (decode_request, _decode_whole_response):
            try:
                message = decode(frame, wire)
            except RemoteProtocolError as error:
                problems.append(error)
                continue
            if not isinstance(message.body, Unknown):
                return show(message)
            unknown.append(show(message))
    return unknown[0] if unknown else f"malformed: {problems[0]}"


def _decode_whole_response(frame: Frame, wire: Wire) -> Response | Push:
    return _decode_response(frame, wire, whole=True)
