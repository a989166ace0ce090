"""The bytes of our own commands, written out by hand once more."""

from __future__ import annotations

from lance_spark.model import Location
from lance_spark.wire.lwp import (
    STAGE_ID_MIN,
    AbortStages,
    AssignedTopic,
    AssignmentStrategy,
    Capability,
    ClusterStatus,
    CommitStages,
    CommitStatus,
    GroupHeartbeat,
    GroupHeartbeatResponse,
    GroupJoined,
    JoinGroup,
    LeaveGroup,
    Locate,
    LocateKind,
    LocateResponse,
    Message,
    OpenStage,
    StageContent,
    StageOpened,
    StagesAborted,
    StagesCommitted,
    TopicPosition,
    TopicSpan,
    Wait,
    WaitResponse,
)
from tests.each import each
from tests.wire.vectors import join

# One space between fields, so that a reader can count.
BY_HAND: list[tuple[Message, str]] = [
    (Locate(1, LocateKind.TIME, 3), "01000000 02 0300000000000000"),
    (
        LocateResponse(1, 2, 3),
        "0100000000000000 0200000000000000 0300000000000000",
    ),
    (OpenStage("t", "w", 9), "0100 74 0100 77 0900000000000000"),
    (StageOpened(STAGE_ID_MIN), "00000080"),
    (
        CommitStages("w", 9, ("t",), (StageContent(STAGE_ID_MIN, 1, 2),)),
        "0100 77 0900000000000000 01000000 0100 74 "
        "01000000 00000080 0100000000000000 0200000000000000",
    ),
    (
        StagesCommitted(CommitStatus.REPEATED, (TopicSpan(4, "t", 5, 6),)),
        "01 01000000 04000000 0100 74 0500000000000000 0600000000000000",
    ),
    (AbortStages("w", 9), "0100 77 0900000000000000"),
    (StagesAborted(3), "03000000"),
    (
        Wait(1, (TopicPosition(2, 3),), 4),
        "0100000000000000 01000000 02000000 0300000000000000 04000000",
    ),
    (
        WaitResponse(1, (TopicPosition(2, 3),)),
        "0100000000000000 01000000 02000000 0300000000000000",
    ),
    (
        JoinGroup("g", "m", ("t",), AssignmentStrategy.ROUND_ROBIN, 5),
        "0100 67 0100 6d 01000000 0100 74 01 05000000",
    ),
    (
        GroupJoined(1, "m", (AssignedTopic(2, "t"),)),
        "0100000000000000 0100 6d 01000000 02000000 0100 74",
    ),
    (GroupHeartbeat("g", "m", 1), "0100 67 0100 6d 0100000000000000"),
    (
        GroupHeartbeatResponse(1, (AssignedTopic(2, "t"),)),
        "0100000000000000 01000000 02000000 0100 74",
    ),
    (LeaveGroup("g", "m"), "0100 67 0100 6d"),
]


@each(("message", "data"), BY_HAND)
def test_bytes(message: Message, data: str) -> None:
    payload = bytes.fromhex(data)
    assert join(message.encode_payload()) == payload
    assert type(message).decode_payload(payload) == message


def test_location() -> None:
    assert LocateResponse(1, 2, 3).location == Location(1, 2, 3)


def test_capabilities_are_found_by_name() -> None:
    status = ClusterStatus(capabilities=("locate", "something-new"))
    assert Capability.LOCATE in status.capabilities
    assert Capability.WAIT not in status.capabilities


def test_capabilities_can_be_sent_as_they_are() -> None:
    status = ClusterStatus(capabilities=tuple(Capability))
    received = ClusterStatus.decode_payload(join(status.encode_payload()))
    assert received.capabilities == (
        "fetch-flags",
        "locate",
        "staged-commit",
        "wait",
        "groups",
        "partitions",
    )
