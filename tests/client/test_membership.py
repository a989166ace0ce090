"""Membership of groups: what is asked."""

from __future__ import annotations

import pytest

from lance_spark.client.lwp.group import GroupedConsumer
from lance_spark.errors import ConnectionLost, ConsumerNotFound, Unsupported
from lance_spark.wire.lwp import (
    AssignedTopic,
    AssignmentStrategy,
    GroupHeartbeat,
    GroupHeartbeatResponse,
    GroupJoined,
    GroupLeft,
    JoinGroup,
    LeaveGroup,
)
from tests.client.scripted import EVERYTHING, FakeTime, Network, Peer, serving

ASSIGNMENT = (AssignedTopic(1, "events"),)


def test_join_beat_leave(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet(*EVERYTHING)
        assert peer.request() == JoinGroup(
            "group", "", ("events", "logs"), AssignmentStrategy.STICKY, 1500
        )
        peer.answer(GroupJoined(1, "member-1", ASSIGNMENT))
        assert peer.request() == GroupHeartbeat("group", "member-1", 1)
        peer.answer(GroupHeartbeatResponse(2, ASSIGNMENT))
        assert peer.request() == GroupHeartbeat("group", "member-1", 2)
        peer.refuse(0x52, "who?")
        assert peer.request() == LeaveGroup("group", "member-1")
        peer.answer(GroupLeft())
        peer.wait_for_end()

    network.serve(script)
    client = network.client()
    joined = client.join_group(
        "group",
        ["events", "logs"],
        strategy=AssignmentStrategy.STICKY,
        session_timeout_s=1.5,
    )
    assert joined == GroupJoined(1, "member-1", ASSIGNMENT)
    answer = client.heartbeat("group", "member-1", 1)
    assert answer == GroupHeartbeatResponse(2, ASSIGNMENT)
    with pytest.raises(ConsumerNotFound):
        client.heartbeat("group", "member-1", 2)
    client.leave_group("group", "member-1")


def test_join_again_as_somebody(network: Network) -> None:
    asked: list[JoinGroup] = []

    def join(request: JoinGroup) -> GroupJoined:
        asked.append(request)
        return GroupJoined(3, request.member)

    network.serve(serving({JoinGroup: join}, *EVERYTHING))
    network.client().join_group("group", ["events"], member="me")
    expected = JoinGroup("group", "me", ("events",), AssignmentStrategy.RANGE, 30_000)
    assert asked == [expected]


def test_a_deadline_for_each_call(network: Network, fake_time: FakeTime) -> None:
    client = network.client(runtime=fake_time.runtime(network))
    for call in (
        lambda: client.join_group("group", [], timeout_s=0.3),
        lambda: client.heartbeat("group", "me", 1, timeout_s=0.3),
        lambda: client.leave_group("group", "me", timeout_s=0.3),
    ):
        with pytest.raises(ConnectionLost):
            call()
    assert fake_time.pauses == [0.2] * 3


def test_a_plain_server_has_no_groups(network: Network) -> None:
    network.serve(serving())
    client = network.client()
    for call in (
        lambda: client.join_group("group", ["events"]),
        lambda: client.heartbeat("group", "me", 1),
        lambda: client.leave_group("group", "me"),
    ):
        with pytest.raises(Unsupported, match="in a group") as caught:
            call()
        assert caught.value.capability == "groups"


def test_a_group_names_the_capability_that_is_missing(network: Network) -> None:
    """A plain server lacks `groups`; one without `wait` alone lacks that."""
    everything_else = (name for name in EVERYTHING if name != "wait")
    for offered, missing in (((), "groups"), (everything_else, "wait")):
        network.serve(serving({}, *offered))
        with pytest.raises(Unsupported, match=f"lists no capability '{missing}'"):
            GroupedConsumer(network.client(), "readers", ["events"])
