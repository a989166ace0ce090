"""A member of a group: what it tells the broker, and when."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import ANY

import pytest

from lance_spark.client.lwp.group import Assignment, GroupMember
from lance_spark.errors import ConnectionLost, ConsumerNotFound, LanceError, Timeout
from lance_spark.wire.lwp import (
    AssignedTopic,
    AssignmentStrategy,
    GroupHeartbeatResponse,
    GroupJoined,
)
from tests.client.kit_flow import PATIENCE_S

A, B = AssignedTopic(1, "a"), AssignedTopic(2, "b")


class FakeGroups:
    """A client whose server knows one group."""

    def __init__(self) -> None:
        self.assignment = Assignment(1, (A,))
        self.error: LanceError | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.beaten = threading.Event()

    def join_group(
        self,
        group: str,
        topics: tuple[str, ...],
        *,
        member: str,
        strategy: AssignmentStrategy,
        session_timeout_s: float,
    ) -> GroupJoined:
        self.calls.append(("join", group, topics, member, strategy, session_timeout_s))
        if self.error is not None:
            raise self.error
        return GroupJoined(self.assignment.generation, "m-1", self.assignment.topics)

    def heartbeat(
        self, group: str, member: str, generation: int, *, timeout_s: float
    ) -> GroupHeartbeatResponse:
        self.calls.append(("beat", group, member, generation))
        self.beaten.set()
        if self.error is not None:
            raise self.error
        return GroupHeartbeatResponse(
            self.assignment.generation, self.assignment.topics
        )

    def leave_group(self, group: str, member: str, *, timeout_s: float) -> None:
        self.calls.append(("leave", group, member))
        if self.error is not None:
            raise self.error

    def beats(self) -> list[int]:
        return [call[3] for call in self.calls if call[0] == "beat"]


Make = Callable[..., GroupMember]


@pytest.fixture
def groups() -> FakeGroups:
    return FakeGroups()


@pytest.fixture
def make(groups: FakeGroups) -> Iterator[Make]:
    made: list[GroupMember] = []

    def make_one(**options: Any) -> GroupMember:
        client: Any = groups
        settings = {
            "strategy": AssignmentStrategy.STICKY,
            "session_timeout_s": 600.0,
            **options,
        }
        made.append(GroupMember(client, "readers", **settings))
        return made[-1]

    yield make_one
    for member in made:
        member.leave()


def test_join_tells_everything(groups: FakeGroups, make: Make) -> None:
    member = make()
    member.join(["a", "b"])
    assert groups.calls == [
        ("join", "readers", ("a", "b"), ANY, AssignmentStrategy.STICKY, 600.0)
    ]
    assert member.id == "m-1"
    assert member.latest == Assignment(1, (A,))
    assert member.applied == 0, "nobody has read it yet"


def test_heartbeats_name_what_was_applied(groups: FakeGroups, make: Make) -> None:
    member = make()
    member.join(["a"])
    member.apply(1)
    groups.assignment = Assignment(2, ())
    member._beat()
    # The broker is at 2, but the topic that went is still being read.
    assert member.latest == Assignment(2, ())
    member._beat()
    assert groups.beats() == [1, 1, 1]
    member.apply(2)
    assert groups.beats() == [1, 1, 1, 2]
    assert member.applied == 2


def test_heartbeats_go_on_by_themselves(groups: FakeGroups, make: Make) -> None:
    member = make(session_timeout_s=0.03)
    member.join(["a"])
    for _ in range(3):
        groups.beaten.clear()
        assert groups.beaten.wait(PATIENCE_S)


def test_news_wake_who_waits(groups: FakeGroups, make: Make) -> None:
    member = make(session_timeout_s=0.3)
    member.join(["a"])
    before = member.latest
    groups.assignment = Assignment(1, (A, B))
    member.await_news(before, PATIENCE_S)
    assert member.latest == Assignment(1, (A, B))
    member.await_news(before, PATIENCE_S)


def test_joins_again_under_its_name(groups: FakeGroups, make: Make) -> None:
    member = make()
    member.join(["a"])
    member.join(["b"])
    member.join()
    assert [call[2:4] for call in groups.calls] == [
        (("a",), ANY),
        (("b",), "m-1"),
        (("b",), "m-1"),
    ]


def test_the_first_join_has_a_name_that_a_repeat_would_have_too(
    groups: FakeGroups, make: Make
) -> None:
    first, second = make(), make()
    groups.error = ConnectionLost("the answer is lost")
    for _ in range(2):
        with pytest.raises(ConnectionLost):
            first.join(["a"])
    groups.error = None
    first.join(["a"])
    second.join(["a"])
    names = [call[3] for call in groups.calls]
    assert names[0]
    assert names[:3] == [names[0]] * 3
    assert names[3] not in ("", names[0])


# Members that nobody needs.


def test_a_member_that_is_dropped_sends_no_more(groups: FakeGroups) -> None:
    client: Any = groups
    member = GroupMember(
        client,
        "readers",
        strategy=AssignmentStrategy.RANGE,
        session_timeout_s=600.0,
    )
    member.join(["a"])
    thread = member._heartbeats._thread
    assert thread.is_alive()
    del member
    gc.collect()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_no_heartbeats_without_polls(
    groups: FakeGroups, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]
    member = make(clock=lambda: now_s[0], max_poll_interval_s=100.0)
    member.join(["a"])
    member.apply(1)
    now_s[0] = 100.0
    member._keep_place()
    assert len(groups.beats()) == 2
    for now_s[0] in (100.1, 103.0, 106.0):
        member._keep_place()
    assert len(groups.beats()) == 2
    assert caplog.text.count("no poll for 100 s") == 1
    assert not member.is_lost, "the session goes on for a while"
    member.note_poll()
    assert len(groups.beats()) == 3, "at once, as little of it may be left"
    member._keep_place()
    assert len(groups.beats()) == 4


def test_who_polls_too_late_is_lost(groups: FakeGroups, make: Make) -> None:
    now_s = [0.0]
    member = make(clock=lambda: now_s[0], max_poll_interval_s=100.0)
    member.join(["a"])
    now_s[0] = 101.0
    member._keep_place()
    now_s[0] = 601.0
    member.note_poll()
    assert member.is_lost
    assert groups.beats() == []
    member.join()
    assert not member.is_lost
    member._keep_place()
    assert len(groups.beats()) == 1


def test_is_lost_when_the_broker_says_so(groups: FakeGroups, make: Make) -> None:
    member = make()
    member.join(["a"])
    member.apply(1)
    assert not member.is_lost
    groups.error = ConsumerNotFound("who?")
    member._beat()
    assert member.is_lost
    member.await_news(member.latest, PATIENCE_S)
    groups.error = None
    member.join()
    assert not member.is_lost
    assert member.applied == 0, "what was applied before does not count"


def test_a_lost_member_is_quiet(groups: FakeGroups, make: Make) -> None:
    member = make(session_timeout_s=0.03)
    groups.error = None
    member.join(["a"])
    groups.error = ConsumerNotFound("who?")
    member.await_news(member.latest, PATIENCE_S)
    count = len(groups.beats())
    assert not threading.Event().wait(0.05)
    assert len(groups.beats()) == count


def test_is_lost_after_a_session_of_silence(groups: FakeGroups, make: Make) -> None:
    now_s = [0.0]
    member = make(clock=lambda: now_s[0])
    member.join(["a"])
    groups.error = ConnectionLost("down")
    now_s[0] = 600.0
    member._beat()
    assert not member.is_lost
    now_s[0] = 600.1
    assert member.is_lost
    groups.error = None
    member._beat()
    assert not member.is_lost, "the broker still knew it"


def test_time_counts_from_the_question(groups: FakeGroups, make: Make) -> None:
    now_s = [0.0]
    member = make(clock=lambda: now_s[0])
    member.join(["a"])

    real = groups.heartbeat

    def slow(*arguments: Any, **options: Any) -> GroupHeartbeatResponse:
        now_s[0] += 500.0
        return real(*arguments, **options)

    groups.heartbeat = slow  # type: ignore[method-assign]
    member._beat()
    now_s[0] = 600.5
    assert member.is_lost


def test_a_heartbeat_that_fails_is_not_the_end(
    groups: FakeGroups, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    member = make()
    member.join(["a"])
    groups.error = Timeout("late")
    member.apply(1)
    assert "heartbeat failed: late" in caplog.text
    groups.error = None
    member._beat()
    assert groups.beats() == [1, 1]


def test_leave(groups: FakeGroups, make: Make) -> None:
    member = make()
    member.join(["a"])
    member.leave()
    assert groups.calls[-1] == ("leave", "readers", "m-1")
    assert not [t for t in threading.enumerate() if t.name == "lance-group-readers"]


def test_who_never_joined_or_is_lost_has_nothing_to_leave(
    groups: FakeGroups, make: Make
) -> None:
    make().leave()
    member = make()
    member.join(["a"])
    groups.error = ConsumerNotFound("who?")
    member._beat()
    member.leave()
    assert "leave" not in [call[0] for call in groups.calls]


def test_leaving_never_raises(
    groups: FakeGroups, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    member = make()
    member.join(["a"])
    groups.error = ConnectionLost("down")
    member.leave()
    assert "could not leave: down" in caplog.text


def test_a_join_that_is_refused(groups: FakeGroups, make: Make) -> None:
    groups.error = LanceError("no")
    member = make()
    with pytest.raises(LanceError, match="no"):
        member.join(["a"])
    member.leave()
    assert [call[0] for call in groups.calls] == ["join"], "it was never in"
