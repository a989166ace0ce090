"""Certificates, threads and pairs of streams for the tests of the net layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme

from lance_spark.net.address import Address
from lance_spark.net.connect import connect
from lance_spark.net.deadline import Deadline
from lance_spark.net.listener import Listener
from lance_spark.net.stream import Stream
from lance_spark.net.tls import (
    ClientTls,
    ServerTls,
    TlsContext,
    handshake,
    make_client_context,
    make_server_context,
)

Spawn = Callable[..., "Future[Any]"]

# Nothing takes this long; a test that waits for it fails.
LONG_S = 20.0


def soon() -> Deadline:
    """Give the deadline of things that have to happen."""
    return Deadline.after(LONG_S)


@dataclass(frozen=True)
class Identity:
    """Files with a certificate, its key, and both together."""

    cert: str
    key: str
    both: str


@dataclass(frozen=True)
class Certificates:
    """Two authorities, and what they have issued."""

    ca: str
    server: Identity
    client: Identity
    foreign_ca: str
    foreign_client: Identity

    def server_context(self, *, require: bool = False, ask: bool = True) -> TlsContext:
        """Make a server that trusts the clients of the first authority."""
        cas = (self.ca,) if ask or require else ()
        server = self.server
        return make_server_context(ServerTls(server.cert, server.key, cas, require))

    def client_context(self, who: Identity | None = None, **more: Any) -> TlsContext:
        """Make a client that trusts the servers of the first authority."""
        settings = {"ca": self.ca, **more}
        if who is not None:
            settings |= {"cert": who.cert, "key": who.key}
        return make_client_context(ClientTls(**settings))


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make the certificates, once."""
    root = tmp_path_factory.mktemp("certificates")
    ours, foreign = trustme.CA(), trustme.CA()

    def write(name: str, blob: trustme.Blob) -> str:
        path = root / name
        path.write_bytes(blob.bytes())
        return str(path)

    def issue(ca: trustme.CA, name: str, *hosts: str, common_name: str) -> Identity:
        leaf = ca.issue_cert(*hosts, common_name=common_name)
        chain = root / f"{name}.pem"
        chain.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        return Identity(
            str(chain),
            write(f"{name}.key", leaf.private_key_pem),
            write(f"{name}.both", leaf.private_key_and_cert_chain_pem),
        )

    return Certificates(
        write("ca.pem", ours.cert_pem),
        issue(ours, "server", "localhost", "127.0.0.1", common_name="localhost"),
        issue(ours, "client", "alice@example.org", common_name="alice"),
        write("foreign-ca.pem", foreign.cert_pem),
        issue(foreign, "foreign", "eve@example.org", common_name="alice"),
    )


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Run functions in threads; what they raise comes out of `result`."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        yield pool.submit


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Listen on a free port."""
    listener = Listener(Address("127.0.0.1", 0))
    yield listener
    listener.close()


@pytest.fixture
def tcp_pair(listener: Listener) -> Iterator[tuple[Stream, Stream]]:
    """Make a TCP connection: the client's end and the server's."""
    client = connect(listener.address, deadline=soon())
    server = listener.accept()
    assert server is not None
    yield client, server
    client.close()
    server.close()


def secure(
    ends: tuple[Stream, Stream], contexts: tuple[TlsContext, TlsContext], spawn: Spawn
) -> tuple[Stream, Stream]:
    """Put TLS on both ends of a connection."""
    server = spawn(handshake, ends[1], contexts[1], soon())
    client = handshake(ends[0], contexts[0], soon(), server_name="localhost")
    return client, server.result(LONG_S)


@pytest.fixture(params=["socket", "tls"])
def kind(request: pytest.FixtureRequest) -> str:
    """Name a kind of stream."""
    return str(request.param)


@pytest.fixture
def pair(
    kind: str, request: pytest.FixtureRequest, certs: Certificates, spawn: Spawn
) -> Iterator[tuple[Stream, Stream]]:
    """Make a connection of each kind: the client's end and the server's."""
    ends = request.getfixturevalue("tcp_pair")
    if kind == "tls":
        contexts = certs.client_context(certs.client), certs.server_context()
        ends = secure(ends, contexts, spawn)
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Open a file of 1 MiB with known content (`FILE_CONTENT`)."""
    path = tmp_path / "file"
    path.write_bytes(FILE_CONTENT)
    with path.open("rb") as opened:
        yield opened.fileno()


FILE_CONTENT = bytes(range(256)) * 4096
