"""LZ4 in its three forms, and what must not get through."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from typing import Any

import lz4.block
import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.errors import (
    LanceError,
    PayloadOverLimit,
    RecordError,
    RemoteProtocolError,
)
from lance_spark.wire.lwp import (
    Record,
    compress,
    decode_records,
    decompress,
    decompressed_bytes_max,
    encode_record,
)
from tests.each import each
from tests.wire.vectors import named


def whole_records(data: bytes) -> bool:
    try:
        return sum(1 for _ in decode_records(data)) > 0
    except RecordError:
        return False


@pytest.mark.parametrize("row", **named("lz4"))
def test_vectors(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    plain = bytes.fromhex(row["plain"])
    assert decompress(memoryview(data)) == plain
    assert decompress(data, accept=whole_records) == plain
    assert decompress(data, bytes_max=len(plain)) == plain
    with pytest.raises(RemoteProtocolError):
        decompress(data, bytes_max=len(plain) - 1)


@pytest.mark.parametrize("row", **named("lz4"))
def test_truncated_and_flipped(row: dict[str, Any]) -> None:
    data = bytes.fromhex(row["hex"])
    plain = bytes.fromhex(row["plain"])
    for size in range(len(data)):
        # A cut block can still be LZ4, but never the whole record.
        with pytest.raises(RemoteProtocolError):
            decompress(data[:size], accept=lambda result: result == plain)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(LanceError):
            decompress(damaged, bytes_max=4096)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=500), min_size=1, max_size=20))
def test_all_forms_of_real_payloads(values: list[bytes]) -> None:
    plain = b"".join(encode_record(Record(1, value)) for value in values)
    for data in (
        compress(plain),
        lz4.block.compress(plain, store_size=True),
        lz4.frame.compress(plain),
    ):
        assert decompress(data, accept=whole_records) == plain


def test_written_is_a_raw_block() -> None:
    assert compress(b"a") == b"\x10a"


def test_a_block_that_is_not_accepted() -> None:
    with pytest.raises(RemoteProtocolError, match="no records"):
        decompress(compress(b"not a record"), accept=whole_records)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x04\x22\x4d\x18",
        b"\x04\x22\x4d\x18" + b"\xff" * 20,
        lz4.frame.compress(b"hello")[:-2],
        lz4.frame.compress(b"hello") + b"x",
        b"\xff" * 30,
        random.Random(1).randbytes(1000),
    ],
    ids=["nothing", "magic", "bad header", "cut", "bytes behind", "ones", "noise"],
)
def test_not_lz4(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not LZ4"):
        decompress(data)


def test_declared_size_over_the_limit() -> None:
    data = lz4.frame.compress(bytes(2000))
    with pytest.raises(PayloadOverLimit) as caught:
        decompress(data, bytes_max=1000)
    assert (caught.value.size, caught.value.limit) == (2000, 1000)


@each("size", [0, 1, 262_143, 262_144, 262_145, 600_000])
@each("store_size", [True, False])
def test_frame_that_just_fits(size: int, store_size: bool) -> None:
    data = lz4.frame.compress(bytes(size), store_size=store_size)
    assert decompress(data, bytes_max=size) == bytes(size)
    if size:
        with pytest.raises(RemoteProtocolError):
            decompress(data, bytes_max=size - 1)


def test_size_in_front_must_be_met() -> None:
    block = compress(b"hello")
    assert decompress(struct.pack("<I", 5) + block) == b"hello"
    for size in (4, 6):
        with pytest.raises(RemoteProtocolError):
            decompress(struct.pack("<I", size) + block, accept=whole_records)


BOMB = bytes(64 * 1024 * 1024)


@pytest.mark.parametrize(
    "data",
    [
        compress(BOMB),
        lz4.block.compress(BOMB, store_size=True),
        lz4.frame.compress(BOMB, store_size=False),
        lz4.frame.compress(BOMB, store_size=True),
        struct.pack("<I", 2**32 - 1) + compress(BOMB),
    ],
    ids=["raw", "size in front", "frame", "frame with size", "false size"],
)
def test_bombs(data: bytes) -> None:
    limit = 1024 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decompress(data, bytes_max=limit)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The bound itself, and for the frame a copy of the input and its blocks.
    assert peak < limit + 2 * len(data) + 200_000


def test_small_input_gets_a_small_buffer() -> None:
    tracemalloc.start()
    try:
        assert decompress(b"\x10a") == b"a"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000


def test_limit_beyond_what_the_library_counts() -> None:
    data = compress(BOMB)
    assert len(data) * 255 < 2**31 < 2**40
    assert len(decompress(data, bytes_max=2**40)) == len(BOMB)


def test_what_may_become_of_a_payload_is_bounded_before() -> None:
    assert decompressed_bytes_max(b"x" * 10, 10_000) == 2614
    assert decompressed_bytes_max(b"x" * 9999, 10_000) == 10_000
