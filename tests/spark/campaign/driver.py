"""The process of the queries and all that belongs to it: JVM, daemons, workers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.integration.kit import wait_for
from tests.spark.campaign.family import (
    Role,
    find_jvm,
    is_alive,
    kill_session,
    list_session,
    list_workers,
)
from tests.spark.campaign.hop import Hop
from tests.spark.campaign.query import FAILURES, FAILURES_MAX, Query
from tests.spark.engine.session import make_warm_environment

# There is one always, and a busy one in each batch.
WORKER_S = 120.0

_SCRIPT = Path(__file__).with_name("query.py")


class Driver:
    """Runs `query.py`, over and over; the checkpoints stay.

    Args:
        directory: of the checkpoints, and of what the queries say.
        warm: what to do before it is their turn.
        hops: what to do then.
    """

    def __init__(self, directory: Path, warm: Hop, hops: Sequence[Hop]) -> None:
        given = json.dumps([asdict(hop) for hop in (warm, *hops)])
        self._arguments = [str(directory), given]
        self._last = hops[-1].name
        self._directory = directory
        self._said = directory / "said"
        self._errors = directory / "stderr"
        self._child: subprocess.Popen[str] | None = None
        # One that has started and waits for its turn; it is nobody's yet.
        self._spare: subprocess.Popen[str] | None = None
        # Those whose JVM alone was killed: others of their session may be alive.
        self._orphaned: list[subprocess.Popen[str]] = []

    @property
    def session(self) -> int:
        """The session of its processes."""
        assert self._child is not None, "the query is not running"
        return self._child.pid

    def start(self) -> None:
        """Start the query; returns at once."""
        assert self._child is None, "the query is running already"
        self._child, self._spare = self._spare or self._launch(), None
        _tell(self._child, "go")

    def prepare(self) -> None:
        """Have the next process start already, beside the query that is running.

        Most of what a start takes is a JVM and half a dozen Python processes that load
        their code, one after the other.
        """
        if self._spare is None:
            self._spare = self._launch()

    def _launch(self) -> subprocess.Popen[str]:
        with self._said.open("ab") as said, self._errors.open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, str(_SCRIPT), *self._arguments],
                cwd=self._directory,
                env={**os.environ, **make_warm_environment()},
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def check(self) -> None:
        """Check that it has not ended by itself."""
        assert self._child is not None
        assert self._child.poll() is None, f"the query has ended: {self.errors}"

    def kill(self) -> int:
        """Kill all its processes at once; say how many."""
        self.check()
        killed = kill_session(self.session)
        self._forget().wait(60)
        return killed

    def kill_jvm(self, wait: Callable[[], None]) -> None:
        """Kill its JVM alone, so that Python goes on with what it has begun.

        Args:
            wait: returns at the moment when it is to be killed.
        """
        self.check()
        jvm = find_jvm(self.session)
        wait()
        assert jvm.kill()
        self._orphaned.append(self._forget())

    @property
    def is_in_doubt(self) -> bool:
        """Whether Spark does not know that a batch of the last hop is committed."""
        checkpoint = self._directory / self._last
        planned, done = (
            max((int(p.name) for p in (checkpoint / name).glob("[0-9]*")), default=-1)
            for name in ("offsets", "commits")
        )
        return planned > done

    def kill_worker(self, role: Role, rng: random.Random, *, busy: bool) -> None:
        """Kill a Python worker of it, on request one that computes right now."""
        deadline_s = time.monotonic() + WORKER_S
        while True:
            self.check()
            workers = list_workers(self.session, role)
            if busy:
                workers = [worker for worker in workers if worker.is_busy]
            if workers and rng.choice(workers).kill():
                return
            in_time = time.monotonic() < deadline_s
            assert in_time, f"not in {WORKER_S} s: a worker that is a {role.name}"
            # Whoever is looked for may be busy for some milliseconds in a batch.
            time.sleep(0.002)

    def drain(self, timeout_s: float) -> None:
        """Let it read what is left, and wait for its end."""
        self.check()
        child = self._child
        assert child is not None
        _tell(child, "drain")
        wait_for(lambda: not is_alive(child.pid), "the query drains", timeout_s)
        # Its number is not given away before it was waited for.
        kill_session(child.pid)
        code = self._forget().wait(60)
        assert code == 0, f"exit code {code}: {self.errors}"
        assert self.events("drained")

    def _forget(self) -> subprocess.Popen[str]:
        child, self._child = self._child, None
        assert child is not None
        assert child.stdin is not None
        child.stdin.close()
        return child

    def bury(self) -> int:
        """End what a JVM has left behind when it was killed; say how many."""
        left = 0
        while self._orphaned:
            child = self._orphaned.pop()
            left += len(list_session(child.pid))
            kill_session(child.pid)
            child.wait(60)
        return left

    def events(self, name: str) -> list[dict[str, Any]]:
        """Give what the query has said of one thing."""
        lines = self._said.read_text(encoding="utf-8").splitlines()
        events = []
        for line in lines:
            # A line may be cut where its writer was killed.
            if line.endswith("}"):
                event = json.loads(line)
                if event["event"] == name:
                    events.append(event)
        return events

    @property
    def failures(self) -> list[str]:
        """What the query has failed for."""
        return [event["text"] for event in self.events("failed")]

    @property
    def errors(self) -> str:
        """The end of what it has written to standard error."""
        return self._errors.read_text(encoding="utf-8", errors="replace")[-8000:]

    def close(self) -> None:
        """End all that is left, whatever has happened."""
        if self._child is not None:
            kill_session(self.session)
            self._forget().wait(60)
        if self._spare is not None:
            self._orphaned.append(self._spare)
            self._spare = None
        self.bury()


class SessionDriver:
    """Runs queries in a session that others use, too, so that only theirs is killed.

    Args:
        spark: the session.
        directory: of the checkpoints.
        hops: what to do.
    """

    def __init__(self, spark: SparkSession, directory: Path, hops: Sequence[Hop]):
        assert spark.sparkContext._jvm is not None
        handles = spark.sparkContext._jvm.java.lang.ProcessHandle
        self._jvm: int = handles.current().pid()
        self._queries = [Query(spark, directory / hop.name, hop) for hop in hops]
        # What queries have failed for.
        self.failures: list[str] = []

    def start(self) -> None:
        """Start the queries."""
        self.check()

    def check(self) -> None:
        """Start those again that have failed."""
        for query in self._queries:
            with self._noting():
                query.follow()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            self.failures.append(str(error))
            assert len(self.failures) <= FAILURES_MAX, self.failures

    def kill_worker(self, role: Role, rng: random.Random, *, busy: bool) -> None:
        """Kill the Python workers of all queries that do something, at once."""
        workers = list_workers(os.getsid(self._jvm), role)
        mine = [each for each in workers if each.parent == self._jvm]
        assert len(mine) == len(self._queries), mine
        for each in mine:
            assert each.kill()

    def drain(self, timeout_s: float) -> None:
        """Let them read what is left, and end."""
        deadline_s = time.monotonic() + timeout_s
        left = list(self._queries)
        while left:
            assert time.monotonic() < deadline_s, self.failures
            with self._noting():
                left[0].drain()
                left.pop(0)

    def bury(self) -> int:
        """Do nothing: whatever is killed here is gone."""
        return 0

    def close(self) -> None:
        """Stop what is left, whatever has happened."""
        for query in self._queries:
            query.stop()


def _tell(child: subprocess.Popen[str], order: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{order}\n")
    child.stdin.flush()
