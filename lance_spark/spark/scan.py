"""Reading a split on an executor: records in, Arrow batches out.

The next fetch is under way while the last one is decoded, and nothing else is held, so
that memory does not depend on the size of a split. A task checks what was planned: the
topic is the same one, its offsets have not shifted, and where records were searched
for, the records of the split end where those of the next one start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lance_spark.client.driver import ChunkReader, Driver, Extent, Split
from lance_spark.columnar import write_good_records, write_records
from lance_spark.errors import (
    DataLoss,
    OffsetsShifted,
    RecordError,
    SplitError,
    TopicDeleted,
    TopicNotFound,
)
from lance_spark.records import Records
from lance_spark.spark.bound import AtOffsets
from lance_spark.spark.options import ReadOptions
from lance_spark.spark.planning import check_range, make_gone, make_moved, report_loss
from lance_spark.spark.pool import lease
from lance_spark.spark.schema import Projection

if TYPE_CHECKING:
    from lance_spark.spark.filters import Pushed

logger = logging.getLogger(__name__)

# Spark is fastest with 10 000 to 50 000 rows in a batch.
_ROWS_MAX = 50_000
# `limit` and `show` want few rows and want them now; later fetches are larger.
_FIRST_FETCH_BYTES = 64 * 1024

_SKIP = "set onBadRecord=skip to leave it out"
# Only LWP has that option.
_PASS = "give later startingOffsets, and a stream a new checkpoint, to go on behind it"
_PROBED = (
    "; or, if values look like records and misled the search for where this partition "
    "starts, set splitting=none"
)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What all tasks of a read have in common; it travels to executors.

    Args:
        options: what the user has said.
        projection: which columns are wanted.
        pushed: which rows are wanted; None for all.
    """

    options: ReadOptions
    projection: Projection
    pushed: Pushed | None = None


def read_split(task: ReadTask, split: Split) -> Iterator[pa.RecordBatch]:
    """Read the rows of a split.

    Raises:
        DataLoss: records of the split are gone, and that is an error.
        RecordError: a record is bad, and that is an error.
        SplitError: the split was probed in a wrong place; no row that it gave may be
            used, so the task fails.
    """
    with lease(task.options.client) as driver:
        yield from SplitReader(driver, task, split).read()


class SplitReader:
    """Reads one split; used once, by one thread."""

    def __init__(self, driver: Driver, task: ReadTask, split: Split) -> None:
        self._driver = driver
        self._task = task
        self._split = split
        self._range = split.range
        self._log = split.range.log
        self._finder = driver.find_with(split.range.finder)
        self._skipped = 0
        self._skipped_bytes = 0
        # The last records were left out, so nothing tells where they end.
        self._is_cut = False

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read the rows."""
        self._check_range()
        try:
            extent = self._find_extent()
        except DataLoss as loss:
            self._report(loss)
            extent = self._find_rest(loss)
        if extent is not None:
            try:
                yield from self._read_extent(extent)
            except (RecordError, SplitError):
                # If offsets have shifted, that error explains it better.
                self._check_range()
                raise
        else:
            self._is_same_topic()
        # Rows that were handed out may be wrong if offsets have shifted, so the task
        # fails even if losses are accepted. A shift may also be why no start was found.
        self._check_range()
        if self._skipped:
            logger.warning(
                "topic %r: %d bad records (%d bytes) were skipped in [%d, %d)",
                self._range.topic,
                self._skipped,
                self._skipped_bytes,
                self._split.start,
                self._split.end,
            )

    # Whether the log is the one that was planned.

    def _check_range(self) -> None:
        # A deleted topic is reported by the read that misses its records, not here.
        with suppress(TopicNotFound, TopicDeleted):
            check_range(self._driver, self._range)

    def _check_topic(self) -> None:
        """Check that the topic is the one that was planned.

        Raises:
            DataLoss: it is another one.
        """
        log = self._log
        with suppress(TopicNotFound, TopicDeleted):
            entry = self._driver.describe(log)
            if log not in entry.logs:
                reason = f"topic id {log.topic_id} is another topic by now"
                raise DataLoss(log.topic, self._range.start, None, None, reason)

    def _is_same_topic(self) -> bool:
        """Tell whether the topic is the one that was planned, before any row is read.

        Raises:
            DataLoss: it is another one, and that is an error.
        """
        try:
            self._check_topic()
        except DataLoss as loss:
            self._report(loss)
            return False
        return True

    def _report(self, loss: DataLoss) -> None:
        is_error = self._task.options.fail_on_data_loss
        report_loss(loss, is_error=is_error, unit=self._driver.traits.unit)

    # Where to read.

    def _find_extent(self) -> Extent | None:
        try:
            return self._finder.find_extent(self._split)
        except (TopicNotFound, TopicDeleted) as error:
            raise make_gone(self._log, self._split.start) from error

    def _find_rest(self, loss: DataLoss) -> Extent | None:
        """Say what is left of the split after a loss that is no error."""
        split = self._split
        start = _find_rest(loss, split.start, split.end)
        # A log starts with a record, so only the end has to be found.
        return None if start == split.end else self._finder.find_rest(split, start)

    # Reading.

    def _read_extent(self, extent: Extent) -> Iterator[pa.RecordBatch]:
        options, piece = self._task.options, self._range
        # A plain server may have cut the last record when the range was planned. If it
        # were read now, a task that runs again would not give the same rows.
        is_end = extent.is_last and piece.ends_log
        reader = self._driver.open_reader(
            self._log,
            extent.start,
            end=extent.end,
            fetch_bytes=options.fetch_bytes,
            first_fetch_bytes=min(_FIRST_FETCH_BYTES, options.fetch_bytes),
            last_end=piece.end if is_end else None,
            on_bad=options.on_bad_record,
        )
        has_rows = is_settled = False
        try:
            for records in self._chunks(reader, extent):
                if not has_rows:
                    # After the first fetch, which need not wait for this, and before
                    # the first row: a query with a limit never gets to the end.
                    if not self._is_same_topic():
                        return
                    # All was fetched before the check.
                    has_rows, is_settled = True, reader.is_finished
                yield from self._build(records)
            if not has_rows and not self._is_same_topic():
                return
            rest = None if self._is_cut else self._find_more(reader.position, extent)
            if has_rows and not is_settled:
                # Wrong rows may be among those that were handed out, so the task fails
                # even if losses are accepted.
                self._check_topic()
        except RecordError:
            # Bytes of another topic need not be records.
            if has_rows or self._is_same_topic():
                raise
            return
        finally:
            self._count_skipped(*reader.skipped)
            reader.close()
        if rest is not None:
            yield from self._read_extent(rest)

    def _chunks(self, reader: ChunkReader, extent: Extent) -> Iterator[Records]:
        """Get the records of an extent, as many of them as can be had."""
        while not reader.is_finished:
            try:
                records = self._next_records(reader, extent)
            except OffsetsShifted as loss:
                # Nothing tells whether the rows before were those that were planned.
                raise make_moved(self._range) from loss
            except DataLoss as loss:
                self._report(loss)
                self._seek(
                    reader, _find_rest(loss, reader.position, extent.end), extent
                )
                continue
            if records is None:
                return
            if len(records) or records.fault is not None:
                yield records

    def _next_records(self, reader: ChunkReader, extent: Extent) -> Records | None:
        """Get the next records that are good; None if there are no more."""
        try:
            while not reader.is_finished:
                try:
                    records = reader.next_records()
                    if records is None and not reader.is_finished:
                        self._check_end(reader.position, extent)
                    return records
                except RecordError as fault:
                    self._seek(reader, self._skip(fault, extent), extent)
        except (TopicNotFound, TopicDeleted) as error:
            raise make_gone(self._log, reader.position) from error
        return None

    def _seek(self, reader: ChunkReader, position: int, extent: Extent) -> None:
        reader.seek(position)
        self._is_cut = position >= extent.end

    def _find_more(self, position: int, extent: Extent) -> Extent | None:
        """Find the records up to the next split, if the last one does not end there.

        A server takes bytes for one record that it has stored without a look at them.
        The next split then starts behind all of them.

        Raises:
            SplitError: the records end behind the start of the next split.
        """
        try:
            following = self._finder.find_next(self._split, extent)
        except (TopicNotFound, TopicDeleted):
            return None
        if following is None or position == following:
            return None
        if position > following or extent.end == following:
            raise SplitError(self._range.topic, following, position)
        return Extent(position, following, is_last=False)

    def _check_end(self, position: int, extent: Extent) -> None:
        """Check that the records may end before the range does.

        A plain server may cut the last record of its log while it is being written.
        Everything that was there when the range was planned has to be there still.

        Raises:
            DataLoss: it is not.
            RecordError: the bytes are there, and are no records.
        """
        piece = self._range
        found = self._driver.bounds([self._log]).get(self._log.partition)
        if found is None:
            raise make_gone(self._log, position)
        if found.end < piece.end:
            reason = "the log ends before the range that was planned"
            raise DataLoss(piece.log.name, position, None, found.end, reason)
        if piece.finder == "counted":
            reason = "the server gives no record there, although its log goes on"
            raise DataLoss(piece.log.name, position, None, found.end, reason)
        may_be_cut = extent.is_last and piece.ends_log and piece.mark is not None
        # Records behind one that seems to reach the log's end show that its length is
        # wrong.
        if not may_be_cut or self._finder.has_records(self._split, position):
            reason = f"topic {piece.topic!r}: its length leads behind the log's end"
            if may_be_cut:
                reason += " (if it is just being written, read again later)"
            raise RecordError(reason, position)
        logger.warning(
            "topic %r: the log ends inside a record: %d bytes from offset %d on are "
            "left for a later read",
            piece.topic,
            piece.end - position,
            position,
        )

    def _is_given_start(self, position: int) -> bool:
        """Tell whether it was the user who said that a record starts here."""
        piece, bound = self._range, self._task.options.start
        if self._finder.is_told or position != piece.start:
            return False
        return (
            isinstance(bound, AtOffsets) and bound.get(piece.log.partition) == position
        )

    def _skip(self, fault: RecordError, extent: Extent) -> int:
        """Say where to go on behind bytes that are no record, if that is allowed.

        Raises:
            RecordError: it is not.
        """
        remedy = ""
        if self._is_given_start(fault.position):
            remedy = "startingOffsets has to name an offset at which a record starts"
        elif self._task.options.on_bad_record == "fail":
            remedy = self._remedy
        elif not (extent.is_last or self._finder.is_told):
            # Otherwise nothing checks that a record starts where the next split does.
            remedy = "it can be skipped only with splitting=none"
        if remedy:
            raise self._explain(fault, f"{fault.reason}; {remedy}") from fault
        following = self._finder.skip(self._split, fault.position, extent.end)
        self._count_skipped(1, following - fault.position)
        return following

    def _count_skipped(self, records: int, size: int) -> None:
        self._skipped += records
        self._skipped_bytes += size

    def _explain(self, fault: RecordError, reason: str) -> RecordError:
        unit = "byte" if self._driver.traits.unit == "bytes" else "offset"
        return RecordError(reason, fault.position, unit=unit)

    @property
    def _remedy(self) -> str:
        if self._range.finder == "counted":
            return _PASS
        is_probed = self._split.index > 0 and not self._finder.is_told
        return _SKIP + _PROBED if is_probed else _SKIP

    def _build(self, records: Records) -> Iterator[pa.RecordBatch]:
        task, at = self._task, self._log.partition
        columns = task.projection.columns
        if task.options.on_bad_record == "skip":
            batch, kept = write_good_records(
                records, columns, topic=at.topic, partition=at.number
            )
            if len(kept) < len(records):
                size = _measure(records) - _measure(kept)
                self._count_skipped(len(records) - len(kept), size)
        else:
            try:
                batch = write_records(
                    records, columns, topic=at.topic, partition=at.number
                )
            except RecordError as fault:
                reason = f"topic {at.topic!r}: {fault.reason}; {self._remedy}"
                raise self._explain(fault, reason) from fault
        rows = batch if task.pushed is None else task.pushed.select(batch)
        for start in range(0, rows.num_rows, _ROWS_MAX):
            columns = rows.slice(start, _ROWS_MAX).columns
            # The same but for what may be null, which Spark compares too.
            yield pa.RecordBatch.from_arrays(columns, schema=task.projection.arrow)


def _measure(records: Records) -> int:
    return int((records.find_nexts() - records.find_positions()).sum())


def _find_rest(loss: DataLoss, position: int, end: int) -> int:
    """Say where to go on after a loss: at the log start, if that is before the end."""
    if loss.log_start is not None and position < loss.log_start < end:
        return loss.log_start
    return end
