"""The fields that binary payloads are made of, each with one way to write and read it.

Integers are little-endian. A text is a u16 length and that many bytes of UTF-8; a list
is a u32 count and its items. Here `struct.error` and `UnicodeError` become errors of
our own tree, so that no other module of the codec has to think of them. What fields
mean together is said by the messages.
"""

from __future__ import annotations

import itertools
import struct
from abc import ABC, abstractmethod
from dataclasses import fields
from enum import IntEnum
from typing import Any

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer

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


def encode_utf8(text: str) -> bytes:
    """Encode a text.

    Raises:
        LocalProtocolError: if it holds half a surrogate pair.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"not a Unicode text: {error}") from None


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

    def text(self, size: int) -> str:
        """Read `size` bytes of UTF-8."""
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
        """Write an integer."""
        return pack(self._layout, value)

    def read(self, reader: PayloadReader) -> int:
        """Read an integer."""
        return int(reader.unpack(self._layout)[0])


U8 = Integer("B")
U16 = Integer("H")
U32 = Integer("I")
U64 = Integer("Q")


class Truth(Field):
    """One byte; anything but 0 is true."""

    bytes_min = 1

    def encode(self, value: Any) -> bytes:
        """Write a bool."""
        return b"\x01" if value else b"\x00"

    def read(self, reader: PayloadReader) -> bool:
        """Read a bool."""
        return reader.take(1)[0] != 0


class Choice(Field):
    """One byte that stands for a member of an enumeration."""

    bytes_min = 1

    def __init__(self, members: type[IntEnum]) -> None:
        self._members = members

    def encode(self, value: Any) -> bytes:
        """Write a member."""
        return U8.encode(value)

    def read(self, reader: PayloadReader) -> IntEnum:
        """Read a member."""
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
        """Write a text."""
        data = encode_utf8(value)
        if len(data) > self.bytes_max:
            raise LocalProtocolError(f"text of {len(data)} bytes is too long")
        return U16.encode(len(data)) + data

    def read(self, reader: PayloadReader) -> str:
        """Read a text."""
        size = U16.read(reader)
        if size > self.bytes_max:
            raise reader.error(f"text of {size} bytes is too long")
        return reader.text(size)


class RestText(Field):
    """A text that is all the rest of the payload."""

    def encode(self, value: Any) -> bytes:
        """Write a text."""
        data = encode_utf8(value)
        if len(data) > TEXT_BYTES_MAX:
            raise LocalProtocolError(f"text of {len(data)} bytes is too long")
        return data

    def read(self, reader: PayloadReader) -> str:
        """Read a text."""
        if reader.remaining > TEXT_BYTES_MAX:
            raise reader.error(f"text of {reader.remaining} bytes is too long")
        return reader.text(reader.remaining)


class Group(Field):
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
        """Write an instance."""
        pairs = zip(self._layout, self._names, strict=True)
        return b"".join(field.encode(getattr(value, name)) for field, name in pairs)

    def read(self, reader: PayloadReader) -> Any:
        """Read an instance."""
        return self._value_type(*(field.read(reader) for field in self._layout))

    def read_many(self, reader: PayloadReader, count: int) -> tuple[Any, ...]:
        """Read so many instances."""
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
        """Write a sequence."""
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
