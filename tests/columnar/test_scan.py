"""Where records start: kernel, twin and plain reading agree on every input."""

from __future__ import annotations

import random
import struct
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.columnar.scan import KERNEL, scan, scan_kernel, scan_python
from lance_spark.errors import RecordError
from lance_spark.model import RECORD_VALUE_BYTES_MAX
from tests.columnar import plain
from tests.columnar.strategies import buffers, examples, record

needs_kernel = pytest.mark.skipif(not KERNEL, reason="the kernel was not built")
BOTH = [pytest.param(scan_kernel, marks=needs_kernel), scan_python]


def summarize(found):
    fault = found.fault
    error = fault and (fault.reason, fault.position, fault.truncated)
    return found.starts.tolist(), found.end, error


def scan_plainly(data):
    """Follow the chain with the reference, which also looks inside records."""
    starts, at = [], 0
    while at < len(data):
        try:
            end = plain.read_record(data, at).next_offset
        except plain.InnerError as error:
            end = error.end
        except RecordError as error:
            return starts, at, (error.position, error.truncated)
        starts.append(at)
        at = end
    return starts, at, None


@given(buffers())
@examples(200)
def test_twin_agrees_with_plain_reading(data):
    starts, end, error = summarize(scan_python(data))
    assert (starts, end, error and error[1:]) == scan_plainly(data)


@needs_kernel
@given(st.one_of(buffers(), st.binary(max_size=200)))
@examples(200)
def test_kernel_agrees_with_twin(data):
    assert summarize(scan_kernel(data)) == summarize(scan_python(data))


@needs_kernel
@pytest.mark.parametrize("seed", range(40))
def test_kernel_agrees_with_twin_on_long_chains(seed):
    choice = random.Random(seed)
    usual = choice.randrange(40)
    often = choice.choice([0.0, 0.5, 0.99, 1.0])
    sizes = [
        usual if choice.random() < often else choice.randrange(60)
        for _ in range(choice.choice([100, 5_000, 20_000]))
    ]
    data = bytearray(b"".join(record(1, bytes(size)) for size in sizes))
    damage = choice.choice(["none", "zero", "cut", "flip"])
    if damage == "zero":
        at = choice.randrange(len(data))
        data[at : at + 64] = bytes(64)
    elif damage == "cut":
        del data[choice.randrange(len(data)) :]
    elif damage == "flip":
        data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    found = scan_kernel(data)
    assert summarize(found) == summarize(scan_python(data))
    if damage == "none":
        assert len(found.starts) == len(sizes)


@pytest.mark.parametrize("scan", BOTH)
class TestFaults:
    GOOD = record(1, b"abc")

    def check(self, scan, tail, *, truncated):
        found = scan(self.GOOD + tail)
        assert found.starts.tolist() == [0]
        assert found.starts.dtype == np.int64
        assert found.end == 8
        assert found.fault.position == 8
        assert found.fault.truncated is truncated
        return found.fault.reason

    def test_nothing(self, scan):
        found = scan(b"")
        assert found.starts.dtype == np.int64
        assert summarize(found) == ([], 0, None)

    def test_whole(self, scan):
        assert summarize(scan(self.GOOD * 3)) == ([0, 8, 16], 24, None)

    @pytest.mark.parametrize("size", range(1, 9))
    def test_truncated(self, scan, size):
        tail = record(1, b"abcd")[:size]
        assert "ends inside" in self.check(scan, tail, truncated=True)

    @pytest.mark.parametrize("size", range(1, 9))
    def test_type_0_is_never_mended_by_more_bytes(self, scan, size):
        tail = record(0, b"abcd")[:size]
        assert "type 0" in self.check(scan, tail, truncated=False)

    def test_length_over_the_limit(self, scan):
        tail = struct.pack("<BI", 1, RECORD_VALUE_BYTES_MAX + 1)
        assert "16777217" in self.check(scan, tail, truncated=False)

    def test_length_at_the_limit_is_only_not_there_yet(self, scan):
        tail = struct.pack("<BI", 1, RECORD_VALUE_BYTES_MAX)
        self.check(scan, tail, truncated=True)

    def test_largest_record(self, scan):
        data = self.GOOD + record(1, bytes(RECORD_VALUE_BYTES_MAX)) + self.GOOD
        size = RECORD_VALUE_BYTES_MAX + 5
        assert summarize(scan(data)) == ([0, 8, 8 + size], 16 + size, None)

    def test_length_that_would_overflow(self, scan):
        self.check(scan, b"\x01\xff\xff\xff\xff" + bytes(99), truncated=False)

    def test_fault_inside_a_run(self, scan):
        data = bytearray(self.GOOD * 5000)
        data[8 * 4321] = 0
        found = scan(data)
        assert len(found.starts) == 4321
        assert found.fault.position == found.end == 8 * 4321

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
    def test_kinds_of_memory(self, scan, kind):
        assert summarize(scan(kind(self.GOOD * 2))) == ([0, 8], 16, None)


def test_scan_uses_what_there_is(kernel):
    assert summarize(scan(record(1, b"ab") * 3)) == ([0, 7, 14], 21, None)
    assert sys.modules["lance_spark.columnar.scan"].KERNEL is kernel


@needs_kernel
class TestKernelArguments:
    """The kernel trusts nobody: it is C, and a mistake of ours must not be a crash."""

    @staticmethod
    def follow(*args):
        from lance_spark.columnar._scan import follow

        return follow(*args)

    def test_fills_what_there_is(self):
        starts = np.zeros(2, np.int64)
        data = record(1, b"") * 3
        assert self.follow(data, 0, starts, 0, 100) == (10, 2)
        assert self.follow(data, 10, starts, 1, 100) == (15, 2)
        assert starts.tolist() == [0, 10]

    @pytest.mark.parametrize(
        ("position", "count", "limit"),
        [(-1, 0, 9), (6, 0, 9), (0, -1, 9), (0, 3, 9), (0, 0, 2**31)],
    )
    def test_refuses_what_is_out_of_range(self, position, count, limit):
        starts = np.zeros(2, np.int64)
        with pytest.raises(ValueError, match="out of range"):
            self.follow(record(1, b""), position, starts, count, limit)

    def test_refuses_unaligned_output(self):
        starts = np.zeros(17, np.uint8)[1:]
        with pytest.raises(ValueError, match="out of range"):
            self.follow(b"", 0, starts, 0, 9)

    def test_refuses_read_only_output(self):
        with pytest.raises(TypeError):
            self.follow(b"", 0, bytes(16), 0, 9)

    def test_other_threads_run_beside_it(self):
        data = record(1, b"") * 1_000_000
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(len(scan_kernel(data).starts)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == [1_000_000] * 4


def test_import_without_the_kernel(monkeypatch):
    import importlib.util

    name = "lance_spark.columnar.scan"
    monkeypatch.setitem(sys.modules, "lance_spark.columnar._scan", None)
    spec = importlib.util.find_spec(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.KERNEL is False
    assert summarize(module.scan(record(1, b"ab") * 2)) == ([0, 7], 14, None)
