"""What a protocol brings so that the client's connections can speak it.

`Connection`, `Link` and `Delivery` move frames, match answers with requests, wait,
reconnect and try again. They know no protocol. What the bytes mean is in a `Dialect`,
one package per protocol. Four kinds of protocols fit:

    answers in order           `number_of` gives the oldest request that waits
    answers with request ids   `encode` writes the number, `number_of` reads it
    pushes between answers     `number_of` gives None, and `decode_push` what it says
    one request at a time      `requests_max` is 1

A request that is answered many times, such as a subscription, is answered by the first
frame; for the frames after it `number_of` gives None, as the request waits no more.

The answer to a batch is a push, too: `encode_batch` notes which number has which batch,
`number_of` gives None for that number, and `decode_push` gives `Acked` or `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lance_spark.errors import BrokerError, ConnectionLost
from lance_spark.model import Buffer
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline

if TYPE_CHECKING:
    from lance_spark.client.connection import Connection
    from lance_spark.client.inbox import Pending
    from lance_spark.client.outbox import OutgoingBatch


# No request has this number: an answer with it belongs to none.
NO_REQUEST = 0


class Parser(Protocol):
    """Turns the bytes of one connection into frames, whatever these are."""

    @property
    def error(self) -> Exception | None:
        """Why the bytes can't be parsed further."""

    def reuse_buffers(self) -> None:
        """Use the buffers of large frames again when no view of them is left."""

    def buffer_for_read(self) -> memoryview:
        """Return the place for the next bytes."""

    def bytes_written(self, size: int) -> None:
        """Parse so many bytes that were put there."""

    def frames(self) -> Iterator[Any]:
        """Give the frames that are complete, then raise the error if there is one."""

    def receive_eof(self) -> None:
        """Note that no more bytes will come; inside a frame that is an error."""


class Dialect(Protocol):
    """How one connection speaks its protocol; each connection has one of its own.

    `Connection` calls `number_of` and `decode_push` with its lock held, so that they
    may keep state and must not wait.
    """

    # How many requests and batches may wait for an answer; None for any number.
    requests_max: int | None
    # The request that is sent when nothing else was for a while, and that changes
    # nothing on the server; None if the protocol has none.
    keepalive: Any | None

    @property
    def capabilities(self) -> frozenset[str]:
        """What the server can do beyond the minimum of the protocol, after `greet`."""

    def make_parser(self) -> Parser:
        """Make the parser of what the server sends."""

    def greet(self, connection: Connection, deadline: Deadline) -> None:
        """Say who we are and learn what the server is, with requests of its own.

        Raises:
            ConnectionEnded: the server closed before its first answer.
            LanceError: the server takes no clients, or not this one.
        """

    def name_of(self, request: Any) -> str:
        """Name a request in error texts."""

    def encode(self, request: Any, number: int) -> Sequence[Buffer]:
        """Write a request; `number` is unique on the connection and rises.

        Raises:
            LocalProtocolError: the protocol can't express the request.
        """

    def encode_batch(
        self, batch: OutgoingBatch, target: Any, number: int
    ) -> Sequence[Buffer]:
        """Write a batch; `target` is what the driver gave to `Delivery`.

        `number` is as in `encode`. Pushes say what became of the batch.
        """

    def number_of(self, frame: Any, waiting: Mapping[int, Pending]) -> int | None:
        """Tell which request a frame answers; None if it is a push.

        A number that is not among those that wait, such as NO_REQUEST, ends the
        connection: the two sides are out of step.

        Args:
            frame: what the server sent.
            waiting: the requests without an answer, in the order of sending.

        Raises:
            RemoteProtocolError: it can't be an answer to any of them.
            ConnectionLost: with it the server ends the connection.
        """

    def decode(self, frame: Any, request: Any) -> Any:
        """Read the answer to a request.

        Raises:
            BrokerError: the server refused it.
            RemoteProtocolError: the answer makes no sense.
        """

    def decode_push(self, frame: Any) -> Any | None:
        """Read what the server said unasked; None drops it.

        For batches that is `Acked`, `Refused` or `SlowDown`.
        """


# Lists the dialects to try with a server, each with a connection of its own. The next
# one is tried when the server closed before its first answer, or sent what makes no
# sense. A dialect whose `greet` succeeds may remember that for the next connection.
Candidates = Callable[[Address], Sequence[Dialect]]


class ConnectionEnded(ConnectionLost):
    """A server took the connection and closed it before it had answered anything."""


@dataclass(frozen=True, slots=True)
class Acked:
    """A batch is stored."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A batch is not stored, and why.

    `batch_id` is None if the server did not say which; on a server that answers in
    order it is then the oldest that has no answer.
    """

    error: BrokerError
    batch_id: int | None = None


@dataclass(frozen=True, slots=True)
class SlowDown:
    """The server asks for fewer batches at a time."""
