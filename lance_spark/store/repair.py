"""Mending what an opening must not mend by itself: `lance-spark check --repair`.

An opening never guesses: a topic or stage whose file is damaged is closed, and a store
without its ids is not opened. Here a person says what no other file proves. Each step
tells what it will do before it is done, and keeps the damaged file as `.damaged`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lance_spark.errors import DamagedFile, InvalidName, OptionError, StoreError
from lance_spark.model import Framing, Retention
from lance_spark.store.config import StoreConfig
from lance_spark.store.consumers import parse_consumers
from lance_spark.store.context import Context
from lance_spark.store.decisions import JOURNAL, History, TopicPlan, complete
from lance_spark.store.document import IDENTITY, Identity
from lance_spark.store.files import LOCK, Files, OsFiles, keep_copy, list_ids, read_file
from lance_spark.store.format import HEADER_BYTES, decode_header
from lance_spark.store.journal import Journal, JournalContent, parse_journal
from lance_spark.store.log import Point, start_of
from lance_spark.store.recovery import Found, list_segments, open_log
from lance_spark.store.stage import STAGE_METADATA, read_stage, remove_stage
from lance_spark.store.store import CONSUMERS
from lance_spark.store.topic import (
    DEFAULT_TOPIC,
    PLACE_MAX,
    TOPIC_METADATA,
    TopicMetadata,
    check_log_name,
    is_partition_name,
    read_topic,
    write_topic,
)

_NO_ANSWER = object()


@dataclass(frozen=True, slots=True)
class Answers:
    """What a person says of damaged topics and stages, by their ids.

    Args:
        names: names of topics.
        retentions: what may be dropped from them.
        rules: their access rules; None for no rule.
        created: when they were made, in seconds since 1970. Streams take a topic with
            another time for another topic.
        dropped: stages that are to go.
        partitions: how many partitions their topics have, of those whose name is that
            of a partition. Only needed if no other partition of the topic tells it.
    """

    names: Mapping[int, str] = field(default_factory=dict)
    retentions: Mapping[int, Retention] = field(default_factory=dict)
    rules: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)
    created: Mapping[int, int] = field(default_factory=dict)
    dropped: Set[int] = frozenset()
    partitions: Mapping[int, int] = field(default_factory=dict)

    @property
    def topics(self) -> frozenset[int]:
        """All topics that there is an answer for."""
        said = (self.names, self.retentions, self.rules, self.created, self.partitions)
        return frozenset(topic for answers in said for topic in answers)


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One thing that is damaged.

    Args:
        file: the damaged file, relative to the data directory.
        text: what will be done, or what a person has to say first.
        run: does it; None while something has to be said.
    """

    file: str
    text: str
    run: Callable[[], None] | None = None


@contextmanager
def repairing(
    root: Path, answers: Answers, *, framing: Framing, files: Files | None = None
) -> Iterator[list[RepairStep]]:
    """Plan the repair of a store that no process has open; it stays locked meanwhile.

    Raises:
        StoreLocked: a process has the store open.
        OptionError: an answer can't be used.
        StoreError: the disk refused.
    """
    files = files or OsFiles()
    try:
        lock = files.lock(root / LOCK)
        try:
            yield list(_Repair(root, files, framing, answers).plan())
        finally:
            lock.close()
    except OSError as error:
        raise StoreError(f"{root}: could not repair: {error}") from error


class _Repair:
    def __init__(
        self, root: Path, files: Files, framing: Framing, answers: Answers
    ) -> None:
        self._root = root
        self._files = files
        self._answers = answers
        data = read_file(files, root / JOURNAL)
        self._journal = parse_journal(data or b"")
        history = History.of(self._journal)
        self._doomed = history.doomed
        self._pending = history.plans()
        self._damage: DamagedFile | None = None
        # How many partitions the topics have that can be read.
        self._partitions: dict[str, int] = {}
        identity = None
        try:
            identity = Identity.read(files, root / IDENTITY)
        except DamagedFile as error:
            self._damage = error
        self._identity = identity or Identity.derive(files, root, is_new=False)
        self._context = Context(files, root, StoreConfig(), framing, self._identity)

    def plan(self) -> Iterator[RepairStep]:
        if self._damage is not None:
            yield RepairStep(
                IDENTITY,
                f"{self._damage.reason}: write it anew; ids go on far above all that "
                f"can be seen, those of topics at {self._identity.next_topic}",
                self._write_identity,
            )
        if self._journal.is_begun_unread:
            yield RepairStep(
                JOURNAL,
                "the entry of a commit that was begun is damaged: give the commit up; "
                "its topics may show a part of it, and its writer has to write again",
                lambda: self._write_journal(self._journal),
            )
        yield from self._plan_topics()
        yield from self._plan_stages()

    def _write_identity(self) -> None:
        keep_copy(self._files, self._root / IDENTITY)
        self._identity.prepare()

    def _write_journal(self, parsed: JournalContent) -> None:
        path = self._root / JOURNAL
        self._identity.prepare()
        keep_copy(self._files, path)
        lost = {"kind": "lost", "at_ns": time.time_ns()}
        Journal.create(self._files, path, [*complete(parsed), lost]).close()

    # Topics.

    def _plan_topics(self) -> Iterator[RepairStep]:
        taken: dict[str, int] = {}
        damaged: dict[int, str] = {}
        topics = list_ids(self._files, self._root / "segments")
        for topic in [t for t in topics if t not in self._doomed]:
            try:
                metadata = read_topic(self._context, topic)
                if metadata is not None:
                    taken[metadata.name] = topic
                    if metadata.partitions is not None:
                        self._partitions[metadata.partition.topic] = metadata.partitions
                elif self._list_segments(topic):
                    damaged[topic] = "it is missing"
            except StoreError as error:
                damaged[topic] = str(error)
        for topic in self._answers.topics - damaged.keys():
            raise OptionError(f"topic {topic}: its {TOPIC_METADATA} is not damaged")
        for topic, reason in damaged.items():
            yield self._plan_topic(topic, reason, taken)

    def _plan_topic(self, topic: int, reason: str, taken: dict[str, int]) -> RepairStep:
        file = f"segments/{topic}/{TOPIC_METADATA}"
        answers = self._answers
        name = "" if topic == DEFAULT_TOPIC else answers.names.get(topic)
        retention = answers.retentions.get(topic)
        rule: Any = answers.rules.get(topic, _NO_ANSWER)
        missing = [
            f"--{option} {topic}={value}"
            for option, value, said in (
                ("name", "NAME", name is not None),
                ("retention", "none|AGE,SIZE", retention is not None),
                ("auth", "none|JSON", rule is not _NO_ANSWER),
            )
            if not said
        ]
        if name is None or retention is None or missing:
            return RepairStep(
                file, f"{reason}: the topic is closed; say {' '.join(missing)}"
            )
        if topic != DEFAULT_TOPIC:
            self._check_name(topic, name, taken)
        partitions = None
        if is_partition_name(name):
            owner, _, number = name.rpartition("/")
            partitions = answers.partitions.get(topic, self._partitions.get(owner))
            if partitions is None:
                text = "the topic is closed, and no other partition tells their number"
                return RepairStep(file, f"{reason}: {text}; say --partitions {topic}=N")
            if not int(number) < partitions > 1:
                raise OptionError(
                    f"--name {topic}={name}: topic {owner!r} has {partitions} "
                    "partitions, and they are numbered from 0"
                )
        start = self._find_start(topic)
        if isinstance(start, str):
            return RepairStep(file, f"{reason}: the topic stays closed: {start}")
        made = answers.created.get(topic)
        metadata = TopicMetadata(
            topic,
            name,
            int(time.time()) if made is None else made,
            retention=retention,
            auth=rule,
            start=start or Point(),
            partitions=partitions,
        )
        where = (
            "found by rebuilding its first index"
            if start is None
            else f"{start.offset} (record {start.record}, segment {start.segment})"
        )
        text = (
            f"{reason}: write it anew: name {name!r}, log start {where}, retention "
            f"{retention.max_age_s} s and {retention.max_bytes} bytes (0: no limit), "
            f"{'no access rule' if rule is None else f'access rule {rule}'}, "
        )
        if made is None:
            text += f"made now; streams that follow it need --created {topic}=SECONDS"
        else:
            text += f"made at {made} s"
        prove = start is None
        return RepairStep(file, text, lambda: self._write_topic(metadata, prove=prove))

    def _check_name(self, topic: int, name: str, taken: dict[str, int]) -> None:
        try:
            check_log_name(name)
            fault = self._find_conflict(topic, name, taken)
        except InvalidName as error:
            fault = str(error)
        if fault is not None:
            raise OptionError(f"--name {topic}={name}: {fault}")
        taken[name] = topic

    def _find_conflict(
        self, topic: int, name: str, taken: dict[str, int]
    ) -> str | None:
        owner, planned = name.rpartition("/")[0], self._planned(topic)
        if name in taken:
            return f"topic {taken[name]} has that name"
        if name in self._partitions or (owner and owner in taken):
            return "a topic has either partitions or a log of its own name"
        if planned is not None and planned.name != name:
            return f"a commit that was begun calls the topic {planned.name!r}"
        return None

    def _planned(self, topic: int) -> TopicPlan | None:
        topics = [t for plan in self._pending for t in plan.topics]
        return next((t for t in topics if t.id == topic and not t.created), None)

    def _find_start(self, topic: int) -> Point | str | None:
        """Find where a log starts; None if its first index has to be rebuilt for that.

        A text says that nothing proves it.
        """
        planned = self._planned(topic)
        if planned is not None:
            # The next opening sets the topic back to what the commit has found.
            return planned.start
        found = self._list_segments(topic)
        if not found:
            offset = self._highest_offset(topic)
            # No record is shorter than a byte, and no number is given out twice.
            # Segment 0 is the proof that a log starts at 0: see below.
            return Point(offset, offset, segment=1 if offset else 0)
        for segment in found[:2]:
            base = self._read_base(topic, segment)
            if base is not None:
                return base if segment is found[0] else None
        if found[0].name.number == 0:
            return Point()
        return "nothing proves where its log starts: its first indexes are damaged"

    def _list_segments(self, topic: int) -> list[Found]:
        return list_segments(self._files, self._context.topic_directory(topic))

    def _read_base(self, topic: int, found: Found) -> Point | None:
        path = self._context.topic_directory(topic) / found.name.index_file
        data = (read_file(self._files, path) or b"")[:HEADER_BYTES]
        header = decode_header(data, of=(topic, found.name))
        return None if isinstance(header, str) else start_of(header)

    def _highest_offset(self, topic: int) -> int:
        """Find the highest offset of an empty topic that other files speak of."""
        consumers = parse_consumers(
            read_file(self._files, self._root / CONSUMERS) or b""
        )
        # Consumers may commit any number: one that no log reaches says nothing.
        offsets = [
            offset
            for key, offset in consumers.offsets.items()
            if key.topic == topic and offset <= PLACE_MAX
        ]
        for entry in self._journal.entries:
            ranges = entry.get("ranges", ())
            offsets += [end for found, _, _, end in ranges if found == topic]
        return max(offsets, default=0)

    def _write_topic(self, metadata: TopicMetadata, *, prove: bool) -> None:
        directory = self._context.topic_directory(metadata.id)
        if prove:
            start = open_log(self._context, metadata.id, directory, None).start
            metadata = replace(metadata, start=start)
        if self._files.exists(directory / TOPIC_METADATA):
            keep_copy(self._files, directory / TOPIC_METADATA)
        write_topic(self._context, metadata)

    # Stages.

    def _plan_stages(self) -> Iterator[RepairStep]:
        damaged = {}
        for stage in list_ids(self._files, self._root / "stages"):
            try:
                read_stage(self._context, stage)
            except StoreError as error:
                damaged[stage] = str(error)
        for stage in self._answers.dropped - damaged.keys():
            raise OptionError(f"stage {stage}: its {STAGE_METADATA} is not damaged")
        for stage, reason in damaged.items():
            if any(stage in plan.stages for plan in self._pending):
                continue  # The journal says what it is for.
            yield self._plan_stage(stage, reason)

    def _plan_stage(self, stage: int, reason: str) -> RepairStep:
        file = f"stages/{stage}/{STAGE_METADATA}"
        if stage not in self._answers.dropped:
            return RepairStep(
                file,
                f"{reason}: nothing says which job and topic its rows are for; the job "
                f"has to write them again; say --drop-stage {stage} to remove them",
            )
        text = f"{reason}: remove the stage with the rows that wait in it"
        return RepairStep(file, text, lambda: remove_stage(self._context, stage))
