"""Which answer belongs to which request. No stream, no lock, no time.

How a frame tells is the dialect's affair.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_spark.client.dialect import Acked, Dialect, Refused
from lance_spark.errors import LanceError, RemoteProtocolError, Timeout
from lance_spark.net.deadline import Deadline

if TYPE_CHECKING:
    from lance_spark.client.connection import Connection


@dataclass(slots=True, eq=False)
class Pending:
    """A request on its way; made by `Connection.submit`.

    Args:
        connection: where the answer will come.
        request: what was asked.
        number: the request's number on the connection.
        sent_s: when it was sent, on the connection's clock.
        is_given_up: whether no thread will wait for the answer.
        frame: the answer, once it has come.
        error: why no answer will come.
    """

    connection: Connection
    request: Any
    number: int
    sent_s: float = 0.0
    is_given_up: bool = False
    frame: Any | None = None
    error: LanceError | None = None

    def result(self, deadline: Deadline) -> Any:
        """Wait for the answer. After a Timeout it may be called again.

        Raises:
            BrokerError: the server refused the request.
            ConnectionLost: the connection ended first.
            RemoteProtocolError: the answer makes no sense; the connection is dropped.
            Timeout: the deadline passed.
        """
        connection = self.connection
        if not self.is_done:
            connection.wait_for(self, deadline)
        if self.error is not None:
            # A copy: several threads may be given the same failure.
            raise copy(self.error)
        if self.frame is None:
            name = connection.dialect.name_of(self.request)
            raise Timeout(f"{connection.address}: no answer in time to {name!r}")
        try:
            return connection.dialect.decode(self.frame, self.request)
        except RemoteProtocolError as error:
            connection.fail(error)
            raise

    def conclude(self, deadline: Deadline) -> Any:
        """Wait for the answer as `result` does, but for the last time."""
        try:
            return self.result(deadline)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Say that no thread will wait for the answer; it is dropped when it comes.

        If no thread waits for another answer either, the connection is dropped too. An
        answer that is there already makes this do nothing.
        """
        if not self.is_done:
            self.is_given_up = True
            self.connection.give_up()

    @property
    def is_done(self) -> bool:
        """Whether an answer or a failure has come."""
        return self.frame is not None or self.error is not None


class Inbox:
    """The requests of one connection that have no answer, and what came unasked.

    Args:
        dialect: reads the frames.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        # By number, in the order of sending.
        self.waiting: dict[int, Pending] = {}
        # What came unasked and was not taken.
        self.pushes: list[Any] = []
        # Batches without an answer.
        self._batches = 0

    def expect(self, pending: Pending) -> None:
        """Take note of a request, in the order in which they are sent."""
        self.waiting[pending.number] = pending

    def expect_batch(self) -> None:
        """Take note of a batch, whose answer will be a push."""
        self._batches += 1

    @property
    def is_full(self) -> bool:
        """Whether the protocol lets no more requests and batches wait."""
        most = self._dialect.requests_max
        return most is not None and len(self.waiting) + self._batches >= most

    def deliver(self, frame: Any) -> None:
        """Hand a frame to the request that it answers, or keep it as a push.

        Raises:
            RemoteProtocolError: no request fits: the two sides are out of step.
            ConnectionLost: with it the server ends the connection.
        """
        number = self._dialect.number_of(frame, self.waiting)
        if number is None:
            push = self._dialect.decode_push(frame)
            if push is not None:
                self.pushes.append(push)
            if isinstance(push, (Acked, Refused)):
                self._batches -= 1
            return
        pending = self.waiting.pop(number, None)
        if pending is None:
            raise RemoteProtocolError(f"no request waits for answer {number}")
        pending.frame = frame

    def fail(self, error: LanceError) -> None:
        """Tell all requests that no answer will come; pushes stay to be taken."""
        for pending in self.waiting.values():
            pending.error = error
        self.waiting.clear()
