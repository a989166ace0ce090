"""What becomes of a commit that a crash has interrupted.

Decided from the files alone, before any topic is opened: a topic in the middle of a
commit may look damaged, and is only to be set back.

- Somebody has written behind the commit, or its stages are gone and all of its bytes
  are there: it was carried out, only the entry that says so is missing.
- Its stages are all there: its topics are set back, and it is carried out again.
- Otherwise nobody can carry it out any more: its topics are set back.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path

from lance_spark.errors import StoreError
from lance_spark.store.commit import CommitPlan, TopicPlan
from lance_spark.store.context import Context
from lance_spark.store.files import remove_tree
from lance_spark.store.recovery import list_segments, reset_files
from lance_spark.store.stage import read_metadata as read_stage
from lance_spark.store.topic import TopicMetadata, write_metadata
from lance_spark.store.topic import read_metadata as read_topic


class Outcome(str, Enum):
    """What is to be done about the commit once topics and stages are open."""

    DONE = "was carried out"
    AGAIN = "was finished"
    UNDONE = "is undone: its stages are missing"


def settle(context: Context, root: Path, plan: CommitPlan) -> Outcome:
    """Decide about an interrupted commit and set its topics back if need be."""
    if any(_is_behind(context, root, topic) for topic in plan.topics):
        return Outcome.DONE
    whole = all(_has_stage(context, root, stage) for stage in plan.stages)
    if not whole and all(
        _added_bytes(context, root, topic) == topic.bytes for topic in plan.topics
    ):
        return Outcome.DONE
    made = [t for t in plan.topics if whole and _is_made(context, root, t)]
    kept = {topic.id for topic in made}
    for topic in plan.topics:
        if topic.id not in kept:
            _set_back(context, root, topic)
    if made:
        # They were made one after the other, so that of the last one only it is not
        # known whether its names are durable.
        context.files.sync_dir(_topic_directory(root, made[-1]))
    if any(topic.created for topic in plan.topics):
        context.files.sync_dir(root / "segments")
    return Outcome.AGAIN if whole else Outcome.UNDONE


def _is_made(context: Context, root: Path, topic: TopicPlan) -> bool:
    """Tell whether a new topic without records is as the commit wants it.

    Such topics are kept: a commit that makes very many of them is not repeated as a
    whole before the store is open.
    """
    if not topic.created or topic.bytes:
        return False
    directory = _topic_directory(root, topic)
    metadata = _read_topic(context, directory)
    if metadata is None or (metadata.id, metadata.name) != (topic.id, topic.name):
        return False
    return not list_segments(context.files, directory)


def _topic_directory(root: Path, topic: TopicPlan) -> Path:
    return root / "segments" / str(topic.id)


def _is_behind(context: Context, root: Path, topic: TopicPlan) -> bool:
    """Tell whether a topic shows what only happens once a commit is done."""
    directory = _topic_directory(root, topic)
    if not context.files.exists(directory):
        return not topic.created  # Somebody has deleted it.
    metadata = _read_topic(context, directory)
    if metadata is not None and metadata.start.offset > topic.end.offset:
        return True  # Retention has moved the start.
    if topic.overwrite and topic.end.segment >= topic.start.segment:
        numbers = {s.name.number for s in list_segments(context.files, directory)}
        if topic.end.segment not in numbers:
            return True  # What is overwritten is removed at the very end.
    return _added_bytes(context, root, topic) > topic.bytes


def _added_bytes(context: Context, root: Path, topic: TopicPlan) -> int:
    """Count the bytes that a topic has gained since the plan was made."""
    directory = _topic_directory(root, topic)
    found = list_segments(context.files, directory)
    sizes = [s.data_bytes or 0 for s in found if s.name.number >= topic.end.segment]
    return sum(sizes) - topic.end.size


def _read_topic(context: Context, directory: Path) -> TopicMetadata | None:
    try:
        return read_topic(context, directory)
    except StoreError:
        return None  # Reported when the topic is opened.


def _has_stage(context: Context, root: Path, stage: int) -> bool:
    try:
        return read_stage(context, root / "stages" / str(stage)) is not None
    except StoreError:
        return True  # It is damaged, not gone, and the plan says what it is for.


def _set_back(context: Context, root: Path, topic: TopicPlan) -> None:
    directory = _topic_directory(root, topic)
    if topic.created:
        remove_tree(context.files, directory)
        return
    metadata = _read_topic(context, directory)
    if metadata is not None and metadata.start != topic.start:
        # Else opening the topic would drop what is overwritten before its time.
        before = replace(metadata, start=topic.start)
        context.reserve.spend(lambda: write_metadata(context, directory, before))
    reset_files(context, directory, topic.end)
