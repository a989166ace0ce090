"""LWP with our extensions: what each command of a client means.

Each command is answered by the method of its name, which returns the answer or a
request that stands, or raises an error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lance_spark import __version__
from lance_spark.broker.assignment import Strategy
from lance_spark.broker.budget import TokenBucket
from lance_spark.broker.lwp.ingest import (
    COMPRESSED,
    Dedup,
    Unpacked,
    check_ingest,
    read_batch,
)
from lance_spark.broker.lwp.session import FrameSession
from lance_spark.broker.service import Reading
from lance_spark.broker.session import Owed, Shared, StandingRequest
from lance_spark.errors import (
    AuthenticationFailed,
    InvalidOffset,
    LanceError,
    RateLimited,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.net.stream import Stream
from lance_spark.store import NamedStage, Topic
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import STAGE_ID_MIN, Command, FetchFlags, Message

# Plain integers: an operation on an enumeration takes ten times as long.
_WAIT, _SNAP = int(FetchFlags.WAIT), int(FetchFlags.SNAP)
_EXTENDED = int(FetchFlags.EXTENDED)
CAPABILITIES = tuple(capability.value for capability in wire.Capability)
# What a client has to know before it asks.
_LIMITS = {wire.WAIT_POSITIONS_MAX: wire.LIST_LIMITS["Wait.positions"]}
# How many bytes a topic takes in a list, as JSON, and how many beside its name in the
# answer to a member of a group.
_TOPIC_BYTES = 512
_ASSIGNED_BYTES = 64
# A payload that can't be read is a bad offset for these, and a bad payload otherwise.
_OFFSET_COMMANDS = (Command.FETCH, Command.LOCATE)

# How much is shown of what clients can make many of. Every client asks for the status
# when it connects, so that it has to stay small.
_GROUPS_SHOWN_BYTES = 64 * 1024
_CONSUMERS_SHOWN = 1000


class LwpSession(FrameSession):
    """A client of the whole protocol, extensions included."""

    def __init__(self, stream: Stream, shared: Shared) -> None:
        super().__init__(stream, shared, idle_timeout_s=shared.config.idle_timeout_s)
        self._dedup = Dedup(self._config.dedup_window)
        # Batches that were written, and not durable in time.
        self._unsure: dict[int, Owed] = {}
        rate = self._config.fetch_rate_limit
        self._fetches = TokenBucket(rate, max(1, int(rate))) if rate else None

    # Batches.

    def _ingest(self, frame: wire.Frame) -> None:
        check_ingest(frame)
        # Stages know their own batches, over any connection.
        staged = frame.topic_id >= STAGE_ID_MIN
        if not staged and self._is_repeated(frame):
            self._acknowledge_again(frame.batch_id)
            return
        self._append_batch(frame, self._unpack(frame))
        if not staged:
            self._dedup.remember(frame)

    def _acknowledge_again(self, batch_id: int) -> None:
        unsure = self._unsure.pop(batch_id, None)
        if unsure is not None:
            self._owe(unsure)
        else:
            self._send([wire.encode_ack(batch_id, checksum=self.checksum)])

    def _is_repeated(self, frame: wire.Frame) -> bool:
        if not self._dedup.is_repeated(frame):
            return False
        # Its first copy may still be owed, and the disk may refuse that.
        self._settle()
        return self._dedup.is_repeated(frame)

    def _fail_batch(self, owed: Owed, failure: LanceError) -> None:
        if owed.target >= STAGE_ID_MIN:
            return  # Stages know their own batches.
        if isinstance(failure, Timeout):
            # It is written and may become durable: if it comes again, it is owed again.
            self._unsure[owed.request] = replace(owed, size=0)
        else:
            self._dedup.forget(owed.request)

    def _unpack(self, frame: wire.Frame) -> Unpacked:
        bytes_max = self._config.payload_bytes_max
        if int(frame.flags) & COMPRESSED:
            room = wire.decompressed_bytes_max(frame.payload, bytes_max)
            if not self._hold(room):
                raise Timeout("there was no memory to decompress the batch")
        return read_batch(
            frame,
            strict=self._config.payload_validation == "strict",
            bytes_max=bytes_max,
            crc=self.checksum,
        )

    # Commands.

    def _decode(self, frame: wire.Frame) -> Message:
        try:
            return wire.decode_request(frame)
        except RemoteProtocolError as error:
            if frame.command in _OFFSET_COMMANDS:
                raise InvalidOffset(str(error)) from error
            raise

    def _authenticate(self, message: wire.Authenticate) -> Message:
        try:
            self._present(message.token)
        except AuthenticationFailed as error:
            self._metrics.count_error(wire.code_of(error))
            return wire.AuthenticateResponse(False, error.message)
        return wire.AuthenticateResponse(True)

    def _get_cluster_status(self, message: wire.GetClusterStatus) -> Message:
        groups, is_cut = self._describe_groups()
        details = {
            "server": f"lance_spark/{__version__}",
            "limits": _LIMITS,
            "topics_version": self._service.topics_version,
            "groups": groups,
            "groups_truncated": is_cut,
        }
        return wire.ClusterStatus(capabilities=CAPABILITIES, details=details)

    def _create_topic(
        self, message: wire.CreateTopic | wire.CreateTopicWithRetention
    ) -> Message:
        retention = getattr(message, "retention", None)
        topic = self._service.create_topic(self._client, message.name, retention)
        return _describe(topic)

    def _delete_topic(self, message: wire.DeleteTopic) -> Message:
        self._service.delete_topic(self._client, message.topic_id)
        return wire.TopicDeletion(message.topic_id)

    def _delete_partitions(self, message: wire.DeletePartitions) -> Message:
        self._service.delete_topic(self._client, message.topic_id, message.partitions)
        return wire.TopicDeletion(message.topic_id)

    def _list_topics(self, message: wire.ListTopics) -> Message:
        topics = self._service.topics(self._client)
        self._hold_answer(len(topics) * _TOPIC_BYTES)
        return wire.TopicListing(tuple(_describe(topic) for topic in topics))

    def _get_topic(self, message: wire.GetTopic) -> Message:
        topic = self._service.topic(self._client, message.topic_id)
        known = self._service.consumers(self._client, message.topic_id)
        consumers = [
            {
                "consumer_id": state.consumer,
                "committed_offset": state.committed,
                "max_batch_bytes": state.max_batch_bytes,
            }
            for state in known[:_CONSUMERS_SHOWN]
        ]
        info = _describe(topic)
        stages = self._service.open_stages(self._client, message.topic_id)
        more = {"consumers": consumers, "consumer_count": len(known), "stages": stages}
        return replace(info, details={**info.details, **more})

    def _set_retention(self, message: wire.SetRetention) -> Message:
        self._service.set_retention(self._client, message.topic_id, message.retention)
        return wire.TopicRetention(message.topic_id, message.retention)

    # Reading.

    def _fetch(self, message: wire.Fetch) -> StandingRequest | None:
        self._limit_fetches()
        max_bytes = min(message.max_bytes, self._config.fetch_bytes_max)
        flags = int(message.flags)
        snap = bool(flags & _SNAP)

        def read() -> Reading:
            return self._service.read(
                self._client, message.topic_id, message.start, max_bytes, snap=snap
            )

        reading = read()
        if not flags & _WAIT or len(reading.slice):
            self._send_reading(message, reading)
            return None
        topic, position = message.topic_id, reading.slice.end

        def attempt(final: bool) -> bool:
            end = self._service.ends(self._client, [topic]).get(topic)
            # A topic that is gone ends the wait, too.
            if not final and end is not None and end <= position:
                return False
            self._send_reading(message, read())
            return True

        return StandingRequest({topic: position}, attempt, self._wait_s(message))

    def _send_reading(self, message: wire.Fetch, reading: Reading) -> None:
        found = reading.slice
        if int(message.flags) & _EXTENDED:
            end = reading.high_water_mark
            head = wire.encode_extended_head(found.start, found.end, end)
        else:
            head = wire.encode_fetch_head(found.end, len(found), found.records)
        self._send_slice(head, found)

    def _wait_s(self, message: wire.Fetch | wire.Wait) -> float:
        return min(message.max_wait_ms / 1000, self._config.wait_s_max)

    def _limit_fetches(self) -> None:
        wait_s = self._fetches.take() if self._fetches is not None else 0
        if wait_s > 0:
            raise RateLimited(
                f"Rate limit exceeded: {self._config.fetch_rate_limit:g} requests/sec",
                details={"retry_after_ms": max(1, int(wait_s * 1000) + 1)},
            )

    def _locate(self, message: wire.Locate) -> Message:
        kind = message.kind.name.lower()
        at = self._service.locate(self._client, message.topic_id, kind, message.value)
        return wire.LocateResponse(at.offset, at.record, at.append_time_ns)

    def _wait(self, message: wire.Wait) -> StandingRequest:
        offsets = {p.topic_id: p.offset for p in message.positions}

        def attempt(final: bool) -> bool:
            # The version first: a topic that comes between the two is seen again.
            version = self._service.topics_version
            ends = self._service.ends(self._client, offsets)
            if (
                not final
                and version == message.version
                and not any(end > offsets[topic] for topic, end in ends.items())
            ):
                return False
            positions = tuple(wire.TopicPosition(t, end) for t, end in ends.items())
            answer = wire.WaitResponse(version, positions)
            self._send(wire.encode_message(answer, checksum=self.checksum))
            return True

        return StandingRequest(offsets, attempt, self._wait_s(message), topics=True)

    # Stages.

    def _open_stage(self, message: wire.OpenStage) -> Message:
        stage = self._service.open_stage(
            self._client, message.topic, message.writer_id, message.sequence
        )
        return wire.StageOpened(stage)

    def _commit_stages(self, message: wire.CommitStages) -> Message:
        result = self._service.commit_stages(
            self._client,
            message.writer_id,
            message.sequence,
            stages=[
                NamedStage(s.stage_id, s.batch_count, s.byte_count)
                for s in message.stages
            ],
            overwrite=message.overwrite,
        )
        spans = [wire.TopicSpan(r.topic, r.name, r.start, r.end) for r in result.ranges]
        return wire.StagesCommitted(result.status, tuple(spans))

    def _abort_stages(self, message: wire.AbortStages) -> Message:
        dropped = self._service.abort_stages(
            self._client, message.writer_id, message.sequence
        )
        return wire.StagesAborted(dropped)

    # Consumers and groups.

    def _subscribe(self, message: wire.Subscribe) -> Message:
        start = self._service.subscribe(
            self._client,
            message.topic_id,
            message.consumer_id,
            start=message.start,
            max_batch_bytes=message.max_batch_bytes,
        )
        return wire.SubscribeAck(message.consumer_id, start)

    def _unsubscribe(self, message: wire.Unsubscribe) -> None:
        self._service.unsubscribe(self._client, message.topic_id, message.consumer_id)
        self._send([wire.encode_ack(message.consumer_id, checksum=self.checksum)])

    def _commit_offset(self, message: wire.CommitOffset) -> Message:
        self._service.commit_offset(
            self._client, message.topic_id, message.consumer_id, message.offset
        )
        return wire.CommitAck(message.consumer_id, message.offset)

    def _join_group(self, message: wire.JoinGroup) -> Message:
        joined = self._service.join_group(
            self._client,
            message.group,
            message.member,
            topics=message.topics,
            strategy=Strategy[message.strategy.name],
            session_timeout_s=message.session_timeout_ms / 1000,
        )
        return wire.GroupJoined(
            joined.generation, joined.member, self._assigned(joined.topics)
        )

    def _group_heartbeat(self, message: wire.GroupHeartbeat) -> Message:
        beat = self._service.beat_group(
            self._client, message.group, message.member, message.generation
        )
        return wire.GroupHeartbeatResponse(beat.generation, self._assigned(beat.topics))

    def _leave_group(self, message: wire.LeaveGroup) -> Message:
        self._service.leave_group(self._client, message.group, message.member)
        return wire.GroupLeft()

    def _assigned(self, names: tuple[str, ...]) -> tuple[wire.AssignedTopic, ...]:
        self._hold_answer(sum(map(len, names)) + len(names) * _ASSIGNED_BYTES)
        ids = self._service.resolve(self._client, names)
        return tuple(wire.AssignedTopic(ids[n], n) for n in names if n in ids)

    def _describe_groups(self) -> tuple[list[dict[str, Any]], bool]:
        """List the groups, as many as fit; tell whether some were left out."""
        shown: list[dict[str, Any]] = []
        room = _GROUPS_SHOWN_BYTES
        for group in self._service.describe_groups(self._client):
            members = [
                {"member": member, "topics": list(topics)}
                for member, topics in group.members.items()
            ]
            room -= len(group.group) + sum(
                len(member) + sum(map(len, topics)) + 32
                for member, topics in group.members.items()
            )
            if room < 0:
                return shown, True
            shown.append(
                {
                    "group": group.group,
                    "generation": group.generation,
                    "strategy": group.strategy.name.lower(),
                    "members": members,
                }
            )
        return shown, False


def _describe(topic: Topic) -> wire.TopicInfo:
    metadata = topic.metadata
    start, end, _ = topic.log.snapshot()
    # A topic without this is whole: a slash alone does not make a name a partition's.
    family = {} if metadata.partitions is None else {"partitions": metadata.partitions}
    return wire.TopicInfo(
        metadata.id,
        metadata.name,
        metadata.created_at,
        metadata.epoch,
        metadata.retention,
        {
            "log_start": start.offset,
            "log_end": end.offset,
            "first_record": start.record,
            "record_count": end.record - start.record,
            **family,
        },
    )
