"""Files of a store, as `inspect` prints them: segments, indexes, and the small ones.

Each function shows what it can, and raises a `LanceError` with the position of the byte
where it can't go on. None reads a large file as a whole.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lance_spark.cli.display import (
    Preview,
    count,
    format_json,
    format_time,
    print_table,
)
from lance_spark.errors import LanceError, RecordError, StoreError
from lance_spark.model import Buffer, Scan
from lance_spark.store.consumers import parse_consumers
from lance_spark.store.document import decode_document
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW_BYTES,
    IndexHeader,
    IndexMark,
    Kind,
    decode_header,
    decode_mark,
    decode_rows,
    mark_position,
    parse_segment_name,
    valid_rows,
)
from lance_spark.store.journal import parse_journal
from lance_spark.store.stage import decode_stage
from lance_spark.store.topic import decode_topic
from lance_spark.wire.lwp import (
    RECORD_HEADER_BYTES,
    RECORD_VALUE_BYTES_MAX,
    RecordType,
    decode_record,
    scan,
)

# Files that are read as a whole, such as the journal, are a few MiB long. Anything
# much larger is something else.
WHOLE_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Selection:
    """Which items of a file are shown, and how.

    Args:
        skip: how many are passed over first.
        limit: how many are shown then.
        preview: writes the values.
    """

    skip: int
    limit: int
    preview: Preview

    @property
    def end(self) -> int:
        """Number of the first item that is not shown any more."""
        return self.skip + self.limit


class InspectedFile:
    """An open file of which parts can be read; made by `open_file`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size

    def read(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""
        parts = []
        while length and (data := os.pread(self._descriptor, length, position)):
            parts.append(data)
            position, length = position + len(data), length - len(data)
        return b"".join(parts)

    def read_whole(self) -> bytes:
        """Read the file, which must be a small one."""
        if self.size > WHOLE_BYTES_MAX:
            raise self.error(f"{count(self.size, 'byte')} are too many for such a file")
        return self.read(0, self.size)

    def error(self, text: str) -> LanceError:
        """Make the error that ends the showing of this file."""
        return LanceError(f"{self.path}: {text}")


@contextmanager
def open_file(path: Path) -> Iterator[InspectedFile]:
    """Open a file for reading.

    Raises:
        LanceError: it can't be opened or read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise LanceError(f"{path}: {error.strerror}") from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise LanceError(f"{path}: a directory; `lance-spark check` reads stores")
        if not stat.S_ISREG(mode):
            raise LanceError(f"{path}: not a regular file")
        yield InspectedFile(path, descriptor)
    finally:
        os.close(descriptor)


def print_rest(selection: Selection, noun: str, *, more: bool) -> None:
    """Tell how to see what was not shown, if anything was not."""
    if more:
        print(f"… more {noun} follow: --skip {selection.end}")


def show_journal(file: InspectedFile, selection: Selection) -> None:
    """Print the entries of a journal.

    Raises:
        LanceError: where something is no entry.
    """
    parsed = parse_journal(file.read_whole())
    if parsed.lost is not None:
        raise file.error(f"{parsed.lost} (byte 0)")
    entries = parsed.entries
    print(f"journal of {count(file.size, 'byte')}, {count(len(entries), 'entry')}")

    def rows() -> Iterator[tuple[str, ...]]:
        shown = entries[selection.skip : selection.end]
        for number, entry in enumerate(shown, selection.skip):
            rest = {k: v for k, v in entry.items() if k != "kind"}
            text = selection.preview.show_text(format_json(rest))
            yield f"{number}", str(entry.get("kind")), text

    print_table(("entry", "kind", "content"), rows(), right=("entry",))
    print_rest(selection, "entries", more=len(entries) > selection.end)
    for fault in parsed.faults:
        raise file.error(f"{fault} (byte 0)")
    for start, end in parsed.damaged:
        raise file.error(f"no entry in the bytes [{start}, {end}) that is whole")
    if parsed.end < file.size:
        raise file.error(f"an entry is not finished at byte {parsed.end}")


def show_consumers(file: InspectedFile, selection: Selection) -> None:
    """Print committed offsets, the last one of each consumer and topic.

    Raises:
        LanceError: where an entry is damaged or cut off.
    """
    parsed = parse_consumers(file.read_whole())
    if parsed.lost is not None:
        raise file.error(f"{parsed.lost} (byte 0)")
    offsets = sorted(parsed.offsets.items())
    print(
        f"consumer offsets: {count(len(offsets), 'offset')} in {parsed.entries} entries"
    )
    rows = (
        (f"{key.consumer}", f"{key.topic}", f"{offset}")
        for key, offset in offsets[selection.skip : selection.end]
    )
    print_table(("consumer", "topic", "offset"), rows)
    print_rest(selection, "offsets", more=len(offsets) > selection.end)
    for fault in parsed.faults:
        raise file.error(f"{fault} (byte 0)")
    if parsed.damaged:
        found = count(len(parsed.damaged), "damaged entry")
        raise file.error(f"{found}, the first at byte {parsed.damaged[0][0]}")
    if parsed.torn is not None:
        raise file.error(f"the last entry is cut off at byte {parsed.torn}")


# The JSON files of a store by a key that only they have: what they are, their decoder.
_DOCUMENTS: dict[str, tuple[str, Callable[[bytes], Any] | None]] = {
    "log_start": ("metadata of a topic", decode_topic),
    "opened_ns": ("metadata of a stage", decode_stage),
    "next_topic": ("identity of a store", decode_document),
}


def show_document(file: InspectedFile, selection: Selection) -> None:
    """Print a JSON file.

    Raises:
        LanceError: it is not JSON, or not what its keys say.
    """
    data = file.read_whole()
    try:
        text = data.decode()
        document = json.loads(text)
    except UnicodeDecodeError as error:
        raise file.error(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        position = len(text[: error.pos].encode())
        raise file.error(f"not JSON at byte {position}: {error.msg}") from error
    keys = document if isinstance(document, dict) else {}
    known = [entry for key, entry in _DOCUMENTS.items() if key in keys]
    name, decode = known[0] if known else ("JSON", None)
    print(f"{name}, {count(len(data), 'byte')}")
    lines = json.dumps(document, indent=2).splitlines()
    print("\n".join(lines[selection.skip : selection.end]))
    print_rest(selection, "lines", more=len(lines) > selection.end)
    if decode is not None:
        try:
            decode(data)
        except StoreError as error:
            raise file.error(str(error)) from error


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


def show_segment(file: InspectedFile, selection: Selection) -> None:
    """Print the records of a segment.

    Raises:
        LanceError: at the first byte that is no record.
    """
    walk = _RecordRows(file, selection, _find_base(file))
    print(f"segment of {count(file.size, 'byte')}, {walk.base.text}")
    print_table(_TITLES, walk.rows(), right=_RIGHT)
    print_rest(selection, "records", more=walk.more)


def name_type(record_type: int) -> str:
    """Name a record type."""
    if record_type in _NAMES:
        return _NAMES[record_type]
    return f"{'user' if record_type >= 0x80 else 'type'} 0x{record_type:02X}"


class _RecordRows:
    """Goes over the records; `more` says afterwards whether some are left."""

    def __init__(self, file: InspectedFile, selection: Selection, base: Base) -> None:
        self.base = base
        self.more = False
        self._source = file
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


def _windows(file: InspectedFile) -> Iterator[_Window]:
    """Scan a file piece by piece; a fault is only in the last piece."""
    position = number = 0
    size = _WINDOW_BYTES
    while data := file.read(position, size):
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


def _find_base(file: InspectedFile) -> Base:
    parsed = parse_segment_name(file.path.name)
    if parsed is None:
        return Base(0, 0, "offsets count from the file's start")
    index = file.path.with_name(parsed[0].index_file)
    try:
        with open_file(index) as opened:
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


_WINDOW_ROWS = 4096
_MARK_BYTES = HEADER_BYTES - mark_position(1)

_ROW_HEAD = ("row", "kind", "offset", "record", "length", "records", "crc", "appended")
_ROW_RIGHT = ("row", "offset", "record", "length", "records")

_KINDS = {int(kind): kind.name for kind in Kind}


def show_index(file: InspectedFile, selection: Selection) -> None:
    """Print an index.

    Raises:
        LanceError: where it is damaged or cut off.
    """
    head = file.read(0, HEADER_BYTES)
    header = decode_header(head)
    if isinstance(header, str):
        raise file.error(f"{header} (byte 0)")
    rows = (file.size - HEADER_BYTES) // ROW_BYTES
    _show_header(header, head, rows)
    damaged: list[int] = []
    table = _rows(file, selection, header, damaged)
    print_table(_ROW_HEAD, table, right=_ROW_RIGHT)
    print_rest(selection, "rows", more=rows > selection.end)
    if damaged:
        at = HEADER_BYTES + damaged[0] * ROW_BYTES
        found = count(len(damaged), "damaged row")
        raise file.error(f"{found}, the first is row {damaged[0]} at byte {at}")
    rest = (file.size - HEADER_BYTES) % ROW_BYTES
    if rest and rows < selection.end:
        text = (
            f"the last row is cut off, {rest} of {count(ROW_BYTES, 'byte')} are there"
        )
        raise file.error(f"{text}, at byte {file.size - rest}")


def _show_header(header: IndexHeader, head: bytes, rows: int) -> None:
    name = header.name
    print(f"index of {name.data_file}, {count(rows, 'row')}")
    print(f"  topic        {header.topic}")
    print(f"  segment      {name.number}, started {format_time(name.start_ns)}")
    print(f"  base offset  {header.base_offset}")
    print(f"  base record  {header.base_record}")
    if header.time_floor_ns:
        print(f"  time floor   {format_time(header.time_floor_ns)}")
    if header.lazy:
        print("  written with fsync=none: each whole row is a promise")
    newest = decode_mark(head)
    for number in (0, 1):
        mark = _decode_one_mark(head, number)
        text = "empty or torn"
        if mark.count or mark.rows:
            text = f"durable up to position {mark.position}, {count(mark.rows, 'row')}"
            text += f" (written {count(mark.count, 'time')})" if mark.count else ""
            text += " <- counts" if mark == newest else ""
        print(f"  mark {number}       {text}")


def _decode_one_mark(head: bytes, number: int) -> IndexMark:
    """Decode one of the two marks, by blanking the other one: zeros are no mark."""
    other = mark_position(1 - number)
    blank = head[:other] + bytes(_MARK_BYTES) + head[other + _MARK_BYTES :]
    return decode_mark(blank)


def _rows(
    file: InspectedFile, selection: Selection, header: IndexHeader, damaged: list[int]
) -> Iterator[tuple[str, ...]]:
    """Give the rows as text, and note the numbers of those that are damaged."""
    for first in range(selection.skip, selection.end, _WINDOW_ROWS):
        wanted = min(_WINDOW_ROWS, selection.end - first)
        position = HEADER_BYTES + first * ROW_BYTES
        rows = decode_rows(file.read(position, wanted * ROW_BYTES))
        for number, (row, sound) in enumerate(zip(rows, valid_rows(rows), strict=True)):
            if not sound:
                damaged.append(first + number)
            kind = _KINDS.get(int(row["kind"]), f"kind {row['kind']}")
            yield (
                f"{first + number}",
                kind if sound else f"{kind} DAMAGED",
                f"{header.base_offset + int(row['position'])}",
                f"{header.base_record + int(row['record'])}",
                f"{row['length']}",
                f"{row['records']}",
                f"{row['data_crc']:08x}" if row["kind"] == Kind.BATCH else "-",
                format_time(int(row["append_ns"])),
            )
        if len(rows) < wanted:
            return
