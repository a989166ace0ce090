"""Our own commands: locate, staged commit, wait and consumer groups.

Exact bytes with examples are in docs/wire-extensions.md, which is tested against the
same vectors as this module. The options of the long Fetch are in `fetch`. A client
sends none of these unless the server lists the capability in its cluster status.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Annotated

from lance_spark.model import CommitStatus, Location, StageContent
from lance_spark.value import dataclass
from lance_spark.wire.lwp.message import (
    TEXT,
    TOPIC_NAME,
    U32,
    U64,
    Choice,
    Command,
    Composite,
    Field,
    Items,
    LayoutMessage,
    ShortText,
    Uint32,
    Uint64,
)

# Stage ids share the frame's topic id field with topics; the top bit tells them apart.
STAGE_ID_MIN = 0x8000_0000

# The most items of every list that a request has, by message and field. A longer list
# is refused before any of it is built; docs/wire-extensions.md shows this table.
LIST_LIMITS: Mapping[str, int] = {
    # Each name costs the broker some operations on its disk, all in one commit.
    "CommitStages.overwrite": 1024,
    # More than the stages that a broker keeps by default (stages_max).
    "CommitStages.stages": 16_384,
    "JoinGroup.topics": 10_000,
    # A Wait is held for long, so that this is what a silent client may cost. A client
    # of more topics sends several; the cluster status tells it the number.
    "Wait.positions": 1024,
}
# The name of that number in the `limits` of the cluster status.
WAIT_POSITIONS_MAX = "wait_positions_max"


def _list(item: Field, name: str) -> Items:
    return Items(item, LIST_LIMITS[name])


class Capability(str, Enum):
    """What a server may list in its cluster status."""

    FETCH_FLAGS = "fetch-flags"
    LOCATE = "locate"
    STAGED_COMMIT = "staged-commit"
    WAIT = "wait"
    GROUPS = "groups"
    PARTITIONS = "partitions"


class LocateKind(IntEnum):
    """What the value of a Locate means; `START` and `END` need none."""

    OFFSET = 0
    RECORD = 1
    TIME = 2
    START = 3
    END = 4


@dataclass(frozen=True, slots=True)
class Locate(LayoutMessage):
    """Ask for a record boundary."""

    COMMAND = Command.LOCATE

    topic_id: Uint32
    kind: Annotated[LocateKind, Choice(LocateKind)]
    value: Uint64 = 0


@dataclass(frozen=True, slots=True)
class LocateResponse(LayoutMessage):
    """The boundary that was asked for; the append time is 0 at the log's end."""

    COMMAND = Command.LOCATE_RESPONSE

    offset: Uint64
    record: Uint64
    append_time_ns: Uint64

    @property
    def location(self) -> Location:
        """The same as a value that other layers know."""
        return Location(self.offset, self.record, self.append_time_ns)


@dataclass(frozen=True, slots=True)
class OpenStage(LayoutMessage):
    """Open a stage for a topic that need not exist yet."""

    COMMAND = Command.OPEN_STAGE

    topic: ShortText
    writer_id: ShortText
    sequence: Uint64


@dataclass(frozen=True, slots=True)
class StageOpened(LayoutMessage):
    """The stage's id, to be used as the topic id of ordinary ingests."""

    COMMAND = Command.STAGE_OPENED

    stage_id: Uint32


_STAGE = Composite(StageContent, U32, U64, U64)


@dataclass(frozen=True, slots=True)
class CommitStages(LayoutMessage):
    """Append the stages to their topics in this order, all or nothing.

    `overwrite` names the topics whose content is replaced, with or without stages.
    """

    COMMAND = Command.COMMIT_STAGES

    writer_id: ShortText
    sequence: Uint64
    overwrite: Annotated[tuple[str, ...], _list(TOPIC_NAME, "CommitStages.overwrite")]
    stages: Annotated[tuple[StageContent, ...], _list(_STAGE, "CommitStages.stages")]


@dataclass(frozen=True, slots=True)
class TopicSpan:
    """The bytes [start, end) that a commit appended to a topic."""

    topic_id: int
    name: str
    start: int
    end: int


_Spans = Annotated[
    tuple[TopicSpan, ...], Items(Composite(TopicSpan, U32, TEXT, U64, U64))
]


@dataclass(frozen=True, slots=True)
class StagesCommitted(LayoutMessage):
    """What became of a commit, and where its data is."""

    COMMAND = Command.STAGES_COMMITTED

    status: Annotated[CommitStatus, Choice(CommitStatus)]
    topics: _Spans = ()


@dataclass(frozen=True, slots=True)
class AbortStages(LayoutMessage):
    """Drop every stage of a job that was not committed."""

    COMMAND = Command.ABORT_STAGES

    writer_id: ShortText
    sequence: Uint64


@dataclass(frozen=True, slots=True)
class StagesAborted(LayoutMessage):
    """How many stages were dropped."""

    COMMAND = Command.STAGES_ABORTED

    dropped: Uint32


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """An offset in a topic."""

    topic_id: int
    offset: int


_Positions = Annotated[
    tuple[TopicPosition, ...],
    _list(Composite(TopicPosition, U32, U64), "Wait.positions"),
]


@dataclass(frozen=True, slots=True)
class Wait(LayoutMessage):
    """Wait until a topic has grown past its offset or the list of topics changed."""

    COMMAND = Command.WAIT

    version: Uint64
    positions: _Positions
    max_wait_ms: Uint32


@dataclass(frozen=True, slots=True)
class WaitResponse(LayoutMessage):
    """The version of the list of topics, and where the topics asked for end now."""

    COMMAND = Command.WAIT_RESPONSE

    version: Uint64
    ends: _Positions


@dataclass(frozen=True, slots=True)
class DeletePartitions(LayoutMessage):
    """Delete a topic with several partitions, all of them.

    The id is that of any partition. The number of partitions says that the client
    means all of them: with another number than there are, nothing is deleted.
    """

    COMMAND = Command.DELETE_PARTITIONS

    topic_id: Uint32
    partitions: Uint32


class AssignmentStrategy(IntEnum):
    """How a group's topics are shared out (LWP §16.3)."""

    RANGE = 0
    ROUND_ROBIN = 1
    STICKY = 2


@dataclass(frozen=True, slots=True)
class JoinGroup(LayoutMessage):
    """Join a consumer group; an empty member id asks the broker for one."""

    COMMAND = Command.JOIN_GROUP

    group: ShortText
    member: ShortText
    topics: Annotated[tuple[str, ...], _list(TOPIC_NAME, "JoinGroup.topics")]
    strategy: Annotated[AssignmentStrategy, Choice(AssignmentStrategy)]
    session_timeout_ms: Uint32


@dataclass(frozen=True, slots=True)
class AssignedTopic:
    """A topic that a member of a group reads."""

    topic_id: int
    name: str


_Assignment = Annotated[
    tuple[AssignedTopic, ...], Items(Composite(AssignedTopic, U32, TEXT))
]


@dataclass(frozen=True, slots=True)
class GroupJoined(LayoutMessage):
    """Who the member is and what it reads in this generation."""

    COMMAND = Command.GROUP_JOINED

    generation: Uint64
    member: ShortText
    assignment: _Assignment = ()


@dataclass(frozen=True, slots=True)
class GroupHeartbeat(LayoutMessage):
    """Say that a member is alive, and which generation it knows."""

    COMMAND = Command.GROUP_HEARTBEAT

    group: ShortText
    member: ShortText
    generation: Uint64


@dataclass(frozen=True, slots=True)
class GroupHeartbeatResponse(LayoutMessage):
    """The generation of now, and what the member reads in it."""

    COMMAND = Command.GROUP_HEARTBEAT_RESPONSE

    generation: Uint64
    assignment: _Assignment = ()


@dataclass(frozen=True, slots=True)
class LeaveGroup(LayoutMessage):
    """Leave a group, so that its other members get the topics at once."""

    COMMAND = Command.LEAVE_GROUP

    group: ShortText
    member: ShortText


@dataclass(frozen=True, slots=True)
class GroupLeft(LayoutMessage):
    """The member is gone."""

    COMMAND = Command.GROUP_LEFT
