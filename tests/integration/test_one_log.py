"""One log, several protocols: what one of them writes, each of them reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.client.driver import find_driver, protocols
from lance_spark.client.log import LogClient, connect
from lance_spark.errors import TopicNotFound

# Whole milliseconds: TANK carries no more.
STAMP_NS = 1_700_000_000_123_000_000
ROWS: list[dict[str, Any]] = [
    {"key": b"k1", "value": b"one", "timestamp_ns": STAMP_NS},
    {"key": b"", "value": b"", "timestamp_ns": STAMP_NS + 1_000_000},
    {"key": b"k3", "value": b"\x00\xff", "timestamp_ns": STAMP_NS + 2_000_000},
]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    others = {name: "127.0.0.1:0" for name in protocols() if name != "lance"}
    with EmbeddedBroker(fsync="none", **others) as broker:
        yield broker


def _connect(broker: EmbeddedBroker, protocol: str) -> LogClient:
    return connect(f"{protocol}://{broker.address_of(protocol)}")


def _carries(protocol: str, column: str) -> bool:
    """Tell whether a protocol has a place for a column of `ROWS`."""
    return column.removesuffix("_ns") in find_driver(protocol).TRAITS.columns


@pytest.mark.parametrize("reader", protocols())
@pytest.mark.parametrize("writer", protocols())
def test_every_pair(broker: EmbeddedBroker, writer: str, reader: str) -> None:
    topic = f"{writer}-to-{reader}"
    written = [name for name in ROWS[0] if _carries(writer, name)]
    with _connect(broker, writer) as client:
        table = pa.Table.from_pylist(ROWS).select(written)
        client.append(topic, table, create=True)
    shown = [name for name in ROWS[0] if _carries(reader, name)]
    with _connect(broker, reader) as client:
        batches = list(client.read(topic, columns=["offset", *shown]))
    found = [row for batch in batches for row in batch.to_pylist()]
    assert len(found) == len(ROWS)
    traits = find_driver(reader).TRAITS
    assert found[0]["offset"] == traits.first_position
    for row, expected in zip(found, ROWS, strict=True):
        assert row["value"] == expected["value"]
        if "key" in shown:
            assert row["key"] == (expected["key"] if "key" in written else None)
        if "timestamp_ns" in shown and "timestamp_ns" in written:
            assert row["timestamp_ns"] == expected["timestamp_ns"]
    if reader == "tank" and "timestamp_ns" not in written:
        # When it was appended, the same at every read.
        with _connect(broker, reader) as client:
            again = list(client.read(topic, columns=["offset", *shown]))
        assert again == batches and found[0]["timestamp_ns"] > STAMP_NS


@pytest.mark.parametrize("writer", [name for name in protocols() if name != "lance"])
def test_partitions(broker: EmbeddedBroker, writer: str) -> None:
    topic = f"parts-{writer}"
    with _connect(broker, writer) as client:
        client.append(topic, [b"a"], 0, create=True, partitions=2)
        client.append(topic, [b"b", b"c"], 1)
    for protocol in protocols():
        with _connect(broker, protocol) as client:
            names = {entry.name: entry.partitions for entry in client.topics()}
            if protocol == "lance":
                # LWP knows the logs, and never takes a part for the whole.
                assert {f"{topic}/0", f"{topic}/1"} <= set(names)
                with pytest.raises(TopicNotFound):
                    client.read(topic)
                (batch,) = client.read(f"{topic}/1")
            else:
                assert names[topic] == (0, 1)
                (batch,) = client.read(topic, 1)
            assert batch["value"].to_pylist() == [b"b", b"c"]
    with _connect(broker, "lance") as client:
        client.append(f"{topic}/0", [b"d"])
    with _connect(broker, writer) as client:
        (batch,) = client.read(topic, 0)
        assert batch["value"].to_pylist() == [b"a", b"d"]
