"""The settings of a client."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from lance_spark.client import ClientConfig
from lance_spark.errors import OptionError
from lance_spark.net.address import Address
from lance_spark.net.tls import ClientTls
from tests.each import each

SECRET = "-----BEGIN PRIVATE KEY----- very secret"


def test_defaults() -> None:
    config = ClientConfig()
    assert config.addresses == (Address("127.0.0.1", 1992),)
    assert config.tls_settings is None
    assert config.checksum == "crc32c"


def test_addresses_in_order() -> None:
    config = ClientConfig(servers="a:1, b:2,[::1]:3,d")
    assert [str(address) for address in config.addresses] == [
        "a:1",
        "b:2",
        "[::1]:3",
        "d:1992",
    ]


def test_tls_settings() -> None:
    config = ClientConfig(
        tls=True, tls_ca="ca", tls_cert="cert", tls_key="key", tls_server_name="name"
    )
    assert config.tls_settings == ClientTls("ca", "cert", "key")


def test_tls_without_more_settings() -> None:
    assert ClientConfig(tls=True).tls_settings == ClientTls()


def test_it_is_pickled() -> None:
    config = ClientConfig(servers="a:1,b:2", auth_token="secret", retry_timeout_s=1)
    assert pickle.loads(pickle.dumps(config)) == config


def test_secrets_are_not_shown() -> None:
    config = ClientConfig(
        tls=True, tls_cert=SECRET, tls_key=SECRET, auth_token="very secret"
    )
    assert "secret" not in repr(config)
    assert "secret" not in str(config)


def test_it_is_checked_when_changed() -> None:
    with pytest.raises(OptionError, match="checksum"):
        replace(ClientConfig(), checksum="md5")


@each(
    ("options", "text"),
    [
        ({"servers": ""}, "host:port"),
        ({"servers": "a:99999"}, "port"),
        ({"servers": None}, "servers=None: must be a text"),
        ({"servers": ["a:1"]}, "must be a text"),
        ({"checksum": "crc64"}, "crc32c, crc32 or auto"),
        ({"checksum": None}, "checksum=None: must be a text"),
        ({"tls": "yes"}, "tls='yes': must be True or False"),
        ({"tls_ca": "x"}, "tls_ca given without tls; set tls=True"),
        ({"tls_cert": "x", "tls_key": "y"}, "tls_cert, tls_key given without tls"),
        ({"tls": True, "tls_key": "y"}, "tls_key given without tls_cert"),
        ({"tls": True, "tls_cert": ""}, "tls_cert has to be a text"),
        ({"auth_token": ""}, "auth_token has to be a text that is not empty"),
        ({"auth_token": 7}, "auth_token has to be a text"),
        ({"connect_timeout_s": 0}, "connect_timeout_s=0: must be a number of seconds"),
        ({"request_timeout_s": -1.0}, "request_timeout_s=-1.0: must be"),
        ({"retry_timeout_s": float("nan")}, "retry_timeout_s=nan: must be"),
        ({"retry_timeout_s": float("inf")}, "seconds above 0, at most 1000000"),
        (
            {"keepalive_interval_s": "10s"},
            "keepalive_interval_s='10s': must be",
        ),
        ({"backoff_base_s": True}, "backoff_base_s=True: must be"),
        ({"backoff_base_s": 2.0, "backoff_max_s": 1.0}, "more than backoff_max_s"),
        ({"response_bytes_max": 1024}, "a whole number of at least 16842752"),
        (
            {"response_bytes_max": 1e9},
            "response_bytes_max=1000000000.0: must be a whole",
        ),
        ({"response_bytes_max": True}, "must be a whole number"),
    ],
)
def test_bad_values(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        ClientConfig(**options)
    assert text in str(caught.value)


@pytest.mark.parametrize("name", ["auth_token", "tls_key", "tls_cert"])
def test_a_bad_secret_is_not_in_the_error(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        ClientConfig(**{name: b"very secret"})
    assert "secret" not in str(caught.value)
