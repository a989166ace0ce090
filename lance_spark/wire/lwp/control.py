"""Requests and responses of LWP §5 about topics, consumers and the cluster.

Fetch and its answers are in `fetch`, the error response in `error`, the commands of the
extensions in `extension`. The broker judges topic names, as it has an error code for
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Annotated, Any

from lance_spark.errors import RemoteProtocolError
from lance_spark.model import Buffer, Retention
from lance_spark.value import dataclass
from lance_spark.wire.lwp.message import (
    U16,
    U32,
    U64,
    Bool,
    Command,
    Composite,
    DocumentReader,
    LastText,
    LayoutMessage,
    Message,
    PayloadReader,
    ShortText,
    Uint32,
    Uint64,
    decode_document,
    encode_document,
)

RETENTION = Composite(Retention, U64, U64)


@dataclass(frozen=True, slots=True)
class CreateTopic(LayoutMessage):
    """Create a topic (LWP §5.3)."""

    COMMAND = Command.CREATE_TOPIC

    name: LastText


@dataclass(frozen=True, slots=True)
class CreateTopicWithRetention(LayoutMessage):
    """Create a topic and say how long it keeps its data (LWP §5.11)."""

    COMMAND = Command.CREATE_TOPIC_WITH_RETENTION
    NAME = "create topic"

    name: ShortText
    retention: Annotated[Retention, RETENTION]

    @classmethod
    def decode_payload(cls, payload: Buffer) -> CreateTopicWithRetention:
        """Read the form of §5.11 (u16 name length) or of the samples in §14.4 (u32)."""
        # Both can't hold at once: the wider length is never the smaller number.
        for length in (U16, U32):
            reader = PayloadReader(payload, cls.NAME)
            name_bytes = length.read(reader)
            if reader.remaining == name_bytes + RETENTION.bytes_min:
                return cls(reader.text(name_bytes), RETENTION.read(reader))
        raise reader.error("its size does not fit the name's length")


@dataclass(frozen=True, slots=True)
class DeleteTopic(LayoutMessage):
    """Delete a topic and its data (LWP §5.6)."""

    COMMAND = Command.DELETE_TOPIC

    topic_id: Uint32


@dataclass(frozen=True, slots=True)
class ListTopics(LayoutMessage):
    """Ask for all topics (LWP §5.4)."""

    COMMAND = Command.LIST_TOPICS


@dataclass(frozen=True, slots=True)
class GetTopic(LayoutMessage):
    """Ask for one topic (LWP §5.5)."""

    COMMAND = Command.GET_TOPIC

    topic_id: Uint32


@dataclass(frozen=True, slots=True)
class SetRetention(LayoutMessage):
    """Change how long a topic keeps its data (LWP §5.10)."""

    COMMAND = Command.SET_RETENTION

    topic_id: Uint32
    retention: Annotated[Retention, RETENTION]


@dataclass(frozen=True, slots=True)
class GetClusterStatus(LayoutMessage):
    """Ask who leads and what the server can do.

    Sent as 0x07, which every server knows; also read as 0x30, the code of LWP §16.5.
    """

    COMMAND = Command.GET_CLUSTER_STATUS_FIELD


@dataclass(frozen=True, slots=True)
class Authenticate(LayoutMessage):
    """Present a token, which stays out of `repr` and so out of logs."""

    COMMAND = Command.AUTHENTICATE

    token: LastText = field(repr=False)


@dataclass(frozen=True, slots=True)
class AuthenticateResponse(LayoutMessage):
    """Say whether the token was taken, and why not."""

    COMMAND = Command.AUTHENTICATE_RESPONSE

    ok: Bool
    message: LastText = ""


@dataclass(frozen=True, slots=True)
class Subscribe(LayoutMessage):
    """Announce a consumer and ask where it starts (LWP §5.12)."""

    COMMAND = Command.SUBSCRIBE

    topic_id: Uint32
    start: Uint64
    max_batch_bytes: Uint32
    consumer_id: Uint64


@dataclass(frozen=True, slots=True)
class SubscribeAck(LayoutMessage):
    """Where the consumer starts (LWP §5.12)."""

    COMMAND = Command.SUBSCRIBE_ACK

    consumer_id: Uint64
    start: Uint64


@dataclass(frozen=True, slots=True)
class Unsubscribe(LayoutMessage):
    """End a subscription (LWP §5.13); answered by an Ack with the consumer's id."""

    COMMAND = Command.UNSUBSCRIBE

    topic_id: Uint32
    consumer_id: Uint64


@dataclass(frozen=True, slots=True)
class CommitOffset(LayoutMessage):
    """Remember how far a consumer has come (LWP §5.14)."""

    COMMAND = Command.COMMIT_OFFSET

    topic_id: Uint32
    consumer_id: Uint64
    offset: Uint64


@dataclass(frozen=True, slots=True)
class CommitAck(LayoutMessage):
    """The offset that is remembered now (LWP §5.14)."""

    COMMAND = Command.COMMIT_ACK

    consumer_id: Uint64
    offset: Uint64


# TopicResponse (0x80): JSON answers to the topic commands of LWP §5.3 to §5.11.
#
# One command carries four kinds of answer; its keys tell which. The server in the field
# and this project's add fields to those of the specification; unknown ones are kept in
# `details`.
#
#     create, get       {"id": 1, "name": "events", "created_at": 1706918400, …}
#     list              {"topics": [ …the same… ]}
#     delete            {"deleted": 1}
#     set retention     {"topic_id": 1, "max_age_secs": 86400, "max_bytes": 0}


class TopicResponse(Message):
    """The base of the four answers; decoding it gives the one that came."""

    __slots__ = ()

    COMMAND = Command.TOPIC_RESPONSE

    @classmethod
    def decode_payload(cls, payload: Buffer) -> TopicResponse:
        """Read whichever answer it is."""
        name = TopicResponse.NAME
        reader = DocumentReader(decode_document(payload, name), name)
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
        body: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "created_at": self.created_at_s,
            "topic_epoch": self.epoch,
        }
        if self.retention is not None:
            limits = _write_limits(self.retention)
            # LWP §5.11 has them beside the name; clients in the field look below
            # "retention", as in the metadata of §6.2.
            body.update(limits, retention=limits)
        return {**self.details, **body}

    def encode_payload(self) -> list[Buffer]:
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
    own = _take_limits(reader)
    if flat:
        return own
    return _take_limits(DocumentReader(nested, "retention")) if nested else None


def _take_limits(reader: DocumentReader) -> Retention:
    max_age_s = reader.take_uint("max_age_secs", 64, 0)
    return Retention(max_age_s, reader.take_uint("max_bytes", 64, 0))


def _write_limits(retention: Retention) -> dict[str, int]:
    return {"max_age_secs": retention.max_age_s, "max_bytes": retention.max_bytes}


@dataclass(frozen=True, slots=True)
class TopicListing(TopicResponse):
    """All topics: answer to ListTopics."""

    topics: tuple[TopicInfo, ...]

    def encode_payload(self) -> list[Buffer]:
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
        limits = _write_limits(self.retention)
        return [encode_document({"topic_id": self.topic_id, **limits})]

    @classmethod
    def _read(cls, reader: DocumentReader) -> TopicRetention:
        return cls(reader.take_uint("topic_id", 32), _take_limits(reader))


# ClusterStatus (0x81). LWP names the question (§16.5) and not the answer; the fields
# are those of the server in the field. `capabilities` is an extension: a server that
# lists none is a plain one.


@dataclass(frozen=True, slots=True)
class ClusterStatus(Message):
    """The state of a cluster as one node sees it; the defaults are a single node's.

    `leader_id` is None while there is no leader. Unknown fields are in `details`.
    """

    COMMAND = Command.CLUSTER_STATUS

    node_id: int = 0
    is_leader: bool = True
    leader_id: int | None = 0
    current_term: int = 0
    node_count: int = 1
    healthy_nodes: int = 1
    quorum_available: bool = True
    peer_states: Mapping[str, Any] = field(default_factory=dict, hash=False)
    mode: str = "standalone"
    capabilities: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def encode_payload(self) -> list[Buffer]:
        known = {name: getattr(self, name) for name in _status_defaults()}
        return [encode_document({**self.details, **known})]

    @classmethod
    def decode_payload(cls, payload: Buffer) -> ClusterStatus:
        """Read a payload; what is missing is as on a single node."""
        reader = DocumentReader(decode_document(payload, cls.NAME), cls.NAME)
        has_leader = reader.rest.get("leader_id", 0) is not None
        values: dict[str, Any] = {
            name: reader.take_uint(name, 64, default)
            # In Python a bool is an int, too.
            if type(default) is int
            else reader.take(name, type(default), default)
            for name, default in _status_defaults().items()
        }
        if not has_leader:
            values["leader_id"] = None
        values["capabilities"] = tuple(values["capabilities"])
        if not all(isinstance(name, str) for name in values["capabilities"]):
            raise RemoteProtocolError(f"{cls.NAME}: a capability is not a text")
        return cls(**values, details=reader.rest)


def _status_defaults() -> dict[str, Any]:
    """Give what a status has where a server says nothing, as JSON has it."""
    plain = ClusterStatus()
    names = [field.name for field in fields(plain) if field.name != "details"]
    values = {name: getattr(plain, name) for name in names}
    return {**values, "capabilities": list(plain.capabilities)}
