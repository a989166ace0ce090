"""How a streaming query is doing, for people: rates, lag by topic, what was before.

Spark describes each batch in a document of its own. This reads these documents from
`query.recentProgress` and sends no request. Other sources have rows and no lag.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lance_spark.html import render_table, show_bars, show_bytes, show_cell
from lance_spark.value import dataclass

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# How many batches the display has; `batches` has them all.
_SHOWN_BATCHES = 5
_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class TopicLag:
    """What of a topic is unread when a batch is done.

    Args:
        unread_bytes: how much; None where positions count records, as in `tank`.
        unread_records: how many records; None if the server does not count them.
        oldest_ms: how long ago the first of them was appended; None if nothing is
            unread, or the server does not say.
        lost_bytes: what was gone before it could be read; None as above.
        lost_records: the same where positions count records, else None.
    """

    unread_bytes: int | None
    unread_records: int | None = None
    oldest_ms: int | None = None
    lost_bytes: int | None = 0
    lost_records: int | None = None


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """What Spark tells of one batch.

    Args:
        batch: its number; a query without news tells of the same one again.
        started: when it began.
        duration_s: how long it took, planning and commit with it.
        rows: how many it has read.
        lag: what is unread behind it, by topic.
    """

    batch: int
    started: datetime
    duration_s: float
    rows: int
    lag: Mapping[str, TopicLag]

    @property
    def rows_per_s(self) -> float:
        """Rows that it has read in a second; 0.0 if it took no time at all."""
        return self.rows / self.duration_s if self.duration_s else 0.0

    @property
    def ended(self) -> datetime:
        """When it was done."""
        return self.started + timedelta(seconds=self.duration_s)

    @property
    def unread_bytes(self) -> int | None:
        """What is unread of all topics together; None if one is not in bytes."""
        return _add(lag.unread_bytes for lag in self.lag.values())

    @property
    def unread_records(self) -> int | None:
        """How many records that is; None if a server does not count them."""
        return _add(lag.unread_records for lag in self.lag.values())


class StreamProgress:
    """What a query has told so far; make another one to see what has changed.

    Spark keeps the last 100 batches (`spark.sql.streaming.numRecentProgressUpdates`),
    also of a query that has ended.
    """

    def __init__(self, query: StreamingQuery) -> None:
        """Read the progress of a query.

        Args:
            query: one that runs, or that has ended.
        """
        self.name: str = query.name or str(query.id)
        self.is_active: bool = query.isActive
        # Only the JSON is as our source said it: Spark's own view of it turns the
        # offsets into texts.
        self.batches: tuple[BatchProgress, ...] = tuple(
            parse_batch(json.loads(told.json)) for told in query.recentProgress
        )

    @property
    def last(self) -> BatchProgress | None:
        """The newest batch; None before the first one is done."""
        return self.batches[-1] if self.batches else None

    @property
    def rows(self) -> int:
        """Rows that these batches have read."""
        return sum(batch.rows for batch in self.batches)

    @property
    def rows_per_s(self) -> float:
        """Rows in a second, from the first batch's start to the last one's end."""
        if not self.batches:
            return 0.0
        took = self.batches[-1].ended - self.batches[0].started
        return self.rows / took.total_seconds() if took else 0.0

    @property
    def lag(self) -> Mapping[str, TopicLag]:
        """What is unread, by topic, as of the newest batch."""
        return self.last.lag if self.last is not None else {}

    @property
    def history(self) -> dict[str, list[Any]]:
        """The batches as columns, to plot them or to make a DataFrame of them."""
        names = ("started", "ended", "batch", "rows", "duration_s", "rows_per_s")
        return {
            name: [getattr(batch, name) for batch in self.batches]
            for name in (*names, "unread_bytes", "unread_records")
        }

    def __str__(self) -> str:
        lags = [
            f"{name} {_show_amount(lag.unread_bytes, lag.unread_records)} behind"
            for name, lag in self.lag.items()
        ]
        return "; ".join([self._headline(), *lags])

    def __repr__(self) -> str:
        return f"<StreamProgress {self}>"

    def _repr_html_(self) -> str:
        parts = [render_table(_LAG, self._lag_rows(), caption=self._headline())]
        if self.batches:
            bars = show_bars([batch.rows for batch in self.batches])
            newest = self.batches[-_SHOWN_BATCHES:]
            caption = f"rows of each batch {bars[-60:]}, and the newest batches:"
            rows = [
                (b.batch, f"{b.started:%H:%M:%S}", b.rows, b.duration_s, b.rows_per_s)
                for b in newest
            ]
            parts.append(render_table(_BATCHES, rows, caption=caption))
        return "\n".join(parts)

    def _headline(self) -> str:
        state = "running" if self.is_active else "ended"
        noun = "batch" if len(self.batches) == 1 else "batches"
        told = f"query {self.name}: {state}, {len(self.batches):,} {noun}"
        if not self.batches:
            return f"{told}, none done yet"
        return f"{told}, {self.rows:,} rows, {show_cell(self.rows_per_s)} rows/s"

    def _lag_rows(self) -> list[tuple[str | int | None, ...]]:
        return [
            (
                name,
                lag.unread_records,
                _show_amount(lag.unread_bytes, lag.unread_records),
                _show_age(lag.oldest_ms),
                _show_amount(lag.lost_bytes, lag.lost_records),
            )
            for name, lag in self.lag.items()
        ]


_LAG = ("topic", "records behind", "behind", "oldest unread", "lost")
_BATCHES = ("batch", "started", "rows", "seconds", "rows/s")


def parse_batch(document: Mapping[str, Any]) -> BatchProgress:
    """Read the document of a batch, as `query.lastProgress.json` has it."""
    lag: dict[str, TopicLag] = {}
    for source in document.get("sources", ()):
        lag.update(_parse_lag(source.get("latestOffset")))
    took_ms = document.get("durationMs", {}).get("triggerExecution", 0)
    # Python reads a trailing Z since 3.11 only.
    started = datetime.fromisoformat(document["timestamp"].replace("Z", "+00:00"))
    return BatchProgress(
        batch=document["batchId"],
        started=started,
        duration_s=took_ms / _MS_PER_S,
        rows=document.get("numInputRows", 0),
        lag=lag,
    )


def _parse_lag(latest: Any) -> dict[str, TopicLag]:
    """Read what our source reports as its latest offset; others report other things."""
    topics = latest.get("topics") if isinstance(latest, Mapping) else None
    if not isinstance(topics, Mapping):
        return {}
    return {
        name: TopicLag(
            unread_bytes=told["bytesBehind"],
            unread_records=told.get("recordsBehind"),
            oldest_ms=told.get("oldestUnreadMs"),
            lost_bytes=told.get("bytesLost"),
            lost_records=told.get("recordsLost"),
        )
        for name, told in topics.items()
        if isinstance(told, Mapping) and "bytesBehind" in told
    }


def _add(amounts: Iterable[int | None]) -> int | None:
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _show_amount(size: int | None, records: int | None) -> str:
    """Write how much something is, in the unit of its positions."""
    if size is not None or records is None:
        return show_bytes(size)
    return f"{records:,} record{'s' * (records != 1)}"


def _show_age(age_ms: int | None) -> str:
    return show_cell(None) if age_ms is None else f"{age_ms / _MS_PER_S:.1f} s"
