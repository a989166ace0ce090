"""The thread that makes appends durable, many with one sync."""

from __future__ import annotations

import logging
import threading
import time

from lance_spark.errors import StoreError, StoreReadOnly
from lance_spark.store.log import Log

logger = logging.getLogger(__name__)

_RETRY_S = 0.01


class Syncer:
    """Syncs the logs that were appended to, at most once per interval.

    Appends that arrive while a sync is under way share the next one.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._wake = threading.Condition()
        self._dirty: dict[int, Log] = {}
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, name="lance-store-sync", daemon=True
        )
        self._thread.start()

    def request(self, log: Log) -> None:
        """Have a log synced soon."""
        with self._wake:
            self._dirty[log.topic] = log
            self._wake.notify()

    def stop(self, timeout_s: float) -> None:
        """Sync what is left and end the thread."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._dirty or self._stopped)
                logs, self._dirty = list(self._dirty.values()), {}
                if self._stopped and not logs:
                    return
            started = time.monotonic()
            for log in logs:
                if not self._sync(log) and not self._stopped:
                    self.request(log)
            rest = self._interval_s - (time.monotonic() - started)
            if rest > 0 and not self._stopped:
                time.sleep(rest)

    @staticmethod
    def _sync(log: Log) -> bool:
        """Sync a log; tell whether that is settled, well or badly."""
        try:
            log.sync()
        except StoreReadOnly:
            # The log has noted it and tells everyone who waits.
            logger.debug("%s: sync failed", log.where, exc_info=True)
        except StoreError:
            # It was not even tried, for want of a file descriptor: once more.
            time.sleep(_RETRY_S)
            return False
        except Exception:
            # A bug must not end the thread: every later append would wait in vain.
            logger.exception("%s: sync failed", log.where)
        return True
