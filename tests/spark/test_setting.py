"""The table of options."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lance_spark.client import ClientConfig
from lance_spark.client.reader import FETCH_BYTES_DEFAULT
from lance_spark.client.writer import WriterOptions
from lance_spark.errors import OptionError
from lance_spark.spark.bound import Earliest, Latest
from lance_spark.spark.setting import OPTIONS, Option, Scope, render_options

BY_NAME = {option.name: option for option in OPTIONS}

# The table of the design.
DEFAULTS: dict[str, Any] = {
    "servers": "127.0.0.1:1992",
    "topic": None,
    "topicPattern": None,
    "startingOffsets": Earliest(),
    "endingOffsets": Latest(),
    "startingTimestamp": None,
    "endingTimestamp": None,
    "failOnDataLoss": True,
    "minPartitions": None,
    "maxPartitionBytes": 64 * 1024**2,
    "splitting": "auto",
    "fetchBytes": 4 * 1024**2,
    "onBadRecord": "fail",
    "metadata": None,
    "createTopic": True,
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
}


def test_defaults() -> None:
    assert {option.name: option.default for option in OPTIONS} == DEFAULTS


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


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_sentence_fits_a_table(option: Option) -> None:
    assert option.sentence.endswith(".")
    assert "|" not in option.sentence and "\n" not in option.sentence
    # Names of other options in it are names that there are.
    for name in re.findall(r"`([a-z]+[A-Z]\w*)`", option.sentence):
        assert name in BY_NAME or name == "foreachBatch"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
@pytest.mark.parametrize("value", [None, 7, b"x"])
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


def test_scopes() -> None:
    assert Scope.ALL == Scope.READ | Scope.WRITE
    assert not Scope.READ & Scope.WRITE
    batch_only = {
        option.name
        for option in OPTIONS
        if not option.scope & (Scope.STREAM_READ | Scope.STREAM_WRITE)
    }
    assert batch_only == {
        *("endingOffsets", "endingTimestamp", "metadata", "txnAppId", "txnVersion")
    }


def test_tables_hold_each_option_once() -> None:
    tables = [render_options(scope) for scope in (Scope.ALL, Scope.READ, Scope.WRITE)]
    names = [name for t in tables for name in re.findall(r"^\| `(\w+)` ", t, re.M)]
    assert names == [option.name for option in OPTIONS]
    assert {"servers", "topic"} <= set(re.findall(r"^\| `(\w+)` ", tables[0], re.M))


def test_table_is_markdown() -> None:
    head, rule, *rows = render_options(Scope.WRITE).splitlines()
    assert (head, rule) == ("| option | default | meaning |", "|---|---|---|")
    assert rows[0] == (
        "| `createTopic` | `true` | Create a topic that is missing; `false` fails "
        "instead. |"
    )
    assert next(row for row in rows if "txnAppId" in row).startswith(
        "| `txnAppId` | \N{EN DASH} | "
    )
