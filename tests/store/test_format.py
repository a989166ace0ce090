"""The bytes of an index file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from crc32c import crc32c

from lance_spark.store.format import (
    HEADER_BYTES,
    INNER_ROWS,
    ROW_BYTES,
    IndexHeader,
    IndexMark,
    Kind,
    SegmentName,
    decode_header,
    decode_mark,
    decode_rows,
    encode_batch_row,
    encode_header,
    encode_mark,
    has_lost_mark,
    make_batch_rows,
    mark_position,
    parse_segment_name,
    seal_rows,
    valid_rows,
)
from tests.each import each

HEADER = IndexHeader(7, SegmentName(3, 1_700), 5_000, 40, 900)
ENCODED = encode_header(HEADER, IndexMark(10, 1, 0))


def test_the_header_on_disk() -> None:
    fields = (
        b"LSINDEX0"
        + (1).to_bytes(4, "little")
        + (7).to_bytes(4, "little")
        + (3).to_bytes(8, "little")
        + (5_000).to_bytes(8, "little")
        + (40).to_bytes(8, "little")
        + (900).to_bytes(8, "little")
        + (1_700).to_bytes(8, "little")
        + bytes(4)
    )
    assert ENCODED[:64] == fields + crc32c(fields).to_bytes(4, "little")
    assert len(ENCODED) == HEADER_BYTES == 128


def test_a_header_comes_back() -> None:
    assert decode_header(ENCODED) == HEADER
    assert decode_mark(ENCODED) == IndexMark(10, 1, 0)


@each("size", range(HEADER_BYTES))
def test_a_cut_header(size: int) -> None:
    assert decode_header(ENCODED[:size]) == f"header has {size} of 128 bytes"


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (0, "not an index file"),
        (8, "version 0 is not supported"),
        (16, "header checksum differs"),
        (60, "header checksum differs"),
    ],
)
def test_a_damaged_header(position: int, reason: str) -> None:
    damaged = bytearray(ENCODED)
    damaged[position] ^= 1
    assert decode_header(bytes(damaged)) == reason


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    for bit in range(64 * 8):
        damaged = bytearray(ENCODED)
        damaged[bit // 8] ^= 1 << bit % 8
        assert isinstance(decode_header(bytes(damaged)), str), bit


def with_marks(first: bytes, second: bytes) -> bytes:
    return bytes(64) + first + second


def test_marks_are_written_in_turn() -> None:
    assert [mark_position(count) for count in range(4)] == [64, 96, 64, 96]


def test_the_newest_mark_counts() -> None:
    old, new = encode_mark(IndexMark(100, 1, 4)), encode_mark(IndexMark(200, 2, 5))
    assert decode_mark(with_marks(old, new)) == IndexMark(200, 2, 5)
    assert decode_mark(with_marks(new, old)) == IndexMark(200, 2, 5)


def test_a_torn_mark_leaves_the_older_one() -> None:
    old, new = encode_mark(IndexMark(100, 1, 4)), encode_mark(IndexMark(200, 2, 5))
    for size in range(24):
        torn = new[:size].ljust(32, b"\xee")
        assert decode_mark(with_marks(old, torn)) == IndexMark(100, 1, 4)


def test_a_mark_that_was_there_is_missed() -> None:
    none, bad = bytes(32), b"\xee" * 32
    zero, one, two = (encode_mark(IndexMark(100, 1, count)) for count in range(3))
    for first, second in [(zero, none), (zero, one), (two, one)]:
        assert not has_lost_mark(with_marks(first, second))
    for first, second in [(zero, bad), (two, none), (none, one), (bad, one)]:
        assert has_lost_mark(with_marks(first, second))
    assert has_lost_mark(with_marks(none, none))
    assert not has_lost_mark(encode_header(HEADER, IndexMark()))


@pytest.mark.parametrize("lazy", [False, True])
def test_a_header_says_how_its_segment_is_written(lazy: bool) -> None:
    header = replace(HEADER, lazy=lazy)
    assert decode_header(encode_header(header, IndexMark())) == header


def test_no_mark_at_all() -> None:
    assert decode_mark(with_marks(b"\xee" * 32, b"\xee" * 32)) == IndexMark(0, 0, 0)
    assert decode_mark(bytes(128)) == IndexMark(0, 0, 0)


def test_a_row_on_disk() -> None:
    row = encode_batch_row(1, 2, 3, 4, 5, 6)
    fields = (
        (1).to_bytes(8, "little")
        + (2).to_bytes(8, "little")
        + (3).to_bytes(8, "little")
        + (4).to_bytes(4, "little")
        + (5).to_bytes(4, "little")
        + (6).to_bytes(4, "little")
        + (Kind.BATCH).to_bytes(2, "little")
        + bytes(6)
    )
    assert row == fields + crc32c(fields).to_bytes(4, "little")
    assert len(row) == ROW_BYTES == 48


def rows_of(starts: list[int], length: int, stride: int = 64) -> np.ndarray:
    array = np.array(starts, np.int64)
    return decode_rows(make_batch_rows(1_000, 10, 99, length, array, 77, stride))


def test_a_batch_below_the_stride_has_one_row() -> None:
    array = np.array([0, 30], np.int64)
    row = make_batch_rows(1_000, 10, 99, 64, array, 77, 64)
    assert row == encode_batch_row(1_000, 10, 99, 64, 2, 77)


def test_a_larger_batch_has_a_row_behind_each_stride() -> None:
    rows = rows_of([0, 50, 100, 150, 200], 250)
    assert rows["kind"].tolist() == [Kind.BATCH, Kind.INNER, Kind.INNER, Kind.INNER]
    assert rows["position"].tolist() == [1_000, 1_100, 1_150, 1_200]
    assert rows["record"].tolist() == [10, 12, 13, 14]
    assert rows["length"].tolist() == [250, 150, 100, 50]
    assert rows["records"].tolist() == [5, 3, 2, 1]
    assert rows["data_crc"].tolist() == [77, 0, 0, 0]
    assert rows["inner"].tolist() == [3, 0, 0, 0]
    assert rows["append_ns"].tolist() == [99] * 4
    assert valid_rows(rows).all()


def test_a_record_that_starts_on_a_stride_has_a_row() -> None:
    rows = rows_of([0, 64, 100, 128], 190)
    assert rows["position"].tolist() == [1_000, 1_064, 1_128]


def test_a_record_over_several_strides_has_no_row_inside() -> None:
    rows = rows_of([0, 10, 1_000], 1_010)
    assert rows["position"].tolist() == [1_000, 2_000]
    assert rows_of([0], 1_000)["position"].tolist() == [1_000]


def test_a_large_batch_has_no_more_inner_rows_than_others() -> None:
    length = 64 * 70_000
    rows = rows_of(list(range(0, length, 64)), length)
    assert len(rows) - 1 == rows[0]["inner"] == INNER_ROWS - 1
    assert valid_rows(rows).all()
    # As far apart as the others, where a record starts.
    gaps = np.diff(rows["position"])
    assert gaps.max() - gaps.min() <= 64


def test_a_row_that_is_not_whole_is_left_out() -> None:
    row = encode_batch_row(0, 0, 0, 1, 1, 0)
    assert len(decode_rows(row + row[:47])) == 1
    assert len(decode_rows(b"")) == 0


# Up to 16 rows are summed one by one, more of them through the tables.
@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_every_flipped_bit_of_a_row_is_noticed(count: int) -> None:
    sound = b"".join(encode_batch_row(n * 9, n, n, 9, 1, n * 77) for n in range(count))
    assert valid_rows(decode_rows(sound)).all()
    for bit in range(0, ROW_BYTES * 8, 3):
        damaged = bytearray(sound)
        damaged[(count - 1) * ROW_BYTES + bit // 8] ^= 1 << bit % 8
        valid = valid_rows(decode_rows(bytes(damaged)))
        assert valid.tolist() == [True] * (count - 1) + [False], bit


@pytest.mark.parametrize("kind", [0, 4, 65_535])
def test_an_unknown_kind_is_no_row(kind: int) -> None:
    rows = decode_rows(encode_batch_row(0, 0, 0, 1, 1, 0)).copy()
    rows["kind"] = kind
    assert not valid_rows(decode_rows(seal_rows(rows))).any()


def test_a_hole_of_zeros_is_no_row() -> None:
    assert not valid_rows(decode_rows(bytes(3 * ROW_BYTES))).any()


def test_names_of_segment_files() -> None:
    name = SegmentName(12, 1_700)
    assert (name.data_file, name.index_file) == ("12_1700.lnc", "12_1700.idx")
    assert parse_segment_name("12_1700.lnc") == (name, "lnc")
    assert parse_segment_name("12_1700.idx") == (name, "idx")


@pytest.mark.parametrize(
    "name",
    ["metadata.json", "12_1700.lnc.tmp", "12-1700.lnc", "_1.lnc", "1_.idx", "a_1.idx"],
)
def test_names_of_other_files(name: str) -> None:
    assert parse_segment_name(name) is None


def test_many_rows_are_checked_at_once() -> None:
    data = b"".join(
        encode_batch_row(n * 1000, n * 7, n, 1000, 7, crc32c(bytes([n % 256])))
        for n in range(1, 400)
    )
    rows = decode_rows(data)
    assert valid_rows(rows).all()
    for at in (0, 13, 24, 43, 44, 47):
        damaged = bytearray(data)
        damaged[200 * ROW_BYTES + at] ^= 0x10
        valid = valid_rows(decode_rows(bytes(damaged)))
        assert np.flatnonzero(~valid).tolist() == [200]
