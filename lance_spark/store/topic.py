"""A topic: its metadata, and the log of its records.

`metadata.json` has the fields of LWP §6.2 and one of this store, `log_start`, which
says where the log begins. What has to outlive a segment's files is written there first.
The file has a checksum (see `document`): while it does not hold, the topic is closed.

A topic with several partitions has a log for each, called `orders/0`, `orders/1` and so
on. In the store each of them is a `Topic` with an id, metadata and settings of its own.
Their files say how many there are (`partitions`), a field that the file of an ordinary
topic does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import Any

from lance_spark.errors import InvalidName, StoreError, StoreReadOnly
from lance_spark.model import (
    TOPIC_NAME_BYTES_MAX,
    Partition,
    Retention,
    find_name_fault,
)
from lance_spark.store.context import Context
from lance_spark.store.document import (
    FIRST_STAGE_ID,
    check_keys,
    decode_document,
    encode_document,
    integer,
)
from lance_spark.store.files import replace_file
from lance_spark.store.log import Log, Point, start_of
from lance_spark.store.segment import Segment

TOPIC_METADATA = "metadata.json"
_KEYS = {
    *("id", "name", "created_at", "topic_epoch", "auth", "retention", "log_start"),
}
# The topic that exists without being created (LWP §6.1). It has no name.
DEFAULT_TOPIC = 0
# Partitions are numbered by 16 bits in some protocols.
PARTITIONS_MAX = 2**16
# The largest offset, record number or segment number of a log.
PLACE_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """What is known of a topic besides its records.

    Args:
        id: never used for another topic.
        name: unique; empty for the default topic.
        created_at: seconds since 1970.
        epoch: counts what changes the topic's identity; 1 for now.
        retention: what may be dropped.
        auth: access rules; the store keeps them and does not look at them.
        start: where the log starts.
        partitions: how many partitions the topic has that this log is one of; None if
            the topic is this log alone.
    """

    id: int
    name: str
    created_at: int
    epoch: int = 1
    retention: Retention = field(default_factory=Retention)
    auth: Mapping[str, Any] | None = None
    start: Point = field(default_factory=Point)
    partitions: int | None = None

    @property
    def partition(self) -> Partition:
        """Which partition of which topic this is the log of."""
        if self.partitions is None:
            return Partition(self.name)
        topic, _, number = self.name.rpartition("/")
        return Partition(topic, int(number))


def name_partitions(topic: str, partitions: int) -> list[str]:
    """Name the logs of a topic: that of its one partition is called as the topic is.

    Raises:
        InvalidName: the topic's name can't be used.
        StoreError: there can't be so many.
    """
    check_name(topic)
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise StoreError(
            f"topic {topic!r} can't have {partitions} partitions: a topic has 1 to "
            f"{PARTITIONS_MAX}"
        )
    names = [f"{topic}/{number}" for number in range(partitions)]
    if partitions > 1 and len(names[-1].encode()) > TOPIC_NAME_BYTES_MAX:
        raise InvalidName(
            f"topic name {topic[:80]!r} is too long for {partitions} partitions: "
            f"{names[-1][-4:]!r} is added to it, and {TOPIC_NAME_BYTES_MAX} bytes are "
            "allowed"
        )
    return names if partitions > 1 else [topic]


def is_partition_name(name: str) -> bool:
    """Tell whether a log of that name belongs to a topic with several partitions."""
    _, slash, number = name.rpartition("/")
    # The length first: Python refuses to read a number of thousands of digits.
    is_short = slash and len(number) <= len(str(PARTITIONS_MAX))
    return bool(is_short) and number.isdecimal() and number == str(int(number))


def check_log_name(name: str) -> None:
    """Refuse a name that neither a topic nor a partition can have.

    Raises:
        InvalidName: with the reason.
    """
    check_name(name.rpartition("/")[0] if is_partition_name(name) else name)


def check_name(name: str) -> None:
    """Refuse a name that can't be a topic's (it never becomes a path, all the same).

    Raises:
        InvalidName: with the reason.
    """
    fault = find_name_fault(name)
    if fault is not None:
        raise InvalidName(f"topic name {name[:80]!r} {fault}")


def encode_topic(metadata: TopicMetadata) -> bytes:
    """Encode metadata as the JSON file's content."""
    count = metadata.partitions
    return encode_document(
        {
            "id": metadata.id,
            "name": metadata.name,
            "created_at": metadata.created_at,
            "topic_epoch": metadata.epoch,
            "auth": metadata.auth,
            "retention": {
                "max_age_secs": metadata.retention.max_age_s,
                "max_bytes": metadata.retention.max_bytes,
            },
            "log_start": metadata.start._asdict(),
            # Only partitions have it: other files stay what releases up to 0.6 wrote.
            **({} if count is None else {"partitions": count}),
        }
    )


def decode_topic(data: bytes) -> TopicMetadata:
    """Decode the JSON file's content, whatever its format.

    Raises:
        StoreError: it is damaged.
    """
    fields = decode_document(data).fields
    partitions = "partitions" in fields
    check_keys(fields, _KEYS | {"partitions"} if partitions else _KEYS)
    retention, start, name = fields["retention"], fields["log_start"], fields["name"]
    check_keys(retention, {"max_age_secs", "max_bytes"})
    check_keys(start, {"offset", "record", "segment"})
    if not isinstance(fields["auth"], (dict, NoneType)):
        raise StoreError("auth is not an object")
    topic = integer(fields, "id", FIRST_STAGE_ID - 1)
    if topic != DEFAULT_TOPIC or name != "":
        if not isinstance(name, str):
            raise StoreError("name is not text")
        check_log_name(name) if partitions else check_name(name)
    kept = Retention(
        integer(retention, "max_age_secs"), integer(retention, "max_bytes")
    )
    metadata = TopicMetadata(
        id=topic,
        name=name,
        created_at=integer(fields, "created_at"),
        epoch=integer(fields, "topic_epoch"),
        auth=fields["auth"],
        retention=kept,
        start=Point(*(integer(start, key, PLACE_MAX) for key in Point._fields)),
    )
    if not partitions:
        return metadata
    count = integer(fields, "partitions", PARTITIONS_MAX)
    metadata = replace(metadata, partitions=count)
    if not (is_partition_name(name) and metadata.partition.number < count > 1):
        raise StoreError(f"{name!r} is not one of {count} partitions")
    return metadata


def read_topic(context: Context, topic: int) -> TopicMetadata | None:
    """Read a topic's metadata; None if it has none.

    Raises:
        StoreError: it is damaged.
    """
    path = context.topic_directory(topic) / TOPIC_METADATA
    return context.identity.read_metadata(path, "topic", decode_topic)


def write_topic(context: Context, metadata: TopicMetadata) -> None:
    """Replace a topic's metadata, durably."""
    context.identity.prepare()
    path = context.topic_directory(metadata.id) / TOPIC_METADATA
    replace_file(context.files, path, encode_topic(metadata))


class Topic:
    """A topic of the store."""

    def __init__(self, metadata: TopicMetadata, log: Log) -> None:
        self.metadata = metadata
        self.log = log

    def update(
        self,
        *,
        retention: Retention | None = None,
        auth: Mapping[str, Any] | None = None,
        start: Point | None = None,
    ) -> None:
        """Change metadata, on disk first.

        Raises:
            StoreReadOnly: the topic is deleted, or the store closed; or the disk has
                refused, and which metadata counts is for the next opening to find.
            OSError: the disk has refused; the metadata is as it was.
        """
        with self.log.exclusive():
            self.log.check_writable()
            changed = replace(
                self.metadata,
                retention=retention or self.metadata.retention,
                auth=self.metadata.auth if auth is None else dict(auth) or None,
                start=start or self.metadata.start,
            )
            try:
                write_topic(self.log.context, changed)
            except OSError as error:
                self._take_back(error)
                raise
            self.metadata = changed

    def _take_back(self, cause: OSError) -> None:
        """See to it that a change that is refused does not count after a restart.

        The new file may be in its place already: only its name is not durable then.
        """
        context = self.log.context
        try:
            if read_topic(context, self.metadata.id) != self.metadata:
                write_topic(context, self.metadata)
        except (OSError, StoreError) as error:
            raise StoreReadOnly(
                f"{self.log.where}: the change could not be written ({cause}) and not "
                f"be taken back ({error}): it may count once the store is reopened"
            ) from cause

    def drop_before(self, start: Point) -> None:
        """Move the start of the log and drop the segments before it."""
        with self.log.exclusive():
            # On a full disk this is what makes room: it has to be written all the same.
            self.log.context.reserve.spend(lambda: self.update(start=start))
            self.log.drop_before(start)


def plan_retention(
    segments: Sequence[Segment], retention: Retention, now_ns: int
) -> Point | None:
    """Find where the log should start.

    Whole segments are dropped from the old end: those whose last batch is too old, and
    then as many as it takes to come below the size. The last segment always stays.

    Returns:
        The new start, None if nothing is to be dropped.
    """
    keep = 0
    if retention.max_age_s:
        oldest_ns = now_ns - retention.max_age_s * 1_000_000_000
        while keep < len(segments) - 1 and segments[keep].last_append_ns < oldest_ns:
            keep += 1
    if retention.max_bytes:
        size = sum(segment.size for segment in segments[keep:])
        while keep < len(segments) - 1 and size > retention.max_bytes:
            size -= segments[keep].size
            keep += 1
    if keep == 0:
        return None
    return start_of(segments[keep])
