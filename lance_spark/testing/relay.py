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
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from lance_spark.errors import LanceError
from lance_spark.net.address import Address, parse_address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener
from lance_spark.net.stream import SocketStream, Stream
from lance_spark.wire.lwp import HEADER_BYTES

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
        flip_at: the lowest bit of this byte is changed.
    """

    piece_bytes: int | None = None
    delay_s: float = 0.0
    cut_at: int | None = None
    cut_frame: int | None = None
    cut_share: float = 0.5
    swallow_at: int | None = None
    swallow_frame: int | None = None
    flip_at: int | None = None

    @property
    def counts_frames(self) -> bool:
        """Whether it matters where frames start."""
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
        # The start of a header that has not come whole.
        self._held = b""
        # Where the next frame starts, counted as `passed` is.
        self._next_frame = 0

    def take(self, data: bytes) -> bytes:
        """Give what is sent on of some bytes; `is_cut` says that it is the last."""
        if self.is_cut:
            return b""
        if self._flow.counts_frames:
            data = self._find_frames(self._held + data)
        start, end = self.passed, self.passed + len(data)
        if self._cut_at is not None and end >= self._cut_at:
            end, self.is_cut = self._cut_at, True
        self.passed = end
        if self._swallow_at is not None:
            end = min(end, max(start, self._swallow_at))
        at = -1 if self._flow.flip_at is None else self._flow.flip_at - start
        if 0 <= at < end - start:
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data[: end - start]

    def _find_frames(self, data: bytes) -> bytes:
        """Note where frames start, and hold back a header that is not whole."""
        at = self._next_frame - self.passed
        while at + HEADER_BYTES <= len(data):
            start = self.passed + at
            size = HEADER_BYTES + _LENGTH.unpack_from(data, at + _LENGTH_AT)[0]
            if self.frames == self._flow.cut_frame:
                self._cut_at = start + int(size * self._flow.cut_share)
            if self.frames == self._flow.swallow_frame:
                self._swallow_at = start
            self.frames += 1
            at += size
        self._next_frame = self.passed + at
        self._held = data[at:]
        return data[:at]


@dataclass(eq=False)
class Cut:
    """Ends the connection that carries a byte, counted over all of them.

    Args:
        side: `broker` or `client`; the bytes that go there are counted.
        size: how many are let through.
        times: how often; the count begins anew after each.
        left: how many may pass until the next.
    """

    side: str
    size: int
    times: int
    left: int


_Kind = TypeVar("_Kind", float, Cut)


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
        return self._add(self._delays_s, seconds)

    def add_cut(self, side: str, size: int, times: int) -> Callable[[], None]:
        """End connections behind so many bytes, counted from now on."""
        return self._add(self._cuts, Cut(side, size, times, size))

    def _add(self, faults: list[_Kind], fault: _Kind) -> Callable[[], None]:
        with self._changed:
            faults.append(fault)

        def end() -> None:
            with self._changed, suppress(ValueError):
                faults.remove(fault)
                self._changed.notify_all()

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

    def take(self, side: str, data: bytes) -> tuple[bytes, bool]:
        """Give what passes of some bytes, and whether the connection ends then."""
        with self._changed:
            for cut in [cut for cut in self._cuts if cut.side == side]:
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


class Relay(AbstractContextManager["Relay"]):
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
        self._thread = _make_thread("lance-relay", self._accept)
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


def _make_thread(name: str, work: Callable[..., None], *given: Any) -> threading.Thread:
    return threading.Thread(target=work, args=given, name=name, daemon=True)


class _Link:
    """One connection through the relay."""

    def __init__(self, relay: Relay, client: Stream, fate: Fate) -> None:
        self.thread = _make_thread("lance-relay-link", self._run)
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
        """Pass the client's bytes on, and have other threads pass those that come."""
        fate, name = self._fate, "lance-relay-down"
        threads: list[threading.Thread] = []
        try:
            broker, *echoes = (self._connect() for _ in range(1 + fate.is_doubled))
            down = broker, [self._client], "client", fate.down
            threads = [_make_thread(name, self._pump, *down)]
            threads += [_make_thread(name, self._drain, echo) for echo in echoes]
            for thread in threads:
                thread.start()
            self._pump(self._client, [broker, *echoes], "broker", fate.up)
        except LanceError:
            # The broker can't be reached, which the client sees as an end.
            self.end(reset=fate.reset)
        finally:
            for thread in threads:
                thread.join()
            for stream in self._streams:
                stream.close()
            self._relay.forget(self)

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

    def _pump(
        self, source: Stream, targets: Sequence[Stream], side: str, flow: Flow
    ) -> None:
        """Pass bytes on to their end, or until they are cut."""
        passing, network = ByteFilter(flow), self._relay.network
        buffer = memoryview(bytearray(_READ_BYTES))
        is_cut = passing.is_cut
        try:
            while not is_cut:
                size = source.recv_into(buffer, Deadline.after(_SILENCE_S))
                if not size:
                    for target in targets:
                        target.shutdown_write()
                    return
                data, is_cut = network.take(side, passing.take(bytes(buffer[:size])))
                is_cut = is_cut or passing.is_cut
                step = flow.piece_bytes or len(data) or 1
                for start in range(0, len(data), step):
                    network.pause(flow.delay_s)
                    for target in targets:
                        piece = data[start : start + step]
                        target.send([piece], Deadline.after(_SILENCE_S))
            self._relay.count_cut()
        except LanceError:
            pass  # One side is gone, so that the other one has to go.
        self.end(reset=self._fate.reset)

    def _drain(self, source: Stream) -> None:
        buffer = memoryview(bytearray(_READ_BYTES))
        with suppress(LanceError):
            while source.recv_into(buffer, Deadline.after(_SILENCE_S)):
                pass
