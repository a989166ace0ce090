"""The options that every command of a client has, and the client that they make."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from lance_spark.cli.log import shown_log
from lance_spark.cli.quantity import ADDRESSES, DURATION
from lance_spark.client import ClientConfig, LanceClient
from lance_spark.client.config import DURATION_S_MAX

Command = TypeVar("Command", bound=Callable[..., Any])

_TIMEOUT = DURATION.within("1ms", f"{DURATION_S_MAX:.0f}s")

_TLS = ("tls_ca", "tls_cert", "tls_key", "tls_server_name")

# Options by the name of their value; what is said of each, to click.
OPTIONS: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "servers": (
        ("--servers", "-s"),
        {
            "type": ADDRESSES,
            "default": ClientConfig().servers,
            "show_default": True,
            "help": "Addresses, tried in order.",
        },
    ),
    "checksum": (
        ("--checksum",),
        {
            "type": click.Choice(["crc32c", "crc32", "auto"]),
            "default": ClientConfig().checksum,
            "show_default": True,
            "help": "Of frames; servers in the field want crc32.",
        },
    ),
    "tls": (
        ("--tls",),
        {"is_flag": True, "help": "Encrypt; implied by the other --tls options."},
    ),
    "tls_ca": (
        ("--tls-ca",),
        {"metavar": "FILE", "help": "Who signs server certificates, as PEM."},
    ),
    "tls_cert": (
        ("--tls-cert",),
        {"metavar": "FILE", "help": "Our own certificate, as PEM."},
    ),
    "tls_key": (("--tls-key",), {"metavar": "FILE", "help": "Its key, as PEM."}),
    "tls_server_name": (
        ("--tls-server-name",),
        {"metavar": "NAME", "help": "Name in the certificate, if not the host."},
    ),
    "auth_token": (
        ("--token", "auth_token"),
        {
            "envvar": "LANCE_TOKEN",
            "show_envvar": True,
            "help": "Others can see it here; the environment is safer.",
        },
    ),
    "timeout_s": (
        ("--timeout", "timeout_s"),
        {
            "type": _TIMEOUT,
            "default": "30s",
            "show_default": True,
            "help": "How long to wait for a server that does not answer.",
        },
    ),
}


def server_options(command: Command) -> Command:
    """Give a command the options of a server, as one argument `config`.

    The command is called with a `ClientConfig`, which `connected` takes.
    """

    @functools.wraps(command)
    def with_config(**values: Any) -> Any:
        given = {name: values.pop(name) for name in OPTIONS}
        return command(config=make_config(given), **values)

    decorated: Any = with_config
    for declarations, attributes in reversed(list(OPTIONS.values())):
        decorated = click.option(*declarations, **attributes)(decorated)
    result: Command = decorated
    return result


def make_config(given: Mapping[str, Any]) -> ClientConfig:
    """Turn the values of `OPTIONS` into the settings of a client.

    Raises:
        OptionError: they can't be used together.
    """
    usual, timeout_s = ClientConfig(), given["timeout_s"]
    settings = {name: value for name, value in given.items() if name != "timeout_s"}
    settings["tls"] = given["tls"] or any(given[name] is not None for name in _TLS)
    return ClientConfig(
        **settings,
        connect_timeout_s=min(usual.connect_timeout_s, timeout_s),
        request_timeout_s=min(usual.request_timeout_s, timeout_s),
        retry_timeout_s=timeout_s,
    )


@contextmanager
def connected(config: ClientConfig) -> Iterator[LanceClient]:
    """Connect, and show what the client warns of until it is closed.

    A server that can't be reached at the start is an error at once; one that goes
    later is waited for.
    """
    with shown_log(), LanceClient(config=config) as client:
        yield client.connect()
