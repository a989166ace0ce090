"""Kimberlite as a format, on a broker that speaks it; no JVM."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import (
    AuthenticationFailed,
    CheckpointError,
    DataLoss,
    OptionError,
    RowError,
    TopicNotFound,
)
from lance_spark.spark.source import KimberliteDataSource
from tests.spark.reading import make_schema
from tests.spark.test_partitioned import Server, gather, read, serve, write

CREATING = "kimberlite finds a stream by its name only by creating it"


@pytest.fixture
def server() -> Iterator[Server]:
    """A server with stream `a` of ten events, and `b` of one."""
    with serve("kimberlite") as made:
        made.fill("a", 10)
        made.fill("b", 1)
        yield made


def values(count: int, start: int = 0) -> list[tuple[int, bytes]]:
    return [(n, b"0-%d" % n) for n in range(start, start + count)]


def find_id(server: Server, name: str) -> str:
    server.client.driver.topics([name])
    return str(server.client.driver._ids[name])  # type: ignore[attr-defined]


def test_columns(server: Server) -> None:
    source = server.source(topic="a")
    assert source.schema().names == ["topic", "offset", "value"]
    found = read(source)
    assert [(row["offset"], row["value"]) for row in found] == values(10)
    assert {row["topic"] for row in found} == {"a"}
    both = read(server.source(topic="b,a"), make_schema("topic string, value string"))
    assert [row["topic"] for row in both] == ["a"] * 10 + ["b"]
    with pytest.raises(OptionError, match="there is no column partition"):
        source.reader(make_schema("partition integer"))


def test_splits_and_offsets(server: Server) -> None:
    source = server.source(topic="a", maxPartitionRecords="4")
    reader = source.reader(source.schema())
    assert [len(gather(reader.read(split))) for split in reader.partitions()] == [
        *(3, 3, 4)
    ]
    some = server.source(
        topic="a", startingOffsets='{"a": 3}', endingOffsets='{"a": 7}'
    )
    assert [(row["offset"], row["value"]) for row in read(some)] == values(4, 3)
    with pytest.raises(DataLoss, match="the log ends before it"):
        read(server.source(topic="a", endingOffsets='{"a": 11}'))


def test_a_read_that_creates_says_so(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert read(server.source(topic="new")) == []
    assert caplog.text.count(CREATING) == 1 and "'new'" in caplog.text
    store = server.broker.service.store
    assert store.find_topic("new") is not None
    caplog.clear()
    source = server.source(topic="newer")
    with caplog.at_level(logging.WARNING):
        source.streamReader(source.schema()).initialOffset()
    assert CREATING in caplog.text


def test_a_read_by_id_creates_nothing(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    number = find_id(server, "a")
    with caplog.at_level(logging.WARNING):
        found = read(server.source(streamId=number))
        named = read(server.source(streamId=number, topic="mine"))
        wrong = str(int(number) + 7)
        text = f"tenant 1 has no stream with the id {wrong}, .*correct option streamId"
        with pytest.raises(TopicNotFound, match=text):
            read(server.source(streamId=wrong))
        with pytest.raises(TopicNotFound, match=text):
            server.source(streamId=wrong, createTopic="false", topic="a").writer(
                make_schema("value string"), overwrite=False
            )
    assert CREATING not in caplog.text
    assert [(row["offset"], row["value"]) for row in found] == values(10)
    assert {row["topic"] for row in found} == {number}
    assert [row["topic"] for row in named] == ["mine"] * 10
    names = {log.metadata.name for log in server.broker.service.store.topics()}
    assert names == {"a", "b"}


def test_streams_that_are_named_are_described(server: Server) -> None:
    source = server.source(metadata="topics", topic="a,b")
    assert "partition" not in source.schema().names
    found = read(source)
    assert [(row["name"], row["log_start"], row["log_end"]) for row in found] == [
        ("a", 0, 10),
        ("b", 0, 1),
    ]


def test_tenants(server: Server) -> None:
    write(server.source(topic="a", tenant="42"), "value string", {"value": ["x"]})
    assert [row["value"] for row in read(server.source(topic="a", tenant="42"))] == [
        b"x"
    ]
    assert len(read(server.source(topic="a"))) == 10


@pytest.mark.parametrize("wire", ["v5", "v3", "v1-postcard", "v1-bincode"])
def test_forms(server: Server, wire: str) -> None:
    source = server.source(topic="a", wire=wire)
    write(source, "value string", {"value": ["x"]})
    assert [row["value"] for row in read(source)] == [
        *(value for _, value in values(10)),
        b"x",
    ]


def test_tokens() -> None:
    with EmbeddedBroker(
        fsync="none", kimberlite="127.0.0.1:0", tokens=("sesame",)
    ) as broker:
        given = {"servers": broker.address_of("kimberlite"), "topic": "a"}
        source = KimberliteDataSource({**given, "authToken": "sesame"})
        write(source, "value string", {"value": ["x"]})
        assert len(read(source)) == 1
        with pytest.raises(AuthenticationFailed):
            read(KimberliteDataSource({**given, "authToken": "wrong"}))


def test_a_stream_and_its_checkpoint(server: Server) -> None:
    source = server.source(topic="a", startingOffsets="earliest")
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()

    def run(start: dict[str, object]) -> tuple[dict[str, object], list[bytes]]:
        limit = reader.getDefaultReadLimit()
        end = json.loads(json.dumps(reader.latestOffset(start, limit)))
        splits = reader.partitions(start, end)
        rows = [row for split in splits for row in gather(reader.read(split))]
        return end, [row["value"] for row in rows]

    end, found = run(start)
    assert found == [value for _, value in values(10)]
    assert end["protocol"] == "kimberlite"
    server.client.append("a", [b"late"])
    again, found = run(end)
    assert found == [b"late"]
    lance = server.lance(topic="a")
    with pytest.raises(CheckpointError, match="of protocol 'kimberlite', not"):
        lance.streamReader(lance.schema()).partitions(again, again)
    # Deleted by others: a look at the name makes an empty one, and that is a loss.
    store = server.broker.service.store
    store.delete_topic(store.find_topic("a").metadata.id)
    with pytest.raises(DataLoss):
        run(again)


def test_writes_of_several_tasks(server: Server) -> None:
    """They share the stream by taking turns: each row is there once."""

    def run(task: int) -> None:
        rows = [f"{task} {n}" for n in range(2000)]
        tables = [{"value": rows[at : at + 100]} for at in range(0, 2000, 100)]
        write(server.source(topic="t", batchBytes="4k"), "value string", *tables)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    found = [row["value"].decode() for row in read(server.source(topic="t"))]
    assert len(found) == 8000
    for task in range(4):
        mine = [value for value in found if value.startswith(f"{task} ")]
        assert mine == [f"{task} {n}" for n in range(2000)]


def test_rows(server: Server) -> None:
    rows = {"value": [b"1"], "partition": pa.array([9], pa.int32()), "offset": [7]}
    schema = "value binary, partition integer, offset long"
    write(server.source(topic="w"), schema, rows)
    assert [row["value"] for row in read(server.source(topic="w"))] == [b"1"]
    with pytest.raises(RowError, match="its key is not null"):
        write(
            server.source(topic="w"),
            "value binary, key binary",
            {"value": [b"1"], "key": [b"k"]},
        )
    with pytest.raises(RowError, match="its value is null"):
        nulls = pa.array([None], pa.binary())
        write(server.source(topic="w"), "value binary", {"value": nulls})
    topics = {"value": ["x", "y"], "topic": ["u", "v"]}
    write(server.source(), "value string, topic string", topics)
    assert [row["value"] for row in read(server.source(topic="v"))] == [b"y"]
    number = find_id(server, "v")
    write(
        server.source(streamId=number, createTopic="false"),
        "value string",
        {"value": ["z"]},
    )
    assert [row["value"] for row in read(server.source(topic="v"))] == [b"y", b"z"]
