"""The options of reads and writes: values, defaults, mistakes, secrets."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

import pytest

from lance_spark.client import ClientConfig
from lance_spark.errors import OptionError
from lance_spark.spark.bound import AtOffsets, AtTime, Earliest, Latest
from lance_spark.spark.options import (
    OPTIONS,
    ReadOptions,
    Scope,
    WriteOptions,
    check_options,
    parse_read_options,
    parse_write_options,
)
from tests.spark.given import GOOD, PARSERS, Parse, refused

READ_ONLY = [option.name for option in OPTIONS if not option.scope & Scope.WRITE]
WRITE_ONLY = [option.name for option in OPTIONS if not option.scope & Scope.READ]

# Of each option a value that can't be used.
BAD = {
    **dict.fromkeys(("tlsCa", "tlsCert", "tlsKey", "tlsServerName", "authToken"), ""),
    **dict.fromkeys(("connectTimeout", "requestTimeout", "retryTimeout"), "30"),
    **dict.fromkeys(("startingOffsets", "endingOffsets"), "soon"),
    **dict.fromkeys(("startingTimestamp", "endingTimestamp"), "soon"),
    **dict.fromkeys(("failOnDataLoss", "createTopic", "tls"), "maybe"),
    **dict.fromkeys(("fetchBytes", "batchBytes", "maxPartitionBytes"), "0"),
    **dict.fromkeys(("splitting", "onBadRecord", "metadata", "delivery"), "x"),
    **dict.fromkeys(("recordType", "compression", "checksum"), "x"),
    "servers": "a:x",
    "topic": "a,,b",
    "topicPattern": "(",
    "minPartitions": "0",
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
        start=Earliest(),
        end=Latest(),
        fail_on_data_loss=True,
        min_partitions=None,
        max_partition_bytes=None,
        splitting="auto",
        fetch_bytes=4 * 1024**2,
        on_bad_record="fail",
        metadata=False,
    )


def test_write_defaults() -> None:
    assert parse_write_options({}) == WriteOptions(
        client=ClientConfig(),
        topic=None,
        create_topic=True,
        record_type=1,
        compression="none",
        batch_bytes=1024**2,
        max_in_flight=8,
        delivery="auto",
        txn_app_id=None,
        txn_version=None,
    )


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("failOnDataLoss", "fail_on_data_loss", False),
        ("minPartitions", "min_partitions", 3),
        ("maxPartitionBytes", "max_partition_bytes", 1024),
        ("splitting", "splitting", "probe"),
        ("fetchBytes", "fetch_bytes", 65536),
        ("onBadRecord", "on_bad_record", "skip"),
        ("startingOffsets", "start", AtOffsets((("a", 1),))),
        ("endingOffsets", "end", AtOffsets((("a", 9),))),
        ("startingTimestamp", "start", AtTime(1_714_521_600_000_000_000)),
        ("endingTimestamp", "end", AtTime(1_714_521_600_000_000_000)),
        ("metadata", "metadata", True),
    ],
)
def test_read_value(name: str, field: str, value: Any) -> None:
    assert getattr(parse_read_options({"topic": "a"}), field) != value
    assert getattr(parse_read_options({"topic": "a", name: GOOD[name]}), field) == value


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("topic", "topic", "a"),
        ("createTopic", "create_topic", False),
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
    for made in (parse_read_options({"topic": "a"}), parse_write_options({})):
        assert pickle.loads(pickle.dumps(made)) == made
        assert len({made, made}) == 1


# Mistakes.


@pytest.mark.parametrize("name", [option.name for option in OPTIONS])
def test_bad_value(name: str) -> None:
    own = parse_write_options if name in WRITE_ONLY else parse_read_options
    for parse in (check_options, own):
        assert refused(parse, {name: BAD[name]}).startswith(f"option {name}: ")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("topik", "did you mean topic?"),
        ("topics", "did you mean topic?"),
        ("startingOffset", "did you mean startingOffsets?"),
        ("MinPartition", "did you mean minPartitions?"),
        ("tls_ca", "did you mean tlsCa?"),
        ("subscribe", "what Kafka's source calls so is topic here"),
        ("subscribePattern", "what Kafka's source calls so is topicPattern here"),
        ("kafka.bootstrap.servers", "what Kafka's source calls so is servers here"),
        ("zzz", "there are authToken, batchBytes, checksum, "),
    ],
)
@pytest.mark.parametrize("parse", PARSERS)
def test_unknown_option(parse: Parse, name: str, hint: str) -> None:
    said = refused(parse, {"topic": "a", name: "hush"})
    assert said.startswith(f"there is no option {name}; {hint}")
    assert "hush" not in said


@pytest.mark.parametrize("name", ["path", "paths", "PATH"])
@pytest.mark.parametrize("parse", PARSERS)
def test_path(parse: Parse, name: str) -> None:
    said = refused(parse, {name: "events"})
    assert said.startswith("topics have no path: name the topic with option topic")


@pytest.mark.parametrize("name", ["provider", "option.servers"])
@pytest.mark.parametrize("parse", PARSERS)
def test_table_of_the_catalog(parse: Parse, name: str) -> None:
    said = refused(parse, {name: "lance"})
    assert "with CREATE TEMPORARY VIEW" in said


@pytest.mark.parametrize("name", WRITE_ONLY)
def test_option_of_writes_in_a_read(name: str) -> None:
    said = refused(parse_read_options, {"topic": "a", name: GOOD[name]})
    assert said == f"option {name} is for writes: leave it out of this read"


@pytest.mark.parametrize("name", READ_ONLY)
def test_option_of_reads_in_a_write(name: str) -> None:
    said = refused(parse_write_options, {"topic": "a", name: GOOD[name]})
    assert said == f"option {name} is for reads: leave it out of this write"


def test_options_of_both() -> None:
    said = refused(check_options, {"createTopic": "true", "splitting": "none"})
    assert said == (
        "option splitting is for reads and createTopic for writes: leave out the one "
        "or the other"
    )


@pytest.mark.parametrize("name", [*READ_ONLY, *WRITE_ONLY])
def test_check_takes_options_of_either(name: str) -> None:
    txn = {"txnAppId": "job", "txnVersion": "0"} if name.startswith("txn") else {}
    check_options({**txn, name: GOOD[name]})


def test_read_without_a_topic() -> None:
    check_options({})
    said = refused(parse_read_options, {"servers": "a:1"})
    assert said.startswith("no topic to read: name one with option topic, several")


def test_write_to_several_topics() -> None:
    check_options({"topic": "a,b"})
    said = refused(parse_write_options, {"topic": "a,b"})
    assert said.startswith("option topic names 2 topics, a write takes one: name one")


# Secrets.

SECRET = "hush-hush"


@pytest.mark.parametrize("parse", [parse_read_options, parse_write_options])
def test_secrets_are_not_shown(parse: Parse) -> None:
    given = dict.fromkeys(("tlsCert", "tlsKey", "authToken"), SECRET)
    made = parse({"topic": "a", "tls": "true", **given})
    assert (made.client.auth_token, made.client.tls_key) == (SECRET, SECRET)
    assert SECRET not in f"{made!r} {made} {made.client!r}"


@pytest.mark.parametrize(
    "wrong",
    [
        {"authTokens": SECRET},
        {"tlsCert": SECRET, "tlsKey": SECRET},
        {"tls": "true", "tlsKey": SECRET},
        {"authToken": SECRET, "splitting": "x"},
        {"authToken": SECRET, "createTopic": "true", "splitting": "auto"},
    ],
)
@pytest.mark.parametrize("parse", PARSERS)
def test_secrets_are_in_no_error(parse: Parse, wrong: dict[str, str]) -> None:
    with pytest.raises(OptionError) as told:
        parse({"topic": "a", **wrong})
    assert SECRET not in "".join(traceback.format_exception(told.value))
