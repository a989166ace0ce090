"""What a server has of the topics of a stream, waiting for more, and the lag.

A query with nothing to do asks some ninety times a second whether there is anything.
The server is asked each time, because the answer has to include everything that was
appended before the question. If there is nothing new, the answer takes longer each
time, up to a second. A server that can wait answers as soon as something comes. Others
are asked at the end of the pause, and less often if there are many topics. Data that
can't be read yet, as a record that is not complete, is nothing new either.

How far a stream is behind is shown by `query.lastProgress`: Spark has no place for
numbers of a source but the offset that it reports as the latest one, which may hold
more than an offset does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from lance_spark.client.driver import Driver, LogRef, list_topics
from lance_spark.model import Partition, Retention
from lance_spark.offset import StreamOffset
from lance_spark.value import dataclass

# How long the first answer takes that has nothing new; later ones take longer.
_PAUSE_S_MIN = 0.1
# A longer pause would delay the end of a query that is stopped.
_PAUSE_S_MAX = 1.0
# How often a server that can't wait is asked anything while nothing comes.
_POLLS_PER_S = 4.0
# But no pause is longer, because it holds up the other sources of the query and its
# end. With more than some sixty topics the server is therefore asked more often.
_POLL_PAUSE_S_MAX = 15.0
# The list of topics has a version, but how long each keeps its data is not part of it.
_LISTING_S_MAX = 30.0
# A list that changes between two requests is asked for again.
_LISTING_ROUNDS_MAX = 10


_NS_PER_MS = 1_000_000
_MS_PER_S = 1000


@dataclass(frozen=True, slots=True)
class SeenLog:
    """A partition as the server has it now.

    Args:
        log: which topic it is of, and which partition.
        end: where its log ends.
        retention: how long it keeps its data, where the server says so.
    """

    log: LogRef
    end: int
    retention: Retention | None = None


# What a look at the topics has found, in the order of the partitions.
States = dict[Partition, SeenLog]


class Watch:
    """Looks at the topics that a stream reads; used by one thread.

    Args:
        reads: whether a topic of that name is read.
        names: the topics that are named, for servers that list none.
        clock: a monotonic clock.
        sleep: waits where the server can't.
    """

    def __init__(
        self,
        reads: Callable[[str], bool],
        *,
        names: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reads = reads
        self._names = names
        self._clock = clock
        self._sleep = sleep
        self._pause_s = 0.0
        self._version = 0
        self._listing: list[SeenLog] = []
        self._listed_at_s = 0.0
        # What was known at the last look, and what there was.
        self._seen: tuple[StreamOffset, States] | None = None

    def skip_pause(self) -> None:
        """Let the next look answer at once, as the query has something to do."""
        self._pause_s = 0.0

    def look(self, driver: Driver, known: StreamOffset) -> States:
        """Return what there is, after a pause if nothing of it is new."""
        if driver.traits.waits:
            states = self._wait(driver, known, self._pause_s)
            longest_s = _PAUSE_S_MAX
        else:
            self._sleep(self._pause_s)
            states = self._poll(driver)
            longest_s = max(_PAUSE_S_MAX, (1 + len(self._listing)) / _POLLS_PER_S)
            longest_s = min(longest_s, _POLL_PAUSE_S_MAX)
        if is_news(states, known, driver.traits.first_position) and self._seen != (
            known,
            states,
        ):
            self._pause_s = 0.0
        else:
            self._pause_s = min(max(2 * self._pause_s, _PAUSE_S_MIN), longest_s)
        self._seen = known, states
        return states

    def look_now(self, driver: Driver) -> States:
        """Return what there is, without a pause."""
        if driver.traits.waits:
            return self._wait(driver, StreamOffset.of({}), 0.0)
        return self._poll(driver)

    def _wait(self, driver: Driver, known: StreamOffset, wait_s: float) -> States:
        if self._clock() - self._listed_at_s > _LISTING_S_MAX:
            self._version = 0
        for _ in range(_LISTING_ROUNDS_MAX):
            first = driver.traits.first_position
            positions = {
                s.log: _find_position(s.log, known, first) for s in self._listing
            }
            news = driver.wait(positions, self._version, wait_s)
            if news.version == self._version:
                break
            # The version is older than the list, so that no change is missed.
            self._version = news.version
            self._list(driver)
            # The list has changed, so there is no reason to wait; but the ends of all
            # partitions are missing.
            wait_s = 0.0
        # Of the logs that were asked for: the list may be a newer one, where another
        # topic has the name.
        return self._put_ends(positions, news.ends)

    def _poll(self, driver: Driver) -> States:
        self._list(driver)
        logs = [state.log for state in self._listing]
        bounds = driver.bounds(logs)
        return self._put_ends({*logs}, {at: found.end for at, found in bounds.items()})

    def _list(self, driver: Driver) -> None:
        self._listed_at_s = self._clock()
        self._listing = [
            SeenLog(log, 0, entry.retention)
            for entry in list_topics(driver, self._names)
            if self._reads(entry.name)
            for log in entry.logs
        ]

    def _put_ends(
        self, asked: Collection[LogRef], ends: Mapping[Partition, int]
    ) -> States:
        # A topic that was deleted since it was listed has no end.
        return {
            at: SeenLog(state.log, ends[at], state.retention)
            for state in self._listing
            if state.log in asked and (at := state.log.partition) in ends
        }


def is_news(
    states: Mapping[Partition, SeenLog], known: StreamOffset, first: int = 0
) -> bool:
    """Tell whether there is anything that a stream does not know of.

    Args:
        states: what there is.
        known: how far the stream is.
        first: the position of the first record of a new partition.
    """
    there = {partition.topic for partition in states}
    if any(topic not in there and not place.is_away for topic, place in known.topics):
        return True
    for partition, state in states.items():
        place, log = known.get(partition.topic), state.log
        is_other = place is not None and (
            place.is_away or not place.same_topic(log.topic_id, log.created_s)
        )
        if is_other or _find_position(log, known, first) != state.end:
            return True
    return False


def _find_position(log: LogRef, known: StreamOffset, first: int) -> int:
    place = known.get(log.topic)
    if place is None or not place.same_topic(log.topic_id, log.created_s):
        return first
    return place.position(log.partition.number, first)


# How far behind it is.


@dataclass(frozen=True, slots=True)
class Lag:
    """What of a topic is unread.

    Args:
        unread_bytes: how much, in the unit of positions.
        unread_records: how many records; None if the server does not count them.
        oldest_ms: how long ago the first of them was appended; None if nothing is
            unread, or the server does not say.
    """

    unread_bytes: int
    unread_records: int | None = 0
    oldest_ms: int | None = None

    def to_document(
        self, retention: Retention | None, lost: int, unit: str = "bytes"
    ) -> dict[str, Any]:
        """Return what is reported of a topic beside its log's end.

        The headroom is how much may be appended, and how long it takes, until unread
        data is removed. Where positions count records, there are no bytes to report.
        """
        room_bytes = room_ms = None
        if retention is not None and retention.max_bytes:
            room_bytes = max(0, retention.max_bytes - self.unread_bytes)
        is_age_known = not self.unread_bytes or self.oldest_ms is not None
        if retention is not None and retention.max_age_s and is_age_known:
            room_ms = max(0, retention.max_age_s * _MS_PER_S - (self.oldest_ms or 0))
        is_bytes = unit == "bytes"
        return {
            "bytesBehind": self.unread_bytes if is_bytes else None,
            "recordsBehind": self.unread_records,
            "oldestUnreadMs": self.oldest_ms,
            "retentionHeadroomBytes": room_bytes if is_bytes else None,
            "retentionHeadroomMs": room_ms,
            "bytesLost": lost if is_bytes else None,
            "recordsLost": None if is_bytes else lost,
        }


def measure_lag(
    driver: Driver,
    state: SeenLog,
    position: int,
    *,
    clock_ns: Callable[[], int] = time.time_ns,
) -> Lag:
    """Ask how far behind a position is; asks nothing if it is not.

    Args:
        driver: asks.
        state: the partition, with the end of its log.
        position: where the next batch will start.
        clock_ns: the time of day.
    """
    unread = max(0, state.end - position)
    if not unread:
        return Lag(0)
    found = driver.count_unread(state.log, position)
    age_ms = None
    if found.oldest_ns is not None:
        age_ms = max(0, clock_ns() - found.oldest_ns) // _NS_PER_MS
    return Lag(unread, found.records, age_ms)


def add_lags(lags: Sequence[Lag]) -> Lag:
    """Put the lags of a topic's partitions together."""
    records = [lag.unread_records for lag in lags]
    ages = [lag.oldest_ms for lag in lags if lag.oldest_ms is not None]
    return Lag(
        sum(lag.unread_bytes for lag in lags),
        None if None in records else sum(filter(None, records)),
        max(ages, default=None),
    )
