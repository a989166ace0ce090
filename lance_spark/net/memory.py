"""A connection in memory, for tests without sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline, Waker
from lance_spark.net.stream import Stream, byte_views, late, lost

BUFFER_BYTES = 1024 * 1024


def make_pair(*, buffer_bytes: int = BUFFER_BYTES) -> tuple[Stream, Stream]:
    """Make the two ends of a connection.

    Args:
        buffer_bytes: how much each direction holds; a send waits while it is full.
    """
    changed = threading.Condition()
    there, back = _Channel(buffer_bytes), _Channel(buffer_bytes)
    left = MemoryStream("memory:right", changed, incoming=back, outgoing=there)
    right = MemoryStream("memory:left", changed, incoming=there, outgoing=back)
    return left, right


class _Channel:
    """One direction. Its fields are used with the condition of its pair held."""

    def __init__(self, bytes_max: int) -> None:
        self.data = bytearray()
        self.bytes_max = bytes_max
        # The writer will write no more; the reader will read no more.
        self.is_ended = False
        self.is_refused = False


class MemoryStream(Stream):
    """One end of a pair."""

    def __init__(
        self,
        peer: str,
        changed: threading.Condition,
        *,
        incoming: _Channel,
        outgoing: _Channel,
    ) -> None:
        self.peer = peer
        self._changed = changed
        self._incoming = incoming
        self._outgoing = outgoing
        self._ended: str | None = None

    def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
        channel = self._incoming
        with self._changed:
            if not self._wait(self._has_news, deadline):
                raise late(self.peer, "nothing came")
            count = min(len(buffer), len(channel.data))
            buffer[:count] = channel.data[:count]
            del channel.data[:count]
            self._changed.notify_all()
            return count

    def send(self, buffers: Sequence[Buffer], deadline: Deadline) -> None:
        views = byte_views(buffers)
        with self._changed:
            self._check()
            self._begin_send()
            for view in views:
                while view:
                    view = view[self._put(view, deadline) :]
            self._torn = False

    def _put(self, view: memoryview, deadline: Deadline) -> int:
        channel = self._outgoing
        if not self._wait(self._has_room, deadline):
            raise late(self.peer, "the peer did not read")
        if channel.is_ended or channel.is_refused:
            raise lost(self.peer, "the other end takes no more")
        count = min(len(view), channel.bytes_max - len(channel.data))
        channel.data += view[:count]
        self._changed.notify_all()
        return count

    def wait_readable(self, deadline: Deadline, waker: Waker | None = None) -> bool:
        def is_over() -> bool:
            return self._has_news() or (waker is not None and waker.is_set)

        with waker.listening(self._notify) if waker else nullcontext(), self._changed:
            self._wait(is_over, deadline)
            return self._has_news()

    def shutdown_write(self) -> None:
        with self._changed:
            self._outgoing.is_ended = True
            self._changed.notify_all()

    def abort(self) -> None:
        self._finish("it was aborted here")

    def close(self) -> None:
        self._finish("it was closed here")

    def _finish(self, reason: str) -> None:
        with self._changed:
            self._ended = self._ended or reason
            self._outgoing.is_ended = True
            self._incoming.is_refused = True
            self._changed.notify_all()

    def _has_news(self) -> bool:
        return bool(self._incoming.data) or self._incoming.is_ended

    def _has_room(self) -> bool:
        channel = self._outgoing
        is_over = channel.is_ended or channel.is_refused
        return is_over or len(channel.data) < channel.bytes_max

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self, is_over: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait for something; tell whether it came about before the deadline."""
        while True:
            self._check()
            if is_over():
                return True
            if deadline.expired:
                return False
            self._changed.wait(min(deadline.remaining(), threading.TIMEOUT_MAX))

    def _check(self) -> None:
        if self._ended is not None:
            raise lost(self.peer, self._ended)
