"""A stage: batches that wait for their commit, out of sight.

A stage is a log of its own in `stages/{id}`. Its batches are numbered 1, 2, 3 …, one
index row each, so that the number of the last batch is known after any crash and a
repeated batch is recognised without anything else being written.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lance_spark.checksum import crc32c
from lance_spark.errors import BatchGap, StageMismatch, StageUnknown, StoreError
from lance_spark.model import Buffer
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
from lance_spark.store.log import Appended, Log, Point
from lance_spark.store.recovery import open_log, open_with_table
from lance_spark.store.topic import check_log_name

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

    def __init__(self, metadata: StageMetadata, log: Log, crcs: array[int]) -> None:
        self.metadata = metadata
        self.log = log
        # Taken before any lock of the log.
        self._lock = threading.RLock()
        # One checksum per batch: their number says which one comes next.
        self._crcs = crcs
        self._dropped = False
        self.active_ns = max(metadata.opened_ns, log.last_append_ns)

    @classmethod
    def create(cls, context: Context, metadata: StageMetadata) -> Stage:
        """Make a stage on disk, durably."""
        directory = context.stage_directory(metadata.id)
        context.identity.prepare()
        context.files.mkdir(directory)
        replace_file(context.files, directory / STAGE_METADATA, encode_stage(metadata))
        context.files.sync_dir(directory.parent)
        log = Log(context, metadata.id, directory, Point(), ())
        return cls(metadata, log, array("I"))

    @classmethod
    def open(cls, context: Context, metadata: StageMetadata) -> Stage:
        """Open a stage."""
        directory = context.stage_directory(metadata.id)
        log = open_log(context, metadata.id, directory, Point())
        crcs = array("I")
        for segment in log.snapshot()[2]:
            _, table = open_with_table(log, segment)
            crcs.extend(table.batch(n).data_crc for n in range(table.batches))
        return cls(metadata, log, crcs)

    @property
    def batches(self) -> int:
        """How many batches it holds."""
        return len(self._crcs)

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return self.log.end().offset

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
                    return self.log.append(
                        data, starts, now_ns=now_ns, data_crc=data_crc
                    )
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
            end = self.log.end()
            return Appended(end.offset, end.offset, end.record, 0)

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
            self.log.retire("the stage was dropped")

    def drop(self) -> None:
        """Remove the stage; what can't be removed now goes with the next opening."""
        self.retire()
        remove_stage(self.log.context, self.metadata.id)
        self.log.context.segments.drop_topic(self.metadata.id)


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
