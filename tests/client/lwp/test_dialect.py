"""The first words on a connection."""

from __future__ import annotations

from typing import Any

import pytest

from lance_spark.client.config import Runtime
from lance_spark.client.connection import Connection
from lance_spark.client.dialect import ConnectionEnded
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.client.lwp.dialect import LwpDialect
from lance_spark.errors import (
    AuthenticationFailed,
    AuthenticationRequired,
    BrokerError,
    ConnectionLimit,
    ConnectionLost,
    RemoteProtocolError,
    Timeout,
    TlsRefused,
)
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.net.stream import SocketStream, Stream
from lance_spark.wire.lwp import (
    Authenticate,
    AuthenticateResponse,
    Checksum,
    ClusterStatus,
    GetClusterStatus,
)
from tests.client.scripted import Network, Peer, Script, error_of, soon

TOKEN = "very-secret-token"


def open_connection(
    network: Network,
    script: Script,
    *,
    token: str | None = None,
    deadline: Deadline | None = None,
    checksum: Checksum = Checksum.CRC32C,
) -> Connection:
    network.serve(script)
    config = ClientConfig(auth_token=token)
    return Connection.open(
        config,
        Address("server", 1992),
        LwpDialect(config, checksum),
        deadline=deadline or soon(),
        runtime=Runtime(connect=network.connect),
    )


def test_the_status_is_asked_for(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        peer.answer(ClusterStatus(node_id=7, capabilities=("wait", "groups")))
        peer.wait_for_end()

    connection = open_connection(network, script)
    assert connection.dialect.status.node_id == 7
    assert connection.capabilities == {"wait", "groups"}
    connection.close()


@pytest.mark.parametrize("text", ["Invalid client command", "what?"])
def test_a_server_that_does_not_know_the_question_is_plain(
    network: Network, text: str
) -> None:
    def script(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        peer.refuse_with_text(text)
        peer.wait_for_end()

    connection = open_connection(network, script)
    assert connection.capabilities == frozenset()
    connection.close()


def test_a_token_comes_first(network: Network) -> None:
    def script(peer: Peer) -> None:
        assert peer.request() == Authenticate(TOKEN)
        peer.answer(AuthenticateResponse(True))
        peer.greet("locate")
        peer.wait_for_end()

    connection = open_connection(network, script, token=TOKEN)
    assert connection.capabilities == {"locate"}
    connection.close()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("bad token", "refused the token: bad token; check auth_token"),
        (f"no such token: {TOKEN}", "refused the token: no such token: ***;"),
        ("", "refused the token: the server gave no reason;"),
    ],
)
def test_a_wrong_token(network: Network, said: str, told: str) -> None:
    def script(peer: Peer) -> None:
        peer.request(Authenticate)
        peer.answer(AuthenticateResponse(False, said))
        peer.wait_for_end()

    error = error_of(lambda: open_connection(network, script, token=TOKEN))
    assert type(error) is AuthenticationFailed
    assert f"server:1992 {told}" in str(error)
    assert TOKEN not in str(error)


@pytest.mark.parametrize("text", ["no tokens here", f"what is {TOKEN}?"])
def test_an_error_in_answer_to_a_token(network: Network, text: str) -> None:
    def script(peer: Peer) -> None:
        peer.request(Authenticate)
        peer.refuse(0x41, text)
        peer.wait_for_end()

    error = error_of(lambda: open_connection(network, script, token=TOKEN))
    assert type(error) is AuthenticationFailed
    assert text.replace(TOKEN, "***") in str(error)
    assert TOKEN not in repr(error)


def test_a_missing_token(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        peer.refuse(0x40, "Authentication required")
        peer.wait_for_end()

    with pytest.raises(AuthenticationRequired):
        open_connection(network, script)


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("reads", [True, False])
def test_a_server_that_is_full(
    network: Network, token: str | None, reads: bool
) -> None:
    def script(peer: Peer) -> None:
        # It does not wait for a request, and may not even read it.
        peer.refuse(0x32, "64 connections are the limit")
        if reads:
            peer.frame()

    with pytest.raises(ConnectionLimit, match="64 connections"):
        open_connection(network, script, token=token)


def test_a_server_that_closes_at_once(network: Network) -> None:
    error = error_of(lambda: open_connection(network, lambda peer: None))
    assert type(error) is ConnectionEnded
    assert error.retriable
    assert "before its first answer" in str(error)
    assert "checksum (crc32c)" in str(error)


def test_a_server_that_closes_behind_the_token(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.request(Authenticate)
        peer.answer(AuthenticateResponse(True))

    error = error_of(lambda: open_connection(network, script, token=TOKEN))
    assert type(error) is ConnectionLost


def test_a_tls_refusal_behind_the_handshake_stays_one(network: Network) -> None:
    # With TLS 1.3 a server judges our certificate when we think that all is done.
    class Refusing(SocketStream):
        def recv_into(self, buffer: memoryview, deadline: Deadline) -> int:
            raise TlsRefused("the peer wants a client certificate")

    def connect(*args: Any, **options: Any) -> Stream:
        stream = network.connect(*args, **options)
        stream.__class__ = Refusing
        return stream

    network.serve(Peer.wait_for_end)
    with pytest.raises(TlsRefused, match="wants a client certificate"):
        Connection.open(
            ClientConfig(),
            Address("server", 1992),
            LwpDialect(ClientConfig(), Checksum.CRC32C),
            deadline=soon(),
            runtime=Runtime(connect=connect),
        )


def test_another_protocol(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.send(b"SSH-2.0-OpenSSH_9.6" + bytes(60))
        peer.wait_for_end()

    with pytest.raises(RemoteProtocolError, match="bad magic"):
        open_connection(network, script)


def test_a_server_that_says_nothing(network: Network) -> None:
    with pytest.raises(Timeout):
        open_connection(network, Peer.wait_for_end, deadline=Deadline.after(0.05))


def test_another_error_is_passed_on(network: Network) -> None:
    def script(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        peer.refuse(0x60, "broken")
        peer.wait_for_end()

    with pytest.raises(BrokerError, match="broken"):
        open_connection(network, script)
