"""A request that was sent, and which answers fit it.

Who reads the stream is the connection's affair; here is what one request waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING

from lance_spark.errors import LanceError, RemoteProtocolError, Timeout
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import (
    AbortStages,
    Authenticate,
    AuthenticateResponse,
    CatchingUp,
    ClusterStatus,
    CommitAck,
    CommitOffset,
    CommitStages,
    CreateTopic,
    CreateTopicWithRetention,
    DeleteTopic,
    ExtendedFetchResponse,
    Fetch,
    FetchResponse,
    Frame,
    GetClusterStatus,
    GetTopic,
    GroupHeartbeat,
    GroupHeartbeatResponse,
    GroupJoined,
    GroupLeft,
    JoinGroup,
    LeaveGroup,
    ListTopics,
    Locate,
    LocateResponse,
    Message,
    OpenStage,
    SetRetention,
    StageOpened,
    StagesAborted,
    StagesCommitted,
    Subscribe,
    SubscribeAck,
    TopicDeletion,
    TopicInfo,
    TopicListing,
    TopicRetention,
    Unsubscribe,
    Wait,
    WaitResponse,
    decode_response,
)

if TYPE_CHECKING:
    from lance_spark.client.connection import Connection

# Anything else in answer means that client and server are out of step. Unsubscribe is
# answered by an Ack frame, which is no message.
ANSWERS: Mapping[type[Message], tuple[type[Message], ...]] = {
    AbortStages: (StagesAborted,),
    Authenticate: (AuthenticateResponse,),
    CommitOffset: (CommitAck,),
    CommitStages: (StagesCommitted,),
    CreateTopic: (TopicInfo,),
    CreateTopicWithRetention: (TopicInfo,),
    DeleteTopic: (TopicDeletion,),
    Fetch: (FetchResponse, ExtendedFetchResponse, CatchingUp),
    GetClusterStatus: (ClusterStatus,),
    GetTopic: (TopicInfo,),
    GroupHeartbeat: (GroupHeartbeatResponse,),
    JoinGroup: (GroupJoined,),
    LeaveGroup: (GroupLeft,),
    ListTopics: (TopicListing,),
    Locate: (LocateResponse,),
    OpenStage: (StageOpened,),
    SetRetention: (TopicRetention,),
    Subscribe: (SubscribeAck,),
    Unsubscribe: (),
    Wait: (WaitResponse,),
}
_COMMANDS = {asked: {a.COMMAND for a in given} for asked, given in ANSWERS.items()}


class Pending:
    """A request on its way; made by `Connection.submit`.

    Args:
        connection: where the answer will come.
        request: what was asked.
        extended: it is a Fetch that asked for the extended header.
    """

    __slots__ = (
        "_connection",
        "_error",
        "_extended",
        "_frame",
        "_is_given_up",
        "request",
        "sent_s",
    )

    def __init__(
        self, connection: Connection, request: Message, *, extended: bool
    ) -> None:
        self.request = request
        self.sent_s = 0.0
        self._connection = connection
        self._extended = extended
        self._frame: Frame | None = None
        self._error: LanceError | None = None
        self._is_given_up = False

    # For whoever asked.

    def result(self, deadline: Deadline) -> Message:
        """Wait for the answer; an Ack is given back as the request that it answers.

        After a Timeout it may be called again.

        Raises:
            BrokerError: the server refused the request.
            ConnectionLost: the connection ended first.
            RemoteProtocolError: the answer makes no sense; the connection is dropped.
            Timeout: the deadline passed.
        """
        self._connection.wait_for(self, deadline)
        if self._error is not None:
            # A copy: several threads may be given the same failure.
            raise copy(self._error)
        if self._frame is None:
            raise Timeout(
                f"{self._connection.address}: no answer in time to "
                f"{self.request.NAME!r}"
            )
        try:
            return self._decode(self._frame)
        except RemoteProtocolError as error:
            self._connection.fail(error)
            raise

    def conclude(self, deadline: Deadline) -> Message:
        """Wait for the answer as `result` does, but for the last time."""
        try:
            return self.result(deadline)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Say that nobody will wait for the answer; it is dropped when it comes.

        If nobody else waits on the connection either, it is dropped as well. An
        answer that is there already makes this do nothing.
        """
        if not self.is_done:
            self._is_given_up = True
            self._connection.give_up()

    # For the connection.

    @property
    def is_done(self) -> bool:
        """Whether an answer or a failure has come."""
        return self._frame is not None or self._error is not None

    @property
    def is_given_up(self) -> bool:
        """Whether nobody will wait for the answer."""
        return self._is_given_up

    def check_fit(self, frame: Frame) -> None:
        """Check that a control frame can be the answer.

        Raises:
            RemoteProtocolError: it can't.
        """
        commands = _COMMANDS.get(type(self.request))
        if commands is not None and frame.command not in commands:
            raise RemoteProtocolError(
                f"{frame} came in answer to {self.request.NAME!r}"
            )

    def is_acked_by(self, frame: Frame) -> bool:
        """Tell whether an Ack frame is the answer."""
        request = self.request
        return isinstance(request, Unsubscribe) and request.consumer_id == (
            frame.batch_id
        )

    def resolve(self, frame: Frame) -> None:
        """Take the answer."""
        self._frame = frame

    def fail(self, error: LanceError) -> None:
        """Take note that no answer will come, or that it is a refusal."""
        self._error = error

    def _decode(self, frame: Frame) -> Message:
        if self.is_acked_by(frame):
            return self.request
        message = decode_response(frame, extended=self._extended)
        answers = ANSWERS.get(type(self.request))
        if answers is not None and not isinstance(message, answers):
            raise RemoteProtocolError(
                f"{type(message).__name__} came in answer to {self.request.NAME!r}"
            )
        return message
