"""The demo's comparison: that it would notice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.cli.demo_compare import Comparison, count_same
from lance_spark.cli.demo_record import make_records
from lance_spark.errors import LanceError


def _join(*ranges: tuple[int, int]) -> pa.RecordBatch:
    parts = [make_records(*span) for span in ranges]
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


def _compare(
    rows: pa.RecordBatch, records: int, *, acknowledged: int = 0, step: int = 30
) -> int:
    comparison = Comparison(records, stored=rows.num_rows, acknowledged=acknowledged)
    for start in range(0, rows.num_rows, step):
        comparison.feed(rows.slice(start, step))
    comparison.finish()
    return comparison.doubled


@pytest.mark.parametrize("step", [7, 1000])
def test_all_there(step: int) -> None:
    assert _compare(_join((0, 200)), 200, step=step) == 0


@pytest.mark.parametrize("step", [7, 50, 1000])
@pytest.mark.parametrize(
    ("until", "again"), [(100, 90), (100, 83), (99, 89), (200, 190), (57, 50), (9, 0)]
)
def test_sent_again(step: int, until: int, again: int) -> None:
    rows = _join((0, until), (again, 200))
    doubled = _compare(rows, 200, acknowledged=again, step=step)
    assert doubled == until - again


@pytest.mark.parametrize(
    "rows",
    [
        _join((0, 50), (60, 210)),  # Lost, and others in their place.
        _join((0, 50), (60, 70), (50, 60), (70, 200)),
        _join((0, 50), (40, 50), (60, 200), (190, 200)),
        _join((0, 200), (0, 10)),  # The end comes twice, but the wrong one.
        _join((0, 100), (90, 100), (90, 200)),  # Twice twice.
        make_records(0, 200).take(pa.array(np.r_[10:20, 0:10, 20:200])),
    ],
)
def test_others_are_noticed(rows: pa.RecordBatch) -> None:
    with pytest.raises(LanceError, match="is not what was written"):
        _compare(rows, 200)


def test_loss_is_noticed() -> None:
    with pytest.raises(LanceError, match="200 records were acknowledged, 199 are"):
        _compare(_join((0, 199)), 200)


def test_end_is_noticed() -> None:
    comparison = Comparison(200, stored=200, acknowledged=0)
    comparison.feed(make_records(0, 199))
    with pytest.raises(LanceError, match="end before number 199"):
        comparison.finish()


def test_acknowledged_ones_may_not_be_doubled() -> None:
    rows = _join((0, 100), (90, 200))
    assert _compare(rows, 200, acknowledged=90) == 10
    with pytest.raises(LanceError, match="was acknowledged before the crash"):
        _compare(rows, 200, acknowledged=95)


def test_count_same() -> None:
    rows = make_records(0, 100)
    for same in (0, 1, 49, 50, 99, 100):
        others = _join((0, same), (same + 1, 101)) if same < 100 else rows
        # Null records are all alike, and one may stand where the other should.
        assert count_same(rows, others) in (same, same + 1)
        if same % 10 != 8:
            assert count_same(rows, others) == same
    assert count_same(rows.slice(0, 3), rows) == 3
    assert count_same(rows.slice(0, 0), rows) == 0
