"""A relay between clients and a broker that does what networks do.

It listens on a port of its own and passes bytes on, two threads per connection. A
connection's `Fate` is decided when it is made; `NetworkFaults` change under connections
that are there. Where frames are counted, only the length in LWP's header is known.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from lance_spark.errors import LanceError
from lance_spark.net.address import Address, parse_address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener
from lance_spark.net.stream import SocketStream, Stream
from lance_spark.wire.lwp import HEADER_BYTES

if TYPE_CHECKING:
    from typing_extensions import Self


# Where a frame's header has the length of its payload (LWP §4).
_LENGTH_AT = 32
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Flow:
    """What happens to the bytes of one direction.

    Args:
        piece_bytes: they are sent on in pieces of this size; None for as they come.
        delay_s: pause before each piece.
        cut_at: the connection ends when so many bytes were sent on.
        cut_frame: it ends inside this frame, counted from 0 …
        cut_share: … after this share of it; 0 is before its first byte.
        swallow_at: from this byte on nothing is sent on, and the connection stays.
        swallow_frame: the same, from this frame on.
    """

    piece_bytes: int | None = None
    delay_s: float = 0.0
    cut_at: int | None = None
    cut_frame: int | None = None
    cut_share: float = 0.5
    swallow_at: int | None = None
    swallow_frame: int | None = None

    @property
    def counts_frames(self) -> bool:
        """Whether frames have to be told apart."""
        return self.cut_frame is not None or self.swallow_frame is not None


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to a connection.

    Args:
        up: from the client to the broker.
        down: from the broker to the client.
        reset: it ends with a reset and not with a proper end.
        is_doubled: what the client says is said a second time, over a connection of
            its own, whose answers are dropped.
    """

    up: Flow = Flow()
    down: Flow = Flow()
    reset: bool = False
    is_doubled: bool = False


CLEAR = Fate()


class ByteFilter:
    """Decides byte by byte what one direction lets through."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.passed = 0
        self.frames = 0
        self.is_cut = flow.cut_at == 0
        self._cut_at = flow.cut_at
        self._swallow_at = flow.swallow_at
        # Bytes that came and of which it is not yet known what they are.
        self._held = b""
        self._frame_left = 0

    def take(self, data: bytes) -> bytes:
        """Give what is sent on of some bytes; `is_cut` says that it is the last."""
        if self.is_cut:
            return b""
        if self._flow.counts_frames:
            data = self._frame(data)
        end = self.passed + len(data)
        if self._cut_at is not None and end >= self._cut_at:
            data = data[: self._cut_at - self.passed]
            self.is_cut = True
        self.passed += len(data)
        if self._swallow_at is not None:
            start = self.passed - len(data)
            data = data[: max(0, self._swallow_at - start)]
        return data

    def _frame(self, data: bytes) -> bytes:
        """Hold back headers that are not whole, and note where frames start."""
        data, self._held = self._held + data, b""
        position = 0
        while position < len(data):
            if self._frame_left:
                step = min(self._frame_left, len(data) - position)
                self._frame_left -= step
                position += step
                continue
            if len(data) - position < HEADER_BYTES:
                self._held = data[position:]
                return data[:position]
            (length,) = _LENGTH.unpack_from(data, position + _LENGTH_AT)
            self._frame_left = HEADER_BYTES + length
            self._note(self.passed + position, self._frame_left)
            self.frames += 1
        return data

    def _note(self, start: int, size: int) -> None:
        if self.frames == self._flow.cut_frame:
            self._cut_at = start + int(size * self._flow.cut_share)
        if self.frames == self._flow.swallow_frame:
            self._swallow_at = start


class Side(Enum):
    """Where bytes go to."""

    BROKER = "broker"
    CLIENT = "client"


@dataclass(eq=False)
class Cut:
    """Ends the connection that carries a byte, counted over all of them.

    Args:
        side: where the bytes go to that are counted.
        size: how many are let through.
        times: how often; the count begins anew after each.
        left: how many may pass until the next.
    """

    side: Side
    size: int
    times: int
    left: int


class NetworkFaults:
    """Delays and cuts that hold for all connections, also for those that are there.

    Any thread may change them. What begins one gives the function that ends it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._delays_s: list[float] = []
        self._cuts: list[Cut] = []
        self._is_over = False

    def add_delay(self, seconds: float) -> Callable[[], None]:
        """Have each piece wait so much longer."""
        with self._changed:
            self._delays_s.append(seconds)

        def end() -> None:
            with self._changed, suppress(ValueError):
                self._delays_s.remove(seconds)
                self._changed.notify_all()

        return end

    def add_cut(self, side: Side, size: int, times: int) -> Callable[[], None]:
        """End connections behind so many bytes, counted from now on."""
        cut = Cut(side, size, times, size)
        with self._changed:
            self._cuts.append(cut)

        def end() -> None:
            with self._changed, suppress(ValueError):
                self._cuts.remove(cut)

        return end

    def pause(self, least_s: float = 0.0) -> None:
        """Wait as long as a piece has to.

        Args:
            least_s: how long it waits without any delay.
        """
        began_s = time.monotonic()
        with self._changed:
            while not self._is_over:
                # Computed each time: a delay may end while a piece waits for it.
                end_s = began_s + least_s + sum(self._delays_s)
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))

    def end(self) -> None:
        """Let everything go on at once, from now on."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def take(self, side: Side, data: bytes) -> tuple[bytes, bool]:
        """Give what passes of some bytes, and whether the connection ends then."""
        with self._changed:
            for cut in [cut for cut in self._cuts if cut.side is side]:
                if len(data) < cut.left:
                    cut.left -= len(data)
                    continue
                data, cut.left = data[: cut.left], cut.size
                cut.times -= 1
                if not cut.times:
                    self._cuts.remove(cut)
                return data, True
            return data, False


_READ_BYTES = 256 * 1024
_CONNECT_S = 10.0
# Brokers end silent connections much sooner, so one that lasts this long is left over.
_SILENCE_S = 3600.0
_STOP_S = 30.0


class Relay:
    """Listens on a port and passes connections on to a broker.

    Args:
        target: `host:port` of the broker.
        plan: says what happens to each connection, by its number from 0; it can be
            replaced at any time, for the connections that come then.

    Attributes:
        address: `host:port` that clients connect to.
        connections: how many there were.
        cuts: how many of them were ended on purpose.
        network: what all connections meet from now on.
    """

    def __init__(
        self, target: str, plan: Callable[[int], Fate] = lambda _: CLEAR
    ) -> None:
        self.target = target
        self.plan = plan
        self.connections = 0
        self.cuts = 0
        self.network = NetworkFaults()
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._listener = Listener(Address("127.0.0.1", 0))
        self.address = str(self._listener.address)
        self._thread = threading.Thread(
            target=self._accept, name="lance-relay", daemon=True
        )
        self._thread.start()

    def drop(self) -> None:
        """End all connections that there are; new ones are passed on."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.end()

    def close(self) -> None:
        """End everything; may be called again."""
        self.network.end()
        self._listener.close()
        self._thread.join(_STOP_S)
        self.drop()
        with self._lock:
            threads = [link.thread for link in self._links]
        deadline = Deadline.after(_STOP_S)
        for thread in threads:
            thread.join(deadline.remaining())

    def count_cut(self) -> None:
        """Note that a connection was ended on purpose."""
        with self._lock:
            self.cuts += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Relay at {self.address} to {self.target}>"

    def _accept(self) -> None:
        while (stream := self._listener.accept()) is not None:
            link = _Link(self, stream, self.plan(self.connections))
            with self._lock:
                self.connections += 1
                # Known before it runs: `close` must not miss it.
                self._links.add(link)
            link.thread.start()

    def forget(self, link: _Link) -> None:
        """Take note that a connection is over."""
        with self._lock:
            self._links.discard(link)


class _Link:
    """One connection through the relay."""

    def __init__(self, relay: Relay, client: Stream, fate: Fate) -> None:
        self.thread = threading.Thread(
            target=self._run, name="lance-relay-link", daemon=True
        )
        self._relay = relay
        self._fate = fate
        self._lock = threading.Lock()
        self._is_ended = False
        self._client = client
        self._streams = [client]

    def end(self, *, reset: bool = False) -> None:
        """End all sides of it; any thread may, and more than one."""
        with self._lock:
            self._is_ended = True
            streams = list(self._streams)
        for stream in streams:
            if reset and isinstance(stream, SocketStream):
                stream.reset()
            else:
                stream.abort()

    def _run(self) -> None:
        threads: list[threading.Thread] = []
        try:
            threads = self._pass_on()
        except LanceError:
            # The broker can't be reached, which the client sees as an end.
            self.end(reset=self._fate.reset)
        finally:
            for thread in threads:
                thread.join()
            for stream in self._streams:
                stream.close()
            self._relay.forget(self)

    def _pass_on(self) -> list[threading.Thread]:
        """Pass the client's bytes on; give the threads that do the other directions."""
        broker = self._connect()
        targets, others = [broker], [lambda: self._pump_down(broker)]
        if self._fate.is_doubled:
            echo = self._connect()
            targets.append(echo)
            others.append(lambda: self._drain(echo))
        threads = [
            threading.Thread(target=work, name="lance-relay-down", daemon=True)
            for work in others
        ]
        for thread in threads:
            thread.start()
        self._pump(self._client, targets, Side.BROKER, self._fate.up)
        return threads

    def _connect(self) -> Stream:
        target = parse_address(self._relay.target)
        stream = connect(target, deadline=Deadline.after(_CONNECT_S))
        with self._lock:
            self._streams.append(stream)
            is_ended = self._is_ended
        if is_ended:
            # Dropped while it was being made: no other thread has ended this side.
            stream.abort()
        return stream

    def _pump_down(self, broker: Stream) -> None:
        self._pump(broker, [self._client], Side.CLIENT, self._fate.down)

    def _pump(
        self, source: Stream, targets: Sequence[Stream], side: Side, flow: Flow
    ) -> None:
        try:
            is_cut = self._pass_bytes(source, targets, side, flow)
        except LanceError:
            # One side is gone, so that the other one has to go.
            self.end(reset=self._fate.reset)
            return
        if is_cut:
            self._relay.count_cut()
            self.end(reset=self._fate.reset)
            return
        for target in targets:
            target.shutdown_write()

    def _pass_bytes(
        self, source: Stream, targets: Sequence[Stream], side: Side, flow: Flow
    ) -> bool:
        """Pass bytes on to their end; tell whether they were cut before it."""
        passing, network = ByteFilter(flow), self._relay.network
        buffer = memoryview(bytearray(_READ_BYTES))
        while not passing.is_cut:
            size = source.recv_into(buffer, Deadline.after(_SILENCE_S))
            if not size:
                return False
            data, is_cut = network.take(side, passing.take(bytes(buffer[:size])))
            self._send(targets, data, flow)
            if is_cut:
                return True
        return True

    def _send(self, targets: Sequence[Stream], data: bytes, flow: Flow) -> None:
        step = flow.piece_bytes or len(data) or 1
        for start in range(0, len(data), step):
            self._relay.network.pause(flow.delay_s)
            for target in targets:
                piece = data[start : start + step]
                target.send([piece], Deadline.after(_SILENCE_S))

    def _drain(self, source: Stream) -> None:
        buffer = memoryview(bytearray(_READ_BYTES))
        try:
            while source.recv_into(buffer, Deadline.after(_SILENCE_S)):
                pass
        except LanceError:
            return
