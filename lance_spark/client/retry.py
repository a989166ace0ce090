"""When to try again, where, and when to give up: the same rules for calls and batches.

Pure decisions: the caller has the clock, the connection and the patience. `Link` makes
a `Retry` for each call that fails, `Delivery` one for all batches of a producer, which
it resets with every acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lance_spark.errors import (
    ConnectionLimit,
    ConnectionLost,
    LanceError,
    LeaderUnknown,
    NotLeader,
    OptionError,
    RateLimited,
    RemoteProtocolError,
    Timeout,
    TopicDeleted,
    TopicNotFound,
)
from lance_spark.net.address import Address, parse_address

# A cluster has few nodes: a chain of redirects longer than this is going in circles.
HOPS_MAX = 5
# Clients that lost the same server should not all come back in the same moment.
JITTER = 0.1


class Backoff:
    """Delays that double from try to try, with up to a tenth of jitter on top.

    Args:
        base_s: half of the first delay: LWP §17.6 counts attempts from 1.
        max_s: the longest delay, not counting its jitter.
        random: gives numbers in [0, 1).
    """

    def __init__(
        self, base_s: float, max_s: float, random: Callable[[], float]
    ) -> None:
        self._base_s = base_s
        self._max_s = max_s
        self._random = random
        self._delay_s = base_s

    def next_delay_s(self) -> float:
        """Return the delay before the next try."""
        # Doubling what is already bounded can't overflow, however many tries there are.
        self._delay_s = min(self._delay_s * 2, self._max_s)
        return self._delay_s * (1 + JITTER * self._random())

    def reset(self) -> None:
        """Start again with the first delay."""
        self._delay_s = self._base_s


class Decision(NamedTuple):
    """How to go on after a failure.

    Args:
        delay_s: how long to wait before the next try.
        leader: the server to go to.
        avoids: go to the servers behind this one: it knows no leader.
        looks_up: find the topic's id again, as the server has lost it.
    """

    delay_s: float
    leader: Address | None = None
    avoids: Address | None = None
    looks_up: bool = False


@dataclass(eq=False, kw_only=True)
class Retry:
    """Decide after each failure how to go on.

    A redirect to a leader is followed at once and even if the request must not be sent
    twice: a server that says NotLeader has not done it. Everything else that may pass
    is tried again after a delay.

    Args:
        backoff: the delays.
        resend: whether to send again what may have arrived.
        mends_garbled: whether an answer that makes no sense is worth a new connection.
        can_look_up: whether a lost topic may be found under another id.
    """

    backoff: Backoff
    resend: bool = True
    mends_garbled: bool = False
    can_look_up: bool = False
    _is_looked_up: bool = False
    _failures: int = 0
    # Why the last try to connect failed.
    _reason: LanceError | None = None
    _visited: set[Address] = field(default_factory=set)

    @property
    def has_failed(self) -> bool:
        """Whether there was a failure since the last progress."""
        return self._failures > 0

    def decide(
        self,
        error: LanceError,
        *,
        asked: Address | None = None,
        left_s: float,
        passes: bool = False,
    ) -> Decision:
        """Decide what to do after a failure.

        Args:
            error: what happened.
            asked: the server that the request may have reached; None if it was not
                sent.
            left_s: how much time is left for further tries.
            passes: whether the caller knows that another try makes sense.

        Raises:
            LanceError: the failure is final, or the next try would be too late.
        """
        self._failures += 1
        if isinstance(error, NotLeader) and asked is not None:
            leader = self._follow(error, asked)
            if leader is not None:
                return Decision(0.0, leader)
        looks_up = self.may_look_up(error)
        if not (passes or looks_up or self._may_pass(error, asked)):
            raise self.conclude(error)
        delay_s = self._delay_s(error)
        if delay_s >= left_s:
            if asked is None and isinstance(error, Timeout):
                # The last try to connect had hardly any time, so the one before it
                # tells more.
                error = self._reason or error
            raise self.conclude(self._give_up(error))
        self._reason = error if asked is None else None
        self._is_looked_up |= looks_up
        knows_no_leader = isinstance(error, (NotLeader, LeaderUnknown))
        avoids = asked if knows_no_leader else None
        return Decision(delay_s, avoids=avoids, looks_up=looks_up)

    def may_look_up(self, error: LanceError) -> bool:
        """Tell whether to look for a topic again, which is done once per failure."""
        is_lost = isinstance(error, (TopicNotFound, TopicDeleted))
        return is_lost and self.can_look_up and not self._is_looked_up

    def note_progress(self) -> None:
        """Start over: what fails next is a first failure."""
        self._failures, self._is_looked_up, self._reason = 0, False, None
        self._visited.clear()
        self.backoff.reset()

    # For rules that know more about their request.

    def note(self, error: LanceError, asked: Address | None) -> None:
        """Take note of a failure, before anything else is done about it."""

    def conclude(self, error: LanceError) -> LanceError:
        """Give the error that the caller gets when a failure is final."""
        return error

    def _may_pass(self, error: LanceError, asked: Address | None) -> bool:
        if asked is None:
            return may_pass_while_connecting(error)
        # Bytes that were garbled on their way are as good as a lost connection.
        is_mended = self.mends_garbled and isinstance(error, RemoteProtocolError)
        return (error.retriable or is_mended) and self.resend

    def _follow(self, error: NotLeader, asked: Address) -> Address | None:
        """Give the leader to go to, unless that would go in circles."""
        # A server that is asked again names a leader that could not be reached.
        is_circle = asked in self._visited
        self._visited.add(asked)
        leader = parse_leader(error)
        is_circle |= leader in self._visited or len(self._visited) > HOPS_MAX
        if leader is None or is_circle:
            # After a delay the cluster may have made up its mind.
            self._visited.clear()
            return None
        return leader

    def _delay_s(self, error: LanceError) -> float:
        delay_s = self.backoff.next_delay_s()
        if isinstance(error, RateLimited):
            asked_ms: Any = error.details.get("retry_after_ms")
            # Not a bool, which is an int; and without a delay it would be a busy loop.
            if type(asked_ms) in (int, float) and asked_ms > 0:
                return float(asked_ms) / 1000
        return delay_s

    def _give_up(self, error: LanceError) -> LanceError:
        if self._failures == 1 or not isinstance(error, (ConnectionLost, Timeout)):
            return error
        return type(error)(f"{error} (gave up after {self._failures} tries)")


def may_pass_while_connecting(error: LanceError) -> bool:
    """Tell whether another try to connect makes sense after a failure of one.

    LWP §12.4 does not count a full server among the errors that are worth a retry. But
    places get free, and nothing was asked of it yet that could be done twice.
    """
    return error.retriable or isinstance(error, ConnectionLimit)


def parse_leader(error: NotLeader) -> Address | None:
    """Read the address of a redirect; None if there is none that can be used."""
    text = error.details.get("leader_addr")
    if not isinstance(text, str):
        return None
    try:
        return parse_address(text)
    except OptionError:
        return None
