"""What messages are made of: commands, binary fields, JSON documents, and their base.

Integers are little-endian. A text is a u16 length and that many bytes of UTF-8; a list
is a u32 count and its items. `struct.error`, `UnicodeError` and `json`'s errors become
errors of the library's own tree here, so that no other module of the codec has to think
of them. The messages themselves are in `control`, `fetch`, `error` and `extension`;
which command belongs to which of them is in `catalog`.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from enum import IntEnum
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer


class Command(IntEnum):
    """Every command and response that this codec knows."""

    CREATE_TOPIC = 0x01
    DELETE_TOPIC = 0x02
    LIST_TOPICS = 0x03
    GET_TOPIC = 0x04
    SET_RETENTION = 0x05
    CREATE_TOPIC_WITH_RETENTION = 0x06
    # 0x07 to 0x09 and 0x12 are not in LWP but in the server in the field.
    GET_CLUSTER_STATUS_FIELD = 0x07
    AUTHENTICATE = 0x08
    AUTHENTICATE_RESPONSE = 0x09
    FETCH = 0x10
    FETCH_RESPONSE = 0x11
    CATCHING_UP = 0x12
    SUBSCRIBE = 0x20
    UNSUBSCRIBE = 0x21
    COMMIT_OFFSET = 0x22
    SUBSCRIBE_ACK = 0x23
    COMMIT_ACK = 0x24
    # The code of LWP §16.5, which the server in the field does not know.
    GET_CLUSTER_STATUS = 0x30
    # 0x40 to 0x55 are extensions: docs/wire-extensions.md.
    LOCATE = 0x40
    LOCATE_RESPONSE = 0x41
    OPEN_STAGE = 0x42
    STAGE_OPENED = 0x43
    COMMIT_STAGES = 0x44
    STAGES_COMMITTED = 0x45
    ABORT_STAGES = 0x46
    STAGES_ABORTED = 0x47
    WAIT = 0x48
    WAIT_RESPONSE = 0x49
    # Answered as DELETE_TOPIC is.
    DELETE_PARTITIONS = 0x4A
    JOIN_GROUP = 0x50
    GROUP_JOINED = 0x51
    GROUP_HEARTBEAT = 0x52
    GROUP_HEARTBEAT_RESPONSE = 0x53
    LEAVE_GROUP = 0x54
    GROUP_LEFT = 0x55
    TOPIC_RESPONSE = 0x80
    CLUSTER_STATUS = 0x81
    ERROR_RESPONSE = 0xFF


# Binary fields.

# A text without a length in front is held to what one with a length can be.
TEXT_BYTES_MAX = 0xFFFF
# The longest text in a list, or a list of texts could be as large as a payload. The
# name of a topic is shorter: the broker judges that, and has an error code for it.
NAME_BYTES_MAX = 1024
# The longest list of an answer. An item of a few bytes on the wire is an object of a
# hundred in memory; this bounds a list to some 16 MB, and is far more than a server
# has topics. The lists of requests are shorter: see `extension.LIST_LIMITS`.
ITEMS_MAX = 1 << 17


def pack(layout: struct.Struct, *values: Any) -> bytes:
    """Pack values that come from the caller of the library.

    Raises:
        LocalProtocolError: if one of them does not fit.
    """
    try:
        return layout.pack(*values)
    except struct.error as error:
        raise LocalProtocolError(f"field out of range: {error}") from None


def encode_utf8(text: str, bytes_max: int | None = None) -> bytes:
    """Encode a text.

    Raises:
        LocalProtocolError: if it holds half a surrogate pair, or is too long.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"not a Unicode text: {error}") from None
    if bytes_max is not None and len(data) > bytes_max:
        raise LocalProtocolError(f"text of {len(data)} bytes is too long")
    return data


class PayloadReader:
    """Read a payload front to back; each read checks what is left before it takes.

    Args:
        payload: the bytes.
        what: the message's name in errors.
    """

    def __init__(self, payload: Buffer, what: str) -> None:
        self._view = memoryview(payload).cast("B")
        self._position = 0
        self._what = what

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return len(self._view) - self._position

    def error(self, problem: str) -> RemoteProtocolError:
        """Make an error; it starts with the text that LWP §5.10 and §5.11 give."""
        return RemoteProtocolError(
            f"Invalid {self._what} payload: {problem}", self._position
        )

    def take(self, size: int) -> memoryview:
        """Read `size` bytes as a view."""
        if size > self.remaining:
            raise self.error(f"{size} bytes needed, {self.remaining} left")
        start = self._position
        self._position += size
        return self._view[start : self._position]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the fields of `layout`."""
        return layout.unpack(self.take(layout.size))

    def text(self, size: int, bytes_max: int | None = None) -> str:
        """Read `size` bytes of UTF-8, if they are not more than a limit."""
        if bytes_max is not None and size > bytes_max:
            raise self.error(f"text of {size} bytes is too long")
        data = self.take(size)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise self.error("text is not UTF-8") from None

    def finish(self) -> None:
        """Check that nothing is left."""
        if self.remaining:
            raise self.error(f"{self.remaining} bytes too many")


class Field(ABC):
    """One field of a payload."""

    # What the field takes at least.
    bytes_min: int = 0

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Write a value; raises LocalProtocolError if it does not fit."""

    @abstractmethod
    def read(self, reader: PayloadReader) -> Any:
        """Read a value; raises RemoteProtocolError if it is not one."""

    def read_many(self, reader: PayloadReader, count: int) -> tuple[Any, ...]:
        """Read so many values, one behind the other."""
        return tuple(self.read(reader) for _ in range(count))


class Integer(Field):
    """An unsigned integer, by its struct format."""

    def __init__(self, code: str) -> None:
        self.code = code
        self._layout = struct.Struct("<" + code)
        self.bytes_min = self._layout.size

    def encode(self, value: Any) -> bytes:
        return pack(self._layout, value)

    def read(self, reader: PayloadReader) -> int:
        return int(reader.unpack(self._layout)[0])


U8 = Integer("B")
U16 = Integer("H")
U32 = Integer("I")
U64 = Integer("Q")


class Truth(Field):
    """One byte; anything but 0 is true."""

    bytes_min = 1

    def encode(self, value: Any) -> bytes:
        return b"\x01" if value else b"\x00"

    def read(self, reader: PayloadReader) -> bool:
        return reader.take(1)[0] != 0


class Choice(Field):
    """One byte that stands for a member of an enumeration."""

    bytes_min = 1

    def __init__(self, members: type[IntEnum]) -> None:
        self._members = members

    def encode(self, value: Any) -> bytes:
        return U8.encode(value)

    def read(self, reader: PayloadReader) -> IntEnum:
        value = U8.read(reader)
        try:
            return self._members(value)
        except ValueError:
            raise reader.error(f"unknown {self._members.__name__} {value}") from None


class Text(Field):
    """A text with its length in front, of so many bytes at most."""

    bytes_min = U16.bytes_min

    def __init__(self, bytes_max: int = TEXT_BYTES_MAX) -> None:
        self.bytes_max = bytes_max

    def encode(self, value: Any) -> bytes:
        data = encode_utf8(value, self.bytes_max)
        return U16.encode(len(data)) + data

    def read(self, reader: PayloadReader) -> str:
        return reader.text(U16.read(reader), self.bytes_max)


class RestText(Field):
    """A text that is all the rest of the payload."""

    def encode(self, value: Any) -> bytes:
        return encode_utf8(value, TEXT_BYTES_MAX)

    def read(self, reader: PayloadReader) -> str:
        return reader.text(reader.remaining, TEXT_BYTES_MAX)


class Composite(Field):
    """The fields of a dataclass, in their order."""

    def __init__(self, value_type: type[Any], *layout: Field) -> None:
        self._value_type = value_type
        self._names = [field.name for field in fields(value_type)]
        self._layout = layout
        self.bytes_min = sum(field.bytes_min for field in layout)
        assert len(self._names) == len(layout)
        codes = [field.code for field in layout if isinstance(field, Integer)]
        # Integers alone are read by one call for a whole list of them.
        whole = len(codes) == len(layout)
        self._struct = struct.Struct("<" + "".join(codes)) if whole else None

    def encode(self, value: Any) -> bytes:
        pairs = zip(self._layout, self._names, strict=True)
        return b"".join(field.encode(getattr(value, name)) for field, name in pairs)

    def read(self, reader: PayloadReader) -> Any:
        return self._value_type(*(field.read(reader) for field in self._layout))

    def read_many(self, reader: PayloadReader, count: int) -> tuple[Any, ...]:
        if self._struct is None:
            return super().read_many(reader, count)
        rows = self._struct.iter_unpack(reader.take(count * self._struct.size))
        return tuple(itertools.starmap(self._value_type, rows))


class Items(Field):
    """A list, read as a tuple, of so many items at most."""

    bytes_min = U32.bytes_min

    def __init__(self, item: Field, items_max: int = ITEMS_MAX) -> None:
        # Without a size a count of four billion would cost no bytes at all.
        assert item.bytes_min > 0
        self._item = item
        self.items_max = items_max

    def encode(self, value: Any) -> bytes:
        if len(value) > self.items_max:
            raise LocalProtocolError(
                f"list of {len(value)} items is too long: at most {self.items_max}"
            )
        return U32.encode(len(value)) + b"".join(map(self._item.encode, value))

    def read(self, reader: PayloadReader) -> tuple[Any, ...]:
        """Read a tuple; a false count is noticed before anything is allocated."""
        count = U32.read(reader)
        if count * self._item.bytes_min > reader.remaining:
            raise reader.error(
                f"{count} items announced, {reader.remaining} bytes left"
            )
        if count > self.items_max:
            raise reader.error(
                f"list of {count} items is too long: at most {self.items_max}"
            )
        return self._item.read_many(reader, count)


TRUTH = Truth()
TEXT = Text()
TOPIC_NAME = Text(NAME_BYTES_MAX)
REST_TEXT = RestText()

# Types of the fields of messages, which say how each is written: see `LayoutMessage`.
Uint32 = Annotated[int, U32]
Uint64 = Annotated[int, U64]
Bool = Annotated[bool, TRUTH]
ShortText = Annotated[str, TEXT]
LastText = Annotated[str, REST_TEXT]


# JSON documents: parsed within limits, read field by field with the type checked.
# Python's parser would take NaN, UTF-16, numbers of any length and half surrogates;
# none of them gets through.

# Parsed JSON is up to thirty times the size of its text. 4 MiB hold the description of
# 30 000 topics.
DOCUMENT_BYTES_MAX = 16 * 1024 * 1024
# 2^64 - 1 has 20 digits; beyond it the cost of parsing grows with the square.
_DIGITS_MAX = 20
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")

T = TypeVar("T")


def encode_document(body: Mapping[str, Any]) -> bytes:
    """Write a JSON object.

    Raises:
        LocalProtocolError: if it can't be written as JSON in UTF-8.
    """
    try:
        text = json.dumps(
            body, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise LocalProtocolError(f"not a JSON document: {error}") from None


def decode_document(payload: Buffer, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        payload: the bytes.
        what: the message's name in errors.

    Raises:
        RemoteProtocolError: if it is not one, or too large.
    """
    size = memoryview(payload).nbytes
    if size > DOCUMENT_BYTES_MAX:
        raise RemoteProtocolError(f"{what} of {size} bytes is too long for JSON")
    try:
        text = str(payload, "utf-8")
        body = json.loads(
            text,
            parse_int=_parse_int,
            parse_float=_parse_float,
            parse_constant=_refuse,
        )
        if _SURROGATE_ESCAPE.search(text):
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        # UnicodeError and JSONDecodeError are both ValueErrors.
        raise RemoteProtocolError(f"{what} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise RemoteProtocolError(f"{what} is not a JSON object")
    return body


def _parse_int(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS_MAX:
        raise ValueError("number too long")
    return int(digits)


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("number too large")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


class DocumentReader:
    """Take the known fields out of a document; what is left is unknown but kept.

    Args:
        body: the document.
        what: the message's name in errors.
    """

    def __init__(self, body: Mapping[str, Any], what: str) -> None:
        self._body = dict(body)
        self._what = what

    def __contains__(self, key: str) -> bool:
        return key in self._body

    @property
    def rest(self) -> dict[str, Any]:
        """The fields that were not taken."""
        return self._body

    def take(self, key: str, value_type: type[T], default: T | None = None) -> T:
        """Take a field; a missing one or null is the default, if there is one.

        Raises:
            RemoteProtocolError: if it has another type, or is needed and missing.
        """
        value = self._body.pop(key, None)
        if value is None and default is not None:
            return default
        # In Python a bool is an int; in JSON it is not.
        if not isinstance(value, value_type) or (
            isinstance(value, bool) and value_type is not bool
        ):
            # Not the value itself: it may be megabytes, and nested without end.
            raise RemoteProtocolError(
                f"{self._what}: {key!r} is {type(value).__name__}, "
                f"not {value_type.__name__}"
            )
        return value

    def take_uint(self, key: str, bits: int, default: int | None = None) -> int:
        """Take an unsigned integer of so many bits.

        Raises:
            RemoteProtocolError: if it is something else.
        """
        value = self.take(key, int, default)
        if not 0 <= value < 1 << bits:
            raise RemoteProtocolError(f"{self._what}: {key!r} is {value}, not u{bits}")
        return value


# Messages.

M = TypeVar("M", bound="Message")
L = TypeVar("L", bound="LayoutMessage")


class Message(ABC):
    """The payload of a control frame as a value."""

    __slots__ = ()

    COMMAND: ClassVar[Command]
    # The words of the class's name, unless it says others. As in the texts of LWP §5.10
    # and §5.11: "Invalid <NAME> payload".
    NAME: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "NAME" not in vars(cls):
            cls.NAME = re.sub("(?<!^)(?=[A-Z])", " ", cls.__name__).lower()

    @abstractmethod
    def encode_payload(self) -> list[Buffer]:
        """Return the payload as buffers to be sent one after the other.

        Raises:
            LocalProtocolError: if a field does not fit.
        """

    @classmethod
    @abstractmethod
    def decode_payload(cls: type[M], payload: Buffer) -> M:
        """Read a payload, all of it.

        Raises:
            RemoteProtocolError: if it is not one of this message.
        """


class _Layout:
    """Finds the fields of a message when it is first written or read.

    A process that serves one query of Spark has few of the messages.
    """

    def __get__(self, _: object, kind: type[LayoutMessage]) -> Mapping[str, Field]:
        types = inspect.get_annotations(kind, eval_str=True).items()
        kind.LAYOUT = {name: each.__metadata__[0] for name, each in types}
        return kind.LAYOUT


class LayoutMessage(Message):
    """A message that is the fields of its dataclass, in their order.

    The type of each is `Annotated` with the `Field` that writes and reads it.
    """

    __slots__ = ()

    # By the name of the attribute.
    LAYOUT: ClassVar[Mapping[str, Field]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.LAYOUT = _Layout()  # type: ignore[assignment]  # It gives such a mapping.

    def encode_payload(self) -> list[Buffer]:
        pairs = self.LAYOUT.items()
        try:
            parts = [field.encode(getattr(self, name)) for name, field in pairs]
        except LocalProtocolError as error:
            raise LocalProtocolError(f"{self.NAME}: {error}") from error
        return [b"".join(parts)] if parts else []

    @classmethod
    def decode_payload(cls: type[L], payload: Buffer) -> L:
        reader = PayloadReader(payload, cls.NAME)
        values = [field.read(reader) for field in cls.LAYOUT.values()]
        reader.finish()
        return cls(*values)
