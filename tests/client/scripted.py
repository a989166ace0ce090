"""Servers that do what a test tells them, on a network in memory or on real sockets.

A script is a function that is given a `Peer` for one connection and reads and answers
frames on it, in a thread of its own. What goes wrong in a script fails the test when
its network is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from lance_spark.client.config import Runtime
from lance_spark.client.lwp.client import LanceClient
from lance_spark.errors import ConnectionLost, LanceError
from lance_spark.net.address import Address, parse_address
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from lance_spark.net.tls import TlsContext
from lance_spark.wire.lwp import (
    Capability,
    Checksum,
    ClusterStatus,
    ErrorResponse,
    Frame,
    FrameParser,
    FrameType,
    GetClusterStatus,
    Message,
    decode_request,
    encode_ack,
    encode_backpressure,
    encode_control,
    encode_keepalive,
    encode_message,
)
from tests.streams import make_pair

# Long enough for any machine; only a test that fails anyway waits for it.
PATIENCE_S = 20.0

SERVER = "server:1992"
EVERYTHING = tuple(capability.value for capability in Capability)

Script = Callable[["Peer"], None]
Answer = Message | Callable[[Any], Message]


def soon() -> Deadline:
    """Make a deadline that only a broken test meets."""
    return Deadline.after(PATIENCE_S)


class Peer:
    """The server's end of one connection."""

    def __init__(self, stream: Stream, checksum: Checksum | None) -> None:
        self.stream = stream
        self.parser = FrameParser(checksum=checksum)

    @property
    def checksum(self) -> Checksum:
        return self.parser.checksum or Checksum.CRC32C

    def frame(self) -> Frame | None:
        """Read a frame; None at the end of the stream."""
        while (frame := self.parser.next_frame()) is None:
            size = self.stream.recv_into(self.parser.buffer_for_read(), soon())
            if not size:
                return None
            self.parser.bytes_written(size)
        return frame

    def request(self, kind: type[Message] | None = None) -> Message:
        """Read a request, dropping keepalives; check its kind if one is given."""
        while (frame := self.frame()) is not None:
            if frame.type is not FrameType.KEEPALIVE:
                message = decode_request(frame)
                assert kind is None or isinstance(message, kind), message
                return message
        raise AssertionError("the client closed the connection")

    def ingest(self) -> Frame:
        frame = self.frame()
        assert frame is not None
        assert frame.type is FrameType.INGEST
        return frame

    def send(self, *buffers: bytes) -> None:
        self.stream.send(buffers, soon())

    def answer(self, *messages: Message) -> None:
        for message in messages:
            self.send(*encode_message(message, checksum=self.checksum))

    def refuse(self, code: int, message: str = "no", **details: Any) -> None:
        self.answer(ErrorResponse(code, message, details))

    def refuse_with_text(self, text: str) -> None:
        self.send(*encode_control(0xFF, [text.encode()], checksum=self.checksum))

    def ack(self, batch_id: int) -> None:
        self.send(encode_ack(batch_id, checksum=self.checksum))

    def keepalive(self) -> None:
        self.send(encode_keepalive(checksum=self.checksum))

    def slow_down(self) -> None:
        self.send(encode_backpressure(checksum=self.checksum))

    def greet(self, *capabilities: str) -> None:
        """Answer the first question of every client."""
        self.request(GetClusterStatus)
        self.answer(ClusterStatus(capabilities=capabilities))

    def wait_for_end(self) -> None:
        """Read until the client has closed the connection."""
        try:
            while self.frame() is not None:
                pass
        except ConnectionLost:
            pass

    def serve(self, answers: Mapping[type[Message], Answer] | None = None) -> None:
        """Answer by a table, keepalives too, until the client goes."""
        table = {GetClusterStatus: ClusterStatus(), **(answers or {})}
        while (frame := self.frame()) is not None:
            if frame.type is FrameType.KEEPALIVE:
                self.keepalive()
                continue
            request = decode_request(frame)
            answer = table[type(request)]
            self.answer(answer if isinstance(answer, Message) else answer(request))


def serving(
    answers: Mapping[type[Message], Answer] | None = None, *capabilities: str
) -> Script:
    """Make a script that serves by a table, with these capabilities."""

    def script(peer: Peer) -> None:
        status = ClusterStatus(capabilities=capabilities)
        peer.serve({GetClusterStatus: status, **(answers or {})})

    return script


class Network:
    """Addresses with scripts behind them; each connection takes the next script.

    Args:
        checksum: what the servers expect; None to take either.
    """

    def __init__(self, checksum: Checksum | None = Checksum.CRC32C) -> None:
        self._checksum = checksum
        self._scripts: dict[Address, list[Script]] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._streams: list[Stream] = []
        self._clients: list[LanceClient] = []
        self._faults: list[BaseException] = []
        # Every address that was dialed, in order.
        self.dialed: list[str] = []

    def at(self, address: str, *scripts: Script) -> None:
        """Put scripts behind an address, one for each connection to come."""
        self._scripts.setdefault(parse_address(address), []).extend(scripts)

    def serve(self, *scripts: Script) -> None:
        """Put scripts behind the usual address."""
        self.at(SERVER, *scripts)

    def connect(
        self,
        address: Address,
        *,
        deadline: Deadline,
        tls: TlsContext | None = None,
        server_name: str | None = None,
    ) -> Stream:
        """Connect, as a client's runtime does."""
        with self._lock:
            self.dialed.append(str(address))
            scripts = self._scripts.get(address)
            if not scripts:
                raise ConnectionLost(f"could not connect to {address}: refused")
            script = scripts.pop(0)
        client_end, server_end = make_pair()
        self.run(script, server_end)
        return client_end

    def run(self, script: Script, stream: Stream) -> None:
        """Start a script on a stream."""

        def work() -> None:
            try:
                script(Peer(stream, self._checksum))
            except BaseException as fault:
                self._faults.append(fault)
            finally:
                stream.close()

        thread = threading.Thread(target=work, name="scripted", daemon=True)
        self._threads.append(thread)
        self._streams.append(stream)
        thread.start()

    def client(
        self, servers: str = SERVER, *, runtime: Runtime | None = None, **options: Any
    ) -> LanceClient:
        """Make a client on this network; it is closed with the network."""
        runtime = runtime or Runtime(connect=self.connect)
        client = LanceClient(servers, runtime=runtime, **options)
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Close the clients, wait for the scripts, and tell what went wrong."""
        for client in self._clients:
            client.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                self._faults.append(AssertionError("a script does not end"))
        for stream in self._streams:
            stream.abort()
        # A client that has gone is how most scripts end.
        faults = [f for f in self._faults if not isinstance(f, ConnectionLost)]
        if faults:
            raise faults[0]


class FakeTime:
    """A clock that only moves when somebody pauses."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def pause(self, event: threading.Event, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now_s += seconds
        return event.is_set()

    def runtime(self, network: Network) -> Runtime:
        """Make a runtime without jitter."""
        return Runtime(
            connect=network.connect,
            clock=self.clock,
            pause=self.pause,
            random=lambda: 0.0,
        )


def error_of(call: Callable[[], Any]) -> LanceError:
    """Return the error that a call raises."""
    try:
        call()
    except LanceError as error:
        return error
    raise AssertionError("nothing was raised")
