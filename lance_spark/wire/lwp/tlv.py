"""LWP's records in bulk: where they are, what is in them, and how to write them (§8).

    type                 value field, `length` bytes
    0x10 KeyValue        key length u16 | key | value
    0x11 Timestamped     timestamp u64 | value
    0x12 KeyTimestamped  timestamp u64 | key length u16 | key | value
    0xFF Null            nothing
    any other            value

All integers are little-endian. Everything is done for all records at once, except for
the walk along their headers, which is the kernel's. `record` has the types and limits,
and the same for one record at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lance_spark import kernel
from lance_spark.errors import OptionError, RecordError, RecordTooLarge, RowError
from lance_spark.model import Buffer, Scan
from lance_spark.records import Records, Spans, as_bytes
from lance_spark.wire.lwp.record import (
    KEY_BYTES_MAX,
    KEY_LENGTH_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_VALUE_BYTES_MAX,
    TIMESTAMP_BYTES,
    RecordType,
)

PAYLOAD_BYTES_DEFAULT = 1024 * 1024
PAYLOAD_BYTES_LIMIT = 1024 * 1024 * 1024

# Plain integers, as NumPy takes several times longer to compare with an enumeration.
_KEY_VALUE = int(RecordType.KEY_VALUE)
_TIMESTAMPED = int(RecordType.TIMESTAMPED)
_KEY_TIMESTAMPED = int(RecordType.KEY_TIMESTAMPED)
_NULL = int(RecordType.NULL)

# By type, whether a value is all that a record has: then nothing inside can be wrong.
_IS_PLAIN = np.ones(256, np.bool_)
_IS_PLAIN[[_KEY_VALUE, _TIMESTAMPED, _KEY_TIMESTAMPED, _NULL]] = False

# Up to so many records are prepared at once for writing.
_PREPARED_ROWS_MAX = 64 * 1024
# How many records are looked at together when they are only checked.
_CHECKED_RECORDS = 64 * 1024

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]
_Flags = NDArray[np.bool_]


# Where records start.


def scan(data: Buffer) -> Scan:
    """Find the whole records of a buffer.

    Returns:
        The start of every whole record up to the end of the buffer or the first
        fault. The fault is `truncated` where the buffer ends inside a record; type 0
        and a length over the limit are not, as no further byte can mend them.
    """
    view = as_bytes(data)
    starts, end = kernel.walk_tlv(view, RECORD_VALUE_BYTES_MAX)
    return Scan(starts, end, _find_chain_fault(view, end))


def _find_chain_fault(data: _Bytes, position: int) -> RecordError | None:
    """Say why no whole record starts at a position, None at the buffer's end."""
    header = bytes(data[position : position + RECORD_HEADER_BYTES])
    if not header:
        return None
    if header[0] == 0:
        return RecordError("type 0 is reserved", position)
    if len(header) < RECORD_HEADER_BYTES:
        reason = f"the data ends inside the header, {len(header)} bytes of it are there"
        return RecordError(reason, position, truncated=True)
    length = int.from_bytes(header[1:], "little")
    there = len(data) - position - RECORD_HEADER_BYTES
    if length > RECORD_VALUE_BYTES_MAX:
        # A record that is too large is there as a whole. A number beyond the buffer's
        # end is most likely no length at all.
        kind = RecordTooLarge if length <= there else RecordError
        limit = RECORD_VALUE_BYTES_MAX
        return kind(f"length {length} is over the limit of {limit}", position)
    reason = f"the data ends inside the value, {there} of {length} bytes are there"
    return RecordError(reason, position, truncated=True)


def validate(data: Buffer) -> Scan:
    """Find the records of a buffer up to the first that is malformed in any way.

    Does what `scan` does and looks inside the records too: key length beyond the
    record, record too short for its type, Null record with a length.
    """
    view = as_bytes(data)
    found = scan(view)
    if _IS_PLAIN[view[found.starts]].all():
        return found
    # In parts: with records of a few bytes their layout takes ten times what they do.
    for first in range(0, len(found.starts), _CHECKED_RECORDS):
        starts = found.starts[first : first + _CHECKED_RECORDS]
        behind = first + _CHECKED_RECORDS < len(found.starts)
        end = int(found.starts[first + _CHECKED_RECORDS]) if behind else found.end
        bad = _lay_out(view, Scan(starts, end), 0)[1]
        if len(bad):
            row = int(bad[0])
            position = int(starts[row])
            fault = RecordError(_explain_bad(view, position), position)
            return Scan(found.starts[: first + row], position, fault)
    return found


def check_records(data: Buffer) -> int:
    """Count the records of a buffer that must hold whole, well-formed records only.

    Raises:
        RecordError: of the first bad record; a truncated last one is bad too.
    """
    found = validate(data)
    if found.fault is not None:
        raise found.fault
    return len(found.starts)


# Bytes to records.


def read_records(
    data: Buffer,
    *,
    base_offset: int = 0,
    found: Scan | None = None,
    on_bad: Literal["stop", "skip"] = "stop",
) -> Records:
    """Read the whole records of a buffer; their positions are byte offsets.

    Args:
        data: records; the last one may be partial.
        base_offset: offset of the buffer's first byte in its topic.
        found: what `scan` says of the same bytes, or of as many whole records as are
            wanted. It is trusted, and nothing behind its end is looked at.
        on_bad: what to do with records whose inner lengths do not fit: `stop` before
            the first one, or leave them out.

    Returns:
        The records. Their `fault` is a `RecordError` that says where and why reading
        stopped before the end of the buffer, if it did.
    """
    view = as_bytes(data)
    if found is None:
        found = scan(view)
    # A record that ends behind the buffer would be read from foreign memory.
    assert found.end <= len(view), "records that are not of this buffer"
    fault = found.fault
    records, bad = _lay_out(view, found, base_offset)
    if len(bad):
        if on_bad == "stop":
            row, starts = int(bad[0]), found.starts
            position = int(starts[row])
            fault = RecordError(_explain_bad(view, position), position)
            records, _ = _lay_out(view, Scan(starts[:row], position), base_offset)
        else:
            records = records.select(np.delete(np.arange(len(records)), bad))
    if fault is None:
        return records
    position = fault.position + base_offset
    moved = type(fault)(fault.reason, position, truncated=fault.truncated)
    return replace(records, fault=moved)


def _lay_out(data: _Bytes, found: Scan, base_offset: int) -> tuple[Records, _Positions]:
    """Find the parts of records; also those rows whose inner lengths do not fit.

    What is said of these rows can't be relied on.
    """
    starts = found.starts
    ends = np.append(starts[1:], found.end)[: len(starts)]
    types = data[starts]
    value_starts = starts + RECORD_HEADER_BYTES
    nulls = types == _NULL
    # Smaller types wrap around, so that one comparison finds the three in a row.
    structured = types - np.uint8(_KEY_VALUE) <= _KEY_TIMESTAMPED - _KEY_VALUE
    if not structured.any() and not nulls.any():
        # Plain values only, as most topics have: nothing to find inside of them.
        plain = Spans(data, value_starts, ends)
        return Records(plain, base_offset, starts, ends, types), _NO_ROWS
    bad = nulls & (value_starts != ends)

    both = types == _KEY_TIMESTAMPED
    stamped = np.flatnonzero(both | (types == _TIMESTAMPED))
    stamped, at = _fit(stamped, value_starts[stamped], TIMESTAMP_BYTES, ends, bad)
    stamps = read_scattered(data, at, np.dtype("<u8"))
    value_starts[stamped] = at + TIMESTAMP_BYTES

    keyed = np.flatnonzero((both | (types == _KEY_VALUE)) & ~bad)
    keyed, at = _fit(keyed, value_starts[keyed], KEY_LENGTH_BYTES, ends, bad)
    key_starts = at + KEY_LENGTH_BYTES
    key_ends = key_starts + read_scattered(data, at, np.dtype("<u2"))
    bad[keyed[key_ends > ends[keyed]]] = True
    value_starts[keyed] = key_ends
    records = Records(
        Spans(data, value_starts, ends),
        base_offset,
        starts,
        ends,
        types,
        nulls if nulls.any() else None,
        keyed,
        Spans(data, key_starts, key_ends),
        stamped,
        stamps,
    )
    return records, np.flatnonzero(bad)


_NO_ROWS = np.empty(0, np.int64)


def _fit(
    rows: _Positions, at: _Positions, size: int, ends: _Positions, bad: _Flags
) -> tuple[_Positions, _Positions]:
    """Keep the rows whose next `size` bytes are inside the record, mark the others."""
    fits = at + size <= ends[rows]
    if fits.all():
        return rows, at
    bad[rows[~fits]] = True
    return rows[fits], at[fits]


def _explain_bad(data: _Bytes, position: int) -> str:
    header = bytes(data[position : position + RECORD_HEADER_BYTES])
    kind, length = header[0], int.from_bytes(header[1:], "little")
    if kind == _NULL:
        return f"a Null record (0xFF) has length {length}, must be 0"
    needed = TIMESTAMP_BYTES if kind != _KEY_VALUE else 0
    needed += KEY_LENGTH_BYTES if kind != _TIMESTAMPED else 0
    if length < needed:
        return f"type 0x{kind:02X} needs a length of {needed} or more, has {length}"
    at = position + RECORD_HEADER_BYTES + needed
    key_length = int.from_bytes(data[at - KEY_LENGTH_BYTES : at].tobytes(), "little")
    return f"a key of {key_length} bytes where {length - needed} are left in the record"


def read_scattered(data: _Bytes, at: _Positions, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Read an unaligned integer at each position."""
    if not len(at):
        return np.empty(0, dtype)
    # An array in which item i is the integer at byte i; overlapping, and never copied.
    everywhere: NDArray[Any] = np.ndarray(
        len(data) - dtype.itemsize + 1, dtype, data, 0, (1,)
    )
    integers: NDArray[Any] = everywhere[at]
    return integers


# Records to bytes.


@dataclass(frozen=True, slots=True)
class Payload:
    """Whole records, ready for a frame.

    Args:
        data: their bytes, as a buffer that can be sent.
        records: how many they are.
        has_nulls: whether there may be Null records among them.
    """

    data: Any
    records: int
    has_nulls: bool = False


@dataclass(frozen=True, slots=True)
class _WritePlan:
    """What records become.

    Args:
        records: what they are made of.
        types: their types.
        lengths: the length of each, which counts key and timestamp.
        ends: where each record ends, counted from the first.
    """

    records: Records
    types: NDArray[Any]
    lengths: _Positions
    ends: _Positions

    def make_parts(self, start: int, stop: int) -> list[kernel.Part]:
        """Make what the rows `[start, stop)` are woven of."""
        records = self.records.cut(start, stop)
        types, lengths = self.types[start:stop], self.lengths[start:stop]
        parts = _make_prefixes(records, types, lengths)
        if len(records.keyed):
            parts.append(_spread(records.keys, records.keyed, len(records)))
        values = records.values
        parts.append((values.data, values.starts, values.ends))
        return parts


def _allocate(size: int) -> _Bytes:
    return np.empty(size, np.uint8)


def write_records(records: Records, *, record_type: int = RecordType.RAW) -> _Bytes:
    """Write records as TLV.

    Args:
        records: those of any protocol, or rows. Positions are not looked at, but for
            errors.
        record_type: the type of plain values where `types` says none.

    Raises:
        RowError: of the first record that LWP has no form for; its row is the record's
            position.
        LanceError: the `fault` of the records.
        OptionError: `record_type` can't be that of plain values.
    """
    return write_batch(records, record_type=record_type)[0]


def write_batch(
    records: Records, *, record_type: int = RecordType.RAW
) -> tuple[_Bytes, _Positions]:
    """Write records as `write_records` does; give also where each of them starts."""
    plan = _plan(records, record_type, None)
    out = _allocate(int(plan.ends[-1]) if len(records) else 0)
    kernel.weave(out, plan.make_parts(0, len(records)))
    return out, plan.ends - plan.lengths - RECORD_HEADER_BYTES


def write_payloads(
    records: Records,
    *,
    record_type: int = RecordType.RAW,
    payload_bytes_max: int = PAYLOAD_BYTES_DEFAULT,
    find_null_fault: Callable[[], str | None] | None = None,
    allocate: Callable[[int], Any] = _allocate,
) -> Iterator[Payload]:
    """Write records as payloads of a bounded size.

    All records are checked before this returns; payloads are made as they are asked
    for.

    Args:
        records: as with `write_records`.
        record_type: as with `write_records`.
        payload_bytes_max: how large a payload may be. A record that is larger gets a
            payload of its own.
        find_null_fault: says why no row may become a Null record, None if rows may;
            called only if some would.
        allocate: makes the buffer that a payload is written into.

    Raises:
        RowError: of the first record that LWP has no form for.
        LanceError: the `fault` of the records.
        OptionError: a number is out of range.
    """
    if not 1 <= payload_bytes_max <= PAYLOAD_BYTES_LIMIT:
        limit = PAYLOAD_BYTES_LIMIT
        raise OptionError(f"a payload of {payload_bytes_max} bytes, not 1 to {limit}")
    plan = _plan(records, record_type, find_null_fault)
    return _cut(plan, payload_bytes_max, allocate)


def _cut(
    plan: _WritePlan, bytes_max: int, allocate: Callable[[int], Any]
) -> Iterator[Payload]:
    rows, start, done = len(plan.ends), 0, 0
    # Few rows are prepared at once, as each time costs as much as copying 100 KiB. Of
    # many, the temporary arrays would not stay in the processor's cache.
    whole = plan.make_parts(0, rows) if rows <= _PREPARED_ROWS_MAX else None
    while start < rows:
        stop = int(np.searchsorted(plan.ends, done + bytes_max, "right"))
        stop = max(stop, start + 1)
        if whole is None:
            parts = plan.make_parts(start, stop)
        else:
            parts = [(d, s[start:stop], e[start:stop]) for d, s, e in whole]
        end = int(plan.ends[stop - 1])
        data = allocate(end - done)
        kernel.weave(data, parts)
        yield Payload(data, stop - start, plan.records.nulls is not None)
        start, done = stop, end


# What is wrong with some rows: which ones, and a text for one of them.
_Fault = tuple[_Flags, Callable[[int], str]]


def check_plain_type(record_type: int) -> None:
    """Check that a number can be the type of plain values.

    Raises:
        OptionError: if it is reserved or means a key, a timestamp or a Null record.
    """
    is_number = isinstance(record_type, int)
    if not is_number or not _is_plain_type(np.array([record_type]))[0]:
        raise OptionError(
            f"record type {record_type!r} can't be that of plain values: "
            "1 to 254 can, except 16, 17 and 18, which a key and a timestamp choose"
        )


def _is_plain_type(types: NDArray[Any]) -> _Flags:
    structured = (types >= _KEY_VALUE) & (types <= _KEY_TIMESTAMPED)
    return (types > 0) & (types < _NULL) & ~structured


def _plan(
    records: Records,
    record_type: int,
    find_null_fault: Callable[[], str | None] | None,
) -> _WritePlan:
    """Decide what each record becomes, as in the table at the top of this file."""
    check_plain_type(record_type)
    faults: list[_Fault] = []
    lengths = records.values.lengths
    if len(records.keyed):
        key_lengths = records.keys.lengths
        lengths[_index(records.keyed, records)] += key_lengths + KEY_LENGTH_BYTES
        if key_lengths.max() > KEY_BYTES_MAX:
            faults.append(_find_long_keys(records, key_lengths))
    lengths[_index(records.stamped, records)] += TIMESTAMP_BYTES
    too_large = lengths > RECORD_VALUE_BYTES_MAX
    faults.append((too_large, lambda row: _explain_size(int(lengths[row]))))
    needed = _find_needed_types(records)
    types, type_faults = _choose_types(records, needed, record_type)
    null_faults = _find_null_faults(records, needed, find_null_fault)
    _raise_first([*null_faults, *type_faults, *faults], records)
    if records.fault is not None:
        raise records.fault
    ends = np.cumsum(lengths + RECORD_HEADER_BYTES)
    return _WritePlan(records, types, lengths, ends)


def _index(rows: _Positions, records: Records) -> _Positions | slice:
    """Make an index of some rows; one of all rows is several times faster."""
    return slice(None) if len(rows) == len(records) else rows


def _explain_size(length: int) -> str:
    return (
        f"a record of {length} bytes with key and timestamp, "
        f"{RECORD_VALUE_BYTES_MAX} are the most: split the value"
    )


def _find_long_keys(records: Records, key_lengths: _Positions) -> _Fault:
    sizes = np.zeros(len(records), np.int64)
    sizes[records.keyed] = key_lengths
    return (
        sizes > KEY_BYTES_MAX,
        lambda row: f"a key of {sizes[row]} bytes, {KEY_BYTES_MAX} are the most",
    )


def _find_needed_types(records: Records) -> NDArray[np.int16] | None:
    """Say which types keys, timestamps and nulls ask for: 0 for any plain one."""
    if records.nulls is None and not len(records.keyed) and not len(records.stamped):
        return None
    needed = np.zeros(len(records), np.int16)
    if records.nulls is not None:
        needed[records.nulls] = _NULL
    needed[_index(records.keyed, records)] = _KEY_VALUE
    stamped = _index(records.stamped, records)
    is_keyed = needed[stamped] == _KEY_VALUE
    needed[stamped] = np.where(is_keyed, _KEY_TIMESTAMPED, _TIMESTAMPED)
    return needed


def _choose_types(
    records: Records, needed: NDArray[np.int16] | None, record_type: int
) -> tuple[NDArray[Any], list[_Fault]]:
    given = records.types
    if given is None:
        if needed is None:
            return np.full(len(records), record_type, np.uint8), []
        return np.where(needed == 0, np.int16(record_type), needed), []
    said = given >= 0
    free = said if needed is None else said & (needed == 0)
    faults: list[_Fault] = [
        (
            free & ~_is_plain_type(given),
            lambda row: (
                f"type {given[row]} can't be that of a plain value: "
                "1 to 254 can, except 16, 17 and 18, which a key and a timestamp choose"
            ),
        )
    ]
    types = np.where(free, given, record_type)
    if needed is not None:
        wanted = needed
        types = np.where(wanted == 0, types, wanted)
        faults.append(
            (
                said & (wanted != 0) & (given != wanted),
                lambda row: (
                    f"type {given[row]} contradicts its key, timestamp and value, "
                    f"which need {wanted[row]}: make the type null to let them choose"
                ),
            )
        )
    return types, faults


def _find_null_faults(
    records: Records,
    needed: NDArray[np.int16] | None,
    find_reason: Callable[[], str | None] | None,
) -> list[_Fault]:
    nulls = records.nulls
    if nulls is None or needed is None:
        return []
    faults: list[_Fault] = [
        (nulls & (needed != _NULL), lambda row: _explain_null(int(needed[row])))
    ]
    is_null = needed == _NULL
    reason = find_reason() if find_reason is not None and is_null.any() else None
    if reason is not None:
        faults.append((is_null, lambda row: reason))
    return faults


def _explain_null(needed: int) -> str:
    if needed == _TIMESTAMPED:
        return (
            "a timestamp but no value: a Null record carries no timestamp; "
            "write an empty value, or make the timestamp null too"
        )
    return (
        "a key but no value: LWP has no keyed tombstone; "
        "write an empty value, or filter such rows out"
    )


def _raise_first(faults: list[_Fault], records: Records) -> None:
    """Raise the error of the first row that has a fault."""
    found = [(int(bad.argmax()), text) for bad, text in faults if bad.any()]
    if found:
        row, text = min(found, key=lambda fault: fault[0])
        raise RowError(text(row), records.position(row))


def _spread(spans: Spans, rows: _Positions, count: int) -> kernel.Part:
    """Give every row a span: its own, or an empty one."""
    if len(rows) == count:
        return spans.data, spans.starts, spans.ends
    starts, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
    starts[rows], ends[rows] = spans.starts, spans.ends
    return spans.data, starts, ends


def _make_prefixes(
    records: Records, types: NDArray[Any], lengths: _Positions
) -> list[kernel.Part]:
    """Write what comes before key and value: header, timestamp, length of the key.

    Every row gets all fields that any row has. Its spans leave out what it has not.
    """
    rows, stamped, keyed = len(records), records.stamped, records.keyed
    fields = [("type", "u1"), ("length", "<u4")]
    fields += [("stamp", "<u8")] if len(stamped) else []
    fields += [("key_length", "<u2")] if len(keyed) else []
    prefixes = np.empty(rows, fields)
    prefixes["type"] = types
    prefixes["length"] = lengths
    if len(stamped):
        prefixes["stamp"][_index(stamped, records)] = records.stamps_ns
    if len(keyed):
        prefixes["key_length"][_index(keyed, records)] = records.keys.lengths
    data, size = prefixes.view(np.uint8), prefixes.itemsize
    starts = np.arange(0, len(data), size)
    if len(stamped) in (0, rows) and len(keyed) in (0, rows):
        return [(data, starts, starts + size)]
    ends = starts + RECORD_HEADER_BYTES
    ends[stamped] += TIMESTAMP_BYTES
    parts: list[kernel.Part] = [(data, starts, ends)]
    if len(keyed):
        key_lengths = starts + (size - KEY_LENGTH_BYTES)
        ends = key_lengths.copy()
        ends[keyed] += KEY_LENGTH_BYTES
        parts.append((data, key_lengths, ends))
    return parts
