"""Reading a split on an executor: records in, Arrow batches out.

The next fetch is under way while the last one is decoded, and nothing else is held, so
that memory does not depend on the size of a split. What the driver has planned is
checked and not trusted: the topic is the same one, its offsets have not shifted, and
the records of the split end where those of the next one start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from lance_spark.client import Chunk, LanceClient, RecordReader
from lance_spark.columnar.decode import decode
from lance_spark.errors import (
    DataLoss,
    OffsetsShifted,
    RecordError,
    SplitError,
    TopicDeleted,
    TopicNotFound,
)
from lance_spark.spark.bound import AtOffsets
from lance_spark.spark.boundary import (
    Extent,
    locate_end,
    locate_extent,
    make_probe,
    probe_end,
    probe_extent,
)
from lance_spark.spark.filters import Pushed
from lance_spark.spark.options import ReadOptions
from lance_spark.spark.planning import Split
from lance_spark.spark.pool import lease
from lance_spark.spark.schema import Projection
from lance_spark.spark.topics import check_mark, make_gone, make_moved, report_loss

logger = logging.getLogger(__name__)

# Spark is fastest with 10 000 to 50 000 rows in a batch.
_ROWS_MAX = 50_000
# `limit` and `show` want few rows and want them now; later fetches are larger.
_FIRST_FETCH_BYTES = 64 * 1024

_SKIP = "set onBadRecord=skip to leave it out"
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
        pushed: which rows are wanted.
    """

    options: ReadOptions
    projection: Projection
    pushed: Pushed


def read_split(task: ReadTask, split: Split) -> Iterator[pa.RecordBatch]:
    """Read the rows of a split.

    Raises:
        DataLoss: records of the split are gone, and that is an error.
        RecordError: a record is bad, and that is an error.
        SplitError: the split was probed in a wrong place; no row that it gave may be
            used, so the task fails.
    """
    with lease(task.options.client) as client:
        yield from SplitReader(client, task, split).read()


class SplitReader:
    """Reads one split; used once, by one thread."""

    def __init__(self, client: LanceClient, task: ReadTask, split: Split) -> None:
        self._client = client
        self._task = task
        self._split = split
        self._whole = split.range
        self._skipped = 0
        self._skipped_bytes = 0

    def read(self) -> Iterator[pa.RecordBatch]:
        """Read the rows."""
        self._check_mark()
        try:
            extent = self._find_extent()
        except DataLoss as loss:
            report_loss(loss, is_error=self._task.options.fail_on_data_loss)
            extent = self._resume(loss)
        if extent is not None:
            try:
                yield from self._read_extent(extent)
            except (RecordError, SplitError):
                # Offsets that have shifted explain it better.
                self._check_mark()
                raise
            self._check_unmoved()
        else:
            # Perhaps it is because of a shift that there seemed to be no start.
            self._check_mark()
        if self._skipped:
            logger.warning(
                "topic %r: %d bad records (%d bytes) were skipped in [%d, %d)",
                self._whole.topic,
                self._skipped,
                self._skipped_bytes,
                self._split.start,
                self._split.end,
            )

    # Whether it is what was planned.

    def _check_mark(self) -> None:
        # One that is gone is told of by whoever misses something of it.
        with suppress(TopicNotFound, TopicDeleted):
            check_mark(self._client, self._whole)

    def _check_topic(self) -> None:
        """Check that the topic is the one that was planned.

        Raises:
            DataLoss: it is another one.
            TopicNotFound, TopicDeleted: it is gone.
        """
        whole = self._whole
        info = self._client.topic(whole.topic_id)
        if (info.name, info.created_at_s) != (whole.topic, whole.created_s):
            reason = f"topic id {whole.topic_id} is another topic by now"
            raise DataLoss(whole.topic, whole.start, None, None, reason)

    def _check_unmoved(self) -> None:
        """Check at the end that all that was read was what was planned.

        Otherwise there may be wrong rows among those that were given already, so that
        the task fails, also where a loss is no error.
        """
        self._check_mark()
        with suppress(TopicNotFound, TopicDeleted):
            self._check_topic()

    # Where to read.

    def _find_extent(self) -> Extent | None:
        try:
            self._check_topic()
            if self._whole.is_located:
                return locate_extent(self._client, self._split)
            return probe_extent(self._client, self._split)
        except (TopicNotFound, TopicDeleted) as error:
            raise self._make_gone(self._split.start) from error

    def _resume(self, loss: DataLoss) -> Extent | None:
        """Say what is left of the split after a loss that is no error."""
        split = self._split
        start = _find_rest(loss, split.start, split.end)
        if start == split.end:
            return None
        # A log starts with a record, so that no more has to be looked for than the end.
        if self._whole.is_located:
            return locate_end(self._client, split, start)
        return probe_end(split, start, make_probe(self._client, self._whole))

    def _make_gone(self, position: int) -> DataLoss:
        return make_gone(self._whole.topic, self._whole.topic_id, position)

    # Reading.

    def _read_extent(self, extent: Extent) -> Iterator[pa.RecordBatch]:
        options, whole = self._task.options, self._whole
        reader = RecordReader(
            self._client,
            whole.topic,
            extent.start,
            end=extent.end,
            fetch_bytes=options.fetch_bytes,
            first_fetch_bytes=min(_FIRST_FETCH_BYTES, options.fetch_bytes),
            topic_id=whole.topic_id,
        )
        try:
            for chunk in self._chunks(reader, extent):
                yield from self._decode(chunk)
            if not extent.is_last and reader.position != extent.end:
                raise SplitError(whole.topic, extent.end, reader.position)
        finally:
            reader.close()

    def _chunks(self, reader: RecordReader, extent: Extent) -> Iterator[Chunk]:
        """Get the records of an extent, as many of them as can be had."""
        while not reader.is_finished:
            try:
                chunk = self._next_chunk(reader, extent)
            except OffsetsShifted as loss:
                # Whether the rows before were those that were planned can't be told.
                raise make_moved(self._whole) from loss
            except DataLoss as loss:
                report_loss(loss, is_error=self._task.options.fail_on_data_loss)
                reader.seek(_find_rest(loss, reader.position, extent.end))
                continue
            if chunk is None:
                return
            if not self._is_complete(chunk, extent):
                chunk, _ = chunk.split(chunk.records - 1)
            if chunk.records:
                yield chunk

    def _next_chunk(self, reader: RecordReader, extent: Extent) -> Chunk | None:
        """Get the next records that are good; None if there are no more."""
        try:
            while not reader.is_finished:
                try:
                    chunk = reader.next_chunk()
                    if chunk is None:
                        self._check_end(reader.position, extent)
                    return chunk
                except RecordError as fault:
                    reader.seek(self._skip(fault, extent))
        except (TopicNotFound, TopicDeleted) as error:
            raise self._make_gone(reader.position) from error
        return None

    def _check_end(self, position: int, extent: Extent) -> None:
        """Check that the records may end before the range does.

        A plain server may cut the last record of its log, which is not there yet then.
        What was there when the range was planned has to be there still.

        Raises:
            DataLoss: it is not.
            RecordError: the bytes are there, and are no records.
        """
        whole = self._whole
        log_end = self._client.bounds(whole.topic_id).end
        if log_end < whole.end:
            reason = "the log ends before the range that was planned"
            raise DataLoss(whole.topic, position, None, log_end, reason)
        may_be_cut = extent.is_last and whole.ends_log and whole.mark is not None
        if not may_be_cut or self._is_followed(position):
            reason = f"topic {whole.topic!r}: its length leads behind the log's end"
            if may_be_cut:
                reason += " (if it is just being written, read again later)"
            raise RecordError(reason, position)
        logger.warning(
            "topic %r: the log ends inside a record: %d bytes from offset %d on are "
            "left for a later read",
            whole.topic,
            whole.end - position,
            position,
        )

    def _is_followed(self, position: int) -> bool:
        """Tell whether there are records behind one that seems to reach the log's end.

        Then it is its length that is wrong.
        """
        probe = make_probe(self._client, self._whole)
        return probe(position + 1, self._whole.end) is not None

    def _is_complete(self, chunk: Chunk, extent: Extent) -> bool:
        """Tell whether all records were there when the range was planned.

        A plain server may have cut the last one then. Were it read when it is there,
        a task that runs again would not give the same rows.
        """
        whole = self._whole
        return not (extent.is_last and whole.ends_log) or chunk.end <= whole.end

    def _is_given_start(self, position: int) -> bool:
        """Tell whether it was the user who said that a record starts here."""
        whole, bound = self._whole, self._task.options.start
        if whole.is_located or position != whole.start:
            return False
        return isinstance(bound, AtOffsets) and bound.get(whole.topic) == position

    def _skip(self, fault: RecordError, extent: Extent) -> int:
        """Say where to go on behind bytes that are no record, if that is allowed.

        Raises:
            RecordError: it is not.
        """
        whole, remedy = self._whole, ""
        if self._is_given_start(fault.position):
            remedy = "startingOffsets has to name an offset at which a record starts"
        elif self._task.options.on_bad_record == "fail":
            remedy = self._remedy
        elif not extent.is_last and not whole.is_located:
            # Nobody would check then that a record starts where the next one does.
            remedy = "it can be skipped only with splitting=none"
        if remedy:
            raise RecordError(f"{fault.reason}; {remedy}", fault.position) from fault
        following = extent.end
        if whole.is_located:
            located = self._client.locate_offset(whole.topic_id, fault.position + 1)
            following = min(located.offset, extent.end)
        self._skipped += 1
        self._skipped_bytes += following - fault.position
        return following

    @property
    def _remedy(self) -> str:
        """What to do about a bad record."""
        is_probed = self._split.index > 0 and not self._whole.is_located
        return _SKIP + _PROBED if is_probed else _SKIP

    def _decode(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        task, topic = self._task, self._whole.topic
        try:
            decoded = decode(
                chunk.data,
                found=chunk.found,
                base_offset=chunk.start,
                columns=task.projection.columns,
                topic=topic,
                key_type=task.projection.key_type,
                value_type=task.projection.value_type,
                on_bad=task.options.on_bad_record,
            )
        except RecordError as fault:
            reason = f"topic {topic!r}: {fault.reason}; {self._remedy}"
            raise RecordError(reason, fault.position) from fault
        self._skipped += decoded.skipped
        self._skipped_bytes += decoded.skipped_bytes
        rows = task.pushed.select(decoded.batch)
        for start in range(0, rows.num_rows, _ROWS_MAX):
            columns = rows.slice(start, _ROWS_MAX).columns
            # The same but for what may be null, which Spark compares too.
            yield pa.RecordBatch.from_arrays(columns, schema=task.projection.arrow)


def _find_rest(loss: DataLoss, position: int, end: int) -> int:
    """Say where to go on after a loss: at the log start, if that is before the end."""
    if loss.log_start is not None and position < loss.log_start < end:
        return loss.log_start
    return end
