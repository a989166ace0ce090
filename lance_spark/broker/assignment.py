"""How the topics of a group are shared out among its members: pure functions.

The unit is a whole topic. The result depends on the arguments alone, not on the order
in which they are given: members and topics are sorted first. Members are numbers in
here, their places in that order. A group is shared out anew each time a member comes or
goes, so the work follows the number of topics and of different subscriptions, not the
product of topics and members. To even shares out could take much longer than that, so
it has a limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice

from lance_spark.wire.lwp import AssignmentStrategy

# How many times the shares of members are compared to even them out, at most: some
# tenths of a second. Equal subscriptions need one per topic that moves. Thousands of
# topics that are all wanted by other members may need more than anybody waits for.
STEPS_MAX = 200_000


def assign(
    strategy: AssignmentStrategy,
    members: Mapping[str, Collection[str]],
    previous: Mapping[str, Collection[str]],
) -> dict[str, tuple[str, ...]]:
    """Give each topic to one of the members that subscribed to it.

    Args:
        strategy: how.
        members: the topics that each member subscribed to.
        previous: what each member has now; only `STICKY` looks at it. Members and
            topics that are gone may be in it.

    Returns:
        For every member its topics, sorted.
    """
    names = sorted(members)
    demand = _Demand([frozenset(members[name]) for name in names])
    had = [previous.get(name, ()) for name in names]
    shares = _STRATEGIES[strategy](demand, had)
    return {
        name: tuple(sorted(topics)) for name, topics in zip(names, shares, strict=True)
    }


class _Demand:
    """Who wants what.

    Topics that are wanted by the same members are of one kind.
    """

    def __init__(self, subscriptions: list[frozenset[str]]) -> None:
        self.subscriptions = subscriptions
        # The members of each kind of topic, ascending.
        self.takers: list[list[int]] = []
        # The kind of each topic; the topics are in order.
        self.kinds: dict[str, int] = {}
        alike: dict[frozenset[str], list[int]] = {}
        for member, topics in enumerate(subscriptions):
            alike.setdefault(topics, []).append(member)
        wanted: dict[str, list[int]] = {}
        for number, topics in enumerate(alike):
            for topic in topics:
                wanted.setdefault(topic, []).append(number)
        crowds = list(alike.values())
        known: dict[tuple[int, ...], int] = {}
        for topic in sorted(wanted):
            numbers = tuple(wanted[topic])
            if numbers not in known:
                known[numbers] = len(self.takers)
                self.takers.append(sorted(m for n in numbers for m in crowds[n]))
            self.kinds[topic] = known[numbers]

    def shares(self) -> list[list[str]]:
        """Make an empty share for each member."""
        return [[] for _ in self.subscriptions]


def _assign_range(demand: _Demand, _: object) -> list[list[str]]:
    """Cut the sorted topics into one piece per member, the first ones larger by one.

    Topics of one kind are cut together.
    """
    shares = demand.shares()
    alike: list[list[str]] = [[] for _ in demand.takers]
    for topic, kind in demand.kinds.items():
        alike[kind].append(topic)
    for takers, topics in zip(demand.takers, alike, strict=True):
        size, larger = divmod(len(topics), len(takers))
        rest = iter(topics)
        for i, member in enumerate(takers):
            shares[member] += islice(rest, size + (i < larger))
    return shares


def _assign_round_robin(demand: _Demand, _: object) -> list[list[str]]:
    """Deal the sorted topics out, one each, passing over who does not want one."""
    shares = demand.shares()
    turn = 0
    for topic, kind in demand.kinds.items():
        takers = demand.takers[kind]
        member = takers[bisect_left(takers, turn) % len(takers)]
        shares[member].append(topic)
        turn = (member + 1) % len(shares)
    return shares


def _assign_sticky(demand: _Demand, previous: list[Collection[str]]) -> list[list[str]]:
    """Leave topics where they are as far as the shares stay even.

    What is free goes to whoever has the least. Then, as long as a member has at least
    two topics more than another one that wants one of them, the one with the most
    gives. With equal subscriptions no way to even out moves fewer topics. Where that
    would take more than `STEPS_MAX` steps the rest stays as it is; the next change of
    the group goes on from there.
    """
    piles = _Piles(demand)
    kept: set[str] = set()
    for member, topics in enumerate(previous):
        still = demand.subscriptions[member].intersection(topics) - kept
        for topic in sorted(still):
            piles.put(topic, member)
        kept |= still
    free = [topic for topic in demand.kinds if topic not in kept]
    # Those that few want first: the others can still make up for them.
    free.sort(key=lambda topic: len(demand.takers[demand.kinds[topic]]))
    for topic in free:
        piles.put(topic, piles.least(demand.kinds[topic]))
    _even_out(piles)
    return [[t for pile in of.values() for t in pile] for of in piles.piles]


class _Piles:
    """The shares of the members while they change, each by kind of topic."""

    def __init__(self, demand: _Demand) -> None:
        self.demand = demand
        self.loads = [0] * len(demand.subscriptions)
        # For each member: kind -> topics. What came last is given away first.
        self.piles: list[dict[int, list[str]]] = [{} for _ in self.loads]
        self._ranks: dict[int, list[tuple[int, int]]] = {}

    def put(self, topic: str, member: int) -> None:
        """Give a topic to a member."""
        self.piles[member].setdefault(self.demand.kinds[topic], []).append(topic)
        self.loads[member] += 1

    def move(self, kind: int, member: int, taker: int) -> None:
        """Move a topic of that kind from a member to another."""
        pile = self.piles[member][kind]
        self.put(pile.pop(), taker)
        self.loads[member] -= 1
        if not pile:
            del self.piles[member][kind]

    def least(self, kind: int) -> int:
        """Find who has the least of those who want a kind of topic.

        The heaps are put right as they are looked at, which finds shares that grew;
        none shrinks before all topics are given out.
        """
        ranks = self._ranks.get(kind)
        if ranks is None:
            ranks = [(self.loads[m], m) for m in self.demand.takers[kind]]
            heapify(ranks)
            self._ranks[kind] = ranks
        while True:
            load, member = ranks[0]
            if load == self.loads[member]:
                return member
            heapreplace(ranks, (self.loads[member], member))


def _even_out(piles: _Piles) -> None:
    """Move topics from those with many to those with few, as far as steps allow."""
    loads = piles.loads
    steps = 0
    moved = True
    while moved:
        # A pass may overlook a member whose share has shrunk; a new one starts afresh.
        moved = False
        offers = [_Offers(piles, member) for member in range(len(loads))]
        givers = [(-load, member) for member, load in enumerate(loads)]
        heapify(givers)
        # Nobody ever has less than this, as nobody gives to one who has more.
        least = min(loads, default=0)
        while givers and -givers[0][0] - least >= 2:
            load, member = heappop(givers)
            if -load != loads[member]:
                continue
            if steps >= STEPS_MAX:
                return
            found = offers[member].best()
            steps += offers[member].take_steps()
            if found is None or loads[member] - loads[found[0]] < 2:
                continue
            taker, kind = found
            if kind not in piles.piles[taker]:
                offers[taker].add(kind)
            piles.move(kind, member, taker)
            moved = True
            for changed in (member, taker):
                heappush(givers, (-loads[changed], changed))


class _Offers:
    """To whom a member would give what it has, in one pass of evening out.

    There may be thousands of kinds of topics, so those who take them are compared, and
    not the kinds.
    """

    def __init__(self, piles: _Piles, member: int) -> None:
        self._piles = piles
        self._pile = piles.piles[member]
        # What each of the others would take. None until it is asked for: most members
        # have nothing to give.
        self._wants: dict[int, list[int]] | None = None
        self._ranks: list[tuple[int, int]] = []
        self._steps = 0

    def take_steps(self) -> int:
        """Count what was looked at since the last time."""
        steps, self._steps = self._steps, 0
        return steps

    def add(self, kind: int) -> None:
        """Note that the member has got a topic of a kind."""
        if self._wants is None:
            return
        takers = self._piles.demand.takers[kind]
        self._steps += len(takers)
        for taker in takers:
            if taker not in self._wants:
                heappush(self._ranks, (self._piles.loads[taker], taker))
            self._wants.setdefault(taker, []).append(kind)

    def best(self) -> tuple[int, int] | None:
        """Find who has the least of those who want a topic, and its kind."""
        if self._wants is None:
            self._wants = {}
            for kind in self._pile:
                self.add(kind)
        loads, ranks = self._piles.loads, self._ranks
        while ranks:
            self._steps += 1
            load, taker = ranks[0]
            kinds = self._wants[taker]
            # What was given away is found here, as is who has got more since.
            if not kinds:
                heappop(ranks)
                del self._wants[taker]
            elif kinds[-1] not in self._pile:
                kinds.pop()
            elif load != loads[taker]:
                heapreplace(ranks, (loads[taker], taker))
            else:
                return taker, kinds[-1]
        return None


_STRATEGIES: dict[
    AssignmentStrategy, Callable[[_Demand, list[Collection[str]]], list[list[str]]]
] = {
    AssignmentStrategy.RANGE: _assign_range,
    AssignmentStrategy.ROUND_ROBIN: _assign_round_robin,
    AssignmentStrategy.STICKY: _assign_sticky,
}
