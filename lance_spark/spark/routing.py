"""Which rows go to which topic. Pure: batches in, batches out.

Rows keep their order within a topic, and know where they came from, so that an error
names the row of the user's. No row becomes a Python object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lance_spark.errors import OptionError, RowError
from lance_spark.spark.value import find_topic_fault

# What a record is not made of, and need not be copied.
_LEFT_OUT = ("topic", "offset", "next_offset")


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows of one topic.

    Args:
        topic: its name.
        rows: the columns of the rows.
        first_row: the number of the first row of the batch that they are from.
        origin: where in that batch each of them was; None if all of it is here.
        is_shared: the rows are in the memory of a batch with other topics' rows.
    """

    topic: str
    rows: pa.RecordBatch
    first_row: int = 0
    origin: NDArray[np.uint32] | NDArray[np.int64] | None = None
    is_shared: bool = False

    @property
    def nbytes(self) -> int:
        """How many bytes of columns there are, and of what tells where they were."""
        size: int = self.rows.nbytes
        return size if self.origin is None else size + self.origin.nbytes

    def find_row(self, index: int) -> int:
        """Tell the number that one of the rows had before all this."""
        if self.origin is not None:
            index = int(self.origin[index])
        return self.first_row + index

    def detach(self) -> Routed:
        """Copy rows that are in shared memory, so that it can go."""
        if not self.is_shared:
            return self
        rows = self.rows.take(pa.array(np.arange(self.rows.num_rows)))
        return replace(self, rows=rows, is_shared=False)


def merge_rows(pieces: Sequence[Routed]) -> Routed:
    """Make one piece of several of a topic, in memory of its own."""
    rows = pa.concat_batches([piece.rows for piece in pieces])
    origin = np.concatenate([_number_rows(piece) for piece in pieces])
    return Routed(pieces[0].topic, rows, origin=origin)


def _number_rows(piece: Routed) -> NDArray[np.int64]:
    rows = np.arange(piece.rows.num_rows) if piece.origin is None else piece.origin
    return piece.first_row + rows.astype(np.int64)


def route_rows(
    batch: pa.RecordBatch, topic: str | None, *, first_row: int = 0
) -> Iterator[Routed]:
    """Split a batch by topic, in the order in which the topics turn up in it.

    Args:
        batch: the rows; names of columns in any case.
        topic: where all of them go, whatever their column says; None to go by that.
        first_row: the number of the batch's first row, for errors.

    Raises:
        RowError: a row has no topic, or one that no server can have.
        OptionError: there is no topic column, or none of text.
    """
    if not batch.num_rows:
        return
    lowered = [name.lower() for name in batch.schema.names]
    if lowered != batch.schema.names:
        batch = batch.rename_columns(lowered)
    if topic is not None:
        yield Routed(topic, batch, first_row)
        return
    names, codes = _read_topics(batch, first_row)
    kept = [name for name in batch.schema.names if name not in _LEFT_OUT]
    batch = batch.select(kept)
    if len(names) == 1:
        yield Routed(names[0], batch, first_row)
        return
    # Codes are given as topics turn up: rows that lie together by topic ascend.
    is_together = not (codes[1:] < codes[:-1]).any()
    # Of 16 bits, as only those are sorted by counting.
    short = codes.astype(np.uint16) if len(names) <= 2**16 else codes
    order = np.argsort(short, kind="stable").astype(np.uint32)
    start = 0
    for name, count in zip(names, np.bincount(codes).tolist(), strict=True):
        # A copy, as a piece that waits would keep the whole.
        origin = order[start : start + count].copy()
        if is_together:
            rows = batch.slice(start, count)
        else:
            rows = batch.take(pa.array(origin))
        yield Routed(name, rows, first_row, origin, is_shared=is_together)
        start += count


def _read_topics(
    batch: pa.RecordBatch, first_row: int
) -> tuple[list[str], NDArray[np.int32]]:
    """Give the topics in the order in which they turn up, and each row's among them."""
    if "topic" not in batch.schema.names:
        raise OptionError(
            "rows without a topic: set option topic, or add a column topic"
        )
    column = batch.column("topic")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not _is_text(column.type):
        raise OptionError(f"column topic must be string, not {column.type}: cast it")
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise RowError(
            "no topic: give it one, filter such rows out, or set option topic, which "
            "is for all rows",
            first_row + row,
        )
    encoded = column.dictionary_encode()
    codes = encoded.indices.to_numpy()
    names = _decode_names(encoded.dictionary)
    for code, name in enumerate(names):
        fault = find_topic_fault(name)
        if fault is not None:
            row = first_row + int(np.argmax(codes == code))
            raise RowError(f"its topic {name!r:.100} {fault}", row)
    return names, codes


def _decode_names(names: pa.Array) -> list[str]:
    try:
        found: list[str] = names.to_pylist()
    except UnicodeDecodeError:
        # Spark does not look into a text that was made of bytes. What is wrong becomes
        # surrogates, which are refused like others.
        raw = names.cast(pa.large_binary()).to_pylist()
        found = [name.decode(errors="surrogateescape") for name in raw]
    return found


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_null,
        )
    )
