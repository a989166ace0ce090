"""A client that speaks TANK.

Sequence numbers are record numbers plus one. Answers carry the ids of their requests
and may overtake each other: an append waits for the disk and a poll for records, while
other requests are answered. TANK has no code for refusals: the connection is closed,
and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lance_spark.broker.exchange import Loaded
from lance_spark.broker.service import to_broker_error
from lance_spark.broker.session import Owed, Session, StandingRequest
from lance_spark.errors import (
    AppendConflict,
    AuthenticationRequired,
    BrokerError,
    ConnectionLost,
    InvalidPayload,
    LanceError,
    RemoteProtocolError,
    StorageError,
    Timeout,
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
# Codes that depend on more than the class of an error.
_UNKNOWN_PARTITION = 0x01
_FAILED = 0x02
_RETENTION = "log.retention.secs"


@dataclass(eq=False, slots=True)
class _Writing:
    """A request to produce, some of whose writes may wait for the disk.

    Args:
        request: it.
        codes: the code of each write, in the order of the request.
        left: how many writes wait.
    """

    request: wire.Produce
    codes: dict[tuple[int, int], int] = field(default_factory=dict)
    left: int = 0

    def answer(self) -> wire.Produced:
        """Make the answer: a topic that is unknown has one code for all its writes."""
        outcomes: list[wire.Outcome] = []
        for at, topic in enumerate(self.request.topics):
            codes = [self.codes[at, n] for n in range(len(topic.writes))]
            if codes and codes[0] == wire.UNKNOWN:
                codes = codes[:1]
            outcomes += map(wire.Outcome, codes)
        return wire.Produced(self.request.request_id, tuple(outcomes))


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
                self._answer(answer)

    def _answer(self, message: wire.Message) -> None:
        self._observe(type(message).__name__, self._began_s)
        self._send(wire.encode_message(message))

    def _refuse(self, error: BrokerError, frame: wire.Frame | None) -> None:
        logger.info("%s: closed: %s", self._stream.peer, error)
        self._settle()
        self._ending = True

    def _code(self, kind: wire.Kind, error: LanceError, where: str) -> int:
        """Give the code of a failure, and say in the log what it was.

        Raises:
            BrokerError: TANK has no code for it, and the connection is to be closed.
        """
        told = to_broker_error(error)
        code = wire.code_of(kind, told)
        if isinstance(error, AppendConflict) and error.next_record < error.expected:
            # A gap. A writer that replays takes 0a for "written before".
            code = _FAILED
        if code is None:
            raise told
        self._count("requests_refused")
        log = logger.debug if isinstance(told, TopicNotFound) else logger.warning
        log("%s: %s: %s", self._stream.peer, where, told)
        return code

    # Writing.

    def _produce(self, message: wire.Produce) -> None:
        writing, done = _Writing(message), set()
        for at, topic in enumerate(message.topics):
            for n, write in enumerate(topic.writes):
                where = f"{topic.name}/{write.partition}"
                try:
                    if where in done:
                        raise InvalidPayload("a partition is named twice")
                    done.add(where)
                    self._write(writing, (at, n), topic.name, write)
                except LanceError as error:
                    code = self._code(message.KIND, error, where)
                    if code == wire.UNKNOWN and self._has(topic.name):
                        code = _UNKNOWN_PARTITION
                    writing.codes[at, n] = code
        if not writing.left:
            self._answer(writing.answer())

    def _write(
        self, writing: _Writing, key: tuple[int, int], topic: str, write: wire.Write
    ) -> None:
        log = self._exchange.find(self._client, topic, write.partition)
        records = self._read_bundle(write)
        if not len(records):
            writing.codes[key] = wire.OK
            return
        expected = None
        if write.first_seq:
            expected = write.first_seq - 1
        elif records.base:
            # A sparse bundle, which says its numbers itself.
            expected = records.base - 1
        writing.left += 1
        try:
            self._store((writing, key), log, records, expected=expected)
        except BaseException:
            writing.left -= 1
            raise

    def _read_bundle(self, write: wire.Write) -> Records:
        try:
            head = wire.inspect_bundle(write.bundle)
            if not self._hold(head.expanded_bytes):
                raise Timeout("there was no memory to read the bundle")
            records = wire.read_records(
                write.bundle, expanded_bytes_max=self._config.payload_bytes_max
            )
        except RemoteProtocolError as error:
            raise StorageError(f"malformed bundle: {error}") from error
        if records.fault is not None:
            raise StorageError(f"malformed bundle: {records.fault}")
        if records.positions is not None:
            raise StorageError("a bundle leaves numbers out, which can't be stored")
        return records

    def _acknowledge(self, owed: Owed, failure: LanceError | None) -> Sequence[Buffer]:
        writing, key = owed.request
        code = wire.OK
        if failure is not None:
            code = self._code(writing.request.KIND, failure, "append")
        writing.codes[key] = code
        writing.left -= 1
        if writing.left:
            return []
        self._observe("Produced", owed.began_s)
        return wire.encode_message(writing.answer())

    # Reading.

    def _consume(self, message: wire.Consume) -> wire.Message | None:
        if not message.topics:
            raise InvalidPayload("no topics are asked for")
        logs = self._find_logs(message)
        # Taken before the look at the records: what comes between the two wakes.
        ends = self._service.ends(self._client, logs.values())
        if message.max_wait_ms and self._is_at_end(message, logs):
            wait_s = min(max(message.max_wait_ms / 1000, _WAIT_S_MIN), _WAIT_S_MAX)
            wait_s = min(wait_s, self._config.wait_s_max)
            standing = StandingRequest(
                ends, lambda final: self._poll(message, logs, final), wait_s
            )
            if self._stand(standing):
                return None
        return self._read(message, logs)

    def _find_logs(self, message: wire.Consume) -> dict[tuple[str, int], int]:
        logs = {}
        for topic in message.topics:
            for fetch in topic.fetches:
                with suppress(UnknownTopic):
                    key = topic.name, fetch.partition
                    logs[key] = self._exchange.find(self._client, *key)
        return logs

    def _is_at_end(
        self, message: wire.Consume, logs: dict[tuple[str, int], int]
    ) -> bool:
        """Tell whether all partitions are there and have nothing to send."""
        return all(
            (log := logs.get((topic.name, fetch.partition))) is not None
            and self._is_tail(log, fetch.seq)
            for topic in message.topics
            for fetch in topic.fetches
        )

    def _is_tail(self, log: int, seq: int) -> bool:
        bounds = self._exchange.bounds(self._client, log)
        return _to_record(seq, bounds) == bounds.end

    def _poll(
        self, message: wire.Consume, logs: dict[tuple[str, int], int], final: bool
    ) -> bool:
        if not final and self._is_at_end(message, logs):
            return False
        self._answer(self._read(message, logs))
        return True

    def _read(
        self, message: wire.Consume, logs: dict[tuple[str, int], int]
    ) -> wire.Consumed:
        asked = sum(f.fetch_size for t in message.topics for f in t.fetches)
        room = min(asked, _ANSWER_BYTES_MAX)
        # What is stored, and the bundles that are made of it.
        self._hold_answer(2 * room)
        topics = []
        for topic in message.topics:
            found = []
            for fetch in topic.fetches:
                key = topic.name, fetch.partition
                size = min(fetch.fetch_size, max(room, 1))
                found.append(self._read_one(key, logs.get(key), fetch, size))
                room -= min(room, memoryview(found[-1].chunk).nbytes)
            if all(one.flag == wire.UNKNOWN for one in found) and not self._has(
                topic.name
            ):
                topics.append(wire.FetchedTopic(topic.name, unknown=len(found)))
            else:
                topics.append(wire.FetchedTopic(topic.name, tuple(found)))
        return wire.Consumed(message.request_id, tuple(topics))

    def _read_one(
        self, key: tuple[str, int], log: int | None, fetch: wire.Fetch, size: int
    ) -> wire.Fetched:
        number, where = key[1], f"{key[0]}/{key[1]}"
        if log is None:
            return wire.Fetched(number, wire.UNKNOWN)
        try:
            bounds = self._exchange.bounds(self._client, log)
            start = _to_record(fetch.seq, bounds)
            if not bounds.start <= start <= bounds.end:
                first = bounds.start + 1
                return wire.Fetched(
                    number, wire.OUT_OF_RANGE, hwm=bounds.end, first_seq=first
                )
            loaded = self._exchange.load(
                self._client, log, start, max_bytes=max(size, 1), times=True
            )
            end, chunk = loaded.bounds.end, self._write_chunk(loaded, where)
        except LanceError as error:
            return wire.Fetched(number, self._code(wire.Kind.CONSUME, error, where))
        return wire.Fetched(number, wire.OK, start + 1, end, chunk)

    def _write_chunk(self, loaded: Loaded, where: str) -> Buffer:
        records = loaded.records
        row = wire.find_long_key(records)
        if row is not None:
            if row == 0:
                self._count("records_refused")
                raise StorageError(
                    f"record {records.position(0)} has a key of more than "
                    f"{wire.KEY_BYTES_MAX} bytes, which TANK can't carry"
                )
            records = records.cut(0, row)
        if not len(records):
            return b""
        assert loaded.append_ns is not None
        stamps = loaded.append_ns[: len(records)]
        return wire.write_records(records, stamps_ns=stamps, framed=True)

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
        states = []
        for number in range(family.partitions):
            log = family.logs.get(number)
            if log is None:
                code = wire.code_of(message.KIND, StorageError("damaged"))
                assert code is not None
                states.append(wire.PartitionState(reason=wire.Outcome(code)))
            else:
                bounds = self._exchange.bounds(self._client, log.metadata.id)
                states.append(wire.PartitionState(bounds.start + 1, bounds.end))
        return wire.Partitions(message.request_id, message.topic, tuple(states))

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
            code = self._code(message.KIND, error, message.topic)
        return wire.Created(message.request_id, message.topic, code)

    def _reload_conf(self, message: wire.ReloadConf) -> wire.Message:
        code = wire.OK
        try:
            self._exchange.find(self._client, message.topic, message.partition)
        except LanceError as error:
            code = self._code(message.KIND, error, message.topic)
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


def _to_record(seq: int, bounds: Bounds) -> int:
    """Give the record of a sequence number, or of one that stands for first or end."""
    if seq == 0:
        return bounds.start
    return bounds.end if seq == wire.SEQ_END else seq - 1


def _read_retention(config: str) -> Retention | None:
    """Take what is understood of a topic's configuration.

    Raises:
        InvalidPayload: the value is no number.
    """
    for line in config.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == _RETENTION:
            if not value.strip().isdecimal():
                raise InvalidPayload(f"{_RETENTION}={value!r} is no number of seconds")
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
