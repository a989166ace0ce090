"""What is around a message of Kimberlite, and how messages become frames and back.

    request   [00] | id | tenant | [audit] | number | fields
    answer    [01] | id of the request     | number | fields
    push      [02]                         | number | fields

The byte in front is there since frame version 2, and so are pushes. Answers come in the
order of requests, with pushes between them.

Which number a message has, and which of its fields are there, depends on the form, a
`Wire`. A client is told which one to use. A server finds it out with a `Peer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.value import dataclass
from lance_spark.wire.kimberlite.frame import (
    CANDIDATES,
    V5,
    WIRES,
    Frame,
    Wire,
    encode_frame,
)
from lance_spark.wire.kimberlite.message import (
    TEXT_OR_NONE,
    AppendEvents,
    AppendEventsResponse,
    CreateStream,
    CreateStreamResponse,
    ErrorResponse,
    Handshake,
    HandshakeResponse,
    Message,
    Query,
    QueryAt,
    QueryAtResponse,
    QueryResponse,
    ReadEvents,
    ReadEventsResponse,
    StreamInfo,
    StreamInfoResponse,
    Subscribe,
    SubscribeCredit,
    SubscribeResponse,
    SubscriptionAck,
    SubscriptionClosed,
    SubscriptionEvents,
    Sync,
    SyncResponse,
    Unknown,
    Unsubscribe,
)
from lance_spark.wire.kimberlite.record import EVENTS_MAX
from lance_spark.wire.schema import Cursor, Option, Since, Struct, show

# In front of a message: what it is. Forms before this version do without.
_REQUEST, _RESPONSE, _PUSH = range(3)
_TAGGED_SINCE = 2
# What an event takes while it is read: where it starts and ends.
_SPAN_BYTES = 16


@dataclass(frozen=True, slots=True)
class Audit(Struct):
    """Who asks and why, as the application says; servers of this library ignore it."""

    LAYOUT = (TEXT_OR_NONE,) * 4

    actor: str | None = None
    reason: str | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None


_AUDIT = Since(3, Option(Audit, "o"))


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


def find_memory(frame: Frame) -> int:
    """Say how much memory the reading of a request takes at most, beside its frame."""
    most = 0
    for wire in CANDIDATES[frame.version]:
        try:
            cursor, _ = _open(frame, wire, "request", _REQUEST)
            *_, number = cursor.read(("Q", "Q", _AUDIT, "t"))
            if _REQUESTS[number][0] is AppendEvents:
                _, announced = cursor.read("Qn")
                # No more than have a length there.
                room = cursor.remaining // (8 if wire.fixed else 1)
                most = max(most, _SPAN_BYTES * min(announced, room, EVENTS_MAX))
        except (RemoteProtocolError, IndexError):
            continue
    return most


class Peer:
    """What a server knows of how its client writes.

    Frames do not name their form: release 0.8 renumbered messages without a new
    version, and version 1 has been written in three ways. So each form of the frame's
    version is tried, the likeliest first, and is right if the message fills the payload
    exactly. Forms that have failed where another was right are not tried again.
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
        problems: list[RemoteProtocolError] = []
        for place, wire in enumerate(wires):
            try:
                request = decode_request(frame, wire)
            except RemoteProtocolError as error:
                problems.append(error)
                continue
            if isinstance(request.body, Unknown):
                unknown.append(request)
                continue
            found.append(request)
            fitting.append(wire)
            if isinstance(request.body, AppendEvents):
                # These may be large, so they are not read again just to tell forms.
                fitting += wires[place + 1 :]
                break
        if not found and _is_sure(wires):
            found = unknown
        if not found:
            raise (*problems, RemoteProtocolError("unknown in every form"))[0]
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
