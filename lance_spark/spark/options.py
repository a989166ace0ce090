"""The options of a read or write: names and values in, frozen settings out.

Each option by itself is in the table of `setting`, which of them go together is
`conflict`. Errors say which option, what is
wrong and what to change; values of secret options are in none of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lance_spark.client import ClientConfig
from lance_spark.errors import OptionError
from lance_spark.spark.bound import Bound
from lance_spark.spark.conflict import check_conflicts, pick_end, pick_start
from lance_spark.spark.setting import (
    BY_NAME,
    OPTIONS,
    Option,
    Scope,
    Values,
    render_options,
)

__all__ = [
    "OPTIONS",
    "Option",
    "ReadOptions",
    "Scope",
    "WriteOptions",
    "check_options",
    "parse_read_options",
    "parse_write_options",
    "render_options",
]

# Spark gives names in lower case.
_BY_KEY = {option.name.lower(): option for option in OPTIONS}

# What people type who know the Kafka source, by what they mean.
_KAFKA = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "assign": "topic",
    "maxrecordsperpartition": "maxPartitionBytes",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
}

# Options of the client, by the name of its setting.
_CLIENT = {
    "servers": "servers",
    "checksum": "checksum",
    "tls": "tls",
    "tls_ca": "tlsCa",
    "tls_cert": "tlsCert",
    "tls_key": "tlsKey",
    "tls_server_name": "tlsServerName",
    "auth_token": "authToken",
    "connect_timeout_s": "connectTimeout",
    "request_timeout_s": "requestTimeout",
    "retry_timeout_s": "retryTimeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a read was asked for; made by `parse_read_options`.

    Args:
        client: how to reach the servers.
        topics: the topics that are named; none with a pattern.
        topic_pattern: what names have to match as a whole.
        start: where to start.
        end: where to end.
        fail_on_data_loss: fail if records that were asked for are gone.
        min_partitions: how many partitions there are at least.
        max_partition_bytes: how large a partition is at most; None if nobody says.
        splitting: how record boundaries are found.
        fetch_bytes: how much is fetched at once.
        on_bad_record: what a malformed record does.
        metadata: list the topics instead of their records.
    """

    client: ClientConfig
    topics: tuple[str, ...]
    topic_pattern: str | None
    start: Bound
    end: Bound
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partition_bytes: int | None
    splitting: Literal["auto", "locate", "probe", "none"]
    fetch_bytes: int
    on_bad_record: Literal["fail", "skip"]
    metadata: bool

    def reads(self, topic: str) -> bool:
        """Tell whether a topic is among those that are read."""
        if self.topic_pattern is not None:
            return re.fullmatch(self.topic_pattern, topic) is not None
        return topic in self.topics or not self.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What a write was asked for; made by `parse_write_options`.

    Args:
        client: how to reach the servers.
        topic: where all rows go; None if a column says it row by row.
        create_topic: create what is missing.
        record_type: the type of values without key and timestamp.
        compression: `none` or `lz4`.
        batch_bytes: how large a batch may get.
        max_in_flight: how many batches may be not acknowledged.
        delivery: what is promised.
        txn_app_id: who writes, given by the user.
        txn_version: which write of theirs it is.
    """

    client: ClientConfig
    topic: str | None
    create_topic: bool
    record_type: int
    compression: str
    batch_bytes: int
    max_in_flight: int
    delivery: Literal["auto", "exactly-once", "at-least-once"]
    txn_app_id: str | None
    txn_version: int | None


def check_options(options: Mapping[str, str]) -> None:
    """Check what can be checked before it is known whether they read or write.

    Raises:
        OptionError: a name is unknown, a value can't be used, or two contradict.
    """
    _read_values(options)


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Read the options of a batch read.

    Raises:
        OptionError: a name is unknown or is for writes, a value can't be used, two
            contradict, or no topic is named.
    """
    values = _read_values(options, Scope.BATCH_READ)
    has_topic = "topic" in values or "topicPattern" in values
    if not has_topic and "metadata" not in values:
        raise OptionError(
            "no topic to read: name one with option topic, several as in "
            "events,clicks, or give option topicPattern"
        )
    return ReadOptions(
        client=_make_client(values),
        topics=values["topic"] or (),
        topic_pattern=values["topicPattern"],
        start=pick_start(values),
        end=pick_end(values),
        fail_on_data_loss=values["failOnDataLoss"],
        min_partitions=values["minPartitions"],
        max_partition_bytes=values.get("maxPartitionBytes"),
        splitting=values["splitting"],
        fetch_bytes=values["fetchBytes"],
        on_bad_record=values["onBadRecord"],
        metadata=values["metadata"] is not None,
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of a batch write.

    Raises:
        OptionError: a name is unknown or is for reads, a value can't be used, two
            contradict, or several topics are named.
    """
    values = _read_values(options, Scope.BATCH_WRITE)
    topics = values["topic"] or (None,)
    if len(topics) > 1:
        raise OptionError(
            f"option topic names {len(topics)} topics, a write takes one: name one, or "
            "leave the option out and give each row its topic in a column topic"
        )
    return WriteOptions(
        client=_make_client(values),
        topic=topics[0],
        create_topic=values["createTopic"],
        record_type=values["recordType"],
        compression=values["compression"],
        batch_bytes=values["batchBytes"],
        max_in_flight=values["maxInFlight"],
        delivery=values["delivery"],
        txn_app_id=values["txnAppId"],
        txn_version=values["txnVersion"],
    )


def _make_client(values: Values) -> ClientConfig:
    return ClientConfig(**{field: values[name] for field, name in _CLIENT.items()})


# Reading the names and values, one by one.


def _read_values(options: Mapping[str, str], scope: Scope | None = None) -> Values:
    named = {_find_option(key): text for key, text in options.items()}
    _check_scope(list(named), scope)
    values = Values({option.name: option.read(named[option]) for option in named})
    check_conflicts(values)
    return values


def _find_option(key: str) -> Option:
    name = key.lower()
    if name in ("path", "paths"):
        raise OptionError(
            "topics have no path: name the topic with option topic, and call load() "
            "or save() without an argument"
        )
    if name == "provider" or name.startswith("option."):
        # This is what Spark adds for `CREATE TABLE`.
        raise OptionError(
            "a topic can't be a table of the catalog: make a view of it, with CREATE "
            "TEMPORARY VIEW … USING lance OPTIONS (…)"
        )
    found = _BY_KEY.get(name)
    if found is None:
        raise OptionError(f"there is no option {key}; {_suggest(name)}")
    return found


def _suggest(name: str) -> str:
    if name in _KAFKA:
        return f"what Kafka's source calls so is {_KAFKA[name]} here"
    near = difflib.get_close_matches(name, _BY_KEY, n=1)
    if near:
        return f"did you mean {_BY_KEY[near[0]].name}?"
    return f"there are {', '.join(sorted(BY_NAME, key=str.lower))}"


def _check_scope(given: list[Option], scope: Scope | None) -> None:
    reads = [option.name for option in given if not option.scope & Scope.WRITE]
    writes = [option.name for option in given if not option.scope & Scope.READ]
    if scope is None:
        if reads and writes:
            raise OptionError(
                f"option {reads[0]} is for reads and {writes[0]} for writes: leave "
                "out the one or the other"
            )
        return
    is_read = bool(scope & Scope.READ)
    wrong = writes if is_read else reads
    if wrong:
        theirs, ours = ("writes", "read") if is_read else ("reads", "write")
        raise OptionError(
            f"option {wrong[0]} is for {theirs}: leave it out of this {ours}"
        )
