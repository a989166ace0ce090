"""Streams: both directions of a connection, with a deadline on every wait.

`Stream` is the contract that the layers above are written against; `SocketStream` is
TCP. `tls_stream.TlsStream` puts TLS on a stream, `memory.make_pair` makes two ends
without a socket.

A stream has one reader and one writer at a time, which may be different threads. Any
thread may abort it. Its owner closes it, after the others have left it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lance_spark.errors import ConnectionLost, LanceError, Timeout
from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline
from lance_spark.net.payload import (
    advance,
    byte_views,
    read_pieces,
    too_short,
    unreadable,
)
from lance_spark.net.readiness import READABLE, WRITABLE, wait_ready
from lance_spark.net.waker import Waker

if TYPE_CHECKING:
    from lance_spark.net.certificate import PeerCertificate

# One call takes no more buffers than this; POSIX promises 16 at least.
_BUFFERS_MAX = max(16, os.sysconf("SC_IOV_MAX"))
# Closing with this sends a reset.
_LINGER_NONE = struct.pack("ii", 1, 0)
# What a file says that sendfile(2) can't be used on.
_NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
# What a read of the file itself can fail with; all else is trouble with the socket.
_FILE_FAULTS = frozenset({errno.EIO, errno.EBADF, errno.EOVERFLOW, errno.EISDIR})


class Stream(ABC):
    """One end of a connection.

    Attributes:
        peer: address of the other end, for texts.
        certificate: what the other end has proved to be, None if it has proved nothing.
    """

    peer: str
    certificate: PeerCertificate | None = None
    # A send is under way or has failed half-way.
    _torn = False

    @abstractmethod
    def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
        """Read what is there, waiting until something is.

        Args:
            buffer: where to put it; not empty.
            deadline: how long to wait. What is there already is read in any case.

        Returns:
            How many bytes came; 0 when the peer will send no more.

        Raises:
            Timeout: nothing came.
            ConnectionLost: nothing will come any more.
        """

    @abstractmethod
    def send(self, buffers: Sequence[Buffer], deadline: Deadline) -> None:
        """Send all of the buffers, in order.

        Nothing can be sent after a send that failed: nobody knows how much of it is
        out, so that what follows would be taken for its rest.

        Raises:
            Timeout: the peer did not take them in time.
            ConnectionLost: the peer will not take them any more.
        """

    def send_file(
        self, descriptor: int, position: int, length: int, deadline: Deadline
    ) -> None:
        """Send a part of a file.

        Raises:
            Corrupt: the file ends before the part does. Some of it may be sent: the
                connection can only be aborted.
            StoreError: the file can't be read; the same holds.
            Timeout, ConnectionLost: as with `send`.
        """
        try:
            for piece in read_pieces(descriptor, position, length):
                self.send([piece], deadline)
        except BaseException:
            self._torn = True
            raise

    @abstractmethod
    def wait_readable(self, deadline: Deadline, waker: Waker | None = None) -> bool:
        """Wait until there is something to read, the end of the stream included.

        Returns:
            False when there is not, because the deadline passed or the waker was set.

        Raises:
            ConnectionLost: nothing will come any more.
        """

    @abstractmethod
    def shutdown_write(self) -> None:
        """Tell the peer that nothing more will come; reading goes on. Never raises."""

    @abstractmethod
    def abort(self) -> None:
        """End the connection under whoever uses it; any thread may. Never raises.

        Calls that wait end with ConnectionLost, and so do all that come later. What
        the stream holds is only given back by `close`.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what the stream holds; may be called again. Never raises."""

    def _begin_send(self) -> None:
        """Note that what follows may fail half-way; whoever finishes takes it back."""
        if self._torn:
            raise lost(self.peer, "an earlier send did not finish")
        self._torn = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {self.peer}>"


class SocketStream(Stream):
    """A TCP connection.

    Args:
        sock: a connected socket, which the stream takes over.
        peer: address of the other end.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._sock = sock
        # Why this side has ended the connection, if it has.
        self._ended: str | None = None
        # Held to shut down or close, so that neither meets a descriptor that another
        # thread has just closed and the system has given to someone else.
        self._lock = threading.Lock()
        sock.setblocking(False)
        # Not every stream socket has it, and it is about speed only.
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
        """Read what is there, waiting until something is; 0 at the end."""
        while True:
            self._check()
            try:
                count = self._sock.recv_into(buffer)
            except BlockingIOError:
                self._wait(READABLE, deadline, "nothing came")
            except OSError as error:
                raise self._lost(error) from error
            else:
                if not count:
                    # An abort looks like the peer's end to the socket.
                    self._check()
                return count

    def send(self, buffers: Sequence[Buffer], deadline: Deadline) -> None:
        """Send all of the buffers, in order, without copying them."""
        views = byte_views(buffers)
        self._check()
        self._begin_send()
        first = 0
        while first < len(views):
            some = views[first : first + _BUFFERS_MAX]
            try:
                sent = self._sock.sendmsg(some)
            except BlockingIOError:
                self._wait(WRITABLE, deadline, "the peer did not read")
            except OSError as error:
                raise self._lost(error) from error
            else:
                first = advance(views, first, sent)
        self._torn = False

    def send_file(
        self, descriptor: int, position: int, length: int, deadline: Deadline
    ) -> None:
        """Send a part of a file, from the page cache without copying it."""
        end = position + length
        self._check()
        self._begin_send()
        while position < end:
            try:
                sent = os.sendfile(
                    self._sock.fileno(), descriptor, position, end - position
                )
            except BlockingIOError:
                self._wait(WRITABLE, deadline, "the peer did not read")
            except OSError as error:
                if error.errno in _NO_SENDFILE:
                    break
                raise self._file_failed(error) from error
            else:
                if not sent:
                    raise too_short(position, end)
                position += sent
        self._torn = False
        super().send_file(descriptor, position, end - position, deadline)

    def wait_readable(self, deadline: Deadline, waker: Waker | None = None) -> bool:
        """Wait until there is something to read; False when woken or too late."""
        self._check()
        ready = wait_ready(self._sock.fileno(), READABLE, deadline, waker)
        self._check()
        return ready

    def shutdown_write(self) -> None:
        """Send the end of the stream; reading goes on."""
        self._shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """End the connection under whoever uses it."""
        # The descriptor stays open: closed here, its number could be given to another
        # connection, and a thread that is about to use it would write into that one.
        self._ended = self._ended or "it was aborted here"
        self._shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End the connection under whoever uses it, without a proper end.

        The peer gets a reset when the stream is closed, as from a machine that is gone.
        """
        with self._lock, suppress(OSError):
            # In this order: whoever notices the end closes the socket.
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            self._ended = self._ended or "it was reset here"
            # Who waits for bytes is woken; a shutdown of both ways is a proper end.
            self._sock.shutdown(socket.SHUT_RD)

    def _shutdown(self, how: int) -> None:
        # A socket that is closed or not connected any more has nothing to shut down.
        with self._lock, suppress(OSError):
            self._sock.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._ended = self._ended or "it was closed here"
        with self._lock, suppress(OSError):
            self._sock.close()

    def _wait(self, event: int, deadline: Deadline, what: str) -> None:
        """Wait after a call that would have blocked; the call is then made again."""
        # Asked here and not after the wait: a peer that reads a little now and then
        # must not keep a send going for ever.
        if deadline.expired:
            raise late(self.peer, what)
        wait_ready(self._sock.fileno(), event, deadline)
        self._check()

    def _check(self) -> None:
        if self._ended is not None:
            raise lost(self.peer, self._ended)

    def _lost(self, error: OSError) -> ConnectionLost:
        # After an abort the socket fails in odd ways; the abort is the reason.
        self._check()
        return lost(self.peer, error.strerror or str(error))

    def _file_failed(self, error: OSError) -> LanceError:
        return unreadable(error) if error.errno in _FILE_FAULTS else self._lost(error)


def lost(peer: str, reason: str) -> ConnectionLost:
    """Make the error for a connection that has ended."""
    return ConnectionLost(f"connection with {peer} lost: {reason}")


def late(peer: str, what: str) -> Timeout:
    """Make the error for a deadline that has passed."""
    return Timeout(f"connection with {peer}: {what} before the deadline")
