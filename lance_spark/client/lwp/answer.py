"""What the calls of `LanceClient` return, and the forms that depend on the server.

A plain server offers nothing beyond LWP: it does not say where a log starts, takes no
options with a fetch, and takes a retention of 0 at its word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_spark.client.config import DURATION_S_MAX
from lance_spark.client.connection import Connection
from lance_spark.client.inbox import Pending
from lance_spark.client.lwp.dialect import LwpDialect
from lance_spark.errors import OptionError, RemoteProtocolError
from lance_spark.model import Retention
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import (
    LIST_LIMITS,
    WAIT_POSITIONS_MAX,
    Capability,
    CatchingUp,
    ExtendedFetchResponse,
    Fetch,
    FetchFlags,
    FetchResponse,
    Message,
    TopicInfo,
    WaitResponse,
)

if TYPE_CHECKING:
    from lance_spark.html import Cell

# A plain server takes a limit of 0 at its word and deletes everything. These are as
# good as no limit: 285 years, which in nanoseconds still fit 64 bits, and 8 EiB.
PLAIN_MAX_AGE_S = 9_000_000_000
PLAIN_MAX_BYTES = 2**63 - 1

_COLUMNS = ("id", "topic", "records", "log", "retention")


class ShownTopic(TopicInfo):
    """A topic that notebooks show as a table."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        # Dataclasses of two classes are never equal, whatever they hold.
        if not isinstance(other, TopicInfo):
            return NotImplemented
        return self.to_document() == other.to_document()

    __hash__ = TopicInfo.__hash__

    def _repr_html_(self) -> str:
        from lance_spark.html import render_facts  # For notebooks alone.

        facts = dict(zip(_COLUMNS, _row(self), strict=True))
        return render_facts(facts, caption=f"topic {facts.pop('topic')}")


class TopicList(list[ShownTopic]):
    """A list of topics that notebooks show as a table."""

    def _repr_html_(self) -> str:
        from lance_spark.html import render_table

        return render_table(_COLUMNS, [_row(info) for info in self])


@dataclass(frozen=True, slots=True)
class Fetched:
    """The bytes [start, end) of a topic; `start` need not be the one asked for.

    Args:
        start: where the data starts: later than asked if retention was there first,
            or if the server was to snap to a record.
        end: where it ends; with no data, where the log ends if that was asked for.
        data: a view of the bytes, perhaps cut inside a record.
        high_water_mark: where the log ends; None if the server does not say.
    """

    start: int
    end: int
    data: memoryview
    high_water_mark: int | None = None


@dataclass(frozen=True, slots=True)
class KnownBounds:
    """Where a log starts, if the server says, and where it ends."""

    start: int | None
    end: int


class PendingFetch:
    """A fetch on its way; made by `LanceClient.submit_fetch`."""

    __slots__ = ("_pending",)

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def result(self, deadline: Deadline) -> Fetched:
        """Wait for the data; after a Timeout it may be called again.

        Raises:
            BrokerError: the server refused.
            ConnectionLost: the connection ended first; the client's next call makes
                a new one.
            Timeout: the deadline passed.
        """
        return to_fetched(self._pending.result(deadline))

    def give_up(self) -> None:
        """Say that no thread will wait for the data any more."""
        self._pending.give_up()


def make_fetch(
    connection: Connection,
    topic_id: int,
    start: int,
    max_bytes: int,
    *,
    snap: bool = False,
    wait_s: float = 0.0,
) -> Fetch:
    """Make a fetch in the form that tells most among those the server knows."""
    if Capability.FETCH_FLAGS.value not in connection.capabilities:
        return Fetch(topic_id, start, max_bytes)
    flags = FetchFlags.EXTENDED
    if snap:
        flags |= FetchFlags.SNAP
    if wait_s > 0:
        flags |= FetchFlags.WAIT
    return Fetch(topic_id, start, max_bytes, flags, to_ms(wait_s))


def to_ms(seconds: float) -> int:
    """Give a wait in milliseconds, or raise OptionError for one that LWP lacks."""
    if not 0 <= seconds <= DURATION_S_MAX:
        raise OptionError(
            f"a wait of {seconds} s: give 0 to {DURATION_S_MAX:.0f} seconds"
        )
    return round(seconds * 1000)


def to_fetched(answer: Message) -> Fetched:
    """Give the three answers to a fetch one form."""
    if isinstance(answer, ExtendedFetchResponse):
        data = memoryview(answer.data)
        return Fetched(answer.start, answer.end, data, answer.high_water_mark)
    if isinstance(answer, CatchingUp):
        return Fetched(answer.end, answer.end, memoryview(b""))
    # The table of answers to a Fetch has no other.
    assert isinstance(answer, FetchResponse)
    data = memoryview(answer.data)
    start = answer.next_offset - len(data)
    if start < 0:
        raise RemoteProtocolError(
            f"{len(data)} bytes were fetched that end at {answer.next_offset}"
        )
    return Fetched(start, answer.next_offset, data)


def find_positions_max(connection: Connection) -> int:
    """Tell how many positions a Wait may have; servers of 0.5 do not say."""
    assert isinstance(connection.dialect, LwpDialect)
    limits = connection.dialect.status.details.get("limits")
    told = limits.get(WAIT_POSITIONS_MAX) if isinstance(limits, dict) else None
    most = LIST_LIMITS["Wait.positions"]
    return min(told, most) if type(told) is int and told > 0 else most


def is_news(answer: WaitResponse, version: int, known: Mapping[int, int]) -> bool:
    """Tell whether an answer says more than was known when it was asked for."""
    return answer.version != version or any(
        end.offset > known.get(end.topic_id, 0) for end in answer.ends
    )


def to_sent_limits(retention: Retention, connection: Connection) -> Retention:
    """Give the limits as the server understands them."""
    if connection.capabilities:
        return retention
    return Retention(
        retention.max_age_s or PLAIN_MAX_AGE_S, retention.max_bytes or PLAIN_MAX_BYTES
    )


def to_meant_limits(retention: Retention) -> Retention:
    """Give the limits as we understand them: the opposite of `to_sent_limits`."""
    age_s, size = retention.max_age_s, retention.max_bytes
    return Retention(
        0 if age_s == PLAIN_MAX_AGE_S else age_s, 0 if size == PLAIN_MAX_BYTES else size
    )


def to_shown_topic(info: TopicInfo) -> ShownTopic:
    """Give a topic the form that notebooks show, with the limits that it has."""
    limits = None if info.retention is None else to_meant_limits(info.retention)
    return ShownTopic(
        info.id, info.name, info.created_at_s, info.epoch, limits, info.details
    )


def _row(info: TopicInfo) -> tuple[Cell, ...]:
    from lance_spark.html import show_retention, show_span

    found = info.details
    log = show_span(found.get("log_start"), found.get("log_end"))
    records = found.get("record_count")
    return info.id, info.name, records, log, show_retention(info.retention)


def find_committed(
    details: Mapping[str, Any], consumer_id: int
) -> tuple[bool, int | None]:
    """Find a consumer's offset in the details of a topic.

    Returns:
        Whether the details tell, as a server may list only some consumers, and the
        offset, None if the consumer has committed nothing.
    """
    consumers, count = details.get("consumers", ()), details.get("consumer_count")
    if not isinstance(consumers, list):
        return "consumers" in details, None
    for consumer in consumers:
        if isinstance(consumer, dict) and consumer.get("consumer_id") == consumer_id:
            offset = consumer.get("committed_offset")
            return True, offset if isinstance(offset, int) else None
    return not isinstance(count, int) or len(consumers) >= count, None
