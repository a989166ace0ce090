"""One connection, whatever its protocol: requests in, answers out, all of it bounded.

A protocol brings a parser (`_make_parser`) and says what a frame means (`_handle`) and
how a failure is told (`_refuse`). For each request it does one of three things:

- it sends the answer (`_send`, `_send_file`);
- it owes the answer (`_append`, `_store`, `_owe`) until the disk has what the answer
  confirms. Owed answers are settled together, when no further input has arrived or too
  much is owed: so batches that a client has pipelined share one sync;
- it lets the request stand (`_stand`): the answer is sent when a log grows, the list of
  topics changes, the time is up, or the protocol ends it. Meanwhile further requests
  are read and answered. A standing request may be answered many times: a subscription.

A session runs in a thread of its own, which waits for the socket and for its waker, and
nothing else touches the connection but `stop`, which aborts it. The file is long
because reading, memory and pending answers can't be told apart: a session that waits
for memory first settles what it owes.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from lance_spark.broker.access import Principal
from lance_spark.broker.budget import Budget
from lance_spark.broker.config import LWP, BrokerConfig
from lance_spark.broker.exchange import Exchange
from lance_spark.broker.service import to_broker_error
from lance_spark.broker.turn import Turn, Turns
from lance_spark.errors import (
    AuthenticationFailed,
    Backpressure,
    BrokerError,
    ConnectionLost,
    LanceError,
    PayloadTooLarge,
    RemoteProtocolError,
    RowError,
    StorageError,
    Timeout,
)
from lance_spark.model import Buffer
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline, Waker
from lance_spark.net.stream import Stream
from lance_spark.records import Records
from lance_spark.store import Appended, Slice
from lance_spark.wire.assembler import Assembler

logger = logging.getLogger(__name__)

# Answers that are owed at once, in number and in bytes of what they confirm.
_OWED_MAX = 256
_OWED_BYTES_MAX = 4 * 1024 * 1024
# The largest payload of a client that has yet to present its token: the token has to
# fit, and nothing else is looked into.
STRANGER_BYTES_MAX = 64 * 1024
# A person makes a mistake or two; more attempts at a token are guesses.
_TOKEN_ATTEMPTS_MAX = 3
# Requests of one connection that stand at once.
STANDING_MAX = 256
# What one position of a standing request costs: itself, its place in the list that is
# looked up, and the one among the watchers of its log.
WAIT_POSITION_BYTES = 512
# What a record costs in `Records` and while it is written, beside its bytes.
_ROW_BYTES = 48
# The same for one that was read and is written into an answer.
_FOUND_ROW_BYTES = 64
# Answers up to this size are sent from memory, and cost no part of the budget. Nor does
# the work on a request that takes no more.
PIECE_BYTES = 256 * 1024
# So much of a file is sent within one timeout: progress counts, not the whole.
_SEND_BYTES = 1024 * 1024
# While others wait for memory, a client is disconnected that for so long sends nothing
# of a payload it has begun, or does not take an answer that holds memory.
_STALL_S = 2.0
# Meanwhile all others have to send at least so much of it in that time.
_PACE_BYTES = 64 * 1024
# After an error that ends the connection, so much is read and dropped for so long, so
# that the error arrives before the reset that unread data would cause.
_DRAIN_BYTES = 64 * 1024 * 1024
_DRAIN_S = 2.0
# Has passed at all times.
_AT_ONCE = Deadline.after(0)

FrameT = TypeVar("FrameT")


class AnswerFull(LanceError):
    """There is no memory for more partitions in an answer."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sessions of a protocol, and but for its name of a server, share."""

    exchange: Exchange
    config: BrokerConfig
    # Payloads that are being received or looked at.
    memory: Budget
    # Batches that are written and not yet durable.
    queue: Budget
    # Standing requests and large answers; a part of the memory.
    waiting: Budget
    turns: Turns
    # Where each protocol is served.
    addresses: dict[str, Address] = field(default_factory=dict)
    protocol: str = LWP


@dataclass(frozen=True, slots=True)
class Owed:
    """An answer that waits for the disk; `request` is what the protocol says in it."""

    request: Any
    target: int
    appended: Appended
    size: int
    began_s: float


@dataclass(eq=False, slots=True)
class StandingRequest:
    """A request that is answered later, while further ones are read and answered.

    Args:
        positions: by log. A log that has grown past its position, or is deleted, makes
            the session try to answer.
        attempt: answers if there is something to answer with; tells whether the
            request is done. Its argument is True when the time is up or the session
            ends the request: then it has to answer.
        wait_s: how long it may stand.
        topics: a change of the list of topics counts, too.
        frame: what `_refuse` is given when an attempt fails. Its payload is not
            counted here, so that it should have none.
        command: by what name the request is counted when it is done; not at all if
            there is none.
    """

    positions: Mapping[int, int]
    attempt: Callable[[bool], bool]
    wait_s: InitVar[float]
    topics: bool = field(default=False, kw_only=True)
    frame: Any = field(default=None, kw_only=True)
    command: str = field(default="", kw_only=True)
    began_s: float = field(init=False)
    deadline: Deadline = field(init=False)
    size: int = field(init=False)
    # Set by any thread that has news; cleared by the session before it looks.
    is_due: bool = field(default=True, init=False)

    def __post_init__(self, wait_s: float) -> None:
        self.began_s = time.perf_counter()
        self.deadline = Deadline.after(wait_s)
        self.size = max(1, len(self.positions)) * WAIT_POSITION_BYTES


class _ImpatientDeadline(Deadline):
    """A deadline that passes after the stall time while a condition holds."""

    __slots__ = ("_is_wanted", "_stalls_at_s")

    def __init__(self, timeout_s: float, is_wanted: Callable[[], bool]) -> None:
        now = time.monotonic()
        super().__init__(now + timeout_s, time.monotonic)
        self._stalls_at_s = now + _STALL_S
        self._is_wanted = is_wanted

    def remaining(self) -> float:
        """Return the seconds until the deadline may pass: it is to be asked then."""
        stalls_s = self._stalls_at_s - self._clock()
        # The condition may come to hold at any time, and no event tells of it.
        return min(super().remaining(), stalls_s if stalls_s > 0 else _STALL_S / 10)

    @property
    def expired(self) -> bool:
        is_stalling = self._clock() >= self._stalls_at_s
        return (is_stalling and self._is_wanted()) or super().expired


class Session(ABC, Generic[FrameT]):
    """Serves one client until it goes.

    Args:
        stream: the connection.
        shared: what the sessions of the server share.
        idle_timeout_s: how long the client may send nothing while no request stands;
            `idle_timeout_other_s` if not given.

    Attributes:
        protocol: what the client speaks; `lance` is LWP.
        since_ns: when it was let in.
    """

    # Whether clients can present a token. Where they can't, a verified certificate
    # stands for one.
    CARRIES_TOKEN: ClassVar[bool] = False

    def __init__(
        self, stream: Stream, shared: Shared, *, idle_timeout_s: float | None = None
    ):
        self._stream = stream
        self._exchange = shared.exchange
        self._service = shared.exchange.service
        self._config = shared.config
        self._metrics = self._service.metrics
        self.protocol = shared.protocol
        self.since_ns = time.time_ns()
        self._memory = shared.memory
        self._queue = shared.queue
        self._waiting = shared.waiting
        # Taken for everything but waiting: given back before each send, receive, and
        # wait for memory or the disk, and taken again where there is more to do.
        self._turn = Turn(shared.turns)
        self._idle_timeout_s = idle_timeout_s or shared.config.idle_timeout_other_s
        self._client = Principal()
        if (known := stream.certificate) is not None:
            self._client = Principal(
                known.common_name, known.chain, not self.CARRIES_TOKEN
            )
        self._parser = self._make_parser()
        self._owed: list[Owed] = []
        self._owed_bytes = 0
        # Each with its watch, the oldest first.
        self._standing: dict[StandingRequest, AbstractContextManager[None] | None] = {}
        self._waker: Waker | None = None
        # What the frame under way has taken of the memory, and of the share of waits.
        self._reserved = 0
        self._lent = 0
        # What is left of the part of an answer that costs no memory of the budget.
        self._free_bytes = 0
        # When the pace of the payload under way was last looked at, and what was
        # missing of it then.
        self._pace: tuple[float, int] | None = None
        # Until when a client without its token is listened to, and how many wrong ones
        # it has tried.
        self._admission = Deadline.after(shared.config.handshake_timeout_s)
        self._token_attempts = 0
        # Made when first needed: most connections never fetch.
        self._piece: memoryview | None = None
        # When the present request was looked at first, for the metrics.
        self._began_s = 0.0
        self._ending = False

    @property
    def is_admitted(self) -> bool:
        """Whether the client has presented its token, or needs none."""
        return (
            self._client.authenticated or not self._service.gate.policy.token_required
        )

    @property
    def peer(self) -> str:
        """Where the client comes from."""
        return self._stream.peer

    @property
    def client_name(self) -> str | None:
        """The name of the client's verified certificate, if it has shown one."""
        return self._client.common_name

    @property
    def standing(self) -> int:
        """How many requests stand; any thread may ask."""
        return len(self._standing)

    @property
    def _payload_bytes_max(self) -> int:
        """The largest payload that the client may send now."""
        most = self._config.payload_bytes_max
        return most if self.is_admitted else min(most, STRANGER_BYTES_MAX)

    # What a protocol brings.

    @abstractmethod
    def _make_parser(self) -> Assembler[Any, FrameT]:
        """Make what turns bytes into frames; called once, by the constructor."""

    @abstractmethod
    def _handle(self, frame: FrameT) -> None:
        """Answer a request, owe the answer, or let the request stand."""

    @abstractmethod
    def _refuse(self, error: BrokerError, frame: FrameT | None) -> None:
        """Tell the client why a request, or without one the client, is not served."""

    @abstractmethod
    def _acknowledge(self, owed: Owed, failure: LanceError | None) -> Sequence[Buffer]:
        """Write an answer that was owed; nothing if a later one answers for it."""

    def _reject(self, error: RemoteProtocolError) -> None:
        """Deal with bytes that are not the protocol; the connection is closed then."""
        logger.info("%s: closed: %s", self._stream.peer, error)

    def _input_came(self) -> None:
        """Deal with requests that stand when the client has sent more."""

    def _slow_down(self) -> None:
        """Ask the client to send more slowly, where the protocol can."""

    # Who asks.

    def _present(self, token: str) -> None:
        """Let the client in, if its token is right.

        Raises:
            AuthenticationFailed: it is wrong. The last attempt ends the connection.
        """
        try:
            self._client = self._service.gate.authenticate(self._client, token)
        except AuthenticationFailed:
            self._token_attempts += 1
            self._ending = self._token_attempts >= _TOKEN_ATTEMPTS_MAX
            raise

    def _watch_stranger(self) -> None:
        """Let a client send more once it has presented its token, or end it in time."""
        if self.is_admitted:
            self._parser.allow(self._payload_bytes_max)
        elif self._admission.expired:
            # No frame keeps the place of a client that others could have.
            self._ending = True

    # Metrics.

    def _count(self, name: str, by: int = 1) -> None:
        self._metrics.count(self.protocol, name, by)

    def _observe(self, command: str, began_s: float) -> None:
        """Count a request; `command` is nothing that a client can make up."""
        name = command if self.protocol == LWP else f"{self.protocol}.{command}"
        self._metrics.observe_request(name, time.perf_counter() - began_s)

    # Running.

    def run(self) -> None:
        """Serve the client; returns when the connection has ended."""
        try:
            while not self._ending and (frame := self._next_frame()) is not None:
                self._turn.begin()
                self._serve(frame)
                if len(self._owed) >= _OWED_MAX or self._owed_bytes >= _OWED_BYTES_MAX:
                    self._settle()
                if self._standing:
                    self._answer_standing()
                self._turn.pause()
                # The memory is free once the frame is dealt with.
                del frame
                self._free_memory()
        except (ConnectionLost, Timeout) as error:
            logger.debug("%s: %s", self._stream.peer, error)
        finally:
            self._turn.rest()
            for standing in list(self._standing):
                self._end(standing)
            if self._waker is not None:
                self._waker.close()
            self._clear_owed()
            self._free_memory()

    def stop(self) -> bool:
        """Take leave of the client, as the broker stops; any thread may call this.

        Returns:
            Whether the session ends by itself in a moment. Where the protocol has no
            word for it, the connection is just aborted.
        """
        return False

    def refuse(self, error: BrokerError, timeout_s: float) -> None:
        """Tell the client why it is not served, after its first frame has come.

        The first frame shows how the client wants to be answered.
        """
        self._idle_timeout_s = timeout_s
        try:
            self._refuse(error, self._next_frame())
            self._linger()
        except (ConnectionLost, Timeout) as lost:
            logger.debug("%s: %s", self._stream.peer, lost)
        finally:
            self._turn.rest()
            self._free_memory()

    def _serve(self, frame: FrameT) -> None:
        if self._standing:
            self._input_came()
            self._turn.begin()
        self._began_s = time.perf_counter()
        try:
            self._handle(frame)
        except ConnectionLost:
            raise
        except Exception as error:
            self._refuse_counted(error, frame)

    def _refuse_counted(self, error: Exception, frame: FrameT | None) -> None:
        self._count("requests_refused")
        self._refuse(to_broker_error(error), frame)

    # Receiving.

    def _next_frame(self) -> FrameT | None:
        """Give the next frame, None when there will be no more."""
        while True:
            try:
                frame = self._parser.next_frame()
            except RemoteProtocolError as error:
                self._input_came()
                self._settle()
                self._reject(error)
                return None
            if frame is not None:
                return frame
            if self._standing:
                if self._owed and not self._stream.wait_readable(_AT_ONCE):
                    self._settle()
                self._wait_standing()
            if not self._fill():
                self._settle()
                return None

    def _fill(self) -> bool:
        """Read what has come; False at the end of the stream."""
        if not self._reserve():
            return False
        size = self._receive_more() if self._owed else None
        if size is None:
            room = self._parser.buffer_for_read()
            self._turn.renew()
            size = self._receive(room)
            self._turn.take()
        if size == 0:
            return False
        self._count("received_bytes", size)
        self._parser.bytes_written(size)
        return True

    def _receive_more(self) -> int | None:
        """Read what a client has pipelined; None if that is all, and owed no more.

        Without a wait there is nothing to give the turn back for.
        """
        try:
            return self._stream.recv_into(self._parser.buffer_for_read(), _AT_ONCE)
        except Timeout:
            self._settle()
            return None

    def _receive(self, room: memoryview) -> int:
        idle = Deadline.after(self._idle_timeout_s)
        if not self.is_admitted:
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

    def _linger(self) -> None:
        """Send no more, and let the client read what was sent last."""
        self._stream.shutdown_write()
        deadline, left = Deadline.after(_DRAIN_S), _DRAIN_BYTES
        room = memoryview(bytearray(PIECE_BYTES))
        while left > 0:
            size = self._stream.recv_into(room, deadline)
            if size == 0:
                return
            left -= size

    # Memory.

    def _reserve(self) -> bool:
        """Take the memory that the payload under way is about to fill."""
        more = self._parser.payload_bytes_next - self._reserved
        if more <= 0 or self._hold(more):
            return True
        logger.info("%s: closed: no memory for it", self._stream.peer)
        lack = Backpressure("no memory for the batch: send it again")
        self._refuse_counted(lack, None)
        self._linger()
        return False

    def _hold(self, size: int) -> bool:
        """Take memory until the frame is dealt with; False if there is none."""
        if not self._memory.try_take(size):
            self._slow_down()
            self._settle()
            # Not the idle limit of other protocols: no client waits for so long.
            limit_s = min(self._idle_timeout_s, self._config.idle_timeout_s)
            deadline = Deadline.after(limit_s)
            holder = self if self._reserved else None
            self._turn.rest()
            if not self._memory.take(size, deadline, holder=holder):
                return False
            self._turn.take()
        self._reserved += size
        return True

    def _hold_work(self, size: int) -> bool:
        """Take memory for the work on a request, as `_hold` does.

        A little costs no part of the budget: few sessions compute at a time, and a
        small batch must not wait for clients that stall with the memory of theirs.
        """
        return size <= PIECE_BYTES or self._hold(size)

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

    def _hold_found(self, found: Slice) -> None:
        """Charge what is stored, and what is made of it for an answer.

        An answer may have many partitions, of which this is one: it begins by setting
        `_free_bytes` to PIECE_BYTES.

        Raises:
            AnswerFull: there is none left, and the answer has others already. They
                can't wait: so do those that have the memory, maybe.
        """
        size = 2 * len(found) + _FOUND_ROW_BYTES * found.records
        if not self._lent:
            if size <= self._free_bytes:
                # Small answers cost no part of the budget, but all of it as one.
                self._free_bytes -= size
                return
            try:
                self._hold_answer(max(size, PIECE_BYTES + 1))
            except Timeout as error:
                raise AnswerFull from error
            return
        if not self._waiting.try_take(size):
            raise AnswerFull
        self._lent += size
        if not self._memory.try_take(size):
            raise AnswerFull
        self._reserved += size

    def _free_memory(self, lent: int = 0, reserved: int = 0) -> None:
        """Give back what was taken, down to what was taken before."""
        if self._lent > lent:
            self._waiting.give_back(self._lent - lent)
            self._lent = lent
        if self._reserved > reserved:
            # A payload behind the frame just dealt with has taken nothing yet: that is
            # done when more of it is read.
            holder = None if reserved else self
            self._memory.give_back(self._reserved - reserved, holder=holder)
            self._reserved = reserved
        if not reserved:
            self._pace = None

    def _load_records(
        self,
        log: int,
        start: int,
        max_bytes: int,
        *,
        hold: Callable[[Slice], None] | None = None,
        fit: Callable[[Records], Records] | None = None,
    ) -> Records:
        """Read the records of one answer; see `Exchange.load`.

        Args:
            log: where they are.
            start: the first.
            max_bytes: the most to read.
            hold: charges for them; by default for what is stored, and as much that is
                made of it.
            fit: keeps those that fit into the answer.

        Raises:
            OffsetOutOfRange: there is none of that number.
            StorageError: the first can't be read, or fits into no answer.
            Timeout: there is no memory for them.
        """

        def hold_twice(found: Slice) -> None:
            self._hold_answer(2 * len(found) + _ROW_BYTES * found.records)

        try:
            return self._exchange.load(
                self._client,
                log,
                start,
                max_bytes=max_bytes,
                hold=hold or hold_twice,
                fit=fit,
            ).records
        except RowError as error:
            self._count("records_refused")
            logger.error("log %d: record %d: %s", log, start, error)
            raise StorageError(f"record {start} can't be sent: {error}") from error

    # Answers that are owed.

    def _append(
        self, request: Any, target: int, size: int, write: Callable[[], Appended]
    ) -> None:
        """Write records, and owe the answer until the disk has them.

        Args:
            request: what `_acknowledge` needs to write the answer.
            target: the log or stage.
            size: how many bytes they are.
            write: appends them and does not wait.

        Raises:
            Timeout: the disk does not keep up.
        """
        if not self._queue.try_take(size):
            self._slow_down()
            self._settle()
            timeout_s = self._config.wait_timeout_s
            self._turn.rest()
            if not self._queue.take(size, Deadline.after(timeout_s)):
                raise Timeout(f"the write queue was full for {timeout_s:g} s")
        self._turn.take()
        try:
            appended = write()
        except BaseException:
            self._queue.give_back(size)
            raise
        self._owe(Owed(request, target, appended, size, self._began_s))

    def _store(
        self, request: Any, log: int, records: Records, *, expected: int | None = None
    ) -> None:
        """Store records of any protocol by `_append`; see `Exchange.store`.

        Raises:
            PayloadTooLarge: they are more than one batch may be; nothing is stored.
            AppendConflict: the first of them would get another number than expected.
            Timeout: there is no memory, or the disk does not keep up.
        """
        size = self._exchange.stored_bytes_max(records)
        most = self._config.batch_bytes_max
        if size > most:
            raise PayloadTooLarge(
                f"{len(records)} records take up to {size} bytes: a batch has at most "
                f"{most} (batch_bytes_max): send fewer at a time"
            )
        if not self._hold_work(size + _ROW_BYTES * len(records)):
            raise Timeout("there was no memory to store the records")
        self._append(
            request,
            log,
            size,
            lambda: self._exchange.store(self._client, log, records, expected=expected),
        )

    def _owe(self, owed: Owed) -> None:
        self._owed.append(owed)
        self._owed_bytes += owed.size

    def _settle(self) -> None:
        """Send all answers that are owed, once the disk has what they confirm."""
        if not self._owed:
            return
        self._turn.rest()
        failures: list[LanceError | None] = []
        # For all of them: a disk that hangs must not cost each its own timeout.
        deadline = Deadline.after(self._config.wait_timeout_s)
        for owed in self._owed:
            try:
                self._service.wait_durable(
                    owed.target, owed.appended, deadline.remaining()
                )
                failures.append(None)
            except LanceError as error:
                self._count("requests_refused")
                failures.append(error)
        if len(self._owed) > 1:
            # A sync wakes all sessions that wait for it at the same moment; what they
            # do then, they do in turn.
            self._turn.begin()
        answers: list[Buffer] = []
        for owed, failure in zip(self._owed, failures, strict=True):
            answers += self._acknowledge(owed, failure)
        self._clear_owed()
        self._send(answers)

    def _clear_owed(self) -> None:
        if self._owed:
            self._queue.give_back(self._owed_bytes)
            self._owed, self._owed_bytes = [], 0

    # Requests that stand.

    def _stand(self, standing: StandingRequest) -> bool:
        """Let a request stand; False if it can't: the caller answers it now.

        No client is kept from the memory for its batches by others that wait.
        """
        if standing.deadline.expired or len(self._standing) >= STANDING_MAX:
            return False
        if self._waker is None:
            self._waker = Waker()
        if not self._waiting.try_take(standing.size):
            return False
        if not self._memory.try_take(standing.size):
            self._waiting.give_back(standing.size)
            return False
        self._standing[standing] = None
        try:
            self._watch(standing)
        except BaseException:
            # The caller answers with the error, and there is only one answer.
            self._end(standing)
            raise
        return True

    def _watch(self, standing: StandingRequest) -> None:
        """Watch the logs of a standing request from its positions on.

        A subscription that has been answered moves its positions and calls this.
        """
        waker = self._waker
        assert waker is not None

        def wake() -> None:
            standing.is_due = True
            waker.set()

        self._unwatch(standing)
        watch = self._service.watching(
            standing.positions, wake, catalog=standing.topics
        )
        watch.__enter__()
        self._standing[standing] = watch
        # What has come before the watch is found by looking once.
        standing.is_due = True

    def _unwatch(self, standing: StandingRequest) -> None:
        watch, self._standing[standing] = self._standing[standing], None
        if watch is not None:
            watch.__exit__(None, None, None)

    def _end(self, standing: StandingRequest) -> None:
        """Drop a standing request, which gets no answer any more."""
        self._unwatch(standing)
        del self._standing[standing]
        self._memory.give_back(standing.size)
        self._waiting.give_back(standing.size)

    def _answer_standing(self, *, final: bool = False) -> None:
        """Answer the standing requests that have news, or all of them finally."""
        assert self._waker is not None
        # Cleared before the questions: a change behind them sets it again.
        self._waker.clear()
        for standing in list(self._standing):
            is_last = final or standing.deadline.expired
            if (is_last or standing.is_due) and standing in self._standing:
                standing.is_due = False
                self._attempt(standing, is_last)

    def _attempt(self, standing: StandingRequest, final: bool) -> None:
        lent, reserved = self._lent, self._reserved
        self._turn.begin()
        try:
            is_done = standing.attempt(final)
        except ConnectionLost:
            raise
        except Exception as error:
            is_done = True
            self._refuse_counted(error, standing.frame)
        finally:
            # A payload that is being received keeps its own.
            self._free_memory(lent, reserved)
        if (is_done or final) and standing in self._standing:
            self._end(standing)
            if standing.command:
                self._observe(standing.command, standing.began_s)

    def _wait_standing(self) -> None:
        """Wait until the client sends more; meanwhile answer what stands.

        Raises:
            Timeout: a payload has begun and does not go on while memory is short.
        """
        while self._standing:
            self._answer_standing()
            if any(standing.is_due for standing in self._standing):
                # A subscription that always has news must not stop the reading.
                deadline = Deadline.after(0)
            else:
                left = (s.deadline.remaining() for s in self._standing)
                deadline = Deadline.after(min(left, default=0))
            stalling = self._parser.payload_missing > 0
            self._turn.renew()
            if self._stream.wait_readable(
                deadline.sooner(_STALL_S) if stalling else deadline, self._waker
            ):
                self._turn.take()
                self._input_came()
                return
            self._turn.take()
            if stalling:
                self._check_pace()

    # Sending.

    def _send(self, buffers: Sequence[Buffer]) -> None:
        """Send buffers.

        Raises:
            ConnectionLost: the client does not take them. No other error means that
                it can't be told of an error.
        """
        self._turn.rest()
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._transmit(size, self._stream.send, buffers)

    def _send_file(self, found: Slice) -> None:
        """Send records from the page cache, however slow the client is.

        Raises:
            ConnectionLost: the client does not take them, or the file can't be read.
        """
        assert found.file is not None
        self._turn.rest()
        for at in range(0, len(found), _SEND_BYTES):
            size = min(_SEND_BYTES, len(found) - at)
            position = found.position + at
            self._transmit(
                size, self._stream.send_file, found.file.fileno(), position, size
            )

    def _pieces(self, found: Slice) -> Iterator[memoryview]:
        """Read records in pieces; each is valid until the next."""
        if self._piece is None:
            self._piece = memoryview(bytearray(PIECE_BYTES))
        return found.pieces(self._piece)

    def _sending_deadline(self) -> Deadline:
        timeout_s = self._config.idle_timeout_s
        if not self._reserved:
            return Deadline.after(timeout_s)
        return _ImpatientDeadline(timeout_s, self._is_wanted)

    def _is_wanted(self) -> bool:
        """Tell whether another session waits for what this one holds."""
        lacking = self._lent > 0 and self._waiting.is_short
        return lacking or self._memory.is_short

    def _transmit(
        self, size: int, send: Callable[..., None], *arguments: object
    ) -> None:
        try:
            send(*arguments, self._sending_deadline())
        except ConnectionLost:
            raise
        except LanceError as error:
            # A frame that is cut off can't be followed by another one.
            raise ConnectionLost(f"{self._stream.peer}: gave up: {error}") from error
        self._count("sent_bytes", size)
