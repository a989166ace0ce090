"""The thread that keeps a connection alive."""

from __future__ import annotations

import gc
import threading
import weakref

from lance_spark.client.link import Repeater, _repeat
from lance_spark.errors import Timeout
from tests.client.scripted import PATIENCE_S, Network, Peer, serving, soon


class Living:
    """Something that counts how often it was kept alive."""

    def __init__(self, delay_s: float) -> None:
        self.calls = threading.Semaphore(0)
        self._delay_s = delay_s

    def keep_alive(self) -> float:
        self.calls.release()
        return self._delay_s


def repeat(living: Living, first_s: float) -> Repeater:
    return Repeater(living.keep_alive, first_s, name="lance-test")


def test_it_comes_again_and_again() -> None:
    living = Living(0.001)
    keepalive = repeat(living, 0.001)
    for _ in range(3):
        assert living.calls.acquire(timeout=PATIENCE_S)
    keepalive.stop(PATIENCE_S)
    assert not keepalive.is_running


def test_stop_does_not_wait_for_the_next_time() -> None:
    living = Living(3600)
    keepalive = repeat(living, 3600)
    assert keepalive.is_running
    keepalive.stop(PATIENCE_S)
    assert not keepalive.is_running
    keepalive.stop(PATIENCE_S)


def test_it_can_be_stopped_from_within() -> None:
    class Suicidal(Living):
        def keep_alive(self) -> float:
            assert made.wait(PATIENCE_S)
            keepalive.stop(PATIENCE_S)
            return super().keep_alive()

    made = threading.Event()
    living = Suicidal(3600)
    keepalive = repeat(living, 0.0)
    made.set()
    assert living.calls.acquire(timeout=PATIENCE_S)
    keepalive._thread.join(PATIENCE_S)
    assert not keepalive.is_running


def test_it_ends_with_what_it_serves() -> None:
    living = Living(3600)
    reference = weakref.ref(living)
    keepalive = repeat(living, 3600)
    del living
    gc.collect()
    assert reference() is None
    keepalive._thread.join(PATIENCE_S)
    assert not keepalive.is_running


def test_it_ends_when_it_comes_too_late() -> None:
    reference = weakref.WeakMethod(Living(0.0).keep_alive)
    gc.collect()
    _repeat(threading.Event(), reference, 0.0)  # Returns, or the test would not end.


def test_a_keepalive_that_fails_is_the_next_calls_affair(network: Network) -> None:
    network.serve(serving(), serving())
    client = network.client(keepalive_interval_s=5.0)
    connection = client.connection()
    connection._clock = lambda: 1e12

    def send(buffers: object, deadline: object) -> None:
        raise Timeout("stuck")

    connection._stream.send = send
    assert client.link.keep_alive() == 5.0
    assert not connection.is_open
    client.status()
    assert len(network.dialed) == 2


def test_an_idle_client_sends_keepalives(network: Network) -> None:
    seen = threading.Semaphore(0)

    def script(peer: Peer) -> None:
        peer.greet()
        while peer.frame() is not None:
            seen.release()
            peer.keepalive()

    network.serve(script)
    client = network.client(keepalive_interval_s=0.01).connect()
    connection = client.connection()
    for _ in range(3):
        assert seen.acquire(timeout=PATIENCE_S)
    # The same connection all the time, and a ping of ours is not confused.
    assert client.ping() >= 0.0
    assert client.connection() is connection


def test_a_busy_client_sends_none(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        assert peer.frame() is None

    network.serve(script)
    client = network.client(keepalive_interval_s=3600.0).connect()
    assert client.link.keep_alive() > 3000.0


def test_a_client_without_a_connection_sends_none(network: Network) -> None:
    client = network.client(keepalive_interval_s=5.0)
    assert client.link.keep_alive() == 5.0


def test_the_thread_notices_that_the_server_has_gone(network: Network) -> None:
    go = threading.Event()

    def script(peer: Peer) -> None:
        peer.greet()
        assert go.wait(PATIENCE_S)

    network.serve(script, serving())
    client = network.client(keepalive_interval_s=0.01)
    connection = client.connection()
    go.set()
    deadline = soon()
    while connection.is_open:
        assert not deadline.expired
        threading.Event().wait(0.001)
    client.status()
    assert len(network.dialed) == 2


def test_the_thread_ends_with_the_client(network: Network) -> None:
    network.serve(serving())
    client = network.client().connect()
    keepalive = client.link._keepalive
    assert keepalive is not None
    client.close()
    assert not keepalive.is_running


def test_one_thread_for_all_connections(network: Network) -> None:
    network.serve(serving(), serving())
    client = network.client().connect()
    first = client.link._keepalive
    client.disconnect()
    client.connect()
    assert client.link._keepalive is first
