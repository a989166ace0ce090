"""The options of a server, and the client that they make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli.connect import OPTIONS, connected, make_config
from lance_spark.client import ClientConfig
from lance_spark.errors import ConnectionLost, OptionError
from tests.cli.conftest import Run

TOKEN = "a-secret-that-nobody-may-see"
GIVEN: dict[str, Any] = {
    **dict.fromkeys(OPTIONS),
    "servers": "a:1",
    "checksum": "auto",
    "tls": False,
    "timeout_s": 30.0,
}


def test_config() -> None:
    config = make_config(GIVEN)
    assert (config.servers, config.checksum, config.tls) == ("a:1", "auto", False)
    assert config.retry_timeout_s == 30
    assert config.connect_timeout_s == ClientConfig().connect_timeout_s


def test_short_timeout_bounds_everything() -> None:
    config = make_config({**GIVEN, "timeout_s": 0.5})
    assert config.retry_timeout_s == 0.5
    assert config.request_timeout_s == config.connect_timeout_s == 0.5
    with pytest.raises(OptionError, match="not a duration"):
        make_config({**GIVEN, "timeout_s": 0})


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_server_name"])
def test_tls_is_implied(name: str) -> None:
    assert make_config({**GIVEN, name: "x"}).tls


def test_options_are_those_of_the_client() -> None:
    fields = set(ClientConfig.__dataclass_fields__)
    assert set(OPTIONS) - {"timeout_s"} <= fields


@pytest.mark.parametrize(
    "arguments",
    [
        ["--servers", "http://x"],
        ["--servers", ""],
        ["--checksum", "md5"],
        ["--timeout", "soon"],
        ["--timeout", "0"],
        ["--timeout", "99999999d"],
    ],
)
def test_wrong_usage(run: Run, arguments: list[str]) -> None:
    done = run("topics", "list", *arguments)
    assert (done.code, done.out) == (2, "")
    assert f"Invalid value for '{arguments[0]}'" in done.err


def test_nobody_there_is_said_at_once(run: Run) -> None:
    done = run("topics", "list", "-s", "127.0.0.1:1", "--timeout", "1h")
    assert (done.code, done.out) == (1, "")
    assert "could not connect to 127.0.0.1:1" in done.err and done.err.count("\n") == 1


def test_client_is_closed(server: EmbeddedBroker) -> None:
    with connected(ClientConfig(servers=server.address)) as client:
        assert client.ping() >= 0
    assert client.is_closed
    with pytest.raises(ConnectionLost), connected(ClientConfig(servers="127.0.0.1:1")):
        pass


@pytest.fixture(scope="module")
def guarded(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[EmbeddedBroker, Path]]:
    """A broker that wants certificates and a token, and the files for it."""
    path = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(path / "ca.pem"))
    for name in ("localhost", "client"):
        leaf = authority.issue_cert(name, common_name=name)
        leaf.cert_chain_pems[0].write_to_path(str(path / f"{name}.pem"))
        leaf.private_key_pem.write_to_path(str(path / f"{name}.key"))
    with EmbeddedBroker(
        fsync="none",
        tls_enabled=True,
        tls_cert_path=str(path / "localhost.pem"),
        tls_key_path=str(path / "localhost.key"),
        tls_client_ca_path=str(path / "ca.pem"),
        tls_require_client_cert=True,
        tokens=(TOKEN,),
    ) as broker:
        yield broker, path


def _tls(path: Path) -> list[object]:
    return [
        *("--tls-ca", path / "ca.pem", "--tls-server-name", "localhost"),
        *("--tls-cert", path / "client.pem", "--tls-key", path / "client.key"),
    ]


def test_tls_and_token(
    run: Run, guarded: tuple[EmbeddedBroker, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, path = guarded
    options = ["-s", broker.address, *_tls(path)]
    assert run("topics", "create", "t", *options, "--token", TOKEN).code == 0
    # From the environment, where others do not see it.
    monkeypatch.setenv("LANCE_TOKEN", TOKEN)
    done = run("topics", "list", "--json", *options)
    assert done.code == 0 and '"name": "t"' in done.out


@pytest.mark.parametrize("token", [[], ["--token", "wrong-" + TOKEN]])
def test_token_is_never_shown(
    run: Run, guarded: tuple[EmbeddedBroker, Path], token: list[str]
) -> None:
    broker, path = guarded
    done = run("topics", "list", "-s", broker.address, *_tls(path), *token)
    assert (done.code, done.out) == (1, "")
    assert "uthentication" in done.err and done.err.count("\n") == 1
    assert TOKEN not in done.err


def test_token_is_not_in_the_help(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCE_TOKEN", TOKEN)
    done = run("topics", "list", "--help")
    assert "LANCE_TOKEN" in done.out and TOKEN not in done.out


def test_unknown_authority(run: Run, guarded: tuple[EmbeddedBroker, Path]) -> None:
    broker, _ = guarded
    done = run("topics", "list", "-s", broker.address, "--tls")
    assert (done.code, done.out) == (1, "")
    assert "certificate" in done.err and done.err.count("\n") == 1
