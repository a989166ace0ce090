"""What commands share: types of options, the options of a client, log, directories."""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lance_spark.client import ClientConfig, LanceClient
from lance_spark.client.config import DURATION_S_MAX, ConnectionConfig
from lance_spark.client.driver import find_protocol, open_driver, protocols
from lance_spark.client.log import LogClient
from lance_spark.errors import OptionError, StoreError
from lance_spark.net.address import parse_address, parse_addresses
from lance_spark.quantity import (
    format_size,
    parse_duration,
    parse_record_type,
    parse_size,
    within,
)
from lance_spark.wire.lwp import PAYLOAD_BYTES_MAX

_TOPIC_ID = re.compile(r"id:(\d{1,10})", re.ASCII)
_TOPIC_ID_MAX = 2**31 - 1


def parse_topic(text: str) -> int | str:
    """Read a topic: its name, or `id:` and its number.

    Raises:
        OptionError: it is empty, or the number is none of a topic.
    """
    if not text:
        raise OptionError("a topic has a name; give it, or its number as in id:7")
    found = _TOPIC_ID.fullmatch(text)
    if found is None:
        return text
    if int(found[1]) > _TOPIC_ID_MAX:
        raise OptionError(f"{text!r}: topic ids end at {_TOPIC_ID_MAX}")
    return int(found[1])


def parse_age(text: str) -> int:
    """Read a duration of whole seconds.

    Raises:
        OptionError: it is none, or has a fraction.
    """
    seconds = parse_duration(text)
    if seconds != int(seconds):
        raise OptionError(f"{text!r} is not a whole number of seconds")
    return int(seconds)


def split_servers(text: str) -> tuple[str | None, str]:
    """Read addresses, before which a protocol may stand: `tank://host:port,...`.

    A port that is missing is chosen by the protocol.

    Raises:
        OptionError: there is no such protocol, or one of them is no address.
    """
    protocol, mark, servers = text.partition("://")
    if not mark:
        protocol, servers = "", text
    else:
        find_protocol(protocol)
    parse_addresses(servers, default_port=1)
    return protocol or None, servers


def parse_separator(text: str) -> bytes:
    r"""Read what stands between a key and a value; `\t` and `\0` are understood.

    Raises:
        OptionError: it is empty.
    """
    if not text:
        raise OptionError("a separator can't be empty")
    return (
        text.replace("\\t", "\t").replace("\\0", "\0").encode(errors="surrogateescape")
    )


if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # Generic since click 8.5 only.


class OptionType(_Type):
    """A click type made of a function that raises OptionError.

    Args:
        name: what the help calls a value.
        parse: reads it.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """Read a value, unless it is a default that needs no reading."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)

    def within(self, least: str, most: str) -> OptionType:
        """Make a type of which both ends of a range are given as people type them."""
        return OptionType(self.name, within(self._parse, least, most))


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Make a parser that keeps the text and only looks at it."""

    def parse(text: str) -> str:
        check(text)
        return text

    return parse


SIZE = OptionType("size", parse_size)
BATCH_SIZE = SIZE.within("1", format_size(PAYLOAD_BYTES_MAX))
DURATION = OptionType("duration", parse_duration)
AGE = OptionType("duration", parse_age)
TOPIC = OptionType("topic", parse_topic)
RECORD_TYPE = OptionType("type", parse_record_type)
SEPARATOR = OptionType("text", parse_separator)
FILE = OptionType("file", str)
NAME = OptionType("name", str)
NUMBER = click.IntRange(min=0)
PATH = click.Path(path_type=Path)
CHECKSUMS = ["crc32c", "crc32", "auto"]
ADDRESS = OptionType("host:port", _checked(parse_address))
ADDRESSES = OptionType("host:port,...", _checked(lambda text: split_servers(text)))


Command = TypeVar("Command", bound=Callable[..., Any])


def option(
    names: str, kind: Any, text: str, **more: Any
) -> Callable[[Command], Command]:
    """Make an option: a row in the table above its command.

    Args:
        names: its flags, the first one with its default, as in `--limit=50 -l`; and the
            name of the argument where no flag says it.
        kind: the type of its values, or a list of them; `bool` has no value.
        text: its help.
        more: what else `click.option` takes.
    """
    if kind is bool:
        more["is_flag"] = True
    else:
        more["type"] = click.Choice(kind) if isinstance(kind, list) else kind
    first, *others = names.split()
    flag, is_default, default = first.partition("=")
    if is_default:
        more["default"] = default
    return click.option(flag, *others, help=text, **more)


batch_option = option("--batch-bytes=1m", BATCH_SIZE, "Size of a batch.")
compression_option = option(
    *("--compression=none", ["none", "gzip", "lz4", "snappy", "zstd"]),
    "Compression of batches on the wire: lz4 by LWP, snappy by TANK, any by Fluvio.",
)

_TIMEOUT = DURATION.within("1ms", f"{DURATION_S_MAX:.0f}s")
_TLS = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")
_DEFAULTS = ClientConfig()
_SERVER_OPTIONS = (
    option(
        *("--servers=127.0.0.1 -s", ADDRESSES),
        "Addresses, tried in order, as in a:1,b:1 or tank://a:1; the protocol knows "
        "the port.",
    ),
    option(
        *("--protocol", protocols()),
        "What the servers speak, if --servers does not say it.  [default: lance]",
    ),
    option(
        *(f"--checksum={_DEFAULTS.checksum}", CHECKSUMS),
        "Checksum of frames; other LANCE servers use crc32.",
    ),
    option(
        "--tenant", click.IntRange(min=0), "Kimberlite: whose streams.  [default: 1]"
    ),
    option("--wire", NAME, "Kimberlite: the form of messages.  [default: v5]"),
    option("--stream-id", click.IntRange(min=0), "Kimberlite: the stream, by its id."),
    option(
        "--isolation", NAME, "Fluvio: read_committed is for what all replicas have."
    ),
    option("--tls", bool, "Encrypt; implied by the other --tls options."),
    option("--tls-ca", FILE, "PEM file of the CA that signs the server."),
    option("--tls-cert", FILE, "PEM file with the client's certificate."),
    option("--tls-key", FILE, "PEM file with its key."),
    option("--tls-server-name", NAME, "Name in the certificate, if not the host."),
    option(
        *("--token auth_token", str),
        "Token of this client; safer in the environment, where it is not listed.",
        envvar="LANCE_TOKEN",
        show_envvar=True,
    ),
    option(
        *("--timeout=30s timeout_s", _TIMEOUT),
        "How long to wait for a server that does not answer.",
    ),
)
# Settings that only some protocols have a use for.
_SPECIAL = {
    "checksum": "--checksum",
    "auth_token": "--token",
    "tenant": "--tenant",
    "wire": "--wire",
    "stream_id": "--stream-id",
    "isolation": "--isolation",
}
_TOKENS = ("lance", "kimberlite")
_NAMES = ("servers", "protocol", "tls", *_TLS, "timeout_s", *_SPECIAL)


def server_options(command: Command) -> Command:
    """Give a command the options of a server, as one argument `config`.

    The command is called with the configuration of a protocol. `connected` takes that
    of LWP, `connected_log` takes any.
    """

    @functools.wraps(command)
    def with_config(**values: Any) -> Any:
        given = {name: values.pop(name) for name in _NAMES}
        return command(config=make_config(given), **values)

    decorated: Any = with_config
    for decorate in reversed(_SERVER_OPTIONS):
        decorated = decorate(decorated)
    result: Command = decorated
    return result


def is_server_given() -> bool:
    """Tell whether the command that runs was called with --servers."""
    source = click.get_current_context().get_parameter_source("servers")
    return source is not click.core.ParameterSource.DEFAULT


def make_config(given: Mapping[str, Any]) -> ConnectionConfig:
    """Turn the values of these options into the settings of a client.

    Raises:
        OptionError: they can't be used together.
    """
    settings = dict(given)
    timeout_s, asked = settings.pop("timeout_s"), settings.pop("protocol")
    named, settings["servers"] = split_servers(given["servers"])
    if named and asked and named != asked:
        raise OptionError(f"--protocol {asked} is not that of --servers {named}://")
    protocol = named or asked or ClientConfig.protocol
    kind = find_protocol(protocol).Config
    known = {field.name for field in fields(kind)}
    if protocol not in _TOKENS:
        known.remove("auth_token")
    for name, flag in _SPECIAL.items():
        if name not in known and _is_typed(name):
            raise OptionError(f"{protocol} has no place for {flag}: leave it out")
        if name not in known or settings.get(name) is None:
            settings.pop(name, None)
    settings["tls"] = given["tls"] or any(given[name] is not None for name in _TLS)
    return kind(
        **settings,
        connect_timeout_s=min(_DEFAULTS.connect_timeout_s, timeout_s),
        request_timeout_s=min(_DEFAULTS.request_timeout_s, timeout_s),
        retry_timeout_s=timeout_s,
    )


def _is_typed(name: str) -> bool:
    """Tell whether an option stands in the command, and not in the environment."""
    context = click.get_current_context(silent=True)
    typed = click.core.ParameterSource.COMMANDLINE
    return context is not None and context.get_parameter_source(name) is typed


@contextmanager
def connected(config: ConnectionConfig) -> Iterator[LanceClient]:
    """Connect by LWP, and show what the client warns of until it is closed.

    A server that can't be reached at the start is an error at once; one that goes
    later is waited for.

    Raises:
        UsageError: another protocol was asked for, which can't do what the command is
            for.
    """
    if not isinstance(config, ClientConfig):
        name = click.get_current_context().command_path
        raise click.UsageError(
            f"{config.protocol} has no request for this: `{name}` needs LWP, and a "
            "server that speaks it"
        )
    with shown_log(), LanceClient(config=config) as client:
        yield client.connect()


@contextmanager
def connected_log(config: ConnectionConfig) -> Iterator[LogClient]:
    """Connect by any protocol, as `connected` does by LWP."""
    with shown_log(), LogClient(open_driver(config, once=True)) as client:
        yield client


def take_name(topic: int | str, config: ConnectionConfig) -> str:
    """Return a topic's name where the protocol knows topics by name alone."""
    if isinstance(topic, int):
        raise click.UsageError(f"{config.protocol} has no topic ids: give the name")
    return topic


_ROOT = "lance_spark"


@contextmanager
def shown_log(*, verbose: bool = False) -> Iterator[None]:
    """Show warnings and worse; with `verbose` all that is of interest, and when."""
    logger = logging.getLogger(_ROOT)
    level = logger.level
    handler = _Handler()
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        if verbose
        else _OneLine("lance-spark: %(levelname)s: %(message)s")
    )
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Handler(logging.Handler):
    """Writes to what standard error is at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        # A standard error that is closed is no reason to fail.
        with suppress(OSError, ValueError):
            print(self.format(record), file=sys.stderr, flush=True)


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        text = record.getMessage()
        if record.exc_info and (error := record.exc_info[1]) is not None:
            # A traceback is for those who ask for it.
            text = f"{text}: {type(error).__name__}: {error}"
        return f"lance-spark: {level}: {' '.join(text.split())}"


# Data directories that commands are given.

# One of these is there unless all of a store is gone.
_TRACES = ("store.json", "journal.log", "segments")


def check_is_store(path: Path) -> None:
    """Refuse a path where no store is, without making one there.

    Raises:
        StoreError: with the reason.
    """
    if not path.exists():
        raise StoreError(f"{path}: no such directory")
    if not path.is_dir():
        raise StoreError(f"{path}: not a directory; `lance-spark inspect` shows files")
    if not any((path / name).exists() for name in _TRACES):
        raise StoreError(f"{path}: there is no store here (no {', '.join(_TRACES)})")
