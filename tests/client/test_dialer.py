"""Which server is tried, with which checksum, and what is told when none answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lance_spark.client.config import Runtime
from lance_spark.client.connection import Attempt
from lance_spark.client.link import Dialer
from lance_spark.client.lwp.config import ClientConfig
from lance_spark.client.lwp.dialect import LwpDialects
from lance_spark.errors import (
    AuthenticationRequired,
    ConnectionLimit,
    ConnectionLost,
    OptionError,
    RemoteProtocolError,
    Timeout,
)
from lance_spark.net.address import Address
from lance_spark.net.deadline import Deadline
from lance_spark.wire.lwp import Checksum, ClusterStatus, GetClusterStatus
from tests.client.scripted import Network, Peer, Script, error_of, serving, soon


def make_dialer(
    network: Network, servers: str = "a:1,b:2,c:3", **options: Any
) -> Dialer:
    config = ClientConfig(servers=servers, **options)
    runtime = Runtime(connect=network.connect)
    return Dialer(config, runtime, LwpDialects(config))


def refusing(code: int, text: str = "no") -> Script:
    def script(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        peer.refuse(code, text)
        peer.wait_for_end()

    return script


def garbling(peer: Peer) -> None:
    peer.send(b"\x15" * 100)
    peer.wait_for_end()


def order(dialer: Dialer) -> str:
    return "".join(address.host for address in dialer.plan())


def test_servers_are_tried_in_order(network: Network) -> None:
    network.at("c:3", serving())
    connection = make_dialer(network).dial(soon())
    assert network.dialed == ["a:1", "b:2", "c:3"]
    assert str(connection.address) == "c:3"
    connection.close()


def test_the_first_that_answers_is_taken(network: Network) -> None:
    network.at("a:1", serving())
    make_dialer(network).dial(soon()).close()
    assert network.dialed == ["a:1"]


def test_none_answers(network: Network) -> None:
    error = error_of(lambda: make_dialer(network, "a:1,b:2").dial(soon()))
    assert type(error) is ConnectionLost
    assert str(error) == (
        "no server can be reached: a:1: could not connect to a:1: refused; "
        "b:2: could not connect to b:2: refused"
    )


def test_the_only_one_does_not_answer(network: Network) -> None:
    error = error_of(lambda: make_dialer(network, "a:1").dial(soon()))
    assert str(error) == "could not connect to a:1: refused"


def test_one_that_refuses_is_passed_over(network: Network) -> None:
    network.at("a:1", refusing(0x32))
    network.at("b:2", garbling)
    network.at("c:3", serving())
    make_dialer(network).dial(soon()).close()
    assert len(network.dialed) == 3


def test_all_refuse(network: Network) -> None:
    network.at("a:1", garbling)
    network.at("b:2", refusing(0x32, "full"))
    with pytest.raises(ConnectionLimit, match="full"):
        make_dialer(network, "a:1,b:2").dial(soon())


def test_a_full_server_is_what_may_pass(network: Network) -> None:
    network.at("a:1", refusing(0x32, "full"))
    network.at("b:2", garbling)
    with pytest.raises(ConnectionLimit, match="full"):
        make_dialer(network, "a:1,b:2").dial(soon())


def test_one_that_may_come_back_makes_it_worth_a_retry(network: Network) -> None:
    network.at("b:2", garbling)
    error = error_of(lambda: make_dialer(network, "a:1,b:2").dial(soon()))
    assert error.retriable
    assert "refused" in str(error)
    assert "bad magic" in str(error)


def test_wrong_settings_are_wrong_everywhere(network: Network) -> None:
    network.at("a:1", refusing(0x40))
    with pytest.raises(AuthenticationRequired):
        make_dialer(network).dial(soon())
    assert network.dialed == ["a:1"]


def test_a_bad_certificate_is_no_matter_of_servers(network: Network) -> None:
    dialer = make_dialer(network, tls=True, tls_ca="/nowhere/ca.pem")
    with pytest.raises(OptionError, match=r"ca\.pem"):
        dialer.dial(soon())
    assert network.dialed == []


def test_no_more_servers_after_the_deadline(network: Network) -> None:
    network.at("a:1", Peer.wait_for_end)
    with pytest.raises(Timeout):
        make_dialer(network).dial(Deadline.after(0.05))
    assert network.dialed == ["a:1"]


def test_a_server_that_hangs_leaves_time_for_the_next(network: Network) -> None:
    network.at("a:1", Peer.wait_for_end)
    network.at("b:2", serving())
    dialer = make_dialer(network, "a:1,b:2", connect_timeout_s=0.2)
    dialer.dial(soon()).close()
    assert network.dialed == ["a:1", "b:2"]


# Leaders.


def test_the_leader_is_first() -> None:
    dialer = make_dialer(Network())
    assert order(dialer) == "abc"
    dialer.prefer(Address("b", 2))
    assert order(dialer) == "bac"
    dialer.prefer(Address("x", 9))
    assert order(dialer) == "xabc"


def test_a_leader_that_is_gone_is_forgotten(network: Network) -> None:
    network.at("a:1", serving())
    dialer = make_dialer(network)
    dialer.prefer(Address("x", 9))
    dialer.dial(soon()).close()
    assert network.dialed == ["x:9", "a:1"]
    assert order(dialer) == "abc"


def test_a_server_that_knows_no_leader_comes_last(network: Network) -> None:
    dialer = make_dialer(network)
    dialer.avoid(Address("a", 1))
    assert order(dialer) == "bca"
    dialer.avoid(Address("c", 3))
    assert order(dialer) == "abc"
    dialer.prefer(Address("b", 2))
    dialer.avoid(Address("b", 2))
    assert order(dialer) == "cab"
    dialer.avoid(Address("x", 9))
    assert order(dialer) == "cab"
    network.at("c:3", serving())
    dialer.dial(soon()).close()
    assert order(dialer) == "abc"


# Checksums.


@pytest.fixture
def field() -> Iterator[Network]:
    """A network whose servers compute CRC-32 and close on anything else."""
    network = Network(Checksum.CRC32)
    yield network
    network.close()


def strict(peer: Peer) -> None:
    """Serve, but close without a word on a wrong checksum (LWP §11.3)."""
    try:
        peer.serve()
    except RemoteProtocolError:
        return


def test_auto_finds_crc32(field: Network) -> None:
    field.at("a:1", strict, strict, strict)
    dialer = make_dialer(field, "a:1", checksum="auto")
    connection = dialer.dial(soon())
    assert connection.dialect.checksum is Checksum.CRC32
    assert len(field.dialed) == 2
    connection.close()
    # What worked is kept.
    dialer.dial(soon()).close()
    assert len(field.dialed) == 3


def test_auto_prefers_crc32c(network: Network) -> None:
    network.at("a:1", strict, strict)
    dialer = make_dialer(network, "a:1", checksum="auto")
    connection = dialer.dial(soon())
    assert connection.dialect.checksum is Checksum.CRC32C
    connection.close()
    dialer.dial(soon()).close()
    assert len(network.dialed) == 2


def test_auto_with_a_server_that_answers_in_the_other_kind(network: Network) -> None:
    def mixed(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        peer.parser._checksum = Checksum.CRC32
        peer.answer(ClusterStatus())
        peer.wait_for_end()

    def honest(peer: Peer) -> None:
        peer.parser._checksum = Checksum.CRC32
        peer.serve()

    network.at("a:1", mixed, honest)
    dialer = make_dialer(network, "a:1", checksum="auto")
    connection = dialer.dial(soon())
    assert connection.dialect.checksum is Checksum.CRC32
    connection.close()


def test_auto_does_not_try_twice_where_nobody_answers(network: Network) -> None:
    with pytest.raises(ConnectionLost):
        make_dialer(network, "a:1", checksum="auto").dial(soon())
    assert network.dialed == ["a:1"]


def test_auto_learns_each_server(field: Network) -> None:
    field.at("a:1", strict, strict)
    field.at("b:2", strict, strict)
    dialer = make_dialer(field, "a:1,b:2", checksum="auto")
    dialer.dial(soon()).close()
    dialer.prefer(Address("b", 2))
    dialer.dial(soon()).close()
    assert field.dialed == ["a:1", "a:1", "b:2", "b:2"]


def test_a_fixed_checksum_is_not_changed(field: Network) -> None:
    field.at("a:1", strict, strict)
    with pytest.raises(ConnectionLost, match=r"checksum \(crc32c\)"):
        make_dialer(field, "a:1").dial(soon())
    assert len(field.dialed) == 1
    make_dialer(field, "a:1", checksum="crc32").dial(soon()).close()


def test_auto_with_a_server_that_was_replaced_by_one_of_the_other_kind(
    network: Network,
) -> None:
    def strict_crc32(peer: Peer) -> None:
        peer.parser._checksum = Checksum.CRC32
        strict(peer)

    network.at("a:1", strict, strict_crc32, strict_crc32, strict_crc32, strict, strict)
    dialer = make_dialer(network, "a:1", checksum="auto")
    found = []
    for _ in range(4):
        connection = dialer.dial(soon())
        found.append((connection.dialect.checksum.value, len(network.dialed)))
        connection.close()
    assert found == [("crc32c", 1), ("crc32", 3), ("crc32", 4), ("crc32c", 6)]


# Giving up.


def test_no_more_is_tried_once_nobody_wants_a_connection(network: Network) -> None:
    attempt = Attempt()

    def script(peer: Peer) -> None:
        peer.request(GetClusterStatus)
        attempt.cancel()
        peer.wait_for_end()

    network.at("a:1", script)
    dialer = make_dialer(network, checksum="auto", connect_timeout_s=60.0)
    with pytest.raises(ConnectionLost):
        dialer.dial(soon(), attempt)
    assert network.dialed == ["a:1"]
