"""Topics, separators and click types."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import trustme

from lance_spark.broker import EmbeddedBroker
from lance_spark.cli.options import (
    _NAMES,
    ADDRESS,
    ADDRESSES,
    SIZE,
    check_is_store,
    connected,
    make_config,
    parse_separator,
    parse_topic,
    shown_log,
)
from lance_spark.client import ClientConfig
from lance_spark.client.driver import find_protocol, protocols
from lance_spark.errors import ConnectionLost, OptionError, StoreError
from tests.cli.conftest import Run


@pytest.mark.parametrize(("text", "fits"), [("1", 1), ("2k", 2048)])
def test_both_ends_are_within(text: str, fits: int) -> None:
    assert SIZE.within("1", "2k").convert(text, None, None) == fits


@pytest.mark.parametrize("text", ["0", "2049", "1g"])
def test_not_within(text: str) -> None:
    with pytest.raises(click.BadParameter, match="out of range: give 1 to 2k"):
        SIZE.within("1", "2k").convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "topic"),
    [("events", "events"), ("7", "7"), ("id:7", 7), ("id:0", 0), ("id:x", "id:x")],
)
def test_topic(text: str, topic: int | str) -> None:
    assert parse_topic(text) == topic


@pytest.mark.parametrize("text", ["", "id:2147483648"])
def test_no_topic(text: str) -> None:
    with pytest.raises(OptionError):
        parse_topic(text)


def test_separator() -> None:
    assert parse_separator(":") == b":"
    assert parse_separator("\\t") == b"\t"
    assert parse_separator("a\\0é") == b"a\0\xc3\xa9"
    # Bytes of the command line that are no text come back as they were.
    assert parse_separator("\udcff") == b"\xff"
    with pytest.raises(OptionError, match="can't be empty"):
        parse_separator("")


def test_click_type() -> None:
    assert SIZE.convert("1k", None, None) == 1024
    assert SIZE.convert(5, None, None) == 5
    with pytest.raises(click.BadParameter, match="is not a size"):
        SIZE.convert("much", None, None)


@pytest.mark.parametrize(
    ("convert", "good", "bad"),
    [
        (ADDRESS.convert, "127.0.0.1:0", "127.0.0.1"),
        (ADDRESSES.convert, "a,b:1,[::1]:2", "a,,b"),
    ],
)
def test_addresses_stay_texts(convert: Callable[..., Any], good: str, bad: str) -> None:
    assert convert(good, None, None) == good
    with pytest.raises(click.BadParameter, match="host"):
        convert(bad, None, None)


TOKEN = "a-secret-that-nobody-may-see"
GIVEN: dict[str, Any] = {
    **dict.fromkeys(_NAMES),
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
    with pytest.raises(OptionError, match="a number of seconds above 0"):
        make_config({**GIVEN, "timeout_s": 0})


@pytest.mark.parametrize("name", ["tls_ca", "tls_cert", "tls_server_name"])
def test_tls_is_implied(name: str) -> None:
    assert make_config({**GIVEN, name: "x"}).tls


def test_options_are_those_of_the_client() -> None:
    fields = {
        name
        for protocol in protocols()
        for name in find_protocol(protocol).Config.__dataclass_fields__
    }
    assert set(_NAMES) - {"timeout_s"} <= fields


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


logger = logging.getLogger("lance_spark.store.test")


def test_warnings_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_log():
        logger.info("of no interest")
        logger.warning("a disk\n is %s", "full")
        try:
            raise ValueError("a bug")
        except ValueError:
            logger.exception("session failed")
    assert capsys.readouterr() == (
        "",
        "lance-spark: warning: a disk is full\n"
        "lance-spark: error: session failed: ValueError: a bug\n",
    )


def test_verbose_tells_more(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_log(verbose=True):
        logger.info("of some interest")
        try:
            raise ValueError("a bug")
        except ValueError:
            logger.exception("session failed")
    err = capsys.readouterr().err
    assert "INFO lance_spark.store.test: of some interest\n" in err
    assert "Traceback" in err


def test_nothing_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger("lance_spark")
    before = root.level, list(root.handlers)
    with shown_log(verbose=True):
        assert root.level == logging.INFO
    assert (root.level, root.handlers) == before


def test_closed_stderr_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None: ...

    with shown_log():
        monkeypatch.setattr("sys.stderr", Gone())
        logger.warning("nobody hears this")


def test_store(store_path: Path) -> None:
    check_is_store(store_path)


def test_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, text in (
        (tmp_path / "none", "no such directory"),
        (tmp_path / "file", "not a directory"),
        (tmp_path, "there is no store here"),
    ):
        with pytest.raises(StoreError, match=text):
            check_is_store(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
