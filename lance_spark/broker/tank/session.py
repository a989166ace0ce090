"""A client that speaks TANK.

Sequence numbers are record numbers plus one. Answers carry the ids of their requests
and may overtake each other: an append waits for the disk and a poll for records, while
other requests are answered. TANK has no code for refusals: the connection is closed,
and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from lance_spark.broker.exchange import Family, Loaded
from lance_spark.broker.service import to_broker_error
from lance_spark.broker.session import (
    PIECE_BYTES,
    WAIT_POSITION_BYTES,
    AnswerFull,
    Owed,
    Session,
    StandingRequest,
)
from lance_spark.errors import (
    AppendConflict,
    AuthenticationRequired,
    BrokerError,
    ConnectionLost,
    InvalidPayload,
    LanceError,
    OffsetOutOfRange,
    PayloadTooLarge,
    RemoteProtocolError,
    StorageError,
    Timeout,
    TopicAlreadyExists,
    TopicNotFound,
    UnknownTopic,
)
from lance_spark.model import Bounds, Buffer, Retention
from lance_spark.records import Records
from lance_spark.wire import tank as wire

logger = logging.getLogger(__name__)

# What TANK's broker makes of a wait.
_WAIT_S_MIN, _WAIT_S_MAX = 0.32, 3600.0
# All partitions of an answer together; one record may be larger.
_ANSWER_BYTES_MAX = 8 * 1024 * 1024
# One of them. Buffers of twice the size are made of new pages each time, which costs
# more than to be asked twice.
_PARTITION_BYTES_MAX = 1024 * 1024
# What a partition costs in an answer, whatever comes of it.
_PARTITION_COST_BYTES = 4096
# The most partitions that a request may name, and each of them as often as it likes.
_PARTITIONS_MAX = 4096
# What a message takes beside its bytes while it is looked at: its positions.
_ROW_BYTES = 64
# Codes that depend on more than the class of an error.
_UNKNOWN_PARTITION = 0x01
_FAILED = 0x02
_RETENTION = "log.retention.secs"
_RETENTION_S_MAX = 2**32


@dataclass(eq=False, slots=True)
class _Writing:
    """A request to produce, some of whose writes may wait for the disk.

    Args:
        request: it.
        codes: the code of each write, by the places of its topic and itself.
        left: how many writes wait; while the request is being read, one more.
    """

    request: wire.Produce
    codes: dict[tuple[int, int], int] = field(default_factory=dict)
    left: int = 1

    def forget_bundles(self) -> None:
        """Keep of the request what the answer needs."""
        topics = tuple(
            replace(t, writes=tuple(replace(w, bundle=b"") for w in t.writes))
            for t in self.request.topics
        )
        self.request = replace(self.request, topics=topics)

    def answer(self) -> wire.Produced:
        """Make the answer: a topic that is unknown has one code for all its writes."""
        outcomes: list[wire.Outcome] = []
        for at, topic in enumerate(self.request.topics):
            codes = [self.codes[at, n] for n in range(len(topic.writes))]
            if codes and codes[0] == wire.UNKNOWN:
                codes = codes[:1]
            outcomes += map(wire.Outcome, codes)
        return wire.Produced(self.request.request_id, tuple(outcomes))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A partition that is to be read.

    Args:
        topic: its topic.
        partition: its number.
        size: how much to send, about.
        flag: why it can't be read, or OK.
        log: the id of its log.
        start: the first record.
        end: where it ended when it was asked for.
    """

    topic: str
    partition: int
    size: int
    flag: int = wire.OK
    log: int = 0
    start: int = 0
    end: int = 0

    @property
    def where(self) -> str:
        """Its name in the log."""
        return f"{self.topic}/{self.partition}"


class TankSession(Session[wire.Frame]):
    """Serves one client of TANK."""

    def _make_parser(self) -> wire.FrameParser:
        return wire.FrameParser(payload_bytes_max=self._payload_bytes_max)

    def run(self) -> None:
        """Greet with a ping, as TANK's broker does, and serve the client."""
        with suppress(ConnectionLost):
            self._send(wire.encode_message(wire.Ping()))
            super().run()

    # Frames.

    def _handle(self, frame: wire.Frame) -> None:
        if not self.is_admitted:
            raise AuthenticationRequired(
                "this broker asks for a token, which TANK can't carry: use TLS with a "
                "client certificate"
            )
        message = wire.decode_request(frame)
        handler = _HANDLERS.get(type(message))
        if handler is not None:
            answer = handler(self, message)
            if answer is not None:
                self._observe(type(message).__name__, self._began_s)
                self._send(wire.encode_message(answer))

    def _refuse(self, error: BrokerError, frame: wire.Frame | None) -> None:
        logger.warning("%s: closed: %s", self._stream.peer, error)
        self._settle()
        # TANK can't say it. Whatever stands on the connection ends with it.
        raise ConnectionLost(f"{self._stream.peer}: closed")

    def _code(self, kind: wire.Kind, error: LanceError, where: str) -> int:
        """Give the code of a failure, and say in the log what it was.

        Raises:
            BrokerError: TANK has no code for it, and the connection is to be closed.
        """
        told = to_broker_error(error)
        code = wire.code_of(kind, told)
        if code is None:
            raise told
        if isinstance(error, AppendConflict) and error.next_record < error.expected:
            # A gap. A writer that replays takes 0a for "written before".
            code = _FAILED
        is_usual = isinstance(told, TopicNotFound | TopicAlreadyExists)
        log = logger.debug if is_usual else logger.warning
        log("%s: %s: %s", self._stream.peer, where, told)
        return code

    def _fail(self, kind: wire.Kind, error: LanceError, where: str) -> int:
        """Give the code of a failure as `_code` does, and count it."""
        self._count("requests_refused")
        return self._code(kind, error, where)

    # Writing.

    def _produce(self, message: wire.Produce) -> wire.Message | None:
        _check_count(sum(len(topic.writes) for topic in message.topics))
        writing, done = _Writing(message), set()
        for at, topic in enumerate(message.topics):
            for n, write in enumerate(topic.writes):
                where = f"{topic.name}/{write.partition}"
                try:
                    if where in done:
                        raise InvalidPayload("a partition is named twice")
                    done.add(where)
                    self._write(writing, (at, n), topic.name, write)
                except ConnectionLost:
                    raise
                except LanceError as error:
                    code = self._fail(message.KIND, error, where)
                    if code == wire.UNKNOWN and self._has(topic.name):
                        code = _UNKNOWN_PARTITION
                    writing.codes[at, n] = code
                self._turn.pause()
        # Owed answers must not keep the bundles: the memory of the frame is free then.
        writing.forget_bundles()
        writing.left -= 1
        return None if writing.left else writing.answer()

    def _write(
        self, writing: _Writing, key: tuple[int, int], topic: str, write: wire.Write
    ) -> None:
        log = self._exchange.find(self._client, topic, write.partition)
        records = self._read_bundle(write)
        if not len(records):
            writing.codes[key] = wire.OK
            return
        # A sparse bundle says its numbers itself.
        first_seq = write.first_seq or records.base
        if records.base and records.base != first_seq:
            raise StorageError(
                f"malformed bundle: it begins at {records.base}, and not at {first_seq}"
            )
        expected = first_seq - 1 if first_seq else None
        # Owed answers may be settled on the way, this one not before it is owed.
        self._store((writing, key), log, records, expected=expected)
        writing.left += 1

    def _read_bundle(self, write: wire.Write) -> Records:
        try:
            head = wire.inspect_bundle(write.bundle)
            self._check_size("bundle", head.expanded_bytes, "payload_bytes_max")
            self._check_size("batch", head.stored_bytes_max, "batch_bytes_max")
            size = head.expanded_bytes if head.is_compressed else 0
            if not self._hold_work(size + _ROW_BYTES * head.count):
                raise Timeout("there was no memory to read the bundle")
            records = wire.read_records(write.bundle)
        except RemoteProtocolError as error:
            raise StorageError(f"malformed bundle: {error}") from error
        if records.fault is not None:
            raise StorageError(f"malformed bundle: {records.fault}")
        if records.positions is not None:
            raise StorageError("a bundle leaves numbers out, which can't be stored")
        return records

    def _check_size(self, what: str, size: int, setting: str) -> None:
        most = getattr(self._config, setting)
        if size > most:
            raise PayloadTooLarge(
                f"a {what} of {size} bytes, and {setting} is {most}: send fewer "
                "messages at a time"
            )

    def _acknowledge(self, owed: Owed, failure: LanceError | None) -> Sequence[Buffer]:
        writing, key = owed.request
        request: wire.Produce = writing.request
        code = wire.OK
        if failure is not None:
            topic = request.topics[key[0]]
            where = f"{topic.name}/{topic.writes[key[1]].partition}"
            code = self._code(request.KIND, failure, where)
        writing.codes[key] = code
        writing.left -= 1
        if writing.left:
            return []
        self._observe(type(request).__name__, owed.began_s)
        return wire.encode_message(writing.answer())

    # Reading.

    def _consume(self, message: wire.Consume) -> wire.Message | None:
        if not message.topics:
            raise InvalidPayload("no topics are asked for")
        _check_count(sum(len(topic.fetches) for topic in message.topics))
        wanted = [self._find(t.name, f) for t in message.topics for f in t.fetches]
        # Taken before the look at the records: what comes between the two wakes.
        logs = [one.log for one in wanted if one.flag == wire.OK]
        ends = self._service.ends(self._client, logs)
        wanted = [self._place(one) for one in wanted]
        is_tail = all(one.flag == wire.OK and one.start == one.end for one in wanted)
        if message.max_wait_ms and wanted and is_tail:
            wait_s = min(max(message.max_wait_ms / 1000, _WAIT_S_MIN), _WAIT_S_MAX)
            standing = StandingRequest(
                ends,
                lambda final: self._poll(message, wanted, ends, final),
                min(wait_s, self._config.wait_s_max),
                command=type(message).__name__,
            )
            # A partition may be asked for many times.
            standing.size = WAIT_POSITION_BYTES * (len(wanted) + len(message.topics))
            if self._stand(standing):
                return None
        return self._read(message, wanted, _ANSWER_BYTES_MAX)

    def _find(self, topic: str, fetch: wire.Fetch) -> _Wanted:
        wanted = _Wanted(topic, fetch.partition, fetch.fetch_size, start=fetch.seq)
        try:
            log = self._exchange.find(self._client, topic, fetch.partition)
        except LanceError as error:
            return self._excuse(wanted, error)
        return replace(wanted, log=log)

    def _place(self, wanted: _Wanted) -> _Wanted:
        """Say what a sequence number stands for at this moment."""
        if wanted.flag != wire.OK:
            return wanted
        try:
            bounds = self._exchange.bounds(self._client, wanted.log)
        except LanceError as error:
            return self._excuse(wanted, error)
        start = _to_record(wanted.start, bounds)
        return replace(wanted, start=start, end=bounds.end)

    def _excuse(self, wanted: _Wanted, error: LanceError) -> _Wanted:
        flag = self._fail(wire.Kind.CONSUME, error, wanted.where)
        return replace(wanted, flag=flag)

    def _poll(
        self,
        message: wire.Consume,
        wanted: list[_Wanted],
        ends: Mapping[int, int],
        final: bool,
    ) -> bool:
        now = self._service.ends(self._client, ends)
        is_whole = len(now) == len(ends)
        grown = sum(now[log] - ends[log] for log in now)
        is_full = grown >= message.min_bytes and any(map(self._has_grown, wanted))
        if is_whole and not (is_full or final):
            return False
        # TANK's broker sends nothing at all if it is less than was asked for.
        room = _ANSWER_BYTES_MAX if is_full or not is_whole else 0
        self._send(wire.encode_message(self._read(message, wanted, room)))
        return True

    def _has_grown(self, wanted: _Wanted) -> bool:
        try:
            bounds = self._exchange.bounds(self._client, wanted.log)
        except LanceError:
            # The answer tells of it.
            return True
        return bounds.end > wanted.start

    def _read(
        self, message: wire.Consume, wanted: list[_Wanted], room: int
    ) -> wire.Consumed:
        """Read partitions; without room, nothing of them.

        Raises:
            Timeout: there is no memory for the first that has messages.
        """
        topics, left = [], iter(wanted)
        # An answer without messages looks like the end of all logs: the first that has
        # some is read, however many came before it.
        is_first = room > 0
        self._free_bytes = PIECE_BYTES
        for topic in message.topics:
            found = []
            for one in islice(left, len(topic.fetches)):
                try:
                    fetched = self._read_one(one, max(room, is_first))
                except AnswerFull as error:
                    if is_first:
                        raise Timeout("no memory for the answer: ask again") from error
                    # To wait for it once is enough.
                    room = 0
                    fetched = self._read_one(one, room)
                found.append(fetched)
                size = memoryview(fetched.chunk).nbytes
                is_first &= not size
                room -= size + _PARTITION_COST_BYTES
                self._turn.pause()
            is_unknown = all(one.flag == wire.UNKNOWN for one in found)
            if found and is_unknown and not self._has(topic.name):
                topics.append(wire.FetchedTopic(topic.name, unknown=len(found)))
            else:
                topics.append(wire.FetchedTopic(topic.name, tuple(found)))
        return wire.Consumed(message.request_id, tuple(topics))

    def _read_one(self, wanted: _Wanted, room: int) -> wire.Fetched:
        """Read a partition; without room nothing of it: the client asks again.

        Raises:
            AnswerFull: there is no memory for it.
        """
        number, seq = wanted.partition, wanted.start + 1
        if wanted.flag != wire.OK:
            return wire.Fetched(number, wanted.flag)
        try:
            if room <= 0:
                return self._read_none(wanted)
            loaded = self._exchange.load(
                self._client,
                wanted.log,
                wanted.start,
                max_bytes=min(max(wanted.size, 1), room, _PARTITION_BYTES_MAX),
                times=True,
                hold=self._hold_found,
                fit=self._cut,
            )
            chunk = _write_chunk(loaded)
            return wire.Fetched(number, wire.OK, seq, loaded.bounds.end, chunk)
        except OffsetOutOfRange as error:
            first, end = error.details["log_start"] + 1, error.details["log_end"]
            return wire.Fetched(number, wire.OUT_OF_RANGE, hwm=end, first_seq=first)
        except (AnswerFull, ConnectionLost, Timeout):
            raise
        except LanceError as error:
            flag = self._fail(wire.Kind.CONSUME, error, wanted.where)
            return wire.Fetched(number, flag)

    def _read_none(self, wanted: _Wanted) -> wire.Fetched:
        try:
            end = self._exchange.bounds(self._client, wanted.log).end
        except LanceError as error:
            flag = self._fail(wire.Kind.CONSUME, error, wanted.where)
            return wire.Fetched(wanted.partition, flag)
        return wire.Fetched(wanted.partition, wire.OK, wanted.start + 1, end)

    def _cut(self, records: Records) -> Records:
        """Keep what is before the first record that TANK can't carry.

        Raises:
            StorageError: that is the first of all.
        """
        row = wire.find_long_key(records)
        if row is None:
            return records
        if row == 0:
            self._count("records_refused")
            raise StorageError(
                f"message {records.position(0) + 1} has a key of more than "
                f"{wire.KEY_BYTES_MAX} bytes, which TANK can't carry"
            )
        return records.cut(0, row)

    # Topics.

    def _has(self, topic: str) -> bool:
        try:
            self._exchange.family(self._client, topic)
        except UnknownTopic:
            return False
        return True

    def _discover_partitions(self, message: wire.DiscoverPartitions) -> wire.Message:
        try:
            family = self._exchange.family(self._client, message.topic)
        except UnknownTopic:
            return wire.Partitions(message.request_id, message.topic)
        except LanceError as error:
            # It can't be told how many it has.
            state = self._excuse_state(error, message.topic)
            return wire.Partitions(message.request_id, message.topic, (state,))
        states = [self._describe(family, number) for number in range(family.partitions)]
        return wire.Partitions(message.request_id, message.topic, tuple(states))

    def _describe(self, family: Family, number: int) -> wire.PartitionState:
        try:
            if number not in family.logs:
                raise StorageError("its metadata is damaged")
            log = family.logs[number].metadata.id
            bounds = self._exchange.bounds(self._client, log)
        except LanceError as error:
            return self._excuse_state(error, f"{family.name}/{number}")
        return wire.PartitionState(bounds.start + 1, bounds.end)

    def _excuse_state(self, error: LanceError, where: str) -> wire.PartitionState:
        code = self._fail(wire.Kind.DISCOVER_PARTITIONS, error, where)
        return wire.PartitionState(reason=wire.Outcome(code))

    def _discover_topics(self, message: wire.DiscoverTopics) -> wire.Message:
        families = self._exchange.topics(self._client)
        entries = tuple(wire.TopicEntry(f.name, 1, f.partitions) for f in families)
        return wire.Topics(message.request_id, entries)

    def _create_topic(self, message: wire.CreateTopic) -> wire.Message:
        code = wire.OK
        try:
            retention = _read_retention(message.config)
            self._exchange.create(
                self._client, message.topic, message.partitions, retention=retention
            )
        except LanceError as error:
            code = self._fail(message.KIND, error, message.topic)
        return wire.Created(message.request_id, message.topic, code)

    def _reload_conf(self, message: wire.ReloadConf) -> wire.Message:
        code = wire.OK
        try:
            self._exchange.find(self._client, message.topic, message.partition)
        except LanceError as error:
            code = self._fail(message.KIND, error, message.topic)
        return wire.Reloaded(message.request_id, message.topic, message.partition, code)

    def _get_status(self, message: wire.GetStatus) -> wire.Message:
        families = self._exchange.topics(self._client)
        partitions = sum(family.partitions for family in families)
        return wire.Status(
            message.request_id,
            topics=len(families),
            partitions=partitions,
            open_partitions=partitions,
            start_time_s=int(self._service.started_s),
        )

    def _discover_topology(self, message: wire.DiscoverTopology) -> wire.Message:
        return wire.Topology(message.request_id)


def _write_chunk(loaded: Loaded) -> Buffer:
    if not len(loaded.records):
        return b""
    assert loaded.append_ns is not None
    return wire.write_records(loaded.records, stamps_ns=loaded.append_ns, framed=True)


def _to_record(seq: int, bounds: Bounds) -> int:
    """Give the record of a sequence number, or of one that stands for first or end."""
    if seq == 0:
        return bounds.start
    return bounds.end if seq == wire.SEQ_END else seq - 1


def _check_count(partitions: int) -> None:
    """Refuse requests that would keep the broker busy for seconds.

    Raises:
        InvalidPayload: there are too many.
    """
    if partitions > _PARTITIONS_MAX:
        raise InvalidPayload(
            f"a request names {partitions} partitions: at most {_PARTITIONS_MAX} may be"
        )


def _read_retention(config: str) -> Retention | None:
    """Take what is understood of a topic's configuration.

    Raises:
        InvalidPayload: the value is no number.
    """
    for line in config.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == _RETENTION:
            value = value.strip()
            is_short = len(value) <= len(str(_RETENTION_S_MAX))
            if not value.isdecimal() or not is_short or int(value) > _RETENTION_S_MAX:
                shown = value[:40]
                raise InvalidPayload(f"{_RETENTION}={shown!r} is no number of seconds")
            return Retention(max_age_s=int(value))
    return None


# Pings of clients are not answered: TANK's broker does not either.
_Handler = Callable[[TankSession, Any], "wire.Message | None"]
_HANDLERS: dict[type[wire.Message], _Handler] = {
    wire.Produce: TankSession._produce,
    wire.ProduceAt: TankSession._produce,
    wire.Consume: TankSession._consume,
    wire.DiscoverPartitions: TankSession._discover_partitions,
    wire.DiscoverTopics: TankSession._discover_topics,
    wire.CreateTopic: TankSession._create_topic,
    wire.ReloadConf: TankSession._reload_conf,
    wire.GetStatus: TankSession._get_status,
    wire.DiscoverTopology: TankSession._discover_topology,
}
