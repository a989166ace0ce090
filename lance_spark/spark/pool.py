"""The drivers of this process, kept between tasks.

Spark uses a Python worker for one task after the other, and a connection costs more
than a small task. A driver is lent to one task at a time and kept afterwards. Before it
is lent again it checks its connection and makes a new one where that is dead, so an
idle driver is as good as a new one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lance_spark.client.driver import ConnectionConfig, Driver, open_driver

# A worker runs one task at a time and a task reads one server; the rest is for jobs
# that take turns. Each costs a socket and a thread; one that has written stages costs
# two of each, since their batches have a connection of their own.
_IDLE_MAX = 4


class Pool:
    """Idle drivers by their settings, the one that was used last at the end."""

    def __init__(self, idle_max: int = _IDLE_MAX) -> None:
        self._idle_max = idle_max
        self.start_empty()

    def start_empty(self) -> None:
        """Forget all drivers without closing them, as a child of `fork` has to.

        It shares the parent's sockets, on which `close` would talk, and has none of its
        threads, one of which may hold the lock.
        """
        self._lock = threading.Lock()
        self._idle: list[Driver] = []

    @contextmanager
    def lease(self, config: ConnectionConfig) -> Iterator[Driver]:
        """Lend a driver to one block alone, connected to a server.

        It is kept afterwards, unless the block fails: a fault of its connection must
        not reach the next task.

        Raises:
            LanceError: no server can be reached.
        """
        driver = self._take(config) or open_driver(config)
        try:
            # A server of another kind may be at the address by now.
            driver = driver.refresh()
            yield driver
        except BaseException:
            driver.close()
            raise
        self._keep(driver)

    def clear(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for driver in idle:
            driver.close()

    def _take(self, config: ConnectionConfig) -> Driver | None:
        with self._lock:
            for driver in reversed(self._idle):
                if driver.config == config:
                    self._idle.remove(driver)
                    return driver
        return None

    def _keep(self, driver: Driver) -> None:
        with self._lock:
            self._idle.append(driver)
            surplus = self._idle[: -self._idle_max]
            del self._idle[: -self._idle_max]
        for old in surplus:
            old.close()


# The drivers of this process.
_pool = Pool()
lease, clear_pool = _pool.lease, _pool.clear
os.register_at_fork(after_in_child=_pool.start_empty)
