"""Load: twenty producers and twenty consumers, nothing lost, and memory that is flat.

A few seconds by default; `make soak` asks for an hour.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_spark.client import Consumer, Producer
from lance_spark.client.lwp.writer import WriterOptions
from lance_spark.wire.lwp import RECORD_HEADER_BYTES
from tests.integration.kit import PATIENCE_S, make_client, wait_for
from tests.integration.process import HAS_PROC, BrokerProcess

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not HAS_PROC, reason="/proc says what it costs"),
]

SECONDS = float(os.environ.get("LANCE_SOAK_SECONDS", "5"))
PRODUCERS = CONSUMERS = 20
TOPICS = 4
ROWS, VALUE_BYTES = 100, 64
# A producer rests between its batches, so that an hour fits a disk: about 3 MB/s.
PAUSE_S = 0.04
# How much the broker's memory may grow between a fifth of the run and its end.
GROWTH_MAX = 1.25
SLACK_BYTES = 8 * 1024 * 1024


class Worker(ABC):
    """A producer or consumer in a thread of its own."""

    def __init__(self, address: str, number: int) -> None:
        self.number = number
        self.topic = f"load-{number % TOPICS}"
        self.client = make_client(address)
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self.client:
                self.work()
        except BaseException as error:
            self.failure = error

    @abstractmethod
    def work(self) -> None: ...

    def finish(self) -> None:
        self.stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{type(self).__name__} {self.number} hangs"
        if self.failure is not None:
            raise self.failure


class Source(Worker):
    """Sends records that say who sent them, and which one it is."""

    sent = 0

    def work(self) -> None:
        with Producer(self.client, self.topic) as producer:
            while not self.stop.is_set():
                producer.write(make_rows(self.number, self.sent))
                producer.flush(PATIENCE_S)
                self.sent += ROWS
                self.stop.wait(PAUSE_S)


class Sink(Worker):
    """Reads a topic and checks that each producer's records come one by one."""

    def __init__(self, address: str, number: int) -> None:
        # What comes next of each producer.
        self.next: dict[int, int] = {}
        super().__init__(address, number)

    def work(self) -> None:
        with Consumer(self.client, self.topic) as consumer:
            while True:
                # Asked before the poll: what is behind it then is not missed.
                is_last = self.stop.is_set()
                result = consumer.poll_blocking(0.0 if is_last else 0.5)
                if not result.is_empty:
                    self._check(result.to_arrow(["value"])["value"])
                elif is_last:
                    return

    def _check(self, values: pa.BinaryArray) -> None:
        numbers = read_rows(values)
        for producer in np.unique(numbers[:, 0]):
            sequences = numbers[numbers[:, 0] == producer, 1]
            start = self.next.get(int(producer), 0)
            expected = np.arange(start, start + len(sequences))
            assert np.array_equal(sequences, expected), f"producer {producer}"
            self.next[int(producer)] = start + len(sequences)


def make_rows(producer: int, start: int) -> pa.RecordBatch:
    numbers = np.zeros((ROWS, VALUE_BYTES // 8), np.int64)
    numbers[:, 0] = producer
    numbers[:, 1] = np.arange(start, start + ROWS)
    kind = pa.binary(VALUE_BYTES)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        kind, ROWS, [None, pa.py_buffer(numbers)]
    )
    return pa.record_batch({"value": fixed.cast(pa.binary())})


def read_rows(values: pa.BinaryArray) -> np.ndarray:
    fixed = values.cast(pa.binary(VALUE_BYTES))
    data = np.frombuffer(fixed.buffers()[1], np.int64)
    return data.reshape(-1, VALUE_BYTES // 8)[fixed.offset :][: len(fixed)]


def finish_all(workers: Sequence[Worker]) -> None:
    """Let all of them end what they have begun."""
    for worker in workers:
        worker.stop.set()
    for worker in workers:
        worker.finish()


def watch(broker: BrokerProcess, sources: list[Source], sinks: list[Sink]) -> int:
    """Let them work; give the broker's memory after a fifth of the time."""
    began, early = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < SECONDS:
        for worker in [*sources, *sinks]:
            if worker.failure is not None:
                raise worker.failure
        if not early and elapsed > SECONDS / 5:
            wait_for(lambda: all(source.sent for source in sources), "all produce")
            wait_for(lambda: all(sink.next for sink in sinks), "all consume")
            early = broker.rss_bytes
        time.sleep(0.05)
    return early


def test_load(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with make_client(broker.address) as client:
            for number in range(TOPICS):
                client.create_topic(f"load-{number}")
        sources = [Source(broker.address, n) for n in range(PRODUCERS)]
        sinks = [Sink(broker.address, n) for n in range(CONSUMERS)]
        early = watch(broker, sources, sinks)
        late = broker.rss_bytes
        assert broker.threads >= PRODUCERS + CONSUMERS
        finish_all(sources)
        finish_all(sinks)
        for sink in sinks:
            mine = {s.number: s.sent for s in sources if s.topic == sink.topic}
            assert sink.next == mine, f"consumer {sink.number}"
        assert late <= early * GROWTH_MAX + SLACK_BYTES, (early, late)
        wait_for(lambda: broker.threads <= 10, "all connections are closed")


def test_batches_of_usual_size_take_no_new_memory(tmp_path: Path) -> None:
    """To get pages for the buffer of each costs half as much as all else."""
    rounds, size = 50, WriterOptions().batch_bytes
    with (
        BrokerProcess(tmp_path / "data") as process,
        make_client(process.address) as client,
        Producer(client, "bulk", create_topic=True) as producer,
    ):
        # The first ones take what the others have.
        for _ in range(2):
            before = process.page_faults
            for _ in range(rounds):
                producer.send(bytes(size - RECORD_HEADER_BYTES))
            producer.flush()
        faults = process.page_faults - before
    # A buffer has a page for each 4 KiB.
    assert faults < rounds * size / 4096 / 10
