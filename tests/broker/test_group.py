"""The coordinator of consumer groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from lance_spark.broker import group as group_module
from lance_spark.broker.assignment import assign
from lance_spark.broker.group import (
    NAME_BYTES_MAX,
    SESSION_TIMEOUT_MAX_S,
    SESSION_TIMEOUT_MIN_S,
    Assigned,
    GroupDescription,
    Groups,
    Joined,
)
from lance_spark.errors import ConsumerNotFound, InvalidPayload
from lance_spark.wire.lwp import AssignmentStrategy
from tests.broker.kit import PATIENCE_S, eventually, running

RANGE = AssignmentStrategy.RANGE
ROUND_ROBIN = AssignmentStrategy.ROUND_ROBIN
STICKY = AssignmentStrategy.STICKY


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def groups(clock: Clock) -> Groups:
    return Groups(clock=clock)


def join(
    groups: Groups,
    member: str,
    topics: str = "tu",
    *,
    group: str = "g",
    strategy: AssignmentStrategy = RANGE,
    timeout_s: float = 30.0,
) -> Joined:
    return groups.join(group, member, tuple(topics), strategy, timeout_s)


def settle(groups: Groups, members: Iterable[str]) -> dict[str, str]:
    """Let all members apply what they are told, until that no longer changes."""
    told = {member: groups.heartbeat("g", member, 0) for member in members}
    for _ in range(3):
        told = {m: groups.heartbeat("g", m, a.generation) for m, a in told.items()}
    return {member: "".join(answer.topics) for member, answer in told.items()}


# Joining and leaving.


def test_the_first_member_gets_all(groups: Groups) -> None:
    assert join(groups, "A") == Joined(1, "A", ("t", "u"))
    assert groups.heartbeat("g", "A", 1) == Assigned(1, ("t", "u"))


def test_a_member_without_a_name_gets_one(groups: Groups) -> None:
    first, second = join(groups, ""), join(groups, "")
    assert first.member.startswith("group-")
    assert len({first.member, second.member}) == 2
    assert groups.heartbeat("g", first.member, 1).generation == 2


def test_names_can_be_chosen(clock: Clock) -> None:
    groups = Groups(clock=clock, make_id=lambda: "m-1")
    assert join(groups, "").member == "m-1"


def test_joining_again_changes_nothing(groups: Groups) -> None:
    first = join(groups, "A", "ut")
    assert join(groups, "A", "tut") == first
    assert groups.heartbeat("g", "A", 1).generation == 1


def test_joining_again_changes_the_subscription(groups: Groups) -> None:
    join(groups, "A", "tu")
    assert join(groups, "A", "uv") == Joined(2, "A", ("u", "v"))
    assert join(groups, "A", "") == Joined(3, "A", ())


def test_groups_have_nothing_to_do_with_each_other(groups: Groups) -> None:
    join(groups, "A", group="g")
    assert join(groups, "A", group="h") == Joined(1, "A", ("t", "u"))
    groups.leave("g", "A")
    assert groups.heartbeat("h", "A", 1) == Assigned(1, ("t", "u"))


def test_who_leaves_gives_all_to_the_others_at_once(groups: Groups) -> None:
    join(groups, "A")
    join(groups, "B")
    assert settle(groups, "AB") == {"A": "t", "B": "u"}
    groups.leave("g", "A")
    assert groups.heartbeat("g", "B", 2) == Assigned(3, ("t", "u"))


def test_an_empty_group_is_forgotten(groups: Groups) -> None:
    join(groups, "A", strategy=RANGE)
    groups.leave("g", "A")
    assert groups.describe() == []
    assert join(groups, "A", strategy=STICKY).generation == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda groups: groups.heartbeat("g", "X", 1),
        lambda groups: groups.heartbeat("x", "A", 1),
        lambda groups: groups.leave("g", "X"),
        lambda groups: groups.leave("x", "A"),
        lambda groups: groups.heartbeat("g", "", 1),
    ],
)
def test_a_member_that_is_not_known(
    groups: Groups, call: Callable[[Groups], object]
) -> None:
    join(groups, "A")
    with pytest.raises(ConsumerNotFound, match=r"is not in group .* join again"):
        call(groups)
    assert groups.heartbeat("g", "A", 1) == Assigned(1, ("t", "u"))


# Handing over.


def test_a_topic_that_moves_is_nobodys_until_it_was_let_go(groups: Groups) -> None:
    join(groups, "A")
    assert join(groups, "B") == Joined(2, "B", ())
    # A is told, and has not said that it did it.
    assert groups.heartbeat("g", "A", 1) == Assigned(2, ("t",))
    assert groups.heartbeat("g", "B", 2) == Assigned(2, ())
    assert groups.heartbeat("g", "A", 1) == Assigned(2, ("t",))
    assert groups.heartbeat("g", "B", 2) == Assigned(2, ())
    # Now it has. B gets the topic in the same generation.
    assert groups.heartbeat("g", "A", 2) == Assigned(2, ("t",))
    assert groups.heartbeat("g", "B", 2) == Assigned(2, ("u",))


def test_a_generation_that_was_not_told_counts_for_nothing(groups: Groups) -> None:
    join(groups, "A")
    join(groups, "B")
    # A guesses the generation before it was told what it means.
    assert groups.heartbeat("g", "A", 2) == Assigned(2, ("t",))
    assert groups.heartbeat("g", "B", 2) == Assigned(2, ())
    for wrong in (0, 1, 3, 2**64 - 1):
        groups.heartbeat("g", "A", wrong)
        assert groups.heartbeat("g", "B", 2) == Assigned(2, ())


def test_who_leaves_has_let_go(groups: Groups) -> None:
    join(groups, "A")
    join(groups, "B")
    groups.leave("g", "A")
    assert groups.heartbeat("g", "B", 2) == Assigned(3, ("t", "u"))


def test_who_falls_silent_has_let_go(groups: Groups, clock: Clock) -> None:
    join(groups, "A", timeout_s=10)
    join(groups, "B", timeout_s=20)
    clock.now += 10
    assert groups.heartbeat("g", "B", 2) == Assigned(3, ("t", "u"))


def test_a_topic_is_not_told_twice_after_two_changes(groups: Groups) -> None:
    join(groups, "A", "tuv")
    join(groups, "B", "tuv")
    groups.heartbeat("g", "A", 1)  # Told of generation 2: t and u.
    join(groups, "C", "tuv")
    # A has applied 2 when it hears of 3: v is free, u is not yet.
    assert groups.heartbeat("g", "A", 2) == Assigned(3, ("t",))
    assert groups.heartbeat("g", "C", 3) == Assigned(3, ("v",))
    assert groups.heartbeat("g", "B", 3) == Assigned(3, ())
    assert groups.heartbeat("g", "A", 3) == Assigned(3, ("t",))
    assert groups.heartbeat("g", "B", 3) == Assigned(3, ("u",))


def test_an_answer_that_was_lost_is_given_again(groups: Groups) -> None:
    join(groups, "A", "tu")
    join(groups, "B", "tu")
    groups.heartbeat("g", "A", 1)
    groups.heartbeat("g", "A", 2)
    assert groups.heartbeat("g", "B", 2) == Assigned(2, ("u",))
    # B never heard that; it may have, so u is its own until it says otherwise.
    join(groups, "B", "v")
    assert groups.heartbeat("g", "A", 2) == Assigned(3, ("t",))
    assert groups.heartbeat("g", "B", 2) == Assigned(3, ("v",))
    assert groups.heartbeat("g", "A", 3) == Assigned(3, ("t",))
    assert groups.heartbeat("g", "B", 3) == Assigned(3, ("v",))
    assert groups.heartbeat("g", "A", 3) == Assigned(3, ("t", "u"))


def test_a_topic_that_comes_back_before_it_was_let_go(groups: Groups) -> None:
    join(groups, "A")
    join(groups, "B")
    groups.heartbeat("g", "A", 1)  # Told to stop reading u.
    groups.leave("g", "B")
    assert groups.heartbeat("g", "A", 1) == Assigned(3, ("t", "u"))
    assert join(groups, "C", "tu") == Joined(4, "C", ())


def test_sticky_goes_by_who_reads_a_topic(groups: Groups) -> None:
    join(groups, "A", "tuvw", strategy=STICKY)
    # v and w are meant for B, but A reads them when C comes: of the two that A has to
    # give up, B gets one. Going by the plan, A would lose a third one.
    join(groups, "B", "tuvw", strategy=STICKY)
    join(groups, "C", "tuvw", strategy=STICKY)
    assert settle(groups, "ABC") == {"A": "tu", "B": "w", "C": "v"}


@pytest.mark.parametrize("strategy", AssignmentStrategy)
def test_all_topics_are_read_in_the_end(
    groups: Groups, strategy: AssignmentStrategy
) -> None:
    for member in "CAB":
        join(groups, member, "tuvwxyz", strategy=strategy)
    settled = settle(groups, "ABC")
    assert sorted("".join(settled.values())) == list("tuvwxyz")
    assert sorted(map(len, settled.values())) == [2, 2, 3]


# Sessions.


def test_a_silent_member_is_dropped(groups: Groups, clock: Clock) -> None:
    join(groups, "A", timeout_s=10)
    clock.now += 9.999
    assert groups.expire() == 0
    clock.now += 0.001
    assert groups.expire() == 1
    assert groups.describe() == []
    with pytest.raises(ConsumerNotFound):
        groups.heartbeat("g", "A", 1)


def test_the_time_can_be_given(groups: Groups, clock: Clock) -> None:
    join(groups, "A", timeout_s=10)
    assert groups.expire(clock.now + 9) == 0
    assert groups.expire(clock.now + 10) == 1


def test_a_heartbeat_starts_the_session_anew(groups: Groups, clock: Clock) -> None:
    join(groups, "A", timeout_s=10)
    join(groups, "B", timeout_s=11, group="h")
    for _ in range(5):
        clock.now += 9
        groups.heartbeat("g", "A", 1)
        groups.heartbeat("h", "B", 1)
        assert groups.expire() == 0
    clock.now += 10
    assert groups.expire() == 1
    clock.now += 1
    assert groups.expire() == 1


def test_late_is_not_gone(groups: Groups, clock: Clock) -> None:
    """Whoever is still known when he calls goes on."""
    join(groups, "A", timeout_s=10)
    clock.now += 1000
    assert groups.heartbeat("g", "A", 1) == Assigned(1, ("t", "u"))
    clock.now += 1000
    assert join(groups, "A", timeout_s=10) == Joined(1, "A", ("t", "u"))
    clock.now += 1000
    groups.leave("g", "A")


def test_joining_again_changes_the_session(groups: Groups, clock: Clock) -> None:
    join(groups, "A", timeout_s=1000)
    join(groups, "A", timeout_s=10)
    clock.now += 10
    assert groups.expire() == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda groups: join(groups, "B"),
        lambda groups: groups.heartbeat("h", "B", 1),
        lambda groups: groups.leave("h", "B"),
        lambda groups: groups.describe(),
    ],
)
def test_every_call_drops_who_is_silent(
    groups: Groups, clock: Clock, call: Callable[[Groups], object]
) -> None:
    join(groups, "A", timeout_s=10)
    join(groups, "B", timeout_s=100, group="h")
    clock.now += 10
    call(groups)
    with pytest.raises(ConsumerNotFound):
        groups.heartbeat("g", "A", 1)


def test_all_that_are_silent_are_one_change(groups: Groups, clock: Clock) -> None:
    for member in "ABC":
        join(groups, member, timeout_s=10 if member < "C" else 60)
    clock.now += 10
    assert groups.expire() == 2
    assert groups.heartbeat("g", "C", 3) == Assigned(4, ("t", "u"))


# Limits.


@pytest.mark.parametrize(
    "timeout_s",
    [0, -1, SESSION_TIMEOUT_MIN_S / 2, SESSION_TIMEOUT_MAX_S * 2, float("nan")],
)
def test_a_session_timeout_that_is_refused(groups: Groups, timeout_s: float) -> None:
    with pytest.raises(InvalidPayload, match=r"session timeout .* from 1 to 3600 s"):
        join(groups, "A", timeout_s=timeout_s)
    assert groups.describe() == []


@pytest.mark.parametrize("timeout_s", [SESSION_TIMEOUT_MIN_S, SESSION_TIMEOUT_MAX_S])
def test_the_limits_of_a_session_timeout(groups: Groups, timeout_s: float) -> None:
    join(groups, "A", timeout_s=timeout_s)


def test_another_strategy_is_refused(groups: Groups) -> None:
    join(groups, "A", strategy=ROUND_ROBIN)
    for member in ("A", "B", ""):
        with pytest.raises(InvalidPayload, match=r"by round-robin: .* of sticky"):
            join(groups, member, strategy=STICKY)
    assert groups.heartbeat("g", "A", 1) == Assigned(1, ("t", "u"))


def test_the_number_of_groups(clock: Clock) -> None:
    groups = Groups(clock=clock, groups_max=2)
    join(groups, "A", group="f")
    join(groups, "A", group="g")
    with pytest.raises(InvalidPayload, match=r"group 'h' can't be made: .* 2 already"):
        join(groups, "A", group="h")
    join(groups, "B", group="g")
    groups.leave("f", "A")
    join(groups, "A", group="h")


def test_the_number_of_members(clock: Clock) -> None:
    groups = Groups(clock=clock, members_max=2)
    join(groups, "A")
    join(groups, "B")
    for member in ("C", ""):
        with pytest.raises(InvalidPayload, match=r"group 'g' .* it has 2 members"):
            join(groups, member)
    assert join(groups, "B", "v").generation == 3
    groups.leave("g", "A")
    join(groups, "C")


def test_the_number_of_topics(clock: Clock) -> None:
    groups = Groups(clock=clock, topics_max=2)
    with pytest.raises(InvalidPayload, match=r"3 topics .* at most 2"):
        join(groups, "A", "tuv")
    # The same one again is no further topic.
    join(groups, "A", "tutu")


def test_the_number_of_all_subscriptions(clock: Clock) -> None:
    groups = Groups(clock=clock, subscriptions_max=5)
    join(groups, "A", "tu")
    join(groups, "B", "tu", group="h")
    with pytest.raises(InvalidPayload, match=r"with 2 topics: .* subscribe to 5"):
        join(groups, "C", "tu")
    join(groups, "C", "")  # It counts, too.
    with pytest.raises(InvalidPayload):
        join(groups, "D", "")
    # What a member gives up is there for others.
    join(groups, "A", "t")
    join(groups, "D", "t")
    with pytest.raises(InvalidPayload):
        join(groups, "A", "tu")
    groups.leave("h", "B")
    join(groups, "A", "tuv")
    for member in "ACD":
        groups.leave("g", member)
    join(groups, "E", "tuvwx")


def test_the_number_of_subscriptions_of_a_group(clock: Clock) -> None:
    groups = Groups(clock=clock, group_subscriptions_max=4)
    join(groups, "A", "tu")
    join(groups, "B", "tu")
    with pytest.raises(InvalidPayload, match=r"with 1 topics: its .* subscribe to 4"):
        join(groups, "C", "t")
    with pytest.raises(InvalidPayload):
        join(groups, "A", "tuv")
    join(groups, "A", "tuvw", group="h")
    join(groups, "A", "t")
    join(groups, "C", "t")
    groups.leave("g", "B")
    join(groups, "A", "tuv")


# An assignment that takes long.


class SlowAssign:
    """Makes assignments of groups with a topic `slow` only when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Semaphore(0)
        self.let = threading.Semaphore(0)
        self.count = 0
        monkeypatch.setattr(group_module, "assign", self)

    def __call__(
        self,
        strategy: AssignmentStrategy,
        members: Mapping[str, frozenset[str]],
        previous: Mapping[str, set[str]],
    ) -> dict[str, tuple[str, ...]]:
        if any("slow" in topics for topics in members.values()):
            self.count += 1
            self.entered.release()
            assert self.let.acquire(timeout=PATIENCE_S)
        return assign(strategy, members, previous)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowAssign:
    return SlowAssign(monkeypatch)


def join_slowly(groups: Groups, member: str, group: str = "slow") -> Joined:
    return groups.join(group, member, ["slow", "t"], RANGE, 30.0)


def test_nobody_waits_for_the_assignment_of_another_group(
    groups: Groups, clock: Clock, slow: SlowAssign
) -> None:
    for member in "AB":
        join(groups, member, timeout_s=1)
    with running(lambda: join_slowly(groups, "X")) as joined:
        assert slow.entered.acquire(timeout=PATIENCE_S)
        for _ in range(5):
            clock.now += 0.9
            for member in "AB":
                assert groups.heartbeat("g", member, 2).generation == 2
        assert join(groups, "C", timeout_s=1).generation == 3
        groups.leave("g", "C")
        assert [group.group for group in groups.describe()] == ["g", "slow"]
        assert groups.expire() == 0
        slow.let.release()
        assert joined() == Joined(1, "X", ("slow", "t"))


def test_heartbeats_do_not_wait_for_an_assignment(
    groups: Groups, clock: Clock, slow: SlowAssign
) -> None:
    slow.let.release()
    assert join_slowly(groups, "A") == Joined(1, "A", ("slow", "t"))
    assert slow.entered.acquire(timeout=PATIENCE_S)
    with running(lambda: join_slowly(groups, "B")) as joined:
        assert slow.entered.acquire(timeout=PATIENCE_S)
        # A goes on with what it has, and B can say that it is alive.
        for _ in range(5):
            clock.now += 10
            assert groups.heartbeat("slow", "A", 1) == Assigned(1, ("slow", "t"))
            groups.heartbeat("slow", "B", 0)
        slow.let.release()
        assert joined() == Joined(2, "B", ())
    assert groups.heartbeat("slow", "A", 1) == Assigned(2, ("slow",))
    # Its session begins with the answer.
    clock.now += 29
    assert groups.expire() == 0


def test_many_that_join_meanwhile_are_one_generation(
    groups: Groups, slow: SlowAssign
) -> None:
    with ExitStack() as threads:
        first = threads.enter_context(running(lambda: join_slowly(groups, "A")))
        assert slow.entered.acquire(timeout=PATIENCE_S)
        others = [
            threads.enter_context(running(partial(join_slowly, groups, member)))
            for member in "BCDE"
        ]
        assert eventually(lambda: len(groups.describe()[0].members) == 5)
        slow.let.release(2)
        assert first().member == "A"
        assert {joined().generation for joined in others} == {2}
    assert slow.count == 2


def test_who_leaves_or_changes_during_an_assignment(
    groups: Groups, slow: SlowAssign
) -> None:
    slow.let.release(2)
    join_slowly(groups, "A", "g")
    join_slowly(groups, "B", "g")
    for _ in range(2):
        assert slow.entered.acquire(timeout=PATIENCE_S)
    with running(lambda: join_slowly(groups, "C", "g")) as joined:
        assert slow.entered.acquire(timeout=PATIENCE_S)
        groups.leave("g", "B")
        with running(lambda: join(groups, "A", "uv")) as changed:
            assert eventually(lambda: groups.subscription("g", "A") == {*"uv"})
            slow.let.release(2)
            assert {joined().member, changed().member} == {"A", "C"}
    slow.let.release()
    for _ in range(2):
        told = {m: groups.heartbeat("g", m, 4).topics for m in "AC"}
    assert told == {"A": ("u", "v"), "C": ("slow", "t")}


def test_an_assignment_that_fails_is_made_by_the_next_one(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(group_module, "assign", fail)
        with pytest.raises(MemoryError):
            join(groups, "A")
    assert groups.heartbeat("g", "A", 0) == Assigned(1, ("t", "u"))


def test_who_is_taken_out_before_the_answer_joins_again(
    groups: Groups, slow: SlowAssign
) -> None:
    with running(lambda: join_slowly(groups, "A")) as joined:
        assert slow.entered.acquire(timeout=PATIENCE_S)
        groups.leave("slow", "A")
        slow.let.release()
        with pytest.raises(ConsumerNotFound, match="join again"):
            joined()
    assert groups.describe() == []


LONG = "é" * (NAME_BYTES_MAX // 2 + 1)


@pytest.mark.parametrize(
    ("group", "member", "topic", "text"),
    [
        ("", "A", "t", "group's name is empty"),
        (LONG, "A", "t", "group's name .* has 256 bytes: at most 255"),
        ("g", LONG, "t", "member's name .* has 256 bytes: at most 255"),
        ("g", "A", LONG, "topic's name .* has 256 bytes: at most 255"),
    ],
)
def test_a_name_that_is_refused(
    groups: Groups, group: str, member: str, topic: str, text: str
) -> None:
    with pytest.raises(InvalidPayload, match=text):
        groups.join(group, member, [topic], RANGE, 30)
    assert groups.describe() == []


# Looking at them.


def test_groups_are_described(groups: Groups) -> None:
    join(groups, "B", "tu", group="h", strategy=STICKY)
    join(groups, "B")
    join(groups, "A")
    assert groups.describe() == [
        GroupDescription("g", 2, RANGE, {"A": (), "B": ("t", "u")}),
        GroupDescription("h", 1, STICKY, {"B": ("t", "u")}),
    ]
    settle(groups, "AB")
    assert groups.describe()[0].members == {"A": ("t",), "B": ("u",)}


def test_many_threads(clock: Clock) -> None:
    groups = Groups(clock=clock)
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def work(name: str) -> None:
        try:
            start.wait(10)
            for _ in range(20):
                generation = join(groups, name, "tuvw").generation
                for _ in range(3):
                    generation = groups.heartbeat("g", name, generation).generation
                groups.describe()
                groups.leave("g", name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"m{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert groups.describe() == []


# A simulation: members that come, go, change their minds, apply late and lose answers.


class Simulated:
    """What a member reads, and what it was told and may still apply."""

    def __init__(self, joined: Joined) -> None:
        self.generation = joined.generation
        self.reads = set(joined.topics)
        self.told: Assigned | None = None

    def apply(self) -> None:
        if self.told is not None:
            self.generation, self.reads = self.told[0], set(self.told[1])
            self.told = None


class Simulation(RuleBasedStateMachine):
    """No topic is ever read by two, and all are read in the end."""

    names = Bundle("names")
    strategy: AssignmentStrategy

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        ids = count()
        self.groups = Groups(clock=self.clock, make_id=lambda: f"m{next(ids)}")
        self.members: dict[str, Simulated] = {}
        self.wanted: dict[str, frozenset[str]] = {}

    @initialize(strategy=st.sampled_from(AssignmentStrategy))
    def choose(self, strategy: AssignmentStrategy) -> None:
        self.strategy = strategy

    @rule(target=names, topics=st.frozensets(st.sampled_from("tuvwx")))
    def come(self, topics: frozenset[str]) -> str:
        joined = self.groups.join("g", "", sorted(topics), self.strategy, 30)
        self.members[joined.member] = Simulated(joined)
        self.wanted[joined.member] = topics
        return joined.member

    @rule(name=names, topics=st.frozensets(st.sampled_from("tuvwx")))
    def change(self, name: str, topics: frozenset[str]) -> None:
        if name in self.members:
            joined = self.groups.join("g", name, sorted(topics), self.strategy, 30)
            self.members[name].told = Assigned(joined.generation, joined.topics)
            self.wanted[name] = topics

    @rule(name=names, lost=st.booleans())
    def beat(self, name: str, lost: bool) -> None:
        if name in self.members:
            member = self.members[name]
            told = self.groups.heartbeat("g", name, member.generation)
            assert told.generation >= member.generation
            if not lost:
                member.told = told

    @rule(name=names)
    def apply(self, name: str) -> None:
        if name in self.members:
            self.members[name].apply()

    @rule(name=consumes(names))
    def leave(self, name: str) -> None:
        if name in self.members:
            self.groups.leave("g", name)
            del self.members[name], self.wanted[name]

    @rule(name=consumes(names))
    def vanish(self, name: str) -> None:
        if name in self.members:
            for _ in range(3):
                self.clock.now += 10
                for other in sorted(self.members.keys() - {name}):
                    self.beat(other, lost=False)
            self.groups.expire()
            del self.members[name], self.wanted[name]

    @invariant()
    def nothing_is_read_twice(self) -> None:
        read = [topic for member in self.members.values() for topic in member.reads]
        assert len(read) == len(set(read))

    def teardown(self) -> None:
        for _ in range(3):
            for name, member in self.members.items():
                member.told = self.groups.heartbeat("g", name, member.generation)
                member.apply()
                self.nothing_is_read_twice()
        for name, member in self.members.items():
            assert member.reads <= self.wanted[name]
        read = [topic for member in self.members.values() for topic in member.reads]
        assert sorted(read) == sorted(frozenset().union(*self.wanted.values()))


Simulation.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestSimulation = Simulation.TestCase
