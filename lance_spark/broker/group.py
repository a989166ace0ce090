"""The coordinator of consumer groups: who is in, and who reads what (LWP §16.3).

Changes of members or subscriptions make a new generation with a new assignment. It is
made by the next member of the group that joins or sends a heartbeat, outside of the
lock: however long that takes, no other group waits for it, and no member counts as
silent because of it.
A topic that moves is handed over, so that no two members read it at once:

    A reads t ── B joins: generation 2 gives t to B ── neither is told of t
    A's heartbeat (1) is answered with generation 2 and without t
    A stops reading, commits, and sends heartbeat (2):     A has let go of t
    B's heartbeat is answered with t

A member that leaves or falls silent has let go of everything. Groups live in memory:
after a restart members are unknown and join again. Whether a topic exists is asked
elsewhere. The file is long for its two halves: the sessions of all groups, and the
assignment of one, which share a lock.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lance_spark.broker.assignment import Strategy, assign
from lance_spark.errors import ConsumerNotFound, InvalidPayload

# Memory is bounded by these; a broker with more groups than the first is misused.
GROUPS_MAX = 1000
MEMBERS_MAX = 1000
# As many as a JoinGroup of LWP can name.
TOPICS_MAX = 10_000
# Pairs of member and topic over all groups. The three above alone would allow for
# terabytes; this one comes to less than 100 MB with the longest of names.
SUBSCRIPTIONS_MAX = 200_000
# The same for one group: how long an assignment takes follows from it, in the worst
# case some tenths of a second.
GROUP_SUBSCRIPTIONS_MAX = 50_000
# The longest name of a topic (255 bytes) is good for groups and members, too.
NAME_BYTES_MAX = 255
# Below a second a slow garbage collection is a departure; above an hour a member that
# crashed keeps its topics from the others for too long.
SESSION_TIMEOUT_MIN_S = 1.0
SESSION_TIMEOUT_MAX_S = 3600.0


class Joined(NamedTuple):
    """The answer to a join."""

    generation: int
    member: str
    topics: tuple[str, ...]


class Assigned(NamedTuple):
    """The answer to a heartbeat: the generation of now, and what to read in it."""

    generation: int
    topics: tuple[str, ...]


class GroupDescription(NamedTuple):
    """A group as tools show it: each member with the topics of its last answer."""

    group: str
    generation: int
    strategy: Strategy
    members: dict[str, tuple[str, ...]]


@dataclass
class Groups:
    """All groups of a broker; any thread may call everything here.

    Args:
        clock: monotonic seconds.
        make_id: names a member that has no name.
        groups_max: how many groups there may be.
        members_max: how many members a group may have.
        topics_max: how many topics a member may subscribe to.
        subscriptions_max: how many topics all members may subscribe to in sum.
        group_subscriptions_max: how many those of one group may.
    """

    clock: Callable[[], float] = time.monotonic
    make_id: Callable[[], str] = lambda: f"group-{secrets.token_hex(8)}"
    groups_max: int = GROUPS_MAX
    members_max: int = MEMBERS_MAX
    topics_max: int = TOPICS_MAX
    subscriptions_max: int = SUBSCRIPTIONS_MAX
    group_subscriptions_max: int = GROUP_SUBSCRIPTIONS_MAX

    def __post_init__(self) -> None:
        # Serialises everything below, and the groups themselves. Nothing slow is done
        # under it, such as an assignment.
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._subscriptions = 0
        # No session ends before this. It lets most calls skip the search for one.
        self._check_at_s = math.inf

    def join(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        strategy: Strategy,
        session_timeout_s: float,
    ) -> Joined:
        """Add a member to a group, or change what it subscribes to.

        Args:
            group: the group's name; it is made if there is none.
            member: who joins; empty for a new name.
            topics: the names of the topics to share.
            strategy: how they are shared; the same for all members.
            session_timeout_s: it is dropped after this time without a heartbeat.

        Raises:
            InvalidPayload: an argument or a limit; nothing has changed.
        """
        wanted = frozenset(topics)
        # Computed and kept by the set here, so that to compare it under the lock is
        # quick.
        hash(wanted)
        self._check(group, member, wanted, session_timeout_s)
        # The time of arrival: to wait for the lock is not to be silent.
        now = self.clock()
        with self._lock:
            self._renew(group, member, now)
            self._expire(now)
            found = self._groups.get(group) or _Group(strategy)
            member = member or self.make_id()
            self._check_room(group, found, member, wanted)
            if found.strategy is not strategy:
                raise InvalidPayload(
                    f"group {group!r} shares its topics by {found.strategy.value}: "
                    f"join with that instead of {strategy.value}, or when it is empty"
                )
            self._groups[group] = found
            self._subscriptions += found.join(member, wanted)
            found.members[member].renew(now, session_timeout_s)
            self._check_at_s = min(self._check_at_s, now + session_timeout_s)
        self._share_out(found)
        generation, assigned = self._answer(group, member)
        return Joined(generation, member, assigned)

    def heartbeat(self, group: str, member: str, generation: int) -> Assigned:
        """Note that a member is alive and has applied a generation.

        Raises:
            ConsumerNotFound: it is not in the group, and has to join again.
        """
        now = self.clock()
        with self._lock:
            # Before the others are looked at: late is not gone.
            self._renew(group, member, now)
            self._expire(now)
            found = self._find(group, member)
            found.release(member, generation)
        # If another thread makes the assignment now, the next heartbeat has it.
        self._share_out(found, wait=False)
        return Assigned(*self._answer(group, member))

    def leave(self, group: str, member: str) -> None:
        """Take a member out of a group.

        Raises:
            ConsumerNotFound: it is not in the group.
        """
        now = self.clock()
        with self._lock:
            self._renew(group, member, now)
            self._expire(now)
            self._find(group, member)
            self._drop(group, [member])

    def subscription(self, group: str, member: str) -> frozenset[str]:
        """Tell what a member subscribes to; nothing if there is no such member."""
        with self._lock:
            found = self._groups.get(group)
            known = None if found is None else found.members.get(member)
            return frozenset() if known is None else known.topics

    def expire(self, now: float | None = None) -> int:
        """Drop the members whose session has ended; return how many they were.

        Args:
            now: the time by the coordinator's clock; read from it if not given.
        """
        now = self.clock() if now is None else now
        with self._lock:
            return self._expire(now)

    def describe(self) -> list[GroupDescription]:
        """List the groups by name."""
        now = self.clock()
        with self._lock:
            self._expire(now)
            return [
                GroupDescription(
                    name,
                    group.generation,
                    group.strategy,
                    {m: group.members[m].told for m in sorted(group.members)},
                )
                for name, group in sorted(self._groups.items())
            ]

    def _share_out(self, group: _Group, *, wait: bool = True) -> None:
        """Bring the assignment of a group up to date, not under the lock.

        Args:
            group: the group.
            wait: wait for another thread that does the same, which takes as long as an
                assignment. If many wait, the first one does it for all.
        """
        if not group.sharing.acquire(blocking=wait):
            return
        try:
            with self._lock:
                plan = group.plan()
            if plan is not None:
                targets = assign(group.strategy, plan.subscribed, plan.previous)
                with self._lock:
                    group.adopt(plan, targets)
        finally:
            group.sharing.release()

    def _answer(self, group: str, member: str) -> tuple[int, tuple[str, ...]]:
        with self._lock:
            found = self._find(group, member)
            # It can't send anything before it has the answer.
            found.members[member].renew(self.clock())
            return found.generation, found.answer(member)

    def _check(
        self, group: str, member: str, topics: frozenset[str], timeout_s: float
    ) -> None:
        for what, name in (("group", group), ("member", member)):
            _check_name(what, name)
        if not group:
            raise InvalidPayload("the group's name is empty: give one")
        if len(topics) > self.topics_max:
            raise InvalidPayload(
                f"{len(topics)} topics in one subscription: at most "
                f"{self.topics_max} are allowed"
            )
        for topic in topics:
            _check_name("topic", topic)
        if not SESSION_TIMEOUT_MIN_S <= timeout_s <= SESSION_TIMEOUT_MAX_S:
            raise InvalidPayload(
                f"session timeout of {timeout_s:g} s: must be from "
                f"{SESSION_TIMEOUT_MIN_S:g} to {SESSION_TIMEOUT_MAX_S:g} s"
            )

    def _check_room(
        self, name: str, group: _Group, member: str, topics: frozenset[str]
    ) -> None:
        known = group.members.get(member)
        if name not in self._groups and len(self._groups) >= self.groups_max:
            raise InvalidPayload(
                f"group {name!r} can't be made: there are {self.groups_max} already"
            )
        if known is None and len(group.members) >= self.members_max:
            raise InvalidPayload(
                f"group {name!r} can't be joined: it has {self.members_max} members"
            )
        added = _weigh(topics) - (0 if known is None else known.weight)
        for whose, taken, limit in (
            ("all", self._subscriptions, self.subscriptions_max),
            ("its", group.weight, self.group_subscriptions_max),
        ):
            # A member that asks for no more than it has is never refused.
            if added > 0 and taken + added > limit:
                raise InvalidPayload(
                    f"group {name!r} can't be joined with {len(topics)} topics: "
                    f"{whose} members together may subscribe to {limit}"
                )

    def _find(self, group: str, member: str) -> _Group:
        found = self._groups.get(group)
        if found is None or member not in found.members:
            raise ConsumerNotFound(
                f"member {member!r} is not in group {group!r}: join again"
            )
        return found

    def _renew(self, group: str, member: str, now: float) -> None:
        found = self._groups.get(group)
        if found is not None and member in found.members:
            found.members[member].renew(now)

    def _expire(self, now: float) -> int:
        if now < self._check_at_s:
            return 0
        dropped = 0
        for name, group in list(self._groups.items()):
            late = [m for m, state in group.members.items() if state.ends_at_s <= now]
            if late:
                self._drop(name, late)
                dropped += len(late)
        ends = (m.ends_at_s for g in self._groups.values() for m in g.members.values())
        self._check_at_s = min(ends, default=math.inf)
        return dropped

    def _drop(self, name: str, members: Sequence[str]) -> None:
        group = self._groups[name]
        self._subscriptions -= group.drop(members)
        if not group.members:
            del self._groups[name]


def _check_name(what: str, name: str) -> None:
    length = len(name.encode("utf-8", "surrogatepass"))
    if length > NAME_BYTES_MAX:
        raise InvalidPayload(
            f"the {what}'s name {name[:40]!r}… has {length} bytes: at most "
            f"{NAME_BYTES_MAX} are allowed"
        )


def _weigh(topics: frozenset[str]) -> int:
    # A member without topics takes memory, too.
    return max(1, len(topics))


@dataclass(slots=True)
class _Member:
    """One member: its subscription, its session, and what it may be reading."""

    topics: frozenset[str]
    timeout_s: float = 0.0
    ends_at_s: float = 0.0
    # What it is to read in the group's generation.
    target: tuple[str, ...] = ()
    # Its last answer, and the generation of that.
    told: tuple[str, ...] = ()
    told_in: int = 0
    # The topics that it was told to read and, as far as is known, still reads.
    held: set[str] = field(default_factory=set)

    @property
    def weight(self) -> int:
        """How much it counts towards the limit of all subscriptions."""
        return _weigh(self.topics)

    def renew(self, now: float, timeout_s: float | None = None) -> None:
        """Start its session anew."""
        self.timeout_s = self.timeout_s if timeout_s is None else timeout_s
        self.ends_at_s = now + self.timeout_s


class _Plan(NamedTuple):
    """What an assignment is made from; nothing of it changes meanwhile."""

    changes: int
    subscribed: dict[str, frozenset[str]]
    previous: dict[str, set[str]]


@dataclass(slots=True)
class _Group:
    """One group. Its methods are called under the lock of all groups."""

    strategy: Strategy
    generation: int = 0
    members: dict[str, _Member] = field(default_factory=dict)
    # What all its members weigh.
    weight: int = 0
    # Held while an assignment is made, from the plan on until it is adopted.
    sharing: threading.Lock = field(default_factory=threading.Lock)
    # How often members or subscriptions have changed, and how many of these changes
    # the present generation takes into account.
    _changes: int = 0
    _shared: int = 0
    # Who holds a topic; the other side of `_Member.held`.
    _holders: dict[str, str] = field(default_factory=dict)

    def join(self, name: str, topics: frozenset[str]) -> int:
        """Add a member or change its subscription; return what that adds in weight."""
        member = self.members.get(name)
        # Members mostly want the same: such a list of names is kept once.
        same = (m.topics for m in self.members.values() if m.topics == topics)
        topics = next(same, topics)
        if member is None:
            member = self.members[name] = _Member(topics)
            added = member.weight
        elif member.topics != topics:
            before = member.weight
            member.topics = topics
            added = member.weight - before
        else:
            return 0
        self._changes += 1
        self.weight += added
        return added

    def drop(self, names: Sequence[str]) -> int:
        """Take members out; return what they weighed."""
        weight = 0
        for name in names:
            member = self.members.pop(name)
            weight += member.weight
            for topic in member.held:
                del self._holders[topic]
        self._changes += 1
        self.weight -= weight
        return weight

    def release(self, name: str, generation: int) -> None:
        """Let go of what a member has stopped reading.

        It has applied its last answer if it names the generation of that. The group
        may be further on by now: what the answer lacked is free all the same, or a
        group that changes all the time would never hand anything over.
        """
        member = self.members[name]
        if generation != member.told_in or len(member.held) == len(member.told):
            return
        told = set(member.told)
        for topic in member.held - told:
            del self._holders[topic]
        member.held = told

    def answer(self, name: str) -> tuple[str, ...]:
        """Give the topics that a member is to read now, and note that it knows them."""
        member = self.members[name]
        free = [t for t in member.target if self._holders.get(t, name) == name]
        member.told = tuple(free)
        member.told_in = self.generation
        member.held.update(free)
        self._holders.update(dict.fromkeys(free, name))
        return member.told

    def plan(self) -> _Plan | None:
        """Give what the next generation is made from; None if there is nothing new."""
        if self._shared == self._changes:
            return None
        # The member that holds a topic counts more than the one it was meant for: to
        # take it from its holder is the move that costs something.
        holders = self._holders
        previous = {
            name: member.held.union(t for t in member.target if t not in holders)
            for name, member in self.members.items()
        }
        subscribed = {name: member.topics for name, member in self.members.items()}
        return _Plan(self._changes, subscribed, previous)

    def adopt(self, plan: _Plan, targets: Mapping[str, tuple[str, ...]]) -> None:
        """Start a new generation."""
        self.generation += 1
        self._shared = plan.changes
        for name, topics in plan.subscribed.items():
            member = self.members.get(name)
            # A member that has subscribed anew since is in the next plan.
            if member is not None and member.topics is topics:
                member.target = targets[name]
