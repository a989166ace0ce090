"""Types and limits of LWP's records, and one record at a time (LWP §8).

An object per record is for people, tools and tests. `tlv` has the hot path, which reads
and writes whole buffers. What is malformed there is malformed here, and the other way
round.

    type u8 | length u32 | value
    0x10 value:  key length u16 | key | data
    0x11 value:  timestamp ns u64 | data
    0x12 value:  timestamp ns u64 | key length u16 | key | data
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from lance_spark.errors import LocalProtocolError, RecordError
from lance_spark.model import Buffer
from lance_spark.value import dataclass

# LWP §8.7. The header of a record (type and length) is not part of this limit.
RECORD_VALUE_BYTES_MAX = 16 * 1024 * 1024
RECORD_HEADER_BYTES = 5
TIMESTAMP_BYTES = 8
KEY_LENGTH_BYTES = 2
KEY_BYTES_MAX = 2**16 - 1


class RecordType(IntEnum):
    """TLV record types of LWP §8.2; 0x80 to 0xFE belong to applications."""

    RAW = 0x01
    JSON = 0x02
    MESSAGE_PACK = 0x03
    PROTOBUF = 0x04
    AVRO = 0x05
    KEY_VALUE = 0x10
    TIMESTAMPED = 0x11
    KEY_TIMESTAMPED = 0x12
    NULL = 0xFF


_HEADER = struct.Struct("<BI")
_TIMESTAMP = struct.Struct("<Q")
_KEY_LENGTH = struct.Struct("<H")
assert _HEADER.size == RECORD_HEADER_BYTES

_KEYED = (RecordType.KEY_VALUE, RecordType.KEY_TIMESTAMPED)
_TIMED = (RecordType.TIMESTAMPED, RecordType.KEY_TIMESTAMPED)


@dataclass(frozen=True, slots=True)
class Record:
    """A record; `key` and `timestamp_ns` are there exactly if its type has them."""

    type: int
    value: Buffer = b""
    key: Buffer | None = None
    timestamp_ns: int | None = None


def encode_record(record: Record) -> bytes:
    """Write a record.

    Raises:
        LocalProtocolError: if LWP has no such record.
    """
    if not 0 < record.type <= 0xFF:
        raise LocalProtocolError(f"record type {record.type} is not 1 to 255")
    if (record.type in _KEYED) != (record.key is not None):
        raise LocalProtocolError(f"type 0x{record.type:02X} and key do not agree")
    if (record.type in _TIMED) != (record.timestamp_ns is not None):
        raise LocalProtocolError(f"type 0x{record.type:02X} and time do not agree")
    body = _encode_prefix(record) + bytes(record.value)
    if record.type == RecordType.NULL and body:
        raise LocalProtocolError("a null record has no value")
    if len(body) > RECORD_VALUE_BYTES_MAX:
        raise LocalProtocolError(f"record of {len(body)} bytes is over the limit")
    return _HEADER.pack(record.type, len(body)) + body


def _encode_prefix(record: Record) -> bytes:
    prefix = b""
    try:
        if record.timestamp_ns is not None:
            prefix += _TIMESTAMP.pack(record.timestamp_ns)
        if record.key is not None:
            key = bytes(record.key)
            prefix += _KEY_LENGTH.pack(len(key)) + key
    except struct.error as error:
        raise LocalProtocolError(f"key or timestamp out of range: {error}") from None
    return prefix


def decode_record(data: Buffer, position: int = 0) -> tuple[Record, int]:
    """Read the record that starts at `position`.

    Returns:
        The record, whose value and key are views of `data`, and where the next starts.

    Raises:
        RecordError: if it is malformed, or not there as a whole (`truncated`).
    """
    view = memoryview(data).cast("B")
    start = position + RECORD_HEADER_BYTES
    if start > len(view):
        raise RecordError("header is cut off", position, truncated=True)
    record_type, length = _HEADER.unpack_from(view, position)
    # Judged before the end of the buffer: more bytes would not mend these.
    if record_type == 0:
        raise RecordError("type 0 is reserved", position)
    if length > RECORD_VALUE_BYTES_MAX:
        raise RecordError(f"{length} bytes are over the limit", position)
    if record_type == RecordType.NULL and length:
        raise RecordError(f"null record of {length} bytes", position)
    end = start + length
    if end > len(view):
        raise RecordError(f"{length} bytes are cut off", position, truncated=True)
    return _decode_value(record_type, view[start:end], position), end


def _decode_value(record_type: int, value: memoryview, position: int) -> Record:
    timestamp_ns: int | None = None
    key: memoryview | None = None
    if record_type in _TIMED:
        if len(value) < _TIMESTAMP.size:
            raise RecordError("too short for its timestamp", position)
        (timestamp_ns,) = _TIMESTAMP.unpack_from(value)
        value = value[_TIMESTAMP.size :]
    if record_type in _KEYED:
        if len(value) < _KEY_LENGTH.size:
            raise RecordError("too short for its key's length", position)
        (key_length,) = _KEY_LENGTH.unpack_from(value)
        value = value[_KEY_LENGTH.size :]
        if key_length > len(value):
            raise RecordError(f"too short for a key of {key_length} bytes", position)
        key, value = value[:key_length], value[key_length:]
    return Record(record_type, value, key, timestamp_ns)


def decode_records(data: Buffer, position: int = 0) -> Iterator[Record]:
    """Read records from `position` to the end of the buffer.

    Raises:
        RecordError: at the first record that is malformed or cut off.
    """
    size = memoryview(data).nbytes
    while position < size:
        record, position = decode_record(data, position)
        yield record
