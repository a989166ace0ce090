"""Every kind of memory is seen as the same bytes."""

from __future__ import annotations

import array
import mmap

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.columnar.buffer import as_bytes

DATA = bytes(range(7))


@pytest.mark.parametrize(
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
