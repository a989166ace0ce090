"""Producer, topic, queries, topics; and somebody who kills whatever is alive."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lance_spark.client import LanceClient, Producer
from tests.integration.batches import open_client
from tests.integration.kit import make_client
from tests.integration.process import BrokerProcess
from tests.spark.campaign.account import check_input, count_records
from tests.spark.campaign.driver import Driver, SessionDriver
from tests.spark.campaign.family import Role
from tests.spark.campaign.feed import Feed
from tests.spark.campaign.hop import BATCH_ROWS, Hop, make_hop
from tests.store.kit import check_clean

# What queries copy while they wait for their turn.
WARM = "warm"
# A JVM and half a dozen Python processes start one after another.
START_S = 180.0
DRAIN_S = 300.0
# Behind the first output after a kill. A micro-batch takes a quarter of a second or
# more, so that any moment of one may be hit.
PAUSE_S = 0.8
LOOK_S = 0.05

# How far the producer is ahead of the last output at most, so that draining is short
# and disks are not filled; at least, so that there is a next batch always, also where
# each of a chain of queries has one.
AHEAD_BATCHES = 4

# Small, so that segments roll, stages are adopted and recovery has something to do.
SETTINGS = {
    "fsync": "none",
    "segment_bytes": 1_000_000,
    "stage_adopt_bytes": 40_000,
    "index_stride_bytes": 1024,
}


class Target(Enum):
    """Whom to kill."""

    DRIVER = "the query with all its processes"
    JVM = "its JVM alone, when a batch is committed that it does not know to be"
    TASK = "a Python worker that runs tasks"
    BUSY_TASK = "one that computes right now"
    SINK = "one that makes the writers of batches, or commits them"
    PLANNER = "the one that plans the batches"
    BROKER = "the broker"


_ROLES = {
    Target.TASK: Role.TASK,
    Target.BUSY_TASK: Role.TASK,
    Target.SINK: Role.SINK,
    Target.PLANNER: Role.SOURCE,
}

# Who is killed with all that a query has, so that it needs another process.
_ENDING = {Target.DRIVER, Target.JVM}

# What each round of kills has; the order is random.
ROUND = [
    Target.DRIVER,
    Target.JVM,
    Target.TASK,
    Target.BUSY_TASK,
    Target.SINK,
    Target.PLANNER,
    *[Target.BROKER] * 3,
]


def plan_kills(rng: random.Random, count: int = len(ROUND)) -> list[Target]:
    """Say whom to kill, one after the other; a round by default."""
    kills: list[Target] = []
    while len(kills) < count:
        kills += rng.sample(ROUND, len(ROUND))
    return kills[:count]


class Campaign:
    """One broker and the checkpoints of some queries: kills, and then the accounts.

    Args:
        directory: an empty one.
        seed: of what is random.
        plan: says what the queries do, where it is told who is served at which
            address. The first reads what is fed; the last is the one that is in doubt.
        spark: where the queries run; by default in processes of their own, of which
            nothing is left when they are killed.
        listeners: of the broker, besides its own.
    """

    def __init__(
        self,
        directory: Path,
        seed: str,
        plan: Callable[[Callable[[str], str]], Sequence[Hop]],
        *,
        spark: SparkSession | None = None,
        **listeners: str,
    ) -> None:
        self.rng = random.Random(seed)
        self.kills: Counter[Target] = Counter()
        # How often Spark had a batch that it did not know to be committed when its JVM
        # was killed; nearly always, as that is the moment which is waited for.
        self.doubts = 0
        settings = {**SETTINGS, **listeners}
        self._broker = BrokerProcess(directory / "data", **settings).start()
        self.hops = plan(self._broker.address_of)
        address = self._broker.address
        self.client: LanceClient = make_client(address, backoff_max_s=0.05)
        self.client.create_topic(self.hops[0].source)
        self._create_middles()
        with Producer(self.client, WARM, create_topic=True) as producer:
            producer.send(b"warm")
        self._feed = Feed(address, self.hops[0].source, AHEAD_BATCHES * BATCH_ROWS)
        work = directory / "query"
        work.mkdir()
        warm = make_hop(self._broker.address_of, ("lance", WARM), ("lance", "warmed"))
        self._driver: Driver | SessionDriver
        if spark is None:
            self._driver = Driver(work, warm, self.hops)
        else:
            self._driver = SessionDriver(spark, work, self.hops)
        self._driver.start()

    def _create_middles(self) -> None:
        """Create what one query writes and another one reads; others are created."""
        sources = {hop.source for hop in self.hops}
        for hop in self.hops:
            if hop.target in sources:
                name, count = hop.formats[1], int(hop.write.get("partitions", 1))
                with open_client(name, self._broker.address_of(name)) as client:
                    driver: Any = client.driver
                    driver.create_topic(hop.target, count)

    def run(self, targets: Sequence[Target]) -> None:
        """Kill one thing after the other."""
        for number, target in enumerate(targets):
            is_left = not _ENDING.isdisjoint(targets[number:])
            if is_left and isinstance(self._driver, Driver):
                self._driver.prepare()
            self.kill(target)

    def kill(self, target: Target) -> None:
        """Wait until the queries work, and kill something at a random moment."""
        self._wait_for_output()
        time.sleep(self.rng.uniform(0, PAUSE_S))
        driver = self._driver
        if target is Target.BROKER:
            self._broker.kill()
            self._broker.start()
        elif target in _ENDING:
            assert isinstance(driver, Driver), "a session of others is not killed"
            self._end(driver, target)
        else:
            failures = len(driver.failures)
            busy = target is Target.BUSY_TASK
            driver.kill_worker(_ROLES[target], self.rng, busy=busy)
            if target is Target.PLANNER:
                # A query ends with whoever plans it. Others may be replaced in time.
                self._wait_for(lambda: len(driver.failures) > failures)
        self.kills[target] += 1

    def _end(self, driver: Driver, target: Target) -> None:
        if target is Target.DRIVER:
            # The session has this one, its JVM and some Python processes.
            assert driver.kill() >= 4
        else:
            driver.kill_jvm(self._wait_for_commit)
            self.doubts += driver.is_in_doubt
        driver.start()

    def _wait_for_output(self) -> None:
        """Wait for the output of two batches of each query.

        The first may have been on its way when something was killed. The second one
        shows that all is well again.
        """
        self._wait_for_batch()
        self._wait_for_batch()
        self._driver.bury()

    def _wait_for_batch(self) -> None:
        before = self._look()
        self._wait_for(
            lambda: all(n > m for n, m in zip(self._look(), before, strict=True))
        )

    def _wait_for_commit(self) -> None:
        """Return as soon as a batch is visible.

        It takes Spark some ten milliseconds to note that it is: whoever replays it then
        has to find out by himself.
        """
        before = self._look()[-1]
        deadline_s = time.monotonic() + START_S
        while self._look()[-1] == before:
            assert time.monotonic() < deadline_s, f"nothing in {START_S} s"
            time.sleep(0.001)

    def _look(self) -> list[int]:
        """See how much has come out of each query."""
        found = count_records(self.client)
        counts = [found[hop.target] for hop in self.hops]
        self._feed.output = min(counts)
        return counts

    def _wait_for(self, is_true: Callable[[], bool]) -> None:
        """Wait for something that the query does."""
        deadline_s = time.monotonic() + START_S
        while not is_true():
            self._feed.check()
            self._driver.check()
            in_time = time.monotonic() < deadline_s
            assert in_time, f"nothing in {START_S} s: {self._driver.failures}"
            time.sleep(LOOK_S)

    def finish(self, check: Callable[[LanceClient, Sequence[Hop]], None]) -> int:
        """Let everything end, and settle the accounts; say how many records.

        Args:
            check: looks at all that has come out.
        """
        self._feed.finish()
        self._driver.drain(DRAIN_S)
        self._driver.bury()
        count = check_input(self.client, self.hops[0].source, self._feed.acked)
        check(self.client, self.hops)
        self._check_failures()
        self.client.close()
        assert self._broker.stop() == 0, self._broker.said
        check_clean(self._broker.data_dir)
        return count

    def _check_failures(self) -> None:
        """Check that the query failed only where Spark can't do without a process."""
        # Whoever is killed raises nothing: what does has not outlasted the broker.
        mine = [text for text in self._driver.failures if "lance_spark" in text]
        assert not mine, mine

    def describe(self) -> str:
        """Say what happened."""
        kills = ", ".join(
            f"{t.name} {n}" for t, n in sorted(self.kills.items(), key=str)
        )
        failures = len(self._driver.failures)
        return f"{kills}; {self.doubts} in doubt; the query failed {failures} times"

    def close(self) -> None:
        """End what a failure has left."""
        self._driver.close()
        self._feed.abandon()
        self.client.close()
        self._broker.kill()
