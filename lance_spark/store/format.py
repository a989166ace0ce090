"""The bytes of an index file, as pure functions. No file is touched here.

An index stands beside each segment. It has a header of 128 bytes and rows of 48.

Header
     0        8       12      16       24       32       40       48       56   60   64
    +--------+-------+-------+--------+--------+--------+--------+--------+----+----+
    | magic  |version| topic |segment | base   | base   | time   |start_ns|lazy|crc |
    |LSINDEX0| u32   | u32   | number | offset | record | floor  |        |u32 |u32 |
    +--------+-------+-------+--------+--------+--------+--------+--------+----+----+
     64       72       80      84  88      96                                     128
    +--------+--------+-------+---+-------+-----------------------------------------+
    |position| rows   | count |crc| 0     |  the second mark, same form             |
    +--------+--------+-------+---+-------+-----------------------------------------+

The two marks say up to where data and index are known to be durable. They are written
in turn, and only after a sync has returned: a mark that can be read never promises too
much, and the other one is whole if the last write of a mark was torn. A lazy segment is
written without syncs (`fsync=none`): there, each row that is whole promises its batch.

Row
     0        8        16       24      28      32      36    38    40     44     48
    +--------+--------+--------+-------+-------+-------+-----+-----+------+------+
    |position| record |append  |length |records| data  |kind |inner| 0    |row   |
    | u64    | u64    |ns u64  | u32   | u32   | crc   | u16 | u16 | u32  |crc   |
    +--------+--------+--------+-------+-------+-------+-----+-----+------+------+

Positions and record numbers count from the segment's own start: a stage becomes a
segment by a new header, its rows stay as they are. The time of a row is never taken to
be before the header's time floor, for the same reason.

A BATCH row stands for one appended batch and is followed by `inner` INNER rows, one for
the first record boundary behind each stride. An INNER row's length reaches to the end
of its batch, its records count those left in it, its data crc is 0. A LOST row covers
bytes that could not be framed; it is only made when an index is rebuilt. Its records
are how many these bytes held, 0 if nothing tells.

Kind 0 is no row, so that a hole of zeros is never mistaken for one.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lance_spark.checksum import crc32c

MAGIC = b"LSINDEX0"
VERSION = 1
HEADER_BYTES = 128
ROW_BYTES = 48

_HEADER = struct.Struct("<8sIIQQQQQII")
_MARK = struct.Struct("<QQII8x")
_MARK_POSITIONS = (64, 96)
_ROW_CHECKED_BYTES = ROW_BYTES - 4

assert _HEADER.size == _MARK_POSITIONS[0]
assert _MARK_POSITIONS[1] + _MARK.size == HEADER_BYTES

ROW = np.dtype(
    [
        ("position", "<u8"),
        ("record", "<u8"),
        ("append_ns", "<u8"),
        ("length", "<u4"),
        ("records", "<u4"),
        ("data_crc", "<u4"),
        ("kind", "<u2"),
        ("inner", "<u2"),
        ("zero", "<u4"),
        ("row_crc", "<u4"),
    ]
)
assert ROW.itemsize == ROW_BYTES

Rows = NDArray[np.void]


class Kind(IntEnum):
    """What an index row stands for."""

    BATCH = 1
    INNER = 2
    LOST = 3


class SegmentName(NamedTuple):
    """The parts of `{number}_{start_ns}`, which data and index file share."""

    number: int
    start_ns: int

    @property
    def data_file(self) -> str:
        """Name of the data file."""
        return f"{self.number}_{self.start_ns}.lnc"

    @property
    def index_file(self) -> str:
        """Name of the index file."""
        return f"{self.number}_{self.start_ns}.idx"


_NAME = re.compile(r"([0-9]{1,19})_([0-9]{1,20})\.(lnc|idx)")


def parse_segment_name(name: str) -> tuple[SegmentName, str] | None:
    """Split a file name into its parts and its ending; None if it is another file."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    return SegmentName(int(match[1]), int(match[2])), match[3]


@dataclass(frozen=True, slots=True)
class IndexMark:
    """Up to where a segment is known to be durable."""

    position: int = 0
    rows: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """What an index says of its segment.

    Args:
        topic: id of the topic or stage.
        name: number and start time, as in the file's name.
        base_offset: offset of the segment's first byte in the topic.
        base_record: number of the segment's first record in the topic.
        time_floor_ns: no row of this segment counts as older.
        lazy: batches are acknowledged as soon as their rows are written.
    """

    topic: int
    name: SegmentName
    base_offset: int
    base_record: int
    time_floor_ns: int = 0
    lazy: bool = False


def encode_header(header: IndexHeader, mark: IndexMark) -> bytes:
    """Encode a header with its first mark; the second one is left empty."""
    fixed = _HEADER.pack(
        MAGIC,
        VERSION,
        header.topic,
        header.name.number,
        header.base_offset,
        header.base_record,
        header.time_floor_ns,
        header.name.start_ns,
        int(header.lazy),
        0,
    )
    checked = fixed[:-4]
    head = checked + struct.pack("<I", crc32c(checked)) + encode_mark(mark)
    return head.ljust(HEADER_BYTES, b"\0")


def decode_header(
    data: bytes, of: tuple[int, SegmentName] | None = None
) -> IndexHeader | str:
    """Decode a header, or say what is wrong with it.

    Args:
        data: the start of an index.
        of: the topic and the name of its segment, where they are known.
    """
    if len(data) < HEADER_BYTES:
        return f"header has {len(data)} of {HEADER_BYTES} bytes"
    fields = _HEADER.unpack_from(data)
    magic, version, topic, number, offset, record, floor, start_ns, lazy, crc = fields
    if magic != MAGIC:
        return "not an index file"
    if version != VERSION:
        return f"version {version} is not supported"
    if crc != crc32c(data[: _HEADER.size - 4]):
        return "header checksum differs"
    name = SegmentName(number, start_ns)
    if of is not None and of != (topic, name):
        return "it belongs to other data"
    return IndexHeader(topic, name, offset, record, floor, bool(lazy))


def encode_mark(mark: IndexMark) -> bytes:
    """Encode a mark with its checksum."""
    crc = crc32c(struct.pack("<QQI", mark.position, mark.rows, mark.count))
    return _MARK.pack(mark.position, mark.rows, mark.count, crc)


def mark_position(count: int) -> int:
    """Tell where in the header the mark with that count is written."""
    return _MARK_POSITIONS[count % 2]


def decode_mark(header: bytes) -> IndexMark:
    """Take the newest whole mark of a header; an empty one if there is none."""
    marks = [mark for mark in _decode_marks(header) if mark is not None]
    return max(marks, key=lambda mark: mark.count, default=IndexMark())


def has_lost_mark(header: bytes) -> bool:
    """Tell whether a mark that was there can't be read: it may have been the newest.

    An index is made with a first mark of count 0 and none beside it.
    """
    first, second = _decode_marks(header)
    if first is None or second is not None:
        return first is None
    return first.count > 0 or any(header[_MARK_POSITIONS[1] : HEADER_BYTES])


def _decode_marks(header: bytes) -> list[IndexMark | None]:
    marks: list[IndexMark | None] = []
    for at in _MARK_POSITIONS:
        position, rows, count, crc = _MARK.unpack_from(header, at)
        whole = crc == crc32c(struct.pack("<QQI", position, rows, count))
        marks.append(IndexMark(position, rows, count) if whole else None)
    return marks


def encode_batch_row(
    position: int, record: int, append_ns: int, length: int, records: int, data_crc: int
) -> bytes:
    """Encode the one row of a batch that needs no inner rows."""
    batch = (position, record, append_ns, length, records, data_crc)
    return _encode_row(*batch, _BATCH, 0, 0)


def _encode_row(*fields: int) -> bytes:
    row = _ROW_CHECKED.pack(*fields)
    return row + _ROW_CRC.pack(crc32c(row))


_ROW_CHECKED = struct.Struct("<QQQIIIHHI")
_ROW_CRC = struct.Struct("<I")
assert _ROW_CHECKED.size == _ROW_CHECKED_BYTES
# Plain integers, which pack faster than members of an enumeration.
_BATCH, _INNER = int(Kind.BATCH), int(Kind.INNER)


# A batch has about so many inner rows at the most. More would make a large append
# slower than they make any read faster: a piece of a batch is scanned in microseconds.
INNER_ROWS = 16


def make_batch_rows(
    position: int,
    record: int,
    append_ns: int,
    length: int,
    starts: NDArray[np.int64],
    data_crc: int,
    stride: int,
) -> bytes:
    """Encode the rows of a batch: its own, and one behind each stride inside it."""
    count = len(starts)
    batch = (position, record, append_ns, length, count, data_crc)
    if length <= stride:
        return encode_batch_row(*batch)
    stride = max(stride, length // INNER_ROWS)
    # They are few: one by one they are made faster than as an array.
    wanted = np.searchsorted(starts, np.arange(stride, length, stride)).tolist()
    inner = {number: int(starts[number]) for number in wanted if number < count}
    rows = [
        _encode_row(
            position + start,
            record + number,
            append_ns,
            length - start,
            count - number,
            *(0, _INNER, 0, 0),
        )
        for number, start in inner.items()
    ]
    return b"".join([_encode_row(*batch, _BATCH, len(rows), 0), *rows])


def seal_rows(rows: Rows) -> bytes:
    """Set the checksum of each row and give the rows' bytes."""
    rows["row_crc"] = _row_checksums(rows)
    return rows.tobytes()


def decode_rows(data: bytes) -> Rows:
    """View bytes as rows, leaving out a last one that is not whole."""
    return np.frombuffer(data, ROW, len(data) // ROW_BYTES)


def valid_rows(rows: Rows) -> NDArray[np.bool_]:
    """Tell which rows are as they were written."""
    known = (rows["kind"] >= Kind.BATCH) & (rows["kind"] <= Kind.LOST)
    valid: NDArray[np.bool_] = known & (rows["row_crc"] == _row_checksums(rows))
    return valid


# Up to this many rows are quicker one by one than through the tables below.
_FEW_ROWS = 256


@cache
def _checksum_tables() -> NDArray[np.uint32]:
    # A CRC is linear: the checksum of a row is the exclusive or of what each of its
    # bytes contributes at its place, so that all rows are done at once.
    tables = np.zeros((_ROW_CHECKED_BYTES, 256), np.uint32)
    empty = crc32c(bytes(_ROW_CHECKED_BYTES))
    for place in range(_ROW_CHECKED_BYTES):
        behind = bytes(_ROW_CHECKED_BYTES - place - 1)
        for value in range(256):
            row = bytes(place) + bytes((value,)) + behind
            tables[place, value] = crc32c(row) ^ empty
    return tables


def _row_checksums(rows: Rows) -> NDArray[np.uint32]:
    if len(rows) <= _FEW_ROWS:
        data = rows.tobytes()
        starts = range(0, len(data), ROW_BYTES)
        sums = [crc32c(data[at : at + _ROW_CHECKED_BYTES]) for at in starts]
        return np.array(sums, np.uint32)
    flat = np.ascontiguousarray(rows).view(np.uint8).reshape(-1, ROW_BYTES)
    total = np.full(len(rows), crc32c(bytes(_ROW_CHECKED_BYTES)), np.uint32)
    for table, column in zip(_checksum_tables(), flat.T, strict=False):
        total ^= table[column]
    checksums: NDArray[np.uint32] = total
    return checksums
