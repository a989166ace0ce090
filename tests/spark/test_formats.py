"""The formats beside `lance`: their options, and what is refused before a server."""

from __future__ import annotations

from typing import Any

import pytest

from lance_spark.errors import OptionError
from lance_spark.spark.options import (
    check_options,
    parse_read_options,
    parse_write_options,
)
from lance_spark.spark.setting import OPTIONS
from lance_spark.spark.source import SOURCES
from tests.each import each
from tests.spark.given import GOOD
from tests.spark.reading import make_schema

FORMATS = ("rustlog", "kimberlite", "fluvio", "tank")
# The options that a format has and `lance` does not: a good value, and a bad one.
THEIRS = {
    "dialect": ("json", "xml"),
    "maxPartitionRecords": ("1000", "1m"),
    "partition": ("2", "-1"),
    "partitions": ("3", "0"),
    "tenant": ("42", "-1"),
    "streamId": ("18446744073709551615", "18446744073709551616"),
    "wire": ("v1-Bincode", "v6"),
    "isolation": ("read_committed", "serializable"),
}
# What `lance` has and no other format.
LANCE = {
    *("checksum", "splitting", "maxPartitionBytes", "maxBytesPerTrigger"),
    *("recordType", "onBadRecord", "txnAppId", "txnVersion", "startingTimestamp"),
    *("endingTimestamp", "consumerGroup", "allowNullRecords"),
}


def refused(given: dict[str, str], protocol: str) -> str:
    with pytest.raises(OptionError) as told:
        check_options(given, protocol)
    return str(told.value)


def test_every_option_says_for_which_formats_it_is() -> None:
    formats = {option.name: option.formats for option in OPTIONS}
    assert {name for name, given in formats.items() if given == ("lance",)} == LANCE
    assert {
        name for name, given in formats.items() if "lance" not in (given or "lance")
    } == THEIRS.keys()
    assert formats["compression"] == ("lance", "fluvio", "tank")
    assert formats["authToken"] == ("lance", "kimberlite")
    assert formats["topicPattern"] == ("lance", "rustlog", "fluvio", "tank")
    assert formats["dialect"] == ("rustlog",)
    known = {source.protocol for source in SOURCES}
    assert all(known >= {*given} for given in formats.values() if given)


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_options_that_lance_has_not(name: str) -> None:
    option = next(option for option in OPTIONS if option.name == name)
    good, bad = THEIRS[name]
    for protocol in option.formats or ():
        check_options({name: good}, protocol)
        assert refused({name: bad}, protocol).startswith(f"option {name}: ")
    others = {"lance", *FORMATS} - {*(option.formats or ())}
    for protocol in others:
        names = option.formats or ()
        plural = "s" if len(names) > 1 else ""
        known = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        said = f"option {name} is for format{plural} {known}, not for"
        assert refused({name: good}, protocol) == f"{said} {protocol}: leave it out"


@each("name", sorted(LANCE))
@each("protocol", FORMATS)
def test_options_that_only_lance_has(name: str, protocol: str) -> None:
    said = refused({name: GOOD[name]}, protocol)
    assert said.startswith(f"option {name} is for format lance, not for {protocol}")
    needs = {
        "txnAppId": "staged writes",
        "startingTimestamp": "index of times",
    }
    if name in needs:
        assert said.endswith(f", whose servers have no {needs[name]}: leave it out")


def test_options_that_some_have() -> None:
    said = "option topicPattern is for formats lance, rustlog, fluvio and tank, not for"
    assert refused({"topicPattern": "a.*"}, "kimberlite") == (
        f"{said} kimberlite, whose servers have no list of streams: leave it out"
    )
    for protocol in ("rustlog", "fluvio", "tank"):
        said = f"not for {protocol}, whose servers have no tokens: leave it out"
        assert refused({"authToken": "sesame"}, protocol).endswith(said)


def test_streams_of_kimberlite() -> None:
    given = {"tenant": "42", "wire": "v3", "authToken": "sesame"}
    read = parse_read_options({"topic": "a", **given}, "kimberlite")
    client: Any = read.client
    assert (client.tenant, client.wire, client.stream_id) == (42, "v3", None)
    assert [str(each) for each in client.addresses] == ["127.0.0.1:5432"]
    assert client.auth_token == "sesame" and "sesame" not in repr(read)
    # The stream is called as the user says, or by its id.
    for names, topics in (({}, ("7",)), ({"topic": "a"}, ("a",))):
        read = parse_read_options({"streamId": "7", **names}, "kimberlite")
        assert (read.topics, read.client.stream_id) == (topics, 7)  # type: ignore[attr-defined]
        assert (
            parse_write_options({"streamId": "7", **names}, "kimberlite").topic
            == (topics[0])
        )
    offsets = parse_read_options(
        {"streamId": "7", "startingOffsets": '{"7": 3}'}, "kimberlite"
    )
    assert offsets.topics == ("7",)


@each(
    ("given", "said"),
    [
        ({}, "no topic to read: name one with option topic or streamId"),
        (
            {"metadata": "topics"},
            "no topic to read: name one with option topic or streamId",
        ),
        (
            {"topic": "a,b", "streamId": "7"},
            "option streamId is one stream, and option topic has 2 names for it",
        ),
        (
            {"topic": "a", "startingOffsets": '{"a": {"0": 3}}'},
            "option startingOffsets: topic 'a' has no partitions",
        ),
        (
            {"streamId": "7", "startingOffsets": '{"a": 3}'},
            "option startingOffsets names topic 'a', which option topic does not",
        ),
    ],
)
def test_what_kimberlite_can_not_read(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_read_options(given, "kimberlite")


def test_a_stream_of_kimberlite_that_may_not_be_created() -> None:
    said = refused({"topic": "a", "createTopic": "false"}, "kimberlite")
    assert said.startswith("option createTopic: kimberlite finds a stream by its name")
    check_options({"streamId": "7", "createTopic": "false"}, "kimberlite")


def test_isolation_of_fluvio() -> None:
    read = parse_read_options({"topic": "a", "isolation": "read_committed"}, "fluvio")
    client: Any = read.client
    assert client.isolation == "read_committed"
    assert [str(each) for each in client.addresses] == ["127.0.0.1:9003"]
    default: Any = parse_read_options({"topic": "a"}, "fluvio").client
    assert default.isolation == "read_uncommitted"


def test_values_arrive() -> None:
    read = parse_read_options({"topic": "a", "maxPartitionRecords": "7"}, "tank")
    assert read.max_partition_size == 7
    assert read.client.servers == "127.0.0.1"
    assert [str(each) for each in read.client.addresses] == ["127.0.0.1:11011"]
    given = {"dialect": "json", "partition": "2", "partitions": "3"}
    written = parse_write_options(given, "rustlog")
    client: Any = written.client
    assert (written.partition, written.partitions, client.dialect) == (2, 3, "json")
    assert parse_write_options({}, "tank").partitions == 1


@pytest.mark.parametrize(
    ("protocol", "given", "said"),
    [
        ("tank", "lz4", "tank has no 'lz4': give none or snappy"),
        ("lance", "snappy", "lance has no 'snappy': give none or lz4"),
        ("lance", "zstd", "lance has no 'zstd': give none or lz4"),
    ],
)
def test_compression_of_another_format(protocol: str, given: str, said: str) -> None:
    assert refused({"compression": given}, protocol) == f"option compression: {said}"
    check_options({"compression": "snappy"}, "tank")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        check_options({"compression": codec}, "fluvio")


def test_a_partition_that_the_new_topic_would_not_have() -> None:
    said = refused({"partition": "3", "partitions": "3"}, "tank")
    assert said.startswith("option partition is 3, and partitions 3: ")


@pytest.mark.parametrize("source", SOURCES[1:])
def test_what_needs_stages_is_refused_before_a_server_is_asked(source: Any) -> None:
    protocol = source.protocol
    with pytest.raises(OptionError, match=f"{protocol} has no staged writes"):
        source({"topic": "a", "delivery": "exactly-once"})
    schema = make_schema("value string")
    nowhere = {"servers": "127.0.0.1:1", "topic": "a"}
    with pytest.raises(OptionError, match=r"mode\(\"overwrite\"\) is not possible"):
        source(nowhere).writer(schema, overwrite=True)
    with pytest.raises(OptionError, match=r"outputMode\(\"complete\"\) is not"):
        source(nowhere).streamWriter(schema, overwrite=True)
