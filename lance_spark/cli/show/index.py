"""An index: its header, its two marks, its rows."""

from __future__ import annotations

from collections.abc import Iterator

from lance_spark.cli.show.source import Selection, Source, print_rest
from lance_spark.cli.text import count, format_time, print_table
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW_BYTES,
    Kind,
    decode_header,
    decode_mark,
    decode_rows,
    mark_position,
    valid_rows,
)
from lance_spark.store.format import (
    IndexHeader as Header,
)
from lance_spark.store.format import (
    IndexMark as Mark,
)

_WINDOW_ROWS = 4096
_MARK_BYTES = HEADER_BYTES - mark_position(1)

_TITLES = ("row", "kind", "offset", "record", "length", "records", "crc", "appended")
_RIGHT = ("row", "offset", "record", "length", "records")

_KINDS = {int(kind): kind.name for kind in Kind}


def show_index(source: Source, selection: Selection) -> None:
    """Print an index.

    Raises:
        LanceError: where it is damaged or cut off.
    """
    head = source.read(0, HEADER_BYTES)
    header = decode_header(head)
    if isinstance(header, str):
        raise source.error(f"{header} (byte 0)")
    rows = (source.size - HEADER_BYTES) // ROW_BYTES
    _show_header(header, head, rows)
    damaged: list[int] = []
    table = _rows(source, selection, header, damaged)
    print_table(_TITLES, table, right=_RIGHT)
    print_rest(selection, "rows", more=rows > selection.end)
    if damaged:
        at = HEADER_BYTES + damaged[0] * ROW_BYTES
        found = count(len(damaged), "damaged row")
        raise source.error(f"{found}, the first is row {damaged[0]} at byte {at}")
    rest = (source.size - HEADER_BYTES) % ROW_BYTES
    if rest and rows < selection.end:
        text = (
            f"the last row is cut off, {rest} of {count(ROW_BYTES, 'byte')} are there"
        )
        raise source.error(f"{text}, at byte {source.size - rest}")


def _show_header(header: Header, head: bytes, rows: int) -> None:
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


def _decode_one_mark(head: bytes, number: int) -> Mark:
    """Decode one of the two marks, by blanking the other one: zeros are no mark."""
    other = mark_position(1 - number)
    blank = head[:other] + bytes(_MARK_BYTES) + head[other + _MARK_BYTES :]
    return decode_mark(blank)


def _rows(
    source: Source, selection: Selection, header: Header, damaged: list[int]
) -> Iterator[tuple[str, ...]]:
    """Give the rows as text, and note the numbers of those that are damaged."""
    for first in range(selection.skip, selection.end, _WINDOW_ROWS):
        wanted = min(_WINDOW_ROWS, selection.end - first)
        position = HEADER_BYTES + first * ROW_BYTES
        rows = decode_rows(source.read(position, wanted * ROW_BYTES))
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
