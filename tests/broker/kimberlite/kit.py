"""A client of Kimberlite that sends what it is told, and reads what comes back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import LanceError
from lance_spark.model import Buffer
from lance_spark.net.address import parse_address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.net.tls import TlsContext
from lance_spark.records import Records
from lance_spark.wire import kimberlite as wire
from tests.broker.kit import make_records, patience

HERE = "127.0.0.1:0"
MIB = 1024 * 1024
HOME = 1


def values_of(records: Records) -> list[bytes]:
    """Give the events of records."""
    spans = records.values
    bounds = zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
    return [spans.data[start:end].tobytes() for start, end in bounds]


class KimberliteClient:
    """One connection to a broker, in one form."""

    def __init__(
        self,
        broker: EmbeddedBroker | str,
        *,
        form: str = "v5",
        tenant: int = HOME,
        tls: TlsContext | None = None,
    ) -> None:
        address = broker if isinstance(broker, str) else broker.address_of("kimberlite")
        self.stream: Stream = connect(
            parse_address(address), deadline=patience(), tls=tls
        )
        self.wire = wire.WIRES[form]
        self.tenant = tenant
        self._parser = wire.FrameParser()
        self._ids = itertools.count(1)
        # What came between answers.
        self.pushes: list[Any] = []

    def __enter__(self) -> KimberliteClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    # Bytes and frames.

    def send(self, *parts: Buffer) -> None:
        """Send bytes as they are."""
        self.stream.send(parts, patience())

    def send_payload(self, payload: bytes) -> None:
        """Send a frame with any payload."""
        self.send(*wire.encode_frame(self.wire.frame_version, [payload]))

    def submit(self, message: wire.Message, *, tenant: int | None = None) -> int:
        """Send a request; give its number."""
        number = next(self._ids)
        asked = wire.Request(number, self.tenant if tenant is None else tenant, message)
        self.send(*wire.encode_message(asked, self.wire))
        return number

    def next_frame(self) -> wire.Frame | None:
        """Read a frame; None at the end of the stream."""
        while (found := self._parser.next_frame()) is None:
            size = self.stream.recv_into(self._parser.buffer_for_read(), patience())
            if size == 0:
                return None
            self._parser.bytes_written(size)
        return found

    def next(self) -> wire.Response | wire.Push:
        """Read an answer or a push."""
        frame = self.next_frame()
        assert frame is not None, "the broker closed the connection"
        return wire.decode_response(frame, self.wire)

    def next_push(self) -> Any:
        """Give the next push."""
        if self.pushes:
            return self.pushes.pop(0)
        found = self.next()
        assert isinstance(found, wire.Push), found
        return found.body

    def answer(self, number: int) -> Any:
        """Read the answer to a request, and keep what is pushed before it."""
        while isinstance(found := self.next(), wire.Push):
            self.pushes.append(found.body)
        assert found.request_id == number
        return found.body

    def ended(self) -> bool:
        """Tell whether the broker has closed, with nothing more to say."""
        try:
            return self.next_frame() is None
        except LanceError as error:
            return "reset" in str(error).lower()

    def is_silent(self, seconds: float = 0.1) -> bool:
        """Tell whether nothing comes for a moment."""
        assert self._parser.next_frame() is None
        return not self.stream.wait_readable(Deadline.after(seconds))

    def ask(self, message: wire.Message, *, tenant: int | None = None) -> Any:
        """Send a request and read its answer."""
        return self.answer(self.submit(message, tenant=tenant))

    def refused(
        self, message: wire.Message, code: int, *, tenant: int | None = None
    ) -> str:
        """Send a request that is answered with an error; give its text."""
        answer = self.ask(message, tenant=tenant)
        assert isinstance(answer, wire.ErrorResponse), answer
        assert answer.code == code, answer
        return answer.message

    # What tests do most.

    def shake(self, token: str | None = None) -> Any:
        """Do the handshake."""
        return self.ask(wire.Handshake(self.wire.frame_version, token))

    def create(self, name: str, *, tenant: int | None = None) -> int:
        """Create a stream, or find it."""
        answer = self.ask(wire.CreateStream(name), tenant=tenant)
        assert isinstance(answer, wire.CreateStreamResponse), answer
        return answer.stream_id

    def make_append(
        self, stream: int, *events: bytes, expected: int | None = None
    ) -> wire.AppendEvents:
        """Make an append."""
        if self.wire.version:
            expected = expected or 0
        return wire.AppendEvents(stream, make_records(*events), expected)

    def append(self, stream: int, *events: bytes, expected: int = 0) -> int:
        """Append events; give the offset of the first."""
        answer = self.ask(self.make_append(stream, *events, expected=expected))
        assert isinstance(answer, wire.AppendEventsResponse), answer
        assert answer.count == len(events)
        return answer.first_offset

    def read(
        self, stream: int, start: int = 0, max_bytes: int = MIB
    ) -> tuple[list[bytes], int | None]:
        """Read what one answer has, and where the next one goes on."""
        answer = self.ask(wire.ReadEvents(stream, start, max_bytes))
        assert isinstance(answer, wire.ReadEventsResponse), answer
        return values_of(answer.events), answer.next_offset

    def read_all(self, stream: int, max_bytes: int = MIB) -> list[bytes]:
        """Read until there is nothing more."""
        events: list[bytes] = []
        at: int | None = 0
        while at is not None:
            found, at = self.read(stream, at, max_bytes)
            events += found
        return events

    def length(self, stream: int) -> int:
        """Ask how many events there are."""
        answer = self.ask(wire.StreamInfo(stream))
        assert isinstance(answer, wire.StreamInfoResponse), answer
        return answer.length


def events_of(pushes: Sequence[Any]) -> list[bytes]:
    """Give the events of pushes."""
    return [value for push in pushes for value in values_of(push.events)]
