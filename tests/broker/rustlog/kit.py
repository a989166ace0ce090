"""A client of RustLog that sends what it is told, in either dialect."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import LanceError
from lance_spark.net.address import parse_address
from lance_spark.net.connect import connect
from lance_spark.net.stream import Stream
from lance_spark.net.tls import TlsContext
from lance_spark.records import Records, Spans
from lance_spark.wire import rustlog as wire
from tests.broker.kit import patience

MIB = 1024 * 1024


def make(values: Sequence[bytes]) -> Records:
    """Make records of values."""
    lengths = np.array([len(value) for value in values], np.int64)
    ends = np.cumsum(lengths)
    data = np.frombuffer(b"".join(values), np.uint8)
    return Records(Spans(data, ends - lengths, ends))


def values_of(records: Records) -> list[bytes]:
    """Give the values of records."""
    spans = records.values
    bounds = zip(spans.starts, spans.ends, strict=True)
    return [spans.data[start:end].tobytes() for start, end in bounds]


class RustlogClient:
    """One connection to a broker; `as_json` chooses the dialect of requests."""

    def __init__(
        self,
        broker: EmbeddedBroker | str,
        *,
        as_json: bool = False,
        tls: TlsContext | None = None,
    ) -> None:
        address = broker if isinstance(broker, str) else broker.address_of("rustlog")
        self.as_json = as_json
        self.stream: Stream = connect(
            parse_address(address), deadline=patience(), tls=tls
        )
        self._parser = wire.FrameParser()

    def __enter__(self) -> RustlogClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    def send(self, *parts: bytes) -> None:
        """Send bytes as they are."""
        self.stream.send(parts, patience())

    def send_payload(self, payload: bytes) -> None:
        """Send a frame with any payload."""
        self.send(struct.pack(">I", len(payload)), payload)

    def submit(self, message: wire.Message) -> None:
        """Send a request."""
        self.send(*wire.encode_message(message, as_json=self.as_json))

    def next_payload(self) -> bytes | None:
        """Read the payload of a frame; None at the end of the stream."""
        while (found := self._parser.next_frame()) is None:
            size = self.stream.recv_into(self._parser.buffer_for_read(), patience())
            if size == 0:
                return None
            self._parser.bytes_written(size)
        return bytes(found)

    def next(self) -> Any:
        """Read an answer in the dialect of the requests."""
        payload = self.next_payload()
        assert payload is not None, "the broker closed the connection"
        assert wire.is_json(payload) == self.as_json
        return wire.decode_response(payload)

    def ended(self) -> bool:
        """Tell whether the broker has closed, with nothing more to say."""
        try:
            return self.next_payload() is None
        except LanceError as error:
            return "reset" in str(error).lower()

    def ask(self, message: wire.Message) -> Any:
        """Send a request and read its answer."""
        self.submit(message)
        return self.next()

    def refused(self, message: wire.Message) -> tuple[int | None, str]:
        """Send a request that has to be refused; give code and text."""
        answer = self.ask(message)
        assert isinstance(answer, wire.ErrorResponse), answer
        return answer.code, answer.message

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic."""
        assert self.ask(wire.CreateTopic(topic, partitions)).success

    def produce(self, topic: str, values: Sequence[bytes], partition: int = 0) -> int:
        """Append; give the number of the first."""
        answer = self.ask(wire.Produce(topic, partition, make(values)))
        assert isinstance(answer, wire.ProduceResponse), answer
        assert answer.count == len(values)
        return answer.base_offset

    def fetch(
        self,
        topic: str,
        offset: int = 0,
        max_bytes: int = MIB,
        *,
        partition: int = 0,
        group: str = "",
    ) -> tuple[list[bytes], int]:
        """Fetch; give the values and the next offset."""
        answer = self.ask(wire.Fetch(topic, partition, offset, max_bytes, group))
        assert isinstance(answer, wire.FetchResponse), answer
        return values_of(answer.records), answer.next_offset

    def read(self, topic: str, partition: int = 0) -> list[bytes]:
        """Fetch until there is nothing more."""
        return [value for values in self._read(topic, partition) for value in values]

    def _read(self, topic: str, partition: int) -> Iterator[list[bytes]]:
        start, values = 0, [b""]
        while values:
            values, start = self.fetch(topic, start, 8 * MIB, partition=partition)
            yield values
