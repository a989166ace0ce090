"""How far a stream is behind, as `query.lastProgress` shows it.

Spark has no place for numbers of a source but the offset that it reports as the latest
one, which may hold more than an offset does. All of this is what is still unread when
the batch that was just planned is done; unknown numbers are null.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lance_spark.client import Capability, LanceClient
from lance_spark.errors import TopicDeleted, TopicNotFound
from lance_spark.spark.watch import Head

_NS_PER_MS = 1_000_000
_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class Lag:
    """What of a topic is unread.

    Args:
        unread_bytes: how much.
        unread_records: how many records; None if the server does not count them.
        oldest_ms: how long ago the first of them was appended; None if nothing is
            unread, or the server does not say.
    """

    unread_bytes: int
    unread_records: int | None = 0
    oldest_ms: int | None = None

    def to_document(self, head: Head, lost_bytes: int) -> dict[str, Any]:
        """Return what is reported of a topic beside its log's end."""
        return {
            "bytesBehind": self.unread_bytes,
            "recordsBehind": self.unread_records,
            "oldestUnreadMs": self.oldest_ms,
            "retentionHeadroomBytes": self._find_headroom_bytes(head),
            "retentionHeadroomMs": self._find_headroom_ms(head),
            "bytesLost": lost_bytes,
        }

    def _find_headroom_bytes(self, head: Head) -> int | None:
        """Say how much may be appended before unread data is removed."""
        if head.retention is None or not head.retention.max_bytes:
            return None
        return max(0, head.retention.max_bytes - self.unread_bytes)

    def _find_headroom_ms(self, head: Head) -> int | None:
        """Say how long it takes until unread data is removed."""
        if head.retention is None or not head.retention.max_age_s:
            return None
        if self.unread_bytes and self.oldest_ms is None:
            return None
        return max(0, head.retention.max_age_s * _MS_PER_S - (self.oldest_ms or 0))


def measure_lag(
    client: LanceClient,
    head: Head,
    offset: int,
    *,
    clock_ns: Callable[[], int] = time.time_ns,
) -> Lag:
    """Ask how far behind an offset is; asks nothing if it is not.

    Args:
        client: asks.
        head: the topic, with the end of its log.
        offset: where the next batch will start.
        clock_ns: the time of day.
    """
    unread = max(0, head.end - offset)
    if not unread:
        return Lag(0)
    if not client.supports(Capability.LOCATE):
        return Lag(unread, None)
    try:
        first = client.locate_offset(head.topic_id, offset)
        last = client.locate_end(head.topic_id)
    except (TopicNotFound, TopicDeleted):
        # Whoever looks next says so.
        return Lag(unread, None)
    age_ms = None
    if first.append_time_ns:
        age_ms = max(0, clock_ns() - first.append_time_ns) // _NS_PER_MS
    return Lag(unread, max(0, last.record - first.record), age_ms)
