"""The one table of options: names, parsers, defaults, who takes them, what they mean.

What is read from a text, what the docs say and what an error says come from here. Which
options go together is `conflict`. The file is as long as the table, which stays in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from lance_spark.client import COMPRESSIONS, IN_FLIGHT_MAX
from lance_spark.errors import OptionError
from lance_spark.quantity import parse_record_type, parse_size, within
from lance_spark.spark.bound import parse_bound, parse_time
from lance_spark.spark.value import (
    choice,
    parse_fetch_bytes,
    parse_flag,
    parse_integer,
    parse_pattern,
    parse_servers,
    parse_text,
    parse_timeout,
    parse_topics,
)

# Spark keeps an object on the driver and runs a task for each of them.
PARTITIONS_MAX = 100_000

# What tables show where there is nothing.
_NOT_SET = "\N{EN DASH}"


class Scope(Flag):
    """What an option is for."""

    BATCH_READ = auto()
    STREAM_READ = auto()
    BATCH_WRITE = auto()
    STREAM_WRITE = auto()
    READ = BATCH_READ | STREAM_READ
    WRITE = BATCH_WRITE | STREAM_WRITE
    ALL = READ | WRITE


@dataclass(frozen=True, slots=True)
class Option:
    """An option as users know it.

    Args:
        name: as it is shown; any case is taken.
        parse: reads a value, or raises an OptionError that need not name the option.
        default_text: the default as people would type it; None for none.
        scope: what it is for.
        sentence: what it means, in Markdown.
        secret: the value may not be shown; `parse` does not show it either.
        stream_default_text: the default in streams, if it is another there.
    """

    name: str
    parse: Callable[[str], Any]
    default_text: str | None
    scope: Scope
    sentence: str
    secret: bool = False
    stream_default_text: str | None = None

    @property
    def default(self) -> Any:
        """The value if none is given; None for none."""
        return None if self.default_text is None else self.parse(self.default_text)

    @property
    def stream_default(self) -> Any:
        """The value if none is given in a stream; None for none."""
        text = self.stream_default_text
        return self.default if text is None else self.parse(text)

    def render_default(self) -> str:
        """Return the default in Markdown; both of them, if streams have their own."""
        if self.default_text is None:
            return _NOT_SET
        if self.stream_default_text is None:
            return f"`{self.default_text}`"
        return f"`{self.default_text}` (batch), `{self.stream_default_text}` (stream)"

    def read(self, text: object) -> Any:
        """Read a given value.

        Raises:
            OptionError: it can't be used; names the option.
        """
        if not isinstance(text, str):
            raise OptionError(
                f"option {self.name} is not a text: give one, or leave the option out"
            )
        try:
            return self.parse(text)
        except OptionError as error:
            raise OptionError(f"option {self.name}: {error}") from None


# The options that both reads and writes take.
_SHARED = (
    Option(
        "servers",
        parse_servers,
        "127.0.0.1:1992",
        Scope.ALL,
        "Addresses `host:port`, separated by commas; tried in order. "
        "Redirects to the leader are followed.",
    ),
    Option(
        "topic",
        parse_topics,
        None,
        Scope.ALL,
        "Name of the topic. A read takes several, separated by commas; "
        "in a write it wins over a column `topic`.",
    ),
    Option(
        "checksum",
        choice("crc32c", "crc32", "auto"),
        "crc32c",
        Scope.ALL,
        "Of frames: `crc32c`, `crc32` (what the Rust server computes), or `auto` "
        "to try both.",
    ),
    Option(
        "tls",
        parse_flag,
        "false",
        Scope.ALL,
        "Encrypt. There is no way back to plain text once it is on.",
    ),
    Option(
        "tlsCa",
        parse_text,
        None,
        Scope.ALL,
        "Who signs the servers' certificates: a path, or the PEM text itself; "
        "the system's list if not given.",
    ),
    Option(
        "tlsCert",
        parse_text,
        None,
        Scope.ALL,
        "Our own certificate, for servers that ask for one: a path, or PEM text, "
        "which is never shown.",
        secret=True,
    ),
    Option(
        "tlsKey",
        parse_text,
        None,
        Scope.ALL,
        "Its key: a path or PEM text; not needed if `tlsCert` holds it. Never shown.",
        secret=True,
    ),
    Option(
        "tlsServerName",
        parse_text,
        None,
        Scope.ALL,
        "The name in the servers' certificates, if it is not the host.",
    ),
    Option(
        "authToken",
        parse_text,
        None,
        Scope.ALL,
        "Token for servers that ask for one. Never shown.",
        secret=True,
    ),
    Option(
        "connectTimeout",
        parse_timeout,
        "10s",
        Scope.ALL,
        "How long a connection may take up to its first answer.",
    ),
    Option(
        "requestTimeout",
        parse_timeout,
        "30s",
        Scope.ALL,
        "How long the answer to one request may take.",
    ),
    Option(
        "retryTimeout",
        parse_timeout,
        "2m",
        Scope.ALL,
        "How long one call may take with everything that is tried again.",
    ),
)

_READ = (
    Option(
        "topicPattern",
        parse_pattern,
        None,
        Scope.READ,
        "Instead of `topic`: a regular expression (Python's) that the whole name "
        "has to match.",
    ),
    Option(
        "startingOffsets",
        parse_bound,
        "earliest",
        Scope.READ,
        'Where to start: `earliest`, `latest`, or JSON as in `{"events": 4096}`, '
        "where -2 is earliest and -1 is latest.",
        stream_default_text="latest",
    ),
    Option(
        "endingOffsets",
        parse_bound,
        "latest",
        Scope.BATCH_READ,
        "Where to end, in the same forms; the record that starts there is not read.",
    ),
    Option(
        "startingTimestamp",
        parse_time,
        None,
        Scope.READ,
        "Instead of `startingOffsets`: the first record that the server appended at "
        "this time or later. ISO 8601 (UTC if it names no zone) or milliseconds since "
        "1970. Plain servers keep no times.",
    ),
    Option(
        "endingTimestamp",
        parse_time,
        None,
        Scope.BATCH_READ,
        "Instead of `endingOffsets`: end before the first record that the server "
        "appended at this time or later.",
    ),
    Option(
        "failOnDataLoss",
        parse_flag,
        "true",
        Scope.READ,
        "Fail if records that were asked for are gone; `false` warns and goes on.",
    ),
    Option(
        "minPartitions",
        within(parse_integer, "1", str(PARTITIONS_MAX)),
        None,
        Scope.READ,
        "Split into at least so many Spark partitions, as far as there are bytes.",
    ),
    Option(
        "maxPartitionBytes",
        within(parse_size, "1", "1024g"),
        "64m",
        Scope.READ,
        "How many bytes of a topic one Spark partition reads at most; unless it is "
        "given, it is more where that would make over 256 partitions.",
    ),
    Option(
        "splitting",
        choice("auto", "locate", "probe", "none"),
        "auto",
        Scope.READ,
        "How record boundaries are found: `locate` asks the server, `probe` looks at "
        "the bytes, `auto` is `locate` where the server has it and `probe` elsewhere, "
        "`none` reads each topic as one partition.",
    ),
    Option(
        "fetchBytes",
        parse_fetch_bytes,
        "4m",
        Scope.READ,
        "How many bytes one request asks for, up to `16m`.",
    ),
    Option(
        "pushFilters",
        parse_flag,
        "false",
        Scope.BATCH_READ,
        "`true` lets Spark push the filters of a query into the read, if the session "
        "has `spark.sql.python.filterPushdown.enabled`, too. Each query needs a "
        "`load()` of its own then: Spark applies the filters to all queries of one.",
    ),
    Option(
        "onBadRecord",
        choice("fail", "skip"),
        "fail",
        Scope.READ,
        "What a malformed record does: `fail` with topic and offset, or `skip` it "
        "and count.",
    ),
    Option(
        "metadata",
        choice("topics"),
        None,
        Scope.BATCH_READ,
        "`topics` gives one row per topic instead of its records; of all topics, if "
        "none is named.",
    ),
)

_STREAM_READ = (
    Option(
        "maxBytesPerTrigger",
        within(parse_size, "1", "1024g"),
        None,
        Scope.STREAM_READ,
        "How many bytes a micro-batch reads at most, of all topics together; whole "
        "records only, but at least one. Plain servers: `64m` if nobody says.",
    ),
    Option(
        "maxRecordsPerTrigger",
        within(parse_integer, "1", str(2**63 - 1)),
        None,
        Scope.STREAM_READ,
        "How many records a micro-batch reads at most, of all topics together.",
    ),
    Option(
        "consumerGroup",
        parse_text,
        None,
        Scope.STREAM_READ,
        "Tell the server under this name how far the query has come, so that other "
        "tools see it. The query itself goes by its checkpoint alone.",
    ),
)

_WRITE = (
    Option(
        "createTopic",
        parse_flag,
        "true",
        Scope.WRITE,
        "Create a topic that is missing; `false` fails instead.",
    ),
    Option(
        "recordType",
        parse_record_type,
        "raw",
        Scope.WRITE,
        "Type of values without key and timestamp: `raw`, `json`, `msgpack`, "
        "`protobuf`, `avro`, or a number from `0x80` to `0xFE`. A column `type` wins.",
    ),
    Option(
        "compression",
        choice(*COMPRESSIONS),
        "none",
        Scope.WRITE,
        "Of batches on their way: `none` or `lz4`. Plain servers take `none` alone.",
    ),
    Option(
        "batchBytes",
        within(parse_size, "1", "16m"),
        "1m",
        Scope.WRITE,
        "How large a batch may get, up to `16m`; a larger record goes alone.",
    ),
    Option(
        "maxInFlight",
        within(parse_integer, "1", str(IN_FLIGHT_MAX)),
        "8",
        Scope.WRITE,
        "How many batches may be under way and not acknowledged.",
    ),
    Option(
        "allowNullRecords",
        parse_flag,
        "false",
        Scope.WRITE,
        "Send rows without value, key and timestamp to a plain server, too. The LANCE "
        "server misreads such a record when it recovers from a crash, and loses "
        "everything behind it.",
    ),
    Option(
        "delivery",
        choice("auto", "exactly-once", "at-least-once"),
        "auto",
        Scope.WRITE,
        "`exactly-once`, `at-least-once`, or `auto`: the strongest that the server "
        "offers.",
    ),
    Option(
        "txnAppId",
        parse_text,
        None,
        Scope.BATCH_WRITE,
        "With `txnVersion`: who writes. A version that was written to the same topic "
        "before is not written again, which makes `foreachBatch` exactly-once.",
    ),
    Option(
        "txnVersion",
        within(parse_integer, "0", str(2**63 - 1)),
        None,
        Scope.BATCH_WRITE,
        "With `txnAppId`: a number that rises from one write to the next, as the id "
        "of a micro-batch does.",
    ),
)

OPTIONS: tuple[Option, ...] = (*_SHARED, *_READ, *_STREAM_READ, *_WRITE)
BY_NAME = {option.name: option for option in OPTIONS}


class Values(dict[str, Any]):
    """The values that were given, by name; what is not given reads as its default.

    Args:
        given: the values.
        is_stream: take the defaults of streams.
    """

    def __init__(self, given: Mapping[str, Any], *, is_stream: bool = False) -> None:
        super().__init__(given)
        self.is_stream = is_stream

    def __missing__(self, name: str) -> Any:
        option = BY_NAME[name]
        return option.stream_default if self.is_stream else option.default


def render_options(scope: Scope) -> str:
    """Write the Markdown table of the options that are for reads, writes, or both.

    Args:
        scope: `Scope.STREAM_READ`, `Scope.READ` and `Scope.WRITE` list what is for
            that alone, `Scope.ALL` what both reads and writes take.
    """
    shown = [option for option in OPTIONS if _narrowest(option.scope) == scope]
    lines = ["| option | default | meaning |", "|---|---|---|"]
    lines += [f"| `{o.name}` | {o.render_default()} | {o.sentence} |" for o in shown]
    return "\n".join(lines)


def _narrowest(scope: Scope) -> Scope:
    kinds = (Scope.STREAM_READ, Scope.READ, Scope.WRITE, Scope.ALL)
    return next(kind for kind in kinds if scope & kind == scope)
