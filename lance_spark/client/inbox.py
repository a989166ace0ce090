"""Which answer belongs to which question. No stream, no lock, no time.

Answers carry no number, so they are matched by order (LWP has nothing else). Keepalives
have a queue of their own, because servers in the field let them overtake answers. Acks,
refusals and slow-downs of ingests become events.
"""

from __future__ import annotations

from collections import deque

from lance_spark.client.event import Acked, Event, Refused, SlowDown
from lance_spark.client.pending import Pending
from lance_spark.errors import ConnectionLost, LanceError, RemoteProtocolError
from lance_spark.wire.lwp import Command, ErrorResponse, Frame, FrameType


class SentKeepalive:
    """A keepalive on its way, so that an older one's answer is not taken for its."""

    __slots__ = ("is_answered",)

    def __init__(self) -> None:
        self.is_answered = False


class Inbox:
    """What one connection has asked and has not been told yet."""

    def __init__(self) -> None:
        self._pending: deque[Pending] = deque()
        self._keepalives: deque[SentKeepalive] = deque()
        self._events: list[Event] = []
        self._is_ingesting = False

    # Questions.

    def expect(self, pending: Pending) -> None:
        """Take note of a request, in the order in which they are sent."""
        self._pending.append(pending)

    def expect_keepalive(self, keepalive: SentKeepalive) -> None:
        """Take note of a keepalive, in the order in which they are sent."""
        self._keepalives.append(keepalive)

    def expect_events(self) -> None:
        """Keep events from now on; without an ingest nobody would collect them."""
        self._is_ingesting = True

    @property
    def oldest(self) -> Pending | None:
        """The request whose answer is due next."""
        return self._pending[0] if self._pending else None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody still wants an answer that has not come."""
        return any(not pending.is_given_up for pending in self._pending)

    # Answers.

    def deliver(self, frame: Frame) -> None:
        """Hand a frame to whom it is for.

        Raises:
            RemoteProtocolError: it is for nobody: the two sides are out of step.
            ConnectionLost: it is the server's last word on the connection.
        """
        kind = frame.type
        if kind is FrameType.CONTROL:
            self._deliver_control(frame)
        elif kind is FrameType.ACK:
            self._deliver_ack(frame)
        elif kind is FrameType.KEEPALIVE:
            if self._keepalives:
                self._keepalives.popleft().is_answered = True
        elif kind is FrameType.BACKPRESSURE:
            if self._is_ingesting:
                self._events.append(SlowDown())
        else:
            raise RemoteProtocolError(f"a server does not send this: {frame}")

    def take_events(self) -> list[Event]:
        """Return the events that have come since the last time."""
        events, self._events = self._events, []
        return events

    @property
    def has_events(self) -> bool:
        """Whether there are events."""
        return bool(self._events)

    def fail(self, error: LanceError) -> None:
        """Tell everybody that no answer will come; events stay to be taken."""
        for pending in self._pending:
            pending.fail(error)
        self._pending.clear()
        self._keepalives.clear()

    def _deliver_control(self, frame: Frame) -> None:
        if frame.command == Command.ERROR_RESPONSE:
            self._deliver_error(frame)
            return
        if not self._pending:
            raise RemoteProtocolError(f"an answer without a question: {frame}")
        self._pending[0].check_fit(frame)
        self._pending.popleft().resolve(frame)

    def _deliver_ack(self, frame: Frame) -> None:
        if self._pending and self._pending[0].is_acked_by(frame):
            self._pending.popleft().resolve(frame)
        elif self._is_ingesting:
            self._events.append(Acked(frame.batch_id))
        else:
            raise RemoteProtocolError(f"an answer without a question: {frame}")

    def _deliver_error(self, frame: Frame) -> None:
        error = ErrorResponse.decode_payload(frame.payload).to_exception()
        batch_id = error.details.get("batch_id")
        # Not a bool, which in Python is an int.
        if type(batch_id) is not int:
            batch_id = None
        if self._is_ingesting and (batch_id is not None or not self._pending):
            self._events.append(Refused(error, batch_id))
        elif self._pending:
            self._pending.popleft().fail(error)
        else:
            # Unasked for, so it is about the connection and the last thing on it.
            raise ConnectionLost(f"the server gave up: {error}")
