"""Reading: bytes of a topic, where it starts and ends, where its records are.

`fetch` gives bytes as the server cut them; whole records are the reader's affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lance_spark.client.caller import Caller, check_capability
from lance_spark.client.config import DURATION_S_MAX
from lance_spark.client.connection import Connection
from lance_spark.client.link import Request
from lance_spark.client.pending import Pending
from lance_spark.errors import ConnectionLost, OptionError, RemoteProtocolError
from lance_spark.model import Location
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import (
    LIST_LIMITS,
    OFFSET_MAX,
    WAIT_POSITIONS_MAX,
    Capability,
    CatchingUp,
    ExtendedFetchResponse,
    Fetch,
    FetchFlags,
    FetchResponse,
    Locate,
    LocateKind,
    LocateResponse,
    Message,
    TopicPosition,
    Wait,
    WaitResponse,
)

# Of the answer with the longer header (LWP §5.9.1).
_HEADER_BYTES = 24
_U32_MAX = 2**32 - 1


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
class Bounds:
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
        return _to_fetched(self._pending.result(deadline))

    def give_up(self) -> None:
        """Say that nobody will wait for the data any more."""
        self._pending.give_up()


class FetchCalls(Caller):
    """The client's calls for reading."""

    # The connection of the last fetch, for those that may not wait for a new one.
    _fetched_on: Connection | None = None

    def fetch(
        self,
        topic: int | str,
        start: int,
        max_bytes: int,
        *,
        snap: bool = False,
        wait_s: float = 0.0,
    ) -> Fetched:
        """Read bytes of a topic.

        Args:
            topic: id or name.
            start: the first byte; behind the log's end gives the end and no data.
            max_bytes: how much at most; one whole record may be more.
            snap: move the start forward to where a record starts.
            wait_s: wait so long for data. Other calls on the same client wait as
                well. A plain server answers at once.

        Raises:
            TopicNotFound: there is no such topic.
            Unsupported: `snap` on a plain server.
        """

        def ask(topic_id: int) -> Fetched:
            def build(connection: Connection) -> Request:
                self._fetched_on = connection
                if snap:
                    what = "reading from the next record boundary"
                    check_capability(connection, Capability.FETCH_FLAGS, what)
                fetch = Fetch(topic_id, start, self._limit(max_bytes))
                return _suit(fetch, connection, snap=snap, wait_s=wait_s)

            return _to_fetched(self._link.ask(build, wait_s=wait_s))

        return self._on_topic(topic, ask)

    def submit_fetch(
        self,
        topic_id: int,
        start: int,
        max_bytes: int,
        *,
        wait_s: float = 0.0,
        dial: bool = True,
    ) -> PendingFetch:
        """Send a fetch and return at once, so that the next one is on its way early.

        It is not sent again if the connection is lost: `PendingFetch.result` says so.

        Args:
            topic_id: id of the topic.
            start: the first byte.
            max_bytes: how much at most.
            wait_s: how long the server may wait for data.
            dial: connect if need be, with all retries; otherwise the connection of
                the last fetch has to be open still.

        Raises:
            ConnectionLost, Timeout: no server can be reached.
        """
        fetch = Fetch(topic_id, start, self._limit(max_bytes))
        connection = self._link.connection() if dial else self._find_connection()
        self._fetched_on = connection
        request = _suit(fetch, connection, wait_s=wait_s)
        deadline = Deadline.after(self._config.request_timeout_s)
        return PendingFetch(
            connection.submit(
                request.message, extended=request.extended, deadline=deadline
            )
        )

    def bounds(self, topic: int | str) -> Bounds:
        """Tell where a topic starts and ends; a plain server knows its end only."""

        def ask(topic_id: int) -> Bounds:
            connection = self._link.connection()
            if Capability.LOCATE.value not in connection.capabilities:
                return Bounds(None, self.fetch(topic_id, OFFSET_MAX, 1).end)
            # In this order, so that the start is never behind the end.
            start = self._locate(topic_id, LocateKind.START).offset
            return Bounds(start, self._locate(topic_id, LocateKind.END).offset)

        return self._on_topic(topic, ask)

    def locate_offset(self, topic: int | str, offset: int) -> Location:
        """Find the first record that starts at or after a byte offset.

        Raises:
            Unsupported: the server is a plain one; so do the other `locate_*`.
        """
        return self._locate(topic, LocateKind.OFFSET, offset)

    def locate_record(self, topic: int | str, record: int) -> Location:
        """Find a record by its number."""
        return self._locate(topic, LocateKind.RECORD, record)

    def locate_time(self, topic: int | str, append_time_ns: int) -> Location:
        """Find the first record that was appended at or after a time."""
        return self._locate(topic, LocateKind.TIME, append_time_ns)

    def locate_start(self, topic: int | str) -> Location:
        """Find the start of a topic."""
        return self._locate(topic, LocateKind.START)

    def locate_end(self, topic: int | str) -> Location:
        """Find the end of a topic."""
        return self._locate(topic, LocateKind.END)

    def wait(
        self, version: int, positions: Mapping[int, int], wait_s: float
    ) -> WaitResponse:
        """Wait until a topic grows past an offset or the list of topics changes.

        Args:
            version: the version of the list that is known; 0 for none.
            positions: offsets by topic id.
            wait_s: the longest wait; other calls on the same client wait as well.

        More positions than one Wait may have are asked for in parts, one behind the
        other. Data of a part that is not waited for at that moment is then noticed
        later, but within the longest wait.

        Raises:
            Unsupported: the server is a plain one.
        """
        most = _positions_max(self._link.connection())
        listed = list(positions.items())
        if len(listed) <= most:
            return self._wait(version, listed, wait_s)
        parts = [listed[n : n + most] for n in range(0, len(listed), most)]
        answers = [self._wait(version, part, 0.0) for part in parts]
        for number, part in enumerate(parts):
            if any(is_news(a, version, positions) for a in answers):
                break
            answers[number] = self._wait(version, part, wait_s / len(parts))
        # The oldest version: a list that changed between two parts is news next time.
        oldest = min(answer.version for answer in answers)
        return WaitResponse(oldest, tuple(e for a in answers for e in a.ends))

    def _wait(
        self, version: int, positions: Sequence[tuple[int, int]], wait_s: float
    ) -> WaitResponse:
        ends = tuple(TopicPosition(t, offset) for t, offset in positions)

        def build(connection: Connection) -> Request:
            check_capability(connection, Capability.WAIT, "waiting for new data")
            return Request(Wait(version, ends, _to_ms(wait_s)))

        return self._ask_built(build, WaitResponse, wait_s=wait_s)

    def _locate(self, topic: int | str, kind: LocateKind, value: int = 0) -> Location:
        needs = (Capability.LOCATE, f"finding records by {kind.name.lower()}")

        def ask(topic_id: int) -> Location:
            message = Locate(topic_id, kind, value)
            return self._ask(message, LocateResponse, needs=needs).location

        return self._on_topic(topic, ask)

    def _find_connection(self) -> Connection:
        """Return the connection of the last fetch, if it is open."""
        connection = self._fetched_on
        if connection is not None:
            # An end that has come by now is noticed.
            connection.drain()
            if connection.is_open:
                return connection
        self._fetched_on = None
        raise ConnectionLost("the connection of the last fetch is gone")

    def _limit(self, max_bytes: int) -> int:
        largest = self._config.response_bytes_max - _HEADER_BYTES
        return min(max_bytes, largest, _U32_MAX)


def _suit(
    fetch: Fetch, connection: Connection, *, snap: bool = False, wait_s: float = 0.0
) -> Request:
    """Give a fetch the form that tells most among those the server knows."""
    if Capability.FETCH_FLAGS.value not in connection.capabilities:
        return Request(fetch)
    flags = FetchFlags.EXTENDED
    if snap:
        flags |= FetchFlags.SNAP
    if wait_s > 0:
        flags |= FetchFlags.WAIT
    return Request(
        replace(fetch, flags=flags, max_wait_ms=_to_ms(wait_s)), extended=True
    )


def _to_ms(seconds: float) -> int:
    if not 0 <= seconds <= DURATION_S_MAX:
        raise OptionError(
            f"a wait of {seconds} s: give 0 to {DURATION_S_MAX:.0f} seconds"
        )
    return round(seconds * 1000)


def _to_fetched(answer: Message) -> Fetched:
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


def _positions_max(connection: Connection) -> int:
    """Tell how many positions a Wait may have; servers of 0.5 do not say."""
    limits = connection.status.details.get("limits")
    told = limits.get(WAIT_POSITIONS_MAX) if isinstance(limits, dict) else None
    most = LIST_LIMITS["Wait.positions"]
    return min(told, most) if type(told) is int and told > 0 else most


def is_news(answer: WaitResponse, version: int, known: Mapping[int, int]) -> bool:
    """Tell whether an answer says more than was known when it was asked for."""
    return answer.version != version or any(
        end.offset > known.get(end.topic_id, 0) for end in answer.ends
    )
