"""What the tests of streams share: an engine without a JVM, and time that tests make.

The engine does what Spark's does with a source: the same calls in the same order
(SPARK-CONNECTORS.md 3.2), offsets as JSON texts, a log of batch ends and one of batches
that are done, everything that travels pickled.
"""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LanceClient
from lance_spark.client.connection import Connection
from lance_spark.offset import StreamOffset
from lance_spark.spark.options import ReadOptions, parse_read_options
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.stream import StreamPlanner
from lance_spark.spark.stream_reader import LanceStreamReader
from lance_spark.wire.lwp import Message, Record, WaitResponse
from tests.spark.reading import (
    QUICK,
    ROW_COLUMNS,
    ROW_SCHEMA,
    connect,
    fill,
    make_options,
    pick,
    read_planned,
)

# No test has more batches than this; one that does goes round in circles.
_BATCHES_MAX = 500


def parse_stream(broker: EmbeddedBroker, **given: Any) -> ReadOptions:
    """Parse the options of a stream; its client is quick to try again."""
    options = parse_read_options(make_options(broker, **given), is_stream=True)
    quick = {name: value for name, value in QUICK.items() if "backoff" in name}
    client = replace(options.client, **quick)
    return replace(options, client=client)


class Time:
    """A clock that only goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []
        # Done at each sleep.
        self.meanwhile: Callable[[], None] = lambda: None

    def clock(self) -> float:
        """Say what time it is."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.slept_s.append(seconds)
        self.now_s += seconds
        self.meanwhile()


def make_planner(
    broker: EmbeddedBroker, time: Time | None = None, **given: Any
) -> StreamPlanner:
    """Make a planner that never really sleeps."""
    time = time or Time()
    options = parse_stream(broker, **given)
    return StreamPlanner(options, clock=time.clock, sleep=time.sleep)


class Engine:
    """Runs the batches of one source as Spark does.

    Args:
        broker: where the topics are.
        available_now: `Trigger.AvailableNow`.
        schema: the columns that are read.
        given: options of the source.
    """

    def __init__(
        self,
        broker: EmbeddedBroker,
        *,
        available_now: bool = False,
        schema: StructType = ROW_SCHEMA,
        **given: Any,
    ) -> None:
        self.broker = broker
        self.schema = schema
        self.given = given
        # What the checkpoint has: ends of batches, and how many batches are done.
        self.offsets: list[str] = []
        self.done = 0
        # The rows of each batch that is done; one that is done again replaces them.
        self.batches: list[list[dict[str, Any]]] = []
        self.time = Time()
        self.restart(available_now=available_now)

    def restart(
        self,
        *,
        available_now: bool = False,
        broker: EmbeddedBroker | None = None,
        **changed: Any,
    ) -> Engine:
        """Start another process with the same checkpoint, perhaps other options."""
        clear_pool()
        self.broker = broker or self.broker
        self.given = {**self.given, **changed}
        given = {name: text for name, text in self.given.items() if text is not None}
        options = parse_stream(self.broker, **given)
        made = LanceStreamReader(options, self.schema)
        self.reader: LanceStreamReader = pickle.loads(pickle.dumps(made))
        self.time = Time()
        self.reader._planner = StreamPlanner(
            options, clock=self.time.clock, sleep=self.time.sleep
        )
        self._is_fresh = True
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        return self

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all batches that are done."""
        return [row for batch in self.batches for row in batch]

    @property
    def offset(self) -> StreamOffset:
        """How far it is."""
        return StreamOffset.from_document(json.loads(self.offsets[-1]))

    def at(self, topic: str) -> int | None:
        """Say how far a topic is read."""
        place = self.offset.get(topic)
        return None if place is None else place.offset

    def step(self, *, crash: bool = False) -> bool:
        """Run a batch, if there is one; say whether there was.

        Args:
            crash: stop behind writing down where the batch ends.
        """
        if self._is_fresh and self.done < len(self.offsets):
            # What the last process has begun is done first, as it was planned.
            self._is_fresh = False
            self._run()
            return True
        self._is_fresh = False
        if not self._plan():
            return False
        if not crash:
            self._run()
        return True

    def drain(self) -> list[dict[str, Any]]:
        """Run batches until there is none; give their rows."""
        known = len(self.batches)
        for _ in range(_BATCHES_MAX):
            if not self.step():
                return [row for batch in self.batches[known:] for row in batch]
        raise AssertionError("there is no end of batches")

    def _plan(self) -> bool:
        start = self._find_start(len(self.offsets))
        limit = self.reader.getDefaultReadLimit()
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit))
        json.dumps(self.reader.reportLatestOffset())
        if self.offsets and end == start:
            return False
        self.offsets.append(end)
        return True

    def _run(self) -> None:
        batch = len(self.offsets) - 1
        if batch:
            self.reader.commit(json.loads(self.offsets[-2]))
        start, end = self._find_start(batch), self.offsets[-1]
        parts = self.reader.partitions(json.loads(start), json.loads(end))
        rows = read_planned(self.reader, parts, self.schema)
        self.batches[batch:] = [rows]
        self.done = batch + 1

    def _find_start(self, batch: int) -> str:
        if batch:
            return self.offsets[batch - 1]
        return json.dumps(self.reader.initialOffset())

    def move(self, topic: str, offset: int, *, keep_mark: bool = False) -> None:
        """Have the checkpoint say that a topic is read up to another offset."""
        document = json.loads(self.offsets[-1])
        document["topics"][topic]["partitions"]["0"] = offset
        if not keep_mark:
            document["topics"][topic].pop("marks", None)
        self.offsets[-1] = json.dumps(document)

    def sizes(self) -> list[dict[str, int]]:
        """Say how many bytes of each topic each batch but the first has."""
        found = [StreamOffset.from_document(json.loads(o)) for o in self.offsets]
        sizes = []
        for start, end in itertools.pairwise(found):
            before = {topic: place.offset for topic, place in start.topics}
            sizes.append({t: p.offset - before.get(t, 0) for t, p in end.topics})
        return sizes


class Requests:
    """Counts what clients ask servers for; patched in for one test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        submit = Connection.submit

        def count(connection: Connection, message: Message, **given: Any) -> Any:
            self.names.append(type(message).__name__)
            return submit(connection, message, **given)

        patch.setattr(Connection, "submit", count)

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self.names)


def make_waits_pass(patch: pytest.MonkeyPatch, time: Time) -> list[float]:
    """Let a server's waiting pass at once, on a test's clock; give how long each was.

    It is for servers of which nothing comes: they are asked once, at the end.
    """
    waits: list[float] = []
    wait = LanceClient.wait

    def skip(
        client: LanceClient, version: int, positions: Any, wait_s: float
    ) -> WaitResponse:
        answer = wait(client, version, positions, 0.0)
        if answer.version == version:
            waits.append(wait_s)
            time.now_s += wait_s
        return answer

    patch.setattr(LanceClient, "wait", skip)
    return waits


def recreate(broker: EmbeddedBroker, topic: str, records: Sequence[Record]) -> None:
    """Delete a topic and create it anew."""
    delete(broker, topic)
    fill(broker, topic, records)


def delete(broker: EmbeddedBroker, topic: str) -> None:
    """Delete a topic."""
    with connect(broker) as client:
        client.delete_topic(topic)


def expect(*rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give rows as a stream with the default columns gives them."""
    return pick(itertools.chain.from_iterable(rows), *ROW_COLUMNS)


def by_place(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows by topic and offset, as batches have topics in turn."""
    return sorted(rows, key=lambda row: (row["topic"], row["offset"]))


def values(rows: Iterable[dict[str, Any]]) -> list[bytes]:
    """Give the values of rows."""
    return [row["value"] for row in rows]
