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
    RowError,
    StorageError,
    TopicNotFound,
)

HERE = "127.0.0.1:0"
FAST = {"backoff_base_s": 0.01, "retry_timeout_s": 10.0}


@dataclass(frozen=True)
class Carried:
    """What a protocol carries beside values."""

    keys: bool
    # The parts of a second that times have; 0 if there are none.
    unit_us: int
    # Every record has a time: that of its batch if it has none of its own.
    always_timed: bool = False
    # The position of the first record; None where they are bytes.
    first: int | None = None


CARRIED = {
    "lance": Carried(keys=True, unit_us=1),
    "rustlog": Carried(keys=False, unit_us=0, first=0),
    "tank": Carried(keys=True, unit_us=1000, always_timed=True, first=1),
}
PAIRS = list(itertools.product(CARRIED, CARRIED))

VALUES = [b"a", b"", b"\x00\xff" * 50, "größe".encode(), b"x" * 100_000]
KEYS = [b"k", b"", None, b"z" * 255, b"\xff"]
TIMES = [1_700_000_000_123_456, 0, None, 4_000_000_000_000_999, 1]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(fsync="none", rustlog=HERE, tank=HERE) as broker:
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
        unit = max(wrote.unit_us, reads.unit_us)
        found = row["timestamp"]
        if wrote.unit_us and given is not None:
            assert found == given // unit * unit
        elif wrote.always_timed or reads.always_timed:
            assert found is not None and before_us <= found <= after_us
        else:
            assert found is None
    # What was not carried is the same at every read.
    assert read(clients[reader], topic) == rows


@pytest.mark.parametrize("maker", ["rustlog", "tank"])
def test_a_topic_with_partitions(
    broker: EmbeddedBroker, clients: dict[str, LogClient], topic: str, maker: str
) -> None:
    clients[maker].append(topic, [b"first"], 2, create=True, partitions=3)
    for name in ("rustlog", "tank"):
        [entry] = [one for one in clients[name].topics() if one.name == topic]
        assert list(entry.partitions) == [0, 1, 2]
        clients[name].append(topic, [f"by {name}".encode()], 1)
        clients[name].append(topic, [f"by {name}".encode()], 2)
    # To LWP each partition is a topic of its own.
    lance = clients["lance"]
    names = {one.name for one in lance.topics()}
    assert {f"{topic}/{n}" for n in range(3)} <= names and topic not in names
    lance.append(f"{topic}/1", [b"by lance"])
    expected = {
        0: [],
        1: [b"by rustlog", b"by tank", b"by lance"],
        2: [b"first", b"by rustlog", b"by tank"],
    }
    for number, values in expected.items():
        for name in ("rustlog", "tank"):
            rows = read(clients[name], topic, number) if values else []
            assert [row["value"] for row in rows] == values, name
            assert {row["partition"] for row in rows} <= {number}
        rows = read(lance, f"{topic}/{number}") if values else []
        assert [row["value"] for row in rows] == values
    # Never a part for the whole.
    for call in (
        lambda: lance.bounds(topic),
        lambda: lance.append(topic, [b"x"]),
        lambda: list(lance.read(topic)),
    ):
        with pytest.raises(TopicNotFound):
            call()
    ends = {name: clients[name].bounds(topic) for name in ("rustlog", "tank")}
    for number, values in expected.items():
        for name, bounds in ends.items():
            first = CARRIED[name].first
            assert first is not None
            assert bounds[number].end - first == len(values)


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
    assert len(read(clients["lance"], topic)) == 3
    assert [row["value"] for row in read(clients["rustlog"], topic)] == [
        b"1",
        b"2",
        b"3",
    ]
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
    for name in ("rustlog", "tank"):
        [entry] = [one for one in clients[name].topics() if one.name == "plain"]
        assert list(entry.partitions) == [0]
        with pytest.raises(TopicNotFound):
            list(clients[name].read("plain", 1))
