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
from lance_spark.spark.source import SOURCES, RustLogDataSource, TankDataSource
from tests.each import each
from tests.spark.given import GOOD
from tests.spark.reading import make_schema

FORMATS = ("rustlog", "tank")
# The options that a format has and `lance` does not: a good value, and a bad one.
THEIRS = {
    "dialect": ("json", "xml"),
    "maxPartitionRecords": ("1000", "1m"),
    "partition": ("2", "-1"),
    "partitions": ("3", "0"),
}
# What `lance` has and no other format.
LANCE = {
    *("checksum", "splitting", "maxPartitionBytes", "maxBytesPerTrigger"),
    *("recordType", "onBadRecord", "txnAppId", "txnVersion", "startingTimestamp"),
    *("endingTimestamp", "consumerGroup", "authToken", "allowNullRecords"),
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
    assert formats["compression"] == ("lance", "tank")
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
        said = f"option {name} is for format{plural} {' and '.join(names)}, not for"
        assert refused({name: good}, protocol) == f"{said} {protocol}: leave it out"


@each("name", sorted(LANCE))
@each("protocol", FORMATS)
def test_options_that_only_lance_has(name: str, protocol: str) -> None:
    said = refused({name: GOOD[name]}, protocol)
    assert said.startswith(f"option {name} is for format lance, not for {protocol}")
    needs = {
        "txnAppId": "staged writes",
        "startingTimestamp": "index of times",
        "authToken": "tokens",
    }
    if name in needs:
        assert said.endswith(f", whose servers have no {needs[name]}: leave it out")


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
    ],
)
def test_compression_of_another_format(protocol: str, given: str, said: str) -> None:
    assert refused({"compression": given}, protocol) == f"option compression: {said}"
    check_options({"compression": "snappy"}, "tank")


def test_a_partition_that_the_new_topic_would_not_have() -> None:
    said = refused({"partition": "3", "partitions": "3"}, "tank")
    assert said.startswith("option partition is 3, and partitions 3: ")


@pytest.mark.parametrize("source", [RustLogDataSource, TankDataSource])
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
