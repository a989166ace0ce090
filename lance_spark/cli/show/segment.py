"""A segment: TLV records, read in windows.

Offsets are those of the topic where the segment's index is beside it, and count from
the file's start where it is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lance_spark.cli.show.source import Selection, Source, open_source, print_rest
from lance_spark.cli.text import count, format_time, print_table
from lance_spark.columnar.scan import scan
from lance_spark.errors import LanceError, RecordError
from lance_spark.model import (
    RECORD_HEADER_BYTES,
    RECORD_VALUE_BYTES_MAX,
    Buffer,
    RecordType,
    Scan,
)
from lance_spark.store.format import HEADER_BYTES, decode_header, parse_segment_name
from lance_spark.wire.lwp import decode_record

_WINDOW_BYTES = 1024 * 1024
_RECORD_BYTES_MAX = RECORD_HEADER_BYTES + RECORD_VALUE_BYTES_MAX

_TITLES = ("record", "offset", "type", "length", "key", "timestamp", "value")
_RIGHT = ("record", "offset", "length")

_NAMES = {int(member): member.name for member in RecordType}


class Base(NamedTuple):
    """Where a segment starts in its topic, and how that is known."""

    offset: int
    record: int
    text: str


class _Window(NamedTuple):
    position: int
    data: bytes
    found: Scan
    first: int  # Number of the first record of the window in the file.


def show_segment(source: Source, selection: Selection) -> None:
    """Print the records of a segment.

    Raises:
        LanceError: at the first byte that is no record.
    """
    walk = _Walk(source, selection, _find_base(source))
    print(f"segment of {count(source.size, 'byte')}, {walk.base.text}")
    print_table(_TITLES, walk.rows(), right=_RIGHT)
    print_rest(selection, "records", more=walk.more)


def name_type(record_type: int) -> str:
    """Name a record type."""
    if record_type in _NAMES:
        return _NAMES[record_type]
    return f"{'user' if record_type >= 0x80 else 'type'} 0x{record_type:02X}"


class _Walk:
    """Goes over the records; `more` says afterwards whether some are left."""

    def __init__(self, source: Source, selection: Selection, base: Base) -> None:
        self.base = base
        self.more = False
        self._source = source
        self._selection = selection

    def rows(self) -> Iterator[tuple[str, ...]]:
        for window in _windows(self._source):
            first = max(0, self._selection.skip - window.first)
            last = self._selection.end - window.first
            starts = window.found.starts
            for number, start in enumerate(starts[first:last].tolist(), first):
                yield self._row(window, number, start)
            if last <= len(starts):
                left = self._source.size - window.position - window.found.end
                self.more = last < len(starts) or left > 0
                return
            if window.found.fault is not None:
                raise self._error(window, window.found.fault)

    def _row(self, window: _Window, number: int, start: int) -> tuple[str, ...]:
        try:
            record, end = decode_record(window.data, start)
        except RecordError as error:
            raise self._error(window, error) from None
        key, stamp, show = record.key, record.timestamp_ns, self._selection.preview
        is_null = record.type == RecordType.NULL
        return (
            f"{self.base.record + window.first + number}",
            f"{self.base.offset + window.position + start}",
            name_type(record.type),
            f"{end - start - RECORD_HEADER_BYTES}",
            "-" if key is None else show.show_bytes(key),
            "-" if stamp is None else format_time(stamp),
            "-" if is_null else show.show_bytes(record.value),
        )

    def _error(self, window: _Window, error: RecordError) -> LanceError:
        position = window.position + error.position
        text = str(RecordError(error.reason, position))
        if self.base.offset:
            text += f" (offset {self.base.offset + position})"
        return self._source.error(text)


def _windows(source: Source) -> Iterator[_Window]:
    """Scan a file piece by piece; a fault is only in the last piece."""
    position = number = 0
    size = _WINDOW_BYTES
    while data := source.read(position, size):
        found = scan(data)
        cut = found.fault is not None and found.fault.truncated
        if cut and len(data) == size and not len(found.starts):
            size = _RECORD_BYTES_MAX  # One record that is larger than a window.
            continue
        if cut and len(data) == size:
            found = Scan(found.starts, found.end)
        yield _Window(position, data, found, number)
        if found.fault is not None:
            return
        position, number = position + found.end, number + len(found.starts)
        size = _WINDOW_BYTES


def _find_base(source: Source) -> Base:
    parsed = parse_segment_name(source.path.name)
    if parsed is None:
        return Base(0, 0, "offsets count from the file's start")
    index = source.path.with_name(parsed[0].index_file)
    try:
        with open_source(index) as opened:
            header = decode_header(opened.read(0, HEADER_BYTES))
    except LanceError:
        header = "missing"
    if isinstance(header, str):
        return Base(0, 0, f"offsets count from the file's start: index {header}")
    text = f"topic {header.topic}, offsets from {header.base_offset} on"
    return Base(header.base_offset, header.base_record, text)


def is_record(head: Buffer) -> bool:
    """Tell whether bytes can be the start of a segment."""
    found = scan(head)
    return len(found.starts) > 0 or (found.fault is not None and found.fault.truncated)
