"""The settings of a broker: what is there without any, and what is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from lance_spark.broker import BrokerConfig
from lance_spark.broker.config import (
    DEFAULT_PORT,
    NAMES,
    check_name,
    parse_retention,
    parse_settings,
    read_settings,
)
from lance_spark.errors import OptionError
from lance_spark.model import Retention
from lance_spark.net.address import Address
from lance_spark.store import Fsync, StoreConfig
from lance_spark.wire.lwp import PAYLOAD_BYTES_MAX
from tests.each import each

NUMBERS = [f.name for f in fields(BrokerConfig) if f.type in ("int", "float")]
OWN_NUMBERS = [n for n in NUMBERS if n not in {f.name for f in fields(StoreConfig)}]
SWITCHES = [f.name for f in fields(BrokerConfig) if f.type == "bool"]
TEXTS = [f.name for f in fields(BrokerConfig) if f.type in ("str", "str | None")]


def test_what_is_there_without_settings() -> None:
    config = BrokerConfig()
    assert config.address_of("lance") == Address("127.0.0.1", 0)
    assert DEFAULT_PORT == 1992
    assert config.fsync is Fsync.BATCH
    assert config.payload_bytes_max == PAYLOAD_BYTES_MAX == 16 * 1024 * 1024 + 65536
    assert (config.keepalive_burst, config.keepalive_rate) == (30, 5.0)
    assert (config.idle_timeout_s, config.dedup_window) == (30.0, 4096)
    assert config.server_tls() is None


def test_paths_become_texts() -> None:
    config = BrokerConfig(data_dir=Path("a/b"), token_file=Path("t"))  # type: ignore[arg-type]
    assert (config.data_dir, config.token_file) == ("a/b", "t")
    with pytest.raises(OptionError, match=r"listen=.*: must be a text"):
        BrokerConfig(listen=Path("x:1"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ui", "address"),
    [
        (None, None),
        (False, None),
        (True, Address("127.0.0.1", 0)),
        ("0.0.0.0:8080", Address("0.0.0.0", 8080)),
        ("[::1]:0", Address("::1", 0)),
    ],
)
def test_where_the_console_is(ui: Any, address: Address | None) -> None:
    assert BrokerConfig(ui=ui).ui_address == address


def test_consoles_that_can_not_be() -> None:
    with pytest.raises(OptionError, match="'localhost' can't be understood"):
        BrokerConfig(ui="localhost")
    with pytest.raises(OptionError, match="ui=8080: must be host:port, true or false"):
        BrokerConfig(ui=8080)  # type: ignore[arg-type]
    for ui in (None, False):
        with pytest.raises(OptionError, match="ui_admin is set: set ui too"):
            BrokerConfig(ui=ui, ui_admin=True)


def test_settings_of_the_store_are_settings_of_the_broker() -> None:
    assert BrokerConfig(fsync="always").fsync is Fsync.ALWAYS  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="segment_bytes"):
        BrokerConfig(segment_bytes=0)


@pytest.mark.parametrize(
    ("dialect", "checksum", "expected"),
    [
        ("lwp", "default", "crc32c"),
        ("plain", "default", "crc32"),
        ("plain", "crc32c", "crc32c"),
        ("lwp", "crc32", "crc32"),
        ("lwp", "auto", "auto"),
        ("plain", "auto", "auto"),
    ],
)
def test_checksum_of_frames(dialect: str, checksum: str, expected: str) -> None:
    config = BrokerConfig(dialect=dialect, checksum=checksum)
    assert config.frame_checksum == expected


@each("name", ["dialect", "checksum", "payload_validation", "error_format"])
@each("value", ["", "LWP", "crc64", None, 1, ["lwp"]])
def test_choices(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"broker setting {name}=.*: must be one of "):
        BrokerConfig(**{name: value})


@each("name", OWN_NUMBERS)
@each("value", [-1, "7", None, True, float("nan"), float("inf")])
def test_numbers(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"{name}=.*number (of at least|from)"):
        BrokerConfig(**{name: value})


def test_only_seconds_and_rates_may_have_a_fraction() -> None:
    config = BrokerConfig(idle_timeout_s=0.5, fetch_rate_limit=2.5, wait_s_max=0)
    assert (config.idle_timeout_s, config.fetch_rate_limit) == (0.5, 2.5)
    with pytest.raises(
        OptionError,
        match=r"connections_max=1\.5: must be a whole number of at least 1$",
    ):
        BrokerConfig(connections_max=1.5)  # type: ignore[arg-type]


@each("name", SWITCHES)
@each("value", [1, "yes", None])
def test_switches(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"{name}=.*: must be true or false"):
        BrokerConfig(**{name: value})


@each("name", TEXTS)
def test_texts(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}=7: must be "):
        BrokerConfig(**{name: 7})


@pytest.mark.parametrize("name", ["listen", "metrics"])
def test_addresses_are_read_at_once(name: str) -> None:
    with pytest.raises(OptionError, match="nowhere"):
        BrokerConfig(**{name: "nowhere"})
    assert BrokerConfig(listen="[::1]:1992").address_of("lance") == Address("::1", 1992)
    assert BrokerConfig(metrics="localhost:0").metrics == "localhost:0"


def test_a_payload_has_to_fit_a_batch() -> None:
    with pytest.raises(
        OptionError, match=r"payload_bytes_max=.* must be at most batch_bytes_max"
    ):
        BrokerConfig(batch_bytes_max=1024 * 1024)


@pytest.mark.parametrize(
    "tokens", ["secret-word", ["good", ""], ["good", 7], 7, None, {"secret-word": 1}]
)
def test_tokens_are_texts_and_never_shown(tokens: Any) -> None:
    with pytest.raises(OptionError, match="tokens: must be a list of texts") as error:
        BrokerConfig(tokens=tokens)
    assert "secret-word" not in str(error.value)


def test_tokens_of_a_file_become_a_tuple() -> None:
    config = BrokerConfig(tokens=["secret-word"])  # type: ignore[arg-type]
    assert config.tokens == ("secret-word",)
    assert "secret-word" not in repr(config)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tls_cert_path": "c"}, "tls_enabled=False: must be true when tls_cert_path"),
        ({"tls_require_client_cert": True}, "true when tls_require_client_cert is set"),
        ({"tls_enabled": True}, "set tls cert_path and key_path too"),
        ({"tls_enabled": True, "tls_cert_path": "c"}, "cert_path and key_path"),
        (
            {
                "tls_enabled": True,
                "tls_cert_path": "c",
                "tls_key_path": "k",
                "tls_require_client_cert": True,
            },
            "set client_ca_path too",
        ),
    ],
)
def test_tls_settings_have_to_go_together(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        BrokerConfig(**settings)


def test_what_the_tls_server_gets() -> None:
    config = BrokerConfig(tls_enabled=True, tls_cert_path="c", tls_key_path="k")
    tls = config.server_tls()
    assert tls is not None
    assert (tls.cert_path, tls.key_path) == ("c", "k")
    assert (tls.client_ca_paths, tls.require_client_cert) == ((), False)
    tls = replace(
        config, tls_client_ca_path="ca", tls_require_client_cert=True
    ).server_tls(("topic-ca",))
    assert tls is not None
    assert tls.client_ca_paths == ("ca", "topic-ca")
    assert tls.require_client_cert


@each(
    ("topics", "text"),
    [
        (7, "topics=7: must be a table"),
        ({"a": 7}, "topic 'a': 7 is not a table"),
        ({"a": {"rule": {}}}, "topic 'a': rule = {}; there are the tables auth"),
        ({"a": {"auth": True}}, "topic 'a': auth = True; there are the tables"),
        ({"a": {"retention": {"max_age": 1}}}, "topic 'a': retention max_age = 1;"),
        ({"a": {"retention": {"max_bytes": 1.5}}}, "max_bytes = 1.5; there are"),
        ({"a": {"retention": {"max_bytes": True}}}, "max_bytes = True; there are"),
        ({"a": {"retention": {"max_age_secs": -1}}}, "neither can be negative"),
        ({"a": {"partitions": 0}}, "topic 'a': partitions=0: must be a whole number"),
        ({"a": {"partitions": True}}, "topic 'a': partitions=True: must be a whole"),
        ({"a": {"partitions": 257}}, r"partitions=257: must be at most .* \(256\)"),
    ],
)
def test_topics_that_make_no_sense(topics: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        BrokerConfig(topics=topics)


def test_retention_of_a_topic() -> None:
    assert parse_retention("a", {}) == Retention()
    table = {"max_age_secs": 60, "max_bytes": 100}
    assert parse_retention("a", table) == Retention(60, 100)
    BrokerConfig(topics={"a": {"retention": table, "auth": {}}, "b": {}})


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
