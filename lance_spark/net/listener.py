"""Listening for connections, and how many a process can have."""

from __future__ import annotations

import errno
import logging
import resource
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from lance_spark.errors import OptionError
from lance_spark.net.address import Address
from lance_spark.net.deadline import READABLE, Deadline, Waker, wait_ready
from lance_spark.net.stream import SocketStream

logger = logging.getLogger(__name__)

# What accept(2) fails with when the client has gone again before it was accepted.
_CLIENT_GONE = frozenset({errno.EAGAIN, errno.ECONNABORTED, errno.EPROTO})
# How long to wait when there is no room for more connections, and how often to say so.
_PAUSE_S = 0.1
_LOG_INTERVAL_S = 60.0
# Waiting for a connection has no end; it is only divided into parts.
_ACCEPT_WAIT_S = 3600.0
# A client that answers nothing for two minutes is gone: a machine without power says no
# goodbye, and many protocols have no keepalives of their own.
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
_ADVICE = {
    errno.EADDRINUSE: "it is already in use; choose another port, or 0 for a free one",
    errno.EACCES: "it is not allowed; ports below 1024 need privileges",
    errno.EADDRNOTAVAIL: "it is not an address of this machine",
}


class Listener:
    """A port that connections come in on.

    Args:
        address: where to listen; port 0 takes a free one.
        backlog: how many connections the system holds until they are accepted.
        clock: the time, for how often trouble is logged.

    Raises:
        OptionError: the address can't be listened on.
        Timeout: there are no descriptors for it now.
    """

    def __init__(
        self,
        address: Address,
        *,
        backlog: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waker = Waker()
        try:
            self._sock = listen(address, backlog)
        except BaseException:
            self._waker.close()
            raise
        host, port = self._sock.getsockname()[:2]
        self.address = Address(host, port)
        self._stopped = False
        self._clock = clock
        self._logged_s: float | None = None
        # Held by accept, so that close does not take the socket from under it.
        self._accepting = threading.Lock()

    def accept(self) -> SocketStream | None:
        """Wait for the next connection; None once the listener is stopped."""
        with self._accepting:
            while not self._stopped:
                deadline = Deadline.after(_ACCEPT_WAIT_S)
                if wait_ready(self._sock.fileno(), READABLE, deadline, self._waker):
                    stream = self._accept_one()
                    if stream is not None:
                        return stream
            return None

    def _accept_one(self) -> SocketStream | None:
        try:
            sock, where = self._sock.accept()
        except OSError as error:
            if error.errno not in _CLIENT_GONE:
                self._pause(error)
            return None
        # Not every system has all of them.
        with suppress(OSError, AttributeError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return SocketStream(sock, str(Address(where[0], where[1])))

    def _pause(self, error: OSError) -> None:
        """Wait a moment: the connection stays there and would be met again at once."""
        now = self._clock()
        if self._logged_s is None or now - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = now
            logger.warning(
                "%s: can't accept connections for now: %s", self.address, error.strerror
            )
        moment = Deadline.after(_PAUSE_S)
        wait_ready(self._waker.fileno(), READABLE, moment)

    def stop(self) -> None:
        """Make accept return None, now and from now on; any thread may."""
        self._stopped = True
        self._waker.set()

    def close(self) -> None:
        """Stop and give the port back; may be called again."""
        self.stop()
        with self._accepting:
            self._sock.close()
            self._waker.close()


def listen(address: Address, backlog: int) -> socket.socket:
    """Make a socket that listens and does not block.

    Raises:
        OptionError: the address can't be listened on.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host,
            address.port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _refusal(address, error) from error
    try:
        sock.setblocking(False)
        # A server that starts again must not wait for the connections of the last.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # The address :: is every address, also those of IPv4.
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(where)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise _refusal(address, error) from error
    return sock


def _refusal(address: Address, error: Exception) -> OptionError:
    number = getattr(error, "errno", None)
    reason = _ADVICE.get(number or 0) or getattr(error, "strerror", None) or str(error)
    return OptionError(f"can't listen on {address}: {reason}")


def raise_file_limit(wanted: int) -> int:
    """Raise the limit of open files to what is wanted, as far as that is allowed.

    No further: where there are very many, some programs take long to start others, and
    select(2) can't wait for all of them.

    Returns:
        The limit that holds now, at least `wanted` if there is none.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        # The system may have a limit of its own below the hard one.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            return allowed
    return soft
