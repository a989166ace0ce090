"""What users see of our errors: the text, and as early as can be.

Each text is asked for as Spark asks, without it. Then there is one error through Spark
for each way that it takes to the user, as Spark takes some tenths of a second for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import LanceError
from lance_spark.spark.pool import clear_pool
from lance_spark.spark.source import LanceDataSource
from tests.spark.reading import (
    append_bytes,
    drop_old,
    fail_to,
    fill,
    load,
    log_of,
    make_records,
    make_schema,
    read,
    run_broker,
)


@pytest.fixture(autouse=True)
def leave_nothing() -> Iterator[None]:
    yield
    clear_pool()


def make_source(given: dict[str, str]) -> LanceDataSource:
    """Make a source as Spark does, with names of options in lower case."""
    return LanceDataSource({name.lower(): value for name, value in given.items()})


def fail(do: Callable[[], Any]) -> str:
    """Do what fails; give the text of the error as Python shows it."""
    with pytest.raises(LanceError) as told:
        do()
    return f"{type(told.value).__name__}: {told.value}"


# What options say that can't be, with no server in sight.
AT_LOAD: list[tuple[dict[str, str], str]] = [
    ({}, "no topic to read: name one with option topic"),
    ({"topik": "a"}, "there is no option topik; did you mean topic?"),
    ({"subscribe": "a"}, "Kafka's source has it, and here it is called topic"),
    ({"topic": "a", "topicPattern": "b"}, "topic and topicPattern are both given"),
    ({"topic": "a,,b"}, "has an empty name"),
    ({"topicPattern": "("}, "'(' is not a regular expression"),
    ({"topic": "a", "startingOffsets": "soon"}, "'soon' is neither earliest, "),
    ({"topic": "a", "startingOffsets": "{"}, "can't be read as JSON"),
    ({"topic": "a", "startingOffsets": '{"a": "x"}'}, "is not an offset for topic 'a'"),
    ({"topic": "a", "startingOffsets": '{"a": {"0": 5}}'}, "has no partitions"),
    (
        {"topic": "a", "endingOffsets": '{"b": 5}'},
        "names topic 'b', which option topic",
    ),
    ({"topic": "a,b", "endingOffsets": '{"b": 5}'}, "no offset for topic 'a'"),
    (
        {"topic": "a", "startingOffsets": '{"a": 9}', "endingOffsets": '{"a": 5}'},
        "option startingOffsets is behind endingOffsets for topic 'a' (9 and 5)",
    ),
    (
        {"topic": "a", "startingOffsets": "latest", "endingOffsets": "earliest"},
        "option startingOffsets is behind endingOffsets (latest and earliest)",
    ),
    (
        {"topic": "a", "startingOffsets": "latest", "startingTimestamp": "2024-05-01"},
        "options startingOffsets and startingTimestamp are both given",
    ),
    (
        {
            "topic": "a",
            "startingTimestamp": "2024-05-02",
            "endingTimestamp": "2024-05-01",
        },
        "option startingTimestamp is later than endingTimestamp",
    ),
    ({"topic": "a", "startingTimestamp": "noon"}, "option startingTimestamp: "),
    ({"topic": "a", "failOnDataLoss": "maybe"}, "neither true nor false"),
    ({"topic": "a", "minPartitions": "0"}, "option minPartitions: "),
    ({"topic": "a", "maxPartitionBytes": "0"}, "option maxPartitionBytes: "),
    ({"topic": "a", "splitting": "often"}, "auto, locate, probe or none"),
    ({"topic": "a", "fetchBytes": "1g"}, "option fetchBytes: "),
    ({"topic": "a", "onBadRecord": "ignore"}, "fail or skip"),
    ({"metadata": "partitions"}, "option metadata: "),
    ({"metadata": "topics", "startingOffsets": "latest"}, "reads no records"),
    ({"topic": "a", "createTopic": "true"}, "createTopic is for writes"),
    ({"topic": "a", "servers": "nowhere:port"}, "option servers: "),
    ({"topic": "a", "requestTimeout": "10"}, "option requestTimeout: "),
    ({"topic": "a", "checksum": "md5"}, "option checksum: "),
    ({"topic": "a", "tlsCa": "ca.pem"}, "tlsCa is given without tls"),
    ({"topic": "a", "tls": "true", "tlsKey": "sesame"}, "tlsKey is given without"),
]


@pytest.mark.parametrize(("given", "expected"), AT_LOAD)
def test_options_that_can_not_be(given: dict[str, str], expected: str) -> None:
    text = fail(lambda: make_source(given).schema())
    assert text.startswith("OptionError: ")
    assert expected in text
    assert "sesame" not in text


# What a schema says that can't be.


@pytest.mark.parametrize(
    ("given", "schema", "expected"),
    [
        ({"topic": "a"}, "valeu string", "no column valeu (did you mean value?)"),
        ({"topic": "a"}, "offset integer", "column offset is bigint, not int"),
        ({"metadata": "topics"}, "offset long", "there is no column offset"),
        ({}, "offset long", "no topic to read"),
    ],
)
def test_schemas_that_can_not_be(
    given: dict[str, str], schema: str, expected: str
) -> None:
    text = fail(lambda: make_source(given).reader(schema=make_schema(schema)))
    assert text.startswith("OptionError: ")
    assert expected in text


# What the server says.


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedBroker]:
    """Run a broker that has topic `a`, the start of which is gone."""
    with run_broker(segment_bytes=500, payload_validation="off") as broker:
        fill(broker, "a", make_records(200), batch_bytes=250)
        drop_old(broker, "a", 1000)
        fill(broker, "bad", make_records(3))
        append_bytes(broker, "bad", b"\x00 no record")
        yield broker


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"topic": "x,a"},
            "TopicNotFound: no topic is named 'x', or none that this client may use; "
            "create it, or correct the option topic",
        ),
        (
            {"topic": "a", "startingOffsets": '{"a": 0}'},
            "DataLoss: topic 'a': data at offset 0 is lost, {start} bytes gone: what "
            "was before the log start is removed; set failOnDataLoss=false to go on "
            "with what is left (log start {start}, log end 5000)",
        ),
        (
            {"topic": "a", "endingOffsets": '{"a": 9000}'},
            "data at offset 9000 is lost: the log ends before it",
        ),
        (
            {"topic": "a", "startingOffsets": "latest", "endingOffsets": '{"a": 4999}'},
            "OptionError: topic 'a': the range starts at offset 5000, after its end at "
            "4999; lower the start or raise the end",
        ),
        (
            {"topicPattern": "a.*", "endingOffsets": '{"ab": 1}'},
            "OptionError: offsets are given for 'ab', which is not read; the topics "
            "are 'a'",
        ),
        (
            {"topic": "bad"},
            "RecordError: malformed record at byte 75: topic 'bad': type 0 is "
            "reserved; set onBadRecord=skip to leave it out",
        ),
    ],
)
def test_what_is_not_there(
    server: EmbeddedBroker, given: dict[str, str], expected: str
) -> None:
    text = fail(lambda: read(server, **given))
    start, end = log_of(server, "a")
    assert end == 5000
    assert expected.format(start=start) in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"splitting": "locate"},
            "Unsupported: splitting=locate (use auto, probe or none): the server",
        ),
        (
            {"startingTimestamp": "2024-05-01"},
            "Unsupported: startingTimestamp (a plain server has no index of times; use "
            "offsets): the server",
        ),
    ],
)
def test_what_a_plain_server_can_not_do(
    plain_broker: EmbeddedBroker, given: dict[str, str], expected: str
) -> None:
    fill(plain_broker, "a", make_records(5))
    text = fail(lambda: read(plain_broker, topic="a", **given))
    assert f"{expected} {plain_broker.address} does not offer it" in text


# Servers that can't be used.


def test_a_server_that_speaks_no_tls(server: EmbeddedBroker) -> None:
    quick = {"retryTimeout": "100ms", "connectTimeout": "1s"}
    text = fail(lambda: read(server, topic="a", tls="true", **quick))
    assert server.address in text
    assert "TLS" in text


def test_a_token_that_is_missing() -> None:
    with run_broker(tokens=("open sesame",)) as broker:
        text = fail(lambda: read(broker, topic="a"))
    assert "AuthenticationRequired" in text
    assert "sesame" not in text


def test_another_checksum(plain_broker: EmbeddedBroker) -> None:
    fill(plain_broker, "a", make_records(1))
    given = {"topic": "a", "checksum": "crc32c", "retryTimeout": "100ms"}
    text = fail(lambda: read(plain_broker, **given))
    assert plain_broker.address in text
    assert "checksum" in text


# Through Spark: when a DataFrame is made.


def test_an_error_of_load(spark: SparkSession) -> None:
    given = {"topic": "a", "tls": "true", "tlsKey": "sesame"}
    text = fail_to(spark.read.format("lance").options(**given).load)
    assert "lance_spark.errors.OptionError: option tlsKey is given without" in text
    assert "sesame" not in text


def test_a_path(spark: SparkSession) -> None:
    text = fail_to(lambda: spark.read.format("lance").load("events"))
    assert "topics have no path: name the topic with option topic" in text


def test_an_error_of_a_view(spark: SparkSession) -> None:
    view = "CREATE TEMPORARY VIEW lance_bad USING lance OPTIONS (topik 'a')"
    text = fail_to(lambda: spark.sql(view))
    assert "OptionError: there is no option topik; did you mean topic?" in text


# When it is planned, which is when Spark shows us a schema that it is given.


@pytest.mark.parametrize(
    ("given", "schema", "expected"),
    [
        ({"topic": "a"}, "key binary not null", "column key can be null"),
        ({}, "offset long", "no topic to read"),
    ],
)
def test_an_error_of_a_schema(
    spark: SparkSession, given: dict[str, str], schema: str, expected: str
) -> None:
    frame = spark.read.format("lance").schema(schema).options(**given).load()
    text = fail_to(frame.collect)
    assert "lance_spark.errors.OptionError: " in text
    assert expected in text


def test_an_error_of_a_plan(spark: SparkSession, server: EmbeddedBroker) -> None:
    text = fail_to(load(spark, server, topic="x,a").collect)
    assert "lance_spark.errors.TopicNotFound: no topic is named 'x', or none" in text


def test_a_server_that_is_not_there(spark: SparkSession) -> None:
    with run_broker() as broker:
        address = broker.address
    options = {"servers": address, "topic": "a", "retryTimeout": "100ms"}
    frame = spark.read.format("lance").options(**options).load()
    text = fail_to(frame.collect)
    assert address in text
    assert "lance_spark.errors." in text


def test_a_token_that_is_wrong(spark: SparkSession) -> None:
    with run_broker(tokens=("open sesame",)) as broker:
        text = fail_to(load(spark, broker, topic="a", authToken="mellon").collect)
    assert "AuthenticationFailed" in text
    assert "mellon" not in text and "sesame" not in text


# When a task reads.


def test_an_error_of_a_task(spark: SparkSession, server: EmbeddedBroker) -> None:
    text = fail_to(load(spark, server, topic="bad").collect)
    assert "lance_spark.errors.RecordError: malformed record at byte 75: topic" in text
    assert "set onBadRecord=skip to leave it out" in text
