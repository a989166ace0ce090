"""One connection to one server: frames out, and their answers back in order.

There is no reader thread. Whoever waits for something reads the stream for everybody:
the first to wait is the leader, the others follow on a condition. The leader leaves
when it has what it wanted or its deadline passes, and one of the others takes over; the
parser keeps what was read of a frame by then. Who gets which frame is in `inbox`.

    send      _write_lock, then _changed for a moment, then the stream
    receive   the leader alone, then _changed for a moment to hand out frames

A stream that can't be written to any more is still read for a while: a server that
refuses a client says why and closes, and its words may be there when our frame fails.

The file is over 400 lines because the two directions share one state and one set of
locks, and the rules for those are easiest to check in one place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from copy import copy

from lance_spark.client.attempt import Attempt
from lance_spark.client.config import ClientConfig
from lance_spark.client.event import Event
from lance_spark.client.greeting import greet
from lance_spark.client.inbox import Inbox, SentKeepalive
from lance_spark.client.pace import Pace
from lance_spark.client.pending import Pending
from lance_spark.client.runtime import Connect
from lance_spark.errors import (
    ConnectionLost,
    LanceError,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.model import Buffer
from lance_spark.net.address import Address
from lance_spark.net.connect import connect as connect_socket
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.net.tls import make_client_context
from lance_spark.net.waker import Waker
from lance_spark.wire.lwp import (
    Checksum,
    ClusterStatus,
    FrameParser,
    Message,
    encode_ingest,
    encode_keepalive,
    encode_message,
)

# How long to listen for a server's reason once it takes no more bytes.
LAST_WORDS_S = 2.0
# A look at what came while nobody waited ends here, however fast more is coming.
_DRAIN_READS_MAX = 16


class PingUnanswered(Timeout):
    """A keepalive was sent and did not come back in time."""


class Connection:
    """A connection that is set up; any number of threads may use it.

    It is used either for requests or for ingests: `submit` and `request`, or
    `send_ingest` and `receive`.

    Args:
        stream: the bytes; the connection closes it.
        address: the server's.
        checksum: the algorithm of both directions.
        config: limits on sizes and on a server's silence.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        address: Address,
        checksum: Checksum,
        config: ClientConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self.checksum = checksum
        self.status = ClusterStatus()
        self._stream = stream
        self._parser = FrameParser(
            checksum=checksum,
            payload_bytes_max=config.response_bytes_max,
            # It was asked for, so it will come: growing would only cost copies.
            payload_bytes_first=config.response_bytes_max,
        )
        self._silence_s_max = config.request_timeout_s
        self._clock = clock
        self._last_sent_s = self._last_heard_s = clock()
        # Held while a frame is noted and written, so that both are in one order.
        self._write_lock = threading.Lock()
        # Guards everything below; notified when a frame was handed out, the leader
        # left or the connection failed.
        self._changed = threading.Condition()
        self._inbox = Inbox()
        self._pings = Pace()
        self._has_leader = False
        self._failure: LanceError | None = None
        # Why nothing can be sent any more, and how long that is no failure yet.
        self._send_failure: ConnectionLost | None = None
        self._last_words = Deadline.after(0.0)
        # Threads inside the stream; the last one out closes it if it is to be closed.
        self._users = 0
        self._is_closing = False

    @classmethod
    def open(
        cls,
        config: ClientConfig,
        address: Address,
        *,
        checksum: Checksum,
        deadline: Deadline,
        connect: Connect = connect_socket,
        clock: Callable[[], float] = time.monotonic,
        attempt: Attempt | None = None,
    ) -> Connection:
        """Connect, authenticate if a token is set, and ask what the server can do.

        With `attempt` another thread can end it once the server is reached.

        Raises:
            ConnectionLost: the server can't be reached.
            ConnectionEnded: it was reached and closed before its first answer.
            AuthenticationFailed: the token is wrong.
            BrokerError: the server takes no clients now.
            RemoteProtocolError: it does not speak LWP.
            Timeout: the deadline passed.
        """
        tls = config.tls_settings
        stream = connect(
            address,
            deadline=deadline,
            tls=None if tls is None else make_client_context(tls),
            server_name=config.tls_server_name,
        )
        connection = cls(
            stream, address=address, checksum=checksum, config=config, clock=clock
        )
        attempt = attempt or Attempt()
        try:
            attempt.enter(connection)
            connection.status = greet(connection, config.auth_token, deadline)
        except BaseException:
            connection.close()
            raise
        finally:
            attempt.leave()
        return connection

    @property
    def capabilities(self) -> frozenset[str]:
        """What the server offers beyond LWP; nothing if it is a plain one."""
        return frozenset(self.status.capabilities)

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent; a lost peer may not be noticed yet."""
        return self._failure is None and self._send_failure is None

    def idle_s(self) -> float:
        """Tell how long ago the last frame was sent."""
        return self._clock() - self._last_sent_s

    # Requests.

    def submit(
        self, message: Message, *, extended: bool = False, deadline: Deadline
    ) -> Pending:
        """Write a request and return at once; the answer is `Pending.result`.

        Raises:
            LocalProtocolError: it can't be written, and nothing was.
            ConnectionLost: the connection is gone, and nothing was written. If it
                goes while the request is written, `Pending.result` says so.
            Timeout: it could not be written as a whole in time.
        """
        pending = Pending(self, message, extended=extended)
        frame = encode_message(message, checksum=self.checksum)

        def note() -> None:
            pending.sent_s = self._clock()
            self._inbox.expect(pending)

        self._send(frame, deadline, note)
        return pending

    def request(
        self, message: Message, *, extended: bool = False, deadline: Deadline
    ) -> Message:
        """Write a request and wait for its answer; raises as `Pending.result`."""
        pending = self.submit(message, extended=extended, deadline=deadline)
        return pending.conclude(deadline)

    def wait_for(self, pending: Pending, deadline: Deadline) -> None:
        """Wait until a request is answered, the connection fails or time is up."""
        self._read_until(lambda: pending.is_done, deadline)

    def give_up(self) -> None:
        """Drop the connection if nobody waits on it, or it has been silent too long.

        For whoever has lost patience: if the server is stuck, the next request would
        only wait behind the last one. Others may be waiting for something that is
        slow, though, and keep the connection for as long as the server may be silent.
        """
        with self._changed:
            oldest = self._inbox.oldest
            if oldest is None:
                return
            since_s = max(self._last_heard_s, oldest.sent_s)
            is_stuck = self._clock() - since_s >= self._silence_s_max
            if not is_stuck and self._inbox.is_awaited:
                return
        self.fail(ConnectionLost(f"{self.address}: the server did not answer in time"))

    # Keepalives. Answers are never answered: two such peers would not stop.

    def send_keepalive(self, deadline: Deadline) -> None:
        """Write a keepalive and do not wait; its answer is dropped when it comes.

        Raises:
            ConnectionLost: the connection is gone.
            Timeout: it could not be written in time.
        """
        self._send_keepalive(deadline)

    def ping(self, deadline: Deadline) -> float:
        """Tell how many seconds a keepalive takes to come back.

        Many in a row are held back, as a server does not answer any number of them.

        Raises:
            ConnectionLost: the connection is gone.
            PingUnanswered: the deadline passed without an answer.
            Timeout: the deadline is too soon to send anything.
        """
        delay_s = self._pings.delay_s(self._clock())
        if delay_s >= deadline.remaining():
            raise Timeout(f"{self.address}: too many pings, wait {delay_s:.1f} s")
        with self._changed:
            # The end of the connection ends this too, and then nothing is sent.
            self._changed.wait_for(lambda: self._failure is not None, delay_s)
        start_s = self._clock()
        self._pings.note(start_s)
        keepalive = self._send_keepalive(deadline)
        self._read_until(lambda: keepalive.is_answered, deadline)
        if keepalive.is_answered:
            return self._clock() - start_s
        with self._changed:
            self._raise_failure()
        raise PingUnanswered(f"{self.address}: no answer in time to a keepalive")

    def _send_keepalive(self, deadline: Deadline) -> SentKeepalive:
        keepalive = SentKeepalive()
        frame = encode_keepalive(checksum=self.checksum)
        self._send([frame], deadline, lambda: self._inbox.expect_keepalive(keepalive))
        return keepalive

    # Ingests.

    def send_ingest(
        self,
        payload: Sequence[Buffer],
        *,
        batch_id: int,
        record_count: int,
        topic_id: int,
        compressed: bool = False,
        timestamp_ns: int = 0,
        deadline: Deadline,
    ) -> None:
        """Write a batch of records; its ack comes out of `receive`.

        Raises:
            LocalProtocolError: it can't be written, and nothing was.
            ConnectionLost: the connection is gone. `receive` still gives what the
                server had said before.
            Timeout: it could not be written in time; the connection is dropped.
        """
        frame = encode_ingest(
            payload,
            batch_id=batch_id,
            record_count=record_count,
            topic_id=topic_id,
            timestamp_ns=timestamp_ns,
            compressed=compressed,
            checksum=self.checksum,
        )
        self._send(frame, deadline, self._inbox.expect_events)
        if self._send_failure is not None:
            raise copy(self._send_failure)

    def receive(self, deadline: Deadline, waker: Waker | None = None) -> list[Event]:
        """Wait for what the server says about ingests.

        Returns:
            All that has come, in order; nothing if the deadline passed or `waker` was
            set. A deadline that has passed already is a look without waiting.

        Raises:
            ConnectionLost: the connection is gone and all that came was handed out.
            RemoteProtocolError: the server sent what makes no sense.
        """
        self._read_until(lambda: self._inbox.has_events, deadline, waker)
        with self._changed:
            events = self._inbox.take_events()
            if not events:
                self._raise_failure()
        return events

    # The end.

    def fail(self, error: LanceError) -> None:
        """Drop the connection: whoever waits gets the error, if it is the first."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._inbox.fail(self._failure)
            self._changed.notify_all()
        self._stream.abort()

    def abort(self) -> None:
        """End the connection at once; threads that use it get ConnectionLost."""
        self.fail(ConnectionLost(f"{self.address}: the connection was closed here"))

    def close(self) -> None:
        """End the connection and free what it holds, when its last user is out."""
        self.abort()
        with self._changed:
            self._is_closing = True
            is_unused = not self._users
        if is_unused:
            self._stream.close()

    def drain(self) -> None:
        """Read what came while nobody waited, without waiting.

        This is how a connection that the server has closed is noticed before a
        request is written to it.
        """
        with self._changed:
            if self._has_leader or self._failure is not None:
                return
            self._enter_as_leader()
        try:
            for _ in range(_DRAIN_READS_MAX):
                if not self._read_some(Deadline.after(0.0), None):
                    break
        finally:
            self._leave_as_leader()

    # Out.

    def _send(
        self, frame: Sequence[Buffer], deadline: Deadline, note: Callable[[], None]
    ) -> None:
        """Write a frame and, in the same order, take note of it."""
        if not self._write_lock.acquire(timeout=_seconds(deadline)):
            raise Timeout(f"{self.address}: others were sending until the deadline")
        try:
            if deadline.expired:
                # Sent in part, it would cost the connection.
                raise Timeout(f"{self.address}: too late to send anything")
            with self._changed:
                self._raise_failure()
                if self._send_failure is not None:
                    raise copy(self._send_failure)
                note()
                self._users += 1
            try:
                self._write(frame, deadline)
            finally:
                self._leave()
        finally:
            self._write_lock.release()

    def _write(self, frame: Sequence[Buffer], deadline: Deadline) -> None:
        try:
            self._stream.send(frame, deadline)
        except ConnectionLost as error:
            with self._changed:
                self._last_words = Deadline.after(LAST_WORDS_S)
                self._send_failure = error
        except BaseException:
            # Part of the frame may be out: nothing can follow it.
            self.fail(ConnectionLost(f"{self.address}: a frame was cut off"))
            raise
        self._last_sent_s = self._clock()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            # A copy: several threads may be given the same failure.
            raise copy(self._failure)

    # In.

    def _read_until(
        self,
        is_done: Callable[[], bool],
        deadline: Deadline,
        waker: Waker | None = None,
    ) -> None:
        """Read, or have another thread read, until done, failed, woken or too late."""
        if self._send_failure is not None:
            deadline = deadline.sooner(self._last_words.remaining())
        if self._follow_until(is_done, deadline):
            try:
                while self._read_some(deadline, waker):
                    if is_done() or deadline.expired:
                        break
            finally:
                self._leave_as_leader()
        if self._send_failure is not None and self._last_words.expired:
            self.fail(self._send_failure)

    def _follow_until(self, is_done: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait while another thread reads; True if it is now this one's turn."""
        with self._changed:
            while True:
                if is_done() or self._failure is not None:
                    return False
                if not self._has_leader:
                    self._enter_as_leader()
                    return True
                if deadline.expired:
                    return False
                self._changed.wait(_seconds(deadline))

    def _read_some(self, deadline: Deadline, waker: Waker | None) -> bool:
        """Read once and hand out what is whole; False if there is no use in more."""
        try:
            if waker is not None and not self._stream.wait_readable(deadline, waker):
                return False
            size = self._stream.recv_into(self._parser.buffer_for_read(), deadline)
            if not size:
                raise self._end_of_stream()
            self._parser.bytes_written(size)
        except Timeout:
            return False
        except (ConnectionLost, RemoteProtocolError) as error:
            self.fail(error)
            return False
        except BaseException:
            # Bytes may have been read and not counted.
            self.fail(ConnectionLost(f"{self.address}: reading was interrupted"))
            raise
        return self._hand_out()

    def _end_of_stream(self) -> ConnectionLost:
        self._parser.receive_eof()
        where = "" if self._parser.error is None else " in the middle of a frame"
        text = f"{self.address}: the server closed the connection{where}"
        return ConnectionLost(text)

    def _hand_out(self) -> bool:
        with self._changed:
            self._last_heard_s = self._clock()
            try:
                for frame in self._parser.frames():
                    self._inbox.deliver(frame)
                    self._changed.notify_all()
            except (ConnectionLost, RemoteProtocolError) as error:
                self.fail(error)
            return self._failure is None

    # Who is inside the stream.

    def _enter_as_leader(self) -> None:
        self._has_leader = True
        self._users += 1

    def _leave_as_leader(self) -> None:
        with self._changed:
            self._has_leader = False
            self._changed.notify_all()
        self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._users -= 1
            is_last = self._is_closing and not self._users
        if is_last:
            self._stream.close()


def _seconds(deadline: Deadline) -> float:
    """Give what is left of a deadline, as much as a lock can wait."""
    return min(deadline.remaining(), threading.TIMEOUT_MAX)
