"""TLV to Arrow and back, against memcpy and against one record at a time.

The plain implementation is the one that the tests compare with. Both sides do the same
work: bytes to the same Arrow columns, and Arrow columns to the same bytes.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks.report import Report, format_rate, format_ratio
from lance_spark import kernel
from lance_spark.columnar.decode import DEFAULT_COLUMNS, decode, make_schema
from lance_spark.columnar.encode import encode
from lance_spark.kernel import twin
from lance_spark.wire.lwp import RecordType
from tests.columnar import plain

# As large as a Fetch by default: what a reader decodes at once.
BUFFER_BYTES = 4 * 1024 * 1024
PLAIN_BUFFER_BYTES = 1024 * 1024
RECORD_BYTES = (20, 100, 1000)

WRITE_COLUMNS = ("type", "key", "value", "timestamp_ns")


@dataclass(frozen=True)
class Case:
    """Records to measure with.

    Args:
        name: what they are like.
        data: the records.
        sample: fewer of the same kind, for the slow side.
        columns: the columns of a write that make them.
    """

    name: str
    data: bytes
    sample: bytes
    columns: tuple[str, ...]


def make_cases() -> Iterator[Case]:
    """Make all cases, the same in each run."""
    for size in RECORD_BYTES:
        yield make_case(f"{size} bytes, raw", partial(make_raw, size), ("value",))
    for size in RECORD_BYTES:
        make = partial(make_mixed, size)
        yield make_case(f"about {size} bytes, mixed types and sizes", make)


def make_case(
    name: str,
    make_record: Callable[[random.Random], bytes],
    columns: tuple[str, ...] = WRITE_COLUMNS,
) -> Case:
    """Make a case of records that a function makes from random numbers."""
    numbers = random.Random(1706918400)
    records, size, sample = [], 0, b""
    while size < BUFFER_BYTES:
        records.append(make_record(numbers))
        size += len(records[-1])
        if not sample and size >= PLAIN_BUFFER_BYTES:
            sample = b"".join(records)
    return Case(name, b"".join(records), sample, columns)


def make_raw(size: int, numbers: random.Random) -> bytes:
    """Make a raw record of a size."""
    return struct.pack("<BI", RecordType.RAW, size - 5) + numbers.randbytes(size - 5)


def make_mixed(size: int, numbers: random.Random) -> bytes:
    """Make a record of any type and of any size up to twice the one given."""
    kind = numbers.choice((0x01, 0x02, 0x80, 0x10, 0x11, 0x12, 0xFF))
    if kind == RecordType.NULL:
        return struct.pack("<BI", kind, 0)
    body = b""
    if kind in (RecordType.TIMESTAMPED, RecordType.KEY_TIMESTAMPED):
        body += struct.pack("<Q", 1_706_918_400_000_000_000 + numbers.randrange(10**15))
    if kind in (RecordType.KEY_VALUE, RecordType.KEY_TIMESTAMPED):
        key = numbers.randbytes(numbers.randrange(1, 9))
        body += struct.pack("<H", len(key)) + key
    body += numbers.randbytes(numbers.randrange(max(2 * size - 20, 1)))
    return struct.pack("<BI", kind, len(body)) + body


@contextmanager
def use_twin() -> Iterator[None]:
    """Do without the kernel for a while."""
    before = kernel._source
    kernel._source = twin
    try:
        yield
    finally:
        kernel._source = before


def decode_plainly(data: bytes) -> pa.RecordBatch:
    """Make the columns that `decode` makes, one record at a time."""
    rows = plain.decode(data).rows
    stamps = [
        None if row.timestamp_ns is None else row.timestamp_ns // 1000 for row in rows
    ]
    columns = [
        [row.offset for row in rows],
        [row.type for row in rows],
        [row.key for row in rows],
        [row.value for row in rows],
        stamps,
    ]
    schema = make_schema(DEFAULT_COLUMNS)
    arrays = [pa.array(c, kind) for c, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def encode_plainly(batch: pa.RecordBatch) -> list[tuple[bytes, int]]:
    """Make the payloads that `encode` makes, one record at a time."""
    nothing = [None] * batch.num_rows
    there = batch.schema.names
    columns = [
        batch.column(name).to_pylist() if name in there else nothing
        for name in WRITE_COLUMNS
    ]
    rows = (plain.Row(0, 0, *row) for row in zip(*columns, strict=True))
    return list(plain.encode(rows))


def count_payloads(batch: pa.RecordBatch) -> int:
    """Encode as a sender does, which lets go of a payload before the next."""
    return sum(1 for _ in encode(batch))


def measure_plain(
    time_s: Callable[[Callable[[], object]], float], case: Case
) -> tuple[float, float]:
    """Time plain decoding and encoding, in seconds per record."""
    batch = decode(case.sample, columns=case.columns).batch
    decode_s = time_s(lambda: decode_plainly(case.sample))
    encode_s = time_s(lambda: encode_plainly(batch))
    return decode_s / batch.num_rows, encode_s / batch.num_rows


def run(report: Report) -> None:
    """Measure all cases."""
    tables: dict[str, list[list[str]]] = {
        "Decode, compiled scan:": [],
        "Decode, pure Python:": [],
        "Encode, compiled:": [],
        "Encode, pure Python:": [],
    }
    for case in make_cases():
        for title, row in measure_case(report, case):
            tables[title].append(row)
    head = ["records", "records/s", "bytes/s", "to memcpy", "to plain"]
    for title, rows in tables.items():
        if rows:
            report.add_table(head, rows, title)


def measure_case(report: Report, case: Case) -> Iterator[tuple[str, list[str]]]:
    """Measure one case: its row in each table."""
    batch = decode(case.data, columns=case.columns).batch
    plain_decode_s, plain_encode_s = measure_plain(report.time_s, case)
    memcpy_s = report.time_s(np.frombuffer(case.data, np.uint8).copy)

    def make_row(took_s: float, plain_s: float) -> list[str]:
        return [
            case.name,
            format_rate(batch.num_rows / took_s),
            format_rate(len(case.data) / took_s, "B"),
            format_ratio(memcpy_s / took_s),
            format_ratio(plain_s * batch.num_rows / took_s),
        ]

    decode_all = partial(decode, case.data)
    if kernel.COMPILED:
        took_s = report.time_s(decode_all)
        yield "Decode, compiled scan:", make_row(took_s, plain_decode_s)
    with use_twin():
        took_s = report.time_s(decode_all)
    yield "Decode, pure Python:", make_row(took_s, plain_decode_s)
    encode_all = partial(count_payloads, batch)
    if kernel.COMPILED:
        took_s = report.time_s(encode_all)
        yield "Encode, compiled:", make_row(took_s, plain_encode_s)
    with use_twin():
        took_s = report.time_s(encode_all)
    yield "Encode, pure Python:", make_row(took_s, plain_encode_s)
