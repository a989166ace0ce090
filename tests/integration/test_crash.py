"""Crash campaign: the broker is killed at random moments while clients work.

Producers, staged commits and consumers go on over every restart. What was acknowledged
is there, in order per producer; what was committed is there exactly once, in both of
its topics; consumers have seen exactly what is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from lance_spark.client import Consumer, LanceClient, Producer, StageWriter
from lance_spark.wire.lwp import CommitStatus
from tests.integration.kit import (
    PATIENCE_S,
    by_producer,
    first_occurrences,
    make_client,
    name_value,
    read_bytes,
    read_values,
    wait_for,
)
from tests.integration.process import BrokerProcess
from tests.store.kit import check_clean

pytestmark = pytest.mark.crash

# `make crash` asks for thousands. A directory is used for several rounds, so that
# recovery meets what recovery left.
ROUNDS = int(os.environ.get("LANCE_CRASH_ROUNDS", "12"))
ROUNDS_PER_DIRECTORY = 4
POLICIES = ("batch", "none", "always")

TOPIC, LEFT, RIGHT = "plain", "left", "right"
# Small, so that segments roll, stages are adopted and recovery has something to do.
SETTINGS = {
    "segment_bytes": 200_000,
    "stage_adopt_bytes": 4_000,
    "index_stride_bytes": 256,
}
OPTIONS = {"backoff_max_s": 0.05, "connect_timeout_s": 20.0}


class Worker(ABC):
    """Somebody who works in a thread until told to stop."""

    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self.steps = 0
        # What it has to give back, also after a failure.
        self._stack = contextlib.ExitStack()
        self._client = self._stack.enter_context(make_client(address, **OPTIONS))
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            self._begin()
            while not self._stop.is_set():
                self._step()
                self.steps += 1
            self._end()
        except Exception as error:
            self._failure = error
        finally:
            self._stack.close()

    def abandon(self) -> None:
        """End it after a failure; does nothing if it has ended."""
        self._stop.set()
        self._thread.join(5.0)

    def finish(self) -> None:
        """Let it end what it has begun."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} hangs"
        self.check_alive()

    def check_alive(self) -> None:
        if self._failure is not None:
            raise AssertionError(f"{self.name} failed") from self._failure

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _step(self) -> None: ...

    def _end(self) -> None:  # noqa: B027 - Not everybody has something to finish.
        pass


class Writer(Worker):
    """A producer: what it sent it has seen acknowledged."""

    acked = 0

    def _begin(self) -> None:
        self._producer = Producer(
            self._client, TOPIC, batch_bytes=400, linger_s=0.001, create_topic=True
        )
        self._stack.callback(self._producer.close, abandon=True)

    def _step(self) -> None:
        first = self.acked
        for sequence in range(first, first + 30):
            self._producer.send(name_value(self.name, sequence))
        self._producer.flush(PATIENCE_S)
        self.acked = first + 30

    def _end(self) -> None:
        self._producer.close(timeout_s=PATIENCE_S)


class Committer(Worker):
    """A job that commits to two topics at once, beside stages that nobody commits."""

    committed = 0

    def _begin(self) -> None:
        self._rng = random.Random(self.name)

    def _step(self) -> None:
        sequence = self.committed + 1
        contents = []
        for topic in (LEFT, RIGHT):
            loser = StageWriter(self._client, topic, self.name, sequence)
            loser.send(f"loser of {self.name} {sequence}".encode())
            loser.flush(PATIENCE_S)
            loser.close(abandon=True)
            size = self._rng.choice([100, 1000, 10_000])
            with StageWriter(
                self._client, topic, self.name, sequence, batch_bytes=size
            ) as stage:
                for row in range(rows_of(sequence)):
                    stage.send(name_value(f"{self.name} {sequence}", row))
                contents.append(stage.finish(PATIENCE_S))
        done = self._client.commit_stages(self.name, sequence, contents)
        assert done.status in (CommitStatus.COMMITTED, CommitStatus.REPEATED)
        self.committed = sequence
        again = self._client.commit_stages(self.name, sequence, contents)
        assert (again.status, again.topics) == (CommitStatus.REPEATED, done.topics)


class Reader(Worker):
    """A consumer that follows, and keeps what it has seen as a digest."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(address, name)
        self.digest = hashlib.sha256()
        self.offset = 0

    def _begin(self) -> None:
        consumer = Consumer(self._client, TOPIC, fetch_bytes=5000)
        self._consumer = self._stack.enter_context(consumer)

    def _step(self) -> None:
        result = self._consumer.poll_blocking(0.1)
        assert result.start_offset == self.offset, "a gap"
        self.digest.update(result.data)
        self.offset = result.current_offset

    def _end(self) -> None:
        while self._consumer.lag():
            self._step()


def rows_of(sequence: int) -> int:
    """Say how many rows a commit has: some are empty, some large."""
    return (3, 0, 200, 20)[sequence % 4]


class Campaign:
    """One data directory: rounds of work and death, and then the accounts."""

    def __init__(self, path: Path, fsync: str, seed: str) -> None:
        self._rng = random.Random(seed)
        self._broker = BrokerProcess(path, fsync=fsync, **SETTINGS)
        self._broker.start()
        address = self._broker.address
        with make_client(address) as client:
            client.create_topic(TOPIC)
        self.writers = [Writer(address, f"w{n}") for n in range(3)]
        self.committers = [Committer(address, f"c{n}") for n in range(2)]
        self.readers = [Reader(address, f"r{n}") for n in range(2)]
        self.workers: list[Worker] = [*self.writers, *self.committers, *self.readers]
        for worker in self.workers:
            worker.start()

    def kill(self) -> None:
        """Kill the broker somewhere in its work, and start it again."""
        # Everybody has got through since the last time; then anything may happen.
        steps = {worker: worker.steps for worker in self.workers}
        for worker in self.workers:
            wait_for(lambda w=worker: self._has_gone_on(w, steps), worker.name)  # type: ignore[misc]
        threading.Event().wait(self._rng.uniform(0, 0.15))
        self._broker.kill()
        self._broker.start()

    def _has_gone_on(self, worker: Worker, steps: dict[Worker, int]) -> bool:
        worker.check_alive()
        return worker.steps > steps[worker]

    def finish(self) -> None:
        """Let everybody end, and settle the accounts."""
        for worker in [*self.writers, *self.committers, *self.readers]:
            worker.finish()
        with make_client(self._broker.address) as client:
            self._check_plain(client)
            self._check_commits(client)
            self._check_readers(client)
        assert self._broker.stop() == 0
        check_clean(self._broker.data_dir)

    def close(self) -> None:
        """End what a failure has left."""
        for worker in self.workers:
            worker.abandon()
        self._broker.kill()

    def _check_plain(self, client: LanceClient) -> None:
        found = by_producer(read_values(client, TOPIC))
        for writer in self.writers:
            # Batches that had no answer may be there twice, others only once.
            assert first_occurrences(found.pop(writer.name)) == list(
                range(writer.acked)
            ), writer.name
        assert not found

    def _check_commits(self, client: LanceClient) -> None:
        left, right = (read_values(client, topic) for topic in (LEFT, RIGHT))
        assert left == right, "a commit is in one of its topics only"
        found = by_producer(left)
        for committer in self.committers:
            for sequence in range(1, committer.committed + 1):
                rows = found.pop(f"{committer.name} {sequence}", [])
                assert rows == list(range(rows_of(sequence))), committer.name
        assert not found, "something that was not committed is there"

    def _check_readers(self, client: LanceClient) -> None:
        data = read_bytes(client, TOPIC)
        for reader in self.readers:
            assert reader.offset == len(data), reader.name
            assert reader.digest.digest() == hashlib.sha256(data).digest()


@pytest.mark.parametrize("fsync", POLICIES)
def test_killed_at_random_moments(
    tmp_path: Path, fsync: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="lance_spark.client")
    left, number = -(-ROUNDS // len(POLICIES)), 0
    while left > 0:
        seed = f"broker crash {fsync} {number}"
        campaign = Campaign(tmp_path / str(number), fsync, seed)
        try:
            for _ in range(min(left, ROUNDS_PER_DIRECTORY)):
                campaign.kill()
            campaign.finish()
        except BaseException:
            print(f"seed: {seed!r}")  # noqa: T201 - pytest shows it for a failure.
            raise
        finally:
            campaign.close()
        left -= ROUNDS_PER_DIRECTORY
        number += 1
