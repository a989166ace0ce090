"""`Records`: the one model of records between all formats.

Each format has two functions: `read_records` makes `Records` of its bytes, and
`write_records` makes its bytes of `Records`; Arrow has the same two, in `columnar`. So
records get from any protocol to any other, and to Arrow, without becoming Python
objects: all that is here are arrays of positions in buffers that belong to others.
"""

from __future__ import annotations

from dataclasses import field, replace

import numpy as np
from numpy.typing import NDArray

from lance_spark.errors import LanceError
from lance_spark.model import Buffer
from lance_spark.value import dataclass

_Bytes = NDArray[np.uint8]
_Positions = NDArray[np.int64]
_Rows = NDArray[np.int64] | slice

_NO_ROWS = np.empty(0, np.int64)
_NO_STAMPS = np.empty(0, np.uint64)


def as_bytes(data: Buffer) -> _Bytes:
    """View contiguous memory as an array of bytes, without a copy."""
    if isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1:
        # NumPy's own arrays may be empty or strided, which a buffer may not.
        return np.ascontiguousarray(data)
    return np.frombuffer(data, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Pieces `[start, end)` of a buffer, in any order; they may overlap.

    Args:
        data: the bytes.
        starts: where each piece starts, int64.
        ends: where each piece ends, int64.
    """

    data: _Bytes
    starts: _Positions
    ends: _Positions

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> _Positions:
        """How many bytes each piece has."""
        return self.ends - self.starts

    def select(self, rows: _Rows) -> Spans:
        """Keep some of the pieces."""
        return Spans(self.data, self.starts[rows], self.ends[rows])


NO_SPANS = Spans(np.empty(0, np.uint8), _NO_ROWS, _NO_ROWS)


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """Some records of one partition, or rows on their way into one.

    A row without a key is not in `keyed`; a row in `keyed` may have an empty key. A row
    whose value is null has an empty span and is marked in `nulls`.

    Args:
        values: the values, one per row.
        base: what has to be added to `positions` and `nexts`.
        positions: where each record is in its partition, counted from `base`; of rows
            that are not stored yet, their index, for errors. None if they are 0, 1, …
        nexts: the position behind each record, counted from `base`; None if it is the
            position plus one.
        types: the record types; -1 where a row names none. None if no row does.
        nulls: which values are null; None if none is.
        keyed: the rows that have a key, ascending.
        keys: the keys of those rows.
        stamped: the rows that have a timestamp, ascending.
        stamps_ns: the timestamps of those rows, in ns since 1970.
        fault: why nothing behind the last row could be read; None if all was.
    """

    values: Spans
    base: int = 0
    positions: _Positions | None = None
    nexts: _Positions | None = None
    types: NDArray[np.integer] | None = None
    nulls: NDArray[np.bool_] | None = None
    keyed: _Positions = field(default_factory=lambda: _NO_ROWS)
    keys: Spans = NO_SPANS
    stamped: _Positions = field(default_factory=lambda: _NO_ROWS)
    stamps_ns: NDArray[np.uint64] = field(default_factory=lambda: _NO_STAMPS)
    fault: LanceError | None = None

    def __len__(self) -> int:
        return len(self.values)

    def position(self, row: int) -> int:
        """Say where the record of a row is in its partition."""
        return self.base + int(row if self.positions is None else self.positions[row])

    def find_positions(self) -> _Positions:
        """Say where all records are in their partition."""
        if self.positions is None:
            return np.arange(self.base, self.base + len(self))
        return self.positions + self.base

    def find_nexts(self) -> _Positions:
        """Say where each record's successor is in the partition."""
        if self.nexts is None:
            return self.find_positions() + 1
        return self.nexts + self.base

    def cut(self, start: int, stop: int) -> Records:
        """Keep the rows `[start, stop)`, without a copy of what they hold."""
        if start == 0 and stop == len(self):
            return self
        keyed = slice(*np.searchsorted(self.keyed, (start, stop)))
        stamped = slice(*np.searchsorted(self.stamped, (start, stop)))
        base = self.base + start if self.positions is None else self.base
        cut = self._pick(slice(start, stop), keyed, stamped)
        nexts = cut.nexts
        if nexts is not None and base != self.base:
            nexts = nexts - start
        return replace(
            cut,
            base=base,
            nexts=nexts,
            keyed=cut.keyed - start,
            stamped=cut.stamped - start,
        )

    def select(self, rows: _Positions) -> Records:
        """Keep some rows, which are given in ascending order."""
        new_rows = np.full(len(self), -1, np.int64)
        new_rows[rows] = np.arange(len(rows))
        keyed = np.flatnonzero(new_rows[self.keyed] >= 0)
        stamped = np.flatnonzero(new_rows[self.stamped] >= 0)
        some = self._pick(rows, keyed, stamped)
        return replace(
            some,
            positions=rows if self.positions is None else some.positions,
            keyed=new_rows[some.keyed],
            stamped=new_rows[some.stamped],
        )

    def _pick(self, rows: _Rows, keyed: _Rows, stamped: _Rows) -> Records:
        """Keep some rows, and what is said of some of those with a key or a time."""
        return replace(
            self,
            values=self.values.select(rows),
            positions=None if self.positions is None else self.positions[rows],
            nexts=None if self.nexts is None else self.nexts[rows],
            types=None if self.types is None else self.types[rows],
            nulls=None if self.nulls is None else self.nulls[rows],
            keyed=self.keyed[keyed],
            keys=self.keys.select(keyed),
            stamped=self.stamped[stamped],
            stamps_ns=self.stamps_ns[stamped],
        )
