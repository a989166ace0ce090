"""One log, several protocols: written by any of them, read by every other.

The table of what each carries is that of the design; `docs/protocols.md` tells it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client import LogClient, connect
from lance_spark.errors import (
    InvalidPayload,
    RowError,
    StorageError,
    TopicNotFound,
    Unsupported,
)
from tests.integration.protocol import LISTENERS

FAST = {"backoff_base_s": 0.01, "retry_timeout_s": 10.0}


@dataclass(frozen=True)
class Carried:
    """What a protocol carries beside values."""

    keys: bool
    # The parts of a second that times have; 0 if there are none.
    unit_us: int
    # A record without a time is read with that of its batch.
    always_timed: bool = False
    # A record without a time is written with the present one.
    stamps: bool = False
    # An earlier time means none.
    least_us: int = 0
    # The position of the first record; None where they are bytes.
    first: int | None = None
    # Topics may have several partitions.
    partitioned: bool = False

    def carry_time(self, time_us: int | None) -> int | None:
        """Say what is left of a time."""
        if time_us is None or not self.unit_us:
            return None
        kept = time_us // self.unit_us * self.unit_us
        return kept if kept >= self.least_us else None


CARRIED = {
    "lance": Carried(keys=True, unit_us=1),
    "rustlog": Carried(keys=False, unit_us=0, first=0, partitioned=True),
    "kimberlite": Carried(keys=False, unit_us=0, first=0),
    "fluvio": Carried(
        keys=True,
        unit_us=1000,
        always_timed=True,
        least_us=1000,
        first=0,
        partitioned=True,
    ),
    "tank": Carried(
        keys=True,
        unit_us=1000,
        always_timed=True,
        stamps=True,
        first=1,
        partitioned=True,
    ),
}
PAIRS = list(itertools.product(CARRIED, CARRIED))
PARTITIONED = [name for name, carried in CARRIED.items() if carried.partitioned]

VALUES = [b"a", b"", b"\x00\xff" * 50, "größe".encode(), b"x" * 100_000]
KEYS = [b"k", b"", None, b"z" * 255, b"\xff"]
TIMES = [1_700_000_000_123_456, 0, None, 4_000_000_000_000_999, 1]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(fsync="none", **LISTENERS) as broker:
        yield broker


@pytest.fixture(scope="module")
def clients(broker: EmbeddedBroker) -> Iterator[dict[str, LogClient]]:
    found = {
        name: connect(f"{name}://{broker.address_of(name)}", **FAST) for name in CARRIED
    }
    yield found
    for client in found.values():
        client.close()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    name: str = request.node.name
    return name.replace("[", "-").rstrip("]")


def make_rows(protocol: str) -> pa.Table:
    """Make rows with all that a protocol carries."""
    carried, columns = CARRIED[protocol], {"value": pa.array(VALUES, pa.binary())}
    if carried.keys:
        columns["key"] = pa.array(KEYS, pa.binary())
    if carried.unit_us:
        columns["timestamp"] = pa.array(TIMES, pa.timestamp("us", "UTC"))
    return pa.table(columns)


def read(client: LogClient, topic: str, partition: int = 0) -> list[dict[str, Any]]:
    """Read all rows; times in microseconds."""
    batches = list(client.read(topic, partition))
    table = pa.Table.from_batches(batches)
    if "timestamp" in table.column_names:
        at = table.column_names.index("timestamp")
        stamps = table.column(at).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        table = table.set_column(at, "timestamp", stamps)
    found: list[dict[str, Any]] = table.to_pylist()
    return found


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_written_by_one_and_read_by_another(
    clients: dict[str, LogClient], topic: str, writer: str, reader: str
) -> None:
    wrote, reads = CARRIED[writer], CARRIED[reader]
    before_us = time.time_ns() // 10**6 * 1000
    clients[writer].append(topic, make_rows(writer), create=True)
    rows = read(clients[reader], topic)
    after_us = time.time_ns() // 1000
    assert [row["value"] for row in rows] == VALUES
    if reads.keys:
        keys = KEYS if wrote.keys else [None] * len(VALUES)
        assert [row["key"] for row in rows] == keys
    else:
        assert "key" not in rows[0]
    if reads.first is not None:
        numbers = [row["offset"] for row in rows]
        assert numbers == list(range(reads.first, reads.first + len(rows)))
    if not reads.unit_us:
        assert "timestamp" not in rows[0]
        return
    for row, given in zip(rows, TIMES, strict=True):
        kept = wrote.carry_time(given)
        found = row["timestamp"]
        if kept is not None:
            assert found == reads.carry_time(kept)
        elif wrote.stamps or reads.always_timed:
            assert found is not None and before_us <= found <= after_us
        else:
            assert found is None
    # What was not carried is the same at every read.
    assert read(clients[reader], topic) == rows


@pytest.mark.parametrize("maker", PARTITIONED)
def test_a_topic_with_partitions(
    broker: EmbeddedBroker, clients: dict[str, LogClient], topic: str, maker: str
) -> None:
    clients[maker].append(topic, [b"first"], 2, create=True, partitions=3)
    values = [f"by {name}".encode() for name in PARTITIONED]
    for name, value in zip(PARTITIONED, values, strict=True):
        [entry] = [one for one in clients[name].topics() if one.name == topic]
        assert list(entry.partitions) == [0, 1, 2]
        clients[name].append(topic, [value], 1)
        clients[name].append(topic, [value], 2)
    # To LWP each partition is a topic of its own.
    lance = clients["lance"]
    names = {one.name for one in lance.topics()}
    assert {f"{topic}/{n}" for n in range(3)} <= names and topic not in names
    lance.append(f"{topic}/1", [b"by lance"])
    expected = {0: [], 1: [*values, b"by lance"], 2: [b"first", *values]}
    for number, there in expected.items():
        for name in PARTITIONED:
            rows = read(clients[name], topic, number) if there else []
            assert [row["value"] for row in rows] == there, name
            assert {row["partition"] for row in rows} <= {number}
        rows = read(lance, f"{topic}/{number}") if there else []
        assert [row["value"] for row in rows] == there
    # Never a part for the whole.
    for name in CARRIED.keys() - PARTITIONED:
        client = clients[name]
        for call in (
            lambda client=client: client.bounds(topic),
            lambda client=client: client.append(topic, [b"x"]),
            lambda client=client: list(client.read(topic)),
        ):
            with pytest.raises((TopicNotFound, InvalidPayload), match="partition"):
                call()
    ends = {name: clients[name].bounds(topic) for name in PARTITIONED}
    for number, there in expected.items():
        for name, bounds in ends.items():
            first = CARRIED[name].first
            assert first is not None
            assert bounds[number].end - first == len(there)


def test_a_key_that_tank_can_not_carry(
    clients: dict[str, LogClient], topic: str
) -> None:
    rows = pa.table(
        {
            "key": pa.array([b"a", b"k" * 300, None], pa.binary()),
            "value": pa.array([b"1", b"2", b"3"], pa.binary()),
        }
    )
    clients["lance"].append(topic, rows, create=True)
    for name in CARRIED.keys() - {"tank"}:
        found = read(clients[name], topic)
        assert [row["value"] for row in found] == [b"1", b"2", b"3"], name
    batches = clients["tank"].read(topic)
    assert next(batches).column("value").to_pylist() == [b"1"]
    with pytest.raises(StorageError, match=f"{topic}/0"):
        next(batches)
    with pytest.raises(RowError, match="its key has 300 bytes"):
        clients["tank"].append(topic, rows)


@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_following(
    clients: dict[str, LogClient], topic: str, writer: str, reader: str
) -> None:
    clients[writer].append(topic, [b"old"], create=True)
    follow = clients[reader].follow(topic, timeout_s=5.0)
    clients[writer].append(topic, [b"new"])
    start = next(follow).column("value").to_pylist()
    assert start == [b"new"]


def test_a_topic_of_lwp_is_there_for_all(clients: dict[str, LogClient]) -> None:
    clients["lance"].append("plain", [b"a"], create=True)
    for name in PARTITIONED:
        [entry] = [one for one in clients[name].topics() if one.name == "plain"]
        assert list(entry.partitions) == [0]
        with pytest.raises(TopicNotFound):
            list(clients[name].read("plain", 1))
    # It can't list streams, and finds one by name.
    with pytest.raises(Unsupported):
        clients["kimberlite"].topics()
    assert list(clients["kimberlite"].bounds("plain")) == [0]
