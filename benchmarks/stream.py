"""Spark streams: catching up, the time of a micro-batch, and how soon a row is seen.

Everything is compared with something else in the same session, in turns. What a stream
could be at best is shown by a Python source that has its rows at hand, with a Python
sink that forgets them: the engine's floor, below which no Python source and sink can
go. Spark's own source and sink in the JVM show which part of the floor is Python's.
Session and broker are those of `spark`.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from benchmarks._session import run_broker, run_session
from benchmarks._stream_lane import (
    RECORD_BYTES,
    BellDrain,
    CounterFeed,
    Drain,
    Feed,
    MachineFeed,
    NoopDrain,
    TopicDrain,
    TopicFeed,
    make_rows,
    run_to_end,
)
from benchmarks._turns import MIB, Took, collect, take_turns, time_call
from benchmarks.report import Report, format_ms, format_rate, format_ratio, format_s
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
# Where rows come from and go, and which of these ways is the floor of the others.
_LANES = (
    *("JVM to noop", "trivial to noop", "trivial to trivial"),
    *("topic to trivial", "topic to topic"),
)
_FLOOR = "trivial to trivial"
_WHOLE_LANES = ("JVM to noop", "trivial to noop", "topic to noop", "topic to topic")
_WHOLE_FLOOR = "trivial to noop"
# The first few micro-batches are slower: processes start, connections are made.
_WARM_BATCHES = 5


def run(report: Report) -> None:
    """Measure."""
    with (
        run_broker() as broker,
        LanceClient(broker.address) as client,
        run_session() as spark,
        tempfile.TemporaryDirectory() as directory,
    ):
        bench = _Bench(
            spark, client, broker.address, Path(directory), quick=report.quick
        )
        report.add_table(
            ["backlog", "micro-batches", "records/s", "batch read", "ratio"],
            bench.compare_catching_up(),
            "Records of 100 bytes through a stream, against a batch read of them:",
        )
        for rows in (_BATCH_ROWS, bench.backlog_rows):
            report.add_table(
                ["from and to", "whole query", "outside", "CPU s", "to the floor"],
                bench.compare_whole_queries(rows),
                f"Time of an `AvailableNow` query of {rows} records, from `start()` to "
                "the end, and of it the part outside of its micro-batches:",
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
    # Processor time of a micro-batch, one figure for each query.
    cpu: list[float] = field(default_factory=list)

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
    rows = _list_times({what: times.batch for what, times in lanes.items()})
    for row, times in zip(rows, lanes.values(), strict=True):
        row.insert(-1, f"{median(times.cpu):.0f} ms")
    report.add_table(
        ["from and to", "median", _SPREAD, "CPU", "to the floor"],
        rows,
        f"Time of a micro-batch of {_BATCH_ROWS} records:",
    )
    report.add_table(
        ["from and to", *_PARTS],
        [[what, *times.list_parts()] for what, times in lanes.items()],
        "Where that goes, in ms (medians):",
    )
    until = "until", "median", _SPREAD, "to the floor"
    seen = {f"a task has it: {what}": times.seen for what, times in lanes.items()}
    done = {f"it is committed: {what}": times.done for what, times in lanes.items()}
    report.add_table(
        until,
        [*_list_times(seen), *_list_times(done)],
        "Time from the append of one record to a query that waits:",
    )


def _list_times(lanes: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Write times in ms as rows of a table, with ratios to that of the floor."""
    times = {what: each for what, each in lanes.items() if each}
    (floor,) = (median(each) for what, each in times.items() if what.endswith(_FLOOR))
    rows: list[list[str]] = []
    for what, each in times.items():
        tenths = quantiles(each, n=10)
        spread = f"{tenths[0]:.0f} to {tenths[-1]:.0f} ms"
        middle = median(each)
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

    @property
    def backlog_rows(self) -> int:
        """How many rows a backlog has: four batches of the limit are all of it."""
        return 4 * (self._size // 4 // RECORD_BYTES)

    # A backlog.

    def compare_catching_up(self) -> list[list[str]]:
        """Compare reading a backlog through a stream with a batch read of it."""
        topic = next(self._names)
        rows = self.backlog_rows
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
        found = collect(calls, self._rounds)
        self.client.delete_topic(topic)
        took = {what: median(s for s, _ in each) for what, each in found.items()}
        batch_s = took.pop("batch")
        return [
            [
                f"{self._size // MIB} MiB, {what}",
                str(found[what][-1][1]),
                *(format_rate(rows / each) for each in (stream_s, batch_s)),
                format_ratio(batch_s / stream_s),
            ]
            for what, stream_s in took.items()
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
            query = run_to_end(writer.option("checkpointLocation", str(checkpoint)))
        batches = _read_progress(query)
        assert sum(each["numInputRows"] for each in batches) == rows
        took_ms = sum(each["durationMs"]["triggerExecution"] for each in batches)
        return took_ms / 1000, len(batches)

    # A query from its start to its end.

    def compare_whole_queries(self, rows: int) -> list[list[str]]:
        """Compare queries that read what there is and end."""
        with self._make_directory() as directory, self._make_feed() as topic:
            feeds = {
                "JVM": MachineFeed(rows),
                "trivial": CounterFeed(directory),
                "topic": topic,
            }
            for feed in feeds.values():
                feed.add(rows)
            calls = {
                what: partial(self._run_whole, feeds[source], sink, rows)
                for what in _WHOLE_LANES
                for source, _, sink in [what.partition(" to ")]
            }
            repeats = 2 if rows == _BATCH_ROWS else 1
            found = collect(calls, repeats * self._rounds)
        took = {what: Took.middle([x for x, _ in found[what]]) for what in found}
        outside = {what: median(rest for _, rest in found[what]) for what in found}
        return [
            [
                what,
                format_ms(each.wall_s),
                format_ms(outside[what]),
                format_s(each.cpu_s),
                format_ratio(each.wall_s / took[_WHOLE_FLOOR].wall_s),
            ]
            for what, each in took.items()
        ]

    def _run_whole(self, feed: Feed, sink: str, rows: int) -> tuple[Took, float]:
        """Give what a query took, and the seconds that are not of its micro-batches."""
        target = next(self._names)
        writer = feed.load(self.spark).writeStream.trigger(availableNow=True)
        writer = writer.format("noop")
        if sink == "topic":
            self.client.create_topic(target)
            writer = writer.format("lance").options(**self._make_options(target))
        queries: list[StreamingQuery] = []
        with self._make_directory() as checkpoint:
            writer = writer.option("checkpointLocation", str(checkpoint))
            took = time_call(lambda: queries.append(run_to_end(writer)))
        if sink == "topic":
            self.client.delete_topic(target)
        batches = _read_progress(queries[0])
        assert sum(each["numInputRows"] for each in batches) == rows
        batches_ms = sum(each["durationMs"]["triggerExecution"] for each in batches)
        return took, took.wall_s - batches_ms / 1000

    # Small batches and single records.

    def run_lanes(self) -> dict[str, _Times]:
        """Time small batches and single records on their way from source to sink."""
        times = {what: _Times() for what in _LANES}
        for what, counts in take_turns(_LANES, self._rounds):
            with self._make_lane(what) as (feed, drain):
                self._run_lane(feed, drain, times[what] if counts else _Times())
        return times

    def _run_lane(self, feed: Feed, drain: Drain, times: _Times) -> None:
        writer = feed.load(self.spark).writeStream.format(drain.format)
        with self._make_directory() as checkpoint:
            options = {**drain.options, "checkpointLocation": str(checkpoint)}
            query = writer.options(**options).start()
            drain.follow(query)
            try:
                self._send_batches(feed, drain, _WARM_BATCHES)
                sent = 10 if self.quick else 16
                took = time_call(partial(self._send_batches, feed, drain, sent))
                times.cpu.append(took.cpu_s * 1000 / sent)
                if not isinstance(drain, NoopDrain):
                    self._send_records(feed, drain, times)
                batches = _read_progress(query)
            finally:
                query.stop()
        whole = [each for each in batches if each["numInputRows"] == _BATCH_ROWS]
        times.note_progress(whole[_WARM_BATCHES:])

    def _send_batches(self, feed: Feed, drain: Drain, batches: int) -> None:
        """Keep a query busy; the next rows are there when it looks again."""
        for _ in range(batches):
            feed.add(_BATCH_ROWS)
            drain.wait_for(_BATCH_ROWS)

    def _send_records(self, feed: Feed, drain: Drain, times: _Times) -> None:
        """Send one record at a time to a query that has nothing to do."""
        for _ in range(4 if self.quick else 8):
            # Not in step with whatever the query does from time to time.
            time.sleep(self._random.uniform(0.3, 0.6))
            feed.add(1)
            start_ns = time.monotonic_ns()
            seen_ns = drain.wait_for(1)
            times.done.append((time.monotonic_ns() - start_ns) / 1e6)
            if seen_ns is not None:
                times.seen.append((seen_ns - start_ns) / 1e6)

    # How.

    @contextmanager
    def _make_lane(self, what: str) -> Iterator[tuple[Feed, Drain]]:
        """Make what gives a query its rows, and what takes them."""
        source, _, sink = what.partition(" to ")
        with ExitStack() as stack:
            directory = stack.enter_context(self._make_directory())
            feed: Feed = CounterFeed(directory)
            if source == "JVM":
                feed = MachineFeed(_BATCH_ROWS)
            elif source == "topic":
                feed = stack.enter_context(self._make_feed())
            if sink == "noop":
                yield feed, NoopDrain()
            elif sink == "trivial":
                yield feed, stack.enter_context(BellDrain.open(directory))
            else:
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
