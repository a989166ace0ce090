"""The rows of one segment in memory, by column, ready to be searched.

Two tables: batches, and boundaries (every record start that the index knows, those of
the batches among them). Columns are separate arrays because a binary search over a
field of a structured array would copy the whole column each time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lance_spark.store.format import Kind, Rows


class Column:
    """An array that grows by doubling."""

    __slots__ = ("_data", "_length")

    def __init__(self, dtype: Any) -> None:
        self._data: NDArray[Any] = np.empty(16, dtype)
        self._length = 0

    def extend(self, values: NDArray[Any]) -> None:
        """Append values; arrays handed out before keep what they showed."""
        length = self._length + len(values)
        if length > len(self._data):
            grown = np.empty(max(length, 2 * len(self._data)), self._data.dtype)
            grown[: self._length] = self._data[: self._length]
            self._data = grown
        self._data[self._length : length] = values
        self._length = length

    @property
    def values(self) -> NDArray[Any]:
        """The values so far."""
        return self._data[: self._length]


# A batch has six numbers and two flags, a boundary two numbers; columns may be half
# empty after they have grown.
_ROW_MEMORY_BYTES = 2 * (6 * 8 + 2 + 2 * 8)


class Boundary(NamedTuple):
    """A record start (or the end of the last record), inside a segment."""

    position: int
    record: int


class Batch(NamedTuple):
    """One batch of a segment."""

    number: int
    position: int
    length: int
    record: int
    records: int
    append_ns: int
    data_crc: int
    lost: bool

    @property
    def end(self) -> int:
        """Position behind the batch."""
        return self.position + self.length


class IndexTable:
    """The index of a segment, as far as it has been read."""

    def __init__(self) -> None:
        self.rows = 0
        self._position = Column(np.int64)
        self._record = Column(np.int64)
        self._append_ns = Column(np.int64)
        self._length = Column(np.int64)
        self._records = Column(np.int64)
        self._data_crc = Column(np.uint32)
        self._lost = Column(np.bool_)
        # Which batches were compared with their checksum since this was loaded.
        self._verified = Column(np.bool_)
        self._boundary_position = Column(np.int64)
        self._boundary_record = Column(np.int64)

    def extend(self, rows: Rows) -> None:
        """Take in further rows, in the order of the file."""
        batches = rows[rows["kind"] != Kind.INNER]
        self._record.extend(batches["record"])
        self._append_ns.extend(batches["append_ns"])
        self._length.extend(batches["length"])
        self._records.extend(batches["records"])
        self._data_crc.extend(batches["data_crc"])
        self._lost.extend(batches["kind"] == Kind.LOST)
        self._verified.extend(np.zeros(len(batches), np.bool_))
        self._boundary_record.extend(rows["record"])
        # Last, because they are what is searched: whoever finds a row, while others
        # are added, finds all of it.
        self._position.extend(batches["position"])
        self._boundary_position.extend(rows["position"])
        self.rows += len(rows)

    @property
    def nbytes(self) -> int:
        """Memory in use, about; asked often, so it is not added up."""
        return self.rows * _ROW_MEMORY_BYTES

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return len(self._position.values)

    def batch(self, number: int) -> Batch:
        """Give a batch by its number in the segment."""
        return Batch(
            number,
            int(self._position.values[number]),
            int(self._length.values[number]),
            int(self._record.values[number]),
            int(self._records.values[number]),
            int(self._append_ns.values[number]),
            int(self._data_crc.values[number]),
            bool(self._lost.values[number]),
        )

    def batch_at(self, position: int) -> int:
        """Find the batch that holds a position."""
        found = np.searchsorted(self._position.values, position, "right")
        return int(found) - 1

    def batch_at_time(self, append_ns: int) -> int:
        """Find the first batch appended at or after a time."""
        return int(np.searchsorted(self._append_ns.values, append_ns, "left"))

    def unverified(self, start: int, end: int) -> list[int]:
        """List the batches in [start, end) that were not verified yet."""
        first = self.batch_at(start)
        last = int(np.searchsorted(self._position.values, end, "left"))
        open_ones = np.flatnonzero(~self._verified.values[first:last])
        return [first + int(n) for n in open_ones]

    def set_verified(self, number: int) -> None:
        """Note that a batch's bytes have the checksum of its row."""
        self._verified.values[number] = True

    def boundary_before(self, position: int) -> Boundary:
        """Find the last known boundary at or before a position."""
        found = np.searchsorted(self._boundary_position.values, position, "right")
        return self._boundary(int(found) - 1)

    def boundary_after(self, position: int) -> Boundary | None:
        """Find the first known boundary behind a position."""
        found = np.searchsorted(self._boundary_position.values, position, "right")
        if found == len(self._boundary_position.values):
            return None
        return self._boundary(int(found))

    def boundary_of_record(self, record: int) -> Boundary:
        """Find the last known boundary whose record number is at most this one."""
        found = np.searchsorted(self._boundary_record.values, record, "right")
        return self._boundary(int(found) - 1)

    def _boundary(self, number: int) -> Boundary:
        return Boundary(
            int(self._boundary_position.values[number]),
            int(self._boundary_record.values[number]),
        )
