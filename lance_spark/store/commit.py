"""What a commit of stages does to files, all or nothing over its topics.

The order of things is the guarantee:

1. Stages and target topics are made durable; then the plan is written to the journal.
   From that moment on the commit will happen, now or when the store is next opened.
2. The plan is carried out behind the visible ends of its topics. A stage's segments are
   copied, or taken over as they are.
3. `done` is written to the journal; then everything is shown, and the stages go.

A crash between 1 and 3 is answered by setting each topic back to where the plan found
it and carrying out the plan once more: the stages are still whole, because a segment
taken over from a stage is linked, not moved. No other writer can write to the topics
meanwhile, so nothing is set back that was acknowledged. Commits to different topics
run side by side, each with a plan of its own in the journal.

After a crash, `settle` decides about a commit from the files alone, before any topic is
opened: a topic in the middle of a commit may look damaged, and is only to be set back.

- Something is written behind the commit, or its stages are gone and all of its bytes
  are there: it was carried out, only the entry that says so is missing.
- Its stages are all there: its topics are set back, and it is carried out again.
- Otherwise it can't be carried out any more: its topics are set back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from lance_spark.errors import Corrupt, StageMismatch, StoreError
from lance_spark.model import CommitStatus
from lance_spark.store.context import Context
from lance_spark.store.decisions import Commit, CommitPlan, CommittedRange, TopicPlan
from lance_spark.store.files import remove_tree
from lance_spark.store.format import (
    HEADER_BYTES,
    ROW_BYTES,
    IndexMark,
    Rows,
    SegmentName,
    decode_rows,
    encode_header,
    valid_rows,
)
from lance_spark.store.log import Log
from lance_spark.store.recovery import Found, list_segments, reset_files
from lance_spark.store.segment import DamagedIndex, Segment, verify_range
from lance_spark.store.stage import Stage, read_stage
from lance_spark.store.topic import Topic, TopicMetadata, read_topic, write_topic

logger = logging.getLogger(__name__)


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
    if stage.log is None:
        stage.copy_to(topic.log, now_ns=now_ns)
        return
    adopt = stage.size >= topic.log.context.config.stage_adopt_bytes
    for segment in stage.log.segments():
        if not segment.size:
            continue
        if adopt:
            adopt_segment(topic.log, stage.log, segment, now_ns=now_ns)
        else:
            copy_segment(topic.log, stage.log, segment, now_ns=now_ns)


def show(plan: CommitPlan, topics: Mapping[int, Topic]) -> None:
    """Show readers what was carried out."""
    logs = [topics[planned.id].log for planned in plan.topics]
    for log, planned in zip(logs, plan.topics, strict=True):
        log.release(planned.new_start if planned.overwrite else None)
    for log in logs:
        log.remove_dropped()


def copy_segment(target: Log, source: Log, segment: Segment, *, now_ns: int) -> None:
    """Append all batches of a segment to another log, with the rows that they have."""
    with target.exclusive(), target.writing("copy a stage"):
        data = _read_sound(source, segment)
        rows = _read_rows(source, segment).copy()
        target.append_rows(data, rows, segment.records, now_ns)


def adopt_segment(target: Log, source: Log, segment: Segment, *, now_ns: int) -> None:
    """Make a segment the next one of another log, without copying its data.

    The data file gets a second name, so that the source stays whole until it is
    removed; the index is written anew with the new log's header.
    """
    with target.exclusive(), target.writing("adopt a stage"):
        last = target.segments()[-1:]
        if last and not last[0].closed:
            # A stage before this one may have been copied there, and a later sync
            # looks only at the segment that is the last one then.
            target.sync()
        source.open_segment(segment).sync()
        rows = _read_rows(source, segment)
        adopted = _moved(segment, target, now_ns)
        _link_or_copy(source, segment, target.directory / adopted.name.data_file)
        index_path = target.directory / adopted.name.index_file
        index = target.context.files.open(index_path, create=True)
        header = encode_header(adopted.header(target.topic), IndexMark())
        index.pwrite(header + rows.tobytes(), 0)
        index.sync()
        target.open_segment(adopted).write_mark(segment.size, segment.rows)
        target.add_segment(adopted)


def _moved(segment: Segment, target: Log, now_ns: int) -> Segment:
    end = target.end()
    # Not before any of its rows either, should the clock have gone back.
    append_ns = max(now_ns, target.last_append_ns, segment.last_append_ns)
    return replace(
        segment,
        name=SegmentName(end.next_segment, segment.name.start_ns),
        base_offset=end.offset,
        base_record=end.record,
        time_floor_ns=append_ns,
        last_append_ns=append_ns,
        # The file has two names until the stage is surely gone: if it grew, the stage
        # would seem to hold more than it was given.
        closed=True,
    )


def _link_or_copy(source: Log, segment: Segment, target: Path) -> None:
    files = source.context.files
    try:
        files.link(source.directory / segment.name.data_file, target)
    except OSError as error:
        # Not every file system has hard links; real trouble shows in the copy too.
        logger.info("%s: copying a stage, it can't be linked: %s", target, error)
        opened = source.open_segment(segment)
        copy = files.open(target, create=True)
        step = source.context.config.stage_adopt_bytes
        for position in range(0, segment.size, step):
            end = min(position + step, segment.size)
            copy.pwrite(opened.read(position, end), position)
        copy.sync()


def _read_rows(source: Log, segment: Segment) -> Rows:
    index = source.open_segment(segment).index
    rows = decode_rows(index.pread(segment.rows * ROW_BYTES, HEADER_BYTES))
    if len(rows) < segment.rows or not valid_rows(rows).all():
        raise DamagedIndex(f"{source.where}: rows of the index are damaged")
    return rows


def _read_sound(source: Log, segment: Segment) -> bytes:
    opened = source.open_segment(segment)
    table = opened.table(segment.rows)
    base, size = segment.base_offset, segment.size
    sound = verify_range(source.where, base, opened, table, 0, size)
    if sound < size:
        start = base + sound
        raise Corrupt(source.where, start, segment.end, "the checksum differs")
    return opened.read(0, size)


class Outcome(str, Enum):
    """What is to be done about the commit once topics and stages are open."""

    DONE = "was carried out"
    AGAIN = "was finished"
    UNDONE = "is undone: its stages are missing"


def settle(context: Context, plan: CommitPlan) -> Outcome:
    """Decide about an interrupted commit and set its topics back if need be."""
    if any(_is_behind(context, topic) for topic in plan.topics):
        return Outcome.DONE
    whole = all(_has_stage(context, stage) for stage in plan.stages)
    if not whole and all(
        _added_bytes(context, topic) == topic.bytes for topic in plan.topics
    ):
        return Outcome.DONE
    made = [t for t in plan.topics if whole and _is_made(context, t)]
    kept = {topic.id for topic in made}
    for topic in plan.topics:
        if topic.id not in kept:
            _set_back(context, topic)
    if made:
        # They were made one after the other, so that of the last one only it is not
        # known whether its names are durable.
        context.files.sync_dir(context.topic_directory(made[-1].id))
    if any(topic.created for topic in plan.topics):
        context.files.sync_dir(context.root / "segments")
    return Outcome.AGAIN if whole else Outcome.UNDONE


def _is_made(context: Context, topic: TopicPlan) -> bool:
    """Tell whether a new topic without records is as the commit wants it.

    Such topics are kept: a commit that makes very many of them is not repeated as a
    whole before the store is open.
    """
    if not topic.created or topic.bytes:
        return False
    metadata = _read_topic(context, topic)
    if metadata is None or metadata.name != topic.name:
        return False
    return not _list_segments(context, topic)


def _is_behind(context: Context, topic: TopicPlan) -> bool:
    """Tell whether a topic shows what only happens once a commit is done."""
    if not context.files.exists(context.topic_directory(topic.id)):
        return not topic.created  # It was deleted since.
    metadata = _read_topic(context, topic)
    if metadata is not None and metadata.start.offset > topic.end.offset:
        return True  # Retention has moved the start.
    if topic.overwrite and topic.end.segment >= topic.start.segment:
        numbers = {s.name.number for s in _list_segments(context, topic)}
        if topic.end.segment not in numbers:
            return True  # What is overwritten is removed at the very end.
    return _added_bytes(context, topic) > topic.bytes


def _added_bytes(context: Context, topic: TopicPlan) -> int:
    """Count the bytes that a topic has gained since the plan was made."""
    found = _list_segments(context, topic)
    sizes = [s.data_bytes or 0 for s in found if s.name.number >= topic.end.segment]
    return sum(sizes) - topic.end.size


def _list_segments(context: Context, topic: TopicPlan) -> list[Found]:
    return list_segments(context.files, context.topic_directory(topic.id))


def _read_topic(context: Context, topic: TopicPlan) -> TopicMetadata | None:
    try:
        return read_topic(context, topic.id)
    except StoreError:
        return None  # Reported when the topic is opened.


def _has_stage(context: Context, stage: int) -> bool:
    if stage in context.stage_log.stages:
        return True
    try:
        return read_stage(context, stage) is not None
    except StoreError:
        return True  # It is damaged, not gone, and the plan says what it is for.


def _set_back(context: Context, topic: TopicPlan) -> None:
    directory = context.topic_directory(topic.id)
    if topic.created:
        remove_tree(context.files, directory)
        return
    metadata = _read_topic(context, topic)
    if metadata is not None and metadata.start != topic.start:
        # Else opening the topic would drop what is overwritten before its time.
        before = replace(metadata, start=topic.start)
        context.reserve.spend(lambda: write_topic(context, before))
    reset_files(context, directory, topic.end)
