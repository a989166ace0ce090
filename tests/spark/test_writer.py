"""The writer as Spark uses it: pickled for tasks, and pickled again for the commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import LanceError, OptionError, Unsupported
from lance_spark.spark.writer import LanceCommit, LanceWriter
from tests.spark.writing import (
    count_stages,
    hurry,
    leaving_nothing,
    list_topics,
    make_options,
    read_records,
    read_values,
    rows,
    travel,
    values,
)

VALUE = StructType([StructField("value", BinaryType())])
ROUTED = StructType([StructField("topic", StringType()), *VALUE])


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with leaving_nothing():
        yield


@pytest.fixture(params=["broker", "plain_broker"])
def server(request: pytest.FixtureRequest) -> EmbeddedBroker:
    """Give a broker of each dialect."""
    found: EmbeddedBroker = request.getfixturevalue(request.param)
    return found


def _writer(
    broker: EmbeddedBroker,
    *,
    schema: StructType = VALUE,
    overwrite: bool = False,
    **changes: Any,
) -> LanceWriter:
    options = make_options(broker, **{"topic": "a", **changes})
    return LanceWriter(options, schema, overwrite)


def test_writes_and_commits(server: EmbeddedBroker) -> None:
    writer = _writer(server)
    assert isinstance(writer, DataSourceArrowWriter)
    messages: list[WriterCommitMessage | None] = [
        travel(travel(writer).write(iter(batches)))
        for batches in ([values(b"1"), values(b"2")], [values(b"3")], [])
    ]
    travel(writer).commit(messages)
    assert read_values(server, "a") == [b"1", b"2", b"3"]


def test_copies_of_a_writer_are_one_job(broker: EmbeddedBroker) -> None:
    writer = _writer(broker)
    assert travel(writer).job == writer.job
    assert _writer(broker).job != writer.job


def test_overwrites(broker: EmbeddedBroker) -> None:
    for value in (b"old", b"new"):
        writer = _writer(broker, overwrite=True)
        writer.commit([writer.write(iter([values(value)]))])
    with pytest.raises(Unsupported), EmbeddedBroker(dialect="plain") as plain:
        _writer(plain, overwrite=True)
    (left,) = read_records(broker, "a", start=8)
    assert left.value == b"new"


def test_routes(server: EmbeddedBroker) -> None:
    writer = _writer(server, schema=ROUTED, topic=None)
    batch = rows(topic=["a", "b"], value=[b"1", b"2"])
    writer.commit([writer.write(iter([batch]))])
    assert read_values(server, "b") == [b"2"]


def test_a_task_that_said_nothing_fails_the_commit(server: EmbeddedBroker) -> None:
    writer = _writer(server)
    message = writer.write(iter([values(b"1")]))
    for others in ([None], [WriterCommitMessage()], [None, None]):
        with pytest.raises(LanceError, match=f"{len(others)} of {len(others) + 1} ta"):
            writer.commit([message, *others])
    if writer.job.is_staged:
        assert list_topics(server) == []
        writer.commit([message])
    assert read_values(server, "a") == [b"1"]


@pytest.mark.parametrize("messages", [[], [None, None], ["its own"]])
def test_aborts_whatever_it_is_told(
    broker: EmbeddedBroker, messages: list[Any]
) -> None:
    writer = _writer(broker)
    message = writer.write(iter([values(b"1")]))
    travel(writer).abort([message if m == "its own" else m for m in messages])
    assert (list_topics(broker), count_stages(broker)) == ([], 0)


def test_abort_needs_no_server(broker: EmbeddedBroker) -> None:
    writer = _writer(broker)
    writer.job = hurry(writer.job)
    broker.stop()
    writer.abort([None])


def test_columns_are_checked_on_the_driver(broker: EmbeddedBroker) -> None:
    with pytest.raises(OptionError, match="other"):
        _writer(broker, schema=StructType([*VALUE, StructField("other", LongType())]))
    with pytest.raises(OptionError, match="topic"):
        _writer(broker, topic=None)


def test_messages_travel(broker: EmbeddedBroker) -> None:
    message = _writer(broker).write(iter([values(b"1")]))
    assert isinstance(message, LanceCommit)
    assert travel(message) == message
    assert message.result.records == 1
