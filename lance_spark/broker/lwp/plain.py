"""LWP as the LANCE server in the field speaks it: a stand-in for tests.

It differs from `command` in what was seen of that server, its faults included:

- CRC-32, errors as bare text, no capabilities, none of our commands;
- payloads are stored as they come: not checked, not decompressed, never recognised as
  repeated; so a log may end inside a record;
- a Fetch is cut at the byte, its record count is 0 or 1, and one from behind the end
  is answered with CatchingUp (0x12);
- offsets are positions in what is left: they shift when retention deletes;
- a retention of 0 deletes everything but the last segment;
- topic names are letters, digits and hyphens; topic 0 can be written and not read;
- committed offsets are forgotten at the end of the process, and never checked;
- no idle timeout, and every keepalive is answered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from lance_spark import errors
from lance_spark.broker.lwp.ingest import Unpacked, find_starts
from lance_spark.broker.lwp.session import FrameSession
from lance_spark.broker.session import Shared
from lance_spark.errors import BrokerError, PayloadOverLimit, RemoteProtocolError
from lance_spark.model import Retention
from lance_spark.net.stream import Stream
from lance_spark.store import DEFAULT_TOPIC, Topic
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import OFFSET_MAX, Command, Message

# That server waits for ever. This broker has an end for everything.
_IDLE_TIMEOUT_S = 24 * 3600.0
_NAME = re.compile(r"[A-Za-z0-9-]+")
_FETCH_BYTES = 16
_COMMITTED_MAX = 100_000
# It looks at the low byte of a command only.
_COMMAND_MASK = 0xFF

_TEXTS: Mapping[type[BrokerError], str] = {
    errors.TopicNotFound: "Topic not found",
    errors.TopicDeleted: "Topic not found",
    errors.AuthenticationRequired: "Authentication required",
}
# That server has no stages: the id of a stage is an unknown topic there.
_UNKNOWN = (errors.TopicNotFound, errors.TopicDeleted, errors.StageNotFound)


class PlainSession(FrameSession):
    """A client that takes this broker for a server without extensions."""

    # Per (consumer, topic), and shared by the sessions of a process.
    def __init__(
        self, stream: Stream, shared: Shared, committed: dict[tuple[int, int], int]
    ) -> None:
        super().__init__(stream, shared, idle_timeout_s=_IDLE_TIMEOUT_S)
        self._committed = committed

    def _reject(self, error: RemoteProtocolError) -> None:
        if not isinstance(error, PayloadOverLimit):
            super()._reject(error)
        # Otherwise close, too, and say nothing of it.

    def _refuse(self, error: BrokerError, frame: wire.Frame | None) -> None:
        text = _TEXTS.get(type(error), error.message)
        if frame is not None and frame.type is wire.FrameType.INGEST:
            text = "Unknown topic" if isinstance(error, _UNKNOWN) else error.message
        super()._refuse(type(error)(text), frame)

    def _keepalive(self) -> None:
        self._send([wire.encode_keepalive(checksum=self.checksum)])

    def _empty(self, frame: wire.Frame) -> None:
        """Say nothing."""

    def _slow_down(self) -> None:
        """Send no Backpressure: that server never does."""

    def _ingest(self, frame: wire.Frame) -> None:
        if len(frame.payload):
            starts = find_starts(frame.payload)
            self._append_batch(frame, Unpacked(frame.payload, starts))

    # Commands.

    def _decode(self, frame: wire.Frame) -> Message:
        command = frame.command & _COMMAND_MASK
        frame = replace(frame, batch_id=command)
        if command == Command.FETCH:
            if not len(frame.payload):
                raise errors.InvalidOffset("Fetch request payload required")
            if len(frame.payload) < _FETCH_BYTES:
                text = "Protocol error: Fetch request payload too small"
                raise errors.InvalidOffset(text)
            # That server does not look at the rest.
            frame = replace(frame, payload=frame.payload[:_FETCH_BYTES])
        known = wire.REQUESTS.get(command)
        if known not in self._handlers or command == Command.GET_CLUSTER_STATUS:
            raise errors.InvalidPayload("Invalid client command")
        return wire.decode_request(frame)

    def _authenticate(self, message: wire.Authenticate) -> Message:
        try:
            self._client = self._service.gate.authenticate(self._client, message.token)
        except errors.AuthenticationFailed as error:
            return wire.AuthenticateResponse(False, error.message)
        return wire.AuthenticateResponse(True)

    def _get_cluster_status(self, message: wire.GetClusterStatus) -> Message:
        return wire.ClusterStatus()

    # Topics.

    def _create_topic(
        self, message: wire.CreateTopic | wire.CreateTopicWithRetention
    ) -> Message:
        name = message.name
        if name and not _NAME.fullmatch(name):
            raise errors.InvalidTopicName(
                f"Invalid data: Topic name '{name}' contains invalid characters. "
                "Only letters, digits and hyphens are allowed"
            )
        if isinstance(message, wire.CreateTopic):
            return _describe(self._service.create_topic(self._client, name))
        retention = _translate(message.retention)
        topic = self._service.create_topic(self._client, name, retention)
        return replace(_describe(topic), retention=message.retention)

    def _delete_topic(self, message: wire.DeleteTopic) -> Message:
        with _configuring(message.topic_id):
            self._service.delete_topic(self._client, message.topic_id)
        return wire.TopicDeletion(message.topic_id)

    def _list_topics(self, message: wire.ListTopics) -> Message:
        topics = self._service.topics(self._client)
        return wire.TopicListing(tuple(_describe(topic) for topic in topics))

    def _get_topic(self, message: wire.GetTopic) -> Message:
        return _describe(self._readable(message.topic_id))

    def _set_retention(self, message: wire.SetRetention) -> Message:
        translated = _translate(message.retention)
        with _configuring(message.topic_id):
            self._service.set_retention(self._client, message.topic_id, translated)
        return wire.TopicRetention(message.topic_id, message.retention)

    def _readable(self, topic: int) -> Topic:
        if topic == DEFAULT_TOPIC:
            raise errors.UnknownTopic(topic)
        return self._service.topic(self._client, topic)

    # Reading.

    def _fetch(self, message: wire.Fetch) -> Message | None:
        try:
            self._readable(message.topic_id)
            view = self._service.view(self._client, message.topic_id)
        except errors.UnknownTopic as error:
            text = f"Topic {message.topic_id} not found"
            raise errors.UnknownError(text) from error
        shift = view.start.offset
        end = view.end.offset - shift
        start = end if message.start == OFFSET_MAX else message.start
        if start > end:
            return wire.CatchingUp(end)
        max_bytes = min(message.max_bytes, self._config.fetch_bytes_max)
        found = view.read_bytes(start + shift, max_bytes)
        self._metrics.fetched(message.topic_id, found.records, len(found))
        count = 1 if len(found) else 0
        head = wire.encode_fetch_head(found.end - shift, len(found), count)
        self._send_slice(head, found)
        return None

    # Consumers.

    def _check_access(self, topic: int) -> None:
        # That server checks nothing here. The rules of access hold all the same.
        self._service.ends(self._client, [topic])

    def _subscribe(self, message: wire.Subscribe) -> Message:
        self._check_access(message.topic_id)
        if message.topic_id != DEFAULT_TOPIC:
            self._service.topic(self._client, message.topic_id)
        start = message.start
        if start == 0:
            start = self._committed.get((message.consumer_id, message.topic_id), 0)
        return wire.SubscribeAck(message.consumer_id, start)

    def _unsubscribe(self, message: wire.Unsubscribe) -> None:
        self._check_access(message.topic_id)
        self._send([wire.encode_ack(message.consumer_id, checksum=self.checksum)])

    def _commit_offset(self, message: wire.CommitOffset) -> Message:
        self._check_access(message.topic_id)
        self._committed[message.consumer_id, message.topic_id] = message.offset
        if len(self._committed) > _COMMITTED_MAX:
            # That server would keep it; a stand-in has to bound its memory.
            self._committed.pop(next(iter(self._committed)))
        return wire.CommitAck(message.consumer_id, message.offset)


@contextmanager
def _configuring(topic: int) -> Iterator[None]:
    """Use the text of that server for a topic that it can't change."""
    try:
        yield
    except errors.UnknownTopic as error:
        text = f"Configuration error: Topic {topic} not found"
        raise errors.UnknownError(text) from error


def _describe(topic: Topic) -> wire.TopicInfo:
    metadata = topic.metadata
    return wire.TopicInfo(
        metadata.id, metadata.name, metadata.created_at, metadata.epoch
    )


def _translate(retention: Retention) -> Retention:
    """Give the limits under which this store deletes what that server would."""
    if retention.max_age_s and retention.max_bytes:
        return retention
    # Every closed segment is older than 0 s, and any size exceeds 0 bytes.
    return Retention(retention.max_age_s, 1)
