"""A way to wake a thread that waits for a stream."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lance_spark.errors import Timeout


class Waker:
    """Wakes a thread that waits in `Stream.wait_readable`; any thread may set it.

    It stays set until it is cleared, so that a wake-up before the wait is not lost.
    One that is closed counts as set: nobody waits for it in vain.

    Raises:
        Timeout: no descriptor is free for it, so that nothing can be waited for.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._is_closed = False
        self._listeners: list[Callable[[], None]] = []
        # A socket pair and not a pipe: one that is forgotten gives a ResourceWarning.
        try:
            self._reader, self._writer = socket.socketpair()
        except OSError as error:
            raise Timeout(
                f"can't wait: {error.strerror}; try again, or raise the limit of open "
                "files (ulimit -n)"
            ) from error

    @property
    def is_set(self) -> bool:
        """Whether a wait would end at once."""
        return self._is_set

    def set(self) -> None:
        """Wake the waiting thread, or the next one that waits."""
        with self._lock:
            if self._is_set:
                return
            self._is_set = True
            # One byte at most is ever in the pair, so that this can't block.
            self._writer.send(b"\0")
            listeners = list(self._listeners)
        # Outside of the lock: a listener takes locks of its own.
        for listener in listeners:
            listener()

    def clear(self) -> None:
        """Make ready for the next wake-up."""
        with self._lock:
            if self._is_set and not self._is_closed:
                self._reader.recv(1)
                self._is_set = False

    def close(self) -> None:
        """Wake whoever waits and give the descriptors back; may be called again."""
        self.set()
        with self._lock:
            self._is_set = self._is_closed = True
            self._reader.close()
            self._writer.close()

    def fileno(self) -> int:
        """Give the descriptor that is readable while this is set."""
        return self._reader.fileno()

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Have a function called when this is set, for waits without descriptors."""
        with self._lock:
            self._listeners.append(listener)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)
