"""The reader of a stream, as Spark knows it, and what it tells the server.

Spark makes one reader in a process of its own to plan with, and pickles others into
tasks to read with. The planner is made when it is first needed and never travels.

With the option `consumerGroup` the reader commits its progress to the server, so that
other tools see its lag. The query itself goes by its checkpoint alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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

from lance_spark.client.driver import ConnectionConfig, Driver, LogRef, open_driver
from lance_spark.errors import BrokerError, LanceError
from lance_spark.model import Partition
from lance_spark.offset import StreamOffset
from lance_spark.spark.options import ReadOptions
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.schema import project

# Of the processes that have a reader one plans, others read, and one only pickles it:
# each imports what it uses.
if TYPE_CHECKING:
    from lance_spark.spark.stream import StreamPlanner

logger = logging.getLogger(__name__)

# The next offset is as good as this one, so nothing is tried for long.
_COMMIT_S_MAX = 10.0
# How long the end of a query may wait until its last offset is committed.
_CLOSE_S_MAX = 2.0


class LanceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the records of topics as they come.

    Args:
        options: what the user has said.
        schema: the columns that are wanted.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._protocol = options.client.protocol
        self._projection = project(schema, self._protocol)
        self._planner: StreamPlanner | None = None
        self._group: GroupCommit | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None, "_group": None}

    # Planning, in the one process that a stream has for it.

    def initialOffset(self) -> dict[str, Any]:
        """Say where a query without a checkpoint starts."""
        return self._plan.initial().to_document(self._protocol)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Say how much a batch may have; on a plain server there always is a limit."""
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        if self._options.max_records_per_trigger is not None:
            return ReadMaxRows(self._options.max_records_per_trigger)
        limit = self._plan.default_limit()
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Say where the next batch ends, after a pause if there is nothing new.

        Spark knows one limit at a time. The one that it gives here only tells whether
        there is any; the options tell which.
        """
        begin = StreamOffset.from_document(start, self._protocol)
        # Spark asks for more when the last batch is finished, so all up to here is
        # done.
        self._commit_group(begin)
        is_limited = not isinstance(limit, ReadAllAvailable)
        end = self._plan.latest(begin, is_limited=is_limited)
        return end.to_document(self._protocol)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Say where the topics end and how far behind the query is, as last seen."""
        return self._plan.report

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end where the topics end now."""
        self._plan.freeze()

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Plan the tasks of a batch."""
        begin, finish = (
            StreamOffset.from_document(each, self._protocol) for each in (start, end)
        )
        return [InputPartition(split) for split in self._plan.plan(begin, finish)]

    def commit(self, end: dict[str, Any]) -> None:
        """Note that a batch is finished, perhaps one of other sources' rows alone."""
        self._plan.skip_pause()

    def stop(self) -> None:
        """Close everything; Spark calls this if it has the time."""
        if self._group is not None:
            self._group.close()
            self._group = None
        clear_pool()

    @property
    def _plan(self) -> StreamPlanner:
        if self._planner is None:
            from lance_spark.spark.stream import StreamPlanner

            self._planner = StreamPlanner(self._options)
        return self._planner

    def _commit_group(self, offset: StreamOffset) -> None:
        if self._options.consumer_group is None:
            return
        if self._group is None:
            client = self._options.client
            self._group = GroupCommit(client, self._options.consumer_group)
        self._group.commit(offset)

    # Reading, in tasks.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a split."""
        from lance_spark.spark.scan import ReadTask, read_split

        task = ReadTask(self._options, self._projection)
        return read_split(task, partition.value)


class GroupCommit:
    """Commits the offsets of a query under the name of a consumer group.

    It must neither hold up the query nor fail it: a thread of its own commits the
    newest offset, and a failure is logged once.

    Args:
        config: how to reach the servers.
        group: the group's name.
    """

    def __init__(self, config: ConnectionConfig, group: str) -> None:
        patience_s = min(_COMMIT_S_MAX, config.retry_timeout_s)
        self._config = replace(config, retry_timeout_s=patience_s)
        self._group = group
        self._committed: dict[Partition, tuple[LogRef, int]] = {}
        # Topics that the server refuses; None if no server answers.
        self._failing: set[str | None] = set()
        self._news = threading.Condition()
        self._next: StreamOffset | None = None
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._run, name=f"lance-group-{group}", daemon=True
        )
        self._thread.start()

    def commit(self, offset: StreamOffset) -> None:
        """Commit an offset soon, instead of one that still waits."""
        with self._news:
            self._next = offset
            self._news.notify()

    def close(self) -> None:
        """Wait a moment for the last commit, and end."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        self._thread.join(_CLOSE_S_MAX)

    def _run(self) -> None:
        driver: Driver | None = None
        while True:
            with self._news:
                self._news.wait_for(lambda: self._next or self._is_closing)
                offset, self._next = self._next, None
            if offset is None:
                break
            try:
                driver = driver or open_driver(self._config)
            except LanceError as error:
                self._note(None, error)
            else:
                self._commit(driver, offset)
        if driver is not None:
            driver.close()

    def _commit(self, driver: Driver, offset: StreamOffset) -> None:
        there = [(topic, place) for topic, place in offset.topics if not place.is_away]
        self._forget_all_but({topic for topic, _ in there})
        for topic, place in there:
            for number, position in place.positions:
                log = LogRef(Partition(topic, number), place.topic_id, place.created_s)
                if self._committed.get(log.partition) == (log, position):
                    continue
                try:
                    driver.commit_position(log, self._group, position)
                    self._failing -= {topic, None}
                except LanceError as error:
                    is_refused = isinstance(error, BrokerError) and not error.retriable
                    self._note(topic if is_refused else None, error)
                    if not is_refused:
                        # The next topic would wait as long for the same.
                        return
                # A refusal would be repeated, until the offset is another one.
                self._committed[log.partition] = log, position

    def _forget_all_but(self, topics: set[str]) -> None:
        """Forget topics that are gone, of which there may be more and more.

        One that was refused would hide all later trouble.
        """
        known = self._committed.items()
        self._committed = {p: at for p, at in known if p.topic in topics}
        self._failing &= {*topics, None}

    def _note(self, topic: str | None, error: LanceError) -> None:
        """Log a failure, once until everything works again."""
        if not self._failing:
            logger.warning(
                "the progress of the query can't be committed for group %r; the query "
                "itself goes on: %s",
                self._group,
                error,
            )
        self._failing.add(topic)
