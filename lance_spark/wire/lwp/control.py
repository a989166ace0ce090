"""The binary requests and responses of LWP §5, and those met only in the field.

Fetch and its answers are in `fetch`, responses in JSON in `topic` and `cluster`, the
error response in `error`, our own commands in `extension`. Topic names are judged by
the broker, which has an error code for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lance_spark.model import Buffer, Retention
from lance_spark.wire.lwp.command import Command
from lance_spark.wire.lwp.field import (
    REST_TEXT,
    TEXT,
    TRUTH,
    U16,
    U32,
    U64,
    Group,
    PayloadReader,
)
from lance_spark.wire.lwp.message import LayoutMessage

RETENTION = Group(Retention, U64, U64)


@dataclass(frozen=True, slots=True)
class CreateTopic(LayoutMessage):
    """Create a topic (LWP §5.3)."""

    COMMAND = Command.CREATE_TOPIC
    NAME = "create topic"
    LAYOUT = (REST_TEXT,)

    name: str


@dataclass(frozen=True, slots=True)
class CreateTopicWithRetention(LayoutMessage):
    """Create a topic and say how long it keeps its data (LWP §5.11)."""

    COMMAND = Command.CREATE_TOPIC_WITH_RETENTION
    NAME = "create topic"
    LAYOUT = (TEXT, RETENTION)

    name: str
    retention: Retention

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
    NAME = "delete topic"
    LAYOUT = (U32,)

    topic_id: int


@dataclass(frozen=True, slots=True)
class ListTopics(LayoutMessage):
    """Ask for all topics (LWP §5.4)."""

    COMMAND = Command.LIST_TOPICS
    NAME = "list topics"
    LAYOUT = ()


@dataclass(frozen=True, slots=True)
class GetTopic(LayoutMessage):
    """Ask for one topic (LWP §5.5)."""

    COMMAND = Command.GET_TOPIC
    NAME = "get topic"
    LAYOUT = (U32,)

    topic_id: int


@dataclass(frozen=True, slots=True)
class SetRetention(LayoutMessage):
    """Change how long a topic keeps its data (LWP §5.10)."""

    COMMAND = Command.SET_RETENTION
    NAME = "set retention"
    LAYOUT = (U32, RETENTION)

    topic_id: int
    retention: Retention


@dataclass(frozen=True, slots=True)
class GetClusterStatus(LayoutMessage):
    """Ask who leads and what the server can do.

    Sent as 0x07, which every server knows; also read as 0x30, the code of LWP §16.5.
    """

    COMMAND = Command.GET_CLUSTER_STATUS_FIELD
    NAME = "get cluster status"
    LAYOUT = ()


@dataclass(frozen=True, slots=True)
class Authenticate(LayoutMessage):
    """Present a token, which stays out of `repr` and so out of logs."""

    COMMAND = Command.AUTHENTICATE
    NAME = "authenticate"
    LAYOUT = (REST_TEXT,)

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AuthenticateResponse(LayoutMessage):
    """Say whether the token was taken, and why not."""

    COMMAND = Command.AUTHENTICATE_RESPONSE
    NAME = "authenticate response"
    LAYOUT = (TRUTH, REST_TEXT)

    ok: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class Subscribe(LayoutMessage):
    """Announce a consumer and ask where it starts (LWP §5.12)."""

    COMMAND = Command.SUBSCRIBE
    NAME = "subscribe"
    LAYOUT = (U32, U64, U32, U64)

    topic_id: int
    start: int
    max_batch_bytes: int
    consumer_id: int


@dataclass(frozen=True, slots=True)
class SubscribeAck(LayoutMessage):
    """Where the consumer starts (LWP §5.12)."""

    COMMAND = Command.SUBSCRIBE_ACK
    NAME = "subscribe ack"
    LAYOUT = (U64, U64)

    consumer_id: int
    start: int


@dataclass(frozen=True, slots=True)
class Unsubscribe(LayoutMessage):
    """End a subscription (LWP §5.13); answered by an Ack with the consumer's id."""

    COMMAND = Command.UNSUBSCRIBE
    NAME = "unsubscribe"
    LAYOUT = (U32, U64)

    topic_id: int
    consumer_id: int


@dataclass(frozen=True, slots=True)
class CommitOffset(LayoutMessage):
    """Remember how far a consumer has come (LWP §5.14)."""

    COMMAND = Command.COMMIT_OFFSET
    NAME = "commit offset"
    LAYOUT = (U32, U64, U64)

    topic_id: int
    consumer_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class CommitAck(LayoutMessage):
    """The offset that is remembered now (LWP §5.14)."""

    COMMAND = Command.COMMIT_ACK
    NAME = "commit ack"
    LAYOUT = (U64, U64)

    consumer_id: int
    offset: int
