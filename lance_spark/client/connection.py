"""One connection to one server: frames out, answers and pushes in. No protocol.

No thread is there only to read. A thread that waits for something reads the stream for
all of them: the first to wait is the reader, the others wait on a condition. The reader
leaves when it has what it wanted or its deadline passes, and one of the others takes
over; the parser keeps the part of a frame that was read by then. `inbox` says which
thread gets which frame, and `dialect` what the frames mean.

    send      _write_lock, then _changed for a moment, then the stream
    receive   the reader alone, then _changed for a moment to hand out frames

A stream that can't be written to any more is still read for a while: a server that
refuses a client says why and closes, and its words may be there when our frame fails.

The file is over 400 lines because the two directions share one state and one set of
locks, and the rules for those are easiest to check in one place.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from lance_spark.client.config import ConnectionConfig, Runtime
from lance_spark.client.dialect import Dialect
from lance_spark.client.inbox import Inbox, Pending
from lance_spark.errors import ConnectionLost, LanceError, RemoteProtocolError, Timeout
from lance_spark.model import Buffer
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline, Waker
from lance_spark.net.stream import Stream

if TYPE_CHECKING:
    from lance_spark.client.outbox import OutgoingBatch
    from lance_spark.net.tls import TlsContext

# How long to listen for a server's reason once it takes no more bytes.
LAST_WORDS_S = 2.0
# A look at what came while no thread waited ends here, however fast more is coming.
_DRAIN_READS_MAX = 16


class Attempt:
    """Ends a connection that is being set up, and lets none begin after it.

    One thread connects at a time; any thread may cancel, and that is for good.
    """

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        # Weak, as a connection that was dropped must not be kept for its end.
        self._connection: Callable[[], Connection | None] = lambda: None

    def enter(self, connection: Connection | None = None) -> None:
        """Name the connection that is being set up now, if there is one already.

        Raises:
            ConnectionLost: it was cancelled.
        """
        if connection is not None:
            self._connection = weakref.ref(connection)
        # In this order, as `cancel` sets the one and reads the other.
        if self.cancelled.is_set():
            raise ConnectionLost("connecting was given up, as the client was closed")

    def cancel(self) -> None:
        """End the last connection that was named, and let none begin."""
        self.cancelled.set()
        connection = self._connection()
        if connection is not None:
            connection.abort()


class Connection:
    """A connection that is set up; any number of threads may use it.

    Requests go through `submit` or `request`, batches through `send_batch`. What the
    server says unasked, also about batches, comes out of `receive`.

    Args:
        stream: the bytes; the connection closes it.
        address: the server's.
        dialect: the protocol, used by this connection alone.
        config: limits on sizes and on a server's silence.
        runtime: has the clock.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        address: Address,
        dialect: Dialect,
        config: ConnectionConfig,
        runtime: Runtime | None = None,
    ) -> None:
        self.address = address
        self.dialect = dialect
        self._stream = stream
        self._parser = dialect.make_parser()
        self._parser.reuse_buffers()
        self._silence_s_max = config.request_timeout_s
        self._clock = (runtime or Runtime()).clock
        self._last_sent_s = self._last_heard_s = self._clock()
        self._numbers = itertools.count(1)
        # Held while a frame is noted and written, so that both are in one order.
        self._write_lock = threading.Lock()
        # Guards everything below; notified when a frame was handed out, the reader
        # left or the connection failed.
        self._changed = threading.Condition()
        self._inbox = Inbox(dialect)
        self._has_reader = False
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
        config: ConnectionConfig,
        address: Address,
        dialect: Dialect,
        *,
        deadline: Deadline,
        runtime: Runtime | None = None,
        attempt: Attempt | None = None,
    ) -> Connection:
        """Connect, and greet the server as its protocol does.

        With `attempt` another thread can end it once the server is reached.

        Raises:
            ConnectionLost: the server can't be reached.
            ConnectionEnded: it was reached and closed before its first answer.
            AuthenticationFailed: the token is wrong.
            BrokerError: the server takes no clients now.
            RemoteProtocolError: it does not speak the protocol.
            Timeout: the deadline passed.
        """
        runtime = runtime or Runtime()
        stream = runtime.connect(
            address,
            deadline=deadline,
            tls=_make_tls(config),
            server_name=config.tls_server_name,
        )
        connection = cls(
            stream, address=address, dialect=dialect, config=config, runtime=runtime
        )
        attempt = attempt or Attempt()
        try:
            attempt.enter(connection)
            dialect.greet(connection, deadline)
        except BaseException as error:
            connection.close()
            if isinstance(error, RemoteProtocolError):
                raise RemoteProtocolError(
                    f"{address}: the answer is not {config.protocol} ({error}); "
                    "another protocol may be spoken there: check the address and its "
                    "port, and that tls is what the server uses"
                ) from error
            if isinstance(error, Timeout):
                raise Timeout(
                    f"{error}; if it is up, check that it speaks {config.protocol} and "
                    "that tls is what it uses"
                ) from error
            raise
        return connection

    @property
    def capabilities(self) -> frozenset[str]:
        """What the server offers beyond the minimum of its protocol."""
        return self.dialect.capabilities

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent; a lost peer may not be noticed yet."""
        return self._failure is None and self._send_failure is None

    def idle_s(self) -> float:
        """Tell how long ago the last frame was sent."""
        return self._clock() - self._last_sent_s

    # Requests.

    def submit(self, request: Any, *, deadline: Deadline) -> Pending:
        """Write a request and return at once; the answer is `Pending.result`.

        Where the protocol limits how many requests may wait, this waits for room.

        Raises:
            LocalProtocolError: it can't be written, and nothing was.
            ConnectionLost: the connection is gone, and nothing was written. If it
                goes while the request is written, `Pending.result` says so.
            Timeout: it could not be written as a whole in time.
        """
        pending = Pending(self, request, next(self._numbers))

        def note() -> None:
            pending.sent_s = self._clock()
            self._inbox.expect(pending)

        self._send(self.dialect.encode(request, pending.number), deadline, note)
        return pending

    def request(self, request: Any, *, deadline: Deadline) -> Any:
        """Write a request and wait for its answer; raises as `Pending.result`."""
        return self.submit(request, deadline=deadline).conclude(deadline)

    def wait_for(self, pending: Pending, deadline: Deadline) -> None:
        """Wait until a request is answered, the connection fails or time is up."""
        self._read_until(lambda: pending.is_done, deadline)

    def give_up(self) -> None:
        """Drop the connection if no thread waits on it, or it is silent for too long.

        A thread calls this that has lost patience: if the server is stuck, the next
        request would only wait behind the last one. Other threads may be waiting for
        something that is slow, though, and keep the connection for as long as the
        server may be silent.
        """
        with self._changed:
            waiting = list(self._inbox.waiting.values())
            if not waiting:
                return
            since_s = max(self._last_heard_s, waiting[0].sent_s)
            is_stuck = self._clock() - since_s >= self._silence_s_max
            if not is_stuck and not all(each.is_given_up for each in waiting):
                return
        self.fail(ConnectionLost(f"{self.address}: the server did not answer in time"))

    # Batches and pushes.

    def send_batch(
        self, batch: OutgoingBatch, target: Any, *, deadline: Deadline
    ) -> None:
        """Write a batch of records; `receive` gives what becomes of it.

        Args:
            batch: the records.
            target: where they go, as the dialect names it.
            deadline: for writing it.

        Raises:
            LocalProtocolError: it can't be written, and nothing was.
            ConnectionLost: the connection is gone. `receive` still gives what the
                server had said before.
            Timeout: it could not be written in time; the connection is dropped.
        """
        frame = self.dialect.encode_batch(batch, target, next(self._numbers))
        self._send(frame, deadline, self._inbox.expect_batch)
        if self._send_failure is not None:
            raise copy(self._send_failure)

    def receive(self, deadline: Deadline, waker: Waker | None = None) -> list[Any]:
        """Wait for what the server says unasked.

        Returns:
            All pushes that have come, in order; none if the deadline passed or `waker`
            was set. A deadline that has passed already is a look without waiting.

        Raises:
            ConnectionLost: the connection is gone and all that came was handed out.
            RemoteProtocolError: the server sent what makes no sense.
        """
        self._read_until(lambda: bool(self._inbox.pushes), deadline, waker)
        with self._changed:
            pushes, self._inbox.pushes = self._inbox.pushes, []
            if not pushes:
                self._raise_failure()
        return pushes

    # The end.

    def fail(self, error: LanceError) -> None:
        """Drop the connection: all waiting threads get the error that came first."""
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
        """Read what came while no thread waited, without waiting.

        This is how a connection that the server has closed is noticed before a
        request is written to it.
        """
        with self._changed:
            if self._has_reader or self._failure is not None:
                return
            self._enter_as_reader()
        try:
            for _ in range(_DRAIN_READS_MAX):
                if not self._read_some(Deadline.after(0.0), None):
                    break
        finally:
            self._leave_as_reader()

    # Out.

    def _send(
        self, frame: Sequence[Buffer], deadline: Deadline, note: Callable[[], None]
    ) -> None:
        """Write a frame and, in the same order, take note of it."""
        if not self._write_lock.acquire(timeout=_seconds(deadline)):
            raise Timeout(f"{self.address}: others were sending until the deadline")
        try:
            if self._inbox.is_full:
                self._read_until(lambda: not self._inbox.is_full, deadline)
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
        """Read, or let another thread read, until done, failed, woken or too late."""
        if self._send_failure is not None:
            deadline = deadline.sooner(self._last_words.remaining())
        if self._follow_until(is_done, deadline):
            try:
                while self._read_some(deadline, waker):
                    if is_done() or deadline.expired:
                        break
            finally:
                self._leave_as_reader()
        if self._send_failure is not None and self._last_words.expired:
            self.fail(self._send_failure)

    def _follow_until(self, is_done: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait while another thread reads; True if it is now this one's turn."""
        with self._changed:
            while True:
                if is_done() or self._failure is not None:
                    return False
                if not self._has_reader:
                    self._enter_as_reader()
                    return True
                if deadline.expired:
                    return False
                self._changed.wait(_seconds(deadline))

    def _read_some(self, deadline: Deadline, waker: Waker | None) -> bool:
        """Read once and hand out whole frames; False if it is no use to go on."""
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

    # The threads inside the stream.

    def _enter_as_reader(self) -> None:
        self._has_reader = True
        self._users += 1

    def _leave_as_reader(self) -> None:
        with self._changed:
            self._has_reader = False
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


def _make_tls(config: ConnectionConfig) -> TlsContext | None:
    settings = config.tls_settings
    if settings is None:
        return None
    # Late, as OpenSSL takes longer to load than all else that a connection needs.
    from lance_spark.net.tls import make_client_context

    return make_client_context(settings)
