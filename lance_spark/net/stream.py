"""Streams: both directions of a connection, with a deadline on every wait.

`Stream` is the contract that the layers above are written against; `SocketStream` is
TCP. `tls_stream.TlsStream` puts TLS on a stream.

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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lance_spark.errors import ConnectionLost, Corrupt, LanceError, StoreError, Timeout
from lance_spark.model import Buffer
from lance_spark.net.deadline import (
    HUNG_UP,
    READABLE,
    WRITABLE,
    Deadline,
    Waker,
    wait_ready,
)

if TYPE_CHECKING:
    from lance_spark.net.tls_stream import PeerCertificate

# One call takes no more buffers than this; POSIX promises 16 at least.
_BUFFERS_MAX = max(16, os.sysconf("SC_IOV_MAX"))
# Closing with this sends a reset.
_LINGER_NONE = struct.pack("ii", 1, 0)
# What a file says that sendfile(2) can't be used on.
_NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
# What a read of the file itself can fail with; all else is trouble with the socket.
_FILE_FAULTS = frozenset({errno.EIO, errno.EBADF, errno.EOVERFLOW, errno.EISDIR})
# How much of a file is in memory at a time where the kernel can't send it by itself.
FILE_PIECE_BYTES = 256 * 1024


class Stream(ABC):
    """One end of a connection.

    Attributes:
        peer: address of the other end, for texts.
        host: the address of this end, which the other one has connected to or from;
            empty if it has none.
        certificate: what the other end has proved to be, None if it has proved nothing.
    """

    peer: str
    host: str = ""
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

        Nothing can be sent after a send that failed: a part of it may be out, and the
        peer would take what follows for its rest.

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

    def is_peer_gone(self) -> bool:
        """Tell whether the peer has ended its side, also behind bytes to be read.

        It may still read: that is only told from a peer that has gone by sending it
        something. False where the system does not tell.

        Raises:
            ConnectionLost: this side has ended the connection.
        """
        return False

    @abstractmethod
    def shutdown_write(self) -> None:
        """Tell the peer that nothing more will come; reading goes on. Never raises."""

    @abstractmethod
    def abort(self) -> None:
        """End the connection while threads may be using it. Never raises.

        Any thread may call this. Calls that wait end with ConnectionLost, and so do all
        later ones. Only `close` gives back what the stream holds.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what the stream holds; may be called again. Never raises."""

    def _begin_send(self) -> None:
        """Mark the stream as torn; a send that finishes takes the mark away."""
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
        # Sockets of a pair have none: theirs is an empty text.
        with suppress(OSError):
            self.host = "".join(sock.getsockname()[:1])
        # Not every stream socket has it, and it is about speed only.
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
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
        self._check()
        ready = wait_ready(self._sock.fileno(), READABLE, deadline, waker)
        self._check()
        return ready

    def is_peer_gone(self) -> bool:
        self._check()
        return wait_ready(self._sock.fileno(), HUNG_UP, Deadline.after(0))

    def shutdown_write(self) -> None:
        self._shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        # The descriptor stays open: closed here, its number could be given to another
        # connection, and a thread that is about to use it would write into that one.
        self._ended = self._ended or "it was aborted here"
        self._shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Do what `abort` does, but without a proper end.

        The peer gets a reset when the stream is closed, as from a machine that is gone.
        """
        with self._lock, suppress(OSError):
            # In this order, as a thread that notices the end closes the socket.
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            self._ended = self._ended or "it was reset here"
            # Wakes a thread that waits for bytes; a shutdown of both ways would be a
            # proper end.
            self._sock.shutdown(socket.SHUT_RD)

    def _shutdown(self, how: int) -> None:
        # A socket that is closed or not connected any more has nothing to shut down.
        with self._lock, suppress(OSError):
            self._sock.shutdown(how)

    def close(self) -> None:
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


def byte_views(buffers: Sequence[Buffer]) -> list[memoryview]:
    """Look at buffers as bytes, without copying; empty ones are left out."""
    views = [memoryview(buffer) for buffer in buffers]
    # A view without elements can't be cast.
    return [view.cast("B") for view in views if view.nbytes]


def advance(views: list[memoryview], first: int, sent: int) -> int:
    """Take what was sent off the views from `first` on; give the new first one."""
    while first < len(views) and sent >= len(views[first]):
        sent -= len(views[first])
        first += 1
    if sent:
        views[first] = views[first][sent:]
    return first


def read_pieces(descriptor: int, position: int, length: int) -> Iterator[bytes]:
    """Read a part of a file, piece by piece.

    Raises:
        Corrupt: the file ends before the part does.
        StoreError: the file can't be read.
    """
    end = position + length
    while position < end:
        try:
            piece = os.pread(
                descriptor, min(FILE_PIECE_BYTES, end - position), position
            )
        except OSError as error:
            raise unreadable(error) from error
        if not piece:
            raise too_short(position, end)
        yield piece
        position += len(piece)


def too_short(position: int, end: int) -> Corrupt:
    """Make the error for a file that ends before the part that is to be sent."""
    return Corrupt("file", position, end, "the file is shorter than it was")


def unreadable(error: OSError) -> StoreError:
    """Make the error for a file that can't be read."""
    return StoreError(f"a file that is to be sent can't be read: {error.strerror}")
