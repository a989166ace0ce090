"""The client: every call that an LWP server takes, on a connection that heals itself.

`link` gets requests to a server, `dialect` writes and reads them, `answer` has what the
calls return. The file is long because every call is here, where a reader looks for it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

from lance_spark import errors
from lance_spark.client.config import Runtime
from lance_spark.client.connection import Connection
from lance_spark.client.link import Build, Dialer, Link
from lance_spark.client.lwp import answer
from lance_spark.client.lwp.answer import (
    Fetched,
    KnownBounds,
    PendingFetch,
    ShownTopic,
    TopicList,
)
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.client.lwp.dialect import make_candidates
from lance_spark.client.retry import Retry
from lance_spark.errors import (
    CommitUnknownError,
    ConnectionLost,
    LanceError,
    OptionError,
    Timeout,
    TopicAlreadyExists,
    TopicDeleted,
    TopicNotFound,
    Unsupported,
)
from lance_spark.model import Location, Retention
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import Capability, LocateKind, Message, WaitResponse

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
T = TypeVar("T")

# Any answer that the request may have.
_ANY: type[Message] = Message  # type: ignore[type-abstract]
# A capability, and what it is needed for.
Needs = tuple[Capability, str]
_STAGES = (Capability.STAGED_COMMIT, "writing exactly once")
_GROUPS = (Capability.GROUPS, "consuming in a group")
_PARTITIONS = (Capability.PARTITIONS, "deleting a topic with several partitions")
_SNAP = (Capability.FETCH_FLAGS, "reading from the next record boundary")
_LOCATE = {
    kind: (Capability.LOCATE, f"finding records by {kind.name.lower()}")
    for kind in LocateKind
}
_WAIT = (Capability.WAIT, "waiting for new data")

# What the server in the field allows; other servers may be more generous.
_PORTABLE_NAME = re.compile(r"[A-Za-z0-9-]+")
# Of the answer to a fetch with the longer header (LWP §5.9.1).
_FETCH_HEADER_BYTES = 24
_U32_MAX = 2**32 - 1
# Servers push no records to a subscriber, and only remember this number.
_MAX_BATCH_BYTES = 4 * 1024 * 1024
# Our broker answers 30 keepalives at once and 5 a second after that, and drops the
# others: a client of the field answers answers, and would not stop. A ping whose
# keepalive is dropped would wait in vain. This is below what is answered in any such
# time.
PINGS_MAX = 25
PING_WINDOW_S = 6.0

# Answers that hold for every request of the same commit, also for one that was sent
# before and is still on its way to the server.
_SETTLED = (
    errors.CommitConflictError,
    errors.InvalidTopicName,
    errors.PayloadTooLarge,
    errors.StageExpiredError,
    errors.StageMismatchError,
    errors.StageNotFound,
)
# Answers that hold for the one request: it has done nothing, another one may.
_REFUSED = (
    errors.AccessDenied,
    errors.AuthenticationFailed,
    errors.AuthenticationRequired,
    errors.Backpressure,
    errors.ClusterNotReady,
    errors.ConnectionLimit,
    errors.InvalidPayload,
    errors.LeaderUnknown,
    errors.NotLeader,
    errors.RateLimited,
    errors.StorageError,
    errors.TopicNotFound,
)


class LanceClient:
    """A client of a LANCE server or cluster; any number of threads may use it.

    It connects when first needed and reconnects when it has to, follows redirects to
    the leader and repeats what is safe to repeat. Requests of several threads share
    one connection and are answered in order, so that a call that waits on the server
    holds up the others; `dedicated` gives a client with a connection of its own.

    Args:
        servers: addresses as `host:port`, separated by commas.
        config: all settings; instead, or changed by `servers` and `options`.
        runtime: the network, the time and chance.
        options: fields of `ClientConfig`.

    Raises:
        OptionError: a setting can't be used.
    """

    def __init__(
        self,
        servers: str | None = None,
        *,
        config: ClientConfig | None = None,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        if servers is not None:
            options["servers"] = servers
        config = _change(config or ClientConfig(), options)
        runtime = runtime or Runtime()
        dialer = Dialer(config, runtime, make_candidates(config))
        self._set_up(config, runtime, dialer)

    def _set_up(self, config: ClientConfig, runtime: Runtime, dialer: Dialer) -> None:
        self.config = config
        self._runtime = runtime
        self._dialer = dialer
        # Writers deliver their batches over it.
        self.link = Link(config, runtime, dialer)
        # One that `borrow` has made and that is not in use.
        self._spare: LanceClient | None = None
        self._spare_lock = threading.Lock()
        self._topic_ids: dict[str, int] = {}
        self._topic_ids_lock = threading.Lock()
        # When the last pings were sent.
        self._pings_s: deque[float] = deque(maxlen=PINGS_MAX)

    # The connection.

    def connect(self) -> LanceClient:
        """Connect now, trying each server once, and return the client.

        Raises:
            LanceError: no server can be reached, or none takes this client.
        """
        self.link.connect_once()
        return self

    def connection(self) -> Connection:
        """Return the live connection, made if needed and with the usual retries."""
        return self.link.connection()

    def disconnect(self) -> None:
        """Drop the connection; the next call makes a new one."""
        self.link.drop()

    def dedicated(self) -> LanceClient:
        """Make a client with the same settings and a connection of its own."""
        client = LanceClient.__new__(LanceClient)
        client._set_up(self.config, self._runtime, self._dialer)
        return client

    def borrow(self) -> LanceClient:
        """Make a client as `dedicated` does, or give one that came back.

        To connect costs more than to write a few rows, and a task of Spark writes
        one stage after the other with the same client.
        """
        with self._spare_lock:
            spare, self._spare = self._spare, None
        return self.dedicated() if spare is None else spare

    def give_back(self, borrowed: LanceClient) -> None:
        """Keep a client, which has nothing pending, for the next one who borrows."""
        with self._spare_lock:
            is_kept = self._spare is None and not self.is_closed
            if is_kept:
                self._spare = borrowed
        if not is_kept:
            borrowed.close()

    def close(self) -> None:
        """Close the connection; calls under way end, later ones are refused."""
        self.link.close()
        # Behind that: what comes back from now on is not kept.
        with self._spare_lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    @property
    def is_closed(self) -> bool:
        """Whether the client was closed."""
        return self.link.is_closed

    def __enter__(self) -> LanceClient:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else ""
        return f"<LanceClient {self.config.servers}{state}>"

    # The server.

    def call(
        self,
        message: Message,
        *,
        retry: bool = True,
        extended: bool = False,
        timeout_s: float | None = None,
    ) -> Message:
        """Send any request and return its answer.

        Args:
            message: the request.
            retry: whether it may be sent again when it may have arrived before.
            extended: not needed any more: the flags of a Fetch say which answer it
                asks for.
            timeout_s: for the whole call; `retry_timeout_s` if not given.

        Raises:
            BrokerError: the server refused.
            ConnectionLost, Timeout: there was no answer, and time is up or `retry`
                is off.
            RemoteProtocolError: the answer made no sense.
        """
        return self._ask(message, _ANY, retry=retry, timeout_s=timeout_s)

    def status(self) -> wire.ClusterStatus:
        """Ask who leads and what the server can do."""
        return self._ask(wire.GetClusterStatus(), wire.ClusterStatus)

    @property
    def capabilities(self) -> frozenset[str]:
        """What the server offers beyond LWP."""
        return self.connection().capabilities

    @property
    def is_plain(self) -> bool:
        """Whether the server offers nothing beyond LWP."""
        return not self.capabilities

    def supports(self, capability: Capability) -> bool:
        """Tell whether the server offers something."""
        return capability.value in self.capabilities

    def require(self, capability: Capability, what: str) -> None:
        """Check that the server offers something.

        Args:
            capability: what it has to offer.
            what: what that is needed for, for the error.

        Raises:
            Unsupported: it does not.
        """
        _check_capability(self.connection(), (capability, what))

    def ping(self) -> float:
        """Tell how many seconds a keepalive takes to the server and back.

        Many in a row are held back, as a server does not answer any number of them.
        """
        clock = self._runtime.clock
        tried, sent_s = None, 0.0
        delay_s = plan_ping_delay_s(self._pings_s, clock())
        if delay_s >= self.config.retry_timeout_s:
            servers = self.config.servers
            raise Timeout(f"{servers}: too many pings, wait {delay_s:.1f} s")
        if delay_s:
            self.link.pause(delay_s)

        def build(connection: Connection) -> Any:
            nonlocal tried, sent_s
            if connection is tried:
                # If the last answer never comes, this ping would wait for it too.
                connection.abort()
            tried, sent_s = connection, clock()
            self._pings_s.append(sent_s)
            return connection.dialect.keepalive

        self.link.ask(build)
        return clock() - sent_s

    # Topics.

    def create_topic(
        self, name: str, *, retention: Retention | None = None
    ) -> ShownTopic:
        """Create a topic.

        It is not sent a second time if the answer to the first is lost.

        Raises:
            TopicAlreadyExists: there is one of that name.
            InvalidTopicName: the server does not take the name.
        """
        return self._create_topic(name, retention, retry=False)

    def ensure_topic(
        self, name: str, *, retention: Retention | None = None
    ) -> ShownTopic:
        """Return a topic, created if there is none; `retention` is for a new one."""
        try:
            return self._create_topic(name, retention, retry=True)
        except TopicAlreadyExists:
            return self.topic(name)

    def topics(self) -> TopicList:
        """List the topics by id; the default topic 0 is not among them."""
        listing = self._ask(wire.ListTopics(), wire.TopicListing)
        topics = [answer.to_shown_topic(info) for info in listing.topics]
        return TopicList(sorted(topics, key=lambda info: info.id))

    list_topics = topics

    def topic(self, topic: int | str) -> ShownTopic:
        """Describe a topic.

        Raises:
            TopicNotFound: there is none of that id or name.
        """
        info = self._ask_topic(topic, wire.TopicInfo, wire.GetTopic)
        return answer.to_shown_topic(info)

    get_topic = topic

    def partitions(self, topic: str) -> TopicList:
        """List the partitions of a topic that has several, each of which LWP shows as
        a topic of its own, such as `orders/0`; an empty list for any other name.
        """
        return TopicList(
            info
            for info in self.topics()
            if "partitions" in info.details and info.name.rpartition("/")[0] == topic
        )

    def delete_topic(self, topic: int | str, *, partitions: int = 1) -> None:
        """Delete a topic and its data, with all of its partitions.

        It is not sent a second time if the answer to the first is lost.

        Args:
            topic: its name or id. A topic with several partitions has a name, and its
                partitions have ids.
            partitions: how many partitions the topic has, if `topic` is one of them:
                the server deletes all or none.

        Raises:
            TopicNotFound: there is none of that id or name.
        """
        if partitions != 1:
            self._ask_topic(
                *(topic, wire.TopicDeletion, wire.DeletePartitions, partitions),
                needs=_PARTITIONS,
                retry=False,
            )
            self.forget(topic)
            return
        try:
            self._ask_topic(topic, wire.TopicDeletion, wire.DeleteTopic, retry=False)
        except TopicNotFound:
            logs = self.partitions(topic) if isinstance(topic, str) else []
            if not logs:
                raise
            self.delete_topic(logs[0].id, partitions=logs[0].details["partitions"])
        self.forget(topic)

    def set_retention(self, topic: int | str, retention: Retention) -> Retention:
        """Change how long a topic keeps its data; return what holds now."""

        def make(topic_id: int) -> Build:
            return lambda connection: wire.SetRetention(
                topic_id, answer.to_sent_limits(retention, connection)
            )

        limits = self._ask_topic(topic, wire.TopicRetention, make).retention
        return answer.to_meant_limits(limits)

    def topic_id(self, topic: int | str) -> int:
        """Return a topic's id; a name is looked up once and remembered.

        Raises:
            TopicNotFound: no topic has that name.
        """
        if isinstance(topic, int):
            return topic
        with self._topic_ids_lock:
            known = self._topic_ids.get(topic)
        if known is not None:
            return known
        listing = self._ask(wire.ListTopics(), wire.TopicListing)
        ids = {info.name: info.id for info in listing.topics}
        with self._topic_ids_lock:
            self._topic_ids = dict(ids)
        if topic not in ids:
            text = (
                f"no topic is named {topic!r}, or none that this client may use; "
                "create it first"
            )
            if f"{topic}/0" in ids:
                text = (
                    f"topic {topic!r} has partitions, which are topics of their own in "
                    f"LWP: name one, as in {f'{topic}/0'!r}, or use a protocol that "
                    "has partitions"
                )
            raise TopicNotFound(text, wire.code_of(TopicNotFound))
        return ids[topic]

    def forget(self, topic: int | str) -> None:
        """Forget a topic's id, so that its name is looked up again."""
        with self._topic_ids_lock:
            for name, topic_id in list(self._topic_ids.items()):
                if topic in (name, topic_id):
                    del self._topic_ids[name]

    def _create_topic(
        self, name: str, retention: Retention | None, *, retry: bool
    ) -> ShownTopic:
        if retention is not None and not isinstance(retention, Retention):
            raise OptionError(f"retention {retention!r}: give a Retention")

        def build(connection: Connection) -> Message:
            if retention is None:
                return wire.CreateTopic(name)
            limits = answer.to_sent_limits(retention, connection)
            return wire.CreateTopicWithRetention(name, limits)

        info = self._ask(build, wire.TopicInfo, retry=retry)
        if not _PORTABLE_NAME.fullmatch(name):
            logger.warning(
                "topic name %r: some servers only take letters, digits and hyphens",
                name,
            )
        with self._topic_ids_lock:
            self._topic_ids[name] = info.id
        return answer.to_shown_topic(info)

    # Reading.

    def fetch(
        self,
        topic: int | str,
        start: int,
        max_bytes: int,
        *,
        snap: bool = False,
        wait_s: float = 0.0,
    ) -> Fetched:
        """Read bytes of a topic, as the server cuts them.

        Args:
            topic: id or name.
            start: the first byte; behind the log's end gives the end and no data.
            max_bytes: how much at most; one whole record may be more.
            snap: move the start forward to where a record starts.
            wait_s: wait so long for data. Other calls on the same client wait as
                well. A plain server answers at once.

        Raises:
            TopicNotFound: there is no such topic.
            Unsupported: `snap` on a plain server.
        """
        size, needs = self._limit(max_bytes), _SNAP if snap else None

        def make(topic_id: int) -> Build:
            return lambda connection: answer.make_fetch(
                connection, topic_id, start, size, snap=snap, wait_s=wait_s
            )

        fetched = self._ask_topic(topic, _ANY, make, needs=needs, wait_s=wait_s)
        return answer.to_fetched(fetched)

    def submit_fetch(
        self,
        topic_id: int,
        start: int,
        max_bytes: int,
        *,
        wait_s: float = 0.0,
        dial: bool = True,
    ) -> PendingFetch:
        """Send a fetch and return at once, so that the next one is on its way early.

        It is not sent again if the connection is lost: `PendingFetch.result` says so.

        Args:
            topic_id: id of the topic.
            start: the first byte.
            max_bytes: how much at most.
            wait_s: how long the server may wait for data.
            dial: connect if need be, with all retries; otherwise there has to be a
                connection.

        Raises:
            ConnectionLost, Timeout: no server can be reached.
        """
        connection = self.link.connection() if dial else self.link.live()
        if connection is None:
            raise ConnectionLost("the connection of the last fetch is gone")
        size = self._limit(max_bytes)
        fetch = answer.make_fetch(connection, topic_id, start, size, wait_s=wait_s)
        deadline = Deadline.after(self.config.request_timeout_s)
        return PendingFetch(connection.submit(fetch, deadline=deadline))

    def bounds(self, topic: int | str) -> KnownBounds:
        """Tell where a topic starts and ends; a plain server knows its end only."""

        def ask(topic_id: int) -> KnownBounds:
            if not self.supports(Capability.LOCATE):
                return KnownBounds(None, self.fetch(topic_id, wire.OFFSET_MAX, 1).end)
            # In this order, so that the start is never behind the end.
            start = self.locate_start(topic_id).offset
            return KnownBounds(start, self.locate_end(topic_id).offset)

        return self._on_topic(topic, ask)

    def locate_offset(self, topic: int | str, offset: int) -> Location:
        """Find the first record that starts at or after a byte offset.

        Raises:
            Unsupported: the server is a plain one; so do the other `locate_*`.
        """
        return self._locate(topic, LocateKind.OFFSET, offset)

    def locate_record(self, topic: int | str, record: int) -> Location:
        """Find a record by its number."""
        return self._locate(topic, LocateKind.RECORD, record)

    def locate_time(self, topic: int | str, append_time_ns: int) -> Location:
        """Find the first record that was appended at or after a time."""
        return self._locate(topic, LocateKind.TIME, append_time_ns)

    def locate_start(self, topic: int | str) -> Location:
        """Find the start of a topic."""
        return self._locate(topic, LocateKind.START)

    def locate_end(self, topic: int | str) -> Location:
        """Find the end of a topic."""
        return self._locate(topic, LocateKind.END)

    def wait(
        self, version: int, positions: Mapping[int, int], wait_s: float
    ) -> WaitResponse:
        """Wait until a topic grows past an offset or the list of topics changes.

        Args:
            version: the version of the list that is known; 0 for none.
            positions: offsets by topic id.
            wait_s: the longest wait; other calls on the same client wait as well.

        More positions than one Wait may have are asked for in parts, one behind the
        other. Data of a part that is not waited for at that moment is then noticed
        later, but within the longest wait.

        Raises:
            Unsupported: the server is a plain one.
        """
        most = answer.find_positions_max(self.connection())
        listed = list(positions.items())
        if len(listed) <= most:
            return self._wait(version, listed, wait_s)
        parts = [listed[n : n + most] for n in range(0, len(listed), most)]
        answers = [self._wait(version, part, 0.0) for part in parts]
        for number, part in enumerate(parts):
            if any(answer.is_news(a, version, positions) for a in answers):
                break
            answers[number] = self._wait(version, part, wait_s / len(parts))
        # The oldest version: a list that changed between two parts is news next time.
        oldest = min(each.version for each in answers)
        return WaitResponse(oldest, tuple(e for a in answers for e in a.ends))

    def _wait(
        self, version: int, positions: Sequence[tuple[int, int]], wait_s: float
    ) -> WaitResponse:
        ends = tuple(wire.TopicPosition(t, offset) for t, offset in positions)
        message = wire.Wait(version, ends, answer.to_ms(wait_s))
        return self._ask(message, WaitResponse, needs=_WAIT, wait_s=wait_s)

    def _locate(self, topic: int | str, kind: LocateKind, value: int = 0) -> Location:
        found = self._ask_topic(
            topic, wire.LocateResponse, wire.Locate, kind, value, needs=_LOCATE[kind]
        )
        return found.location

    def _limit(self, max_bytes: int) -> int:
        largest = self.config.response_bytes_max - _FETCH_HEADER_BYTES
        return min(max_bytes, largest, _U32_MAX)

    # Consumers as the server knows them.

    def subscribe(
        self,
        topic: int | str,
        consumer_id: int,
        *,
        start: int = 0,
        max_batch_bytes: int = _MAX_BATCH_BYTES,
    ) -> int:
        """Announce a consumer; return where it starts.

        Args:
            topic: id or name.
            consumer_id: see `lance_spark.client.consumer_id`.
            start: 0 resumes at the committed offset, if there is one.
            max_batch_bytes: how much the consumer wants at once.
        """
        how = start, max_batch_bytes, consumer_id
        return self._ask_topic(topic, wire.SubscribeAck, wire.Subscribe, *how).start

    def unsubscribe(self, topic: int | str, consumer_id: int) -> None:
        """End a subscription; what was committed stays.

        Raises:
            ConsumerNotFound: there is none.
        """
        self._ask_topic(topic, wire.Unsubscribe, wire.Unsubscribe, consumer_id)

    def commit_offset(
        self,
        topic: int | str,
        consumer_id: int,
        offset: int,
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Have the server remember how far a consumer is; return what it remembers.

        Args:
            topic: id or name.
            consumer_id: see `lance_spark.client.consumer_id`.
            offset: of the next record.
            timeout_s: for the whole call; `retry_timeout_s` if not given.

        Raises:
            OffsetOutOfRange: the offset is behind the log's end.
        """
        place = consumer_id, offset
        committed = self._ask_topic(
            topic, wire.CommitAck, wire.CommitOffset, *place, timeout_s=timeout_s
        )
        return committed.offset

    def committed_offset(self, topic: int | str, consumer_id: int) -> int | None:
        """Tell how far a consumer is, or None if it has committed nothing.

        On a plain server a committed 0 can't be told from nothing.
        """

        def ask(topic_id: int) -> int | None:
            if not self.is_plain:
                details = self._ask(wire.GetTopic(topic_id), wire.TopicInfo).details
                is_told, offset = answer.find_committed(details, consumer_id)
                if is_told:
                    return offset
            # A subscription at 0 is the only question that LWP has for this.
            return self.subscribe(topic_id, consumer_id) or None

        return self._on_topic(topic, ask)

    # Stages. All calls are safe to repeat and are repeated: a stage that was opened and
    # never named goes with the job, a commit is known by writer and sequence.

    def open_stage(self, topic_name: str, writer_id: str, sequence: int) -> int:
        """Open a stage for a topic that need not exist yet; return the stage's id.

        Raises:
            Unsupported: the server is a plain one; so do the other calls for stages.
        """
        message = wire.OpenStage(topic_name, writer_id, sequence)
        return self._ask(message, wire.StageOpened, needs=_STAGES).stage_id

    def commit_stages(
        self,
        writer_id: str,
        sequence: int,
        stages: Sequence[wire.StageContent],
        *,
        overwrite: Sequence[str] = (),
    ) -> wire.StagesCommitted:
        """Append stages to their topics, in this order, all or nothing.

        Args:
            writer_id: who writes.
            sequence: which of the writer's commits this is; it has to rise.
            stages: the stages and what they hold; all others of the job are dropped.
            overwrite: names of topics whose content is replaced.

        Raises:
            StageMismatchError: the server holds other data than `stages` says.
            StageNotFound, StageExpiredError: a stage is gone.
            CommitConflictError: the sequence was committed with other topics.
            CommitUnknownError: time is up, and whether the commit was carried out is
                still not known. Any other error means that it was not, nor will be.
        """
        named = f"commit {sequence} of {writer_id!r}"
        return self._ask(
            wire.CommitStages(writer_id, sequence, tuple(overwrite), tuple(stages)),
            wire.StagesCommitted,
            needs=_STAGES,
            make_rules=partial(CommitRetry, commit=named),
        )

    def abort_stages(self, writer_id: str, sequence: int) -> int:
        """Drop all stages of a job that were not committed; return how many."""
        message = wire.AbortStages(writer_id, sequence)
        return self._ask(message, wire.StagesAborted, needs=_STAGES).dropped

    # Membership of consumer groups.

    def join_group(
        self,
        group: str,
        topics: Sequence[str],
        *,
        member: str = "",
        strategy: wire.AssignmentStrategy = wire.AssignmentStrategy.RANGE,
        session_timeout_s: float = 30.0,
        timeout_s: float | None = None,
    ) -> wire.GroupJoined:
        """Join a group, or join it again with other topics.

        Args:
            group: its name.
            topics: names of the topics that this member can read.
            member: the member's name; empty to be given one.
            strategy: how topics are shared out.
            session_timeout_s: silence after which the member is taken for dead.
            timeout_s: for the whole call.

        Raises:
            Unsupported: the server is a plain one; so do the other calls for groups.
        """
        message = wire.JoinGroup(
            group, member, tuple(topics), strategy, round(session_timeout_s * 1000)
        )
        return self._ask(message, wire.GroupJoined, needs=_GROUPS, timeout_s=timeout_s)

    def heartbeat(
        self,
        group: str,
        member: str,
        generation: int,
        *,
        timeout_s: float | None = None,
    ) -> wire.GroupHeartbeatResponse:
        """Say that a member is alive and which generation it has applied.

        Raises:
            ConsumerNotFound: the member is not known any more and has to join again.
        """
        message = wire.GroupHeartbeat(group, member, generation)
        kind = wire.GroupHeartbeatResponse
        return self._ask(message, kind, needs=_GROUPS, timeout_s=timeout_s)

    def leave_group(
        self, group: str, member: str, *, timeout_s: float | None = None
    ) -> None:
        """Leave a group, so that others get the member's topics at once."""
        message = wire.LeaveGroup(group, member)
        self._ask(message, wire.GroupLeft, needs=_GROUPS, timeout_s=timeout_s)

    # Inside.

    def _ask(
        self,
        request: Message | Build,
        kind: type[M],
        *,
        needs: Needs | None = None,
        **how: Any,
    ) -> M:
        """Send a request and return its answer, which has to be of this kind.

        Args:
            request: the message, or what makes the one that suits the server.
            kind: what the answer is.
            needs: a capability, and what it is needed for.
            how: what `Link.ask` takes.
        """

        def build(connection: Connection) -> Any:
            if needs is not None:
                _check_capability(connection, needs)
            return request if isinstance(request, Message) else request(connection)

        answered = self.link.ask(build, **how)
        # The dialect takes no other answers than those in its table.
        assert isinstance(answered, kind)
        return answered

    def _ask_topic(
        self,
        topic: int | str,
        kind: type[M],
        make: Callable[..., Message | Build],
        *args: Any,
        **how: Any,
    ) -> M:
        """Ask about a topic, given what makes the request of its id and the others."""
        return self._on_topic(topic, lambda i: self._ask(make(i, *args), kind, **how))

    def _on_topic(self, topic: int | str, ask: Callable[[int], T]) -> T:
        """Ask about a topic; a name whose id is gone is looked up once more."""
        if isinstance(topic, int):
            return ask(topic)
        try:
            return ask(self.topic_id(topic))
        except (TopicNotFound, TopicDeleted):
            self.forget(topic)
            return ask(self.topic_id(topic))


@dataclass(eq=False, kw_only=True)
class CommitRetry(Retry):
    """Ask for a commit until its outcome is known, or time is up.

    A request that was sent and not answered may have been carried out, or may be yet:
    a server reads what is left of a connection that its client has closed. From then
    on a refusal that another request need not meet, as of a full disk, proves nothing,
    and the commit is asked for again: a server carries it out once.

    Args:
        commit: names the commit in the error.
    """

    commit: str
    _is_in_doubt: bool = False

    def note(self, error: LanceError, asked: Address | None) -> None:
        """Note whether a server may have carried out the commit."""
        if asked is not None and not isinstance(error, (*_SETTLED, *_REFUSED)):
            self._is_in_doubt = True

    def conclude(self, error: LanceError) -> LanceError:
        """Say that the outcome is not known, if it is not."""
        if not self._is_in_doubt or isinstance(error, _SETTLED):
            return error
        unknown = CommitUnknownError(
            f"the outcome of {self.commit} is not known: its rows may be there, now or "
            "when the broker is started again, or not at all. Commit again with the "
            "same writer id and sequence, which writes them once. The last failure: "
            f"{error}",
            wire.code_of(CommitUnknownError),
        )
        unknown.__cause__ = error
        return unknown

    def _may_pass(self, error: LanceError, asked: Address | None) -> bool:
        if self._is_in_doubt and isinstance(error, _REFUSED):
            return True
        return super()._may_pass(error, asked)


def plan_ping_delay_s(sent_s: deque[float], now_s: float) -> float:
    """Decide how long the next ping has to wait, given when the last ones were sent."""
    if len(sent_s) < PINGS_MAX:
        return 0.0
    return max(0.0, sent_s[0] + PING_WINDOW_S - now_s)


def _check_capability(connection: Connection, needs: Needs) -> None:
    capability, what = needs
    if capability.value not in connection.capabilities:
        raise Unsupported(what, capability.value, str(connection.address))


def _change(config: ClientConfig, options: dict[str, Any]) -> ClientConfig:
    known = [field.name for field in fields(ClientConfig)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise OptionError(
            f"no such setting: {', '.join(unknown)}; there are {', '.join(known)}"
        )
    return replace(config, **options)
