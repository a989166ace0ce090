"""Every kind of memory is seen as the same bytes, and records are cut and selected."""

from __future__ import annotations

import array
import mmap
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.records import Records, Spans, as_bytes
from tests.each import each

DATA = bytes(range(7))


@each(
    "data",
    [
        DATA,
        bytearray(DATA),
        memoryview(DATA),
        memoryview(b"x" + DATA)[1:],
        pa.py_buffer(DATA),
        np.frombuffer(DATA, np.uint8),
        np.repeat(np.frombuffer(DATA, np.uint8), 2)[::2],
        array.array("B", DATA),
    ],
    ids=lambda data: type(data).__name__,
)
def test_sees_bytes(data):
    view = as_bytes(data)
    assert view.dtype == np.uint8
    assert view.tobytes() == DATA
    assert view.flags.c_contiguous


@pytest.mark.parametrize(
    "data", [b"", bytearray(), memoryview(b""), pa.py_buffer(b""), np.empty(0, "u1")]
)
def test_sees_nothing(data):
    assert len(as_bytes(data)) == 0


def test_copies_nothing():
    with mmap.mmap(-1, 8) as memory:
        view = as_bytes(memory)
        memory[3] = 9
        assert view[3] == 9
        del view


def spans(*lengths: int) -> Spans:
    ends = np.cumsum(lengths)
    return Spans(np.zeros(ends[-1], np.uint8), ends - lengths, ends)


class TestRows:
    RECORDS = Records(
        spans(1, 2, 3, 4),
        base=100,
        nulls=np.array([False, False, True, False]),
        keyed=np.array([1, 3]),
        keys=spans(5, 6),
        stamped=np.array([0, 1]),
        stamps_ns=np.array([7, 8], np.uint64),
    )

    def test_positions_that_have_no_gaps(self):
        assert len(self.RECORDS) == 4
        assert self.RECORDS.find_positions().tolist() == [100, 101, 102, 103]
        assert self.RECORDS.find_nexts().tolist() == [101, 102, 103, 104]
        assert self.RECORDS.position(2) == 102

    def test_nexts_with_gaps_stay_where_they_are(self):
        records = replace(self.RECORDS, nexts=np.array([1, 2, 3, 9]))
        assert records.cut(1, 4).find_nexts().tolist() == [102, 103, 109]
        assert records.select(np.array([1, 3])).find_nexts().tolist() == [102, 109]

    @pytest.mark.parametrize("how", ["cut", "select"])
    def test_some_rows(self, how):
        records = self.RECORDS
        if how == "cut":
            some = records.cut(1, 4)
        else:
            some = records.select(np.array([1, 2, 3]))
        assert some.find_positions().tolist() == [101, 102, 103]
        assert some.position(1) == 102
        assert some.values.lengths.tolist() == [2, 3, 4]
        assert some.nulls.tolist() == [False, True, False]
        assert some.keyed.tolist() == [0, 2]
        assert some.keys.lengths.tolist() == [5, 6]
        assert (some.stamped.tolist(), some.stamps_ns.tolist()) == ([0], [8])
        assert records.cut(0, 4) is records
