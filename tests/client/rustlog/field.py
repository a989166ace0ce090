"""A server that behaves as RustLog's own broker does, in memory and on a real socket.

What it does is in the notes on the protocol: it knows no end of a log, echoes offsets
past it, answers with nothing before the start, and forgets everything at a restart.
"""

from __future__ import annotations

from typing import Any

from lance_spark.errors import RemoteProtocolError
from lance_spark.net.stream import Stream
from lance_spark.wire import rustlog as wire
from tests.broker.rustlog.kit import make, values_of
from tests.client.field import FieldServerBase

COST_BYTES = 12


class FieldServer(FieldServerBase):
    """One server; `restart` loses all that it holds."""

    def __init__(self) -> None:
        self.topics: dict[str, list[list[bytes]]] = {}
        # Records that are gone, at the start of each partition of a topic.
        self.dropped: dict[str, int] = {}
        # How many requests are being dealt with on one connection, at most.
        self.pipelined = 0
        super().__init__()

    def restart(self) -> None:
        """Forget everything, as a new process does."""
        self.drop()
        with self.lock:
            self.topics.clear()
            self.dropped.clear()

    def fill(self, topic: str, values: list[bytes], partitions: int = 1) -> None:
        """Put records into the first partition of a topic."""
        with self.lock:
            logs = self.topics.setdefault(topic, [[] for _ in range(partitions)])
            logs[0] += values

    # Serving.

    def make_parser(self) -> wire.FrameParser:
        return wire.FrameParser()

    def answer_all(self, stream: Stream, parser: wire.FrameParser) -> bool:
        frames = 0
        while (frame := parser.next_frame()) is not None:
            frames += 1
            self.pipelined = max(self.pipelined, frames)
            if not self._answer(stream, frame):
                return False
        return True

    def _answer(self, stream: Stream, frame: memoryview) -> bool:
        if wire.is_json(frame):
            text = f"Decode error: unknown request type: {frame[0]}"
            request: Any = None
            answer: wire.Message | None = wire.ErrorResponse(2, text)
        else:
            try:
                request = wire.decode_request(frame)
            except RemoteProtocolError as error:
                request, answer = None, wire.ErrorResponse(2, str(error))
            if request is not None:
                with self.lock:
                    self.asked[request.NAME] += 1
                    answer = self._handle(request)
        if answer is None:
            return False
        said = self.lie(request, answer) if self.lie and request else None
        whole = [b"".join(wire.encode_message(answer))]
        self.send(stream, whole if said is None else said)
        return True

    def _handle(self, request: Any) -> wire.Message | None:
        if isinstance(request, wire.Ping):
            return wire.PingResponse()
        if isinstance(request, wire.ListTopics):
            return wire.ListTopicsResponse(
                tuple((name, len(logs)) for name, logs in self.topics.items())
            )
        name = request.topic
        if isinstance(request, wire.CreateTopic):
            if name in self.topics:
                return wire.ErrorResponse(11, f"Topic '{name}' already exists")
            self.topics[name] = [[] for _ in range(request.partitions)]
            return wire.CreateTopicResponse(True)
        logs = self.topics.get(name)
        if isinstance(request, wire.DescribeTopic):
            if logs is None:
                return wire.ErrorResponse(13, f"Topic '{name}' not found")
            bases = tuple((number, 0) for number in range(len(logs)))
            return wire.DescribeTopicResponse(name, len(logs), bases)
        if logs is None or request.partition >= len(logs):
            text = f"topic={name}, partition={request.partition}"
            return wire.ErrorResponse(10, f"Topic or partition does not exist: {text}")
        if isinstance(request, wire.DescribePartition):
            return wire.DescribePartitionResponse(name, request.partition, 0)
        log = logs[request.partition]
        if isinstance(request, wire.Produce):
            return self._append(log, request)
        assert isinstance(request, wire.Fetch)
        return self._fetch(log, request)

    def _append(self, log: list[bytes], request: wire.Produce) -> wire.Message | None:
        if self.appends_to_lose:
            self.appends_to_lose -= 1
            return None
        base, values = len(log), values_of(request.records)
        log += values
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            return None
        return wire.ProduceResponse(base if values else 0, len(values))

    def _fetch(self, log: list[bytes], request: wire.Fetch) -> wire.Message:
        start, found, size = request.offset, [], 0
        if request.group_id or start < self.dropped.get(request.topic, 0):
            start = 0 if request.group_id else start
            return wire.FetchResponse(make([]), start)
        for value in log[start:]:
            size += COST_BYTES + len(value)
            if request.max_bytes == 0 or (found and size > request.max_bytes):
                break
            found.append(value)
        return wire.FetchResponse(make(found), start + len(found))
