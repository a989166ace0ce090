"""The few loops that look at single records: walks over bytes, and `weave`.

Each exists twice: compiled in `_kernel.c`, which pip builds where it finds a compiler,
and in Python in `twin`. This file chooses; both give the same answers for every input.
A walk only says where records start and where it stopped: a protocol's own package says
what they mean and why the walk stopped.

A walk for another protocol is one function in `_kernel.c`, its twin, and one function
here; `compiled` gives it room for its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lance_spark.model import Buffer

# Where the functions below come from.
_source: ModuleType
try:
    from lance_spark.kernel import compiled

    _source = compiled
except ImportError:  # pip found no compiler.
    from lance_spark.kernel import twin

    _source = twin

# Whether the compiled functions were built.
COMPILED = _source.__name__.endswith(".compiled")

# The data, where each span of it starts, and where it ends: (n,) int64 each.
Part = tuple[Buffer, NDArray[np.int64], NDArray[np.int64]]


def walk_tlv(data: NDArray[np.uint8], length_max: int) -> tuple[NDArray[np.int64], int]:
    """Follow a chain of LWP records (type u8, length u32, value).

    Returns:
        The start of every whole record up to the end of the data or the first header
        that is not one of a whole record, and where the walk stopped.
    """
    found: tuple[NDArray[np.int64], int] = _source.walk_tlv(data, length_max)
    return found


def walk_be32(data: NDArray[np.uint8], count: int) -> tuple[NDArray[np.int64], int]:
    """Follow a chain of values, each behind its length (u32, big-endian).

    Args:
        data: the chain; other bytes may follow.
        count: how many values to find at most. It may be any number: the memory taken
            is at most twice that of the data.

    Returns:
        The start of every whole value, that is of its length, and where the walk
        stopped.
    """
    found: tuple[NDArray[np.int64], int] = _source.walk_be32(data, count)
    return found


def measure(
    starts: NDArray[np.int64], ends: NDArray[np.int64], offsets: NDArray[np.int32]
) -> int:
    """Find where spans end up that are laid one behind the other, as Arrow counts.

    Args:
        starts: where each span starts.
        ends: where each span ends.
        offsets: filled with 0 and the end of each span; one longer than the others.
            Means nothing if the total is 2 GiB or more.

    Returns:
        How many bytes the spans have together.

    Raises:
        ValueError: a span ends before it starts, or the arrays do not fit together.
    """
    total: int = _source.measure(starts, ends, offsets)
    return total


def put_varints(out: Buffer, at: NDArray[np.int64], values: NDArray[np.uint64]) -> None:
    """Write unsigned integers as LEB128: seven bits a byte, the low ones first.

    Args:
        out: writable.
        at: where each of them starts in it.
        values: the integers.

    Raises:
        ValueError: one of them does not fit into the output, or the arrays do not fit
            together.
    """
    _source.put_varints(out, at, values)


def sum_spans(
    data: Buffer, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Compute the CRC-32C of each span.

    Args:
        data: the bytes.
        starts: where each span starts.
        ends: where each span ends.

    Raises:
        ValueError: a span is not in the data, or the arrays do not fit together.
    """
    sums: NDArray[np.uint32] = _source.sum_spans(data, starts, ends)
    return sums


def weave(out: Buffer, parts: Sequence[Part]) -> None:
    """Fill a buffer with the first span of each part, then the second of each, …

    Spans may come in any order and may overlap each other. The output must not overlap
    the data.

    Args:
        out: writable, and exactly as large as all spans together.
        parts: from 1 to 8, each with the same number of spans.

    Raises:
        ValueError: a span is outside of its data, or the spans do not fill the output.
    """
    _source.weave(out, tuple(parts))


def walk_tank(
    data: NDArray[np.uint8], seq: int, single: bool
) -> tuple[NDArray[np.int64], int, int]:
    """Follow TANK's bundles and the messages in them.

    Args:
        data: bundles, each with its length in front, or one bundle without.
        seq: the sequence number of the first message, from 0; a sparse bundle names
            its own, which may be higher.
        single: the data is one bundle.

    Returns:
        Five rows, with an item per message: where its value starts and ends, where its
        key starts or -1, its time (u64 in the bits of an int64) and its sequence
        number. Then where the walk stopped: the end of the data, or the first bundle
        that is not whole, is compressed or does not hold the messages that it says.
        Last the sequence number of the next message.
    """
    found: tuple[NDArray[np.int64], int, int] = _source.walk_tank(data, seq, single)
    return found


def walk_lengths(
    data: NDArray[np.uint8], count: int, fixed: bool
) -> tuple[NDArray[np.int64], int]:
    """Follow a chain of values, each behind its length.

    Args:
        data: the chain; other bytes may follow.
        count: how many values to find at most. The memory taken is 16 bytes for each,
            and at most 16 times that of the data, whatever the count is.
        fixed: lengths are eight bytes, little-endian; else they are LEB128.

    Returns:
        Two rows, with an item per whole value: where it starts and where it ends. Then
        where the walk stopped.
    """
    found: tuple[NDArray[np.int64], int] = _source.walk_lengths(data, count, fixed)
    return found


def walk_fluvio(
    data: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Follow Fluvio's batches and the records in them.

    Checksums are not looked at, and neither are the offsets that records say: the
    first has that of its batch, and they count on from there.

    Returns:
        Five rows, with an item per record: where its value starts and ends, where its
        key starts and ends or -1 twice, and its time in ms; -1 if its batch has none,
        2^63 - 1 if it is later than that. The byte behind the value is 0 unless the
        record has headers. Then two rows with an item per batch: where it starts, and
        how many records are before it. Last where the walk stopped: the end of the
        data, or the first batch that is not whole, is compressed or does not hold the
        records that it says.
    """
    found: tuple[NDArray[np.int64], NDArray[np.int64], int] = _source.walk_fluvio(data)
    return found


def size_varints(values: NDArray[Any]) -> NDArray[np.int64]:
    """Say how many bytes `put_varints` writes for each integer."""
    sizes = np.ones(len(values), np.int64)
    most = int(values.max(initial=0))
    for bits in range(7, most.bit_length(), 7):
        sizes += values >= values.dtype.type(1 << bits)
    return sizes
