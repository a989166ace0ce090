"""The attempt to connect that a link has under way, which its `close` can end."""

from __future__ import annotations

import threading
from typing import Protocol

from lance_spark.errors import ConnectionLost


class Abortable(Protocol):
    """A connection that is being set up."""

    def abort(self) -> None:
        """End it; whoever waits on it gets ConnectionLost."""


class Attempt:
    """Ends a connection that is being set up, and all that would follow it.

    One thread connects at a time; any thread may cancel, and that is for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Abortable | None = None
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody wants a connection any more."""
        return self._is_cancelled

    def check(self) -> None:
        """Raise ConnectionLost if nobody wants a connection any more."""
        if self._is_cancelled:
            raise ConnectionLost("connecting was given up, as the client was closed")

    def enter(self, connection: Abortable) -> None:
        """Name the connection that is being set up now.

        Raises:
            ConnectionLost: nobody wants one any more.
        """
        with self._lock:
            self._connection = connection
        self.check()

    def leave(self) -> None:
        """Say that it is set up, or has failed."""
        with self._lock:
            self._connection = None

    def cancel(self) -> None:
        """End what is under way, and let nothing begin."""
        with self._lock:
            self._is_cancelled = True
            connection = self._connection
        if connection is not None:
            connection.abort()
