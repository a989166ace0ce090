"""Listeners, and the limit of open files."""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import threading
from typing import Any

import pytest

from lance_spark.errors import OptionError
from lance_spark.net import listener as module
from lance_spark.net.address import Address
from lance_spark.net.connect import connect
from lance_spark.net.listener import Listener, raise_file_limit
from tests.net.conftest import LONG_S, Spawn, soon


def test_free_port(listener: Listener) -> None:
    assert listener.address.host == "127.0.0.1" and listener.address.port > 0
    other = Listener(Address("127.0.0.1", 0))
    assert other.address.port != listener.address.port
    other.close()


def test_accept_in_order(listener: Listener) -> None:
    clients = [connect(listener.address, deadline=soon()) for _ in range(3)]
    for number, client in enumerate(clients):
        client.send([bytes([number])], soon())
    for number in range(3):
        server = listener.accept()
        assert server is not None
        buffer = memoryview(bytearray(1))
        server.recv_into(buffer, soon())
        assert buffer[0] == number
        own = clients[number]._sock.getsockname()  # type: ignore[attr-defined]
        assert server.peer == f"127.0.0.1:{own[1]}"
        server.close()
        clients[number].close()


def test_stop_wakes_accept(
    listener: Listener, spawn: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = threading.Event()
    wait_ready = module.wait_ready

    def wait_and_tell(*args: Any) -> bool:
        waiting.set()
        return wait_ready(*args)

    monkeypatch.setattr(module, "wait_ready", wait_and_tell)
    accepting = spawn(listener.accept)
    assert waiting.wait(LONG_S)
    listener.stop()
    assert accepting.result(LONG_S) is None


@pytest.mark.parametrize("how", ["stop", "close"])
def test_stopped_for_good(listener: Listener, how: str) -> None:
    client = connect(listener.address, deadline=soon())
    for _ in range(2):
        getattr(listener, how)()
        # Not even what had come before.
        assert listener.accept() is None
    client.close()


def test_close_waits_for_accept(listener: Listener, spawn: Spawn) -> None:
    accepting = [spawn(listener.accept) for _ in range(3)]
    listener.close()
    assert [each.result(LONG_S) for each in accepting] == [None] * 3


def test_port_is_free_again(listener: Listener) -> None:
    client = connect(listener.address, deadline=soon())
    server = listener.accept()
    assert server is not None
    # The side that closes first keeps the port for a while, which must not matter.
    server.close()
    client.close()
    listener.close()
    again = Listener(listener.address)
    assert again.address == listener.address
    again.close()


def test_port_in_use(listener: Listener) -> None:
    with pytest.raises(OptionError) as caught:
        Listener(listener.address)
    assert str(caught.value) == (
        f"can't listen on {listener.address}: it is already in use; choose another "
        "port, or 0 for a free one"
    )


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", "it is not an address of this machine"),
        ("a" * 70 + ".invalid", "label"),
    ],
)
def test_address_of_someone_else(host: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"can't listen on {host}:0: .*{reason}"):
        Listener(Address(host, 0))


def test_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OptionError, match="can't listen on nowhere:1: Name or service"):
        Listener(Address("nowhere", 1))


def test_port_that_needs_privileges(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, where: Any) -> None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(module.socket, "socket", Refusing)
    with pytest.raises(OptionError, match="ports below 1024 need privileges"):
        Listener(Address("127.0.0.1", 80))


@pytest.mark.parametrize(("host", "target"), [("::1", "::1"), ("::", "127.0.0.1")])
def test_ipv6(host: str, target: str) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    listener = Listener(Address(host, 0))
    assert str(listener.address).startswith(f"[{host}]:")
    client = connect(Address(target, listener.address.port), deadline=soon())
    server = listener.accept()
    assert server is not None and server.peer.startswith("[")
    for each in (client, server, listener):
        each.close()


class Failing:
    """A listening socket whose accept fails some times before it works."""

    def __init__(self, sock: socket.socket, *codes: int) -> None:
        self.sock = sock
        self.codes = list(codes)

    def accept(self) -> Any:
        if self.codes:
            code = self.codes.pop(0)
            raise OSError(code, os.strerror(code))
        return self.sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


def test_no_room_is_waited_out_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)
    now_s = 0.0
    listener = Listener(Address("127.0.0.1", 0), clock=lambda: now_s)
    for later_s, lines in ((0, 1), (59, 1), (61, 2)):
        now_s = float(later_s)
        failing = Failing(listener._sock, errno.EMFILE, errno.ENFILE, errno.EMFILE)
        listener._sock = failing  # type: ignore[assignment]
        client = connect(listener.address, deadline=soon())
        server = listener.accept()
        listener._sock = failing.sock
        assert server is not None and not failing.codes
        assert len(caplog.records) == lines
        client.close()
        server.close()
    assert caplog.records[0].levelno == logging.WARNING
    assert "can't accept connections for now: Too many open" in caplog.text
    listener.close()


def test_stop_ends_the_wait_for_room(spawn: Spawn) -> None:
    listener = Listener(Address("127.0.0.1", 0))
    failing = Failing(listener._sock, *[errno.EMFILE] * 100_000)
    listener._sock = failing  # type: ignore[assignment]
    client = connect(listener.address, deadline=soon())
    accepting = spawn(listener.accept)
    listener.stop()
    assert accepting.result(LONG_S) is None
    listener.close()
    client.close()


def test_clients_that_are_gone_are_passed_over(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing(listener._sock, errno.ECONNABORTED, errno.EAGAIN, errno.EPROTO)
    listener._sock = failing  # type: ignore[assignment]
    client = connect(listener.address, deadline=soon())
    server = listener.accept()
    assert server is not None and not failing.codes and not caplog.records
    client.close()
    server.close()


INFINITY = resource.RLIM_INFINITY


class Limits:
    """A process's limits; above `most` the system refuses."""

    def __init__(self, soft: int, hard: int, most: int = 10**9) -> None:
        self.soft, self.hard, self.most = soft, hard, most

    def get(self, which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return self.soft, self.hard

    def set(self, which: int, limits: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE and limits[1] == self.hard
        if limits[0] > self.most:
            raise ValueError("not allowed to raise maximum limit")
        self.soft = limits[0]


@pytest.mark.parametrize(
    ("limits", "after"),
    [
        (Limits(1024, 4096), 3000),
        (Limits(1024, 2000), 2000),
        (Limits(1024, INFINITY), 3000),
        (Limits(1024, INFINITY, most=2999), 1024),
        (Limits(3000, 4096), 3000),
        (Limits(4096, 4096), 4096),
        (Limits(INFINITY, INFINITY), INFINITY),
    ],
)
def test_raised_to_what_is_wanted_where_that_is_allowed(
    limits: Limits, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    assert raise_file_limit(3000) == (3000 if after == INFINITY else after)
    assert limits.soft == after
