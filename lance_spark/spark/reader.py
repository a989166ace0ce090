"""The batch readers that Spark plans with on the driver and reads with in tasks.

Planning and reading are done in different processes, and each imports what it uses.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from lance_spark.client.driver import Driver, Range, Split, TopicEntry
from lance_spark.errors import TopicDeleted, TopicNotFound
from lance_spark.spark.filters import push_filters
from lance_spark.spark.options import ReadOptions
from lance_spark.spark.pool import lease
from lance_spark.spark.schema import (
    make_arrow_schema,
    make_topics_schema,
    project,
    project_topics,
)

logger = logging.getLogger(__name__)

# The wire has larger numbers than Spark; a limit as large as this means no limit.
_BIGINT_MAX = 2**63 - 1


class TopicsReader(DataSourceReader):
    """Reads what a server says of its topics, when a task asks it."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        # What is wanted of the topics, and the name that it gets.
        protocol = options.client.protocol
        self._columns = project_topics(schema, protocol)
        self._arrow = make_arrow_schema(make_topics_schema(protocol))

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one task."""
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """List the topics that the options choose, all if they name none."""
        from lance_spark.spark.planning import find_topics

        with lease(self._options.client) as driver:
            chosen = find_topics(driver, self._options)
            rows = [row for entry in chosen for row in _describe(driver, entry)]
        batch = pa.RecordBatch.from_pylist(rows, schema=self._arrow)
        names = list(self._columns.values())
        yield batch.select(list(self._columns)).rename_columns(names)


def _describe(driver: Driver, entry: TopicEntry) -> Iterator[dict[str, Any]]:
    """Give a row for each partition; none if the topic is gone by now."""
    from lance_spark.spark.planning import find_bounds

    try:
        found = find_bounds(driver, entry)
    except (TopicNotFound, TopicDeleted):
        return
    limits = entry.retention and {
        name: min(most, _BIGINT_MAX) for name, most in asdict(entry.retention).items()
    }
    is_counted = driver.traits.unit == "records"
    for log, bounds in found.items():
        yield {
            # Servers that count records give topics no ids and no times.
            "id": None if is_counted else entry.topic_id,
            "name": entry.name,
            "partition": log.partition.number,
            # A plain server does not say where its logs start.
            "log_start": bounds.start if entry.bounds or is_counted else None,
            "log_end": bounds.end,
            "records": bounds.end - bounds.start if is_counted else entry.records,
            "created": (
                None if is_counted else min(entry.created_s * 1_000_000, _BIGINT_MAX)
            ),
            "retention": limits,
        }


class LanceReader(DataSourceReader):
    """Reads the records of topics.

    The ranges are fixed when `partitions` is called: actions on one DataFrame that
    share a plan see the same records.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._projection = project(schema, options.client.protocol)
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
            # Without the literals, which may be private.
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
        from lance_spark.spark.planning import (
            cut_ranges,
            find_topics,
            resolve_ranges,
        )

        if self._options.push_filters and not self._is_offered:
            logger.warning(
                "option pushFilters is set, but Spark offered no filter for this read: "
                "the query has none, or the session pushes none (set "
                "spark.sql.python.filterPushdown.enabled to true); Spark filters the "
                "rows itself"
            )
        with lease(self._options.client) as driver:
            topics = find_topics(driver, self._options)
            ranges = resolve_ranges(driver, self._options, topics)
            traits = driver.traits
        ranges = [narrow_range(piece, self._filters) for piece in ranges]
        splits = cut_ranges(ranges, self._options, traits)
        logger.info(
            "%d partitions of %d %s planned, pushed filters: %.500s",
            len(splits),
            sum(piece.size for piece in ranges),
            traits.unit,
            self._filters,
        )
        return [InputPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a split; Spark makes a partition up if there is none."""
        split: Split | None = partition.value
        if split is None:
            return iter(())
        from lance_spark.spark.scan import ReadTask, read_split

        pushed, _ = push_filters(self._filters, narrow=_can_narrow(split.range))
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


def narrow_range(piece: Range, filters: Sequence[Filter]) -> Range:
    """Leave out of a range what filters on topic and offset exclude.

    Where record boundaries are probed, offsets narrow nothing: a filter may name any
    byte, and a range has to start with a record.
    """
    pushed, _ = push_filters(filters, narrow=_can_narrow(piece))
    if not pushed.keeps_topic(piece.topic):
        return replace(piece, end=piece.start)
    start = piece.start if pushed.start is None else max(piece.start, pushed.start)
    end = piece.end if pushed.end is None else min(piece.end, pushed.end)
    return replace(
        piece,
        start=start,
        end=max(start, end),
        ends_log=piece.ends_log and end == piece.end,
        is_aligned=piece.is_aligned and start == piece.start,
        # A mark is one of both ends.
        mark=piece.mark if (start, end) == (piece.start, piece.end) else None,
    )


def _can_narrow(piece: Range) -> bool:
    return piece.finder != "probed"
