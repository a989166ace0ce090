"""One commit of stages, all or nothing over its topics.

The order of things is the guarantee:

1. Stages and target topics are made durable; then the plan is written to the journal.
   From that moment on the commit will happen, now or when the store is next opened.
2. The plan is carried out behind the visible ends of its topics.
3. `done` is written to the journal; then everything is shown, and the stages go.

A crash between 1 and 3 is answered by setting each topic back to where the plan found
it and carrying out the plan once more: the stages are still whole, because a segment
taken over from a stage is linked, not moved. Nobody else can write to the topics
meanwhile, so nothing is set back that was acknowledged. Commits to different topics
run side by side, each with a plan of its own in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import NamedTuple

from lance_spark.errors import StageMismatch, StoreError
from lance_spark.store.extent import LogEnd, LogStart
from lance_spark.store.journal import Entry, Parsed
from lance_spark.store.stage import Stage, StageMetadata
from lance_spark.store.topic import Topic
from lance_spark.store.transfer import adopt_segment, copy_segment
from lance_spark.store.writers import (
    Commit,
    CommittedRange,
    Job,
    encode_done,
    encode_undone,
)


class CommitStatus(str, Enum):
    """What a commit did."""

    COMMITTED = "committed"
    REPEATED = "repeated"  # Was committed before; the same ranges again.
    STALE = "stale"  # The writer has committed a later sequence; nothing was done.


class NamedStage(NamedTuple):
    """A stage that won, with what its writer says is in it."""

    id: int
    batches: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The answer to a commit."""

    status: CommitStatus
    ranges: tuple[CommittedRange, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What a commit does to one topic.

    Args:
        id: the topic's id, already given out if the topic is new.
        name: its name.
        created: the commit creates it.
        overwrite: its old content goes.
        start: where its log started before.
        end: where it ended before.
        stages: the stages that are added, in order.
        bytes: how much they hold together.
    """

    id: int
    name: str
    created: bool
    overwrite: bool
    start: LogStart
    end: LogEnd
    stages: tuple[int, ...]
    bytes: int

    @property
    def range(self) -> CommittedRange:
        """What the topic gains."""
        start = self.end.offset
        return CommittedRange(self.id, self.name, start, start + self.bytes)

    @property
    def new_start(self) -> LogStart:
        """Where the log starts if the old content goes."""
        return LogStart(self.end.offset, self.end.record, self.end.next_segment)


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """All that has to be known to carry out a commit, again if need be."""

    job: Job
    at_ns: int
    next_stage: int
    topics: tuple[TopicPlan, ...]

    @property
    def stages(self) -> frozenset[int]:
        """All stages that are used."""
        return frozenset(stage for topic in self.topics for stage in topic.stages)

    def stage_metadata(self, stage: int) -> StageMetadata:
        """Tell what one of its stages was opened for."""
        (topic,) = (topic.name for topic in self.topics if stage in topic.stages)
        return StageMetadata(stage, topic, self.job, self.at_ns)

    @property
    def commit(self) -> Commit:
        """What is remembered of it."""
        overwritten = frozenset(t.name for t in self.topics if t.overwrite)
        ranges = tuple(topic.range for topic in self.topics)
        return Commit(self.job, self.at_ns, ranges, self.next_stage, overwritten)


def encode_begin(plan: CommitPlan) -> Entry:
    """Make the journal entry of a plan."""
    return {
        "kind": "begin",
        "writer": plan.job.writer,
        "sequence": plan.job.sequence,
        "at_ns": plan.at_ns,
        "next_stage": plan.next_stage,
        "topics": [asdict(topic) for topic in plan.topics],
    }


def decode_begin(entry: Entry) -> CommitPlan:
    """Read the journal entry of a plan.

    Raises:
        StoreError: it is not one that this version writes.
    """
    try:
        return _decode_begin(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"a commit of another version is begun: {error!r}") from error


def _decode_begin(entry: Entry) -> CommitPlan:
    topics = [
        TopicPlan(
            **{
                **t,
                "start": LogStart(*t["start"]),
                "end": LogEnd(**t["end"]),
                "stages": tuple(t["stages"]),
            }
        )
        for t in entry["topics"]
    ]
    job = Job(entry["writer"], entry["sequence"])
    return CommitPlan(job, entry["at_ns"], entry["next_stage"], tuple(topics))


def find_end(parsed: Parsed) -> Entry | None:
    """Make up for a damaged entry that ended a commit, where the mark tells of it."""
    if parsed.ended is None:
        return None
    plan = decode_begin(parsed.ended.begin)
    return encode_done(plan.commit) if parsed.ended.is_done else encode_undone(plan.job)


def complete(parsed: Parsed) -> list[Entry]:
    """Give the entries of a journal, with the one that its mark makes up for.

    It goes right behind the begin of its commit: the writer may have committed since,
    and its last entry counts.
    """
    entries = list(parsed.entries)
    end = find_end(parsed)
    if end is not None:
        assert parsed.ended is not None
        # The same commit may have been begun before, with an entry that is equal.
        numbers = (n for n, e in enumerate(entries) if e is parsed.ended.begin)
        entries.insert(next(numbers) + 1, end)
    return entries


def is_same_commit(
    last: Commit, topics: frozenset[str], overwrite: frozenset[str], *, whole: bool
) -> bool:
    """Tell whether a repeated commit asks for what was done before.

    Args:
        last: what was done.
        topics: the topics of the named stages that still exist. Those of the first
            attempt are gone by now; what is left has been staged again.
        overwrite: the topics that it replaces.
        whole: all of the named stages exist, so that nothing of `topics` is missing.
    """
    if overwrite != last.overwritten or not topics <= last.topics:
        return False
    return not whole or topics | overwrite == last.topics


def carry_out(
    plan: CommitPlan, topics: Mapping[int, Topic], stages: Mapping[int, Stage]
) -> None:
    """Write all that a plan says, behind what is visible of its topics.

    Raises:
        StoreError: something could not be written; the topics have to be set back.
    """
    for planned in plan.topics:
        topic = topics[planned.id]
        topic.log.hold()
        if planned.overwrite:
            topic.log.close_segment()
        for stage in planned.stages:
            _add_stage(topic, stages[stage], plan.at_ns)
        topic.log.sync()
        added = topic.log.end().offset - planned.end.offset
        if added != planned.bytes:
            raise StageMismatch(
                f"the stages for topic {planned.name!r} hold {added} bytes, not "
                f"{planned.bytes} as when the commit was planned"
            )
        if planned.overwrite and planned.new_start != topic.metadata.start:
            topic.update(start=planned.new_start)


def _add_stage(topic: Topic, stage: Stage, now_ns: int) -> None:
    adopt = stage.size >= topic.log.context.config.stage_adopt_bytes
    for segment in stage.log.segments():
        if not segment.size:
            continue
        if adopt:
            adopt_segment(topic.log, stage.log, segment, now_ns=now_ns)
        else:
            copy_segment(topic.log, stage.log, segment, now_ns=now_ns)


def show(plan: CommitPlan, topics: Mapping[int, Topic]) -> None:
    """Let everybody see what was carried out."""
    logs = [topics[planned.id].log for planned in plan.topics]
    for log, planned in zip(logs, plan.topics, strict=True):
        log.release(planned.new_start if planned.overwrite else None)
    for log in logs:
        log.remove_dropped()
