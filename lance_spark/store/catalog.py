"""The topics of a store, by id and by name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any

from lance_spark.errors import (
    DamagedFile,
    LimitReached,
    PartitionedTopic,
    StoreClosed,
    StoreError,
    StoreReadOnly,
    Timeout,
    TopicExists,
    UnknownTopic,
)
from lance_spark.store.context import Context, Watchers
from lance_spark.store.decisions import (
    JOURNAL,
    Decisions,
    encode_remove,
    encode_settled,
)
from lance_spark.store.files import is_full, list_ids, make_directories, remove_tree
from lance_spark.store.log import Log
from lance_spark.store.recovery import list_segments, open_log
from lance_spark.store.topic import (
    DEFAULT_TOPIC,
    TOPIC_METADATA,
    Topic,
    TopicMetadata,
    check_log_name,
    is_partition_name,
    name_partitions,
    read_topic,
    write_topic,
)

logger = logging.getLogger(__name__)


class Catalog:
    """All topics of a store."""

    def __init__(self, context: Context, decisions: Decisions) -> None:
        self._context = context
        self._segments = context.root / "segments"
        self._trash = context.root / "trash"
        self._decisions = decisions
        decisions.on_failure = self.fail
        # Held while topics come and go. The two tables are replaced rather than
        # changed, so that looking something up never waits for the disk.
        self._lock = threading.RLock()
        # Names that commits write to, and threads that wait for them. A commit takes
        # time: the lock is not held meanwhile, so that other topics come and go.
        self._claimed: set[str] = set()
        self._released = threading.Condition(self._lock)
        self.topics: dict[int, Topic] = {}
        self._names: dict[str, int] = {}
        # Topics with several partitions, and how many.
        self._partitioned: dict[str, int] = {}
        # Topics that are not opened, and why; the name where that is known. Nothing of
        # them is changed until a person has run `lance-spark check --repair`.
        self._closed_topics: dict[int, tuple[DamagedFile, str | None]] = {}
        self.version = 0
        # Readers that want to know when the version changes.
        self.watchers = Watchers()
        self._closed = False
        # Why no topic may come or go until the next opening, and names of topics that
        # it may bring.
        self._failure: str | None = None
        self._doubtful: set[str] = set()

    # Opening.

    def load(self, now_s: int) -> None:
        """Open all topics, and make the default topic if there is none."""
        files = self._context.files
        make_directories(files, self._segments)
        make_directories(files, self._trash)
        for entry in files.list(self._trash):
            remove_tree(files, self._trash / entry.name)
        # A process that was killed may have left names that only the kernel knows. What
        # is written from here on relies on them.
        files.sync_dir(self._segments)
        ids = list_ids(files, self._segments)
        topics = [topic for topic in map(self._load_topic, ids) if topic is not None]
        self._set_topics({topic.metadata.id: topic for topic in topics})
        self._report_missing()
        if not self.has(DEFAULT_TOPIC):
            self.make(TopicMetadata(DEFAULT_TOPIC, "", now_s))

    def finish_removals(self) -> None:
        """Remove topics that a crash has left half made or half deleted."""
        files, directory = self._context.files, self._context.topic_directory
        for topics, making in sorted(self._decisions.history.removals.items()):
            logs = [list_segments(files, directory(topic)) for topic in topics]
            if making and any(logs):
                # Records came once all of them were there: what says so is damaged.
                text = f"topics {list(topics)} hold records, so that they are all made"
                self._context.findings.damage(JOURNAL, text)
                self._settle(topics)
                continue
            for topic in topics:
                remove_tree(files, directory(topic))
            make_directories(files, self._segments)
            files.sync_dir(self._segments)
            text = f"topics {list(topics)} were being made or deleted; removed"
            self._context.findings.note(JOURNAL, text)
            self._settle(topics)

    def _settle(self, topics: Collection[int]) -> None:
        """Say that there is nothing to remove any more, if there is room to say it."""
        try:
            self._decisions.note_end(encode_settled(topics))
        except OSError as error:
            # The next opening removes what is not there, which does no harm.
            if self._decisions.journal.failed or not is_full(error):
                raise

    def _report_missing(self) -> None:
        """Say which partitions are gone, unless a closed topic may be one of them."""
        if any(name is None for _, name in self._closed_topics.values()):
            return
        held = {name for _, name in self._closed_topics.values()}
        for topic, count in self._partitioned.items():
            for name in name_partitions(topic, count):
                if name not in self._names and name not in held:
                    text = f"partition {name!r} is missing"
                    self._context.findings.damage("segments", text)

    def _load_topic(self, topic: int) -> Topic | None:
        if topic in self._closed_topics:
            return None
        directory = self._context.topic_directory(topic)
        metadata = self.read_metadata(topic)
        if isinstance(metadata, DamagedFile):
            self.hold(topic, metadata)
            return None
        if metadata is None:
            # The crash came before the topic was reported as created.
            remove_tree(self._context.files, directory)
            return None
        log = open_log(self._context, topic, directory, metadata.start)
        return Topic(metadata, log)

    def read_metadata(self, topic: int) -> TopicMetadata | DamagedFile | None:
        """Read a topic's metadata, or tell why the topic can't be opened."""
        directory = self._context.topic_directory(topic)
        try:
            metadata = read_topic(self._context, topic)
            if metadata is None and list_segments(self._context.files, directory):
                raise StoreError("it is missing")
        except StoreError as error:
            file = f"segments/{topic}/{TOPIC_METADATA}"
            effect = f"topic {topic} is closed"
            return DamagedFile(self._context.root, file, str(error), effect)
        return metadata

    def hold(self, topic: int, error: DamagedFile, name: str | None = None) -> None:
        """Keep a topic closed, with its name where that is known."""
        self._closed_topics[topic] = (error, name)
        self._context.findings.damage(f"segments/{topic}", str(error))

    def closed(self, topic: int) -> DamagedFile | None:
        """Tell why a topic is closed; None if it is not."""
        found = self._closed_topics.get(topic)
        # With a traceback it would be part of a cycle.
        return None if found is None else copy(found[0])

    # Looking up.

    def get(self, topic: int) -> Topic:
        """Find a topic by its id.

        Raises:
            UnknownTopic: there is none.
            DamagedFile: it is closed.
        """
        try:
            return self.topics[topic]
        except KeyError:
            if (closed := self.closed(topic)) is not None:
                raise closed from None
            deleted = 0 < topic < self._context.identity.next_topic
            raise UnknownTopic(topic, deleted) from None

    def find(self, name: str) -> Topic | None:
        """Find a topic by its name.

        Raises:
            DamagedFile: it is closed, or may be one that is closed and has no name.
        """
        found = self.topics.get(self._names.get(name, -1))
        if found is not None:
            return found
        for topic, (error, known) in self._closed_topics.items():
            if known is not None and name in (known, known.rpartition("/")[0]):
                raise copy(error)
            if known is None and topic != DEFAULT_TOPIC:
                effect = (
                    f"topic {name!r} can't be found or made: it may be topic {topic}, "
                    "whose name can't be read"
                )
                raise DamagedFile(error.root, error.file, error.reason, effect)
        return None

    def has(self, topic: int) -> bool:
        """Tell whether there is a topic with that id, open or closed."""
        return topic in self.topics or topic in self._closed_topics

    def partitions(self, name: str) -> int:
        """Tell how many partitions a topic has; 0 if there is no such topic."""
        return self._partitioned.get(name) or int(self.find(name) is not None)

    def family(self, topic: int) -> list[Topic]:
        """Give all partitions of the topic that a log belongs to, the log among them.

        Raises:
            UnknownTopic, DamagedFile: as `get`, also for another partition.
        """
        metadata = self.get(topic).metadata
        if metadata.partitions is None:
            return [self.get(topic)]
        names = name_partitions(metadata.partition.topic, metadata.partitions)
        found = [self.find(name) for name in names]
        return [each for each in found if each is not None]

    def check_target(self, name: str) -> None:
        """Refuse a name that can't be staged for: a commit makes no partition.

        Raises:
            InvalidName: no log can have that name.
            PartitionedTopic, UnknownTopic: it is not a log, and never becomes one.
            DamagedFile: see `find`.
        """
        check_log_name(name)
        if self.find(name) is None:
            if name in self._partitioned:
                raise PartitionedTopic(name, self._partitioned[name])
            if is_partition_name(name):
                raise UnknownTopic(name)

    # Coming and going.

    def create(
        self,
        topics: Mapping[str, int],
        topics_max: int | None,
        *,
        dry_run: bool = False,
        **settings: Any,
    ) -> list[Topic]:
        """Create topics with their partitions, all or none; see `Store.create_topics`.

        The journal condemns several until the last one is there: see `encode_remove`.

        Args:
            topics: how many partitions each has.
            topics_max: how many logs there may be.
            dry_run: only find out whether they could be created.
            settings: what their metadata says besides.
        """
        names = {
            name: count if count > 1 else None
            for topic, count in topics.items()
            for name in name_partitions(topic, count)
        }
        with self._lock:
            self._await_names([*topics, *names])
            for topic in topics:
                if self.partitions(topic):
                    raise TopicExists(f"topic {topic!r} exists already")
            self._check_room(names, topics_max)
            if dry_run:
                return []
            ids = self._context.identity.new_topics(len(names))
            planned = [
                TopicMetadata(topic, name, partitions=count, **settings)
                for topic, (name, count) in zip(ids, names.items(), strict=True)
            ]
            if len(planned) == 1:
                return [self.make(planned[0])]
            making = self._decisions.deciding("the making of topics")
            with making, self._decisions.writing("make topics"):
                self._decisions.note(encode_remove(ids, making=True))
                try:
                    prepared = self.prepare(planned)
                    self._decisions.note(encode_settled(ids))
                except Exception:
                    if not self._decisions.journal.failed:
                        self._give_up(ids)
                    raise
                self.add(prepared)
            return prepared

    def _give_up(self, topics: Collection[int]) -> None:
        """Remove topics that were condemned, or leave it to the next opening."""
        try:
            self._context.spare.insist(lambda: self.discard(topics))
            self._settle(topics)
        except OSError as error:
            logger.warning("topics %s: could not remove: %s", list(topics), error)

    def make(self, metadata: TopicMetadata) -> Topic:
        """Make a topic whose id was given out already."""
        with self._lock:
            try:
                [topic] = self.prepare([metadata])
            except OSError as error:
                self._take_back(metadata, error)
                raise
            self.add([topic])
            return topic

    def _take_back(self, metadata: TopicMetadata, cause: OSError) -> None:
        """Remove a topic that could not be made, so that it does not come later."""
        try:
            self._context.spare.insist(lambda: self.discard([metadata.id]))
        except OSError as error:
            # Another topic of that name would be beside it after the next opening.
            self._doubtful.add(metadata.name)
            raise StoreReadOnly(
                f"topic {metadata.name!r} could not be made ({cause}) and not be "
                f"removed ({error}): it may be there, empty, once the store is reopened"
            ) from cause

    def prepare(self, topics: Sequence[TopicMetadata]) -> list[Topic]:
        """Make the files of topics that readers must not see yet.

        Raises:
            OSError: some may be there; they are to be discarded.
        """
        prepared = []
        for metadata in topics:
            directory = self._context.topic_directory(metadata.id)
            self._context.files.mkdir(directory)
            write_topic(self._context, metadata)
            log = Log(self._context, metadata.id, directory, metadata.start, ())
            prepared.append(Topic(metadata, log))
        if prepared:
            self._context.files.sync_dir(self._segments)
        return prepared

    def discard(self, topics: Collection[int]) -> None:
        """Remove the files of topics that were never shown to a client."""
        for topic in topics:
            self._context.segments.drop_topic(topic)
            if topic in self.topics:
                self._forget([topic])  # The last process had made it: see `settle`.
            remove_tree(self._context.files, self._context.topic_directory(topic))
        if topics:
            # They must not come back once the journal says that they are gone.
            self._context.files.sync_dir(self._segments)

    def add(self, topics: Iterable[Topic]) -> None:
        """Show topics that were prepared, all at once."""
        with self._lock:
            if new := {topic.metadata.id: topic for topic in topics}:
                self._set_topics({**self.topics, **new})

    @contextmanager
    def claimed(
        self, names: Collection[str], topics_max: int | None
    ) -> Iterator[dict[str, Topic | None]]:
        """Keep others from making, deleting or committing to topics of these names.

        All names are taken at once, so that two commits never wait for each other.

        Yields:
            The topics by name; None for those that are not there.

        Raises:
            LimitReached: those that are not there would be more than `topics_max`.
            PartitionedTopic, UnknownTopic: a name is not that of a log any more.
            Timeout: another commit to one of them takes too long.
        """
        with self._lock:
            self._await_names(names)
            for name in names:
                self.check_target(name)
            self._check_room(names, topics_max)
            targets = {name: self.find(name) for name in names}
            self._claimed |= targets.keys()
        try:
            yield targets
        finally:
            with self._lock:
                self._claimed -= targets.keys()
                self._released.notify_all()

    def _await_names(self, names: Collection[str]) -> None:
        """Wait until no commit writes to topics of these names."""
        timeout_s = self._context.config.wait_timeout_s
        if not self._released.wait_for(
            lambda: self._claimed.isdisjoint(names), timeout_s
        ):
            name = min(self._claimed.intersection(names), default="")
            raise Timeout(
                f"a commit to topic {name!r} is still under way after {timeout_s} s"
            )
        # Asked behind the wait: the store may have been closed meanwhile.
        self._check_open()
        for name in self._doubtful.intersection(names):
            raise StoreReadOnly(
                f"topic {name!r} could be neither made nor removed before, and may be "
                "there once the store is reopened: reopen it first"
            )

    def _check_room(self, names: Collection[str], topics_max: int | None) -> None:
        """Refuse names that are new when they would be too many.

        Raises:
            LimitReached: nothing of it may be made.
        """
        new = [name for name in names if name not in self._names]
        there = len(self._names.keys() | self._claimed)
        if new and topics_max is not None and there + len(new) > topics_max:
            raise LimitReached(
                f"topic {new[0]!r} can't be made: there are {there}, with "
                f"{len(new)} more it would be over {topics_max}, which is the most "
                "(topics_max)"
            )

    def remove(self, topics: Collection[int]) -> None:
        """Delete topics and their data, all or none; see `Store.delete_topics`."""
        with self._lock:
            found = self._find_whole(topics)
            if len(found) == 1:
                self._remove_one(found[0])
            else:
                self._remove_several(found)
        for each in topics:
            self._context.segments.drop_topic(each)
            try:
                remove_tree(self._context.files, self._trash / str(each))
            except OSError as error:
                # The topic is gone all the same; the next opening empties the trash.
                logger.warning("trash/%d: could not remove: %s", each, error)

    def _remove_one(self, found: Topic) -> None:
        topic = found.metadata.id
        with found.log.exclusive():
            self._bury(topic)
            # The files are gone from their place: whatever happens from here on,
            # nothing more may be written to them.
            found.log.retire("the topic was deleted")
            self._forget([topic])
        try:
            self._context.files.sync_dir(self._segments)
        except OSError as error:
            raise StoreReadOnly(
                f"topic {topic} is deleted, but may be back after a loss of power, "
                f"as its directory could not be synced: {error}"
            ) from error

    def _remove_several(self, found: Sequence[Topic]) -> None:
        topics = [topic.metadata.id for topic in found]
        with self._decisions.deciding("the deletion of topics"):
            with self._decisions.writing("delete topics"):
                self._decisions.note(encode_remove(topics))
            # They are deleted from here on, now or by the next opening.
            for topic in found:
                with topic.log.exclusive():
                    topic.log.retire("the topic was deleted")
            self._forget(topics)
            try:
                for each in topics:
                    self._bury(each)
                self._context.files.sync_dir(self._segments)
                self._settle(topics)
            except OSError as error:
                logger.warning("topics %s: could not remove: %s", topics, error)

    def _find_whole(self, topics: Collection[int]) -> list[Topic]:
        """Find topics that are to be deleted, once no commit writes to them.

        Raises:
            StoreError: not all partitions of one are among them.
        """
        if DEFAULT_TOPIC in topics:
            raise StoreError("the default topic can't be deleted")
        self._await_names([self.get(topic).metadata.name for topic in topics])
        found = [self.get(topic) for topic in topics]
        for topic in found:
            family = {each.metadata.id for each in self.family(topic.metadata.id)}
            if not family.issubset(topics):
                raise StoreError(
                    f"{topic.metadata.name!r} is a partition of topic "
                    f"{topic.metadata.partition.topic!r}: only all of its partitions "
                    "can be deleted, together"
                )
        return found

    def _bury(self, topic: int) -> None:
        grave = self._trash / str(topic)
        remove_tree(self._context.files, grave)
        self._context.files.replace(self._context.topic_directory(topic), grave)

    def close(self) -> None:
        """Close all topics; raise what the last one that failed has raised."""
        with self._lock, ExitStack() as closing:
            self._closed = True
            # The one that is added last is closed first.
            for topic in reversed(self.topics.values()):
                closing.callback(topic.log.close)

    def fail(self, reason: str) -> None:
        """Let no topic come, go or change: the next opening decides about some."""
        self._failure = self._failure or reason
        for topic in self.topics.values():
            topic.log.fail(reason)

    def _check_open(self) -> None:
        # Asked under the lock: a thread that waited for it may come too late.
        if self._closed:
            raise StoreClosed("the store is closed")
        if self._failure is not None:
            raise StoreReadOnly(
                f"no topic can be made or deleted since {self._failure}; mend the disk "
                "and reopen the store"
            )

    def _forget(self, gone: Collection[int]) -> None:
        logs = [self.topics[topic].log for topic in gone]
        self._set_topics({t: o for t, o in self.topics.items() if t not in gone})
        # A reader that has looked when its log was retired has still found the topic.
        for log in logs:
            log.watchers.notify()

    def _set_topics(self, topics: dict[int, Topic]) -> None:
        named = [t.metadata for i, t in topics.items() if i != DEFAULT_TOPIC]
        counts = ((m.partition.topic, m.partitions) for m in named if m.partitions)
        self._partitioned = dict(counts)
        self._names = {metadata.name: metadata.id for metadata in named}
        self.topics = topics
        self.version += 1
        self.watchers.notify()
