"""The records of a topic, a page at a time: from a place on, or those that match.

Bytes become Arrow columns; only the rows of the page become Python objects. Bytes that
are no records, which a broker has that checks nothing, are shown as such and never
left out. A page works on one view of its log and takes no lock.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lance_spark.columnar.decode import decode
from lance_spark.errors import Corrupt, OptionError, OutOfRange, StorageError
from lance_spark.model import Buffer, Location
from lance_spark.store import View
from lance_spark.wire.lwp import RecordType

# A record, or a part of it, as the page gets it.
Shown = dict[str, Any]

# A page meets retention at most a few times in a row before it finds data.
_LOOKS_MAX = 10
LIMIT_DEFAULT = 50
LIMIT_MAX = 500
# Offsets, record numbers and times are below this.
_NUMBER_END = 2**63
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class Query:
    """Which records are asked for.

    Args:
        kind: what `value` is: `start`, `end`, `offset`, `record` or `time` (in ns).
        value: where to start.
        limit: how many records at most.
        key: only records with this key.
        search: only records with this in their key or value.
    """

    kind: str = "start"
    value: int = 0
    limit: int = LIMIT_DEFAULT
    key: bytes | None = None
    search: bytes | None = None

    @property
    def is_search(self) -> bool:
        """Whether records are picked."""
        return self.key is not None or self.search is not None


def parse_query(fields: Mapping[str, str]) -> Query:
    """Read the parameters of a request.

    Raises:
        OptionError: one of them can't be understood.
    """
    kind, value = _parse_from(fields.get("from") or "start")
    limit = _parse_number("limit", fields.get("limit") or str(LIMIT_DEFAULT))
    if not 1 <= limit <= LIMIT_MAX:
        raise OptionError(f"limit={limit}: must be from 1 to {LIMIT_MAX}")
    # Bytes of a URL that are no UTF-8 come as surrogates.
    key, search = (
        fields.get(name, "").encode("utf-8", "surrogateescape") or None
        for name in ("key", "search")
    )
    return Query(kind, value, limit, key, search)


def _parse_from(text: str) -> tuple[str, int]:
    if text in ("start", "end"):
        return text, 0
    kind, colon, value = text.partition(":")
    if colon and kind in ("offset", "record"):
        return kind, _parse_number(f"from={kind}", value)
    if colon and kind == "time":
        return kind, _parse_time_ns(value)
    raise OptionError(
        f"from={text[:80]!r}: must be start, end, offset:N, record:N or time:T"
    )


def _parse_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise OptionError(f"{name}: {text[:80]!r} is not a whole number")
    return min(int(text), _NUMBER_END - 1)


def _parse_time_ns(text: str) -> int:
    if text.isascii() and text.isdecimal():
        return min(_parse_number("from=time", text) * 1_000_000, _NUMBER_END - 1)
    try:
        # Python 3.10 does not know the Z.
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        # Whole microseconds: a float of seconds is not exact.
        micros = (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise OptionError(
            f"from=time: {text[:80]!r} is neither milliseconds since 1970 nor a time "
            "such as 2026-01-31T12:00:00Z"
        ) from None
    return min(max(0, micros * 1000), _NUMBER_END - 1)


TEXT_MAX = 4096
# A character has at most four bytes in UTF-8.
_PREFIX_BYTES = 4 * TEXT_MAX
# Longer ones are not looked through for whether they are JSON: they are cut anyway.
_JSON_BYTES_MAX = 64 * 1024
# Control characters apart from tab and line ends, and codes without a character.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")

# Bytes of a log that are no record, which only a broker that checks nothing has.
UNREADABLE = 0
_TYPE_NAMES = {
    **{int(kind): kind.name.lower().replace("_", "-") for kind in RecordType},
    int(RecordType.MESSAGE_PACK): "msgpack",
    UNREADABLE: "unreadable",
}


def name_type(number: int) -> str:
    """Give the name of a record type."""
    return _TYPE_NAMES.get(number, f"0x{number:02x}")


def make_cell(data: Buffer | None, *, may_be_text: bool = True) -> Shown | None:
    """Show bytes; None stays None.

    Args:
        data: the bytes, of any length. No more than a piece of them is copied.
        may_be_text: false shows hex in any case.
    """
    if data is None:
        return None
    view = memoryview(data).cast("B")
    size = len(view)
    text = _read_text(bytes(view[:_PREFIX_BYTES]), size) if may_be_text else None
    if text is None:
        kind, text = "hex", bytes(view[: TEXT_MAX // 2]).hex()
        truncated = size > TEXT_MAX // 2
    else:
        kind = "json" if _is_json(view) else "text"
        truncated = len(text) > TEXT_MAX or size > _PREFIX_BYTES
    return {"kind": kind, "text": text[:TEXT_MAX], "size": size, "truncated": truncated}


def _read_text(prefix: bytes, size: int) -> str | None:
    """Decode the start of a value; None if it is not what people write."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        # The prefix may end inside a character, the value may not.
        text = decoder.decode(prefix, final=len(prefix) == size)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def _is_json(view: memoryview) -> bool:
    # A bare number or word is JSON as well, but is not meant as such.
    starts = bytes(view[:256]).lstrip().startswith((b"{", b"["))
    if not starts or len(view) > _JSON_BYTES_MAX:
        return False
    try:
        json.loads(bytes(view))
    except (ValueError, RecursionError):
        return False
    return True


# How much a search goes through, and a page reads, before it tells where to go on.
SCAN_BYTES_MAX = 64 * 1024 * 1024
PAGE_BYTES_MAX = 16 * 1024 * 1024
_CHUNK_BYTES = 4 * 1024 * 1024
_CHUNK_BYTES_MIN = 64 * 1024
# There are more only where most of a log is no records.
_CHUNKS_MAX = 1000
_COLUMNS = ("offset", "next_offset", "type", "timestamp_ns", "key", "value")
_Found = TypeVar("_Found")


class Row(NamedTuple):
    """One record; key and value are copies of theirs."""

    offset: int
    next_offset: int
    type: int
    time_ns: int | None
    key: pa.Buffer | None
    value: pa.Buffer | None
    record: int | None


def read_page(look: Callable[[], View], query: Query) -> dict[str, Any]:
    """Read a page of a topic.

    Args:
        look: gives a view of the topic, each time a new one.
        query: which records.

    Raises:
        Corrupt: bytes at the start of the page are damaged.
    """
    return _with_view(look, lambda view: _page(view, query))


def read_value(look: Callable[[], View], offset: int) -> pa.Buffer | None:
    """Read the value of the record that starts at an offset, None if there is none."""

    def find(view: View) -> pa.Buffer | None:
        for chunk in _read_chunks(view, _find_floor(view, offset), 1):
            for row in _list_rows(chunk, offset):
                return row.value if row.offset == offset else None
        return None

    return _with_view(look, find)


def _with_view(look: Callable[[], View], work: Callable[[View], _Found]) -> _Found:
    for _ in range(_LOOKS_MAX):
        view = look()
        try:
            return work(view)
        except OutOfRange:
            continue  # Retention was quicker than this view.
    raise StorageError("the topic is being cut faster than it is read")


def _page(view: View, query: Query) -> dict[str, Any]:
    start = _find_start(view, query)
    rows, end = _take(view, start, query)
    if query.kind == "end" and end < view.end.offset:
        start = _find_last(view, start, view.end.offset, query.limit)
        rows, end = _take(view, start, query)
    previous = None
    if not query.is_search:
        previous = _find_previous(view, rows, start, query.limit)
    is_end = end >= view.end.offset
    _add_times(view, rows)
    return {
        "log_start": view.start.offset,
        "log_end": view.end.offset,
        "first_offset": rows[0]["offset"] if rows else None,
        "next_offset": end,
        "previous_offset": previous,
        "at_end": is_end,
        "scanned_bytes": end - start,
        "scanned_all": is_end,
        "records": rows,
    }


def _show(row: Row) -> Shown:
    """Make what a page shows, at once: long values must not pile up until its end."""
    return {
        **row._asdict(),
        "type_name": name_type(row.type),
        "time_ns": None if row.time_ns is None else str(row.time_ns),
        "key": make_cell(row.key),
        "value": make_cell(row.value, may_be_text=row.type != UNREADABLE),
    }


# Places.


def _find_start(view: View, query: Query) -> int:
    if query.kind == "record":
        return view.locate_record(query.value).offset
    if query.kind == "time":
        return view.locate_time(query.value).offset
    if query.kind == "offset":
        return min(max(query.value, view.start.offset), view.end.offset)
    if query.kind == "end" and not query.is_search:
        return _step_back(view, view.locate_end(), query.limit)
    return view.end.offset if query.kind == "end" else view.start.offset


def _step_back(view: View, place: Location, count: int) -> int:
    """Go back so many records, or fewer if they are large; one at least."""
    one = view.locate_record(place.record - 1).offset
    most = view.locate_record(place.record - count).offset
    if place.offset - most <= PAGE_BYTES_MAX:
        return most
    return min(one, view.locate_offset(place.offset - PAGE_BYTES_MAX).offset)


def _find_previous(
    view: View, rows: Sequence[Shown], start: int, limit: int
) -> int | None:
    """Find where the page before some rows starts, None if there is none."""
    first = rows[0]["offset"] if rows else start
    if first <= view.start.offset:
        return None
    found = _step_back(view, view.locate_offset(first), limit)
    if all(row["record"] is not None for row in rows):
        return found
    try:
        return _find_last(view, found, first, limit)
    except Corrupt:
        return found  # This page is whole, though records before it are damaged.


def _find_last(view: View, start: int, end: int, count: int) -> int:
    """Find where the last so many records between two places start.

    It is needed where batches were stored unchecked: the log takes each for a record.
    """
    last: NDArray[np.int64] = np.zeros(0, np.int64)
    behind = view.locate_offset(end).offset
    for chunk in _read_chunks(view, view.locate_offset(start), behind - start):
        starts = chunk.starts
        last = np.concatenate((last, starts[starts < end]))[-count:]
    return int(last[0]) if len(last) else start


def _find_floor(view: View, offset: int) -> Location:
    """Find the last boundary at or before an offset that the log knows of.

    It is the start of the record that the offset is in. Where batches were stored
    unchecked the log knows only theirs, and records start between them as well.
    """
    above = view.locate_offset(offset)
    if above.offset <= offset or above.record <= view.start.record:
        return above
    return view.locate_record(above.record - 1)


def _add_times(view: View, rows: Sequence[Shown]) -> None:
    """Say when records were appended."""
    append_ns, until = 0, -1
    for row in rows:
        if row["offset"] >= until:
            append_ns = _find_floor(view, row["offset"]).append_time_ns
            # Times never go back: up to the first that is younger they are the same.
            until = view.locate_time(append_ns + 1).offset
        row["append_ms"] = append_ns // 1_000_000 or None


# Reading.


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A piece of a log, decoded; `record` is None if its records have no numbers."""

    start: int
    end: int
    record: int | None
    data: bytes
    batch: pa.RecordBatch

    @property
    def offsets(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.batch.column("offset").to_numpy()
        return found

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where records start, and what is between them."""
        ends = self.batch.column("next_offset").to_numpy()
        found = np.unique(np.concatenate(([self.start], self.offsets, ends)))
        return found[found < self.end]


def _read_chunks(view: View, place: Location, bytes_max: int) -> Iterator[_Chunk]:
    """Decode a log piece by piece; where it is no records, go on at the next batch."""
    start, size = place.offset, _CHUNK_BYTES
    end = start + bytes_max
    for _ in range(_CHUNKS_MAX):
        at = place.offset
        if at >= min(end, view.end.offset):
            return
        found = view.read(at, min(size, end - at))
        if found.end > end and at > start:
            return  # One record is read however large it is, if it is the first.
        data = found.read()
        decoded = decode(
            data,
            base_offset=at,
            columns=_COLUMNS,
            stamp_type=pa.uint64(),
            on_bad="skip",
            partial="keep",
        )
        is_sure = not decoded.skipped and decoded.batch.num_rows == found.records
        record = place.record if is_sure else None
        # Where the chain of records breaks, if it does.
        broken = at + decoded.end if decoded.fault is None else decoded.fault.position
        if broken >= found.end:
            place = Location(found.end, place.record + found.records, 0)
            size = min(2 * size, _CHUNK_BYTES)
        else:
            place = view.locate_offset(broken + 1)
            # The next batch may be no better, and all behind it be read in vain again.
            size = _CHUNK_BYTES_MIN
        stop = min(place.offset, found.end)
        yield _Chunk(at, stop, record, data[: stop - at], decoded.batch)


def _take(view: View, start: int, query: Query) -> tuple[list[Shown], int]:
    """Take so many records from an offset on; tell how far the log was looked at."""
    place, limit = _find_floor(view, start), query.limit
    wanted = SCAN_BYTES_MAX
    if not query.is_search:
        # The one that the offset is in comes on top.
        behind = view.locate_record(place.record + limit + (place.offset < start))
        wanted = min(behind.offset - place.offset, PAGE_BYTES_MAX)
    rows: list[Shown] = []
    end = max(start, place.offset)
    for chunk in _read_chunks(view, place, wanted):
        found = _match(chunk, query) if query.is_search else _list_rows(chunk, start)
        for row in found:
            if row.offset >= start:
                rows.append(_show(row))
            if len(rows) == limit:
                return rows, row.next_offset
        end = max(end, chunk.end)
    return rows, end


def _list_rows(chunk: _Chunk, start: int) -> Iterator[Row]:
    """Give the records of a chunk from an offset on, and what is between them."""
    first = int(np.searchsorted(chunk.offsets, start))
    at = max(chunk.start, start)
    if first:
        at = max(at, chunk.batch.column("next_offset")[first - 1].as_py())
    for row in range(first, chunk.batch.num_rows):
        found = _make_row(chunk, row)
        if found.offset > at:
            yield _make_gap(chunk, at, found.offset)
        yield found
        at = found.next_offset
    if at < chunk.end:
        yield _make_gap(chunk, at, chunk.end)


def _make_row(chunk: _Chunk, row: int) -> Row:
    scalars = [column[row] for column in chunk.batch.columns]
    numbers = (scalar.as_py() for scalar in scalars[:4])
    texts = (scalar.as_buffer() for scalar in scalars[4:])
    record = None if chunk.record is None else chunk.record + row
    return Row._make((*numbers, *texts, record))


def _make_gap(chunk: _Chunk, start: int, end: int) -> Row:
    data = pa.py_buffer(chunk.data[start - chunk.start : end - chunk.start])
    return Row(start, end, UNREADABLE, None, None, data, None)


def _match(chunk: _Chunk, query: Query) -> Iterator[Row]:
    """Give the records of a chunk that a search is for."""
    key, value = chunk.batch.column("key"), chunk.batch.column("value")
    found = []
    if query.key is not None:
        found.append(pc.equal(key, pa.scalar(query.key, pa.binary())))
    if query.search is not None:
        in_key, in_value = (pc.match_substring(c, query.search) for c in (key, value))
        found.append(pc.or_kleene(in_key, in_value))
    masks = [pc.fill_null(m, False).to_numpy(zero_copy_only=False) for m in found]
    for row in np.flatnonzero(np.logical_and.reduce(masks)).tolist():
        yield _make_row(chunk, row)
