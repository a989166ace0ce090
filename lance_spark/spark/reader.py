"""The batch reader that Spark plans with on the driver and reads with in tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from lance_spark.spark.catalog import read_topics
from lance_spark.spark.filters import push_filters
from lance_spark.spark.options import ReadOptions
from lance_spark.spark.planning import Split, TopicRange, cut_ranges
from lance_spark.spark.pool import lease
from lance_spark.spark.scan import ReadTask, read_split
from lance_spark.spark.schema import project, project_topics
from lance_spark.spark.topics import choose_topics, resolve_ranges

logger = logging.getLogger(__name__)


class TopicsReader(DataSourceReader):
    """Reads what a server says of its topics, when a task asks it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = project_topics(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one task."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows."""
        return read_topics(self._options, self._columns)


class LanceReader(DataSourceReader):
    """Reads the records of topics.

    The ranges are fixed when `partitions` is called: actions on one DataFrame that
    share a plan see the same records.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._projection = project(schema)
        self._filters: tuple[Filter, ...] = ()
        self._is_offered = False
        # Spark 4.3 keeps one plan per `load()` and reads every query on it by the plan
        # that was made last, with the filters of that one. It does not ask the source
        # when it does so. A reader that leaves all filters to Spark is right then, too;
        # hence filters are taken only where the user says that each query has a
        # `load()` of its own.
        if options.push_filters:
            self.pushFilters = _Pushdown(self)  # type: ignore[method-assign]

    def push(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        """Take the filters that can be applied here and return the others."""
        self._is_offered = True
        _, rest = push_filters(filters, narrow=True)
        # By identity: two filters may be equal that differ, as 5 and 5.0 do.
        left = {id(each) for each in rest}
        self._filters = tuple(each for each in filters if id(each) not in left)
        if self._filters:
            # Without the literals: what is looked for may be nobody's business.
            logger.warning(
                "%d filters were pushed into the read. Spark may apply them to other "
                "queries on the same load() as well: call load() for each query, or "
                "leave out option pushFilters",
                len(self._filters),
            )
        return rest

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks, at a cost that does not depend on the size of a topic.

        Spark has pickled this reader for the tasks already: what they have to know
        is in the splits.
        """
        if self._options.push_filters and not self._is_offered:
            logger.warning(
                "option pushFilters is set, but Spark offered no filter for this read: "
                "the query has none, or the session pushes none (set "
                "spark.sql.python.filterPushdown.enabled to true); Spark filters the "
                "rows itself"
            )
        with lease(self._options.client) as client:
            topics = choose_topics(self._options, client.topics())
            ranges = resolve_ranges(client, self._options, topics)
        ranges = [narrow_range(whole, self._filters) for whole in ranges]
        splits = cut_ranges(ranges, self._options)
        logger.info(
            "%d partitions of %d bytes planned, pushed filters: %s",
            len(splits),
            sum(whole.size for whole in ranges),
            push_filters(self._filters, narrow=True)[0],
        )
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a split; Spark makes a partition up if there is none."""
        split: Split | None = partition.value
        if split is None:
            return iter(())
        pushed, _ = push_filters(self._filters, narrow=split.range.is_located)
        return read_split(ReadTask(self._options, self._projection, pushed), split)


class _Pushdown:
    """`pushFilters` as a session wants it, whether it pushes filters or not.

    In a session that does not (the default), Spark refuses readers that override the
    method. It compares the function behind the method, so this shows it the one that
    was not overridden; a session that does push filters simply calls it.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: LanceReader) -> None:
        self._reader = reader

    def __call__(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        return self._reader.push(filters)


def narrow_range(whole: TopicRange, filters: Sequence[Filter]) -> TopicRange:
    """Leave out of a range what filters on topic and offset exclude.

    Where record boundaries are probed, offsets narrow nothing: a filter may name any
    byte, and a range has to start with a record.
    """
    pushed, _ = push_filters(filters, narrow=whole.is_located)
    if not pushed.keeps_topic(whole.topic):
        return replace(whole, end=whole.start)
    start = whole.start if pushed.start is None else max(whole.start, pushed.start)
    end = whole.end if pushed.end is None else min(whole.end, pushed.end)
    if (start, end) == (whole.start, whole.end):
        return whole
    ends_log = whole.ends_log and end == whole.end
    return replace(whole, start=start, end=max(start, end), ends_log=ends_log)
