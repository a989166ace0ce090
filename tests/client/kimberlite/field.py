"""A server that behaves as Kimberlite's own does, in memory and on a real socket.

What it does is in the notes on the protocol and in its source: another version than its
own ends the connection, and so does a request that it can't read. Creating a stream
twice gives the same id since 0.4.2. An append has to expect the stream's length, a read
may pass its limit by an event and names the next one also at the end, and a stream that
is unknown is empty.
"""

from __future__ import annotations

from typing import Any

from lance_spark.errors import RemoteProtocolError
from lance_spark.net.stream import Stream
from lance_spark.wire import kimberlite as wire
from tests.broker.rustlog.kit import make, values_of
from tests.client.field import FieldServerBase


class FieldServer(FieldServerBase):
    """One server.

    Args:
        form: the form of its release's messages.
        token: what clients have to say.
    """

    def __init__(self, form: str = "v5", token: str | None = None) -> None:
        self.wire = wire.WIRES[form]
        self.token = token
        self.streams: dict[int, list[bytes]] = {}
        self.names: dict[tuple[int, str], int] = {}
        # Events that are gone, at the start of each stream.
        self.dropped: dict[int, int] = {}
        # Who leads, if that is another.
        self.leader: str | None = None
        # Push an event before each answer.
        self.pushes = False
        # Whether an unknown stream is an error, as on our broker.
        self.is_strict = False
        self.requests: list[Any] = []
        super().__init__()

    def encode(self, message: wire.Response | wire.Push) -> bytes:
        """Write what is sent."""
        return b"".join(map(bytes, wire.encode_message(message, self.wire)))

    def fill(self, topic: str, values: list[bytes], tenant: int = 1) -> list[bytes]:
        """Put events into a stream; give what it holds."""
        with self.lock:
            log = self.streams[self._create(tenant, topic)]
            log += values
            return log

    def values(self, topic: str, tenant: int = 1) -> list[bytes]:
        """Give the events of a stream."""
        return self.streams[self.names[tenant, topic]]

    # Serving.

    def make_parser(self) -> wire.FrameParser:
        return wire.FrameParser()

    def answer_all(self, stream: Stream, parser: wire.FrameParser) -> bool:
        while (frame := parser.next_frame()) is not None:
            if frame.version != self.wire.frame_version:
                return False
            request, answer = self._answer(frame)
            if answer is None:
                return False
            if self.pushes:
                event = wire.SubscriptionEvents(7, 0, make([b"pushed"]), 3)
                self.send(stream, [self.encode(wire.Push(event))])
            said = None
            if self.lie is not None and request is not None:
                said = self.lie(request.body, answer)
            self.send(stream, [self.encode(answer)] if said is None else said)
        return True

    def _answer(
        self, frame: wire.Frame
    ) -> tuple[wire.Request | None, wire.Response | None]:
        try:
            request = wire.decode_request(frame, self.wire)
        except RemoteProtocolError:
            return None, None
        with self.lock:
            self.asked[type(request.body).__name__] += 1
            self.requests.append(request)
            body = self._handle(request.tenant_id, request.body)
        return request, None if body is None else wire.Response(request.id, body)

    def _create(self, tenant: int, name: str) -> int:
        number = self.names.setdefault(
            (tenant, name), tenant << 32 | len(self.names) + 1
        )
        self.streams.setdefault(number, [])
        return number

    def _handle(self, tenant: int, body: Any) -> wire.Message | None:
        if isinstance(body, wire.Handshake):
            if body.client_version != self.wire.frame_version:
                return wire.ErrorResponse(2, "unsupported version")
            if self.token is not None and body.auth_token != self.token:
                return wire.ErrorResponse(3, "invalid token")
            return wire.HandshakeResponse(body.client_version, True, ("append",))
        if self.leader is not None:
            hint = f"not the leader (view: 3, leader hint: {self.leader})"
            return wire.ErrorResponse(15, hint)
        if isinstance(body, wire.CreateStream):
            if self.wire.frame_version < 3 and (tenant, body.name) in self.names:
                return wire.ErrorResponse(10, "stream already exists")
            return wire.CreateStreamResponse(self._create(tenant, body.name))
        assert isinstance(body, wire.AppendEvents | wire.ReadEvents | wire.StreamInfo)
        if self.is_strict and body.stream_id not in self.streams:
            return wire.ErrorResponse(5, f"stream {body.stream_id} not found")
        log = self.streams.get(body.stream_id, [])
        if isinstance(body, wire.StreamInfo):
            return wire.StreamInfoResponse(len(log))
        if isinstance(body, wire.AppendEvents):
            return self._append(log, body)
        return self._read(log, body)

    def _append(self, log: list[bytes], body: wire.AppendEvents) -> wire.Message | None:
        if self.appends_to_lose:
            self.appends_to_lose -= 1
            return None
        expected, length = body.expected_offset, len(log)
        if expected is not None and expected != length:
            text = f"offset mismatch: expected {expected}, actual {length}"
            return wire.ErrorResponse(16, text)
        log += values_of(body.events)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            return None
        return wire.AppendEventsResponse(length, len(log) - length)

    def _read(self, log: list[bytes], body: wire.ReadEvents) -> wire.Message:
        start, size, found = body.from_offset, 0, []
        first = self.dropped.get(body.stream_id, 0)
        if start < first:
            return wire.ErrorResponse(11, f"events are gone, first offset {first}")
        for value in log[start:]:
            if size >= body.max_bytes:
                break
            found.append(value)
            size += len(value)
        behind = start + len(found) if found else None
        return wire.ReadEventsResponse(make(found), behind)
