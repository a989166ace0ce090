"""TopicResponse (0x80): JSON answers to the topic commands of LWP §5.3 to §5.11.

One command carries four kinds of answer; its keys tell which. The server in the field
and ours add fields to those of the specification; unknown ones are kept in `details`.

    create, get       {"id": 1, "name": "events", "created_at": 1706918400, …}
    list              {"topics": [ …the same… ]}
    delete            {"deleted": 1}
    set retention     {"topic_id": 1, "max_age_secs": 86400, "max_bytes": 0}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lance_spark.errors import RemoteProtocolError
from lance_spark.model import Buffer, Retention
from lance_spark.wire.lwp.command import Command
from lance_spark.wire.lwp.document import (
    DocumentReader,
    decode_document,
    encode_document,
)
from lance_spark.wire.lwp.message import Message


class TopicResponse(Message):
    """The base of the four answers; decoding it gives the one that came."""

    __slots__ = ()

    COMMAND = Command.TOPIC_RESPONSE
    NAME = "topic response"

    @classmethod
    def decode_payload(cls, payload: Buffer) -> TopicResponse:
        """Read whichever answer it is."""
        reader = DocumentReader(decode_document(payload, cls.NAME), cls.NAME)
        if "topics" in reader:
            return TopicListing._read(reader)
        if "deleted" in reader:
            return TopicDeletion._read(reader)
        if "topic_id" in reader:
            return TopicRetention._read(reader)
        return TopicInfo._read(reader)


@dataclass(frozen=True, slots=True)
class TopicInfo(TopicResponse):
    """A topic: answer to CreateTopic, GetTopic, CreateTopicWithRetention."""

    id: int
    name: str
    created_at_s: int = 0
    epoch: int = 1
    retention: Retention | None = None
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def to_document(self) -> dict[str, Any]:
        """Return the JSON object."""
        body: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "created_at": self.created_at_s,
            "topic_epoch": self.epoch,
        }
        if self.retention is not None:
            limits = {
                "max_age_secs": self.retention.max_age_s,
                "max_bytes": self.retention.max_bytes,
            }
            # LWP §5.11 has them beside the name; clients in the field look below
            # "retention", as in the metadata of §6.2.
            body.update(limits, retention=limits)
        return {**self.details, **body}

    def encode_payload(self) -> list[Buffer]:
        """Return the payload."""
        return [encode_document(self.to_document())]

    @classmethod
    def _read(cls, reader: DocumentReader) -> TopicInfo:
        return cls(
            reader.take_uint("id", 32),
            reader.take("name", str),
            reader.take_uint("created_at", 64, 0),
            reader.take_uint("topic_epoch", 64, 1),
            _take_retention(reader),
            reader.rest,
        )


def _take_retention(reader: DocumentReader) -> Retention | None:
    nested = reader.take("retention", dict, {})
    flat = "max_age_secs" in reader or "max_bytes" in reader
    own = Retention(
        reader.take_uint("max_age_secs", 64, 0), reader.take_uint("max_bytes", 64, 0)
    )
    if flat:
        return own
    if not nested:
        return None
    inner = DocumentReader(nested, "retention")
    return Retention(
        inner.take_uint("max_age_secs", 64, 0), inner.take_uint("max_bytes", 64, 0)
    )


@dataclass(frozen=True, slots=True)
class TopicListing(TopicResponse):
    """All topics: answer to ListTopics."""

    topics: tuple[TopicInfo, ...]

    def encode_payload(self) -> list[Buffer]:
        """Return the payload."""
        return [encode_document({"topics": [t.to_document() for t in self.topics]})]

    @classmethod
    def _read(cls, reader: DocumentReader) -> TopicListing:
        topics = []
        for body in reader.take("topics", list):
            if not isinstance(body, dict):
                raise RemoteProtocolError("a topic of the list is not an object")
            topics.append(TopicInfo._read(DocumentReader(body, "topic")))
        return cls(tuple(topics))


@dataclass(frozen=True, slots=True)
class TopicDeletion(TopicResponse):
    """The id of a topic that is gone: answer to DeleteTopic."""

    topic_id: int

    def encode_payload(self) -> list[Buffer]:
        """Return the payload."""
        return [encode_document({"deleted": self.topic_id})]

    @classmethod
    def _read(cls, reader: DocumentReader) -> TopicDeletion:
        return cls(reader.take_uint("deleted", 32))


@dataclass(frozen=True, slots=True)
class TopicRetention(TopicResponse):
    """The limits that hold now: answer to SetRetention."""

    topic_id: int
    retention: Retention

    def encode_payload(self) -> list[Buffer]:
        """Return the payload."""
        body = {
            "topic_id": self.topic_id,
            "max_age_secs": self.retention.max_age_s,
            "max_bytes": self.retention.max_bytes,
        }
        return [encode_document(body)]

    @classmethod
    def _read(cls, reader: DocumentReader) -> TopicRetention:
        topic_id = reader.take_uint("topic_id", 32)
        max_age_s = reader.take_uint("max_age_secs", 64, 0)
        return cls(topic_id, Retention(max_age_s, reader.take_uint("max_bytes", 64, 0)))
