"""The web server, with applications of a few lines."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from lance_spark.errors import LanceError, OptionError
from lance_spark.net import web as module
from lance_spark.net.address import Address
from lance_spark.net.listener import Listener, listen
from lance_spark.net.web import WebServer
from tests.net.conftest import LONG_S, Certificates

Serve = Callable[..., WebServer]


async def say_hello(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what the server says of the visitor."""
    certificate = scope["state"]["certificate"]
    name = b"nobody" if certificate is None else certificate.common_name.encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": name})


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that are stopped at the end."""
    started: list[WebServer] = []

    def serve(app: Any = say_hello, **options: Any) -> WebServer:
        server = WebServer(app, Address("127.0.0.1", 0), **options)
        started.append(server)
        server.start()
        return server

    yield serve
    for server in started:
        server.stop()


def get(server: WebServer, **headers: str) -> http.client.HTTPResponse:
    """Send a request, and read the answer."""
    connection = http.client.HTTPConnection(
        server.address.host, server.address.port, timeout=LONG_S
    )
    try:
        connection.request("GET", "/", headers=headers)
        response = connection.getresponse()
        response.body = response.read()  # type: ignore[attr-defined]
        return response
    finally:
        connection.close()


def dial(server: WebServer) -> socket.socket:
    """Connect, and say nothing yet."""
    return socket.create_connection((server.address.host, server.address.port), LONG_S)


def test_serves(serve: Serve) -> None:
    server = serve()
    assert server.address.host == "127.0.0.1" and server.address.port > 0
    response = get(server)
    assert response.status == 200
    assert response.body == b"nobody"  # type: ignore[attr-defined]
    assert response.headers["Server"] is None and response.headers["Date"]
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        dial(server)
    server.stop()


def test_listening_socket_does_not_block() -> None:
    with listen(Address("127.0.0.1", 0), 1) as sock:
        assert sock.getblocking() is False
        with pytest.raises(BlockingIOError):
            sock.accept()


def test_address_in_use(listener: Listener) -> None:
    with pytest.raises(OptionError, match="already in use"):
        WebServer(say_hello, listener.address)


def test_never_started() -> None:
    server = WebServer(say_hello, Address("127.0.0.1", 0))
    server.stop()
    Listener(server.address).close()


def test_does_not_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*args: object) -> None:
        raise OSError("no more files")

    monkeypatch.setattr(module.uvicorn.Server, "startup", fail)
    server = WebServer(say_hello, Address("127.0.0.1", 0))
    with pytest.raises(LanceError, match="does not start"):
        server.start()
    assert "no more files" in caplog.text
    Listener(server.address).close()


def test_answers_that_go_on_end_with_it(serve: Serve) -> None:
    ending = anyio.Event()
    begun = threading.Event()

    async def go_on(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        begun.set()
        await ending.wait()
        await send({"type": "http.response.body", "body": b"z"})

    server = serve(go_on, ending=ending.set)
    with dial(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert begun.wait(LONG_S)
        server.stop()
        answer = b""
        while part := sock.recv(4096):
            answer += part
    assert answer.endswith(b"1\r\na\r\n1\r\nz\r\n0\r\n\r\n")


def test_answers_that_do_not_end_are_cut(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_DRAIN_S", 0)
    begun = threading.Event()

    async def never_end(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.set()
        await anyio.sleep(LONG_S)

    server = serve(never_end)
    with dial(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert begun.wait(LONG_S)
        server.stop()
        assert _is_closed_at_last(sock)
    assert not server._thread.is_alive()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_answers_that_nobody_reads_are_cut(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_DRAIN_S", 0)
    server = serve(send_much)
    with dial(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(1)
        server.stop()
        # All of the connection is over, and not left to the garbage collector.
        assert not server._server.server_state.connections
    assert not server._thread.is_alive()
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_connections_are_counted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 2)
    server = serve()
    connections = [dial(server) for _ in range(2)]
    try:
        for sock in connections:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        with dial(server) as third:
            assert _is_closed(third)
    finally:
        for sock in connections:
            sock.close()


def test_silence_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REQUEST_S", 0.01)
    server = serve()
    with dial(server) as silent, dial(server) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHos")
        assert _is_closed(silent) and _is_closed(slow)
    monkeypatch.setattr(module, "_REQUEST_S", LONG_S)
    assert get(server).status == 200


def test_a_second_request_has_to_come_as_well(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    with dial(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(1)
        monkeypatch.setattr(module, "_REQUEST_S", 0.05)
        sock.sendall(b"GET / HTT")
        assert _is_closed_at_last(sock)


async def send_much(scope: Any, receive: Any, send: Any) -> None:
    """Answer with more than sockets keep."""
    headers = [(b"content-length", b"%d" % len(MUCH))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": MUCH})


MUCH = bytes(range(256)) * 2**17


def test_long_bodies_are_whole(serve: Serve) -> None:
    assert get(serve(send_much)).body == MUCH  # type: ignore[attr-defined]


def test_who_does_not_read_is_cut_off(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SEND_S", 0.05)
    left = threading.Event()

    async def tell(scope: Any, receive: Any, send: Any) -> None:
        await send_much(scope, receive, send)
        left.set()

    server = serve(tell)
    with dial(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert left.wait(LONG_S)
        received = 0
        with suppress(ConnectionResetError):
            while part := sock.recv(1 << 20):
                received += len(part)
        assert received < len(MUCH)


def test_little_that_nobody_reads_is_cut_off_too(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEEP_ALIVE_S", 0.05)
    monkeypatch.setattr(module, "_SEND_S", 0.05)
    # Too little to be waited for, so that only the end of the connection waits.
    monkeypatch.setattr(module._Connection, "pause_writing", lambda self: None)
    server = serve(send_much)
    with dial(server) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        ends_s = time.monotonic() + LONG_S
        while not server._server.server_state.total_requests:
            assert time.monotonic() < ends_s
            time.sleep(0.005)
        while server._server.server_state.connections:
            assert time.monotonic() < ends_s
            time.sleep(0.005)


def _is_closed_at_last(sock: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        while sock.recv(65536):
            pass
    return True


def _is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_headers_are_bounded(serve: Serve) -> None:
    with dial(serve()) as sock:
        with suppress(ConnectionError):
            sock.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 2_000_000)
        # It does not wait for the end of it.
        with suppress(ConnectionError):
            answer = sock.recv(65536)
            assert not answer or answer.startswith(b"HTTP/1.1 400 ")
            while sock.recv(65536):
                pass


def test_headers_of_proxies_are_not_believed(serve: Serve) -> None:
    seen = []

    async def look(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["scheme"], scope["client"][0]))
        await say_hello(scope, receive, send)

    get(serve(look), **{"X-Forwarded-For": "9.9.9.9", "X-Forwarded-Proto": "https"})
    assert seen == [("http", "127.0.0.1")]


def test_a_bug_of_the_application(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError("oh")

    server = serve(fail)
    assert get(server).status == 500
    assert "ZeroDivisionError: oh" in caplog.text
    assert {r.name for r in caplog.records} == {"lance_spark.net.web.request"}


def test_loggers_of_others_are_left_alone(serve: Serve) -> None:
    foreign = logging.getLogger("uvicorn.access")
    before = (foreign.level, foreign.propagate, list(foreign.handlers))
    get(serve())
    assert (foreign.level, foreign.propagate, list(foreign.handlers)) == before


# TLS.


def get_securely(server: WebServer, certs: Certificates, *, who: Any = None) -> bytes:
    """Send a request over TLS."""
    context = certs.client_context(who)
    connection = http.client.HTTPSConnection(
        "localhost", server.address.port, timeout=LONG_S, context=context
    )
    try:
        connection.request("GET", "/")
        return connection.getresponse().read()
    finally:
        connection.close()


def test_tls(serve: Serve, certs: Certificates) -> None:
    server = serve(tls=certs.server_context(ask=False))
    assert get_securely(server, certs) == b"nobody"
    assert get_securely(server, certs, who=certs.client) == b"nobody"
    with pytest.raises((http.client.HTTPException, OSError)):
        get(server)


def test_who_shows_a_certificate_is_known(serve: Serve, certs: Certificates) -> None:
    server = serve(tls=certs.server_context(require=True))
    assert get_securely(server, certs, who=certs.client) == b"alice"
    with pytest.raises(OSError):
        get_securely(server, certs)


def test_handshakes_have_a_deadline(
    serve: Serve, certs: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HANDSHAKE_S", 0.05)
    server = serve(tls=certs.server_context(ask=False))
    with dial(server) as silent:
        assert _is_closed(silent)
