"""A member of a group: joins, says that it is alive, and hears what it is to read.

The broker gives a topic that moves to its new reader only after the old one has sent a
heartbeat with the new generation. So a heartbeat here names the generation that was
*applied*: whoever reads the topics stops, commits and says so by `apply`. What the
broker says in the meantime is kept for it in `latest`.

Heartbeats end when they would only keep topics from others: when nobody holds the
member any more, which its thread knows by a weak reference only, and while whoever
reads the topics has not polled for `max_poll_interval_s`.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lance_spark.errors import ConsumerNotFound, LanceError
from lance_spark.wire.lwp import AssignedTopic, AssignmentStrategy

if TYPE_CHECKING:
    from lance_spark.client.client import LanceClient

logger = logging.getLogger(__name__)

# Three heartbeats fit into a session, so that one may get lost and one be late. Members
# with long sessions send more of them, because topics move at the pace of heartbeats.
_BEATS_PER_SESSION = 3
_BEAT_S_MAX = 3.0
_STOP_S = 10.0
MAX_POLL_INTERVAL_S = 300.0


class Assignment(NamedTuple):
    """What the broker said last: a generation, and the topics to read in it."""

    generation: int
    topics: tuple[AssignedTopic, ...]


class GroupMember:
    """Keeps a place in a group, with heartbeats from a thread of its own.

    Args:
        client: has the connection, used by nobody else.
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
        self._id = f"group-{secrets.token_hex(8)}"
        self._is_joined = False
        self._topics: tuple[str, ...] = ()
        self._latest = Assignment(0, ())
        self._applied = 0
        self._heard_at_s = clock()
        self._is_unknown = False
        self._polled_at_s = clock()
        # Whether heartbeats are held back because nobody polls.
        self._is_muted = False
        self._is_stopped = threading.Event()
        # Ends the thread at once when the member is collected.
        weakref.finalize(self, self._is_stopped.set).atexit = False
        self._thread = threading.Thread(
            target=_run,
            args=(self._is_stopped, weakref.ref(self), self._interval_s),
            name=f"lance-group-{group}",
            daemon=True,
        )

    @property
    def id(self) -> str:
        """The name under which the group knows the member once it has joined."""
        return self._id

    @property
    def latest(self) -> Assignment:
        """What the broker said last."""
        return self._latest

    @property
    def applied(self) -> int:
        """The generation that was applied last."""
        return self._applied

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
                member=self._id,
                strategy=self._strategy,
                session_timeout_s=self._session_timeout_s,
            )
            with self._changed:
                self._id, self._topics = joined.member, wanted
                if self.is_lost:
                    # Nothing of what was applied before counts any more.
                    self._applied = 0
                self._is_unknown = self._is_muted = False
                self._is_joined = True
            self._hear(Assignment(joined.generation, joined.assignment), asked_at_s)
        if not self._thread.is_alive() and not self._is_stopped.is_set():
            self._thread.start()

    def note_poll(self) -> None:
        """Say that whoever reads the topics is at work, so that heartbeats go on."""
        self._polled_at_s = self._clock()
        if self._is_muted:
            self._is_muted = False
            if not self.is_lost:
                # What is left of the session may be less than a beat's interval.
                self._beat()

    def apply(self, generation: int) -> None:
        """Say that everything which the generation took away is let go of."""
        with self._changed:
            self._applied = generation
        self._beat()

    def await_news(self, assignment: Assignment, wait_s: float) -> None:
        """Wait until the broker says something else, but not longer than so."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._latest != assignment or self._is_unknown, wait_s
            )

    def leave(self) -> None:
        """End the heartbeats and leave the group; never raises.

        A member that can't say so is out of the group when its session ends.
        """
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        if not self._is_joined or self.is_lost:
            return
        try:
            timeout_s = self._session_timeout_s
            self._client.leave_group(self._group, self._id, timeout_s=timeout_s)
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
                    self._group, self._id, self._applied, timeout_s=self._interval_s
                )
            except ConsumerNotFound:
                with self._changed:
                    self._is_unknown = True
                    self._changed.notify_all()
            except LanceError as error:
                logger.warning("group %r: heartbeat failed: %s", self._group, error)
            else:
                self._hear(Assignment(answer.generation, answer.assignment), asked_at_s)

    def _hear(self, assignment: Assignment, asked_at_s: float) -> None:
        with self._changed:
            self._latest = assignment
            # The session started anew when the broker got the question, which is not
            # before it was asked.
            self._heard_at_s = asked_at_s
            self._changed.notify_all()


def _run(
    stop: threading.Event, reference: weakref.ref[GroupMember], delay_s: float
) -> None:
    while not stop.wait(delay_s):
        member = reference()
        if member is None:
            return
        delay_s = member._keep_place()
        # Held over the wait, it could never be collected.
        del member
