"""What messages are made of in both dialects: fields, binary and as JSON.

Binary is big-endian. `struct.error`, `UnicodeError` and `json`'s errors become errors
of the library's own tree here. No error quotes a value: it may be megabytes.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from lance_spark.errors import LocalProtocolError, RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.records import Records, Spans, as_bytes
from lance_spark.wire.rustlog.record import read_records, write_records

# The longest list of topics or partitions: an item is several objects in memory.
ITEMS_MAX = 1 << 17
# How much memory a JSON document may take while it is read. A frame of 10 MiB with few
# records takes 160 MiB, and the largest answer of `split_records` 220 MB.
JSON_MEMORY_MAX = 256 * 1024 * 1024
# How many records JSON may hold: the offsets that answer them have to fit into a frame.
JSON_RECORDS_MAX = 1 << 18


class Reader:
    """Read a binary payload front to back; `rest` is what was not read yet."""

    def __init__(self, payload: Buffer) -> None:
        self.rest = memoryview(payload).cast("B")

    def take(self, size: int) -> memoryview:
        """Read `size` bytes as a view, if they are there."""
        if size > len(self.rest):
            left = len(self.rest)
            raise RemoteProtocolError(f"{size} bytes needed, {left} left")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken


class Field(ABC):
    """One field of a message."""

    # What JSON has for it.
    json_type: type

    @abstractmethod
    def encode(self, value: Any) -> list[Buffer]:
        """Write a value; raises LocalProtocolError if it does not fit."""

    @abstractmethod
    def read(self, reader: Reader) -> Any:
        """Read a value; raises RemoteProtocolError if it is not one."""

    def to_json(self, value: Any) -> Any:
        """Give what JSON has for a value."""
        return value

    def from_json(self, value: Any) -> Any:
        """Take what JSON has; raises RemoteProtocolError if it would not fit binary."""
        # In Python a bool is an int; in JSON it is not.
        if type(value) is not self.json_type:
            raise RemoteProtocolError(f"not of type {self.json_type.__name__}")
        try:
            self.encode(value)
        except LocalProtocolError as error:
            raise RemoteProtocolError(str(error)) from None
        return value


class Scalar(Field):
    """An unsigned integer or a truth, by its struct format."""

    def __init__(self, code: str) -> None:
        self._layout = struct.Struct(">" + code)
        self.json_type = bool if code == "?" else int

    def encode(self, value: Any) -> list[Buffer]:
        try:
            return [self._layout.pack(value)]
        except struct.error as error:
            raise LocalProtocolError(f"field out of range: {error}") from None

    def read(self, reader: Reader) -> Any:
        return self._layout.unpack(reader.take(self._layout.size))[0]


U16, U32, U64, TRUTH = (Scalar(code) for code in "HIQ?")


class Size(Scalar):
    """A u32 that is a `usize` in the specification of the JSON, and is cut here."""

    def __init__(self) -> None:
        super().__init__("I")

    def from_json(self, value: Any) -> Any:
        return min(U64.from_json(value), 2**32 - 1)


class Text(Field):
    """A text behind its length.

    Args:
        length: how the length is written.
        optional: JSON may have null for the empty text.
    """

    json_type = str

    def __init__(self, length: Scalar = U16, *, optional: bool = False) -> None:
        self._length = length
        self._optional = optional

    def encode(self, value: Any) -> list[Buffer]:
        try:
            data = value.encode()
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"not a Unicode text: {error}") from None
        return [*self._length.encode(len(data)), data]

    def read(self, reader: Reader) -> str:
        try:
            return str(reader.take(self._length.read(reader)), "utf-8")
        except UnicodeDecodeError:
            raise RemoteProtocolError("a text is not UTF-8") from None

    def to_json(self, value: Any) -> Any:
        return value or None if self._optional else value

    def from_json(self, value: Any) -> Any:
        is_missing = value is None and self._optional
        return "" if is_missing else super().from_json(value)


class Maybe(Field):
    """A u64 that may be missing."""

    def encode(self, value: Any) -> list[Buffer]:
        return [b"\0"] if value is None else [b"\1", *U64.encode(value)]

    def read(self, reader: Reader) -> int | None:
        return U64.read(reader) if TRUTH.read(reader) else None

    def from_json(self, value: Any) -> int | None:
        return None if value is None else U64.from_json(value)


class Pairs(Field):
    """A list of pairs, read as a tuple."""

    def __init__(self, first: Field, second: Field) -> None:
        self._first, self._second = first, second

    def encode(self, value: Any) -> list[Buffer]:
        parts = U32.encode(len(value))
        for first, second in value:
            parts += self._first.encode(first) + self._second.encode(second)
        return parts

    def read(self, reader: Reader) -> tuple[tuple[Any, Any], ...]:
        count = U32.read(reader)
        if count > ITEMS_MAX:
            raise RemoteProtocolError(f"a list of {count}, {ITEMS_MAX} are the most")
        return tuple(
            (self._first.read(reader), self._second.read(reader)) for _ in range(count)
        )

    def from_json(self, value: Any) -> tuple[tuple[Any, Any], ...]:
        try:
            return tuple(
                (self._first.from_json(one), self._second.from_json(two))
                for one, two in value
            )
        except (TypeError, ValueError):
            raise RemoteProtocolError("not a list of pairs") from None


class Values(Field):
    """Records: their number, then their values. In JSON they are lists of bytes."""

    def encode(self, value: Any) -> list[Buffer]:
        return [*U32.encode(len(value)), write_records(value)]

    def read(self, reader: Reader) -> Records:
        count = U32.read(reader)
        records = read_records(reader.rest, count)
        reader.take(int(records.values.ends[-1]) if count else 0)
        return records

    def to_json(self, value: Any) -> list[list[int]]:
        spans = value.values
        bounds = zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
        return [spans.data[start:end].tolist() for start, end in bounds]

    def from_json(self, value: Any) -> Records:
        if isinstance(value, list) and len(value) > JSON_RECORDS_MAX:
            raise RemoteProtocolError(f"not {JSON_RECORDS_MAX} records or fewer")
        is_lists = isinstance(value, list) and set(map(type, value)) <= {list}
        # bytes() would take true for 1.
        if not is_lists or not set(map(type, chain.from_iterable(value))) <= {int}:
            raise RemoteProtocolError("not a list of lists of numbers")
        try:
            data = b"".join(map(bytes, value))
        except ValueError:
            raise RemoteProtocolError("not made of bytes from 0 to 255") from None
        lengths = np.fromiter(map(len, value), np.int64, len(value))
        ends = np.cumsum(lengths)
        return Records(Spans(as_bytes(data), ends - lengths, ends))


VALUES = Values()


def encode_document(name: str, body: Mapping[str, Any]) -> bytes:
    """Write the JSON of a message.

    Raises:
        LocalProtocolError: a text is not Unicode.
    """
    text = json.dumps({name: body}, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"not a Unicode text: {error}") from None


def find_json_memory(frame: Buffer) -> int:
    """Say how much memory the reading of a JSON frame takes at most.

    Numbers take up to ten times their text, which is copied twice, and is then up to
    four times as large. A list or an object, which a record is, takes 200 bytes.

    Raises:
        RemoteProtocolError: it would take more than any frame may.
    """
    data = bytes(frame)
    lists, quotes = data.count(b"[") + data.count(b"{"), data.count(b'"')
    size = 16 * len(data) + 200 * lists + 40 * quotes
    if size > JSON_MEMORY_MAX:
        raise RemoteProtocolError("too many records in JSON: send fewer at a time")
    return size


def decode_document(payload: Buffer) -> tuple[str, dict[str, Any]]:
    """Read the JSON of a message: its name and its fields.

    Raises:
        RemoteProtocolError: it is not JSON, not a message, or takes too much memory.
    """
    find_json_memory(payload)
    try:
        document = json.loads(bytes(payload).decode())
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not JSON: {error}") from None
    if isinstance(document, dict) and len(document) == 1:
        [(name, body)] = document.items()
        if isinstance(body, dict):
            return name, body
    raise RemoteProtocolError("not a JSON object with one message in it")
