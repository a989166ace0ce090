"""The data source itself, as Spark calls it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import StructType

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import OptionError
from lance_spark.spark.reader import LanceReader, TopicsReader
from lance_spark.spark.schema import TOPICS_SCHEMA
from lance_spark.spark.source import SOURCES, LanceDataSource, register
from lance_spark.spark.writer import LanceWriter
from tests.spark.reading import ROW_SCHEMA, make_options, make_schema


def make_source(**given: str) -> LanceDataSource:
    return LanceDataSource({name.lower(): value for name, value in given.items()})


def test_its_name() -> None:
    assert LanceDataSource.name() == "lance"


def test_its_columns() -> None:
    assert make_source(topic="a").schema() == ROW_SCHEMA
    assert make_source(metadata="topics").schema() == TOPICS_SCHEMA


def test_readers_and_writers(broker: EmbeddedBroker) -> None:
    # Spark gives all arguments by name, and nothing of this asks a server.
    read = make_source(topic="a")
    assert isinstance(read.reader(schema=ROW_SCHEMA), LanceReader)
    topics = make_source(metadata="topics")
    assert isinstance(topics.reader(schema=TOPICS_SCHEMA), TopicsReader)
    write = LanceDataSource(make_options(broker, topic="a"))
    schema = make_schema("value string")
    assert isinstance(write.writer(schema=schema, overwrite=False), LanceWriter)


def test_it_travels() -> None:
    source = make_source(topic="a", authToken="sesame")
    copy = pickle.loads(pickle.dumps(source))
    assert copy.options == source.options
    assert isinstance(copy.reader(schema=ROW_SCHEMA), LanceReader)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topik": "a"}, "there is no option topik; did you mean topic?"),
        ({"path": "a"}, "name the topic with option topic"),
        ({"topic": "a", "topicPattern": "b"}, "topic and topicPattern are both given"),
        ({"topic": "a", "minPartitions": "x"}, "minPartitions"),
        ({"startingOffsets": "latest", "createTopic": "true"}, "for reads"),
    ],
)
def test_options_are_checked_when_it_is_made(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as told:
        make_source(**given)
    assert text in str(told.value)


def test_options_of_the_other_direction() -> None:
    with pytest.raises(OptionError, match="createTopic is for writes"):
        make_source(topic="a", createTopic="true").schema()
    with pytest.raises(OptionError, match="minPartitions is for reads"):
        make_source(topic="a", minPartitions="2").writer(
            schema=make_schema("value string"), overwrite=False
        )


def test_a_read_needs_a_topic() -> None:
    source = make_source(servers="127.0.0.1:1")
    with pytest.raises(OptionError, match="no topic to read"):
        source.schema()
    with pytest.raises(OptionError, match="no topic to read"):
        source.reader(schema=ROW_SCHEMA)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (
            make_schema("offset long, valeu string"),
            "no column valeu (did you mean value",
        ),
        (make_schema("value long"), "column value is binary or string, not bigint"),
        (StructType().add("key", "binary", nullable=False), "column key can be null"),
    ],
)
def test_a_schema_is_checked_when_a_reader_is_made(
    schema: StructType, text: str
) -> None:
    with pytest.raises(OptionError) as told:
        make_source(topic="a").reader(schema=schema)
    assert text in str(told.value)


def test_register_tells_a_session() -> None:
    told: list[Any] = []

    class Session:
        class dataSource:
            register = told.append

    register(Session)  # type: ignore[arg-type]
    register(Session, "lance-topics")  # type: ignore[arg-type]
    first, second = told[: len(SOURCES)], told[len(SOURCES) :]
    assert tuple(first) == SOURCES
    assert issubclass(second[0], LanceDataSource)
    assert [source.name() for source in second] == [
        *("lance-topics", "rustlog", "kimberlite", "fluvio", "tank")
    ]


def test_secrets_stay_inside() -> None:
    source = make_source(topic="a", authToken="sesame")
    reader = source.reader(schema=ROW_SCHEMA)
    assert "sesame" not in repr(source) + repr(reader) + repr(vars(reader))
