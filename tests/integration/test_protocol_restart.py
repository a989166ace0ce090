"""A broker that is killed while clients of protocols besides LWP work, and restarted.

What was acknowledged is there, at the numbers that it had before; topics have all their
partitions or do not exist; groups are where their last acknowledged commit was.
"""

from __future__ import annotations

import logging
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lance_spark.client import LogClient
from lance_spark.errors import LanceError, TopicAlreadyExists
from lance_spark.model import Partition
from tests.campaign import Tally
from tests.integration.batches import (
    ROWS,
    BatchWriter,
    Follower,
    check_whole,
    has_partitions,
    make_logs,
    make_rows,
    open_client,
    read_places,
)
from tests.integration.kit import Worker, wait_for_steps
from tests.integration.process import BrokerProcess
from tests.integration.protocol import (
    LISTENERS,
    PROTOCOLS,
    GroupTeller,
    Protocol,
    Teller,
)
from tests.store.kit import check_clean

POLICIES = ("batch", "none", "always")
PARTITIONS = 3
# Small, so that segments roll and recovery has something to do.
SETTINGS = {"segment_bytes": 20_000, "index_stride_bytes": 256, **LISTENERS}
OPTIONS = {"backoff_max_s": 0.05, "connect_timeout_s": 20.0}
KILLS = 10


class Creator(Worker):
    """Creates topics with several partitions, and writes to the last of them."""

    def __init__(self, client: LogClient, name: str) -> None:
        super().__init__(name)
        self.created: dict[str, int] = {}
        self._client = self._stack.enter_context(client)

    def _begin(self) -> None:
        pass

    def _step(self) -> None:
        count = self._count(self.steps)
        topic = f"{self.name}-{self.steps}"
        driver: Any = self._client.driver
        with suppress(TopicAlreadyExists):  # By a request whose answer was lost.
            driver.create_topic(topic, count, retry=True)
        self.created[topic] = count
        for _ in range(4):
            self._client.append(topic, make_rows(self.name, 0), count - 1)

    def _count(self, number: int) -> int:
        return 1 + number % 5 if has_partitions(self._client) else 1

    def check(self, client: LogClient) -> None:
        """Check that each topic is whole, and that its last partition has its rows."""
        # One that can't list them finds by name.
        is_listed = client.driver.traits.lists_topics
        topics = client.driver.topics(None if is_listed else list(self.created))
        found = {topic.name: topic.partitions for topic in topics}
        mine = {name: of for name, of in found.items() if name.startswith(self.name)}
        for name, partitions in mine.items():
            number = int(name.rpartition("-")[2])
            assert partitions == tuple(range(self._count(number))), name
            assert list(client.bounds(name)) == list(partitions), name
        for name, count in self.created.items():
            assert len(mine[name]) == count, name
            at = Partition(name, count - 1)
            first = client.driver.traits.first_position
            batches = check_whole(read_places(client, at), first)[self.name]
            assert len(batches) >= 4, name


class Accountant(Worker):
    """Notes the numbers that a server tells, and commits how far a group is."""

    def __init__(self, address: str, protocol: Protocol, at: Partition) -> None:
        super().__init__(f"accountant of {protocol.name}")
        self._address = address
        self.protocol = protocol
        self.at = at
        self.told: dict[int, list[bytes]] = {}
        # The last commit that was acknowledged, and the last that was tried.
        self.commits: tuple[int | None, int | None] = (None, None)
        self._line: Teller | None = None

    def _begin(self) -> None:
        self._stack.callback(self._hang_up)

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _dial(self) -> Teller:
        assert self.protocol.dial is not None
        self._line = self._line or self.protocol.dial(self._address)
        return self._line

    def _step(self) -> None:
        try:
            self._work(self._dial())
        except LanceError:
            # The broker is away. Nothing is tried again: what is not acknowledged may
            # be there or not.
            self._hang_up()
            self._stop.wait(0.005)

    def _work(self, line: Teller) -> None:
        rows = make_rows("accountant", self.steps)
        first = line.produce(self.at.topic, rows)
        assert first not in self.told, f"number {first} was given out twice"
        self.told[first] = rows
        if not isinstance(line, GroupTeller):
            return
        assert line.committed(self.at.topic, "group") in self.commits
        self.commits = (self.commits[0], first)
        line.commit(self.at.topic, "group", first)
        self.commits = (first, first)

    def check(self, places: dict[int, bytes]) -> None:
        """Compare what was told with what is there."""
        for first, rows in self.told.items():
            assert [places[first + n] for n in range(ROWS)] == rows, first
        line = self._dial()
        try:
            if isinstance(line, GroupTeller):
                assert line.committed(self.at.topic, "group") in self.commits
        finally:
            self._hang_up()


class Campaign:
    """One data directory: rounds of work and death, and then the accounts."""

    def __init__(self, path: Path, fsync: str, seed: str) -> None:
        self._rng = Random(seed)
        self._broker = BrokerProcess(path, fsync=fsync, **SETTINGS)
        self._broker.start()
        self.writers: dict[str, list[BatchWriter]] = {}
        self.followers: list[Follower] = []
        self.creators: dict[str, Creator] = {}
        self.accountants: list[Accountant] = []
        for name, protocol in PROTOCOLS.items():
            self._employ(name, protocol)
        self.workers: list[Worker] = [
            *(writer for some in self.writers.values() for writer in some),
            *self.creators.values(),
            *self.accountants,
            *self.followers,
        ]
        for worker in self.workers:
            worker.start()

    def _open(self, name: str) -> LogClient:
        return open_client(name, self._broker.address_of(name), **OPTIONS)

    def _employ(self, name: str, protocol: Protocol) -> None:
        with self._open(name) as client:
            logs = make_logs(client, f"{name}-rows", PARTITIONS)
            [alone] = make_logs(client, f"{name}-alone", 1)
            [told] = make_logs(client, f"{name}-told", 1)
        self.writers[name] = [
            BatchWriter(self._open(name), logs[0], f"{name} a"),
            BatchWriter(self._open(name), logs[0], f"{name} b"),
            BatchWriter(self._open(name), logs[2], f"{name} c"),
            BatchWriter(self._open(name), alone, f"{name} sole", sole=True),
        ]
        self.followers += [
            Follower(self._open(name), log, f"{name} follower of {log.topic}")
            for log in (logs[0], alone)
        ]
        self.creators[name] = Creator(self._open(name), f"{name}-made")
        if protocol.dial is not None:
            address = protocol.address_in(self._broker)
            self.accountants.append(Accountant(address, protocol, told))

    def kill(self) -> None:
        """Kill the broker somewhere in its work, and start it again."""
        wait_for_steps(self.workers)
        threading.Event().wait(self._rng.uniform(0, 0.15))
        self._broker.kill()
        self._broker.start()

    def finish(self, tally: Tally) -> None:
        """Let everybody end, and settle the accounts."""
        for worker in self.workers:
            worker.finish()
        for name, protocol in PROTOCOLS.items():
            with self._open(name) as client:
                self._check(client, protocol, tally)
        assert self._broker.stop() == 0
        check_clean(self._broker.data_dir)

    def _check(self, client: LogClient, protocol: Protocol, tally: Tally) -> None:
        first = client.driver.traits.first_position
        writers = self.writers[protocol.name]
        mine = {writer.at for writer in writers}
        mine |= {a.at for a in self.accountants if a.protocol is protocol}
        logs = {at: read_places(client, at) for at in mine}
        for writer in writers:
            found = check_whole(logs[writer.at], first)[writer.name]
            is_once = writer.is_sole and protocol.is_conditional
            twice = writer.check(found, is_once=is_once)
            tally.counts["batches there twice"] += twice
            tally.counts["records acknowledged"] += ROWS * writer.acked
        for follower in self.followers:
            if follower.at in logs:
                # At the numbers that it saw before the kills, and without a gap.
                assert follower.seen == logs[follower.at], follower.name
                tally.counts["records followed"] += len(follower.seen)
        creator = self.creators[protocol.name]
        creator.check(client)
        tally.counts["topics"] += len(creator.created)
        for accountant in self.accountants:
            if accountant.protocol is protocol:
                accountant.check(dict(logs[accountant.at]))
                tally.counts["commits"] += len(accountant.told)

    def close(self) -> None:
        """End what a failure has left."""
        for worker in self.workers:
            worker.abandon()
        self._broker.kill()


@pytest.mark.campaign("restart")
def test_killed_for_as_long_as_there_is_time(
    tmp_path: Path, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="lance_spark.client")
    while tally.goes_on():
        fsync = POLICIES[(tally.rounds - 1) % len(POLICIES)]
        place = tmp_path / str(tally.rounds)
        place.mkdir()
        campaign = Campaign(place / "data", fsync, f"{tally.seed} {tally.rounds}")
        kills = KILLS if tally.seconds else 1
        try:
            for _ in range(kills):
                campaign.kill()
            campaign.finish(tally)
        finally:
            campaign.close()
        tally.counts["kills"] += kills
        tally.counts.update(dict.fromkeys(("lost", "torn"), 0))
        shutil.rmtree(place)
