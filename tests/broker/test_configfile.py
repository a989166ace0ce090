"""The configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_spark.broker import BrokerConfig
from lance_spark.broker.configfile import (
    NAMES,
    check_name,
    parse_settings,
    read_settings,
)
from lance_spark.errors import OptionError

WHOLE = """
listen = "127.0.0.1:0"
data_dir = "/var/lib/lance"
fsync = "always"
idle_timeout_s = 5
tokens = ["one", "two"]

[tls]
enabled = true
cert_path = "/etc/lance/server.crt"
key_path = "/etc/lance/server.key"
client_ca_path = "/etc/lance/ca.crt"
require_client_cert = true

[topics.events.auth]
mtls_enabled = true
allowed_cns = ["spark"]

[topics.events.retention]
max_bytes = 1000
"""


def write(directory: Path, text: str | bytes) -> Path:
    path = directory / "broker.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    config = BrokerConfig(**read_settings(write(tmp_path, WHOLE)))
    assert config.data_dir == "/var/lib/lance"
    assert config.fsync.value == "always"
    assert config.tokens == ("one", "two")
    assert config.tls_enabled and config.tls_require_client_cert
    assert config.tls_cert_path == "/etc/lance/server.crt"
    assert config.topics["events"]["retention"] == {"max_bytes": 1000}
    assert config.topics["events"]["auth"]["allowed_cns"] == ["spark"]


def test_every_setting_is_a_key() -> None:
    assert set(BrokerConfig.__dataclass_fields__) == set(NAMES)
    for name in NAMES:
        check_name(name, where="here")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.toml: could not be read: No such"):
        read_settings(tmp_path / "none.toml")


@pytest.mark.parametrize("text", ["listen =", b'listen = "\xff"'])
def test_a_file_that_is_not_toml(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(OptionError, match=r"broker\.toml: is not TOML: "):
        read_settings(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lisen = 1", "there is no setting lisen; did you mean listen?"),
        (
            "[tls]\ncertpath = 1",
            "no setting [tls] certpath; did you mean [tls] cert_path?",
        ),
        ("qqqq = 1", "there is no setting qqqq; see docs/broker.md"),
    ],
)
def test_a_key_that_there_is_not(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(OptionError) as error:
        read_settings(write(tmp_path, text))
    assert expected in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_tls_has_to_be_a_table() -> None:
    with pytest.raises(
        OptionError, match=r"here: tls = True: must be a table, \[tls\]"
    ):
        parse_settings({"tls": True}, where="here")
