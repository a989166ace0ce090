"""Which command is which message, and control frames to messages and back.

An error here leaves the stream in step: the frame was whole, its payload made no sense.
A server answers it and goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

from lance_spark.errors import RemoteProtocolError
from lance_spark.model import Buffer
from lance_spark.wire.lwp import control, extension, fetch
from lance_spark.wire.lwp.control import ClusterStatus, TopicResponse
from lance_spark.wire.lwp.error import ErrorResponse
from lance_spark.wire.lwp.frame import (
    Checksum,
    Frame,
    FrameFlags,
    FrameType,
    encode_control,
)
from lance_spark.wire.lwp.message import Command, Message

REQUESTS: Mapping[int, type[Message]] = {
    Command.CREATE_TOPIC: control.CreateTopic,
    Command.DELETE_TOPIC: control.DeleteTopic,
    Command.LIST_TOPICS: control.ListTopics,
    Command.GET_TOPIC: control.GetTopic,
    Command.SET_RETENTION: control.SetRetention,
    Command.CREATE_TOPIC_WITH_RETENTION: control.CreateTopicWithRetention,
    Command.GET_CLUSTER_STATUS_FIELD: control.GetClusterStatus,
    Command.GET_CLUSTER_STATUS: control.GetClusterStatus,
    Command.AUTHENTICATE: control.Authenticate,
    Command.FETCH: fetch.Fetch,
    Command.SUBSCRIBE: control.Subscribe,
    Command.UNSUBSCRIBE: control.Unsubscribe,
    Command.COMMIT_OFFSET: control.CommitOffset,
    Command.LOCATE: extension.Locate,
    Command.OPEN_STAGE: extension.OpenStage,
    Command.COMMIT_STAGES: extension.CommitStages,
    Command.ABORT_STAGES: extension.AbortStages,
    Command.WAIT: extension.Wait,
    Command.DELETE_PARTITIONS: extension.DeletePartitions,
    Command.JOIN_GROUP: extension.JoinGroup,
    Command.GROUP_HEARTBEAT: extension.GroupHeartbeat,
    Command.LEAVE_GROUP: extension.LeaveGroup,
}

RESPONSES: Mapping[int, type[Message]] = {
    Command.AUTHENTICATE_RESPONSE: control.AuthenticateResponse,
    Command.FETCH_RESPONSE: fetch.FetchResponse,
    Command.CATCHING_UP: fetch.CatchingUp,
    Command.SUBSCRIBE_ACK: control.SubscribeAck,
    Command.COMMIT_ACK: control.CommitAck,
    Command.LOCATE_RESPONSE: extension.LocateResponse,
    Command.STAGE_OPENED: extension.StageOpened,
    Command.STAGES_COMMITTED: extension.StagesCommitted,
    Command.STAGES_ABORTED: extension.StagesAborted,
    Command.WAIT_RESPONSE: extension.WaitResponse,
    Command.GROUP_JOINED: extension.GroupJoined,
    Command.GROUP_HEARTBEAT_RESPONSE: extension.GroupHeartbeatResponse,
    Command.GROUP_LEFT: extension.GroupLeft,
    # Abstract, but its decoder returns one of its concrete subclasses.
    Command.TOPIC_RESPONSE: TopicResponse,  # type: ignore[type-abstract]
    Command.CLUSTER_STATUS: ClusterStatus,
    Command.ERROR_RESPONSE: ErrorResponse,
}


def encode_message(
    message: Message, *, checksum: Checksum = Checksum.CRC32C
) -> list[Buffer]:
    """Write a message as a control frame.

    Returns:
        Buffers to be sent one after the other; large data is not copied.

    Raises:
        LocalProtocolError: if a field does not fit.
    """
    payload = message.encode_payload()
    return encode_control(message.COMMAND, payload, checksum=checksum)


def decode_request(frame: Frame) -> Message:
    """Read what a client asks.

    Raises:
        RemoteProtocolError: if the command is unknown or its payload malformed.
    """
    return _decode(frame, REQUESTS)


def decode_response(frame: Frame, *, extended: bool = False) -> Message:
    """Read what a server answers.

    Args:
        frame: a control frame.
        extended: the question was a Fetch that asked for the extended header.

    Raises:
        RemoteProtocolError: if the command is unknown or its payload malformed.
    """
    if extended and frame.command == Command.FETCH_RESPONSE:
        return _decode(frame, _EXTENDED)
    return _decode(frame, RESPONSES)


_EXTENDED: Mapping[int, type[Message]] = {
    Command.FETCH_RESPONSE: fetch.ExtendedFetchResponse
}


# Operations on flags themselves take longer than all else here.
_PACKED = int(FrameFlags.COMPRESSED | FrameFlags.ENCRYPTED)


def _decode(frame: Frame, table: Mapping[int, type[Message]]) -> Message:
    if frame.type is not FrameType.CONTROL:
        raise RemoteProtocolError(f"expected a control frame, not {frame}")
    # LWP compresses batches only; read as plain, these bytes would mean anything.
    if int(frame.flags) & _PACKED:
        raise RemoteProtocolError(f"compressed or encrypted {frame}")
    message_type = table.get(frame.command)
    if message_type is None:
        raise RemoteProtocolError(f"unexpected command 0x{frame.command:02X}")
    return message_type.decode_payload(frame.payload)
