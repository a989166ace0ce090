"""A topic: its metadata, and the log of its records.

`metadata.json` has the fields of LWP §6.2 and one of our own, `log_start`, which says
where the log begins. What has to outlive a segment's files is written there first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lance_spark.errors import InvalidName, OptionError, StoreError, StoreReadOnly
from lance_spark.model import Retention
from lance_spark.store.context import Context
from lance_spark.store.extent import LogStart
from lance_spark.store.files import read_file, replace_file
from lance_spark.store.log import Log

METADATA = "metadata.json"
FORMAT = 1
# The topic that exists without being created (LWP §6.1). It has no name.
DEFAULT_TOPIC = 0
NAME_BYTES_MAX = 255


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
    """

    id: int
    name: str
    created_at: int
    epoch: int = 1
    retention: Retention = field(default_factory=Retention)
    auth: Mapping[str, Any] | None = None
    start: LogStart = field(default_factory=LogStart)


def check_name(name: str) -> None:
    """Refuse a name that can't be a topic's (it never becomes a path, all the same).

    Raises:
        InvalidName: with the reason.
    """
    reason = None
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"topic name {name!r} is not valid Unicode") from None
    if not 1 <= length <= NAME_BYTES_MAX:
        reason = f"has {length} bytes; 1 to {NAME_BYTES_MAX} are allowed"
    elif name in (".", ".."):
        reason = "is a name of directories"
    elif any(c in "/\\" or ord(c) < 32 or 127 <= ord(c) < 160 for c in name):
        reason = "has a slash, a backslash or a control character"
    if reason:
        raise InvalidName(f"topic name {name[:80]!r} {reason}")


def encode_metadata(metadata: TopicMetadata) -> bytes:
    """Encode metadata as the JSON file's content."""
    fields = {
        "format": FORMAT,
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
    }
    return json.dumps(fields, indent=2, ensure_ascii=False).encode() + b"\n"


def decode_metadata(data: bytes) -> TopicMetadata:
    """Decode the JSON file's content.

    Raises:
        StoreError: it is not a topic's metadata.
    """
    try:
        fields = json.loads(data)
        if fields["format"] != FORMAT:
            raise StoreError(f"metadata format {fields['format']} is not supported")
        retention, start = fields["retention"], fields["log_start"]
        return TopicMetadata(
            id=int(fields["id"]),
            name=str(fields["name"]),
            created_at=int(fields["created_at"]),
            epoch=int(fields["topic_epoch"]),
            auth=fields["auth"],
            retention=Retention(
                int(retention["max_age_secs"]), int(retention["max_bytes"])
            ),
            start=LogStart(
                int(start["offset"]), int(start["record"]), int(start["segment"])
            ),
        )
    except (ValueError, KeyError, TypeError, OptionError) as error:
        raise StoreError(f"metadata can't be read: {error!r}") from error


def read_metadata(context: Context, directory: Path) -> TopicMetadata | None:
    """Read a topic's metadata; None if it has none.

    Raises:
        StoreError: it can't be read.
    """
    data = read_file(context.files, directory / METADATA)
    return None if data is None else decode_metadata(data)


def write_metadata(context: Context, directory: Path, metadata: TopicMetadata) -> None:
    """Replace a topic's metadata, durably."""
    replace_file(context.files, directory / METADATA, encode_metadata(metadata))


class Topic:
    """A topic of the store."""

    def __init__(self, metadata: TopicMetadata, log: Log) -> None:
        self._metadata = metadata
        self.log = log

    @property
    def metadata(self) -> TopicMetadata:
        """What is known of the topic."""
        return self._metadata

    def update(
        self,
        *,
        retention: Retention | None = None,
        auth: Mapping[str, Any] | None = None,
        start: LogStart | None = None,
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
                self._metadata,
                retention=retention or self._metadata.retention,
                auth=self._metadata.auth if auth is None else dict(auth) or None,
                start=start or self._metadata.start,
            )
            try:
                write_metadata(self.log.context, self.log.directory, changed)
            except OSError as error:
                self._take_back(error)
                raise
            self._metadata = changed

    def _take_back(self, cause: OSError) -> None:
        """See to it that a change that is refused does not count after a restart.

        The new file may be in its place already: only its name is not durable then.
        """
        context, directory = self.log.context, self.log.directory
        try:
            if read_metadata(context, directory) != self._metadata:
                write_metadata(context, directory, self._metadata)
        except (OSError, StoreError) as error:
            raise StoreReadOnly(
                f"{self.log.where}: the change could not be written ({cause}) and not "
                f"be taken back ({error}): it may count once the store is reopened"
            ) from cause

    def drop_before(self, start: LogStart) -> None:
        """Move the start of the log and drop the segments before it."""
        with self.log.exclusive():
            self.update(start=start)
            self.log.drop_before(start)
