"""The client's front: settings, capabilities, lifetime, and real sockets."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

import lance_spark.client
from lance_spark.client import ClientConfig, LanceClient
from lance_spark.client.config import Runtime
from lance_spark.errors import (
    ConnectionLimit,
    ConnectionLost,
    LanceError,
    OptionError,
    RemoteProtocolError,
    TlsRefused,
    Unsupported,
)
from lance_spark.net.address import Address
from lance_spark.net.listener import Listener
from lance_spark.net.stream import Stream
from lance_spark.net.tls import (
    ServerTls,
    TlsContext,
    make_server_context,
    server_handshake,
)
from lance_spark.wire.lwp import (
    Capability,
    Checksum,
    ClusterStatus,
    Fetch,
    FetchFlags,
    GetClusterStatus,
    GetTopic,
    TopicInfo,
)
from tests.client.scripted import (
    EVERYTHING,
    PATIENCE_S,
    SERVER,
    Network,
    Peer,
    Script,
    error_of,
    serving,
    soon,
)

# Settings.


def test_settings_by_name() -> None:
    client = LanceClient("a:1,b:2", checksum="auto", auth_token="very secret")
    assert client.config == ClientConfig(
        servers="a:1,b:2", checksum="auto", auth_token="very secret"
    )
    assert repr(client) == "<LanceClient a:1,b:2>"
    client.close()
    assert repr(client) == "<LanceClient a:1,b:2 closed>"


def test_settings_by_config_and_by_name() -> None:
    config = ClientConfig(servers="a:1", request_timeout_s=1.0)
    assert LanceClient(config=config).config == config
    changed = LanceClient("b:2", config=config, retry_timeout_s=3.0).config
    assert (changed.servers, changed.request_timeout_s) == ("b:2", 1.0)
    assert changed.retry_timeout_s == 3.0


def test_an_unknown_setting() -> None:
    error = error_of(lambda: LanceClient("a:1", retry_timeout=3))
    assert type(error) is OptionError
    assert "no such setting: retry_timeout; there are servers, tls" in str(error)


def test_a_bad_setting() -> None:
    with pytest.raises(OptionError, match="checksum"):
        LanceClient("a:1", checksum="md5")


# Lifetime.


def test_context_manager(network: Network) -> None:
    network.serve(serving())
    with network.client() as client:
        client.connect()
        connection = client.connection()
    assert client.is_closed
    assert not connection.is_open


def test_connect_returns_the_client(network: Network) -> None:
    network.serve(serving())
    client = network.client()
    assert client.connect() is client
    assert network.dialed == [SERVER]


def test_a_dedicated_client_has_its_own_connection(network: Network) -> None:
    network.serve(serving(), serving())
    client = network.client().connect()
    with client.dedicated() as other:
        assert other.config == client.config
        assert other.connection() is not client.connection()
    assert not client.is_closed
    client.status()


def test_a_dedicated_client_knows_what_was_learnt() -> None:
    network = Network(Checksum.CRC32)

    def strict(peer: Peer) -> None:
        try:
            peer.serve()
        except LanceError:
            return

    network.serve(strict, strict, strict)
    client = network.client(checksum="auto").connect()
    with client.dedicated() as other:
        assert other.connection().dialect.checksum is Checksum.CRC32
    assert len(network.dialed) == 3
    network.close()


def test_a_client_that_nobody_holds_goes(network: Network) -> None:
    network.serve(serving())
    client = LanceClient(SERVER, runtime=Runtime(connect=network.connect)).connect()
    keepalive, connection = client.link._keepalive, client.connection()
    assert keepalive is not None
    del client
    gc.collect()
    keepalive._thread.join(PATIENCE_S)
    assert not keepalive.is_running
    connection.close()


# The server.


def test_status_is_asked_for_anew(network: Network) -> None:
    terms = iter(range(1, 9))

    def status(request: object) -> ClusterStatus:
        return ClusterStatus(current_term=next(terms))

    network.serve(lambda peer: peer.serve({GetClusterStatus: status}))
    client = network.client()
    assert [client.status().current_term for _ in range(2)] == [2, 3]


def test_capabilities(network: Network) -> None:
    network.serve(serving({}, "locate", "something-new"))
    client = network.client()
    assert client.capabilities == {"locate", "something-new"}
    assert not client.is_plain
    assert client.supports(Capability.LOCATE)
    assert not client.supports(Capability.WAIT)
    client.require(Capability.LOCATE, "this")
    with pytest.raises(Unsupported) as caught:
        client.require(Capability.WAIT, "waiting")
    assert caught.value.server == SERVER
    assert "waiting: the server server:1992 does not offer it" in str(caught.value)


def test_a_plain_server(network: Network) -> None:
    network.serve(serving())
    client = network.client()
    assert client.is_plain
    assert client.capabilities == frozenset()
    assert not any(client.supports(capability) for capability in Capability)


def test_our_server_is_not_plain(network: Network) -> None:
    network.serve(serving({}, *EVERYTHING))
    client = network.client()
    assert all(client.supports(capability) for capability in Capability)


def test_call_takes_any_message(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.greet()
        peer.request(Fetch)
        peer.refuse(0x50, "bad offset")
        peer.serve({GetTopic: TopicInfo(1, "one")})

    network.serve(script)
    client = network.client()
    with pytest.raises(LanceError, match="bad offset"):
        client.call(Fetch(1, 0, 9, FetchFlags.EXTENDED), extended=True)
    assert client.call(GetTopic(1)) == TopicInfo(1, "one")


def test_ping(network: Network) -> None:
    network.serve(serving())
    client = network.client()
    assert [client.ping() >= 0.0 for _ in range(20)] == [True] * 20


def test_exports() -> None:
    exported = lance_spark.client.__all__
    assert list(exported) == sorted(exported)
    assert all(hasattr(lance_spark.client, name) for name in exported)


# Real sockets.


@contextmanager
def listening(
    network: Network, *scripts: Script, tls: TlsContext | None = None
) -> Iterator[str]:
    """Run scripts behind a port, one for each connection; give the address."""
    listener = Listener(Address("127.0.0.1", 0))

    def accept() -> None:
        for script in scripts:
            stream: Stream | None = listener.accept()
            if stream is None:
                return
            network.run(secured(script, tls), stream)

    thread = threading.Thread(target=accept, name="scripted-listener")
    thread.start()
    try:
        yield str(listener.address)
    finally:
        listener.stop()
        thread.join(PATIENCE_S)
        listener.close()


def secured(script: Script, tls: TlsContext | None) -> Script:
    def work(peer: Peer) -> None:
        if tls is not None:
            try:
                peer.stream = server_handshake(peer.stream, tls, soon())
            except ConnectionLost:
                return
        try:
            script(peer)
        finally:
            peer.stream.close()

    return work


TABLE = {GetTopic: lambda request: TopicInfo(request.topic_id, "t")}


def test_over_a_socket(network: Network) -> None:
    with (
        listening(network, serving(TABLE, "locate")) as address,
        LanceClient(address) as client,
    ):
        assert client.call(GetTopic(7)) == TopicInfo(7, "t")
        assert client.ping() >= 0.0
        assert client.capabilities == {"locate"}


def test_a_server_that_comes_back(network: Network) -> None:
    def once(peer: Peer) -> None:
        peer.greet()
        peer.request(GetTopic)

    with (
        listening(network, once, once, serving(TABLE)) as address,
        LanceClient(address, backoff_base_s=0.001) as client,
    ):
        assert client.call(GetTopic(7)) == TopicInfo(7, "t")


def test_nobody_listens() -> None:
    listener = Listener(Address("127.0.0.1", 0))
    address = str(listener.address)
    listener.close()
    with (
        LanceClient(address) as client,
        pytest.raises(ConnectionLost, match=f"could not connect to {address}"),
    ):
        client.connect()


def test_a_full_server_over_a_socket(network: Network) -> None:
    def full(peer: Peer) -> None:
        peer.refuse(0x32, "no more connections")

    with (
        listening(network, full) as address,
        LanceClient(address) as client,
        pytest.raises(ConnectionLimit, match="no more connections"),
    ):
        client.connect()


# TLS.


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_tls(authority: trustme.CA, tmp_path: Path) -> TlsContext:
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    certificate.private_key_pem.write_to_path(str(key))
    cert.write_bytes(b"".join(p.bytes() for p in certificate.cert_chain_pems))
    return make_server_context(ServerTls(str(cert), str(key)))


@pytest.fixture
def secure(network: Network, server_tls: TlsContext) -> Iterator[str]:
    with listening(network, serving(TABLE), tls=server_tls) as address:
        yield address


def test_over_tls(secure: str, authority: trustme.CA) -> None:
    ca = authority.cert_pem.bytes().decode()
    with LanceClient(secure, tls=True, tls_ca=ca) as client:
        assert client.call(GetTopic(7)) == TopicInfo(7, "t")


def test_tls_with_an_unknown_authority(secure: str) -> None:
    ca = trustme.CA().cert_pem.bytes().decode()
    with (
        LanceClient(secure, tls=True, tls_ca=ca) as client,
        pytest.raises(ConnectionLost, match="certificate verify failed"),
    ):
        client.connect()


def test_a_tls_refusal_is_not_retried(
    secure: str, caplog: pytest.LogCaptureFixture
) -> None:
    ca = trustme.CA().cert_pem.bytes().decode()
    with (
        LanceClient(secure, tls=True, tls_ca=ca) as client,
        pytest.raises(TlsRefused, match="certificate verify failed"),
    ):
        client.call(GetTopic(7))
    assert "trying again" not in caplog.text


def test_tls_with_the_wrong_name(secure: str, authority: trustme.CA) -> None:
    ca = authority.cert_pem.bytes().decode()
    with (
        LanceClient(
            secure, tls=True, tls_ca=ca, tls_server_name="other.example"
        ) as client,
        pytest.raises(ConnectionLost, match=r"other\.example"),
    ):
        client.connect()


def test_plain_text_to_a_tls_server(secure: str) -> None:
    with (
        LanceClient(secure) as client,
        pytest.raises((ConnectionLost, RemoteProtocolError)),
    ):
        client.connect()


def test_tls_to_a_plain_text_server(network: Network, authority: trustme.CA) -> None:
    def script(peer: Peer) -> None:
        with pytest.raises(LanceError):
            peer.frame()

    ca = authority.cert_pem.bytes().decode()
    with (
        listening(network, script) as address,
        LanceClient(address, tls=True, tls_ca=ca) as client,
        pytest.raises(ConnectionLost),
    ):
        client.connect()
