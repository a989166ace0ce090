"""Files of a store, as `inspect` prints them: segments, indexes, and the small ones.

Each function shows what it can, and raises a `LanceError` with the position of the byte
where it can't go on. None reads a large file as a whole.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from lance_spark.cli.display import (
    Row,
    count,
    format_json,
    format_time,
    print_table,
)
from lance_spark.errors import LanceError, RecordError, StoreError
from lance_spark.model import Buffer
from lance_spark.store import consumers, document, journal, stage, topic
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
from lance_spark.wire import lwp

# Files that are read as a whole, such as the journal, are a few MiB long. Anything
# much larger is something else.
WHOLE_BYTES_MAX = 256 * 1024 * 1024
# About what is left of a line of 120 characters beside the other columns.
SHOWN_CHARACTERS = 48


@dataclass(frozen=True, slots=True)
class Selection:
    """Which items of a file are shown, and how.

    Args:
        skip: how many are passed over first.
        limit: how many are shown then.
        full: show all of a value, and not only what fits a line.
        as_hex: show all bytes as hexadecimal digits, text too.
    """

    skip: int = 0
    limit: int = 50
    full: bool = False
    as_hex: bool = False

    @property
    def end(self) -> int:
        """Number of the first item that is not shown any more."""
        return self.skip + self.limit

    def show_bytes(self, value: Buffer) -> str:
        """Write bytes: as quoted text if they are text, else as hexadecimal digits."""
        view = memoryview(value).cast("B")
        # No character of UTF-8 is longer than four bytes.
        head = bytes(view if self.full else view[: 4 * SHOWN_CHARACTERS])
        whole = len(head) == len(view)
        text = None if self.as_hex else _decode_text(head, whole=whole)
        return self.show_text(head.hex() if text is None else repr(text), whole=whole)

    def show_text(self, text: str, *, whole: bool = True) -> str:
        """Write text as it is; more of it follows if it is not the whole."""
        if whole and (self.full or len(text) <= SHOWN_CHARACTERS):
            return text
        return text[: SHOWN_CHARACTERS - 1] + "…"


def _decode_text(head: bytes, *, whole: bool) -> str | None:
    """Decode the head of a value; None if it is no text.

    Where the value goes on, the head may end inside a character.
    """
    for missing in range(1 if whole else 4):
        try:
            text = head[: len(head) - missing].decode()
        except UnicodeDecodeError:
            continue
        return text if text.translate(_SPACES).isprintable() else None
    return None


_SPACES = dict.fromkeys(map(ord, "\t\n\r"))


class InspectedFile:
    """An open file of which parts can be read; made by `open_file`."""

    def __init__(self, path: Path, opened: BinaryIO) -> None:
        self.path = path
        self._opened = opened
        self.size = os.fstat(opened.fileno()).st_size

    def read(self, position: int, length: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""
        self._opened.seek(position)
        return self._opened.read(length)

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
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise LanceError(f"{path}: a directory; `lance-spark check` reads stores")
        if not stat.S_ISREG(mode):
            raise LanceError(f"{path}: not a regular file")
        opened = path.open("rb")
    except OSError as error:
        raise LanceError(f"{path}: {error.strerror}") from error
    with opened:
        yield InspectedFile(path, opened)


_Item = TypeVar("_Item")


def print_items(
    items: Iterator[_Item],
    noun: str,
    selection: Selection,
    show: Callable[[_Item], Row],
) -> None:
    """Print a table of the selected items, and how to see those behind them.

    Args:
        items: all items of a file. An error that comes out of it passes after the items
            before it are printed, unless none behind them was asked for.
        noun: what they are.
        selection: which of them are shown.
        show: writes the row of an item.
    """
    print_table(map(show, islice(items, selection.skip, selection.end)))
    try:
        more = next(items, None) is not None
    except LanceError:
        more = True
    if more:
        print(f"… more {noun} follow: --skip {selection.end}")


def show_journal(file: InspectedFile, selection: Selection) -> None:
    """Print the entries of a journal.

    Raises:
        LanceError: where something is no entry.
    """
    parsed = journal.parse_journal(file.read_whole())
    if parsed.lost is not None:
        raise file.error(f"{parsed.lost} (byte 0)")
    entries = count(len(parsed.entries), "entry")
    print(f"journal of {count(file.size, 'byte')}, {entries}")

    def show(item: tuple[int, dict[str, Any]]) -> Row:
        number, entry = item
        rest = {k: v for k, v in entry.items() if k != "kind"}
        text = selection.show_text(format_json(rest))
        return {"entry": number, "kind": str(entry.get("kind")), "content": text}

    print_items(enumerate(parsed.entries), "entries", selection, show)
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
    parsed = consumers.parse_consumers(file.read_whole())
    if parsed.lost is not None:
        raise file.error(f"{parsed.lost} (byte 0)")
    offsets = count(len(parsed.offsets), "offset")
    print(f"consumer offsets: {offsets} in {parsed.entries} entries")
    rows: Iterator[Row] = (
        {"consumer": key.consumer, "topic": key.topic, "offset": offset}
        for key, offset in sorted(parsed.offsets.items())
    )
    print_items(rows, "offsets", selection, lambda row: row)
    for fault in parsed.faults:
        raise file.error(f"{fault} (byte 0)")
    if parsed.damaged:
        found = count(len(parsed.damaged), "damaged entry")
        raise file.error(f"{found}, the first at byte {parsed.damaged[0][0]}")
    if parsed.torn is not None:
        raise file.error(f"the last entry is cut off at byte {parsed.torn}")


# The JSON files of a store by a key that only they have: what they are, their decoder.
_DOCUMENTS: dict[str, tuple[str, Callable[[bytes], Any] | None]] = {
    "log_start": ("metadata of a topic", topic.decode_topic),
    "opened_ns": ("metadata of a stage", stage.decode_stage),
    "next_topic": ("identity of a store", document.decode_document),
}


def show_document(file: InspectedFile, selection: Selection) -> None:
    """Print a JSON file.

    Raises:
        LanceError: it is not JSON, or not what its keys say.
    """
    data = file.read_whole()
    try:
        text = data.decode()
        content = json.loads(text)
    except UnicodeDecodeError as error:
        raise file.error(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        position = len(text[: error.pos].encode())
        raise file.error(f"not JSON at byte {position}: {error.msg}") from error
    keys = content if isinstance(content, dict) else {}
    known = [entry for key, entry in _DOCUMENTS.items() if key in keys]
    name, decode = known[0] if known else ("JSON", None)
    print(f"{name}, {count(len(data), 'byte')}")
    lines = json.dumps(content, indent=2).splitlines()
    print("\n".join(lines[selection.skip : selection.end]))
    if len(lines) > selection.end:
        print(f"… more lines follow: --skip {selection.end}")
    if decode is not None:
        try:
            decode(data)
        except StoreError as error:
            raise file.error(str(error)) from error


_WINDOW_BYTES = 1024 * 1024
_RECORD_BYTES_MAX = lwp.RECORD_HEADER_BYTES + lwp.RECORD_VALUE_BYTES_MAX

_NAMES = {int(member): member.name for member in lwp.RecordType}


class FoundRecord(NamedTuple):
    """A record of a segment that is not decoded yet.

    Args:
        number: of the record in the file.
        data: a piece of the file with the whole record.
        position: where the piece starts in the file.
        start: where the record starts in the piece.
    """

    number: int
    data: bytes
    position: int
    start: int


def show_segment(file: InspectedFile, selection: Selection) -> None:
    """Print the records of a segment.

    Raises:
        LanceError: at the first byte that is no record.
    """
    base_offset, base_record, text = _find_base(file)
    print(f"segment of {count(file.size, 'byte')}, {text}")

    def show(found: FoundRecord) -> Row:
        try:
            record, end = lwp.decode_record(found.data, found.start)
        except RecordError as error:
            raise _record_error(file, base_offset, found.position, error) from None
        key, stamp = record.key, record.timestamp_ns
        is_null = record.type == lwp.RecordType.NULL
        return {
            "record": base_record + found.number,
            "offset": base_offset + found.position + found.start,
            "type": name_type(record.type),
            "length": end - found.start - lwp.RECORD_HEADER_BYTES,
            "key": None if key is None else selection.show_bytes(key),
            "timestamp": None if stamp is None else format_time(stamp),
            "value": None if is_null else selection.show_bytes(record.value),
        }

    print_items(_find_records(file, base_offset), "records", selection, show)


def name_type(record_type: int) -> str:
    """Name a record type."""
    if record_type in _NAMES:
        return _NAMES[record_type]
    return f"{'user' if record_type >= 0x80 else 'type'} 0x{record_type:02X}"


def _find_records(file: InspectedFile, base_offset: int) -> Iterator[FoundRecord]:
    """Scan a file piece by piece."""
    position = number = 0
    size = _WINDOW_BYTES
    while data := file.read(position, size):
        found = lwp.scan(data)
        fault = found.fault
        if fault is not None and fault.truncated and len(data) == size:
            fault = None  # The file goes on behind the window.
            if not len(found.starts):
                size = _RECORD_BYTES_MAX  # One record that is larger than a window.
                continue
        for start in found.starts.tolist():
            yield FoundRecord(number, data, position, start)
            number += 1
        if fault is not None:
            raise _record_error(file, base_offset, position, fault)
        position, size = position + found.end, _WINDOW_BYTES


def _record_error(
    file: InspectedFile, base_offset: int, position: int, error: RecordError
) -> LanceError:
    """Tell of a malformed record in the piece of a file at a position."""
    position += error.position
    text = str(RecordError(error.reason, position))
    if base_offset:
        text += f" (offset {base_offset + position})"
    return file.error(text)


def _find_base(file: InspectedFile) -> tuple[int, int, str]:
    """Find the offset and number of a segment's first record; say how it is known."""
    parsed = parse_segment_name(file.path.name)
    if parsed is None:
        return 0, 0, "offsets count from the file's start"
    index = file.path.with_name(parsed[0].index_file)
    try:
        with open_file(index) as opened:
            header = decode_header(opened.read(0, HEADER_BYTES))
    except LanceError:
        header = "missing"
    if isinstance(header, str):
        return 0, 0, f"offsets count from the file's start: index {header}"
    text = f"topic {header.topic}, offsets from {header.base_offset} on"
    return header.base_offset, header.base_record, text


def is_record(head: Buffer) -> bool:
    """Tell whether bytes can be the start of a segment."""
    found = lwp.scan(head)
    return len(found.starts) > 0 or (found.fault is not None and found.fault.truncated)


_WINDOW_ROWS = 4096
_MARK_BYTES = HEADER_BYTES - mark_position(1)

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

    def show(item: tuple[int, Any, bool]) -> Row:
        number, row, sound = item
        if not sound:
            damaged.append(number)
        kind = _KINDS.get(int(row["kind"]), f"kind {row['kind']}")
        return {
            "row": number,
            "kind": kind if sound else f"{kind} DAMAGED",
            "offset": header.base_offset + int(row["position"]),
            "record": header.base_record + int(row["record"]),
            "length": int(row["length"]),
            "records": int(row["records"]),
            "crc": f"{row['data_crc']:08x}" if row["kind"] == Kind.BATCH else None,
            "appended": format_time(int(row["append_ns"])),
        }

    print_items(_read_rows(file), "rows", selection, show)
    if damaged:
        at = HEADER_BYTES + damaged[0] * ROW_BYTES
        found = count(len(damaged), "damaged row")
        raise file.error(f"{found}, the first is row {damaged[0]} at byte {at}")
    rest = (file.size - HEADER_BYTES) % ROW_BYTES
    if rest and rows < selection.end:
        there = f"{rest} of {count(ROW_BYTES, 'byte')} are there"
        at = file.size - rest
        raise file.error(f"the last row is cut off, {there}, at byte {at}")


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


def _read_rows(file: InspectedFile) -> Iterator[tuple[int, Any, bool]]:
    """Give the rows of an index: number, content, and whether it is sound."""
    size, number = _WINDOW_ROWS * ROW_BYTES, 0
    while len(rows := decode_rows(file.read(HEADER_BYTES + number * ROW_BYTES, size))):
        yield from zip(itertools.count(number), rows, valid_rows(rows), strict=False)
        number += len(rows)
