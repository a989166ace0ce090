"""The machinery of a connection under another protocol than LWP.

The protocol here has lines of text: a request is `number text`, its answer `number
text` in any order, `! text` is a push. Nothing of it is in the package.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

import lance_spark.client
from lance_spark.client.config import ConnectionConfig, Runtime
from lance_spark.client.connection import Connection
from lance_spark.client.delivery import Delivery
from lance_spark.client.dialect import Acked, Refused
from lance_spark.client.inbox import Pending
from lance_spark.client.link import Dialer, Link
from lance_spark.client.outbox import BatchOptions, OutgoingBatch
from lance_spark.errors import (
    BrokerError,
    ConnectionLost,
    InvalidPayload,
    RemoteProtocolError,
    Timeout,
    Undelivered,
)
from lance_spark.model import Buffer
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import Stream
from tests.client.scripted import PATIENCE_S, soon
from tests.streams import make_pair


class LineConfig(ConnectionConfig):
    default_port: ClassVar[int] = 7


class LineParser:
    """Splits what comes at line ends."""

    error = None

    def __init__(self) -> None:
        self._data, self._room = b"", bytearray(64)

    def reuse_buffers(self) -> None:
        pass

    def buffer_for_read(self) -> memoryview:
        return memoryview(self._room)

    def bytes_written(self, size: int) -> None:
        self._data += self._room[:size]

    def frames(self) -> Iterator[list[str]]:
        while b"\n" in self._data:
            line, self._data = self._data.split(b"\n", 1)
            yield line.decode().split(" ", 1)

    def receive_eof(self) -> None:
        pass


class LineDialect:
    """Requests with numbers, pushes in between, no keepalive."""

    capabilities = frozenset({"lines"})
    keepalive = None

    def __init__(self, requests_max: int | None = None) -> None:
        self.requests_max = requests_max
        self.server = ""
        # Which batch has which number.
        self.numbers: dict[int, int] = {}

    def make_parser(self) -> LineParser:
        return LineParser()

    def greet(self, connection: Connection, deadline: Deadline) -> None:
        self.server = connection.request("hello", deadline=deadline)

    def name_of(self, request: str) -> str:
        return request

    def encode(self, request: str, number: int) -> Sequence[Buffer]:
        return [f"{number} {request}\n".encode()]

    def encode_batch(
        self, batch: OutgoingBatch, target: str, number: int
    ) -> Sequence[Buffer]:
        assert number not in self.numbers
        self.numbers[number] = batch.id
        return [f"b{number} {target} ".encode(), bytes(batch.payload), b"\n"]

    def number_of(self, frame: list[str], waiting: Mapping[int, Pending]) -> int | None:
        return int(frame[0]) if frame[0].isdigit() else None

    def decode(self, frame: list[str], request: str) -> str:
        if frame[1].startswith("error"):
            raise BrokerError(frame[1])
        return frame[1]

    def decode_push(self, frame: list[str]) -> Any:
        head, text = frame
        if not head.startswith("b"):
            return text
        number = self.numbers[int(head[1:])]
        ok = text == "stored"
        return Acked(number) if ok else Refused(InvalidPayload(text), number)


class LineServer:
    """The server's end of one connection."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._parser = LineParser()
        self._frames: list[list[str]] = []

    def read(self) -> list[str]:
        while not self._frames:
            size = self._stream.recv_into(self._parser.buffer_for_read(), soon())
            if not size:
                raise ConnectionLost("the client has gone")
            self._parser.bytes_written(size)
            self._frames += self._parser.frames()
        return self._frames.pop(0)

    def say(self, *lines: str) -> None:
        self._stream.send(["".join(f"{line}\n" for line in lines).encode()], soon())

    def greet(self) -> None:
        number, text = self.read()
        assert text == "hello"
        self.say(f"{number} I am lines")


Script = Callable[[LineServer], None]


class Lines:
    """Links to scripted servers, one script per connection."""

    def __init__(self) -> None:
        self._scripts: list[Script] = []
        self._threads: list[threading.Thread] = []
        self._links: list[Link] = []
        self._faults: list[BaseException] = []

    def serve(self, *scripts: Script) -> None:
        self._scripts += scripts

    def connect(self, address: Address, **_: Any) -> Stream:
        if not self._scripts:
            raise ConnectionLost(f"{address} refused")
        script = self._scripts.pop(0)
        client_end, server_end = make_pair()

        def work() -> None:
            try:
                script(LineServer(server_end))
            except ConnectionLost:
                pass
            except BaseException as fault:
                self._faults.append(fault)
            finally:
                server_end.close()

        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()
        return client_end

    def link(self, requests_max: int | None = None) -> Link:
        config = LineConfig(
            servers="lines", backoff_base_s=0.001, retry_timeout_s=PATIENCE_S
        )
        runtime = Runtime(connect=self.connect)
        dialer = Dialer(config, runtime, lambda _: [LineDialect(requests_max)])
        self._links.append(Link(config, runtime, dialer))
        return self._links[-1]

    def close(self) -> None:
        for link in self._links:
            link.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert self._faults == []


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines = Lines()
    yield lines
    lines.close()


def test_the_greeting_is_the_dialects(lines: Lines) -> None:
    lines.serve(LineServer.greet)
    connection = lines.link().connection()
    assert isinstance(connection.dialect, LineDialect)
    assert connection.dialect.server == "I am lines"
    assert connection.capabilities == {"lines"}
    assert str(connection.address) == "lines:7"


def test_answers_out_of_order_find_their_requests(lines: Lines) -> None:
    def script(server: LineServer) -> None:
        server.greet()
        asked = [server.read() for _ in range(3)]
        server.say(*(f"{number} {text.upper()}" for number, text in reversed(asked)))

    lines.serve(script)
    connection = lines.link().connection()
    pending = [connection.submit(text, deadline=soon()) for text in ("a", "b", "c")]
    assert [each.result(soon()) for each in pending] == ["A", "B", "C"]


def test_pushes_come_between_answers(lines: Lines) -> None:
    def script(server: LineServer) -> None:
        server.greet()
        number, _ = server.read()
        server.say("! one", f"{number} answer", "! two")

    lines.serve(script)
    connection = lines.link().connection()
    assert connection.request("ask", deadline=soon()) == "answer"
    heard: list[str] = []
    while len(heard) < 2:
        heard += connection.receive(soon())
    assert heard == ["one", "two"]


def test_a_refusal_is_for_the_request_that_met_it(lines: Lines) -> None:
    def script(server: LineServer) -> None:
        server.greet()
        first, second = server.read()[0], server.read()[0]
        server.say(f"{second} error: no", f"{first} yes")

    lines.serve(script)
    connection = lines.link().connection()
    first = connection.submit("a", deadline=soon())
    second = connection.submit("b", deadline=soon())
    assert first.result(soon()) == "yes"
    with pytest.raises(BrokerError, match="error: no"):
        second.result(soon())


def test_an_answer_to_no_request_ends_the_connection(lines: Lines) -> None:
    def script(server: LineServer) -> None:
        server.greet()
        server.read()
        server.say("99 what?")

    lines.serve(script)
    connection = lines.link().connection()
    with pytest.raises(RemoteProtocolError, match="no request waits"):
        connection.request("a", deadline=soon())
    assert not connection.is_open


def test_one_request_at_a_time(lines: Lines) -> None:
    seen: list[str] = []

    def script(server: LineServer) -> None:
        server.greet()
        for _ in range(20):
            number, text = server.read()
            # Nothing more has come, as the answer to this one has not gone.
            assert server._frames == []
            seen.append(text)
            server.say(f"{number} {text}")

    lines.serve(script)
    link = lines.link(requests_max=1)
    with ThreadPoolExecutor(4) as pool:
        texts = [str(number) for number in range(20)]
        answers = list(pool.map(lambda text: link.ask(lambda _: text), texts))
    assert answers == texts
    assert sorted(seen) == sorted(texts)


def test_a_request_waits_for_its_turn_until_its_deadline(lines: Lines) -> None:
    go = threading.Event()

    def script(server: LineServer) -> None:
        server.greet()
        number, _ = server.read()
        assert go.wait(PATIENCE_S)
        server.say(f"{number} late")

    lines.serve(script)
    connection = lines.link(requests_max=1).connection()
    first = connection.submit("a", deadline=soon())
    with pytest.raises(Timeout):
        connection.submit("b", deadline=Deadline.after(0.01))
    go.set()
    assert first.result(soon()) == "late"


def test_a_lost_connection_is_made_again(lines: Lines) -> None:
    def lose(server: LineServer) -> None:
        server.greet()
        server.read()

    def serve(server: LineServer) -> None:
        server.greet()
        number, text = server.read()
        server.say(f"{number} {text} again")

    lines.serve(lose, serve)
    assert lines.link().ask(lambda _: "ask") == "ask again"


def test_a_protocol_without_keepalives_sends_none(lines: Lines) -> None:
    def script(server: LineServer) -> None:
        server.greet()
        number, text = server.read()
        server.say(f"{number} {text}")

    lines.serve(script)
    link = lines.link()
    connection = link.connection()
    connection._last_sent_s -= 1e6
    link.keep_alive()
    assert connection.request("first", deadline=soon()) == "first"


def test_a_keepalive_takes_its_turn(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(server: LineServer) -> None:
        server.greet()
        number, text = server.read()
        assert text == "still there?" and server._frames == []
        server.say(f"{number} yes")
        number, text = server.read()
        server.say(f"{number} {text}")

    lines.serve(script)
    link = lines.link(requests_max=1)
    connection = link.connection()
    monkeypatch.setattr(LineDialect, "keepalive", "still there?")
    connection._last_sent_s -= 1e6
    link.keep_alive()
    assert connection.request("first", deadline=soon()) == "first"
    assert connection.is_open


def test_a_batch_is_the_one_request_at_a_time(lines: Lines) -> None:
    def script(server: LineServer) -> None:
        server.greet()
        for _ in range(3):
            number, text = server.read()
            assert text.startswith("events/0 ") and server._frames == []
            server.say(f"{number} stored")

    lines.serve(script)
    options = BatchOptions(batch_bytes=3, linger_s=0.0)
    delivery = Delivery(lines.link(1), "events", "events/0", options=options)
    try:
        for _ in range(3):
            delivery.ledger.add(b"one", 1, soon())
        delivery.ledger.flush(soon())
        assert delivery.ledger.outbox.acked.records == 3
    finally:
        delivery.stop(abandon=True)


def test_batches_are_delivered(lines: Lines) -> None:
    def lose(server: LineServer) -> None:
        server.greet()
        number, text = server.read()
        assert (number, text) == ("b2", "7 one")

    def serve(server: LineServer) -> None:
        server.greet()
        for answer in ("stored", "too long"):
            number, text = server.read()
            assert text.startswith("7 ")
            server.say(f"{number} {answer}")

    lines.serve(lose, serve)
    options = BatchOptions(batch_bytes=3, linger_s=0.0)
    delivery = Delivery(lines.link(), "events", 7, options=options)
    try:
        delivery.ledger.add(b"one", 1, soon())
        delivery.ledger.flush(soon())
        assert delivery.ledger.outbox.acked.records == 1
        assert delivery.ledger.outbox.retried.batches == 1
        delivery.ledger.add(b"two", 1, soon())
        with pytest.raises(Undelivered, match="too long"):
            delivery.ledger.flush(soon())
    finally:
        delivery.stop(abandon=True)


def test_the_machinery_imports_no_protocol() -> None:
    # `__init__` exports LWP's client, and `driver` chooses between protocols.
    package = Path(lance_spark.client.__file__).parent
    files = {p for p in package.glob("*.py") if p.stem not in ("__init__", "driver")}
    assert {"connection.py", "delivery.py", "link.py"} <= {p.name for p in files}
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert "lance_spark.wire" not in text, file
        assert "lance_spark.client.lwp" not in text, file
