"""The demo's doubt: is what was read what was written?"""

from __future__ import annotations

import pyarrow as pa

from lance_spark.cli.demo_record import make_records
from lance_spark.errors import LanceError


class Comparison:
    """Compares what is read, in order, with the records [0, records).

    After a crash a producer sends again what had no answer, and some of that may have
    been stored: then the records [0, a) are followed by [b, records) with b below a.

    Args:
        records: how many were written.
        stored: how many are there.
        acknowledged: how many had an answer before the crash; b is not below it.

    Raises:
        LanceError: there are fewer than were written.
    """

    def __init__(self, records: int, *, stored: int, acknowledged: int) -> None:
        if stored < records:
            raise LanceError(f"{records} records were acknowledged, {stored} are there")
        self.doubled = stored - records
        self._records = records
        self._acknowledged = acknowledged
        # Number of the next record.
        self._next = 0
        self._is_doubling_left = self.doubled > 0

    def feed(self, rows: pa.RecordBatch) -> None:
        """Compare the next rows.

        Raises:
            LanceError: they are others.
        """
        rest = self._match(rows)
        if rest.num_rows and self._is_doubling_left:
            self._is_doubling_left = False
            self._next -= self.doubled
            if self._next < self._acknowledged:
                raise LanceError(
                    f"record {self._next} was acknowledged before the crash and is "
                    "there again"
                )
            rest = self._match(rest)
        if rest.num_rows:
            raise LanceError(f"record {self._next} is not what was written")

    def finish(self) -> None:
        """Check that nothing is missing at the end.

        Raises:
            LanceError: something is.
        """
        if self._next != self._records:
            raise LanceError(f"the records end before number {self._next}")

    def _match(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Go over the rows that are as expected, and give the others."""
        start = self._next
        expected = make_records(start, min(start + rows.num_rows, self._records))
        same = count_same(rows, expected)
        self._next += same
        return rows.slice(same)


def count_same(rows: pa.RecordBatch, others: pa.RecordBatch) -> int:
    """Count the rows at the start of two batches that are the same."""
    low, high = 0, int(min(rows.num_rows, others.num_rows))
    if rows.slice(0, high).equals(others.slice(0, high)):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if rows.slice(low, middle - low).equals(others.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low
