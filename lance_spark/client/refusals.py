"""What a server would not take, and which threads know.

A batch holds records of several threads. Each thread that uses the producer is told of
a refusal once, so that nobody believes its records stored because another thread was
told that they are not. A thread that comes later need not know what others were told,
unless it flushes and no flush has told it yet.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from lance_spark.client.outbox import Batch
from lance_spark.errors import LanceError

# A producer that nobody flushes or closes must not gather them for ever.
KEPT_MAX = 10_000


class Refusal(NamedTuple):
    """A batch, and why it was refused."""

    batch: Batch
    error: LanceError


class _Told(threading.local):
    """How many refusals the present thread was told of, or need not know."""

    count: int | None = None


class Refusals:
    """The refusals of one producer; the caller holds the lock."""

    def __init__(self) -> None:
        self._kept: deque[Refusal] = deque(maxlen=KEPT_MAX)
        # How many there were, and how many of them anybody, or a flush, was told of.
        self._count = 0
        self._told_anybody = 0
        self._told_a_flush = 0
        self._told = _Told()

    def add(self, batch: Batch, error: LanceError) -> None:
        """Take note of a refusal."""
        self._kept.append(Refusal(batch, error))
        self._count += 1

    def enter(self, *, flushes: bool) -> None:
        """Note that the present thread uses the producer, if it is new here."""
        if self._told.count is None:
            self._told.count = self._told_a_flush if flushes else self._told_anybody

    def untold(self) -> list[Refusal]:
        """List what the present thread was not told yet."""
        missing = self._count - (self._told.count or 0)
        if not missing:
            return []
        kept = list(self._kept)
        return kept[max(0, len(kept) - missing) :]

    def note_told(self, *, flushes: bool) -> None:
        """Note that the present thread is told of all there are."""
        self._told.count = self._told_anybody = self._count
        if flushes:
            self._told_a_flush = self._count
