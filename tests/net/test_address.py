from __future__ import annotations

import pickle

import pytest

from lance_spark.errors import OptionError
from lance_spark.net.address import Address, parse_address, parse_addresses
from tests.each import each


@each(
    ("text", "expected"),
    [
        ("localhost:1992", Address("localhost", 1992)),
        ("127.0.0.1:1", Address("127.0.0.1", 1)),
        (
            " lance-0.lance.svc.cluster.local:65535 ",
            Address("lance-0.lance.svc.cluster.local", 65535),
        ),
        ("host_with_underscore:01992", Address("host_with_underscore", 1992)),
        ("bücher.example:1992", Address("bücher.example", 1992)),
        ("host:0", Address("host", 0)),
        ("[::1]:1992", Address("::1", 1992)),
        ("[fe80::1%eth0]:1992", Address("fe80::1%eth0", 1992)),
        ("[::ffff:127.0.0.1]:5", Address("::ffff:127.0.0.1", 5)),
    ],
)
def test_good_address(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert parse_address(text, default_port=7) == expected


@pytest.mark.parametrize(
    ("text", "host"), [("localhost", "localhost"), ("[::1]", "::1")]
)
def test_default_port(text: str, host: str) -> None:
    assert parse_address(text, default_port=1992) == Address(host, 1992)
    with pytest.raises(OptionError, match="port is missing"):
        parse_address(text)


@each(
    ("text", "advice"),
    [
        ("", "host is missing"),
        ("   ", "host is missing"),
        (":1992", "host is missing"),
        ("host:", "number between 0 and 65535"),
        ("host:http", "number between"),
        ("host:-1", "number between"),
        ("host:+1", "number between"),
        ("host:1 2", "number between"),
        ("host:1_0", "number between"),
        ("host:65536", "number between"),
        ("host:" + "9" * 5000, "number between"),
        ("host:\uff11\uff19", "number between"),
        ("::1", r"in brackets, as in \[::1\]:1992"),
        ("::1:1992", "in brackets"),
        ("host:1:2", "in brackets"),
        ("[::1", "is written"),
        ("[::1]1992", "is written"),
        ("[]:1992", "only an IPv6 address"),
        ("[localhost]:1992", "only an IPv6 address"),
        ("[127.0.0.1]:1992", "only an IPv6 address"),
        ("lance://host:1992", "leave out what is before the host"),
        ("https://host", "leave out"),
        ("host/path:1992", "has no '/'"),
        ("user@host:1992", "has no '@'"),
        ("a,b:1992", "has no ','"),
        ("a b:1992", "has no ' '"),
        ("a\nb:1992", "has no"),
        ("a\0b:1992", "has no"),
        ("a]:1992", "has no"),
    ],
)
def test_bad_address(text: str, advice: str) -> None:
    with pytest.raises(OptionError, match=advice) as caught:
        parse_address(text, default_port=1992)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (Address("localhost", 1992), "localhost:1992"),
        (Address("::1", 1992), "[::1]:1992"),
    ],
)
def test_text_can_be_parsed_again(address: Address, text: str) -> None:
    assert str(address) == text
    assert parse_address(text) == address
    assert pickle.loads(pickle.dumps(address)) == address


@pytest.mark.parametrize(("host", "port"), [("", 1), ("h", -1), ("h", 65536)])
def test_impossible_address(host: str, port: int) -> None:
    with pytest.raises(OptionError, match=r"host:port|between 0 and 65535"):
        Address(host, port)


@pytest.mark.parametrize(
    "servers", ["a:1,b:2", " a:1 , b:2 ", ["a:1", "b:2"], ("a:1", " b:2")]
)
def test_several_addresses(servers: str | list[str]) -> None:
    assert parse_addresses(servers) == (Address("a", 1), Address("b", 2))


def test_several_addresses_with_default_port() -> None:
    found = parse_addresses("a,b:2", default_port=1)
    assert found == (Address("a", 1), Address("b", 2))


@pytest.mark.parametrize("servers", ["", " ", ",", [], [""]])
def test_no_address_at_all(servers: str | list[str]) -> None:
    with pytest.raises(OptionError, match="no server address"):
        parse_addresses(servers)


@pytest.mark.parametrize("servers", ["a:1,", ",a:1", "a:1,,b:2", ["a:1", ""]])
def test_an_empty_entry_is_a_mistake(servers: str | list[str]) -> None:
    with pytest.raises(OptionError, match="host is missing"):
        parse_addresses(servers)
