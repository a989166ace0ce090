"""The grouped consumer: topics shared out among the members of a group.

Everything that a user sees happens in `poll`, on the user's thread: topics come and go
there, callbacks are called there, commits are made there. Another thread only sends
heartbeats (`GroupMember`). The order in which a topic is given up is the promise that
no two members read it at once:

    on_revoked, commit, stop reading, heartbeat with the new generation, on_assigned

The broker gives a topic that moves to its new reader only after the old one has sent a
heartbeat with the new generation. So a heartbeat names the generation that was
*applied*: the consumer stops reading, commits and says so by `apply`. What the broker
says in the meantime is kept in `latest`.

Heartbeats end when they would only keep topics from others: when the member is
collected, which its thread holds by a weak reference only, and while the consumer has
not polled for `max_poll_interval_s`.

The file is long because that order runs through all of it, and is easiest to check in
one place.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from lance_spark.client.link import Repeater
from lance_spark.client.lwp.answer import is_news
from lance_spark.client.lwp.client import LanceClient
from lance_spark.client.lwp.consumer import AUTO_COMMIT_INTERVAL_S, CommitClock
from lance_spark.client.lwp.cursor import (
    Cursor,
    CursorOptions,
    PollResult,
    SeekPosition,
)
from lance_spark.client.lwp.offsets import consumer_id
from lance_spark.client.lwp.reader import FETCH_BYTES_DEFAULT
from lance_spark.errors import (
    ConnectionLost,
    ConsumerNotFound,
    LanceError,
    OptionError,
    Timeout,
)
from lance_spark.net.deadline import Deadline
from lance_spark.quantity import check_choice, refuse_setting
from lance_spark.wire.lwp import (
    AssignedTopic,
    AssignmentStrategy,
    Capability,
    GroupHeartbeatResponse,
    GroupJoined,
    code_of,
)

logger = logging.getLogger(__name__)

STRATEGIES = {s.name.lower().replace("_", "-"): s for s in AssignmentStrategy}
SESSION_TIMEOUT_S = 30.0
# Three heartbeats fit into a session, so that one may get lost and one be late. Members
# with long sessions send more of them, because topics move at the pace of heartbeats.
_BEATS_PER_SESSION = 3
_BEAT_S_MAX = 3.0
_STOP_S = 10.0
MAX_POLL_INTERVAL_S = 300.0

# A wait for records is cut into pieces, so that topics that come or go are noticed.
_WAIT_PIECE_S = 0.5
# A broker for which others wait already answers at once. It is not asked again before
# this has passed, or all that wait would keep it busy.
_PAUSE_S = 0.05
# Fetching ahead takes a fetch's worth of memory per topic: not for hundreds of them.
_PREFETCH_TOPICS_MAX = 8
# How many answers in a row may bring something new before records get a turn.
_APPLY_ROUNDS_MAX = 10

Callback = Callable[[list[str]], None]


class Assignment(NamedTuple):
    """What the broker said last: a generation, and the topics to read in it."""

    generation: int
    topics: tuple[AssignedTopic, ...]


class GroupMember:
    """Keeps a place in a group, with heartbeats from a thread of its own.

    Args:
        client: has the connection, which nothing else uses.
        group: the group's name.
        strategy: how topics are shared out.
        session_timeout_s: silence after which the broker takes the member for dead.
        max_poll_interval_s: how long heartbeats go on without a poll.
        clock: a monotonic clock.
    """

    def __init__(
        self,
        client: LanceClient,
        group: str,
        *,
        strategy: AssignmentStrategy,
        session_timeout_s: float,
        max_poll_interval_s: float = MAX_POLL_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._group = group
        self._strategy = strategy
        self._session_timeout_s = session_timeout_s
        self._max_poll_interval_s = max_poll_interval_s
        self._clock = clock
        self._interval_s = min(session_timeout_s / _BEATS_PER_SESSION, _BEAT_S_MAX)
        # Held while a request is under way, so that answers are kept in their order.
        self._asking = threading.Lock()
        # Guards what follows; notified when there is news.
        self._changed = threading.Condition()
        # Chosen here, so that a join whose answer is lost can be repeated: under a
        # name of the broker's making it would be another member.
        self.id = f"group-{secrets.token_hex(8)}"
        self._topics: tuple[str, ...] = ()
        # What the broker said last, and the generation that was applied last.
        self.latest = Assignment(0, ())
        self.applied = 0
        self._heard_at_s = clock()
        self._is_unknown = False
        self._polled_at_s = clock()
        # Whether heartbeats are held back because the consumer does not poll.
        self._is_muted = False
        self._is_stopped = False
        self._heartbeats: Repeater | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the broker has, or must have, taken the topics away."""
        silent_s = self._clock() - self._heard_at_s
        return self._is_unknown or silent_s > self._session_timeout_s

    def join(self, topics: Sequence[str] | None = None) -> None:
        """Join with these topics, or the same as before, under the same name.

        Raises:
            Unsupported: the server has no groups.
            LanceError: the broker can't be reached, or refuses.
        """
        with self._asking:
            asked_at_s = self._polled_at_s = self._clock()
            wanted = self._topics if topics is None else tuple(topics)
            joined = self._client.join_group(
                self._group,
                wanted,
                member=self.id,
                strategy=self._strategy,
                session_timeout_s=self._session_timeout_s,
            )
            with self._changed:
                self.id, self._topics = joined.member, wanted
                if self.is_lost:
                    # Nothing of what was applied before counts any more.
                    self.applied = 0
                self._is_unknown = self._is_muted = False
            self._note_answer(joined, asked_at_s)
        if self._heartbeats is None and not self._is_stopped:
            name = f"lance-group-{self._group}"
            self._heartbeats = Repeater(self._keep_place, self._interval_s, name=name)

    def note_poll(self) -> None:
        """Say that the consumer is at work, so that heartbeats go on."""
        self._polled_at_s = self._clock()
        if self._is_muted:
            self._is_muted = False
            if not self.is_lost:
                # What is left of the session may be less than a beat's interval.
                self._beat()

    def apply(self, generation: int) -> None:
        """Say that everything which the generation took away is let go of."""
        with self._changed:
            self.applied = generation
        self._beat()

    def await_news(self, assignment: Assignment, wait_s: float) -> None:
        """Wait until the broker says something else, but not longer than so."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.latest != assignment or self._is_unknown, wait_s
            )

    def leave(self) -> None:
        """End the heartbeats and leave the group; never raises.

        A member that can't say so is out of the group when its session ends.
        """
        self._is_stopped = True
        if self._heartbeats is None:
            # It has not joined.
            return
        self._heartbeats.stop(_STOP_S)
        if self.is_lost:
            return
        try:
            timeout_s = self._session_timeout_s
            self._client.leave_group(self._group, self.id, timeout_s=timeout_s)
        except LanceError as error:
            logger.warning("group %r: could not leave: %s", self._group, error)

    def _keep_place(self) -> float:
        """Send the heartbeat that is due, and return the seconds until the next."""
        silent_s = self._clock() - self._polled_at_s
        if silent_s > self._max_poll_interval_s:
            if not self._is_muted:
                logger.warning(
                    "group %r: no poll for %.0f s, so the topics go to others; poll "
                    "more often, or raise max_poll_interval_s",
                    self._group,
                    silent_s,
                )
            self._is_muted = True
        elif not self._is_unknown:
            self._beat()
        return self._interval_s

    def _beat(self) -> None:
        """Send a heartbeat and keep what it brings; what fails is tried again later."""
        with self._asking:
            asked_at_s = self._clock()
            try:
                answer = self._client.heartbeat(
                    self._group, self.id, self.applied, timeout_s=self._interval_s
                )
            except ConsumerNotFound:
                with self._changed:
                    self._is_unknown = True
                    self._changed.notify_all()
            except LanceError as error:
                logger.warning("group %r: heartbeat failed: %s", self._group, error)
            else:
                self._note_answer(answer, asked_at_s)

    def _note_answer(
        self, answer: GroupJoined | GroupHeartbeatResponse, asked_at_s: float
    ) -> None:
        with self._changed:
            self.latest = Assignment(answer.generation, answer.assignment)
            # The session started anew when the broker got the question, which is not
            # before it was asked.
            self._heard_at_s = asked_at_s
            self._changed.notify_all()


class GroupedConsumer:
    """Reads the topics that its group gives to it; one thread may use it.

    Records that were handed out count as done at the next `poll`. What is committed is
    kept on the broker for the group, per topic, and is where the next reader begins.

    Args:
        client: says how to reach the server; it stays open.
        group: the group's name.
        topics: names of the topics to share.
        strategy: `range`, `round-robin` or `sticky`, the same for all members.
        session_timeout_s: silence after which the broker gives the topics to others.
        max_poll_interval_s: how long heartbeats go on without a `poll`. Then the
            topics go to others, and the next `poll` joins again.
        auto_commit: commit while polling, when topics go, and at `close`.
        auto_commit_interval_s: how often.
        on_assigned: called with the names of topics that came.
        on_revoked: called with the names of topics that go, before what was done of
            them is committed. If the member was lost they are others' already, and
            nothing is committed.
        offset_reset: `earliest`, `latest` or `error`: where to begin if the group has
            committed nothing, and where to go on if the next records are gone.
        fail_on_data_loss: raise if the next records are gone, or warn and go on.
        max_poll_records: how many records one poll gives at most.
        fetch_bytes: how much to ask the server for at once.
        clock: a monotonic clock.

    Raises:
        Unsupported: the server has no groups.
        OptionError: an option can't be used.
    """

    def __init__(
        self,
        client: LanceClient,
        group: str,
        topics: Sequence[str],
        *,
        strategy: str = "range",
        session_timeout_s: float = SESSION_TIMEOUT_S,
        max_poll_interval_s: float = MAX_POLL_INTERVAL_S,
        auto_commit: bool = True,
        auto_commit_interval_s: float = AUTO_COMMIT_INTERVAL_S,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        offset_reset: str = "earliest",
        fail_on_data_loss: bool = True,
        max_poll_records: int | None = None,
        fetch_bytes: int = FETCH_BYTES_DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = CursorOptions(
            offset_reset=offset_reset,
            fail_on_data_loss=fail_on_data_loss,
            max_poll_records=max_poll_records,
            fetch_bytes=fetch_bytes,
        )
        check_choice("strategy", strategy, STRATEGIES)
        if not max_poll_interval_s > 0:
            what, wanted = "max_poll_interval_s", "more than 0 seconds"
            refuse_setting(what, max_poll_interval_s, wanted)
        self.group = group
        self._consumer_id = consumer_id(group)
        self._commits = CommitClock(
            auto_commit_interval_s if auto_commit else None, clock
        )
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._clock = clock
        # Automatic commits have as long as the topics surely belong to this member.
        self._commit_round_s = min(session_timeout_s, client.config.retry_timeout_s)
        self._is_closed = False
        # Whether topics are being given up that are others' already.
        self._is_losing = False
        # In the order in which the topics get their turn.
        self._cursors: dict[AssignedTopic, Cursor] = {}
        self._committed: dict[AssignedTopic, int] = {}
        # Where topics ended when that was last heard of, by id.
        self._ends: dict[int, int] = {}
        # The version of the broker's list of topics, as it was then.
        self._topics_version = 0
        # Two connections: a heartbeat must not wait behind a fetch that waits.
        self._client = client.dedicated()
        self._control = client.dedicated()
        self._member = GroupMember(
            self._control,
            group,
            strategy=STRATEGIES[strategy],
            session_timeout_s=session_timeout_s,
            max_poll_interval_s=max_poll_interval_s,
            clock=clock,
        )
        try:
            for capability in (Capability.GROUPS, Capability.WAIT):
                self._client.require(capability, "consuming in a group")
            self.subscribe(topics)
        except BaseException:
            self._close_connections()
            raise

    @property
    def assignment(self) -> list[str]:
        """The names of the topics that this member reads."""
        return sorted(topic.name for topic in self._cursors)

    @property
    def generation(self) -> int:
        """The generation of the group that this member has applied."""
        return self._member.applied

    @property
    def member_id(self) -> str:
        """The name under which the group knows this member."""
        return self._member.id

    def position(self, topic: str) -> int:
        """Return the offset of the next record of a topic that this member reads."""
        for assigned, cursor in self._cursors.items():
            if assigned.name == topic:
                return cursor.position
        raise OptionError(f"topic {topic!r} is not assigned to this member now")

    def subscribe(self, topics: Sequence[str]) -> None:
        """Share these topics from now on; the next `poll` brings what changes."""
        if isinstance(topics, str) or not topics:
            raise OptionError(f"topics {topics!r}: give a list of names")
        if self._member.is_lost:
            self._lose()
        self._member.join(topics)

    # Reading.

    def poll(self, timeout_s: float = 1.0) -> PollResult | None:
        """Return the next records of one of the topics; None if none came in time.

        Args:
            timeout_s: how long to wait for records. A server that can't be reached is
                waited for on top of it, up to the client's `retry_timeout_s`.

        Raises:
            DataLoss: they are not in the log any more.
            RecordError: the bytes there are not a record.
        """
        if self._is_closed:
            raise LanceError(f"group {self.group!r}: the consumer is closed")
        try:
            return self._poll(Deadline.after(timeout_s))
        finally:
            # It may have taken long; the time that counts is that of the caller.
            self._member.note_poll()

    def _poll(self, deadline: Deadline) -> PollResult | None:
        wait_s = 0.0
        while True:
            self._member.note_poll()
            self._follow_group()
            is_last = deadline.expired and wait_s > 0
            # A round may take long, so none begins when time is up.
            if not is_last and self._commits.take_due():
                self._commit_quietly(self._cursors)
            result = self._poll_ready()
            if result is not None or is_last:
                return result
            # At first only a look, as what is known of the ends may be old.
            self._wait(wait_s)
            wait_s = max(min(deadline.remaining(), _WAIT_PIECE_S), 0.001)

    def _poll_ready(self) -> PollResult | None:
        """Poll the topics that are known to have records, taking turns."""
        for topic in list(self._cursors):
            cursor = self._cursors[topic] = self._cursors.pop(topic)
            if self._ends.get(topic.topic_id, cursor.position) == cursor.position:
                continue
            result = cursor.poll()
            if result is not None:
                return replace(result, topic=topic.name)
        return None

    def _wait(self, wait_s: float) -> None:
        """Wait until a topic has records or the group something new."""
        if not self._cursors:
            self._member.await_news(self._member.latest, wait_s)
            return
        positions = {t.topic_id: c.position for t, c in self._cursors.items()}
        latest, asked_at_s = self._member.latest, self._clock()
        answer = self._client.wait(self._topics_version, positions, wait_s)
        if not is_news(answer, self._topics_version, positions):
            rest_s = asked_at_s + min(wait_s, _PAUSE_S) - self._clock()
            self._member.await_news(latest, max(0.0, rest_s))
        self._topics_version = answer.version
        self._ends = {end.topic_id: end.offset for end in answer.ends}

    # Topics that come and go.

    def _follow_group(self) -> None:
        """Apply what the broker said last, and join again if it has lost us."""
        if self._member.is_lost:
            logger.warning("group %r: lost, joining again", self.group)
            self._lose()
            self._member.join()
        for _ in range(_APPLY_ROUNDS_MAX):
            latest = self._member.latest
            is_new = latest.generation != self._member.applied
            if not is_new and set(latest.topics) == self._cursors.keys():
                return
            gone = [topic for topic in self._cursors if topic not in latest.topics]
            self._give_up(gone, commit=self._commits.is_on)
            if is_new:
                # From here on others may read what was given up.
                self._member.apply(latest.generation)
            self._take_up([t for t in latest.topics if t not in self._cursors])

    def _lose(self) -> None:
        """Give up everything without a commit: others may be further already."""
        self._is_losing = True
        try:
            self._give_up(list(self._cursors), commit=False)
        finally:
            self._is_losing = False

    def _give_up(self, topics: list[AssignedTopic], *, commit: bool) -> None:
        if not topics:
            return
        if self._on_revoked is not None:
            self._on_revoked(sorted(topic.name for topic in topics))
        if commit:
            self._commit_quietly(topics)
        for topic in topics:
            self._cursors.pop(topic).close()
            self._committed.pop(topic, None)

    def _take_up(self, topics: list[AssignedTopic]) -> None:
        if not topics:
            return
        count = len(self._cursors) + len(topics)
        options = replace(self._options, prefetch=count <= _PREFETCH_TOPICS_MAX)
        # All or none, so that a failure leaves nothing that was not announced.
        cursors = {topic: self._open(topic, options) for topic in topics}
        self._cursors.update(cursors)
        # What is known of the ends does not cover them.
        self._ends = {}
        if self._on_assigned is not None:
            self._on_assigned(sorted(topic.name for topic in topics))

    def _open(self, topic: AssignedTopic, options: CursorOptions) -> Cursor:
        committed = self._control.committed_offset(topic.topic_id, self._consumer_id)
        start = None
        if committed is not None:
            start = SeekPosition.offset(committed)
            self._committed[topic] = committed
        return Cursor(self._client, topic.name, start, options, topic_id=topic.topic_id)

    # Commits.

    def commit(self) -> dict[str, int]:
        """Have the broker remember how far every topic was handed out.

        In an `on_revoked` for topics that are others' already it does nothing.

        Returns:
            The offsets by topic name.

        Raises:
            ConsumerNotFound: the member was lost, and others may be further already;
                the next `poll` joins again.
            LanceError: the broker could not.
        """
        if self._is_losing:
            return {}
        if self._member.is_lost:
            raise ConsumerNotFound(
                f"group {self.group!r}: this member was lost and can't commit; "
                "poll to join again",
                code_of(ConsumerNotFound),
            )
        for topic in self._cursors:
            self._commit(topic)
        return {topic.name: offset for topic, offset in self._committed.items()}

    def _commit(self, topic: AssignedTopic, timeout_s: float | None = None) -> None:
        offset = self._cursors[topic].position
        if self._committed.get(topic) != offset:
            self._control.commit_offset(
                topic.topic_id, self._consumer_id, offset, timeout_s=timeout_s
            )
            self._committed[topic] = offset

    def _commit_quietly(self, topics: Iterable[AssignedTopic]) -> None:
        """Commit what can be committed while this member surely has the topics."""
        deadline = Deadline.after(self._commit_round_s, self._clock)
        for topic in topics:
            if deadline.expired or self._member.is_lost:
                logger.warning("group %r: no time to commit all topics", self.group)
                return
            try:
                self._commit(topic, deadline.remaining())
            except LanceError as error:
                # What follows is read twice if no later commit succeeds.
                logger.warning(
                    "group %r: could not commit topic %r: %s",
                    self.group,
                    topic.name,
                    error,
                )
                if isinstance(error, (ConnectionLost, Timeout)):
                    # The next topic would only meet the same, after as long a wait.
                    return

    # The end.

    def close(self) -> None:
        """Give the topics up, commit if that is automatic, leave; may be repeated."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._member.is_lost:
                self._lose()
            else:
                self._give_up(list(self._cursors), commit=self._commits.is_on)
        finally:
            self._leave()

    def __enter__(self) -> GroupedConsumer:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
        elif not self._is_closed:
            # What was handed out last is not done if doing it failed.
            self._is_closed = True
            self._leave()

    def _leave(self) -> None:
        try:
            self._member.leave()
        finally:
            self._close_connections()

    def _close_connections(self) -> None:
        self._client.close()
        self._control.close()

    def __repr__(self) -> str:
        return f"<GroupedConsumer of {self.group!r} with {len(self._cursors)} topics>"
