"""RustLog's messages, and frames to messages and back.

    binary   type u8 | the fields of the dataclass, but `group_id` comes first
    JSON     {"Produce":{"topic":"orders", …}}

RustLog's broker speaks binary. The JSON is only in its specification, which has the
commands 01 to 04; the others follow from it. An answer has the type and the name of its
request. An error met here leaves the stream in step: the frame was whole, its payload
made no sense. A server answers that with code 2 and goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from lance_spark.errors import BrokerError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.records import NO_SPANS, Records
from lance_spark.value import dataclass
from lance_spark.wire.rustlog import field
from lance_spark.wire.rustlog.error import code_of, kind_of, name_kind
from lance_spark.wire.rustlog.field import Field, Reader
from lance_spark.wire.rustlog.frame import encode_frame, is_json
from lance_spark.wire.rustlog.record import LENGTH_BYTES

M = TypeVar("M", bound="Message")

U32 = Annotated[int, field.U32]
U64 = Annotated[int, field.U64]
Size = Annotated[int, field.Size()]
Truth = Annotated[bool, field.TRUTH]
Text = Annotated[str, field.Text()]
Group = Annotated[str, field.Text(optional=True)]
Values = Annotated[Records, field.VALUES]

# More than enough for an error, also with its phrase in front.
_TEXT_BYTES = 0x8000
# Records have positions of 64 bits with a sign.
_OFFSET_MAX = 2**63 - 1
# What is kept of a record while it is looked at.
_SPAN_BYTES = 24

REQUESTS: dict[int, type[Message]] = {}
RESPONSES: dict[int, type[Message]] = {}


class Message:
    """A request or an answer as a value; every subclass is a frozen dataclass."""

    __slots__ = ()

    COMMAND: ClassVar[int]
    NAME: ClassVar[str]
    # The form of each field, in the order of the dataclass and of JSON, and in that of
    # the binary dialect.
    FORMS: ClassVar[dict[str, Field]]
    BINARY: ClassVar[dict[str, Field]]

    def __init_subclass__(cls, command: int | None = None) -> None:
        # For a dataclass with slots this is called again, without the argument.
        if command is not None:
            cls.COMMAND = command
        cls.NAME = cls.__name__.removesuffix("Response")
        table = RESPONSES if cls.__name__.endswith("Response") else REQUESTS
        table[cls.COMMAND] = cls
        hints = get_type_hints(cls, include_extras=True).items()
        forms = {n: h.__metadata__[0] for n, h in hints if hasattr(h, "__metadata__")}
        cls.FORMS = forms
        cls.BINARY = dict(sorted(forms.items(), key=lambda form: form[0] != "group_id"))

    def encode(self) -> list[Buffer]:
        """Write the payload of a binary frame."""
        parts: list[Buffer] = [bytes([self.COMMAND])]
        for name, form in self.BINARY.items():
            parts += form.encode(getattr(self, name))
        return parts

    @classmethod
    def read(cls: type[M], reader: Reader) -> M:
        """Read what is behind the type."""
        return cls(**{name: form.read(reader) for name, form in cls.BINARY.items()})

    def to_body(self) -> dict[str, Any]:
        """Give the object that JSON has for the fields."""
        forms = self.FORMS.items()
        return {name: form.to_json(getattr(self, name)) for name, form in forms}

    @classmethod
    def from_body(cls: type[M], body: Mapping[str, Any]) -> M:
        """Take the fields out of such an object; others in it are passed over."""
        values = {}
        for name, form in cls.FORMS.items():
            try:
                values[name] = form.from_json(body.get(name))
            except RemoteProtocolError as error:
                raise RemoteProtocolError(f"{name!r}: {error.reason}") from None
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Produce(Message, command=0x01):
    """Append records to a partition."""

    topic: Text
    partition: U32
    records: Values


@dataclass(frozen=True, slots=True)
class ProduceResponse(Message, command=0x01):
    """The numbers of the records, from `base_offset` on.

    They are in a row if no other client of RustLog's own broker writes meanwhile to the
    same partition. Without records the base means nothing.
    """

    base_offset: U64
    count: U32

    def to_body(self) -> dict[str, Any]:
        return {"offsets": [self.base_offset + i for i in range(self.count)]}

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> ProduceResponse:
        offsets = body.get("offsets")
        if not isinstance(offsets, list):
            raise RemoteProtocolError("'offsets' is not a list")
        return cls(field.U64.from_json(offsets[0]) if offsets else 0, len(offsets))


@dataclass(frozen=True, slots=True)
class Fetch(Message, command=0x02):
    """Read records from a number on, or from the commit of a group on."""

    topic: Text
    partition: U32
    offset: U64
    max_bytes: Size
    group_id: Group = ""


@dataclass(frozen=True, slots=True)
class FetchResponse(Message, command=0x02):
    """Records in a row, of which `next_offset` follows the last.

    At the end, RustLog's broker gives the number that was asked for, and the
    specification of the JSON the end of the log.
    """

    records: Values
    next_offset: U64

    @classmethod
    def read(cls, reader: Reader) -> FetchResponse:
        records = field.VALUES.read(reader)
        return cls._number(records, field.U64.read(reader))

    @classmethod
    def _number(cls, records: Records, next_offset: int) -> FetchResponse:
        """Number the records, which the binary dialect leaves to the client."""
        base = next_offset - len(records)
        if not 0 <= base <= next_offset <= _OFFSET_MAX:
            raise RemoteProtocolError(
                f"{len(records)} records can't end at offset {next_offset}"
            )
        return cls(replace(records, base=base), next_offset)

    def to_body(self) -> dict[str, Any]:
        base = self.next_offset - len(self.records)
        payloads = enumerate(field.VALUES.to_json(self.records), base)
        items = [{"offset": at, "payload": payload} for at, payload in payloads]
        return {"records": items, "next_offset": self.next_offset}

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> FetchResponse:
        items = body.get("records")
        if not isinstance(items, list) or not set(map(type, items)) <= {dict}:
            raise RemoteProtocolError("'records' is not a list of objects")
        records = field.VALUES.from_json([item.get("payload") for item in items])
        found = cls._number(records, field.U64.from_json(body.get("next_offset")))
        offsets = [item.get("offset") for item in items]
        if offsets != list(range(found.records.base, found.next_offset)):
            raise RemoteProtocolError("the offsets of the records are not in a row")
        return found


@dataclass(frozen=True, slots=True)
class OffsetCommit(Message, command=0x03):
    """Keep how far a group has read."""

    topic: Text
    partition: U32
    group_id: Text
    offset: U64


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse(Message, command=0x03):
    """Whether it is kept."""

    success: Truth


@dataclass(frozen=True, slots=True)
class OffsetFetch(Message, command=0x04):
    """Ask how far a group has read."""

    topic: Text
    partition: U32
    group_id: Text


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse(Message, command=0x04):
    """The commit of a group; None if it has none."""

    offset: Annotated[int | None, field.Maybe()]


@dataclass(frozen=True, slots=True)
class CreateTopic(Message, command=0x05):
    """Create a topic with so many partitions."""

    topic: Text
    partitions: U32


@dataclass(frozen=True, slots=True)
class CreateTopicResponse(Message, command=0x05):
    """Whether it was created."""

    success: Truth


@dataclass(frozen=True, slots=True)
class ListTopics(Message, command=0x06):
    """Ask for all topics."""


@dataclass(frozen=True, slots=True)
class ListTopicsResponse(Message, command=0x06):
    """The name of each topic, which may be any text, and its number of partitions."""

    topics: Annotated[tuple[tuple[str, int], ...], field.Pairs(field.Text(), field.U32)]


@dataclass(frozen=True, slots=True)
class DescribeTopic(Message, command=0x07):
    """Ask for the partitions of a topic."""

    topic: Text


@dataclass(frozen=True, slots=True)
class DescribeTopicResponse(Message, command=0x07):
    """The partitions of a topic: number and first offset of each.

    RustLog's broker calls the latter high watermark and always says 0.
    """

    topic: Text
    partition_count: U32
    partitions: Annotated[
        tuple[tuple[int, int], ...], field.Pairs(field.U32, field.U64)
    ]


@dataclass(frozen=True, slots=True)
class DescribePartition(Message, command=0x08):
    """Ask for the first offset of a partition."""

    topic: Text
    partition: U32


@dataclass(frozen=True, slots=True)
class DescribePartitionResponse(Message, command=0x08):
    """The first offset of a partition, as in `DescribeTopicResponse`."""

    topic: Text
    partition: U32
    base_offset: U64


@dataclass(frozen=True, slots=True)
class MetricsFetch(Message, command=0x09):
    """Ask for the metrics."""


@dataclass(frozen=True, slots=True)
class MetricsFetchResponse(Message, command=0x09):
    """The metrics as Prometheus reads them."""

    text: Annotated[str, field.Text(field.U32)]


@dataclass(frozen=True, slots=True)
class Ping(Message, command=0xFF):
    """Ask whether the server is there."""


@dataclass(frozen=True, slots=True)
class PingResponse(Message, command=0xFF):
    """Say that it is."""


@dataclass(frozen=True, slots=True)
class ErrorResponse(Message, command=0xFE):
    """A refusal, which may answer any request; JSON has no codes."""

    code: Annotated[int | None, field.U16]
    message: Text

    @classmethod
    def from_exception(
        cls, error: BrokerError, command: int | None = None
    ) -> ErrorResponse:
        """Make the answer that tells of an error.

        Args:
            error: what has happened.
            command: the `COMMAND` of the request; None if it could not be read.
        """
        code, message = code_of(error, command), error.message
        if kind_of(code) is not type(error):
            message = name_kind(type(error), message)
        # Rather cut and mended than refused: it may quote what a client has sent.
        return cls(
            code, message.encode(errors="replace")[:_TEXT_BYTES].decode(errors="ignore")
        )

    def to_exception(self) -> BrokerError:
        """Make the exception that tells of this error."""
        return kind_of(self.code, self.message)(self.message, self.code)

    def to_body(self) -> dict[str, Any]:
        return {"message": name_kind(kind_of(self.code), self.message)}

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> ErrorResponse:
        return cls(None, cls.FORMS["message"].from_json(body.get("message")))


def encode_message(message: Message, *, as_json: bool = False) -> list[Buffer]:
    """Write a message as a frame.

    Args:
        message: what to send.
        as_json: in the JSON dialect.

    Returns:
        Buffers to be sent one after the other; large data is not copied.

    Raises:
        LocalProtocolError: a field does not fit, or all of it into no frame.
    """
    if not as_json:
        return encode_frame(message.encode())
    return encode_frame([field.encode_document(message.NAME, message.to_body())])


def encode_produce(
    topic: str, partition: int, count: int, data: Buffer
) -> list[Buffer]:
    """Write a binary `Produce` of records that are written already.

    Args:
        topic: the topic's name.
        partition: its partition.
        count: how many records they are.
        data: what `write_records` gave for them, in one call or in several.

    Raises:
        LocalProtocolError: it does not fit into a frame.
    """
    head = Produce(topic, partition, Records(NO_SPANS)).encode()[:-2]
    return encode_frame([*head, *field.U32.encode(count), data])


def find_memory(frame: Buffer) -> int:
    """Say how much memory the reading of a request takes at most, beside its frame.

    Raises:
        RemoteProtocolError: it would take more than any may.
    """
    if is_json(frame):
        return field.find_json_memory(frame)
    reader = Reader(frame)
    if reader.take(1)[0] != Produce.COMMAND:
        return 0
    reader.take(field.U16.read(reader))
    reader.take(4)
    announced: int = field.U32.read(reader)
    # No more than have a length there.
    return _SPAN_BYTES * min(announced, len(reader.rest) // LENGTH_BYTES)


def decode_request(frame: Buffer) -> Message:
    """Read what a client asks; bytes behind it are ignored, as RustLog's broker does.

    Raises:
        RemoteProtocolError: its type is unknown or its fields are malformed.
    """
    return _decode(frame, REQUESTS, strict=False)


def decode_response(frame: Buffer) -> Message:
    """Read what a server answers, which may be an `ErrorResponse`.

    The frame tells the dialect and not the request: RustLog's broker does not know
    JSON, and says so in binary.

    Raises:
        RemoteProtocolError: its type is unknown or its fields are malformed.
    """
    return _decode(frame, RESPONSES)


def _decode(
    frame: Buffer, table: Mapping[int, type[Message]], *, strict: bool = True
) -> Message:
    if is_json(frame):
        name, body = field.decode_document(frame)
        for kind in table.values():
            if name == kind.NAME:
                return kind.from_body(body)
        raise RemoteProtocolError(f"unknown message type: {name[:40]!r}")
    reader = Reader(frame)
    [command] = reader.take(1)
    if command not in table:
        raise RemoteProtocolError(f"unknown message type: {command}")
    message = table[command].read(reader)
    if reader.rest and strict:
        raise RemoteProtocolError(f"{len(reader.rest)} bytes too many")
    return message


def describe(frame: Buffer, *, is_answer: bool | None = None) -> str:
    """Say in one line what a frame is, for people; it may be malformed.

    Args:
        frame: the payload.
        is_answer: whether a server has sent it. None lets the bytes tell: those of a
            request hardly ever fit an answer, but a ping is its own answer.
    """
    tables = {True: [RESPONSES], False: [REQUESTS], None: [REQUESTS, RESPONSES]}
    found: list[Message] = []
    for table in tables[is_answer]:
        try:
            found.append(_decode(frame, table))
        except RemoteProtocolError as error:
            fault = error
    if not found:
        return f"malformed: {fault}"
    # Binary answers may fit a request by chance, and JSON has no chance.
    message = found[0] if is_json(frame) else found[-1]
    dialect = "JSON" if is_json(frame) else f"0x{message.COMMAND:02X}"
    return " ".join([dialect, type(message).__name__, *_list_fields(message)])


def _list_fields(message: Message) -> Iterator[str]:
    for name in message.FORMS:
        value = getattr(message, name)
        if isinstance(value, Records):
            size = int(value.values.lengths.sum())
            yield f"{name}={len(value)} ({size} bytes)"
        else:
            yield f"{name}={value!r}"
