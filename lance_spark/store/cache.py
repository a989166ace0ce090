"""Open segments, least recently used first out.

Bounds two things over all topics: open files, and memory taken by index tables. A
segment that is dropped here lives on for as long as somebody reads from it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from lance_spark.store.segment import OpenSegment


class SegmentKey(NamedTuple):
    """A segment of a topic or stage."""

    topic: int
    number: int


class SegmentCache:
    """The open segments of a store."""

    def __init__(self, *, open_max: int, table_bytes_max: int) -> None:
        self._open_max = open_max
        self._table_bytes_max = table_bytes_max
        self._lock = threading.Lock()
        self._open: OrderedDict[SegmentKey, OpenSegment] = OrderedDict()

    def get(self, key: SegmentKey, opener: Callable[[], OpenSegment]) -> OpenSegment:
        """Give an open segment, opening it if need be."""
        with self._lock:
            opened = self._open.get(key)
            if opened is None:
                self._make_room()
                opened = self._open[key] = opener()
            else:
                self._open.move_to_end(key)
            return opened

    def trim_tables(self) -> None:
        """Free the tables of the least recently used segments above the limit."""
        with self._lock:
            used = 0
            for opened in reversed(self._open.values()):
                used += opened.table_bytes
                if used > self._table_bytes_max:
                    used -= opened.table_bytes
                    opened.drop_table()

    def drop(self, key: SegmentKey) -> None:
        """Forget a segment, without syncing it."""
        with self._lock:
            self._open.pop(key, None)

    def drop_topic(self, topic: int) -> None:
        """Forget all segments of a topic or stage, without syncing them."""
        with self._lock:
            for key in [k for k in self._open if k.topic == topic]:
                del self._open[key]

    def clear(self) -> None:
        """Forget everything; a file closes when the last slice of it is gone."""
        with self._lock:
            self._open.clear()

    @property
    def open_files(self) -> int:
        """How many files are held open here."""
        with self._lock:
            return 2 * len(self._open)

    def _make_room(self) -> None:
        for key in list(self._open):
            if len(self._open) < self._open_max:
                return
            if not self._open[key].dirty:
                del self._open[key]
        for key in list(self._open):
            if len(self._open) < self._open_max:
                return
            try:
                self._open[key].sync()
            except OSError:
                # It stays, and above the limit: the failure has to reach the log
                # whose bytes these are, with its next sync.
                continue
            del self._open[key]
