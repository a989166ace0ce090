"""A client that speaks RustLog, in either of its dialects.

Each frame says by its first byte whether it is binary or JSON, and is answered in kind.
Answers come in the order of requests, as RustLog's clients match them by that. Where
RustLog's own broker loses records or hides a loss, this one does not: records are
durable before they are acknowledged, and a read before the log's start is an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lance_spark.broker.metrics import Exporter
from lance_spark.broker.service import to_broker_error
from lance_spark.broker.session import Owed, Session
from lance_spark.errors import (
    AuthenticationRequired,
    BrokerError,
    ConnectionLost,
    InternalError,
    InvalidPayload,
    LanceError,
    LocalProtocolError,
    OptionError,
    PayloadTooLarge,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline
from lance_spark.records import NO_SPANS, Records
from lance_spark.store import Slice
from lance_spark.wire import rustlog as wire

logger = logging.getLogger(__name__)

# What a record takes beside its bytes while it is looked at: its positions.
_ROW_BYTES = 48
# What it takes while it becomes JSON: a dictionary with a list, and for each byte a
# place in that list, up to four digits, and these once more as bytes.
_JSON_ROW_BYTES = 400
_JSON_GROWTH = 16
# The most that is put into one answer in JSON.
_JSON_BYTES_MAX = 512 * 1024

# How long the first byte of a frame is waited for that shows how to answer.
_DIALECT_S = 1.0

_NO_RECORDS = Records(NO_SPANS)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the answer to a request needs to know of it."""

    command: int | None
    name: str
    as_json: bool


class RustlogSession(Session[memoryview]):
    """Serves one client of RustLog."""

    _parser: wire.FrameParser

    def _make_parser(self) -> wire.FrameParser:
        return wire.FrameParser(payload_bytes_max=self._payload_bytes_max)

    # Frames.

    def _handle(self, frame: memoryview) -> None:
        as_json = wire.is_json(frame)
        asked = _Asked(None, "Unknown", as_json)
        try:
            if not self.is_admitted:
                raise AuthenticationRequired(
                    "this broker asks for a token, which RustLog can't carry: use TLS "
                    "with a client certificate"
                )
            message = self._decode(frame)
            asked = _Asked(message.COMMAND, message.NAME, as_json)
            if isinstance(message, wire.Produce):
                self._produce(message, asked)
                return
            # Answers are in the order of requests.
            self._settle()
            self._turn.begin()
            self._answer(_HANDLERS[type(message)](self, message, as_json), asked)
        except ConnectionLost:
            # An answer was cut off: no other can follow it.
            raise
        except LanceError as error:
            self._count("requests_refused")
            self._fail(to_broker_error(error), asked)

    def _decode(self, frame: memoryview) -> wire.Message:
        try:
            if not self._hold_work(wire.find_memory(frame)):
                raise Timeout("there was no memory to read the request")
            return wire.decode_request(frame)
        except RemoteProtocolError as error:
            raise InvalidPayload(error.reason) from error

    def _answer(self, message: wire.Message, asked: _Asked) -> None:
        try:
            parts = wire.encode_message(message, as_json=asked.as_json)
        except LocalProtocolError as error:
            raise InternalError(f"the answer can't be sent: {error}") from error
        if not self._lent:
            self._hold_answer(sum(memoryview(part).nbytes for part in parts))
        self._observe(asked.name, self._began_s)
        self._send(parts)

    def _fail(self, error: BrokerError, asked: _Asked) -> None:
        self._settle()
        self._answer(wire.ErrorResponse.from_exception(error, asked.command), asked)

    def _refuse(self, error: BrokerError, frame: memoryview | None) -> None:
        if frame is not None:
            as_json = wire.is_json(frame)
        else:
            self._began_s = time.perf_counter()
            as_json = self._learn_dialect()
        self._fail(error, _Asked(None, "Unknown", as_json))

    def _learn_dialect(self) -> bool:
        """Tell whether a client that is sent away speaks JSON.

        If nothing but a length has come, the byte behind it is waited for: many
        clients send the two one after the other.
        """
        as_json = self._parser.is_json
        if as_json is None:
            self._turn.rest()
            first = memoryview(bytearray(1))
            with suppress(Timeout):
                if self._stream.recv_into(first, Deadline.after(_DIALECT_S)):
                    as_json = wire.is_json(first)
        return bool(as_json)

    def _reject(self, error: RemoteProtocolError) -> None:
        super()._reject(error)
        self._refuse_counted(PayloadTooLarge(str(error)), None)
        self._linger()

    # Topics.

    def _create_topic(self, message: wire.CreateTopic, as_json: bool) -> wire.Message:
        self._exchange.create(self._client, message.topic, message.partitions)
        return wire.CreateTopicResponse(True)

    def _list_topics(self, message: wire.ListTopics, as_json: bool) -> wire.Message:
        families = self._exchange.topics(self._client)
        return wire.ListTopicsResponse(tuple((f.name, f.partitions) for f in families))

    def _describe_topic(
        self, message: wire.DescribeTopic, as_json: bool
    ) -> wire.Message:
        family = self._exchange.family(self._client, message.topic)
        starts = tuple(
            (number, self._exchange.bounds(self._client, log.metadata.id).start)
            for number, log in sorted(family.logs.items())
        )
        return wire.DescribeTopicResponse(message.topic, family.partitions, starts)

    def _describe_partition(
        self, message: wire.DescribePartition, as_json: bool
    ) -> wire.Message:
        log = self._find(message.topic, message.partition)
        start = self._exchange.bounds(self._client, log).start
        return wire.DescribePartitionResponse(message.topic, message.partition, start)

    def _find(self, topic: str, partition: int) -> int:
        return self._exchange.find(self._client, topic, partition)

    # Records.

    def _produce(self, message: wire.Produce, asked: _Asked) -> None:
        log = self._find(message.topic, message.partition)
        records = message.records
        if not len(records):
            self._settle()
            self._answer(wire.ProduceResponse(0, 0), asked)
            return
        self._store(asked, log, records)

    def _acknowledge(self, owed: Owed, failure: LanceError | None) -> Sequence[Buffer]:
        asked: _Asked = owed.request
        self._observe(asked.name, owed.began_s)
        if failure is None:
            appended = owed.appended
            answer: wire.Message = wire.ProduceResponse(
                appended.record, appended.records
            )
        else:
            error = to_broker_error(failure)
            answer = wire.ErrorResponse.from_exception(error, asked.command)
        return wire.encode_message(answer, as_json=asked.as_json)

    def _fetch(self, message: wire.Fetch, as_json: bool) -> wire.Message:
        client, exchange = self._client, self._exchange
        log, start = self._find(message.topic, message.partition), message.offset
        if message.group_id:
            committed = exchange.committed(client, log, message.group_id)
            start = message.offset if committed is None else committed
        end = exchange.bounds(client, log).end
        if start >= end:
            # RustLog's broker echoes the offset; the specification of the JSON has the
            # log's end.
            return wire.FetchResponse(_NO_RECORDS, end if as_json else start)
        if not message.max_bytes:
            # Not the end: a client would go on there, and never see what is before it.
            return wire.FetchResponse(_NO_RECORDS, start)
        most = min(
            message.max_bytes, _JSON_BYTES_MAX if as_json else wire.PIECE_BYTES_MAX
        )

        def hold_json(found: Slice) -> None:
            size = len(found) + _ROW_BYTES * found.records
            # A record that is alone may be larger than what was asked for.
            size += _JSON_GROWTH * len(found)
            size += _JSON_ROW_BYTES * min(found.records, most // 12 + 1)
            self._hold_answer(size)

        def fit(records: Records) -> Records:
            pieces = wire.split_records(records, most, as_json=as_json)
            return next(pieces, _NO_RECORDS)

        piece = self._load_records(
            log, start, most, hold=hold_json if as_json else None, fit=fit
        )
        return wire.FetchResponse(piece, start + len(piece))

    # Consumers.

    def _offset_commit(self, message: wire.OffsetCommit, as_json: bool) -> wire.Message:
        log = self._find(message.topic, message.partition)
        self._exchange.commit(self._client, log, message.group_id, message.offset)
        return wire.OffsetCommitResponse(True)

    def _offset_fetch(self, message: wire.OffsetFetch, as_json: bool) -> wire.Message:
        log = self._find(message.topic, message.partition)
        found = self._exchange.committed(self._client, log, message.group_id)
        return wire.OffsetFetchResponse(found)

    # The rest.

    def _metrics_fetch(self, message: wire.MetricsFetch, as_json: bool) -> wire.Message:
        exporter = Exporter(self._metrics, lambda: self._service.gauges(self._client))
        try:
            return wire.MetricsFetchResponse(exporter.render())
        except OptionError as error:
            raise InternalError(str(error)) from error

    def _ping(self, message: wire.Ping, as_json: bool) -> wire.Message:
        return wire.PingResponse()


# What answers each kind of request but Produce, which is owed.
_Handler = Callable[[RustlogSession, Any, bool], wire.Message]
_HANDLERS: dict[type[wire.Message], _Handler] = {
    wire.Fetch: RustlogSession._fetch,
    wire.OffsetCommit: RustlogSession._offset_commit,
    wire.OffsetFetch: RustlogSession._offset_fetch,
    wire.CreateTopic: RustlogSession._create_topic,
    wire.ListTopics: RustlogSession._list_topics,
    wire.DescribeTopic: RustlogSession._describe_topic,
    wire.DescribePartition: RustlogSession._describe_partition,
    wire.MetricsFetch: RustlogSession._metrics_fetch,
    wire.Ping: RustlogSession._ping,
}
