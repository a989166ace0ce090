"""What the tests of options share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lance_spark.errors import OptionError
from lance_spark.spark.options import (
    ReadOptions,
    WriteOptions,
    check_options,
    lists_topics,
    parse_read_options,
    parse_write_options,
)

Parse = Callable[[dict[str, str]], Any]


def parse_stream_options(options: dict[str, str]) -> ReadOptions:
    """Read the options of a streaming read."""
    return parse_read_options(options, is_stream=True)


def parse_stream_write_options(options: dict[str, str]) -> WriteOptions:
    """Read the options of a streaming write."""
    return parse_write_options(options, is_stream=True)


# What options of a read go through, and those of a write.
READ_PARSERS: list[Parse] = [check_options, lists_topics, parse_read_options]
WRITE_PARSERS: list[Parse] = [check_options, parse_write_options]
STREAM_PARSERS: list[Parse] = [parse_stream_options, parse_stream_write_options]
PARSERS: list[Parse] = [
    check_options,
    lists_topics,
    parse_read_options,
    parse_write_options,
    *STREAM_PARSERS,
]

# Of each option of `lance` a value that can be used.
GOOD = {
    "servers": "a:1,b:2",
    "topic": "a",
    "topicPattern": "a.*",
    "startingOffsets": '{"a": 1}',
    "endingOffsets": '{"a": 9}',
    "startingTimestamp": "2024-05-01",
    "endingTimestamp": "1714521600000",
    "failOnDataLoss": "false",
    "minPartitions": "3",
    "maxPartitionBytes": "1k",
    "splitting": "probe",
    "fetchBytes": "64k",
    "pushFilters": "true",
    "onBadRecord": "skip",
    "metadata": "topics",
    "maxBytesPerTrigger": "1m",
    "maxRecordsPerTrigger": "1000",
    "consumerGroup": "readers",
    "createTopic": "false",
    "allowNullRecords": "true",
    "recordType": "json",
    "compression": "lz4",
    "batchBytes": "2m",
    "maxInFlight": "1",
    "delivery": "exactly-once",
    "txnAppId": "job",
    "txnVersion": "0",
    "checksum": "auto",
    "tls": "true",
    "tlsCa": "ca.pem",
    "tlsCert": "cert.pem",
    "tlsKey": "key.pem",
    "tlsServerName": "broker",
    "authToken": "sesame",
    "connectTimeout": "1s",
    "requestTimeout": "500ms",
    "retryTimeout": "1h",
}


def refused(parse: Parse, given: dict[str, str]) -> str:
    """Return the text of the error that options give."""
    with pytest.raises(OptionError) as told:
        parse(given)
    return str(told.value)
