from __future__ import annotations

import errno
import os
import socket
import threading
from typing import Any

import pytest

from lance_spark.errors import ConnectionLost, OptionError, Timeout
from lance_spark.net import connect as module
from lance_spark.net.address import Address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener
from lance_spark.net.stream import Stream
from lance_spark.net.tls import handshake
from tests.net.conftest import LONG_S, Certificates, Spawn, soon


@pytest.fixture
def dead() -> Address:
    """Give an address where nobody listens."""
    listener = Listener(Address("127.0.0.1", 0))
    listener.close()
    return listener.address


def target(address: Address) -> tuple[Any, ...]:
    where = (address.host, address.port)
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)


def name_is(monkeypatch: pytest.MonkeyPatch, *addresses: Address) -> None:
    """Let every name have these addresses."""
    found = [target(address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: found)


def greet(stream: Stream, listener: Listener) -> None:
    """Check that a stream leads to a listener."""
    server = listener.accept()
    assert server is not None
    server.send([b"hello"], soon())
    buffer = memoryview(bytearray(5))
    assert stream.recv_into(buffer, soon()) == 5
    stream.close()
    server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_connect(listener: Listener, host: str) -> None:
    address = Address(host, listener.address.port)
    stream = connect(address, deadline=soon())
    assert stream.peer == str(address)
    assert stream.certificate is None
    greet(stream, listener)


def test_refused(dead: Address) -> None:
    with pytest.raises(ConnectionLost) as caught:
        connect(dead, deadline=soon())
    assert str(caught.value) == f"could not connect to {dead}: Connection refused"


def test_all_addresses_are_tried(
    listener: Listener, dead: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_is(monkeypatch, dead, dead, listener.address)
    stream = connect(Address("many", 1), deadline=soon())
    assert stream.peer == "many:1"
    greet(stream, listener)


def test_each_reason_is_named_once(
    dead: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only a listening address of this kind can't be connected to at all.
    name_is(monkeypatch, dead, Address("255.255.255.255", 9), dead)
    with pytest.raises(ConnectionLost) as caught:
        connect(Address("many", 1), deadline=soon())
    text = str(caught.value)
    assert text.startswith("could not connect to many:1: Connection refused; ")
    assert text.count("refused") == 1


def test_one_that_does_not_answer_leaves_time_for_others(
    listener: Listener, dead: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []
    wait_ready = module.wait_ready

    def wait(descriptor: int, event: int, deadline: Deadline) -> bool:
        shares.append(deadline.remaining())
        return wait_ready(descriptor, event, deadline) and len(shares) == 3

    monkeypatch.setattr(module, "wait_ready", wait)
    monkeypatch.setattr(
        socket.socket, "connect_ex", _connect_in_progress(socket.socket.connect_ex)
    )
    name_is(monkeypatch, listener.address, listener.address, listener.address)
    stream = connect(Address("many", 1), deadline=Deadline.after(30, lambda: 0.0))
    assert shares == [10, 15, 30]
    for _ in range(2):
        given_up = listener.accept()
        assert given_up is not None
        given_up.close()
    greet(stream, listener)


def _connect_in_progress(connect_ex: Any) -> Any:
    """Say that it takes time, as it does between machines."""

    def start(self: socket.socket, where: Any) -> int:
        return connect_ex(self, where) or errno.EINPROGRESS

    return start


def test_no_answer_at_all(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "wait_ready", lambda *args: False)
    monkeypatch.setattr(
        socket.socket, "connect_ex", _connect_in_progress(socket.socket.connect_ex)
    )
    with pytest.raises(ConnectionLost, match="no answer before the deadline"):
        connect(listener.address, deadline=soon())
    with pytest.raises(Timeout, match=r"127.0.0.1:\d+: no answer before the deadline"):
        connect(listener.address, deadline=Deadline.after(0))


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        UnicodeError("label too long"),
    ],
)
def test_unknown_name(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(ConnectionLost, match="could not connect to nowhere:1: ") as e:
        connect(Address("nowhere", 1), deadline=soon())
    assert ("not known" in str(e.value)) or ("too long" in str(e.value))


def test_impossible_name() -> None:
    with pytest.raises(ConnectionLost, match="could not connect to aaa"):
        connect(Address("a" * 70 + ".invalid", 1), deadline=soon())


def test_lookup_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    threads: list[threading.Thread] = []

    def hang(*args: Any, flags: int = 0, **more: Any) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        threads.append(threading.current_thread())
        release.wait(LONG_S)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with pytest.raises(Timeout, match="slow:1: its name is still looked up"):
        connect(Address("slow", 1), deadline=Deadline.after(0.05))
    release.set()
    for thread in threads:
        assert thread.daemon
        thread.join(LONG_S)


def test_port_that_nobody_can_have() -> None:
    with pytest.raises(OptionError, match="give the port that the server listens on"):
        connect(Address("localhost", 0), deadline=soon())


def test_connection_with_itself_is_none(
    dead: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A free port can be chosen as the connection's own, which is then connected."""
    real = socket.socket

    def bound(*args: Any) -> socket.socket:
        sock = real(*args)
        sock.bind((dead.host, dead.port))
        return sock

    monkeypatch.setattr(module.socket, "socket", bound)
    with pytest.raises(ConnectionLost, match="Connection refused"):
        connect(dead, deadline=soon())


def test_no_descriptors_left(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(module.socket, "socket", fail)
    with pytest.raises(ConnectionLost, match="Too many open files"):
        connect(listener.address, deadline=soon())


def test_secure(listener: Listener, certs: Certificates, spawn: Spawn) -> None:
    def serve() -> Stream:
        stream = listener.accept()
        assert stream is not None
        return handshake(stream, certs.server_context(), soon())

    for name in (None, "localhost"):
        serving = spawn(serve)
        tls = certs.client_context(certs.client)
        client = connect(listener.address, deadline=soon(), tls=tls, server_name=name)
        server = serving.result(LONG_S)
        assert client.certificate is not None and server.certificate is not None
        client.close()
        server.close()


def test_secure_with_another_name(
    listener: Listener, certs: Certificates, spawn: Spawn
) -> None:
    def serve() -> None:
        stream = listener.accept()
        assert stream is not None
        with pytest.raises(ConnectionLost):
            handshake(stream, certs.server_context(), soon())

    serving = spawn(serve)
    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        connect(
            listener.address,
            deadline=soon(),
            tls=certs.client_context(),
            server_name="example.org",
        )
    serving.result(LONG_S)
