"""Spark streams: catching up, the time of a micro-batch, and how soon a row is seen.

Everything is compared with something else in the same session, in turns. What a stream
could be at best is shown by a Python source that has its rows at hand, with a Python
sink that forgets them: the engine's floor, below which no Python source and sink can
go. Session and broker are those of `spark`.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from benchmarks._stream_lane import (
    PATIENCE_S,
    RECORD_BYTES,
    BellDrain,
    CounterFeed,
    Drain,
    Feed,
    TopicDrain,
    TopicFeed,
    make_rows,
)
from benchmarks.report import Report, format_rate, format_ratio
from benchmarks.spark import MIB, run_broker, run_session
from lance_spark.client import LanceClient, Producer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_BATCH_ROWS = 1000
# What progress calls the parts of a micro-batch, in the order in which they come.
_PARTS = (
    "latestOffset",
    "walCommit",
    "getBatch",
    "queryPlanning",
    "addBatch",
    "commitOffsets",
)
_SPREAD = "10 % to 90 %"
# Where rows come from and go; the first is the floor.
_LANES = ("trivial to trivial", "topic to trivial", "topic to topic")


def run(report: Report) -> None:
    """Measure."""
    with (
        run_broker() as address,
        LanceClient(address) as client,
        run_session() as spark,
        tempfile.TemporaryDirectory() as directory,
    ):
        bench = _Bench(spark, client, address, Path(directory), quick=report.quick)
        report.add_table(
            ["backlog", "micro-batches", "records/s", "batch read", "ratio"],
            bench.compare_catching_up(),
            "Records of 100 bytes through a stream, against a batch read of them:",
        )
        report.add_table(
            ["from and to", "whole query", "outside of its batches", "to the floor"],
            bench.compare_whole_queries(),
            f"Time of a query of {_BATCH_ROWS} records with `Trigger.AvailableNow`, "
            "from `start()` to its end:",
        )
        _add_lanes(report, bench.run_lanes())


@dataclass
class _Times:
    """What was measured of a source and a sink, in ms."""

    batch: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # From an append until a task of the sink has the row, and until it is committed.
    seen: list[float] = field(default_factory=list)
    done: list[float] = field(default_factory=list)

    def note_progress(self, batches: Sequence[Mapping[str, Any]]) -> None:
        """Take the times that a query tells of its micro-batches."""
        for each in batches:
            durations = each["durationMs"]
            self.batch.append(durations["triggerExecution"])
            for part in _PARTS:
                self.parts[part].append(durations.get(part, 0))

    def list_parts(self) -> list[str]:
        """Write the median of each part."""
        return [f"{median(self.parts[part]):.0f}" for part in _PARTS]


def _add_lanes(report: Report, lanes: Mapping[str, _Times]) -> None:
    report.add_table(
        ["from and to", "median", _SPREAD, "to the floor"],
        _list_times({what: times.batch for what, times in lanes.items()}),
        f"Time of a micro-batch of {_BATCH_ROWS} records:",
    )
    report.add_table(
        ["from and to", *_PARTS],
        [[what, *times.list_parts()] for what, times in lanes.items()],
        "Where that goes, in ms (medians):",
    )
    seen = {f"a task has it: {what}": times.seen for what, times in lanes.items()}
    done = {f"it is committed: {what}": times.done for what, times in lanes.items()}
    report.add_table(
        ["until", "median", _SPREAD, "to the floor"],
        [*_list_times(seen), *_list_times(done)],
        "Time from the append of one record to a query that waits:",
    )


def _list_times(times: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Write times as rows of a table; the first are the floor."""
    rows: list[list[str]] = []
    floor = 0.0
    for what, each in times.items():
        if not each:
            continue
        middle = median(each)
        floor = floor or middle
        tenths = quantiles(each, n=10)
        spread = f"{tenths[0]:.0f} to {tenths[-1]:.0f} ms"
        rows.append([what, f"{middle:.0f} ms", spread, format_ratio(middle / floor)])
    return rows


@dataclass
class _Bench:
    spark: SparkSession
    client: LanceClient
    address: str
    directory: Path
    quick: bool

    def __post_init__(self) -> None:
        from benchmarks._spark_source import BellSource, TicksSource

        self.spark.dataSource.register(TicksSource)
        self.spark.dataSource.register(BellSource)
        self._names = (f"stream-{number}" for number in count())
        # Even, so that each order comes as often as the other.
        self._rounds = 2 if self.quick else 4
        self._size = (64 if self.quick else 256) * MIB
        self._random = random.Random(5)

    # A backlog.

    def compare_catching_up(self) -> list[list[str]]:
        """Compare reading a backlog through a stream with a batch read of it."""
        topic = next(self._names)
        # Four batches of the limit are all of it.
        rows = 4 * (self._size // 4 // RECORD_BYTES)
        self.client.create_topic(topic)
        with Producer(self.client, topic) as producer:
            producer.write(make_rows(rows))
        options = self._make_options(topic)
        limit = f"{self._size // MIB // 4}m"
        limited = {**options, "maxBytesPerTrigger": limit}
        calls: dict[str, Callable[[], tuple[float, int]]] = {
            "batch": partial(self._read_batch, options),
            "no limit": partial(self._catch_up, options, rows),
            f"maxBytesPerTrigger={limit}": partial(self._catch_up, limited, rows),
        }
        took: dict[str, list[float]] = {what: [] for what in calls}
        batches = {}
        for what, counts in self._take_turns(calls):
            took_s, batches[what] = calls[what]()
            if counts:
                took[what].append(took_s)
        self.client.delete_topic(topic)
        batch_s, *streams_s = (median(each) for each in took.values())
        return [
            [
                f"{self._size // MIB} MiB, {what}",
                str(batches[what]),
                *(format_rate(rows / each) for each in (stream_s, batch_s)),
                format_ratio(batch_s / stream_s),
            ]
            for what, stream_s in zip(list(calls)[1:], streams_s, strict=True)
        ]

    def _read_batch(self, options: dict[str, str]) -> tuple[float, int]:
        start = time.perf_counter()
        frame = self.spark.read.format("lance").options(**options).load()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start, 1

    def _catch_up(self, options: dict[str, str], rows: int) -> tuple[float, int]:
        """Give the seconds that all micro-batches took, and how many they were."""
        reader = self.spark.readStream.format("lance").options(**options)
        stream = reader.option("startingOffsets", "earliest").load()
        writer = stream.writeStream.format("noop").trigger(availableNow=True)
        with self._make_directory() as checkpoint:
            query = writer.option("checkpointLocation", str(checkpoint)).start()
            if not query.awaitTermination(PATIENCE_S):
                raise TimeoutError("the query does not end")
        batches = _read_progress(query)
        assert sum(each["numInputRows"] for each in batches) == rows
        took_ms = sum(each["durationMs"]["triggerExecution"] for each in batches)
        return took_ms / 1000, len(batches)

    # A query from its start to its end.

    def compare_whole_queries(self) -> list[list[str]]:
        """Compare queries that read what there is and end."""
        took: dict[str, list[tuple[float, float]]] = {what: [] for what in _LANES}
        for what, counts in self._take_turns(_LANES):
            for _ in range(3):
                with self._make_lane(what) as (feed, drain):
                    times = self._run_whole(feed, drain)
                if counts:
                    took[what].append(times)
        wholes = [median(whole for whole, _ in took[what]) for what in _LANES]
        outside = [median(rest for _, rest in took[what]) for what in _LANES]
        return [
            [
                what,
                *(f"{each * 1000:.0f} ms" for each in (whole_s, rest_s)),
                format_ratio(whole_s / wholes[0]),
            ]
            for what, whole_s, rest_s in zip(_LANES, wholes, outside, strict=True)
        ]

    def _run_whole(self, feed: Feed, drain: Drain) -> tuple[float, float]:
        """Give the seconds of a query, and those that are not of its micro-batches."""
        feed.add(_BATCH_ROWS)
        writer = feed.load(self.spark).writeStream.format(drain.format)
        writer = writer.options(**drain.options).trigger(availableNow=True)
        with self._make_directory() as checkpoint:
            writer = writer.option("checkpointLocation", str(checkpoint))
            start_s = time.perf_counter()
            query = writer.start()
            if not query.awaitTermination(PATIENCE_S):
                raise TimeoutError("the query does not end")
            took_s = time.perf_counter() - start_s
        batches = _read_progress(query)
        assert sum(each["numInputRows"] for each in batches) == _BATCH_ROWS
        batches_ms = sum(each["durationMs"]["triggerExecution"] for each in batches)
        return took_s, took_s - batches_ms / 1000

    # Small batches and single records.

    def run_lanes(self) -> dict[str, _Times]:
        """Time small batches and single records on their way from source to sink."""
        times = {what: _Times() for what in _LANES}
        for what, counts in self._take_turns(_LANES):
            with self._make_lane(what) as (feed, drain):
                self._run_lane(feed, drain, times[what] if counts else _Times())
        return times

    def _run_lane(self, feed: Feed, drain: Drain, times: _Times) -> None:
        writer = feed.load(self.spark).writeStream.format(drain.format)
        with self._make_directory() as checkpoint:
            options = {**drain.options, "checkpointLocation": str(checkpoint)}
            query = writer.options(**options).start()
            try:
                self._send_batches(feed, drain)
                self._send_records(feed, drain, times)
                batches = _read_progress(query)
            finally:
                query.stop()
        whole = [each for each in batches if each["numInputRows"] == _BATCH_ROWS]
        # The first few are slower: processes start, connections are made.
        times.note_progress(whole[5:])

    def _send_batches(self, feed: Feed, drain: Drain) -> None:
        """Keep a query busy; the next rows are there when it looks again."""
        for _ in range(5 + (10 if self.quick else 20)):
            feed.add(_BATCH_ROWS)
            drain.wait_for(_BATCH_ROWS)

    def _send_records(self, feed: Feed, drain: Drain, times: _Times) -> None:
        """Send one record at a time to a query that has nothing to do."""
        for _ in range(5 if self.quick else 10):
            # Not in step with whatever the query does from time to time.
            time.sleep(self._random.uniform(0.3, 0.6))
            feed.add(1)
            start_ns = time.monotonic_ns()
            seen_ns = drain.wait_for(1)
            times.done.append((time.monotonic_ns() - start_ns) / 1e6)
            if seen_ns is not None:
                times.seen.append((seen_ns - start_ns) / 1e6)

    # How.

    def _take_turns(self, names: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """Say who is next, and whether it counts.

        In the first round the JVM compiles what it has not seen before. It gets faster
        for long after that, and other things on a machine come and go, so that every
        other round goes backwards: what is always last would look best.
        """
        order = list(names)
        for turn in range(1 + self._rounds):
            for name in order:
                yield name, turn > 0
            order.reverse()

    @contextmanager
    def _make_lane(self, what: str) -> Iterator[tuple[Feed, Drain]]:
        """Make what gives a query its rows, and what takes them."""
        source, _, sink = what.partition(" to ")
        with ExitStack() as stack:
            directory = stack.enter_context(self._make_directory())
            feed: Feed = CounterFeed(directory)
            if source == "topic":
                feed = stack.enter_context(self._make_feed())
            if sink == "trivial":
                yield feed, stack.enter_context(BellDrain.open(directory))
                return
            topic = next(self._names)
            yield feed, TopicDrain(self.client, topic, self._make_options(topic))
            self.client.delete_topic(topic)

    @contextmanager
    def _make_feed(self) -> Iterator[Feed]:
        topic = next(self._names)
        self.client.create_topic(topic)
        with Producer(self.client, topic, linger_s=0) as producer:
            yield TopicFeed(producer, self._make_options(topic))
        self.client.delete_topic(topic)

    def _make_options(self, topic: str) -> dict[str, str]:
        return {"servers": self.address, "topic": topic}

    @contextmanager
    def _make_directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.directory) as directory:
            yield Path(directory)


def _read_progress(query: StreamingQuery) -> list[Mapping[str, Any]]:
    """Give what a query tells of its micro-batches that had rows."""
    return [each for each in query.recentProgress if each["numInputRows"]]
