"""The options of reads and writes: values, defaults, mistakes, secrets."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import replace
from typing import Any

import pytest

from lance_spark.client import ClientConfig
from lance_spark.errors import OptionError
from lance_spark.model import Partition
from lance_spark.spark.bound import EARLIEST, LATEST, AtOffsets, AtTime
from lance_spark.spark.options import (
    ReadOptions,
    WriteOptions,
    check_options,
    lists_topics,
    parse_read_options,
    parse_write_options,
)
from lance_spark.spark.setting import OPTIONS as ALL_OPTIONS
from lance_spark.spark.setting import Option, Scope
from tests.each import each
from tests.spark.given import (
    GOOD,
    PARSERS,
    Parse,
    parse_stream_options,
    parse_stream_write_options,
    refused,
)

# Those of the other formats are in `test_formats`.
OPTIONS = [option for option in ALL_OPTIONS if option.has_format("lance")]
READ_ONLY = [option.name for option in OPTIONS if not option.scope & Scope.WRITE]
WRITE_ONLY = [option.name for option in OPTIONS if not option.scope & Scope.READ]

# Of each option a value that can't be used.
BAD = {
    **dict.fromkeys(("tlsCa", "tlsCert", "tlsKey", "tlsServerName", "authToken"), ""),
    **dict.fromkeys(("connectTimeout", "requestTimeout", "retryTimeout"), "30"),
    **dict.fromkeys(("startingOffsets", "endingOffsets"), "soon"),
    **dict.fromkeys(("startingTimestamp", "endingTimestamp"), "soon"),
    **dict.fromkeys(
        ("failOnDataLoss", "pushFilters", "createTopic", "allowNullRecords", "tls"),
        "maybe",
    ),
    **dict.fromkeys(("fetchBytes", "batchBytes", "maxPartitionBytes"), "0"),
    **dict.fromkeys(("splitting", "onBadRecord", "metadata", "delivery"), "x"),
    **dict.fromkeys(("recordType", "compression", "checksum"), "x"),
    "servers": "a:x",
    "topic": "a,,b",
    "topicPattern": "(",
    "minPartitions": "0",
    "maxBytesPerTrigger": "0",
    "maxRecordsPerTrigger": "1k",
    "consumerGroup": " ",
    "maxInFlight": "1025",
    "txnAppId": " ",
    "txnVersion": "9223372036854775808",
}


def test_every_option_is_tried() -> None:
    names = {option.name for option in OPTIONS}
    assert set(GOOD) == set(BAD) == names
    assert set(READ_ONLY) | set(WRITE_ONLY) < names


# Values.


def test_read_defaults() -> None:
    assert parse_read_options({"topic": "a"}) == ReadOptions(
        client=ClientConfig(),
        topics=("a",),
        topic_pattern=None,
        start=EARLIEST,
        end=LATEST,
        fail_on_data_loss=True,
        min_partitions=None,
        max_partition_size=None,
        splitting="auto",
        fetch_bytes=4 * 1024**2,
        push_filters=False,
        on_bad_record="fail",
        metadata=False,
        max_bytes_per_trigger=None,
        max_records_per_trigger=None,
        consumer_group=None,
    )


def test_write_defaults() -> None:
    assert parse_write_options({}) == WriteOptions(
        client=ClientConfig(),
        topic=None,
        partition=None,
        create_topic=True,
        partitions=1,
        allow_null_records=False,
        record_type=1,
        compression="none",
        batch_bytes=1024**2,
        max_in_flight=8,
        delivery="auto",
        txn_app_id=None,
        txn_version=None,
    )


@each(
    ("name", "field", "value"),
    [
        ("failOnDataLoss", "fail_on_data_loss", False),
        ("minPartitions", "min_partitions", 3),
        ("maxPartitionBytes", "max_partition_size", 1024),
        ("splitting", "splitting", "probe"),
        ("fetchBytes", "fetch_bytes", 65536),
        ("pushFilters", "push_filters", True),
        ("onBadRecord", "on_bad_record", "skip"),
        ("startingOffsets", "start", AtOffsets(((Partition("a"), 1),))),
        ("endingOffsets", "end", AtOffsets(((Partition("a"), 9),))),
        ("startingTimestamp", "start", AtTime(1_714_521_600_000_000_000)),
        ("endingTimestamp", "end", AtTime(1_714_521_600_000_000_000)),
        ("metadata", "metadata", True),
    ],
)
def test_read_value(name: str, field: str, value: Any) -> None:
    assert getattr(parse_read_options({"topic": "a"}), field) != value
    assert getattr(parse_read_options({"topic": "a", name: GOOD[name]}), field) == value


@each(
    ("name", "field", "value"),
    [
        ("topic", "topic", "a"),
        ("createTopic", "create_topic", False),
        ("allowNullRecords", "allow_null_records", True),
        ("recordType", "record_type", 2),
        ("compression", "compression", "lz4"),
        ("batchBytes", "batch_bytes", 2 * 1024**2),
        ("maxInFlight", "max_in_flight", 1),
        ("delivery", "delivery", "exactly-once"),
    ],
)
def test_write_value(name: str, field: str, value: Any) -> None:
    assert getattr(parse_write_options({}), field) != value
    assert getattr(parse_write_options({name: GOOD[name]}), field) == value


def test_stream_defaults() -> None:
    expected = replace(parse_read_options({"topic": "a"}), start=LATEST)
    assert parse_stream_options({"topic": "a"}) == expected
    assert expected.consumer_group is expected.max_bytes_per_trigger is None


def test_stream_values() -> None:
    names = ("maxBytesPerTrigger", "maxRecordsPerTrigger", "consumerGroup")
    given = {"topic": "a", **{name: GOOD[name] for name in names}}
    made = parse_stream_options(given)
    assert (made.max_bytes_per_trigger, made.max_records_per_trigger) == (1024**2, 1000)
    assert made.consumer_group == "readers"


def test_stream_reads_as_a_batch_does() -> None:
    names = [o.name for o in OPTIONS if o.scope in (Scope.READ, Scope.ALL)]
    given = {name: GOOD[name] for name in names}
    # Each of them leaves out another that is given.
    del given["topicPattern"], given["startingTimestamp"]
    assert parse_stream_options(given) == parse_read_options(given)
    by_time = {"topicPattern": "a.*", "startingTimestamp": "2024-05-01"}
    assert parse_stream_options(by_time) == parse_read_options(by_time)
    first = {"topic": "a", "startingOffsets": "earliest"}
    assert parse_stream_options(first) == parse_read_options(first)


def test_stream_writes_as_a_batch_does() -> None:
    names = [o.name for o in OPTIONS if o.scope in (Scope.WRITE, Scope.ALL)]
    given = {name: GOOD[name] for name in names}
    assert parse_stream_write_options(given) == parse_write_options(given)
    assert parse_stream_write_options({}) == parse_write_options({})


@pytest.mark.parametrize("name", ["checkpointLocation", "queryname", "QUERYNAME"])
def test_what_spark_adds_to_a_streaming_write(name: str) -> None:
    given = {"topic": "a", name: "x"}
    check_options(given)
    assert parse_stream_write_options(given) == parse_write_options({"topic": "a"})
    shown = {"checkpointlocation": "checkpointLocation", "queryname": "queryName"}
    said = f"option {shown[name.lower()]} is for writeStream: leave it out here"
    for parse in (parse_write_options, parse_read_options, parse_stream_options):
        assert refused(parse, given) == said


@pytest.mark.parametrize("parse", [parse_read_options, parse_write_options])
def test_client_values(parse: Parse) -> None:
    names = [option.name for option in OPTIONS if option.scope == Scope.ALL]
    made = parse({name: GOOD[name] for name in names})
    assert made.client == ClientConfig(
        servers="a:1,b:2",
        checksum="auto",
        tls=True,
        tls_ca="ca.pem",
        tls_cert="cert.pem",
        tls_key="key.pem",
        tls_server_name="broker",
        auth_token="sesame",
        connect_timeout_s=1,
        request_timeout_s=0.5,
        retry_timeout_s=3600,
    )


def test_transaction() -> None:
    made = parse_write_options({"txnAppId": "job", "txnVersion": "0"})
    assert (made.txn_app_id, made.txn_version) == ("job", 0)


def test_several_topics_are_read() -> None:
    made = parse_read_options({"topic": "b, a"})
    assert (made.topics, made.topic_pattern) == (("b", "a"), None)
    assert [made.reads(name) for name in ("a", "b", "b, a", "c")] == [
        *(True, True, False, False)
    ]


def test_pattern_has_to_match_the_whole_name() -> None:
    made = parse_read_options({"topicPattern": "a|ab"})
    assert (made.topics, made.topic_pattern) == ((), "a|ab")
    assert [made.reads(name) for name in ("a", "ab", "abc", "xa")] == [
        *(True, True, False, False)
    ]


@pytest.mark.parametrize(
    ("given", "reads_b"),
    [({}, True), ({"topic": "a"}, False), ({"topicPattern": "b"}, True)],
)
def test_topics_are_listed(given: dict[str, str], reads_b: bool) -> None:
    made = parse_read_options({"metadata": "topics", **given})
    assert made.metadata and made.reads("b") is reads_b


@pytest.mark.parametrize("name", ["failondataloss", "FAILONDATALOSS", "FailOnDataLoss"])
def test_names_are_taken_in_any_case(name: str) -> None:
    assert not parse_read_options({"TOPIC": "a", name: "false"}).fail_on_data_loss


def test_options_travel() -> None:
    named = {"topic": "a"}
    for parse in (parse_read_options, parse_stream_options, parse_write_options):
        made: Any = parse(named)
        assert pickle.loads(pickle.dumps(made)) == made
        assert len({made, made}) == 1


# Mistakes.


@each("option", OPTIONS, ids=lambda option: option.name)
def test_bad_value(option: Option) -> None:
    scopes: list[tuple[Scope, Parse]] = [
        (Scope.BATCH_READ, parse_read_options),
        (Scope.STREAM_READ, parse_stream_options),
        (Scope.BATCH_WRITE, parse_write_options),
        (Scope.STREAM_WRITE, parse_stream_write_options),
    ]
    own = [parse for scope, parse in scopes if option.scope & scope]
    name = option.name
    for parse in (check_options, *own):
        assert refused(parse, {name: BAD[name]}).startswith(f"option {name}: ")


@each(
    ("name", "hint"),
    [
        ("topik", "did you mean topic?"),
        ("topics", "did you mean topic?"),
        ("startingOffset", "did you mean startingOffsets?"),
        ("MinPartition", "did you mean minPartitions?"),
        ("tls_ca", "did you mean tlsCa?"),
        ("subscribe", "Kafka's source has it, and here it is called topic"),
        (
            "subscribePattern",
            "Kafka's source has it, and here it is called topicPattern",
        ),
        (
            "kafka.bootstrap.servers",
            "Kafka's source has it, and here it is called servers",
        ),
        ("maxOffsetsPerTrigger", "Kafka's source has it, and here it is called maxR"),
        ("groupIdPrefix", "Kafka's source has it, and here it is called consumerGroup"),
        (
            "kafka.group.id",
            "Kafka's source has it, and here it is called consumerGroup",
        ),
        ("kafka.batch.size", "Kafka's source has it, and here it is called batchBytes"),
        ("minOffsetsPerTrigger", "it is an option of Kafka's source, which has no c"),
        ("kafka.isolation.level", "it is an option of Kafka's source, which has no c"),
        ("maxBytesPerTriger", "did you mean maxBytesPerTrigger?"),
        ("zzz", "there are allowNullRecords, authToken, batchBytes, checksum, "),
    ],
)
@each("parse", PARSERS)
def test_unknown_option(parse: Parse, name: str, hint: str) -> None:
    said = refused(parse, {"topic": "a", name: "hush"})
    assert said.startswith(f"there is no option {name}; {hint}")
    assert "hush" not in said


@each("name", ["path", "paths", "PATH"])
@each("parse", PARSERS)
def test_path(parse: Parse, name: str) -> None:
    said = refused(parse, {name: "events"})
    assert said.startswith("topics have no path: name the topic with option topic")


@each("name", ["provider", "option.servers"])
@each("parse", PARSERS)
def test_table_of_the_catalog(parse: Parse, name: str) -> None:
    said = refused(parse, {name: "lance"})
    assert "with CREATE TEMPORARY VIEW" in said


@each("name", WRITE_ONLY)
@each("parse", [lists_topics, parse_read_options, parse_stream_options])
def test_option_of_writes_in_a_read(parse: Parse, name: str) -> None:
    said = refused(parse, {"topic": "a", name: GOOD[name]})
    assert said == f"option {name} is for writes: leave it out of this read"


@each("name", READ_ONLY)
@each("parse", [parse_write_options, parse_stream_write_options])
def test_option_of_reads_in_a_write(parse: Parse, name: str) -> None:
    said = refused(parse, {"topic": "a", name: GOOD[name]})
    assert said == f"option {name} is for reads: leave it out of this write"


@pytest.mark.parametrize(
    "name", ["endingOffsets", "endingTimestamp", "metadata", "pushFilters"]
)
def test_option_of_batches_in_a_stream(name: str) -> None:
    said = refused(parse_stream_options, {"topic": "a", name: GOOD[name]})
    assert said == f"option {name} is for batch reads: leave it out of this stream"


@pytest.mark.parametrize("name", ["txnAppId", "txnVersion"])
def test_transaction_in_a_stream(name: str) -> None:
    said = refused(parse_stream_write_options, {"topic": "a", name: GOOD[name]})
    assert said == (
        f"option {name} is for batch writes: leave it out of this stream, whose query "
        "id and batch id are used instead"
    )


@pytest.mark.parametrize(
    "name", ["maxBytesPerTrigger", "maxRecordsPerTrigger", "consumerGroup"]
)
def test_option_of_streams_in_a_batch(name: str) -> None:
    said = refused(parse_read_options, {"topic": "a", name: GOOD[name]})
    assert said == f"option {name} is for streams: leave it out of this read"


def test_columns_are_known_before_the_kind_of_read() -> None:
    assert lists_topics({"metadata": "topics"})
    assert not lists_topics({"topic": "a", "maxBytesPerTrigger": "1m"})
    assert not lists_topics({"topic": "a", "endingOffsets": "latest"})
    assert refused(lists_topics, {}).startswith("no topic to read: name one with")


def test_options_of_both() -> None:
    said = refused(check_options, {"createTopic": "true", "splitting": "none"})
    assert said == (
        "option splitting is for reads and createTopic for writes: leave out one of "
        "them"
    )


@each("name", [*READ_ONLY, *WRITE_ONLY])
def test_check_takes_options_of_either(name: str) -> None:
    txn = {"txnAppId": "job", "txnVersion": "0"} if name.startswith("txn") else {}
    check_options({**txn, name: GOOD[name]})


def test_read_without_a_topic() -> None:
    check_options({})
    for parse in (parse_read_options, parse_stream_options):
        said = refused(parse, {"servers": "a:1"})
        assert said.startswith("no topic to read: name one with option topic, several")


def test_write_to_several_topics() -> None:
    check_options({"topic": "a,b"})
    for parse in (parse_write_options, parse_stream_write_options):
        said = refused(parse, {"topic": "a,b"})
        assert said.startswith("option topic names 2 topics, a write takes one: name")


# Secrets.

SECRET = "hush-hush"


@pytest.mark.parametrize("parse", [parse_read_options, parse_write_options])
def test_secrets_are_not_shown(parse: Parse) -> None:
    given = dict.fromkeys(("tlsCert", "tlsKey", "authToken"), SECRET)
    made = parse({"topic": "a", "tls": "true", **given})
    assert (made.client.auth_token, made.client.tls_key) == (SECRET, SECRET)
    assert SECRET not in f"{made!r} {made} {made.client!r}"


@each(
    "wrong",
    [
        {"authTokens": SECRET},
        {"tlsCert": SECRET, "tlsKey": SECRET},
        {"tls": "true", "tlsKey": SECRET},
        {"authToken": SECRET, "splitting": "x"},
        {"authToken": SECRET, "createTopic": "true", "splitting": "auto"},
    ],
)
@each("parse", PARSERS)
def test_secrets_are_in_no_error(parse: Parse, wrong: dict[str, str]) -> None:
    with pytest.raises(OptionError) as told:
        parse({"topic": "a", **wrong})
    assert SECRET not in "".join(traceback.format_exception(told.value))
