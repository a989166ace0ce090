"""Record boundaries inside one segment.

The index knows a boundary every few KiB; what lies between two of them is read and
handed to the framing. All functions work on positions inside the segment, up to
`limit`, which is a boundary itself (the end of what may be read).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lance_spark.errors import Corrupt
from lance_spark.model import Framing, Scan
from lance_spark.store.index import Boundary, IndexTable
from lance_spark.store.segment import OpenSegment, verify_range

_NO_RECORD = Scan(np.empty(0, np.int64), 0)


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Finds the record boundaries of a segment up to a limit.

    Args:
        where: name of the log, for errors.
        base: offset of the segment's first byte, for errors.
        opened: the segment's files.
        table: its index.
        framing: finds record starts in bytes.
        limit: the boundary behind the last record that may be seen.
    """

    where: str
    base: int
    opened: OpenSegment
    table: IndexTable
    framing: Framing
    limit: Boundary

    def at_or_after(self, position: int) -> Boundary:
        """Find the first boundary that is not before a position."""
        if position >= self.limit.position:
            return self.limit
        known = self.table.boundary_before(position)
        if known.position == position:
            return known
        following = self._known_after(position)
        scan = self._scan(known, following.position)
        inside = int(scan.starts.searchsorted(position - known.position, "left"))
        if inside == len(scan.starts):
            return following
        start = known.position + int(scan.starts[inside])
        return Boundary(start, known.record + inside)

    def at_or_before(self, position: int) -> Boundary:
        """Find the last boundary that is not behind a position."""
        if position >= self.limit.position:
            return self.limit
        known = self.table.boundary_before(position)
        if known.position == position:
            return known
        # The bytes up to the position are enough: what is whole in them ends at the
        # boundary that is looked for.
        scan = self._scan(known, position)
        return Boundary(known.position + scan.end, known.record + len(scan.starts))

    def of_record(self, record: int) -> Boundary:
        """Find where a record starts."""
        if record >= self.limit.record:
            return self.limit
        known = self.table.boundary_of_record(record)
        if known.record == record:
            return known
        scan = self._scan(known, self._known_after(known.position).position)
        inside = record - known.record
        return Boundary(known.position + int(scan.starts[inside]), record)

    def _known_after(self, position: int) -> Boundary:
        known = self.table.boundary_after(position)
        if known is None or known.position > self.limit.position:
            return self.limit
        return known

    def _scan(self, known: Boundary, end: int) -> Scan:
        start = known.position
        if self.table.batch(self.table.batch_at(start)).records == 1:
            # Nothing to find inside, and its bytes need not follow the framing.
            return _NO_RECORD
        verify_range(self.where, self.base, self.opened, self.table, start, end)
        scan = self.framing(self.opened.read(start, end))
        if scan.fault is not None and not scan.fault.truncated:
            at = self.base + start + scan.fault.position
            raise Corrupt(self.where, at, self.base + end, scan.fault.reason)
        return scan
