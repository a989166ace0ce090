"""Messages as tables of fields, for protocols whose messages are many and alike.

A message is a dataclass with a `LAYOUT`: the fields one behind the other. Simple fields
are letters, and a `Form` says how a letter is written: it is an alphabet, which a
protocol has one of or several, and the version of the peer. Other fields are a
`Struct`, a list of fields (`Many`), bytes (`Data`), one of several lists of fields
(`Choice`), or a field that is not always there: `Maybe` by what stands before it,
`Since` by the version, `Option` by a flag in front.

No length is trusted: each read checks what is left of the payload before it takes, and
a list has at most as many items as there are bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.records import Records
from lance_spark.value import dataclass

# The longest list. An item of some bytes is an object of a hundred.
ITEMS_MAX = 2**16 - 1

S = TypeVar("S", bound="Struct")


class Cursor:
    """Read a payload front to back; each read checks what is left before it takes.

    Args:
        payload: the bytes.
        what: the message's name in errors.
        form: how its fields are written.
        behind: where data is that the fields only say the size of.
        items_max: the most items of all lists together, which may be in each other.
    """

    def __init__(
        self,
        payload: Buffer,
        what: str,
        form: Form,
        behind: Cursor | None = None,
        items_max: int | None = None,
    ) -> None:
        self._view = memoryview(payload).cast("B")
        self.what = what
        self.form = form
        self.position = 0
        self.behind = behind
        self._items_left = items_max

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

    def read(self, layout: Sequence[Any], before: Sequence[Any] = ()) -> list[Any]:
        """Read fields, behind some that were read before and are returned as well."""
        values = list(before)
        letters = self.form.letters
        for code in layout:
            if isinstance(code, str):
                values.append(letters[code].read(self))
            else:
                values.append(code.read(self, values))
        return values

    def one(self, code: Any) -> Any:
        """Read one field."""
        return self.read((code,))[0]

    def count(self, code: str) -> int:
        """Read how many items follow, each of at least a byte.

        Raises:
            RemoteProtocolError: there can't be so many.
        """
        count: int = self.one(code)
        if count > min(self.remaining, ITEMS_MAX):
            raise self.error(f"{count} items in {self.remaining} bytes")
        if self._items_left is not None:
            self._items_left -= max(0, count)
            if self._items_left < 0:
                raise self.error(f"{count} items are more than a message may have")
        return count


# Simple fields.


@dataclass(frozen=True, slots=True)
class Letter:
    """How a simple field is read, and written.

    For a value that does not fit `encode` may raise `struct.error`, ValueError,
    AttributeError or TypeError.
    """

    read: Callable[[Cursor], Any]
    encode: Callable[[Any], bytes]


def make_number(layout: str) -> Letter:
    """Make the letter of a number, or several, that `struct` knows."""
    form = struct.Struct(layout)

    def read(cursor: Cursor) -> Any:
        return form.unpack(cursor.take(form.size))[0]

    return Letter(read, form.pack)


def make_varint(bits: int) -> Letter:
    """Make the letter of an unsigned integer as LEB128, of at most so many bits."""

    def read(cursor: Cursor) -> int:
        value = 0
        for shift in range(0, bits, 7):
            byte = cursor.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value < 1 << bits:
                return value
        raise cursor.error(f"a varint has more than {bits} bits")

    def encode(value: int) -> bytes:
        if not 0 <= value < 1 << bits:
            raise ValueError(f"not a number of {bits} bits")
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes((*out, value))

    return Letter(read, encode)


def make_text(length: Letter) -> Letter:
    """Make the letter of a text in UTF-8, with its length in front."""

    def read(cursor: Cursor) -> str:
        # Fluvio's lengths have a sign, and below 0 stand for nothing.
        data = cursor.take(max(0, length.read(cursor)))
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise cursor.error("text is not UTF-8") from None

    def encode(value: str) -> bytes:
        data = value.encode()
        return length.encode(len(data)) + data

    return Letter(read, encode)


def make_zigzag(bits: int) -> Letter:
    """Make the letter of an integer with a sign as LEB128: 0, -1, 1, -2, … in turn."""
    varint = make_varint(bits)

    def read(cursor: Cursor) -> int:
        value: int = varint.read(cursor)
        return value >> 1 ^ -(value & 1)

    def encode(value: int) -> bytes:
        return varint.encode(2 * value if value >= 0 else -2 * value - 1)

    return Letter(read, encode)


@dataclass(frozen=True, slots=True)
class Form:
    """How the messages of a peer are written.

    Args:
        letters: how each simple field is.
        version: of the peer, for fields that only some versions have.
    """

    letters: Mapping[str, Letter]
    version: int = 0

    def encode_one(self, letter: str, value: Any) -> bytes:
        """Write a simple field.

        Raises:
            LocalProtocolError: the value does not fit.
        """
        try:
            return self.letters[letter].encode(value)
        except (struct.error, ValueError, AttributeError, TypeError) as error:
            raise LocalProtocolError(f"{value!r} does not fit: {error}") from None

    def encode(
        self, code: Any, value: Any, before: Sequence[Any] = ()
    ) -> Iterator[Buffer]:
        """Write any field."""
        if isinstance(code, str):
            yield self.encode_one(code, value)
        elif isinstance(code, type):
            yield from value.encode(self)
        else:
            yield from code.encode(self, value, before)


# Fields of fields.


class Struct:
    """Fields one behind the other; subclasses are dataclasses with these fields."""

    __slots__ = ()

    LAYOUT: ClassVar[Sequence[Any]] = ()
    __match_args__: ClassVar[tuple[str, ...]]

    def encode(self, form: Form) -> Iterator[Buffer]:
        """Give buffers to be sent one after the other; data is not copied.

        Raises:
            LocalProtocolError: a field does not fit.
        """
        # The names of a dataclass's fields, which are those of the layout first.
        names = self.__match_args__[: len(self.LAYOUT)]
        values = [getattr(self, name) for name in names]
        for code, value in zip(self.LAYOUT, values, strict=True):
            yield from form.encode(code, value, values)

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

    item: Any
    count: str = ""

    def encode(
        self, form: Form, value: Sequence[Any], before: Sequence[Any]
    ) -> Iterator[Buffer]:
        if self.count:
            yield form.encode_one(self.count, len(value))
        for item in value:
            yield from form.encode(self.item, item)

    def read(self, cursor: Cursor, before: Sequence[Any]) -> tuple[Any, ...]:
        items: list[Any] = []
        if self.count:
            count = cursor.count(self.count)
            items += [cursor.one(self.item) for _ in range(count)]
        while not self.count and cursor.remaining and len(items) < ITEMS_MAX:
            items.append(cursor.one(self.item))
        return tuple(items)


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes with their number in front; read as a view, and sent without a copy."""

    size: str

    def encode(self, form: Form, value: Buffer, before: object) -> Iterator[Buffer]:
        yield form.encode_one(self.size, memoryview(value).nbytes)
        yield value

    def read(self, cursor: Cursor, before: Sequence[Any]) -> memoryview:
        return cursor.take(max(0, cursor.one(self.size)))


@dataclass(frozen=True, slots=True)
class Maybe:
    """A field that is there if those before it say so; else it is the default."""

    code: Any
    when: Callable[[Sequence[Any]], Any]
    default: Any = 0

    def encode(self, form: Form, value: Any, before: Sequence[Any]) -> Iterator[Buffer]:
        if self.when(before):
            yield from form.encode(self.code, value, before)

    def read(self, cursor: Cursor, before: Sequence[Any]) -> Any:
        return cursor.one(self.code) if self.when(before) else self.default


@dataclass(frozen=True, slots=True)
class Since:
    """A field of the versions `[first, end)`; to others it is not sent."""

    first: int
    code: Any
    default: Any = None
    end: int = 2**31

    def encode(self, form: Form, value: Any, before: Sequence[Any]) -> Iterator[Buffer]:
        if self.first <= form.version < self.end:
            yield from form.encode(self.code, value, before)

    def read(self, cursor: Cursor, before: Sequence[Any]) -> Any:
        is_there = self.first <= cursor.form.version < self.end
        return cursor.one(self.code) if is_there else self.default


@dataclass(frozen=True, slots=True)
class Option:
    """A field behind a 1, or None, which is a 0: a byte each, or a letter's bytes."""

    code: Any
    flag: str = ""

    def encode(self, form: Form, value: Any, before: Sequence[Any]) -> Iterator[Buffer]:
        flag = int(value is not None)
        yield form.encode_one(self.flag, flag) if self.flag else bytes([flag])
        if flag:
            yield from form.encode(self.code, value, before)

    def read(self, cursor: Cursor, before: Sequence[Any]) -> Any:
        flag = cursor.one(self.flag) if self.flag else cursor.take(1)[0]
        if flag > 1:
            raise cursor.error(f"{flag} says neither that a field is there nor not")
        return cursor.one(self.code) if flag else None


@dataclass(frozen=True, slots=True)
class Choice:
    """Fields behind a number that says which they are: a tuple of it and of them."""

    tag: str
    cases: Mapping[int, Sequence[Any]]

    def encode(
        self, form: Form, value: Sequence[Any], before: object
    ) -> Iterator[Buffer]:
        tag, *values = value
        layout = self.cases.get(tag)
        if layout is None or len(layout) != len(values):
            raise LocalProtocolError(f"{value!r} does not fit: unknown fields")
        yield form.encode_one(self.tag, tag)
        for code, item in zip(layout, values, strict=True):
            yield from form.encode(code, item, values)

    def read(self, cursor: Cursor, before: Sequence[Any]) -> tuple[Any, ...]:
        tag = cursor.one(self.tag)
        if tag not in self.cases:
            raise cursor.error(f"unknown kind {tag}, and so its fields are")
        return (tag, *cursor.read(self.cases[tag]))


# For people.


def show(value: Any) -> str:
    """Write the fields of a message that are not as usual, data only by its size.

    A field that its dataclass keeps out of `repr` is a secret.
    """
    if isinstance(value, Records):
        return f"{len(value)} records of {int(value.values.lengths.sum())} bytes"
    if is_dataclass(value):
        shown = [
            f"{field.name}={show(getattr(value, field.name)) if field.repr else '…'}"
            for field in fields(value)
            if getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({' '.join(shown)})"
    if isinstance(value, tuple):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, str | int):
        return repr(value)
    return f"{memoryview(value).nbytes} bytes"
