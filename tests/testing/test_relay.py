"""The relay, between two ends that are made here; with brokers it is in integration."""

from __future__ import annotations

import threading
import time
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
from lance_spark.testing.relay import ByteFilter, NetworkFaults
from tests.each import each
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


def test_faults_meet_connections_that_are_there(echo: Echo) -> None:
    with Relay(echo.address) as relay, client(relay) as stream:
        send(stream, b"a")
        assert receive_exactly(stream, 1) == b"a"
        relay.network.add_cut("client", 3, 1)
        send(stream, b"bcde")
        assert receive_exactly(stream, 3) == b"bcd"
        assert is_ended(stream)
        assert relay.cuts == 1


def test_delay_holds_up(echo: Echo) -> None:
    with Relay(echo.address) as relay, client(relay) as stream:
        # Longer than any test lasts: nothing of it comes.
        relay.network.add_delay(10 * PATIENCE_S)
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


def pass_through(flow: Flow, *pieces: bytes) -> tuple[list[bytes], bool]:
    gate = ByteFilter(flow)
    return [gate.take(piece) for piece in pieces], gate.is_cut


def test_clear() -> None:
    assert Fate() == CLEAR
    assert pass_through(Flow(), b"abc", b"", b"d") == ([b"abc", b"", b"d"], False)


@each(
    ("flow", "passed", "is_cut"),
    [
        (Flow(cut_at=0), [b"", b""], True),
        (Flow(cut_at=2), [b"ab", b""], True),
        (Flow(cut_at=3), [b"abc", b""], True),
        (Flow(cut_at=4), [b"abc", b"d"], True),
        (Flow(cut_at=7), [b"abc", b"def"], False),
        (Flow(swallow_at=0), [b"", b""], False),
        (Flow(swallow_at=4), [b"abc", b"d"], False),
        (Flow(swallow_at=1, cut_at=4), [b"a", b""], True),
        (Flow(flip_at=0), [b"`bc", b"def"], False),
        (Flow(flip_at=4), [b"abc", b"ddf"], False),
        (Flow(flip_at=6), [b"abc", b"def"], False),
        (Flow(flip_at=4, cut_at=4), [b"abc", b"d"], True),
    ],
)
def test_bytes(flow: Flow, passed: list[bytes], is_cut: bool) -> None:
    assert pass_through(flow, b"abc", b"def") == (passed, is_cut)


def test_frames_are_counted_only_where_that_matters() -> None:
    assert not Flow(cut_at=1, swallow_at=2).counts_frames
    assert Flow(cut_frame=0).counts_frames
    assert Flow(swallow_frame=0).counts_frames


# Longer than any test lasts.
FOREVER_S = 3600.0
PATIENCE_S = 30.0


def test_no_faults() -> None:
    network = NetworkFaults()
    network.pause()
    assert network.take("client", b"abc") == (b"abc", False)


def test_delays_add_up() -> None:
    network = NetworkFaults()
    network.add_delay(0.02)
    network.add_delay(0.01)
    began_s = time.monotonic()
    network.pause(0.01)
    assert time.monotonic() - began_s >= 0.04


def test_who_waits_goes_on_when_the_delay_ends() -> None:
    network = NetworkFaults()
    end = network.add_delay(FOREVER_S)
    waiting = start(network)
    end()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    # Taken back, it can't be taken back again.
    end()


def test_other_delays_stay() -> None:
    network = NetworkFaults()
    network.add_delay(FOREVER_S)
    end = network.add_delay(1.0)
    waiting = start(network)
    end()
    waiting.join(0.05)
    assert waiting.is_alive()
    network.end()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def start(network: NetworkFaults) -> threading.Thread:
    thread = threading.Thread(target=network.pause)
    thread.start()
    return thread


def test_cut_counts_one_side_over_all_connections() -> None:
    network = NetworkFaults()
    network.add_cut("client", 5, 1)
    assert network.take("broker", b"0123456789") == (b"0123456789", False)
    assert network.take("client", b"abc") == (b"abc", False)
    assert network.take("client", b"defg") == (b"de", True)
    assert network.take("client", b"hij") == (b"hij", False)


def test_cut_comes_again() -> None:
    network = NetworkFaults()
    network.add_cut("broker", 2, 2)
    taken = [network.take("broker", b"abc") for _ in range(3)]
    assert taken == [(b"ab", True), (b"ab", True), (b"abc", False)]


def test_cut_before_the_first_byte() -> None:
    network = NetworkFaults()
    network.add_cut("client", 0, 1)
    assert network.take("client", b"a") == (b"", True)


def test_cut_that_is_taken_back() -> None:
    network = NetworkFaults()
    end = network.add_cut("client", 0, 1)
    end()
    end()
    assert network.take("client", b"a") == (b"a", False)
