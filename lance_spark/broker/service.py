"""What a broker does, whatever protocol it is asked in.

Sessions translate their protocol to calls of `Service`. Each call passes the gate
(`gate`) before anything else, so that no protocol can forget to. `to_broker_error`
turns whatever a call runs into into one of the errors that protocols have codes for.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lance_spark import errors
from lance_spark.broker.access import Policy, Principal, TopicRule
from lance_spark.broker.assignment import Strategy
from lance_spark.broker.gate import Gate
from lance_spark.broker.group import Assigned, GroupDescription, Groups, Joined
from lance_spark.broker.metrics import Metrics, TopicGauge
from lance_spark.errors import BrokerError, LanceError
from lance_spark.model import Buffer, CommitStatus, Location, Retention
from lance_spark.store import (
    DEFAULT_TOPIC,
    FIRST_STAGE_ID,
    Appended,
    CommitResult,
    ConsumerKey,
    Finding,
    NamedStage,
    Slice,
    Stage,
    Store,
    Topic,
    View,
    Wake,
)

logger = logging.getLogger(__name__)

# Subscriptions are a note for tools. A client can make any number of them, so that the
# oldest are forgotten.
_SUBSCRIPTIONS_MAX = 100_000
# A read meets retention at most a few times in a row before it finds data.
_LOOKS_MAX = 10

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """Records of a topic, and how far the topic can be read."""

    slice: Slice
    high_water_mark: int


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """A consumer of a topic: its committed offset and its subscription, if any."""

    consumer: int
    committed: int | None
    max_batch_bytes: int | None


class Service:
    """A store behind its gate, with consumers and groups; any thread may call it.

    Args:
        store: the store.
        policy: the rules of the topics that there are.
        tokens: what clients may authenticate with.
        named: rules by the names of topics; see `Gate`.
        metrics: what is counted.
        groups: the coordinator of groups.
        topics_max: how many topics clients may make.
        partitions_max: how many partitions a client may give a topic.
        consumers_max: how many positions of consumers and groups are kept, over all
            topics.
    """

    def __init__(
        self,
        store: Store,
        *,
        policy: Policy | None = None,
        tokens: Sequence[str] = (),
        named: Mapping[str, TopicRule] | None = None,
        metrics: Metrics | None = None,
        groups: Groups | None = None,
        topics_max: int = 10_000,
        partitions_max: int = 256,
        consumers_max: int = 100_000,
    ) -> None:
        self.store = store
        self.started_s = time.time()
        self.gate = Gate(store, policy=policy, tokens=tokens, named=named)
        self.metrics = metrics or Metrics()
        self.groups = groups or Groups()
        self._topics_max = topics_max
        self._partitions_max = partitions_max
        self._consumers_max = consumers_max
        self._lock = Lock()
        # Held while everything is synced.
        self._syncing = Lock()
        self._subscriptions: OrderedDict[ConsumerKey, int] = OrderedDict()
        # The store counts from its opening; a client that saw an earlier one must not
        # take the same number for the same list.
        self._version_base = time.time_ns() >> 20 << 20

    @property
    def data_dir(self) -> Path:
        """The data directory, for the operator's console."""
        return self.store.path

    @property
    def consumer_count(self) -> int:
        """How many offsets are committed, over all topics."""
        return self.store.consumer_count

    # Topics.

    @property
    def topics_version(self) -> int:
        """A number that changes when topics come or go."""
        return (self._version_base + self.store.topics_version) % 2**64

    def topics(self, client: Principal) -> list[Topic]:
        """List the topics that a client may see."""
        self.gate.admit(client, None)
        topics = self.store.topics()
        return [
            topic for topic in topics if self.gate.may_see(client, topic.metadata.id)
        ]

    def hidden_topics(self, client: Principal) -> int:
        """Count the topics that a client may not see."""
        self.gate.admit(client, None)
        return len(self.store.topics()) - len(self.topics(client))

    def topic(self, client: Principal, topic: int) -> Topic:
        """Find a topic."""
        self.gate.admit(client, topic)
        return self.store.topic(topic)

    def resolve(self, client: Principal, names: Iterable[str]) -> dict[str, int]:
        """Find the ids of topics that exist, by name.

        Raises:
            AccessDenied: one of them is not for this client.
        """
        self.gate.admit(client, None)
        ids = {}
        for name in names:
            found = self.store.find_topic(name)
            if found is not None:
                self.gate.admit(client, found.metadata.id)
                ids[name] = found.metadata.id
        return ids

    def check_log_name(self, client: Principal, name: str) -> None:
        """Refuse the name of a topic with several partitions, where one log is meant.

        Raises:
            PartitionedTopic: the text names the partitions.
            AccessDenied: the topic is not for this client.
        """
        self.gate.admit_name(client, name)
        partitions = self.store.partitions(name)
        if partitions > 1:
            raise errors.PartitionedTopic(name, partitions)

    def partitions(self, client: Principal, name: str) -> dict[int, Topic]:
        """Find the logs of a topic, by number; one that is damaged is left out.

        Raises:
            UnknownTopic: there is no topic of that name.
            AccessDenied: it is not for this client.
        """
        self.gate.admit_name(client, name)
        count = self.store.partitions(name)
        found: dict[int, Topic] = {}
        for log in [name] if count == 1 else [f"{name}/{n}" for n in range(count)]:
            with suppress(errors.DamagedFile):
                topic = self.store.find_topic(log)
                if topic is not None and topic.metadata.partition.topic == name:
                    found[topic.metadata.partition.number] = topic
        if not found:
            raise errors.UnknownTopic(name)
        return found

    def create_topic(
        self, client: Principal, name: str, retention: Retention | None = None
    ) -> Topic:
        """Create a topic."""
        return self.create_topics(client, name, 1, retention)[0]

    def create_topics(
        self,
        client: Principal,
        name: str,
        partitions: int,
        retention: Retention | None = None,
        *,
        dry_run: bool = False,
    ) -> list[Topic]:
        """Create a topic with partitions, all of them or none; give their logs.

        A dry run creates nothing, and only raises what creating it would.

        Raises:
            InvalidPartitionCount: there can't be so many partitions.
        """
        self.gate.admit_name(client, name)
        if not name:
            raise errors.InvalidName("Topic name required")
        most = self._partitions_max
        if not 1 <= partitions <= most:
            raise errors.InvalidPartitionCount(
                f"topic {name!r} can't have {partitions} partitions: a topic has 1 to "
                f"{most} (partitions_max)"
            )
        most = self._topics_max
        try:
            return self.store.create_topics(
                {name: partitions},
                retention=retention,
                topics_max=most,
                dry_run=dry_run,
            )
        except errors.TopicExists as error:
            text = f"Topic '{name}' already exists"
            raise errors.TopicAlreadyExists(text) from error

    def delete_topic(self, client: Principal, topic: int, partitions: int = 1) -> None:
        """Delete a topic, all of it or nothing.

        Args:
            client: who asks.
            topic: the id of its log; of several partitions, that of any.
            partitions: how many the client knows of, and means to delete.
        """
        self.gate.admit(client, topic)
        if topic == DEFAULT_TOPIC:
            raise errors.InvalidPayload("the default topic can't be deleted")
        self._check_whole(topic, partitions)
        logs = self.store.family(topic)
        ids = {log.metadata.id for log in logs}
        for log in ids:
            self.gate.admit(client, log)
        self.store.delete_topics([*ids])
        for log in ids:
            self.metrics.forget_topic(log)
        with self._lock:
            for key in [k for k in self._subscriptions if k.topic in ids]:
                del self._subscriptions[key]

    def set_retention(
        self, client: Principal, topic: int, retention: Retention
    ) -> None:
        """Change which records of a topic may be dropped."""
        self.gate.admit(client, topic)
        self._check_whole(topic)
        self.store.set_retention(topic, retention)

    def _check_whole(self, topic: int, partitions: int = 1) -> None:
        """Refuse to change some partitions as if they were the whole topic."""
        metadata = self.store.topic(topic).metadata
        there = metadata.partitions or 1
        if metadata.partitions is not None and partitions == 1:
            raise errors.InvalidPayload(
                f"{metadata.name!r} is a partition of topic "
                f"{metadata.partition.topic!r}, which has {there}: a partition can't "
                "be deleted or changed alone"
            )
        if partitions != there:
            raise errors.InvalidPayload(
                f"topic {metadata.partition.topic!r} has {there} partitions, not "
                f"{partitions}: all are deleted together, or none"
            )

    # Writing.

    def append(
        self,
        client: Principal,
        target: int,
        batch: int,
        data: Buffer,
        *,
        starts: NDArray[np.int64] | None = None,
        data_crc: int | None = None,
        expected_record: int | None = None,
    ) -> Appended:
        """Write a batch to a topic or stage; `wait_durable` says when it is safe.

        Args:
            client: who writes.
            target: the topic or stage.
            batch: the number of a stage's batch.
            data: the records.
            starts: where they start, if that is known already.
            data_crc: CRC32C of the bytes, if that is known already.
            expected_record: write to the topic only if the first of them gets this
                number.

        Raises:
            AppendConflict: it would get another one.
        """
        if target >= FIRST_STAGE_ID:
            self.gate.admit(client, None)
            stage = self.store.stage(target)
            if not self.gate.may_use(client, stage.metadata.topic):
                # As if it were not there: a denial would tell what it is for.
                raise errors.StageUnknown(f"stage {target} is not open")
            appended = self.store.append_stage(
                target, batch, data, starts, data_crc=data_crc, wait=False
            )
            found = self.store.find_topic(stage.metadata.topic)
            counted = None if found is None else found.metadata.id
        else:
            self.gate.admit(client, target)
            appended = self.store.append(
                target,
                data,
                starts,
                data_crc=data_crc,
                expected_record=expected_record,
                wait=False,
            )
            counted = target
        self.metrics.appended(counted, appended.records, appended.end - appended.start)
        return appended

    def wait_durable(self, target: int, appended: Appended, timeout_s: float) -> None:
        """Wait until a batch that was written is durable."""
        self.store.wait_durable(target, appended, timeout_s=timeout_s)

    def sync(self, client: Principal, timeout_s: float) -> None:
        """Make everything durable that was written before, by any client.

        It looks at every topic. So one runs at a time, and clients that ask for it
        again and again can't keep the broker busy with nothing else.

        Raises:
            Timeout: others did so for as long as this.
        """
        self.gate.admit(client, None)
        if not self._syncing.acquire(timeout=timeout_s):
            raise errors.Timeout("the disk is busy with what others have asked for")
        try:
            self.store.sync()
        finally:
            self._syncing.release()

    def open_stage(
        self, client: Principal, topic: str, writer: str, sequence: int
    ) -> int:
        """Open a stage for a topic that need not exist."""
        self.check_log_name(client, topic)
        self._check_room(topic)
        return self.store.open_stage(topic, writer, sequence)

    def commit_stages(
        self,
        client: Principal,
        writer: str,
        sequence: int,
        *,
        stages: Sequence[NamedStage],
        overwrite: Sequence[str],
    ) -> CommitResult:
        """Commit stages, all or nothing."""
        self.gate.admit(client, None)
        self._admit_writer(client, writer)
        for name in overwrite:
            self.gate.admit_name(client, name)
        if not stages and not overwrite and self.store.writer_topics(writer) is None:
            # Nothing to do for a writer that is not known. To remember it would let
            # any client make the later commits of another one stale.
            return CommitResult(CommitStatus.COMMITTED)
        result = self.store.commit_stages(
            writer, sequence, stages, overwrite, topics_max=self._topics_max
        )
        if result.status is not CommitStatus.COMMITTED:
            # The client named no stage that still exists, and learns of topics.
            for committed in result.ranges:
                if not self.gate.may_see(client, committed.topic):
                    raise self._deny_writer(client, writer)
        return result

    def abort_stages(self, client: Principal, writer: str, sequence: int) -> int:
        """Drop all stages of a job."""
        self.gate.admit(client, None)
        self._admit_writer(client, writer)
        return self.store.abort_stages(writer, sequence)

    def open_stages(self, client: Principal, topic: int) -> int:
        """Count the stages that are open for a topic."""
        name = self.topic(client, topic).metadata.name
        return sum(stage.metadata.topic == name for stage in self.store.stages())

    def stages(self, client: Principal) -> list[Stage]:
        """List the open stages, those for topics that a client may use."""
        self.gate.admit(client, None)
        stages = self.store.stages()
        names = {stage.metadata.topic for stage in stages}
        usable = {name for name in names if self.gate.may_use(client, name)}
        return [stage for stage in stages if stage.metadata.topic in usable]

    def _admit_writer(self, client: Principal, writer: str) -> None:
        """Admit to everything that a writer has written last or is writing."""
        names = set(self.store.writer_topics(writer) or ())
        names.update(
            stage.metadata.topic
            for stage in self.store.stages()
            if stage.metadata.job.writer == writer
        )
        if not all(self.gate.may_use(client, name) for name in names):
            raise self._deny_writer(client, writer)

    @staticmethod
    def _deny_writer(client: Principal, writer: str) -> errors.AccessDenied:
        # The topics stay out of the text: the client has named none of them.
        return errors.AccessDenied(
            f"Access denied: client '{client.name}' not authorized for writer "
            f"'{writer}'"
        )

    def _check_room(self, topic: str) -> None:
        """Refuse what the commit would refuse later, when all rows are staged."""
        there, most = len(self.store.topics()), self._topics_max
        if there >= most and self.store.find_topic(topic) is None:
            raise errors.LimitReached(
                f"a stage for topic {topic!r} can't be committed: the topic is not "
                f"there, and no more than {most} may be (topics_max)"
            )

    # Reading.

    def view(self, client: Principal, topic: int) -> View:
        """Give the bounds and segments of a topic at this moment."""
        self.gate.admit(client, topic)
        return self.store.view(topic)

    def read(
        self,
        client: Principal,
        topic: int,
        start: int,
        max_bytes: int,
        *,
        snap: bool = False,
    ) -> Reading:
        """Give whole records of a topic from an offset on.

        An offset before the log's start is served from there, one behind its end with
        nothing. `snap` moves a start inside a record to the next one.
        """

        def look(view: View) -> Reading:
            at = min(max(start, view.start.offset), view.end.offset)
            if snap:
                at = view.locate_offset(at).offset
            if max_bytes == 0:
                return Reading(Slice(at, at, 0), view.end.offset)
            found = view.read(at, max_bytes, whole_batches=True)
            self.metrics.fetched(topic, found.records, len(found))
            return Reading(found, view.end.offset)

        return self.look(client, topic, look)

    def locate(self, client: Principal, topic: int, kind: str, value: int) -> Location:
        """Find a record boundary: by `offset`, `record`, `time`, `start` or `end`."""

        def look(view: View) -> Location:
            if kind == "offset":
                return view.locate_offset(value)
            if kind == "record":
                return view.locate_record(value)
            if kind == "time":
                return view.locate_time(value)
            return view.locate_start() if kind == "start" else view.locate_end()

        return self.look(client, topic, look)

    def look(self, client: Principal, topic: int, look: Callable[[View], T]) -> T:
        """Look at a topic, once more when retention was quicker than the view.

        Raises:
            StorageError: retention always was.
        """
        for _ in range(_LOOKS_MAX):
            try:
                return look(self.view(client, topic))
            except errors.OutOfRange:
                continue
        raise errors.StorageError(f"topic {topic} is being cut faster than it is read")

    def ends(self, client: Principal, topics: Iterable[int]) -> dict[int, int]:
        """Tell where topics end; those that do not exist are left out."""
        ends = {}
        for topic in topics:
            self.gate.admit(client, topic)
            try:
                ends[topic] = self.store.topic(topic).log.visible.offset
            except errors.UnknownTopic:
                continue
        return ends

    def watching(
        self, offsets: Mapping[int, int], wake: Wake, *, catalog: bool = False
    ) -> AbstractContextManager[None]:
        """Call a function whenever one of some topics grows past an offset, or goes."""
        return self.store.watching(offsets, wake, catalog=catalog)

    # Consumers.

    def subscribe(
        self,
        client: Principal,
        topic: int,
        consumer: int,
        *,
        start: int,
        max_batch_bytes: int,
    ) -> int:
        """Note a consumer, and tell where it starts; 0 stands for its last commit."""
        view = self.view(client, topic)
        key = ConsumerKey(consumer, topic)
        with self._lock:
            self._subscriptions[key] = max_batch_bytes
            self._subscriptions.move_to_end(key)
            if len(self._subscriptions) > _SUBSCRIPTIONS_MAX:
                self._subscriptions.popitem(last=False)
        if start == 0:
            start = self.store.committed_offset(consumer, topic) or 0
        return min(start, view.end.offset)

    def unsubscribe(self, client: Principal, topic: int, consumer: int) -> None:
        """Forget a consumer."""
        self.gate.admit(client, topic)
        with self._lock:
            found = self._subscriptions.pop(ConsumerKey(consumer, topic), None)
        if found is None:
            raise errors.ConsumerNotFound(
                f"Consumer {consumer} is not subscribed to topic {topic}"
            )

    def commit_offset(
        self, client: Principal, topic: int, consumer: int | str, offset: int
    ) -> None:
        """Keep the offset of a consumer durably, or the record number of a group."""
        is_group = isinstance(consumer, str)
        at = self.view(client, topic).end
        end = at.record if is_group else at.offset
        if offset > end:
            what = "Record" if is_group else "Offset"
            raise errors.OffsetOutOfRange(
                f"{what} {offset} is beyond the end {end} of topic {topic}",
                details={"log_end": end},
            )
        known = self.store.committed_offset(consumer, topic) is not None
        if not known and self.store.consumer_count >= self._consumers_max:
            raise errors.InvalidPayload(
                f"{self._consumers_max} offsets are committed already, which is "
                "the most (consumers_max)"
            )
        self.store.commit_offset(consumer, topic, offset)

    def committed_offset(
        self, client: Principal, topic: int, consumer: int | str
    ) -> int | None:
        """Tell what a consumer or group has committed; None if it has not."""
        self.gate.admit(client, topic)
        return self.store.committed_offset(consumer, topic)

    def consumers(self, client: Principal, topic: int) -> list[ConsumerState]:
        """List the consumers of a topic that are subscribed or have committed."""
        self.gate.admit(client, topic)
        return self._describe_consumers(lambda t: t == topic).get(topic, [])

    def all_consumers(self, client: Principal) -> dict[int, list[ConsumerState]]:
        """List the consumers of all topics that a client may see, by topic."""
        self.gate.admit(client, None)
        return self._describe_consumers(lambda t: self.gate.may_see(client, t))

    def _describe_consumers(
        self, is_shown: Callable[[int], bool]
    ) -> dict[int, list[ConsumerState]]:
        committed = self.store.consumer_offsets()
        with self._lock:
            subscribed = dict(self._subscriptions)
        keys = committed.keys() | subscribed.keys()
        shown = {topic for topic in {topic for _, topic in keys} if is_shown(topic)}
        found: dict[int, list[ConsumerState]] = {}
        for key in sorted(key for key in keys if key[1] in shown):
            state = ConsumerState(key[0], committed.get(key), subscribed.get(key))
            found.setdefault(key[1], []).append(state)
        return found

    # Groups. A member is as protected as what it subscribes to.

    def join_group(
        self,
        client: Principal,
        group: str,
        member: str,
        *,
        topics: Sequence[str],
        strategy: Strategy,
        session_timeout_s: float,
    ) -> Joined:
        """Join a group, or change what a member subscribes to."""
        self._admit_member(client, group, member)
        for name in topics:
            self.check_log_name(client, name)
        return self.groups.join(
            group, member, topics, strategy, session_timeout_s=session_timeout_s
        )

    def beat_group(
        self, client: Principal, group: str, member: str, generation: int
    ) -> Assigned:
        """Note that a member is alive."""
        self._admit_member(client, group, member)
        return self.groups.heartbeat(group, member, generation)

    def leave_group(self, client: Principal, group: str, member: str) -> None:
        """Take a member out of its group."""
        self._admit_member(client, group, member)
        self.groups.leave(group, member)

    def describe_groups(self, client: Principal) -> list[GroupDescription]:
        """List the groups, with the members of which a client may see all topics."""
        self.gate.admit(client, None)
        seen = []
        for group in self.groups.describe():
            members = {
                member: topics
                for member, topics in group.members.items()
                if not any(
                    self.gate.hides(client, name)
                    for name in self.groups.subscription(group.group, member)
                )
            }
            if members:
                seen.append(group._replace(members=members))
        return seen

    def subscription(self, client: Principal, group: str, member: str) -> list[str]:
        """List the topics that a member of a group shares, those a client may see."""
        self.gate.admit(client, None)
        names = self.groups.subscription(group, member)
        return sorted(name for name in names if not self.gate.hides(client, name))

    def _admit_member(self, client: Principal, group: str, member: str) -> None:
        """Admit to a member: the client has to know of all that it subscribes to.

        Its topics stay out of the text: the client has named none of them.
        """
        self.gate.admit(client, None)
        names = self.groups.subscription(group, member)
        if any(self.gate.hides(client, name) for name in names):
            raise errors.AccessDenied(
                f"Access denied: client '{client.name}' not authorized for member "
                f"'{member}' of group '{group}'"
            )

    # Housekeeping.

    def maintain(self) -> None:
        """Apply retention and drop expired stages and members; call it now and then."""
        self.groups.expire()
        self.store.maintain()
        topics = [topic.metadata.id for topic in self.store.topics()]
        self.metrics.retain_topics([DEFAULT_TOPIC, *topics])

    def findings(self, client: Principal) -> list[Finding]:
        """List the damage that was found and mended since the store was opened."""
        self.gate.admit(client, None)
        return self.store.findings

    def lags(self) -> dict[ConsumerKey, int]:
        """Measure how far behind consumers are, for the broker's operator."""
        topics = self.store.topics(default=True)
        ends = {topic.metadata.id: topic.log.visible.offset for topic in topics}
        return {
            key: max(0, ends[key.topic] - offset)
            for key, offset in self.store.consumer_offsets().items()
            if key.topic in ends
        }

    def gauges(self, client: Principal | None = None) -> list[TopicGauge]:
        """Measure topics, the default topic too: those of a client, or all of them.

        All are for the broker's operator, who is no client.
        """
        stages: dict[str, int] = {}
        for stage in self.store.stages():
            name = stage.metadata.topic
            stages[name] = stages.get(name, 0) + 1
        gauges = []
        for topic in self.store.topics(default=True):
            if client is not None and not self.gate.may_see(client, topic.metadata.id):
                continue
            start, end, segments = topic.log.snapshot()
            gauges.append(
                TopicGauge(
                    id=topic.metadata.id,
                    name=topic.metadata.name,
                    log_start=start.offset,
                    log_end=end.offset,
                    records=end.record - start.record,
                    stages=stages.pop(topic.metadata.name, 0),
                    bytes_on_disk=sum(s.size + s.index_bytes for s in segments),
                )
            )
        return gauges


# The first match counts, so that special cases stand before what they are cases of.
_REFUSALS: tuple[tuple[type[LanceError], type[BrokerError]], ...] = (
    (errors.RecordTooLarge, errors.PayloadTooLarge),
    (errors.RecordError, errors.InvalidPayload),
    (errors.RowError, errors.PayloadTooLarge),
    (errors.PayloadOverLimit, errors.PayloadTooLarge),
    (errors.ProtocolError, errors.InvalidPayload),
    (errors.InvalidName, errors.InvalidTopicName),
    (errors.TopicExists, errors.TopicAlreadyExists),
    (errors.LimitReached, errors.InvalidPayload),
    (errors.OutOfRange, errors.InvalidOffset),
    (errors.StageExpired, errors.StageExpiredError),
    (errors.StageUnknown, errors.StageNotFound),
    (errors.StageMismatch, errors.StageMismatchError),
    (errors.BatchGap, errors.StageMismatchError),
    (errors.CommitConflict, errors.CommitConflictError),
    (errors.CommitUnknown, errors.CommitUnknownError),
    (errors.Timeout, errors.OperationTimeout),
    (errors.StoreError, errors.StorageError),
    (errors.OptionError, errors.InvalidPayload),
)


def to_broker_error(error: Exception) -> BrokerError:
    """Turn whatever a request runs into into the error that the client is told."""
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, errors.UnknownTopic):
        return _unknown_topic(error)
    if isinstance(error, errors.AppendConflict):
        found = {"next_record": error.next_record}
        return errors.AppendConflictError(str(error), details=found)
    for met, said in _REFUSALS:
        if isinstance(error, met):
            return said(str(error))
    # A bug. The client learns that it is one; the reason is for the broker's log.
    logger.error("request failed", exc_info=error)
    return errors.InternalError(f"internal error: {type(error).__name__}")


def _unknown_topic(error: errors.UnknownTopic) -> BrokerError:
    """Tell a topic that never was from one that was deleted, or has partitions."""
    if isinstance(error, errors.PartitionedTopic):
        return errors.TopicNotFound(str(error))
    details = {"topic_id": error.topic} if isinstance(error.topic, int) else {}
    if error.deleted:
        return errors.TopicDeleted(f"Topic {error.topic} was deleted", details=details)
    return errors.TopicNotFound(f"Topic {error.topic} not found", details=details)
