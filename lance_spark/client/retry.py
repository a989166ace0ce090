"""When to try again, and when to give up: the rules for one call."""

from __future__ import annotations

from typing import Any, NamedTuple

from lance_spark.client.backoff import Backoff
from lance_spark.errors import (
    ConnectionLimit,
    ConnectionLost,
    LanceError,
    NotLeader,
    OptionError,
    RateLimited,
    Timeout,
)
from lance_spark.net.address import Address, parse_address
from lance_spark.net.deadline import Deadline

# A cluster has few nodes: a chain of redirects longer than this is going in circles.
HOPS_MAX = 5


class Step(NamedTuple):
    """What to do next: wait, and prefer a leader if one was named."""

    delay_s: float
    leader: Address | None = None


class Retry:
    """Decide after each failure of one call how it goes on.

    A redirect to a leader is followed at once and even if the request must not be sent
    twice: a server that says NotLeader has not done it. Everything else that may pass
    is tried again after a delay.

    Args:
        deadline: for the whole call.
        backoff: the delays.
        resend: whether the request may be sent again when it may have arrived.
    """

    def __init__(
        self, *, deadline: Deadline, backoff: Backoff, resend: bool = True
    ) -> None:
        self.deadline = deadline
        self._backoff = backoff
        self._resend = resend
        self._failures = 0
        self._visited: set[Address] = set()

    def next_step(self, error: LanceError, *, asked: Address | None = None) -> Step:
        """Decide what to do after a failure.

        Args:
            error: what happened.
            asked: the server that the request may have reached; None if it was not
                sent.

        Raises:
            LanceError: the same failure, if it is final.
        """
        self._failures += 1
        if isinstance(error, NotLeader) and asked is not None:
            leader = self._follow(error, asked)
            if leader is not None:
                return Step(0.0, leader)
        if not self._may_pass(error, asked):
            raise self.conclude(error)
        delay_s = self._delay_s(error)
        if delay_s >= self.deadline.remaining():
            raise self.conclude(self._give_up(error))
        return Step(delay_s)

    def note(self, error: LanceError, *, asked: Address | None) -> None:
        """Take note of a failure, before anything else is done about it."""

    def conclude(self, error: LanceError) -> LanceError:
        """Give what the caller is told when a failure is final."""
        return error

    def _may_pass(self, error: LanceError, asked: Address | None) -> bool:
        if asked is None:
            return may_pass_while_connecting(error)
        return error.retriable and self._resend

    def _follow(self, error: NotLeader, asked: Address) -> Address | None:
        """Give the leader to go to, unless that would go in circles."""
        self._visited.add(asked)
        leader = parse_leader(error)
        hops = len(self._visited)
        if leader is None or leader in self._visited or hops > HOPS_MAX:
            # After a delay the cluster may have made up its mind.
            self._visited.clear()
            return None
        return leader

    def _delay_s(self, error: LanceError) -> float:
        delay_s = self._backoff.next_delay_s()
        if isinstance(error, RateLimited):
            asked_ms: Any = error.details.get("retry_after_ms")
            # Not a bool, which is an int; and at once would be in circles.
            if type(asked_ms) in (int, float) and asked_ms > 0:
                return float(asked_ms) / 1000
        return delay_s

    def _give_up(self, error: LanceError) -> LanceError:
        if self._failures == 1 or not isinstance(error, (ConnectionLost, Timeout)):
            return error
        return type(error)(f"{error} (gave up after {self._failures} tries)")


def may_pass_while_connecting(error: LanceError) -> bool:
    """Tell whether another try to connect makes sense after a failure of one.

    LWP §12.4 does not have a full server among what is worth a retry. But places get
    free, and nothing was asked of it yet that could be done twice.
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
