"""Checksums that are put together."""

from __future__ import annotations

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.store.reader import combine_crc32c


@given(st.binary(max_size=2000), st.binary(max_size=2000))
def test_two_runs(first: bytes, second: bytes) -> None:
    whole = crc32c(first + second)
    assert combine_crc32c(crc32c(first), crc32c(second), len(second)) == whole


@given(st.binary(min_size=1, max_size=20), st.integers(0, 3_000_000))
def test_a_long_run(first: bytes, size: int) -> None:
    second = bytes(size)
    whole = crc32c(first + second)
    assert combine_crc32c(crc32c(first), crc32c(second), size) == whole


def test_many_runs() -> None:
    runs = [bytes([n]) * (n * n) for n in range(60)]
    crc = 0
    for run in runs:
        crc = combine_crc32c(crc, crc32c(run), len(run))
    assert crc == crc32c(b"".join(runs))
