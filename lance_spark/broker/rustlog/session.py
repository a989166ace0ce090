"""A client that speaks RustLog, in either of its dialects.

Each frame says by its first byte whether it is binary or JSON, and is answered in kind.
Answers come in the order of requests, as RustLog's clients match them by that. Where
RustLog's own broker loses records or hides a loss, this one does not: records are
durable before they are acknowledged, and a read before the log's start is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lance_spark.broker.metrics import Exporter
from lance_spark.broker.service import to_broker_error
from lance_spark.broker.session import Owed, Session
from lance_spark.errors import (
    AuthenticationRequired,
    BrokerError,
    InvalidPayload,
    LanceError,
    PayloadTooLarge,
    RemoteProtocolError,
    RowError,
    StorageError,
    Timeout,
)
from lance_spark.model import Buffer, Partition
from lance_spark.records import NO_SPANS, Records
from lance_spark.wire import rustlog as wire

logger = logging.getLogger(__name__)

# How many times its bytes a record takes while it becomes JSON.
_JSON_GROWTH = 16

_NO_RECORDS = Records(NO_SPANS)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the answer to a request needs to know of it."""

    command: int | None
    name: str
    as_json: bool


class RustlogSession(Session[memoryview]):
    """Serves one client of RustLog."""

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
            if as_json and not self._hold(wire.find_json_memory(frame)):
                raise Timeout("there was no memory to read the request")
            try:
                message = wire.decode_request(frame)
            except RemoteProtocolError as error:
                raise InvalidPayload(error.reason) from error
            asked = _Asked(message.COMMAND, message.NAME, as_json)
            if isinstance(message, wire.Produce):
                self._produce(message, asked)
                return
            # Answers are in the order of requests.
            self._settle()
            self._turn.begin()
            self._answer(_HANDLERS[type(message)](self, message, as_json), asked)
        except LanceError as error:
            self._count("requests_refused")
            self._fail(to_broker_error(error), asked)

    def _answer(self, message: wire.Message, asked: _Asked) -> None:
        self._observe(asked.name, self._began_s)
        self._send(wire.encode_message(message, as_json=asked.as_json))

    def _fail(self, error: BrokerError, asked: _Asked) -> None:
        self._settle()
        self._answer(wire.ErrorResponse.from_exception(error, asked.command), asked)

    def _refuse(self, error: BrokerError, frame: memoryview | None) -> None:
        as_json = frame is not None and wire.is_json(frame)
        self._fail(error, _Asked(None, "Unknown", as_json))

    def _reject(self, error: RemoteProtocolError) -> None:
        super()._reject(error)
        self._fail(PayloadTooLarge(str(error)), _Asked(None, "Unknown", False))
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
        if start >= end or not message.max_bytes:
            # RustLog's broker echoes the offset; the specification of the JSON has the
            # log's end.
            return wire.FetchResponse(_NO_RECORDS, end if as_json else start)
        most = min(message.max_bytes, wire.PIECE_BYTES_MAX)
        # What is stored, and the answer that is made of it: in JSON, lists of numbers.
        self._hold_answer((_JSON_GROWTH if as_json else 2) * most)
        records = exchange.load(client, log, start, max_bytes=most).records
        try:
            piece = next(wire.split_records(records, most, as_json=as_json))
        except RowError as error:
            self._count("records_refused")
            where = Partition(message.topic, message.partition)
            logger.error("%s: record %d: %s", where, start, error)
            raise StorageError(f"record {start} can't be sent: {error}") from error
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
        return wire.MetricsFetchResponse(exporter.render())

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
