"""Crash campaign: the broker is killed at random moments while clients work.

Producers, staged commits and consumers go on over every restart. What was acknowledged
is there, in order per producer; what was committed is there exactly once, in both of
its topics; consumers have seen exactly what is there. Others ask for all else that can
be asked for, and compare each answer with what was acknowledged before.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from lance_spark.client import Consumer, LanceClient, Producer, StageWriter
from lance_spark.client.lwp.offsets import consumer_id
from lance_spark.errors import (
    ConnectionLost,
    ConsumerNotFound,
    Timeout,
    TopicDeleted,
    TopicNotFound,
)
from lance_spark.model import Retention
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import CommitStatus, decode_records
from tests.campaign import Tally
from tests.integration.kit import (
    PATIENCE_S,
    Worker,
    by_producer,
    first_occurrences,
    make_client,
    name_value,
    read_bytes,
    read_values,
    wait_for_steps,
)
from tests.integration.process import BrokerProcess
from tests.store.kit import check_clean

pytestmark = pytest.mark.crash

# `make crash` asks for thousands. A directory is used for several rounds, so that
# recovery meets what recovery left.
ROUNDS = int(os.environ.get("LANCE_CRASH_ROUNDS", "6"))
ROUNDS_PER_DIRECTORY = 4
POLICIES = ("batch", "none", "always")

TOPIC, LEFT, RIGHT, GIVEN_UP = "plain", "left", "right", "given-up"
T = TypeVar("T")
# Small, so that segments roll, stages are adopted and recovery has something to do.
SETTINGS = {
    "segment_bytes": 200_000,
    "stage_adopt_bytes": 4_000,
    "index_stride_bytes": 256,
}
OPTIONS = {"backoff_max_s": 0.05, "connect_timeout_s": 20.0}


class ClientWorker(Worker):
    """One of them who has a client."""

    def __init__(self, address: str, name: str) -> None:
        super().__init__(name)
        self._client = self._stack.enter_context(make_client(address, **OPTIONS))


class Writer(ClientWorker):
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


class Committer(ClientWorker):
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


class Reader(ClientWorker):
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


class Clerk(ClientWorker):
    """Makes topics, changes their rules and deletes them."""

    def _begin(self) -> None:
        self._rng = random.Random(self.name)
        self.topics: dict[str, Retention] = {}
        self._ids: dict[str, int] = {}

    def _step(self) -> None:
        number = self._rng.randrange(6)
        name = f"{self.name}-{number}"
        if name not in self.topics:
            self.topics[name] = Retention(3600 + number, 0)
            made = self._insist(
                lambda: self._client.ensure_topic(name, retention=self.topics[name])
            )
            assert made.id not in self._ids.values(), "an id is used again"
            self._ids[name] = made.id
        elif self._rng.random() < 0.3:
            self._insist(lambda: self._delete(name))
            del self.topics[name], self._ids[name]
        else:
            self.topics[name] = Retention(3600, self._rng.randrange(1, 10**6))
            self._client.set_retention(name, self.topics[name])
        self.check(self._client)

    def _insist(self, ask: Callable[[], T]) -> T:
        """Ask until there is an answer, for what a client does not repeat itself."""
        deadline = Deadline.after(PATIENCE_S)
        while True:
            try:
                return ask()
            except (ConnectionLost, Timeout):
                assert not deadline.expired

    def _delete(self, name: str) -> None:
        # It may have been deleted by a request whose answer was lost.
        with contextlib.suppress(TopicNotFound, TopicDeleted):
            self._client.delete_topic(name)

    def check(self, client: LanceClient) -> None:
        """Compare with what was acknowledged."""
        mine = {t.name: t for t in client.topics() if t.name.startswith(self.name)}
        assert {name: topic.id for name, topic in mine.items()} == self._ids
        for name, retention in self.topics.items():
            assert client.topic(name).retention == retention


class Overwriter(ClientWorker):
    """A job that replaces its topic by each commit, beside one that gives up."""

    def _begin(self) -> None:
        self.sequence = 0

    def _step(self) -> None:
        sequence = self.sequence + 1
        # Another writer, as an end of this one's sequence would end its stages.
        with StageWriter(self._client, GIVEN_UP, f"{self.name}-lost", sequence) as lost:
            lost.send(b"given up")
            lost.flush(PATIENCE_S)
        self._client.abort_stages(f"{self.name}-lost", sequence)
        with StageWriter(self._client, self.name, self.name, sequence) as stage:
            for row in range(5):
                stage.send(name_value(f"{sequence}", row))
            content = stage.finish(PATIENCE_S)
        self._client.commit_stages(
            self.name, sequence, [content], overwrite=[self.name]
        )
        self.sequence = sequence
        self.check(self._client)

    def check(self, client: LanceClient) -> None:
        """Compare with what was acknowledged."""
        start = client.bounds(self.name).start
        values = [r.value for r in decode_records(read_bytes(client, self.name, start))]
        assert by_producer(map(bytes, values)) == {f"{self.sequence}": list(range(5))}


class Follower(ClientWorker):
    """Subscribes, waits, locates, commits offsets, and is a member of a group."""

    def _begin(self) -> None:
        self._id = consumer_id(self.name)
        self.offset: int | None = None

    def _step(self) -> None:
        client = self._client
        resumed = client.subscribe(TOPIC, self._id)
        assert self.offset in (None, resumed)
        client.wait(0, {client.topic_id(TOPIC): resumed}, 0.02)
        end = client.locate_end(TOPIC)
        middle = client.locate_offset(TOPIC, end.offset // 2)
        again = client.locate_record(TOPIC, middle.record)
        assert (again.offset, again.record) == (middle.offset, middle.record)
        assert client.locate_time(TOPIC, 0).offset == client.locate_start(TOPIC).offset
        self.offset = middle.offset
        client.commit_offset(TOPIC, self._id, middle.offset)
        self.check(client)
        # Neither is known to a broker that was started since.
        with contextlib.suppress(ConsumerNotFound):
            client.unsubscribe(TOPIC, self._id)
        joined = client.join_group(self.name, [TOPIC])
        with contextlib.suppress(ConsumerNotFound):
            client.heartbeat(self.name, joined.member, joined.generation)
            client.leave_group(self.name, joined.member)
        assert client.status().capabilities

    def check(self, client: LanceClient) -> None:
        """Compare with what was acknowledged."""
        assert client.committed_offset(TOPIC, self._id) == self.offset


def rows_of(sequence: int) -> int:
    """Say how many rows a commit has: some are empty, some large."""
    return (3, 0, 200, 20)[sequence % 4]


class Campaign:
    """One data directory: rounds of work and death, and then the accounts."""

    def __init__(self, path: Path, fsync: str, seed: str) -> None:
        self.seed = seed
        self._rng = random.Random(seed)
        self._broker = BrokerProcess(path, fsync=fsync, **SETTINGS)
        self._broker.start()
        address = self._broker.address
        with make_client(address) as client:
            client.create_topic(TOPIC)
        self.writers = [Writer(address, f"w{n}") for n in range(3)]
        self.committers = [Committer(address, f"c{n}") for n in range(2)]
        self.readers = [Reader(address, f"r{n}") for n in range(2)]
        self.checked = [
            Clerk(address, "clerk"),
            Overwriter(address, "over"),
            Follower(address, "follower"),
        ]
        self.workers: list[Worker] = [
            *self.writers,
            *self.committers,
            *self.readers,
            *self.checked,
        ]
        for worker in self.workers:
            worker.start()

    def kill(self) -> None:
        """Kill the broker somewhere in its work, and start it again."""
        # Everybody has got through since the last time; then anything may happen.
        wait_for_steps(self.workers)
        threading.Event().wait(self._rng.uniform(0, 0.15))
        self._broker.kill()
        self._broker.start()

    def finish(self) -> None:
        """Let everybody end, and settle the accounts."""
        for worker in self.workers:
            worker.finish()
        with make_client(self._broker.address) as client:
            self._check_plain(client)
            self._check_commits(client)
            self._check_readers(client)
            for worker in self.checked:
                worker.check(client)
            assert GIVEN_UP not in [topic.name for topic in client.topics()]
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


def run_campaign(campaign: Campaign, kills: int, tally: Tally | None = None) -> None:
    """Kill so often, settle the accounts, and close everything."""
    try:
        for _ in range(kills):
            campaign.kill()
        campaign.finish()
    except BaseException:
        print(f"seed: {campaign.seed!r}")  # noqa: T201 - pytest shows it for a failure.
        raise
    finally:
        campaign.close()
    if tally is not None:
        tally.counts["kills"] += kills
        tally.counts["requests and batches"] += sum(w.steps for w in campaign.workers)
        tally.counts["records acknowledged"] += sum(w.acked for w in campaign.writers)
        tally.counts["commits"] += sum(c.committed for c in campaign.committers)
        tally.counts.update(dict.fromkeys(("lost", "doubled", "silent"), 0))


@pytest.mark.parametrize("fsync", POLICIES)
def test_killed_at_random_moments(
    tmp_path: Path, fsync: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="lance_spark.client")
    left, number = -(-ROUNDS // len(POLICIES)), 0
    while left > 0:
        seed = f"broker crash {fsync} {number}"
        campaign = Campaign(tmp_path / str(number), fsync, seed)
        run_campaign(campaign, min(left, ROUNDS_PER_DIRECTORY))
        left -= ROUNDS_PER_DIRECTORY
        number += 1


@pytest.mark.campaign("kill")
def test_killed_for_as_long_as_there_is_time(
    tmp_path: Path, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="lance_spark.client")
    while tally.goes_on():
        fsync = POLICIES[tally.rounds % len(POLICIES)]
        place = tmp_path / str(tally.rounds)
        place.mkdir()
        campaign = Campaign(place / "data", fsync, f"{tally.seed} {tally.rounds}")
        run_campaign(campaign, 10 if tally.seconds else 1, tally)
        shutil.rmtree(place)
