"""Crash campaign: a process that appends and commits is killed at random moments.

What it said was durable is there, once and in order; what it did not commit is not;
a commit is in both of its topics or in none.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_spark.store import Fsync, Store, View
from lance_spark.wire.lwp import scan
from tests.store.kit import check_clean, damage, read_all

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("LANCE_CRASH_ROUNDS", "12"))
# A directory is used for several rounds, so that recovery meets what recovery left.
ROUNDS_PER_STORE = 8
DEADLINE_S = 60


def run_and_kill(
    path: Path, fsync: Fsync, round_: int, rng: random.Random
) -> list[list[str]]:
    """Start the child, kill it after some lines, and give all that it has said."""
    command = [sys.executable, "-m", "tests.store.crash_child", str(path)]
    errors = path.with_name(f"errors-{round_}")
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [*command, fsync.value, str(round_)], stdout=subprocess.PIPE, stderr=stderr
        ) as child,
    ):
        assert child.stdout is not None
        watchdog = threading.Timer(DEADLINE_S, child.kill)
        watchdog.start()
        said, commits = [child.stdout.readline()], rng.randrange(4)
        while commits and (line := child.stdout.readline()):
            commits -= line.startswith(b"commit")
            said.append(line)
        said += [child.stdout.readline() for _ in range(rng.randrange(30))]
        child.kill()
        said += child.stdout.readlines()
        watchdog.cancel()
    assert said[0] == b"open\n", errors.read_text()
    return [line.decode().split() for line in said if line.endswith(b"\n")][1:]


class Promises:
    """What the children have said, over all rounds of a store."""

    def __init__(self) -> None:
        self.appended: dict[str, int] = defaultdict(int)
        self.committed: dict[str, int] = defaultdict(int)

    def add(self, said: list[list[str]]) -> None:
        for kind, writer, number in said:
            table = self.appended if kind == "append" else self.committed
            table[writer] = max(table[writer], int(number))

    def check(self, store: Store) -> None:
        self._check_appends(store)
        left, right = rows_of(store, "left"), rows_of(store, "right")
        assert left.keys() == right.keys()
        for writer, last in self.committed.items():
            self._check_commits(writer, last, left[writer])
            assert left[writer] == right[writer]

    def _check_appends(self, store: Store) -> None:
        there: dict[str, list[int]] = defaultdict(list)
        for topic in ("one", "two"):
            for value in values_of(store, topic):
                writer, number = value.split()
                there[writer].append(int(number))
        for writer, count in self.appended.items():
            numbers = there[writer]
            assert numbers == list(range(len(numbers))), f"{writer}: order or twice"
            # One batch may have been under way.
            assert count <= len(numbers) <= count + 5, writer

    def _check_commits(self, writer: str, last: int, rows: list[list[str]]) -> None:
        expected = []
        sequences = sorted({int(row[0]) for row in rows})
        assert sequences == list(range(1, len(sequences) + 1))
        assert last <= len(sequences) <= last + 1, writer
        for sequence in sequences:
            for batch in (1, 2):
                for number in range(1 + 40 * (sequence % 3)):
                    expected.append([str(sequence), str(batch), str(number)])
        assert rows == expected, writer


def values_of(store: Store, name: str) -> Iterator[str]:
    topic = store.find_topic(name)
    if topic is not None:
        data = read_all(topic.log)
        for start in scan(data).starts:
            length = int.from_bytes(data[start + 1 : start + 5], "little")
            yield data[start + 5 : start + 5 + length].decode()


def rows_of(store: Store, name: str) -> dict[str, list[list[str]]]:
    rows: dict[str, list[list[str]]] = defaultdict(list)
    for value in values_of(store, name):
        assert value != "loser", "something that was never committed is visible"
        writer, *row = value.split()
        rows[writer].append(row)
    return rows


@pytest.mark.parametrize("fsync", list(Fsync))
def test_killed_at_random_moments(tmp_path: Path, fsync: Fsync) -> None:
    rng = random.Random(f"crash {fsync}")
    rounds = -(-ROUNDS // len(Fsync))
    path, promises = tmp_path / "0", Promises()
    appended = committed = 0
    for round_ in range(rounds):
        if round_ % ROUNDS_PER_STORE == 0:
            path, promises = tmp_path / str(round_), Promises()
        promises.add(run_and_kill(path, fsync, round_, rng))
        with Store(path, framing=scan, background=False) as store:
            assert damage(store.findings) == [], store.findings
            promises.check(store)
            assert all(View.of(t.log).start.offset == 0 for t in store.topics())
        check_clean(path)
        appended += sum(promises.appended.values())
        committed += sum(promises.committed.values())
    assert appended and committed
