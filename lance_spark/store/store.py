"""The store: topics, stages and consumer offsets in one data directory.

One process at a time has a directory; any number of its threads may call everything
here. The store knows nothing of what its records mean: it is given a framing that
finds their starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lance_spark.errors import (
    AppendConflict,
    DamagedFile,
    LimitReached,
    StoreClosed,
    StoreError,
    StoreWriteFailed,
)
from lance_spark.model import Buffer, Framing, Location, Retention
from lance_spark.store.catalog import Catalog
from lance_spark.store.commit import CommitResult, NamedStage
from lance_spark.store.config import Fsync, StoreConfig
from lance_spark.store.consumers import (
    GROUP_BYTES_MAX,
    ConsumerKey,
    Consumers,
    Key,
    parse_consumers,
)
from lance_spark.store.context import Context, Finding, Wake
from lance_spark.store.decisions import Decisions
from lance_spark.store.document import (
    FIRST_STAGE_ID,
    IDENTITY,
    UNCHECKED_FORMAT,
    Identity,
    decode_document,
)
from lance_spark.store.files import (
    LOCK,
    File,
    Files,
    OsFiles,
    is_full,
    keep_copy,
    list_ids,
    make_directories,
    read_file,
    replace_file,
)
from lance_spark.store.log import Appended, HasSync, Log, Syncer
from lance_spark.store.reader import Slice, View
from lance_spark.store.stage import STAGE_METADATA, Stage, decode_stage, encode_stage
from lance_spark.store.stagelog import StageLog
from lance_spark.store.staging import Staging
from lance_spark.store.topic import (
    DEFAULT_TOPIC,
    TOPIC_METADATA,
    Topic,
    decode_topic,
    encode_topic,
    plan_retention,
)

CONSUMERS = "consumers.log"
# How much of `stages.log` may be over when maintenance looks at it.
_STAGE_GARBAGE_BYTES = 1024 * 1024


class Store:
    """A data directory, open for reading and writing."""

    def __init__(
        self,
        path: Path | str,
        *,
        framing: Framing,
        config: StoreConfig | None = None,
        files: Files | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
        background: bool = True,
        observe_sync: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """Open a data directory, creating it if there is none, and recover it.

        Args:
            path: the directory.
            framing: finds where records start in a batch.
            config: settings.
            files: file operations.
            clock_ns: the time.
            background: sync on a thread of its own, so that appends share syncs;
                without it the thread that waits for an append syncs it.
            observe_sync: told how many seconds each sync of a log has taken.

        Raises:
            StoreLocked: another process has the directory.
            StoreError: the directory can't be used.
        """
        self.path = Path(path)
        self.config = config or StoreConfig()
        self._files: Files = files or OsFiles()
        self._clock_ns = clock_ns
        self._framing = framing
        # Refuses everything; and does not have the directory any more.
        self._closed = self._released = False
        with self._disk("open", StoreError):
            make_directories(self._files, self.path)
            self._lock: File = self._files.lock(self.path / LOCK)
        try:
            with self._disk("open", StoreError):
                self._load(observe_sync)
        except BaseException:
            self._lock.close()
            raise
        self._syncer: Syncer | None = None
        if background and self.config.fsync is Fsync.BATCH:
            self._syncer = Syncer(self.config.sync_interval_s)

    def _load(self, observe_sync: Callable[[float], None]) -> None:
        identity = Identity.read(self._files, self.path / IDENTITY)
        is_new = identity is None and not self._files.list(self.path / "segments")
        is_lost = identity is None and not is_new
        if identity is None:
            identity = Identity.derive(self._files, self.path, is_new=is_new)
        self._context = context = Context(
            self._files, self.path, self.config, self._framing, identity, observe_sync
        )
        if is_lost:
            text = "missing; ids go on far above those that can be seen"
            context.findings.damage(IDENTITY, text)
        self._decisions = Decisions(context)
        self._catalog = Catalog(context, self._decisions)
        self._staging = Staging(context, self._catalog, self._decisions)
        if is_new:
            self._decisions.open(is_new=True, now_ns=self._clock_ns())
            # A store is one from here on: its journal is there, and will be missed.
            identity.prepare()
        else:
            # Nothing of the new format is written before this file says so.
            self._if_room("say format 2", identity.prepare)
            self._decisions.open(is_new=False, now_ns=self._clock_ns())
        self._catalog.finish_removals()
        self._staging.settle()
        upgraded = self._if_room("upgrade", lambda: _upgrade_files(context))
        self._catalog.load(self._clock_ns() // 1_000_000_000)
        self._staging.load()
        self._consumers = self._load_consumers(identity)
        is_current = not self._decisions.journal.is_outdated
        if upgraded and is_current and self._consumers.is_written:
            self._if_room("end the upgrade", identity.finish_upgrade)
        self._context.reserve.keep()

    def _if_room(self, doing: str, step: Callable[[], None]) -> bool:
        """Do what can wait until there is room on the disk; tell whether it is done."""
        try:
            step()
        except OSError as error:
            if not is_full(error):
                raise
            self._context.findings.note(IDENTITY, f"no room to {doing}: {error}")
            return False
        return True

    def _load_consumers(self, identity: Identity) -> Consumers:
        path = self.path / CONSUMERS
        data = read_file(self._files, path)
        parsed = parse_consumers(data or b"")
        if data is not None and parsed.lost:
            self._files.replace(path, path.with_name(path.name + ".damaged"))
            self._context.findings.damage(CONSUMERS, f"{parsed.lost}; kept as .damaged")
        for fault in parsed.faults:
            self._context.findings.damage(CONSUMERS, f"{fault}; it is written anew")
        for start, end in parsed.damaged:
            text = "an offset is damaged and forgotten"
            self._context.findings.damage(CONSUMERS, text, start, end)
        if parsed.torn is not None:
            text = "an entry was not finished; left out"
            self._context.findings.note(CONSUMERS, text, parsed.torn, len(data or b""))
        if parsed.damaged or parsed.faults:
            self._if_room("keep a copy", lambda: keep_copy(self._files, path))
        has = self._catalog.has
        found: list[tuple[Key, int]] = [*parsed.offsets.items()]
        found += parsed.records.items()
        return Consumers(
            self._files,
            path,
            {key: at for key, at in found if has(key.topic)},
            sync=self.config.fsync is not Fsync.NONE,
            prepare=identity.prepare,
        )

    @property
    def findings(self) -> list[Finding]:
        """What was found and mended since the store was opened."""
        return list(self._context.findings.all)

    # Topics.

    def topics(self, *, default: bool = False) -> list[Topic]:
        """List the open topics by id, with the default topic if that is asked for."""
        self._check_open()
        topics = sorted(self._catalog.topics.items())
        return [topic for each, topic in topics if default or each != DEFAULT_TOPIC]

    def closed(self, topic: int) -> DamagedFile | None:
        """Tell why a topic is closed; None if it is not."""
        return self._catalog.closed(topic)

    @property
    def topics_version(self) -> int:
        """A number that changes when topics come or go."""
        return self._catalog.version

    def topic(self, topic: int) -> Topic:
        """Find a topic by its id.

        Raises:
            UnknownTopic: there is none.
            DamagedFile: it is closed.
        """
        self._check_open()
        return self._catalog.get(topic)

    def find_topic(self, name: str) -> Topic | None:
        """Find a topic by its name.

        Raises:
            DamagedFile: it is closed, or may be one that is closed and has no name.
        """
        self._check_open()
        return self._catalog.find(name)

    def create_topic(
        self,
        name: str,
        *,
        retention: Retention | None = None,
        auth: Mapping[str, Any] | None = None,
        topics_max: int | None = None,
    ) -> Topic:
        """Create a topic, durably.

        Args:
            name: unique.
            retention: what may be dropped.
            auth: access rules, which the store only keeps.
            topics_max: how many named topics there may be.

        Raises:
            InvalidName: the name can't be used.
            TopicExists: there is one of that name.
            LimitReached: there are `topics_max` already.
            StoreWriteFailed: it is not created.
            StoreReadOnly: it may be there when the store is opened again.
            Timeout: a commit to that name takes too long.
        """
        rules: Any = {"retention": retention, "auth": auth, "topics_max": topics_max}
        return self.create_topics({name: 1}, **rules)[0]

    def create_topics(
        self,
        topics: Mapping[str, int],
        *,
        retention: Retention | None = None,
        auth: Mapping[str, Any] | None = None,
        topics_max: int | None = None,
        dry_run: bool = False,
    ) -> list[Topic]:
        """Create topics with several partitions: all of their logs, or none.

        The partitions of `orders` are the logs `orders/0`, `orders/1` and so on, each a
        `Topic` with an id of its own. A topic with one partition is the log `orders`.

        Args:
            topics: how many partitions each topic has, by the topics' names.
            retention: what may be dropped from each partition.
            auth: access rules, which the store only keeps.
            topics_max: how many logs with a name there may be.
            dry_run: create nothing, and only raise what creating them would.

        Returns:
            The logs, in the order of `topics` and of their numbers; none of a dry run.

        Raises:
            InvalidName, TopicExists, LimitReached, Timeout: as `create_topic`.
            StoreWriteFailed: none of them is created.
            StoreReadOnly: all of them or none are there when the store is opened again.
        """
        self._check_open()
        with self._disk(f"create topic {', '.join(map(repr, topics))}"):
            return self._catalog.create(
                topics,
                topics_max,
                dry_run=dry_run,
                created_at=self._clock_ns() // 1_000_000_000,
                retention=retention or Retention(),
                auth=auth,
            )

    def partitions(self, name: str) -> int:
        """Tell how many partitions a topic has; 0 if there is no topic of that name.

        Raises:
            DamagedFile: see `find_topic`.
        """
        self._check_open()
        return self._catalog.partitions(name)

    def family(self, topic: int) -> list[Topic]:
        """Give all partitions of the topic that a log belongs to, the log among them.

        Raises:
            UnknownTopic, DamagedFile: as `topic`, also for another partition.
        """
        self._check_open()
        return self._catalog.family(topic)

    def delete_topic(self, topic: int) -> None:
        """Delete a topic and all its data; its id is never used again.

        Raises:
            UnknownTopic, DamagedFile: as `topic`.
            StoreError: it is one of several partitions, or the default topic.
        """
        self.delete_topics([topic])

    def delete_topics(self, topics: Sequence[int]) -> None:
        """Delete topics, all or none; of a partition, all others have to be named too.

        Once this returns, or fails with StoreReadOnly, the next opening finishes it.
        """
        self._check_open()
        ids = sorted(set(topics))
        with self._disk(f"delete topic {', '.join(map(str, ids))}"):
            self._catalog.remove(ids)
        for topic in ids:
            self._consumers.forget_topic(topic)

    def set_retention(self, topic: int, retention: Retention) -> None:
        """Change what may be dropped from a topic, in each of its partitions."""
        self._check_open()
        with self._disk(f"change topic {topic}"):
            for each in self._catalog.family(topic):
                # Lowering it is how a full disk gets room.
                self._context.reserve.spend(partial(each.update, retention=retention))

    def set_auth(self, topic: int, auth: Mapping[str, Any]) -> None:
        """Change the access rules of a topic's partitions; an empty mapping removes."""
        self._check_open()
        with self._disk(f"change topic {topic}"):
            for each in self._catalog.family(topic):
                each.update(auth=auth)

    # Appending and reading.

    def append(
        self,
        topic: int,
        data: Buffer,
        starts: NDArray[np.int64] | None = None,
        *,
        data_crc: int | None = None,
        expected_record: int | None = None,
        wait: bool = True,
    ) -> Appended:
        """Append a batch of whole records to a topic.

        Args:
            topic: the topic's id.
            data: the records' bytes.
            starts: where each record starts; found by the framing if not given.
            data_crc: CRC32C of the bytes, where it is known already.
            expected_record: store the batch only if its first record gets this number.
            wait: return only when the batch is durable; otherwise `wait_durable` is
                to be called before the batch is acknowledged.

        Raises:
            RecordError: the bytes are not whole records.
            UnknownTopic: there is no such topic.
            AppendConflict: the next record has another number than expected. What was
                written before it is durable, also without `wait`.
            StoreWriteFailed, StoreReadOnly, Timeout: it is not durable.
        """
        log = self.topic(topic).log
        now_ns = self._clock_ns()
        framed = self._frame(data, starts)
        try:
            appended = log.append(
                data,
                framed,
                now_ns=now_ns,
                data_crc=data_crc,
                expected_record=expected_record,
            )
        except AppendConflict as conflict:
            # The writer takes the records for its own, or writes elsewhere: they must
            # not be lost again once it knows of them.
            self._wait(log, conflict.next_offset)
            raise
        self._request_sync(log)
        if wait:
            self._wait(log, appended.end)
        return appended

    def sync(self) -> None:
        """Make everything that was appended so far durable, whatever the policy.

        Raises:
            StoreReadOnly: the disk failed before all of it was durable.
            StoreError: a sync could not be tried, and can be tried again.
        """
        self._check_open()
        for log in self._logs():
            try:
                log.sync_written()
            except StoreError:
                # It may have been deleted or dropped meanwhile, files and all.
                if log in self._logs():
                    raise

    def wait_durable(
        self, topic: int, appended: Appended, *, timeout_s: float | None = None
    ) -> None:
        """Wait until an append to a topic or stage is durable.

        Args:
            topic: its id.
            appended: what `append` gave.
            timeout_s: how long to wait; `wait_timeout_s` if not given.

        Raises:
            Timeout: it took longer, and may still become durable.
            StoreReadOnly: the disk failed.
            StageExpired, StageUnknown: the stage was dropped meanwhile.
        """
        try:
            if topic >= FIRST_STAGE_ID:
                self._wait_stage(self._staging.get(topic), appended.end, timeout_s)
            else:
                self._wait(self.topic(topic).log, appended.end, timeout_s)
        except StoreError:
            if topic >= FIRST_STAGE_ID:
                # Was it dropped while this waited?
                self._staging.get(topic).check_open()
            raise

    def read(self, topic: int, offset: int, max_bytes: int) -> Slice:
        """Give whole records of a topic; see `View.read`."""
        return View.of(self.topic(topic).log).read(offset, max_bytes)

    def view(self, topic: int) -> View:
        """Look at what is visible of a topic, to read and locate in it."""
        return View.of(self.topic(topic).log)

    def locate(self, topic: int, offset: int) -> Location:
        """Find the first record boundary at or after an offset of a topic."""
        return self.view(topic).locate_offset(offset)

    @contextmanager
    def watching(
        self, offsets: Mapping[int, int], wake: Wake, *, catalog: bool = False
    ) -> Iterator[None]:
        """Call a function whenever one of some topics grows past an offset, or goes.

        Args:
            offsets: by the topics' ids; those that do not exist are left out.
            wake: called from any thread; it must be quick and never raise.
            catalog: call it also when topics come or go.
        """
        self._check_open()
        known = self._catalog.topics
        with ExitStack() as watched:
            if catalog:
                self._catalog.watchers.add(wake)
                watched.callback(self._catalog.watchers.remove, wake)
            for topic, offset in offsets.items():
                if topic in known:
                    watchers = known[topic].log.watchers
                    watchers.add(wake, offset)
                    watched.callback(watchers.remove, wake)
            yield

    # Stages.

    def open_stage(self, topic: str, writer: str, sequence: int) -> int:
        """Open a stage for a topic, by name; the topic need not exist yet.

        Returns:
            The stage's id, never used before.
        """
        self._check_open()
        now_ns = self._clock_ns()
        stage = self._staging.open(topic, writer, sequence, now_ns=now_ns)
        return stage.metadata.id

    def stage(self, stage: int) -> Stage:
        """Find an open stage.

        Raises:
            StageExpired, StageUnknown: the stage is not open.
        """
        self._check_open()
        return self._staging.get(stage)

    def stages(self) -> list[Stage]:
        """List the open stages."""
        return self._staging.all()

    def append_stage(
        self,
        stage: int,
        batch: int,
        data: Buffer,
        starts: NDArray[np.int64] | None = None,
        *,
        data_crc: int | None = None,
        wait: bool = True,
    ) -> Appended:
        """Add batch number 1, 2, 3 … to a stage; a repeated one is not stored.

        Raises:
            BatchGap: a batch before it is missing.
            StageMismatch: it was stored before with other bytes.
            StageExpired, StageUnknown: the stage is not open.
        """
        self._check_open()
        found = self._staging.get(stage)
        now_ns = self._clock_ns()
        framed = self._frame(data, starts)
        appended = found.append(batch, data, framed, now_ns=now_ns, data_crc=data_crc)
        self._request_sync(found.home)
        if wait:
            self.wait_durable(stage, appended)
        return appended

    def commit_stages(
        self,
        writer: str,
        sequence: int,
        stages: Sequence[NamedStage],
        overwrite: Sequence[str] = (),
        *,
        topics_max: int | None = None,
    ) -> CommitResult:
        """Commit stages to their topics, all or nothing, once per (writer, sequence).

        Args:
            writer: the name that the writer has given itself.
            sequence: rises with each commit of the writer.
            stages: the stages that won, in order. All other stages of the job go.
            overwrite: topics whose content is replaced, by zero rows if no stage is
                for them.
            topics_max: how many named topics there may be, those that it creates
                among them.

        Raises:
            StageMismatch: a stage does not hold what its writer says.
            StageExpired, StageUnknown: a stage is not open.
            CommitConflict: the sequence was committed with other topics.
            LimitReached: it names or creates too many topics; nothing was done.
            CommitUnknown: the next opening finishes or undoes it; until then this is
                said whenever the same commit is asked for.
            StoreWriteFailed, StoreReadOnly: nothing of it was done, nor will be.
            Timeout: another commit of the writer, or to its topics, takes too long.
        """
        self._check_open()
        return self._staging.commit(
            writer,
            sequence,
            stages,
            overwrite,
            topics_max=topics_max,
            now_ns=self._clock_ns(),
        )

    def writer_topics(self, writer: str) -> frozenset[str] | None:
        """Tell which topics a writer's last commit wrote; None if it is unknown."""
        self._check_open()
        return self._staging.writer_topics(writer)

    def abort_stages(self, writer: str, sequence: int) -> int:
        """Drop all stages of a job; tell how many there were."""
        self._check_open()
        return self._staging.abort(writer, sequence)

    # Consumers.

    def commit_offset(self, consumer: int | str, topic: int, offset: int) -> None:
        """Remember how far a consumer has come in a topic, durably.

        Args:
            consumer: its number; or the name of a group, and then `offset` is a record
                number.
            topic: the topic's id.
            offset: how far it has come.

        Raises:
            StoreError: a number is not a u64.
            LimitReached: a name is empty or too long.
        """
        self.topic(topic)
        numbers = {"offset": offset}
        if isinstance(consumer, str):
            size = len(consumer.encode("utf-8", "surrogatepass"))
            if not 1 <= size <= GROUP_BYTES_MAX:
                raise LimitReached(
                    f"the name of a group has {size} bytes: must be from 1 to "
                    f"{GROUP_BYTES_MAX}"
                )
        else:
            numbers["consumer"] = consumer
        for what, number in numbers.items():
            if not isinstance(number, int) or not 0 <= number < 2**64:
                raise StoreError(f"{what} {number!r} is not a number of 64 bits")
        self._consumers.commit(consumer, topic, offset)

    def committed_offset(self, consumer: int | str, topic: int) -> int | None:
        """Tell how far a consumer has come in a topic; see `commit_offset`."""
        self._check_open()
        return self._consumers.committed(consumer, topic)

    @property
    def consumer_count(self) -> int:
        """How many pairs of consumer or group and topic have committed."""
        return len(self._consumers)

    def consumer_offsets(self) -> dict[ConsumerKey, int]:
        """Tell how far all consumers have come, by consumer and topic."""
        self._check_open()
        return self._consumers.all()

    # Housekeeping.

    def maintain(self) -> None:
        """Apply retention, drop expired stages, shorten the journal.

        To be called from time to time. A topic that fails does not keep the others
        from their turn, and a segment that can't be closed, on a full disk, does not
        keep those before it.
        """
        self._check_open()
        now_ns = self._clock_ns()
        failure: StoreError | None = None
        for topic in self._catalog.topics.values():
            for step in (topic.log.roll_if_aged, partial(self._retain, topic)):
                try:
                    step(now_ns)
                except StoreError as error:
                    failure = error
        self._staging.expire(now_ns)
        self._decisions.compact(now_ns)
        self._context.stage_log.tidy(_STAGE_GARBAGE_BYTES)
        self._context.reserve.keep()
        if failure is not None:
            raise failure

    def _retain(self, topic: Topic, now_ns: int) -> None:
        # No commit may run meanwhile: an overwrite moves the start as well.
        with topic.log.exclusive():
            segments = topic.log.segments()
            start = plan_retention(segments, topic.metadata.retention, now_ns)
            if start is not None:
                with self._disk(f"drop segments of topic {topic.metadata.id}"):
                    topic.drop_before(start)

    def close(self) -> None:
        """Make everything durable and let go of the directory.

        Raises:
            Timeout: a commit is still under way. The directory stays locked, and this
                can be called again.
            StoreError: not everything is durable; the store is closed all the same.
        """
        if self._released:
            return
        self._closed = True
        # First: a commit under way has the logs that the catalog closes.
        self._staging.drain()
        self._released = True
        if self._syncer is not None:
            self._syncer.stop(self.config.wait_timeout_s)
        with ExitStack() as closing:  # The last one is called first, and all are.
            closing.callback(self._lock.close)
            closing.callback(self._context.spare.give_up)
            closing.callback(self._context.segments.clear)
            closing.callback(self._context.identity.close)
            closing.callback(self._consumers.close)
            closing.callback(self._decisions.close)
            closing.callback(self._catalog.close)
            closing.callback(self._staging.close)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside.

    def _frame(
        self, data: Buffer, starts: NDArray[np.int64] | None
    ) -> NDArray[np.int64]:
        if starts is not None:
            if len(data):  # An empty batch is refused with the other sizes.
                _check_starts(starts, len(data))
            return starts
        scan = self._framing(data)
        if scan.fault is not None:
            raise copy(scan.fault)  # With a traceback it would be part of a cycle.
        return scan.starts

    def _request_sync(self, log: HasSync) -> None:
        if self._syncer is not None:
            self._syncer.request(log)

    def _wait(self, log: Log, end: int, timeout_s: float | None = None) -> None:
        if self._syncer is None and log.visible.offset < end:
            log.sync()
        if timeout_s is None:
            timeout_s = self.config.wait_timeout_s
        log.wait(end, timeout_s=timeout_s)

    def _wait_stage(self, stage: Stage, end: int, timeout_s: float | None) -> None:
        if self._syncer is None and not stage.is_durable(end):
            stage.home.sync()
        if timeout_s is None:
            timeout_s = self.config.wait_timeout_s
        stage.wait(end, timeout_s=timeout_s)

    def _logs(self) -> set[Log | StageLog]:
        topics = {topic.log for topic in self._catalog.topics.values()}
        return topics | {stage.home for stage in self._staging.all()}

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self.path}: the store is closed")

    @contextmanager
    def _disk(
        self, doing: str, kind: type[StoreError] = StoreWriteFailed
    ) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise kind(f"{self.path}: could not {doing}: {error}") from error


def _check_starts(starts: NDArray[np.int64], length: int) -> None:
    """Refuse starts that can't be those of records in so many bytes."""
    rising = bool((starts[1:] > starts[:-1]).all())
    if not len(starts) or starts[0] or not rising or starts[-1] >= length:
        raise StoreError(
            "record starts have to rise from 0 and stay below the batch's "
            f"{length} bytes; leave them out to have them found"
        )


def _upgrade_files(context: Context) -> None:
    """Give the metadata of all topics and stages a checksum, where it has none.

    A damaged file is left as it is: what it belongs to is closed when it is opened.

    Raises:
        OSError: the disk refused; what is left to do is done by the next opening.
    """
    if not context.identity.upgrading:
        return
    context.identity.prepare()
    for directory, name, convert in (
        ("segments", TOPIC_METADATA, lambda data: encode_topic(decode_topic(data))),
        ("stages", STAGE_METADATA, lambda data: encode_stage(decode_stage(data))),
    ):
        for stored in list_ids(context.files, context.root / directory):
            _upgrade(context, context.root / directory / str(stored) / name, convert)


def _upgrade(context: Context, path: Path, convert: Callable[[bytes], bytes]) -> None:
    data = read_file(context.files, path)
    try:
        if data is not None and decode_document(data).format == UNCHECKED_FORMAT:
            replace_file(context.files, path, convert(data))
    except StoreError:
        return  # Reported when the topic or stage is opened.
