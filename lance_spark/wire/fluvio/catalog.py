"""Which message has which key, in each role, and from frames to messages and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from lance_spark.errors import RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.wire.fluvio.frame import FORM, LETTERS, Frame, Role, encode_frame
from lance_spark.wire.fluvio.message import (
    SC_VERSION,
    SC_VERSION_MIN,
    ApiKey,
    ApiVersions,
    Failed,
    Fetch,
    FetchAnswer,
    FetchOffsets,
    Header,
    Message,
    Offsets,
    Other,
    Produce,
    Produced,
    Request,
    Response,
    Streamed,
    StreamFetch,
    Updated,
    UpdateOffsets,
    Versions,
)
from lance_spark.wire.fluvio.metadata import (
    Create,
    List,
    Listing,
    ObjectMessage,
    Status,
    Watch,
    Watched,
)
from lance_spark.wire.schema import Cursor, Form, show

# The most partitions, topics and so on of a request. Each is some bytes, and an object
# of a hundred: a broker must not be made to hold many times what it was sent.
_ITEMS_MAX = 4096
# An SC's request to delete an object, which becomes Other.
_DELETE = 1002


def _list(*messages: type[Request]) -> Mapping[int, type[Request]]:
    return {message.KEY: message for message in messages}


def _offer(role: Role) -> Iterator[ApiKey]:
    for key, kind in REQUESTS[role].items():
        least = SC_VERSION_MIN if issubclass(kind, ObjectMessage) else 0
        yield ApiKey(key, least, kind.VERSION)


REQUESTS: Mapping[Role, Mapping[int, type[Request]]] = {
    Role.SC: _list(ApiVersions, Create, List, Watch),
    Role.SPU: _list(
        ApiVersions, Produce, Fetch, FetchOffsets, StreamFetch, UpdateOffsets
    ),
}
RESPONSES: Mapping[type[Request], type[Response]] = {
    Watch: Watched,
    List: Listing,
    ApiVersions: Versions,
    StreamFetch: Streamed,
    Fetch: FetchAnswer,
    Produce: Produced,
    FetchOffsets: Offsets,
    UpdateOffsets: Updated,
    Create: Status,
    Other: Failed,
}
# What a server here says of itself. A client may send any other version. Deleting is
# among it: a client does not even send what is not, and so could not be told why.
API_KEYS: Mapping[Role, tuple[ApiKey, ...]] = {
    Role.SC: (*_offer(Role.SC), ApiKey(_DELETE, SC_VERSION_MIN, SC_VERSION)),
    Role.SPU: tuple(_offer(Role.SPU)),
}


# Frames to messages and back.


def encode_message(message: Message) -> list[Buffer]:
    """Write a message as a frame: buffers to be sent one after the other.

    Raises:
        LocalProtocolError: a field does not fit.
    """
    number, version = message.correlation_id, message.api_version
    head: Iterator[Buffer]
    if isinstance(message, Request):
        head = Header(message.key, version, number, message.client_id).encode(FORM)
    else:
        head = iter([FORM.encode_one("i", number)])
    return encode_frame([*head, *message.encode(Form(LETTERS, version))])


def decode_header(frame: Frame) -> Header:
    """Read what a request starts with, for the answer to one that is malformed.

    Raises:
        RemoteProtocolError: it is too short.
    """
    return Header.read(Cursor(frame.payload, "Header", FORM))


def decode_request(frame: Frame, role: Role) -> Request:
    """Read what a client asks.

    Args:
        frame: the request.
        role: what the server is that was asked.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    return _decode_request(frame, role)[0]


def decode_response(frame: Frame, request: Request) -> Response:
    """Read what a server answers.

    Args:
        frame: the answer.
        request: what it answers, as it was sent: in its version.

    Raises:
        RemoteProtocolError: it is malformed.
    """
    return _decode_response(frame, type(request), request.api_version)[0]


def number_of(frame: Frame) -> int:
    """Tell which request a frame answers.

    Raises:
        RemoteProtocolError: it is too short to say.
    """
    number: int = Cursor(frame.payload, "Response", FORM).one("i")
    return number


def _decode_request(frame: Frame, role: Role) -> tuple[Request, int]:
    """Read a request, and say how many bytes are behind it."""
    head = Cursor(frame.payload, "Header", FORM)
    header = Header.read(head)
    kind = REQUESTS[role].get(header.api_key, Other)
    version, body = header.api_version, head.take(head.remaining)
    request: Request = Other(header.api_key, body)
    rest = 0
    is_old = issubclass(kind, ObjectMessage) and version < SC_VERSION_MIN
    if kind is not Other and not is_old:
        form = Form(LETTERS, version)
        cursor = Cursor(body, kind.__name__, form, items_max=_ITEMS_MAX)
        request, rest = kind.read(cursor), cursor.remaining
    request = replace(
        request,
        correlation_id=header.correlation_id,
        api_version=version,
        client_id=header.client_id,
    )
    return request, rest


def _decode_response(
    frame: Frame, request: type[Request], version: int
) -> tuple[Response, int]:
    """Read an answer, and say how many bytes are behind it."""
    number, kind = number_of(frame), RESPONSES[request]
    cursor = Cursor(frame.payload[4:], kind.__name__, Form(LETTERS, version))
    answer = kind.read(cursor)
    return replace(answer, correlation_id=number, api_version=version), cursor.remaining


def describe(frame: Frame) -> str:
    """Say what is in a frame of either direction and role, in a line for people.

    A frame tells none of these, but nearly always just one message fills it. Answers
    are taken to be in the newest version.
    """
    for role in Role:
        try:
            request, rest = _decode_request(frame, role)
        except RemoteProtocolError:
            continue
        if not rest and not isinstance(request, Other):
            return show(request)
    for kind in RESPONSES:
        try:
            answer, rest = _decode_response(frame, kind, kind.VERSION)
        except RemoteProtocolError:
            continue
        if not rest:
            return show(answer)
    return f"unknown: {frame.payload.nbytes} bytes, {bytes(frame.payload[:32]).hex()}"
