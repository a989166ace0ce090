"""The frames of LWP, for both of its dialects: what they share of a session.

LWP demands answers in the order of the requests. So everything but a batch is answered
after what is owed, and further input makes a standing request answer at once: a client
that sends something does not want to wait any more. What a batch or a command means is
in `command.LwpSession` and `plain.PlainSession`.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from lance_spark.broker.budget import TokenBucket
from lance_spark.broker.lwp.ingest import Unpacked
from lance_spark.broker.service import to_broker_error
from lance_spark.broker.session import (
    PIECE_BYTES,
    Owed,
    Session,
    Shared,
    StandingRequest,
)
from lance_spark.errors import (
    AuthenticationRequired,
    BrokerError,
    InvalidPayload,
    LanceError,
    PayloadOverLimit,
    PayloadTooLarge,
    RemoteProtocolError,
)
from lance_spark.model import Buffer
from lance_spark.net.stream import Stream
from lance_spark.store import Slice, combine_crc32c
from lance_spark.wire import lwp as wire
from lance_spark.wire.lwp import Checksum, Command, Frame, FrameType, Message

# A request with a longer payload has a list that takes time to read.
_SHORT_BYTES = 4 * 1024
# A client halves its rate at each Backpressure frame; more of them would stop it.
_SLOW_DOWN_INTERVAL_S = 0.1
_NOTHING = memoryview(b"")

Answer = Message | StandingRequest | None


class FrameSession(Session[Frame]):
    """A client that sends frames of LWP."""

    CARRIES_TOKEN = True

    _parser: wire.FrameParser
    # What answers each kind of request: the method with the name of the message. It
    # gives the answer, or a request that stands, or None if it has sent the answer.
    _handlers: ClassVar[Mapping[type[Message], Callable[[Any, Any], Answer]]]

    def __init_subclass__(cls) -> None:
        methods = {
            kind: getattr(cls, "_" + kind.NAME.replace(" ", "_"), None)
            for kind in wire.REQUESTS.values()
        }
        cls._handlers = {kind: m for kind, m in methods.items() if m is not None}

    def __init__(self, stream: Stream, shared: Shared, *, idle_timeout_s: float):
        super().__init__(stream, shared, idle_timeout_s=idle_timeout_s)
        config = shared.config
        self._keepalives = TokenBucket(config.keepalive_rate, config.keepalive_burst)
        # Long ago: the clock of a machine that has just started is near 0.
        self._slowed_s = -math.inf

    def _make_parser(self) -> wire.FrameParser:
        checksum = wire.parse_checksum(self._config.frame_checksum)
        return wire.FrameParser(
            checksum=checksum, payload_bytes_max=self._payload_bytes_max
        )

    @property
    def checksum(self) -> Checksum:
        """The checksum that this client is answered with."""
        return self._parser.checksum or Checksum.CRC32C

    # What a frame means.

    def _handle(self, frame: Frame) -> None:
        kind = frame.type
        if not self.is_admitted:
            self._handle_stranger(frame, kind)
            return
        if kind is FrameType.INGEST:
            self._ingest(frame)
            return
        self._settle()
        self._turn.begin()
        if kind is FrameType.CONTROL:
            self._control(frame)
        elif kind is FrameType.KEEPALIVE:
            self._keepalive()
        elif kind is FrameType.EMPTY:
            self._empty(frame)
        # Ack and Backpressure are a server's to send: from a client they mean nothing.

    def _handle_stranger(self, frame: Frame, kind: FrameType) -> None:
        """Look at a frame of a client without its token: its type and no further."""
        try:
            if kind is FrameType.CONTROL and frame.command == Command.AUTHENTICATE:
                self._control(frame)
            elif kind is FrameType.KEEPALIVE:
                self._keepalive()
            elif kind in (FrameType.INGEST, FrameType.CONTROL, FrameType.EMPTY):
                raise AuthenticationRequired("Authentication required")
        finally:
            self._watch_stranger()

    @abstractmethod
    def _ingest(self, frame: Frame) -> None:
        """Store a batch and owe its acknowledgement."""

    @abstractmethod
    def _decode(self, frame: Frame) -> Message:
        """Read the request of a control frame."""

    def _fail_batch(self, owed: Owed, failure: LanceError) -> None:
        """Take note of a batch that was written and may not be on the disk."""

    def _control(self, frame: Frame) -> None:
        # A client can make up any number of commands; this is a label of the metrics.
        name = "Unknown"
        if len(frame.payload) > _SHORT_BYTES:
            self._turn.lengthen()
        is_over = True
        try:
            message = self._decode(frame)
            name = type(message).__name__
            answer = self._handlers[type(message)](self, message)
            if isinstance(answer, StandingRequest):
                answer.command = name
                is_over = not self._stand(answer)
                if is_over:
                    answer.attempt(True)
            elif answer is not None:
                self._send(wire.encode_message(answer, checksum=self.checksum))
        finally:
            if is_over:
                self._observe(name, self._began_s)

    def _input_came(self) -> None:
        if self._standing:
            self._answer_standing(final=True)

    def _empty(self, frame: Frame) -> None:
        raise InvalidPayload(f"a frame without type and payload: {frame}")

    def _keepalive(self) -> None:
        # Clients of the field answer answers: without a limit, the two sides would
        # send keepalives to each other for ever at full speed.
        if self._keepalives.take() == 0:
            self._send([wire.encode_keepalive(checksum=self.checksum)])
        else:
            self._count("keepalives_dropped")

    # Batches.

    def _append_batch(self, frame: Frame, batch: Unpacked) -> None:
        self._append(
            frame.batch_id,
            frame.topic_id,
            len(batch.data),
            lambda: self._service.append(
                self._client,
                frame.topic_id,
                frame.batch_id,
                batch.data,
                starts=batch.starts,
                data_crc=batch.crc32c,
            ),
        )

    def _acknowledge(self, owed: Owed, failure: LanceError | None) -> Sequence[Buffer]:
        self._observe("Ingest", owed.began_s)
        if failure is None:
            return [wire.encode_ack(owed.request, checksum=self.checksum)]
        self._fail_batch(owed, failure)
        error = to_broker_error(failure)
        return self._error_frame(_name_batch(error, owed.request, owed.target))

    # Errors.

    def _refuse(self, error: BrokerError, frame: Frame | None) -> None:
        self._settle()
        if frame is not None and frame.type is FrameType.INGEST:
            error = _name_batch(error, frame.batch_id, frame.topic_id)
        self._send(self._error_frame(error))

    def _reject(self, error: RemoteProtocolError) -> None:
        if not isinstance(error, PayloadOverLimit):
            # LWP §11: the connection is closed, and nothing is sent.
            super()._reject(error)
            return
        header = self._parser.refused
        assert header is not None
        said: BrokerError = PayloadTooLarge(str(error))
        if header.type is FrameType.INGEST:
            said = _name_batch(said, header.batch_id, header.topic_id)
        self._send(self._error_frame(said))
        self._linger()

    def _error_frame(self, error: BrokerError) -> list[Buffer]:
        self._metrics.count_error(wire.code_of(error))
        told = wire.ErrorResponse.from_exception(error)
        as_text = self._config.errors_as_text
        payload = b"".join(told.encode_text() if as_text else told.encode_payload())
        crc = self.checksum.update(payload)
        return [self._header(Command.ERROR_RESPONSE, len(payload), crc), payload]

    # Sending.

    def _header(self, command: Command, length: int, crc: int) -> bytes:
        return wire.encode_header(
            wire.FrameFlags.CONTROL,
            batch_id=command,
            payload_length=length,
            payload_crc=crc,
            checksum=self.checksum,
        )

    def _send_slice(self, head: bytes, found: Slice) -> None:
        """Send a fetch response: its own header, then records from the page cache.

        The frame's header comes first and has a checksum of all that follows. Where
        the store has that of the records, only the kernel reads them, to send them;
        otherwise they are read once more before that, in pieces.

        Raises:
            ConnectionLost: the client does not take them.
            Corrupt, StoreError: the records can't be read, and nothing was sent.
        """
        self._turn.rest()
        checksum, size = self.checksum, len(found)
        crc, piece = checksum.update(head), _NOTHING
        if (
            size > PIECE_BYTES
            and found.crc32c is not None
            and checksum is Checksum.CRC32C
        ):
            crc = combine_crc32c(crc, found.crc32c, size)
        else:
            for piece in self._pieces(found):
                crc = checksum.update(piece, crc)
        header = self._header(Command.FETCH_RESPONSE, len(head) + size, crc)
        if size <= PIECE_BYTES:
            self._send([header, head, piece])
            return
        self._send([header, head])
        self._send_file(found)

    def _slow_down(self) -> None:
        now = time.monotonic()
        due = now - self._slowed_s >= _SLOW_DOWN_INTERVAL_S
        if self._config.backpressure and due:
            self._slowed_s = now
            self._count("backpressure_frames")
            self._send([wire.encode_backpressure(checksum=self.checksum)])


def _name_batch(error: BrokerError, batch_id: int, target: int) -> BrokerError:
    """Add the batch that an error is about: its frame has no field for that."""
    details = {**error.details, "batch_id": batch_id, "topic_id": target}
    return type(error)(error.message, error.code, details)
