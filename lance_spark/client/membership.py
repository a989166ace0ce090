"""Membership of consumer groups, as the server knows it."""

from __future__ import annotations

from collections.abc import Sequence

from lance_spark.client.caller import Caller
from lance_spark.wire.lwp import (
    AssignmentStrategy,
    Capability,
    GroupHeartbeat,
    GroupHeartbeatResponse,
    GroupJoined,
    GroupLeft,
    JoinGroup,
    LeaveGroup,
)

_NEEDS = (Capability.GROUPS, "consuming in a group")


class MembershipCalls(Caller):
    """The client's calls for groups; all raise Unsupported on a plain server."""

    def join_group(
        self,
        group: str,
        topics: Sequence[str],
        *,
        member: str = "",
        strategy: AssignmentStrategy = AssignmentStrategy.RANGE,
        session_timeout_s: float = 30.0,
        timeout_s: float | None = None,
    ) -> GroupJoined:
        """Join a group, or join it again with other topics.

        Args:
            group: its name.
            topics: names of the topics that this member can read.
            member: who joins; empty to be given an id.
            strategy: how topics are shared out.
            session_timeout_s: silence after which the member is taken for dead.
            timeout_s: for the whole call.
        """
        message = JoinGroup(
            group, member, tuple(topics), strategy, round(session_timeout_s * 1000)
        )
        return self._ask(message, GroupJoined, needs=_NEEDS, timeout_s=timeout_s)

    def heartbeat(
        self,
        group: str,
        member: str,
        generation: int,
        *,
        timeout_s: float | None = None,
    ) -> GroupHeartbeatResponse:
        """Say that a member is alive and which generation it has applied.

        Raises:
            ConsumerNotFound: the member is not known any more and has to join again.
        """
        message = GroupHeartbeat(group, member, generation)
        return self._ask(
            message, GroupHeartbeatResponse, needs=_NEEDS, timeout_s=timeout_s
        )

    def leave_group(
        self, group: str, member: str, *, timeout_s: float | None = None
    ) -> None:
        """Leave a group, so that others get the member's topics at once."""
        message = LeaveGroup(group, member)
        self._ask(message, GroupLeft, needs=_NEEDS, timeout_s=timeout_s)
