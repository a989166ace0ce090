"""One record at a time, in plain Python: what the columnar code must agree with.

Written from LWP §8 and from the rules of a write alone, with nothing of `columnar` in
it, so that a mistake would have to be made twice. It is also what `make bench` compares
with. Texts of errors are not its business, positions and rows are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lance_spark.errors import RecordError, RowError

RECORD_BYTES_MAX = 16 * 1024 * 1024


class Row(NamedTuple):
    """A record, or what becomes one."""

    offset: int
    next_offset: int
    type: int | None
    key: bytes | None
    value: bytes | None
    timestamp_ns: int | None


@dataclass
class Result:
    """What `decode` found."""

    rows: list[Row] = field(default_factory=list)
    end: int = 0
    skipped: int = 0
    skipped_bytes: int = 0
    fault: RecordError | None = None


def read_record(data: bytes, start: int) -> Row:
    """Read one record, or raise the RecordError of what is wrong with it."""
    if data[start] == 0:
        raise RecordError("type 0", start)
    if start + 5 > len(data):
        raise RecordError("header", start, truncated=True)
    kind, length = struct.unpack_from("<BI", data, start)
    if length > RECORD_BYTES_MAX:
        raise RecordError("too long", start)
    end = start + 5 + length
    if end > len(data):
        raise RecordError("value", start, truncated=True)
    at = start + 5
    key: bytes | None = None
    value: bytes | None = None
    stamp: int | None = None
    if kind == 0xFF:
        if length:
            raise InnerError("Null with a length", start, end)
        return Row(start, end, kind, None, None, None)
    if kind in (0x11, 0x12):
        if at + 8 > end:
            raise InnerError("timestamp", start, end)
        (stamp,) = struct.unpack_from("<Q", data, at)
        at += 8
    if kind in (0x10, 0x12):
        if at + 2 > end:
            raise InnerError("key length", start, end)
        (key_length,) = struct.unpack_from("<H", data, at)
        at += 2
        if at + key_length > end:
            raise InnerError("key", start, end)
        key = data[at : at + key_length]
        at += key_length
    value = data[at:end]
    return Row(start, end, kind, key, value, stamp)


class InnerError(RecordError):
    """A bad record of which at least the end is known."""

    def __init__(self, reason: str, position: int, end: int) -> None:
        super().__init__(reason, position)
        self.end = end


def check_row(row: Row, *, stamps: bool, text: Iterable[str]) -> None:
    """Raise what makes a record bad only for those who ask for these columns.

    Args:
        row: the record.
        stamps: its timestamp has to fit into int64.
        text: what has to be UTF-8.
    """
    if stamps and row.timestamp_ns is not None and row.timestamp_ns >= 2**63:
        raise InnerError("2262", row.offset, row.next_offset)
    for name in text:
        part = getattr(row, name)
        try:
            (part or b"").decode()
        except UnicodeDecodeError:
            raise InnerError("UTF-8", row.offset, row.next_offset) from None


def decode(
    data: bytes,
    *,
    skip: bool = False,
    keep_partial: bool = False,
    stamps: bool = False,
    text: Iterable[str] = (),
) -> Result:
    """Read all records of a buffer."""
    result = Result()
    while result.end < len(data):
        try:
            row = read_record(data, result.end)
            if stamps or text:
                check_row(row, stamps=stamps, text=text)
        except InnerError as error:
            if not skip:
                raise
            result.skipped += 1
            result.skipped_bytes += error.end - error.position
            result.end = error.end
        except RecordError as error:
            if error.truncated and keep_partial:
                break
            if not skip:
                raise
            result.skipped += 1
            result.skipped_bytes += len(data) - result.end
            result.end = len(data)
            result.fault = error
        else:
            result.rows.append(row)
            result.end = row.next_offset
    return result


def encode_row(row: Row, index: int, record_type: int = 1) -> bytes:
    """Write one record, or raise the RowError of what is wrong with its row."""
    if row.value is None and (row.key is not None or row.timestamp_ns is not None):
        raise RowError("no value", index)
    if row.key is not None:
        kind = 0x10 if row.timestamp_ns is None else 0x12
    elif row.timestamp_ns is not None:
        kind = 0x11
    elif row.value is None:
        kind = 0xFF
    else:
        kind = record_type if row.type is None else row.type
        if not 1 <= kind <= 254 or kind in (0x10, 0x11, 0x12):
            raise RowError("type", index)
    if row.type is not None and row.type != kind:
        raise RowError("type contradicts", index)
    parts = []
    if row.timestamp_ns is not None:
        if not 0 <= row.timestamp_ns < 2**64:
            raise RowError("timestamp", index)
        parts.append(struct.pack("<Q", row.timestamp_ns))
    if row.key is not None:
        if len(row.key) > 0xFFFF:
            raise RowError("key", index)
        parts.append(struct.pack("<H", len(row.key)))
        parts.append(row.key)
    parts.append(row.value or b"")
    body = b"".join(parts)
    if len(body) > RECORD_BYTES_MAX:
        raise RowError("too long", index)
    return struct.pack("<BI", kind, len(body)) + body


def encode(
    rows: Iterable[Row], record_type: int = 1, payload_bytes_max: int = 1024 * 1024
) -> Iterator[tuple[bytes, int]]:
    """Write rows as payloads, each with its number of records."""
    payload: list[bytes] = []
    size = 0
    for record in [encode_row(row, i, record_type) for i, row in enumerate(rows)]:
        if payload and size + len(record) > payload_bytes_max:
            yield b"".join(payload), len(payload)
            payload, size = [], 0
        payload.append(record)
        size += len(record)
    if payload:
        yield b"".join(payload), len(payload)
