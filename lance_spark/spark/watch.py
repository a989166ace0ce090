"""What a server has of the topics of a stream, and waiting until there is more.

A query with nothing to do asks some ninety times a second whether there is anything.
Each time the server is asked, because what was appended before the question has to be
in the answer; but where there is nothing new the answer takes its time, and more of it
each time up to a second. A server that can wait answers as soon as something comes. A
plain one is asked at the end of the pause, and with many topics less often. What is
there and can't be read yet, as a record that is not whole, is nothing new either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lance_spark.client import Capability, LanceClient, TopicInfo
from lance_spark.errors import TopicDeleted, TopicNotFound
from lance_spark.model import Retention
from lance_spark.offset import StreamOffset

# How long the first answer takes that has nothing new; later ones take longer.
_PAUSE_S_MIN = 0.1
# Longer ones would hold up whoever stops the query.
_PAUSE_S_MAX = 1.0
# How often a plain server is asked anything while nothing comes.
_PLAIN_REQUESTS_PER_S = 4.0
# But no pause is longer: it holds up the other sources of the query and its end. More
# than some sixty topics are asked for more often than that.
_PLAIN_PAUSE_S_MAX = 15.0
# The list of topics has a version, but how long each keeps its data is not part of it.
_LISTING_S_MAX = 30.0
# A list that changes between two requests is asked for again.
_LISTING_ROUNDS_MAX = 10


@dataclass(frozen=True, slots=True)
class Head:
    """A topic as the server has it now.

    Args:
        topic_id: its id.
        created_s: when it was created, which tells it from its successor.
        end: where its log ends.
        retention: how long it keeps its data, where the server says so.
    """

    topic_id: int
    created_s: int
    end: int
    retention: Retention | None = None


class Watch:
    """Looks at the topics that a stream reads; used by one thread.

    Args:
        reads: whether a topic of that name is read.
        clock: a monotonic clock.
        sleep: waits where the server can't.
    """

    def __init__(
        self,
        reads: Callable[[str], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reads = reads
        self._clock = clock
        self._sleep = sleep
        self._pause_s = 0.0
        self._version = 0
        self._listing: dict[str, TopicInfo] = {}
        self._listed_at_s = 0.0
        # What was known at the last look, and what there was.
        self._seen: tuple[StreamOffset, dict[str, Head]] | None = None

    def hurry(self) -> None:
        """Let the next look answer at once, as the query has something to do."""
        self._pause_s = 0.0

    def look(self, client: LanceClient, known: StreamOffset) -> dict[str, Head]:
        """Say what there is, after a pause if it is nothing but what is known."""
        if client.supports(Capability.WAIT):
            heads = self._wait(client, known, self._pause_s)
            longest_s = _PAUSE_S_MAX
        else:
            self._sleep(self._pause_s)
            heads, requests = self._poll(client)
            longest_s = max(_PAUSE_S_MAX, requests / _PLAIN_REQUESTS_PER_S)
            longest_s = min(longest_s, _PLAIN_PAUSE_S_MAX)
        if is_news(heads, known) and self._seen != (known, heads):
            self._pause_s = 0.0
        else:
            self._pause_s = min(max(2 * self._pause_s, _PAUSE_S_MIN), longest_s)
        self._seen = known, heads
        return heads

    def glance(self, client: LanceClient) -> dict[str, Head]:
        """Say what there is, at once."""
        if client.supports(Capability.WAIT):
            return self._wait(client, StreamOffset.of({}), 0.0)
        return self._poll(client)[0]

    # A server that can wait.

    def _wait(
        self, client: LanceClient, known: StreamOffset, wait_s: float
    ) -> dict[str, Head]:
        if self._clock() - self._listed_at_s > _LISTING_S_MAX:
            self._version = 0
        for _ in range(_LISTING_ROUNDS_MAX):
            positions = {
                info.id: _find_position(info, known) for info in self._listing.values()
            }
            answer = client.wait(self._version, positions, wait_s)
            if answer.version == self._version:
                break
            # The version is older than the list, so that no change is missed.
            self._version = answer.version
            self._list(client)
            # What the list was asked for has come: the ends of all are missing.
            wait_s = 0.0
        ends = {position.topic_id: position.offset for position in answer.ends}
        # What was deleted since has no end, and another version.
        return {
            name: _make_head(info, ends[info.id])
            for name, info in self._listing.items()
            if info.id in ends
        }

    def _list(self, client: LanceClient) -> None:
        self._listed_at_s = self._clock()
        topics = sorted(client.topics(), key=lambda info: info.name)
        self._listing = {info.name: info for info in topics if self._reads(info.name)}

    # One that can't.

    def _poll(self, client: LanceClient) -> tuple[dict[str, Head], int]:
        """Ask for each topic; say also how many requests that took."""
        self._list(client)
        heads = {}
        for name, info in self._listing.items():
            try:
                heads[name] = _make_head(info, client.bounds(info.id).end)
            except (TopicNotFound, TopicDeleted):
                # Deleted since it was listed.
                continue
        return heads, 1 + len(self._listing)


def is_news(heads: Mapping[str, Head], known: StreamOffset) -> bool:
    """Tell whether there is anything that a stream does not know of."""
    if any(topic not in heads and not p.is_away for topic, p in known.topics):
        return True
    for topic, head in heads.items():
        place = known.get(topic)
        if place is None:
            if head.end:
                return True
        elif (
            place.is_away
            or not place.same_topic(head.topic_id, head.created_s)
            or place.offset != head.end
        ):
            return True
    return False


def _find_position(info: TopicInfo, known: StreamOffset) -> int:
    place = known.get(info.name)
    if place is None or not place.same_topic(info.id, info.created_at_s):
        return 0
    return place.offset


def _make_head(info: TopicInfo, end: int) -> Head:
    return Head(info.id, info.created_at_s, end, info.retention)
