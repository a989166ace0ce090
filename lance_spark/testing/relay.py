"""A relay between clients and a broker that does what networks do.

It listens on a port of its own and passes bytes on, two threads per connection. What
happens to a connection is its `Fate`, given when it is made; `weather` is what all of
them meet from now on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from lance_spark.errors import LanceError
from lance_spark.net.address import Address, parse_address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener
from lance_spark.net.stream import SocketStream, Stream
from lance_spark.testing.flow import CLEAR, Fate, Flow, Gate
from lance_spark.testing.weather import Side, Weather

if TYPE_CHECKING:
    from typing_extensions import Self

_READ_BYTES = 256 * 1024
_CONNECT_S = 10.0
# A connection that is silent for so long is nobody's: brokers end theirs much sooner.
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
        cuts: how many of them a fate or the weather has ended.
        weather: what all connections meet from now on.
    """

    def __init__(
        self, target: str, plan: Callable[[int], Fate] = lambda _: CLEAR
    ) -> None:
        self.target = target
        self.plan = plan
        self.connections = 0
        self.cuts = 0
        self.weather = Weather()
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
        self.weather.end()
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            # Dropped while it was being made: nobody else has ended this side.
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
        gate, weather = Gate(flow), self._relay.weather
        buffer = memoryview(bytearray(_READ_BYTES))
        while not gate.is_cut:
            size = source.recv_into(buffer, Deadline.after(_SILENCE_S))
            if not size:
                return False
            data, is_cut = weather.take(side, gate.take(bytes(buffer[:size])))
            self._send(targets, data, flow)
            if is_cut:
                return True
        return True

    def _send(self, targets: Sequence[Stream], data: bytes, flow: Flow) -> None:
        step = flow.piece_bytes or len(data) or 1
        for start in range(0, len(data), step):
            self._relay.weather.hold_up(flow.delay_s)
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
