"""The bytes of `vectors`, and batches written one record at a time.

The encoder below knows nothing of the codec.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import crc32c
import numpy as np

from lance_spark.records import Records, Spans
from lance_spark.wire.fluvio import Frame, FrameParser


def load(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file, their bytes as such."""
    file = Path(__file__).parent / "vectors" / f"{name}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())
    return [{**row, "data": bytes.fromhex(row["hex"])} for row in rows]


FRAMES, BODIES = load("frames"), load("bodies")
PARTS = {row["name"]: row["data"] for row in load("parts")}


def find(name: str) -> bytes:
    """Return a frame by its name."""
    found: bytes = next(row["data"] for row in FRAMES if row["name"] == name)
    return found


def parse(data: bytes) -> Frame:
    """Read one frame."""
    parser = FrameParser()
    parser.receive_data(data)
    frame = parser.next_frame()
    assert frame is not None
    return frame


def join(parts: Iterable[Any]) -> bytes:
    """Concatenate what an encoder returned."""
    return b"".join(bytes(part) for part in parts)


class Row(NamedTuple):
    """A record; `time_ms` is None if its batch has no times."""

    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes


def zigzag(number: int) -> bytes:
    """Write a varint."""
    rest = 2 * number if number >= 0 else -2 * number - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*out, rest))


def record(row: Row, *, delta: int, number: int, tail: bytes = b"\0") -> bytes:
    """Write a record; `tail` is the number of headers and what they are."""
    key = b"\0" if row.key is None else b"\1" + zigzag(len(row.key)) + row.key
    body = b"\0" + zigzag(delta) + zigzag(number) + key
    body += zigzag(len(row.value)) + row.value + tail
    return zigzag(len(body)) + body


def records_of(rows: Sequence[Row]) -> bytes:
    """Write the count and the records of a batch."""
    first = rows[0].time_ms if rows else None
    deltas = [0 if first is None else (row.time_ms or 0) - first for row in rows]
    made = [
        record(row, delta=delta, number=i)
        for i, (row, delta) in enumerate(zip(rows, deltas, strict=True))
    ]
    return struct.pack(">I", len(rows)) + b"".join(made)


def batch(
    rows: Sequence[Row],
    *,
    body: bytes | None = None,
    attributes: int = 0,
    producer_id: int = -1,
    crc: int | None = None,
) -> bytes:
    """Write a batch, around other bytes than its records if one says so."""
    first = rows[0].time_ms if rows else None
    times = (-1, -1)
    if first is not None:
        times = (first, max(row.time_ms or 0 for row in rows))
    rest = struct.pack(">hiqq", attributes, len(rows) - 1, *times)
    rest += struct.pack(">qhi", producer_id, -1, -1)
    rest += records_of(rows) if body is None else body
    crc = crc32c.crc32c(rest) if crc is None else crc
    head = struct.pack(">ibI", -1, 2, crc)
    offset = rows[0].offset if rows else 0
    return struct.pack(">qi", offset, len(head + rest)) + head + rest


def make_rows(chance: random.Random, count: int, *, start: int = 0) -> list[Row]:
    """Make records: alike or not, with keys or without, with times or without."""
    alike, keyed = chance.random() < 0.5, chance.choice([0, 0.5, 1])
    size, spread = chance.randrange(300), chance.choice([1, 50, 10**4, 2**30])
    first = chance.choice([None, 1, 1_700_000_000_000])
    rows = []
    for offset in range(start, start + count):
        length = size if alike else chance.choice([0, 1, 20, 63, 64, 300])
        key = chance.randbytes(2 if alike else chance.choice([0, 1, 64, 255]))
        time = None if first is None else first + chance.randrange(spread)
        has_key = chance.random() < keyed
        row = Row(offset, time, key if has_key else None, chance.randbytes(length))
        rows.append(row)
    return rows


def unpack(records: Records) -> list[Row]:
    """Read records one by one."""
    values, keys = records.values, records.keys
    keyed = {int(row): i for i, row in enumerate(records.keyed)}
    stamps = dict(
        zip(records.stamped.tolist(), records.stamps_ns.tolist(), strict=True)
    )
    rows = []
    for row, offset in enumerate(records.find_positions().tolist()):
        i = keyed.get(row)
        key = None if i is None else bytes(keys.data[keys.starts[i] : keys.ends[i]])
        value = bytes(values.data[values.starts[row] : values.ends[row]])
        time = None
        if row in stamps:
            time, rest = divmod(stamps[row], 1_000_000)
            assert rest == 0
        rows.append(Row(offset, time, key, value))
    return rows


def make_records(rows: Sequence[Row], **others: Any) -> Records:
    """Make records of rows, whose numbers do not count."""

    def lay_out(values: list[bytes]) -> Spans:
        ends = np.cumsum([len(value) for value in values], dtype=np.int64)
        starts = ends - np.array([len(value) for value in values], np.int64)
        return Spans(np.frombuffer(b"".join(values), np.uint8), starts, ends)

    stamped = [i for i, row in enumerate(rows) if row.time_ms is not None]
    times = [(row.time_ms or 0) * 1_000_000 for row in rows if row.time_ms is not None]
    return Records(
        lay_out([row.value for row in rows]),
        keyed=np.array([i for i, r in enumerate(rows) if r.key is not None], np.int64),
        keys=lay_out([row.key for row in rows if row.key is not None]),
        stamped=np.array(stamped, np.int64),
        stamps_ns=np.array(times, np.uint64),
        **others,
    )
