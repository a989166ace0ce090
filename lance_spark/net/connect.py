"""Connecting to a server."""

from __future__ import annotations

import errno
import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lance_spark.errors import ConnectionLost, OptionError, Timeout
from lance_spark.net.address import Address
from lance_spark.net.deadline import WRITABLE, Deadline, wait_ready
from lance_spark.net.stream import SocketStream, Stream

if TYPE_CHECKING:
    from lance_spark.net.tls import TlsContext

# What getaddrinfo gives: family, kind, protocol, name, address.
_Target = tuple[int, int, int, str, Any]


def connect(
    address: Address,
    *,
    deadline: Deadline,
    tls: TlsContext | None = None,
    server_name: str | None = None,
) -> Stream:
    """Connect to a server, trying all addresses that its name has.

    Args:
        address: the server.
        deadline: for everything, name lookup and handshake included.
        tls: makes the connection secure.
        server_name: what the certificate has to be for, if not the host.

    Raises:
        ConnectionLost: no server answers there, or the sides do not agree on TLS.
        Timeout: the deadline passed.
        OptionError: the address or the name can't be one of a server.
    """
    if not address.port:
        raise OptionError(
            f"address {address}: give the port that the server listens on"
        )
    stream = _connect_any(address, deadline)
    if tls is None:
        return stream
    # Late, as OpenSSL takes longer to load than all else that a connection needs.
    from lance_spark.net.tls import handshake

    return handshake(stream, tls, deadline, server_name=server_name or address.host)


def _connect_any(address: Address, deadline: Deadline) -> SocketStream:
    targets = _resolve(address, deadline)
    reasons: dict[str, None] = {}
    for position, target in enumerate(targets):
        # One that does not answer must not use up the time of those behind it.
        share_s = deadline.remaining() / (len(targets) - position)
        try:
            sock = _connect_one(target, deadline.sooner(share_s))
        except OSError as error:
            reasons[error.strerror or str(error)] = None
        else:
            return SocketStream(sock, str(address))
    text = f"could not connect to {address}: {'; '.join(reasons)}"
    raise Timeout(text) if deadline.expired else ConnectionLost(text)


def _connect_one(target: _Target, deadline: Deadline) -> socket.socket:
    family, kind, protocol, _, where = target
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        code = sock.connect_ex(where)
        if code == errno.EINPROGRESS:
            if not wait_ready(sock.fileno(), WRITABLE, deadline):
                raise OSError(errno.ETIMEDOUT, "no answer before the deadline")
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if sock.getsockname() == sock.getpeername():
            # The system may give a port without a listener to the connection itself.
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    except BaseException:
        sock.close()
        raise
    return sock


def _resolve(address: Address, deadline: Deadline) -> list[_Target]:
    """Look up the addresses of a host.

    The system's call can't be told a deadline, so that it has a thread of its own,
    which is left behind if it takes too long.
    """
    with suppress(OSError, UnicodeError):
        return _look_up(address, socket.AI_NUMERICHOST)
    found: list[_Target] = []
    failures: list[str] = []

    def work() -> None:
        try:
            found.extend(_look_up(address, 0))
        except (OSError, UnicodeError) as error:
            failures.append(getattr(error, "strerror", None) or str(error))

    thread = threading.Thread(target=work, name="lance-resolve", daemon=True)
    thread.start()
    thread.join(min(deadline.remaining(), threading.TIMEOUT_MAX))
    if failures:
        raise ConnectionLost(f"could not connect to {address}: {failures[0]}")
    if not found:
        raise Timeout(f"could not connect to {address}: its name is still looked up")
    return found


def _look_up(address: Address, flags: int) -> list[_Target]:
    kind = socket.SOCK_STREAM
    # As bytes, for which Python does not load the tables of international names.
    host = address.host.encode() if address.host.isascii() else address.host
    return [*socket.getaddrinfo(host, address.port, type=kind, flags=flags)]
