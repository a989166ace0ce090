"""The clients of this process, kept between tasks.

Spark uses a Python worker for one task after the other, and a connection costs more
than a small task. A client is lent to one task at a time and kept afterwards; it checks
its connection before each request and makes a new one where that is dead, so a client
that lay idle is as good as a new one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from lance_spark.client import ClientConfig, LanceClient

# A worker runs one task at a time and a task reads one server; the rest is for jobs
# that take turns. Each costs a socket and a thread.
_IDLE_MAX = 4


class Pool:
    """Idle clients by their settings, the one that was used last at the end."""

    def __init__(self, idle_max: int = _IDLE_MAX) -> None:
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._idle: list[LanceClient] = []

    @contextmanager
    def lease(self, config: ClientConfig) -> Iterator[LanceClient]:
        """Lend a client that nobody else uses meanwhile.

        It is kept afterwards, except when the block fails: whatever is wrong with it
        must not reach the next task.
        """
        client = self._take(config) or LanceClient(config=config)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        self._keep(client)

    def clear(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for client in idle:
            client.close()

    def _take(self, config: ClientConfig) -> LanceClient | None:
        with self._lock:
            for client in reversed(self._idle):
                if client.config == config:
                    self._idle.remove(client)
                    return client
        return None

    def _keep(self, client: LanceClient) -> None:
        with self._lock:
            self._idle.append(client)
            surplus = self._idle[: -self._idle_max]
            del self._idle[: -self._idle_max]
        for old in surplus:
            old.close()


_pool = Pool()


def lease(config: ClientConfig) -> AbstractContextManager[LanceClient]:
    """Lend a client of this process's pool for the time of a `with` block."""
    return _pool.lease(config)


def clear_pool() -> None:
    """Close the idle clients of this process."""
    _pool.clear()


def _start_empty() -> None:
    # A child of `fork` shares the parent's sockets and has none of its threads. The
    # clients are let go without a word, as closing them would talk on those sockets.
    global _pool
    _pool = Pool()


os.register_at_fork(after_in_child=_start_empty)
