"""How a connection speaks LWP.

Answers carry no number, so they are matched by order: LWP has nothing else. Acks,
refusals and slow-downs of batches are pushes. Servers in the field use another checksum
than the specification says, and close connections whose checksum is not theirs; with
`checksum=auto` both are tried, and what a server took is remembered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lance_spark.client.connection import Connection
from lance_spark.client.dialect import (
    NO_REQUEST,
    Acked,
    Candidates,
    ConnectionEnded,
    Refused,
    SlowDown,
)
from lance_spark.client.inbox import Pending
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.errors import (
    AuthenticationFailed,
    BrokerError,
    ConnectionLost,
    InvalidPayload,
    RemoteProtocolError,
    TlsRefused,
    UnknownError,
)
from lance_spark.model import Buffer
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import Checksum, Command, Frame, FrameType, Message

if TYPE_CHECKING:
    from lance_spark.client.outbox import OutgoingBatch

# Anything else in answer means that client and server are out of step. Unsubscribe is
# answered by an Ack frame, which is no message.
ANSWERS: Mapping[type[Message], tuple[type[Message], ...]] = {
    wire.AbortStages: (wire.StagesAborted,),
    wire.Authenticate: (wire.AuthenticateResponse,),
    wire.CommitOffset: (wire.CommitAck,),
    wire.CommitStages: (wire.StagesCommitted,),
    wire.CreateTopic: (wire.TopicInfo,),
    wire.CreateTopicWithRetention: (wire.TopicInfo,),
    wire.DeletePartitions: (wire.TopicDeletion,),
    wire.DeleteTopic: (wire.TopicDeletion,),
    wire.Fetch: (wire.FetchResponse, wire.ExtendedFetchResponse, wire.CatchingUp),
    wire.GetClusterStatus: (wire.ClusterStatus,),
    wire.GetTopic: (wire.TopicInfo,),
    wire.GroupHeartbeat: (wire.GroupHeartbeatResponse,),
    wire.JoinGroup: (wire.GroupJoined,),
    wire.LeaveGroup: (wire.GroupLeft,),
    wire.ListTopics: (wire.TopicListing,),
    wire.Locate: (wire.LocateResponse,),
    wire.OpenStage: (wire.StageOpened,),
    wire.SetRetention: (wire.TopicRetention,),
    wire.Subscribe: (wire.SubscribeAck,),
    wire.Unsubscribe: (),
    wire.Wait: (wire.WaitResponse,),
}
_COMMANDS = {asked: {a.COMMAND for a in given} for asked, given in ANSWERS.items()}


class Keepalive:
    """A keepalive frame (LWP §2.3), as a request; the answer is one, too."""

    NAME = "keepalive"


class LwpDialect:
    """LWP with one of the two checksums.

    Args:
        config: the token, and limits on sizes.
        checksum: the algorithm of both directions.
        learnt: where to note that a server takes this checksum.
    """

    requests_max: int | None = None
    keepalive: Any = Keepalive()

    def __init__(
        self,
        config: ClientConfig,
        checksum: Checksum,
        learnt: dict[Address, Checksum] | None = None,
    ) -> None:
        self.checksum = checksum
        self._learnt = {} if learnt is None else learnt
        # What the server has said of itself.
        self.status = wire.ClusterStatus()
        self.capabilities: frozenset[str] = frozenset()
        self._token = config.auth_token
        self._response_bytes_max = config.response_bytes_max
        # Acks make sense only once a batch was sent.
        self._has_sent_batch = False

    def make_parser(self) -> wire.FrameParser:
        """Make the parser of what the server sends."""
        return wire.FrameParser(
            checksum=self.checksum,
            payload_bytes_max=self._response_bytes_max,
            # It was asked for, so it will come: growing would only cost copies.
            payload_bytes_first=self._response_bytes_max,
        )

    # Out.

    def name_of(self, request: Message | Keepalive) -> str:
        """Name a request in error texts."""
        return request.NAME

    def encode(self, request: Message | Keepalive, number: int) -> Sequence[Buffer]:
        """Write a request; LWP has no place for its number."""
        if isinstance(request, Keepalive):
            return [wire.encode_keepalive(checksum=self.checksum)]
        return wire.encode_message(request, checksum=self.checksum)

    def encode_batch(
        self, batch: OutgoingBatch, target: int, number: int
    ) -> Sequence[Buffer]:
        """Write a batch for a topic or stage as an Ingest frame (LWP §4.1)."""
        self._has_sent_batch = True
        return wire.encode_ingest(
            [batch.payload],
            batch_id=batch.id,
            record_count=batch.records,
            topic_id=target,
            timestamp_ns=time.time_ns(),
            compressed=bool(batch.compressed),
            checksum=self.checksum,
        )

    # In.

    def number_of(self, frame: Frame, waiting: Mapping[int, Pending]) -> int | None:
        """Give the oldest request, if the frame fits it; None for a push."""
        kind = frame.type
        is_keepalive = kind is FrameType.KEEPALIVE
        # Servers in the field let keepalives overtake answers.
        for oldest in waiting.values():
            if isinstance(oldest.request, Keepalive) is is_keepalive:
                break
        else:
            oldest = None
        if is_keepalive:
            # One that answers nothing is dropped, and never answered: two such peers
            # would not stop.
            return None if oldest is None else oldest.number
        if kind is FrameType.CONTROL:
            if frame.command == Command.ERROR_RESPONSE:
                return self._number_of_error(frame, oldest)
            if oldest is not None:
                _check_fit(frame, oldest.request)
                return oldest.number
        elif kind is FrameType.ACK:
            if oldest is not None and _is_acked(oldest.request, frame):
                return oldest.number
            if self._has_sent_batch:
                return None
        elif kind is FrameType.BACKPRESSURE:
            return None
        else:
            raise RemoteProtocolError(f"a server does not send this: {frame}")
        return NO_REQUEST

    def decode(self, frame: Frame, request: Message) -> Message:
        """Read the answer; an Ack or keepalive gives back the request it answers."""
        if frame.type is not FrameType.CONTROL:
            return request
        if frame.command == Command.ERROR_RESPONSE:
            raise _decode_error(frame)
        asks_more = isinstance(request, wire.Fetch) and wire.FetchFlags.EXTENDED in (
            request.flags
        )
        message = wire.decode_response(frame, extended=asks_more)
        answers = ANSWERS.get(type(request))
        if answers is not None and not isinstance(message, answers):
            raise RemoteProtocolError(
                f"{type(message).__name__} came in answer to {request.NAME!r}"
            )
        return message

    def decode_push(self, frame: Frame) -> Acked | Refused | SlowDown | None:
        """Read what a server says about batches (LWP §4.2 to §4.4)."""
        if frame.type is FrameType.ACK:
            return Acked(frame.batch_id)
        if frame.type is not FrameType.CONTROL:
            # No thread would collect a slow-down before the first batch.
            is_wanted = frame.type is FrameType.BACKPRESSURE and self._has_sent_batch
            return SlowDown() if is_wanted else None
        error = _decode_error(frame)
        return Refused(error, _batch_id_of(error))

    def _number_of_error(self, frame: Frame, oldest: Pending | None) -> int | None:
        if self._has_sent_batch:
            if oldest is None or _batch_id_of(_decode_error(frame)) is not None:
                return None
        elif oldest is None:
            # Unasked for, so it is about the connection and the last thing on it.
            raise ConnectionLost(f"the server gave up: {_decode_error(frame)}")
        return oldest.number

    # The greeting.

    def greet(self, connection: Connection, deadline: Deadline) -> None:
        """Authenticate if there is a token, and ask for the server's status."""
        has_answered = False
        try:
            if self._token is not None:
                _authenticate(connection, self._token, deadline)
                has_answered = True
            self.status = _ask_status(connection, deadline)
            self.capabilities = frozenset(self.status.capabilities)
            self._learnt[connection.address] = self.checksum
        except ConnectionLost as error:
            if has_answered or isinstance(error, TlsRefused):
                raise
            raise ConnectionEnded(
                f"{error} before its first answer; if it is up, check that it speaks "
                f"LWP, and that checksum ({self.checksum.value}) and tls are what it "
                "uses"
            ) from error


def make_candidates(config: ClientConfig) -> Candidates:
    """Choose the checksum: the one of the settings, or the one that a server takes."""
    chosen = wire.parse_checksum(config.checksum)
    learnt: dict[Address, Checksum] = {}

    def list_candidates(address: Address) -> list[LwpDialect]:
        if chosen is not None:
            return [LwpDialect(config, chosen)]
        # The likelier first (LWP §11.3). What was learnt may be wrong by now: another
        # server may be there.
        first = learnt.get(address, Checksum.CRC32C)
        both = sorted(Checksum, key=lambda checksum: checksum is not first)
        return [LwpDialect(config, checksum, learnt) for checksum in both]

    return list_candidates


def _check_fit(frame: Frame, request: Message) -> None:
    commands = _COMMANDS.get(type(request))
    if commands is not None and frame.command not in commands:
        raise RemoteProtocolError(f"{frame} came in answer to {request.NAME!r}")


def _is_acked(request: Message, frame: Frame) -> bool:
    if not isinstance(request, wire.Unsubscribe):
        return False
    return request.consumer_id == frame.batch_id


def _decode_error(frame: Frame) -> BrokerError:
    return wire.ErrorResponse.decode_payload(frame.payload).to_exception()


def _batch_id_of(error: BrokerError) -> int | None:
    batch_id = error.details.get("batch_id")
    # Not a bool, which in Python is an int.
    return batch_id if type(batch_id) is int else None


def _authenticate(connection: Connection, token: str, deadline: Deadline) -> None:
    try:
        answer = connection.request(wire.Authenticate(token), deadline=deadline)
    except BrokerError as error:
        # A server may quote what it was sent.
        if token in str(error):
            raise type(error)(_hide(token, error.message), error.code) from None
        raise
    if not answer.ok:
        reason = _hide(token, answer.message) or "the server gave no reason"
        raise AuthenticationFailed(
            f"{connection.address} refused the token: {reason}; check auth_token",
            wire.code_of(AuthenticationFailed),
        )


def _hide(token: str, text: str) -> str:
    return text.replace(token, "***")


def _ask_status(connection: Connection, deadline: Deadline) -> wire.ClusterStatus:
    try:
        status = connection.request(wire.GetClusterStatus(), deadline=deadline)
    except (InvalidPayload, UnknownError):
        # A server that does not know the question has nothing to offer beyond LWP.
        return wire.ClusterStatus()
    assert isinstance(status, wire.ClusterStatus)
    return status
