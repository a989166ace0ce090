"""The reader of a stream, as Spark knows it.

Spark makes one in a process of its own to plan with, and pickles others into tasks to
read with. What plans is made when it is first needed and never travels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lance_spark.offset import StreamOffset
from lance_spark.spark.batch_end import PLAIN_BATCH_BYTES
from lance_spark.spark.filters import push_filters
from lance_spark.spark.group_commit import GroupCommit
from lance_spark.spark.options import StreamOptions
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.scan import ReadTask, read_split
from lance_spark.spark.schema import project
from lance_spark.spark.stream import StreamPlanner


class LanceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records of topics as they come.

    Args:
        options: what the user has said.
        schema: the columns that are wanted.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._projection = project(schema)
        self._planner: StreamPlanner | None = None
        self._group: GroupCommit | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None, "_group": None}

    # Planning, in the one process that a stream has for it.

    def initialOffset(self) -> dict[str, Any]:
        """Say where a query without a checkpoint starts."""
        return self._plan.initial().to_document()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Say how much a batch may have; a plain server always has a limit."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.max_records is not None:
            return ReadMaxRows(self._options.max_records)
        if self._plan.is_plain:
            return ReadMaxBytes(PLAIN_BATCH_BYTES)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Say where the next batch ends, after a pause if there is nothing new.

        Spark knows one limit at a time: what is given here tells no more than whether
        there is any, and the options tell which.
        """
        begin = StreamOffset.from_document(start)
        # All up to here is done: Spark asks for more when the last batch is finished.
        self._tell_group(begin)
        is_limited = not isinstance(limit, ReadAllAvailable)
        return self._plan.latest(begin, is_limited=is_limited).to_document()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Say where the topics end and how far behind the query is; asks nobody."""
        return self._plan.report()

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end where the topics end now."""
        self._plan.freeze()

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Plan the tasks of a batch."""
        begin, finish = map(StreamOffset.from_document, (start, end))
        return [InputPartition(split) for split in self._plan.plan(begin, finish)]

    def commit(self, end: dict[str, Any]) -> None:
        """Note that a batch is finished, be it one with rows of ours or of others."""
        self._plan.hurry()

    def stop(self) -> None:
        """Let go of what is open; Spark calls this if it has the time."""
        if self._group is not None:
            self._group.close()
            self._group = None
        clear_pool()

    @property
    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            self._planner = StreamPlanner(self._options)
        return self._planner

    def _tell_group(self, offset: StreamOffset) -> None:
        if self._options.consumer_group is None:
            return
        if self._group is None:
            client = self._options.read.client
            self._group = GroupCommit(client, self._options.consumer_group)
        self._group.tell(offset)

    # Reading, in tasks.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a split."""
        nothing, _ = push_filters((), narrow=False)
        task = ReadTask(self._options.read, self._projection, nothing)
        return read_split(task, partition.value)
