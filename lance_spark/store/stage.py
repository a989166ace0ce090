"""A stage: batches that wait for their commit, out of sight.

Its batches are numbered 1, 2, 3 …, and each is kept with its checksum: the number of
the last one is known after any crash, and a repeated one is recognised, without
anything else being written. They are in one of two places:

- Those of a small stage are entries of `stages.log`: see `stagelog`.
- A stage that does not stay small is a log of its own in `stages/{id}`, one index row
  for each batch. What it had in `stages.log` is copied first, and made durable;
  `stage.json` comes last. Where that file is, the directory counts, and otherwise
  `stages.log` does.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lance_spark.checksum import crc32c
from lance_spark.errors import BatchGap, StageMismatch, StageUnknown, StoreError
from lance_spark.model import Buffer
from lance_spark.store.config import Fsync, StoreConfig
from lance_spark.store.context import Context
from lance_spark.store.decisions import Job, check_job
from lance_spark.store.document import (
    STAGE_ID_END,
    check_keys,
    decode_document,
    encode_document,
    integer,
)
from lance_spark.store.files import remove_if_there, remove_tree, replace_file
from lance_spark.store.format import make_batch_rows
from lance_spark.store.log import Appended, Log, Point, check_length
from lance_spark.store.recovery import open_log, open_with_table
from lance_spark.store.stagelog import InlineStage, StageLog
from lance_spark.store.topic import check_log_name

logger = logging.getLogger(__name__)

STAGE_METADATA = "stage.json"
_KEYS = {"id", "topic", "writer", "sequence", "opened_ns"}


@dataclass(frozen=True, slots=True)
class StageMetadata:
    """What a stage was opened for."""

    id: int
    topic: str
    job: Job
    opened_ns: int


def encode_stage(metadata: StageMetadata) -> bytes:
    """Encode metadata as the JSON file's content."""
    return encode_document(
        {
            "id": metadata.id,
            "topic": metadata.topic,
            **metadata.job._asdict(),
            "opened_ns": metadata.opened_ns,
        }
    )


def decode_stage(data: bytes) -> StageMetadata:
    """Decode the JSON file's content, whatever its format.

    Raises:
        StoreError: it is damaged.
    """
    fields = decode_document(data).fields
    check_keys(fields, _KEYS)
    if not isinstance(fields["topic"], str) or not isinstance(fields["writer"], str):
        raise StoreError("topic or writer is not text")
    job = Job(fields["writer"], integer(fields, "sequence"))
    check_job(*job)
    check_log_name(fields["topic"])
    stage_id = integer(fields, "id", STAGE_ID_END - 1)
    return StageMetadata(stage_id, fields["topic"], job, integer(fields, "opened_ns"))


class Stage:
    """A stage of the store."""

    def __init__(
        self,
        context: Context,
        metadata: StageMetadata,
        *,
        log: Log | None = None,
        inline: InlineStage | None = None,
    ) -> None:
        self.metadata = metadata
        self._context = context
        # Where the batches are: in the log, and before there is one inline. What is
        # inline stays when a log is made, as another thread may be looking at it.
        self.log = log
        self._inline = inline
        # Taken before any lock of the log.
        self._lock = threading.RLock()
        # One checksum per batch: their number says which one comes next.
        self._crcs = array("I")
        if inline is not None:
            self._crcs.extend(batch.data_crc for batch in inline.batches)
        # It has to get files, whatever its size: half of them may be there.
        self._is_moving = False
        self._dropped = False
        last_ns = max(each.last_append_ns for each in (log, inline) if each is not None)
        self.active_ns = max(metadata.opened_ns, last_ns)

    @classmethod
    def create(cls, context: Context, metadata: StageMetadata) -> Stage:
        """Make a stage, durably."""
        context.identity.prepare()
        encoded = encode_stage(metadata)
        context.stage_log.tidy()
        has_room = context.stage_log.has_room(len(encoded))
        if inline_bytes_max(context.config) and has_room:
            inline = context.stage_log.open_stage(metadata.id, encoded)
            try:
                context.stage_log.sync()
            except StoreError:
                with suppress(OSError, StoreError):
                    context.stage_log.drop([metadata.id])
                raise
            return cls(context, metadata, inline=inline)
        log = _make_log(context, metadata.id)
        _finish_directory(context, metadata)
        return cls(context, metadata, log=log)

    @classmethod
    def open(cls, context: Context, metadata: StageMetadata) -> Stage:
        """Open a stage that has files."""
        directory = context.stage_directory(metadata.id)
        log = open_log(context, metadata.id, directory, Point())
        stage = cls(context, metadata, log=log)
        for segment in log.snapshot()[2]:
            _, table = open_with_table(log, segment)
            batches = range(table.batches)
            stage._crcs.extend(table.batch(n).data_crc for n in batches)
        return stage

    @property
    def batches(self) -> int:
        """How many batches it holds."""
        return len(self._crcs)

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        if self.log is not None:
            return self.log.end().offset
        assert self._inline is not None
        return self._inline.size

    def append(
        self,
        batch: int,
        data: Buffer,
        starts: NDArray[np.int64],
        *,
        now_ns: int,
        data_crc: int | None = None,
    ) -> Appended:
        """Store a batch, unless it is stored already.

        Raises:
            BatchGap: a batch before this one is missing.
            StageMismatch: the batch was stored with other bytes.
            StageUnknown: the stage was dropped meanwhile.
        """
        if data_crc is None:
            data_crc = crc32c(data)
        with self._lock:
            self.check_open()
            self.active_ns = now_ns
            if batch == len(self._crcs) + 1:
                size = self.size
                try:
                    return self._append(data, starts, now_ns, data_crc)
                finally:
                    # Also if only its sync failed: it is there, and has its number.
                    if self.size > size:
                        self._crcs.append(data_crc)
            if not 1 <= batch <= len(self._crcs):
                raise BatchGap(
                    f"stage {self.metadata.id}: batch {batch} came where "
                    f"{len(self._crcs) + 1} was next"
                )
            if self._crcs[batch - 1] != data_crc:
                raise StageMismatch(
                    f"stage {self.metadata.id}: batch {batch} was stored before with "
                    "other bytes"
                )
            return Appended(self.size, self.size, self._records, 0)

    @property
    def _records(self) -> int:
        if self.log is not None:
            return self.log.end().record
        assert self._inline is not None
        return sum(batch.records for batch in self._inline.batches)

    def _append(
        self, data: Buffer, starts: NDArray[np.int64], now_ns: int, data_crc: int
    ) -> Appended:
        if self.log is None:
            # Else the stage would get files for nothing.
            where = f"stages/{self.metadata.id}"
            check_length(where, len(data), self._context.config)
            if not self._has_room(len(data)):
                self._move()
        if self.log is not None:
            return self.log.append(data, starts, now_ns=now_ns, data_crc=data_crc)
        inline, config = self._inline, self._context.config
        assert inline is not None
        size, record = self.size, self._records
        append_ns = max(now_ns, inline.last_append_ns)
        # They count from the batch's own start: it goes to another log, as it is.
        stride, length = config.index_stride_bytes, len(data)
        rows = make_batch_rows(0, 0, append_ns, length, starts, data_crc, stride)
        with self._context.stage_log.writing():
            self._context.stage_log.append(
                inline,
                rows,
                data,
                records=len(starts),
                data_crc=data_crc,
                append_ns=append_ns,
            )
            if config.fsync is Fsync.ALWAYS:
                self._context.stage_log.sync()
        return Appended(size, self.size, record, len(starts))

    def _has_room(self, length: int) -> bool:
        if self._is_moving:
            return False
        if self.size + length > inline_bytes_max(self._context.config):
            return False
        return self._context.stage_log.has_room(length)

    def _move(self) -> None:
        """Give the stage files, with the batches that it has."""
        context, number = self._context, self.metadata.id
        with context.stage_log.writing():
            # What an attempt before this one has left.
            context.segments.drop_topic(number)
            remove_stage(context, number)
            self._is_moving = True
            log = _make_log(context, number)
            self.copy_to(log)
            log.sync_segments()
            _finish_directory(context, self.metadata)
            self.log = log
        try:
            context.stage_log.drop([number])
        except (OSError, StoreError) as error:
            # It is told again; and until then the directory counts.
            logger.warning("stage %d: still in stages.log: %s", number, error)

    def copy_to(self, target: Log, *, now_ns: int | None = None) -> None:
        """Append the batches of a small stage to a log, with the rows they have.

        Raises:
            Corrupt: one of them is damaged.
        """
        assert self._inline is not None
        for rows, data, records in self._context.stage_log.batches(self._inline):
            append_ns = int(rows[0]["append_ns"]) if now_ns is None else now_ns
            with target.exclusive():
                target.append_rows(data, rows.copy(), records, append_ns)

    # Durability.

    @property
    def home(self) -> Log | StageLog:
        """What has to be synced to make its batches durable."""
        return self.log or self._context.stage_log

    def sync(self) -> None:
        """Make all batches durable, under any policy."""
        if self.log is not None:
            self.log.sync_segments()
        else:
            self._context.stage_log.sync()

    def is_durable(self, end: int) -> bool:
        """Tell whether its batches are durable up to an offset."""
        if self.log is not None:
            return self.log.visible.offset >= end
        assert self._inline is not None
        is_lazy = self._context.config.fsync is Fsync.NONE
        return is_lazy or self._context.stage_log.is_durable(self._inline)

    def wait(self, end: int, *, timeout_s: float) -> None:
        """Wait until its batches are durable up to an offset; see `Log.wait`."""
        if self.log is not None:
            self.log.wait(end, timeout_s=timeout_s)
        elif not self.is_durable(end):
            assert self._inline is not None
            self._context.stage_log.wait(self._inline, timeout_s=timeout_s)

    def check_open(self) -> None:
        """Raise StageUnknown if the stage was dropped."""
        if self._dropped:
            raise StageUnknown(f"stage {self.metadata.id} was dropped")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep appends waiting; behind this they may find the stage gone."""
        with self._lock:
            yield

    def retire(self) -> None:
        """Refuse every further batch; the files may be a topic's from now on."""
        with self._lock:
            self._dropped = True
            if self.log is not None:
                self.log.retire("the stage was dropped")
            elif self._inline is not None:
                self._context.stage_log.retire(self._inline)

    def drop(self) -> None:
        """Remove the stage; what can't be removed now goes with the next opening."""
        self.retire()
        if self.log is not None or self._is_moving:
            remove_stage(self._context, self.metadata.id)
            self._context.segments.drop_topic(self.metadata.id)
        if self.log is None:
            self._context.stage_log.drop([self.metadata.id])


def inline_bytes_max(config: StoreConfig) -> int:
    """Tell how large a stage may get without files.

    One that is to become part of its topic without a copy needs them.
    """
    return min(config.stage_inline_bytes, config.stage_adopt_bytes - 1)


def _make_log(context: Context, stage: int) -> Log:
    directory = context.stage_directory(stage)
    context.files.mkdir(directory)
    return Log(context, stage, directory, Point(), ())


def _finish_directory(context: Context, metadata: StageMetadata) -> None:
    """Write the file that makes a directory a stage, durably."""
    directory = context.stage_directory(metadata.id)
    replace_file(context.files, directory / STAGE_METADATA, encode_stage(metadata))
    context.files.sync_dir(directory.parent)


def read_stage(context: Context, stage: int) -> StageMetadata | None:
    """Read what a stage was opened for; None if it is half made or half removed.

    Raises:
        StoreError: it is damaged.
    """
    path = context.stage_directory(stage) / STAGE_METADATA
    return context.identity.read_metadata(path, "stage", decode_stage)


def remove_stage(context: Context, stage: int) -> None:
    """Remove a stage's files, the one that makes it a stage first."""
    directory = context.stage_directory(stage)
    remove_if_there(context.files, directory / STAGE_METADATA)
    remove_tree(context.files, directory)
