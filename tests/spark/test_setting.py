"""The table of options."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lance_spark.client import ClientConfig
from lance_spark.client.lwp.reader import FETCH_BYTES_DEFAULT
from lance_spark.client.lwp.writer import WriterOptions
from lance_spark.errors import OptionError
from lance_spark.spark.bound import EARLIEST, LATEST
from lance_spark.spark.setting import (
    OPTIONS,
    Option,
    Scope,
    Values,
    render_options,
)
from tests.each import each

BY_NAME = {option.name: option for option in OPTIONS}

# The table of the design.
DEFAULTS: dict[str, Any] = {
    "servers": "127.0.0.1:1992",
    "topic": None,
    "topicPattern": None,
    "startingOffsets": EARLIEST,
    "endingOffsets": LATEST,
    "startingTimestamp": None,
    "endingTimestamp": None,
    "failOnDataLoss": True,
    "minPartitions": None,
    "maxPartitionBytes": 64 * 1024**2,
    "splitting": "auto",
    "fetchBytes": 4 * 1024**2,
    "pushFilters": False,
    "onBadRecord": "fail",
    "metadata": None,
    "maxBytesPerTrigger": None,
    "maxRecordsPerTrigger": None,
    "consumerGroup": None,
    "createTopic": True,
    "allowNullRecords": False,
    "recordType": 1,
    "compression": "none",
    "batchBytes": 1024**2,
    "maxInFlight": 8,
    "delivery": "auto",
    "txnAppId": None,
    "txnVersion": None,
    "checksum": "crc32c",
    "tls": False,
    "tlsCa": None,
    "tlsCert": None,
    "tlsKey": None,
    "tlsServerName": None,
    "authToken": None,
    "connectTimeout": 10,
    "requestTimeout": 30,
    "retryTimeout": 120,
    "dialect": "binary",
    "tenant": 1,
    "streamId": None,
    "wire": "v5",
    "isolation": "read_uncommitted",
    "maxPartitionRecords": 500_000,
    "partition": None,
    "partitions": 1,
}


def test_defaults() -> None:
    assert {option.name: option.make_default() for option in OPTIONS} == DEFAULTS


def test_defaults_of_streams() -> None:
    made = {option.name: option.make_default(is_stream=True) for option in OPTIONS}
    assert made == {**DEFAULTS, "startingOffsets": LATEST}
    assert Values({})["startingOffsets"] == EARLIEST
    values = Values({"topic": ("a",)}, is_stream=True)
    assert values["startingOffsets"] == LATEST and "startingOffsets" not in values
    assert (values["topic"], values["fetchBytes"]) == (("a",), DEFAULTS["fetchBytes"])


def test_defaults_are_those_of_the_client() -> None:
    client, writer = ClientConfig(), WriterOptions()
    assert DEFAULTS["servers"] == client.servers
    assert DEFAULTS["checksum"] == client.checksum
    assert DEFAULTS["connectTimeout"] == client.connect_timeout_s
    assert DEFAULTS["requestTimeout"] == client.request_timeout_s
    assert DEFAULTS["retryTimeout"] == client.retry_timeout_s
    assert DEFAULTS["batchBytes"] == writer.batch_bytes
    assert DEFAULTS["maxInFlight"] == writer.max_in_flight
    assert DEFAULTS["recordType"] == writer.record_type
    assert DEFAULTS["fetchBytes"] == FETCH_BYTES_DEFAULT


def test_names_differ_in_any_case() -> None:
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


def test_secrets_are_known() -> None:
    secret = {option.name for option in OPTIONS if option.secret}
    assert secret == {"tlsCert", "tlsKey", "authToken"}


@each("option", OPTIONS, ids=lambda option: option.name)
def test_sentence_fits_a_table(option: Option) -> None:
    assert option.sentence.endswith(".")
    assert "|" not in option.sentence and "\n" not in option.sentence
    # Names of other options in it are names that there are.
    for name in re.findall(r"`([a-z]+[A-Z]\w*)`", option.sentence):
        assert name in BY_NAME or name == "foreachBatch"


@each("option", OPTIONS, ids=lambda option: option.name)
@each("value", [None, 7, b"x"])
def test_value_that_is_no_text(option: Option, value: object) -> None:
    with pytest.raises(OptionError, match=f"^option {option.name} is not a text: give"):
        option.read(value)


def test_error_names_the_option() -> None:
    with pytest.raises(OptionError, match=r"^option fetchBytes: 'x' is not a size"):
        BY_NAME["fetchBytes"].read("x")


@pytest.mark.parametrize("version", ["-1", str(2**64 - 1), str(2**63)])
def test_a_version_out_of_range(version: str) -> None:
    with pytest.raises(OptionError, match=r"^option txnVersion: .* is out of range: g"):
        BY_NAME["txnVersion"].read(version)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("maxBytesPerTrigger", "0"),
        ("maxBytesPerTrigger", "1025g"),
        ("maxRecordsPerTrigger", "0"),
        ("maxRecordsPerTrigger", str(2**63)),
    ],
)
def test_a_limit_out_of_range(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"^option {name}: .* is out of range: g"):
        BY_NAME[name].read(text)


def test_limits_at_their_ends() -> None:
    bytes_, records = BY_NAME["maxBytesPerTrigger"], BY_NAME["maxRecordsPerTrigger"]
    assert (bytes_.read("1"), bytes_.read("1024g")) == (1, 2**40)
    assert (records.read("1"), records.read(str(2**63 - 1))) == (1, 2**63 - 1)


def test_scopes() -> None:
    assert Scope.ALL == Scope.READ | Scope.WRITE
    assert not Scope.READ & Scope.WRITE
    batch_only = {
        option.name
        for option in OPTIONS
        if not option.scope & (Scope.STREAM_READ | Scope.STREAM_WRITE)
    }
    assert batch_only == {
        *("endingOffsets", "endingTimestamp", "pushFilters", "metadata"),
        *("txnAppId", "txnVersion"),
    }
    stream_only = {
        option.name
        for option in OPTIONS
        if not option.scope & (Scope.BATCH_READ | Scope.BATCH_WRITE)
    }
    assert stream_only == {
        *("maxBytesPerTrigger", "maxRecordsPerTrigger", "consumerGroup")
    }


def test_tables_hold_each_option_once() -> None:
    scopes = (Scope.ALL, Scope.READ, Scope.STREAM_READ, Scope.WRITE)
    tables = [render_options(scope) for scope in scopes]
    names = [name for t in tables for name in re.findall(r"^\| `(\w+)` ", t, re.M)]
    assert names == [option.name for option in OPTIONS]
    assert {"servers", "topic"} <= set(re.findall(r"^\| `(\w+)` ", tables[0], re.M))


def test_table_is_markdown() -> None:
    head, rule, *rows = render_options(Scope.WRITE).splitlines()
    assert head == "| option | default | formats | meaning |"
    assert rule == "|---|---|---|---|"
    assert rows[0] == (
        "| `createTopic` | `true` | all | Create a topic that is missing; `false` "
        "fails instead. Kimberlite can't tell whether one is missing: there `false` "
        "needs `streamId`. |"
    )
    assert next(row for row in rows if "txnAppId" in row).startswith(
        "| `txnAppId` | \N{EN DASH} | lance | "
    )


def test_table_shows_both_defaults() -> None:
    row = next(r for r in render_options(Scope.READ).splitlines() if "startingOf" in r)
    assert row.startswith(
        "| `startingOffsets` | `earliest` (batch), `latest` (stream) | "
    )
