"""What gets in, over real HTTP."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from lance_spark.broker import EmbeddedBroker
from lance_spark.broker.console import guard as module
from lance_spark.broker.console.guard import BODY_BYTES_MAX
from tests.broker.console.visit import Visitor
from tests.broker.kit import PATIENCE_S, StartBroker


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("{address}", 200),
        ("localhost:{port}", 200),
        ("LOCALHOST", 200),
        # Through a tunnel, or on a machine with several addresses.
        ("localhost:9999", 200),
        ("192.168.1.5:{port}", 200),
        ("[::1]:{port}", 200),
        ("evil.example.com:{port}", 403),
        ("evil.example.com", 403),
        ("localhost.evil.example.com", 403),
        ("127.0.0.1.evil.example.com", 403),
        ("localhost@evil.example.com", 403),
        ("evil.example.com@127.0.0.1", 403),
        ("127.0.0.1#evil.example.com", 403),
        ("127.0.0.1:port", 403),
        ("127.0.0.1:65536", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_hosts(guest: Visitor, host: str, status: int) -> None:
    address = guest.host
    named = host.format(address=address, port=address.rpartition(":")[2])
    answer = guest.ask("GET", "/api/session", Host=named)
    assert answer.status == status
    if status == 403:
        assert answer.kind == "ForeignHost"
        assert answer.json["error"]["remedy"]
        # Not even the page itself.
        assert guest.ask("GET", "/", Host=named).status == 403


def test_the_name_that_was_given(start: StartBroker) -> None:
    broker = start(ui="localhost:0")
    assert broker.ui_url == f"http://localhost:{broker.ui_address.rpartition(':')[2]}/"  # type: ignore[union-attr]
    assert Visitor(broker).ask("GET", "/api/session", Host="localhost").status == 200


CHANGES = [
    ("POST", "/api/topics", {"name": "t"}),
    ("PUT", "/api/topics/t/retention", {}),
    ("DELETE", "/api/topics/t", None),
    ("POST", "/api/session", {"token": "x"}),
    ("DELETE", "/api/session", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_foreign_pages_change_nothing(
    guest: Visitor, shared: EmbeddedBroker, method: str, path: str, body: object
) -> None:
    port = guest.host.rpartition(":")[2]
    for headers in (
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "http://evil.example.com"},
        {"Origin": f"https://{guest.host}"},
        {"Origin": f"http://localhost:{port}"},
        {"Origin": f"http://{guest.host}.evil.example.com"},
        {"X_Lance_Console": None},
        {"X_Lance_Console": "0"},
    ):
        answer = guest.ask(method, path, body, **headers)
        assert (answer.status, answer.kind) == (403, "ForeignOrigin"), headers
    assert shared.service.store.topics() == []


def test_headers_of_every_answer(guest: Visitor) -> None:
    for path in ("/", "/api/session", "/api/nothing", "/static/nothing"):
        headers = guest.ask("GET", path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'self'; ")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Server" not in headers
        kept = "no-store" if path.startswith("/api") else "no-cache"
        assert headers["Cache-Control"] == kept or path == "/static/nothing"


def test_bodies_are_bounded(guest: Visitor) -> None:
    padded = b'{"name": "t"}'.ljust(BODY_BYTES_MAX)
    assert guest.ask("POST", "/api/topics", padded).status == 200
    answer = guest.ask("POST", "/api/topics", padded + b" ")
    assert (answer.status, answer.kind) == (413, "BodyTooLarge")
    assert guest.ask("DELETE", "/api/topics/t").status == 200


def exchange(visitor: Visitor, request: bytes) -> bytes:
    """Send bytes, and read until the other side is done."""
    host, _, port = visitor.host.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as sock:
        parts = []
        # Who is done with us may close while we still talk, after its answer.
        with suppress(ConnectionError):
            sock.sendall(request)
        with suppress(ConnectionError):
            while part := sock.recv(65536):
                parts.append(part)
    return b"".join(parts)


def head(visitor: Visitor, *lines: str) -> bytes:
    lines = (
        "POST /api/topics HTTP/1.1",
        f"Host: {visitor.host}",
        f"Origin: {visitor.origin}",
        "X-Lance-Console: 1",
        "Connection: close",
        *lines,
    )
    return "\r\n".join([*lines, "", ""]).encode()


def test_length_is_judged_before_the_body_comes(guest: Visitor) -> None:
    # Nothing of the body is sent: whoever waited for it would wait for ever.
    answer = exchange(guest, head(guest, f"Content-Length: {10**12}"))
    assert answer.startswith(b"HTTP/1.1 413 ")


def test_bodies_without_a_length_are_bounded(guest: Visitor) -> None:
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    request = head(guest, "Transfer-Encoding: chunked") + 3 * chunk
    assert exchange(guest, request).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come(
    guest: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BODY_S", 0.01)
    answer = exchange(guest, head(guest, "Content-Length: 10") + b"{")
    assert answer.startswith(b"HTTP/1.1 400 ") and b"in time" in answer


def test_nonsense_is_refused_in_silence(
    guest: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    assert exchange(guest, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
    request = b"GET /api/session HTTP/1.0\r\nHost: localhost\r\n" + upgrade + b"\r\n"
    assert exchange(guest, request).startswith(b"HTTP/1.1 200 ")
    assert caplog.records == []
