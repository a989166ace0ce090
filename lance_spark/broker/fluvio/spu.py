"""The processing unit (SPU): records in and out.

Answers may overtake each other: an append waits for the disk, a Fetch for records, and
a StreamFetch stands for as long as its connection. It is answered again and again, but
never twice without an UpdateOffsets in between, which says how far the client is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar

from lance_spark.broker.exchange import Loaded
from lance_spark.broker.fluvio.session import FluvioSession, Handler
from lance_spark.broker.session import (
    PIECE_BYTES,
    STANDING_MAX,
    WAIT_POSITION_BYTES,
    AnswerFull,
    Owed,
    Shared,
    StandingRequest,
)
from lance_spark.errors import (
    BrokerError,
    ConnectionLost,
    ConsumerNotFound,
    InvalidPayload,
    LanceError,
    LimitReached,
    PayloadTooLarge,
    Timeout,
    UnknownError,
)
from lance_spark.model import Bounds, Buffer
from lance_spark.net.stream import Stream
from lance_spark.records import Records
from lance_spark.wire import fluvio as wire

# All partitions of an answer together; one record may be larger.
_ANSWER_BYTES_MAX = 8 * 1024 * 1024
# One of them: see TANK's session, which has found that out.
_PARTITION_BYTES_MAX = 1024 * 1024
# What a partition costs in an answer, whatever comes of it.
_PARTITION_COST_BYTES = 4096
# What a record takes beside its bytes while it is looked at: its positions.
_ROW_BYTES = 64


@dataclass(eq=False, slots=True)
class _Writing:
    """A request to produce, some of whose writes may wait for the disk.

    Args:
        request: it, without the records.
        outcomes: what became of each write, by the places of its topic and itself.
        left: how many writes wait; while the request is being read, one more.
    """

    request: wire.Produce
    outcomes: dict[tuple[int, int], wire.Outcome] = field(default_factory=dict)
    left: int = 1

    def answer(self) -> wire.Produced:
        """Make the answer."""
        topics = tuple(
            wire.ProducedTopic(
                topic.name,
                tuple(self.outcomes[at, n] for n in range(len(topic.writes))),
            )
            for at, topic in enumerate(self.request.topics)
        )
        return wire.Produced(topics)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A partition that is to be read.

    Args:
        topic: its topic.
        partition: its number.
        start: the first record.
        log: the id of its log.
        end: where it ended when it was asked for.
        error: why it can't be read.
    """

    topic: str
    partition: int
    start: int
    log: int = 0
    end: int = 0
    error: wire.ErrorCode = wire.NO_ERROR

    @property
    def where(self) -> str:
        """Its name in the log."""
        return f"{self.topic}/{self.partition}"

    @property
    def is_tail(self) -> bool:
        """Whether there was nothing to read."""
        return self.error == wire.NO_ERROR and self.start == self.end


@dataclass(eq=False, slots=True)
class _StreamState:
    """A StreamFetch.

    Args:
        request: it.
        id: its number on this connection.
        wanted: what to send next.
        is_answered: something was sent, and the client has not said yet that it has it.
        standing: the request as it stands.
    """

    request: wire.StreamFetch
    id: int
    wanted: _Wanted
    is_answered: bool = False
    standing: StandingRequest | None = None


class SpuSession(FluvioSession):
    """Serves one client that reads and writes records."""

    ROLE = wire.Role.SPU

    def __init__(self, stream: Stream, shared: Shared) -> None:
        super().__init__(stream, shared)
        # Those that are open, by their numbers, and the number of the last one.
        self._streams: dict[int, _StreamState] = {}
        self._stream_id = 0

    def _make_refusal(
        self, request: wire.Request, error: BrokerError
    ) -> wire.Response | None:
        code = wire.code_of(error)
        match request:
            case wire.Produce():
                writing = _Writing(request)
                for at, topic in enumerate(request.topics):
                    for n, write in enumerate(topic.writes):
                        writing.outcomes[at, n] = wire.Outcome(write.partition, code)
                # A flush of what can't be written has no place for an error.
                return writing.answer() if writing.outcomes else None
            case wire.Fetch():
                return wire.FetchAnswer(error=code)
            case wire.FetchOffsets():
                topics = tuple(
                    wire.TopicOffsets(
                        topic.name,
                        tuple(wire.PartitionOffsets(code, n) for n in topic.partitions),
                    )
                    for topic in request.topics
                )
                return wire.Offsets(topics) if topics else None
            case wire.StreamFetch():
                fetched = wire.Fetched(request.partition, code)
                return wire.Streamed(request.topic, 0, fetched)
            case wire.UpdateOffsets():
                streams = (s.stream_id for s in request.streams)
                return wire.Updated(tuple(wire.StreamOutcome(n, code) for n in streams))
        return wire.Failed(code)

    def _refuse_other(self, request: wire.Other) -> wire.Response:
        raise UnknownError(f"request {request.key} is not known here")

    # Writing.

    def _produce(self, request: wire.Produce) -> wire.Response | None:
        writing = _Writing(_forget_records(request))
        for at, topic in enumerate(request.topics):
            for n, write in enumerate(topic.writes):
                try:
                    _check_produce(request)
                    self._write(writing, (at, n), topic.name, write)
                except ConnectionLost:
                    raise
                except Exception as error:
                    # All of them: an answer for the whole request would be a second
                    # one for what is written already.
                    code = self._fail(error, f"{topic.name}/{write.partition}")
                    writing.outcomes[at, n] = wire.Outcome(write.partition, code)
                self._turn.pause()
        writing.left -= 1
        if not writing.left:
            return writing.answer()
        if _measure_names(request.topics) > PIECE_BYTES:
            # They are in the answer, and nothing counts them while it waits.
            self._settle()
        return None

    def _write(
        self, writing: _Writing, key: tuple[int, int], topic: str, write: wire.Write
    ) -> None:
        log = self._exchange.find(self._client, topic, write.partition)
        records = self._read_records(write.records)
        if not len(records):
            bounds = self._exchange.bounds(self._client, log)
            writing.outcomes[key] = wire.Outcome(
                write.partition, base_offset=bounds.end, log_start=bounds.start
            )
            return
        # Owed answers may be settled on the way, this one not before it is owed.
        self._store((writing, key), log, records)
        writing.left += 1

    def _read_records(self, record_set: Buffer) -> Records:
        """Read all batches of a write, as one.

        Raises:
            PayloadTooLarge: they are more than one batch of the store may be.
            InvalidPayload, RecordError: they can't be kept as they are.
            Timeout: there is no memory for them.
        """
        most = self._config.batch_bytes_max
        expanded = size = count = 0
        is_packed = False
        for batch in wire.inspect_batches(record_set, expanded_bytes_max=most):
            if batch.refusal is not None:
                raise InvalidPayload(batch.refusal)
            size += batch.stored_bytes_max
            count += batch.count
            expanded += batch.expanded_bytes
            is_packed |= batch.codec is not wire.Codec.NONE
            # There may be very many, with hardly anything in them.
            self._turn.pause()
        if size > most:
            raise PayloadTooLarge(
                f"records of {size} bytes, and batch_bytes_max is {most}: send fewer "
                "at a time"
            )
        # If one is compressed, all are there twice: in pieces, and then together.
        work = 2 * expanded if is_packed else 0
        if not self._hold_work(work + _ROW_BYTES * count):
            raise Timeout("there was no memory to read the records")
        records = wire.read_records(record_set, expanded_bytes_max=most)
        if records.fault is not None:
            raise records.fault
        return records

    def _acknowledge(self, owed: Owed, failure: LanceError | None) -> Sequence[Buffer]:
        writing, key = owed.request
        topic = writing.request.topics[key[0]]
        partition = topic.writes[key[1]].partition
        if failure is None:
            outcome = wire.Outcome(partition, base_offset=owed.appended.record)
        else:
            code = self._code(failure, f"{topic.name}/{partition}")
            outcome = wire.Outcome(partition, code)
        writing.outcomes[key] = outcome
        writing.left -= 1
        if writing.left:
            return []
        self._observe(type(writing.request).__name__, owed.began_s)
        return self._encode(writing.request, writing.answer())

    # Reading once.

    def _fetch(self, request: wire.Fetch) -> wire.Response | None:
        # What is not needed is not kept, however long it stands.
        request = replace(request, client_id="", forgotten=())
        wanted = [
            self._find(topic.name, one.partition, one.offset)
            for topic in request.topics
            for one in topic.partitions
        ]
        # Taken before the look at the records: what comes between the two wakes.
        ends = self._find_ends(wanted)
        wanted = [self._place(one) for one in wanted]
        is_tail = all(one.is_tail for one in wanted)
        if request.max_wait_ms > 0 and wanted and is_tail:
            standing = StandingRequest(
                ends,
                lambda final: self._poll(request, wanted, ends, final),
                min(request.max_wait_ms / 1000, self._config.wait_s_max),
                command=type(request).__name__,
            )
            # A partition may be asked for many times, and a topic without any.
            standing.size = WAIT_POSITION_BYTES * len(wanted)
            standing.size += _measure_names(request.topics)
            if self._stand(standing):
                return None
        return self._read(request, wanted)

    def _find(self, topic: str, partition: int, start: int) -> _Wanted:
        wanted = _Wanted(topic, partition, start)
        try:
            log = self._exchange.find(self._client, topic, partition)
        except LanceError as error:
            return replace(wanted, error=self._fail(error, wanted.where))
        return replace(wanted, log=log)

    def _find_ends(self, wanted: Sequence[_Wanted]) -> dict[int, int]:
        logs = [one.log for one in wanted if one.error == wire.NO_ERROR]
        return self._service.ends(self._client, logs)

    def _place(self, wanted: _Wanted) -> _Wanted:
        if wanted.error != wire.NO_ERROR:
            return wanted
        try:
            bounds = self._exchange.bounds(self._client, wanted.log)
        except LanceError as error:
            return replace(wanted, error=self._fail(error, wanted.where))
        return replace(wanted, end=bounds.end)

    def _poll(
        self,
        request: wire.Fetch,
        wanted: Sequence[_Wanted],
        ends: Mapping[int, int],
        final: bool,
    ) -> bool:
        now = self._service.ends(self._client, ends)
        grown = sum(now[log] - ends[log] for log in now)
        is_gone = len(now) < len(ends)
        if not (final or is_gone or grown >= max(1, request.min_bytes)):
            return False
        self._answer(request, self._read(request, wanted))
        return True

    def _read(self, request: wire.Fetch, wanted: Sequence[_Wanted]) -> wire.Response:
        topics, left = [], iter(wanted)
        # An answer without records looks like the end of all logs: the first that has
        # some is read, however many came before it.
        is_first = True
        room = min(max(request.max_bytes, 1), _ANSWER_BYTES_MAX)
        self._free_bytes = PIECE_BYTES
        for topic in request.topics:
            found = []
            for one in islice(left, len(topic.partitions)):
                try:
                    fetched = self._read_one(one, max(room, is_first))
                except AnswerFull:
                    if is_first:
                        lack = Timeout("no memory for the answer: ask again")
                        return wire.FetchAnswer(error=self._fail(lack, one.where))
                    # To wait for it once is enough.
                    room = 0
                    fetched = self._read_one(one, room)
                found.append(fetched)
                size = memoryview(fetched.records).nbytes
                is_first &= not size
                room -= size + _PARTITION_COST_BYTES
                self._turn.pause()
            topics.append(wire.FetchedTopic(topic.name, tuple(found)))
        return wire.FetchAnswer(topics=tuple(topics))

    def _read_one(self, wanted: _Wanted, room: int) -> wire.Fetched:
        """Read a partition; without room nothing of it: the client asks again.

        Raises:
            AnswerFull: there is no memory for it.
        """
        if wanted.error != wire.NO_ERROR:
            return wire.Fetched(wanted.partition, wanted.error)
        try:
            if room > 0:
                return self._load(wanted, room)
            bounds = self._exchange.bounds(self._client, wanted.log)
            return _make_fetched(wanted, bounds)
        except (AnswerFull, ConnectionLost):
            raise
        except LanceError as error:
            code = self._fail(error, wanted.where, wanted.start)
            return wire.Fetched(wanted.partition, code)

    def _load(self, wanted: _Wanted, room: int) -> wire.Fetched:
        loaded = self._exchange.load(
            self._client,
            wanted.log,
            wanted.start,
            max_bytes=min(max(room, 1), _PARTITION_BYTES_MAX),
            times=True,
            hold=self._hold_found,
        )
        return _make_fetched(wanted, loaded.bounds, _write_records(loaded))

    def _fetch_offsets(self, request: wire.FetchOffsets) -> wire.Response:
        topics = []
        for topic in request.topics:
            found = [self._find_bounds(topic.name, n) for n in topic.partitions]
            topics.append(wire.TopicOffsets(topic.name, tuple(found)))
            self._turn.pause()
        return wire.Offsets(tuple(topics))

    def _find_bounds(self, topic: str, partition: int) -> wire.PartitionOffsets:
        try:
            log = self._exchange.find(self._client, topic, partition)
            bounds = self._exchange.bounds(self._client, log)
        except LanceError as error:
            code = self._fail(error, f"{topic}/{partition}")
            return wire.PartitionOffsets(code, partition)
        return wire.PartitionOffsets(wire.NO_ERROR, partition, bounds.start, bounds.end)

    # Streams.

    def _stream_fetch(self, request: wire.StreamFetch) -> wire.Response | None:
        _check_stream(request)
        log = self._exchange.find(self._client, request.topic, request.partition)
        self._stream_id += 1
        wanted = _Wanted(request.topic, request.partition, request.offset, log)
        # Without what is not needed: also no bytes are a view of the whole frame.
        kept = replace(request, client_id="", wasm=b"")
        stream = _StreamState(kept, self._stream_id, wanted)
        stream.standing = StandingRequest(
            self._find_ends([wanted]),
            lambda final: self._push(stream),
            math.inf,
            command=type(request).__name__,
        )
        if not self._stand(stream.standing):
            raise LimitReached(
                f"no room for another stream: a connection may have {STANDING_MAX} "
                "requests that wait, and all of them a part of the memory: use another "
                "connection"
            )
        self._streams[stream.id] = stream
        return None

    def _push(self, stream: _StreamState) -> bool:
        """Send what there is to a stream, if it waits for that; tell if it is over."""
        if stream.is_answered:
            return False
        assert stream.standing is not None
        wanted = stream.wanted
        self._free_bytes = PIECE_BYTES
        try:
            found = self._load(wanted, stream.request.max_bytes)
        except AnswerFull:
            # Others hold the memory. The stream waits, and is looked at again.
            stream.standing.is_due = True
            return False
        except ConnectionLost:
            raise
        except LanceError as error:
            code = self._fail(error, wanted.where, wanted.start)
            found = wire.Fetched(wanted.partition, code)
        is_over = found.error != wire.NO_ERROR
        if is_over or memoryview(found.records).nbytes:
            stream.is_answered = True
            self._unwatch(stream.standing)
            answer = wire.Streamed(wanted.topic, stream.id, found)
            self._answer(stream.request, answer)
        if is_over:
            del self._streams[stream.id]
        return is_over

    def _update_offsets(self, request: wire.UpdateOffsets) -> wire.Response:
        outcomes = []
        for one in request.streams:
            error = wire.NO_ERROR
            stream = self._streams.get(one.stream_id)
            if stream is None:
                unknown = ConsumerNotFound(f"there is no stream {one.stream_id}")
                error = self._fail(unknown, f"stream {one.stream_id}")
            else:
                self._resume(stream, one.offset)
            outcomes.append(wire.StreamOutcome(one.stream_id, error))
        return wire.Updated(tuple(outcomes))

    def _resume(self, stream: _StreamState, offset: int) -> None:
        stream.wanted = replace(stream.wanted, start=offset)
        stream.is_answered = False
        assert stream.standing is not None
        # Taken before the next look at the records: what comes between wakes.
        stream.standing.positions = self._find_ends([stream.wanted])
        self._watch(stream.standing)

    HANDLERS: ClassVar[Mapping[type[wire.Request], Handler]] = {
        wire.Produce: _produce,
        wire.Fetch: _fetch,
        wire.FetchOffsets: _fetch_offsets,
        wire.StreamFetch: _stream_fetch,
        wire.UpdateOffsets: _update_offsets,
        wire.Other: _refuse_other,
    }


def _measure_names(topics: Sequence[wire.WriteTopic | wire.FetchTopic]) -> int:
    """Tell how much memory topics take with their names, of which none may exist."""
    return sum(max(WAIT_POSITION_BYTES, 4 * len(topic.name)) for topic in topics)


def _forget_records(request: wire.Produce) -> wire.Produce:
    """Keep what the answer needs: the memory of the frame is free before it is sent."""
    topics = tuple(
        replace(topic, writes=tuple(replace(w, records=b"") for w in topic.writes))
        for topic in request.topics
    )
    return replace(request, topics=topics, smart_modules=(), client_id="")


def _check_produce(request: wire.Produce) -> None:
    """Refuse what would be stored as if it had not been asked for.

    Raises:
        InvalidPayload: with the reason.
    """
    if request.transactional_id is not None:
        raise InvalidPayload("there are no transactions: leave out transactional_id")
    if request.smart_modules:
        raise InvalidPayload("there are no SmartModules: send the records without")


def _check_stream(request: wire.StreamFetch) -> None:
    legacy = request.wasm or request.smart_module or request.derived
    if request.smart_modules or legacy:
        raise InvalidPayload("there are no SmartModules: read the records without")
    if request.consumer_id is not None:
        raise InvalidPayload(
            f"consumer {request.consumer_id[:80]!r}: offsets of consumers are not kept"
            " here: read without a consumer's name"
        )


def _make_fetched(
    wanted: _Wanted, bounds: Bounds, records: Buffer = b""
) -> wire.Fetched:
    return wire.Fetched(
        wanted.partition,
        high_watermark=bounds.end,
        log_start=bounds.start,
        records=records,
    )


def _write_records(loaded: Loaded) -> Buffer:
    if not len(loaded.records):
        return b""
    assert loaded.append_ns is not None
    return wire.write_records(
        loaded.records,
        base_offset=loaded.records.base,
        stamps_ns=loaded.append_ns,
    )
