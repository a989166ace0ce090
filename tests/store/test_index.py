"""The index of a segment in memory."""

from __future__ import annotations

import numpy as np

from lance_spark.store.format import ROW, Kind, decode_rows, make_batch_rows
from lance_spark.store.segment import Boundary, Column, IndexedBatch, IndexTable


def rows_of(position: int, record: int, append_ns: int, starts: list[int], length: int):  # type: ignore[no-untyped-def]
    array = np.array(starts, np.int64)
    return decode_rows(
        make_batch_rows(position, record, append_ns, length, array, 77, 64)
    )


def two_batches() -> IndexTable:
    """[0, 100) with records at 0 and 70, [100, 130) with one, at times 5 and 9."""
    table = IndexTable()
    table.extend(rows_of(0, 0, 5, [0, 70], 100))
    table.extend(rows_of(100, 2, 9, [0], 30))
    return table


def test_a_column_grows() -> None:
    column = Column(np.int64)
    column.extend(np.arange(10))
    before = column.values
    column.extend(np.arange(10, 100))
    assert column.values.tolist() == list(range(100))
    assert before.tolist() == list(range(10))
    column.extend(np.array([7]))
    assert column.values.tolist() == [*range(100), 7]
    assert len(column._data) == 200  # Doubled, so that growing stays cheap.


def test_batches() -> None:
    table = two_batches()
    assert (table.batches, table.rows) == (2, 3)
    assert table.batch(0) == IndexedBatch(0, 0, 100, 0, 2, 5, 77, lost=False)
    assert table.batch(1) == IndexedBatch(1, 100, 30, 2, 1, 9, 77, lost=False)
    assert table.batch(1).end == 130


def test_the_batch_that_holds_a_position() -> None:
    table = two_batches()
    assert [table.batch_at(p) for p in (0, 99, 100, 129)] == [0, 0, 1, 1]


def test_the_batch_at_a_time() -> None:
    table = two_batches()
    assert [table.batch_at_time(t) for t in (0, 5, 6, 9, 10)] == [0, 0, 1, 1, 2]


def test_boundaries() -> None:
    table = two_batches()
    assert table.boundary_before(0) == Boundary(0, 0)
    assert table.boundary_before(69) == Boundary(0, 0)
    assert table.boundary_before(70) == Boundary(70, 1)
    assert table.boundary_after(0) == Boundary(70, 1)
    assert table.boundary_after(70) == Boundary(100, 2)
    assert table.boundary_after(100) is None
    assert table.boundary_of_record(0) == Boundary(0, 0)
    assert table.boundary_of_record(1) == Boundary(70, 1)
    assert table.boundary_of_record(9) == Boundary(100, 2)


def test_what_was_verified_is_not_listed_again() -> None:
    table = two_batches()
    assert table.unverified(0, 130) == [0, 1]
    assert table.unverified(99, 100) == [0]
    assert table.unverified(100, 130) == [1]
    table.set_verified(0)
    assert table.unverified(0, 130) == [1]
    table.set_verified(1)
    assert table.unverified(0, 130) == []


def test_lost_bytes() -> None:
    row = np.zeros(1, ROW)
    row["kind"], row["length"] = Kind.LOST, 50
    table = IndexTable()
    table.extend(row)
    assert table.batch(0).lost
    assert table.batch(0).records == 0


def test_memory_is_counted() -> None:
    """Not exactly, but never less than what a large table takes."""
    table = IndexTable()
    for number in range(2_050):
        table.extend(rows_of(number * 10, number, number, [0], 10))
    columns = [vars(table)[name] for name in vars(table) if name != "rows"]
    taken = sum(column._data.nbytes for column in columns)
    assert taken <= table.nbytes <= 2 * taken


class Interrupted:
    """A column that lets a reader run before it grows."""

    def __init__(self, column: Column, reader) -> None:  # type: ignore[no-untyped-def]
        self._column = column
        self._reader = reader

    def extend(self, values) -> None:  # type: ignore[no-untyped-def]
        self._reader()
        self._column.extend(values)

    @property
    def values(self):  # type: ignore[no-untyped-def]
        return self._column.values


def test_a_reader_never_meets_half_a_row() -> None:
    """Readers hold no lock: wherever the writer is, what they find is whole."""
    columns = [name for name in vars(IndexTable()) if name != "rows"]
    for name in columns:
        table = two_batches()

        def read(table: IndexTable = table) -> None:
            assert table.boundary_after(100) in (None, Boundary(130, 3))
            assert table.batch_at(120) == 1
            assert table.unverified(0, 130) == [0, 1]
            assert table.boundary_of_record(2) == Boundary(100, 2)
            assert [table.batch(n).records for n in range(table.batches)][:2] == [2, 1]

        setattr(table, name, Interrupted(getattr(table, name), read))
        table.extend(rows_of(130, 3, 12, [0], 30))
        assert table.boundary_after(100) == Boundary(130, 3)
