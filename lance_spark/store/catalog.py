"""The topics of a store, by id and by name."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any

from lance_spark.errors import (
    DamagedFile,
    StoreClosed,
    StoreError,
    TopicExists,
    UnknownTopic,
)
from lance_spark.model import Retention
from lance_spark.store.context import Context
from lance_spark.store.files import make_directories, remove_tree
from lance_spark.store.identity import Identity
from lance_spark.store.log import Log
from lance_spark.store.recovery import list_segments, open_log
from lance_spark.store.topic import (
    DEFAULT_TOPIC,
    METADATA,
    Topic,
    TopicMetadata,
    check_name,
    read_metadata,
    write_metadata,
)
from lance_spark.store.watch import Watchers

logger = logging.getLogger(__name__)


class Catalog:
    """All topics of a store."""

    def __init__(self, context: Context, root: Path, identity: Identity) -> None:
        self._context = context
        self._root = root
        self._segments = root / "segments"
        self._trash = root / "trash"
        self._identity = identity
        # Held while topics come and go. The two tables are replaced rather than
        # changed, so that looking something up never waits for a commit's disk.
        self.lock = threading.RLock()
        self._topics: dict[int, Topic] = {}
        self._names: dict[str, int] = {}
        # Topics that are not opened, and why; the name where that is known. Nothing of
        # them is changed until a person has run `lance-spark check --repair`.
        self._closed_topics: dict[int, tuple[DamagedFile, str | None]] = {}
        self.version = 0
        # Told whenever the version changes.
        self.watchers = Watchers()
        self._closed = False

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
        entries = files.list(self._segments)
        ids = sorted(int(e.name) for e in entries if e.is_dir and e.name.isdecimal())
        topics = [topic for topic in map(self._load_topic, ids) if topic is not None]
        self._topics = {topic.metadata.id: topic for topic in topics}
        self._names = {
            topic.metadata.name: topic.metadata.id
            for topic in topics
            if topic.metadata.id != DEFAULT_TOPIC
        }
        if not self.has(DEFAULT_TOPIC):
            self.make(TopicMetadata(DEFAULT_TOPIC, "", now_s))

    def _load_topic(self, topic: int) -> Topic | None:
        if topic in self._closed_topics:
            return None
        directory = self.directory(topic)
        try:
            metadata = self._read_metadata(topic)
        except DamagedFile as error:
            self.hold(topic, error)
            return None
        if metadata is None:
            # The crash came before the topic was reported as created.
            remove_tree(self._context.files, directory)
            return None
        log = open_log(self._context, topic, directory, metadata.start)
        return Topic(metadata, log)

    def _read_metadata(self, topic: int) -> TopicMetadata | None:
        directory = self.directory(topic)
        try:
            metadata = read_metadata(self._context, directory)
            if metadata is None and list_segments(self._context.files, directory):
                raise StoreError("it is missing")
        except StoreError as error:
            file = f"segments/{topic}/{METADATA}"
            effect = f"topic {topic} is closed"
            raise DamagedFile(self._root, file, str(error), effect) from error
        return metadata

    def find_damage(self, topic: int) -> DamagedFile | None:
        """Tell why a topic can't be opened, before any is; None if it can."""
        try:
            self._read_metadata(topic)
        except DamagedFile as error:
            return error
        return None

    def hold(self, topic: int, error: DamagedFile, name: str | None = None) -> None:
        """Keep a topic closed, with its name where that is known."""
        self._closed_topics[topic] = (error, name)
        self._context.findings.damage(f"segments/{topic}", str(error))

    def closed(self, topic: int) -> DamagedFile | None:
        """Tell why a topic is closed; None if it is not."""
        found = self._closed_topics.get(topic)
        # With a traceback it would be part of a cycle.
        return None if found is None else copy(found[0])

    def directory(self, topic: int) -> Path:
        """Tell where a topic's files are."""
        return self._segments / str(topic)

    # Looking up.

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def get(self, topic: int) -> Topic:
        """Find a topic by its id.

        Raises:
            UnknownTopic: there is none.
            DamagedFile: it is closed.
        """
        try:
            return self._topics[topic]
        except KeyError:
            if (closed := self.closed(topic)) is not None:
                raise closed from None
            deleted = 0 < topic < self._identity.next_topic
            raise UnknownTopic(topic, deleted) from None

    def find(self, name: str) -> Topic | None:
        """Find a topic by its name.

        Raises:
            DamagedFile: it is closed, or may be one that is closed and has no name.
        """
        topic = self._names.get(name)
        found = None if topic is None else self._topics.get(topic)
        if found is None:
            self._check_unknown(name)
        return found

    def _check_unknown(self, name: str) -> None:
        for topic, (error, known) in self._closed_topics.items():
            if known == name:
                raise copy(error)
            if known is None and topic != DEFAULT_TOPIC:
                effect = (
                    f"topic {name!r} can't be found or made: it may be topic {topic}, "
                    "whose name can't be read"
                )
                raise DamagedFile(error.root, error.file, error.reason, effect)

    def has(self, topic: int) -> bool:
        """Tell whether there is a topic with that id, open or closed."""
        return topic in self._topics or topic in self._closed_topics

    def by_id(self) -> Mapping[int, Topic]:
        """Give all topics by id."""
        return self._topics

    # Coming and going.

    def create(
        self,
        name: str,
        *,
        retention: Retention,
        auth: Mapping[str, Any] | None,
        now_s: int,
    ) -> Topic:
        """Create a topic, durably.

        Raises:
            InvalidName: the name can't be used.
            TopicExists: there is one of that name.
            DamagedFile: see `find`.
        """
        check_name(name)
        with self.lock:
            self._check_open()
            if self.find(name) is not None:
                raise TopicExists(f"topic {name!r} exists already")
            topic = self._identity.new_topic()
            metadata = TopicMetadata(topic, name, now_s, retention=retention, auth=auth)
            return self.make(metadata)

    def make(self, metadata: TopicMetadata) -> Topic:
        """Make a topic whose id was given out already."""
        with self.lock:
            topic = self.prepare(metadata)
            self._add(topic)
            return topic

    def prepare(self, metadata: TopicMetadata) -> Topic:
        """Make a topic's files without letting anybody see the topic yet."""
        directory = self.directory(metadata.id)
        try:
            self._context.files.mkdir(directory)
            write_metadata(self._context, directory, metadata)
            self._context.files.sync_dir(self._segments)
        except OSError:
            self.discard(metadata.id)
            raise
        log = Log(self._context, metadata.id, directory, metadata.start, ())
        return Topic(metadata, log)

    def discard(self, topic: int) -> None:
        """Remove the files of a topic that nobody has seen, as far as possible."""
        self._context.segments.drop_topic(topic)
        remove_tree(self._context.files, self.directory(topic))
        # It must not come back once the journal says that it is gone.
        self._context.files.sync_dir(self._segments)

    def add(self, topic: Topic) -> None:
        """Let everybody see a topic that was prepared."""
        with self.lock:
            self._add(topic)

    def remove(self, topic: int) -> None:
        """Delete a topic and its data.

        Raises:
            UnknownTopic: there is none.
            StoreError: it is the default topic.
            OSError: it may be there again after the loss of power, if it is gone.
        """
        if topic == DEFAULT_TOPIC:
            raise StoreError("the default topic can't be deleted")
        files = self._context.files
        with self.lock:
            self._check_open()
            found = self.get(topic)
            with found.log.exclusive():
                grave = self._trash / str(topic)
                remove_tree(files, grave)
                files.replace(self.directory(topic), grave)
                # The files are gone from their place: whatever happens from here on,
                # nothing more may be written to them.
                found.log.retire("the topic was deleted")
                self._forget(topic)
            files.sync_dir(self._segments)
        self._context.segments.drop_topic(topic)
        try:
            remove_tree(files, grave)
        except OSError as error:
            # The topic is gone all the same; the next opening empties the trash.
            logger.warning("trash/%d: could not remove: %s", topic, error)

    def close(self) -> None:
        """Close all topics; raise what the last one that failed has raised."""
        failure: StoreError | None = None
        with self.lock:
            self._closed = True
            for topic in self:
                try:
                    topic.log.close()
                except StoreError as error:
                    failure = error
        if failure is not None:
            raise failure

    def _check_open(self) -> None:
        # Asked under the lock: whoever waited for it may come too late.
        if self._closed:
            raise StoreClosed("the store is closed")

    def _forget(self, topic: int) -> None:
        name = self._topics[topic].metadata.name
        self._names = {n: t for n, t in self._names.items() if n != name}
        self._topics = {t: o for t, o in self._topics.items() if t != topic}
        self.version += 1
        self.watchers.notify()

    def _add(self, topic: Topic) -> None:
        topic_id = topic.metadata.id
        self._topics = {**self._topics, topic_id: topic}
        if topic_id != DEFAULT_TOPIC:
            self._names = {**self._names, topic.metadata.name: topic_id}
        self.version += 1
        self.watchers.notify()
