"""Both ends of a connection without a network."""

from __future__ import annotations

import socket
import weakref

from lance_spark.net.stream import SocketStream


def make_pair() -> tuple[SocketStream, SocketStream]:
    """Make the two ends of a connection; one that is dropped is closed."""
    socks = socket.socketpair()
    ends = SocketStream(socks[0], "pair:right"), SocketStream(socks[1], "pair:left")
    for end, sock in zip(ends, socks, strict=True):
        weakref.finalize(end, sock.close)
    return ends
