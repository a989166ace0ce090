"""Kimberlite's messages, requests, answers and pushes, as values.

Each is the fields of its `LAYOUT`; `frame` says what the letters mean, and `envelope`
what stands around them. Fields that only some releases have say since which version of
a form, a `Wire`, they are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from enum import IntEnum
from typing import Any

from lance_spark.errors import BrokerError
from lance_spark.model import Buffer
from lance_spark.records import NO_SPANS, Records
from lance_spark.value import dataclass
from lance_spark.wire.kimberlite.error import code_of, make_error, text_of
from lance_spark.wire.kimberlite.frame import DataClass, Wire
from lance_spark.wire.kimberlite.record import read_records, write_records
from lance_spark.wire.schema import Cursor, Form, Many, Option, Since, Struct

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
TEXT_OR_NONE = Option("s", "o")


# Requests.


@dataclass(frozen=True, slots=True)
class Handshake(Message):
    """The first request, with the version of the frames and maybe a token.

    Any other version is answered with an error.
    """

    LAYOUT = ("H", TEXT_OR_NONE)

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

    LAYOUT = ("s", _VALUES, Since(3, TEXT_OR_NONE))

    sql: str
    params: tuple[Value, ...] = ()
    break_glass_reason: str | None = None


@dataclass(frozen=True, slots=True)
class QueryAt(Message):
    """Ask in SQL what the answer was at a position."""

    LAYOUT = ("s", _VALUES, "Q", Since(3, TEXT_OR_NONE))

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

    LAYOUT = ("Q", "Q", "I", TEXT_OR_NONE)

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
