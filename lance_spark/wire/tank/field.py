"""The fields that TANK's messages are made of, and dataclasses of such fields.

Simple fields are letters:

    B H I Q   u8, u16, u32, u64
    v         varint: LEB128 of up to 32 bits
    s         text with its length in front as u8
    t         text with its length in front as varint
    a         address: four bytes of IPv4 and a port as u16, "10.0.0.1:11011" here

Others are a `Struct`, a list of them (`Many`), or a field that is not always there
(`Maybe`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer

_INTEGERS = {code: struct.Struct(f"<{code}") for code in "BHIQ"}
_ADDRESS = struct.Struct("<4BH")
_VARINT_BITS = 32
# The longest list: a request has at most 255 topics of 255 partitions each. An item
# of some bytes is an object of a hundred.
ITEMS_MAX = 2**16 - 1

S = TypeVar("S", bound="Struct")


class Cursor:
    """Read a payload front to back; each read checks what is left before it takes.

    Args:
        payload: the bytes.
        what: the message's name in errors.
        behind: where data is that the fields only say the size of.
    """

    def __init__(
        self, payload: Buffer, what: str, behind: Cursor | None = None
    ) -> None:
        self._view = memoryview(payload).cast("B")
        self.what = what
        self.position = 0
        self.behind = behind

    @property
    def remaining(self) -> int:
        """Bytes not yet read."""
        return len(self._view) - self.position

    def error(self, problem: str) -> RemoteProtocolError:
        """Make an error."""
        return RemoteProtocolError(f"{self.what}: {problem}", self.position)

    def take(self, size: int) -> memoryview:
        """Read so many bytes as a view."""
        view = self.peek(size)
        if size > len(view):
            raise self.error(f"{size} bytes needed, {len(view)} left")
        self.position += size
        return view

    def peek(self, size: int) -> memoryview:
        """Look at so many bytes, or as many as there are, without reading them."""
        return self._view[self.position : self.position + size]

    def read(self, layout: Sequence[Any]) -> list[Any]:
        """Read fields."""
        values: list[Any] = []
        for code in layout:
            one = self.one(code) if isinstance(code, str) else code.read(self, values)
            values.append(one)
        return values

    def one(self, code: str) -> Any:
        """Read a simple field."""
        if code in _INTEGERS:
            layout = _INTEGERS[code]
            return layout.unpack(self.take(layout.size))[0]
        if code == "v":
            return self._read_varint()
        if code == "a":
            *ip, port = _ADDRESS.unpack(self.take(_ADDRESS.size))
            return f"{'.'.join(map(str, ip))}:{port}"
        data = self.take(self.one("B" if code == "s" else "v"))
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise self.error("text is not UTF-8") from None

    def _read_varint(self) -> int:
        value = 0
        for shift in range(0, _VARINT_BITS, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value < 1 << _VARINT_BITS:
                return value
        raise self.error("a varint has more than 32 bits")


def encode_field(code: str, value: Any) -> bytes:
    """Write a simple field.

    Raises:
        LocalProtocolError: the value does not fit.
    """
    try:
        if code in _INTEGERS:
            return _INTEGERS[code].pack(value)
        if code == "v":
            return _encode_varint(value)
        if code == "a":
            ip, _, port = value.rpartition(":")
            return _ADDRESS.pack(*map(int, ip.split(".")), int(port))
        data: bytes = value.encode()
        return encode_field("B" if code == "s" else "v", len(data)) + data
    except (struct.error, ValueError, AttributeError) as error:
        raise LocalProtocolError(f"{value!r} does not fit: {error}") from None


def _encode_varint(value: int) -> bytes:
    if not 0 <= value < 1 << _VARINT_BITS:
        raise ValueError("not a number of 32 bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _encode(code: Any, value: Any, before: Sequence[Any]) -> Iterator[Buffer]:
    if isinstance(code, str):
        yield encode_field(code, value)
    elif isinstance(code, type):
        yield from value.encode()
    else:
        yield from code.encode(value, before)


class Struct:
    """Fields one behind the other; subclasses are dataclasses with these fields."""

    __slots__ = ()

    LAYOUT: ClassVar[Sequence[Any]] = ()
    __match_args__: ClassVar[tuple[str, ...]]

    def encode(self) -> Iterator[Buffer]:
        """Give buffers to be sent one after the other; data is not copied.

        Raises:
            LocalProtocolError: a field does not fit.
        """
        # The names of a dataclass's fields, which are those of the layout first.
        names = self.__match_args__[: len(self.LAYOUT)]
        values = [getattr(self, name) for name in names]
        for code, value in zip(self.LAYOUT, values, strict=True):
            yield from _encode(code, value, values)

    @classmethod
    def read(cls: type[S], cursor: Cursor, before: Sequence[Any] = ()) -> S:
        """Read it.

        Raises:
            RemoteProtocolError: something else is there.
        """
        return cls(*cursor.read(cls.LAYOUT))


@dataclass(frozen=True, slots=True)
class Many:
    """A list with its length in front; without one it goes to the payload's end."""

    item: type[Struct]
    count: str = ""

    def encode(
        self, value: Sequence[Struct], before: Sequence[Any]
    ) -> Iterator[Buffer]:
        if self.count:
            yield encode_field(self.count, len(value))
        for item in value:
            yield from item.encode()

    def read(self, cursor: Cursor, before: Sequence[Any]) -> tuple[Struct, ...]:
        items: list[Struct] = []
        if self.count:
            count = cursor.one(self.count)
            if count > min(cursor.remaining, ITEMS_MAX):
                raise cursor.error(f"{count} items in {cursor.remaining} bytes")
            items += [self.item.read(cursor) for _ in range(count)]
        while not self.count and cursor.remaining and len(items) < ITEMS_MAX:
            items.append(self.item.read(cursor))
        return tuple(items)


@dataclass(frozen=True, slots=True)
class Maybe:
    """A field that is there if those before it say so; else it is the default."""

    code: Any
    when: Callable[[Sequence[Any]], Any]
    default: Any = 0

    def encode(self, value: Any, before: Sequence[Any]) -> Iterator[Buffer]:
        if self.when(before):
            yield from _encode(self.code, value, before)

    def read(self, cursor: Cursor, before: Sequence[Any]) -> Any:
        return cursor.read((self.code,))[0] if self.when(before) else self.default
