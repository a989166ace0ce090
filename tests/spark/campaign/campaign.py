"""Producer, topic, query, topic; and somebody who kills whatever is alive."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from lance_spark.client import LanceClient, Producer
from tests.integration.kit import make_client
from tests.integration.process import BrokerProcess
from tests.spark.campaign.account import check_input, check_output, count_records
from tests.spark.campaign.driver import Driver
from tests.spark.campaign.family import Role
from tests.spark.campaign.feed import Feed
from tests.store.kit import check_clean

SOURCE, TARGET = "in", "out"
# What a query copies while it waits for its turn.
WARM = "warm"
# A JVM and half a dozen Python processes start one after another.
START_S = 180.0
DRAIN_S = 300.0
# Behind the first output after a kill. A micro-batch takes a quarter of a second or
# more, so that any moment of one may be hit.
PAUSE_S = 0.8
LOOK_S = 0.05

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


def plan_round(rng: random.Random) -> list[Target]:
    """Say whom to kill, one after the other."""
    return rng.sample(ROUND, len(ROUND))


class Campaign:
    """One broker and one checkpoint: kills, and then the accounts.

    Args:
        directory: an empty one.
        seed: of what is random.
        delivery: of the sink.
    """

    def __init__(
        self, directory: Path, seed: str, *, delivery: str = "exactly-once"
    ) -> None:
        self.rng = random.Random(seed)
        self.kills: Counter[Target] = Counter()
        # How often Spark had a batch that it did not know to be committed when its JVM
        # was killed; nearly always, as that is the moment which is waited for.
        self.doubts = 0
        self._broker = BrokerProcess(directory / "data", **SETTINGS).start()
        address = self._broker.address
        self._client: LanceClient = make_client(address, backoff_max_s=0.05)
        self._client.create_topic(SOURCE)
        with Producer(self._client, WARM, create_topic=True) as producer:
            producer.send(b"warm")
        self._feed = Feed(address, SOURCE)
        work = directory / "query"
        work.mkdir()
        self._driver = Driver(address, work, delivery)
        self._driver.start()

    def run_round(self) -> None:
        """Kill each thing as often as a round has it, in a random order."""
        targets = plan_round(self.rng)
        for number, target in enumerate(targets):
            if not _ENDING.isdisjoint(targets[number:]):
                self._driver.prepare()
            self._kill(target)
            self.kills[target] += 1

    def _kill(self, target: Target) -> None:
        """Wait until the query works, and kill something at a random moment."""
        self._wait_for_output()
        time.sleep(self.rng.uniform(0, PAUSE_S))
        driver = self._driver
        if target is Target.BROKER:
            self._broker.kill()
            self._broker.start()
        elif target is Target.DRIVER:
            # The session has this one, its JVM and some Python processes.
            assert driver.kill() >= 4
            driver.start()
        elif target is Target.JVM:
            driver.kill_jvm(self._wait_for_commit)
            self.doubts += driver.is_in_doubt
            driver.start()
        else:
            failures = len(driver.failures)
            busy = target is Target.BUSY_TASK
            driver.kill_worker(_ROLES[target], self.rng, busy=busy)
            if target is Target.PLANNER:
                # A query ends with whoever plans it. Others may be replaced in time.
                self._wait_for(lambda: len(driver.failures) > failures)

    def _wait_for_output(self) -> None:
        """Wait for the output of two batches.

        The first may have been on its way when something was killed. The second one
        shows that all is well again.
        """
        self._wait_for_batch()
        self._wait_for_batch()
        self._driver.bury()

    def _wait_for_batch(self) -> None:
        before = self._look()
        self._wait_for(lambda: self._look() > before)

    def _wait_for_commit(self) -> None:
        """Return as soon as a batch is visible.

        It takes Spark some ten milliseconds to note that it is: whoever replays it then
        has to find out by himself.
        """
        before = self._client.locate_end(TARGET).record
        deadline_s = time.monotonic() + START_S
        while self._client.locate_end(TARGET).record == before:
            assert time.monotonic() < deadline_s, f"nothing in {START_S} s"
            time.sleep(0.001)

    def _look(self) -> int:
        """See how much has come out."""
        self._feed.output = count_records(self._client, TARGET)
        return self._feed.output

    def _wait_for(self, is_true: Callable[[], bool]) -> None:
        """Wait for something that the query does."""
        deadline_s = time.monotonic() + START_S
        while not is_true():
            self._feed.check()
            self._driver.check()
            in_time = time.monotonic() < deadline_s
            assert in_time, f"nothing in {START_S} s: {self._driver.failures}"
            time.sleep(LOOK_S)

    def finish(self) -> int:
        """Let everything end, and settle the accounts; say how many records."""
        self._wait_for_output()
        self._feed.finish()
        self._driver.drain(DRAIN_S)
        count = check_input(self._client, SOURCE, self._feed.acked)
        check_output(self._client, SOURCE, TARGET)
        self._check_failures()
        self._client.close()
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
        self._client.close()
        self._broker.kill()
