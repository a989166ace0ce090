"""The relay, between two ends that are made here; with brokers it is in integration."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lance_spark.errors import ConnectionLost
from lance_spark.net.address import Address, parse_address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener
from lance_spark.net.stream import Stream
from lance_spark.testing import CLEAR, Fate, Flow, Relay
from lance_spark.testing.weather import Side
from tests.integration.kit import wait_for

PATIENCE_S = 30.0


class Echo:
    """A server that says again what it is told."""

    def __init__(self) -> None:
        self._listener = Listener(Address("127.0.0.1", 0))
        self.address = str(self._listener.address)
        self.heard: list[bytes] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while (stream := self._listener.accept()) is not None:
            thread = threading.Thread(target=self._serve, args=(stream,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, stream: Stream) -> None:
        try:
            while data := receive(stream):
                self.heard.append(data)
                stream.send([data], Deadline.after(PATIENCE_S))
        except ConnectionLost:
            pass
        finally:
            stream.close()

    def close(self) -> None:
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


def receive(stream: Stream, size: int = 1 << 20) -> bytes:
    buffer = memoryview(bytearray(size))
    return bytes(buffer[: stream.recv_into(buffer, Deadline.after(PATIENCE_S))])


def receive_exactly(stream: Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = receive(stream, size - len(data))
        assert piece, f"the end after {data!r}"
        data += piece
    return data


@contextmanager
def client(relay: Relay) -> Iterator[Stream]:
    deadline = Deadline.after(PATIENCE_S)
    stream = connect(parse_address(relay.address), deadline=deadline)
    try:
        yield stream
    finally:
        stream.close()


def send(stream: Stream, data: bytes) -> None:
    stream.send([data], Deadline.after(PATIENCE_S))


def count_threads() -> int:
    names = [thread.name for thread in threading.enumerate()]
    return sum(name.startswith("lance-relay") for name in names)


def is_ended(stream: Stream) -> bool:
    try:
        return receive(stream) == b""
    except ConnectionLost:
        return True


def test_bytes_go_both_ways(echo: Echo) -> None:
    data = bytes(range(256)) * 4096
    with Relay(echo.address) as relay, client(relay) as stream:
        send(stream, b"hello")
        assert receive_exactly(stream, 5) == b"hello"
        # More than any buffer on the way holds.
        sender = threading.Thread(target=send, args=(stream, data))
        sender.start()
        assert receive_exactly(stream, len(data)) == data
        sender.join(PATIENCE_S)
        assert (relay.connections, relay.cuts) == (1, 0)


def test_end_of_one_direction_is_passed_on(echo: Echo) -> None:
    with Relay(echo.address) as relay, client(relay) as stream:
        send(stream, b"last words")
        stream.shutdown_write()
        assert receive_exactly(stream, 10) == b"last words"
        assert is_ended(stream)
    assert relay.cuts == 0


def test_plan_is_asked_for_each_connection(echo: Echo) -> None:
    def plan(number: int) -> Fate:
        return Fate(down=Flow(cut_at=2)) if number == 1 else CLEAR

    with Relay(echo.address, plan) as relay:
        for number in range(3):
            with client(relay) as stream:
                send(stream, b"abcd")
                if number == 1:
                    assert receive_exactly(stream, 2) == b"ab"
                    assert is_ended(stream)
                else:
                    assert receive_exactly(stream, 4) == b"abcd"
        assert (relay.connections, relay.cuts) == (3, 1)


def test_doubled(echo: Echo) -> None:
    twice = Fate(is_doubled=True)
    with Relay(echo.address, lambda _: twice) as relay, client(relay) as stream:
        send(stream, b"abc")
        assert receive_exactly(stream, 3) == b"abc"
        wait_for(lambda: b"".join(echo.heard) == b"abcabc", "said twice")
        stream.shutdown_write()
        # The answers of the second are nobody's.
        assert is_ended(stream)


def test_swallowed(echo: Echo) -> None:
    fate = Fate(down=Flow(swallow_at=2))
    with Relay(echo.address, lambda _: fate) as relay, client(relay) as stream:
        send(stream, b"abcd")
        assert receive_exactly(stream, 2) == b"ab"
        assert not stream.wait_readable(Deadline.after(0.05))


def test_drop_ends_what_is_there_and_nothing_else(echo: Echo) -> None:
    with Relay(echo.address) as relay:
        with client(relay) as stream:
            send(stream, b"a")
            assert receive_exactly(stream, 1) == b"a"
            relay.drop()
            assert is_ended(stream)
        with client(relay) as stream:
            send(stream, b"b")
            assert receive_exactly(stream, 1) == b"b"


def test_weather_meets_connections_that_are_there(echo: Echo) -> None:
    with Relay(echo.address) as relay, client(relay) as stream:
        send(stream, b"a")
        assert receive_exactly(stream, 1) == b"a"
        relay.weather.add_cut(Side.CLIENT, 3, 1)
        send(stream, b"bcde")
        assert receive_exactly(stream, 3) == b"bcd"
        assert is_ended(stream)
        assert relay.cuts == 1


def test_delay_holds_up(echo: Echo) -> None:
    with Relay(echo.address) as relay, client(relay) as stream:
        # Longer than any test lasts: nothing of it comes.
        relay.weather.add_delay(10 * PATIENCE_S)
        send(stream, b"a")
        assert not stream.wait_readable(Deadline.after(0.05))
        # And closing does not wait for it.


def test_nobody_at_the_other_end(echo: Echo) -> None:
    with Relay(echo.address) as gone:
        pass
    with Relay(gone.address) as relay, client(relay) as stream:
        assert is_ended(stream)


def test_close_ends_connections(echo: Echo) -> None:
    relay = Relay(echo.address)
    with client(relay) as stream:
        send(stream, b"a")
        assert receive_exactly(stream, 1) == b"a"
        relay.close()
        relay.close()
        assert is_ended(stream)
    wait_for(lambda: not count_threads(), "its threads end")


@pytest.mark.parametrize("reset", [False, True])
def test_end_and_reset(echo: Echo, reset: bool) -> None:
    fate = Fate(down=Flow(cut_at=2), reset=reset)
    with Relay(echo.address, lambda _: fate) as relay, client(relay) as stream:
        send(stream, b"abcd")
        if not reset:
            assert receive_exactly(stream, 2) == b"ab"
            assert receive(stream) == b""
            return
        with pytest.raises(ConnectionLost, match="reset"):
            while receive(stream):
                pass
            pytest.fail("a proper end")
