"""The records of the demo."""

from __future__ import annotations

import pyarrow as pa

from lance_spark.cli.demo_record import CYCLE, make_records
from lance_spark.columnar.decode import decode
from lance_spark.columnar.encode import encode
from lance_spark.model import RecordType

COLUMNS = ("type", "key", "value", "timestamp_ns")


def test_records_are_a_function_of_their_numbers() -> None:
    whole = make_records(0, 100)
    parts = [make_records(0, 13), make_records(13, 14), make_records(14, 100)]
    assert pa.Table.from_batches(parts).combine_chunks().to_batches()[0].equals(whole)
    assert make_records(5, 5).num_rows == 0
    types = whole.column("type").to_pylist()
    assert types == list(CYCLE) * 10
    assert set(RecordType) <= set(types) and max(types) < 256
    values = [v for v in whole.column("value").to_pylist() if v is not None]
    assert len(values) == len(set(values)) == 90


def test_records_survive_the_codec() -> None:
    (payload,) = encode(make_records(0, 1000))
    decoded = decode(payload.data, columns=COLUMNS)
    assert decoded.batch.equals(make_records(0, 1000))
