"""The compiled functions in the shape of their twins. Importing it needs the build."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lance_spark.kernel._kernel import (
    follow_be32,
    follow_fluvio,
    follow_lengths,
    follow_tank,
    follow_tlv,
    measure,
    put_varints,
    weave,
)
from lance_spark.kernel._kernel import sum_spans as _sum_spans
from lance_spark.model import Buffer

__all__ = [
    "measure",
    "put_varints",
    "sum_spans",
    "walk_be32",
    "walk_fluvio",
    "walk_lengths",
    "walk_tank",
    "walk_tlv",
    "weave",
]

# First guess of a walk's output: a record per this many bytes.
_GUESS_BYTES = 64

# The least that a value takes in a chain of `walk_be32`.
_BE32_BYTES = 4
# The same for `walk_lengths`, with fixed lengths.
_FIXED_BYTES = 8

_Follow = Callable[[Buffer, int, Buffer, int, int], tuple[int, int]]


def walk_tlv(data: NDArray[np.uint8], length_max: int) -> tuple[NDArray[np.int64], int]:
    """Do what `kernel.walk_tlv` says."""
    return _collect(follow_tlv, data, length_max)


def walk_be32(data: NDArray[np.uint8], count: int) -> tuple[NDArray[np.int64], int]:
    """Do what `kernel.walk_be32` says."""
    starts = np.empty(min(count, len(data) // _BE32_BYTES), np.int64)
    end, found = follow_be32(data, starts)
    return starts[:found], end


def _collect(
    follow: _Follow, data: NDArray[np.uint8], length_max: int
) -> tuple[NDArray[np.int64], int]:
    """Give a walk as much room for its positions as it turns out to need."""
    starts = np.empty(len(data) // _GUESS_BYTES + 16, np.int64)
    position = count = 0
    while True:
        position, count = follow(data, position, starts, count, length_max)
        if count < len(starts):
            break
        # As many as there will be if the rest is like what was seen, and some more.
        expected = count * len(data) // max(position, 1)
        more = np.empty(max(expected + expected // 8, count + count // 2), np.int64)
        more[:count] = starts
        starts = more
    # A view would keep the unused rest of a wrong guess alive.
    found = starts[:count]
    return found if 2 * count > len(starts) else found.copy(), position


def sum_spans(
    data: Buffer, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Do what `kernel.sum_spans` says."""
    sums = np.empty(len(starts), np.uint32)
    _sum_spans(data, starts, ends, sums)
    return sums


def walk_tank(
    data: NDArray[np.uint8], seq: int, single: bool
) -> tuple[NDArray[np.int64], int, int]:
    """Do what `kernel.walk_tank` says."""
    # Bundles announce their messages, and were checked to have the bytes for them.
    _, count, _ = follow_tank(data, seq, single, np.empty((5, 0), np.int64))
    table = np.empty((5, count), np.int64)
    position, rows, seq = follow_tank(data, seq, single, table)
    return table[:, :rows], position, seq


def walk_lengths(
    data: NDArray[np.uint8], count: int, fixed: bool
) -> tuple[NDArray[np.int64], int]:
    """Do what `kernel.walk_lengths` says."""
    most = len(data) // _FIXED_BYTES if fixed else len(data)
    table = np.empty((2, min(count, most)), np.int64)
    end, found = follow_lengths(data, fixed, table)
    return table[:, :found], end


def walk_fluvio(
    data: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Do what `kernel.walk_fluvio` says."""
    # Batches announce their records, and were checked to have the bytes for them.
    table, batches = np.empty((5, 0), np.int64), np.empty((2, 0), np.int64)
    position, rows, count = follow_fluvio(data, table, batches)
    if count:
        table, batches = np.empty((5, rows), np.int64), np.empty((2, count), np.int64)
        position, rows, count = follow_fluvio(data, table, batches)
    return table[:, :rows], batches[:, :count], position
