"""What the broker's tests share: records, and a client that sends what it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lance_spark.broker import EmbeddedBroker
from lance_spark.errors import BrokerError, LanceError
from lance_spark.model import Buffer
from lance_spark.net.address import parse_address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.net.tls import TlsContext
from lance_spark.records import Records, Spans
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import Checksum, Frame, FrameFlags, FrameParser, FrameType

# Nothing here takes so long; a test that is about to hang fails instead.
PATIENCE_S = 20.0


def patience() -> Deadline:
    """Make a deadline that only a broken broker passes."""
    return Deadline.after(PATIENCE_S)


def record(value: bytes, kind: int = 1) -> bytes:
    """Make one TLV record."""
    return bytes((kind,)) + len(value).to_bytes(4, "little") + value


def make_records(*values: bytes) -> Records:
    """Make records of values, as protocols other than LWP do."""
    lengths = np.array([len(value) for value in values], np.int64)
    ends = np.cumsum(lengths)
    return Records(
        Spans(np.frombuffer(b"".join(values), np.uint8), ends - lengths, ends)
    )


def records(tag: str, count: int, size: int = 20) -> bytes:
    """Make records that say which ones they are."""
    values = (f"{tag}/{n}".encode().ljust(size, b".") for n in range(count))
    return b"".join(map(record, values))


StartBroker = Callable[..., EmbeddedBroker]


class Client:
    """One connection that sends frames or bytes, and reads what comes back."""

    def __init__(
        self,
        address: str,
        *,
        checksum: Checksum = Checksum.CRC32C,
        tls: TlsContext | None = None,
    ) -> None:
        self.checksum = checksum
        self.stream: Stream = connect(
            parse_address(address), deadline=patience(), tls=tls
        )
        self._parser = FrameParser(checksum=checksum)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Go away."""
        self.stream.close()

    # Sending.

    def send(self, *buffers: Buffer) -> None:
        """Send bytes as they are."""
        self.stream.send(buffers, patience())

    def frame(self, flags: int, payload: bytes = b"", **fields: int) -> bytes:
        """Make any frame."""
        parts = wire.encode_frame(flags, [payload], checksum=self.checksum, **fields)
        return b"".join(parts)

    def message(self, message: wire.Message) -> bytes:
        """Make the frame of a request."""
        return b"".join(wire.encode_message(message, checksum=self.checksum))

    def ingest(
        self,
        payload: bytes,
        batch: int = 1,
        *,
        topic: int = 0,
        count: int = 1,
        **more: Any,
    ) -> bytes:
        """Make the frame of a batch."""
        flags = more.pop("flags", FrameFlags.BATCH_MODE)
        fields = {"batch_id": batch, "record_count": count, "topic_id": topic, **more}
        return self.frame(flags, payload, **fields)

    def keepalive(self) -> bytes:
        """Make a keepalive."""
        return wire.encode_keepalive(checksum=self.checksum)

    # Receiving.

    def next(self) -> Frame:
        """Read a frame; fail if there are no more."""
        found = self.next_or_end()
        assert found is not None, "the broker closed the connection"
        return found

    def next_or_end(self) -> Frame | None:
        """Read a frame, None at the end of the stream."""
        while (found := self._parser.next_frame()) is None:
            size = self.stream.recv_into(self._parser.buffer_for_read(), patience())
            if size == 0:
                return None
            self._parser.bytes_written(size)
        return found

    def ended(self) -> bool:
        """Tell whether the broker has closed, with nothing more to say.

        A reset counts: it is what is left of a close when bytes were on their way.
        """
        try:
            return self.next_or_end() is None
        except LanceError as error:
            return "reset" in str(error).lower()

    def is_silent(self, seconds: float = 0.05) -> bool:
        """Tell whether nothing comes for a moment."""
        assert self._parser.next_frame() is None
        return not self.stream.wait_readable(Deadline.after(seconds))

    def acked(self, *batches: int) -> None:
        """Read acknowledgements; fail if they are not for these batches."""
        frames = [self.next() for _ in batches]
        got = [(f.type, f.batch_id, f.topic_id, len(f.payload)) for f in frames]
        assert got == [(FrameType.ACK, batch, 0, 0) for batch in batches], [
            bytes(f.payload) for f in frames
        ]

    def alive(self) -> None:
        """Fail unless the connection works."""
        self.send(self.keepalive())
        assert self.next().type is FrameType.KEEPALIVE

    def answer(self, *, extended: bool = False) -> wire.Message:
        """Read the answer to a request."""
        return wire.decode_response(self.next(), extended=extended)

    def error(self) -> BrokerError:
        """Read an answer that has to be an error."""
        answer = self.answer()
        assert isinstance(answer, wire.ErrorResponse), answer
        return answer.to_exception()

    # Both.

    def ask(self, message: wire.Message, *, extended: bool = False) -> Any:
        """Send a request and read its answer."""
        self.send(self.message(message))
        return self.answer(extended=extended)

    def refused(self, message: wire.Message) -> BrokerError:
        """Send a request that has to be refused; give the error."""
        self.send(self.message(message))
        return self.error()

    def create(self, name: str) -> int:
        """Create a topic; give its id."""
        answer = self.ask(wire.CreateTopic(name))
        assert isinstance(answer, wire.TopicInfo), answer
        return answer.id

    def write(self, topic: int, payload: bytes, batch: int = 1, *, count: int) -> None:
        """Write a batch and see it acknowledged."""
        self.send(self.ingest(payload, batch, topic=topic, count=count))
        self.acked(batch)

    def fetch(
        self, topic: int, start: int, max_bytes: int = 1 << 20, **options: Any
    ) -> wire.FetchResponse:
        """Fetch, in the short form."""
        answer = self.ask(wire.Fetch(topic, start, max_bytes, **options))
        assert isinstance(answer, wire.FetchResponse), answer
        return answer

    def read(self, topic: int, start: int = 0, max_bytes: int = 1 << 20) -> bytes:
        """Fetch until there is nothing more; give all the bytes."""
        parts = []
        while True:
            answer = self.fetch(topic, start, max_bytes)
            if not len(answer.data):
                return b"".join(parts)
            parts.append(bytes(answer.data))
            start = answer.next_offset


Dial = Callable[..., Client]


@contextmanager
def clients(
    broker: EmbeddedBroker, count: int, **options: Any
) -> Iterator[list[Client]]:
    """Connect so many clients."""
    opened: list[Client] = []
    try:
        for _ in range(count):
            opened.append(Client(broker.address, **options))
        yield opened
    finally:
        for client in opened:
            client.close()


def eventually(is_so: Callable[[], bool]) -> bool:
    """Wait until something has become so, which no event tells of."""
    deadline = patience()
    pause = threading.Event()
    while not is_so():
        if deadline.expired:
            return False
        pause.wait(0.002)
    return True


@contextmanager
def running(work: Callable[[], object]) -> Iterator[Callable[[], Any]]:
    """Run something in a thread; calling what is given waits for its result."""
    results: list[Any] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)

    def wait() -> Any:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it takes for ever"
        if failures:
            raise failures[0]
        return results[0]

    thread.start()
    try:
        yield wait
    finally:
        thread.join(PATIENCE_S)


def join(buffers: Sequence[Buffer]) -> bytes:
    """Put buffers together."""
    return b"".join(bytes(buffer) for buffer in buffers)
