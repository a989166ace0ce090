"""A member of a group: joins, says that it is alive, and hears what it is to read.

The broker gives a topic that moves to its new reader only after the old one has sent a
heartbeat with the new generation. So a heartbeat here names the generation that was
*applied*: whoever reads the topics stops, commits and says so by `apply`. What the
broker says in the meantime is kept for it in `latest`.
"""

from __future__ import annotations

import logging
import threading
import time
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
        clock: a monotonic clock.
    """

    def __init__(
        self,
        client: LanceClient,
        group: str,
        *,
        strategy: AssignmentStrategy,
        session_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._group = group
        self._strategy = strategy
        self._session_timeout_s = session_timeout_s
        self._clock = clock
        self._interval_s = min(session_timeout_s / _BEATS_PER_SESSION, _BEAT_S_MAX)
        # Held while a request is under way, so that answers are kept in their order.
        self._asking = threading.Lock()
        # Guards what follows; notified when there is news.
        self._changed = threading.Condition()
        self._id = ""
        self._topics: tuple[str, ...] = ()
        self._latest = Assignment(0, ())
        self._applied = 0
        self._heard_at_s = clock()
        self._is_unknown = False
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"lance-group-{group}", daemon=True
        )

    @property
    def id(self) -> str:
        """The name that the broker gave; empty before the first `join`."""
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
            asked_at_s = self._clock()
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
                self._is_unknown = False
            self._hear(Assignment(joined.generation, joined.assignment), asked_at_s)
        if not self._thread.is_alive() and not self._is_stopped.is_set():
            self._thread.start()

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
        if not self._id or self.is_lost:
            return
        try:
            timeout_s = self._session_timeout_s
            self._client.leave_group(self._group, self._id, timeout_s=timeout_s)
        except LanceError as error:
            logger.warning("group %r: could not leave: %s", self._group, error)

    def _run(self) -> None:
        while not self._is_stopped.wait(self._interval_s):
            if not self._is_unknown:
                self._beat()

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
