"""A log: a row of segments with stable offsets. Topics and stages are logs.

This is the side that writes; `reader` is the one that reads. Which lock is for what:

- `_write` serialises everything that changes files: append, roll, adopt, reset, drop.
- `_syncing` lets one thread sync at a time; others find their bytes synced by it.
- `_state` guards the list of segments and the ends. It is held for moments, never
  during file operations, so that readers do not wait for the disk's writers.

They are taken in this order. `end` is where the next batch goes; `visible` is as far
as readers see, which is what the fsync policy calls durable. A commit holds it back
until all of its topics are written. `Syncer` is the thread that makes the appends of
all logs durable, many with one sync.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lance_spark.checksum import crc32c
from lance_spark.errors import (
    AppendConflict,
    StoreError,
    StoreReadOnly,
    StoreWriteFailed,
    Timeout,
)
from lance_spark.model import Buffer
from lance_spark.store.config import Fsync, StoreConfig
from lance_spark.store.context import Context, Watchers
from lance_spark.store.files import is_out_of_files
from lance_spark.store.format import (
    ROW_BYTES,
    IndexHeader,
    Rows,
    SegmentName,
    make_batch_rows,
    seal_rows,
)
from lance_spark.store.segment import (
    OpenSegment,
    Segment,
    SegmentKey,
    create_files,
    remove_files,
)


class Point(NamedTuple):
    """A place between two records of a log: where it starts, or how far it goes.

    Args:
        offset: bytes before it, since the log was made.
        record: records before it, which is the number of the next one.
        segment: number of the segment that starts there; 0 for an end.
    """

    offset: int = 0
    record: int = 0
    segment: int = 0


def start_of(segment: Segment | IndexHeader) -> Point:
    """Tell where a log starts whose first segment this is."""
    return Point(segment.base_offset, segment.base_record, segment.name.number)


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log, as a place that it can be set back to.

    Args:
        offset: offset of the next byte.
        record: number of the next record.
        segment: number of the last segment, -1 if there is none.
        size: bytes in that segment.
        rows: index rows of that segment.
        next_segment: number that a new segment would get.
    """

    offset: int
    record: int
    segment: int
    size: int
    rows: int
    next_segment: int


class _Held(NamedTuple):
    """What a log was before a commit: visible end, segments, a copy of the last."""

    visible: Point
    segments: int
    last: Segment | None


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch that is written, and durable once `Log.wait` says so."""

    start: int
    end: int
    record: int
    records: int


logger = logging.getLogger(__name__)


def check_length(where: str, length: int, config: StoreConfig) -> None:
    """Refuse a batch that is empty or too large.

    Raises:
        StoreError: with the limit.
    """
    if not 0 < length <= config.batch_bytes_max:
        raise StoreError(
            f"{where}: a batch of {length} bytes; a batch has 1 to "
            f"{config.batch_bytes_max} bytes (batch_bytes_max)"
        )


class NotSynced(StoreError):
    """A sync had no descriptor for a file that it needs; it can be tried again."""


class Log:
    """A segmented log on disk. Made by `recovery.open_log`."""

    def __init__(
        self,
        context: Context,
        topic: int,
        directory: Path,
        start: Point,
        segments: Iterable[Segment],
    ) -> None:
        self.context = context
        self.topic = topic
        self.directory = directory
        self.where = f"{directory.parent.name}/{directory.name}"
        self._write = threading.RLock()
        self._syncing = threading.Lock()
        self._state = threading.Condition()
        self.start = start
        # Replaced rather than changed, so that a snapshot costs nothing.
        self._segments = tuple(segments)
        self._dropped: tuple[Segment, ...] = ()
        self._visible = self._end_point()
        # Set by a commit whose bytes must not be seen yet.
        self._held: _Held | None = None
        # How often something was written, and how much of that a sync has covered.
        self._writes = self._writes_synced = 0
        # The same for names of files. After an opening some may be known to the kernel
        # only, if the process before was killed.
        self._names, self._names_synced = 1, 0
        # `sync_written` has made all segments before this one durable.
        self._lazy_from = 0
        # Why nothing can be appended any more, if so.
        self.failure: str | None = None
        # Readers that want to know when more can be read, or nothing more will come.
        self.watchers = Watchers()

    # What is there.

    @property
    def visible(self) -> Point:
        """How far the log can be read."""
        with self._state:
            return self._visible

    @property
    def last_append_ns(self) -> int:
        """Time of the last batch, 0 if there is none."""
        with self._state:
            return self._segments[-1].last_append_ns if self._segments else 0

    def segments(self) -> list[Segment]:
        """Copy the list of segments."""
        with self._state:
            return [replace(segment) for segment in self._segments]

    def snapshot(self) -> tuple[Point, Point, tuple[Segment, ...]]:
        """Give start, visible end and segments as they are at one moment."""
        with self._state:
            return self.start, self._visible, self._segments

    def end(self) -> Tail:
        """Describe the end, so that `reset_files` can come back to it."""
        with self._state:
            if not self._segments:
                start = self.start
                return Tail(start.offset, start.record, -1, 0, 0, start.segment)
            last = self._segments[-1]
            number = last.name.number
            return Tail(
                last.end, last.end_record, number, last.size, last.rows, number + 1
            )

    def _end_point(self) -> Point:
        end = self.end()
        return Point(end.offset, end.record)

    # Appending.

    def append(
        self,
        data: Buffer,
        starts: NDArray[np.int64],
        *,
        now_ns: int,
        data_crc: int | None = None,
        expected_record: int | None = None,
    ) -> Appended:
        """Write a batch of whole records behind the last one.

        Args:
            data: the records' bytes.
            starts: where in `data` each record starts, ascending from 0.
            now_ns: append time; never taken to be before the last one.
            data_crc: CRC32C of the bytes, where it is known already.
            expected_record: the number that its first record has to get.

        Raises:
            AppendConflict: it would get another; what is before may not be durable.
            StoreWriteFailed: the disk refused; nothing of the batch is stored.
            StoreReadOnly: the disk failed earlier in a way that can't be taken back.
        """
        config = self.context.config
        length = len(data)
        check_length(self.where, length, config)
        if data_crc is None:
            data_crc = crc32c(data)
        with self._write:
            if expected_record is not None:
                self.check_writable()
                end = self.end()
                if end.record != expected_record:
                    raise AppendConflict(expected_record, end.record, end.offset)
            segment = self._segment_for(length, now_ns)
            append_ns = max(now_ns, self.last_append_ns)
            rows = make_batch_rows(
                segment.size,
                segment.records,
                append_ns,
                length,
                starts,
                data_crc,
                config.index_stride_bytes,
            )
            appended = self._write_rows(segment, data, rows, len(starts), append_ns)
            if config.fsync is Fsync.ALWAYS:
                self.sync()
            elif config.fsync is Fsync.NONE:
                self._publish(self._end_point())
        return appended

    def _write_rows(
        self, segment: Segment, data: Buffer, rows: bytes, records: int, append_ns: int
    ) -> Appended:
        try:
            opened = self.open_segment(segment)
        except OSError as error:
            raise self._write_failed(f"open {segment.name.data_file}", error) from error
        try:
            opened.data.pwrite(data, segment.size)
            opened.index.pwrite(rows, segment.index_bytes)
        except OSError as error:
            self._take_back(opened, segment, error)
            doing = f"append {len(data)} bytes"
            raise self._write_failed(doing, error) from error
        opened.dirty = self.context.config.fsync is not Fsync.NONE
        with self._state:
            start, record = segment.end, segment.end_record
            segment.size += len(data)
            segment.rows += len(rows) // ROW_BYTES
            segment.records += records
            segment.last_append_ns = append_ns
            self._writes += 1
            return Appended(start, segment.end, record, records)

    def _take_back(self, opened: OpenSegment, segment: Segment, cause: OSError) -> None:
        try:
            # The rows first: one that is whole promises that its bytes are there.
            opened.index.truncate(segment.index_bytes)
            opened.data.truncate(segment.size)
            if self.context.config.fsync is not Fsync.NONE:
                # A write that is refused may have written all of the batch: the loss
                # of power must not bring back what was answered as not stored.
                opened.sync()
        except OSError as error:
            self.fail(f"an append failed ({cause}) and could not be undone ({error})")

    # Segments.

    def open_segment(self, segment: Segment) -> OpenSegment:
        """Give the open files of a segment."""
        return self.context.segments.get(
            SegmentKey(self.topic, segment.name.number),
            lambda: OpenSegment(self.context.files, self.directory, segment.name),
        )

    def roll_if_aged(self, now_ns: int) -> None:
        """Close the last segment if it is too old, so that retention may drop it."""
        with self._write:
            last = self._segments[-1] if self._segments else None
            if last and not self.failure and self._is_full(last, 0, now_ns):
                self._roll(now_ns)

    def close_segment(self) -> None:
        """Let the next batch start a new segment."""
        with self._write:
            if self._segments:
                self._segments[-1].closed = True

    def _segment_for(self, length: int, now_ns: int) -> Segment:
        self.check_writable()
        last = self._segments[-1] if self._segments else None
        if last is None or self._is_full(last, length, now_ns):
            return self._roll(now_ns)
        return last

    def _is_full(self, segment: Segment, length: int, now_ns: int) -> bool:
        config = self.context.config
        if segment.closed:
            return True
        if segment.size == 0:
            return False
        age_ns = now_ns - max(segment.name.start_ns, segment.time_floor_ns)
        return (
            segment.size + length > config.segment_bytes
            or segment.index_bytes >= config.index_bytes_max
            or 0 < config.segment_age_s * 1_000_000_000 <= age_ns
        )

    def _roll(self, now_ns: int) -> Segment:
        # The old segment is made durable first: recovery looks only at the last one
        # for bytes that may be missing. A commit is made durable under any policy.
        lazy = self.context.config.fsync is Fsync.NONE
        if self._segments and not (lazy and self._held is None):
            try:
                self.sync()
            except NotSynced as error:
                raise self._write_failed("close a segment", error) from error
        last = self.end()
        name = SegmentName(last.next_segment, now_ns)
        # Times never go back, also not while the segment is empty.
        floor_ns = self.last_append_ns
        segment = Segment(name, last.offset, last.record, lazy=lazy)
        segment.lift(floor_ns)
        try:
            create_files(self.context.files, self.directory, segment.header(self.topic))
        except OSError as error:
            self._remove_files(name)
            raise self._write_failed("start a segment", error) from error
        with self._state:
            self._segments = (*self._segments, segment)
        return segment

    def _remove_files(self, name: SegmentName) -> None:
        try:
            remove_files(self.context.files, self.directory, name)
        except OSError as error:
            # The names would be in the way of the next attempt.
            self.fail(f"a half-made segment could not be removed ({error})")

    # What commits and retention need.

    def append_rows(self, data: Buffer, rows: Rows, records: int, now_ns: int) -> None:
        """Append batches that have rows already, as if they came now."""
        with self._write:
            target = self._segment_for(len(data), now_ns)
            append_ns = max(now_ns, self.last_append_ns)
            rows["position"] += target.size
            rows["record"] += target.records
            rows["append_ns"] = append_ns
            self._write_rows(target, data, seal_rows(rows), records, append_ns)

    def add_segment(self, segment: Segment) -> None:
        """Take in a segment whose files are in place, behind the last one."""
        with self._state:
            assert segment.base_offset == self.end().offset
            self._segments = (*self._segments, segment)
            self._writes += 1
            self._names += 1

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep every other writer out."""
        with self._write:
            yield

    def hold(self) -> None:
        """Show nothing that is written from now on, until `release` or `going_back`."""
        with self._state:
            last = replace(self._segments[-1]) if self._segments else None
            self._held = _Held(self._visible, len(self._segments), last)

    def release(self, start: Point | None = None) -> None:
        """Show what was held back, and hide what is before a new start, at once."""
        with self._state:
            self._held = None
            if start is not None:
                self._move_start(start)
            self._publish(self._end_point())

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """Set the files back inside, and the log behind, to where `hold` found it.

        No sync runs meanwhile: it would mark, and show, an end that is gone.
        """
        with self._write, self._syncing:
            yield
            with self._state:
                self.context.segments.drop_topic(self.topic)
                if self._held is not None:
                    self._segments = self._segments[: self._held.segments]
                    if self._held.last is not None:
                        # The same object, since views of the log still have it.
                        self._segments[-1].go_back(self._held.last)
                self._held = None
                # The numbers of segments that are gone are given out again.
                self._lazy_from = 0

    def drop_before(self, start: Point) -> None:
        """Drop all segments before the one that `start` names.

        The new start has to be durable already: what is unlinked here would otherwise
        be missed after the loss of power.
        """
        with self._write:
            with self._state:
                self._move_start(start)
            self.remove_dropped()

    def _move_start(self, start: Point) -> None:
        if start > self.start:
            kept = [s for s in self._segments if s.name.number >= start.segment]
            self._dropped += self._segments[: len(self._segments) - len(kept)]
            self._segments = tuple(kept)
            self.start = start
            self._visible = max(self._visible, Point(start.offset, start.record))

    def remove_dropped(self) -> None:
        """Remove the files of segments that are before the start."""
        with self._state:
            gone, self._dropped = self._dropped, ()
        for segment in gone:
            self.context.segments.drop(SegmentKey(self.topic, segment.name.number))
            try:
                remove_files(self.context.files, self.directory, segment.name)
            except OSError as error:
                # The next opening removes what lies before the start.
                logger.warning("%s: could not remove: %s", self.where, error)

    # Durability.

    def sync(self) -> None:
        """Make everything written so far durable, and so visible.

        Raises:
            NotSynced: it was not tried to the end, and can be tried again.
            StoreReadOnly: the disk failed; what was not durable yet is not known to
                be stored, and nothing can be appended any more.
        """
        with self._syncing:
            with self._state:
                self.check_writable()
                writes, names = self._writes, self._names
                synced = self._writes_synced, self._names_synced
                if not self._segments or (writes, names) == synced:
                    return
                segment = replace(self._segments[-1])
            opened = self._open_to_sync(segment)
            began = time.perf_counter()
            with self._syncing_disk():
                opened.sync()
                if names > self._names_synced:
                    self.context.files.sync_dir(self.directory)
                opened.write_mark(segment.size, segment.rows)
            self.context.observe_sync(time.perf_counter() - began)
            with self._state:
                # Only what was there when the sync began: more may have come.
                self._writes_synced, self._names_synced = writes, names
            self._publish(Point(segment.end, segment.end_record))

    def _open_to_sync(self, segment: Segment) -> OpenSegment:
        try:
            return self.open_segment(segment)
        except OSError as error:
            raise self._not_synced(error) from error

    @contextmanager
    def _syncing_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_out_of_files(error):
                # A directory was not even opened: nothing is known to be lost.
                raise self._not_synced(error) from error
            # The kernel may have dropped the pages: a later sync that succeeds would
            # prove nothing about them.
            self.fail(f"a sync failed ({error})")
            raise StoreReadOnly(self.failure) from error

    def _not_synced(self, error: OSError) -> NotSynced:
        return NotSynced(f"{self.where}: what is written could not be synced: {error}")

    def sync_segments(self) -> None:
        """Make all segments durable; under `none` the earlier ones may not be."""
        with self.writing("sync"):
            for segment in self.segments()[:-1]:
                # The other ones were made durable before they got a successor.
                if segment.lazy:
                    self.open_segment(segment).sync()
        self.sync()

    def sync_written(self) -> None:
        """Make durable what was written so far, under any policy.

        Raises:
            NotSynced, StoreReadOnly: as `sync`.
        """
        segments = self.segments()
        for segment in segments:
            # The other ones were made durable before they got a successor.
            if segment.lazy and segment.name.number >= self._lazy_from:
                opened = self._open_to_sync(segment)
                with self._syncing_disk():
                    opened.sync()
        if self._writes > self._writes_synced:
            self.sync()
        with self._state:
            # The last one may be gone again: see `going_back`.
            if segments and segments[-1].name in [s.name for s in self._segments]:
                self._lazy_from = segments[-1].name.number

    def wait(self, end: int, *, timeout_s: float) -> None:
        """Wait until the log is durable up to an offset.

        Raises:
            Timeout: it took too long; the batch may still become durable.
            StoreReadOnly: the disk failed.
        """
        with self._state:
            self._state.wait_for(
                lambda: self.failure is not None or self._visible.offset >= end,
                timeout_s,
            )
            if self._visible.offset >= end:
                return
        self.check_writable()
        raise Timeout(f"{self.where}: not durable after {timeout_s} s")

    def close(self) -> None:
        """Make the last segment durable, whatever the policy, and refuse all writes."""
        with self._write:
            try:
                if self.failure is None and self._writes > self._writes_synced:
                    self.sync()
            finally:
                # A writer that is late must not meet the next owner of the files.
                self.retire("the store is closed")

    def _publish(self, end: Point) -> None:
        with self._state:
            if self._held is not None:
                end = min(end, self._held.visible)
            if end <= self._visible:
                return
            self._visible = end
            self._state.notify_all()
        self.watchers.notify(end.offset)

    # Failure.

    def fail(self, reason: str) -> None:
        """Refuse every further write, because the disk can't be trusted any more."""
        text = f"read-only since {reason}; mend the disk and reopen the store"
        if self.failure is None:
            logger.error("%s: %s", self.where, text)
        self.retire(text)

    def retire(self, reason: str) -> None:
        """Refuse every further write, and wake all threads that wait."""
        with self._state:
            self.failure = self.failure or f"{self.where}: {reason}"
            self._state.notify_all()
        self.watchers.notify()

    def check_writable(self) -> None:
        """Raise StoreReadOnly if nothing can be written any more."""
        if self.failure is not None:
            raise StoreReadOnly(self.failure)

    def _write_failed(self, doing: str, error: Exception) -> StoreWriteFailed:
        return StoreWriteFailed(
            f"{self.where}: could not {doing}: {error}; nothing was stored"
        )

    @contextmanager
    def writing(self, doing: str) -> Iterator[None]:
        """Turn what the disk says into an error of the store."""
        try:
            yield
        except OSError as error:
            raise self._write_failed(doing, error) from error


_RETRY_S = 0.01


class HasSync(Protocol):
    """A log, or the log of small stages."""

    where: str

    def sync(self) -> None:
        """Make everything written so far durable."""


class Syncer:
    """Syncs the logs that were appended to, at most once per interval.

    Appends that arrive while a sync is under way share the next one.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._wake = threading.Condition()
        self._dirty: dict[HasSync, None] = {}
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, name="lance-store-sync", daemon=True
        )
        self._thread.start()

    def request(self, log: HasSync) -> None:
        """Have a log synced soon."""
        with self._wake:
            self._dirty[log] = None
            self._wake.notify()

    def stop(self, timeout_s: float) -> None:
        """Sync what is left and end the thread."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._dirty or self._stopped)
                logs, self._dirty = list(self._dirty), {}
                if self._stopped and not logs:
                    return
            started = time.monotonic()
            for log in logs:
                if not self._sync(log) and not self._stopped:
                    self.request(log)
            rest = self._interval_s - (time.monotonic() - started)
            if rest > 0 and not self._stopped:
                time.sleep(rest)

    @staticmethod
    def _sync(log: HasSync) -> bool:
        """Sync a log; tell whether that is settled, well or badly."""
        try:
            log.sync()
        except StoreReadOnly:
            # The log has noted it and tells all threads that wait.
            logger.debug("%s: sync failed", log.where, exc_info=True)
        except StoreError:
            # It was not even tried, for want of a file descriptor: once more.
            time.sleep(_RETRY_S)
            return False
        except Exception:
            # A bug must not end the thread: every later append would wait in vain.
            logger.exception("%s: sync failed", log.where)
        return True
