"""The options of a read or write: names and values in, frozen settings out.

Each option by itself is in the table of `setting`; here is what depends on several of
them. Errors say which option, what is wrong and what to change, and never show the
value of a secret option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from lance_spark.client.driver import ConnectionConfig, find_protocol
from lance_spark.errors import OptionError
from lance_spark.model import Partition
from lance_spark.spark.bound import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AtOffsets,
    AtTime,
    Bound,
)
from lance_spark.spark.setting import BY_NAME, OPTIONS, Option, Scope, Values

# How large a Spark partition is at most, by the unit of positions.
SIZE_OPTION = {"bytes": "maxPartitionBytes", "records": "maxPartitionRecords"}

# Spark gives names in lower case.
_BY_KEY = {option.name.lower(): option for option in OPTIONS}

# Options of Kafka's source, and the option here that means the same.
_KAFKA = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "assign": "topic",
    "maxrecordsperpartition": "maxPartitionBytes",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "groupidprefix": "consumerGroup",
    "kafka.group.id": "consumerGroup",
    "kafkaconsumer.polltimeoutms": "requestTimeout",
    "kafka.request.timeout.ms": "requestTimeout",
    "fetchoffset.numretries": "retryTimeout",
    "fetchoffset.retryintervalms": "retryTimeout",
    "kafka.delivery.timeout.ms": "retryTimeout",
    "kafka.fetch.max.bytes": "fetchBytes",
    "kafka.max.partition.fetch.bytes": "fetchBytes",
    "kafka.compression.type": "compression",
    "kafka.batch.size": "batchBytes",
    "kafka.max.in.flight.requests.per.connection": "maxInFlight",
}
# What has no counterpart here.
_KAFKA_ONLY = {
    "minoffsetspertrigger",
    "maxtriggerdelay",
    "includeheaders",
    "startingoffsetsbytimestampstrategy",
    "partition.metadata.cache.ttl.ms",
}

# What Spark hands to the sink of a stream along with its options, as people type it.
_SPARKS = {"checkpointlocation": "checkpointLocation", "queryname": "queryName"}


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
        max_partition_size: how large a partition is at most, in the unit of positions;
            None if not given.
        splitting: how record boundaries are found.
        fetch_bytes: how much is fetched at once.
        push_filters: apply filters of the query that Spark offers.
        on_bad_record: what a malformed record does.
        metadata: list the topics instead of their records.
        max_bytes_per_trigger: how many bytes a micro-batch has at most.
        max_records_per_trigger: how many records it has at most.
        consumer_group: the name under which a stream commits its progress.
    """

    client: ConnectionConfig
    topics: tuple[str, ...]
    topic_pattern: str | None
    start: Bound
    end: Bound
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partition_size: int | None
    splitting: Literal["auto", "locate", "probe", "none"]
    fetch_bytes: int
    push_filters: bool
    on_bad_record: Literal["fail", "skip"]
    metadata: bool
    max_bytes_per_trigger: int | None
    max_records_per_trigger: int | None
    consumer_group: str | None

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
        partition: the partition that all rows go to; None if a row's column, its key
            or its task says it.
        create_topic: create a topic that is missing.
        partitions: how many partitions it gets.
        record_type: the type of values without key and timestamp.
        compression: `none`, or one that the protocol has.
        batch_bytes: how large a batch may get.
        max_in_flight: how many batches may be not acknowledged.
        allow_null_records: send Null records to a plain server, too.
        delivery: whether rows are written exactly once or at least once.
        txn_app_id: the writer's name, given by the user.
        txn_version: which write of this writer it is.
    """

    client: ConnectionConfig
    topic: str | None
    partition: int | None
    create_topic: bool
    partitions: int
    record_type: int
    compression: str
    batch_bytes: int
    max_in_flight: int
    allow_null_records: bool
    delivery: Literal["auto", "exactly-once", "at-least-once"]
    txn_app_id: str | None
    txn_version: int | None


def check_options(options: Mapping[str, str], protocol: str = "lance") -> None:
    """Check what can be checked before it is known whether they read or write.

    Raises:
        OptionError: a name is unknown, a value can't be used, or two contradict.
    """
    _read_values(options, protocol)


def lists_topics(options: Mapping[str, str], protocol: str = "lance") -> bool:
    """Tell whether a read lists topics, before it is known whether it is a stream.

    Raises:
        OptionError: what no read takes, be it of a batch or a stream.
    """
    values = _read_values(options, protocol, Scope.READ)
    _check_topic_is_named(values)
    return "metadata" in values


def parse_read_options(
    options: Mapping[str, str], protocol: str = "lance", *, is_stream: bool = False
) -> ReadOptions:
    """Read the options of a read.

    Raises:
        OptionError: a name is unknown or is not for such reads, a value can't be used,
            two contradict, or no topic is named.
    """
    scope = Scope.STREAM_READ if is_stream else Scope.BATCH_READ
    values = _read_values(options, protocol, scope)
    _check_topic_is_named(values)
    unit = find_protocol(values.protocol).TRAITS.unit
    start, end = _pick_bounds(values)
    return _make(
        ReadOptions,
        values,
        topics=values["topic"] or _name_stream(values) or (),
        start=start,
        end=end,
        max_partition_size=values.get(SIZE_OPTION[unit]),
        metadata=values["metadata"] is not None,
    )


def _name_stream(values: Values) -> tuple[str, ...] | None:
    """Give the name of a stream that is known by its id only, if there is an id."""
    number = values["streamId"]
    return None if number is None else (str(number),)


def _check_topic_is_named(values: Values) -> None:
    named = {"topic", "topicPattern", "streamId"} & values.keys()
    lists = find_protocol(values.protocol).TRAITS.lists_topics
    if named or ("metadata" in values and lists):
        return
    if lists:
        raise OptionError(
            "no topic to read: name one with option topic, several as in "
            "events,clicks, or give option topicPattern"
        )
    raise OptionError("no topic to read: name one with option topic or streamId")


def parse_write_options(
    options: Mapping[str, str], protocol: str = "lance", *, is_stream: bool = False
) -> WriteOptions:
    """Read the options of a write; those of a stream include what Spark adds to them.

    Raises:
        OptionError: a name is unknown or is not for such writes, a value can't be used,
            two contradict, or several topics are named.
    """
    scope = Scope.STREAM_WRITE if is_stream else Scope.BATCH_WRITE
    values = _read_values(options, protocol, scope)
    topics = values["topic"] or _name_stream(values) or (None,)
    if len(topics) > 1:
        raise OptionError(
            f"option topic names {len(topics)} topics, a write takes one: name one, or "
            "leave the option out and give each row its topic in a column topic"
        )
    return _make(WriteOptions, values, topic=topics[0])


_Made = TypeVar("_Made", ReadOptions, WriteOptions)


def _make(kind: type[_Made], values: Values, **given: Any) -> _Made:
    """Make options: a field that is not given is the option of the same name."""
    config = find_protocol(values.protocol).Config
    settings = {each.name for each in fields(config)}
    # What the user does not say is the configuration's own default.
    named = [BY_NAME[name] for name in values]
    client = {o.field: values[o.name] for o in named if o.field in settings}
    given = {**given, "client": config(**client)}
    names = {option.field: option.name for option in OPTIONS}
    rest = [each.name for each in fields(kind) if each.name not in given]
    return kind(**given, **{field: values[names[field]] for field in rest})


# Reading the names and values, one by one.


def _read_values(
    options: Mapping[str, str], protocol: str, scope: Scope | None = None
) -> Values:
    given = _leave_out_sparks(options, scope)
    named = {_find_option(key, protocol): text for key, text in given.items()}
    _check_scope(list(named), scope)
    is_stream = scope in (Scope.STREAM_READ, Scope.STREAM_WRITE)
    read = {option.name: option.read(named[option]) for option in named}
    values = Values(read, protocol, is_stream=is_stream)
    check_conflicts(values)
    return values


def _leave_out_sparks(
    options: Mapping[str, str], scope: Scope | None
) -> dict[str, str]:
    sparks = [key for key in options if key.lower() in _SPARKS]
    if sparks and scope not in (None, Scope.STREAM_WRITE):
        raise OptionError(
            f"option {_SPARKS[sparks[0].lower()]} is for writeStream: leave it out here"
        )
    return {key: text for key, text in options.items() if key not in sparks}


def _find_option(key: str, protocol: str) -> Option:
    name = key.lower()
    if name in ("path", "paths"):
        raise OptionError(
            "topics have no path: name the topic with option topic, and call load(), "
            "save() or start() without an argument"
        )
    if name == "provider" or name.startswith("option."):
        # This is what Spark adds for `CREATE TABLE`.
        raise OptionError(
            "a topic can't be a table of the catalog: make a view of it, with CREATE "
            f"TEMPORARY VIEW … USING {protocol} OPTIONS (…)"
        )
    found = _BY_KEY.get(name)
    if found is None:
        raise OptionError(f"there is no option {key}; {_suggest(key, protocol)}")
    if not found.has_format(protocol):
        raise found.refuse_format(protocol)
    return found


def _suggest(key: str, protocol: str) -> str:
    name = key.lower()
    there = {key: o.name for key, o in _BY_KEY.items() if o.has_format(protocol)}
    if _KAFKA.get(name) in there.values():
        return f"Kafka's source has it, and here it is called {_KAFKA[name]}"
    if name in (*_KAFKA, *_KAFKA_ONLY) or name.startswith("kafka."):
        return (
            "it is an option of Kafka's source, which has no counterpart: leave it out"
        )
    import difflib  # Only a name that is wrong needs it.

    near = difflib.get_close_matches(name, there, n=1)
    if near:
        return f"did you mean {there[near[0]]}?"
    return f"there are {', '.join(sorted(there.values(), key=str.lower))}"


# Kinds of queries that exclude each other, with the words for them.
_PAIRS = (
    ((Scope.READ, "reads"), (Scope.WRITE, "writes")),
    (
        (Scope.BATCH_READ | Scope.BATCH_WRITE, "batches"),
        (Scope.STREAM_READ | Scope.STREAM_WRITE, "streams"),
    ),
)


def _check_scope(given: list[Option], scope: Scope | None) -> None:
    """Check that options are for this kind of query, as far as it is known yet."""
    if scope is not None:
        for option in given:
            if not option.scope & scope:
                raise OptionError(_explain_scope(option, scope))
    for (one, its_word), (other, other_word) in _PAIRS:
        ones = [option.name for option in given if not option.scope & other]
        others = [option.name for option in given if not option.scope & one]
        if ones and others:
            raise OptionError(
                f"option {ones[0]} is for {its_word} and {others[0]} for {other_word}: "
                "leave out one of them"
            )


def _explain_scope(option: Option, scope: Scope) -> str:
    """Say why an option is not for this kind of query."""
    ours = "read" if scope & Scope.READ else "write"
    if not option.scope & (Scope.READ if ours == "read" else Scope.WRITE):
        theirs = "writes" if ours == "read" else "reads"
        return f"option {option.name} is for {theirs}: leave it out of this {ours}"
    if option.scope & Scope.STREAM_READ:
        return f"option {option.name} is for streams: leave it out of this {ours}"
    text = f"option {option.name} is for batch {ours}s: leave it out of this stream"
    if option.name in ("txnAppId", "txnVersion"):
        text += ", whose query id and batch id are used instead"
    return text


# Options that contradict each other, as far as that shows without a server.

_WORDS: dict[int | None, str] = {EARLIEST_OFFSET: "earliest", LATEST_OFFSET: "latest"}
_TLS = ("tlsCa", "tlsCert", "tlsKey", "tlsServerName")
_BOUNDS = (
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
)


def check_conflicts(values: Values) -> None:
    """Check that options go together.

    Raises:
        OptionError: they do not; names two of them and says what to change.
    """
    _check_tls(values)
    for one, other in (("topic", "topicPattern"), *_BOUNDS):
        if one in values and other in values:
            raise OptionError(
                f"options {one} and {other} are both given: leave out one of them"
            )
    _check_metadata(values)
    _check_stream_id(values)
    for offsets, _ in _BOUNDS:
        _check_named(values, offsets)
    _check_order(values)
    _check_transaction(values)
    _check_written(values)


def _pick_bounds(values: Values) -> list[Bound]:
    """Say where a read starts and ends."""
    return [values[timestamp] or values[offsets] for offsets, timestamp in _BOUNDS]


def _check_tls(values: Values) -> None:
    given = [name for name in _TLS if name in values]
    if given and not values["tls"]:
        raise OptionError(
            f"option {given[0]} is given without tls: set option tls to true, or leave "
            f"out {', '.join(given)}"
        )
    if "tlsKey" in values and "tlsCert" not in values:
        raise OptionError(
            "option tlsKey is given without tlsCert: give the certificate too"
        )


def _check_metadata(values: Values) -> None:
    names = (*(name for pair in _BOUNDS for name in pair), "pushFilters")
    given = [name for name in names if name in values]
    if given and "metadata" in values:
        raise OptionError(
            f"option {given[0]} is given with metadata, which reads no records: leave "
            "out one of them"
        )


def _check_stream_id(values: Values) -> None:
    traits = find_protocol(values.protocol).TRAITS
    if "streamId" in values and len(values["topic"] or ()) > 1:
        raise OptionError(
            f"option streamId is one stream, and option topic has "
            f"{len(values['topic'])} names for it: name one, or leave out streamId"
        )
    is_found_otherwise = "streamId" in values or not traits.creates_to_find
    if not (is_found_otherwise or values["createTopic"]):
        raise OptionError(
            f"option createTopic: {values.protocol} finds a stream by its name only by "
            "creating it: leave the option out, or give option streamId"
        )


def _check_named(values: Values, name: str) -> None:
    """Check that a JSON of offsets names the topics that are read, and as they are."""
    topics = values["topic"] or _name_stream(values)
    pattern = values["topicPattern"]
    bound: AtOffsets = values[name]
    if bound.protocol not in (None, values.protocol):
        raise OptionError(
            f"option {name} has offsets of format {bound.protocol}, which mean nothing "
            f"to {values.protocol}: leave it out"
        )
    traits = find_protocol(values.protocol).TRAITS
    for partition, offset in bound.offsets:
        if offset not in _WORDS:
            where = f"option {name}: topic {partition.topic!r}: offset"
            traits.check_position(where, offset)
    if bound.by_partition and "partition" not in traits.columns:
        topic = bound.by_partition[0]
        raise OptionError(
            f"option {name}: topic {topic!r} has no partitions: give its offset alone, "
            f"as in {json.dumps({topic: 4096})}"
        )
    for topic in bound.topics:
        if topics is not None and topic not in topics:
            raise OptionError(
                f"option {name} names topic {topic!r}, which option topic does not: "
                "add it there, or leave it out here"
            )
        if pattern is not None and re.fullmatch(pattern, topic) is None:
            raise OptionError(
                f"option {name} names topic {topic!r}, which option topicPattern "
                f"{pattern!r} does not match: change the pattern, or leave it out here"
            )
    # Which topics a pattern matches, the server tells when the read is planned.
    bound.check_complete(name, topics or ())


def _check_order(values: Values) -> None:
    start, end = _pick_bounds(values)
    if isinstance(start, AtTime) and isinstance(end, AtTime):
        if start.time_ns > end.time_ns:
            raise OptionError(
                "option startingTimestamp is later than endingTimestamp: exchange them"
            )
        return
    bounds = [each for each in (start, end) if isinstance(each, AtOffsets)]
    if len(bounds) < 2:
        return
    named = sorted({partition for bound in bounds for partition, _ in bound.offsets})
    # Two words mean the same for every topic.
    for partition in named or [Partition("")]:
        first, last = (bound.get(partition) for bound in bounds)
        if _is_after(first, last):
            where = f" for topic {partition.topic!r}" if named else ""
            given = " and ".join(str(_WORDS.get(at, at)) for at in (first, last))
            raise OptionError(
                f"option startingOffsets is behind endingOffsets{where} ({given}): "
                "exchange them"
            )


def _is_after(start: int | None, end: int | None) -> bool:
    """Tell what is certain without a look at the log."""
    if start is None or end is None:
        return False
    if start == LATEST_OFFSET:
        return end == EARLIEST_OFFSET
    return start > end >= 0


def _check_transaction(values: Values) -> None:
    given = [name for name in ("txnAppId", "txnVersion") if name in values]
    if not given:
        return
    if len(given) == 1:
        other = "txnVersion" if given[0] == "txnAppId" else "txnAppId"
        raise OptionError(
            f"option {given[0]} is given without {other}: give both or neither"
        )
    if values["delivery"] == "at-least-once":
        raise OptionError(
            "options txnAppId and txnVersion are given with delivery at-least-once, "
            "which can't tell a repeated write: leave out delivery, or them"
        )


def _check_written(values: Values) -> None:
    """Check that the protocol can do what a write asks for."""
    traits, given = find_protocol(values.protocol).TRAITS, values["compression"]
    if given not in traits.compressions:
        raise OptionError(
            f"option compression: {values.protocol} has no {given!r}: give "
            f"{' or '.join(traits.compressions)}"
        )
    if values["delivery"] == "exactly-once" and not traits.has_stages:
        raise OptionError(
            f"option delivery: {values.protocol} has no staged writes, so rows "
            "can't be written exactly once: use auto or at-least-once"
        )
    partition = values["partition"]
    if "partitions" in values and (partition or 0) >= values["partitions"]:
        raise OptionError(
            f"option partition is {partition}, and partitions {values['partitions']}: "
            "partitions are counted from 0"
        )


def describe_missing(config: ConnectionConfig, topics: Sequence[str]) -> str:
    """Say that topics which are named do not exist, and what to do."""
    if config.finds_by_id:
        told = config.describe_missing(topics[0])
        return f"{told}, or none that this client may use: correct option streamId"
    return (
        f"no topic is named {', '.join(map(repr, topics))}, or none that this client "
        "may use; create it, or correct the option topic"
    )
