"""The session without a protocol, by way of a tiny one: standing requests above all.

A request is a line, `id command arguments`, with its length in front. An answer is a
line, `id words`. Answers come in any order, and `follow` is answered again and again
until it is cancelled.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lance_spark.broker import BrokerConfig, EmbeddedBroker, embedded, session
from lance_spark.broker.access import Principal
from lance_spark.broker.budget import Budget
from lance_spark.broker.config import ADDRESS
from lance_spark.broker.lwp.command import LwpSession
from lance_spark.broker.metrics import read_samples
from lance_spark.broker.session import (
    WAIT_POSITION_BYTES,
    Owed,
    Session,
    StandingRequest,
)
from lance_spark.errors import BrokerError, LanceError, OptionError, StoreClosed
from lance_spark.model import Buffer
from lance_spark.net.address import parse_address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import SocketStream
from lance_spark.net.tls_stream import PeerCertificate
from lance_spark.wire.assembler import Assembler
from tests.broker.kit import (
    Client,
    Dial,
    StartBroker,
    eventually,
    make_records,
    patience,
    record,
)
from tests.streams import make_pair

Line = list[str]
LONG_MS = 30_000


class LineParser(Assembler[int, Line]):
    """Lines as frames, each behind four digits that say how long it is."""

    def __init__(self) -> None:
        super().__init__(header_bytes=4, payload_bytes_max=4096)

    def _read_header(self, view: memoryview) -> tuple[int, int]:
        return 0, int(bytes(view[:4]))

    def _finish_frame(self, header: int, payload: memoryview) -> Line:
        return bytes(payload).decode().split()


def encode(line: str) -> bytes:
    """Write a request."""
    return f"{len(line):04}{line}".encode()


class LineSession(Session[Line]):
    """A protocol with request ids."""

    _by_id: dict[str, StandingRequest]

    def _make_parser(self) -> LineParser:
        self._by_id = {}
        return LineParser()

    def _handle(self, frame: Line) -> None:
        getattr(self, f"_{frame[1]}")(frame[0], *frame[2:])
        self._observe(frame[1], self._began_s)

    def _refuse(self, error: BrokerError, frame: Line | None) -> None:
        self._reply(frame[0] if frame else "-", type(error).__name__)

    def _acknowledge(self, owed: Owed, failure: LanceError | None) -> Sequence[Buffer]:
        return [f"{owed.request} stored\n".encode()]

    def _reply(self, number: str, *words: object) -> None:
        self._send([" ".join(map(str, (number, *words))).encode() + b"\n"])

    def _let_stand(self, number: str, standing: StandingRequest) -> None:
        standing.frame = [number]
        self._by_id[number] = standing
        if not self._stand(standing):
            standing.attempt(True)

    def _end_of(self, topic: int) -> int:
        return self._service.ends(self._client, [topic])[topic]

    # Commands.

    def _ping(self, number: str) -> None:
        self._reply(number, "pong")

    def _put(self, number: str, topic: str, text: str) -> None:
        data = record(text.encode())
        starts = np.zeros(1, np.int64)
        self._append(
            number,
            int(topic),
            len(data),
            lambda: self._service.append(
                self._client, int(topic), 0, data, starts=starts
            ),
        )

    def _poll(self, number: str, topic: str, position: str, wait_ms: str) -> None:
        log = int(topic)

        def attempt(final: bool) -> bool:
            end = self._end_of(log)
            if not final and end <= int(position):
                return False
            self._reply(number, "end", end)
            return True

        positions = {log: int(position)}
        self._let_stand(
            number, StandingRequest(positions, attempt, int(wait_ms) / 1000)
        )

    def _follow(self, number: str, topic: str, position: str) -> None:
        log = int(topic)

        def attempt(final: bool) -> bool:
            end = self._end_of(log)
            if end > standing.positions[log]:
                self._reply(number, "push", end)
                standing.positions = {log: end}
                self._watch(standing)
            return False

        standing = StandingRequest({log: int(position)}, attempt, float("inf"))
        self._let_stand(number, standing)

    def _flood(self, number: str) -> None:
        count = itertools.count()

        def attempt(final: bool) -> bool:
            self._reply(number, next(count))
            self._watch(standing)  # There is always more.
            return False

        standing = StandingRequest({}, attempt, float("inf"))
        self._let_stand(number, standing)

    def _topics(self, number: str, wait_ms: str) -> None:
        version = self._service.topics_version

        def attempt(final: bool) -> bool:
            if not final and self._service.topics_version == version:
                return False
            self._reply(number, *(t.metadata.name for t in self._service.topics(me)))
            return True

        me = self._client
        standing = StandingRequest({}, attempt, int(wait_ms) / 1000, topics=True)
        self._let_stand(number, standing)

    def _broken(self, number: str, topic: str) -> None:
        def attempt(final: bool) -> bool:
            if self._end_of(int(topic)):
                raise ZeroDivisionError
            return False

        self._let_stand(number, StandingRequest({int(topic): 0}, attempt, 1000))

    def _store_at(self, number: str, log: str, expected: str, *texts: str) -> None:
        """Store records, the first of which is to get a number; any if it is -1."""
        values = [text.encode() for text in texts]
        wanted = None if expected == "-1" else int(expected)
        self._store(number, int(log), make_records(*values), expected=wanted)

    def _dump(self, number: str, size: str) -> None:
        self._hold_answer(int(size))
        self._send([bytes(int(size))])

    def _cancel(self, number: str, which: str) -> None:
        self._end(self._by_id.pop(which))
        self._reply(number, "cancelled", which)


class LineClient:
    """Sends lines and reads lines."""

    def __init__(self, address: str) -> None:
        self.stream = connect(parse_address(address), deadline=patience())
        self._data = b""

    def send(self, *lines: str) -> None:
        self.stream.send([encode(line) for line in lines], patience())

    def next(self) -> str:
        room = memoryview(bytearray(4096))
        while b"\n" not in self._data:
            size = self.stream.recv_into(room, patience())
            assert size, "the broker closed the connection"
            self._data += room[:size]
        line, _, self._data = self._data.partition(b"\n")
        return line.decode()

    def ask(self, line: str) -> str:
        self.send(line)
        return self.next()

    def ended(self) -> bool:
        return self.stream.recv_into(memoryview(bytearray(1)), patience()) == 0

    def is_silent(self) -> bool:
        assert not self._data
        return not self.stream.wait_readable(Deadline.after(0.02))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineConfig(BrokerConfig):
    """The settings of a broker with one protocol more."""

    lines: str | None = field(default=None, metadata=ADDRESS)


@pytest.fixture
def served(
    monkeypatch: pytest.MonkeyPatch, stack: ExitStack, directory: Path
) -> StartBroker:
    """Start a broker that serves lines beside LWP."""
    numbers = itertools.count()

    def make(shared: session.Shared) -> Callable[..., Session[Line]]:
        return lambda stream: LineSession(stream, shared)

    def start(**settings: Any) -> EmbeddedBroker:
        path = str(directory / f"lines-{next(numbers)}")
        defaults = {"fsync": "none", "data_dir": path, "lines": "127.0.0.1:0"}
        config = LineConfig(**{**defaults, **settings})
        return stack.enter_context(EmbeddedBroker(config))

    monkeypatch.setitem(embedded.PROTOCOLS, "lines", make)
    return start


@pytest.fixture
def broker(served: StartBroker) -> EmbeddedBroker:
    return served()


@pytest.fixture
def lines(broker: EmbeddedBroker) -> Iterator[LineClient]:
    client = LineClient(broker.address_of("lines"))
    yield client
    client.stream.close()


@pytest.fixture
def topics(broker: EmbeddedBroker, dial: Dial) -> list[int]:
    writer = dial(broker)
    return [writer.create(name) for name in "abc"]


def write(client: Client, topic: int, batch: int = 1) -> None:
    """Append 6 bytes by LWP."""
    client.write(topic, record(b"x"), batch, count=1)


def shared(broker: EmbeddedBroker) -> session.Shared:
    assert broker._server is not None
    return broker._server._shared


def stand(broker: EmbeddedBroker, count: int) -> bool:
    """Wait until so many positions are stood for."""
    size = count * WAIT_POSITION_BYTES
    return eventually(lambda: shared(broker).waiting.taken == size)


# Two protocols.


def test_each_protocol_has_its_own_address(
    broker: EmbeddedBroker, lines: LineClient, client: Client
) -> None:
    assert broker.address_of("lance") == broker.address
    assert broker.address_of("lines") != broker.address
    assert lines.ask("1 ping") == "1 pong"
    client.alive()
    with pytest.raises(LanceError, match="does not serve 'tank', only lance, lines"):
        broker.address_of("tank")
    addresses = [broker.address_of(name) for name in ("lance", "lines")]
    broker.stop()
    broker.start()
    assert [broker.address_of(name) for name in ("lance", "lines")] == addresses


def test_a_protocol_is_off_unless_it_has_an_address(served: StartBroker) -> None:
    broker = served(lines=None)
    with pytest.raises(LanceError, match="does not serve 'lines', only lance"):
        broker.address_of("lines")
    with pytest.raises(OptionError, match="port"):
        LineConfig(lines="nowhere")


def test_an_address_that_is_taken_frees_the_others(
    served: StartBroker, broker: EmbeddedBroker
) -> None:
    taken = broker.address
    with pytest.raises(LanceError, match="already in use"):
        served(lines=taken)
    free = broker.address_of("lines")
    broker.stop()
    served(listen=free, lines=taken)


def test_sessions_know_where_protocols_are_served(broker: EmbeddedBroker) -> None:
    found = {name: str(at) for name, at in shared(broker).addresses.items()}
    assert found == {name: broker.address_of(name) for name in ("lance", "lines")}


def test_each_protocol_is_counted(
    broker: EmbeddedBroker, lines: LineClient, client: Client
) -> None:
    assert lines.ask("1 ping") == "1 pong"
    assert lines.ask("2 put 99 x") == "2 TopicNotFound"
    client.alive()

    def own_bytes() -> tuple[int, int]:
        own = broker.metrics.snapshot().protocols["lines"]
        return own.received_bytes, own.sent_bytes

    # An answer is counted behind its send: the client may have it before.
    assert eventually(lambda: own_bytes() == (24, 23))
    found = broker.metrics.snapshot()
    own = found.protocols["lines"]
    assert own.connections == 1
    assert (own.requests_refused, found.requests_refused) == (1, 1)
    other = found.protocols["lance"]
    assert found.connections == 2 and other.connections == 1
    assert found.sent_bytes == own.sent_bytes + other.sent_bytes
    assert "lines.ping" in found.requests
    samples = read_samples(found, ())
    connections = samples["lance_broker_protocol_connections"]
    assert connections == [(("lance",), 1), (("lines",), 1)]


def test_a_client_that_can_present_no_token_is_refused(served: StartBroker) -> None:
    """In the protocol's own words; after the time for a token it is disconnected."""
    broker = served(tokens=("secret",), handshake_timeout_s=0.3)
    lines = LineClient(broker.address_of("lines"))
    assert lines.ask("1 put 0 x") == "1 AuthenticationRequired"
    assert lines.ended()
    lines.stream.close()


def test_a_certificate_stands_for_a_token_where_there_is_none(
    broker: EmbeddedBroker,
) -> None:
    stream, _ = make_pair()
    stream.certificate = PeerCertificate("spark", frozenset({b"digest"}))
    made = LineSession(stream, shared(broker))
    assert made._client == Principal("spark", frozenset({b"digest"}), True)
    own = LwpSession(stream, shared(broker))
    assert not own._client.authenticated and own._client.common_name == "spark"


def test_answers_are_owed_until_the_disk_has_it(
    served: StartBroker, dial: Dial
) -> None:
    broker = served(fsync="batch")
    lines = LineClient(broker.address_of("lines"))
    lines.send("1 put 0 a", "2 put 0 b", "3 put 0 c")
    assert [lines.next() for _ in range(3)] == ["1 stored", "2 stored", "3 stored"]
    assert dial(broker).read(0) == b"".join(map(record, (b"a", b"b", b"c")))
    lines.stream.close()


def test_a_request_that_fails_is_told_with_its_id(lines: LineClient) -> None:
    assert lines.ask("1 put 99 x") == "1 TopicNotFound"
    assert lines.ask("2 nothing") == "2 InternalError"
    assert lines.ask("3 ping") == "3 pong"


def test_records_are_stored_by_number(
    broker: EmbeddedBroker, lines: LineClient, client: Client, topics: list[int]
) -> None:
    log = topics[0]
    lines.send(f"1 store_at {log} -1 a b", f"2 store_at {log} 2 c")
    assert [lines.next(), lines.next()] == ["1 stored", "2 stored"]
    # Pipelined: the second is refused once the first is durable, and both are answered.
    lines.send(f"3 store_at {log} 3 d", f"4 store_at {log} 3 e")
    assert {lines.next(), lines.next()} == {"3 stored", "4 AppendConflictError"}
    assert client.read(log) == b"".join(map(record, (b"a", b"b", b"c", b"d")))
    assert eventually(lambda: not shared(broker).memory.taken)
    assert not shared(broker).queue.taken


def test_more_records_than_a_batch_may_have(served: StartBroker) -> None:
    broker = served(batch_bytes_max=1100, payload_bytes_max=1100)
    log = broker.service.create_topic(Principal(), "a").metadata.id
    lines = LineClient(broker.address_of("lines"))
    assert lines.ask(f"1 store_at {log} -1 " + "x " * 69) == "1 PayloadTooLarge"
    assert lines.ask(f"2 store_at {log} -1 " + "x " * 60) == "2 stored"
    lines.stream.close()


# Requests that stand.


def test_answers_come_out_of_order(
    broker: EmbeddedBroker, lines: LineClient, client: Client, topics: list[int]
) -> None:
    a, b, _ = topics
    lines.send(f"1 poll {a} 0 {LONG_MS}", f"2 poll {b} 0 {LONG_MS}")
    assert stand(broker, 2)
    for n in range(3, 6):
        assert lines.ask(f"{n} ping") == f"{n} pong"
    write(client, b)
    assert lines.next() == "2 end 6"
    assert stand(broker, 1)
    assert lines.ask("6 ping") == "6 pong"
    write(client, a, 2)
    assert lines.next() == "1 end 6"
    assert stand(broker, 0)


def test_what_is_there_already_is_answered_at_once(
    lines: LineClient, client: Client, topics: list[int]
) -> None:
    write(client, topics[0])
    assert lines.ask(f"1 poll {topics[0]} 0 {LONG_MS}") == "1 end 6"


def test_the_time_is_up_for_one_and_not_for_the_other(
    broker: EmbeddedBroker, lines: LineClient, topics: list[int]
) -> None:
    lines.send(f"1 poll {topics[0]} 0 {LONG_MS}", f"2 poll {topics[0]} 0 20")
    assert lines.next() == "2 end 0"
    assert stand(broker, 1)
    assert lines.is_silent()


def test_a_list_of_topics_that_changes(
    broker: EmbeddedBroker, lines: LineClient, client: Client
) -> None:
    lines.send(f"1 topics {LONG_MS}")
    assert stand(broker, 1)
    client.create("news")
    assert lines.next() == "1 news"


def test_a_subscription_pushes_until_it_is_cancelled(
    broker: EmbeddedBroker, lines: LineClient, client: Client, topics: list[int]
) -> None:
    lines.send(f"1 follow {topics[0]} 0", "2 ping")
    assert lines.next() == "2 pong"
    for n in range(1, 6):
        write(client, topics[0], n)
        assert lines.next() == f"1 push {6 * n}"
    assert lines.ask("3 cancel 1") == "3 cancelled 1"
    assert stand(broker, 0)
    write(client, topics[0], 9)
    assert lines.is_silent()


def test_its_own_writes_are_pushed(lines: LineClient, topics: list[int]) -> None:
    lines.send(f"1 follow {topics[0]} 0")
    for n in range(2, 5):
        lines.send(f"{n} put {topics[0]} x")
        got = {lines.next(), lines.next()}
        assert got == {f"{n} stored", f"1 push {6 * (n - 1)}"}


def test_a_flood_of_pushes_does_not_stop_the_reading(lines: LineClient) -> None:
    lines.send("1 flood")
    assert lines.next() == "1 0"
    lines.send("2 ping")
    while (line := lines.next()) != "2 pong":
        assert line.startswith("1 ")
    # Nor does a flood of requests stop the pushes.
    lines.send(*(f"{n} ping" for n in range(3, 103)))
    got = [lines.next()]
    # How many pushes were under way before depends on the machine.
    while got[-1] != "102 pong":
        got.append(lines.next())
    assert sum(line.startswith("1 ") for line in got) > 10


def test_a_request_that_fails_while_it_stands(
    broker: EmbeddedBroker, lines: LineClient, client: Client, topics: list[int]
) -> None:
    lines.send(f"1 broken {topics[0]}")
    assert stand(broker, 1)
    write(client, topics[0])
    assert lines.next() == "1 InternalError"
    assert stand(broker, 0)
    assert lines.ask("2 ping") == "2 pong"


def test_a_request_that_can_not_stand_is_answered_once(
    broker: EmbeddedBroker,
    lines: LineClient,
    topics: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise StoreClosed("it is closed")

    with monkeypatch.context() as patched:
        patched.setattr(broker.service, "watching", fail)
        assert lines.ask(f"1 poll {topics[0]} 0 50") == "1 StorageError"
        assert lines.ask("2 ping") == "2 pong"
    assert stand(broker, 0)
    assert lines.ask(f"3 poll {topics[0]} 0 100") == "3 end 0"


# Bounds.


def test_standing_requests_need_no_threads(
    broker: EmbeddedBroker, lines: LineClient, topics: list[int]
) -> None:
    assert lines.ask("0 ping") == "0 pong"
    before = threading.active_count()
    lines.send(*(f"{n} poll {topics[n % 3]} 0 {LONG_MS}" for n in range(100)))
    assert stand(broker, 100)
    assert threading.active_count() == before


def test_so_many_stand_and_the_next_is_answered_at_once(
    broker: EmbeddedBroker,
    lines: LineClient,
    topics: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "STANDING_MAX", 2)
    topic = topics[0]
    lines.send(*(f"{n} poll {topic} 0 {LONG_MS}" for n in (1, 2, 3)))
    assert lines.next() == "3 end 0"
    assert stand(broker, 2)


def test_there_is_no_room_to_stand(
    broker: EmbeddedBroker, lines: LineClient, topics: list[int]
) -> None:
    for budget in (shared(broker).waiting, shared(broker).memory):
        assert budget.try_take(budget._limit)
        assert lines.ask(f"1 poll {topics[0]} 0 {LONG_MS}") == "1 end 0"
        budget.give_back(budget._limit)
    assert stand(broker, 0)


def test_what_stands_ends_with_its_connection(
    broker: EmbeddedBroker, lines: LineClient, topics: list[int]
) -> None:
    lines.send(*(f"{n} follow {topic} 0" for n, topic in enumerate(topics)))
    assert stand(broker, 3)
    logs = [broker.service.store.topic(topic).log for topic in topics]
    assert all(len(log.watchers) == 1 for log in logs)
    lines.stream.close()
    assert stand(broker, 0)
    assert eventually(lambda: not shared(broker).memory.taken)
    assert not any(len(log.watchers) for log in logs)


def test_a_connection_with_a_standing_request_is_not_idle(
    served: StartBroker, dial: Dial
) -> None:
    broker = served(idle_timeout_other_s=0.05)
    lines = LineClient(broker.address_of("lines"))
    lines.send("1 poll 0 0 200")
    assert lines.next() == "1 end 0"
    assert lines.ended()
    lines.stream.close()


def test_half_a_request_is_given_up_while_memory_is_short(
    broker: EmbeddedBroker,
    lines: LineClient,
    topics: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_STALL_S", 0.02)
    lines.send(f"1 follow {topics[0]} 0")
    assert stand(broker, 1)
    for piece in (b"00062 pi", b"ng"):
        lines.stream.send([piece], patience())
    assert lines.next() == "2 pong"
    lines.stream.send([b"00063 pi"], patience())
    assert lines.is_silent()
    taker = Taker(shared(broker).memory)
    assert lines.ended()
    assert taker.has_it()


class Taker:
    """Another session, which waits for all the memory of a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._size = budget, budget._limit + 1
        self._thread = threading.Thread(
            target=budget.take, args=(self._size, patience()), daemon=True
        )
        self._thread.start()

    def has_it(self) -> bool:
        self._thread.join(20)
        self._budget.give_back(self._size)
        return not self._thread.is_alive()


@pytest.mark.parametrize("which", ["memory", "waiting"])
def test_an_answer_that_is_not_taken_while_memory_is_short(
    broker: EmbeddedBroker,
    lines: LineClient,
    which: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_STALL_S", 0.05)
    budget: Budget = getattr(shared(broker), which)
    lines.send(f"1 dump {32 << 20}")
    assert eventually(lambda: budget.taken > 0)
    # As long as no other session wants the memory, the client has its time.
    threading.Event().wait(0.2)
    assert broker.metrics.snapshot().protocols["lines"].connections == 1
    assert Taker(budget).has_it()
    assert eventually(
        lambda: not broker.metrics.snapshot().protocols["lines"].connections
    )


def test_an_answer_that_holds_no_memory_has_its_time(
    broker: EmbeddedBroker, lines: LineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_STALL_S", 0.02)
    monkeypatch.setattr(session, "PIECE_BYTES", 64 << 20)  # Then nothing is charged.
    memory = shared(broker).memory
    assert memory.try_take(1)
    taker = Taker(memory)
    lines.send(f"1 dump {32 << 20}")
    threading.Event().wait(0.2)
    room, left = memoryview(bytearray(1 << 20)), 32 << 20
    while left:
        left -= lines.stream.recv_into(room[: min(left, 1 << 20)], patience())
    assert lines.ask("2 ping") == "2 pong"
    memory.give_back(1)
    assert taker.has_it()


def test_a_connection_that_is_silent_is_watched_by_the_system(
    broker: EmbeddedBroker, lines: LineClient
) -> None:
    assert lines.ask("1 ping") == "1 pong"
    assert broker._server is not None
    (stream,) = broker._server._streams.values()
    assert isinstance(stream, SocketStream)
    for level, option, least in (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    ):
        assert stream._sock.getsockopt(level, option) == least
