"""The one table of options: names, parsers, defaults, scopes, meanings.

The parsing of values, the tables of the docs and the texts of errors all come from
here. Which options go together is decided in `options`. The file is as long as the
table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Flag, auto
from functools import partial
from typing import Any

from lance_spark.client.driver import DURATION_S_MAX, check_servers
from lance_spark.errors import OptionError
from lance_spark.quantity import (
    parse_duration,
    parse_record_type,
    parse_size,
    within,
)
from lance_spark.spark.bound import parse_bound, parse_time
from lance_spark.value import dataclass

# Spark keeps an object on the driver and runs a task for each of them.
PARTITIONS_MAX = 100_000

# What tables show for an option without a default.
_NOT_SET = "\N{EN DASH}"

_INTEGER = re.compile(r"-?\d{1,100}", re.ASCII)


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
        sentence: what it means, in Markdown.
        default_text: the default as people would type it; None for none.
        stream_default_text: the default in streams, if it is another there.
        secret: the value may not be shown; `parse` does not show it either.
        scope: what it is for; all of its group if not given.
        formats: which formats have it; None for all of them.
        needs: what servers of the other formats do not have, for errors.
    """

    name: str
    parse: Callable[[str], Any]
    sentence: str
    default_text: str | None = None
    stream_default_text: str | None = None
    secret: bool = False
    scope: Scope = Scope.ALL
    formats: tuple[str, ...] | None = None
    needs: str | None = None

    @property
    def field(self) -> str:
        """The setting that it gives, as in `min_partitions`; durations end in `_s`."""
        snake = re.sub("(?=[A-Z])", "_", self.name).lower()
        return f"{snake}_s" if self.parse is parse_timeout else snake

    def has_format(self, protocol: str) -> bool:
        """Tell whether a format has it."""
        return self.formats is None or protocol in self.formats

    def refuse_format(self, protocol: str) -> OptionError:
        """Make the error for a format that does not have it."""
        names = self.formats or ("lance",)
        known = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        formats = f"{'s' * (len(names) > 1)} {known}"
        why = f", whose servers have no {self.needs}" if self.needs else ""
        return OptionError(
            f"option {self.name} is for format{formats}, not for {protocol}{why}: "
            "leave it out"
        )

    def make_default(self, *, is_stream: bool = False) -> Any:
        """Return the value if none is given; None for none."""
        text = (is_stream and self.stream_default_text) or self.default_text
        return None if text is None else self.parse(text)

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


# Values as people type them, apart from those that `quantity` and `bound` read. Each
# parser raises an OptionError that says what is wrong and what to give instead;
# `Option.read` puts the option's name before it.


def parse_flag(text: str) -> bool:
    """Read `true` or `false`.

    Raises:
        OptionError: it is neither.
    """
    found = {"true": True, "false": False}.get(text.strip().lower())
    if found is None:
        raise OptionError(f"{text!r} is neither true nor false")
    return found


def parse_integer(text: str) -> int:
    """Read a whole number of any size.

    Raises:
        OptionError: it is not a whole number.
    """
    if not _INTEGER.fullmatch(text.strip()):
        raise OptionError(f"{text!r} is not a whole number")
    return int(text)


def parse_text(text: str) -> str:
    """Take a text as it is. Errors do not show it, because it may be a secret.

    Raises:
        OptionError: it is empty, or not Unicode.
    """
    if not text.strip():
        raise OptionError("the value is empty: give one, or leave the option out")
    if text.encode(errors="replace").decode() != text:
        raise OptionError(
            "the value has half a character (a lone surrogate): leave that out"
        )
    return text


def parse_topics(text: str) -> tuple[str, ...]:
    """Read names separated by commas, each of them once.

    Raises:
        OptionError: one is empty.
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise OptionError(f"{text!r} has an empty name: give names as in events,clicks")
    return tuple(dict.fromkeys(names))


def parse_pattern(text: str) -> str:
    """Check a regular expression.

    Raises:
        OptionError: it is empty, or Python can't read it.
    """
    if not text:
        raise OptionError("the value is empty: give an expression as in events-.*")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise OptionError(
            f"{text!r} is not a regular expression of Python: {error}"
        ) from None
    return text


def choice(*words: str) -> Callable[[str], str]:
    """Make a parser for one of a few words, in any case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            known = " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
            raise OptionError(f"{text!r} is unknown: give {known}")
        return word

    return parse


parse_timeout = within(
    partial(parse_duration, needs_unit=True), "1ms", f"{DURATION_S_MAX:.0f}s"
)


# Formats that have options which others do not have.
_LANCE = ("lance",)
_COUNTED = ("rustlog", "kimberlite", "fluvio", "tank")
_PARTITIONED = ("rustlog", "fluvio", "tank")
_KIMBERLITE = ("kimberlite",)

_SHARED = (
    Option(
        "servers",
        check_servers,
        "Addresses `host:port`, separated by commas; tried in order. "
        "Redirects to the leader are followed. The port may be left out if it is the "
        "usual one: 1992 (lance), 9092 (rustlog), 5432 (kimberlite), 9003 (fluvio), "
        "11011 (tank).",
        default_text="127.0.0.1:1992",
    ),
    Option(
        "topic",
        parse_topics,
        "Name of the topic. A read takes several, separated by commas; "
        "in a write it wins over a column `topic`.",
    ),
    Option(
        "checksum",
        choice("crc32c", "crc32", "auto"),
        "Checksum of frames: `crc32c`, `crc32` (which the Rust server computes), or "
        "`auto` to try both.",
        default_text="crc32c",
        formats=_LANCE,
    ),
    Option(
        "tls",
        parse_flag,
        "Encrypt the connection. A server that does not speak TLS is never talked to "
        "in plain text.",
        default_text="false",
    ),
    Option(
        "tlsCa",
        parse_text,
        "Certificates of the authorities that sign the servers' certificates: a path, "
        "or the PEM text itself; the system's list if not given.",
    ),
    Option(
        "tlsCert",
        parse_text,
        "The client's certificate, for servers that ask for one: a path, or PEM text. "
        "Never shown.",
        secret=True,
    ),
    Option(
        "tlsKey",
        parse_text,
        "The key of the client's certificate: a path or PEM text; not needed if "
        "`tlsCert` holds it. Never shown.",
        secret=True,
    ),
    Option(
        "tlsServerName",
        parse_text,
        "The name in the servers' certificates, if it is not the host.",
    ),
    Option(
        "authToken",
        parse_text,
        "Token for servers that ask for one. Never shown.",
        formats=("lance", "kimberlite"),
        secret=True,
        needs="tokens",
    ),
    Option(
        "dialect",
        choice("binary", "json"),
        "`binary`, which RustLog's broker speaks, or `json`, which its specification "
        "has, too.",
        default_text="binary",
        formats=("rustlog",),
    ),
    Option(
        "tenant",
        within(parse_integer, "0", str(2**64 - 1)),
        "Whose streams they are; each tenant has names of its own.",
        default_text="1",
        formats=_KIMBERLITE,
    ),
    Option(
        "streamId",
        within(parse_integer, "0", str(2**64 - 1)),
        "The stream's id, so that it is not looked up by its name, which would create "
        "it. The column `topic` then has what the option `topic` says, or the id.",
        formats=_KIMBERLITE,
    ),
    Option(
        "wire",
        choice("v5", "v3", "v1-postcard", "v1-bincode"),
        "The form of messages, by the server's release: `v5` (0.6.2 and later), `v3` "
        "(0.4.2 to 0.5.1), `v1-postcard` (0.4.0, 0.4.1) or `v1-bincode` (0.1).",
        default_text="v5",
        formats=_KIMBERLITE,
    ),
    Option(
        "isolation",
        choice("read_uncommitted", "read_committed"),
        "`read_committed` reads what all replicas have, and waits for them when it "
        "writes; `read_uncommitted` does not.",
        default_text="read_uncommitted",
        formats=("fluvio",),
    ),
    Option(
        "connectTimeout",
        parse_timeout,
        "How long it may take to connect and get the first answer.",
        default_text="10s",
    ),
    Option(
        "requestTimeout",
        parse_timeout,
        "How long the answer to one request may take.",
        default_text="30s",
    ),
    Option(
        "retryTimeout",
        parse_timeout,
        "How long one call may take, with all its retries.",
        default_text="2m",
    ),
)

_READ = (
    Option(
        "topicPattern",
        parse_pattern,
        "Instead of `topic`: a regular expression (Python's) that the whole name "
        "has to match.",
        formats=("lance", *_PARTITIONED),
        needs="list of streams",
    ),
    Option(
        "startingOffsets",
        parse_bound,
        'Where to start: `earliest`, `latest`, or JSON as in `{"events": 4096}`, '
        "where -2 is earliest and -1 is latest. A topic with several partitions has "
        'one for each, as in `{"events": {"0": 23, "1": -2}}`.',
        default_text="earliest",
        stream_default_text="latest",
    ),
    Option(
        "endingOffsets",
        parse_bound,
        "Where to end, in the same forms; the record that starts there is not read.",
        default_text="latest",
        scope=Scope.BATCH_READ,
    ),
    Option(
        "startingTimestamp",
        parse_time,
        "Instead of `startingOffsets`: the first record that the server appended at "
        "this time or later. ISO 8601 (UTC if it names no zone) or milliseconds since "
        "1970. Plain servers keep no times.",
        formats=_LANCE,
        needs="index of times",
    ),
    Option(
        "endingTimestamp",
        parse_time,
        "Instead of `endingOffsets`: end before the first record that the server "
        "appended at this time or later.",
        scope=Scope.BATCH_READ,
        formats=_LANCE,
        needs="index of times",
    ),
    Option(
        "failOnDataLoss",
        parse_flag,
        "Fail if records that should be read are gone; `false` warns and goes on.",
        default_text="true",
    ),
    Option(
        "minPartitions",
        within(parse_integer, "1", str(PARTITIONS_MAX)),
        "Split the read into at least so many Spark partitions, if there are enough "
        "records.",
    ),
    Option(
        "maxPartitionBytes",
        within(parse_size, "1", "1024g"),
        "How many bytes of a topic one Spark partition reads at most. If it is not "
        "given and would make more than 256 partitions, they get larger instead.",
        default_text="64m",
        formats=_LANCE,
    ),
    Option(
        "maxPartitionRecords",
        within(parse_integer, "1", str(2**63 - 1)),
        "How many records of a topic one Spark partition reads at most. If it is not "
        "given and would make more than 256 partitions, they get larger instead.",
        default_text="500000",
        formats=_COUNTED,
    ),
    Option(
        "splitting",
        choice("auto", "locate", "probe", "none"),
        "How record boundaries are found: `locate` asks the server, `probe` looks at "
        "the bytes, `auto` is `locate` where the server has it and `probe` elsewhere, "
        "`none` reads each topic as one partition.",
        default_text="auto",
        formats=_LANCE,
    ),
    Option(
        "fetchBytes",
        within(parse_size, "1", "16m"),
        "How many bytes one request asks for, up to `16m`.",
        default_text="4m",
    ),
    Option(
        "pushFilters",
        parse_flag,
        "`true` lets Spark push the filters of a query into the read, if the session "
        "has `spark.sql.python.filterPushdown.enabled`, too. Each query then needs a "
        "`load()` of its own: Spark applies the filters to all queries of the same "
        "`load()`.",
        default_text="false",
        scope=Scope.BATCH_READ,
    ),
    Option(
        "onBadRecord",
        choice("fail", "skip"),
        "What happens at a malformed record: `fail` names its topic and offset, `skip` "
        "leaves it out and counts it in the log.",
        default_text="fail",
        formats=_LANCE,
    ),
    Option(
        "metadata",
        choice("topics"),
        "`topics` gives one row per topic instead of records, or one per partition "
        "where topics have several; all topics if none is named. Kimberlite has no "
        "list of them, so that there one is named.",
        scope=Scope.BATCH_READ,
    ),
)

_STREAM_READ = (
    Option(
        "maxBytesPerTrigger",
        within(parse_size, "1", "1024g"),
        "How many bytes a micro-batch reads at most, of all topics together; whole "
        "records only, but at least one. Plain servers have a default of `64m`.",
        formats=_LANCE,
    ),
    Option(
        "maxRecordsPerTrigger",
        within(parse_integer, "1", str(2**63 - 1)),
        "How many records a micro-batch reads at most, of all topics together.",
    ),
    Option(
        "consumerGroup",
        parse_text,
        "Commit the progress of the query under this name, so that other tools see "
        "it. The query itself goes by its checkpoint alone.",
        formats=_LANCE,
        needs="offsets of groups that a driver could commit",
    ),
)

_WRITE = (
    Option(
        "createTopic",
        parse_flag,
        "Create a topic that is missing; `false` fails instead. Kimberlite can't tell "
        "whether one is missing: there `false` needs `streamId`.",
        default_text="true",
    ),
    Option(
        "partitions",
        within(parse_integer, "1", "65535"),
        "How many partitions a topic gets that is created.",
        default_text="1",
        formats=_PARTITIONED,
    ),
    Option(
        "partition",
        within(parse_integer, "0", str(2**31 - 1)),
        "The partition that all rows go to, whatever a column `partition` says. "
        "Without either, a row goes where the CRC32C of its key says, modulo the "
        "number of partitions, and a row without a key where the number of its task "
        "says.",
        formats=_PARTITIONED,
    ),
    Option(
        "recordType",
        parse_record_type,
        "Type of values without key and timestamp: `raw`, `json`, `msgpack`, "
        "`protobuf`, `avro`, or a number from `0x80` to `0xFE`. A column `type` wins.",
        default_text="raw",
        formats=_LANCE,
    ),
    Option(
        "compression",
        choice("none", "gzip", "snappy", "lz4", "zstd"),
        "Compression of batches: `none`, `lz4` (lance, fluvio), `snappy` (fluvio, "
        "tank), `gzip` or `zstd` (fluvio). Plain servers take `none` only.",
        default_text="none",
        formats=("lance", "fluvio", "tank"),
    ),
    Option(
        "batchBytes",
        within(parse_size, "1", "16m"),
        "How many bytes a batch may have, up to `16m`; a larger record is sent alone.",
        default_text="1m",
    ),
    Option(
        "maxInFlight",
        within(parse_integer, "1", "1024"),
        "How many batches may be sent and not acknowledged.",
        default_text="8",
    ),
    Option(
        "allowNullRecords",
        parse_flag,
        "Send rows without value, key and timestamp to a plain server, too. The LANCE "
        "server misreads such a record when it recovers from a crash, and loses "
        "everything behind it.",
        default_text="false",
        formats=_LANCE,
    ),
    Option(
        "delivery",
        choice("auto", "exactly-once", "at-least-once"),
        "`exactly-once` (lance), `at-least-once`, or `auto`: the strongest that the "
        "server offers.",
        default_text="auto",
    ),
    Option(
        "txnAppId",
        parse_text,
        "With `txnVersion`: names the writer. A version that this writer has written "
        "to the same topic is not written again, which makes `foreachBatch` "
        "exactly-once.",
        scope=Scope.BATCH_WRITE,
        formats=_LANCE,
        needs="staged writes",
    ),
    Option(
        "txnVersion",
        within(parse_integer, "0", str(2**63 - 1)),
        "With `txnAppId`: a number that rises from one write to the next, as the id "
        "of a micro-batch does.",
        scope=Scope.BATCH_WRITE,
        formats=_LANCE,
        needs="staged writes",
    ),
)

OPTIONS: tuple[Option, ...] = tuple(
    replace(option, scope=option.scope & scope)
    for scope, options in (
        (Scope.ALL, _SHARED),
        (Scope.READ, _READ),
        (Scope.STREAM_READ, _STREAM_READ),
        (Scope.WRITE, _WRITE),
    )
    for option in options
)
BY_NAME = {option.name: option for option in OPTIONS}


class Values(dict[str, Any]):
    """The values that were given, by name; what is not given reads as its default.

    Args:
        given: the values.
        protocol: the format that they are for.
        is_stream: take the defaults of streams.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        protocol: str = "lance",
        *,
        is_stream: bool = False,
    ) -> None:
        super().__init__(given)
        self.protocol = protocol
        self.is_stream = is_stream

    def __missing__(self, name: str) -> Any:
        return BY_NAME[name].make_default(is_stream=self.is_stream)


def render_options(scope: Scope) -> str:
    """Write the Markdown table of the options that are for reads, writes, or both.

    Args:
        scope: `Scope.STREAM_READ`, `Scope.READ` and `Scope.WRITE` list what is for
            that alone, `Scope.ALL` what both reads and writes take.
    """
    shown = [o for o in OPTIONS if _narrowest(o.scope) == scope]
    lines = ["| option | default | formats | meaning |", "|---|---|---|---|"]
    lines += [
        f"| `{o.name}` | {o.render_default()} | {', '.join(o.formats or ('all',))} | "
        f"{o.sentence} |"
        for o in shown
    ]
    return "\n".join(lines)


def _narrowest(scope: Scope) -> Scope:
    kinds = (Scope.STREAM_READ, Scope.READ, Scope.WRITE, Scope.ALL)
    return next(kind for kind in kinds if scope & kind == scope)
