"""One connection: frames in, answers out, strictly in the order of the requests.

This is the part that all dialects of LWP share: reading within the broker's memory,
acknowledging when the disk has it, keepalives, waiting for data. What a frame means is
decided by `lwp.LwpSession` and `plain.PlainSession`. It is long because reading, memory
and what is owed can't be told apart: whoever waits for memory first settles what is
owed, and whoever is owed is read from no further.

A session runs in a thread of its own and blocks as it likes. It appends batches as
they come and owes their acknowledgements; as soon as nothing more has arrived, or it
owes too much, it waits for the disk once and sends them together. So batches that a
client has pipelined share one sync. Everything else is answered only after what is
owed, which keeps the order.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lance_spark.broker.access import Principal
from lance_spark.broker.batch import Batch
from lance_spark.broker.bucket import TokenBucket
from lance_spark.broker.budget import Budget
from lance_spark.broker.config import BrokerConfig
from lance_spark.broker.outlet import PIECE_BYTES, Outlet
from lance_spark.broker.refusal import to_broker_error
from lance_spark.broker.service import Service
from lance_spark.broker.turn import Turn, Turns
from lance_spark.errors import (
    AuthenticationRequired,
    Backpressure,
    BrokerError,
    ConnectionLost,
    InvalidPayload,
    LanceError,
    PayloadOverLimit,
    PayloadTooLarge,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.model import Buffer
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.net.waker import Waker
from lance_spark.store import Appended, Slice
from lance_spark.wire.lwp import (
    Checksum,
    Command,
    ErrorResponse,
    Frame,
    FrameFlags,
    FrameParser,
    FrameType,
    Message,
    code_of,
    encode_ack,
    encode_backpressure,
    encode_header,
    encode_keepalive,
    encode_message,
)

logger = logging.getLogger(__name__)

# The largest payload of a client that has yet to present its token: Authenticate has
# to fit, and nothing else is looked into.
STRANGER_BYTES_MAX = 64 * 1024
# Acknowledgements that are owed at once, in number and in bytes of batches.
_OWED_MAX = 256
_OWED_BYTES_MAX = 4 * 1024 * 1024
# What one position of a request that waits costs: itself, its place in the list that
# is looked up, and the one among the watchers of its topic.
WAIT_POSITION_BYTES = 512
# A request with a longer payload has a list that takes time to read.
_SHORT_BYTES = 4 * 1024
# While others wait for memory, a client that sends nothing of a payload it has begun
# for so long has to go.
_STALL_S = 2.0
# Meanwhile all others have to send at least so much of it in that time.
_PACE_BYTES = 64 * 1024
# A client halves its rate at each of these; more of them would stop it.
_SLOW_DOWN_INTERVAL_S = 0.1
# After an error that ends the connection, so much is read and dropped for so long, so
# that the error arrives before the reset that unread data would cause.
_DRAIN_BYTES = 64 * 1024 * 1024
_DRAIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sessions of a server have in common."""

    service: Service
    config: BrokerConfig
    # Payloads that are being received or looked at.
    memory: Budget
    # Batches that are written and not yet durable.
    queue: Budget
    # What requests hold that wait for data; a part of the memory.
    waiting: Budget
    # Who computes.
    turns: Turns


@dataclass(frozen=True, slots=True)
class Owed:
    """An acknowledgement that waits for the disk."""

    batch_id: int
    target: int
    appended: Appended
    size: int
    began_s: float


class Session(ABC):
    """Serve one client until it goes."""

    def __init__(self, stream: Stream, shared: Shared, *, idle_timeout_s: float):
        config = shared.config
        self._stream = stream
        self._service = shared.service
        self._config = config
        self._metrics = shared.service.metrics
        self._memory = shared.memory
        self._queue = shared.queue
        self._waiting = shared.waiting
        # Taken for everything but waiting: given back before each send, receive, and
        # wait for memory or the disk, and taken again where there is more to do.
        self._turn = Turn(shared.turns)
        self._idle_timeout_s = idle_timeout_s
        self._outlet = Outlet(stream, self._metrics, config.idle_timeout_s)
        self._parser = FrameParser(
            checksum=config.frame_checksum,
            payload_bytes_max=min(config.payload_bytes_max, STRANGER_BYTES_MAX)
            if shared.service.policy.token_required
            else config.payload_bytes_max,
        )
        self._keepalives = TokenBucket(config.keepalive_rate, config.keepalive_burst)
        self._owed: list[Owed] = []
        self._owed_bytes = 0
        # What the frame under way has taken of the memory, and of the share of waits.
        self._reserved = 0
        self._lent = 0
        # A request that came while the one before it was still waiting for data.
        self._ahead: Frame | None = None
        # Long ago: the clock of a machine that has just started is near 0.
        self._slowed_s = -math.inf
        # When the pace of the payload under way was last looked at, and what was
        # missing of it then.
        self._pace: tuple[float, int] | None = None
        # Until when a client without its token is listened to.
        self._admission = Deadline.after(config.handshake_timeout_s)
        self._waker: Waker | None = None
        self._ending = False
        certificate = stream.certificate
        self._client = (
            Principal()
            if certificate is None
            else Principal(certificate.common_name, certificate.chain)
        )

    @property
    def checksum(self) -> Checksum:
        """The checksum that this client is answered with."""
        return self._parser.checksum or Checksum.CRC32C

    # Running.

    def run(self) -> None:
        """Serve the client; returns when the connection has ended."""
        try:
            while not self._ending and (frame := self._next_frame()) is not None:
                self._turn.begin()
                self._dispatch(frame)
                self._turn.pause()
                # The memory is free once the frame is dealt with.
                del frame
                self._free_memory()
        except (ConnectionLost, Timeout) as error:
            logger.debug("%s: %s", self._stream.peer, error)
        finally:
            self._turn.rest()
            self._forgive()
            self._free_memory()
            if self._waker is not None:
                self._waker.close()

    def refuse(self, error: BrokerError, timeout_s: float) -> None:
        """Tell the client why it is not served, after its first frame has come.

        The first frame shows which checksum it understands.
        """
        self._idle_timeout_s = timeout_s
        try:
            self._next_frame()
            self._send_error(error)
            self._linger()
        except (ConnectionLost, Timeout) as lost:
            logger.debug("%s: %s", self._stream.peer, lost)
        finally:
            self._turn.rest()
            self._free_memory()

    def _dispatch(self, frame: Frame) -> None:
        kind = frame.type
        if not self.is_let_in:
            self._dispatch_stranger(frame, kind)
            return
        if kind is FrameType.INGEST:
            self._ingest(frame)
            if len(self._owed) >= _OWED_MAX or self._owed_bytes >= _OWED_BYTES_MAX:
                self._settle()
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

    def _dispatch_stranger(self, frame: Frame, kind: FrameType) -> None:
        """Look at a frame of a client without its token: its type and no further."""
        if kind is FrameType.CONTROL and frame.command == Command.AUTHENTICATE:
            self._control(frame)
            if self.is_let_in:
                self._parser.allow(self._config.payload_bytes_max)
                return
        elif kind is FrameType.KEEPALIVE:
            self._keepalive()
        elif kind in (FrameType.INGEST, FrameType.CONTROL, FrameType.EMPTY):
            error: BrokerError = AuthenticationRequired("Authentication required")
            if kind is FrameType.INGEST:
                error = self._batch_error(error, frame.batch_id, frame.topic_id)
            self._send_error(self._say(error))
        # Whatever it sends, it does not keep a place that others could have.
        self._ending = self._ending or self._admission.expired

    @abstractmethod
    def _ingest(self, frame: Frame) -> None:
        """Store a batch; owe its acknowledgement or say what is wrong with it."""

    @abstractmethod
    def _decode(self, frame: Frame) -> Message:
        """Read what a control frame asks."""

    @abstractmethod
    def _handle(self, message: Message) -> Message | None:
        """Do what a client asks; give the answer, None if it was sent already."""

    @abstractmethod
    def _fail_batch(self, owed: Owed, error: Exception) -> None:
        """Take note of a batch that was written and may not be on the disk."""

    @abstractmethod
    def _encode_error(self, error: ErrorResponse) -> list[Buffer]:
        """Write the payload of an error."""

    def _say(self, error: Exception) -> BrokerError:
        """Say what went wrong in the words of the dialect."""
        return to_broker_error(error)

    def _control(self, frame: Frame) -> None:
        """Do what a control frame asks, and answer."""
        began_s = time.perf_counter()
        # A client can make up any number of commands; this is a label of the metrics.
        name = "Unknown"
        if len(frame.payload) > _SHORT_BYTES:
            self._turn.lengthen()
        try:
            message = self._decode(frame)
            name = type(message).__name__
            answer = self._handle(message)
            if answer is not None:
                self._send(encode_message(answer, checksum=self.checksum))
        except ConnectionLost:
            raise
        except Exception as error:
            self._send_error(self._say(error))
        self._metrics.observe_request(name, time.perf_counter() - began_s)

    def _empty(self, frame: Frame) -> None:
        self._send_error(InvalidPayload(f"a frame without type and payload: {frame}"))

    def _keepalive(self) -> None:
        # A client of the field answers answers, and would play this game for ever at
        # full speed if nobody dropped a ball.
        if self._keepalives.take() == 0:
            self._send([encode_keepalive(checksum=self.checksum)])
        else:
            self._metrics.keepalive_dropped()

    # Receiving.

    def _next_frame(self) -> Frame | None:
        """Give the next frame, None when there will be no more."""
        if self._ahead is not None:
            ahead, self._ahead = self._ahead, None
            return ahead
        while True:
            try:
                frame = self._parser.next_frame()
            except PayloadOverLimit as error:
                self._settle()
                self._refuse_payload(error)
                return None
            except RemoteProtocolError as error:
                # LWP §11: the connection is closed, and nothing is said.
                logger.info("%s: closed: %s", self._stream.peer, error)
                self._settle()
                return None
            if frame is not None:
                return frame
            if self._owed and not self._stream.wait_readable(Deadline.after(0)):
                self._settle()
            if not self._fill():
                self._settle()
                return None

    def _fill(self) -> bool:
        """Read what has come; False at the end of the stream."""
        if not self._reserve():
            return False
        room = self._parser.buffer_for_read()
        self._turn.renew()
        size = self._receive(room)
        if size == 0:
            return False
        self._turn.take()
        self._metrics.received(size)
        self._parser.bytes_written(size)
        return True

    def _receive(self, room: memoryview) -> int:
        idle = Deadline.after(self._idle_timeout_s)
        if not self.is_let_in:
            idle = idle.sooner(self._admission.remaining())
        self._check_pace()
        while True:
            stalling = self._parser.payload_missing > 0
            try:
                return self._stream.recv_into(
                    room, idle.sooner(_STALL_S) if stalling else idle
                )
            except Timeout:
                if idle.expired or self._memory.is_short:
                    raise

    @property
    def is_let_in(self) -> bool:
        """Whether the client has presented its token, or needs none."""
        return self._client.authenticated or not self._service.policy.token_required

    def _check_pace(self) -> None:
        """End a payload that comes too slowly while others wait for its memory.

        Raises:
            Timeout: it does.
        """
        missing, now = self._parser.payload_missing, time.monotonic()
        if not missing or self._pace is None:
            self._pace = (now, missing) if missing else None
            return
        since, before = self._pace
        if now - since < _STALL_S:
            return
        if self._memory.is_short and before - missing < _PACE_BYTES:
            raise Timeout(f"{self._stream.peer}: too slow while memory is short")
        self._pace = (now, missing)

    def _reserve(self) -> bool:
        """Take the memory that the payload under way is about to fill."""
        more = self._parser.payload_bytes_next - self._reserved
        if more <= 0 or self._hold(more):
            return True
        logger.info("%s: closed: no memory for it", self._stream.peer)
        self._send_error(Backpressure("no memory for the batch: send it again"))
        self._linger()
        return False

    def _hold(self, size: int) -> bool:
        """Take memory until the frame is dealt with; False if there is none."""
        if not self._memory.try_take(size):
            self._slow_down()
            self._settle()
            deadline = Deadline.after(self._idle_timeout_s)
            holder = self if self._reserved else None
            self._turn.rest()
            if not self._memory.take(size, deadline, holder=holder):
                return False
            self._turn.take()
        self._reserved += size
        return True

    def _hold_answer(self, size: int) -> None:
        """Charge a large answer before it is built, until it is sent.

        A client may ask for it and not read: such answers have the share of waits, so
        that they keep no other client from the memory for its batches.

        Raises:
            Timeout: others hold what there is.
        """
        if size <= PIECE_BYTES:
            return
        self._turn.rest()
        deadline = Deadline.after(self._config.wait_timeout_s)
        if not self._waiting.take(size, deadline):
            raise Timeout("no memory for the answer: other clients do not read theirs")
        self._lent += size
        if not self._hold(size):
            raise Timeout("no memory for the answer: other clients send too much")
        self._turn.begin()

    def _free_memory(self) -> None:
        if self._lent:
            self._waiting.give_back(self._lent)
            self._lent = 0
        # A payload behind the frame just dealt with has taken nothing yet: that is
        # done when more of it is read.
        self._pace = None
        if self._reserved:
            self._memory.give_back(self._reserved, holder=self)
            self._reserved = 0

    def _refuse_payload(self, error: PayloadOverLimit) -> None:
        refused = self._parser.refused
        assert refused is not None
        details = {}
        if refused.type is FrameType.INGEST:
            details = {"batch_id": refused.batch_id, "topic_id": refused.topic_id}
        self._send_error(PayloadTooLarge(str(error), details=details))
        self._linger()

    def _linger(self) -> None:
        """Say no more, and let the client read what was said last."""
        self._stream.shutdown_write()
        deadline, left = Deadline.after(_DRAIN_S), _DRAIN_BYTES
        room = memoryview(bytearray(PIECE_BYTES))
        while left > 0:
            size = self._stream.recv_into(room, deadline)
            if size == 0:
                return
            left -= size

    # Acknowledging.

    def _append(self, frame: Frame, batch: Batch, began_s: float) -> None:
        """Write a batch, and owe its acknowledgement."""
        size = len(batch.data)
        self._enqueue(size)
        self._turn.take()
        try:
            appended = self._service.append(
                self._client,
                frame.topic_id,
                frame.batch_id,
                batch.data,
                starts=batch.starts,
                data_crc=batch.crc32c,
            )
        except BaseException:
            self._queue.give_back(size)
            raise
        self._owe(Owed(frame.batch_id, frame.topic_id, appended, size, began_s))

    def _owe(self, owed: Owed) -> None:
        self._owed.append(owed)
        self._owed_bytes += owed.size

    def _enqueue(self, size: int) -> None:
        """Make room for a batch among those that wait for the disk.

        Raises:
            Timeout: the disk does not keep up.
        """
        if self._queue.try_take(size):
            return
        self._slow_down()
        self._settle()
        timeout_s = self._config.wait_timeout_s
        self._turn.rest()
        if not self._queue.take(size, Deadline.after(timeout_s)):
            raise Timeout(f"the write queue was full for {timeout_s:g} s")
        self._turn.take()

    def _slow_down(self) -> None:
        now = time.monotonic()
        due = now - self._slowed_s >= _SLOW_DOWN_INTERVAL_S
        if self._config.backpressure and due:
            self._slowed_s = now
            self._metrics.backpressure_sent()
            self._send([encode_backpressure(checksum=self.checksum)])

    def _settle(self) -> None:
        """Send all acknowledgements that are owed, once the disk has the batches."""
        if not self._owed:
            return
        self._turn.rest()
        failures: dict[int, LanceError] = {}
        # For all of them: a disk that hangs must not cost each its own timeout.
        deadline = Deadline.after(self._config.wait_timeout_s)
        for number, owed in enumerate(self._owed):
            try:
                self._service.wait_durable(
                    owed.target, owed.appended, deadline.remaining()
                )
            except LanceError as error:
                failures[number] = error
        if len(self._owed) > 1:
            # A sync wakes all that wait for it at the same moment; what they do then,
            # they do in turn.
            self._turn.begin()
        answers: list[Buffer] = []
        for number, owed in enumerate(self._owed):
            failure = failures.get(number)
            if failure is None:
                answers.append(encode_ack(owed.batch_id, checksum=self.checksum))
            else:
                self._fail_batch(owed, failure)
                answers += self._error_frame(
                    self._batch_error(failure, owed.batch_id, owed.target)
                )
            self._metrics.observe_request("Ingest", time.perf_counter() - owed.began_s)
        self._forgive()
        self._send(answers)

    def _forgive(self) -> None:
        if self._owed:
            self._queue.give_back(self._owed_bytes)
            self._owed, self._owed_bytes = [], 0

    def _batch_error(self, error: Exception, batch_id: int, target: int) -> BrokerError:
        """Say which batch an error is about: its frame has no field for that."""
        said = to_broker_error(error)
        details = {**said.details, "batch_id": batch_id, "topic_id": target}
        return type(said)(said.message, said.code, details)

    # Sending.

    def _send(self, buffers: Sequence[Buffer]) -> None:
        self._turn.rest()
        self._outlet.send(buffers)

    def _send_error(self, error: BrokerError) -> None:
        self._send(self._error_frame(error))

    def _error_frame(self, error: BrokerError) -> list[Buffer]:
        self._metrics.count_error(code_of(error))
        payload = b"".join(self._encode_error(ErrorResponse.from_exception(error)))
        return [
            encode_header(
                FrameFlags.CONTROL,
                batch_id=Command.ERROR_RESPONSE,
                payload_length=len(payload),
                payload_crc=self.checksum.update(payload),
                checksum=self.checksum,
            ),
            payload,
        ]

    def _send_slice(self, head: bytes, found: Slice) -> None:
        self._turn.rest()
        self._outlet.send_slice(head, found, self.checksum)

    # Waiting.

    def _wait(
        self,
        offsets: Mapping[int, int],
        ready: Callable[[], bool],
        wait_s: float,
        *,
        catalog: bool = False,
    ) -> bool:
        """Wait until a topic has grown past its offset or gone, or the list changed.

        A further request of the client ends the wait early, and so does its going
        away: this is the only place where a session does not read for long. While too
        many wait for too much already, there is no wait at all: no client is kept
        from the memory for its batches by others that wait.

        Args:
            offsets: by topic.
            ready: tells whether that is so. It is asked at the start and after a change
                that counts, never for other appends.
            wait_s: the longest wait.
            catalog: the list of topics counts, too.

        Returns:
            What `ready` has said; False if it was not asked.
        """
        size = len(offsets) * WAIT_POSITION_BYTES
        if wait_s <= 0 or self._has_more() or not self._hold_waiting(size):
            return False
        deadline = Deadline.after(min(wait_s, self._config.wait_s_max))
        if self._waker is None:
            self._waker = Waker()
        waker = self._waker
        with self._service.watching(offsets, waker.set, catalog=catalog):
            while not deadline.expired:
                # Cleared before the question: a change behind it sets it again.
                waker.clear()
                if ready():
                    return True
                self._turn.rest()
                is_readable = self._stream.wait_readable(deadline, waker)
                self._turn.take()
                if is_readable:
                    break
        return False

    def _hold_waiting(self, size: int) -> bool:
        """Charge what a wait holds, to the waits and to the memory of all."""
        if not self._waiting.try_take(size):
            return False
        if self._memory.try_take(size):
            self._lent += size
            self._reserved += size
            return True
        self._waiting.give_back(size)
        return False

    def _has_more(self) -> bool:
        """Tell whether a further request, or its remains, were received already."""
        try:
            self._ahead = self._parser.next_frame()
        except RemoteProtocolError:
            return True  # The parser says it again where it is dealt with.
        return self._ahead is not None
